//! The plan of a sandbox: everything that its VMM process gets from the process that forks it.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use abi::boot::Platform;
use vmm::boot::BootSpec;
use vmm::checkpoint::{ImageFiles, ImageHead, PageKey};
use vmm::companions::Companions;
use vmm::hibernate::{AWAKE_AT_MOST, BaseInMemory, ExecProbe, Outbound, SwapPlan, Wishes};
use vmm::hostcall::quota::Quota;
use vmm::jail::UserNamespace;
use vmm::jail::mitigations::Mitigations;
use vmm::mounts::{Changes, Volume};
use vmm::net::Network;

use crate::cgroup::Cgroups;
use crate::oci::ContainerSpec;
use crate::preserved::Preserved;
use crate::resources::Resources;
use crate::state::{OciState, Root};

/// The parts that a sandbox is made of.
#[derive(Debug)]
pub struct Plan {
    pub tree: Tree,
    pub network: Network,
    /// The host user that the guest's root is.
    pub userns: UserNamespace,
    pub mitigations: Mitigations,
    pub platform: Platform,
    pub memory_bytes: u64,
    /// See [`vmm::sandbox::SandboxConfig::memory_most_bytes`].
    pub memory_most_bytes: u64,
    pub cpus: u32,
    /// Without mounts and streams, which the VMM fills in.
    pub boot: BootSpec,
    pub swap: SwapPlan,
    /// `pause` hibernates the sandbox.
    pub pause_hibernates: bool,
    pub exec_probe: ExecProbe,
    /// Programs connect to Unix sockets of the host in volumes.
    pub host_uds: bool,
    /// Made by the front end; joined by the VMM.
    pub cgroups: Cgroups,
    /// Bounds of a sandbox of the command line, which no configuration bounds.
    pub bounds: Option<Bounds>,
    /// The streams are a terminal that the sandbox drives.
    pub terminal: bool,
    /// A leash stands for the sandbox on the host. A container always has one.
    pub has_leash: bool,
    /// It is a pod's: further containers may begin in it.
    pub is_pod: bool,
    /// The snapshot that it begins with, which has chosen the platform and the sizes.
    pub restore: Option<RestorePlan>,
    /// The base in memory that its pages are compared with.
    pub compare: Option<BaseInMemory>,
}

/// A snapshot that a sandbox begins with.
#[derive(Debug)]
pub struct RestorePlan {
    pub head: ImageHead,
    /// To be read only. The VMM keeps them.
    pub files: ImageFiles,
    /// Its pages are shared with others: shown from their file as long as they are not written.
    pub shares: bool,
    /// The key by which the pages are sealed, if they are.
    pub page_key: Option<PageKey>,
    /// The numbers of the further containers of its pod.
    pub further: Vec<u64>,
    /// Where it tells the working set that it records.
    pub told: Option<OwnedFd>,
    /// The digest of the snapshot whose held base its pages are of, for its record.
    pub base: Option<String>,
}

/// Bounds of a sandbox without a bundle on the host.
#[derive(Debug)]
pub struct Bounds {
    /// For its control groups.
    pub resources: Resources,
    /// Most processes and threads in the sandbox.
    pub pids: u32,
    /// Bytes that its files on the host may take up.
    pub disk_bytes: u64,
}

impl Plan {
    /// The clone that this is of.
    pub(super) fn clone_of(&self) -> Option<&ClonePlan> {
        match &self.tree {
            Tree::Bundle(bundle) => bundle.clone.as_ref(),
            Tree::CopyOnWrite { .. } => None,
        }
    }

    /// Whether the streams are another process's.
    pub(super) fn is_silent(&self) -> bool {
        match &self.tree {
            Tree::Bundle(bundle) => bundle.clone.as_ref().is_some_and(|clone| clone.is_silent),
            Tree::CopyOnWrite { is_silent, .. } => *is_silent,
        }
    }

    /// Bytes that its files on the host may take up.
    pub(super) fn disk_bytes(&self) -> Option<u64> {
        let of_clone = || self.clone_of().map(|clone| clone.disk_bytes);
        self.bounds.as_ref().map(|bounds| bounds.disk_bytes).or_else(of_clone)
    }
}

impl Bounds {
    /// Memory in which the VMM keeps account of the files, beside the kernel's memory.
    pub(crate) fn ledger_bytes(&self) -> u64 {
        Quota::ledger_bytes(self.disk_bytes)
    }

    /// Most processes and threads on the host.
    pub(super) fn processes(&self, cpus: u32) -> u64 {
        self.resources.host_tasks(cpus).unwrap_or(u64::MAX)
    }
}

/// The sandbox's files.
#[derive(Debug)]
pub enum Tree {
    /// A copy-on-write view of the host's files.
    CopyOnWrite {
        /// The directory that becomes `/`; absolute.
        root: PathBuf,
        /// The directory that takes up its changes.
        layer: PathBuf,
        volumes: Vec<Volume>,
        /// Directories of the host's that hold sandboxes; the sandbox sees empty ones.
        hidden: Vec<PathBuf>,
        /// The changes with which it begins.
        below: Vec<Changes>,
        /// The streams are another process's: its own lead nowhere.
        is_silent: bool,
    },
    /// A bundle, which makes the sandbox a container: it has a leash, and may outlive its front end.
    Bundle(Box<Bundle>),
}

/// The parts of a container that the VMM needs beside the plan.
#[derive(Debug)]
pub struct Bundle {
    pub container: ContainerSpec,
    /// Without the pid, which is the leash's.
    pub state: OciState,
    /// It is a command's clone.
    pub clone: Option<ClonePlan>,
}

/// A container of a command, which goes with it and leaves the bundle's root as it is.
#[derive(Clone, Debug)]
pub struct ClonePlan {
    /// By which its command knows it from another container of that name.
    pub mark: String,
    /// The directory that takes up the changes to its root.
    pub layer: PathBuf,
    /// The most bytes that these may take up.
    pub disk_bytes: u64,
    /// The streams are another process's: its own lead nowhere.
    pub is_silent: bool,
}

/// The descriptors that the VMM inherits from its front end.
#[derive(Debug)]
pub struct Inherited {
    /// To the front end.
    pub channel: UnixStream,
    pub listener: UnixListener,
    /// Of a container's state directory: as long as it is held, the container lives.
    pub lock: Option<OwnedFd>,
    /// Those of its leash, if it is a container.
    pub companions: Option<Companions>,
    /// The terminal that becomes the standard streams.
    pub console: Option<OwnedFd>,
    /// The descriptors that the first process gets beside its standard streams.
    pub preserved: Preserved,
}

/// Tells the kernel what is wished of its hibernation.
pub(crate) fn say_wishes(boot: &mut BootSpec, wishes: &Wishes) {
    boot.idle_timeout = wishes.idle_timeout;
    boot.idle_ignores = wishes.ignored();
    boot.timers = wishes.timers.unwrap_or_default();
    boot.awake_at_most = wishes.awake_at_most.unwrap_or(AWAKE_AT_MOST);
    boot.outbound_sleeps = wishes.outbound == Some(Outbound::Sleep);
}

/// The place for its memory.
pub(crate) fn swap_plan(wishes: Wishes, boot: &BootSpec) -> SwapPlan {
    SwapPlan::from(Wishes { dir: wishes.dir.or_else(Root::default_swap), ..wishes })
        .with_cpu_quota(boot.limits.cpu_quota_us, boot.limits.cpu_period_us)
}
