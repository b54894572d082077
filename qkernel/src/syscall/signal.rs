//! Signals: dispositions, masks, sending, waiting.

use abi::word::to_usize;

use crate::creds::{CAP_KILL, Creds};
use crate::signals::{SIGCONT, SIGRTMAX, Source, UNBLOCKABLE};
use crate::syscall::context::{KEEP_REGISTERS, SyscallResult};
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::process::Process;
use crate::task::signal;
use crate::task::signal::action::Action;
use crate::task::signal::altstack::{StackT, change_alt_stack};
use crate::task::signal::info::SigInfo;
use crate::task::signal::mask::change_mask;
use crate::task::signal::send::Sent;

use alloc::sync::Arc;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::sched;
use machine::time;

/// Bytes of the kernel's signal set.
const SET_BYTES: u64 = 8;

fn check_set_size(size: u64) -> Result<()> {
    if size == SET_BYTES { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `rt_sigaction(2)`.
pub(super) fn rt_sigaction(
    cx: &Ctx<'_>,
    number: u32,
    new: UserAddr,
    old: UserAddr,
    size: u64,
) -> SyscallResult {
    check_set_size(size)?;
    let new: Option<Action> = cx.user().read_opt(new)?;
    let caught = new.is_some() && number <= SIGRTMAX && crate::signals::bit(number.max(1)) & UNBLOCKABLE != 0;
    if !crate::signals::is_valid(number) || caught {
        return Err(Errno::EINVAL);
    }
    let former = match new {
        Some(action) => signal::set_action(cx.process(), number, action),
        None => cx.process().sighand.get().get(number),
    };
    cx.user().write_opt(old, &former)?;
    Ok(0)
}

/// `rt_sigprocmask(2)`.
pub(super) fn rt_sigprocmask(
    cx: &Ctx<'_>,
    how: u32,
    new: UserAddr,
    old: UserAddr,
    size: u64,
) -> SyscallResult {
    check_set_size(size)?;
    let former = cx.task.signals.lock().blocked;
    if let Some(set) = cx.user().read_opt::<u64>(new)? {
        signal::set_blocked(cx.task, change_mask(former, how, set & !UNBLOCKABLE)?);
    }
    cx.user().write_opt(old, &former)?;
    Ok(0)
}

/// `rt_sigpending(2)`.
pub(super) fn rt_sigpending(cx: &Ctx<'_>, set: UserAddr, size: u64) -> SyscallResult {
    if size > SET_BYTES {
        return Err(Errno::EINVAL);
    }
    let pending = signal::pending_set(cx.task) & cx.task.signals.lock().blocked;
    cx.user().write_bytes(set, &pending.to_le_bytes()[..to_usize(size)])?;
    Ok(0)
}

/// `rt_sigsuspend(2)`.
pub(super) fn rt_sigsuspend(cx: &Ctx<'_>, mask: UserAddr, size: u64) -> SyscallResult {
    check_set_size(size)?;
    let mask: u64 = cx.user().read(mask)?;
    signal::with_temporary_mask(cx.task, Some(mask), sleep_for_signal)
}

/// `pause(2)`.
pub(super) fn pause(_cx: &Ctx<'_>) -> SyscallResult {
    sleep_for_signal()
}

fn sleep_for_signal() -> SyscallResult {
    let _ = sched::sleep_until(sched::Sleep::Interruptible, None, || None::<()>);
    Err(Errno::RESTART_NOHAND)
}

/// `rt_sigtimedwait(2)`.
pub(super) fn rt_sigtimedwait(
    cx: &Ctx<'_>,
    set: UserAddr,
    info: UserAddr,
    timeout: UserAddr,
    size: u64,
) -> SyscallResult {
    check_set_size(size)?;
    let set: u64 = cx.user().read(set)?;
    let timeout = crate::syscall::time::read_timespec_opt(cx, timeout)?;
    let deadline = timeout.map(|ns| time::monotonic_ns().saturating_add(ns));
    let taken = signal::wait_for_signal(cx.task, set & !UNBLOCKABLE, deadline)?;
    if !info.is_null() {
        cx.user().write_bytes(info, &taken.to_bytes())?;
    }
    Ok(u64::from(taken.signal))
}

/// `rt_sigreturn(2)`.
pub(super) fn rt_sigreturn(cx: &Ctx<'_>) -> SyscallResult {
    if signal::return_from_handler(cx.task, cx.user()).is_err() {
        signal::refuse_frame(cx.task, 0);
    }
    Err(Errno(KEEP_REGISTERS))
}

/// `sigaltstack(2)`.
pub(super) fn sigaltstack(cx: &Ctx<'_>, new: UserAddr, old: UserAddr) -> SyscallResult {
    let new: Option<StackT> = cx.user().read_opt(new)?;
    let sp = cx.task.context().run.regs.rsp;
    let former = {
        let mut signals = cx.task.signals.lock();
        let former = signals.alt_stack.described(sp);
        if let Some(new) = new {
            signals.alt_stack = change_alt_stack(&signals.alt_stack, &new, sp)?;
        }
        former
    };
    cx.user().write_opt(old, &former)?;
    Ok(0)
}

/// A signal number that may be 0: then only permission is checked.
fn check_number(number: u32) -> Result<()> {
    if number <= SIGRTMAX { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Whether the caller may signal a process with these ids.
fn may_signal(me: &Creds, uid: u32, suid: u32) -> bool {
    [me.euid, me.uid].iter().any(|id| *id == uid || *id == suid) || me.has(CAP_KILL)
}

fn check_permission(cx: &Ctx<'_>, target: &Arc<Process>, number: u32) -> Result<()> {
    check_number(number)?;
    if Arc::ptr_eq(target, cx.process()) {
        return Ok(());
    }
    let me = cx.task.creds.get();
    let (uid, suid) = match target.any_task() {
        Some(task) => {
            let creds = task.creds.get();
            (creds.uid, creds.suid)
        }
        None => {
            let uid = cx.container().tree.lock().nodes.get(&target.pid).map_or(0, |node| node.uid);
            (uid, uid)
        }
    };
    let same_session = || {
        let tree = cx.container().tree.lock();
        let session = |pid: u32| tree.nodes.get(&pid).map(|node| node.session);
        session(target.pid) == session(cx.process().pid)
    };
    if may_signal(&me, uid, suid) || (number == SIGCONT && same_session()) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Sends a signal after checking permission; number 0 only checks. Also for `pidfd_send_signal(2)`.
pub(super) fn signal_process(cx: &Ctx<'_>, target: &Arc<Process>, number: u32, source: Source) -> Result<()> {
    check_permission(cx, target, number)?;
    send(target, None, number, source)
}

fn send(target: &Arc<Process>, task: Option<&Arc<Task>>, number: u32, source: Source) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    match signal::send(target, task, SigInfo { signal: number, source }) {
        Sent::Full => Err(Errno::EAGAIN),
        _ => Ok(()),
    }
}

fn from_me(cx: &Ctx<'_>) -> Source {
    Source::User { pid: cx.process().pid, uid: cx.task.creds.get().uid }
}

/// Signals many processes: success if one of them could be signalled, `ESRCH` if there are none.
fn signal_many(cx: &Ctx<'_>, targets: &[Arc<Process>], number: u32) -> SyscallResult {
    let mut result = Err(Errno::ESRCH);
    for target in targets {
        match signal_process(cx, target, number, from_me(cx)) {
            Ok(()) => result = Ok(0),
            Err(error) if result.is_err() => result = Err(error),
            Err(_) => {}
        }
    }
    result
}

/// `kill(2)`.
pub(super) fn kill(cx: &Ctx<'_>, pid: i32, number: u32) -> SyscallResult {
    let me = cx.process().pid;
    match pid {
        i32::MIN => Err(Errno::ESRCH),
        -1 => {
            let targets: alloc::vec::Vec<Arc<Process>> = {
                let tree = cx.container().tree.lock();
                let others = tree.nodes.iter().filter(|(pid, _)| **pid != me && **pid != 1);
                others.map(|(_, node)| node.process.clone()).collect()
            };
            signal_many(cx, &targets, number)
        }
        pid if pid <= 0 => {
            let targets = {
                let tree = cx.container().tree.lock();
                let own = tree.nodes.get(&me).map_or(0, |node| node.group);
                tree.group_members(if pid == 0 { own } else { pid.unsigned_abs() })
            };
            signal_many(cx, &targets, number)
        }
        pid => {
            let target = cx.container().find_process(pid.unsigned_abs()).or_else(|| {
                // As on Linux a thread's id stands for its process.
                cx.container().find_task(pid.unsigned_abs()).map(|task| task.process.clone())
            });
            signal_process(cx, &target.ok_or(Errno::ESRCH)?, number, from_me(cx))?;
            Ok(0)
        }
    }
}

fn signal_thread(cx: &Ctx<'_>, tgid: Option<u32>, tid: i32, number: u32, source: Source) -> SyscallResult {
    let tid = u32::try_from(tid).ok().filter(|tid| *tid != 0).ok_or(Errno::EINVAL)?;
    let task = cx.container().find_task(tid).ok_or(Errno::ESRCH)?;
    if tgid.is_some_and(|tgid| tgid != task.process.pid) {
        return Err(Errno::ESRCH);
    }
    check_permission(cx, &task.process, number)?;
    send(&task.process, Some(&task), number, source)?;
    Ok(0)
}

fn thread_source(cx: &Ctx<'_>) -> Source {
    Source::Thread { pid: cx.process().pid, uid: cx.task.creds.get().uid }
}

/// `tkill(2)`.
pub(super) fn tkill(cx: &Ctx<'_>, tid: i32, number: u32) -> SyscallResult {
    signal_thread(cx, None, tid, number, thread_source(cx))
}

/// `tgkill(2)`.
pub(super) fn tgkill(cx: &Ctx<'_>, tgid: i32, tid: i32, number: u32) -> SyscallResult {
    let tgid = u32::try_from(tgid).ok().filter(|tgid| *tgid != 0).ok_or(Errno::EINVAL)?;
    signal_thread(cx, Some(tgid), tid, number, thread_source(cx))
}

/// Reads the information a program attaches to a signal it sends. Only towards itself may a process pretend that the
/// kernel or `kill(2)` sent it.
pub(super) fn read_info(cx: &Ctx<'_>, number: u32, info: UserAddr, to_self: bool) -> Result<Source> {
    const SI_TKILL: i32 = -6;
    let info = SigInfo::from_user(number, &cx.user().read(info)?);
    if (info.code() >= 0 || info.code() == SI_TKILL) && !to_self {
        return Err(Errno::EPERM);
    }
    Ok(info.source)
}

/// `rt_sigqueueinfo(2)`.
pub(super) fn rt_sigqueueinfo(cx: &Ctx<'_>, pid: i32, number: u32, info: UserAddr) -> SyscallResult {
    let pid = u32::try_from(pid).unwrap_or(0);
    let source = read_info(cx, number, info, pid == cx.process().pid)?;
    let target = cx.container().find_process(pid).ok_or(Errno::ESRCH)?;
    signal_process(cx, &target, number, source)?;
    Ok(0)
}

/// `rt_tgsigqueueinfo(2)`.
pub(super) fn rt_tgsigqueueinfo(
    cx: &Ctx<'_>,
    tgid: i32,
    tid: i32,
    number: u32,
    info: UserAddr,
) -> SyscallResult {
    let tgid = u32::try_from(tgid).ok().filter(|tgid| *tgid != 0).ok_or(Errno::EINVAL)?;
    let source = read_info(cx, number, info, tgid == cx.process().pid)?;
    signal_thread(cx, Some(tgid), tid, number, source)
}

/// `restart_syscall(2)`: goes on with an interrupted sleep.
pub(super) fn restart_syscall(cx: &Ctx<'_>) -> SyscallResult {
    use crate::task::signal::state::Restart;
    let restart = cx.task.restart.lock().take();
    match restart {
        Some(Restart::Sleep { clock, deadline_ns, remainder }) => {
            crate::syscall::time::sleep_on(cx, clock, deadline_ns, remainder)
        }
        Some(Restart::Futex { addr, value, deadline_ns, bitset, private }) => {
            crate::syscall::futex::wait_again(cx, addr, value, deadline_ns, bitset, private)
        }
        Some(Restart::Poll { fds, count, deadline_ns }) => {
            crate::syscall::poll::poll_until(cx, fds, count, deadline_ns)
        }
        None => Err(Errno::EINTR),
    }
}
