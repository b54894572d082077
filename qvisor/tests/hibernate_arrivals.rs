//! Pages that are on their way: several tasks wait for several of them, and meanwhile all kinds of things happen to the
//! memory they belong to, to the sandbox, and to the disk; on either platform.
//!
//! `DORMOUSE_ARRIVALS` says how many cycles (default 30; `make soak` takes more).

mod sleeper;

use std::thread::sleep;
use std::time::{Duration, Instant};

use sleeper::{PATIENCE, TestSandbox, guest, number};

const MEGABYTES: &str = "24";

fn start(sandbox: &mut TestSandbox, options: &[&str], variables: &[(&str, &str)]) {
    sandbox.start(options, variables, &[guest("arrive").to_str().unwrap(), MEGABYTES]);
}

/// Times that differ from cycle to cycle, up to 20 ms: the next order comes at any point of the last one's work.
fn a_while(cycle: u64) {
    sleep(Duration::from_micros((cycle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 20_000));
}

/// Hibernates and wakes it again and again, by page faults mostly.
fn cycles(options: &[&str], variables: &[(&str, &str)], count: u64) {
    let mut sandbox = TestSandbox::new();
    start(&mut sandbox, options, variables);
    for cycle in 0..count {
        a_while(cycle);
        sandbox.order(&["hibernate"]);
        sandbox.order(&[
            "wake",
            "--reap",
            ["off", "off", "stream", "on"][usize::try_from(cycle % 4).unwrap()],
        ]);
    }
    sandbox.kill("TERM");
    sandbox.ends_well();
}

#[test]
fn what_is_touched_while_it_arrives_is_whole() {
    cycles(&["--memory", "96M"], &[], number("DORMOUSE_ARRIVALS", 30));
}

#[test]
fn one_processor_is_enough() {
    cycles(&["--memory", "96M", "--cpus", "1"], &[], 10);
}

#[test]
fn a_disk_that_reads_little_at_a_time_is_waited_for() {
    cycles(&["--memory", "96M"], &[("DORMOUSE_SWAP_FAULT", "short-read")], 4);
}

#[test]
fn a_kill_ends_it_whatever_is_on_its_way() {
    for round in 0..8 {
        let mut sandbox = TestSandbox::new();
        start(&mut sandbox, &["--memory", "96M"], &[]);
        sandbox.order(&["hibernate"]);
        sandbox.order(&["wake", "--reap", if round % 2 == 0 { "off" } else { "stream" }]);
        sleep(Duration::from_micros(700 * round));
        let start = Instant::now();
        sandbox.kill("KILL");
        let (code, out, err) = sandbox.end();
        assert!(!out.contains("MISMATCH"), "{out} {err}");
        assert_eq!(code, Some(137), "{out} {err}");
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    }
}

/// Whichever of several reads at once goes wrong, the sandbox ends with a sentence, and nobody sees a wrong page.
#[test]
fn a_disk_that_fails_in_the_middle_ends_it() {
    for (fault, words) in [
        ("read:swap:3", "cannot read pages from the swap file: Input/output error"),
        ("read:swap:60", "cannot read pages from the swap file: Input/output error"),
        ("flip:swap:8", "from the swap file damaged"),
        ("flip:swap:90", "from the swap file damaged"),
    ] {
        let mut sandbox = TestSandbox::new();
        start(&mut sandbox, &["--memory", "96M"], &[("DORMOUSE_SWAP_FAULT", fault)]);
        sandbox.order(&["hibernate"]);
        let _ = sandbox.run(&["wake", "s", "--reap", "off"]);
        let (code, out, err) = sandbox.end();
        assert_eq!(code, Some(125), "{fault}: {out} {err}");
        assert!(!out.contains("MISMATCH") && !out.contains("ok"), "{fault}: {out}");
        assert!(err.contains("cannot bring its memory back") && err.contains(words), "{fault}: {err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{fault}: {err}");
    }
}
