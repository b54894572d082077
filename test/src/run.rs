//! Running one command, natively or in a sandbox, within a time.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Options, stuck};

/// Characters of a failed command's output that are shown.
const TAIL: usize = 1500;

/// The kernel that a command runs on.
pub enum Target<'a> {
    Native,
    /// With these further options of `dormouse do`.
    Sandbox {
        extra: &'a [String],
    },
}

/// The outcome of a command.
pub struct Outcome {
    /// Exit code; 128 + the signal when one ended it.
    pub status: i32,
    pub stdout: Vec<u8>,
    stderr: Vec<u8>,
    elapsed: Duration,
    pub timed_out: bool,
}

impl Outcome {
    /// Wall time.
    pub fn seconds(&self) -> f64 {
        self.elapsed.as_secs_f64()
    }
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
    /// The end of its output, on one line.
    pub fn tail(&self) -> String {
        let text = format!("{}{}", String::from_utf8_lossy(&self.stderr), self.stdout_text());
        let chars: Vec<char> = text.trim().chars().collect();
        let start = chars.len().saturating_sub(TAIL);
        chars[start..].iter().collect::<String>().replace('\n', " | ")
    }
    /// All it printed.
    pub fn full(&self) -> String {
        format!(
            "\n--- stdout\n{}\n--- stderr\n{}\n---\n",
            self.stdout_text(),
            String::from_utf8_lossy(&self.stderr)
        )
    }
}

/// Runs `command` by `/bin/sh -c`.
pub fn run(target: &Target<'_>, options: &Options, command: &str, timeout: Duration) -> io::Result<Outcome> {
    let cwd = EmptyDir::new()?;
    let env = [("GUEST", absolute(&options.guest)?), ("SCRIPTS", absolute(&options.scripts)?)];
    let mut child = match target {
        Target::Native => {
            let mut child = Command::new("/bin/sh");
            child.envs(env.iter().map(|(name, value)| (name, value)));
            child
        }
        Target::Sandbox { extra } => {
            let mut child = Command::new(absolute(&options.dormouse)?);
            child.args(["do", "--platform", &options.platform]);
            for (name, value) in &env {
                let mut setting = OsString::from(format!("{name}="));
                setting.push(value);
                child.arg("--env").arg(setting);
            }
            child.arg("--cwd").arg(&cwd.0).args(*extra).args(["--", "/bin/sh"]);
            child
        }
    };
    child
        .args(["-c", command])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let sandbox = matches!(target, Target::Sandbox { .. }).then_some(options);
    finish(child.process_group(0), timeout, |group| stuck::report(sandbox, group))
}

/// A fresh directory, gone when this is.
struct EmptyDir(PathBuf);

impl EmptyDir {
    fn new() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("dormouse-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for EmptyDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn absolute(path: &Path) -> io::Result<OsString> {
    Ok(std::path::absolute(path)?.into_os_string())
}

/// `report`: what is printed of a process group that is still running then.
fn finish(command: &mut Command, timeout: Duration, report: impl Fn(u32) -> String) -> io::Result<Outcome> {
    let start = Instant::now();
    let mut child = command.spawn()?;
    let stdout = reader(child.stdout.take());
    let stderr = reader(child.stderr.take());
    let mut timed_out = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > timeout {
            timed_out = true;
            print!("{}", report(child.id()));
            // The whole group is killed, so that processes left running by the command end as well.
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
            break child.wait()?;
        }
        thread::sleep(Duration::from_millis(2));
    };
    let elapsed = start.elapsed();
    let collect = |thread: thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(Outcome { status, stdout: collect(stdout), stderr: collect(stderr), elapsed, timed_out })
}

fn reader(stream: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}
