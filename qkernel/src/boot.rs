//! Boot: from the VMM's first call to the first program.

mod events;

use abi::boot::BootInfo;
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
use crate::hibernate::deadlines::Rules;
use crate::hibernate::{Outbound, idle, timers};
use crate::limits::{Limits, RLIMIT_STACK};
use crate::net::host_tables;
use crate::net::settings;
use crate::proc;
use crate::spec::Spec;
use crate::syscall;
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
        shrink_caches: fs::shrink_caches,
        close_kept: fs::close_kept,
    },
    first_cpu,
    other_cpu: || run_idle(new_idle()),
};

fn first_cpu(boot: &BootInfo, records: Vec<u8>) -> ! {
    caller::register(|| task::current());
    syscall::table::set_strace(boot.strace != 0);
    machine::mm::copies::share_files(boot.share_files != 0);
    machine::mm::sites::patch(boot.patch_calls != 0 && machine::platform::current().mirrors());
    let idle = new_idle();
    sched::adopt_idle(&(idle.clone() as Runnable));
    let spec = Spec::parse(&records);
    // This function does not return.
    drop(records);
    create_first(spec);
    machine::boot::release_others();
    run_idle(idle)
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
        if hibernate::attempt(exec::is_any_waiting) {
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
fn create_first(mut spec: Spec) {
    if let Some(flags) = spec.cpu_flags.take() {
        proc::cpuinfo::set_host_flags(flags);
    }
    settings::take(core::mem::take(&mut spec.sysctls));
    host_tables::take(core::mem::take(&mut spec.net_tables));
    let [ahead_ns, grid_ns] = spec.timers;
    timers::set_rules(Rules { ahead_ns, grid_ns });
    idle::set(idle::Settings {
        timeout_ns: spec.idle_timeout_ns,
        ignored: core::mem::take(&mut spec.idle_ignores),
        awake_at_most_ns: spec.awake_at_most_ns,
        outbound: if spec.outbound_sleeps { Outbound::Sleep } else { Outbound::Awake },
    });
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
