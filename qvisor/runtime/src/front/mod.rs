//! The front end of `dormouse do`: a small parent that owns the terminal, forwards signals and cleans up.
//!
//! Three processes belong to a sandbox: this one, the VMM (which dies with it), and a watcher that does nothing but
//! wait for this one to end; should it be killed, the watcher restores the terminal and removes the directories in
//! its stead. If the watcher is killed, this process cleans up as always; if both are, the next start does.

mod error;
pub mod foreground;
mod options;
mod plan;
mod record;

use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vmm::directory::replace_file;
use vmm::footprint;
use vmm::process::{self, SignalFd, Terminal};

pub use self::error::FrontError;
use self::foreground::{FORWARDED, Front, patience_ms};
pub use self::options::{DoError, DoOptions, FromOptions};
pub use self::record::CommandRecord;
use crate::cgroup::{self, Cgroups};
use crate::control;
use crate::preserved::Preserved;
use crate::snapshot::comparing::Compared;
use crate::state::{Claim, Id, OCI_VERSION, OciState, Root, StateError};
use crate::status::Status;
use crate::stderr_log::LOG_INFO;
use crate::vmm_process;
use crate::vmm_process::plan::{Inherited, Plan, Tree};

/// The directories and control groups of a sandbox on the host.
struct Directories {
    state: Claim,
    layers: Claim,
    cgroups: Vec<PathBuf>,
    /// Called with a sentence for each thing that could not be removed.
    warn: fn(&str),
}

impl Directories {
    /// Called once the VMM has ended.
    fn remove(&self) {
        // Stubs may still be on their way out. A group that cannot be removed would be left to the next start only if
        // the state, which names it, stayed as well. The state is removed all the same: a process that takes 5 s to die
        // is stuck in the host.
        let _ = cgroup::remove(&self.cgroups);
        // The layers first: as long as the state exists, so does the sandbox for others.
        for left in [&self.layers, &self.state].into_iter().filter_map(|claim| claim.remove().err()) {
            (self.warn)(&left.to_string());
        }
    }
}

/// Runs a sandbox to its end; result: the exit code. `warn` is called with a sentence for each thing that could not be
/// removed.
pub fn run(state_root: &Root, options: DoOptions, warn: fn(&str)) -> Result<u8, DoError> {
    let id = options.id.clone();
    let layer_root = Root::default_layers()?;
    let pid_file = options.pid_file.clone();
    let compared = digest_of(options.compare.as_deref());
    let plan = plan::make(options, state_root, &layer_root)?;
    let process = plan.boot.process_records();
    let mut running = begin(&id, state_root, &layer_root, plan, (&process, compared), warn)?;
    Ok(running.wait(&id, pid_file.as_deref(), &|| {})?)
}

/// The program that ends with a sandbox which begins with a snapshot, and who has the streams.
pub enum Attended<'c, E> {
    /// Its first process, which goes on with the command's streams.
    First,
    /// Its first process, whose streams lead nowhere. This is told once it goes on.
    Apart(&'c dyn Fn()),
    /// One that is run in it, has the streams, and gives the exit code. The first process's own lead nowhere.
    Further(&'c dyn Fn(&Root, &Id) -> Result<u8, E>),
}

impl<E> Attended<'_, E> {
    /// Whether the streams of the first process lead nowhere.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        !matches!(self, Self::First)
    }
}

/// Runs a sandbox that begins with a snapshot of one of `do` until the attended program has ended; result: its exit code. `warn`: as for
/// The digest of the snapshot whose base pages are compared with.
fn digest_of(compared: Option<&Compared>) -> Option<String> {
    compared.map(|compared| compared.digest.clone())
}

/// [`run`].
pub fn run_from<E: From<DoError>>(
    state_root: &Root,
    options: FromOptions,
    attended: &Attended<'_, E>,
    warn: fn(&str),
) -> Result<u8, E> {
    let id = options.id.clone();
    // What it sees files through stays as long as this does.
    let _opened = Arc::clone(&options.opened);
    let layer_root = Root::default_layers().map_err(DoError::from)?;
    let compared = digest_of(options.compare.as_deref());
    let plan = plan::of_snapshot(options, state_root, &layer_root, warn)?;
    let process = plan.boot.process_records();
    let running = begin(&id, state_root, &layer_root, plan, (&process, compared), warn);
    let mut running = running.map_err(DoError::from)?;
    let command = match attended {
        Attended::First => return Ok(running.wait(&id, None, &|| {}).map_err(DoError::from)?),
        Attended::Apart(started) => return Ok(running.wait(&id, None, started).map_err(DoError::from)?),
        Attended::Further(command) => command,
    };
    let started = running.front.wait_for_start(&id);
    let result = started.map_err(|error| DoError::from(error).into()).and_then(|()| {
        write_running(&id, &running.directories);
        command(state_root, &id)
    });
    let has_ended = process::wait_readable([running.vmm.as_raw_fd()], patience_ms(&result))[0];
    process::signal(running.vmm.as_fd(), libc::SIGKILL);
    let _ = process::wait_readable([running.vmm.as_raw_fd()], END_PATIENCE_MS);
    if has_ended && result.is_ok() {
        running.front.why_it_ended(&id).iter().for_each(|words| warn(words));
    }
    running.clean_up();
    result
}

/// How long a VMM may take to end.
const END_PATIENCE_MS: i32 = 10_000;

/// A sandbox whose VMM was started.
struct Running {
    front: Front,
    vmm: OwnedFd,
    directories: Directories,
    /// Its closing tells the watcher.
    _leash: OwnedFd,
}

impl Running {
    /// Waits until it has ended; `started` is told once it goes on.
    fn wait(&mut self, id: &Id, pid_file: Option<&Path>, started: &dyn Fn()) -> Result<u8, FrontError> {
        let directories = &self.directories;
        let end = self.front.wait(
            id,
            |leash| write_pid(id, directories, pid_file, leash),
            || {
                write_running(id, directories);
                started();
            },
        );
        self.clean_up();
        end
    }

    /// Ends what is left of it.
    fn clean_up(&mut self) {
        self.front.terminal.iter().for_each(Terminal::restore);
        self.directories.remove();
        self.front.close();
    }
}

/// Starts a sandbox. `process`: the records of its first process, and the digest of the snapshot whose base its pages are compared with.
fn begin(
    id: &Id,
    state_root: &Root,
    layer_root: &Root,
    mut plan: Plan,
    process: (&[u8], Option<String>),
    warn: fn(&str),
) -> Result<Running, FrontError> {
    let state = state_root.claim(id)?;
    let layers = match layer_root.claim(id) {
        Ok(layers) => layers,
        Err(error) => {
            let _ = state.remove();
            return Err(error.into());
        }
    };
    state.left().iter().chain(layers.left()).for_each(|left: &StateError| warn(&left.to_string()));
    plan.cgroups = make_groups(id, &plan);
    let directories = Directories { state, layers, cgroups: plan.cgroups.directories().to_vec(), warn };
    // Should no process be left to remove the groups, the next start does.
    let _ = cgroup::write_list(directories.state.path(), &directories.cgroups);
    if let Tree::CopyOnWrite { layer, .. } = &mut plan.tree {
        *layer = directories.layers.path().to_owned();
    }
    let result = start(id, &directories, plan, process).map_err(|(what, source)| {
        directories.remove();
        FrontError::Start { id: id.as_str().to_owned(), what, source }
    });
    let (front, vmm, leash) = result?;
    Ok(Running { front, vmm, directories, _leash: leash })
}

/// Control groups that bound the sandbox, where this user may make some; else a limit of processes stands in.
fn make_groups(id: &Id, plan: &Plan) -> Cgroups {
    let Some(bounds) = &plan.bounds else { return Cgroups::default() };
    // The front end's pid makes the name unique: sandboxes of different roots may have one name.
    let name = format!("dormouse-{:.200}.{}", id.as_str(), process::id());
    let memory_bytes = plan.memory_bytes.saturating_add(bounds.ledger_bytes());
    Cgroups::for_command(&name, &bounds.resources, memory_bytes, plan.cpus).unwrap_or_else(|error| {
        if plan.boot.log_level >= LOG_INFO {
            eprintln!("dormouse: no control groups bound sandbox {}: {error}", id.as_str());
        }
        Cgroups::default()
    })
}

type Failed = (&'static str, io::Error);

/// Starts the VMM and the watcher; result: the front end, a descriptor of the VMM, and the end of the pipe whose closing tells the watcher.
fn start(
    id: &Id,
    directories: &Directories,
    mut plan: Plan,
    (process, compared): (&[u8], Option<String>),
) -> Result<(Front, OwnedFd, OwnedFd), Failed> {
    let bundle = match &plan.tree {
        Tree::CopyOnWrite { root, .. } => root.clone(),
        Tree::Bundle(bundle) => bundle.state.bundle.clone(),
    };
    let creating = state_of(id, &bundle, process::id());
    directories.state.write_state(&creating).map_err(|e| ("writing its state", e))?;
    directories.state.write_process(process).map_err(|e| ("writing its process", e))?;
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
        vmm_process::main(
            plan,
            Inherited {
                channel: theirs,
                listener,
                lock: None,
                companions: None,
                console: None,
                preserved: Preserved::default(),
            },
            parent,
        )
    };
    drop((theirs, listener));
    plan.compare = None;
    // The VMM's alone, or nobody would hear that it has told its working set.
    let restore = plan.restore.take();
    let base = compared.or(restore.and_then(|restore| restore.base));
    // Made after the fork, so that only this process holds the writing end.
    let started = process::pidfd(vmm).and_then(|pidfd| Ok((pidfd, io::pipe()?)));
    let started = started.and_then(|(pidfd, (reader, writer))| match process::fork()? {
        None => {
            drop((writer, ours));
            watch(reader, &pidfd, terminal.as_ref(), directories)
        }
        Some(_watcher) => Ok((pidfd, writer, ours)),
    });
    let (pidfd, leash, ours) = started.map_err(|e| ("starting its watcher", e))?;
    let _ = directories.state.write_state(&state_of(id, &bundle, vmm));
    // Without it there is no snapshot.
    let _ =
        CommandRecord::new(&plan, process, vmm, base).map(|record| directories.state.write_command(&record));
    drop(plan);
    if let Some(terminal) = &terminal {
        terminal.set_raw();
    }
    let channel = BufReader::with_capacity(512, ours);
    Ok((Front::new(vmm, channel, signals, terminal), pidfd, leash.into()))
}

/// The leash stands for the sandbox from now on.
fn write_pid(
    id: &Id,
    directories: &Directories,
    pid_file: Option<&Path>,
    pid: i32,
) -> Result<(), FrontError> {
    let Some(path) = pid_file else { return Ok(()) };
    if let Some(known) = directories.state.state().filter(|state| state.id == id.as_str()) {
        let _ = directories.state.write_state(&OciState { pid, ..known });
    }
    replace_file(path, pid.to_string().as_bytes())
        .map_err(|source| FrontError::PidFile { path: path.to_owned(), source })
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

/// The watcher: waits until the front end has ended, then cleans up in its stead.
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
    let _ = process::wait_readable([vmm.as_raw_fd()], END_PATIENCE_MS);
    directories.remove();
    process::exit_now(0)
}
