//! The use of memory, processors, processes and devices by a sandbox, as its control groups count it: the VMM, the
//! stubs and the files in memory included.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::files::{Group, Table};
use super::hierarchy::{Hierarchy, find_hierarchies, hierarchies};

/// Nanoseconds of a tick of `cpuacct.stat`: Linux shows 100 of them a second on every x86 machine.
const TICK_NS: u64 = 10_000_000;
/// Limits of version 1 from here on stand for none: the most that it can count, in whole pages.
const NO_LIMIT: u64 = i64::MAX as u64 - 0xfff;

/// The figures that the control groups of a sandbox count. A figure that the host does not count is 0, or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its groups are of version 2.
    pub is_v2: bool,
    pub cpu: CpuUsage,
    pub memory: MemoryUsage,
    pub pids: PidsUsage,
    pub block: Vec<BlockUsage>,
}

/// Processor time, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    pub total_ns: u64,
    pub user_ns: u64,
    pub system_ns: u64,
    /// By processor of the host; version 2 does not count this.
    pub per_cpu_ns: Vec<u64>,
    /// Periods of the quota, those in which it was used up, and how long the sandbox then waited.
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_ns: u64,
}

/// Memory, in bytes. Limits are the group's: the container's with headroom for the VMM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    pub usage: MemoryCount,
    /// Version 1: memory and swap together. Version 2: swap alone.
    pub swap: MemoryCount,
    /// The kernel's own memory; version 1 only.
    pub kernel: MemoryCount,
    /// The kernel's buffers of TCP; version 1 only.
    pub kernel_tcp: MemoryCount,
    /// How often the host ended a process for lack of memory.
    pub oom_kills: u64,
    /// `memory.stat`, each version with its own names.
    pub stat: BTreeMap<String, u64>,
}

/// One kind of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCount {
    pub bytes: u64,
    /// The most that it ever was.
    pub peak_bytes: u64,
    /// `None`: no limit.
    pub limit_bytes: Option<u64>,
    /// How often the limit was met.
    pub failures: u64,
}

/// Processes and threads of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidsUsage {
    pub current: u64,
    /// `None`: no limit.
    pub limit: Option<u64>,
}

/// The transfers of one block device for the sandbox: bytes, and reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockUsage {
    pub major: u64,
    pub minor: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// The groups of a process, as a container's leash is one, in every hierarchy that the runtime uses.
#[must_use]
pub fn groups_of(pid: i32) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    if groups.is_empty() {
        return Vec::new();
    }
    find_hierarchies(&mounts, &groups).into_iter().map(|one| one.own).collect()
}

/// Reads what a sandbox uses. `groups`: [`groups_of`] its leash, or the directories that were made for it, parents first.
/// Does not wake it. A group that has gone counts nothing.
#[must_use]
pub fn usage(groups: &[PathBuf]) -> Usage {
    let mut usage = Usage::default();
    for one in hierarchies() {
        let Some(dir) = groups.iter().rfind(|dir| dir.starts_with(&one.mount)) else { continue };
        usage.add(&one, dir);
    }
    usage
}

impl Usage {
    fn add(&mut self, one: &Hierarchy, dir: &Path) {
        let group = Group(dir);
        if one.controllers.is_empty() {
            self.is_v2 = true;
            return self.add_v2(group);
        }
        if one.has("cpuacct") {
            self.cpu.total_ns = group.number("cpuacct.usage");
            let stat = group.table("cpuacct.stat");
            self.cpu.user_ns = stat.get("user").saturating_mul(TICK_NS);
            self.cpu.system_ns = stat.get("system").saturating_mul(TICK_NS);
            let all = group.text("cpuacct.usage_percpu");
            self.cpu.per_cpu_ns = all.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        }
        if one.has("cpu") {
            let stat = group.table("cpu.stat");
            self.cpu.add_throttling(&stat, stat.get("throttled_time"));
        }
        if one.has("memory") {
            self.memory = memory_v1(group);
        }
        if one.has("pids") {
            self.pids = pids(group);
        }
        if one.has("blkio") {
            self.block = block_v1(group);
        }
    }

    fn add_v2(&mut self, group: Group<'_>) {
        let stat = group.table("cpu.stat");
        let ns = |name: &str| stat.get(name).saturating_mul(1000);
        (self.cpu.total_ns, self.cpu.user_ns, self.cpu.system_ns) =
            (ns("usage_usec"), ns("user_usec"), ns("system_usec"));
        self.cpu.add_throttling(&stat, ns("throttled_usec"));
        self.memory = memory_v2(group);
        self.pids = pids(group);
        self.block = block_v2(&group.text("io.stat"));
    }
}

impl CpuUsage {
    fn add_throttling(&mut self, stat: &Table, throttled_ns: u64) {
        self.periods = stat.get("nr_periods");
        self.throttled_periods = stat.get("nr_throttled");
        self.throttled_ns = throttled_ns;
    }
}

fn memory_v1(group: Group<'_>) -> MemoryUsage {
    let count = |kind: &str| {
        let file = |name: &str| group.limit(&format!("memory.{kind}{name}"));
        MemoryCount {
            bytes: file("usage_in_bytes").unwrap_or(0),
            peak_bytes: file("max_usage_in_bytes").unwrap_or(0),
            limit_bytes: file("limit_in_bytes").filter(|limit| *limit < NO_LIMIT),
            failures: file("failcnt").unwrap_or(0),
        }
    };
    MemoryUsage {
        usage: count(""),
        swap: count("memsw."),
        kernel: count("kmem."),
        kernel_tcp: count("kmem.tcp."),
        oom_kills: group.table("memory.oom_control").get("oom_kill"),
        stat: group.table("memory.stat").0,
    }
}

fn memory_v2(group: Group<'_>) -> MemoryUsage {
    let events = group.table("memory.events");
    let count = |kind: &str, failures: u64| {
        let file = |name: &str| group.limit(&format!("memory.{kind}{name}"));
        MemoryCount {
            bytes: file("current").unwrap_or(0),
            peak_bytes: file("peak").unwrap_or(0),
            limit_bytes: file("max"),
            failures,
        }
    };
    MemoryUsage {
        usage: count("", events.get("max")),
        swap: count("swap.", group.table("memory.swap.events").get("max")),
        oom_kills: events.get("oom_kill"),
        stat: group.table("memory.stat").0,
        ..MemoryUsage::default()
    }
}

fn pids(group: Group<'_>) -> PidsUsage {
    PidsUsage { current: group.number("pids.current"), limit: group.limit("pids.max") }
}

/// The files of the throttling layer are there whatever the scheduler of the device is.
fn block_v1(group: Group<'_>) -> Vec<BlockUsage> {
    let mut devices = BTreeMap::new();
    for (file, is_bytes) in
        [("blkio.throttle.io_service_bytes_recursive", true), ("blkio.throttle.io_serviced_recursive", false)]
    {
        for line in group.text(file).lines() {
            let mut words = line.split_whitespace();
            let (Some(device), Some(what), Some(count)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Some(one) = device_of(&mut devices, device) else { continue };
            let count = count.parse().unwrap_or(0);
            match (what, is_bytes) {
                ("Read", true) => one.read_bytes = count,
                ("Read", false) => one.reads = count,
                ("Write", true) => one.written_bytes = count,
                ("Write", false) => one.writes = count,
                _ => {}
            }
        }
    }
    devices.into_values().collect()
}

fn block_v2(text: &str) -> Vec<BlockUsage> {
    let mut devices = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(one) = words.next().and_then(|device| device_of(&mut devices, device)) else { continue };
        for (key, count) in words.filter_map(|word| word.split_once('=')) {
            let count = count.parse().unwrap_or(0);
            match key {
                "rbytes" => one.read_bytes = count,
                "wbytes" => one.written_bytes = count,
                "rios" => one.reads = count,
                "wios" => one.writes = count,
                _ => {}
            }
        }
    }
    devices.into_values().collect()
}

/// The entry of a device that is written as `major:minor`.
fn device_of<'a>(
    devices: &'a mut BTreeMap<(u64, u64), BlockUsage>,
    text: &str,
) -> Option<&'a mut BlockUsage> {
    let (major, minor) = text.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    Some(devices.entry((major, minor)).or_insert(BlockUsage { major, minor, ..BlockUsage::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir_with(files: &[(&str, &str)]) -> testdir::TempDir {
        let dir = testdir::TempDir::new();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn version_1_is_read() {
        let dir = dir_with(&[
            ("cpuacct.usage", "5000\n"),
            ("cpuacct.stat", "user 3\nsystem 2\n"),
            ("cpuacct.usage_percpu", "4000 1000 \n"),
            ("cpu.stat", "nr_periods 7\nnr_throttled 2\nthrottled_time 99\n"),
            ("memory.usage_in_bytes", "4096\n"),
            ("memory.max_usage_in_bytes", "8192\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.failcnt", "3\n"),
            ("memory.memsw.limit_in_bytes", "1048576\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            ("memory.stat", "cache 1\nrss 2\n"),
            ("pids.current", "4\n"),
            ("pids.max", "max\n"),
            ("blkio.throttle.io_service_bytes_recursive", "8:0 Read 512\n8:0 Write 1024\nTotal 1536\n"),
            ("blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n"),
        ]);
        let controllers = ["cpu", "cpuacct", "memory", "pids", "blkio"].map(str::to_owned).to_vec();
        let one = Hierarchy { mount: dir.path().into(), own: dir.path().into(), controllers };
        let mut usage = Usage::default();
        usage.add(&one, dir.path());
        assert_eq!(
            (usage.cpu.total_ns, usage.cpu.user_ns, usage.cpu.system_ns),
            (5000, 3 * TICK_NS, 2 * TICK_NS)
        );
        assert_eq!(usage.cpu.per_cpu_ns, [4000, 1000]);
        assert_eq!((usage.cpu.periods, usage.cpu.throttled_periods, usage.cpu.throttled_ns), (7, 2, 99));
        let count = MemoryCount { bytes: 4096, peak_bytes: 8192, limit_bytes: None, failures: 3 };
        assert_eq!(usage.memory.usage, count);
        assert_eq!((usage.memory.swap.limit_bytes, usage.memory.oom_kills), (Some(1 << 20), 1));
        assert_eq!(usage.memory.stat["rss"], 2);
        assert_eq!(usage.pids, PidsUsage { current: 4, limit: None });
        let device =
            BlockUsage { major: 8, minor: 0, read_bytes: 512, written_bytes: 1024, reads: 1, writes: 2 };
        assert_eq!(usage.block, [device]);
        assert!(!usage.is_v2);
    }

    #[test]
    fn version_2_is_read() {
        let dir = dir_with(&[
            (
                "cpu.stat",
                "usage_usec 5\nuser_usec 3\nsystem_usec 2\nnr_periods 7\nnr_throttled 2\nthrottled_usec 9\n",
            ),
            ("memory.current", "4096\n"),
            ("memory.max", "1048576\n"),
            ("memory.swap.max", "max\n"),
            ("memory.events", "low 0\nhigh 0\nmax 6\noom 1\noom_kill 1\n"),
            ("memory.stat", "anon 1\nfile 2\n"),
            ("pids.current", "4\n"),
            ("pids.max", "20\n"),
            ("io.stat", "254:0 rbytes=512 wbytes=1024 rios=1 wios=2 dbytes=0 dios=0\n7:0 \n"),
        ]);
        let one = Hierarchy { mount: dir.path().into(), own: dir.path().into(), controllers: Vec::new() };
        let mut usage = Usage::default();
        usage.add(&one, dir.path());
        assert!(usage.is_v2);
        assert_eq!((usage.cpu.total_ns, usage.cpu.user_ns, usage.cpu.throttled_ns), (5000, 3000, 9000));
        let count = MemoryCount { bytes: 4096, peak_bytes: 0, limit_bytes: Some(1 << 20), failures: 6 };
        assert_eq!((usage.memory.usage, usage.memory.swap.limit_bytes), (count, None));
        assert_eq!((usage.memory.oom_kills, usage.memory.stat["file"]), (1, 2));
        assert_eq!(usage.pids, PidsUsage { current: 4, limit: Some(20) });
        assert_eq!((usage.block.len(), usage.block[1].read_bytes, usage.block[1].writes), (2, 512, 2));
    }

    #[test]
    fn a_group_that_has_gone_counts_nothing() {
        assert_eq!(usage(&[PathBuf::from("/sys/fs/cgroup/there-is-none")]).pids, PidsUsage::default());
        assert!(groups_of(-1).is_empty());
        assert!(!groups_of(vmm::process::id()).is_empty() || hierarchies().is_empty());
    }
}
