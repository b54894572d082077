//! Hooks of the kind `startContainer`: programs of the container's own root, run inside before its first process begins.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use oci_spec::runtime::Hook;
use vmm::boot::{BootSpec, Stream};
use vmm::exec_relay::ExecReport;
use vmm::process;

use super::connection::{Connection, Said};
use crate::control::{self, Order};
use crate::hooks::{state_file, take_rest, take_words, with_words};
use crate::state::{Id, OciState, Root};

/// How long a hook without a timeout may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs a hook inside a created container, as the user of its first process, with the state on its standard input. The
/// error is a reason.
pub fn run_hook(root: &Root, id: &Id, hook: &Hook, state: &OciState) -> Result<(), String> {
    let cannot = |error: io::Error| format!("it cannot be started ({error})");
    let records = root.process(id).map_err(cannot)?;
    let process = BootSpec::of_process(&records).map_err(|_| "the record of the first process is damaged")?;
    let input = state_file(state).map_err(cannot)?;
    let (mut words, theirs) = io::pipe().map_err(cannot)?;
    let spec = describe(hook, process)?;
    let records = spec.process_records();
    let len = u32::try_from(records.len()).map_err(|_| "its arguments are too long")?;
    let socket = root.sandbox(id).map_err(|error| error.to_string())?;
    let mut connection = Connection::new(control::connect(&socket).map_err(cannot)?);
    let streams = [input.as_fd(), theirs.as_fd(), theirs.as_fd()];
    connection
        .ask(Order::Exec { len, paused: false, hook: true, probe: false }, &records, &streams)
        .map_err(cannot)?;
    drop(theirs);
    let limit = hook.timeout().and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    // A connection that is closed ends the process.
    let (status, said) = wait(&mut connection, &mut words, limit.unwrap_or(PATIENCE))?;
    if status == 0 {
        return Ok(());
    }
    let how = match libc::WIFEXITED(status) {
        true => format!("it ended with exit code {}", libc::WEXITSTATUS(status)),
        false => format!("it was killed by signal {}", libc::WTERMSIG(status)),
    };
    Err(with_words(how, &said))
}

/// The process that a hook is. Its path is its name as well.
fn describe(hook: &Hook, process: BootSpec) -> Result<BootSpec, String> {
    let path = hook.path().to_str().ok_or("its path is no text")?;
    let rest = hook.args().iter().flatten().skip(1);
    let args = std::iter::once(path).chain(rest.map(String::as_str));
    Ok(BootSpec {
        args: args.map(|arg| arg.as_bytes().to_vec()).collect(),
        env: hook.env().iter().flatten().map(|pair| pair.clone().into_bytes()).collect(),
        cwd: b"/".to_vec(),
        streams: (0..3).map(|fd| Stream { fd, handle: fd, flags: 0 }).collect(),
        winsize: None,
        hold: false,
        make_cwd: false,
        ..process
    })
}

/// The hook's wait status, and the end of what it said. Processes that it leaves running may hold the pipe.
fn wait(
    connection: &mut Connection,
    words: &mut io::PipeReader,
    limit: Duration,
) -> Result<(i32, Vec<u8>), String> {
    let start = Instant::now();
    let mut said = Vec::new();
    let mut pipe = words.as_raw_fd();
    loop {
        match connection.next() {
            Some(Said::Report(ExecReport::Started { .. })) => continue,
            Some(Said::Report(ExecReport::Exited { status })) => {
                take_rest(words, pipe, &mut said);
                return Ok((status, said));
            }
            Some(Said::Report(ExecReport::Failed { message, .. })) => return Err(message),
            Some(Said::Refused(why)) => return Err(why),
            Some(Said::Gone) => return Err("the container ended".into()),
            None => {}
        }
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(format!("it took longer than {} s", limit.as_secs()));
        }
        let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        let [_, spoke] = process::wait_readable([connection.as_raw_fd(), pipe], left_ms);
        if spoke && !take_words(words, &mut said) {
            pipe = -1;
        }
    }
}
