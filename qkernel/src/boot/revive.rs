//! Under another VMM: the kernel's memory is as it was when the sandbox slept under the former one, and nothing else is.
//!
//! Where the VMM has the former one's files, the sandbox sleeps on as if nothing had happened. Where it has none of them, as with a
//! snapshot, they are opened anew first (`machine::reopen`).

use abi::boot::BootInfo;
use abi::report::Report;
use alloc::string::String;
use alloc::vec::Vec;

use super::{host_facts, new_idle, run_idle};
use crate::container::limits;
use crate::fs::generation;
use crate::fs::host_poll;
use crate::fs::hostfs::moved;
use crate::hibernate;
use crate::proc;
use crate::spec::Spec;
use crate::syscall::kcmp;
use crate::task::container::{self, ContainerId};
use crate::task::group_exit::exited;
use abi::limits::ContainerLimit;
use machine::host;
use machine::mm::{frames, working_set};
use machine::objects::{self, Tied};
use machine::recording;
use machine::reopen::{self, Changed};
use machine::sched;
use machine::sched::Runnable;

/// The exit code of a sandbox that cannot go on.
const EXIT_FAILURE: u8 = 125;

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
    // Before there are those of the records.
    let old = if boot.keeps_news == 0 { objects::ties() } else { Ok(Vec::new()) };
    let mut spec = super::read(records);
    let is_whole = match &old {
        Ok(old) if boot.keeps_news == 0 => move_in(old, &mut spec),
        Ok(_) => Ok(()),
        Err(_) => Err("there is no memory to list its files".into()),
    };
    drop(old);
    host_facts::set(boot, &mut spec);
    proc::sys::forget_boot_id();
    kcmp::forget_cookie();
    hibernate::revive(boot.keeps_news == 0);
    container::all().iter().for_each(|container| container.count_pauses_anew());
    if boot.keeps_news == 0 {
        host_poll::revive();
        hibernate::hold();
        if !spec.working_set.is_empty() {
            working_set::adopt(core::mem::take(&mut spec.working_set));
        }
        recording::prepare(spec.records_working_set);
        tell(is_whole);
    }
}

/// Opens everything anew that the sandbox had of the host, and has it meet its new surroundings.
fn move_in(old: &[(u32, Tied)], spec: &mut Spec) -> Result<(), String> {
    spec.say_whose(ContainerId::FIRST.0, 0);
    let changed = if spec.accepts_changed { Changed::Accept } else { Changed::Refuse };
    reopen::reopen(old, spec.take_files(), changed, &spec.ports)?;
    moved::look_anew()?;
    host::end_placing();
    generation::advance();
    let first = container::find(ContainerId::FIRST).ok_or("its first container has ended")?;
    if !spec.hostname.is_empty() {
        first.set_host_name(spec.hostname.clone());
        first.set_domain_name(spec.domainname.clone());
    }
    for (limit, value) in &spec.limits {
        if *limit == ContainerLimit::MemoryMax && frames::set_limit(*value).is_err() {
            return Err("it holds more memory than its limit is now".into());
        }
        first.limits.set(*limit, *value);
        limits::apply_cpu(&first, *limit);
    }
    Ok(())
}

/// Says whether the sandbox, which sleeps, can go on; else it ends.
fn tell(is_whole: Result<(), String>) {
    let Err(why) = is_whole else {
        return host::report(&Report::ContainerReady { container: ContainerId::FIRST });
    };
    let status = exited(EXIT_FAILURE.into());
    host::report(&Report::ContainerFailed { container: ContainerId::FIRST, status, why: why.as_bytes() });
    host::exit(status);
}
