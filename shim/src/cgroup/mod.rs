//! Figures of a sandbox's control groups, in the form that containerd is told them.

pub mod oom;
mod v1;
mod v2;

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Error, Message};
use runtime::cgroup::Groups;
use runtime::control::ContainerUsage;

/// Where the figures of a container come from that its groups do not have.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Its groups hold its sandbox, of whose memory so many bytes are on disk; the host does not know of them.
    Groups { hibernated_bytes: u64 },
    /// It shares the sandbox of a pod: what it uses its kernel counts.
    Kernel(ContainerUsage),
}

impl Source {
    fn hibernated_bytes(self) -> u64 {
        match self {
            Self::Groups { hibernated_bytes } => hibernated_bytes,
            Self::Kernel(usage) => usage.hibernated_bytes,
        }
    }
}

/// `None`: there are no groups.
pub fn metrics(groups: &Groups, source: Source) -> Option<Result<Any, Error>> {
    let (type_url, value) = match groups {
        Groups::None => return None,
        Groups::V1(groups) => {
            ("io.containerd.cgroups.v1.Metrics", v1::metrics(groups, source).write_to_bytes())
        }
        Groups::V2(group) => {
            ("io.containerd.cgroups.v2.Metrics", v2::metrics(group, source).write_to_bytes())
        }
    };
    Some(value.map(|value| Any { type_url: type_url.into(), value, ..Any::default() }))
}
