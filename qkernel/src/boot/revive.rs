//! Under another VMM: the kernel's memory is as it was when the sandbox slept under the former one, and nothing else is.
//!
//! Where the VMM has the former one's files, the sandbox sleeps on as if nothing had happened. Where it has none of them, as with a
//! snapshot, they are opened anew first (`machine::reopen`).

use abi::boot::BootInfo;
use abi::report::Report;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{host_facts, new_idle, run_idle};
use crate::container::launch::{reason, take_spec};
use crate::container::limits;
use crate::fs::generation;
use crate::fs::host_poll;
use crate::fs::hostfs::moved;
use crate::hibernate;
use crate::proc;
use crate::spec::Spec;
use crate::syscall::kcmp;
use crate::task::container::{self, Container, ContainerId};
use crate::task::group_exit::exited;
use machine::errno::Errno;
use machine::host::{self, Handle};
use machine::mm::template;
use machine::mm::working_set;
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
    template::lose();
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

/// Opens everything anew that the sandbox had of the host, and has its containers meet their new surroundings.
fn move_in(old: &[(u32, Tied)], spec: &mut Spec) -> Result<(), String> {
    spec.say_whose(ContainerId::FIRST.0, 0);
    let mut further = further()?;
    let changed = if spec.accepts_changed { Changed::Accept } else { Changed::Refuse };
    let of_further = further.iter_mut().flat_map(|(_, spec)| spec.take_files());
    let mut files: Vec<Handle> = of_further.collect();
    files.extend(spec.take_files());
    reopen::reopen(old, files, changed, &spec.ports)?;
    moved::look_anew()?;
    host::end_placing();
    generation::advance();
    let first = container::find(ContainerId::FIRST).ok_or("its first container has ended")?;
    meet(&first, spec)?;
    for (container, spec) in &mut further {
        if spec.hostname.is_empty() {
            // Containers of a pod may have one host name.
            spec.hostname = first.host_name();
        }
        meet(container, spec)?;
    }
    Ok(())
}

/// The further containers of a pod, with what the VMM says of each. It runs this kernel once all of them have come.
fn further() -> Result<Vec<(Arc<Container>, Spec)>, String> {
    let all = container::all().into_iter().filter(|container| container.id != ContainerId::FIRST);
    all.map(|container| {
        let spec = host::container_len(container.id)
            .and_then(|len| take_spec(len, |bytes| host::container_take(container.id, bytes)))
            .map_err(|error| match error {
                Errno::ESRCH => format!("container {} of its pod has gone before it began", container.id.0),
                error => format!(
                    "what came with container {} of its pod is no use: {}",
                    container.id.0,
                    reason(error)
                ),
            })?;
        spec.say_whose(container.id.0, 0);
        Ok((container, spec))
    })
    .collect()
}

/// Has a container take the names and limits that it has now.
fn meet(container: &Container, spec: &Spec) -> Result<(), String> {
    if !spec.hostname.is_empty() {
        container.set_host_name(spec.hostname.clone());
        container.set_domain_name(spec.domainname.clone());
    }
    if limits::set_all(container, &spec.limits) {
        Ok(())
    } else {
        Err("it holds more memory than its limit is now".into())
    }
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
