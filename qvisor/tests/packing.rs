//! Packed sleepers: what was packed comes back, whatever happens meanwhile, and nothing lies on the disk in the clear.

mod sleeper;

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use sleeper::{Events, TestSandbox, next_line};

/// Text that only this test has, in a memory of some megabytes that packs well.
const PROGRAM: &str = "import sys\n\
    secret = 'the dormouse sleeps in the hollow tree '\n\
    x = [(secret * 200 + str(i)).encode() for i in range(2000)]\n\
    print('ready', flush=True)\n\
    for line in sys.stdin:\n\
    \x20   ok = all(x[i] == (secret * 200 + str(i)).encode() for i in range(0, 2000, 7))\n\
    \x20   print('whole' if ok else 'broken', flush=True)\n";

fn start(sandbox: &mut TestSandbox, options: &[&str], variables: &[(&str, &str)]) {
    sandbox.start(&[&["--settle", "50ms"], options].concat(), variables, &["python3", "-c", PROGRAM]);
}

fn of_home(stats: &Value, name: &str) -> u64 {
    stats["home"][name].as_u64().unwrap_or(0)
}

/// Figures as soon as they are so.
fn until(sandbox: &TestSandbox, is: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let stats = sandbox.order(&["stats"]);
        if is(&stats) {
            return stats;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{stats}");
        sleep(Duration::from_millis(20));
    }
}

fn packings(stats: &Value) -> u64 {
    of_home(stats, "packings")
}

/// Bytes that the VMM's files without names take on the disk.
fn on_disk(sandbox: &TestSandbox) -> u64 {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", sandbox.processes()[1])).unwrap().flatten();
    let files =
        fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|name| name.starts_with(&sandbox.swap)));
    files.map(|fd| std::fs::metadata(fd.path()).unwrap().blocks() * 512).sum()
}

fn is_whole(sandbox: &mut TestSandbox) {
    let _ = sandbox.run(&["wake", "s"]);
    let front = sandbox.front.as_mut().unwrap();
    front.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
    assert_eq!(next_line(front), "whole\n");
}

/// Closes its standard input, after which it ends.
fn ends(mut sandbox: TestSandbox) {
    drop(sandbox.front.as_mut().unwrap().stdin.take());
    let (code, out, err) = sandbox.end();
    assert!(code == Some(0), "{code:?} {out:?} {err:?}");
}

#[test]
fn what_was_packed_comes_back() {
    for codec in ["lz4", "zstd:3", "deflate-fixed", "deflate-dynamic", "deflate-canned"] {
        let mut sandbox = TestSandbox::new();
        start(&mut sandbox, &["--codec", codec], &[]);
        for turn in 1..4 {
            sandbox.order(&["hibernate"]);
            let stats = until(&sandbox, |stats| packings(stats) == turn);
            assert_eq!(stats["codec"], codec);
            assert_eq!((of_home(&stats, "swap_file_bytes"), of_home(&stats, "reap_file_bytes")), (0, 0));
            assert!(of_home(&stats, "packed_output_bytes") < of_home(&stats, "packed_input_bytes") / 2);
            // What the figures say is what the disk has, to a few blocks.
            assert!(on_disk(&sandbox) <= of_home(&stats, "packed_file_bytes") + (1 << 20), "{stats}");
            is_whole(&mut sandbox);
        }
        ends(sandbox);
    }
}

/// A device of software in a debug build; whatever it does, nothing is lost, and who did what is told.
#[test]
fn an_accelerator_packs() {
    for (device, counter) in [
        ("good", "iaa_by_device"),
        ("full", "iaa_full"),
        ("faults", "iaa_page_faults"),
        ("fails", "iaa_failed"),
        ("lies", "iaa_bad_checksums"),
        ("hangs:100", "iaa_hung"),
    ] {
        let mut sandbox = TestSandbox::new();
        start(&mut sandbox, &["--codec", "iaa"], &[("DORMOUSE_IAA", device)]);
        let mut jobs = 0;
        for turn in 1..3 {
            sandbox.order(&["hibernate"]);
            let stats = until(&sandbox, |stats| packings(stats) == turn);
            assert_eq!(stats["codec"], "iaa");
            assert_eq!((of_home(&stats, "swap_file_bytes"), of_home(&stats, "reap_file_bytes")), (0, 0));
            assert!(of_home(&stats, "packed_output_bytes") < of_home(&stats, "packed_input_bytes") / 2);
            is_whole(&mut sandbox);
            let stats = sandbox.order(&["stats"]);
            let by_software = of_home(&stats, "iaa_by_software");
            assert!(of_home(&stats, "iaa_jobs") > jobs || device == "hangs:100", "{device}: {stats}");
            assert!(of_home(&stats, "iaa_most_in_flight") > 1 || device == "full", "{device}: {stats}");
            assert!(of_home(&stats, counter) > 0, "{device}: {stats}");
            match device {
                "good" | "full" => assert_eq!(by_software, 0, "{device}: {stats}"),
                // A job may meet a page fault as often as it is tried.
                "faults" => assert!(by_software < of_home(&stats, "iaa_by_device") / 10, "{device}: {stats}"),
                _ => assert!(by_software > 0, "{device}: {stats}"),
            }
            jobs = of_home(&stats, "iaa_jobs");
        }
        ends(sandbox);
    }
}

#[test]
fn an_accelerator_that_is_not_there_is_told() {
    let mut sandbox = TestSandbox::new();
    let doctor: Value = serde_json::from_slice(&sandbox.run(&["doctor", "--json"]).stdout).unwrap();
    if doctor["iaa"]["ok"] == true {
        start(&mut sandbox, &["--codec", "iaa"], &[]);
        return ends(sandbox);
    }
    let output = sandbox.run(&["do", "--codec", "iaa", "--", "true"]);
    let text = String::from_utf8_lossy(&output.stderr);
    let why = doctor["iaa"]["detail"].as_str().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(text, format!("dormouse: cannot use IAA: {why} (or choose another codec)\n"));
}

#[test]
fn who_reads_events_is_told_what_packing_came_to() {
    let mut sandbox = TestSandbox::new();
    start(&mut sandbox, &["--codec", "zstd"], &[]);
    let mut events = Events::of(&sandbox);
    sandbox.order(&["hibernate"]);
    let told = events.until(|event| event["packed"].is_object()).pop().unwrap();
    let packed = |name: &str| told["packed"][name].as_u64().unwrap();
    assert_eq!(
        (&told["from"], &told["to"], &told["packed"]["codec"]),
        (&"hibernated".into(), &"hibernated".into(), &"zstd".into())
    );
    assert!(packed("output_bytes") > 0 && packed("output_bytes") < packed("input_bytes") / 2, "{told}");
    assert!(packed("pack_us") > 0 && packed("pack_cpu_us") > 0, "{told}");
    let stats = sandbox.order(&["stats"]);
    assert_eq!(of_home(&stats, "packed_output_bytes"), packed("output_bytes"));
    // All was read that was packed, and written packed.
    assert!(of_home(&stats, "pack_read_bytes") >= packed("input_bytes"), "{stats}");
    assert!(of_home(&stats, "pack_written_bytes") >= packed("output_bytes"), "{stats}");
    is_whole(&mut sandbox);
    ends(sandbox);
}

#[test]
fn a_wake_ends_packing() {
    let mut sandbox = TestSandbox::new();
    start(&mut sandbox, &["--codec", "zstd:9"], &[]);
    for turn in 0..10 {
        sandbox.order(&["hibernate"]);
        sleep(Duration::from_millis(turn * 20));
        is_whole(&mut sandbox);
    }
    sandbox.order(&["hibernate"]);
    until(&sandbox, |stats| packings(stats) > 0);
    is_whole(&mut sandbox);
    ends(sandbox);
}

#[test]
fn sandboxes_take_turns() {
    let mut sandbox = TestSandbox::new();
    start(&mut sandbox, &["--codec", "lz4"], &[]);
    let turn = std::fs::File::open(sandbox.swap.join(".packing")).unwrap();
    turn.lock().unwrap();
    sandbox.order(&["hibernate"]);
    sleep(Duration::from_millis(500));
    let stats = sandbox.order(&["stats"]);
    assert_eq!((packings(&stats), of_home(&stats, "pack_us")), (0, 0));
    turn.unlock().unwrap();
    until(&sandbox, |stats| packings(stats) == 1);
    // The turn is given back.
    turn.lock().unwrap();
    is_whole(&mut sandbox);
    ends(sandbox);
}

#[test]
fn a_sealed_home_says_nothing() {
    let mut sandbox = TestSandbox::new();
    start(&mut sandbox, &["--encrypt", "on", "--codec", "lz4"], &[]);
    for turn in 1..3 {
        sandbox.order(&["hibernate"]);
        let look = |sandbox: &TestSandbox| {
            let fds = std::fs::read_dir(format!("/proc/{}/fd", sandbox.processes()[1])).unwrap().flatten();
            let mut read = 0;
            for fd in
                fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(&sandbox.swap)))
            {
                let content = std::fs::read(fd.path()).unwrap_or_default();
                assert!(!content.windows(12).any(|part| part == b"the dormouse" || part == b" hollow tree"));
                read += content.len();
            }
            assert!(read > 1 << 20, "{read} bytes");
        };
        look(&sandbox);
        until(&sandbox, |stats| packings(stats) == turn);
        look(&sandbox);
        is_whole(&mut sandbox);
    }
    ends(sandbox);
}

#[test]
fn the_limit_counts_packed_bytes() {
    let mut sandbox = TestSandbox::new();
    start(&mut sandbox, &["--codec", "zstd", "--swap-limit", "12M"], &[]);
    let done = sandbox.order(&["hibernate"]);
    assert_eq!((&done["swap_bytes"], &done["reap_bytes"]), (&0.into(), &0.into()));
    assert!(done["packed_bytes"].as_u64().unwrap() <= 12 << 20);
    is_whole(&mut sandbox);
    ends(sandbox);
    let mut sandbox = TestSandbox::new();
    start(&mut sandbox, &["--codec", "none", "--swap-limit", "12M"], &[]);
    sandbox.refuses(&["hibernate"], "the swap limit of 12582912 bytes is reached; the sandbox stays warm");
    is_whole(&mut sandbox);
    ends(sandbox);
}

/// Whatever the disk does while pages are packed, they stay where they were.
#[test]
fn a_disk_that_fails_packing_changes_nothing() {
    for fault in ["write:packed", "write:packed:3", "full:packed:2", "short-write:packed"] {
        let mut sandbox = TestSandbox::new();
        start(&mut sandbox, &["--codec", "deflate-canned"], &[("DORMOUSE_SWAP_FAULT", fault)]);
        let mut events = Events::of(&sandbox);
        sandbox.order(&["hibernate"]);
        let is_told = |event: &Value| event["packed"].is_object() || event["error"].is_string();
        let told = events.until(is_told).pop().unwrap();
        let fails = !fault.starts_with("short");
        let why = told["error"].as_str().unwrap_or_default();
        assert_eq!(
            fails,
            why.starts_with("its pages cannot be packed: cannot write pages to the packed file"),
            "{told}"
        );
        let stats = until(&sandbox, |stats| packings(stats) + of_home(stats, "packings_cancelled") > 0);
        assert_eq!(packings(&stats), u64::from(!fails), "{stats}");
        is_whole(&mut sandbox);
        ends(sandbox);
    }
}

/// Errors of the disk while packed pages come back end the sandbox with a sentence, and short reads do nothing at all.
#[test]
fn a_disk_that_fails_unpacking_is_told() {
    for (fault, options, words) in [
        ("read:packed", ["--encrypt", "off"], "cannot read pages from the packed file: Input/output error"),
        ("flip:packed", ["--encrypt", "off"], "from the packed file damaged"),
        ("flip:packed", ["--encrypt", "on"], "its seal is broken"),
    ] {
        let mut sandbox = TestSandbox::new();
        let options = [&["--codec", "zstd"][..], &options].concat();
        start(&mut sandbox, &options, &[("DORMOUSE_SWAP_FAULT", fault)]);
        sandbox.order(&["hibernate"]);
        if options[3] == "off" {
            until(&sandbox, |stats| packings(stats) == 1);
        }
        let _ = sandbox.run(&["wake", "s"]);
        // It may have met the loss by then.
        let _ = sandbox.front.as_mut().unwrap().stdin.as_mut().unwrap().write_all(b"go on\n");
        let (code, out, err) = sandbox.end();
        assert_eq!(code, Some(125), "{out} {err}");
        assert!(err.contains("cannot bring its memory back") && err.contains(words), "{err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{err}");
    }
    let mut sandbox = TestSandbox::new();
    start(&mut sandbox, &["--codec", "zstd"], &[("DORMOUSE_SWAP_FAULT", "short-read:packed")]);
    sandbox.order(&["hibernate"]);
    until(&sandbox, |stats| packings(stats) == 1);
    is_whole(&mut sandbox);
    ends(sandbox);
}

#[test]
fn bad_words_are_refused() {
    let sandbox = TestSandbox::new();
    for (options, words) in [
        (["--codec", "snappy"], "cannot use the codec"),
        (["--codec", "zstd:99"], "not a number from 1 to 19"),
        (["--settle", "soon"], "--settle"),
        (["--encrypt", "maybe"], "--encrypt"),
    ] {
        let output = sandbox.run(&[&["do"], &options[..], &["--", "true"]].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(words), "{text}");
    }
}
