//! The kernel without a VMM, for fuzzing and tests: this process plays the host, and a string of bytes plays the
//! programs.
//!
//! The kernel runs as on systrap with one CPU, on a root file system in memory. Where it would run user code it gets
//! the next step of a *sequence* instead ([`steps`]): a system call with arguments of the types that the table names, a
//! write to the program's memory, or a fault. All tasks take their steps from the same sequence, so what runs when is
//! decided by the sequence and by the kernel's own scheduler, and runs again alike. Once the steps are used up every
//! process ends, and nothing may be left of them.

mod census;
mod collector;
pub mod containers;
mod forced;
mod handles;
mod host;
pub mod memory;
mod pauses;
pub mod pid_spaces;
mod pod;
mod revivals;
mod rounds;
mod script;
pub mod steps;
mod world;

use machine::sched;
use machine::sched::Runnable;
use machine::testing::Host;

use crate::harness::rounds::{run_all, run_checked};
use crate::harness::world::{first_container, make_init, make_leader, make_root};
use crate::task::container::ContainerId;

/// The host's side of a kernel in a test: user code is the steps of the sequence.
pub const HOST: Host =
    Host { run_user: host::run, log: host::log, report: host::report, hibernated: host::hibernated };

/// Starts the kernel, on the thread that has called `machine::testing::boot` with [`HOST`] and the kernel's upcalls.
pub fn start() {
    crate::fs::caller::register(|| crate::task::core::current());
    sched::adopt_idle(&(crate::boot::idle_task().expect("an idle task") as Runnable));
    make_init();
    machine::vdso::prepare();
}

/// Runs a sequence to its end, and checks that nothing is left of it. With `trace` each call is printed by it.
pub fn run(bytes: &[u8], trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let root = make_root();
        let leader = make_leader(&first_container(), &root, 0);
        host::feed(bytes, leader.process.pid);
        leader.start();
        drop(leader);
        run_all();
    });
}

/// Runs a sequence whose steps are taken by the processes of two containers with a root each, and checks that nothing
/// is left of it.
pub fn run_in_two(bytes: &[u8], trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let second = containers::make(ContainerId(2));
        let leaders =
            [make_leader(&first_container(), &make_root(), 0), make_leader(&second, &make_root(), 0)];
        host::feed(bytes, leaders[0].process.pid);
        leaders.iter().for_each(|leader| leader.start());
        drop((leaders, second));
        run_all();
    });
}

/// Runs a sequence as [`run_in_two`] does, in two containers beside the first that share their process ids.
pub fn run_in_joined(bytes: &[u8], trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let pod = containers::make(ContainerId(2));
        let pause = make_leader(&pod, &make_root(), 0);
        let app = containers::make_joined(ContainerId(3), pod.id);
        let leaders = [pause, make_leader(&app, &make_root(), 0)];
        host::feed(bytes, leaders[0].process.pid);
        leaders.iter().for_each(|leader| leader.start());
        drop((leaders, pod, app));
        run_all();
    });
}

/// Runs all scenarios that are written down.
///
/// # Panics
///
/// When one comes out otherwise.
pub fn run_scenarios(trace: Option<fn(&str)>) {
    let sets = [
        pid_spaces::SCENARIOS,
        pauses::SCENARIOS,
        handles::SCENARIOS,
        forced::SCENARIOS,
        census::SCENARIOS,
        collector::SCENARIOS,
        revivals::SCENARIOS,
    ];
    for scenario in sets.into_iter().flatten() {
        run_checked(trace, scenario);
    }
}
