//! `run`: a container from its creation to its end, in the foreground or left alone once it runs.

use std::io;
use std::os::fd::AsFd;

use vmm::process::{SignalFd, Terminal};

use super::create::{CreateOptions, begin};
use super::end;
use super::error::ContainerError;
use crate::control::{self, Order};
use crate::front::foreground::{FORWARDED, Front};
use crate::preserved::Preserved;

/// Runs a container. In the foreground: to its end, and deletes it; result: the exit code. Detached: until it has
/// started. Failures of hooks are passed to `warn`.
pub fn run(
    options: &CreateOptions,
    preserved: Preserved,
    detach: bool,
    warn: fn(&str),
) -> Result<u8, ContainerError> {
    let warn_all = |words: Vec<String>| words.iter().for_each(|words| warn(words));
    if detach {
        let mut created = begin(options, preserved, true)?;
        created.release()?;
        // Its lock is the sandbox's alone from here on: who sees it free knows that the sandbox has ended.
        drop(created);
        match end::start(&options.root, &options.id) {
            Ok(words) => warn_all(words),
            Err(error) => {
                warn_all(end::delete(&options.root, &options.id, true)?);
                return Err(error);
            }
        }
        return Ok(0);
    }
    let failed =
        |what, source: io::Error| ContainerError::Create { id: options.id.as_str().to_owned(), what, source };
    let signals = SignalFd::new(FORWARDED).map_err(|source| failed("collecting signals", source))?;
    let created = begin(options, preserved, false)?;
    let starting = options.root.lock_start(&options.id)?;
    if let Err(error) = end::run_inside(&options.root, &options.id, &created.record, &created.state) {
        drop(created);
        warn_all(end::delete(&options.root, &options.id, true)?);
        return Err(error);
    }
    let terminal = created.owns_terminal.then(|| Terminal::new(io::stdin().as_fd())).flatten();
    terminal.iter().for_each(Terminal::set_raw);
    let _ = control::send(created.channel.get_ref(), &Order::Start);
    drop(starting);
    let (record, state) = (created.record, created.state);
    let mut front = Front::new(created.vmm, created.channel, signals, terminal);
    let ended = front.wait(&options.id, |_| Ok(()), || warn_all(end::poststart(&record, &state)));
    front.close();
    drop(created.claim);
    warn_all(end::delete(&options.root, &options.id, true)?);
    Ok(ended?)
}
