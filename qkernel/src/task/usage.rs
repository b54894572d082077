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

/// The most bytes that the memory of an ended process, or of a child that it waited for, has held.
pub fn max_rss_of_all(process: &Process) -> u64 {
    process.max_rss.load(Ordering::Relaxed).max(process.children_max_rss.load(Ordering::Relaxed))
}

/// What the children that `process` has waited for, and theirs, have used.
pub fn of_children(process: &Process) -> Rusage {
    let ticks =
        (process.children_user.load(Ordering::Relaxed), process.children_system.load(Ordering::Relaxed));
    with_max_rss(ticks, process.children_max_rss.load(Ordering::Relaxed))
}

/// `struct rusage` with user and system time, and the largest size in bytes; the rest is zero.
pub fn with_max_rss(ticks: (u64, u64), max_rss: u64) -> Rusage {
    let mut usage = rusage(ticks);
    usage[MAXRSS_KIB] = (max_rss / 1024).cast_signed();
    usage
}

/// `struct rusage` with user and system time; the rest is zero.
fn rusage(ticks: (u64, u64)) -> Rusage {
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
fn max_rss(process: &Process, aspace: &AddressSpace) -> i64 {
    (aspace.resident_peak().max(process.max_rss.load(Ordering::Relaxed)) / 1024).cast_signed()
}

/// The resources that a process has used.
pub fn of_process(process: &Process, aspace: Option<&AddressSpace>) -> Rusage {
    let mut usage = rusage(process.cpu_ticks());
    for task in process.tasks.lock().iter() {
        add_switches(&mut usage, task);
    }
    usage[MAXRSS_KIB] = aspace.map_or(0, |aspace| max_rss(process, aspace));
    usage
}

/// The resources that a thread has used.
pub fn of_thread(task: &Task, aspace: &AddressSpace) -> Rusage {
    let sched = &task.thread.sched;
    let mut usage =
        rusage((sched.user_ticks.load(Ordering::Relaxed), sched.system_ticks.load(Ordering::Relaxed)));
    add_switches(&mut usage, task);
    usage[MAXRSS_KIB] = max_rss(&task.process, aspace);
    usage
}

/// User and total processor time of a thread, in nanoseconds.
pub fn thread_times(task: &Task) -> (u64, u64) {
    let user = task.thread.sched.user_ticks.load(Ordering::Relaxed);
    let system = task.thread.sched.system_ticks.load(Ordering::Relaxed);
    (time::ticks_to_ns(user), time::ticks_to_ns(user + system))
}
