//! The leash of an exec'd process: stands for it on the host once `dormouse exec --detach` has gone.
//!
//! Like the container's own ([`vmm::leash`]) it lies in the container's network namespace and control groups, holds no
//! capability and no descriptor but its connection, passes on signals, and ends as the process does. It is made before
//! the process is asked for, so that a failure to make it is known by then.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use vmm::exec_relay::ExecReport;
use vmm::process::{self, SignalFd};

use super::connection::{Connection, Said};
use crate::cgroup;

/// From the leash: it has reached its place. Any other byte begins the reason why it has not.
const READY: u8 = b'R';
/// To the leash: the process is its own from now on.
const GO: u8 = b'G';

/// A leash that waits to be let go.
#[derive(Debug)]
pub(super) struct ExecLeash {
    pid: i32,
    line: UnixStream,
    _companion: Option<OwnedFd>,
}

/// The namespaces and control groups that a leash enters.
pub(super) struct Placement<'a> {
    /// A process that is in them.
    pub container: Option<i32>,
    /// Groups below those.
    pub subgroups: &'a [PathBuf],
    /// The descriptor that makes it a companion of the container's leash ([`Companions`](vmm::companions::Companions)).
    pub companion: Option<OwnedFd>,
}

/// Makes the leash of the process at the other end of the connection. `console`: the process's terminal; `title`: the
/// words of its title. Only before any thread is started. The caller is a companion as well until it ends.
pub(super) fn start(
    connection: &Connection,
    console: Option<BorrowedFd<'_>>,
    placement: Placement<'_>,
    title: &[Vec<u8>],
) -> io::Result<ExecLeash> {
    let (ours, theirs) = UnixStream::pair()?;
    let (socket, console) =
        (connection.descriptor()?, console.map(|fd| fd.try_clone_to_owned()).transpose()?);
    match process::fork()? {
        Some(pid) => Ok(ExecLeash { pid, line: ours, _companion: placement.companion }),
        None => {
            drop(ours);
            process::set_title(title);
            live(socket, theirs, console, placement)
        }
    }
}

impl ExecLeash {
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits until the leash is in its place; the error says why it is not.
    pub(super) fn is_ready(&mut self) -> Result<(), String> {
        let mut byte = [0];
        match self.line.read(&mut byte) {
            Ok(1) if byte == [READY] => Ok(()),
            _ => {
                let mut why = vec![byte[0]];
                let _ = self.line.read_to_end(&mut why);
                Err(String::from_utf8_lossy(&why).trim_matches('\0').to_owned())
            }
        }
    }

    /// Leaves the process to it, with the bytes that were received already.
    pub(super) fn release(mut self, connection: &Connection) {
        let _ = self.line.write_all(&[&[GO], connection.unread()].concat());
    }

    /// Ends the leash: there is no process for it.
    pub(super) fn end(self) {
        drop(self.line);
        process::end_children();
    }
}

/// The main function of the leash.
fn live(socket: OwnedFd, line: UnixStream, console: Option<OwnedFd>, placement: Placement<'_>) -> ! {
    process::set_name(c"dormouse-leash");
    process::leave_session();
    if let Err(why) = settle(console.as_ref(), &placement) {
        let _ = (&line).write_all(why.as_bytes());
        process::exit_now(1);
    }
    // SAFETY: this process was just forked; what its parent's values own is not used here any more, and they are never
    // dropped, since this function does not return.
    #[allow(unsafe_code)]
    let kept = unsafe { process::keep_some([Some(socket), Some(line.into()), console, placement.companion]) };
    let Ok([Some(socket), Some(line), console, _companion]) = kept else { process::exit_now(1) };
    let (socket, mut line) = (UnixStream::from(socket), UnixStream::from(line));
    process::close_streams();
    let is_passed_on = |signal: &i32| !matches!(*signal, libc::SIGKILL | libc::SIGSTOP | libc::SIGCONT);
    let all: Vec<i32> = (1..=vmm::signals::SIGNAL_MAX).filter(is_passed_on).collect();
    let Ok(signals) = SignalFd::new(&all) else { process::exit_now(1) };
    process::drop_privileges();
    let mut go = Vec::new();
    if line.write_all(&[READY]).is_err() || line.read_to_end(&mut go).is_err() || go.first() != Some(&GO) {
        process::exit_now(1);
    }
    drop(line);
    serve(Connection::resumed(socket, go.split_off(1)), &signals, console.as_ref())
}

/// Enters the container's namespaces and control groups.
fn settle(console: Option<&OwnedFd>, placement: &Placement<'_>) -> Result<(), String> {
    if let Some(console) = console {
        process::own_terminal(console).map_err(|error| format!("its leash gets no terminal: {error}"))?;
    }
    let no_group = |error| format!("its leash cannot join the container's control groups: {error}");
    // Other users may not do this, and have no such container.
    if let Some(pid) = placement.container.filter(|_| process::effective_user() == 0) {
        cgroup::join_those_of(pid).map_err(no_group)?;
        process::enter_network_of(pid)
            .map_err(|error| format!("its leash cannot enter the container's network namespace: {error}"))?;
    }
    cgroup::enter(placement.subgroups).map_err(no_group)
}

fn serve(mut connection: Connection, signals: &SignalFd, console: Option<&OwnedFd>) -> ! {
    loop {
        while let Some(said) = connection.next() {
            match said {
                Said::Report(ExecReport::Exited { status }) => process::end_as(status),
                Said::Report(_) => {}
                // The sandbox is gone, and the process with it.
                Said::Gone | Said::Refused(_) => process::end_as(libc::SIGKILL),
            }
        }
        let [_, signalled] = process::wait_readable([connection.as_raw_fd(), signals.as_raw_fd()], -1);
        while signalled && let Some(arrived) = signals.next() {
            match (arrived.signal, console) {
                (libc::SIGWINCH, Some(console)) if arrived.from_kernel => {
                    connection.resize(process::terminal_size(std::os::fd::AsFd::as_fd(console)));
                }
                // The terminal hangs up: the sandbox's kernel sees that by itself.
                _ if arrived.from_kernel => {}
                (signal, _) => connection.signal(signal, false),
            }
        }
    }
}
