//! `update`: limits of a container that runs. They change in its kernel and in its control groups, and what is not named
//! stays.

use std::path::PathBuf;

use oci_spec::runtime::LinuxResources;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vmm::limits::ContainerLimits;

use super::{SandboxOrderError, Why};
use crate::cgroup;
use crate::control::{self, Order};
use crate::oci;
use crate::resources::Resources;
use crate::state::{Id, Root};
use crate::status::Status;

/// The limits of a container as they are now, beside its state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LimitsRecord {
    /// `linux.resources`, with what was changed since.
    pub resources: Value,
    /// Its vCPUs.
    pub cpus: u32,
    /// Its control groups, parents first.
    pub groups: Vec<PathBuf>,
}

/// Changes limits of a container. `change`: as `linux.resources` of a bundle; a member that is missing, null, 0 or empty
/// changes nothing, and -1 is no limit. Memory that is in use is not taken away: a limit below it is refused, as it is with
/// control groups of version 1.
pub fn update(root: &Root, id: &Id, change: &LinuxResources) -> Result<(), SandboxOrderError> {
    let failed = |why| SandboxOrderError::Update { id: id.as_str().to_owned(), why };
    let state = root.state(id)?;
    if state.status == Status::Stopped {
        return Err(failed(Why::NotRunning));
    }
    let _one_at_a_time = root.lock_limits(id)?;
    let Some(record) = root.limits::<LimitsRecord>(id) else { return Err(failed(Why::NoContainer)) };
    let mut resources = record.resources.clone();
    let change = serde_json::to_value(change).map_err(|error| failed(Why::Limits(error.to_string())))?;
    merge(&mut resources, &change);
    let checked = |value: &Value| {
        let parsed = serde_json::from_value::<LinuxResources>(value.clone());
        let parsed = parsed.map_err(|error| Why::Limits(error.to_string()))?;
        Ok(oci::resources(Some(&parsed))?)
    };
    let old = checked(&record.resources).map_err(failed)?;
    let new = checked(&resources).map_err(failed)?;
    let groups = |from: &Resources, to: &Resources| {
        let is_same = from == to;
        if is_same { Ok(()) } else { cgroup::update(&record.groups, from, to, record.cpus) }
    };
    let kernel = |limits: ContainerLimits| {
        control::order(&root.sandbox(id)?, Order::Update { limits }).map_err(Why::from)
    };
    // The kernel is the one that may refuse; the groups are a second line, which must not be below the kernel's.
    if new.memory.unwrap_or(u64::MAX) < old.memory.unwrap_or(u64::MAX) {
        let changed = kernel(new.container_limits());
        if let Err(why) = changed.and_then(|_| groups(&old, &new).map_err(Why::from)) {
            let _ = groups(&new, &old);
            // The kernel took the others even if it refused that of memory.
            let _ = kernel(old.container_limits());
            return Err(failed(why));
        }
    } else {
        groups(&old, &new).map_err(|error| {
            let _ = groups(&new, &old);
            failed(error.into())
        })?;
        kernel(new.container_limits()).map_err(|why| {
            let _ = groups(&new, &old);
            failed(why)
        })?;
    }
    root.write_limits(id, &LimitsRecord { resources, ..record })?;
    Ok(())
}

/// Puts the members of `change` in the place of those in `value`, but for those that say nothing.
fn merge(value: &mut Value, change: &Value) {
    let says_nothing = match change {
        Value::Null => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Bool(_) | Value::Object(_) => false,
    };
    if says_nothing {
        return;
    }
    if let Value::Object(members) = change {
        if !value.is_object() {
            *value = Value::Object(serde_json::Map::new());
        }
        if let Value::Object(olds) = value {
            for (name, member) in members {
                merge(olds.entry(name).or_insert(Value::Null), member);
            }
            olds.retain(|_, member| !member.is_null());
        }
    } else {
        *value = change.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_named_stays() {
        let mut value =
            json!({"memory": {"limit": 100, "swap": 200}, "cpu": {"cpus": "0-1"}, "devices": [1]});
        merge(
            &mut value,
            &json!({"memory": {"limit": 50, "swap": 0}, "cpu": {"cpus": "", "shares": 7}, "pids": {"limit": -1}, "devices": []}),
        );
        let wanted = json!({
            "memory": {"limit": 50, "swap": 200}, "cpu": {"cpus": "0-1", "shares": 7}, "pids": {"limit": -1}, "devices": [1],
        });
        assert_eq!(value, wanted);
        let mut nothing = Value::Null;
        merge(&mut nothing, &json!({"memory": {"limit": 5, "swap": null}}));
        assert_eq!(nothing, json!({"memory": {"limit": 5}}));
    }
}
