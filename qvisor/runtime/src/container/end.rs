//! `start`, `kill` and `delete`: orders to a container that is there already.

use std::os::fd::{AsFd, AsRawFd};

use vmm::process;

use super::error::ContainerError;
use super::record::{Record, hook_state};
use crate::cgroup;
use crate::control::{self, Order, OrderError};
use crate::exec;
use crate::hooks::{self, HookError};
use crate::state::{Id, OciState, Root, StateError};
use crate::status::Status;

/// How long a VMM that was killed may take to end, in milliseconds.
const PATIENCE_MS: i32 = 10_000;

/// Lets the first process begin; result: warnings about hooks that failed, which change nothing.
pub fn start(root: &Root, id: &Id) -> Result<Vec<String>, ContainerError> {
    let lock = root.lock_start(id)?;
    let state = root.state(id)?;
    if state.status != Status::Created {
        return Err(ContainerError::NotCreated { id: id.as_str().to_owned(), status: state.status });
    }
    let record = root.record::<Record>(id);
    if let Some(record) = &record {
        run_inside(root, id, record, &state)?;
    }
    control::order(&root.sandbox(id)?, Order::Start)
        .map_err(|error| ContainerError::Start { id: id.as_str().to_owned(), why: error.to_string() })?;
    drop(lock);
    Ok(record.map_or_else(Vec::new, |record| poststart(&record, &state)))
}

/// Runs the hooks inside, right before the first process begins. The first that fails keeps it from doing so. A snapshot's process
/// has begun long ago.
pub(super) fn run_inside(
    root: &Root,
    id: &Id,
    record: &Record,
    state: &OciState,
) -> Result<(), ContainerError> {
    if record.snapshot.is_some() {
        return Ok(());
    }
    let state = hook_state(state, Status::Created);
    let each = |hook| {
        exec::run_hook(root, id, hook, &state).map_err(|what| HookError::new("startContainer", hook, what))
    };
    Ok(record.hooks.start_container().iter().flatten().try_for_each(each)?)
}

/// Runs the hooks after the start; result: warnings about those that failed.
pub(super) fn poststart(record: &Record, state: &OciState) -> Vec<String> {
    let state = hook_state(state, Status::Running);
    let failed = hooks::run_all("poststart", record.hooks.poststart().as_deref(), &state);
    failed.iter().map(ToString::to_string).collect()
}

/// Sends a signal to the first process, or to every process.
pub fn kill(root: &Root, id: &Id, signal: i32, all: bool) -> Result<(), ContainerError> {
    let state = root.state(id)?;
    let has_ended = || ContainerError::NotRunning { id: id.as_str().to_owned() };
    // runc as well: of all its processes none is left that would not have got the signal.
    if state.status == Status::Stopped {
        return if all { Ok(()) } else { Err(has_ended()) };
    }
    // As kill(2) has it: only whether there is somebody to be signalled.
    if signal == 0 {
        return Ok(());
    }
    let order = Order::Kill { signal, foreground: false, all };
    match control::order(&root.sandbox(id)?, order) {
        // The VMM ended before it could answer.
        Err(OrderError::Gone) if signal == libc::SIGKILL => Ok(()),
        Ok(_) => Ok(()),
        // Whoever asks is to hear that it has ended, not how that came to light.
        Err(OrderError::Ended | OrderError::Gone | OrderError::Connection(_))
            if root.state(id).map_or(true, |state| state.status == Status::Stopped) =>
        {
            Err(has_ended())
        }
        Err(source) => Err(ContainerError::Kill { id: id.as_str().to_owned(), source }),
    }
}

/// Removes the state and the groups of a container; result: warnings about hooks that failed, which change nothing.
/// `force`: ends the container first, and succeeds when there is none.
pub fn delete(root: &Root, id: &Id, force: bool) -> Result<Vec<String>, ContainerError> {
    let state = match root.state(id) {
        Err(StateError::Unknown { .. }) if force && root.record::<Record>(id).is_none() => {
            return Ok(Vec::new());
        }
        // Its creator was killed before it wrote the state.
        Err(StateError::Unknown { id: name }) => match root.record::<Record>(id) {
            Some(_) => None,
            None => return Err(StateError::Unknown { id: name }.into()),
        },
        result => Some(result?),
    };
    let Some(record) = root.record::<Record>(id) else {
        return Err(ContainerError::NoContainer { id: id.as_str().to_owned() });
    };
    let status = state.as_ref().map_or(Status::Stopped, |state| state.status);
    if matches!(status, Status::Running | Status::Paused | Status::Creating) && !force {
        return Err(ContainerError::Alive { id: id.as_str().to_owned(), status });
    }
    end(root, id, &record)?;
    record.take_files_away();
    cgroup::remove(&record.cgroups)?;
    root.remove(id)?;
    let Some(state) = state else { return Ok(Vec::new()) };
    let stopped = OciState { pid: 0, ..hook_state(&state, Status::Stopped) };
    let failed = hooks::run_all("poststop", record.hooks.poststop().as_deref(), &stopped);
    Ok(failed.iter().map(ToString::to_string).collect())
}

/// Ends the VMM, if it lives: by order, so that the leash has the right status, or else by force.
fn end(root: &Root, id: &Id, record: &Record) -> Result<(), ContainerError> {
    let Some(vmm) = record.vmm() else { return Ok(()) };
    let order = Order::Kill { signal: libc::SIGKILL, foreground: false, all: true };
    let ordered = control::order(&root.sandbox(id)?, order).is_ok();
    let wait = |ms: i32| process::wait_readable([vmm.as_raw_fd()], ms)[0];
    if ordered && wait(PATIENCE_MS / 2) {
        return Ok(());
    }
    process::signal(vmm.as_fd(), libc::SIGKILL);
    if wait(PATIENCE_MS) { Ok(()) } else { Err(ContainerError::Stuck { id: id.as_str().to_owned() }) }
}
