//! Hooks of the kind `startContainer`: programs of the container's own root, run inside before its first process begins.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use oci_spec::runtime::Hook;
use vmm::boot::{BootSpec, Stream};
use vmm::exec_relay::ExecReport;
use vmm::process;

use super::connection::{Connection, Said};
use crate::control::{self, Order};
use crate::state::{Id, OciState, Root};

/// How long a hook without a timeout may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of a hook's output that are kept for the message.
const WORDS_MAX: u64 = 2048;

/// Runs a hook inside a created container, as the user of its first process, with the state on its standard input. The
/// error is a reason.
pub fn run_hook(root: &Root, id: &Id, hook: &Hook, state: &OciState) -> Result<(), String> {
    let cannot = |error: io::Error| format!("it cannot be started ({error})");
    let records = root.process(id).map_err(cannot)?;
    let process = BootSpec::of_process(&records).ok_or("the record of the first process is damaged")?;
    let mut input = File::from(process::memory_file(c"dormouse-state").map_err(cannot)?);
    input.write_all(&serde_json::to_vec(state).map_err(io::Error::from).map_err(cannot)?).map_err(cannot)?;
    input.rewind().map_err(cannot)?;
    let output = File::from(process::memory_file(c"dormouse-hook").map_err(cannot)?);
    let spec = describe(hook, process)?;
    let records = spec.process_records();
    let len = u32::try_from(records.len()).map_err(|_| "its arguments are too long")?;
    let socket = root.sandbox(id).map_err(|error| error.to_string())?;
    let mut connection = Connection::new(control::connect(&socket).map_err(cannot)?);
    let streams = [input.as_fd(), output.as_fd(), output.as_fd()];
    connection.ask(Order::Exec { len, paused: false, hook: true }, &records, &streams).map_err(cannot)?;
    let limit = hook.timeout().and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    // A connection that is closed ends the process.
    let status = wait(&mut connection, limit.unwrap_or(PATIENCE))?;
    if status == 0 {
        return Ok(());
    }
    let how = match libc::WIFEXITED(status) {
        true => format!("it ended with exit code {}", libc::WEXITSTATUS(status)),
        false => format!("it was killed by signal {}", libc::WTERMSIG(status)),
    };
    let said = words(output).unwrap_or_default();
    Err(if said.is_empty() { how } else { format!("{how} ({said})") })
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

/// The hook's wait status.
fn wait(connection: &mut Connection, limit: Duration) -> Result<i32, String> {
    let start = Instant::now();
    loop {
        match connection.next() {
            Some(Said::Report(ExecReport::Started { .. })) => continue,
            Some(Said::Report(ExecReport::Exited { status })) => return Ok(status),
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
        let _ = process::wait_readable([connection.as_raw_fd()], left_ms);
    }
}

/// The end of what a hook wrote, in one line.
fn words(mut output: File) -> io::Result<String> {
    let len = output.metadata()?.len();
    output.seek(io::SeekFrom::Start(len.saturating_sub(WORDS_MAX)))?;
    let mut bytes = Vec::new();
    output.take(WORDS_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().replace('\n', ", "))
}
