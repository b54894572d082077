//! Containers: sandboxes made from a bundle, step by step, as the OCI runtime specification has it.
//!
//! `create` forks the VMM, which prepares everything and holds the first process; then the front end goes and the VMM
//! stays. `start` lets the first process begin. The state stays after the container's end until `delete`. A container's
//! state directory holds a [`record::Record`] beside its state, and is not removed by itself.

mod checkpoint;
mod clone;
mod create;
mod end;
mod error;
mod membership;
mod record;
mod restore;
mod run;

pub use checkpoint::{CheckpointOptions, Progress, Taken, checkpoint};
pub use clone::run_clone;
pub use create::{CreateOptions, Surroundings, create};
pub use end::{delete, kill, start};
pub use error::ContainerError;
pub use run::{After, run};

use std::collections::BTreeSet;

use crate::snapshot::{Described, FurtherDescribed};
use crate::state::{Id, OciState, Root};
use crate::supervisor::FURTHER_MAX;

/// Whether a container shares the sandbox of a pod that began with another.
#[must_use]
pub fn is_further(root: &Root, id: &Id) -> bool {
    root.record::<record::Record>(id).is_some_and(|record| record.pod.is_some())
}

/// The id of the container that the pod began with whose sandbox this one shares, having come to it.
pub(super) fn first_of(root: &Root, id: &Id) -> Option<String> {
    Some(root.record::<record::Record>(id)?.pod?.first)
}

/// The further containers of the pod that began with this one, which its kernel knows by these numbers, as a snapshot describes them.
pub(super) fn further_described(
    root: &Root,
    first: &Id,
    numbers: &[u64],
) -> Result<Vec<FurtherDescribed>, String> {
    let record: record::Record = root.record(first).ok_or("nothing was noted of it")?;
    // The sandbox says so, and may say anything.
    let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
    if distinct.len() != numbers.len() || numbers.len() > FURTHER_MAX || distinct.contains(&0) {
        return Err("what its sandbox says of its containers cannot be".into());
    }
    let ids = root.ids().map_err(|error| error.to_string())?;
    let others = ids.iter().filter_map(|id| {
        let other: record::Record = root.record(id)?;
        Some((other.number_in(&record)?, id, other))
    });
    let others: Vec<_> = others.collect();
    let described = distinct.iter().map(|number| {
        let found = others.iter().find(|(of, ..)| of == number).and_then(|(_, id, other)| {
            Some(FurtherDescribed {
                number: *number,
                container: other.clone().described(&root.state(id).ok()?),
            })
        });
        found.ok_or_else(|| {
            format!("nothing was noted of container {number} of its pod, or it has just ended")
        })
    });
    let described = described.collect::<Result<Vec<_>, String>>()?;
    let mut names = BTreeSet::new();
    match described.iter().find(|one| !names.insert(one.container.name())) {
        Some(one) => Err(format!("two containers of its pod have the name {}", one.container.name())),
        None => Ok(described),
    }
}

/// The digest of the snapshot whose held base the pages of a container's sandbox are of, if it lives.
#[must_use]
pub fn base_of(root: &Root, id: &Id) -> Option<String> {
    root.record::<record::Record>(id)?.base().map(str::to_owned)
}

/// A container as a snapshot describes it; `None`: its files end with a command, since it has no bundle or is a clone.
#[must_use]
pub fn described(root: &Root, id: &Id, state: &OciState) -> Option<Described> {
    let record = root.record::<record::Record>(id).filter(|record| record.clone.is_none());
    Some(record?.described(state))
}
