//! The VMM process of one sandbox: takes what it needs from the host, gives up the rest, runs the kernel.

mod files;
mod supervisor;

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi::boot::Platform;
use abi::hostcall::{EVENT_SIGNAL, REPORT_RUNNING};

use crate::boot::BootSpec;
use crate::control::{self, Order, Report};
use crate::errno::Errno;
use crate::footprint;
use crate::hibernate::{Hibernation, SwapPlan};
use crate::hostcall::events::EventQueue;
use crate::hostcall::host_io::HostIo;
use crate::hostcall::quota::Quota;
use crate::image::ImageFile;
use crate::jail::mitigations::{self, Mitigations};
use crate::jail::{self, JailError, UserNamespace, Users, landlock};
use crate::leash::Leash;
use crate::mounts::{MountError, Volume};
use crate::net::{self, NetError, Network};
use crate::oci::cgroup::Cgroups;
use crate::oci::hooks::{self, HookError};
use crate::oci::{Container, Resources};
use crate::platform::kvm;
use crate::platform::machine::PlatformError;
use crate::process;
use crate::sandbox::{Sandbox, SandboxConfig, SandboxError};
use crate::state::OciState;
use crate::sys;
use crate::watchdog;
use supervisor::Supervisor;
#[cfg(fuzzing)]
pub use supervisor::play;
use swap::SwapFileError;

/// Signals that are the front end's business; the VMM shares its process group, so it ignores them.
const IGNORED: &[i32] = &[
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGWINCH,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    // A file that would get too long is an error of the call.
    libc::SIGXFSZ,
];
/// `BootSpec::log_level` from which on what a sandbox did is summed up at its end.
pub(crate) const LOG_INFO: u32 = 2;
/// `BootSpec::log_level` from which everything is said.
const LOG_DEBUG: u32 = 3;

/// What a sandbox is made of.
#[derive(Debug)]
pub struct Plan {
    pub tree: Tree,
    pub network: Network,
    /// Who the guest's root is on the host.
    pub userns: UserNamespace,
    pub mitigations: Mitigations,
    pub platform: Platform,
    pub memory_bytes: u64,
    pub cpus: u32,
    /// Without mounts and streams, which the VMM fills in.
    pub boot: BootSpec,
    pub swap: SwapPlan,
    /// Made by the front end; joined by the VMM.
    pub cgroups: Cgroups,
    /// What holds a sandbox of the command line, which no configuration bounds.
    pub bounds: Option<Bounds>,
    /// The streams are a terminal that the sandbox drives.
    pub terminal: bool,
}

/// What a sandbox without a bundle is held to on the host.
#[derive(Debug)]
pub struct Bounds {
    /// For its control groups.
    pub resources: Resources,
    /// Bytes that its files on the host may take up.
    pub disk_bytes: u64,
}

impl Bounds {
    /// Memory in which the VMM keeps account of the files, beside what the kernel may use.
    pub(crate) fn ledger_bytes(&self) -> u64 {
        Quota::ledger_bytes(self.disk_bytes)
    }

    /// Most processes and threads on the host.
    fn processes(&self, cpus: u32) -> u64 {
        self.resources.host_tasks(cpus).unwrap_or(u64::MAX)
    }
}

/// What the sandbox's files are.
#[derive(Debug)]
pub enum Tree {
    /// A copy-on-write view of the host's.
    CopyOnWrite {
        /// The directory that becomes `/`; absolute.
        root: PathBuf,
        /// Where its changes go.
        layer: PathBuf,
        volumes: Vec<Volume>,
        /// Directories of the host's that hold sandboxes; the sandbox sees empty ones.
        hidden: Vec<PathBuf>,
    },
    /// A bundle, which makes the sandbox a container: it has a leash, and may outlive its front end.
    Bundle(Box<Bundle>),
}

/// What the VMM of a container needs beside the plan.
#[derive(Debug)]
pub struct Bundle {
    pub container: Container,
    /// Without the pid, which is the leash's.
    pub state: OciState,
}

/// What the VMM inherits from its front end.
#[derive(Debug)]
pub struct Inherited {
    /// To the front end.
    pub channel: UnixStream,
    pub listener: UnixListener,
    /// Of a container's state directory: as long as it is held, the container lives.
    pub lock: Option<OwnedFd>,
    /// The terminal that becomes the standard streams.
    pub console: Option<OwnedFd>,
}

/// Why a sandbox could not start, or broke.
#[derive(Debug, thiserror::Error)]
pub enum VmmError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Network(#[from] NetError),
    #[error(transparent)]
    Jail(#[from] JailError),
    #[error("cannot prepare host files: {0}; is /proc mounted?")]
    HostIo(Errno),
    #[error("cannot hand over stream {fd}: {source}; redirect it to a file, a pipe or a terminal")]
    Stream { fd: i32, source: Errno },
    #[error("cannot start a thread: {0}; raise the limit of processes")]
    Thread(io::Error),
    #[error("cannot run the sandbox: {}", chain(.0))]
    Sandbox(#[from] SandboxError),
    #[error("cannot prepare the sandbox: {0}; run as root, or check the limits of this user")]
    Prepare(io::Error),
    #[error("cannot start the container's leash: {0}; raise the limit of processes")]
    Leash(io::Error),
    #[error("cannot set sysctl {name}: {source}; correct linux.sysctl in config.json")]
    Sysctl { name: String, source: io::Error },
    #[error("cannot set oomScoreAdj to {score}: {source}; leave it out, or run as root")]
    OomScore { score: i32, source: io::Error },
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error(transparent)]
    SwapFile(#[from] SwapFileError),
}

/// The VMM process, from its fork to its end. `parent` is the front end.
pub fn main(mut plan: Plan, inherited: Inherited, parent: i32) -> ! {
    process::set_name(c"dormouse-vmm");
    if !process::die_with_parent(parent) {
        process::exit_now(1);
    }
    process::ignore_signals(IGNORED);
    process::unblock_signals();
    footprint::keep_heap_small();
    let Inherited { channel, listener, lock, console } = inherited;
    let early = || -> io::Result<()> {
        if let Tree::Bundle(_) = &plan.tree {
            process::leave_session();
        }
        plan.cgroups.join()?;
        console.map_or(Ok(()), process::take_terminal)
    };
    let early = early();
    // SAFETY: this process was just forked; what the front end's values own is not used here any more, and they are
    // never dropped, since this function does not return.
    let kept = unsafe { keep(channel, listener, lock) };
    let Ok((channel, listener, _lock)) = kept else { process::exit_now(1) };
    let channel = Arc::new(channel);
    let result = early.map_err(VmmError::Prepare).and_then(|()| run(&plan, &channel, listener, parent));
    // Whatever comes to an end later is reported by the supervisor.
    let Err(error) = result;
    let _ = control::send(&channel, &Report::Failed { message: error.to_string(), code: None });
    process::exit_now(0)
}

/// What stays open of what was inherited.
type Kept = (UnixStream, UnixListener, Option<OwnedFd>);

/// Closes every other descriptor.
///
/// # Safety
/// As [`process::keep_only`].
unsafe fn keep(channel: UnixStream, listener: UnixListener, lock: Option<OwnedFd>) -> io::Result<Kept> {
    // SAFETY: the caller's promise.
    unsafe {
        Ok(match lock {
            Some(lock) => {
                let [channel, listener, lock] = process::keep_only([channel.into(), listener.into(), lock])?;
                (channel.into(), listener.into(), Some(lock))
            }
            None => {
                let [channel, listener] = process::keep_only([channel.into(), listener.into()])?;
                (channel.into(), listener.into(), None)
            }
        })
    }
}

/// Makes the sandbox and runs it. Returns when it could not be made.
fn run(
    plan: &Plan,
    channel: &Arc<UnixStream>,
    listener: UnixListener,
    parent: i32,
) -> Result<std::convert::Infallible, VmmError> {
    let events = Arc::new(EventQueue::new());
    let sink = Arc::clone(&events);
    let hibernation = Hibernation::open(&plan.swap)?;
    let mut users = Users::enter_namespaces(plan.userns)?;
    net::enter(&plan.network)?;
    // Children of ours that share the mount namespace leave the host with us, if that is where they are.
    std::env::set_current_dir("/").map_err(VmmError::Prepare)?;
    let leash = match &plan.tree {
        Tree::Bundle(bundle) => Some(begin_container(bundle, channel)?),
        Tree::CopyOnWrite { .. } => None,
    };
    let proc = jail::proc_directory(&users).map_err(|error| VmmError::HostIo(error.into()))?;
    let io =
        HostIo::with_proc(Arc::new(move |event| sink.post(event)), proc.as_fd()).map_err(VmmError::HostIo)?;
    drop(proc);
    if let Some(bounds) = &plan.bounds {
        let _ = io.quota.set(Quota::new(bounds.disk_bytes));
    }
    let boot = files::prepare(plan, &io, &mut users)?;
    if let (Tree::Bundle(bundle), Some(leash)) = (&plan.tree, &leash) {
        let state = OciState { pid: leash.pid(), ..bundle.state.clone() };
        hooks::run("createContainer", bundle.container.hooks.create_container().as_deref(), &state)?;
    }
    let device = match plan.platform {
        Platform::Kvm => {
            Some(kvm::Device::open().map_err(|error| VmmError::Sandbox(PlatformError::from(error).into()))?)
        }
        Platform::Systrap => None,
    };
    let kernel_file = ImageFile::of_the_kernel().map(Arc::new);
    let ids_are_mapped = users.id_map().is_some();
    // From here on nothing is opened by its path. One thread so far: ids and capabilities are a thread's own, and the
    // stubs' zygote, made below, is to have ours.
    let _ = crate::cpu::host_flags();
    jail::enter(users)?;
    if let Some(bounds) = plan.bounds.as_ref().filter(|_| !plan.cgroups.count_processes()) {
        // Counted in the user namespace of these ids, so only this sandbox's own count (Linux 5.14).
        process::limit_processes(bounds.processes(plan.cpus)).map_err(VmmError::Prepare)?;
    }
    let given_up = mitigations::apply(plan.mitigations);
    // The leash, which a container has, was made outside of any domain.
    let (keeps_files, is_scoped) =
        landlock::restrict(files::given(&io, &boot).map_err(VmmError::HostIo)?, leash.is_none());
    if boot.log_level >= LOG_DEBUG {
        log(LOG_DEBUG, &landlock_in_words(is_scoped, keeps_files), "\n");
        log(LOG_DEBUG, &format!("speculation given up: {}", mitigations::names(&given_up)), "\n");
    }
    io.enter_jail().map_err(VmmError::HostIo)?;
    if !process::die_with_parent(parent) {
        process::exit_now(1);
    }
    let supervisor = Supervisor::new(Arc::clone(channel), leash, Arc::clone(&events), hibernation);
    let supervisor = Arc::new(supervisor.map_err(VmmError::Prepare)?);
    if cfg!(debug_assertions) && std::env::var_os("DORMOUSE_FAKE_KERNEL").is_some() {
        leave(&supervisor, listener, ids_are_mapped)?;
        jail::seal(plan.platform)?;
        supervisor.finish(Ok(stand_in(&boot, &events)));
    }
    let sandbox = Sandbox::new(
        SandboxConfig { kernel_file, ..config(plan, device, &supervisor) },
        io,
        Arc::clone(&events),
    )?;
    supervisor.set_sandbox(Arc::downgrade(&sandbox));
    leave(&supervisor, listener, ids_are_mapped)?;
    let status = sandbox.run(&boot);
    if boot.log_level >= LOG_INFO && plan.platform == Platform::Kvm {
        let exits: Vec<String> =
            sandbox.exits().iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        sandbox.log(LOG_INFO, &format!("exits: {}", exits.join(", ")));
    }
    if matches!(status, Err(SandboxError::Stuck(_))) {
        watchdog::end_by_force();
    }
    // The process ends now, and with it all this is made of; taking it apart piece by piece would only cost time.
    std::mem::forget(sandbox);
    supervisor.finish(status.map(u32::cast_signed).map_err(VmmError::from))
}

fn landlock_in_words(is_scoped: bool, keeps_files: bool) -> String {
    let words = |done: bool| if done { "kept in the sandbox" } else { "not restricted" };
    let (signals, files) = (words(is_scoped), words(keeps_files));
    format!("landlock version {}: signals are {signals}, files are {files}", landlock::version())
}

fn config(plan: &Plan, device: Option<kvm::Device>, supervisor: &Arc<Supervisor>) -> SandboxConfig {
    let mut config = SandboxConfig::new(plan.platform, plan.cpus, plan.memory_bytes);
    let newline = if plan.terminal { "\r\n" } else { "\n" };
    let (teller, listening) = (Arc::clone(supervisor), Arc::clone(supervisor));
    config.log = Arc::new(move |level, text| {
        if !teller.keep(level, text) {
            log(level, text, newline);
        }
    });
    config.report = Arc::new(move |what, of| listening.report(what, of));
    config.hibernation = Arc::clone(supervisor.hibernation());
    config.execs = Arc::clone(supervisor.execs());
    config.device = device;
    config.seal = Some(jail::seal);
    config
}

/// What a container needs while the VMM is still part of the host: settings of its network, its leash, and the hooks
/// that the front end runs meanwhile.
fn begin_container(bundle: &Bundle, channel: &Arc<UnixStream>) -> Result<Leash, VmmError> {
    for (name, value) in &bundle.container.sysctls {
        std::fs::write(Path::new("/proc/sys").join(name), value)
            .map_err(|source| VmmError::Sysctl { name: name.replace('/', "."), source })?;
    }
    if let Some(score) = bundle.container.oom_score_adj {
        std::fs::write("/proc/self/oom_score_adj", score.to_string())
            .map_err(|source| VmmError::OomScore { score, source })?;
    }
    let leash = Leash::start().map_err(VmmError::Leash)?;
    let _ = control::send(channel, &Report::Prepared { pid: leash.pid() });
    match control::receive(channel) {
        Ok(Some(Order::Proceed)) => Ok(leash),
        _ => process::exit_now(1),
    }
}

/// Starts to take orders.
fn leave(supervisor: &Arc<Supervisor>, listener: UnixListener, ids_are_mapped: bool) -> Result<(), VmmError> {
    if supervisor.leash().is_some() {
        // From here on the end of the channel says that the front end is gone; a container may survive that.
        process::survive_parent();
    }
    let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name.into()).stack_size(128 << 10);
        let body = move || {
            sys::block_signals();
            body();
        };
        thread.spawn(body).map(drop).map_err(VmmError::Thread)
    };
    let serving = Arc::clone(supervisor);
    start("dormouse-ctl", Box::new(move || serving.serve(&listener, ids_are_mapped)))?;
    if supervisor.leash().is_some() {
        let watching = Arc::clone(supervisor);
        start("dormouse-leash", Box::new(move || watching.watch()))?;
    } else {
        supervisor.report(REPORT_RUNNING, 0);
    }
    Ok(())
}

/// Writes a line of the kernel's; standard error may be closed, or a terminal that is in raw mode.
fn log(level: u32, text: &str, newline: &str) {
    let prefix = if level == 0 { "dormouse: " } else { "" };
    let _ = io::stderr()
        .write_all(format!("{prefix}{}{newline}", text.trim_end().replace('\n', newline)).as_bytes());
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// For tests of the command itself: stands in for the kernel, and ends with the first signal it is sent.
fn stand_in(boot: &BootSpec, events: &EventQueue) -> i32 {
    let _ = writeln!(io::stdout(), "{} mounts", boot.mounts.len());
    loop {
        let signal = events.take(16).into_iter().find(|event| event.kind == EVENT_SIGNAL);
        if let Some(event) = signal {
            return i32::try_from(event.value).unwrap_or(0);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
