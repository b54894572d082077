//! A sandbox named `s` that hibernates, for one test.
//!
//! The same tests run inside the emulated machine of `scripts/lab`, where the environment names the places:
//! `DORMOUSE_TEST_BIN` (the command), `DORMOUSE_TEST_GUEST` (guest programs, built before), `DORMOUSE_TEST_DIR` (a
//! directory on a disk), `DORMOUSE_TEST_PLATFORM`.
#![allow(dead_code)]

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The value of a variable of the environment, or `default`.
fn given(name: &str, default: impl Into<PathBuf>) -> PathBuf {
    std::env::var_os(name).map_or_else(|| default.into(), PathBuf::from)
}

/// The command under test.
pub fn dormouse() -> PathBuf {
    given("DORMOUSE_TEST_BIN", env!("CARGO_BIN_EXE_dormouse"))
}

/// A number of the environment, for longer runs than usual.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A guest program of `test/guest`, built once.
pub fn guest(name: &str) -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::new(());
    if let Some(built) = std::env::var_os("DORMOUSE_TEST_GUEST") {
        return Path::new(&built).join(name);
    }
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../test/guest/{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let age = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let headers = fs::read_dir(source.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let headers = headers.filter(|path| path.extension().is_some_and(|name| name == "h"));
    let newest = headers.map(|path| age(&path)).max().flatten().max(age(&source));
    if age(&program) < newest {
        // Another test program may be at the same work: the name is its own until it is done.
        let made = program.with_extension(std::process::id().to_string());
        let status = Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&made).arg(source).status();
        assert!(status.expect("a C compiler runs").success());
        fs::rename(made, &program).unwrap();
    }
    program
}

/// How long a test waits for what takes no time, on a machine that may be very busy.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The next line that it writes.
pub fn next_line(front: &mut Child) -> String {
    let stdout = front.stdout.as_mut().unwrap();
    let end = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        let left = end.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd: stdout.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        let found = unsafe { libc::poll(&raw mut poll, 1, i32::try_from(left.as_millis()).unwrap()) };
        let text = String::from_utf8_lossy(&line);
        assert!(found != 0, "no line came within {PATIENCE:?}, but {text:?}");
        if found > 0 && stdout.read(&mut byte).unwrap() == 0 {
            break;
        }
        if found > 0 {
            line.push(byte[0]);
        }
    }
    String::from_utf8(line).unwrap()
}

/// Waits for a window of time in which `used`, which only grows, grows by at most `most`: it may take a moment until
/// nothing goes on any more. Result: by how much it grew in the last window.
pub fn quiet_window(window: Duration, most: u64, used: impl Fn() -> u64) -> u64 {
    const WINDOWS: u32 = 20;
    let mut grown = 0;
    for _ in 0..WINDOWS {
        let before = used();
        sleep(window);
        grown = used().saturating_sub(before);
        if grown <= most {
            break;
        }
    }
    grown
}

/// State, layers, swap files and the sandbox of one test; all of it goes at the end.
pub struct TestSandbox {
    pub dir: PathBuf,
    pub front: Option<Child>,
    /// Where the swap files go.
    pub swap: PathBuf,
}

/// The platform of the sandboxes under test.
pub fn platform() -> String {
    std::env::var("DORMOUSE_TEST_PLATFORM").unwrap_or_else(|_| {
        let doctor = Command::new(dormouse()).args(["doctor", "--json"]).output().unwrap();
        let found: Value = serde_json::from_slice(&doctor.stdout).unwrap();
        found["platform"].as_str().unwrap().to_owned()
    })
}

impl TestSandbox {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("dormouse-hibernate-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // On a disk: memory would not be given back to one.
        let dir = given("DORMOUSE_TEST_DIR", env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir(&dir).unwrap();
        Self { swap: dir.join("swap"), dir, front: None }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(dormouse());
        command.args(args).current_dir(&self.dir).stdin(Stdio::null());
        command.env("DORMOUSE_ROOT", self.dir.join("state")).env("DORMOUSE_LAYERS", self.dir.join("layers"));
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Starts a sandbox named `s`, with variables for the command, and waits for its first line.
    pub fn start(&mut self, options: &[&str], variables: &[(&str, &str)], program: &[&str]) {
        let platform = platform();
        let fixed = ["do", "--id", "s", "--platform", &platform, "--swap-dir", self.swap.to_str().unwrap()];
        let mut command = self.command(&[&fixed, options, &["--"], program].concat());
        command.envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let line = next_line(self.front.insert(command.spawn().unwrap()));
        if line != "ready\n" {
            let output = self.front.take().unwrap().wait_with_output().unwrap();
            panic!("{line:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// Starts the program that keeps patterns in all kinds of memory.
    pub fn start_pattern(&mut self, options: &[&str], variables: &[(&str, &str)]) {
        self.start(options, variables, &[guest("pattern").to_str().unwrap(), "/tmp", "0"]);
    }

    /// Gives the order, which must succeed, and returns its figures.
    pub fn order(&self, args: &[&str]) -> Value {
        let output = self.run(&[args, &["s", "--json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Hibernates it; false: a wake event came on its way down, or it has ended.
    pub fn hibernates_unless_woken(&self) -> bool {
        let output = self.run(&["hibernate", "s"]);
        let error = String::from_utf8_lossy(&output.stderr);
        let is_overtaken =
            ["woken meanwhile", "container does not exist", "ended"].iter().any(|why| error.contains(why));
        assert!(output.status.success() || is_overtaken, "{error}");
        output.status.success()
    }

    /// The order is refused, for a reason in one sentence.
    pub fn refuses(&self, args: &[&str], words: &str) {
        let output = self.run(&[args, &["s"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        let code = if args[0] == "exec" { 255 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(words), "{error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }

    /// `dormouse state`.
    pub fn state(&self) -> Value {
        serde_json::from_slice(&self.run(&["state", "s"]).stdout).unwrap()
    }

    /// The sandbox's state, in the words of the paper.
    pub fn sandbox_state(&self) -> String {
        self.state()["sandboxState"].as_str().unwrap_or("none").to_owned()
    }

    /// `hibernated`, or the status by the OCI runtime specification.
    pub fn status(&self) -> String {
        let state = self.state();
        let hibernated = (state["sandboxState"] == "hibernated").then_some("hibernated");
        hibernated.or(state["status"].as_str()).unwrap().to_owned()
    }

    pub fn kill(&self, signal: &str) {
        assert!(self.run(&["kill", "s", signal]).status.success());
    }

    /// Writes a line to its standard input.
    pub fn says_line(&mut self) {
        self.front.as_mut().unwrap().stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Waits for the sandbox's end: exit code, standard output and error.
    pub fn end(&mut self) -> (Option<i32>, String, String) {
        let start = Instant::now();
        while self.front.as_mut().unwrap().try_wait().unwrap().is_none() {
            // Ended when the fixture is dropped.
            assert!(start.elapsed() < PATIENCE, "the sandbox hangs:\n{}", self.condition());
            sleep(Duration::from_millis(10));
        }
        let mut front = self.front.take().unwrap();
        let (mut out, mut err) = (String::new(), String::new());
        front.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        front.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (front.wait().unwrap().code(), out, err)
    }

    pub fn ends_well(&mut self) {
        let (code, out, err) = self.end();
        assert!(code == Some(0) && out.starts_with("ok"), "{code:?} {out:?} {err:?}");
    }

    /// Waits until it has this status.
    pub fn becomes(&self, status: &str) {
        let start = Instant::now();
        while self.status() != status {
            assert!(start.elapsed() < PATIENCE, "{} instead of {status}", self.status());
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it is awake, or has ended and is gone.
    pub fn wakes_or_ends(&self) {
        let is_asleep = |state: Value| state["sandboxState"] == "hibernated";
        let start = Instant::now();
        while serde_json::from_slice(&self.run(&["state", "s"]).stdout).is_ok_and(is_asleep) {
            assert!(start.elapsed() < PATIENCE, "nothing wakes it:\n{}", self.condition());
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it is not hibernated any more.
    pub fn wakes(&self) {
        self.becomes("running");
    }

    /// Hibernates it, and sees it stay so a while.
    pub fn sleeps(&self) {
        self.order(&["hibernate"]);
        sleep(Duration::from_millis(200));
        assert_eq!(self.status(), "hibernated");
    }

    /// Bytes of the file that is the applications' memory (systrap), in KiB; 0 where there is none.
    pub fn file_kib(&self) -> u64 {
        let vmm = self.processes()[1];
        let files = fs::read_dir(format!("/proc/{vmm}/fd")).unwrap().flatten();
        let is_user = |path: &Path| {
            fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:dormouse-user"))
        };
        let blocks = |path: PathBuf| fs::metadata(path).unwrap().blocks() / 2;
        files.map(|entry| entry.path()).find(|path| is_user(path)).map_or(0, blocks)
    }

    /// The front end, the VMM, and all others.
    pub fn processes(&self) -> Vec<u32> {
        let processes = self.family();
        assert!(processes.len() > 2, "the sandbox has processes");
        processes
    }

    fn family(&self) -> Vec<u32> {
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
        processes
    }

    /// The state of its threads, twice, and its figures: for the reader of a failed test who wonders why it does not
    /// end.
    fn condition(&self) -> String {
        let mut text = String::new();
        for _ in 0..2 {
            for process in self.family() {
                let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
                for thread in threads.map(|entry| entry.path()) {
                    let read = |name: &str| fs::read_to_string(thread.join(name)).unwrap_or_default();
                    text += &format!("{} in {} {}", read("stat").trim_end(), read("wchan"), read("syscall"));
                }
            }
            text += &String::from_utf8_lossy(&self.run(&["stats", "s"]).stdout);
            sleep(Duration::from_secs(1));
        }
        text
    }

    /// Memory of the sandbox's processes, with shared memory counted by shares, in KiB.
    pub fn memory_kib(&self) -> u64 {
        let pss = |pid: &u32| -> u64 {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or("0 kB");
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        self.processes().iter().map(pss).sum()
    }
}

impl Drop for TestSandbox {
    fn drop(&mut self) {
        if let Some(mut front) = self.front.take() {
            let _ = front.kill();
            let _ = front.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Reads the sandbox's events.
pub struct Events {
    command: Child,
    lines: Lines<BufReader<ChildStdout>>,
    first: Option<Value>,
}

impl Events {
    /// Those from now on; the first one says what the sandbox is.
    pub fn of(sandbox: &TestSandbox) -> Self {
        let mut command = sandbox.command(&["events", "s"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(command.stdout.take().unwrap()).lines();
        let mut events = Self { command, lines, first: None };
        events.first = events.next();
        events
    }

    /// Events, until `done` holds for one of them, or there are no more.
    pub fn until(&mut self, done: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.first.take().or_else(|| self.next()) {
            events.push(event);
            if events.last().is_some_and(&done) {
                break;
            }
        }
        events
    }

    fn next(&mut self) -> Option<Value> {
        self.lines.next().map(|line| serde_json::from_str(&line.unwrap()).unwrap())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}
