//! The pod that a container comes to, if it comes to one.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use vmm::ids::IdMaps;
use vmm::jail::Users;
use vmm::net::Network;

use super::create::CreateOptions;
use super::error::ContainerError;
use super::record::{PodRecord, Record};
use crate::cgroup::Cgroups;
use crate::control::Restores;
use crate::keeper::KeeperPlan;
use crate::oci::{ContainerSpec, Namespaces, Pod, PodSize};
use crate::resources::Resources;
use crate::settings::Pods;
use crate::state::{Id, Root};
use crate::vmm_process::plan::Bundle;
use crate::words;

/// The part that a container has in a pod.
pub(super) enum Membership {
    None,
    /// The pod begins with it.
    First(PodSize),
    Further(Further),
}

/// A pod whose sandbox takes a further container.
pub(super) struct Further {
    record: PodRecord,
    vmm: std::os::fd::OwnedFd,
    root: Root,
}

impl Membership {
    /// Of a container as its annotations say; with `pods` separate, of none. What a further container has in common with
    /// others is filled in.
    pub(super) fn of(
        options: &CreateOptions,
        container: &mut ContainerSpec,
        pods: Pods,
    ) -> Result<Self, ContainerError> {
        let failed = |why: String| ContainerError::Pod { id: options.id.as_str().to_owned(), why };
        let shared_pids = container.namespaces.pids_of;
        let is_further = matches!(container.pod, Pod::Further(_));
        if let Some(path) = container.namespaces.ipc.as_ref().filter(|_| !is_further) {
            return Err(failed(format!(
                "it asks for IPC namespace {}, and each sandbox has its own; containers share one in a pod",
                path.display()
            )));
        }
        let (pod, Pods::Shared) = (container.pod.clone(), pods) else {
            return match shared_pids {
                Some(pid) => Err(failed(separate(pid))),
                None => Ok(Self::None),
            };
        };
        match pod {
            Pod::None | Pod::First(_) if shared_pids.is_some() => {
                Err(failed(separate(shared_pids.unwrap_or_default())))
            }
            Pod::None => Ok(Self::None),
            Pod::First(size) => Ok(Self::First(size)),
            Pod::Further(first) => {
                let found = Further::find(&options.root, &first, &options.id).and_then(|further| {
                    further.is_in_its_network(&container.namespaces)?;
                    further.has_its_ids(container.id_maps.as_ref())?;
                    Ok(further)
                });
                let words = |why| format!("its pod begins with container {first}, and {why}");
                let further = found.map_err(|why| failed(words(why)))?;
                if let Some(path) = &container.namespaces.ipc {
                    if !further.is_theirs(path, "ipc") {
                        return Err(failed(format!(
                            "IPC namespace {} is not that of its pod",
                            path.display()
                        )));
                    }
                    container.boot.ipc_space = Some(0);
                }
                if container.namespaces.shares_host_name() {
                    container.boot.hostname.clear();
                }
                if let Some(pid) = shared_pids {
                    let space = further.container_of(pid);
                    container.boot.pid_space = Some(space.ok_or_else(|| {
                        failed(format!("pid namespace /proc/{pid}/ns/pid is that of no container of its pod"))
                    })?);
                }
                Ok(Self::Further(further))
            }
        }
    }

    pub(super) fn is_first(&self) -> bool {
        matches!(self, Self::First(_))
    }

    /// The limits of the control groups.
    pub(super) fn resources(&self, container: &ContainerSpec) -> Resources {
        match self {
            Self::First(size) => size.of_sandbox(&container.resources),
            _ => container.resources.clone(),
        }
    }

    pub(super) fn record(&self) -> Option<PodRecord> {
        match self {
            Self::Further(further) => Some(further.record.clone()),
            _ => None,
        }
    }
}

impl Further {
    /// The pod that begins with the container of this id, for a container of that one. The error follows "and".
    fn find(root: &Root, first: &str, id_of_further: &Id) -> Result<Self, String> {
        let id = Id::new(first).map_err(|error| error.to_string())?;
        let record: Record = root.record(&id).ok_or_else(|| words::DOES_NOT_EXIST.to_owned())?;
        if !record.is_pod {
            return Err(words::NO_POD.into());
        }
        let vmm = record.vmm().ok_or("its sandbox has ended")?;
        let (pid, start) = (record.vmm, record.vmm_start);
        let (first, place) = (first.to_owned(), id_of_further.as_str().to_owned());
        let record = PodRecord { first, vmm: pid, vmm_start: start, place, number: 0 };
        Ok(Self { record, vmm, root: root.clone() })
    }

    /// Annotations come from strangers, and do not suffice: whoever has made the container must have given it the pod's
    /// network namespace as well; or, where the pod is in the host's, its IPC namespace.
    fn is_in_its_network(&self, asked: &Namespaces) -> Result<(), String> {
        let is_same = match &asked.network {
            Network::Path(path) => self.is_theirs(path, "net"),
            Network::Host => {
                self.is_theirs(Path::new("/proc/self/ns/net"), "net")
                    && asked.ipc.as_ref().is_some_and(|path| self.is_theirs(path, "ipc"))
            }
            Network::None => false,
        };
        if is_same { Ok(()) } else { Err(words::NOT_THE_PODS_NETWORK.into()) }
    }

    /// Whether a path is the pod's namespace of this kind.
    fn is_theirs(&self, path: &Path, kind: &str) -> bool {
        let which = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        let theirs = which(Path::new(&format!("/proc/{}/ns/{kind}", self.record.vmm)));
        theirs.is_some() && which(path) == theirs
    }

    /// The ids of a container are those of the pod, whose VMM makes its files.
    fn has_its_ids(&self, asked: Option<&IdMaps>) -> Result<(), String> {
        let is_shown = Users::are_shown_by(self.record.vmm, asked);
        match is_shown.map_err(|error| format!("its user namespace cannot be read: {error}"))? {
            true => Ok(()),
            false => Err(words::NOT_THE_PODS_IDS.into()),
        }
    }

    /// The number by which the pod's kernel knows the container whose leash has this pid.
    fn container_of(&self, pid: i32) -> Option<u64> {
        let id = self.root.state_of_pid(pid)?.id;
        if id == self.record.first {
            return Some(0);
        }
        let pod = self.root.record::<Record>(&Id::new(&id).ok()?)?.pod?;
        pod.number_of(self.record.vmm, self.record.vmm_start)
    }

    /// Whether its pod began with the snapshot whose manifest has this digest.
    pub(super) fn began_with(&self, snapshot: &str) -> bool {
        let first = Id::new(&self.record.first).ok().and_then(|id| self.root.record::<Record>(&id));
        first.is_some_and(|first| first.snapshot.as_deref() == Some(snapshot))
    }

    pub(super) fn plan(self, bundle: Bundle, cgroups: Cgroups, restores: Option<Restores>) -> KeeperPlan {
        let Self { record: PodRecord { first, vmm: vmm_pid, place, .. }, vmm, root } = self;
        KeeperPlan { bundle, place, vmm_pid, vmm, root, first, restores, cgroups }
    }
}

fn separate(pid: i32) -> String {
    format!(
        "it asks for pid namespace /proc/{pid}/ns/pid, and each sandbox has its own; containers share one in a pod, with \
         pods set to shared (the annotation dev.dormouse.pods, or the node's configuration)"
    )
}
