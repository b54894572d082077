//! Pages to measure with, wherever commands that measure take them from, and charts of what was measured.

pub mod bars;
pub mod source;
mod user_memory;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use codec::PAGE_BYTES;
use runtime::state::{Id, OciState, Root};
use runtime::status::{SandboxState, Status};
use rustix::fs::OFlags;
use vmm::process;

use self::source::Source;
use crate::failure::Failure;

/// Pages that are to be measured.
pub struct Pages {
    /// Whose they are, in words.
    pub of: String,
    pub source: Source,
    /// A process whose processor time is limited as theirs would be.
    pub pid: i32,
}

pub fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    format!("cannot write {}: {error}; pass another file with --svg", path.display()).into()
}

/// Whether a file can be made there, before time is spent on what goes into it.
pub fn check_place(svg: &Path) -> Result<(), Failure> {
    let directory = svg.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = fs::metadata(directory).and_then(|found| match found.is_dir() {
        true if svg.is_dir() => Err(std::io::ErrorKind::IsADirectory.into()),
        true => Ok(()),
        false => Err(std::io::ErrorKind::NotADirectory.into()),
    });
    found.map_err(|error| cannot_write(svg, &error))
}

/// Pages of a sandbox, or else of a file, to measure `what` on. A name with a slash is a file's.
pub fn named(root: &Root, data: &OsStr, what: &str) -> Result<Pages, Failure> {
    let id = data.to_str().and_then(|text| Id::new(text).ok());
    if let Some(id) = id
        && let Ok(state) = root.state(&id)
    {
        return of_sandbox(&id, &state, what);
    }
    if data.is_empty() {
        return Err(format!(
            "cannot measure {what}: --data names nothing; pass a file or the ID of a sandbox"
        )
        .into());
    }
    let path = Path::new(data);
    let failed =
        |why: &str| -> Failure { format!("cannot measure {what} on {}: {why}", path.display()).into() };
    let opened = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let file = match opened {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !data.as_bytes().contains(&b'/') => {
            return Err(failed("there is neither a sandbox of this ID nor such a file; see dormouse list"));
        }
        opened => opened.map_err(|error| failed(&format!("{error}; pass a file that can be read")))?,
    };
    let metadata = file.metadata()?;
    let page = PAGE_BYTES as u64;
    if !metadata.is_file() {
        return Err(failed("it is not a regular file; pass one that holds pages of memory"));
    }
    if metadata.len() < page {
        let len = metadata.len();
        return Err(failed(&format!("it has {len} bytes, less than a page of {page}; pass a larger file")));
    }
    let whole = metadata.len() / page * page;
    let source = Source { file, ranges: std::iter::once(0..whole).collect(), first: 0 };
    Ok(Pages { of: path.display().to_string(), source, pid: process::id() })
}

/// Pages of a sandbox that is awake, to measure `what` on.
pub fn of_sandbox(id: &Id, state: &OciState, what: &str) -> Result<Pages, Failure> {
    let id = id.as_str();
    let failed = |why: &str| -> Failure { format!("cannot measure {what} on sandbox {id}: {why}").into() };
    match (state.status, state.sandbox_state) {
        (Status::Stopped, _) => return Err(failed("it has ended; pass one that runs")),
        (_, Some(SandboxState::Hibernated)) => {
            return Err(failed(&format!(
                "it is hibernated, so its memory is on the disk; run: dormouse wake {id}"
            )));
        }
        (Status::Creating | Status::Created, _) => {
            return Err(failed(&format!("its program does not run yet; run: dormouse start {id}")));
        }
        (Status::Running | Status::Paused, _) => {}
    }
    let found = vmm_memory(state.pid).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            failed("only root may read a sandbox's memory; run it as root, or pass --data FILE")
        }
        _ => failed(&format!("its memory cannot be read: {error}; see dormouse state {id}")),
    })?;
    let (pid, source) = found.ok_or_else(|| failed("its VMM was not found; see dormouse list"))?;
    if source.len() == 0 {
        return Err(failed("it has no memory; ask again once its program runs"));
    }
    let of = format!("sandbox {id}");
    Ok(Pages { of, source, pid })
}

/// The VMM and the memory that it holds. The pid that a state shows is the VMM's, or that of its child, the leash.
fn vmm_memory(pid: i32) -> std::io::Result<Option<(i32, Source)>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may hold anything; behind it come the state and the parent.
    let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
    for pid in [Some(pid), parent].into_iter().flatten() {
        if let Some(source) = user_memory::open(Path::new(&format!("/proc/{pid}")))? {
            return Ok(Some((pid, source)));
        }
    }
    Ok(None)
}
