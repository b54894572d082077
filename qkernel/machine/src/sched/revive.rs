//! The scheduler under another VMM: no CPU of the former one goes on, and each begins anew.

use core::sync::atomic::Ordering;

use super::cpu::{CPUS, Cpu};
use super::freeze::Frozen;
use super::{periods, rest, state};
use crate::owner::{self, Owner};
use crate::platform;

/// Has the registers of all tasks saved that rest on a CPU: what a CPU holds is lost with its VMM.
pub fn fetch_all(_frozen: &Frozen) {
    for (number, cpu) in CPUS.iter().enumerate().take(platform::cpus()) {
        // It stays in its place meanwhile, where its CPU would look for it.
        let resting = cpu.resting.lock().clone();
        if let Some(task) = resting {
            rest::end(&task, number);
        }
    }
}

/// Forgets the CPUs of a sandbox whose scheduler was frozen, and thaws it. Called on the first CPU before any other begins.
pub fn forget_cpus() {
    CPUS.iter().for_each(Cpu::forget);
    periods::forget();
    owner::set_current(Owner::SANDBOX);
    owner::set_uses_reserve(false);
    state::lock().forget_cpus();
}

impl Cpu {
    /// Nothing runs on it, as before it has begun. The task that stood for that stays until another one is adopted.
    fn forget(&self) {
        self.running.store(core::ptr::null_mut(), Ordering::Relaxed);
        // Its idle task, which has another reference: so nothing ends here, where there is no current task.
        *self.previous.lock() = None;
        *self.current.lock() = None;
        self.idle.store(false, Ordering::SeqCst);
        self.leaves_resting.store(false, Ordering::Relaxed);
        self.shown_ns.store(0, Ordering::Relaxed);
        self.work.store(0, Ordering::Relaxed);
    }
}
