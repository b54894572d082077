//! The record of a container that lies beside its state.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use oci_spec::runtime::Hooks;
use serde::{Deserialize, Serialize};
use vmm::{pod_place, process};

use super::membership::Membership;
use crate::cgroup::Cgroups;
use crate::oci::ContainerSpec;
use crate::snapshot::{Described, MountPoint};
use crate::state::OciState;
use crate::status::Status;
use crate::vmm_process::plan::ClonePlan;

/// Everything that is needed to end a container and to clean up after it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The VMM's pid. Together with its start time it names one process for good.
    pub(super) vmm: i32,
    pub(super) vmm_start: Option<u64>,
    /// Directories of control groups to remove, parents first.
    pub(super) cgroups: Vec<PathBuf>,
    pub(super) hooks: Hooks,
    /// Its sandbox is a pod's.
    #[serde(default)]
    pub(super) is_pod: bool,
    /// It is a further container of a pod; then [`Record::vmm`] is its keeper.
    #[serde(default)]
    pub(super) pod: Option<PodRecord>,
    /// Its bundle, for the manifests of snapshots.
    #[serde(default)]
    pub(super) bundle: BundleRecord,
    /// The digest of the manifest of the snapshot that it begins with.
    #[serde(default)]
    pub(super) snapshot: Option<String>,
    /// The digest of the snapshot whose held base its pages are of.
    #[serde(default)]
    pub(super) base: Option<String>,
    /// It is a clone of the command with this mark, and goes with it.
    #[serde(default)]
    pub(super) clone: Option<String>,
}

/// The parts of a container's bundle that its kernel has been told of.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BundleRecord {
    pub(super) hostname: String,
    pub(super) terminal: bool,
    pub(super) mounts: Vec<MountPoint>,
}

impl From<&ContainerSpec> for BundleRecord {
    fn from(container: &ContainerSpec) -> Self {
        Self {
            hostname: String::from_utf8_lossy(&container.boot.hostname).into_owned(),
            terminal: container.terminal,
            mounts: MountPoint::of(&container.mounts),
        }
    }
}

/// The pod of a further container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PodRecord {
    /// The id of its first container.
    pub(super) first: String,
    /// The VMM's pid and start time.
    pub(super) vmm: i32,
    pub(super) vmm_start: Option<u64>,
    /// The container's name in the pod's place for files.
    pub(super) place: String,
    /// The number by which the pod's kernel knows the container.
    pub(super) number: u64,
}

impl Record {
    /// Of a container whose VMM is yet to be forked.
    pub(super) fn new(
        container: &ContainerSpec,
        cgroups: &Cgroups,
        pod: &Membership,
        (snapshot, base): (Option<String>, Option<String>),
        clone: Option<&ClonePlan>,
    ) -> Self {
        Self {
            vmm: 0,
            vmm_start: None,
            cgroups: cgroups.directories().to_vec(),
            hooks: container.hooks.clone(),
            is_pod: pod.is_first(),
            pod: pod.record(),
            bundle: BundleRecord::from(container),
            snapshot,
            base,
            clone: clone.map(|clone| clone.mark.clone()),
        }
    }

    /// A descriptor that stands for the VMM; `None` when it has ended.
    pub(super) fn vmm(&self) -> Option<OwnedFd> {
        living(self.vmm, self.vmm_start)
    }

    /// The digest of the snapshot whose held base its pages are of, if it lives.
    #[must_use]
    pub fn base(&self) -> Option<&str> {
        self.vmm().and(self.base.as_deref())
    }

    /// The container as a snapshot describes it.
    pub(super) fn described(self, state: &OciState) -> Described {
        let BundleRecord { hostname, terminal, mounts } = self.bundle;
        Described {
            id: state.id.clone(),
            bundle: state.bundle.clone(),
            annotations: state.annotations.clone(),
            hostname,
            terminal,
            mounts,
            written: Vec::new(),
            command: None,
            pod: self.is_pod.then(Vec::new),
        }
    }

    /// The number that it has in the pod of the sandbox that this container is the first of; `None`: it is in no such pod.
    pub(super) fn number_in(&self, first: &Self) -> Option<u64> {
        self.pod.as_ref()?.number_of(first.vmm, first.vmm_start)
    }

    /// Takes the files of a further container of a pod away from the pod's VMM, if that lives.
    pub(super) fn take_files_away(&self) {
        if let Some(pod) = &self.pod
            && let Some(vmm) = pod.vmm()
        {
            // One that ends meanwhile has none of them left.
            let _ = pod_place::remove(vmm.as_fd(), &pod.place);
        }
    }
}

impl PodRecord {
    /// The number of the container, if this VMM is the pod's.
    pub(super) fn number_of(&self, vmm: i32, vmm_start: Option<u64>) -> Option<u64> {
        ((self.vmm, self.vmm_start) == (vmm, vmm_start)).then_some(self.number)
    }

    /// A descriptor that stands for the pod's VMM; `None` when it has ended.
    pub(super) fn vmm(&self) -> Option<OwnedFd> {
        living(self.vmm, self.vmm_start)
    }
}

/// The process with this pid, if it is the one that started then.
fn living(pid: i32, start: Option<u64>) -> Option<OwnedFd> {
    let pidfd = (pid > 0).then(|| process::pidfd(pid).ok())??;
    // Compared with the descriptor in hand: the pid may be another process's by now, but cannot become one's from here on.
    (process::start_time(pid).is_some() && process::start_time(pid) == start).then_some(pidfd)
}

/// The state as hooks are told, with a status of its own.
pub(super) fn hook_state(state: &OciState, status: Status) -> OciState {
    OciState { status, ..state.clone() }
}
