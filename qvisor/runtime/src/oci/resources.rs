//! `linux.resources`, checked.

use oci_spec::runtime::{LinuxCpu, LinuxMemory, LinuxResources};

use super::block_io::block_io;
use super::error::{BundleError, Result};
use crate::resources::{Cpu, Resources, count_set};

pub(super) fn resources(asked: Option<&LinuxResources>, remarks: &mut Vec<String>) -> Result<Resources> {
    let Some(asked) = asked else { return Ok(Resources::default()) };
    refuse(asked)?;
    if asked.devices().as_ref().is_some_and(|rules| rules.iter().any(|rule| rule.allow())) {
        remarks.push("linux.resources.devices is not applied: a sandbox has no device of the host's".into());
    }
    let mut resources = Resources::default();
    if let Some(memory) = asked.memory() {
        take_memory(&mut resources, memory, remarks)?;
    }
    if let Some(cpu) = asked.cpu() {
        resources.cpu = processors(cpu)?;
    }
    resources.pids = asked.pids().as_ref().and_then(|pids| positive(pids.limit()));
    if let Some(asked) = asked.block_io() {
        resources.block_io = block_io(asked)?;
    }
    let unified = asked.unified().clone().unwrap_or_default();
    if let Some(name) = unified.keys().find(|name| name.contains('/') || !name.contains('.')) {
        return Err(BundleError::invalid(
            "linux.resources.unified",
            name,
            "which is no file of a control group",
        ));
    }
    if let Some(name) = unified.keys().find(|name| ["memory.max", "pids.max"].contains(&name.as_str())) {
        let why = "the sandbox enforces this itself; use linux.resources.memory.limit or pids.limit";
        return Err(BundleError::refused_because(format!("linux.resources.unified {name}"), why));
    }
    resources.unified = unified.into_iter().collect();
    resources.unified.sort();
    Ok(resources)
}

fn take_memory(resources: &mut Resources, memory: &LinuxMemory, remarks: &mut Vec<String>) -> Result<()> {
    let unneeded = [
        (
            "disableOOMKiller",
            memory.disable_oom_killer() == Some(true),
            "a sandbox's kernel ends a process that needs more than there is, rather than stop all",
        ),
        (
            "kernel",
            memory.kernel().or(memory.kernel_tcp()).is_some_and(|limit| limit > 0),
            "a sandbox's kernel charges its own memory to the container's limit",
        ),
    ];
    for (name, _, why) in unneeded.iter().filter(|(_, is_asked, _)| *is_asked) {
        remarks.push(format!("linux.resources.memory.{name} is not applied: {why}"));
    }
    resources.memory = memory.limit().and_then(positive);
    let swap = memory.swap().filter(|limit| *limit != 0).map(positive);
    if let (Some(Some(both)), Some(limit)) = (swap, resources.memory)
        && both < limit
    {
        let why = "and memory with swap cannot be less than memory";
        return Err(BundleError::invalid("linux.resources.memory.swap", both, why));
    }
    resources.memory_and_swap = swap;
    resources.reservation = memory.reservation().and_then(positive);
    resources.swappiness = memory.swappiness();
    if let Some(value) = resources.swappiness.filter(|value| *value > 100) {
        return Err(BundleError::invalid(
            "linux.resources.memory.swappiness",
            value,
            "and at most 100 is possible",
        ));
    }
    Ok(())
}

fn processors(cpu: &LinuxCpu) -> Result<Cpu> {
    for (what, set) in [("cpus", cpu.cpus()), ("mems", cpu.mems())] {
        if let Some(set) = set.as_ref().filter(|set| !set.is_empty() && count_set(set).is_none()) {
            let what = format!("linux.resources.cpu.{what}");
            return Err(BundleError::invalid(what, set, "which is no list like 0-3,5"));
        }
    }
    let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    Ok(Cpu {
        shares: cpu.shares().filter(|value| *value > 0),
        quota: cpu.quota().filter(|value| *value != 0),
        period: cpu.period().filter(|value| *value > 0),
        burst: cpu.burst().filter(|value| *value > 0),
        idle: cpu.idle().filter(|value| *value != 0),
        realtime_runtime: cpu.realtime_runtime().filter(|value| *value != 0),
        realtime_period: cpu.realtime_period().filter(|value| *value > 0),
        cpus: set(cpu.cpus()),
        mems: set(cpu.mems()),
    })
}

/// A limit; zero and negative ones are none.
fn positive(limit: i64) -> Option<u64> {
    u64::try_from(limit).ok().filter(|limit| *limit > 0)
}

fn refuse(asked: &LinuxResources) -> Result<()> {
    let network = asked.network().as_ref().is_some_and(|network| {
        network.class_id().is_some_and(|id| id > 0)
            || network.priorities().as_ref().is_some_and(|list| !list.is_empty())
    });
    let rdma = asked.rdma().as_ref().is_some_and(|map| !map.is_empty());
    for (name, present) in [("network", network), ("rdma", rdma)] {
        if present {
            return Err(BundleError::refused(format!("linux.resources.{name}")));
        }
    }
    Ok(())
}
