//! The pause of the whole sandbox: while it lasts no user code runs. Tasks rest at the user boundary; those that sleep in
//! a call come to rest there once they wake.
#![deny(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};

use super::wait::WaitQueue;
use crate::platform;
use crate::{arch, host};

static PAUSED: AtomicBool = AtomicBool::new(false);
static RESTING: WaitQueue = WaitQueue::new();

/// How often the CPUs are asked whether they have left user code, before the pause is reported all the same: one that
/// has been kicked comes out within microseconds, unless the host does not run it.
const PATIENCE: u32 = 1000;

/// Keeps every task from going on in user code.
pub fn pause() {
    PAUSED.store(true, Ordering::SeqCst);
    let me = arch::cpu_index();
    for cpu in (0..platform::cpus()).filter(|&cpu| cpu != me) {
        platform::kick(cpu);
    }
    // A CPU takes back its `pending` outside user code, and looks at `PAUSED` afterwards.
    let is_out = |cpu: usize| platform::header_of(cpu).pending.load(Ordering::SeqCst) == 0;
    for _ in 0..PATIENCE {
        if (0..platform::cpus()).all(|cpu| cpu == me || is_out(cpu)) {
            break;
        }
        platform::relax();
    }
    host::report(abi::hostcall::REPORT_PAUSED);
}

/// Lets them go on.
pub fn resume() {
    PAUSED.store(false, Ordering::SeqCst);
    RESTING.wake_all();
    host::report(abi::hostcall::REPORT_RESUMED);
}

/// The current task rests for as long as the pause lasts; true: it has rested, and should look at everything anew.
pub fn rest() -> bool {
    if !PAUSED.load(Ordering::SeqCst) {
        return false;
    }
    RESTING.wait_uninterruptible(|| !PAUSED.load(Ordering::SeqCst));
    true
}
