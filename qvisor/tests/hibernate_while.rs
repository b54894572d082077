//! Hibernation in the middle of things: nothing hangs, and nothing is lost.

mod sleeper;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use sleeper::{TestSandbox, guest};

const PATIENCE: Duration = Duration::from_secs(20);

/// A sandbox whose program is in the middle of `what`.
fn midst(what: &[&str]) -> TestSandbox {
    let mut sandbox = TestSandbox::new();
    let program = guest("midst");
    sandbox.start(&["--memory", "64M"], &[], &[&[program.to_str().unwrap()], what].concat());
    sandbox
}

/// Hibernates and wakes it some times; then a line on its standard input wakes it, and it finds all as it was.
fn survives(what: &[&str]) {
    let mut sandbox = midst(what);
    goes_on(&mut sandbox);
}

fn goes_on(sandbox: &mut TestSandbox) {
    for cycle in 0..4 {
        sandbox.order(&["hibernate"]);
        sleep(Duration::from_millis(20));
        sandbox.order(&["wake", "--reap", if cycle % 2 == 1 { "on" } else { "off" }]);
    }
    // Data on a stream wakes the sandbox only if a task waits for it already.
    sleep(Duration::from_millis(100));
    sandbox.order(&["hibernate"]);
    sandbox.says_line();
    sandbox.ends_well();
}

#[test]
fn a_futex_waits() {
    survives(&["futex"]);
}

#[test]
fn epoll_waits() {
    survives(&["epoll"]);
}

#[test]
fn a_child_runs() {
    survives(&["child"]);
}

#[test]
fn many_threads_want_one_processor() {
    let mut sandbox = TestSandbox::new();
    let program = [guest("midst").to_str().unwrap().to_owned(), "busy".into(), "300".into()];
    sandbox.start(&["--memory", "64M", "--cpus", "1"], &[], &program.each_ref().map(String::as_str));
    let mut pauses = Vec::new();
    // Should each of them run for one more time slice before it rests, that would take two to three seconds every time.
    while pauses.iter().all(|pause| *pause >= 1_000_000) {
        assert!(pauses.len() < 5, "microseconds: {pauses:?}");
        pauses.push(sandbox.order(&["hibernate"])["pause_us"].as_u64().unwrap());
        sandbox.order(&["wake"]);
    }
    sandbox.says_line();
    sandbox.ends_well();
}

#[test]
fn a_pipe_is_full() {
    survives(&["pipe"]);
}

/// A segment that nobody maps is stored like all else, and takes no memory meanwhile.
#[test]
fn ipc_objects_wait() {
    const SEGMENT_PAGES: u64 = 600;
    let mut sandbox = midst(&["ipc"]);
    let awake_kib = sandbox.file_kib();
    let down = sandbox.order(&["hibernate"]);
    assert!(down["pages"].as_u64().unwrap() >= SEGMENT_PAGES, "{down}");
    let asleep_kib = sandbox.file_kib();
    assert!(awake_kib == 0 || awake_kib >= asleep_kib + 4 * SEGMENT_PAGES, "{awake_kib}, {asleep_kib}");
    sandbox.order(&["wake"]);
    goes_on(&mut sandbox);
}

#[test]
fn promises_are_kept() {
    survives(&["promises"]);
}

#[test]
fn files_are_watched() {
    survives(&["inotify"]);
}

#[test]
fn a_database_is_driven() {
    if !Path::new("/usr/lib/postgresql").exists() {
        eprintln!("skipped: there is no PostgreSQL");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../test/guest/scripts/postgres.sh");
    let mut sandbox = TestSandbox::new();
    sandbox.start(&["--memory", "512M"], &[], &["sh", script, "midst"]);
    for _ in 0..5 {
        sleep(Duration::from_millis(700));
        sandbox.order(&["hibernate"]);
        sleep(Duration::from_millis(50));
        sandbox.order(&["wake"]);
    }
    sleep(Duration::from_millis(700));
    sandbox.says_line();
    sandbox.ends_well();
}

#[test]
fn a_signal_is_pending() {
    survives(&["signal"]);
}

#[test]
fn a_vfork_is_open() {
    survives(&["vfork"]);
}

#[test]
fn a_timer_is_due() {
    let mut sandbox = midst(&["timer"]);
    sandbox.order(&["hibernate"]);
    sleep(Duration::from_millis(500));
    assert_eq!(sandbox.status(), "hibernated", "time wakes nobody");
    let start = Instant::now();
    sandbox.order(&["wake"]);
    // The program has one sleep of 200 ms left; then it waits for the line.
    sandbox.says_line();
    sandbox.ends_well();
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

/// The words that the guest program expects for a key.
fn words(key: u64, range: std::ops::Range<u64>) -> Vec<u8> {
    range.flat_map(|at| word(key, at).to_ne_bytes()).collect()
}

fn word(key: u64, at: u64) -> u64 {
    let mixed = (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// A server on the host, and its port.
fn host_server() -> (TcpListener, String) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    (server, port)
}

#[test]
fn unread_bytes_lie_in_a_socket() {
    let (server, port) = host_server();
    scope(|scope| {
        let peer = scope.spawn(|| {
            let (mut peer, _) = server.accept().unwrap();
            peer.write_all(&words(4, 0..3 * 512)).unwrap();
            peer
        });
        let mut sandbox = midst(&["unread", &port]);
        let _peer = peer.join().unwrap();
        sandbox.sleeps();
        sandbox.order(&["wake"]);
        goes_on(&mut sandbox);
    });
}

#[test]
fn a_download_is_under_way() {
    const BYTES: u64 = 100 << 20;
    const CHUNK: u64 = 256 << 10;
    let (server, port) = host_server();
    let done = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            let (mut peer, _) = server.accept().unwrap();
            peer.set_write_timeout(Some(PATIENCE)).unwrap();
            for chunk in 0..BYTES / CHUNK {
                peer.write_all(&words(5, chunk * CHUNK / 8..(chunk + 1) * CHUNK / 8)).unwrap();
                sleep(Duration::from_millis(8));
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut sandbox = midst(&["download", &port, &BYTES.to_string()]);
        let (mut slept, mut overtaken) = (0, 0);
        while !done.load(Ordering::SeqCst) {
            match sandbox.hibernates_unless_woken() {
                true => slept += 1,
                false => overtaken += 1,
            }
            // What comes next wakes it.
            sandbox.wakes_or_ends();
            sleep(Duration::from_millis(100));
        }
        sandbox.ends_well();
        assert!(slept >= 3, "it slept {slept} times, and was overtaken {overtaken} times");
    });
}

/// One request to the server of `midst.c`.
fn ask(port: &str, number: u64) {
    let mut client = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(&number.to_ne_bytes()).unwrap();
    let mut answer = [0; 8];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(u64::from_ne_bytes(answer), word(6, number % (256 * 512)), "the answer to {number}");
}

/// A port that no socket is bound to now.
fn free_port() -> String {
    host_server().1
}

#[test]
fn a_health_check_comes_again_and_again() {
    let port = free_port();
    let mut sandbox = midst(&["server", &port, "2"]);
    let (done, checks) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut slept = 0;
    scope(|scope| {
        let _end = AtEnd(&done);
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                ask(&port, u64::from(checks.load(Ordering::SeqCst)) * 77_777);
                checks.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(200));
            }
        });
        for _ in 0..15 {
            slept += u32::from(sandbox.hibernates_unless_woken());
            let before = checks.load(Ordering::SeqCst);
            // The check after the next has been answered.
            let start = Instant::now();
            while checks.load(Ordering::SeqCst) < before + 2 {
                assert!(start.elapsed() < PATIENCE, "no check is answered; {}", sandbox.status());
                sleep(Duration::from_millis(1));
            }
        }
    });
    assert!(slept >= 5, "it slept {slept} times");
    sandbox.says_line();
    sandbox.ends_well();
}

/// Tells the other threads that the test is over, by whatever reason.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
