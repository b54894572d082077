//! The limits that the groups are given, in the words of either version.

use std::path::Path;
use std::{fs, io};

use super::block_io;
use super::error::CgroupError;
use crate::resources::{Resources, weight};

/// The limits that the groups are given.
#[derive(Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) resources: &'a Resources,
    pub(super) memory_bytes: u64,
    pub(super) cpus: u32,
}

impl Resources {
    /// Whether the limits need control groups.
    pub(super) fn need_groups(&self) -> bool {
        let cpu = &self.cpu;
        self.memory.is_some()
            || self.pids.is_some()
            || cpu.shares.is_some()
            || cpu.quota.is_some()
            || cpu.cpus.is_some()
            || cpu.mems.is_some()
            || !self.block_io.is_empty()
            || !self.unified.is_empty()
    }
}

pub(super) fn write(dir: &Path, file: &str, value: impl ToString) -> Result<(), CgroupError> {
    let (path, value) = (dir.join(file), value.to_string());
    fs::write(&path, &value).map_err(|source| {
        // Control groups answer the wish to make a file with other errors.
        let source = if path.exists() { source } else { io::ErrorKind::NotFound.into() };
        CgroupError::Set { path, value, source }
    })
}

fn write_some(dir: &Path, file: &str, value: Option<impl ToString>) -> Result<(), CgroupError> {
    value.map_or(Ok(()), |value| write(dir, file, value))
}

impl Limits<'_> {
    /// The container's limit with room for the VMM; `None` when there is none.
    pub(super) fn memory(&self) -> Option<u64> {
        self.resources.memory.map(|_| Resources::with_headroom(self.memory_bytes))
    }

    pub(super) fn memory_and_swap(&self) -> Option<i64> {
        let both = self.resources.memory_and_swap?;
        Some(both.map_or(-1, |bytes| i64::try_from(Resources::with_headroom(bytes)).unwrap_or(i64::MAX)))
    }

    /// Tasks of the host: those of the container with their stubs, and those of the VMM.
    pub(super) fn tasks(&self) -> Option<u64> {
        self.resources.host_tasks(self.cpus)
    }

    pub(super) fn set_v1(&self, dir: &Path, controllers: &[String]) -> Result<(), CgroupError> {
        let has = |name: &str| controllers.iter().any(|known| known == name);
        let (resources, cpu) = (self.resources, &self.resources.cpu);
        if has("memory") {
            write_some(dir, "memory.limit_in_bytes", self.memory())?;
            if let Some(both) = self.memory_and_swap() {
                write(dir, "memory.memsw.limit_in_bytes", both)?;
            }
            write_some(dir, "memory.soft_limit_in_bytes", resources.reservation)?;
            write_some(dir, "memory.swappiness", resources.swappiness)?;
        }
        if has("cpu") {
            write_some(dir, "cpu.shares", cpu.shares)?;
            write_some(dir, "cpu.cfs_period_us", cpu.period)?;
            write_some(dir, "cpu.cfs_quota_us", cpu.quota)?;
            write_some(dir, "cpu.cfs_burst_us", cpu.burst)?;
            write_some(dir, "cpu.rt_period_us", cpu.realtime_period)?;
            write_some(dir, "cpu.rt_runtime_us", cpu.realtime_runtime)?;
            write_some(dir, "cpu.idle", cpu.idle)?;
        }
        if has("cpuset") {
            write_some(dir, "cpuset.cpus", cpu.cpus.as_ref())?;
            write_some(dir, "cpuset.mems", cpu.mems.as_ref())?;
        }
        if has("pids") {
            write_some(dir, "pids.max", self.tasks())?;
        }
        if has("blkio") {
            block_io::set_v1(dir, &resources.block_io)?;
        }
        match resources.unified.first() {
            Some((file, value)) => Err(CgroupError::Set {
                path: dir.join(file),
                value: value.clone(),
                source: io::Error::other("the host's control groups are of version 1"),
            }),
            None => Ok(()),
        }
    }

    pub(super) fn set_v2(&self, dir: &Path) -> Result<(), CgroupError> {
        let (resources, cpu) = (self.resources, &self.resources.cpu);
        if cpu.realtime_runtime.is_some() || cpu.realtime_period.is_some() || resources.swappiness.is_some() {
            return Err(CgroupError::Set {
                path: dir.to_owned(),
                value: "realtime or swappiness".into(),
                source: io::Error::other("control groups of version 2 do not have it"),
            });
        }
        write_some(dir, "memory.max", self.memory())?;
        if let (Some(both), Some(limit)) = (resources.memory_and_swap, resources.memory) {
            let swap = both.map_or("max".to_owned(), |both| both.saturating_sub(limit).to_string());
            write(dir, "memory.swap.max", swap)?;
        }
        write_some(dir, "memory.low", resources.reservation)?;
        write_some(dir, "cpu.weight", cpu.shares.map(weight))?;
        if cpu.quota.is_some() || cpu.period.is_some() {
            let quota =
                cpu.quota.filter(|quota| *quota > 0).map_or("max".to_owned(), |quota| quota.to_string());
            write(dir, "cpu.max", format!("{quota} {}", cpu.period.unwrap_or(100_000)))?;
        }
        write_some(dir, "cpu.max.burst", cpu.burst)?;
        write_some(dir, "cpu.idle", cpu.idle)?;
        write_some(dir, "cpuset.cpus", cpu.cpus.as_ref())?;
        write_some(dir, "cpuset.mems", cpu.mems.as_ref())?;
        write_some(dir, "pids.max", self.tasks())?;
        block_io::set_v2(dir, &resources.block_io)?;
        resources.unified.iter().try_for_each(|(file, value)| write(dir, file, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited() -> Resources {
        let cpu = crate::resources::Cpu {
            shares: Some(1024),
            quota: Some(50_000),
            period: Some(100_000),
            cpus: Some("0-1".into()),
            ..Default::default()
        };
        let (memory, pids) = (Some(64 << 20), Some(10));
        Resources { memory, memory_and_swap: Some(Some(96 << 20)), cpu, pids, ..Resources::default() }
    }

    #[test]
    fn limits_are_written_as_each_version_has_them() {
        let resources = limited();
        let limits = Limits { resources: &resources, memory_bytes: 64 << 20, cpus: 1 };
        let dir = testdir::TempDir::new();
        let read = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap_or_default();
        limits.set_v2(dir.path()).unwrap();
        let with_room = (194_u64 << 20).to_string();
        assert_eq!(
            (read("memory.max"), read("memory.swap.max")),
            (with_room.clone(), (32 << 20).to_string())
        );
        assert_eq!((read("cpu.weight"), read("cpu.max")), ("39".into(), "50000 100000".into()));
        assert_eq!((read("cpuset.cpus"), read("pids.max")), ("0-1".into(), (10 * 3 + 128).to_string()));
        limits.set_v1(dir.path(), &["memory".into(), "cpu".into()]).unwrap();
        assert_eq!(read("memory.limit_in_bytes"), with_room);
        assert_eq!(read("memory.memsw.limit_in_bytes"), (227_u64 << 20).to_string());
        assert_eq!((read("cpu.shares"), read("cpu.cfs_quota_us")), ("1024".into(), "50000".into()));
        let odd = Resources { swappiness: Some(1), ..Resources::default() };
        let limits = Limits { resources: &odd, ..limits };
        assert!(limits.set_v2(dir.path()).unwrap_err().to_string().contains("version 2"));
    }

    #[test]
    fn shares_become_weights() {
        assert_eq!((weight(2), weight(1024), weight(262_144)), (1, 39, 10_000));
    }
}
