//! `do --from`: a container that begins with a snapshot and goes with its command. Its root is the bundle's, seen through a copy-on-write
//! view that goes as well.

use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, AsRawFd};

use vmm::footprint;
use vmm::process::{self, SignalFd, Terminal};

use super::create::{CreateOptions, Created, begin, no_success};
use super::end;
use super::error::ContainerError;
use super::record::Record;
use super::run::{run, run_apart};
use crate::control::{self, Order, Report};
use crate::front::Attended;
use crate::front::foreground::{self, ENDING, FORWARDED, patience_ms, report};
use crate::preserved::Preserved;
use crate::state::{Claim, Id, Root, StateError};
use crate::vmm_process::plan::ClonePlan;

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
    let is_silent = attended.is_silent();
    let mark = format!("{} {:?}", process::id(), process::start_time(process::id()));
    options.clone = Some(ClonePlan { mark, layer: layer.path().to_owned(), disk_bytes, is_silent });
    let failed = |source| {
        let id = options.id.as_str().to_owned();
        ContainerError::Create { id, what: "starting its watcher", source }
    };
    let mut leash = start_watcher(&options, &layer, warn).map_err(failed)?;
    let result = match attended {
        Attended::First => run(&options, Preserved::default(), false, None, warn).map_err(E::from),
        Attended::Apart(started) => run_apart(&options, started, warn).map_err(E::from),
        Attended::Further(command) => run_beside(&options, command, warn),
    };
    remove(&layer, warn);
    // The watcher has nothing to do.
    let _ = leash.write(&[0]);
    result
}

/// Starts a process that removes the clone should this one be killed. It is nobody's child here: those are ended in between. Result: the
/// pipe whose closing tells it, unless something is written to it before; it is this process's and, until that ends with this one, the VMM's.
fn start_watcher(options: &CreateOptions, layer: &Claim, warn: fn(&str)) -> io::Result<io::PipeWriter> {
    let (mut reader, leash) = io::pipe()?;
    let terminal = Terminal::new(io::stdin().as_fd());
    if let Some(between) = process::fork()? {
        process::reap(between);
        return Ok(leash);
    }
    drop(leash);
    if !matches!(process::fork(), Ok(None)) {
        process::exit_now(0);
    }
    process::set_name(c"dormouse-watch");
    process::leave_session();
    footprint::trim();
    if !matches!(reader.read(&mut [0]), Ok(1)) {
        terminal.iter().for_each(Terminal::restore);
        let _ = delete(options);
        remove(layer, warn);
    }
    process::exit_now(0)
}

/// Ends and removes the container, if it is the command's still.
fn delete(options: &CreateOptions) -> Result<Vec<String>, ContainerError> {
    let mark = options.clone.as_ref().map(|clone| &clone.mark);
    match options.root.record::<Record>(&options.id) {
        Some(record) if record.clone.as_ref() == mark => end::delete(&options.root, &options.id, true),
        _ => Ok(Vec::new()),
    }
}

/// Runs a command in a clone, and ends both.
fn run_beside<E: From<ContainerError>>(
    options: &CreateOptions,
    command: &dyn Fn(&Root, &Id) -> Result<u8, E>,
    warn: fn(&str),
) -> Result<u8, E> {
    let (root, id) = (&options.root, &options.id);
    // From now on they wait for the command, which collects them itself.
    let mut signals = SignalFd::new(FORWARDED).map_err(|source| ContainerError::Create {
        id: id.as_str().to_owned(),
        what: "collecting signals",
        source,
    })?;
    let mut created = begin(options, Preserved::default(), false)?;
    let result = start(root, &mut created, &mut signals, warn).map_err(E::from);
    let result = result.and_then(|()| command(root, id));
    let Created { mut channel, claim, .. } = created;
    let has_ended = process::wait_readable([channel.get_ref().as_raw_fd()], patience_ms(&result))[0];
    drop((claim, signals));
    let deleted = delete(options);
    // Nobody writes any more: a VMM that goes on to talk keeps nobody waiting.
    if result.is_ok() && deleted.is_ok() && has_ended {
        why_it_ended(&mut channel, id).iter().for_each(|words| warn(words));
    }
    // What it was ended for comes first.
    let code = result?;
    deleted?.iter().for_each(|words| warn(words));
    Ok(code)
}

/// Has the clone go on; returns once it does. Its programs began long ago, so there is nothing to be run inside before.
fn start(
    root: &Root,
    created: &mut Created,
    signals: &mut SignalFd,
    warn: fn(&str),
) -> Result<(), ContainerError> {
    let starting = root.lock_start(&created.id)?;
    let _ = control::send(created.channel.get_ref(), &Order::Start);
    loop {
        let channel = created.channel.get_ref().as_raw_fd();
        let [told, _] = process::wait_readable([channel, signals.as_raw_fd()], -1);
        if told {
            break;
        }
        while let Some(arrived) = signals.next() {
            if ENDING.contains(&arrived.signal) {
                let why = format!("signal {} came", arrived.signal);
                return Err(ContainerError::Start { id: created.id.as_str().to_owned(), why });
            }
        }
    }
    match report(&mut created.channel) {
        Some(Report::Started) => {}
        other => return Err(no_success(created.id.as_str(), other)),
    }
    drop(starting);
    end::poststart(&created.record, &created.state).iter().for_each(|words| warn(words));
    Ok(())
}

/// The last words of a VMM that ended before the command.
fn why_it_ended(channel: &mut impl BufRead, id: &Id) -> Option<String> {
    foreground::why_it_ended(channel, id, |message, code| {
        ContainerError::Failed { id: id.as_str().to_owned(), message, code }.to_string()
    })
}

fn remove(layer: &Claim, warn: fn(&str)) {
    if let Err(left) = layer.remove() {
        warn(&left.to_string());
    }
}
