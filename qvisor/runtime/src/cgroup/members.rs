//! The processes in a group.

use std::fs;

use super::hierarchy::{find_hierarchies, hierarchies};

/// The processes in the groups of process `pid` that are not this process's own. The first hierarchy that has such a group counts.
#[must_use]
pub fn members_beside(pid: i32) -> Vec<i32> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let theirs =
        find_hierarchies(&mounts, &fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default());
    let ours = hierarchies();
    let group = theirs.iter().find(|one| !ours.iter().any(|own| own.own == one.own));
    let list =
        group.and_then(|one| fs::read_to_string(one.own.join("cgroup.procs")).ok()).unwrap_or_default();
    list.lines().filter_map(|line| line.parse().ok()).collect()
}
