//! Boot: from the VMM's first call to the first program.

mod events;
mod host_facts;
pub(crate) mod revive;

use abi::boot::BootInfo;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::container::create;
use crate::container::exec;
use crate::creds::Creds;
use crate::fs;
use crate::fs::caller;
use crate::fs::path::FsContext;
use crate::fs::sigio;
use crate::hibernate;
use crate::hibernate::{idle, snapshot, timers};
use crate::limits::{Limits, RLIMIT_STACK};
use crate::spec::Spec;
use crate::task;
use crate::task::container::{Container, ContainerId};
use crate::task::core::{Task, TaskParts};
use crate::task::group_exit::exited;
use crate::task::process::Process;
use crate::task::signal::action::SigHand;
use crate::task::signal::state::TaskSignals;
use machine::boot::Kernel;
use machine::errno::Result;
use machine::host;
use machine::mm::{give_back, stats, working_set};
use machine::platform::UserContext;
use machine::recording;
use machine::sched;
use machine::sched::Runnable;
use machine::thread;
use machine::upcall::Upcalls;

/// The functions that the `machine` crate calls.
pub static KERNEL: Kernel = Kernel {
    upcalls: Upcalls {
        host_event: events::handle,
        lock_limit: || task::current().lock_limit(),
        stack_limit: || task::current().process.limits.lock().soft(RLIMIT_STACK),
        shrink_caches: fs::caches::shrink,
        close_kept: fs::hostfs::close_kept,
    },
    first_cpu,
    revived: revive::first_cpu,
    other_cpu: || run_idle(new_idle()),
};

fn first_cpu(boot: &BootInfo, records: Vec<u8>) -> ! {
    caller::register(|| task::current());
    let idle = new_idle();
    sched::adopt_idle(&(idle.clone() as Runnable));
    let mut spec = read(&records);
    // This function does not return.
    drop(records);
    host_facts::set(boot, &mut spec);
    create_first(spec);
    machine::boot::release_others();
    run_idle(idle)
}

/// Reads what the VMM says. It writes the records by the same schema, so that only a fault of its makes them unreadable.
fn read(records: &[u8]) -> Spec {
    Spec::parse(records).unwrap_or_else(|error| {
        host::log(0, &format!("the sandbox's records cannot be read: {error}"));
        host::exit(exited(125))
    })
}

fn new_idle() -> Arc<Task> {
    match idle_task() {
        Ok(idle) => idle,
        Err(_) => host::die("no memory for an idle task"),
    }
}

/// The life of a CPU that has nothing to do. Runs on the boot stack.
fn run_idle(idle: Arc<Task>) -> ! {
    sched::adopt_idle(&(idle as Runnable));
    loop {
        thread::handle_pending();
        if sched::run_others() {
            continue;
        }
        if sigio::delivery::help() {
            continue;
        }
        working_set::help();
        idle::rest();
        idle::look();
        timers::look();
        recording::look();
        snapshot::attempt();
        if hibernate::attempt(exec::is_any_waiting) {
            // Before anything that has come meanwhile wakes the sandbox.
            snapshot::attempt();
            continue;
        }
        sched::wait_for_work(|| {
            stats::refresh();
            give_back::look();
            hibernate::look_again_ns()
        });
    }
}

/// Makes the sandbox's first container, without which there is nothing to do.
fn create_first(spec: Spec) {
    if let Err(why) = create::create(ContainerId::FIRST, spec) {
        host::log(0, &why);
        host::exit(exited(125));
    }
}

/// A task that stands for a CPU with nothing to do.
pub(crate) fn idle_task() -> Result<Arc<Task>> {
    let process = Process::new(Container::kernel(), 0, SigHand::new(), Limits::default());
    Ok(Task::idle(TaskParts {
        process,
        aspace: None,
        files: None,
        fs: FsContext::none(),
        creds: Arc::new(Creds::new(0, 0, Vec::new())),
        signals: TaskSignals::default(),
        context: UserContext::new(),
        comm: *b"idle\0\0\0\0\0\0\0\0\0\0\0\0",
        main: || {},
    }))
}
