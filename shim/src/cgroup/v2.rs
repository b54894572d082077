//! Metrics of control groups of version 2, as runc's shim sends them.

use std::path::Path;

use containerd_shim_protos::cgroups_v2::metrics::{
    CPUStat, IOEntry, IOStat, MemoryEvents, MemoryStat, Metrics, PidsStat,
};
use containerd_shim_protos::protobuf::MessageField;
use runtime::cgroup::files::{Group, number};
use runtime::control::ContainerUsage;

use super::Source;

pub(super) fn metrics(group: &Path, source: Source) -> Metrics {
    let group = Group(group);
    let mut metrics = Metrics::new();
    let mut pids = PidsStat::new();
    pids.current = group.number("pids.current");
    pids.limit = group.limit("pids.max").unwrap_or(0);
    metrics.pids = MessageField::some(pids);
    metrics.cpu = MessageField::some(cpu(group));
    metrics.memory = MessageField::some(memory(group, source.hibernated_bytes()));
    metrics.memory_events = MessageField::some(events(group));
    let mut io = IOStat::new();
    io.usage = group.text("io.stat").lines().filter_map(io_entry).collect();
    metrics.io = MessageField::some(io);
    if let Source::Kernel(usage) = source {
        take(&mut metrics, &usage);
    }
    metrics
}

/// Puts what the container's kernel counts in the place of what its groups do.
fn take(metrics: &mut Metrics, usage: &ContainerUsage) {
    metrics.pids.mut_or_insert_default().current = usage.tasks;
    let cpu = metrics.cpu.mut_or_insert_default();
    (cpu.user_usec, cpu.system_usec) = (usage.user_ns / 1000, usage.system_ns / 1000);
    cpu.usage_usec = usage.user_ns.saturating_add(usage.system_ns) / 1000;
    (cpu.nr_periods, cpu.nr_throttled) = (usage.periods, usage.throttled_periods);
    cpu.throttled_usec = usage.throttled_ns / 1000;
    let old = metrics.memory.take().unwrap_or_default();
    metrics.memory = MessageField::some(MemoryStat {
        anon: usage.memory_bytes.saturating_sub(usage.kernel_bytes.min(usage.memory_bytes)),
        usage: usage.memory_bytes,
        usage_limit: usage.limit_bytes.unwrap_or(old.usage_limit),
        max_usage: usage.peak_bytes,
        swap_usage: usage.hibernated_bytes,
        swap_limit: old.swap_limit,
        ..MemoryStat::new()
    });
    let events = metrics.memory_events.mut_or_insert_default();
    (events.oom, events.oom_kill) = (usage.out_of_memory, usage.oom_kills);
}

fn cpu(group: Group<'_>) -> CPUStat {
    let table = group.table("cpu.stat");
    let mut stat = CPUStat::new();
    stat.usage_usec = table.get("usage_usec");
    stat.user_usec = table.get("user_usec");
    stat.system_usec = table.get("system_usec");
    stat.nr_periods = table.get("nr_periods");
    stat.nr_throttled = table.get("nr_throttled");
    stat.throttled_usec = table.get("throttled_usec");
    stat.nr_bursts = table.get("nr_bursts");
    stat.burst_usec = table.get("burst_usec");
    stat
}

fn memory(group: Group<'_>, hibernated_bytes: u64) -> MemoryStat {
    let table = group.table("memory.stat");
    let mut stat = MemoryStat::new();
    macro_rules! copy {
        ($($name:ident),* $(,)?) => { $(stat.$name = table.get(stringify!($name));)* };
    }
    copy! {
        anon, file, kernel_stack, slab, sock, shmem, file_mapped, file_dirty, file_writeback, anon_thp,
        inactive_anon, active_anon, inactive_file, active_file, unevictable, slab_reclaimable,
        slab_unreclaimable, pgfault, pgmajfault, workingset_refault, workingset_activate,
        workingset_nodereclaim, pgrefill, pgscan, pgsteal, pgactivate, pgdeactivate, pglazyfree, pglazyfreed,
        thp_fault_alloc, thp_collapse_alloc,
    }
    // Newer hosts tell files from memory of programs.
    stat.workingset_refault += table.get("workingset_refault_anon") + table.get("workingset_refault_file");
    stat.workingset_activate += table.get("workingset_activate_anon") + table.get("workingset_activate_file");
    stat.usage = group.number("memory.current");
    stat.usage_limit = group.number("memory.max");
    stat.max_usage = group.number("memory.peak");
    // A sandbox's own files count as swap.
    stat.swap_usage = group.number("memory.swap.current").saturating_add(hibernated_bytes);
    stat.swap_limit = group.number("memory.swap.max");
    stat.swap_max_usage = group.number("memory.swap.peak");
    stat
}

fn events(group: Group<'_>) -> MemoryEvents {
    let table = group.table("memory.events");
    let mut events = MemoryEvents::new();
    events.low = table.get("low");
    events.high = table.get("high");
    events.max = table.get("max");
    events.oom = table.get("oom");
    events.oom_kill = table.get("oom_kill");
    events.oom_group_kill = table.get("oom_group_kill");
    events
}

/// A line such as `8:0 rbytes=4096 wbytes=0 rios=1 wios=0 …`.
fn io_entry(line: &str) -> Option<IOEntry> {
    let mut words = line.split_whitespace();
    let (major, minor) = words.next()?.split_once(':')?;
    let mut entry = IOEntry::new();
    entry.major = major.parse().ok()?;
    entry.minor = minor.parse().ok()?;
    for (name, value) in words.filter_map(|word| word.split_once('=')) {
        match name {
            "rbytes" => entry.rbytes = number(value),
            "wbytes" => entry.wbytes = number(value),
            "rios" => entry.rios = number(value),
            "wios" => entry.wios = number(value),
            _ => {}
        }
    }
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_become_metrics() {
        let dir = testdir::TempDir::new();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("pids.max", "40\n");
        write("cpu.stat", "usage_usec 10\nuser_usec 6\nnr_bursts 2\n");
        write("memory.stat", "anon 4096\nworkingset_refault_file 3\n");
        write("memory.current", "5000\n");
        write("memory.max", "max\n");
        write("memory.swap.current", "100\n");
        write("memory.events", "oom_kill 1\n");
        write("io.stat", "8:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0\n");
        let metrics = metrics(dir.path(), Source::Groups { hibernated_bytes: 1000 });
        assert_eq!((metrics.pids.limit, metrics.cpu.usage_usec, metrics.cpu.nr_bursts), (40, 10, 2));
        let memory = &metrics.memory;
        assert_eq!((memory.anon, memory.workingset_refault, memory.usage), (4096, 3, 5000));
        assert_eq!((memory.usage_limit, memory.swap_usage), (u64::MAX, 1100));
        assert_eq!(metrics.memory_events.oom_kill, 1);
        let entry = metrics.io.usage.first().unwrap();
        assert_eq!((entry.minor, entry.rbytes, entry.wios), (16, 1, 4));
        let own = ContainerUsage { memory_bytes: 70, system_ns: 5000, tasks: 2, ..ContainerUsage::default() };
        let metrics = super::metrics(dir.path(), Source::Kernel(own));
        assert_eq!((metrics.pids.current, metrics.cpu.usage_usec, metrics.memory.usage), (2, 5, 70));
        assert_eq!((metrics.memory.anon, metrics.memory.usage_limit), (70, u64::MAX));
    }
}
