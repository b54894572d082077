//! `ioctl(2)`.

use alloc::sync::Arc;

use crate::fs::file::{File, OpenFlags, Whence};
use crate::fs::inode::S_IFREG;
use crate::syscall::context::SyscallResult;
use crate::syscall::file_ioctl;
use crate::syscall::io_signals;
use crate::syscall::pidfd;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

const FIONREAD: u32 = 0x541b;
const FIONBIO: u32 = 0x5421;
const FIONCLEX: u32 = 0x5450;
const FIOCLEX: u32 = 0x5451;
const FIOASYNC: u32 = 0x5452;

/// `ioctl(2)`: requests that every file has are handled here, the others by the file.
pub(super) fn ioctl(cx: &Ctx<'_>, fd: i32, request: u32, arg: u64) -> SyscallResult {
    let file = cx.opened(fd)?;
    match request {
        FIOCLEX | FIONCLEX => cx.files().set_close_on_exec(fd, request == FIOCLEX)?,
        FIONBIO => switch_flag(cx, &file, fd, OpenFlags::NONBLOCK, UserAddr::new(arg))?,
        FIOASYNC => switch_flag(cx, &file, fd, OpenFlags::ASYNC, UserAddr::new(arg))?,
        FIONREAD if file.ops.is_seekable() => {
            let stat = file.ops.stat(&file)?;
            if stat.kind() != S_IFREG {
                return file.ops.ioctl(cx, &file, request, arg);
            }
            let position = file.ops.seek(&file, 0, Whence::Current)?;
            let left = stat.size.saturating_sub(position);
            cx.user().write(UserAddr::new(arg), &i32::try_from(left).unwrap_or(i32::MAX))?;
        }
        _ => {
            let known = io_signals::ioctl(cx, &file, request, arg);
            let known = known.or_else(|| file_ioctl::ioctl(cx, &file, request, arg));
            let known = known.or_else(|| pidfd::ioctl(cx, &file, request, arg));
            return known.unwrap_or_else(|| file.ops.ioctl(cx, &file, request, arg));
        }
    }
    Ok(0)
}

fn switch_flag(cx: &Ctx<'_>, file: &Arc<File>, fd: i32, flag: OpenFlags, from: UserAddr) -> Result<()> {
    let on: i32 = cx.user().read(from)?;
    let mut flags = file.flags();
    flags.set(flag, on != 0);
    if io_signals::switch(cx, file, fd, flags)? != flags.contains(OpenFlags::ASYNC) {
        return Err(Errno::ENOTTY);
    }
    file.set_flags(flags)
}
