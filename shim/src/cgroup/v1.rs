//! Metrics of control groups of version 1, as runc's shim sends them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use containerd_shim_protos::cgroups::metrics::{
    BlkIOEntry, BlkIOStat, CPUStat, CPUUsage, MemoryEntry, MemoryOomControl, MemoryStat, Metrics, PidsStat,
    Throttle,
};
use containerd_shim_protos::protobuf::MessageField;
use runtime::cgroup::files::{Group, number};
use runtime::control::ContainerUsage;

use super::Source;

pub(super) fn metrics(groups: &BTreeMap<String, PathBuf>, source: Source) -> Metrics {
    let group = |controller: &str| groups.get(controller).map(|path| Group(path));
    let mut metrics = Metrics::new();
    metrics.pids = group("pids").map(pids).into();
    metrics.cpu = cpu(group("cpu"), group("cpuacct")).into();
    if let Some(memory) = group("memory") {
        metrics.memory = MessageField::some(memory_stat(memory, source.hibernated_bytes()));
        metrics.memory_oom_control = MessageField::some(oom_control(memory));
    }
    metrics.blkio = group("blkio").map(blkio).into();
    if let Source::Kernel(usage) = source {
        take(&mut metrics, &usage);
    }
    metrics
}

/// Puts what the container's kernel counts in the place of what its groups do.
fn take(metrics: &mut Metrics, usage: &ContainerUsage) {
    metrics.pids.mut_or_insert_default().current = usage.tasks;
    let throttle = metrics.cpu.mut_or_insert_default().throttling.mut_or_insert_default();
    (throttle.periods, throttle.throttled_periods) = (usage.periods, usage.throttled_periods);
    throttle.throttled_time = usage.throttled_ns;
    let cpu = metrics.cpu.mut_or_insert_default().usage.mut_or_insert_default();
    (cpu.user, cpu.kernel) = (usage.user_ns, usage.system_ns);
    cpu.total = usage.user_ns.saturating_add(usage.system_ns);
    cpu.per_cpu.clear();
    let memory = metrics.memory.mut_or_insert_default();
    let resident = usage.memory_bytes.saturating_sub(usage.kernel_bytes.min(usage.memory_bytes));
    *memory = MemoryStat {
        rss: resident,
        total_rss: resident,
        hierarchical_memory_limit: memory.hierarchical_memory_limit,
        usage: memory.usage.clone(),
        swap: memory.swap.clone(),
        ..MemoryStat::new()
    };
    let entry = memory.usage.mut_or_insert_default();
    (entry.usage, entry.max, entry.failcnt) = (usage.memory_bytes, usage.peak_bytes, usage.out_of_memory);
    entry.limit = usage.limit_bytes.unwrap_or(entry.limit);
    let swap = memory.swap.mut_or_insert_default();
    swap.usage = usage.memory_bytes.saturating_add(usage.hibernated_bytes);
    metrics.memory_oom_control.mut_or_insert_default().oom_kill = usage.oom_kills;
}

fn pids(group: Group<'_>) -> PidsStat {
    let mut stat = PidsStat::new();
    stat.current = group.number("pids.current");
    // No limit is none, not a large one.
    stat.limit = group.limit("pids.max").unwrap_or(0);
    stat
}

fn cpu(cpu: Option<Group<'_>>, account: Option<Group<'_>>) -> Option<CPUStat> {
    let mut stat = CPUStat::new();
    let account = account?;
    let mut usage = CPUUsage::new();
    usage.total = account.number("cpuacct.usage");
    // In ticks of a hundredth of a second.
    let split = account.table("cpuacct.stat");
    usage.user = split.get("user").saturating_mul(10_000_000);
    usage.kernel = split.get("system").saturating_mul(10_000_000);
    usage.per_cpu = account.text("cpuacct.usage_percpu").split_whitespace().map(number).collect();
    stat.usage = MessageField::some(usage);
    if let Some(cpu) = cpu {
        let table = cpu.table("cpu.stat");
        let mut throttle = Throttle::new();
        throttle.periods = table.get("nr_periods");
        throttle.throttled_periods = table.get("nr_throttled");
        throttle.throttled_time = table.get("throttled_time");
        stat.throttling = MessageField::some(throttle);
    }
    Some(stat)
}

fn memory_stat(group: Group<'_>, hibernated_bytes: u64) -> MemoryStat {
    let table = group.table("memory.stat");
    let mut stat = MemoryStat::new();
    macro_rules! copy {
        ($($field:ident: $name:literal),* $(,)?) => { $(stat.$field = table.get($name);)* };
    }
    copy! {
        cache: "cache", rss: "rss", rss_huge: "rss_huge", mapped_file: "mapped_file", dirty: "dirty",
        writeback: "writeback", pg_pg_in: "pgpgin", pg_pg_out: "pgpgout", pg_fault: "pgfault",
        pg_maj_fault: "pgmajfault", inactive_anon: "inactive_anon", active_anon: "active_anon",
        inactive_file: "inactive_file", active_file: "active_file", unevictable: "unevictable",
        hierarchical_memory_limit: "hierarchical_memory_limit", hierarchical_swap_limit: "hierarchical_memsw_limit",
        total_cache: "total_cache", total_rss: "total_rss", total_rss_huge: "total_rss_huge",
        total_mapped_file: "total_mapped_file", total_dirty: "total_dirty", total_writeback: "total_writeback",
        total_pg_pg_in: "total_pgpgin", total_pg_pg_out: "total_pgpgout", total_pg_fault: "total_pgfault",
        total_pg_maj_fault: "total_pgmajfault", total_inactive_anon: "total_inactive_anon",
        total_active_anon: "total_active_anon", total_inactive_file: "total_inactive_file",
        total_active_file: "total_active_file", total_unevictable: "total_unevictable",
    }
    let entry = |kind: &str| {
        let file = |what: &str| group.number(&format!("memory.{kind}{what}"));
        let mut entry = MemoryEntry::new();
        entry.usage = file("usage_in_bytes");
        entry.max = file("max_usage_in_bytes");
        entry.failcnt = file("failcnt");
        entry.limit = file("limit_in_bytes");
        entry
    };
    stat.usage = MessageField::some(entry(""));
    // With what is swapped; a sandbox's own files count as that.
    let mut swap = entry("memsw.");
    swap.usage = swap.usage.saturating_add(hibernated_bytes);
    stat.swap = MessageField::some(swap);
    stat.kernel = MessageField::some(entry("kmem."));
    stat.kernel_tcp = MessageField::some(entry("kmem.tcp."));
    stat
}

fn oom_control(group: Group<'_>) -> MemoryOomControl {
    let table = group.table("memory.oom_control");
    let mut control = MemoryOomControl::new();
    control.oom_kill_disable = table.get("oom_kill_disable");
    control.under_oom = table.get("under_oom");
    control.oom_kill = table.get("oom_kill");
    control
}

fn blkio(group: Group<'_>) -> BlkIOStat {
    // The first is there with every scheduler of block devices, the second with some.
    let entries = |kind: &str| {
        let files = [format!("blkio.throttle.{kind}_recursive"), format!("blkio.{kind}_recursive")];
        let texts = files.iter().map(|file| group.text(file));
        let read = texts.map(|text| text.lines().filter_map(blkio_entry).collect::<Vec<_>>());
        read.into_iter().find(|entries| !entries.is_empty()).unwrap_or_default()
    };
    let mut stat = BlkIOStat::new();
    stat.io_service_bytes_recursive = entries("io_service_bytes");
    stat.io_serviced_recursive = entries("io_serviced");
    stat
}

/// A line such as `8:0 Read 4096`.
fn blkio_entry(line: &str) -> Option<BlkIOEntry> {
    let mut words = line.split_whitespace();
    let (device, op, value) = (words.next()?, words.next()?, words.next()?);
    let (major, minor) = device.split_once(':')?;
    let mut entry = BlkIOEntry::new();
    entry.major = major.parse().ok()?;
    entry.minor = minor.parse().ok()?;
    op.clone_into(&mut entry.op);
    entry.value = number(value);
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_become_metrics() {
        let dir = testdir::TempDir::new();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("pids.current", "7\n");
        write("pids.max", "max\n");
        write("cpuacct.usage", "123456\n");
        write("cpuacct.stat", "user 3\nsystem 4\n");
        write("memory.stat", "rss 4096\ntotal_inactive_file 8192\n");
        write("memory.usage_in_bytes", "5000\n");
        write("memory.memsw.usage_in_bytes", "6000\n");
        write("blkio.throttle.io_service_bytes_recursive", "8:0 Read 4096\nTotal 4096\n");
        let names = ["pids", "cpu", "cpuacct", "memory", "blkio"];
        let groups = names.map(|name| (name.to_owned(), dir.path().to_owned())).into();
        let metrics = metrics(&groups, Source::Groups { hibernated_bytes: 1000 });
        assert_eq!((metrics.pids.current, metrics.pids.limit), (7, 0));
        assert_eq!((metrics.cpu.usage.total, metrics.cpu.usage.kernel), (123_456, 40_000_000));
        assert_eq!((metrics.memory.rss, metrics.memory.total_inactive_file), (4096, 8192));
        assert_eq!((metrics.memory.usage.usage, metrics.memory.swap.usage), (5000, 7000));
        assert_eq!(metrics.blkio.io_service_bytes_recursive.len(), 1);
        let own = ContainerUsage {
            memory_bytes: 70,
            user_ns: 3,
            system_ns: 4,
            tasks: 2,
            ..ContainerUsage::default()
        };
        let metrics = super::metrics(&groups, Source::Kernel(own));
        assert_eq!((metrics.pids.current, metrics.cpu.usage.total, metrics.memory.usage.usage), (2, 7, 70));
        assert_eq!(metrics.memory.total_inactive_file, 0);
    }
}
