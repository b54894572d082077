//! `pause`, `resume` and `ps`.

use serde::Serialize;

use super::{SandboxOrderError, Why, order};
use crate::cgroup;
use crate::control::{Figures, Order};
use crate::state::{Id, Root};
use crate::status::Status;

/// Has a sandbox rest until [`resume`], whatever comes for it; returns once it does. It hibernates if it was started so.
pub fn pause(root: &Root, id: &Id) -> Result<(), SandboxOrderError> {
    let failed = |why| SandboxOrderError::Pause { id: id.as_str().to_owned(), why };
    order(root, id, Order::Pause)?.map(drop).map_err(failed)
}

/// Ends a [`pause`]; returns once the sandbox goes on.
pub fn resume(root: &Root, id: &Id) -> Result<(), SandboxOrderError> {
    let failed = |why| SandboxOrderError::Resume { id: id.as_str().to_owned(), why };
    if root.state(id)?.status == Status::Stopped {
        return Err(failed(Why::NotPaused));
    }
    order(root, id, Order::Resume)?.map(drop).map_err(failed)
}

/// A process in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestProcess {
    pub pid: u32,
    pub parent: u32,
    pub uid: u32,
    /// The state by its letter in `/proc/PID/stat`: `R`, `S`, `D`, `T` or `Z`.
    pub state: char,
    pub threads: u32,
    /// In memory, or in the home of pages.
    pub memory_kib: u64,
    pub cpu_ms: u64,
    pub name: String,
}

/// The processes in a sandbox, by its own ids. Does not wake it. None in one that has ended.
pub fn processes(root: &Root, id: &Id) -> Result<Vec<GuestProcess>, SandboxOrderError> {
    let failed = |why| SandboxOrderError::Processes { id: id.as_str().to_owned(), why };
    if root.state(id)?.status == Status::Stopped {
        return Ok(Vec::new());
    }
    match order(root, id, Order::Processes)?.map_err(failed)?.figures {
        Some(Figures::Processes(list)) => Ok(list.lines().filter_map(parse).collect()),
        _ => Err(failed(Why::Silent("list any"))),
    }
}

/// The pids on the host that stand for a container: its leash, and those of processes that came in later.
pub fn leashes(root: &Root, id: &Id) -> Result<Vec<i32>, SandboxOrderError> {
    let state = root.state(id)?;
    if state.status == Status::Stopped || state.pid <= 0 {
        return Ok(Vec::new());
    }
    let is_leash = |pid: &i32| {
        let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim_ascii_end() == b"dormouse-leash"
    };
    let mut all = vec![state.pid];
    all.extend(
        cgroup::members_beside(state.pid).into_iter().filter(is_leash).filter(|pid| *pid != state.pid),
    );
    Ok(all)
}

fn parse(line: &str) -> Option<GuestProcess> {
    let mut words = line.splitn(8, ' ');
    Some(GuestProcess {
        pid: words.next()?.parse().ok()?,
        parent: words.next()?.parse().ok()?,
        uid: words.next()?.parse().ok()?,
        state: words.next()?.chars().next()?,
        threads: words.next()?.parse().ok()?,
        memory_kib: words.next()?.parse().ok()?,
        cpu_ms: words.next()?.parse().ok()?,
        name: words.next()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let found = parse("7 1 1000 S 2 4096 15 my program").unwrap();
        assert_eq!((found.pid, found.parent, found.uid, found.state), (7, 1, 1000, 'S'));
        assert_eq!(
            (found.threads, found.memory_kib, found.cpu_ms, &*found.name),
            (2, 4096, 15, "my program")
        );
        for bad in ["", "7", "7 1 1000 S 2 4096 15", "x 1 1000 S 2 4096 15 a"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
