//! Many cycles of hibernation and wake, by page faults and by the working set in turns; on either platform.
//!
//! `DORMOUSE_CYCLES` says how many (default 200; `make soak` takes more).

mod sleeper;

use std::thread::sleep;
use std::time::{Duration, Instant};

use sleeper::{TestSandbox, guest, number};

/// Frames in use as a hibernation found them.
fn frames(down: &serde_json::Value) -> u64 {
    down["pages"].as_u64().unwrap() + down["kept_pages"].as_u64().unwrap()
}

#[test]
fn patterns_survive_many_cycles() {
    let cycles = number("DORMOUSE_CYCLES", 200);
    let mut sandbox = TestSandbox::new();
    // Eight threads that rest a little now and then, so that there are moments at which all wait.
    let program = [guest("pattern").to_str().unwrap().to_owned(), "/tmp".into()];
    let program = [&program[0], &program[1], "0", "8", "8000", "8"];
    sandbox.start(&["--memory", "64M"], &[], &program);
    let start = Instant::now();
    let mut most = 0;
    for cycle in 0..cycles {
        let down = sandbox.order(&["hibernate"]);
        let reap = cycle % 2 == 1;
        let up = sandbox.order(&["wake", "--reap", if reap { "on" } else { "off" }]);
        let set = if reap { down["working_set_pages"].as_u64().unwrap() } else { 0 };
        assert_eq!(up["pages"], set, "cycle {cycle}: {up} after {down}");
        // Copies of a file's pages come one by one, as fast as the machine is; a child's may come on top, and go again.
        let used = frames(&down);
        if cycle < (cycles / 2).max(20) {
            most = most.max(used);
        }
        assert!(used < most + 200, "cycle {cycle}: {used} frames in use, {most} at first; {down}");
        sleep(Duration::from_millis(1));
    }
    println!("{cycles} cycles in {:?}", start.elapsed());
    sandbox.kill("TERM");
    sandbox.ends_well();
}

#[test]
fn a_shared_frame_stays_shared() {
    let cycles = number("DORMOUSE_CYCLES", 20).min(20);
    let mut sandbox = TestSandbox::new();
    sandbox.start(&["--memory", "64M"], &[], &[guest("midst").to_str().unwrap(), "family"]);
    let mut first = 0;
    for cycle in 0..cycles {
        let down = sandbox.order(&["hibernate"]);
        if cycle == 0 {
            first = frames(&down);
            // Twice 512 pages, in four processes.
            assert!((1024..1024 + 512).contains(&first), "{down}");
        }
        assert!(frames(&down) <= first + 8, "cycle {cycle}: {down}, {first} at first");
        sandbox.order(&["wake", "--reap", if cycle % 2 == 1 { "on" } else { "off" }]);
    }
    sandbox.says_line();
    sandbox.ends_well();
}
