//! Files of the container's own group. Limits are those that the container has now. What is used is counted by this kernel, so it
//! is what the container's programs have, without the VMM around them.

use core::sync::atomic::Ordering;

use abi::limits::ContainerLimit;

use crate::cgroupfs::Group;
use crate::proc::pressure;
use crate::pseudo::Out;
use crate::task::container::{Container, ContainerId};
use machine::errno::Result;
use machine::mm::owners;
use machine::owner::Owner;
use machine::sched::{Throttling, periods, shares};
use machine::time;

/// A limit, or `max` where there is none.
pub fn push_limit(out: &mut Out, limit: Option<u64>, end: &str) {
    match limit {
        Some(value) => write!(out, "{value}{end}"),
        None => write!(out, "max{end}"),
    }
}

fn limit(group: &Group, limit: ContainerLimit, out: &mut Out) -> Result<()> {
    push_limit(out, group.container.limits.get(limit), "\n");
    Ok(())
}

pub fn number(out: &mut Out, value: impl core::fmt::Display) -> Result<()> {
    writeln!(out, "{value}");
    Ok(())
}

pub fn cpu_weight(group: &Group, out: &mut Out) -> Result<()> {
    limit(group, ContainerLimit::CpuWeight, out)
}

pub fn memory_low(group: &Group, out: &mut Out) -> Result<()> {
    limit(group, ContainerLimit::MemoryLow, out)
}

pub fn memory_max(group: &Group, out: &mut Out) -> Result<()> {
    limit(group, ContainerLimit::MemoryMax, out)
}

pub fn swap_max(group: &Group, out: &mut Out) -> Result<()> {
    limit(group, ContainerLimit::SwapMax, out)
}

pub fn pids_max(group: &Group, out: &mut Out) -> Result<()> {
    limit(group, ContainerLimit::TasksMax, out)
}

pub fn pids_current(group: &Group, out: &mut Out) -> Result<()> {
    number(out, group.container.task_count())
}

/// The container's own limit, and those of groups below.
pub fn pids_events(group: &Group, out: &mut Out) -> Result<()> {
    let below = group.groups().facts(group.id)?.counts.forks_refused;
    let refused = group.container.events.forks_refused.load(Ordering::Relaxed);
    number(out, format_args!("max {}", refused + below))
}

pub fn cpu_max(group: &Group, out: &mut Out) -> Result<()> {
    push_cpu_max(out, &group.container);
    Ok(())
}

fn push_cpu_max(out: &mut Out, container: &Container) {
    push_limit(out, container.limits.get(ContainerLimit::CpuQuota), " ");
    push_limit(out, container.limits.get(ContainerLimit::CpuPeriod), "\n");
}

pub fn cpu_stat(group: &Group, out: &mut Out) -> Result<()> {
    let (user, system) = group.container.cpu_ticks();
    push_usage(out, user, system);
    let Throttling { mut periods, throttled_periods, throttled_ns } = shares::throttling(owner(group));
    if group.container.id == ContainerId::FIRST {
        // The host holds it to its limit, and alone knows how often it had to wait.
        periods = periods::counted();
    }
    writeln!(out, "nr_periods {periods}\nnr_throttled {throttled_periods}");
    writeln!(out, "throttled_usec {}\nnr_bursts 0\nburst_usec 0", throttled_ns / 1000);
    Ok(())
}

/// Processor time in counter ticks.
pub fn push_usage(out: &mut Out, user: u64, system: u64) {
    let [user, system] = [user, system].map(|ticks| time::ticks_to_ns(ticks) / 1000);
    writeln!(out, "usage_usec {}\nuser_usec {user}\nsystem_usec {system}", user + system);
}

/// Whose memory it is.
fn owner(group: &Group) -> Owner {
    group.container.memory().owner()
}

pub fn cpu_pressure(group: &Group, out: &mut Out) -> Result<()> {
    pressure::push_cpu(out, owner(group));
    Ok(())
}

pub fn io_pressure(group: &Group, out: &mut Out) -> Result<()> {
    pressure::push_io(out, owner(group));
    Ok(())
}

pub fn memory_pressure(_: &Group, out: &mut Out) -> Result<()> {
    pressure::push_memory(out);
    Ok(())
}

pub fn memory_current(group: &Group, out: &mut Out) -> Result<()> {
    number(out, owners::used(owner(group)))
}

pub fn memory_events(group: &Group, out: &mut Out) -> Result<()> {
    let events = &group.container.events;
    let [oom, killed] = [&events.out_of_memory, &events.oom_kills].map(|count| count.load(Ordering::Relaxed));
    let whole = group.groups().facts(group.id)?.counts.oom_group_kills;
    writeln!(out, "low 0\nhigh 0\nmax {oom}\noom {oom}\noom_kill {killed}\noom_group_kill {whole}");
    Ok(())
}

pub fn memory_peak(group: &Group, out: &mut Out) -> Result<()> {
    number(out, owners::peak(owner(group)))
}

pub fn memory_stat(group: &Group, out: &mut Out) -> Result<()> {
    let owner = owner(group);
    push_memory_stat(out, owners::used(owner), owners::kernel(owner) as u64);
    Ok(())
}

/// Bytes of programs' and of kernel memory.
pub fn push_memory_stat(out: &mut Out, used: u64, kernel: u64) {
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
