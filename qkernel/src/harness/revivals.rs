//! Another VMM takes over while the sandbox sleeps: what is in memory goes on, and what the former one knew is asked anew.

use abi::hostcall::{HIBERNATE_ALREADY, HIBERNATE_DONE};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::boot;
use crate::harness::host::{Told, feed_process, results, take_outcomes, take_reports};
use crate::harness::pauses::{count_requests_anew, fall_asleep, next_request, rest};
use crate::harness::pod::*;
use crate::harness::rounds::run_all;
use crate::harness::script::*;
use crate::harness::steps::SCRATCH;
use crate::hibernate;
use crate::task::process::Process;
use machine::mm::{AddressSpace, UserAddr};
use machine::sched::Runnable;
use machine::{sched, testing, time};

pub const SCENARIOS: &[fn()] = &[
    memory_and_what_lies_in_pipes_are_the_same,
    requests_count_from_one_again,
    a_wait_lasts_as_long_as_it_would_have,
    another_boot_has_another_id,
];

const READ: u64 = 0;
const WRITE: u64 = 1;
const OPEN: u64 = 2;
const CLOSE: u64 = 3;
const NANOSLEEP: u64 = 35;
const PIPE: u64 = 22;
const FOUND: u64 = SCRATCH + 0x300;

/// The sandbox falls asleep, and wakes under another VMM.
fn replace() {
    fall_asleep();
    replace_asleep();
    hibernate::wake(next_request(), false);
    run_all();
}

/// Another VMM takes over the sandbox, which sleeps on.
fn replace_asleep() {
    let frozen = sched::freeze().expect("nothing runs");
    sched::fetch_all(&frozen);
    // The former VMM's CPU never comes back to let go of it.
    core::mem::forget(frozen);
    let info = testing::replace_vmm();
    sched::adopt_idle(&(boot::idle_task().expect("an idle task") as Runnable));
    boot::revive::revive(&info, &[]);
    count_requests_anew();
    run_all();
}

fn memory_of(process: &Process) -> Arc<AddressSpace> {
    let task = process.tasks.lock().first().cloned();
    task.and_then(|task| task.aspace()).expect("memory")
}

fn content(aspace: &AddressSpace, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = alloc::vec![0; len];
    aspace.copy_in(UserAddr::new(at), &mut bytes).expect("memory");
    bytes
}

fn memory_and_what_lies_in_pipes_are_the_same() {
    let [_pause, app, _other] = pod();
    let child = app.fork();
    let aspace = memory_of(&app.process);
    let pattern: Vec<u8> = (0..40_960_u32).map(|at| at.wrapping_mul(31).to_le_bytes()[0]).collect();
    aspace.copy_out(UserAddr::new(SCRATCH + 0x1000), &pattern).expect("written");
    let made = turn(
        &app.process,
        [
            call(PIPE, &[SCRATCH]),
            text(FOUND, b"half read"),
            call(WRITE, &[1, FOUND, 9]),
            call(READ, &[0, FOUND, 5]),
        ],
    );
    assert_eq!(made, [0, 9, 5]);
    for _ in 0..3 {
        let before = aspace.machine().number();
        replace();
        assert_eq!(turn(&app.process, [call(GETPID, &[])]), [app.process.pid.into()]);
        assert!(aspace.machine().number() > before, "a stub of the former VMM");
        assert_eq!(content(&aspace, SCRATCH + 0x1000, pattern.len()), pattern);
    }
    assert_eq!(turn(&app.process, [call(READ, &[0, FOUND, 100])]), [4]);
    assert_eq!(content(&aspace, FOUND, 4), b"read");
    // A child that came before and one that comes after.
    assert_eq!(turn(&child, [call(GETPPID, &[])]), [app.process.pid.into()]);
    let later = app.fork();
    assert_eq!(turn(&later, [call(GETPPID, &[])]), [app.process.pid.into()]);
}

/// A request of the new VMM is obeyed though the former one's had larger numbers, and what was asked for holds until then.
fn requests_count_from_one_again() {
    let [_pause, app, _other] = pod();
    rest(500, true);
    fall_asleep();
    replace_asleep();
    hibernate::request(next_request(), true, false, false);
    hibernate::attempt(|| false);
    assert_eq!(take_outcomes(), [HIBERNATE_ALREADY], "it sleeps still");
    hibernate::wake(next_request(), false);
    run_all();
    assert!(app.container.is_paused());
    take_reports();
    rest(1, false);
    rest(2, true);
    assert_eq!(take_reports(), [Told::Paused(APP, 2)]);
    hibernate::request(next_request(), true, false, false);
    assert!(hibernate::attempt(|| false));
    assert_eq!(take_outcomes(), [HIBERNATE_DONE]);
    hibernate::wake(next_request(), false);
}

/// The new VMM's host has been up for less: the clock goes on, and so does a wait by it.
fn a_wait_lasts_as_long_as_it_would_have() {
    let [_pause, app, _other] = pod();
    let wait = [
        text(SCRATCH, &[3_u64.to_le_bytes(), [0; 8]].concat()),
        call(NANOSLEEP, &[SCRATCH, 0]),
        call(GETPID, &[]),
    ];
    feed_process(APP, app.process.pid, wait.into_iter().chain(sleep()));
    wake(&app.process);
    run_all();
    let done = || results(APP, app.process.pid);
    assert!(done().is_empty(), "it waits");
    let before = time::monotonic_ns();
    replace();
    assert!((before..before + time::NSEC).contains(&time::monotonic_ns()), "the clock has leapt");
    assert!(done().is_empty(), "it waits still");
    pass(2 * time::NSEC);
    assert!(done().is_empty(), "it waits still");
    pass(2 * time::NSEC);
    assert_eq!(done()[..2], [0, app.process.pid.into()]);
}

/// Time passes by the host's clock, and the kernel looks at it.
fn pass(ns: u64) {
    testing::pass_time(ns);
    hibernate::pause(next_request(), false);
    time::hold();
    time::release();
    hibernate::wake(next_request(), false);
    run_all();
}

fn another_boot_has_another_id() {
    let [_pause, app, _other] = pod();
    let id = || {
        let read = [
            text(SCRATCH, b"/proc/sys/kernel/random/boot_id\0"),
            call(OPEN, &[SCRATCH, 0, 0]),
            call(READ, &[0, FOUND, 37]),
            call(CLOSE, &[0]),
        ];
        assert_eq!(turn(&app.process, read), [0, 37, 0]);
        let aspace = memory_of(&app.process);
        content(&aspace, FOUND, 37)
    };
    let first = id();
    assert_eq!(id(), first);
    replace();
    assert_ne!(id(), first);
}
