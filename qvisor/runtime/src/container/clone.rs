//! `do --from`: a container that begins with a snapshot and goes with its command. Its root is the bundle's, seen through a copy-on-write
//! view that goes as well.

use std::io::{self, Read};

use vmm::footprint;
use vmm::process::{self, SignalFd};

use super::create::{CreateOptions, Created, begin, no_success, report};
use super::end;
use super::error::ContainerError;
use super::run::run;
use crate::control::{self, Order, Report};
use crate::front::foreground::FORWARDED;
use crate::preserved::Preserved;
use crate::state::{Claim, Id, Root, StateError};
use crate::vmm_process::plan::ClonePlan;

/// The program that ends with a clone.
pub enum Attended<'c, E> {
    /// Its first process, which goes on with the command's streams.
    First,
    /// One that is run in it, and gives the exit code. The clone's own streams lead nowhere.
    Further(&'c dyn Fn(&Root, &Id) -> Result<u8, E>),
}

/// Runs a clone until the attended program has ended, and removes it; result: the exit code. The changes to its root are in `layers` and
/// take up `disk_bytes` at most. Failures that change nothing are passed to `warn`.
pub fn run_clone<E: From<ContainerError>>(
    mut options: CreateOptions,
    layers: &Root,
    disk_bytes: u64,
    attended: &Attended<'_, E>,
    warn: fn(&str),
) -> Result<u8, E> {
    let layer = layers.claim(&options.id).map_err(ContainerError::from)?;
    layer.left().iter().for_each(|left: &StateError| warn(&left.to_string()));
    let is_silent = matches!(attended, Attended::Further(_));
    options.clone = Some(ClonePlan { layer: layer.path().to_owned(), disk_bytes, is_silent });
    let failed = |source| {
        let id = options.id.as_str().to_owned();
        ContainerError::Create { id, what: "starting its watcher", source }
    };
    // The writing end is this process's and, until that ends with this one, the VMM's.
    let (reader, leash) = io::pipe().map_err(failed)?;
    if process::fork().map_err(failed)?.is_none() {
        drop(leash);
        watch(reader, &options, &layer, warn);
    }
    drop(reader);
    let result = match attended {
        Attended::First => run(&options, Preserved::default(), false, warn).map_err(E::from),
        Attended::Further(command) => run_beside(&options, command, warn),
    };
    remove(&layer, warn);
    // The watcher.
    process::end_children();
    drop(leash);
    result
}

/// Waits until the command has ended, and removes the clone in its stead.
fn watch(mut leash: io::PipeReader, options: &CreateOptions, layer: &Claim, warn: fn(&str)) -> ! {
    process::set_name(c"dormouse-watch");
    process::leave_session();
    footprint::trim();
    let _ = leash.read(&mut [0]);
    let _ = end::delete(&options.root, &options.id, true);
    remove(layer, warn);
    process::exit_now(0)
}

/// Runs a command in a clone, and ends both.
fn run_beside<E: From<ContainerError>>(
    options: &CreateOptions,
    command: &dyn Fn(&Root, &Id) -> Result<u8, E>,
    warn: fn(&str),
) -> Result<u8, E> {
    let (root, id) = (&options.root, &options.id);
    // From now on they wait for the command, which collects them itself.
    let signals = SignalFd::new(FORWARDED).map_err(|source| ContainerError::Create {
        id: id.as_str().to_owned(),
        what: "collecting signals",
        source,
    })?;
    let mut created = begin(options, Preserved::default(), false)?;
    let result = start(root, &mut created, warn).map_err(E::from).and_then(|()| command(root, id));
    drop((created, signals));
    let deleted = end::delete(root, id, true);
    // What it was ended for comes first.
    let code = result?;
    deleted?.iter().for_each(|words| warn(words));
    Ok(code)
}

/// Has the clone go on; returns once it does. Its programs began long ago, so there is nothing to be run inside before.
fn start(root: &Root, created: &mut Created, warn: fn(&str)) -> Result<(), ContainerError> {
    let starting = root.lock_start(&created.id)?;
    let _ = control::send(created.channel.get_ref(), &Order::Start);
    match report(&mut created.channel) {
        Some(Report::Started) => {}
        other => return Err(no_success(created.id.as_str(), other)),
    }
    drop(starting);
    end::poststart(&created.record, &created.state).iter().for_each(|words| warn(words));
    Ok(())
}

fn remove(layer: &Claim, warn: fn(&str)) {
    if let Err(left) = layer.remove() {
        warn(&left.to_string());
    }
}
