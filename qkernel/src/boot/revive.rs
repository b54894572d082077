//! Under another VMM: the kernel's memory is as it was when the sandbox slept under the former one, and nothing else is.

use abi::boot::BootInfo;
use alloc::vec::Vec;

use super::{host_facts, new_idle, run_idle};
use crate::fs::host_poll;
use crate::hibernate;
use crate::proc;
use crate::spec::Spec;
use crate::syscall::kcmp;
use crate::task::container;
use machine::sched;
use machine::sched::Runnable;

/// The first CPU, once the lower half has been revived.
pub(super) fn first_cpu(boot: &BootInfo, records: Vec<u8>) -> ! {
    let idle = new_idle();
    sched::adopt_idle(&(idle.clone() as Runnable));
    revive(boot, &records);
    // This function does not return.
    drop(records);
    machine::boot::release_others();
    run_idle(idle)
}

/// Sets right what only the former VMM knew: facts of the host, the numbers of requests, and what it was asked to tell. The sandbox goes
/// on sleeping.
pub(crate) fn revive(boot: &BootInfo, records: &[u8]) {
    host_facts::set(boot, &mut Spec::parse(records));
    proc::sys::forget_boot_id();
    kcmp::forget_cookie();
    hibernate::revive();
    container::all().iter().for_each(|container| container.count_pauses_anew());
    if boot.keeps_news == 0 {
        host_poll::revive();
    }
}
