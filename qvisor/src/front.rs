//! The front end of `dormouse do`: a small parent that owns the terminal, forwards signals and cleans up.
//!
//! Three processes belong to a sandbox: this one, the VMM (which dies with it), and a watcher that does nothing but
//! wait for this one to end; should it be killed, the watcher restores the terminal and removes the directories in
//! its stead. If the watcher is killed, this process cleans up as always; if both are, the next start does.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::cli::log;
use crate::control::{self, Order, Report};
use crate::footprint;
use crate::jail;
use crate::oci::cgroup::{self, Cgroups};
use crate::process::{self, SignalFd, Terminal};
use crate::state::{Claim, Id, OCI_VERSION, OciState, Root, StateError};
use crate::status::Status;
use crate::vmm::{self, Inherited, Plan, Tree};

/// Signals that a front end passes on, and the news of its children.
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

/// Why a sandbox could not be run.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot start sandbox {id}: {what} failed: {source}; check the limits of this user")]
    Start { id: String, what: &'static str, source: io::Error },
    #[error("{message}")]
    Failed { message: String, code: Option<u8> },
    #[error("cannot go on with sandbox {id}: its VMM was killed by signal {signal}; see the host's log")]
    Killed { id: String, signal: i32 },
    #[error(
        "cannot go on with sandbox {id}: its VMM made a system call that its filter forbids; see the host's audit log for \
         the call, and report it"
    )]
    Forbidden { id: String },
    #[error("cannot go on with sandbox {id}: its VMM ended without a word; see the host's log")]
    Silent { id: String },
}

/// Where a sandbox keeps what it needs on the host.
struct Directories {
    state: Claim,
    layers: Claim,
    cgroups: Vec<PathBuf>,
}

impl Directories {
    /// Called once the VMM has ended.
    fn remove(&self) {
        // Stubs may be on their way out still. A group that does not go is left to the next start only if the state,
        // which names it, stays as well; it goes all the same, since whoever takes 5 s to die is stuck in the host.
        let _ = cgroup::remove(&self.cgroups);
        // The layers first: as long as the state exists, so does the sandbox for others.
        for left in [&self.layers, &self.state].into_iter().filter_map(|claim| claim.remove().err()) {
            warn(&left);
        }
    }
}

fn warn(left: &StateError) {
    log::write(log::Level::Warning, &left.to_string());
}

/// Runs a sandbox to its end; result: the exit code.
pub fn run(id: &Id, state_root: &Root, layer_root: &Root, mut plan: Plan) -> Result<u8, FrontError> {
    let state = state_root.claim(id)?;
    let layers = match layer_root.claim(id) {
        Ok(layers) => layers,
        Err(error) => {
            let _ = state.remove();
            return Err(error.into());
        }
    };
    state.left().iter().chain(layers.left()).for_each(warn);
    plan.cgroups = make_groups(id, &plan);
    let directories = Directories { state, layers, cgroups: plan.cgroups.directories().to_vec() };
    // Should nobody be left to remove the groups, the next start does.
    let _ = cgroup::write_list(directories.state.path(), &directories.cgroups);
    if let Tree::CopyOnWrite { layer, .. } = &mut plan.tree {
        *layer = directories.layers.path().to_owned();
    }
    let result = start(id, &directories, plan).map_err(|(what, source)| {
        directories.remove();
        FrontError::Start { id: id.as_str().to_owned(), what, source }
    });
    let (mut front, _leash) = result?;
    let end = front.wait(id, || write_running(id, &directories));
    front.terminal.iter().for_each(Terminal::restore);
    directories.remove();
    front.close();
    end
}

/// Control groups that bound the sandbox, where this user may make some; else a limit of processes stands in.
fn make_groups(id: &Id, plan: &Plan) -> Cgroups {
    let Some(bounds) = &plan.bounds else { return Cgroups::default() };
    // Of this front end alone: sandboxes of different roots may have one name.
    let name = format!("dormouse-{}.{}", id.as_str(), process::id());
    let memory_bytes = plan.memory_bytes.saturating_add(bounds.ledger_bytes());
    Cgroups::for_command(&name, &bounds.resources, memory_bytes, plan.cpus).unwrap_or_else(|error| {
        if plan.boot.log_level >= vmm::LOG_INFO {
            eprintln!("dormouse: no control groups bound sandbox {}: {error}", id.as_str());
        }
        Cgroups::default()
    })
}

/// The front end's side of a running sandbox.
pub(crate) struct Front {
    vmm: i32,
    channel: BufReader<UnixStream>,
    signals: SignalFd,
    terminal: Option<Terminal>,
    status: Option<i32>,
}

type Failed = (&'static str, io::Error);

/// Starts the VMM and the watcher; result: with the end that the watcher waits for.
fn start(id: &Id, directories: &Directories, plan: Plan) -> Result<(Front, OwnedFd), Failed> {
    let bundle = match &plan.tree {
        Tree::CopyOnWrite { root, .. } => root.clone(),
        Tree::Bundle(bundle) => bundle.state.bundle.clone(),
    };
    let creating = state_of(id, &bundle, process::id());
    directories.state.write_state(&creating).map_err(|e| ("writing its state", e))?;
    let process = plan.boot.process_records();
    directories.state.write_process(&process).map_err(|e| ("writing its process", e))?;
    let listener =
        control::listen(directories.state.directory()).map_err(|e| ("making its control socket", e))?;
    let terminal = plan.terminal.then(|| Terminal::new(io::stdin().as_fd())).flatten();
    let (ours, theirs) = UnixStream::pair().map_err(|e| ("making a channel", e))?;
    let signals = SignalFd::new(FORWARDED).map_err(|e| ("collecting signals", e))?;
    let parent = process::id();
    // Stubs that outlive the VMM for a moment are ours to wait for.
    process::adopt_orphans();
    let Some(vmm) = process::fork().map_err(|e| ("starting its VMM", e))? else {
        drop(ours);
        vmm::main(plan, Inherited { channel: theirs, listener, lock: None, console: None }, parent)
    };
    drop((theirs, listener));
    // Made after the fork, so that only this process holds the writing end.
    let started = process::pidfd(vmm).and_then(|pidfd| Ok((pidfd, io::pipe()?)));
    let started = started.and_then(|(pidfd, (reader, writer))| match process::fork()? {
        None => {
            drop((writer, ours));
            watch(reader, &pidfd, terminal.as_ref(), directories)
        }
        Some(_watcher) => Ok((writer, ours)),
    });
    let (leash, ours) = started.map_err(|e| ("starting its watcher", e))?;
    let _ = directories.state.write_state(&state_of(id, &bundle, vmm));
    drop(plan);
    if let Some(terminal) = &terminal {
        terminal.set_raw();
    }
    let channel = BufReader::with_capacity(512, ours);
    Ok((Front::new(vmm, channel, signals, terminal), leash.into()))
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

    /// Forwards signals until the VMM has ended.
    pub(crate) fn wait(&mut self, id: &Id, mut started: impl FnMut()) -> Result<u8, FrontError> {
        let mut report = None;
        let mut channel = self.channel.get_ref().as_raw_fd();
        while self.status.is_none() {
            let [from_vmm, signalled] = process::wait_readable([channel, self.signals.as_raw_fd()], -1);
            if from_vmm {
                match self.report() {
                    Some(Report::Started) => {
                        started();
                        footprint::trim();
                    }
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

    fn report(&mut self) -> Option<Report> {
        let mut line = Vec::new();
        match self.channel.read_until(b'\n', &mut line) {
            Ok(1..) => serde_json::from_slice(&line).ok(),
            _ => None,
        }
    }

    fn handle(&mut self, arrived: process::Arrived) {
        match arrived.signal {
            libc::SIGCHLD => process::reap_ended(|pid, status| {
                if pid == self.vmm {
                    self.status = Some(status);
                }
            }),
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

    /// The terminal is as it was found, and no child is left.
    pub(crate) fn close(&self) {
        self.terminal.iter().for_each(Terminal::restore);
        // The watcher, the leash, and stubs that are still on their way out.
        process::end_children();
    }
}

fn write_running(id: &Id, directories: &Directories) {
    if let Some(known) = directories.state.state().filter(|state| state.id == id.as_str()) {
        let _ = directories.state.write_state(&OciState { status: Status::Running, ..known });
    }
}

fn state_of(id: &Id, bundle: &Path, pid: i32) -> OciState {
    OciState {
        oci_version: OCI_VERSION.into(),
        id: id.as_str().into(),
        status: Status::Creating,
        pid,
        bundle: bundle.to_owned(),
        annotations: std::collections::BTreeMap::new(),
        sandbox_state: None,
        hibernate_error: None,
    }
}

/// The watcher: waits until the front end has ended, then does what it can no longer do.
fn watch(
    mut leash: io::PipeReader,
    vmm: &OwnedFd,
    terminal: Option<&Terminal>,
    directories: &Directories,
) -> ! {
    process::set_name(c"dormouse-watch");
    process::leave_session();
    footprint::trim();
    let mut byte = [0];
    let _ = leash.read(&mut byte);
    terminal.iter().for_each(|terminal| terminal.restore());
    process::signal(vmm.as_fd(), libc::SIGKILL);
    // Its mounts and files are closed once it has ended.
    let _ = process::wait_readable([vmm.as_raw_fd()], 10_000);
    directories.remove();
    process::exit_now(0)
}
