//! `fcntl(2)`.

use abi::word::low32;

use crate::creds::CAP_SYS_RESOURCE;
use crate::fs::file::{File, OpenFlags};
use crate::syscall::context::SyscallResult;
use crate::syscall::dup::limit;
use crate::syscall::lock;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

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
            if least as u64 >= limit(cx) {
                return Err(Errno::EINVAL);
            }
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
