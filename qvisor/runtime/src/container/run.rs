//! `run`: a container from its creation to its end, in the foreground or left alone once it runs.

use std::io;
use std::os::fd::AsFd;

use vmm::process::{SignalFd, Terminal};

use super::create::{CreateOptions, Created, begin};
use super::end;
use super::error::ContainerError;
use crate::control::{self, Order};
use crate::front::FrontError;
use crate::front::foreground::{FORWARDED, Front};
use crate::preserved::Preserved;
use crate::state::{Id, Root};

/// A command that runs in a container which began with a snapshot, before its programs go on. Result: its exit code, or why it did not run.
pub type After<'a> = &'a dyn Fn(&Root, &Id) -> Result<u8, String>;

/// Runs a container. In the foreground: to its end, and deletes it; result: the exit code. Detached: until it has
/// started. Unless `after` ends with 0, the container is ended and deleted. Failures of hooks are passed to `warn`.
pub fn run(
    options: &CreateOptions,
    preserved: Preserved,
    detach: bool,
    after: Option<After<'_>>,
    warn: fn(&str),
) -> Result<u8, ContainerError> {
    let run = Run { options, after, started: &|| {}, warn };
    if detach {
        return run.detached(begin(options, preserved, true)?);
    }
    run.in_foreground(preserved)
}

/// Runs a container whose streams lead nowhere to its end, and deletes it; result: the exit code. `started` is told once it goes on.
pub(super) fn run_apart(
    options: &CreateOptions,
    started: &dyn Fn(),
    warn: fn(&str),
) -> Result<u8, ContainerError> {
    Run { options, after: None, started, warn }.in_foreground(Preserved::default())
}

/// A container on its way from its creation.
struct Run<'r> {
    options: &'r CreateOptions,
    after: Option<After<'r>>,
    started: &'r dyn Fn(),
    warn: fn(&str),
}

impl Run<'_> {
    fn warn_all(&self, words: Vec<String>) {
        words.iter().for_each(|words| (self.warn)(words));
    }

    fn start_error(&self, why: String) -> ContainerError {
        ContainerError::Start { id: self.options.id.as_str().to_owned(), why }
    }

    fn order(&self, order: Order) -> Result<(), ContainerError> {
        let sandbox = self.options.root.sandbox(&self.options.id)?;
        control::order(&sandbox, order).map(drop).map_err(|error| self.start_error(error.to_string()))
    }

    fn delete(&self) -> Result<(), ContainerError> {
        self.warn_all(end::delete(&self.options.root, &self.options.id, true)?);
        Ok(())
    }

    /// Whatever must be so before it is started: with a command to come only what comes in by exec runs then.
    fn before_start(&self, created: &Created) -> Result<(), ContainerError> {
        let (root, id) = (&self.options.root, &self.options.id);
        if self.after.is_some() {
            self.order(Order::RestAtStart)?;
        }
        end::run_inside(root, id, &created.record, &created.state)
    }

    /// Runs the command in the container, which rests, and goes on afterwards.
    fn run_after(&self) -> Result<(), ContainerError> {
        let (root, id) = (&self.options.root, &self.options.id);
        let Some(after) = self.after else { return Ok(()) };
        match after(root, id) {
            Ok(0) => self.order(Order::GoOn),
            Ok(code) => Err(ContainerError::After { id: id.as_str().to_owned(), code }),
            Err(why) => Err(self.start_error(why)),
        }
    }

    fn in_foreground(&self, preserved: Preserved) -> Result<u8, ContainerError> {
        let failed = |source| ContainerError::Create {
            id: self.options.id.as_str().to_owned(),
            what: "collecting signals",
            source,
        };
        // Those that come while it is made wait.
        let signals = SignalFd::new(FORWARDED).map_err(failed)?;
        self.attended(begin(self.options, preserved, false)?, signals)
    }

    fn detached(&self, mut created: Created) -> Result<u8, ContainerError> {
        let (root, id) = (&self.options.root, &self.options.id);
        let start = || end::start(root, id).map(|words| self.warn_all(words));
        let mut result = Ok(());
        if self.after.is_some() {
            // Until it has gone on it ends with this process.
            result = self.order(Order::RestAtStart).and_then(|()| start()).and_then(|()| self.run_after());
        }
        let released = result.and_then(|()| created.release());
        // Its lock is the sandbox's alone from here on: who sees it free knows that the sandbox has ended.
        drop(created);
        let result = released.and_then(|()| if self.after.is_none() { start() } else { Ok(()) });
        if let Err(error) = result {
            self.delete()?;
            return Err(error);
        }
        Ok(0)
    }

    fn attended(&self, created: Created, signals: SignalFd) -> Result<u8, ContainerError> {
        let (root, id) = (&self.options.root, &self.options.id);
        let starting = root.lock_start(id)?;
        if let Err(error) = self.before_start(&created) {
            drop(created);
            self.delete()?;
            return Err(error);
        }
        let terminal = created.owns_terminal.then(|| Terminal::new(io::stdin().as_fd())).flatten();
        // It is the command's first.
        let own = terminal.as_ref().filter(|_| self.after.is_none());
        own.into_iter().for_each(Terminal::set_raw);
        let again = created.owns_terminal.then(|| Terminal::new(io::stdin().as_fd())).flatten();
        let _ = control::send(created.channel.get_ref(), &Order::Start);
        drop(starting);
        let (record, state) = (created.record, created.state);
        let mut front = Front::new(created.vmm, created.channel, signals, terminal);
        let mut outcome = Ok(());
        let started = || {
            self.warn_all(end::poststart(&record, &state));
            outcome = self.run_after();
            if outcome.is_err() {
                // It has ended where it cannot be ended.
                let _ = end::kill(root, id, libc::SIGKILL, true);
            } else if self.after.is_some() {
                again.iter().for_each(Terminal::set_raw);
            }
            (self.started)();
        };
        let ended = front.wait(id, |_| Ok(()), started);
        front.close();
        drop(created.claim);
        self.delete()?;
        match ended {
            // It was not the command's fault.
            Err(error @ FrontError::Failed { .. }) => Err(error.into()),
            ended => outcome.and(Ok(ended?)),
        }
    }
}
