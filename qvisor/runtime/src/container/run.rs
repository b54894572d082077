//! `run`: a container from its creation to its end, in the foreground or left alone once it runs.

use std::io;
use std::os::fd::AsFd;

use vmm::process::{SignalFd, Terminal};

use super::create::{CreateOptions, Created, begin};
use super::end;
use super::error::ContainerError;
use crate::control::{self, Order};
use crate::front::foreground::{FORWARDED, Front};
use crate::preserved::Preserved;
use crate::state::{Id, Root};

/// A command that runs in a container which began with a snapshot, before its programs go on; result: its exit code.
pub type After<'a, E> = &'a dyn Fn(&Root, &Id) -> Result<u8, E>;

/// Runs a container. In the foreground: to its end, and deletes it; result: the exit code. Detached: until it has
/// started. Unless `after` ends with 0, the container is ended and deleted. Failures of hooks are passed to `warn`.
pub fn run<E: From<ContainerError>>(
    options: &CreateOptions,
    preserved: Preserved,
    detach: bool,
    after: Option<After<'_, E>>,
    warn: fn(&str),
) -> Result<u8, E> {
    let created = begin(options, preserved, detach)?;
    if after.is_some() {
        rest_at_start(options)?;
    }
    if detach {
        run_detached(options, created, after, warn)
    } else {
        run_attended(options, created, after, warn)
    }
}

/// Only what comes in by exec runs once it is started.
fn rest_at_start(options: &CreateOptions) -> Result<(), ContainerError> {
    let (root, id) = (&options.root, &options.id);
    control::order(&root.sandbox(id)?, Order::RestAtStart)
        .map(drop)
        .map_err(|error| ContainerError::Start { id: id.as_str().to_owned(), why: error.to_string() })
}

/// Runs the command in a container that rests, which goes on afterwards.
fn run_after<E: From<ContainerError>>(options: &CreateOptions, after: After<'_, E>) -> Result<(), E> {
    let (root, id) = (&options.root, &options.id);
    match after(root, id)? {
        0 => {}
        code => return Err(ContainerError::After { id: id.as_str().to_owned(), code }.into()),
    }
    let gone_on = root.sandbox(id).map_err(ContainerError::from).and_then(|sandbox| {
        control::order(&sandbox, Order::GoOn)
            .map_err(|error| ContainerError::Start { id: id.as_str().to_owned(), why: error.to_string() })
    });
    Ok(gone_on.map(drop)?)
}

fn run_detached<E: From<ContainerError>>(
    options: &CreateOptions,
    mut created: Created,
    after: Option<After<'_, E>>,
    warn: fn(&str),
) -> Result<u8, E> {
    let warn_all = |words: Vec<String>| words.iter().for_each(|words| warn(words));
    let (root, id) = (&options.root, &options.id);
    let result = match after {
        // Until it has gone on it ends with this process.
        Some(after) => {
            let started = end::start(root, id).map(warn_all).map_err(E::from);
            let started = started.and_then(|()| run_after(options, after));
            started.and_then(|()| Ok(created.release()?))
        }
        None => {
            created.release()?;
            Ok(())
        }
    };
    // Its lock is the sandbox's alone from here on: who sees it free knows that the sandbox has ended.
    drop(created);
    let result = result.and_then(|()| match after {
        Some(_) => Ok(()),
        None => Ok(end::start(root, id).map(warn_all)?),
    });
    if let Err(error) = result {
        warn_all(end::delete(root, id, true)?);
        return Err(error);
    }
    Ok(0)
}

fn run_attended<E: From<ContainerError>>(
    options: &CreateOptions,
    created: Created,
    after: Option<After<'_, E>>,
    warn: fn(&str),
) -> Result<u8, E> {
    let warn_all = |words: Vec<String>| words.iter().for_each(|words| warn(words));
    let (root, id) = (&options.root, &options.id);
    let failed =
        |what, source: io::Error| ContainerError::Create { id: id.as_str().to_owned(), what, source };
    let signals = SignalFd::new(FORWARDED).map_err(|source| failed("collecting signals", source))?;
    let starting = root.lock_start(id).map_err(ContainerError::from)?;
    if let Err(error) = end::run_inside(root, id, &created.record, &created.state) {
        drop(created);
        warn_all(end::delete(root, id, true)?);
        return Err(error.into());
    }
    let terminal = created.owns_terminal.then(|| Terminal::new(io::stdin().as_fd())).flatten();
    terminal.iter().for_each(Terminal::set_raw);
    let _ = control::send(created.channel.get_ref(), &Order::Start);
    drop(starting);
    let (record, state) = (created.record, created.state);
    let mut front = Front::new(created.vmm, created.channel, signals, terminal);
    let mut outcome = Ok(());
    let ended = front.wait(
        id,
        |_| Ok(()),
        || {
            warn_all(end::poststart(&record, &state));
            outcome = after.map_or(Ok(()), |after| run_after(options, after));
            if outcome.is_err() {
                // It has ended where it cannot be ended.
                let _ = end::kill(root, id, libc::SIGKILL, true);
            }
        },
    );
    front.close();
    drop(created.claim);
    warn_all(end::delete(root, id, true)?);
    outcome?;
    Ok(ended.map_err(ContainerError::from)?)
}
