//! Timers of programs and the sleep of their sandbox: `--timers`.
//!
//! The programs hold natively as well. Times are short, and only bounds are asserted that a slow machine keeps: a wake comes, a
//! wake does not come, and a wake is no earlier than it may be.

mod sleeper;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use sleeper::{Events, PATIENCE, TestSandbox, next_line};

/// How often the programs' timers are due, and how long before a deadline must have been set.
const PERIOD: Duration = Duration::from_secs(2);
const WAKE: [&str; 4] = ["--timers", "wake:1s", "--idle-timeout", "300ms"];

/// Whether the event tells of a wake, and for what.
fn is_wake(event: &Value, request: &str) -> bool {
    event["from"] == "hibernated" && event["request"] == request
}

fn is_timer_wake(event: &Value) -> bool {
    is_wake(event, "timer")
}

/// Starts a program that says `ready`, and then a line each time its timer is due; it wakes the sandbox for at least three.
fn wakes_for(options: &[&str], program: &[&str], name: &str, kind: &str) {
    let mut sandbox = TestSandbox::new();
    sandbox.start(options, &[], program);
    let mut events = Events::of(&sandbox);
    for _ in 0..3 {
        // On a busy host it may have been asleep before it was done, and woken to go on.
        let is_its = |event: &Value| is_timer_wake(event) && event["timer"]["kind"] != "unfinished";
        let told = events.until(is_its);
        let last = told.last().unwrap();
        let timer = &last["timer"];
        assert_eq!((&timer["kind"], last["cause"].as_str()), (&kind.into(), Some("request")), "{told:?}");
        assert!(
            timer["process"].as_str().unwrap().starts_with(name) && timer["pid"].as_u64() > Some(0),
            "{last}"
        );
        assert!(timer["ahead_us"].as_u64() >= Some(900_000), "{last}");
        assert_eq!(next_line(sandbox.front.as_mut().unwrap()), "due\n");
    }
    let stats = sandbox.order(&["stats"]);
    assert!(stats["timer_wakes"].as_u64() >= Some(3), "{stats}");
    assert!(stats["wakes"].as_u64() >= stats["timer_wakes"].as_u64());
    let why = sandbox.order(&["why"]);
    let woken = &why["woken_by"];
    assert!(
        woken["pid"].as_u64() > Some(0) || woken["request"] != "timer" || woken["wait"] == "unfinished",
        "{why}"
    );
    let last = &stats["last_timer_wake"];
    assert!(last["kind"] == "unfinished" || last["process"].as_str().unwrap().starts_with(name), "{stats}");
    // It goes back to sleep, and is not kept awake for the whole of a long idle time.
    sandbox.becomes("hibernated");
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
}

#[test]
fn a_shells_loop_of_sleeps() {
    let program = "echo ready; while sleep 2; do echo due; done";
    wakes_for(&WAKE, &["sh", "-c", program], "sleep", "wait");
}

#[test]
fn a_scheduler_in_python() {
    let program = "
import sched, time
s = sched.scheduler(time.time, time.sleep)
def due():
    s.enter(2, 1, due)
    print('due', flush=True)
s.enter(2, 1, due)
print('ready', flush=True)
s.run()";
    wakes_for(&WAKE, &["python3", "-c", program], "python3", "wait");
}

#[test]
fn each_timer_of_a_thread() {
    let program = "
import threading
def due():
    threading.Timer(2, due).start()
    print('due', flush=True)
threading.Timer(2, due).start()
print('ready', flush=True)
threading.Event().wait()";
    wakes_for(&WAKE, &["python3", "-c", program], "", "wait");
}

#[test]
fn a_poll_an_epoll_and_a_deadline_of_the_wall_clock() {
    for wait in [
        "select.select([], [], [], 2)",
        "select.poll().poll(2000)",
        "select.epoll().poll(2)",
        "threading.Event().wait(2)",
        "signal.sigtimedwait([signal.SIGUSR1], 2)",
    ] {
        let program = format!(
            "
import select, signal, threading
print('ready', flush=True)
while True:
    {wait}
    print('due', flush=True)"
        );
        wakes_for(&WAKE, &["python3", "-c", &program], "python3", "wait");
    }
}

/// `timerfd`, POSIX timers by both clocks, `setitimer` and `alarm`, and `clock_nanosleep` until a time of either clock.
#[test]
fn every_kind_of_kernel_timer() {
    let program = sleeper::guest("deadlines");
    for (mode, kind) in [
        ("timerfd", "timerfd"),
        ("timerfd-real", "timerfd"),
        ("posix", "posix-timer"),
        ("posix-real", "posix-timer"),
        ("itimer", "itimer"),
        ("alarm", "itimer"),
        ("until", "wait"),
        ("until-real", "wait"),
    ] {
        wakes_for(&WAKE, &[program.to_str().unwrap(), mode], "deadlines", kind);
    }
}

#[test]
fn node_and_java_if_they_are_there() {
    let node = "console.log('ready'); setInterval(() => console.log('due'), 2000)";
    let java = "
import java.util.concurrent.*;
class Due {
    public static void main(String[] args) {
        var pool = Executors.newScheduledThreadPool(1);
        pool.scheduleAtFixedRate(() -> System.out.println(\"due\"), 2, 2, TimeUnit.SECONDS);
        System.out.println(\"ready\");
    }
}";
    let dir = TestSandbox::new();
    let source = dir.dir.join("Due.java");
    fs::write(&source, java).unwrap();
    let is_there = |program: &str| std::process::Command::new(program).arg("--version").output().is_ok();
    if is_there("node") {
        wakes_for(&WAKE, &["node", "-e", node], "", "wait");
    }
    if is_there("java") {
        let volume = format!("{}:/due", dir.dir.display());
        let options = [&WAKE[..], &["--volume", &volume]].concat();
        wakes_for(&options, &["java", "-Xshare:auto", "-XX:+UseSerialGC", "/due/Due.java"], "", "wait");
    }
}

/// Sleeps after its idle time, and never by itself wakes; what a request finds then.
fn sleeps_on(options: &[&str], program: &str) {
    let mut sandbox = TestSandbox::new();
    sandbox.start(options, &[], &["sh", "-c", program]);
    sandbox.becomes("hibernated");
    sleep(2 * PERIOD);
    assert_eq!(sandbox.status(), "hibernated", "{options:?}");
    assert_eq!(sandbox.order(&["stats"])["timer_wakes"], 0);
    // What was due meanwhile is due once it goes on.
    sandbox.order(&["wake"]);
    assert_eq!(next_line(sandbox.front.as_mut().unwrap()), "due\n");
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
}

#[test]
fn timers_wake_nobody_unless_told_to() {
    let program = "echo ready; while sleep 2; do echo due; done";
    sleeps_on(&["--idle-timeout", "300ms"], program);
    sleeps_on(&["--timers", "sleep", "--idle-timeout", "300ms"], program);
    // Set too short a time before.
    sleeps_on(&["--timers", "wake", "--idle-timeout", "300ms"], program);
}

#[test]
fn an_order_to_hibernate_ends_with_the_timer_and_one_that_is_due_by_then_wakes_at_once() {
    let mut sandbox = TestSandbox::new();
    sandbox.start(
        &["--timers", "wake:1s"],
        &[],
        &["sh", "-c", "echo ready; while sleep 2; do echo due; done"],
    );
    for _ in 0..3 {
        // In the middle of a wait, wherever that is.
        if sandbox.hibernates_unless_woken() {
            sandbox.wakes();
        }
        assert_eq!(next_line(sandbox.front.as_mut().unwrap()), "due\n");
    }
    // Without an idle time it stays awake.
    sleep(Duration::from_millis(1500));
    assert_eq!(sandbox.status(), "running");
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
}

#[test]
fn a_job_that_waits_in_its_middle_is_not_put_to_sleep_there() {
    let mut sandbox = TestSandbox::new();
    let options = ["--timers", "wake:2s", "--idle-timeout", "8s"];
    // The halves of a job are apart by less than what wakes, and more than the moment in which a sandbox goes back to sleep.
    let program = "echo ready; while sleep 4; do echo one; sleep 1.2; echo two; done";
    sandbox.start(&options, &[], &["sh", "-c", program]);
    let front = sandbox.front.as_mut().unwrap();
    assert_eq!((next_line(front), next_line(front)), ("one\n".into(), "two\n".into()));
    sandbox.order(&["hibernate"]);
    let mut events = Events::of(&sandbox);
    assert!(is_timer_wake(events.until(is_timer_wake).last().unwrap()));
    let front = sandbox.front.as_mut().unwrap();
    assert_eq!(next_line(front), "one\n");
    let half = Instant::now();
    let told = events.until(|event| event["to"] == "hibernated");
    assert_eq!(next_line(sandbox.front.as_mut().unwrap()), "two\n");
    assert_eq!(told.last().unwrap()["cause"], "idle-timeout", "{told:?}");
    assert!(half.elapsed() >= Duration::from_millis(900), "it slept in the middle: {told:?}");
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
}

#[test]
fn a_server_with_a_job_answers_and_sleeps_and_is_on_time() {
    let mut sandbox = TestSandbox::new();
    let port = testdir::free_port();
    let program = format!(
        "
import select, socket, time
server = socket.create_server(('127.0.0.1', {port}))
print('ready', flush=True)
due = time.monotonic() + 3
while True:
    if select.select([server], [], [], max(0, due - time.monotonic()))[0]:
        client, _ = server.accept()
        client.sendall(client.recv(100))
        client.close()
    else:
        due += 3
        print('due', flush=True)"
    );
    sandbox.start(&["--timers", "wake:2s", "--idle-timeout", "300ms"], &[], &["python3", "-c", &program]);
    for _ in 0..3 {
        assert_eq!(next_line(sandbox.front.as_mut().unwrap()), "due\n");
        // The request leaves less of the wait than what wakes; the deadline was set long before all the same.
        sleep(Duration::from_millis(1500));
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
    assert!(sandbox.order(&["stats"])["timer_wakes"].as_u64() >= Some(1));
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
}

#[test]
fn a_timer_that_does_nothing_is_served_ever_later_and_one_that_writes_is_not() {
    // The launcher forks now and then and writes nowhere; within this time it would wake nine times.
    let launcher = "
import os, time
print('ready', flush=True)
while True:
    time.sleep(1)
    if os.fork() == 0: os._exit(0)
    os.wait()";
    let mut idle = TestSandbox::new();
    idle.start(&WAKE, &[], &["python3", "-c", launcher]);
    let start = Instant::now();
    let wakes = |sandbox: &TestSandbox| sandbox.order(&["stats"])["timer_wakes"].as_u64().unwrap();
    while wakes(&idle) < 3 {
        assert!(start.elapsed() < PATIENCE, "it does not wake");
        sleep(Duration::from_millis(50));
    }
    // The fourth comes four seconds after the third, the fifth sixteen after that.
    sleep(Duration::from_secs(9));
    assert!((3..=4).contains(&wakes(&idle)), "{}", wakes(&idle));
    idle.kill("KILL");
    assert_eq!(idle.end().0, Some(137));

    let mut busy = TestSandbox::new();
    busy.start(&WAKE, &[], &["sh", "-c", "echo ready; while sleep 2; do echo due; done"]);
    let start = Instant::now();
    while wakes(&busy) < 6 {
        assert!(start.elapsed() < PATIENCE, "it is served late: {} wakes", wakes(&busy));
        sleep(Duration::from_millis(50));
    }
    busy.kill("KILL");
    assert_eq!(busy.end().0, Some(137));
}

/// The wall clock minus the monotonic clock, in microseconds.
fn clock_offset_us() -> u64 {
    let now_us = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: one live structure.
        assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
        time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1000
    };
    now_us(libc::CLOCK_REALTIME) - now_us(libc::CLOCK_MONOTONIC)
}

#[test]
fn it_wakes_at_multiples_of_a_time_together_with_others_and_no_more_often() {
    let options = ["--timers", "coalesce:4s", "--idle-timeout", "300ms"];
    let program = "echo ready; for wait in 4.1 4.3 4.6; do while sleep $wait; do echo due; done & done; wait";
    let mut sandboxes = [TestSandbox::new(), TestSandbox::new()];
    sandboxes.iter_mut().for_each(|sandbox| sandbox.start(&options, &[], &["sh", "-c", program]));
    for sandbox in &sandboxes {
        let mut events = Events::of(sandbox);
        let mut last = None;
        for _ in 0..2 {
            let told = events.until(is_timer_wake);
            let event = told.last().unwrap();
            // The wake begins at a point of the grid, and has come a moment later.
            let at_us = event["time_us"].as_u64().unwrap();
            let since_us = at_us.wrapping_sub(clock_offset_us()) % 4_000_000;
            assert!(since_us < 3_000_000, "{since_us} after the point: {event}");
            if let Some(last_us) = last.replace(at_us) {
                assert!(at_us.abs_diff(last_us) >= 1_000_000, "{told:?}");
            }
        }
    }
    for sandbox in &mut sandboxes {
        sandbox.kill("KILL");
        assert_eq!(sandbox.end().0, Some(137));
    }
}

#[test]
fn a_sandbox_that_waits_for_a_timer_takes_no_processor_time() {
    let mut sandbox = TestSandbox::new();
    sandbox.start(&["--timers", "wake"], &[], &["sh", "-c", "echo ready; exec sleep 3600"]);
    sandbox.order(&["hibernate"]);
    let ticks = || -> u64 {
        let of = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>()
        };
        sandbox.processes().iter().map(of).sum()
    };
    assert_eq!(sleeper::quiet_window(Duration::from_secs(2), 0, ticks), 0);
    assert_eq!(sandbox.status(), "hibernated");
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
}

#[test]
fn values_that_are_none_are_refused() {
    let sandbox = TestSandbox::new();
    for (value, words) in [
        ("nap", "expected sleep, wake, wake:TIME or coalesce:TIME"),
        ("sleep:1s", "expected sleep, wake, wake:TIME or coalesce:TIME"),
        ("coalesce", "expected sleep, wake, wake:TIME or coalesce:TIME"),
        ("wake:999ms", "at least 1s and at most 24h"),
        ("coalesce:25h", "at least 1s and at most 24h"),
        ("wake:5", "expected a time"),
    ] {
        let output = sandbox.run(&["do", "--timers", value, "--", "true"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{error}");
        assert!(error.contains(value) && error.contains(words), "{error}");
    }
}
