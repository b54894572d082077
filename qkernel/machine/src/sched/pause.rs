//! The pause of the whole sandbox: while it lasts no user code runs. Tasks rest at the user boundary; those that sleep in
//! a call come to rest there once they wake.
//!
//! Only the mechanism is here. Who pauses the sandbox, and for how long, the kernel proper decides
//! (`hibernate::state_machine`).

use core::sync::atomic::Ordering;

use super::notify::kick_others;
use super::state;
use super::wait::WaitQueue;
use crate::{arch, platform};

pub use super::state::is_paused;

static RESTING: WaitQueue = WaitQueue::new();

/// How often the CPUs are asked whether they have left user code, before the pause is reported all the same: one that
/// has been kicked comes out within microseconds, unless the host does not run it.
const PATIENCE: u32 = 1000;

/// Says whether tasks are to rest. The caller holds the lock of whatever decides it, and then calls [`call_out`] or
/// [`let_go`] without that lock.
pub fn set(is_paused: bool) {
    if is_paused != self::is_paused() {
        // A paused sandbox has no load, and what was there before counts as it was.
        let (mut scheduler, _) = state::lock_to_change();
        scheduler.set_paused(is_paused);
    }
}

/// Makes all other CPUs leave user code.
pub fn call_out() {
    let me = arch::cpu_index();
    kick_others();
    // A CPU takes back its `pending` outside user code, and looks whether there is a pause afterwards.
    let is_out = |cpu: usize| platform::header_of(cpu).pending.load(Ordering::SeqCst) == 0;
    for _ in 0..PATIENCE {
        if (0..platform::cpus()).all(|cpu| cpu == me || is_out(cpu)) {
            break;
        }
        platform::relax();
    }
}

/// Lets those that rest look again whether the pause is over.
pub fn let_go() {
    RESTING.wake_all();
    // Idle CPUs wait for no timer in a pause.
    kick_others();
}

/// Whether tasks rest that have something to do.
pub fn has_resting() -> bool {
    !RESTING.is_empty()
}

/// The current task rests for as long as the pause lasts; true: it has rested, and should look at everything anew.
pub fn rest() -> bool {
    if !is_paused() {
        return false;
    }
    RESTING.wait_uninterruptible(|| !is_paused());
    true
}
