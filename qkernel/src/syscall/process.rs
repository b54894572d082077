//! Processes and threads: making them, running programs, waiting for them.

use abi::word::{low32, to_usize};

use crate::fs::walk::AT_FDCWD;
use crate::syscall::context::{KEEP_REGISTERS, SyscallResult};
use crate::task::clone::{CloneArgs, CloneFlags, clone_task};
use crate::task::context::Ctx;
use crate::task::exec;
use crate::task::exec::Program;
use crate::task::exit;
use crate::task::exit::cld_code;
use crate::task::tree::{Report, Tree};
use core::sync::atomic::Ordering;
use machine::errno::{Errno, Result};
use machine::mm::{Pod, UserAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `getpid(2)`.
pub(super) fn getpid(cx: &Ctx<'_>) -> SyscallResult {
    Ok(u64::from(cx.process().pid))
}

/// `gettid(2)`.
pub(super) fn gettid(cx: &Ctx<'_>) -> SyscallResult {
    Ok(u64::from(cx.task.tid()))
}

/// `getppid(2)`.
pub(super) fn getppid(cx: &Ctx<'_>) -> SyscallResult {
    Ok(u64::from(cx.process().parent.load(Ordering::Relaxed)))
}

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
        &CloneArgs { flags: bits, exit_signal, stack, tls, parent_tid, child_tid, pidfd: parent_tid },
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

/// `clone3(2)`.
pub(super) fn clone3(cx: &Ctx<'_>, args: UserAddr, size: u64) -> SyscallResult {
    let args = read_extensible::<Clone3Args>(cx, args, size, 64)?;
    let flags = CloneFlags::from_bits(args.flags).ok_or(Errno::EINVAL)?;
    if args.set_tid_size != 0
        || args.set_tid != 0
        || args.exit_signal > 64
        || args.stack.is_null() != (args.stack_size == 0)
    {
        return Err(Errno::EINVAL);
    }
    let stack = args.stack.checked_add(args.stack_size).ok_or(Errno::EINVAL)?;
    let exit_signal = low32(args.exit_signal);
    let Clone3Args { tls, parent_tid, child_tid, pidfd, .. } = args;
    clone_task(cx, &CloneArgs { flags, exit_signal, stack, tls, parent_tid, child_tid, pidfd })
}

/// Reads a struct that may grow: a shorter one is padded with zeros, and a longer one must be zero behind the known
/// part.
pub(super) fn read_extensible<T: Pod>(cx: &Ctx<'_>, addr: UserAddr, size: u64, least: u64) -> Result<T> {
    if size < least {
        return Err(Errno::EINVAL);
    }
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    let size = to_usize(size);
    let mut value = T::new_zeroed();
    let known = size.min(size_of::<T>());
    cx.user().read_bytes(addr, &mut value.as_mut_bytes()[..known])?;
    if size > known {
        let rest: alloc::vec::Vec<u8> = cx.user().read_array(addr.offset(known as u64), size - known)?;
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Errno::E2BIG);
        }
    }
    Ok(value)
}

/// `execve(2)`.
pub(super) fn execve(cx: &Ctx<'_>, path: UserAddr, argv: UserAddr, envp: UserAddr) -> SyscallResult {
    execveat(cx, AT_FDCWD, path, argv, envp, 0)
}

/// `execveat(2)`.
pub(super) fn execveat(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    argv: UserAddr,
    envp: UserAddr,
    flags: u32,
) -> SyscallResult {
    const ALLOWED: u32 = crate::fs::walk::AT_EMPTY_PATH | crate::fs::walk::AT_SYMLINK_NOFOLLOW;
    if flags & !ALLOWED != 0 {
        return Err(Errno::EINVAL);
    }
    let name = cx.user().read_path(path)?;
    let file = crate::fs::open::open_executable(cx, dirfd, &name, flags)?;
    let mut budget = exec::argument_budget(cx);
    let mut args = exec::read_strings(cx, argv, &mut budget)?;
    let env = exec::read_strings(cx, envp, &mut budget)?;
    if args.is_empty() {
        args.push(alloc::vec::Vec::new());
    }
    let name =
        if name.is_empty() || (dirfd != AT_FDCWD && name[0] != b'/') { fd_name(dirfd, &name) } else { name };
    exec::execute(cx, Program { file, name, args, env })?;
    Err(Errno(KEEP_REGISTERS))
}

/// The file name that a script run by descriptor gets as its argument.
fn fd_name(dirfd: i32, name: &[u8]) -> alloc::vec::Vec<u8> {
    let mut path = alloc::format!("/dev/fd/{dirfd}").into_bytes();
    if !name.is_empty() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    path
}

/// `exit(2)`: of this thread alone. The task leaves at the user boundary.
pub(super) fn exit(cx: &Ctx<'_>, status: i32) -> SyscallResult {
    cx.task.set_exit_status(crate::task::group_exit::exited(status));
    cx.task.set_dying();
    cx.task.call_attention();
    Ok(0)
}

/// `exit_group(2)`.
pub(super) fn exit_group(cx: &Ctx<'_>, status: i32) -> SyscallResult {
    crate::task::group_exit::begin_group_exit(cx.process(), crate::task::group_exit::exited(status));
    Ok(0)
}

/// `set_tid_address(2)`.
pub(super) fn set_tid_address(cx: &Ctx<'_>, addr: UserAddr) -> SyscallResult {
    cx.task.clear_child_tid.store(addr.get(), Ordering::Relaxed);
    Ok(u64::from(cx.task.tid()))
}

/// `arch_prctl(2)`.
pub(super) fn arch_prctl(cx: &Ctx<'_>, code: u32, addr: UserAddr) -> SyscallResult {
    const SET_GS: u32 = 0x1001;
    const SET_FS: u32 = 0x1002;
    const GET_FS: u32 = 0x1003;
    const GET_GS: u32 = 0x1004;
    // The registers are let go before user memory is written, which may sleep.
    let bases = {
        let regs = &mut cx.task.context().run.regs;
        match code {
            SET_FS | SET_GS if !addr.is_user() => return Err(Errno::EPERM),
            SET_FS => regs.fs_base = addr.get(),
            SET_GS => regs.gs_base = addr.get(),
            _ => {}
        }
        (regs.fs_base, regs.gs_base)
    };
    match code {
        SET_FS | SET_GS => {}
        GET_FS => cx.user().write(addr, &bases.0)?,
        GET_GS => cx.user().write(addr, &bases.1)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

const WNOHANG: u32 = 1;
const WUNTRACED: u32 = 2;
const WEXITED: u32 = 4;
const WCONTINUED: u32 = 8;
const WNOWAIT: u32 = 0x0100_0000;
const WNOTHREAD: u32 = 0x2000_0000;
const WALL: u32 = 0x4000_0000;
const WCLONE: u32 = 0x8000_0000;

/// Which children a wait is about.
#[derive(Clone, Copy)]
enum Who {
    Any,
    Pid(u32),
    Group(u32),
}

/// The child that a wait has found.
struct Waited {
    pid: u32,
    uid: u32,
    status: i32,
    report: Option<Report>,
    ticks: (u64, u64),
}

fn find(tree: &mut Tree, me: u32, who: Who, options: u32) -> Result<Option<Waited>> {
    let children = tree.nodes.get(&me).map(|node| node.children.clone()).unwrap_or_default();
    let mut any = false;
    for pid in children {
        let Some(node) = tree.nodes.get_mut(&pid) else { continue };
        let matches = match who {
            Who::Any => true,
            Who::Pid(wanted) => pid == wanted,
            Who::Group(group) => node.group == group,
        };
        let clone_child = node.process.exit_signal.load(Ordering::Relaxed) != crate::signals::SIGCHLD;
        let kind = options & WALL != 0 || clone_child == (options & WCLONE != 0);
        if !matches || !kind {
            continue;
        }
        any = true;
        let wanted_report = match node.report {
            Some(Report::Stopped(_)) => options & WUNTRACED != 0,
            Some(Report::Continued) => options & WCONTINUED != 0,
            None => false,
        };
        let ended = node.exit_status.filter(|_| options & WEXITED != 0);
        if ended.is_none() && !wanted_report {
            continue;
        }
        let report = if ended.is_some() { None } else { node.report };
        if report.is_some() && options & WNOWAIT == 0 {
            node.report = None;
        }
        let ticks = node.process.cpu_ticks();
        return Ok(Some(Waited { pid, uid: node.uid, status: ended.unwrap_or(0), report, ticks }));
    }
    if any { Ok(None) } else { Err(Errno::ECHILD) }
}

fn wait(cx: &Ctx<'_>, who: Who, options: u32) -> Result<Option<Waited>> {
    let me = cx.process().pid;
    let look = || match find(&mut cx.container().tree.lock(), me, who, options) {
        Ok(None) if options & WNOHANG == 0 => None,
        result => Some(result),
    };
    let waited = cx.process().child_wait.wait(look)??;
    if let Some(child) = &waited
        && child.report.is_none()
        && options & WNOWAIT == 0
    {
        exit::reap(cx.container(), child.pid);
    }
    Ok(waited)
}

/// `wait4(2)`.
pub(super) fn wait4(
    cx: &Ctx<'_>,
    pid: i32,
    status: UserAddr,
    options: u32,
    usage: UserAddr,
) -> SyscallResult {
    if options & !(WNOHANG | WUNTRACED | WCONTINUED | WNOTHREAD | WALL | WCLONE) != 0 {
        return Err(Errno::EINVAL);
    }
    let who = match pid {
        -1 => Who::Any,
        0 => Who::Group(cx.container().tree.lock().nodes.get(&cx.process().pid).map_or(0, |node| node.group)),
        i32::MIN => return Err(Errno::ESRCH),
        pid if pid < 0 => Who::Group(pid.unsigned_abs()),
        pid => Who::Pid(pid.unsigned_abs()),
    };
    let Some(child) = wait(cx, who, options | WEXITED)? else { return Ok(0) };
    let word = match child.report {
        Some(Report::Stopped(signal)) => signal.cast_signed() << 8 | 0x7f,
        Some(Report::Continued) => 0xffff,
        None => child.status,
    };
    cx.user().write_opt(status, &word)?;
    if !usage.is_null() {
        cx.user().write(usage, &crate::task::usage::rusage(child.ticks))?;
    }
    Ok(u64::from(child.pid))
}

/// What `waitid(2)` is given to wait for, a `pid_t`: nothing that it can stand for is negative. Kind 0, all children, does
/// not look at it.
fn id_argument(kind: u32, id: i32) -> Result<u32> {
    if kind == 0 { Ok(0) } else { u32::try_from(id).map_err(|_| Errno::EINVAL) }
}

/// `waitid(2)`.
pub(super) fn waitid(
    cx: &Ctx<'_>,
    kind: u32,
    id: i32,
    info: UserAddr,
    options: u32,
    usage: UserAddr,
) -> SyscallResult {
    let known = WNOHANG | WNOWAIT | WEXITED | WUNTRACED | WCONTINUED | WNOTHREAD | WALL | WCLONE;
    if options & !known != 0 || options & (WEXITED | WUNTRACED | WCONTINUED) == 0 {
        return Err(Errno::EINVAL);
    }
    let id = id_argument(kind, id)?;
    let who = match kind {
        0 => Who::Any,
        1 if id != 0 => Who::Pid(id),
        2 if id == 0 => {
            Who::Group(cx.container().tree.lock().nodes.get(&cx.process().pid).map_or(0, |node| node.group))
        }
        2 => Who::Group(id),
        3 => Who::Pid(crate::syscall::watch::pid_process(cx, id.cast_signed())?.pid),
        _ => return Err(Errno::EINVAL),
    };
    let child = wait(cx, who, options)?;
    if !info.is_null() {
        cx.user().write(info, &child_info(child.as_ref()))?;
    }
    if let (Some(child), true) = (&child, !usage.is_null()) {
        cx.user().write(usage, &crate::task::usage::rusage(child.ticks))?;
    }
    Ok(0)
}

/// `siginfo_t` of a waited-for child; all zero when there was none.
fn child_info(child: Option<&Waited>) -> [u32; 32] {
    const CLD_STOPPED: i32 = 5;
    const CLD_CONTINUED: i32 = 6;
    let mut info = [0u32; 32];
    if let Some(child) = child {
        let (code, status) = match child.report {
            Some(Report::Stopped(signal)) => (CLD_STOPPED, signal.cast_signed()),
            Some(Report::Continued) => (CLD_CONTINUED, crate::signals::SIGCONT.cast_signed()),
            None => cld_code(child.status),
        };
        info[0] = crate::signals::SIGCHLD;
        info[2] = code.cast_unsigned();
        info[4] = child.pid;
        info[5] = child.uid;
        info[6] = status.cast_unsigned();
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_process_group_or_descriptor_is_negative() {
        assert_eq!(id_argument(0, -1), Ok(0));
        for kind in 1..=3 {
            assert_eq!(id_argument(kind, 7), Ok(7));
            assert_eq!(id_argument(kind, -1), Err(Errno::EINVAL));
            assert_eq!(id_argument(kind, i32::MIN), Err(Errno::EINVAL));
        }
    }
}
