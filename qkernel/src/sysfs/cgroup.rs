//! The container's control group, as a container sees it with a private cgroup namespace: version 2, read only.
//!
//! It is a file system of its own (`cgroup2`), and there where the bundle mounts one. Limits are those that the container has
//! now. What is used is counted by this kernel, so it is what the container's programs have, without the VMM around them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Display;
use core::sync::atomic::Ordering;

use abi::limits::ContainerLimit;

use crate::fs::inode::Inode;
use crate::pseudo::{Context, Entry, FileSystem, Node, Out, Place};
use crate::sysfs::{all_cpus, number};
use crate::task::container::{self, Container};
use machine::errno::{Errno, Result};
use machine::mm::owners;
use machine::owner::Owner;
use machine::sched::{Throttling, shares};
use machine::time;

static CGROUP_FS: FileSystem = FileSystem { dev: 0xf2, magic: 0x6367_7270, no_new_names: Errno::EPERM };

/// The container that looks.
#[derive(Clone, Copy)]
struct Group;

impl Context for Group {
    fn file_system(&self) -> &'static FileSystem {
        &CGROUP_FS
    }
}

/// The root of a `cgroup2` file system.
pub fn root() -> Arc<dyn Inode> {
    static ROOT: Entry<Group> = Entry::dir("", TABLE);
    Node::new(Group, &ROOT, Place::ROOT)
}

const NO_PRESSURE: &str =
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

/// Files that a program could only write, or set something with, are left out or fixed.
static TABLE: &[Entry<Group>] = &[
    Entry::fixed("cgroup.controllers", "cpuset cpu io memory pids\n"),
    Entry::fixed("cgroup.events", "populated 1\nfrozen 0\n"),
    Entry::fixed("cgroup.freeze", "0\n"),
    Entry::fixed("cgroup.max.depth", "max\n"),
    Entry::fixed("cgroup.max.descendants", "max\n"),
    Entry::text("cgroup.procs", processes),
    Entry::fixed("cgroup.stat", "nr_descendants 0\nnr_dying_descendants 0\n"),
    Entry::fixed("cgroup.subtree_control", "\n"),
    Entry::text("cgroup.threads", threads),
    Entry::fixed("cgroup.type", "domain\n"),
    Entry::fixed("cpu.idle", "0\n"),
    Entry::text("cpu.max", cpu_max),
    Entry::fixed("cpu.max.burst", "0\n"),
    Entry::fixed("cpu.pressure", NO_PRESSURE),
    Entry::text("cpu.stat", cpu_stat),
    Entry::text("cpu.weight", |_, out| limit(out, ContainerLimit::CpuWeight)),
    Entry::fixed("cpuset.cpus", "\n"),
    Entry::text("cpuset.cpus.effective", |_, out| all_cpus(out)),
    Entry::fixed("cpuset.mems", "\n"),
    Entry::fixed("cpuset.mems.effective", "0\n"),
    Entry::text("io.max", |_, _| Ok(())),
    Entry::fixed("io.pressure", NO_PRESSURE),
    Entry::text("io.stat", |_, _| Ok(())),
    Entry::text("memory.current", |_, out| number(out, owners::used(owner()))),
    Entry::text("memory.events", memory_events),
    Entry::text("memory.events.local", memory_events),
    Entry::fixed("memory.high", "max\n"),
    Entry::text("memory.low", |_, out| limit(out, ContainerLimit::MemoryLow)),
    Entry::text("memory.max", |_, out| limit(out, ContainerLimit::MemoryMax)),
    Entry::fixed("memory.min", "0\n"),
    Entry::fixed("memory.oom.group", "0\n"),
    Entry::text("memory.peak", memory_peak),
    Entry::fixed("memory.pressure", NO_PRESSURE),
    Entry::text("memory.stat", memory_stat),
    Entry::fixed("memory.swap.current", "0\n"),
    Entry::fixed("memory.swap.events", "high 0\nmax 0\nfail 0\n"),
    Entry::fixed("memory.swap.high", "max\n"),
    Entry::text("memory.swap.max", |_, out| limit(out, ContainerLimit::SwapMax)),
    Entry::text("pids.current", |_, out| number(out, container::current().task_count())),
    Entry::text("pids.events", |_, out| {
        let refused = container::current().events.forks_refused.load(Ordering::Relaxed);
        number(out, format_args!("max {refused}"))
    }),
    Entry::text("pids.max", |_, out| limit(out, ContainerLimit::TasksMax)),
];

/// A limit, or `max` where there is none.
fn limit(out: &mut Out, limit: ContainerLimit) -> Result<()> {
    push_limit(out, container::current().limits.get(limit), "\n");
    Ok(())
}

fn push_limit(out: &mut Out, limit: Option<u64>, end: &str) {
    match limit {
        Some(value) => write!(out, "{value}{end}"),
        None => write!(out, "max{end}"),
    }
}

fn lines<T: Display>(out: &mut Out, values: &[T]) -> Result<()> {
    values.iter().try_for_each(|value| number(out, value))
}

/// The processes that still run.
fn processes(_: &Group, out: &mut Out) -> Result<()> {
    let container = container::current();
    let ids: Vec<u32> = container.pids.tree.lock().living(&container).map(|process| process.pid).collect();
    lines(out, &ids)
}

fn threads(_: &Group, out: &mut Out) -> Result<()> {
    let mut ids: Vec<u32> = container::current().tasks().iter().map(|task| task.tid()).collect();
    ids.sort_unstable();
    lines(out, &ids)
}

fn cpu_max(_: &Group, out: &mut Out) -> Result<()> {
    push_cpu_max(out, &container::current());
    Ok(())
}

fn push_cpu_max(out: &mut Out, container: &Container) {
    push_limit(out, container.limits.get(ContainerLimit::CpuQuota), " ");
    push_limit(out, container.limits.get(ContainerLimit::CpuPeriod), "\n");
}

fn cpu_stat(_: &Group, out: &mut Out) -> Result<()> {
    let (user, system) = container::current().cpu_ticks();
    let [user, system] = [user, system].map(|ticks| time::ticks_to_ns(ticks) / 1000);
    writeln!(out, "usage_usec {}\nuser_usec {user}\nsystem_usec {system}", user + system);
    let Throttling { periods, throttled_periods, throttled_ns } = shares::throttling(owner());
    writeln!(out, "nr_periods {periods}\nnr_throttled {throttled_periods}");
    writeln!(out, "throttled_usec {}\nnr_bursts 0\nburst_usec 0", throttled_ns / 1000);
    Ok(())
}

/// Whose memory it is.
fn owner() -> Owner {
    container::current().memory().owner()
}

fn memory_events(_: &Group, out: &mut Out) -> Result<()> {
    let container = container::current();
    let [oom, killed] = [&container.events.out_of_memory, &container.events.oom_kills]
        .map(|count| count.load(Ordering::Relaxed));
    writeln!(out, "low 0\nhigh 0\nmax {oom}\noom {oom}\noom_kill {killed}\noom_group_kill 0");
    Ok(())
}

fn memory_peak(_: &Group, out: &mut Out) -> Result<()> {
    number(out, owners::peak(owner()))
}

fn memory_stat(_: &Group, out: &mut Out) -> Result<()> {
    let (used, kernel) = (owners::used(owner()), owners::kernel(owner()) as u64);
    let values = [
        ("anon", used),
        ("file", 0),
        ("kernel", kernel),
        ("kernel_stack", 0),
        ("pagetables", 0),
        ("percpu", 0),
        ("sock", 0),
        ("shmem", 0),
        ("file_mapped", 0),
        ("file_dirty", 0),
        ("file_writeback", 0),
        ("swapcached", 0),
        ("anon_thp", 0),
        ("inactive_anon", 0),
        ("active_anon", used),
        ("inactive_file", 0),
        ("active_file", 0),
        ("unevictable", 0),
        ("slab_reclaimable", 0),
        ("slab_unreclaimable", kernel),
        ("slab", kernel),
        ("workingset_refault_anon", 0),
        ("workingset_refault_file", 0),
        ("pgfault", 0),
        ("pgmajfault", 0),
    ];
    for (name, value) in values {
        writeln!(out, "{name} {value}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_max() {
        let container = Container::kernel();
        let shown = || {
            let mut out = Out::default();
            push_cpu_max(&mut out, &container);
            alloc::string::String::from_utf8(out.bytes).unwrap()
        };
        assert_eq!(shown(), "max 100000\n");
        container.limits.set(ContainerLimit::CpuQuota, 50_000);
        container.limits.set(ContainerLimit::CpuPeriod, 20_000);
        assert_eq!(shown(), "50000 20000\n");
    }
}
