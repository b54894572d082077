//! Descriptors: duplicating them, `fcntl(2)`, `ioctl(2)`.

use abi::word::low32;

use crate::config::NR_OPEN;
use crate::creds::CAP_SYS_RESOURCE;
use crate::fs::file::{File, OpenFlags, Whence};
use crate::fs::inode::S_IFREG;
use crate::limits::RLIMIT_NOFILE;
use crate::syscall::context::SyscallResult;
use crate::syscall::lock;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

fn limit(cx: &Ctx<'_>) -> u64 {
    cx.limit(RLIMIT_NOFILE).min(NR_OPEN)
}

/// `dup(2)`.
pub(super) fn dup(cx: &Ctx<'_>, fd: i32) -> SyscallResult {
    cx.install(cx.file(fd)?, false)
}

fn duplicate_to(cx: &Ctx<'_>, old: i32, new: i32, close_on_exec: bool) -> SyscallResult {
    let file = cx.file(old)?;
    if let Some(closed) = cx.files().replace(new, file, close_on_exec, limit(cx))? {
        cx.files().closed(closed);
    }
    Ok(u64::from(new.cast_unsigned()))
}

/// `dup2(2)`.
pub(super) fn dup2(cx: &Ctx<'_>, old: i32, new: i32) -> SyscallResult {
    if old == new {
        cx.file(old)?;
        return Ok(u64::from(new.cast_unsigned()));
    }
    duplicate_to(cx, old, new, false)
}

/// `dup3(2)`.
pub(super) fn dup3(cx: &Ctx<'_>, old: i32, new: i32, flags: u32) -> SyscallResult {
    let flags = OpenFlags::from_bits_retain(flags);
    if old == new || !OpenFlags::CLOEXEC.contains(flags) {
        return Err(Errno::EINVAL);
    }
    duplicate_to(cx, old, new, flags.contains(OpenFlags::CLOEXEC))
}

const F_DUPFD: u32 = 0;
const F_GETFD: u32 = 1;
const F_SETFD: u32 = 2;
const F_GETFL: u32 = 3;
const F_SETFL: u32 = 4;
const F_SETOWN: u32 = 8;
const F_GETOWN: u32 = 9;
const F_SETSIG: u32 = 10;
const F_GETSIG: u32 = 11;
const F_SETOWN_EX: u32 = 15;
const F_GETOWN_EX: u32 = 16;
const F_SETLEASE: u32 = 1024;
const F_GETLEASE: u32 = 1025;
const F_NOTIFY: u32 = 1026;
const F_DUPFD_CLOEXEC: u32 = 1030;
const F_SETPIPE_SZ: u32 = 1031;
const F_GETPIPE_SZ: u32 = 1032;
const F_ADD_SEALS: u32 = 1033;
const F_GET_SEALS: u32 = 1034;
const FD_CLOEXEC: u64 = 1;
const F_UNLCK: u64 = 2;

/// `struct f_owner_ex`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct OwnerEx {
    kind: i32,
    id: i32,
}

/// `fcntl(2)`.
pub(super) fn fcntl(cx: &Ctx<'_>, fd: i32, command: u32, arg: u64) -> SyscallResult {
    let descriptor = cx.files().descriptor(fd)?;
    let file = &descriptor.file;
    let of_path = matches!(command, F_DUPFD | F_DUPFD_CLOEXEC | F_GETFD | F_SETFD | F_GETFL);
    if file.flags().contains(OpenFlags::PATH) && !of_path {
        return Err(Errno::EBADF);
    }
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            let least = usize::try_from(low32(arg).cast_signed()).map_err(|_| Errno::EINVAL)?;
            let fd = cx.files().insert(file.clone(), command == F_DUPFD_CLOEXEC, least, limit(cx))?;
            Ok(u64::from(fd.cast_unsigned()))
        }
        F_GETFD => Ok(u64::from(descriptor.close_on_exec)),
        F_SETFD => cx.files().set_close_on_exec(fd, arg & FD_CLOEXEC != 0).map(|()| 0),
        F_GETFL => Ok(u64::from(file.flags().bits())),
        F_SETFL => file.set_flags(OpenFlags::from_bits_truncate(low32(arg))).map(|()| 0),
        F_SETOWN..=F_GETSIG | F_SETOWN_EX | F_GETOWN_EX => owner(cx, file, command, arg),
        F_SETLEASE => Err(if arg == F_UNLCK { Errno::EAGAIN } else { Errno::EINVAL }),
        F_GETLEASE => Ok(F_UNLCK),
        F_NOTIFY => Err(Errno::EINVAL),
        F_SETPIPE_SZ => {
            let privileged = cx.task.creds.get().has(CAP_SYS_RESOURCE);
            file.ops.set_pipe_size(u64::from(low32(arg)), privileged)
        }
        F_GETPIPE_SZ => file.ops.pipe_size(),
        F_ADD_SEALS if !file.flags().writable() => Err(Errno::EPERM),
        F_ADD_SEALS => file.ops.add_seals(low32(arg)).map(|()| 0),
        F_GET_SEALS => file.ops.seals().map(u64::from),
        _ => lock::fcntl_lock(cx, file, command, UserAddr::new(arg)),
    }
}

/// `F_SETOWN`, `F_SETSIG` and the like: the receiver of signals about I/O.
fn owner(cx: &Ctx<'_>, file: &File, command: u32, arg: u64) -> SyscallResult {
    let (owner, signal) = *file.owner.lock();
    match command {
        F_SETOWN => {
            let id = low32(arg).cast_signed();
            if id == i32::MIN {
                return Err(Errno::EINVAL);
            }
            file.owner.lock().0 = id;
        }
        F_GETOWN => return Ok(i64::from(owner).cast_unsigned()),
        F_SETSIG => {
            let signal = u32::try_from(arg).ok().filter(|signal| *signal <= 64).ok_or(Errno::EINVAL)?;
            file.owner.lock().1 = signal;
        }
        F_GETSIG => return Ok(u64::from(signal)),
        F_SETOWN_EX => {
            let new: OwnerEx = cx.user().read(UserAddr::new(arg))?;
            file.owner.lock().0 = match new.kind {
                0 | 1 if new.id < 0 => return Err(Errno::EINVAL),
                0 | 1 => new.id,
                2 => new.id.checked_neg().ok_or(Errno::EINVAL)?,
                _ => return Err(Errno::EINVAL),
            };
        }
        _ => {
            let (kind, id) = if owner < 0 { (2, owner.wrapping_neg()) } else { (1, owner) };
            cx.user().write(UserAddr::new(arg), &OwnerEx { kind, id })?;
        }
    }
    Ok(0)
}

const FIONREAD: u32 = 0x541b;
const FIONBIO: u32 = 0x5421;
const FIONCLEX: u32 = 0x5450;
const FIOCLEX: u32 = 0x5451;
const FIOASYNC: u32 = 0x5452;

/// `ioctl(2)`: requests that every file has are handled here, the others by the file.
pub(super) fn ioctl(cx: &Ctx<'_>, fd: i32, request: u32, arg: u64) -> SyscallResult {
    let file = cx.file(fd)?;
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    match request {
        FIOCLEX | FIONCLEX => cx.files().set_close_on_exec(fd, request == FIOCLEX)?,
        FIONBIO => switch_flag(cx, &file, OpenFlags::NONBLOCK, UserAddr::new(arg))?,
        FIOASYNC => switch_flag(cx, &file, OpenFlags::ASYNC, UserAddr::new(arg))?,
        FIONREAD if file.ops.is_seekable() => {
            let stat = file.ops.stat(&file)?;
            if stat.kind() != S_IFREG {
                return file.ops.ioctl(cx, &file, request, arg);
            }
            let position = file.ops.seek(&file, 0, Whence::Current)?;
            let left = stat.size.saturating_sub(position);
            cx.user().write(UserAddr::new(arg), &i32::try_from(left).unwrap_or(i32::MAX))?;
        }
        _ => return file.ops.ioctl(cx, &file, request, arg),
    }
    Ok(0)
}

fn switch_flag(cx: &Ctx<'_>, file: &File, flag: OpenFlags, from: UserAddr) -> Result<()> {
    let on: i32 = cx.user().read(from)?;
    let mut flags = file.flags();
    flags.set(flag, on != 0);
    file.set_flags(flags)
}
