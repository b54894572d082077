//! CPUs are made to notice what they would not see by themselves.

use core::sync::atomic::Ordering;

use super::cpu::{CPUS, current};
use super::cpu_set::CpuSet;
use super::state;
use super::task::Runnable;
use crate::config::TIME_SLICE_NS;
use crate::{arch, platform, time};

/// Makes a CPU notice a task that waits.
pub(super) fn notify_of(task: &Runnable) {
    notify(task.sched().last(), task.sched().cpus_in_queue());
}

/// Makes some CPU of a set notice the queue: an idle one if there is one, else those that run user code without a time limit.
pub(super) fn notify(preferred: usize, set: CpuSet) {
    let me = arch::cpu_index();
    if current().sched().is_idle() && set.has(me) && state::waiting() <= 1 {
        return; // in the idle loop already, which looks at the queue again before it blocks
    }
    let cpus = platform::cpus();
    let order = core::iter::once(preferred.min(cpus - 1)).chain(0..cpus);
    for cpu in order.filter(|&cpu| cpu != me && set.has(cpu)) {
        if CPUS[cpu].idle.swap(false, Ordering::SeqCst) {
            platform::kick(cpu);
            return;
        }
    }
    for cpu in (0..cpus).filter(|&cpu| cpu != me && set.has(cpu) && runs_without_end(cpu)) {
        platform::kick(cpu);
    }
}

/// Makes all other CPUs notice the queue that would not by themselves.
pub(super) fn notify_all() {
    for cpu in other_cpus() {
        if CPUS[cpu].idle.swap(false, Ordering::SeqCst) || runs_without_end(cpu) {
            platform::kick(cpu);
        }
    }
}

/// Makes all other CPUs leave user code, or the wait for work.
pub(super) fn kick_others() {
    other_cpus().for_each(platform::kick);
}

/// Makes another CPU that has nothing to do look around, whether it waits already or is about to; false: there is none.
pub fn rouse_another() -> bool {
    let waits = other_cpus().find(|&cpu| CPUS[cpu].idle.swap(false, Ordering::SeqCst));
    let is_free = |&cpu: &usize| !CPUS[cpu].busy.get();
    waits.or_else(|| other_cpus().find(is_free)).map(platform::kick).is_some()
}

/// All CPUs but the one that this is called on.
fn other_cpus() -> impl Iterator<Item = usize> {
    let me = arch::cpu_index();
    (0..platform::cpus()).filter(move |&cpu| cpu != me)
}

/// Whether a CPU runs user code for longer than a time slice.
fn runs_without_end(cpu: usize) -> bool {
    let limit = time::on_host(time::monotonic_ns() + TIME_SLICE_NS);
    platform::header_of(cpu).deadline_ns.load(Ordering::SeqCst) > limit
}
