//! The VMM process of one sandbox: opens everything it needs of the host, gives up the rest, runs the kernel.

pub mod error;
pub(crate) mod files;
pub mod plan;
pub(crate) mod sysctl;

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use abi::boot::{NET_TABLES, Platform};
use abi::hostcall::{EVENT_SIGNAL, REPORT_RUNNING};
use vmm::boot::BootSpec;
use vmm::broker::Broker;
use vmm::companions::Companions;
use vmm::footprint;
use vmm::hibernate::Hibernation;
use vmm::host_paths::HostPaths;
use vmm::hostcall::events::EventQueue;
use vmm::hostcall::host_io::HostIo;
use vmm::hostcall::quota::Quota;
use vmm::ids::IdMaps;
use vmm::image::ImageFile;
use vmm::jail::{self, Propagation, Users, landlock, mitigations};
use vmm::leash::Leash;
use vmm::net::Network;
use vmm::platform::kvm;
use vmm::platform::machine::PlatformError;
use vmm::sandbox::{Sandbox, SandboxConfig, SandboxError};
use vmm::{net, process, sys, watchdog};

use self::error::{VmmError, chain};
use self::plan::{Bundle, Inherited, Plan, Tree};
use crate::control::{self, Order, Report};
use crate::hooks;
use crate::preserved::{Preserved, PreservedFd};
use crate::state::OciState;
use crate::stderr_log::{self, LOG_DEBUG, LOG_INFO};
use crate::supervisor::Supervisor;

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

/// The VMM process, from its fork to its end. `parent` is the front end.
#[allow(unsafe_code)]
pub fn main(mut plan: Plan, inherited: Inherited, parent: i32) -> ! {
    let host = begin(c"dormouse-vmm", parent);
    let Inherited { channel, listener, lock, companions, console, preserved } = inherited;
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
    let kept = unsafe { keep(channel, listener, lock, companions, preserved, Vec::new()) };
    let Ok(Kept { channel, listener, _lock, companions, preserved, .. }) = kept else { process::exit_now(1) };
    let channel = Arc::new(channel);
    let result = early
        .map_err(VmmError::Prepare)
        .and_then(|()| run(host, &plan, &channel, listener, companions, preserved, parent));
    // An error that comes later is reported by the supervisor.
    let Err(error) = result;
    let _ = control::send(&channel, &Report::Failed { message: error.to_string(), code: None });
    process::exit_now(0)
}

/// The first steps of a process that was forked by the front end `parent`, and ends with it for now. It has its front end's
/// right to the host's files.
pub(crate) fn begin(name: &CStr, parent: i32) -> HostPaths {
    process::set_name(name);
    if !process::die_with_parent(parent) {
        process::exit_now(1);
    }
    process::ignore_signals(IGNORED);
    process::unblock_signals();
    footprint::keep_heap_small();
    HostPaths::of_new_process()
}

/// The inherited descriptors that stay open.
pub(crate) struct Kept {
    pub channel: UnixStream,
    pub listener: UnixListener,
    pub _lock: Option<OwnedFd>,
    pub companions: Option<Companions>,
    pub preserved: Preserved,
    pub more: Vec<OwnedFd>,
}

/// Closes every other descriptor.
///
/// # Safety
/// As [`process::keep_only`].
#[allow(unsafe_code)]
pub(crate) unsafe fn keep(
    channel: UnixStream,
    listener: UnixListener,
    lock: Option<OwnedFd>,
    companions: Option<Companions>,
    preserved: Preserved,
    more: Vec<OwnedFd>,
) -> io::Result<Kept> {
    let companions = companions.map(|companions| companions.descriptor()).transpose()?;
    let (has_lock, has_companions, count) = (lock.is_some(), companions.is_some(), more.len());
    let (further, flags): (Vec<_>, Vec<_>) = preserved.0.into_iter().map(|one| (one.fd, one.flags)).unzip();
    let own = [channel.into(), listener.into()].into_iter().chain(lock).chain(companions);
    let all = own.chain(more).chain(further).collect();
    // SAFETY: the caller's promise.
    let mut kept = unsafe { process::keep_all(all) }?.into_iter();
    let mut next = || kept.next().ok_or(io::ErrorKind::UnexpectedEof);
    let (channel, listener) = (next()?.into(), next()?.into());
    let _lock = if has_lock { Some(next()?) } else { None };
    let companions = if has_companions { Some(Companions::inherited(next()?)) } else { None };
    let more = kept.by_ref().take(count).collect();
    let preserved = Preserved(kept.zip(flags).map(|(fd, flags)| PreservedFd { fd, flags }).collect());
    Ok(Kept { channel, listener, _lock, companions, preserved, more })
}

/// The ids of the user namespace that a bundle describes.
fn id_maps(plan: &Plan) -> Option<&IdMaps> {
    match &plan.tree {
        Tree::Bundle(bundle) => bundle.container.id_maps.as_ref(),
        Tree::CopyOnWrite { .. } => None,
    }
}

/// Whether the sandbox sees mounts that the host makes later.
fn propagation(plan: &Plan) -> Propagation {
    match &plan.tree {
        Tree::Bundle(bundle) => bundle.container.propagation(),
        Tree::CopyOnWrite { .. } => Propagation::Private,
    }
}

/// Opens the tables of the sockets in a container's network, which the programs of a network see, whosesoever the sockets are.
/// In one of the sandbox's own there are no others. A command's sandbox gets none: it is in the caller's network unless told
/// otherwise, and sees its own sockets alone.
fn net_tables(_: &HostPaths, plan: &Plan, io: &HostIo) -> Result<Vec<(&'static str, u32)>, VmmError> {
    if plan.network == Network::None || matches!(plan.tree, Tree::CopyOnWrite { .. }) {
        return Ok(Vec::new());
    }
    // Best effort: without IPv6 there is no table of it.
    let open = |name| Some((name, File::open(format!("/proc/self/net/{name}")).ok()?));
    let opened = NET_TABLES.into_iter().filter_map(open);
    let adopt = |(name, file): (_, File)| Ok((name, io.files().adopt_text(file.into())?));
    opened.map(adopt).collect::<Result<_, _>>().map_err(VmmError::HostIo)
}

/// Makes the sandbox and runs it. Returns when it could not be made.
fn run(
    host: HostPaths,
    plan: &Plan,
    channel: &Arc<UnixStream>,
    listener: UnixListener,
    companions: Option<Companions>,
    preserved: Preserved,
    parent: i32,
) -> Result<std::convert::Infallible, VmmError> {
    let events = Arc::new(EventQueue::new());
    let hibernation = Hibernation::open(&host, &plan.swap)?;
    let mut users = Users::enter_namespaces(&host, plan.userns, id_maps(plan), propagation(plan))?;
    let network_owner = net::enter(&host, &plan.network)?;
    net::belongs_to(&plan.network, network_owner);
    // With its working directory at `/`, a child in this mount namespace (the leash) leaves the host's root together
    // with the VMM.
    std::env::set_current_dir("/").map_err(VmmError::Prepare)?;
    let leash = make_leash(&host, plan, companions, channel)?;
    let io = host_io(&host, plan, &users, &events)?;
    let mut boot = plan.boot.clone();
    let opened = files::open(&host, plan, &mut boot, preserved, &io, &mut users)?;
    if plan.host_uds && !opened.volumes.is_empty() {
        io.set_broker(Broker::start(&host, opened.volumes, id_maps(plan)).map_err(VmmError::Prepare)?);
    }
    boot.sysctls = sysctl::read(&host, &plan.network, network_owner, asked_sysctls(plan));
    boot.net_tables = net_tables(&host, plan, &io)?;
    if let (Tree::Bundle(bundle), Some(leash)) = (&plan.tree, &leash) {
        let state = OciState { pid: leash.pid(), ..bundle.state.clone() };
        hooks::run("createContainer", bundle.container.hooks.create_container().as_deref(), &state)?;
    }
    let device = open_device(&host, plan.platform)?;
    let kernel_file = ImageFile::of_the_kernel(&host).map(Arc::new);
    let ids_are_mapped = users.hide_hosts_root();
    // From here on nothing is opened by its path. One thread so far: ids and capabilities are a thread's own, and the
    // stubs' zygote, made below, is to have ours.
    let _ = (vmm::cpu::host_flags(), vmm::platform::folios::policy());
    jail::enter(host, users, &opened.following, plan.is_pod)?;
    drop(opened.following);
    if let Some(bounds) = plan.bounds.as_ref().filter(|_| !plan.cgroups.count_processes()) {
        // Counted in the user namespace of these ids, so only this sandbox's own count (Linux 5.14).
        process::limit_processes(bounds.processes(plan.cpus)).map_err(VmmError::Prepare)?;
    }
    restrict(plan, &io, &boot, leash.is_none())?;
    io.enter_jail().map_err(VmmError::HostIo)?;
    if !process::die_with_parent(parent) {
        process::exit_now(1);
    }
    let supervisor = supervise(plan, channel, leash, &events, hibernation)?;
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
    run_to_end(&boot, plan.platform, sandbox, &supervisor)
}

/// Runs the kernel, and ends this process with the sandbox.
fn run_to_end(boot: &BootSpec, platform: Platform, sandbox: Arc<Sandbox>, supervisor: &Supervisor) -> ! {
    let status = sandbox.run(boot);
    if boot.log_level >= LOG_INFO && platform == Platform::Kvm {
        let exits: Vec<String> =
            sandbox.exits().iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        sandbox.log(LOG_INFO, &format!("exits: {}", exits.join(", ")));
    }
    if matches!(status, Err(SandboxError::Stuck(_))) {
        watchdog::end_by_force();
    }
    // The process ends now; freeing all this piece by piece would only cost time.
    std::mem::forget(sandbox);
    supervisor.finish(status.map(u32::cast_signed).map_err(|error| chain(&VmmError::from(error))))
}

/// The sandbox's way to the host's files, with the quota of a command.
fn host_io(
    host: &HostPaths,
    plan: &Plan,
    users: &Users,
    events: &Arc<EventQueue>,
) -> Result<HostIo, VmmError> {
    let sink = Arc::clone(events);
    let proc = jail::proc_directory(host, users).map_err(|error| VmmError::HostIo(error.into()))?;
    let io =
        HostIo::with_proc(Arc::new(move |event| sink.post(event)), proc.as_fd()).map_err(VmmError::HostIo)?;
    drop(proc);
    if let Some(bounds) = &plan.bounds {
        io.set_quota(Quota::new(bounds.disk_bytes));
    }
    Ok(io)
}

/// Makes the leash of a container, or of a command that has one.
fn make_leash(
    host: &HostPaths,
    plan: &Plan,
    companions: Option<Companions>,
    channel: &Arc<UnixStream>,
) -> Result<Option<Leash>, VmmError> {
    match &plan.tree {
        Tree::Bundle(bundle) => begin_container(host, bundle, plan, companions, channel).map(Some),
        // In a group of its own, which a shell's orders to its job do not reach.
        Tree::CopyOnWrite { .. } if plan.has_leash => {
            begin_leash(host, &plan.boot.args, true, None, channel).map(Some)
        }
        Tree::CopyOnWrite { .. } => Ok(None),
    }
}

/// The settings of its network that a bundle asks for.
fn asked_sysctls(plan: &Plan) -> &[(String, String)] {
    match &plan.tree {
        Tree::Bundle(bundle) => &bundle.container.sysctls,
        Tree::CopyOnWrite { .. } => &[],
    }
}

fn open_device(_: &HostPaths, platform: Platform) -> Result<Option<kvm::Device>, VmmError> {
    match platform {
        Platform::Kvm => {
            let device = kvm::Device::open();
            device.map(Some).map_err(|error| VmmError::Sandbox(PlatformError::from(error).into()))
        }
        Platform::Systrap => Ok(None),
    }
}

/// Gives up speculation and restricts this process by Landlock; its signals as well unless it has a leash, which was made
/// outside of any domain.
fn restrict(plan: &Plan, io: &HostIo, boot: &BootSpec, scopes_signals: bool) -> Result<(), VmmError> {
    let given_up = mitigations::apply(plan.mitigations);
    let files = files::given(io, boot, plan.is_pod).map_err(VmmError::HostIo)?;
    let (keeps_files, is_scoped) = landlock::restrict(files, scopes_signals);
    if boot.log_level >= LOG_DEBUG {
        stderr_log::write(LOG_DEBUG, &landlock_in_words(is_scoped, keeps_files), "\n");
        stderr_log::write(
            LOG_DEBUG,
            &format!("speculation given up: {}", mitigations::names(&given_up)),
            "\n",
        );
    }
    Ok(())
}

/// Makes the supervisor, which watches the packing of pages from then on.
fn supervise(
    plan: &Plan,
    channel: &Arc<UnixStream>,
    leash: Option<Leash>,
    events: &Arc<EventQueue>,
    hibernation: Hibernation,
) -> Result<Arc<Supervisor>, VmmError> {
    let (channel, events) = (Arc::clone(channel), Arc::clone(events));
    let supervisor = Supervisor::new(channel, leash, events, hibernation, plan.pause_hibernates)
        .map_err(VmmError::Prepare)?
        .of_a_command(matches!(plan.tree, Tree::CopyOnWrite { .. }))
        .of_a_pod(plan.is_pod)
        .with_exec_probe(plan.exec_probe);
    let supervisor = Arc::new(supervisor);
    supervisor.watch_packing();
    Ok(supervisor)
}

fn landlock_in_words(is_scoped: bool, keeps_files: bool) -> String {
    let words = |done: bool| if done { "kept in the sandbox" } else { "not restricted" };
    let (signals, files) = (words(is_scoped), words(keeps_files));
    format!("landlock version {}: signals are {signals}, files are {files}", landlock::version())
}

fn config(plan: &Plan, device: Option<kvm::Device>, supervisor: &Arc<Supervisor>) -> SandboxConfig {
    let mut config = SandboxConfig::new(plan.platform, plan.cpus, plan.memory_bytes);
    config.memory_most_bytes = plan.memory_most_bytes;
    config.kernel_bytes = abi::layout::kernel_bytes(plan.memory_most_bytes);
    let newline = if plan.terminal { "\r\n" } else { "\n" };
    let (teller, listening) = (Arc::clone(supervisor), Arc::clone(supervisor));
    config.log = Arc::new(move |level, text| {
        if !teller.keep(level, text) {
            stderr_log::write(level, text, newline);
        }
    });
    config.report = Arc::new(move |what, of| listening.report(what, of));
    let told = Arc::clone(supervisor);
    config.containers = Arc::new(move |of, news| told.take_container_news(of, news));
    config.hibernation = Arc::clone(supervisor.hibernation());
    config.execs = Arc::clone(supervisor.execs());
    config.device = device;
    config.seal = Some(jail::seal);
    config
}

/// Prepares a container while the VMM is still part of the host: settings of its network, its leash, and the hooks that
/// the front end runs meanwhile.
fn begin_container(
    host: &HostPaths,
    bundle: &Bundle,
    plan: &Plan,
    companions: Option<Companions>,
    channel: &Arc<UnixStream>,
) -> Result<Leash, VmmError> {
    sysctl::write(host, &bundle.container.sysctls)?;
    // Containers of a pod may name this namespace for their host name.
    process::set_host_name(&bundle.container.boot.hostname);
    // A pod's first container is to outlive all others, whose memory is the VMM's as well.
    let score = bundle.container.oom_score_adj.map(|score| if plan.is_pod { score.max(0) } else { score });
    set_oom_score(host, score)?;
    begin_leash(host, &plan.boot.args, false, companions, channel)
}

/// How likely the host ends this process and its children when memory is short, if a bundle says so.
pub(crate) fn set_oom_score(_: &HostPaths, score: Option<i32>) -> Result<(), VmmError> {
    let Some(score) = score else { return Ok(()) };
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
        .map_err(|source| VmmError::OomScore { score, source })
}

/// Makes the leash, and waits until the front end has done what it does with the leash's pid.
pub(crate) fn begin_leash(
    _: &HostPaths,
    program: &[Vec<u8>],
    leads_group: bool,
    companions: Option<Companions>,
    channel: &Arc<UnixStream>,
) -> Result<Leash, VmmError> {
    let leash = Leash::start(program, leads_group, companions).map_err(VmmError::Leash)?;
    let _ = control::send(channel, &Report::Prepared { pid: leash.pid() });
    match control::receive(channel) {
        Ok(Some(Order::Proceed)) => Ok(leash),
        _ => process::exit_now(1),
    }
}

/// Starts to take orders.
fn leave(supervisor: &Arc<Supervisor>, listener: UnixListener, ids_are_mapped: bool) -> Result<(), VmmError> {
    if !supervisor.is_command() {
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
    }
    if supervisor.is_command() {
        supervisor.report(REPORT_RUNNING, 0);
    }
    Ok(())
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
