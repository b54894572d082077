//! `create`: from a bundle to a container that waits for its start.

use std::io::{self, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use abi::boot::Platform;
use vmm::companions::Companions;
use vmm::descriptor_passing;
use vmm::directory::replace_file;
use vmm::hibernate::BaseInMemory;
use vmm::hostcall::quota::Quota;
use vmm::process;

use super::error::ContainerError;
use super::membership::Membership;
use super::record::{PodRecord, Record, hook_state};
use super::restore::Base;
use crate::cgroup::{self, Cgroups};
use crate::control::{self, Order, Report, Restores};
use crate::front::foreground::report;
use crate::hooks;
use crate::keeper::{self, KeeperPlan};
use crate::oci::{self, ContainerSpec};
use crate::orders::LimitsRecord;
use crate::preserved::Preserved;
use crate::resources::Resources;
use crate::settings::{Asked, HostUds, NodeConfig, PauseKind, Settings};
use crate::snapshot::Opened;
use crate::snapshot::comparing::Compared;
use crate::state::{Claim, Id, OCI_VERSION, OciState, Root};
use crate::status::Status;
use crate::vmm_process;
use crate::vmm_process::plan::{
    Bundle, ClonePlan, Inherited, Plan, RestorePlan, Tree, say_wishes, swap_plan,
};

/// How a container is to be created.
pub struct CreateOptions {
    pub root: Root,
    pub id: Id,
    pub bundle: PathBuf,
    pub pid_file: Option<PathBuf>,
    pub console_socket: Option<PathBuf>,
    /// Control groups are made by systemd.
    pub systemd_cgroup: bool,
    /// The settings that the command asks for; the bundle and the node say the rest.
    pub asked: Asked,
    pub node: NodeConfig,
    /// The snapshot that it begins with, whatever the bundle says.
    pub snapshot: Option<Arc<Opened>>,
    /// The further container of the snapshot's pod that it goes on from, if not the one that has its name.
    pub snapshot_container: Option<String>,
    /// Things there that may be other than they were.
    pub surroundings: Surroundings,
    /// It is a command's clone: with control groups of its own, whatever the bundle says.
    pub clone: Option<ClonePlan>,
    pub strace: bool,
    /// Least important level that reaches the log: 0 error … 3 debug.
    pub log_level: u32,
    /// Called with a remark for each setting that is accepted without effect.
    pub remark: fn(&str),
    /// Called with a failure that changes nothing.
    pub warn: fn(&str),
}

/// Things that a container which begins with a snapshot may find other than they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Files that it has open may have changed.
    pub accepts_changed: bool,
    /// Ports that its sockets had, and get instead.
    pub ports: Vec<(u16, u16)>,
}

/// A container that waits for its start, with its front end still there.
pub(super) struct Created {
    pub id: Id,
    pub vmm: i32,
    pub channel: BufReader<UnixStream>,
    pub state: OciState,
    pub record: Record,
    pub claim: Claim,
    /// The container's streams are this process's, and a terminal that it drives.
    pub owns_terminal: bool,
}

/// Creates a container, whose first process gets the caller's further descriptors, and leaves it to the subreaper that adopts this process's children.
pub fn create(options: &CreateOptions, preserved: Preserved) -> Result<(), ContainerError> {
    let mut created = begin(options, preserved, true)?;
    created.release()
}

type Failed = (&'static str, io::Error);

/// Creates a container whose VMM ends with this process, until it is released. `detached`: its terminal, if it has one,
/// is not this process's.
pub(super) fn begin(
    options: &CreateOptions,
    preserved: Preserved,
    detached: bool,
) -> Result<Created, ContainerError> {
    let mut container = oci::load(&options.bundle)?;
    container.remarks.iter().for_each(|remark| (options.remark)(remark));
    if options.clone.is_some() {
        container.cgroups_path = None;
    }
    let settings = Settings::settle(options.asked.clone(), &container.asked, &options.node)?;
    let pod = Membership::of(options, &mut container, settings.pods)?;
    let base = Base::of(options, &settings, &container, &pod)?;
    base.check_sealed(settings.hibernation.encrypt)?;
    if base.snapshot.is_some() {
        // In a pod that is not the first container's own.
        container.boot.limits.memory_max = pod.resources(&container).container_limits().memory_max;
    }
    check_terminal(options, container.terminal, detached)?;
    (container.boot.strace, container.boot.log_level) = (options.strace, options.log_level);
    let Surroundings { accepts_changed, ports } = options.surroundings.clone();
    (container.boot.accepts_changed, container.boot.ports) = (accepts_changed, ports);
    base.say_working_set(options, &mut container.boot);
    container.boot.share_files = settings.share_files;
    container.boot.plain_calls = !settings.patch_calls;
    let claim = options.root.claim(&options.id)?;
    claim.left().iter().for_each(|left| (options.remark)(&left.to_string()));
    let mut creation = Creation { claim: Some(claim), vmm: None, record: None, state: None };
    match creation.run(options, preserved, container, settings, base, pod) {
        Ok(created) => Ok(created),
        Err(error) => {
            creation.undo();
            Err(error)
        }
    }
}

fn check_terminal(options: &CreateOptions, terminal: bool, detached: bool) -> Result<(), ContainerError> {
    let is_silent = options.clone.as_ref().is_some_and(|clone| clone.is_silent);
    let why = match (terminal, options.console_socket.is_some()) {
        (true, _) if is_silent => {
            "its first process has one and the command is another's; leave the command out"
        }
        (true, false) if detached => {
            "nobody would hold it; pass --console-socket, or set process.terminal to false"
        }
        (true, false) if process::Terminal::new(io::stdin().as_fd()).is_none() => {
            "standard input is none; pass --console-socket, or set process.terminal to false"
        }
        (false, true) => "process.terminal is false; leave out --console-socket, or set it to true",
        _ => return Ok(()),
    };
    Err(ContainerError::Terminal { id: options.id.as_str().to_owned(), why: why.into() })
}

/// The process that is forked for a container: a VMM, or in a pod's sandbox a keeper.
enum ForkPlan {
    Vmm(Box<Plan>),
    Keeper(Box<KeeperPlan>),
}

impl ForkPlan {
    /// The plan of a container: for a sandbox of its own, or, in a pod's, for a keeper.
    fn of(
        pod: Membership,
        shape: Shape,
        bundle: Bundle,
        settings: Settings,
        cgroups: Cgroups,
        base: &Base,
    ) -> Self {
        match pod {
            Membership::Further(further) => {
                Self::Keeper(Box::new(further.plan(bundle, cgroups, base.further)))
            }
            _ => Self::Vmm(Box::new(sandbox_plan(shape, bundle, settings, base.platform, cgroups))),
        }
    }
}

/// How large a sandbox is, whether it is a pod's, and what it begins with.
struct Shape {
    cpus: u32,
    memory_bytes: u64,
    memory_most_bytes: u64,
    is_pod: bool,
    restore: Option<RestorePlan>,
    compare: Option<BaseInMemory>,
}

impl Shape {
    /// The sizes that a bundle asks for. Those of a snapshot are its own: its kernel has tables for them.
    fn new(cpus: u32, memory_bytes: u64, is_pod: bool, restore: Option<RestorePlan>) -> Self {
        match &restore {
            Some(RestorePlan { head, .. }) => Self {
                cpus: head.cpus,
                memory_bytes: head.memory_bytes,
                memory_most_bytes: head.memory_most_bytes,
                is_pod,
                restore,
                compare: None,
            },
            None => {
                let memory_most_bytes =
                    Resources::memory_most_bytes(process::host_memory()).max(memory_bytes);
                Self { cpus, memory_bytes, memory_most_bytes, is_pod, restore, compare: None }
            }
        }
    }
}

/// The plan of a sandbox that begins with this container.
fn sandbox_plan(
    Shape { cpus, memory_bytes, memory_most_bytes, is_pod, restore, compare }: Shape,
    bundle: Bundle,
    settings: Settings,
    platform: Platform,
    cgroups: Cgroups,
) -> Plan {
    let Settings { userns, mitigations, hibernation: wishes, pause, host_uds, .. } = settings;
    let container = &bundle.container;
    let mut boot = container.boot.clone();
    say_wishes(&mut boot, &wishes);
    Plan {
        network: container.namespaces.network.clone(),
        userns,
        mitigations,
        platform,
        memory_bytes,
        memory_most_bytes,
        cpus,
        exec_probe: wishes.exec_probe.unwrap_or_default(),
        swap: swap_plan(wishes, &boot),
        boot,
        pause_hibernates: pause == PauseKind::Hibernate,
        host_uds: host_uds == HostUds::Connect,
        terminal: container.terminal,
        has_leash: true,
        is_pod,
        cgroups,
        bounds: None,
        restore,
        compare,
        tree: Tree::Bundle(Box::new(bundle)),
    }
}

/// The state of a container whose creation has begun.
fn creating(id: &str, container: &ContainerSpec) -> OciState {
    OciState {
        oci_version: OCI_VERSION.into(),
        id: id.into(),
        status: Status::Creating,
        pid: 0,
        bundle: container.bundle.clone(),
        annotations: container.annotations.clone(),
        sandbox_state: None,
        hibernate_error: None,
    }
}

/// Processors of the host that this process may use.
fn host_cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
}

/// The steps done so far, to be undone should the rest fail.
struct Creation {
    claim: Option<Claim>,
    vmm: Option<(i32, OwnedFd)>,
    record: Option<Record>,
    /// Known to hooks.
    state: Option<OciState>,
}

impl Creation {
    fn run(
        &mut self,
        options: &CreateOptions,
        preserved: Preserved,
        container: ContainerSpec,
        settings: Settings,
        base: Base,
        pod: Membership,
    ) -> Result<Created, ContainerError> {
        let id = options.id.as_str();
        let failed = |(what, source): Failed| ContainerError::Create { id: id.to_owned(), what, source };
        let (hooks, resources) = (container.hooks.clone(), &pod.resources(&container));
        let restore = base.restore_plan().map_err(|error| failed(("sharing its snapshot", error)))?;
        let cpus = restore.as_ref().map_or_else(|| resources.vcpus(host_cpus()), |plan| plan.head.cpus);
        let memory_bytes = resources.memory_bytes(process::host_memory());
        let make = if options.systemd_cgroup { Cgroups::make_scope } else { Cgroups::make };
        // A VMM that keeps account of files takes memory for that.
        let ledger_bytes = options.clone.as_ref().map_or(0, |clone| Quota::ledger_bytes(clone.disk_bytes));
        let memory_bytes = memory_bytes.saturating_add(ledger_bytes);
        let mut cgroups = make(container.cgroups_path.as_deref(), id, resources, memory_bytes, cpus)?;
        let holder = cgroups.take_holder();
        let state = creating(id, &container);
        let of = (base.digest.clone(), base.held(restore.as_ref()));
        let record = Record::new(&container, &cgroups, &pod, of, options.clone.as_ref());
        self.record = Some(record.clone());
        self.save(&state, Some(&record)).map_err(failed)?;
        self.save_process(&container, &record, cpus).map_err(failed)?;
        let console = self.console(options, &container)?;
        let owns_terminal = container.terminal && console.is_none();
        let bundle = Bundle { container, state: state.clone(), clone: options.clone.clone() };
        let mut shape = Shape::new(cpus, memory_bytes, record.is_pod, restore);
        let compare = base.compared.as_ref().map(Compared::try_clone).transpose();
        shape.compare = compare.map_err(|error| failed(("opening its base", error)))?.map(|one| one.base);
        let plan = ForkPlan::of(pod, shape, bundle, settings, cgroups, &base);
        let channel = self.fork(plan, console, preserved).map_err(failed)?;
        base.read_ahead();
        let mut channel = BufReader::with_capacity(512, channel);
        let pid = match report(&mut channel) {
            Some(Report::Prepared { pid }) => pid,
            other => return Err(no_success(id, other)),
        };
        // The VMM is in its groups.
        drop(holder);
        let state = OciState { pid, ..state };
        self.state = Some(state.clone());
        let vmm = self.vmm.as_ref().map_or(0, |(pid, _)| *pid);
        let mut record = Record { vmm, vmm_start: process::start_time(vmm), ..record };
        self.record = Some(record.clone());
        self.save(&state, Some(&record)).map_err(failed)?;
        hooks::run("prestart", hooks.prestart().as_deref(), &state)?;
        hooks::run("createRuntime", hooks.create_runtime().as_deref(), &state)?;
        self.proceed(id, &mut channel, &mut record, &state, base.further)?;
        let state = hook_state(&state, Status::Created);
        self.save(&state, None).map_err(failed)?;
        if let Some(path) = &options.pid_file {
            replace_file(path, pid.to_string().as_bytes())
                .map_err(|source| ContainerError::PidFile { path: path.clone(), source })?;
        }
        let claim = self.claim.take().ok_or_else(|| ContainerError::Silent { id: id.to_owned() })?;
        Ok(Created { id: options.id.clone(), vmm, channel, state, record, claim, owns_terminal })
    }

    /// Has the VMM go on to the container that waits for its start, and records its number in a pod.
    fn proceed(
        &self,
        id: &str,
        channel: &mut BufReader<UnixStream>,
        record: &mut Record,
        state: &OciState,
        restores: Option<Restores>,
    ) -> Result<(), ContainerError> {
        let failed = |(what, source): Failed| ContainerError::Create { id: id.to_owned(), what, source };
        let _ = control::send(channel.get_ref(), &Order::Proceed);
        match report(channel) {
            Some(Report::Created { number }) => {
                if let Some(pod) = record.pod.clone() {
                    record.pod = Some(PodRecord { number, ..pod });
                    if restores.is_some_and(|restores| restores.number != number) {
                        // It has begun anew.
                        record.snapshot = None;
                    }
                    self.save(state, Some(record)).map_err(failed)?;
                }
            }
            other => return Err(no_success(id, other)),
        }
        Ok(())
    }

    /// Writes what `exec` gives its processes, and the limits that `update` begins with.
    fn save_process(&self, container: &ContainerSpec, record: &Record, cpus: u32) -> Result<(), Failed> {
        let Some(claim) = &self.claim else { return Ok(()) };
        let process = container.boot.process_records();
        claim.write_process(&process).map_err(|error| ("writing its process", error))?;
        let resources = serde_json::to_value(&container.asked_resources).unwrap_or_default();
        let limits = LimitsRecord { resources, cpus, groups: record.cgroups.clone() };
        claim.write_limits(&limits).map_err(|error| ("writing its limits", error))
    }

    /// Writes the state and the record that other commands read.
    fn save(&self, state: &OciState, record: Option<&Record>) -> Result<(), Failed> {
        let Some(claim) = &self.claim else { return Ok(()) };
        claim.write_state(state).map_err(|error| ("writing its state", error))?;
        match record {
            Some(record) => claim.write_record(record).map_err(|error| ("writing its record", error)),
            None => Ok(()),
        }
    }

    /// The container's side of a new terminal, whose other side goes to the console socket.
    fn console(
        &self,
        options: &CreateOptions,
        container: &ContainerSpec,
    ) -> Result<Option<OwnedFd>, ContainerError> {
        let Some(path) = &options.console_socket else { return Ok(None) };
        let failed = |error: io::Error| ContainerError::Terminal {
            id: options.id.as_str().to_owned(),
            why: format!("console socket {}: {error}; pass one that is listened to", path.display()),
        };
        let (rows, columns) = container.boot.winsize.unwrap_or((0, 0));
        let (controller, terminal) = process::open_terminal(rows, columns).map_err(failed)?;
        let socket = descriptor_passing::connect_to_own(path).map_err(failed)?;
        descriptor_passing::send(socket.as_fd(), &[controller.as_fd()], b"/dev/ptmx", 0).map_err(failed)?;
        Ok(Some(terminal))
    }

    /// Starts the VMM; result: the channel to it.
    fn fork(
        &mut self,
        plan: ForkPlan,
        console: Option<OwnedFd>,
        preserved: Preserved,
    ) -> Result<UnixStream, Failed> {
        let claim = self.claim.as_ref().ok_or_else(|| ("claiming its ID", io::Error::other("lost")))?;
        let listener = control::listen(claim.directory()).map_err(|e| ("making its control socket", e))?;
        let lock = claim.lock().map_err(|e| ("sharing its lock", e))?;
        let companions =
            Companions::new(claim.directory()).map_err(|e| ("preparing for processes that join it", e))?;
        let (ours, theirs) = UnixStream::pair().map_err(|e| ("making a channel", e))?;
        let parent = process::id();
        // Should the VMM fail, this process waits for its remaining children.
        process::adopt_orphans();
        let Some(vmm) = process::fork().map_err(|e| ("starting its VMM", e))? else {
            drop(ours);
            let (lock, companions) = (Some(lock), Some(companions));
            let inherited = Inherited { channel: theirs, listener, lock, companions, console, preserved };
            match plan {
                ForkPlan::Vmm(plan) => vmm_process::main(*plan, inherited, parent),
                ForkPlan::Keeper(plan) => keeper::main(*plan, inherited, parent),
            }
        };
        let pidfd = process::pidfd(vmm).map_err(|e| ("watching its VMM", e))?;
        self.vmm = Some((vmm, pidfd));
        Ok(ours)
    }

    /// Takes everything back.
    fn undo(&mut self) {
        if let Some((_, pidfd)) = &self.vmm {
            process::signal(pidfd.as_fd(), libc::SIGKILL);
            process::end_children();
        }
        if let Some(record) = &self.record {
            record.take_files_away();
            let _ = cgroup::remove(&record.cgroups);
            if let Some(state) = &self.state {
                let stopped = OciState { pid: 0, ..hook_state(state, Status::Stopped) };
                // These hooks are told of a container that existed for a moment; their failure changes nothing.
                let _ = hooks::run_all("poststop", record.hooks.poststop().as_deref(), &stopped);
            }
        }
        // Files that cannot be removed are tried again at the next start, which reports them.
        self.claim.iter().for_each(|claim| drop(claim.remove()));
    }
}

impl Created {
    /// Lets go of the container: it lives on without this process.
    pub(super) fn release(&mut self) -> Result<(), ContainerError> {
        let id = self.id.as_str();
        let _ = control::send(self.channel.get_ref(), &Order::Release);
        loop {
            match report(&mut self.channel) {
                Some(Report::Released) => return Ok(()),
                // It was started before.
                Some(Report::Started) => {}
                other => return Err(no_success(id, other)),
            }
        }
    }
}

pub(super) fn no_success(id: &str, report: Option<Report>) -> ContainerError {
    match report {
        Some(Report::Failed { message, code }) => ContainerError::Failed { id: id.to_owned(), message, code },
        _ => ContainerError::Silent { id: id.to_owned() },
    }
}
