//! Which stub threads compute, and on which of the host's cores they do.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::handover::{Affinity, free_cores};
use super::{CpuState, Systrap};
use crate::activity::Activity;

/// The stub thread that has computed for long for a vCPU: the host's numbers of its process and of the thread, or 0.
#[derive(Default)]
pub struct Computing(AtomicU64);

impl Computing {
    /// It has computed for long.
    pub fn say(&self, pid: i32, tid: i32) {
        self.0.store(u64::from(pid.cast_unsigned()) << 32 | u64::from(tid.cast_unsigned()), Relaxed);
    }

    /// The run is over. Short runs pay one load for it.
    pub fn unsay(&self) {
        if self.is_said() {
            self.0.store(0, Relaxed);
        }
    }

    /// Whether one has.
    pub fn is_said(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Its directory in the host's `/proc`.
    fn directory(&self) -> Option<String> {
        let numbers = self.0.load(Relaxed);
        (numbers != 0).then(|| format!("{}/task/{}", numbers >> 32, numbers & u64::from(u32::MAX)))
    }
}

impl Systrap {
    /// Where to send the stub thread that computes for this vCPU; `None`: it stays. The host says where threads run, not
    /// the stubs.
    pub(super) fn free_cores_for(&self, cpu: u32) -> Option<Affinity> {
        let proc = self.stubs.proc.as_ref()?;
        let core = |state: &CpuState| {
            let seen = Activity::of(proc.as_fd(), &state.computes.directory()?)?;
            // One that waits for a disk, or is stopped, takes no core.
            (seen.could_run && !seen.sleeps).then_some(seen.core)?
        };
        let (earlier, from_own) = self.cpus.split_at_checked(cpu as usize)?;
        let (own, later) = from_own.split_first()?;
        if !earlier.iter().any(|state| state.computes.is_said()) {
            return None;
        }
        let earlier: Vec<u32> = earlier.iter().filter_map(core).collect();
        free_cores(core(own)?, &earlier, later.iter().filter_map(core), &self.affinity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_found_in_proc_until_it_is_taken_back() {
        let computes = Computing::default();
        assert!(!computes.is_said() && computes.directory().is_none());
        computes.say(12, 4_194_303);
        assert_eq!(computes.directory().as_deref(), Some("12/task/4194303"));
        computes.unsay();
        assert!(!computes.is_said() && computes.directory().is_none());
    }

    #[test]
    fn the_host_tells_the_core_of_a_thread() {
        let proc = std::fs::File::open("/proc").unwrap();
        // SAFETY: touches no memory.
        let tid = unsafe { libc::gettid() };
        let all = Affinity::of_this_thread();
        let core = Affinity::current_core().unwrap();
        Affinity::only(core).apply(tid);
        let directory = format!("{}/task/{tid}", std::process::id());
        let seen = Activity::of(proc.as_fd(), &directory).unwrap();
        all.apply(tid);
        assert_eq!(seen.core, Some(core));
    }
}
