//! The parent of a VMM that runs in the foreground: owns the terminal and forwards signals until the VMM has ended.

use std::io::{BufRead, BufReader};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use vmm::footprint;
use vmm::jail;
use vmm::process::{self, SignalFd, Terminal};

use super::error::FrontError;
use crate::control::{self, Order, Report};
use crate::state::Id;

/// Signals that a front end passes on, and `SIGCHLD`.
pub(crate) const FORWARDED: &[i32] = &[
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGCHLD,
];

/// Signals that end a sandbox which does not go on yet.
pub(crate) const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// How long a sandbox may take to end whose command was ended with it, and has the exit code of such.
pub(crate) fn patience_ms<E>(result: &Result<u8, E>) -> i32 {
    const KILLED: u8 = 128 + 9;
    if matches!(result, Ok(KILLED)) { 200 } else { 0 }
}

/// The VMM's next report.
pub(crate) fn report(channel: &mut impl BufRead) -> Option<Report> {
    let mut line = Vec::new();
    match channel.read_until(b'\n', &mut line) {
        Ok(1..) => serde_json::from_slice(&line).ok(),
        _ => None,
    }
}

/// The last words of a sandbox that has ended before a command beside it. `failed`: those for a failure.
pub(crate) fn why_it_ended(
    channel: &mut impl BufRead,
    id: &Id,
    failed: impl FnOnce(String, Option<u8>) -> String,
) -> Option<String> {
    loop {
        match report(channel)? {
            Report::Failed { message, code } => return Some(failed(message, code)),
            Report::Exited { .. } => {
                let id = id.as_str();
                return Some(format!("the first process of clone {id} has ended, and the command with it"));
            }
            _ => {}
        }
    }
}

/// The front end's side of a running sandbox.
pub(crate) struct Front {
    vmm: i32,
    channel: BufReader<UnixStream>,
    signals: SignalFd,
    pub(super) terminal: Option<Terminal>,
    status: Option<i32>,
}

impl Front {
    /// Of a VMM that this process has forked. The terminal is in raw mode already.
    pub(crate) fn new(
        vmm: i32,
        channel: BufReader<UnixStream>,
        signals: SignalFd,
        terminal: Option<Terminal>,
    ) -> Self {
        Self { vmm, channel, signals, terminal, status: None }
    }

    /// Waits until the sandbox, which begins with a snapshot, goes on. Signals that come meanwhile end it.
    pub(super) fn wait_for_start(&mut self, id: &Id) -> Result<(), FrontError> {
        let channel = self.channel.get_ref().as_raw_fd();
        loop {
            let [told, signalled] = self.wait_for_news(channel);
            match told.then(|| self.report()) {
                Some(Some(Report::Started)) => {
                    footprint::trim();
                    return Ok(());
                }
                Some(Some(Report::Failed { message, code })) => {
                    return Err(FrontError::Failed { message, code });
                }
                Some(None) => return Err(FrontError::Silent { id: id.as_str().to_owned() }),
                _ => {}
            }
            while signalled && let Some(arrived) = self.signals.next() {
                if ENDING.contains(&arrived.signal) {
                    let id = id.as_str().to_owned();
                    return Err(FrontError::Killed { id, signal: arrived.signal });
                }
            }
        }
    }

    /// See [`why_it_ended`].
    pub(super) fn why_it_ended(&mut self, id: &Id) -> Option<String> {
        why_it_ended(&mut self.channel, id, |message, _| message)
    }

    /// Forwards signals until the VMM has ended. `prepared` is called with the leash's pid, if the VMM makes one on its way,
    /// and `started` once the sandbox runs: each once at most, whatever the VMM says.
    pub(crate) fn wait(
        &mut self,
        id: &Id,
        prepared: impl FnOnce(i32) -> Result<(), FrontError>,
        started: impl FnOnce(),
    ) -> Result<u8, FrontError> {
        let (mut prepared, mut started) = (Some(prepared), Some(started));
        let mut failure = None;
        let mut report = None;
        let mut channel = self.channel.get_ref().as_raw_fd();
        while self.status.is_none() {
            let [from_vmm, signalled] = self.wait_for_news(channel);
            if from_vmm {
                match self.report() {
                    Some(Report::Started) => {
                        started.take().into_iter().for_each(|started| started());
                        // Whatever collected signals meanwhile may have taken the news of its end.
                        self.look_for_end();
                        footprint::trim();
                    }
                    Some(Report::Prepared { pid }) => match prepared.take().map(|prepared| prepared(pid)) {
                        Some(Ok(())) => self.send(Order::Proceed),
                        Some(Err(error)) => {
                            failure = Some(error);
                            // The VMM, which waits for an order, ends without one.
                            let _ = self.channel.get_ref().shutdown(Shutdown::Both);
                        }
                        None => {}
                    },
                    Some(last) => report = Some(last),
                    None => channel = -1,
                }
            }
            while signalled && let Some(arrived) = self.signals.next() {
                self.handle(arrived);
            }
        }
        while !matches!(report, Some(Report::Exited { .. } | Report::Failed { .. })) {
            match self.report() {
                Some(next) => report = Some(next),
                None => break,
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        let id = || id.as_str().to_owned();
        match (report, self.status) {
            (Some(Report::Exited { status }), _) => Ok(process::exit_code(status)),
            (Some(Report::Failed { message, code }), _) => Err(FrontError::Failed { message, code }),
            (_, Some(status)) if jail::has_ended_by_filter(status) => Err(FrontError::Forbidden { id: id() }),
            (_, Some(status)) if libc::WIFSIGNALED(status) => {
                Err(FrontError::Killed { id: id(), signal: libc::WTERMSIG(status) })
            }
            _ => Err(FrontError::Silent { id: id() }),
        }
    }

    /// Waits for the VMM to say something over its channel (-1: it says nothing any more), or for a signal; result: which.
    fn wait_for_news(&self, channel: RawFd) -> [bool; 2] {
        // Two reports may have come at once.
        let has_line = self.channel.buffer().contains(&b'\n');
        let patience_ms = if has_line { 0 } else { -1 };
        let [told, signalled] = process::wait_readable([channel, self.signals.as_raw_fd()], patience_ms);
        [told || has_line, signalled]
    }

    fn report(&mut self) -> Option<Report> {
        report(&mut self.channel)
    }

    fn look_for_end(&mut self) {
        process::reap_ended(|pid, status| {
            if pid == self.vmm {
                self.status = Some(status);
            }
        });
    }

    fn handle(&mut self, arrived: process::Arrived) {
        match arrived.signal {
            libc::SIGCHLD => self.look_for_end(),
            libc::SIGWINCH => self.send_size(),
            signal => {
                self.send(Order::Kill { signal, foreground: arrived.from_kernel, all: false });
                if signal == libc::SIGTSTP {
                    self.stop();
                }
            }
        }
    }

    /// Stops as the program inside does, so that the shell takes over; goes on when it is continued.
    fn stop(&self) {
        self.terminal.iter().for_each(Terminal::restore);
        process::stop_self();
        self.terminal.iter().for_each(Terminal::set_raw);
        self.send_size();
    }

    fn send_size(&self) {
        if let Some(terminal) = &self.terminal {
            let (rows, columns) = terminal.size();
            self.send(Order::Winsize { rows, columns });
        }
    }

    fn send(&self, order: Order) {
        let _ = control::send(self.channel.get_ref(), &order);
    }

    /// Restores the terminal, and ends the remaining children.
    pub(crate) fn close(&self) {
        self.terminal.iter().for_each(Terminal::restore);
        // The watcher, the leash, and stubs that are still on their way out.
        process::end_children();
    }
}
