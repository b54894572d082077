//! Hibernation with errors: an error while memory is stored leaves the sandbox warm, one while it comes back ends the
//! sandbox with a sentence, and a VMM that is killed leaves nothing behind. No other sandbox notices.

mod sleeper;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sleeper::TestSandbox;
use vmm::hibernate::injection::POINTS;

#[test]
fn a_disk_that_cannot_be_written_leaves_it_warm() {
    let mut sandbox = TestSandbox::new();
    sandbox.start_pattern(&[], &[("DORMOUSE_SWAP_FAULT", "write")]);
    for _ in 0..3 {
        sandbox.refuses(&["hibernate"], "cannot write pages to the swap file: Input/output error");
        assert_eq!(sandbox.status(), "running");
        sleep(Duration::from_millis(20));
    }
    sandbox.kill("TERM");
    sandbox.ends_well();
}

#[test]
fn a_full_swap_limit_leaves_it_warm() {
    let mut sandbox = TestSandbox::new();
    sandbox.start_pattern(&["--swap-limit", "1M"], &[]);
    sandbox.refuses(&["hibernate"], "the swap limit of 1048576 bytes is reached; the sandbox stays warm");
    assert_eq!(sandbox.status(), "running");
    sandbox.kill("TERM");
    sandbox.ends_well();
}

/// A sandbox whose pages come back wrong ends with a sentence, whichever task touches them first.
fn ends_with_the_loss(fault: &str, words: &str) {
    let mut sandbox = TestSandbox::new();
    sandbox.start_pattern(&[], &[("DORMOUSE_SWAP_FAULT", fault)]);
    sandbox.order(&["hibernate"]);
    let _ = sandbox.run(&["wake", "s"]);
    let (code, out, err) = sandbox.end();
    assert_eq!(code, Some(125), "{out} {err}");
    assert!(!out.contains("MISMATCH") && !out.contains("ok"), "{out}");
    assert!(err.contains("cannot bring its memory back") && err.contains(words), "{err}");
    assert_eq!(err.trim_end().lines().count(), 1, "{err}");
}

#[test]
fn a_disk_that_cannot_be_read_ends_it() {
    ends_with_the_loss("read", "Input/output error");
}

#[test]
fn a_flipped_bit_ends_it() {
    ends_with_the_loss("flip", "damaged");
}

#[test]
fn a_disk_that_fails_later_leaves_it_warm() {
    let cases = [
        ("full", "cannot write pages to the swap file: No space left on device"),
        ("write:swap:2", "cannot write pages to the swap file: Input/output error"),
        ("write:reap", "cannot write pages to the REAP file: Input/output error"),
        ("full:reap:2", "cannot write pages to the REAP file: No space left on device"),
    ];
    for (fault, words) in cases {
        let mut sandbox = TestSandbox::new();
        sandbox.start_pattern(&[], &[("DORMOUSE_SWAP_FAULT", fault)]);
        let (mut done, mut failed) = (0, 0);
        while failed < 3 {
            let output = sandbox.run(&["hibernate", "s"]);
            if output.status.success() {
                sandbox.order(&["wake"]);
                done += 1;
            } else {
                let error = String::from_utf8_lossy(&output.stderr);
                assert!(error.contains(words), "{fault}: {error}");
                assert_eq!(sandbox.status(), "running", "{fault}");
                failed += 1;
            }
            assert!(done < 20, "{fault}: nothing fails");
            sleep(Duration::from_millis(20));
        }
        assert!(done > 0 || !fault.contains("reap"), "{fault}: never done");
        sandbox.kill("TERM");
        sandbox.ends_well();
    }
}

#[test]
fn short_transfers_are_carried_on() {
    for fault in ["short-write", "short-read"] {
        let mut sandbox = TestSandbox::new();
        sandbox.start_pattern(&[], &[("DORMOUSE_SWAP_FAULT", fault)]);
        for _ in 0..4 {
            sandbox.order(&["hibernate"]);
            sandbox.order(&["wake"]);
            sleep(Duration::from_millis(20));
        }
        sandbox.kill("TERM");
        sandbox.ends_well();
    }
}

#[test]
fn damage_in_one_file_alone_ends_it() {
    for (fault, words) in [
        ("flip:swap", "from the swap file damaged"),
        ("flip:swap:9", "from the swap file damaged"),
        ("flip:reap", "from the REAP file damaged"),
        ("read:reap", "cannot read pages from the REAP file: Input/output error"),
    ] {
        let mut sandbox = TestSandbox::new();
        sandbox.start_pattern(&[], &[("DORMOUSE_SWAP_FAULT", fault)]);
        for _ in 0..10 {
            if !sandbox.run(&["hibernate", "s"]).status.success()
                || !sandbox.run(&["wake", "s"]).status.success()
            {
                break;
            }
            sleep(Duration::from_millis(20));
        }
        let (code, out, err) = sandbox.end();
        assert_eq!(code, Some(125), "{fault}: {out} {err}");
        assert!(!out.contains("MISMATCH") && !out.contains("ok"), "{fault}: {out}");
        assert!(err.contains("cannot bring its memory back") && err.contains(words), "{fault}: {err}");
    }
}

/// The files of a directory, without the lock that all sandboxes share.
fn files_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| ![".lock", ".packing"].contains(&name.as_str())).collect()
}

fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn a_vmm_that_is_killed_leaves_nothing_behind() {
    let mut bystander = TestSandbox::new();
    bystander.start_pattern(&[], &[]);
    for (name, _) in POINTS {
        let mut sandbox = TestSandbox::new();
        let moves = ["moving", "moved"].contains(&name);
        let packs = moves || ["packing", "packed", "adopted"].contains(&name);
        let options: &[&str] = match (moves, packs) {
            (true, _) => &["--home", "memory,disk:1ms"],
            (false, true) => &["--codec", "lz4", "--settle", "1ms"],
            (false, false) => &[],
        };
        sandbox.start_pattern(options, &[("DORMOUSE_DIE_AT", name)]);
        let processes = sandbox.processes();
        let start = Instant::now();
        // The second round has a working set; a fault comes by itself.
        while lives(processes[1]) {
            assert!(start.elapsed() < Duration::from_secs(20), "the VMM never gets to {name}");
            for order in ["hibernate", "wake"] {
                let output = sandbox.run(&[order, "s"]);
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() || !said.contains("EOF"), "{name}: {said}");
                if packs && order == "hibernate" {
                    // A wake would end the packing, or the move.
                    sleep(Duration::from_millis(500));
                }
            }
        }
        let (code, out, err) = sandbox.end();
        assert!(code != Some(0) && !out.contains("MISMATCH"), "{name}: {code:?} {out} {err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{name}: {err}");
        let ended = Instant::now();
        while processes.iter().any(|pid| lives(*pid)) {
            assert!(ended.elapsed() < Duration::from_secs(30), "{name}: a process lives on");
            sleep(Duration::from_millis(5));
        }
        for dir in ["swap", "state", "layers"] {
            assert_eq!(files_in(&sandbox.dir.join(dir)), [""; 0], "{name}: left in {dir}");
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(sandbox.dir.to_str().unwrap()), "{name}: mounts are left");
        sandbox.refuses(&["state"], "container does not exist");
    }
    bystander.order(&["hibernate"]);
    bystander.order(&["wake"]);
    bystander.kill("TERM");
    bystander.ends_well();
}
