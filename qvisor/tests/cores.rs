//! Threads that compute without calls get cores of their own, however the machine was occupied when they began.

mod sleeper;

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use sleeper::{TestSandbox, guest, number};

/// How often the two threads are started: they came to be bound to one core in one start of five.
const STARTS: u64 = 8;
/// Far more than it takes the host, or the sandbox, to move a thread: without that they stay where they are for good.
const PATIENCE: Duration = Duration::from_secs(20);

/// The cores that this thread may use.
fn cores() -> Vec<usize> {
    // SAFETY: the calls read and write the set alone.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// Keeps a core busy until it is told to stop.
fn occupy(core: usize, is_over: &AtomicBool) {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
    }
    while !is_over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// The core of each of the sandbox's threads that runs or wants to, as the host tells.
fn computing(sandbox: &TestSandbox) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for process in sandbox.processes() {
        for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            let mut fields = stat.rsplit(") ").next().unwrap_or_default().split_whitespace();
            let (state, core) = (fields.next(), fields.nth(35));
            if state == Some("R") {
                found.push((core.unwrap().parse().unwrap(), thread.file_name().into_string().unwrap()));
            }
        }
    }
    found
}

/// The cores that these threads may use.
fn allowed(sandbox: &TestSandbox) -> String {
    let of_process = |process: u32| {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        threads.map(move |thread| {
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            let list = status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap_or_default();
            format!("{process}/{} {list}\n", thread.file_name().display())
        })
    };
    sandbox.processes().into_iter().flat_map(of_process).collect()
}

#[test]
fn two_that_compute_do_not_stay_on_one_core() {
    let [first, _, ..] = cores()[..] else {
        eprintln!("skipped: this process may use one core only");
        return;
    };
    for start in 0..number("CORES_STARTS", STARTS) {
        let is_over = AtomicBool::new(false);
        scope(|scope| {
            scope.spawn(|| occupy(first, &is_over));
            let checked = scope.spawn(|| {
                let mut sandbox = TestSandbox::new();
                sandbox.start(&["--cpus", "2"], &[], &[guest("spinners").to_str().unwrap()]);
                sleep(Duration::from_secs(1));
                is_over.store(true, Ordering::Relaxed);
                let begun = Instant::now();
                loop {
                    let found = computing(&sandbox);
                    let on: BTreeSet<u32> = found.iter().map(|(core, _)| *core).collect();
                    if on.len() > 1 {
                        break;
                    }
                    assert!(
                        begun.elapsed() < PATIENCE,
                        "start {start}: all that compute are on {on:?}: {found:?}\n{}",
                        allowed(&sandbox)
                    );
                    sleep(Duration::from_millis(10));
                }
                sandbox.front.as_mut().unwrap().kill().unwrap();
            });
            let result = checked.join();
            is_over.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|why| std::panic::resume_unwind(why));
        });
    }
}
