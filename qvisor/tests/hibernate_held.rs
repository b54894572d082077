//! Kernel objects of every kind survive many cycles of hibernation and wake while programs use them (`holds.c`).
//!
//! `DORMOUSE_CYCLES` says how many (default 30; `make soak` takes 1000).

mod random;
mod sleeper;

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use random::Random;
use sleeper::{TestSandbox, guest, number};

/// A sandbox whose program is at work. Says what is known of it when the test fails.
struct Busy {
    sandbox: TestSandbox,
    cycle: u64,
}

impl Busy {
    fn start(mode: &str) -> Self {
        let mut sandbox = TestSandbox::new();
        sandbox.start(&["--memory", "64M"], &[], &[guest("holds").to_str().unwrap(), mode]);
        Self { sandbox, cycle: 0 }
    }

    /// Carries an order out, unless what came from outside had already woken the sandbox.
    fn order(&self, args: &[&str]) -> bool {
        let output = self.sandbox.run(&[args, &["s"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        let is_woken = ["woken meanwhile", "it is not hibernated"].iter().any(|why| error.contains(why));
        assert!(output.status.success() || is_woken, "cycle {}, {args:?}: {error}", self.cycle);
        output.status.success()
    }

    /// Hibernates and wakes it. Every fourth time it is given a moment to come to rest; otherwise it is stopped wherever it
    /// is, by a pause.
    fn sleep(&self, random: &mut Random) -> bool {
        let stops = !self.cycle.is_multiple_of(4);
        if stops {
            assert!(self.order(&["pause"]));
        }
        let slept = self.order(&["hibernate"]);
        assert!(slept || !stops, "nothing wakes what is paused");
        sleep(Duration::from_micros(random.below(3000)));
        let woken = self.order(&["wake", "--reap", if self.cycle % 2 == 1 { "on" } else { "off" }]);
        assert!(woken || !stops);
        slept
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Some(front) = self.sandbox.front.as_mut().filter(|_| std::thread::panicking()) else {
            return;
        };
        let (id, mut error) = (front.id().to_string(), front.stderr.take());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/kernel-stacks");
        let stacks = Command::new(script).arg(id).output();
        let state = self.sandbox.run(&["state", "s"]).stdout;
        let stats = self.sandbox.run(&["stats", "s"]).stdout;
        // The program says where its families are.
        self.sandbox.run(&["kill", "s", "USR1"]);
        sleep(Duration::from_millis(500));
        self.sandbox.run(&["kill", "s", "KILL"]);
        let mut said = String::new();
        let _ = error.as_mut().map(|error| error.read_to_string(&mut said));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let stacks = stacks.map(|output| text(&output.stdout)).unwrap_or_default();
        eprintln!("cycle {}: {said}{}{}{stacks}", self.cycle, text(&state), text(&stats));
    }
}

/// The program's modes: the kinds of kernel objects that it can use.
const MODES: [&str; 8] = ["ipc", "files", "sockets", "net", "timers", "memory", "threads", "streams"];

/// The program's checks hold on the host's kernel: without a line that lasts, each mode ends soon.
#[test]
fn the_program_passes_on_the_host() {
    for mode in MODES {
        let output = Command::new(guest("holds")).arg(mode).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("\nok"), "{mode}: {said}{error}");
    }
}

/// The program of this mode goes through its cycles, ends at a line, and has lost nothing.
fn survives(mode: &str) {
    let cycles = number("DORMOUSE_CYCLES", 30);
    let start = Instant::now();
    let mut random = Random(0x5eed_0001);
    let mut busy = Busy::start(mode);
    let mut slept = 0;
    while busy.cycle < cycles {
        slept += u64::from(busy.sleep(&mut random));
        sleep(Duration::from_micros(random.below(8000)));
        busy.cycle += 1;
    }
    assert!(slept * 4 >= cycles * 3, "it slept {slept} times of {cycles}");
    busy.sandbox.says_line();
    let (code, out, err) = busy.sandbox.end();
    assert!(code == Some(0) && out.starts_with("ok"), "{mode}: {code:?} {out:?} {err}");
    println!("{mode}: slept {slept} times in {:?}; {out}", start.elapsed());
}

#[test]
fn ipc_objects_are_used() {
    survives("ipc");
}

#[test]
fn files_are_watched_leased_and_locked() {
    survives("files");
}

#[test]
fn sockets_carry_credentials_and_descriptors() {
    survives("sockets");
}

#[test]
fn the_network_carries_bytes() {
    survives("net");
}

#[test]
fn timers_and_events_come() {
    survives("timers");
}

#[test]
fn memory_is_advised_moved_and_copied() {
    survives("memory");
}

#[test]
fn threads_count_and_lock() {
    survives("threads");
}

#[test]
fn pipes_and_terminals_stream() {
    survives("streams");
}
