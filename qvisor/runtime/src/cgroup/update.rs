//! Limits of a sandbox's groups that change while it runs.

use std::path::{Path, PathBuf};

use super::block_io;
use super::error::CgroupError;
use super::hierarchy::{Hierarchy, hierarchies};
use super::limits::{Limits, write};
use super::systemd::Scope;
use crate::resources::{Cpu, Resources, weight};

/// Writes the limits that differ to the groups of a sandbox, which are directories in the order in which they were made.
/// `cpus`: its vCPUs. A limit that has gone becomes none.
pub fn update(groups: &[PathBuf], old: &Resources, new: &Resources, cpus: u32) -> Result<(), CgroupError> {
    let hierarchies = hierarchies();
    let leaf = |one: &Hierarchy| groups.iter().rfind(|dir| dir.starts_with(&one.mount));
    let with_groups: Vec<_> = hierarchies.iter().filter_map(|one| Some((one, leaf(one)?))).collect();
    if with_groups.is_empty() {
        return Err(CgroupError::NotMounted);
    }
    // systemd first: what it rounds is written to the files after it. The processor's weight is its own.
    let scope = groups.iter().find_map(|entry| Scope::listed(entry));
    let (old, new) = match (scope, hierarchies.first()) {
        (Some(scope), Some(one)) => {
            let memory_bytes = new.memory.unwrap_or(u64::MAX);
            scope.update(&one.mount, &Limits { resources: new, memory_bytes, cpus })?;
            (&old.without_weight(), &new.without_weight())
        }
        _ => (old, new),
    };
    for (one, dir) in with_groups {
        let change = Change { dir, old, new, cpus };
        if one.controllers.is_empty() { change.v2()? } else { change.v1(one)? }
    }
    Ok(())
}

struct Change<'a> {
    dir: &'a Path,
    old: &'a Resources,
    new: &'a Resources,
    cpus: u32,
}

/// A number, or the word for none.
fn or(none: &str, value: Option<impl ToString>) -> String {
    value.map_or(none.to_owned(), |value| value.to_string())
}

fn memory(resources: &Resources) -> Option<u64> {
    resources.memory.map(Resources::with_headroom)
}

/// Memory and swap together, as version 1 counts them.
fn both(resources: &Resources) -> Option<u64> {
    resources.memory_and_swap.flatten().map(Resources::with_headroom)
}

/// Swap alone, as version 2 counts it.
fn swap(resources: &Resources) -> Option<u64> {
    Some(resources.memory_and_swap.flatten()?.saturating_sub(resources.memory?))
}

impl Change<'_> {
    /// Writes a file if its content changes.
    fn write(&self, file: &str, text: impl Fn(&Resources) -> String) -> Result<(), CgroupError> {
        let (old, new) = (text(self.old), text(self.new));
        if old == new { Ok(()) } else { write(self.dir, file, new) }
    }

    /// Writes a file if its value is given and changes. Without a value it stays: the host does not change it by
    /// itself.
    fn write_some<T: ToString + PartialEq>(
        &self,
        file: &str,
        value: impl Fn(&Cpu) -> Option<T>,
    ) -> Result<(), CgroupError> {
        match value(&self.new.cpu) {
            Some(new) if value(&self.old.cpu).as_ref() != Some(&new) => write(self.dir, file, new),
            _ => Ok(()),
        }
    }

    fn v1(&self, one: &Hierarchy) -> Result<(), CgroupError> {
        let has = |name: &str| one.has(name);
        if has("memory") {
            let limit = || self.write("memory.limit_in_bytes", |it| or("-1", memory(it)));
            let both = || self.write("memory.memsw.limit_in_bytes", |it| or("-1", both(it)));
            // Memory must never be more than memory and swap together, so the order depends on the direction.
            if memory(self.new).unwrap_or(u64::MAX) > memory(self.old).unwrap_or(u64::MAX) {
                both()?;
                limit()?;
            } else {
                limit()?;
                both()?;
            }
            self.write("memory.soft_limit_in_bytes", |it| or("-1", it.reservation))?;
        }
        if has("cpu") {
            self.write_some("cpu.shares", |cpu| cpu.shares)?;
            // A quota that is less than a burst, or more than fits a period, is refused: none in between.
            if self.old.cpu.period != self.new.cpu.period {
                write(self.dir, "cpu.cfs_quota_us", -1)?;
                self.write_some("cpu.cfs_period_us", |cpu| cpu.period)?;
                write(self.dir, "cpu.cfs_quota_us", self.new.cpu.quota.unwrap_or(-1))?;
            } else {
                self.write("cpu.cfs_quota_us", |it| or("-1", it.cpu.quota))?;
            }
            self.write_some("cpu.cfs_burst_us", |cpu| cpu.burst)?;
            self.write_some("cpu.rt_period_us", |cpu| cpu.realtime_period)?;
            self.write_some("cpu.rt_runtime_us", |cpu| cpu.realtime_runtime)?;
            self.write_some("cpu.idle", |cpu| cpu.idle)?;
        }
        if has("cpuset") {
            self.write_some("cpuset.cpus", |cpu| cpu.cpus.clone())?;
            self.write_some("cpuset.mems", |cpu| cpu.mems.clone())?;
        }
        if has("pids") {
            self.write("pids.max", |it| or("max", it.host_tasks(self.cpus)))?;
        }
        if has("blkio") && self.old.block_io != self.new.block_io {
            block_io::set_v1(self.dir, &self.new.block_io)?;
        }
        Ok(())
    }

    fn v2(&self) -> Result<(), CgroupError> {
        self.write("memory.max", |it| or("max", memory(it)))?;
        self.write("memory.swap.max", |it| or("max", swap(it)))?;
        self.write("memory.low", |it| or("0", it.reservation))?;
        self.write_some("cpu.weight", |cpu| cpu.shares.map(weight))?;
        self.write("cpu.max", |it| {
            let quota = or("max", it.cpu.quota.filter(|quota| *quota > 0));
            format!("{quota} {}", it.cpu.period.unwrap_or(100_000))
        })?;
        self.write_some("cpu.max.burst", |cpu| cpu.burst)?;
        self.write_some("cpu.idle", |cpu| cpu.idle)?;
        self.write_some("cpuset.cpus", |cpu| cpu.cpus.clone())?;
        self.write_some("cpuset.mems", |cpu| cpu.mems.clone())?;
        self.write("pids.max", |it| or("max", it.host_tasks(self.cpus)))?;
        if self.old.block_io == self.new.block_io {
            return Ok(());
        }
        block_io::set_v2(self.dir, &self.new.block_io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_written() {
        let dir = testdir::TempDir::new();
        let old = Resources { memory: Some(64 << 20), pids: Some(10), ..Resources::default() };
        let new = Resources { pids: None, ..old.clone() };
        let change = Change { dir: dir.path(), old: &old, new: &new, cpus: 2 };
        change.v2().unwrap();
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["pids.max"]);
        assert_eq!(std::fs::read_to_string(dir.path().join("pids.max")).unwrap(), "max");
    }
}
