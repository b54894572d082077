//! What the control groups of a sandbox count, as containerd is told.

pub mod oom;
mod v1;
mod v2;

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Error, Message};
use runtime::cgroup::Groups;

/// `None`: there are no groups. `hibernated_bytes`: of the sandbox's memory, on disk; the host does not know of them.
pub fn metrics(groups: &Groups, hibernated_bytes: u64) -> Option<Result<Any, Error>> {
    let (type_url, value) = match groups {
        Groups::None => return None,
        Groups::V1(groups) => {
            ("io.containerd.cgroups.v1.Metrics", v1::metrics(groups, hibernated_bytes).write_to_bytes())
        }
        Groups::V2(group) => {
            ("io.containerd.cgroups.v2.Metrics", v2::metrics(group, hibernated_bytes).write_to_bytes())
        }
    };
    Some(value.map(|value| Any { type_url: type_url.into(), value, ..Any::default() }))
}
