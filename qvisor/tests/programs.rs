//! `dormouse do` with the real kernel from outside: bad programs, full disks, closed streams, processes killed.

mod test_dir;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::thread::sleep;
use std::time::{Duration, Instant};

use test_dir::TestDir;

/// Runs `dormouse do`.
fn run(test_dir: &TestDir, args: &[&str]) -> Output {
    test_dir.sandbox(args).output().unwrap()
}

/// Makes a file that may be executed; result: its path.
fn program(test_dir: &TestDir, name: &str, bytes: &[u8]) -> String {
    let path = test_dir.join(name);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Our own failure or the program's, in one sentence on standard error.
fn refused(output: &Output, code: i32, words: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(words), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
}

fn true_program() -> Vec<u8> {
    fs::read("/bin/true").unwrap()
}

#[test]
fn output_and_status_come_out() {
    let output = run(&TestDir::new(), &["--", "/bin/sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(output.stderr, b"err\n");
}

#[test]
fn a_missing_program_is_127() {
    refused(&run(&TestDir::new(), &["--", "/no/such/program"]), 127, "no such file");
}

#[test]
fn a_file_that_is_not_executable_is_126() {
    let test_dir = TestDir::new();
    fs::write(test_dir.join("plain"), "text").unwrap();
    refused(&run(&test_dir, &["--", "./plain"]), 126, "not executable");
}

#[test]
fn a_program_of_another_architecture_is_126() {
    let test_dir = TestDir::new();
    let mut bytes = true_program();
    bytes[18] = 183;
    refused(&run(&test_dir, &["--", &program(&test_dir, "arm", &bytes)]), 126, "not a program for x86-64");
}

#[test]
fn a_truncated_program_is_126() {
    let test_dir = TestDir::new();
    refused(
        &run(&test_dir, &["--", &program(&test_dir, "cut", &true_program()[..100])]),
        126,
        "not a program",
    );
}

#[test]
fn absurd_headers_are_126() {
    let test_dir = TestDir::new();
    let mut bytes = true_program();
    bytes[32..40].copy_from_slice(&(u64::MAX - 100).to_le_bytes()); // program headers' offset
    refused(&run(&test_dir, &["--", &program(&test_dir, "offset", &bytes)]), 126, "not a program");
    bytes[56..58].copy_from_slice(&u16::MAX.to_le_bytes()); // and their count
    refused(&run(&test_dir, &["--", &program(&test_dir, "count", &bytes)]), 126, "not a program");
}

#[test]
fn a_full_disk_under_the_overlay_is_an_honest_enospc() {
    if !running_as_root() {
        return; // a small file system needs mount(2)
    }
    let test_dir = TestDir::new();
    let script = "mount -t tmpfs -o size=4m,mode=0700 tmpfs \"$SMALL\" && exec \"$DORMOUSE\" do -- \
                  dd if=/dev/zero of=/var/tmp/big bs=1M count=10";
    let small = test_dir.join("small");
    fs::create_dir(&small).unwrap();
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .env("SMALL", &small)
        .env("DORMOUSE_LAYERS", &small)
        .env("DORMOUSE_ROOT", test_dir.join("state"))
        .env("DORMOUSE", env!("CARGO_BIN_EXE_dormouse"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("No space left on device"), "{text}");
}

fn running_as_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t0\t"))
}

#[test]
fn a_closed_pipe_ends_the_writer_by_sigpipe() {
    let test_dir = TestDir::new();
    let mut child = test_dir
        .sandbox(&["--", "/bin/sh", "-c", "while :; do echo line; done"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut few = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut few).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn standard_input_goes_in() {
    let test_dir = TestDir::new();
    let mut child =
        test_dir.sandbox(&["--", "wc", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&vec![b'x'; 300_000]).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "300000");
}

#[test]
fn nothing_on_the_host_changes_and_volumes_do() {
    let test_dir = TestDir::new();
    let shared = test_dir.join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(test_dir.join("kept"), "before").unwrap();
    let volume = format!("{}:/mnt/volume", shared.display());
    let script = "echo after > kept; echo new > made; echo out > /mnt/volume/file; cat kept";
    let output = run(&test_dir, &["--volume", &volume, "--", "/bin/sh", "-c", script]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "after\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(fs::read_to_string(test_dir.join("kept")).unwrap(), "before");
    assert!(!test_dir.join("made").exists());
    assert_eq!(fs::read_to_string(shared.join("file")).unwrap(), "out\n");
    let read_only = format!("{}:/mnt/volume:ro", shared.display());
    let output =
        run(&test_dir, &["--volume", &read_only, "--", "/bin/sh", "-c", "echo x > /mnt/volume/file"]);
    assert_ne!(output.status.code(), Some(0));
    assert_eq!(fs::read_to_string(shared.join("file")).unwrap(), "out\n");
}

/// A sandbox that sleeps, with the pids of all our processes on the host.
fn sleeping(test_dir: &TestDir) -> (Child, Vec<u32>) {
    let child = test_dir
        .sandbox(&["--", "/bin/sh", "-c", "echo up; sleep 1000 & sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .map(|mut child| {
            let mut line = [0; 3];
            child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
            child
        })
        .unwrap();
    let mut all = vec![child.id()];
    let mut at = 0;
    while at < all.len() {
        all.extend(children(all[at]));
        at += 1;
    }
    assert!(all.len() >= 4, "front end, watcher, VMM and stubs: {all:?}");
    (child, all)
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn is_gone(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

fn is_empty(dir: &Path) -> bool {
    let visible = |entry: &fs::DirEntry| !entry.file_name().to_string_lossy().starts_with('.');
    fs::read_dir(dir).map_or(true, |entries| !entries.flatten().any(|entry| visible(&entry)))
}

#[test]
fn killing_any_one_process_leaves_nothing() {
    let test_dir = TestDir::new();
    let count = {
        let (mut child, all) = sleeping(&test_dir);
        end(&mut child, all[0], &all, &test_dir);
        all.len()
    };
    for index in 1..count {
        let (mut child, all) = sleeping(&test_dir);
        // There may be a process less than the first time.
        let victim = all.get(index).unwrap_or(&all[0]);
        end(&mut child, *victim, &all, &test_dir);
    }
}

/// Kills `victim` and checks that within some seconds nothing of the sandbox is left; a killed stub ends only its
/// program, so the rest is ended by the front end's SIGTERM then.
fn end(child: &mut Child, victim: u32, all: &[u32], test_dir: &TestDir) {
    signal(victim, "KILL");
    sleep(Duration::from_millis(200));
    signal(all[0], "TERM");
    let _ = child.wait();
    let start = Instant::now();
    let left = || all.iter().filter(|pid| !is_gone(**pid)).collect::<Vec<_>>();
    while !(left().is_empty() && is_empty(&test_dir.join("state")) && is_empty(&test_dir.join("layers"))) {
        assert!(start.elapsed() < Duration::from_secs(20), "{victim} of {all:?} killed, left: {:?}", left());
        sleep(Duration::from_millis(20));
    }
}

fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

/// Input that comes just as the program has found that there is none, and is about to wait.
#[test]
fn no_byte_of_input_is_overlooked() {
    let test_dir = TestDir::new();
    let mut child =
        test_dir.sandbox(&["--", "/bin/cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (progress, watched) = std::sync::mpsc::channel();
    let front = child.id();
    let watchdog = std::thread::spawn(move || {
        // The end of the channel is the end of the test.
        while let Ok(()) | Err(RecvTimeoutError::Timeout) = {
            let seen = watched.recv_timeout(Duration::from_secs(20));
            if seen == Err(RecvTimeoutError::Timeout) {
                signal(front, "KILL");
            }
            seen
        } {}
    });
    for turn in 0..40_000u32 {
        input.write_all(b"x").unwrap();
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        if turn % 1000 == 0 {
            progress.send(()).unwrap();
        }
        // Whatever time the program takes between its answer and its wait, some rounds hit it.
        (0..turn % 127 * 8).for_each(|_| std::hint::spin_loop());
    }
    drop((progress, input));
    watchdog.join().unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn signals_reach_the_program() {
    let test_dir = TestDir::new();
    let script = "trap 'echo got; exit 3' TERM; echo up; while :; do sleep 0.05; done";
    let mut child =
        test_dir.sandbox(&["--", "/bin/sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 3];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut line).unwrap();
    signal(child.id(), "TERM");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "got\n");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn an_idle_sandbox_uses_no_cpu() {
    let test_dir = TestDir::new();
    let (mut child, all) = sleeping(&test_dir);
    sleep(Duration::from_millis(300));
    let ticks = || all.iter().map(|pid| cpu_ticks(*pid)).sum::<u64>();
    // It may take a moment until nothing goes on any more.
    let mut used = 1;
    for _ in 0..20 {
        let before = ticks();
        sleep(Duration::from_secs(2));
        used = ticks() - before;
        if used == 0 {
            break;
        }
    }
    signal(all[0], "TERM");
    let _ = child.wait();
    assert_eq!(used, 0, "clock ticks (10 ms each) in 2 s");
}

fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect::<Vec<_>>();
    [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum()
}

/// The words of `flags` in a `/proc/cpuinfo`.
fn cpu_flags(text: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.starts_with("flags")).unwrap();
    line.split_once(':').unwrap().1.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn processor_features_that_the_host_does_not_list_are_not_shown() {
    let test_dir = TestDir::new();
    let output = run(&test_dir, &["--", "/bin/cat", "/proc/cpuinfo"]);
    assert!(output.status.success(), "{output:?}");
    let host = cpu_flags(&fs::read_to_string("/proc/cpuinfo").unwrap());
    let shown = cpu_flags(&String::from_utf8(output.stdout).unwrap());
    assert!(shown.contains(&"sse2".to_owned()));
    assert_eq!(shown.iter().filter(|flag| !host.contains(flag)).collect::<Vec<_>>(), [""; 0]);
}
