//! Hooks: programs of the host that a bundle wants run at certain steps of a container's life.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use oci_spec::runtime::Hook;
use vmm::process;

use crate::state::OciState;

/// Bytes of a hook's output that are kept for the message.
const WORDS_MAX: usize = 2048;
const READ_LEN: usize = 1024;
/// Reads that empty a pipe of any usual size.
const RESTS_MAX: usize = (1 << 20) / READ_LEN;

/// A hook that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot go on after {kind} hook {path}: {what}; correct it or take it out of config.json")]
pub struct HookError {
    kind: &'static str,
    path: PathBuf,
    what: String,
}

impl HookError {
    pub(crate) fn new(kind: &'static str, hook: &Hook, what: String) -> Self {
        Self { kind, path: hook.path().clone(), what }
    }
}

/// Runs hooks one after the other, in this process's namespaces, the state on their standard input. The first that
/// fails ends the series.
pub fn run(kind: &'static str, hooks: Option<&[Hook]>, state: &OciState) -> Result<(), HookError> {
    hooks
        .unwrap_or_default()
        .iter()
        .try_for_each(|hook| run_one(hook, state).map_err(|what| HookError::new(kind, hook, what)))
}

/// Runs hooks whose failure changes nothing: unlike [`run`], goes on after one that fails. Result: the failures.
#[must_use]
pub fn run_all(kind: &'static str, hooks: Option<&[Hook]>, state: &OciState) -> Vec<HookError> {
    let run = |hook: &Hook| {
        let result = run_one(hook, state);
        result.err().map(|what| HookError::new(kind, hook, what))
    };
    hooks.unwrap_or_default().iter().filter_map(run).collect()
}

fn run_one(hook: &Hook, state: &OciState) -> Result<(), String> {
    let cannot = |error: io::Error| format!("it cannot be started ({error})");
    let (mut words, theirs) = io::pipe().map_err(cannot)?;
    let mut command = Command::new(hook.path());
    if let Some((name, rest)) = hook.args().as_deref().and_then(<[String]>::split_first) {
        command.arg0(name).args(rest);
    }
    command.env_clear();
    for pair in hook.env().as_deref().unwrap_or_default() {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        command.env(name, value);
    }
    command.stdin(state_file(state).map_err(cannot)?);
    command.stdout(theirs.try_clone().map_err(cannot)?).stderr(theirs);
    let mut child = command.spawn().map_err(cannot)?;
    // The command holds the pipe's other end.
    drop(command);
    let limit = hook.timeout().and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    let (status, said) = wait(&mut child, &mut words, limit)?;
    if status.success() {
        return Ok(());
    }
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, signal) => format!("it was killed by signal {}", signal.unwrap_or(0)),
    };
    Err(with_words(how, &said))
}

/// How a hook ended, with what it said.
pub(crate) fn with_words(how: String, said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let said = said.trim().replace('\n', ", ");
    if said.is_empty() { how } else { format!("{how} ({said})") }
}

/// A file that holds the state, at its beginning.
pub(crate) fn state_file(state: &OciState) -> io::Result<File> {
    let mut file = File::from(process::memory_file(c"dormouse-state")?);
    file.write_all(&serde_json::to_vec(state)?)?;
    file.rewind()?;
    Ok(file)
}

/// Waits for the end of the hook itself; processes that it leaves running may hold the pipe for as long as they like.
fn wait(
    child: &mut Child,
    words: &mut io::PipeReader,
    limit: Option<Duration>,
) -> Result<(ExitStatus, Vec<u8>), String> {
    let failed = |error: io::Error| format!("it cannot be waited for ({error})");
    let pidfd = process::pidfd(child.id().cast_signed()).map_err(failed)?;
    let start = Instant::now();
    let mut said = Vec::new();
    let mut pipe = words.as_raw_fd();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it took longer than {} s", limit.unwrap_or_default().as_secs()));
        }
        let timeout = left.map_or(-1, |left| i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1));
        let [ended, spoke] = process::wait_readable([pidfd.as_raw_fd(), pipe], timeout);
        if spoke && !take_words(words, &mut said) {
            pipe = -1;
        }
        if ended {
            take_rest(words, pipe, &mut said);
            return Ok((child.wait().map_err(failed)?, said));
        }
    }
}

/// Takes what a hook that has ended left in its pipe; whoever else writes there is not waited for.
pub(crate) fn take_rest(words: &mut io::PipeReader, pipe: RawFd, said: &mut Vec<u8>) {
    let is_there = || pipe >= 0 && process::wait_readable([pipe], 0)[0];
    let _ = (0..RESTS_MAX).all(|_| is_there() && take_words(words, said));
}

/// Takes the output that has come; false at the end.
pub(crate) fn take_words(words: &mut io::PipeReader, said: &mut Vec<u8>) -> bool {
    let mut buffer = [0; READ_LEN];
    match words.read(&mut buffer) {
        Ok(len @ 1..) => {
            said.extend_from_slice(&buffer[..len]);
            let excess = said.len().saturating_sub(WORDS_MAX);
            said.drain(..excess);
            true
        }
        _ => false,
    }
}
