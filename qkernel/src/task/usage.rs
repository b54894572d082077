//! `struct rusage`, and counter ticks as time.

use core::sync::atomic::Ordering;

use crate::task::core::Task;
use crate::task::process::Process;
use machine::mm::AddressSpace;
use machine::time;

/// `struct rusage`: user time, system time, then counters; the ones nobody keeps are zero.
pub type Rusage = [i64; 18];
const MAXRSS_KIB: usize = 4;
const NVCSW: usize = 16;
const NIVCSW: usize = 17;

/// `struct rusage` with user and system time; the rest is zero.
pub fn rusage(ticks: (u64, u64)) -> Rusage {
    let mut usage = [0i64; 18];
    for (at, ticks) in [(0, ticks.0), (2, ticks.1)] {
        let ns = time::ticks_to_ns(ticks);
        usage[at] = (ns / 1_000_000_000).cast_signed();
        usage[at + 1] = (ns % 1_000_000_000 / 1000).cast_signed();
    }
    usage
}

/// Adds a thread's context switches.
fn add_switches(usage: &mut Rusage, task: &Task) {
    let all = task.thread.sched.switches.load(Ordering::Relaxed);
    let involuntary = task.thread.sched.involuntary_switches.load(Ordering::Relaxed);
    usage[NVCSW] += all.saturating_sub(involuntary).cast_signed();
    usage[NIVCSW] += involuntary.cast_signed();
}

/// Resident memory, as the largest there was; in KiB.
fn max_rss(aspace: &AddressSpace) -> i64 {
    (aspace.sizes().1 / 1024).cast_signed()
}

/// The resources that a process has used.
pub fn of_process(process: &Process, aspace: Option<&AddressSpace>) -> Rusage {
    let mut usage = rusage(process.cpu_ticks());
    for task in process.tasks.lock().iter() {
        add_switches(&mut usage, task);
    }
    usage[MAXRSS_KIB] = aspace.map_or(0, max_rss);
    usage
}

/// The resources that a thread has used.
pub fn of_thread(task: &Task, aspace: &AddressSpace) -> Rusage {
    let sched = &task.thread.sched;
    let mut usage =
        rusage((sched.user_ticks.load(Ordering::Relaxed), sched.system_ticks.load(Ordering::Relaxed)));
    add_switches(&mut usage, task);
    usage[MAXRSS_KIB] = max_rss(aspace);
    usage
}

/// User and total processor time of a thread, in nanoseconds.
pub fn thread_times(task: &Task) -> (u64, u64) {
    let user = task.thread.sched.user_ticks.load(Ordering::Relaxed);
    let system = task.thread.sched.system_ticks.load(Ordering::Relaxed);
    (time::ticks_to_ns(user), time::ticks_to_ns(user + system))
}
