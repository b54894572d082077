//! `dormouse hibernate` and `wake` on real programs: content, memory, and what happens when the disk fails.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The guest program that keeps patterns in all kinds of memory, built once.
fn pattern() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../test/guest/pattern.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pattern");
        let status = Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source).status();
        assert!(status.expect("a C compiler runs").success());
        program
    })
}

/// The next line that it writes.
fn next_line(front: &mut Child) -> String {
    let mut line = String::new();
    BufReader::with_capacity(1, front.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

/// State, layers, swap files and the sandbox of one test; all of it goes at the end.
struct Place {
    dir: PathBuf,
    front: Option<Child>,
}

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("dormouse-hibernate-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // On a disk: memory would not be given back to one.
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir(&dir).unwrap();
        Self { dir, front: None }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.args(args).current_dir(&self.dir).stdin(Stdio::null());
        command.env("DORMOUSE_ROOT", self.dir.join("state")).env("DORMOUSE_LAYERS", self.dir.join("layers"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Starts a sandbox named `s`, and waits for its first line.
    fn start(&mut self, options: &[&str], fault: Option<&str>, program: &[&str]) {
        let swap = self.dir.join("swap");
        let args = [&["do", "--id", "s", "--swap-dir", swap.to_str().unwrap()], options, &["--"], program];
        let mut command = self.command(&args.concat());
        if let Some(fault) = fault {
            command.env("DORMOUSE_SWAP_FAULT", fault);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut front = command.spawn().unwrap();
        let line = next_line(&mut front);
        if line != "ready\n" {
            let output = front.wait_with_output().unwrap();
            panic!("{line:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        self.front = Some(front);
    }

    fn start_pattern(&mut self, options: &[&str], fault: Option<&str>) {
        self.start(options, fault, &[pattern().to_str().unwrap(), "/tmp", "0"]);
    }

    /// Does it, and gives the figures.
    fn order(&self, args: &[&str]) -> serde_json::Value {
        let output = self.run(&[args, &["s", "--json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Does not do it, for a reason in one sentence.
    fn refuses(&self, args: &[&str], words: &str) {
        let output = self.run(&[args, &["s"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{error}");
        assert!(error.contains(words), "{error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }

    fn status(&self) -> String {
        let output = self.run(&["state", "s"]);
        let state: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        state["status"].as_str().unwrap().to_owned()
    }

    fn kill(&self, signal: &str) {
        assert!(self.run(&["kill", "s", signal]).status.success());
    }

    /// Waits for the sandbox's end: exit code, standard output and error.
    fn end(&mut self) -> (Option<i32>, String, String) {
        let mut front = self.front.take().unwrap();
        let start = Instant::now();
        while front.try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(60) {
                let _ = front.kill();
                panic!("the sandbox hangs");
            }
            sleep(Duration::from_millis(10));
        }
        let (mut out, mut err) = (String::new(), String::new());
        front.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        front.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (front.wait().unwrap().code(), out, err)
    }

    fn ends_well(&mut self) {
        let (code, out, err) = self.end();
        assert!(code == Some(0) && out.starts_with("ok"), "{code:?} {out:?} {err:?}");
    }

    /// Waits until it has this status.
    fn becomes(&self, status: &str) {
        let start = Instant::now();
        while self.status() != status {
            assert!(start.elapsed() < Duration::from_secs(10), "{} instead of {status}", self.status());
            sleep(Duration::from_millis(5));
        }
    }

    /// Hibernates it, and sees it stay so a while.
    fn sleeps(&self) {
        self.order(&["hibernate"]);
        sleep(Duration::from_millis(200));
        assert_eq!(self.status(), "hibernated");
    }

    /// Bytes of the file that is the applications' memory (systrap), in KiB; 0 where there is none.
    fn file_kib(&self) -> u64 {
        let vmm = self.processes()[1];
        let files = fs::read_dir(format!("/proc/{vmm}/fd")).unwrap().flatten();
        let is_user = |path: &Path| {
            fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:dormouse-user"))
        };
        let blocks = |path: PathBuf| fs::metadata(path).unwrap().blocks() / 2;
        files.map(|entry| entry.path()).find(|path| is_user(path)).map_or(0, blocks)
    }

    /// The front end, the VMM, and all others.
    fn processes(&self) -> Vec<u32> {
        let front = self.front.as_ref().unwrap().id();
        let mut processes = vec![front];
        let mut at = 0;
        while let Some(&parent) = processes.get(at) {
            let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
            for task in tasks {
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                processes.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
            }
            at += 1;
        }
        assert!(processes.len() > 2, "the sandbox has processes");
        processes
    }

    /// Memory of the sandbox: what its processes have, shared memory by shares, in KiB.
    fn memory_kib(&self) -> u64 {
        let pss = |pid: &u32| -> u64 {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or("0 kB");
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        self.processes().iter().map(pss).sum()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut front) = self.front.take() {
            let _ = front.kill();
            let _ = front.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn patterns_survive_thirty_cycles() {
    let mut place = Place::new();
    place.start_pattern(&[], None);
    for cycle in 0..30 {
        sleep(Duration::from_millis(20));
        let down = place.order(&["hibernate"]);
        assert!(down["pages"].as_u64().unwrap() + down["kept_pages"].as_u64().unwrap() > 1000, "{down}");
        let reap = cycle % 2 == 1;
        let up = place.order(&["wake", "--reap", if reap { "on" } else { "off" }]);
        assert_eq!(up["pages"].as_u64().unwrap() > 0, reap, "cycle {cycle}: {up} after {down}");
        if reap {
            assert_eq!(up["pages"], down["working_set_pages"], "{up} after {down}");
        }
    }
    sleep(Duration::from_millis(100));
    place.kill("TERM");
    place.ends_well();
}

#[test]
fn patterns_survive_on_few_processors_and_little_memory() {
    let mut place = Place::new();
    place.start_pattern(&["--cpus", "1", "--memory", "64M", "--reap", "off"], None);
    for _ in 0..10 {
        sleep(Duration::from_millis(10));
        place.order(&["hibernate"]);
        let up = place.order(&["wake"]);
        assert_eq!(up["pages"], 0, "{up}");
    }
    place.kill("TERM");
    place.ends_well();
}

#[test]
fn a_hibernated_sandbox_takes_little_memory_and_no_time() {
    let mut place = Place::new();
    let program = "x = [bytes([i % 251 + 1]) * 4096 for i in range(10000)]; print('ready', flush=True)
import time
while True: time.sleep(0.01)";
    place.start(&[], None, &["python3", "-c", program]);
    let warm = place.memory_kib();
    assert!(warm > 40_000, "{warm} KiB");
    let down = place.order(&["hibernate"]);
    assert_eq!(place.status(), "hibernated");
    let asleep = place.memory_kib();
    assert!(asleep < warm / 3 && asleep < 16_000, "{asleep} KiB of {warm}; {down}");
    assert!(place.file_kib() < 2000, "{} KiB; {down}", place.file_kib());
    let used = || {
        let vmm = place.front.as_ref().unwrap().id();
        let children = fs::read_to_string(format!("/proc/{vmm}/task/{vmm}/children")).unwrap();
        let text = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ticks = |pid: &str| -> u64 {
            let text = text(pid);
            let mut fields = text.rsplit(") ").next().unwrap_or_default().split(' ').skip(11);
            let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
            next() + next()
        };
        children.split_whitespace().map(ticks).sum::<u64>()
    };
    let before = used();
    sleep(Duration::from_secs(2));
    assert!(used() - before <= 1, "ticks of a hibernated sandbox");
    place.order(&["wake"]);
    assert_eq!(place.status(), "running");
    place.kill("KILL");
    assert_eq!(place.end().0, Some(137));
}

#[test]
fn signals_wake_and_kill_does_not() {
    let mut place = Place::new();
    place.start_pattern(&[], None);
    place.refuses(&["wake"], "not hibernated");
    place.order(&["hibernate"]);
    place.refuses(&["hibernate"], "already");
    place.kill("TERM");
    place.ends_well();
    place.start_pattern(&[], None);
    place.order(&["hibernate"]);
    place.kill("KILL");
    assert_eq!(place.end().0, Some(137));
    let left = fs::read_dir(place.dir.join("swap")).unwrap().count();
    assert_eq!(left, 0, "files are left in the swap directory");
    place.refuses(&["hibernate"], "no such sandbox");
}

#[test]
fn clients_wake_it_by_a_connection_and_by_data() {
    let mut place = Place::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let program = "import socket, sys
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('ready', flush=True)
while True:
    client, _ = server.accept()
    while data := client.recv(100): client.sendall(data)";
    place.start(&[], None, &["python3", "-c", program, &port.to_string()]);
    for _ in 0..3 {
        place.sleeps();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut echo = |text: &[u8; 3]| {
            client.write_all(text).unwrap();
            let mut answer = [0; 3];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, text);
        };
        echo(b"one");
        place.becomes("running");
        place.sleeps();
        echo(b"two");
        place.becomes("running");
    }
    place.kill("KILL");
    assert_eq!(place.end().0, Some(137));
}

#[test]
fn standard_input_wakes_it_and_time_does_not() {
    let mut place = Place::new();
    place.start(&[], None, &["/bin/sh", "-c", "while sleep 0.05; do :; done & echo ready; cat"]);
    for line in ["one\n", "two\n"] {
        // A stream wakes only who waits for it already.
        sleep(Duration::from_millis(300));
        place.sleeps();
        let front = place.front.as_mut().unwrap();
        front.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        place.becomes("running");
        assert_eq!(next_line(place.front.as_mut().unwrap()), line);
    }
    place.kill("KILL");
    assert_eq!(place.end().0, Some(137));
}

#[test]
fn a_disk_that_cannot_be_written_leaves_it_warm() {
    let mut place = Place::new();
    place.start_pattern(&[], Some("write"));
    for _ in 0..3 {
        place.refuses(&["hibernate"], "cannot write pages to the swap file: Input/output error");
        assert_eq!(place.status(), "running");
        sleep(Duration::from_millis(20));
    }
    place.kill("TERM");
    place.ends_well();
}

#[test]
fn a_full_swap_limit_leaves_it_warm() {
    let mut place = Place::new();
    place.start_pattern(&["--swap-limit", "1M"], None);
    place.refuses(&["hibernate"], "the swap limit of 1048576 bytes is reached; the sandbox stays warm");
    assert_eq!(place.status(), "running");
    place.kill("TERM");
    place.ends_well();
}

/// A sandbox whose pages come back wrong ends with a sentence, whoever asks for them first.
fn ends_with_the_loss(fault: &str, words: &str) {
    let mut place = Place::new();
    place.start_pattern(&[], Some(fault));
    place.order(&["hibernate"]);
    let _ = place.run(&["wake", "s"]);
    let (code, out, err) = place.end();
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
fn a_swap_directory_that_cannot_be_used_is_refused() {
    let place = Place::new();
    fs::write(place.dir.join("file"), "").unwrap();
    let output = place.run(&["do", "--swap-dir", "file", "--", "/bin/true"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{error}");
    assert!(error.contains("cannot make a swap file in") && error.contains("--swap-dir"), "{error}");
}
