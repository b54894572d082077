//! A VMM process that sees the host's files, and opens those that its sandbox needs.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use abi::boot::{NET_TABLES, Platform};
use vmm::broker::Broker;
use vmm::companions::Companions;
use vmm::hibernate::Hibernation;
use vmm::host_paths::HostPaths;
use vmm::hostcall::events::EventQueue;
use vmm::hostcall::host_io::HostIo;
use vmm::hostcall::quota::Quota;
use vmm::ids::IdMaps;
use vmm::image::ImageFile;
use vmm::jail::{self, Propagation, Users};
use vmm::leash::Leash;
use vmm::net::{self, Network};
use vmm::platform::kvm;
use vmm::platform::machine::PlatformError;
use vmm::process;

use super::{Beginning, FrontEnd, Prepared};
use crate::hooks;
use crate::preserved::Preserved;
use crate::state::OciState;
use crate::vmm_process::error::VmmError;
use crate::vmm_process::plan::{Bundle, Plan, Tree};
use crate::vmm_process::{begin_leash, files, set_oom_score, sysctl};

/// A VMM process that sees the host. What its front end's values own is not its own any more and must never be dropped, so
/// it borrows its plan.
pub(in crate::vmm_process) struct Outside<'p> {
    pub(in crate::vmm_process) host: HostPaths,
    pub(in crate::vmm_process) plan: &'p Plan,
    pub(in crate::vmm_process) beginning: Beginning,
    pub(in crate::vmm_process) front_end: FrontEnd,
    pub(in crate::vmm_process) companions: Option<Companions>,
    pub(in crate::vmm_process) preserved: Preserved,
}

impl<'p> Outside<'p> {
    /// Enters the sandbox's namespaces, makes its leash, and opens all of the host that it needs.
    pub(super) fn prepare(self) -> Result<Prepared<'p>, VmmError> {
        let Self { host, plan, mut beginning, front_end, companions, preserved } = self;
        let events = Arc::new(EventQueue::new());
        let hibernation = Hibernation::open(&host, plan.swap.clone())?;
        let mut users = Users::enter_namespaces(&host, plan.userns, id_maps(plan), propagation(plan))?;
        let network_owner = net::enter(&host, &plan.network)?;
        net::belongs_to(&plan.network, network_owner);
        // With its working directory at `/`, a child in this mount namespace (the leash) leaves the host's root together
        // with the VMM.
        std::env::set_current_dir("/").map_err(VmmError::Prepare)?;
        let leash = make_leash(&host, plan, companions, &front_end.channel)?;
        let io = host_io(&host, plan, &users, &events)?;
        if let Some(head) = beginning.head() {
            // The kernel's own numbers stay the kernel's.
            io.begin_above(head.handles).map_err(VmmError::HostIo)?;
        }
        let records = beginning.records_mut();
        let files::Opened { following, volumes } =
            files::open(&host, plan, records, preserved, &io, &mut users)?;
        if plan.host_uds && !volumes.is_empty() {
            io.set_broker(Broker::start(&host, volumes, id_maps(plan)).map_err(VmmError::Prepare)?);
        }
        records.sysctls = sysctl::read(&host, &plan.network, network_owner, asked_sysctls(plan));
        records.net_tables = net_tables(&host, plan, &io)?;
        if let (Tree::Bundle(bundle), Some(leash)) = (&plan.tree, &leash) {
            let state = OciState { pid: leash.pid(), ..bundle.state.clone() };
            hooks::run("createContainer", bundle.container.hooks.create_container().as_deref(), &state)?;
        }
        let device = open_device(&host, plan.platform)?;
        let kernel_file = ImageFile::of_the_kernel(&host).map(Arc::new);
        // Facts of the host that are asked for later, and kept once read.
        let _ = (vmm::cpu::host_flags(), vmm::platform::folios::policy());
        Ok(Prepared {
            kernel_file,
            device,
            following,
            beginning,
            io,
            leash,
            users,
            hibernation,
            events,
            front_end,
            plan,
            host,
        })
    }
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

/// Prepares a container: settings of its network, its leash, and the hooks that the front end runs meanwhile.
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
    if let Some(disk_bytes) = plan.disk_bytes() {
        io.set_quota(Quota::new(disk_bytes));
    }
    Ok(io)
}

/// The settings of its network that a bundle asks for.
fn asked_sysctls(plan: &Plan) -> &[(String, String)] {
    match &plan.tree {
        Tree::Bundle(bundle) => &bundle.container.sysctls,
        Tree::CopyOnWrite { .. } => &[],
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

fn open_device(_: &HostPaths, platform: Platform) -> Result<Option<kvm::Device>, VmmError> {
    match platform {
        Platform::Kvm => {
            let device = kvm::Device::open();
            device.map(Some).map_err(|error| VmmError::Sandbox(PlatformError::from(error).into()))
        }
        Platform::Systrap => Ok(None),
    }
}
