//! `dormouse events`: transitions as they come, or statistics in runc's form.

use std::io::Write;
use std::time::Duration;

use runtime::cgroup::{self, Usage};
use runtime::container;
use runtime::control::ContainerUsage;
use runtime::orders;
use runtime::state::{Id, Root};
use runtime::status::Status;
use serde_json::{Value, json};

use crate::failure::{Failure, say};

/// The limit in bytes that a control group of version 1 shows where there is none.
const NO_LIMIT: u64 = 9_223_372_036_854_771_712;

pub fn events(root: &Root, id: &str, stats: bool, interval: Option<Duration>) -> Result<u8, Failure> {
    let id = Id::new(id)?;
    match (stats, interval) {
        (false, None) => transitions(root, &id),
        (true, _) => say(&line(root, &id)?),
        (false, Some(interval)) => repeated(root, &id, interval),
    }
}

fn transitions(root: &Root, id: &Id) -> Result<u8, Failure> {
    let mut out = std::io::stdout();
    for line in orders::events(root, id)? {
        // Flushed at each line, since readers want it when it comes. An error means that the reader has gone.
        if out.write_all(&[&line?[..], b"\n"].concat()).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(0)
}

/// Until the container ends, or nobody reads any more.
fn repeated(root: &Root, id: &Id, interval: Duration) -> Result<u8, Failure> {
    let mut out = std::io::stdout();
    let mut next = line(root, id);
    while let Ok(line) = &next {
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(0);
        }
        std::thread::sleep(interval);
        if root.state(id).map_or(true, |state| state.status == Status::Stopped) {
            return Ok(0);
        }
        next = self::line(root, id);
    }
    next.map(|_| 0)
}

/// The statistics of now, which wake nobody.
fn line(root: &Root, id: &Id) -> Result<String, Failure> {
    let state = root.state(id)?;
    if state.status == Status::Stopped {
        let id = id.as_str();
        return Err(
            format!("cannot read events: container with id {id} is not running; see dormouse list").into()
        );
    }
    let mut usage = cgroup::usage(&cgroup::groups_of(state.pid));
    if container::is_further(root, id) {
        take(&mut usage, &orders::usage(root, id)?);
    }
    // The sandbox's own figures are there once it runs.
    let own = orders::stats(root, id).ok();
    let data = data(&usage, own.map(|own| json!(own)));
    Ok(json!({"type": "stats", "id": id.as_str(), "data": data}).to_string() + "\n")
}

/// Puts what the kernel of a pod counts for one container in the place of what the container's groups do.
fn take(usage: &mut Usage, own: &ContainerUsage) {
    (usage.cpu.user_ns, usage.cpu.system_ns) = (own.user_ns, own.system_ns);
    usage.cpu.total_ns = own.user_ns.saturating_add(own.system_ns);
    usage.cpu.per_cpu_ns.clear();
    (usage.cpu.periods, usage.cpu.throttled_periods) = (own.periods, own.throttled_periods);
    usage.cpu.throttled_ns = own.throttled_ns;
    let count = &mut usage.memory.usage;
    (count.bytes, count.peak_bytes, count.failures) = (own.memory_bytes, own.peak_bytes, own.out_of_memory);
    count.limit_bytes = own.limit_bytes;
    usage.memory.stat.clear();
    usage.pids.current = own.tasks;
}

fn memory(count: cgroup::MemoryCount) -> Value {
    let limit = count.limit_bytes.unwrap_or(NO_LIMIT);
    json!({"limit": limit, "usage": count.bytes, "max": count.peak_bytes, "failcnt": count.failures})
}

/// In runc's form; `dormouse` is ours.
fn data(usage: &Usage, own: Option<Value>) -> Value {
    let cpu = &usage.cpu;
    let mut data = json!({
        "cpu": {
            "usage": {
                "total": cpu.total_ns,
                "percpu": cpu.per_cpu_ns,
                "kernel": cpu.system_ns,
                "user": cpu.user_ns,
            },
            "throttling": {
                "periods": cpu.periods,
                "throttledPeriods": cpu.throttled_periods,
                "throttledTime": cpu.throttled_ns,
            },
        },
        "memory": {
            "cache": usage.memory.stat.get(if usage.is_v2 { "file" } else { "cache" }),
            "usage": memory(usage.memory.usage),
            "swap": memory(usage.memory.swap),
            "kernel": memory(usage.memory.kernel),
            "kernelTCP": memory(usage.memory.kernel_tcp),
            "raw": usage.memory.stat,
        },
        "pids": {"current": usage.pids.current, "limit": usage.pids.limit.unwrap_or(0)},
        "blkio": {
            "ioServiceBytesRecursive": devices(usage, |block| (block.read_bytes, block.written_bytes)),
            "ioServicedRecursive": devices(usage, |block| (block.reads, block.writes)),
        },
        "hugetlb": {},
        "intel_rdt": {},
        "network_interfaces": null,
    });
    if let Some(own) = own {
        data["dormouse"] = own;
    }
    data
}

fn devices(usage: &Usage, counts: impl Fn(&cgroup::BlockUsage) -> (u64, u64)) -> Vec<Value> {
    let both = usage.block.iter().flat_map(|block| {
        let (reads, writes) = counts(block);
        [("Read", reads), ("Write", writes)]
            .map(|(op, value)| json!({"major": block.major, "minor": block.minor, "op": op, "value": value}))
    });
    both.collect()
}
