//! `fcntl(2)`.

use core::sync::atomic::Ordering;

use abi::word::low32;

use crate::creds::CAP_SYS_RESOURCE;
use crate::fs::file::OpenFlags;
use crate::syscall::context::SyscallResult;
use crate::syscall::dup::limit;
use crate::syscall::io_signals::{self, F_GETOWN_EX, F_GETSIG, F_SETOWN, F_SETOWN_EX};
use crate::syscall::lock;
use crate::task::context::Ctx;
use crate::task::pidfd::{self, PidFile};
use machine::errno::Errno;
use machine::mm::UserAddr;

const F_DUPFD: u32 = 0;
const F_GETFD: u32 = 1;
const F_SETFD: u32 = 2;
const F_GETFL: u32 = 3;
const F_SETFL: u32 = 4;
const F_SETLEASE: u32 = 1024;
const F_GETLEASE: u32 = 1025;
const F_NOTIFY: u32 = 1026;
const F_DUPFD_QUERY: u32 = 1027;
const F_DUPFD_CLOEXEC: u32 = 1030;
const F_SETPIPE_SZ: u32 = 1031;
const F_GETPIPE_SZ: u32 = 1032;
const F_ADD_SEALS: u32 = 1033;
const F_GET_SEALS: u32 = 1034;
const F_GET_RW_HINT: u32 = 1035;
const F_SET_RW_HINT: u32 = 1036;
/// The longest life of what is written to a file (`RWH_WRITE_LIFE_EXTREME`).
const LIFE_EXTREME: u8 = 5;
const FD_CLOEXEC: u64 = 1;

/// `fcntl(2)`.
pub(super) fn fcntl(cx: &Ctx<'_>, fd: i32, command: u32, arg: u64) -> SyscallResult {
    let descriptor = cx.files().descriptor(fd)?;
    let file = &descriptor.file;
    let of_path = matches!(command, F_DUPFD | F_DUPFD_QUERY | F_DUPFD_CLOEXEC | F_GETFD | F_SETFD | F_GETFL);
    if file.flags().contains(OpenFlags::PATH) && !of_path {
        return Err(Errno::EBADF);
    }
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            let least = usize::try_from(low32(arg).cast_signed()).map_err(|_| Errno::EINVAL)?;
            if least as u64 >= limit(cx) {
                return Err(Errno::EINVAL);
            }
            let fd = cx.files().insert(file.clone(), command == F_DUPFD_CLOEXEC, least, limit(cx))?;
            Ok(u64::from(fd.cast_unsigned()))
        }
        F_DUPFD_QUERY => {
            let other = cx.opened(low32(arg).cast_signed())?;
            Ok(u64::from(core::ptr::eq(&**file, &raw const *other)))
        }
        F_GETFD => Ok(u64::from(descriptor.close_on_exec)),
        F_SETFD => cx.files().set_close_on_exec(fd, arg & FD_CLOEXEC != 0).map(|()| 0),
        F_GETFL => {
            let is_of_thread = file.as_ops::<PidFile>().is_some_and(PidFile::is_of_thread);
            let shown = if is_of_thread { pidfd::THREAD } else { OpenFlags::empty() };
            Ok(u64::from((file.flags() | shown).bits()))
        }
        F_SETFL => {
            let mut flags = OpenFlags::from_bits_truncate(low32(arg));
            let is_async = io_signals::switch(cx, file, fd, flags)?;
            flags.set(OpenFlags::ASYNC, is_async);
            file.set_flags(flags).map(|()| 0)
        }
        F_SETOWN..=F_GETSIG | F_SETOWN_EX | F_GETOWN_EX => io_signals::command(cx, file, command, arg),
        F_SETLEASE => io_signals::set_lease(cx, file, fd, low32(arg)),
        F_GETLEASE => Ok(io_signals::lease(file)),
        F_NOTIFY => Err(Errno::EINVAL),
        F_SETPIPE_SZ => {
            let privileged = cx.task.creds.get().has(CAP_SYS_RESOURCE);
            file.ops.set_pipe_size(u64::from(low32(arg)), privileged)
        }
        F_GETPIPE_SZ => file.ops.pipe_size(),
        F_ADD_SEALS if !file.flags().writable() => Err(Errno::EPERM),
        F_ADD_SEALS => file.ops.add_seals(low32(arg)).map(|()| 0),
        F_GET_SEALS => file.ops.seals().map(u64::from),
        F_GET_RW_HINT => {
            let life = u64::from(file.write_life.load(Ordering::Relaxed));
            cx.user().write(UserAddr::new(arg), &life).map(|()| 0)
        }
        F_SET_RW_HINT => {
            let life: u64 = cx.user().read(UserAddr::new(arg))?;
            let life = u8::try_from(life).ok().filter(|life| *life <= LIFE_EXTREME).ok_or(Errno::EINVAL)?;
            file.write_life.store(life, Ordering::Relaxed);
            Ok(0)
        }
        _ => lock::fcntl_lock(cx, file, fd, command, UserAddr::new(arg)),
    }
}
