//! `dormouse exec`: a further process in a running sandbox.
//!
//! The command connects to the sandbox's control socket and sends a description of the process with the process's
//! streams, which the sandbox reads and writes by itself from then on. The connection stays open for the process's
//! life: signals and the report of its end go over it. In the foreground the command keeps it; detached, a [`leash`]
//! does, which the pid file names.

mod connection;
mod hook;
mod leash;
mod options;
pub(crate) mod streams;

use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use vmm::boot::BootSpec;
use vmm::companions::Companions;
use vmm::directory::Directory;
use vmm::exec_relay::ExecReport;
use vmm::process::{self, SignalFd, Terminal};

use crate::cgroup;
use crate::control::{self, Order};
use crate::front::foreground::FORWARDED;
use crate::preserved::Preserved;
use crate::state::OciState;
use crate::status::Status;
use crate::words;
use connection::{Connection, Said};
pub use hook::run_hook;
use leash::Placement;
pub use options::{ExecError, ExecOptions};
use streams::Streams;

/// Exit code of a command whose sandbox ended first: as if the process had been killed.
const EXIT_KILLED: u8 = 128 + 9;

/// Runs a process, with the caller's further descriptors; result: the exit code.
pub fn run(options: &ExecOptions, preserved: Preserved) -> Result<u8, ExecError> {
    let state = options.root.state(&options.id)?;
    if state.status == Status::Stopped {
        return Err(options.refused(words::EXEC_IN_STOPPED));
    }
    let streams = Streams::open(options, preserved)?;
    let sandbox = options.root.sandbox(&options.id)?;
    let socket = control::connect(&sandbox).map_err(|error| {
        options.refused(format!("its control socket cannot be reached: {error}; it may just have ended"))
    })?;
    let connection = Connection::new(socket);
    let subgroups =
        cgroup::find_subgroups(state.pid, &options.subgroups).map_err(|why| options.refused(why))?;
    if options.detach {
        detached(options, &sandbox, &state, &subgroups, streams, connection)
    } else {
        cgroup::enter(&subgroups).map_err(|source| options.system("entering the control group", source))?;
        attended(options, streams, connection)
    }
}

/// Sends the request; errors in it come back as an answer.
fn ask(options: &ExecOptions, streams: &Streams, connection: &Connection) -> Result<(), ExecError> {
    let winsize = streams.size().or(options.process.winsize).filter(|_| options.terminal);
    let process = options.process.clone();
    let spec = BootSpec { streams: streams.records(), winsize, hold: false, make_cwd: false, ..process };
    let records = spec.process_records();
    let too_long = || {
        let most = abi::boot::EXEC_RECORDS_MAX;
        options.refused(format!(
            "arguments and environment take {} bytes, and {most} are possible",
            records.len()
        ))
    };
    let len = u32::try_from(records.len()).ok().filter(|len| u64::from(*len) <= abi::boot::EXEC_RECORDS_MAX);
    let order = Order::Exec {
        len: len.ok_or_else(too_long)?,
        paused: options.ignore_paused,
        hook: false,
        probe: options.probe,
    };
    connection
        .ask(order, &records, &streams.descriptors())
        .map_err(|source| options.system("sending it its descriptors", source))
}

/// Forwards signals until the process has ended.
fn attended(options: &ExecOptions, streams: Streams, mut connection: Connection) -> Result<u8, ExecError> {
    let signals = SignalFd::new(FORWARDED).map_err(|source| options.system("collecting signals", source))?;
    let terminal = streams.terminal();
    let watcher = terminal.as_ref().map(watch).transpose();
    let watcher = watcher.map_err(|source| options.system("starting its watcher", source))?;
    terminal.iter().for_each(Terminal::set_raw);
    let end = ask(options, &streams, &connection).and_then(|()| {
        // This process closes its copies, so that readers see the end of a stream.
        drop(streams);
        attend(options, &mut connection, &signals, terminal.as_ref())
    });
    terminal.iter().for_each(Terminal::restore);
    if watcher.is_some() {
        // Ends the watcher before another process sets the terminal.
        process::end_children();
    }
    end
}

/// Starts a process that restores the terminal should this one be killed; result: the pipe whose closing tells it. Only
/// before any thread is started.
fn watch(terminal: &Terminal) -> io::Result<io::PipeWriter> {
    let (mut reader, writer) = io::pipe()?;
    if process::fork()?.is_some() {
        return Ok(writer);
    }
    drop(writer);
    process::set_name(c"dormouse-watch");
    process::leave_session();
    let _ = io::Read::read(&mut reader, &mut [0]);
    terminal.restore();
    process::exit_now(0)
}

fn attend(
    options: &ExecOptions,
    connection: &mut Connection,
    signals: &SignalFd,
    terminal: Option<&Terminal>,
) -> Result<u8, ExecError> {
    let mut has_started = false;
    loop {
        let [told, signalled] = process::wait_readable([connection.as_raw_fd(), signals.as_raw_fd()], -1);
        while told && let Some(said) = connection.next() {
            match said {
                Said::Report(ExecReport::Started { .. }) => {
                    has_started = true;
                    options.write_pid(process::id())?;
                }
                Said::Report(ExecReport::Failed { message, code }) => {
                    return Err(options.failed(message, code));
                }
                Said::Report(ExecReport::Exited { status }) => return Ok(process::exit_code(status)),
                Said::Refused(why) => return Err(options.refused(why)),
                Said::Gone if has_started => return Ok(EXIT_KILLED),
                Said::Gone => return Err(options.gone()),
            }
        }
        while signalled && let Some(arrived) = signals.next() {
            match arrived.signal {
                libc::SIGCHLD => {}
                libc::SIGWINCH => send_size(connection, terminal),
                signal => {
                    connection.signal(signal, arrived.from_kernel);
                    if signal == libc::SIGTSTP {
                        // Stops as the process inside does, so that the shell takes over.
                        terminal.iter().for_each(|terminal| terminal.restore());
                        process::stop_self();
                        terminal.iter().for_each(|terminal| terminal.set_raw());
                        send_size(connection, terminal);
                    }
                }
            }
        }
    }
}

fn send_size(connection: &Connection, terminal: Option<&Terminal>) {
    if let Some(terminal) = terminal {
        connection.resize(terminal.size());
    }
}

/// Leaves the process to a leash once its program runs.
fn detached(
    options: &ExecOptions,
    sandbox: &Directory,
    state: &OciState,
    subgroups: &[PathBuf],
    streams: Streams,
    mut connection: Connection,
) -> Result<u8, ExecError> {
    // A sandbox that is no container has no place of its own on the host.
    let container = options.root.is_container(&options.id).then_some(state.pid);
    let placement = Placement { container, subgroups, companion: Companions::join(sandbox) };
    let started = leash::start(&connection, streams.console(), placement, &options.process.args);
    let mut leash = started.map_err(|source| options.system("starting its leash", source))?;
    let outcome = leash.is_ready().map_err(|why| options.refused(why)).and_then(|()| {
        ask(options, &streams, &connection)?;
        drop(streams);
        loop {
            let _ = process::wait_readable([connection.as_raw_fd()], -1);
            match connection.next() {
                Some(Said::Report(ExecReport::Started { .. })) => return options.write_pid(leash.pid()),
                Some(Said::Report(ExecReport::Failed { message, code })) => {
                    return Err(options.failed(message, code));
                }
                Some(Said::Refused(why)) => return Err(options.refused(why)),
                Some(Said::Gone | Said::Report(ExecReport::Exited { .. })) => return Err(options.gone()),
                None => {}
            }
        }
    });
    match outcome {
        Ok(()) => {
            leash.release(&connection);
            Ok(0)
        }
        Err(error) => {
            leash.end();
            Err(error)
        }
    }
}
