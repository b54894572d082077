//! Containers that are paused, alone and with the whole sandbox.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicI64, Ordering};

use abi::hostcall::{HIBERNATE_ALREADY, HIBERNATE_DONE};
use abi::report::WakeEvent;

use crate::container::create::signal;
use crate::container::pause::request;
use crate::harness::containers::take_ended;
use crate::harness::host::{Told, feed_process, take_outcomes, take_reports};
use crate::harness::pod::*;
use crate::harness::rounds::run_all;
use crate::harness::script::*;
use crate::harness::steps::{SCRATCH, Step};
use crate::harness::world::make_leader;
use crate::hibernate;
use crate::signals::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Source};
use crate::task::process::Process;
use crate::task::signal::send::send_to_process;
use machine::sched;

pub const SCENARIOS: &[fn()] = &[
    nothing_runs_before_it_goes_on,
    signals_wait_but_for_the_one_that_kills,
    who_comes_in_rests,
    who_comes_in_with_a_pass_runs,
    a_fork_loop_comes_to_rest,
    a_parent_that_waits_for_its_vfork_child_rests,
    a_stop_and_a_pause_need_both_to_end,
    the_pause_of_the_sandbox_is_another,
    one_that_is_paused_ends,
    the_last_request_counts,
    a_sandbox_with_a_paused_container_is_at_rest,
    a_sandbox_hibernates_with_paused_containers,
];

/// The numbers of the host's requests for the whole sandbox grow from test to test.
static SANDBOX_REQUEST: AtomicI64 = AtomicI64::new(1);

/// Another VMM counts from one again.
pub(super) fn count_requests_anew() {
    SANDBOX_REQUEST.store(1, Ordering::Relaxed);
}

pub(super) fn next_request() -> i64 {
    SANDBOX_REQUEST.fetch_add(1, Ordering::Relaxed)
}

fn paused(number: u64) -> Told {
    Told::Paused(APP, number)
}

/// The app is told to rest, or to go on.
pub(super) fn rest(number: i64, rests: bool) {
    request(APP.0, number, rests, false);
    run_all();
}

/// Gives a process that sleeps something to do, and wakes it.
fn give(process: &Arc<Process>, steps: impl IntoIterator<Item = Step>) {
    feed_process(process.container.id, process.pid, steps.into_iter().chain(sleep()));
    wake(process);
    run_all();
}

fn mkdir() -> [Step; 2] {
    [text(SCRATCH, b"/made\0"), call(MKDIR, &[SCRATCH, 0o755])]
}

/// While it is paused no task of it takes a step, and all others do.
fn nothing_runs_before_it_goes_on() {
    let [_pause, app, other] = pod();
    take_reports();
    rest(1, true);
    assert_eq!(take_reports(), [paused(1)]);
    give(&app.process, mkdir());
    assert!(!has(&app.root, b"made"), "a step in the pause");
    give(&other.process, mkdir());
    assert!(has(&other.root, b"made"), "another container rests");
    rest(2, false);
    assert_eq!(take_reports(), []);
    assert!(has(&app.root, b"made"), "it does not go on");
    // A call that no signal has ended is made again after the pause.
    give(&app.process, [call(PAUSE, &[])]);
    rest(3, true);
    rest(4, false);
    assert_eq!(take_reports(), [paused(3)]);
    assert!(!app.process.is_exiting() && take_ended().is_empty());
}

/// Signals are acted on once it goes on, one that ends a process as well; but `SIGKILL` ends it at once.
fn signals_wait_but_for_the_one_that_kills() {
    let [pause, app, _other] = pod();
    let [waits, dies] = [app.fork(), app.fork()];
    take_reports();
    rest(1, true);
    send_to_process(&waits, SIGTERM, Source::Kernel);
    run_all();
    assert!(!waits.is_exiting(), "a signal is acted on");
    // From another container of the pod.
    let pid = dies.pid.into();
    assert_eq!(turn(&pause.process, [call(KILL, &[pid, SIGKILL.into()])]), [0]);
    assert!(dies.tasks.lock().is_empty(), "it is not killed");
    assert_eq!(take_reports(), [paused(1)]);
    rest(2, false);
    assert!(waits.tasks.lock().is_empty(), "the signal is lost");
}

/// A process that comes in, as by exec, takes no step before its container goes on.
fn who_comes_in_rests() {
    let [_pause, app, _other] = pod();
    rest(1, true);
    take_reports();
    let task = make_leader(&app.container, &app.root, 0);
    let process = task.process.clone();
    feed_process(APP, process.pid, mkdir().into_iter().chain(sleep()));
    task.start();
    drop(task);
    run_all();
    assert!(!has(&app.root, b"made") && take_reports().is_empty());
    // With another pause it is among those that rest.
    rest(2, true);
    assert_eq!(take_reports(), [paused(2)]);
    rest(3, false);
    assert!(has(&app.root, b"made"), "it does not begin");
}

/// In a pause that lets them in, processes that come in run, and their children do; once it is over they rest as all others.
fn who_comes_in_with_a_pass_runs() {
    let [_pause, app, _other] = pod();
    request(APP.0, 1, true, true);
    run_all();
    take_reports();
    give(&app.process, mkdir());
    let task = make_leader(&app.container, &app.root, 0);
    let process = task.process.clone();
    app.container.came_in(&process);
    let child = app.container.pids.tree.lock().new_id() + 1;
    let made = [text(SCRATCH + 64, b"/child\0"), call(MKDIR, &[SCRATCH + 64, 0o755])];
    feed_process(APP, child, made.into_iter().chain(sleep()));
    let made = [text(SCRATCH, b"/mine\0"), call(MKDIR, &[SCRATCH, 0o755]), call(FORK, &[])];
    feed_process(APP, process.pid, made.into_iter().chain(sleep()));
    task.start();
    drop(task);
    run_all();
    assert!(has(&app.root, b"mine") && has(&app.root, b"child"), "it rests");
    assert!(!has(&app.root, b"made"), "another one runs");
    request(APP.0, 2, false, false);
    run_all();
    assert!(has(&app.root, b"made"), "it does not go on");
    // Passes are of one pause.
    request(APP.0, 3, true, true);
    run_all();
    give(&process, [text(SCRATCH, b"/late\0"), call(MKDIR, &[SCRATCH, 0o755])]);
    assert!(!has(&app.root, b"late"), "an old pass counts");
    request(APP.0, 4, false, false);
    run_all();
    assert!(has(&app.root, b"late"));
}

/// Processes that fork without end rest, too, with all their children.
fn a_fork_loop_comes_to_rest() {
    let [_pause, app, _other] = pod();
    let forks = || core::iter::repeat_with(|| [call(FORK, &[]), call(SCHED_YIELD, &[])]).take(10).flatten();
    (4..80).for_each(|pid| feed_process(APP, pid, forks().chain(sleep())));
    take_reports();
    let pause_now = Step::Host(|| request(APP.0, 1, true, false));
    give(&app.process, forks().take(3).chain([pause_now]).chain(mkdir()));
    assert_eq!(take_reports(), [paused(1)]);
    assert!(!has(&app.root, b"made"), "a step in the pause");
    let tasks = app.container.task_count();
    assert!(tasks > 1, "no child");
    run_all();
    assert_eq!(app.container.task_count(), tasks);
    rest(2, false);
    assert!(has(&app.root, b"made") && app.container.task_count() > tasks, "it does not go on");
}

/// A `vfork(2)` parent waits for a child that rests: both do.
fn a_parent_that_waits_for_its_vfork_child_rests() {
    const VFORK: u64 = 58;
    let [_pause, app, _other] = pod();
    let child = app.container.pids.tree.lock().new_id() + 1;
    feed_process(APP, child, sleep());
    give(&app.process, [call(VFORK, &[])].into_iter().chain(mkdir()));
    take_reports();
    rest(1, true);
    assert_eq!(take_reports(), [paused(1)]);
    rest(2, false);
    let child = app.container.pids.find_process(child).expect("the child");
    assert!(!has(&app.root, b"made"), "the parent did not wait");
    turn(&child, [call(EXIT_GROUP, &[0])]);
    assert!(has(&app.root, b"made"), "the parent waits on");
}

/// A process that is stopped counts as resting. It goes on only once neither a stop nor a pause is left.
fn a_stop_and_a_pause_need_both_to_end() {
    let [_pause, app, _other] = pod();
    let [stopped, stops, ends] = [app.fork(), app.fork(), app.fork()];
    for process in [&stopped, &ends] {
        send_to_process(process, SIGSTOP, Source::Kernel);
    }
    run_all();
    take_reports();
    rest(1, true);
    assert_eq!(take_reports(), [paused(1)]);
    send_to_process(&stopped, SIGCONT, Source::Kernel);
    send_to_process(&stops, SIGSTOP, Source::Kernel);
    for signal in [SIGTERM, SIGCONT] {
        send_to_process(&ends, signal, Source::Kernel);
    }
    run_all();
    assert!(!ends.is_exiting(), "the end of a stop lets a signal through");
    for process in [&stopped, &stops] {
        give(process, mkdir());
        assert!(!has(&app.root, b"made"), "a step in the pause");
    }
    let exit = || [call(EXIT_GROUP, &[0])];
    give(&stopped, exit());
    give(&stops, exit());
    rest(2, false);
    assert!(stopped.tasks.lock().is_empty() && ends.tasks.lock().is_empty(), "it does not go on");
    assert!(!stops.tasks.lock().is_empty() && stops.stopped.load(Ordering::SeqCst), "the stop is lost");
    send_to_process(&stops, SIGCONT, Source::Kernel);
    run_all();
    assert!(stops.tasks.lock().is_empty(), "the stop does not end");
}

/// A pause that comes while the sandbox is paused needs no task to run, and is one still when the sandbox goes on; its
/// end in a pause of the sandbox lets nobody run before that ends.
fn the_pause_of_the_sandbox_is_another() {
    let [_pause, app, other] = pod();
    take_reports();
    hibernate::pause(next_request(), false);
    rest(1, true);
    assert_eq!(take_reports(), [paused(1)]);
    give(&app.process, mkdir());
    give(&other.process, mkdir());
    assert!(!has(&other.root, b"made"), "the sandbox runs");
    hibernate::wake(next_request(), false);
    run_all();
    assert!(has(&other.root, b"made") && !has(&app.root, b"made"), "a step in the pause");
    hibernate::pause(next_request(), false);
    rest(2, false);
    assert_eq!(take_reports(), []);
    assert!(!has(&app.root, b"made"), "the sandbox runs");
    hibernate::wake(next_request(), false);
    run_all();
    assert!(has(&app.root, b"made"), "it does not go on");
}

/// Killed from inside the pod or from outside, a container that is paused ends with all its processes.
fn one_that_is_paused_ends() {
    for from_outside in [false, true] {
        let [pause, app, _other] = pod();
        app.fork();
        let forks = core::iter::repeat_with(|| [call(FORK, &[]), call(SCHED_YIELD, &[])]).take(10).flatten();
        feed_process(APP, app.process.pid, forks.chain(sleep()));
        wake(&app.process);
        rest(1, true);
        if from_outside {
            signal(&app.container, SIGKILL.into(), 0);
            run_all();
        } else {
            let pid = app.process.pid.into();
            turn(&pause.process, [call(KILL, &[pid, SIGKILL.into()])]);
        }
        assert_eq!(take_ended(), [(APP, SIGKILL.cast_signed())]);
        assert_eq!(app.container.task_count(), 0);
        turn(&pause.process, [call(EXIT_GROUP, &[0])]);
    }
}

/// Requests that come out of order.
fn the_last_request_counts() {
    let [_pause, app, _other] = pod();
    take_reports();
    rest(5, false);
    rest(4, true);
    assert_eq!(take_reports(), []);
    assert!(!app.container.is_paused());
    rest(7, true);
    rest(6, false);
    assert_eq!(take_reports(), [paused(7)]);
    assert!(app.container.is_paused());
    request(99, 1, true, false);
    rest(8, false);
    assert_eq!(take_reports(), []);
}

/// Tasks that rest count as waiting: nothing keeps the sandbox from hibernating.
fn a_sandbox_with_a_paused_container_is_at_rest() {
    let [_pause, app, _other] = pod();
    give(&app.process, [Step::Host(|| request(APP.0, 1, true, false))].into_iter().chain(mkdir()));
    assert!(sched::is_at_rest() && !sched::has_waiting());
    let frozen = sched::freeze();
    assert!(frozen.is_some_and(|frozen| frozen.is_undisturbed()), "a task runs");
    assert!(!has(&app.root, b"made"), "a step in the pause");
}

/// Hibernates the sandbox, which has one CPU.
pub(super) fn fall_asleep() {
    take_outcomes();
    hibernate::request(next_request(), true, false, false);
    assert!(hibernate::attempt(|| false), "it is not at rest");
    assert_eq!(take_outcomes(), [HIBERNATE_DONE]);
}

/// It wakes with them still paused. A pause that comes while it sleeps wakes nobody, and the end of one wakes it.
fn a_sandbox_hibernates_with_paused_containers() {
    let [pause, app, other] = pod();
    rest(1, true);
    take_reports();
    fall_asleep();
    request(OTHER.0, 1, true, false);
    run_all();
    assert_eq!(take_reports(), [Told::Paused(OTHER, 1)], "a pause is no wake event");
    // It sleeps still: another request finds nothing to do.
    take_outcomes();
    hibernate::request(next_request(), true, false, false);
    hibernate::attempt(|| false);
    assert_eq!(take_outcomes(), [HIBERNATE_ALREADY]);
    hibernate::wake(next_request(), false);
    run_all();
    for member in [&pause, &app, &other] {
        give(&member.process, mkdir());
    }
    let made = [&pause, &app, &other].map(|member| has(&member.root, b"made"));
    assert_eq!(made, [true, false, false]);
    assert!(take_reports().is_empty());
    fall_asleep();
    rest(2, false);
    assert_eq!(take_reports(), [Told::WakeEvent(WakeEvent::Container)]);
    assert!(has(&app.root, b"made") && !has(&other.root, b"made"), "what rests after the wake");
    request(OTHER.0, 2, false, false);
    run_all();
    assert!(has(&other.root, b"made"), "it does not go on");
}
