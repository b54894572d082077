//! The users of a directory, sandboxes and the host itself, which all run the same program.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::sleeper::{TestSandbox, guest, next_line};

/// Within so long a time a waiter has what it waits for. It asks ten times a second; the rest is for machines that are busy.
const WOKEN_WITHIN: Duration = Duration::from_secs(40);
/// So long a waiter is seen to wait.
pub const WAITS: Duration = Duration::from_millis(300);

/// One user of the directory.
pub struct Party {
    pub name: &'static str,
    /// A sandbox's.
    pub sandbox: Option<TestSandbox>,
    /// The host's own program.
    child: Option<Child>,
}

impl Party {
    pub fn sandbox(name: &'static str, volume: &Path, mode: &str, options: &[&str]) -> Self {
        let mut sandbox = TestSandbox::new();
        let shown = format!("{}:/volume{mode}", volume.display());
        let program = guest("party");
        let command = [program.to_str().unwrap(), "/volume"];
        sandbox.start(&[&["--volume", &shown], options].concat(), &[], &command);
        Self { name, sandbox: Some(sandbox), child: None }
    }

    pub fn host(volume: &Path) -> Self {
        let mut command = Command::new(guest("party"));
        let mut child = command.arg(volume).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(next_line(&mut child), "ready\n");
        Self { name: "host", sandbox: None, child: Some(child) }
    }

    pub fn process(&mut self) -> &mut Child {
        match &mut self.sandbox {
            Some(sandbox) => sandbox.front.as_mut().unwrap(),
            None => self.child.as_mut().unwrap(),
        }
    }

    pub fn its_sandbox(&self) -> &TestSandbox {
        self.sandbox.as_ref().unwrap()
    }

    pub fn say(&mut self, command: &str) {
        writeln!(self.process().stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    pub fn answer(&mut self) -> String {
        next_line(self.process()).trim_end().to_owned()
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.say(command);
        self.answer()
    }

    #[track_caller]
    pub fn does(&mut self, command: &str, expected: &str) {
        assert_eq!(self.ask(command), expected, "{}: {command}", self.name);
    }

    #[track_caller]
    pub fn is_silent(&mut self, time: Duration) {
        let name = self.name;
        let stdout = self.process().stdout.as_ref().unwrap();
        let mut poll = libc::pollfd { fd: stdout.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        let found = unsafe { libc::poll(&raw mut poll, 1, i32::try_from(time.as_millis()).unwrap()) };
        assert_eq!(found, 0, "{name} does not wait");
    }

    #[track_caller]
    pub fn answers_soon(&mut self, expected: &str) {
        let start = Instant::now();
        assert_eq!(self.answer(), expected, "{}", self.name);
        assert!(start.elapsed() < WOKEN_WITHIN, "{} waited {:?}", self.name, start.elapsed());
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A directory that goes at the end.
pub struct Shared(pub PathBuf);

impl Shared {
    pub fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("dormouse-shared-{}-{number}", std::process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    /// Two sandboxes and the host.
    pub fn three(&self) -> [Party; 3] {
        [
            Party::sandbox("one", &self.0, "", &[]),
            Party::sandbox("two", &self.0, "", &[]),
            Party::host(&self.0),
        ]
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A way to lock the whole file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Flock,
    Posix,
    Ofd,
}

pub const KINDS: [Kind; 3] = [Kind::Flock, Kind::Posix, Kind::Ofd];

impl Kind {
    pub fn command(self, what: char, way: &str) -> String {
        let word = match (self, what) {
            (Self::Flock, 'r') => "flock 0 sh",
            (Self::Flock, 'w') => "flock 0 ex",
            (Self::Flock, _) => "flock 0 un",
            (Self::Posix, _) => return format!("posix 0 {what} 0 0 {way}"),
            (Self::Ofd, _) => return format!("ofd 0 {what} 0 0 {way}"),
        };
        format!("{word} {way}")
    }

    pub fn take(self, what: char) -> String {
        self.command(what, "try")
    }

    /// On a file system of Linux's own `flock(2)` and `fcntl(2)` do not see each other.
    pub fn conflicts(self, other: Self) -> bool {
        (self == Self::Flock) == (other == Self::Flock)
    }
}

/// Calls `f` for each order of a first and a second party.
pub fn each_pair(parties: &mut [Party; 3], mut f: impl FnMut(&mut Party, &mut Party)) {
    for pair in [[0, 1], [0, 2], [1, 2]] {
        let [one, other] = parties.get_disjoint_mut(pair).unwrap();
        f(one, other);
        f(other, one);
    }
}
