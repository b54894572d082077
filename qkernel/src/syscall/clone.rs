//! Making processes and threads: `fork(2)`, `clone(2)`, `clone3(2)`.

use abi::word::low32;

use crate::cgroupfs;
use crate::syscall::context::SyscallResult;
use crate::syscall::extensible::read_extensible;
use crate::task::clone::{CloneArgs, CloneFlags, clone_task};
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `clone(2)`, the raw x86-64 call.
pub(super) fn clone(
    cx: &Ctx<'_>,
    flags: u64,
    stack: UserAddr,
    parent_tid: UserAddr,
    child_tid: UserAddr,
    tls: u64,
) -> SyscallResult {
    // Only the low 32 bits are flags of this call; bits that Linux ignores are ignored.
    let bits = CloneFlags::from_bits_truncate(flags & 0xffff_ff00);
    let exit_signal = (flags & 0xff) as u32;
    clone_task(
        cx,
        &CloneArgs {
            flags: bits,
            exit_signal,
            stack,
            tls,
            parent_tid,
            child_tid,
            pidfd: parent_tid,
            group: None,
        },
    )
}

/// `fork(2)`.
pub(super) fn fork(cx: &Ctx<'_>) -> SyscallResult {
    clone(cx, u64::from(crate::signals::SIGCHLD), UserAddr::NULL, UserAddr::NULL, UserAddr::NULL, 0)
}

/// `vfork(2)`.
pub(super) fn vfork(cx: &Ctx<'_>) -> SyscallResult {
    let flags = CloneFlags::VM | CloneFlags::VFORK;
    clone(
        cx,
        flags.bits() | u64::from(crate::signals::SIGCHLD),
        UserAddr::NULL,
        UserAddr::NULL,
        UserAddr::NULL,
        0,
    )
}

/// `struct clone_args`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct Clone3Args {
    flags: u64,
    pidfd: UserAddr,
    child_tid: UserAddr,
    parent_tid: UserAddr,
    exit_signal: u64,
    stack: UserAddr,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// `CLONE_INTO_CGROUP`.
const INTO_CGROUP: u64 = 0x2_0000_0000;
/// Bytes of the struct that has the field `cgroup`.
const CGROUP_VERSION_BYTES: u64 = 88;

/// `clone3(2)`.
pub(super) fn clone3(cx: &Ctx<'_>, args: UserAddr, size: u64) -> SyscallResult {
    let args = read_extensible::<Clone3Args>(cx, args, size, 64)?;
    // The signal is a field of its own: its bits are none of the flags.
    let given = CloneFlags::from_bits(args.flags & !INTO_CGROUP).ok_or(Errno::EINVAL)?;
    let flags = given - CloneFlags::DETACHED;
    let of_cgroup = (args.flags & INTO_CGROUP != 0).then_some(args.cgroup);
    if flags != given
        || (flags.intersects(CloneFlags::THREAD | CloneFlags::PARENT) && args.exit_signal != 0)
        || of_cgroup.is_some_and(|fd| i32::try_from(fd).is_err() || size < CGROUP_VERSION_BYTES)
    {
        return Err(Errno::EINVAL);
    }
    if args.set_tid_size != 0
        || args.set_tid != 0
        || args.exit_signal > 64
        || args.stack.is_null() != (args.stack_size == 0)
    {
        return Err(Errno::EINVAL);
    }
    let group = match of_cgroup {
        Some(fd) => Some(cgroupfs::target(cx, low32(fd).cast_signed())?),
        None => None,
    };
    let stack = args.stack.checked_add(args.stack_size).ok_or(Errno::EINVAL)?;
    let exit_signal = low32(args.exit_signal);
    let Clone3Args { tls, parent_tid, child_tid, pidfd, .. } = args;
    clone_task(cx, &CloneArgs { flags, exit_signal, stack, tls, parent_tid, child_tid, pidfd, group })
}
