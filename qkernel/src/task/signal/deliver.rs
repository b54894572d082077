//! Delivery: what happens on the way back to user code.

use alloc::sync::Arc;
use core::ops::ControlFlow;
use core::sync::atomic::Ordering;

use crate::signals::{SIGSEGV, STOPPING, Source, bit};
use crate::task::core::Task;
use crate::task::signal::action::{Action, DefaultAction, SA_RESETHAND, SA_RESTART, SIG_DFL, SIG_IGN};
use crate::task::signal::altstack::AltStack;
use crate::task::signal::fault::force;
use crate::task::signal::info::SigInfo;
use crate::task::signal::mask::restore_mask;
use crate::task::signal::send::kill_process;
use crate::task::signal::{continued, frame, stop};
use crate::task::{exit, itimer, pause, sequences};
use abi::run::UserRegs;
use machine::errno::Errno;
use machine::mm::AddressSpace;

/// Bytes of the system call instruction.
const SYSCALL_BYTES: u64 = 2;

/// Handles what is pending before user code runs. `Break`: the task ends.
pub fn deliver_pending(task: &Arc<Task>) -> ControlFlow<()> {
    correct(task, |aspace, regs| aspace.hide_slots(regs));
    loop {
        // First of all, so that whatever comes from now on is noticed.
        task.clear_attention();
        if task.process.is_exiting() || task.is_dying() {
            exit::exit_task(task, task.exit_status());
            return ControlFlow::Break(());
        }
        if continued::is_stopped(&task.process) {
            stop::rest(task);
            continue;
        }
        if pause::is_to_rest(task) {
            // It rests first, and then comes back.
            task.call_attention();
            return ControlFlow::Continue(());
        }
        let Some((info, action)) = next(task) else { break };
        if action.handler != SIG_DFL {
            run_handler(task, &info, &action);
            continue;
        }
        if task.process.is_protected.load(Ordering::Relaxed) {
            // It came while it was blocked.
            continue;
        }
        match DefaultAction::of(info.signal) {
            DefaultAction::Ignore | DefaultAction::Continue => {}
            DefaultAction::Stop => stop::begin(&task.process, info.signal),
            // No core is ever written, so the status says so.
            DefaultAction::Terminate | DefaultAction::Core => kill_process(&task.process, info.signal),
        }
    }
    settle_call(task, None);
    restore_mask(task);
    ControlFlow::Continue(())
}

/// Has `change` make registers of the current task what a program may see that knows nothing of patched call sites.
pub fn correct<R>(task: &Task, change: impl FnOnce(&AddressSpace, &mut UserRegs) -> R) -> Option<R> {
    let aspace = task.aspace()?;
    // It may wait, and nobody may hold the registers then.
    let before = task.context().run.regs;
    let mut regs = before;
    let result = change(&aspace, &mut regs);
    if regs != before {
        task.context().run.regs = regs;
    }
    Some(result)
}

/// Takes the next signal that isn't ignored, with what is to be done about it.
fn next(task: &Arc<Task>) -> Option<(SigInfo, Action)> {
    let sighand = task.process.sighand.get();
    loop {
        let (info, action) = {
            let mut shared = task.process.pending.lock();
            let mut own = task.signals.lock();
            let open = !own.blocked;
            let info = own.pending.take(open).or_else(|| shared.take(open))?;
            let action = sighand.get(info.signal);
            if action.handler == SIG_DFL && bit(info.signal) & STOPPING != 0 {
                stop::request(&task.process);
            }
            if action.handler > SIG_IGN && action.has(SA_RESETHAND) {
                sighand.set(info.signal, Action { handler: SIG_DFL, ..action });
            }
            (info, action)
        };
        let info = itimer::signal_taken(&task.process, info);
        if action.handler != SIG_IGN {
            return Some((info, action));
        }
    }
}

fn run_handler(task: &Arc<Task>, info: &SigInfo, action: &Action) {
    settle_call(task, Some(action));
    if sequences::before_handler(task).is_err() {
        return refuse_frame(task, info.signal);
    }
    if frame::enter_handler(task, info, action).is_err() {
        refuse_frame(task, info.signal);
    }
}

/// A frame could not be written, or read back: `SIGSEGV`, which a handler gets only if it isn't the one that failed.
pub fn refuse_frame(task: &Arc<Task>, signal: u32) {
    if signal == SIGSEGV {
        let sighand = task.process.sighand.get();
        let _signal_lock = task.process.pending.lock();
        let action = sighand.get(SIGSEGV);
        sighand.set(SIGSEGV, Action { handler: SIG_DFL, ..action });
    }
    force(task, SigInfo { signal: SIGSEGV, source: Source::Kernel });
}

/// A system call of the current task was interrupted (`Errno::RESTART` and its kin): arranges for `EINTR`, or for the
/// call `again` to be made, depending on whether and how a handler runs.
pub fn call_interrupted(task: &Arc<Task>, error: Errno, again: u64) {
    task.signals.lock().interrupted = Some((error, again));
    // Delivery decides, even when the signal is gone by then.
    task.call_attention();
}

/// How an interrupted call goes on after a handler, or without one.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Fails,
    /// Is made again, with this number.
    Again(u64),
}

fn fate(error: Errno, number: u64, handler: Option<&Action>) -> Fate {
    match (error, handler) {
        (Errno::RESTART, Some(action)) if action.has(SA_RESTART) => Fate::Again(number),
        (Errno::RESTART_ALWAYS, Some(_)) => Fate::Again(number),
        (_, Some(_)) => Fate::Fails,
        (_, None) => Fate::Again(number),
    }
}

/// Sets the registers of an interrupted call, if there is one.
fn settle_call(task: &Task, handler: Option<&Action>) {
    let interrupted = task.signals.lock().interrupted.take();
    let Some((error, number)) = interrupted else { return };
    let mut context = task.context();
    let regs = &mut context.run.regs;
    match fate(error, number, handler) {
        Fate::Fails => regs.rax = (-i64::from(Errno::EINTR.0)).cast_unsigned(),
        Fate::Again(number) => {
            regs.rip = regs.rip.wrapping_sub(SYSCALL_BYTES);
            regs.rax = number;
        }
    }
}

/// A new program starts: alternate stack and restarts are forgotten.
pub fn after_exec(task: &Arc<Task>) {
    *task.restart.lock() = None;
    let mut own = task.signals.lock();
    own.alt_stack = AltStack::default();
    own.interrupted = None;
    own.fault = Default::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_restart_as_signal_7_says() {
        let plain = Action { handler: 0x1000, ..Default::default() };
        let restart = Action { flags: SA_RESTART, ..plain };
        assert_eq!(fate(Errno::RESTART, 7, Some(&plain)), Fate::Fails);
        assert_eq!(fate(Errno::RESTART, 7, Some(&restart)), Fate::Again(7));
        assert_eq!(fate(Errno::RESTART_NOHAND, 7, Some(&restart)), Fate::Fails);
        assert_eq!(fate(Errno::RESTART_BLOCK, 7, Some(&restart)), Fate::Fails);
        assert_eq!(fate(Errno::RESTART, 7, None), Fate::Again(7));
        assert_eq!(fate(Errno::RESTART_NOHAND, 7, None), Fate::Again(7));
        assert_eq!(fate(Errno::RESTART_BLOCK, 7, None), Fate::Again(7));
    }
}
