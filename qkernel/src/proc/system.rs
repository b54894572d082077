//! Facts about the container as a whole: memory, CPU time, load, uptime.

use crate::config::KERNEL_RELEASE;
use crate::proc::Whole;
use crate::proc::status::clock_ticks;
use crate::pseudo::Out;
use crate::task::container;
use crate::task::used::Used;

use machine::errno::Result;
use machine::heap;
use machine::mm::account::SANDBOX;
use machine::mm::{PAGE, commit, frames, owners};
use machine::platform;
use machine::sched;
use machine::sched::LOAD_SHIFT;
use machine::time;
use machine::time::NSEC;

/// The version that `uname(2)` reports.
pub const KERNEL_VERSION: &str = "#1 SMP PREEMPT_DYNAMIC";

/// `/proc/devices`.
pub const DEVICES: &str = "Character devices:\n  1 mem\n  5 /dev/tty\n  5 /dev/console\n  5 /dev/ptmx\n 10 misc\n136 pts\n\nBlock devices:\n";
/// `/proc/filesystems`.
pub const FILE_SYSTEMS: &str = "nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\nnodev\tcgroup2\nnodev\tdevtmpfs\nnodev\tsockfs\nnodev\tpipefs\nnodev\tdevpts\nnodev\tmqueue\nnodev\toverlay\n";
/// `/proc/cgroups`: hierarchy 0 says that there are only control groups of version 2.
pub const CGROUPS: &str = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t0\t1\t1\ncpu\t0\t1\t1\ncpuacct\t0\t1\t1\nblkio\t0\t1\t1\nmemory\t0\t1\t1\ndevices\t0\t1\t1\nfreezer\t0\t1\t1\npids\t0\t1\t1\n";
/// `/proc/tty/drivers`.
pub const TTY_DRIVERS: &str = "/dev/tty             /dev/tty        5       0 system:/dev/tty\n/dev/console         /dev/console    5       1 system:console\n/dev/ptmx            /dev/ptmx       5       2 system\npty_slave            /dev/pts      136 0-1048575 pty:slave\n";

/// Sizes of the memory of a container in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    /// Kernel memory.
    pub slab: u64,
    /// Memory that programs were promised, and the most that they may be.
    pub promised: u64,
    pub promises_max: u64,
}

impl Memory {
    /// Bytes that count for the limit.
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}

/// How much memory there is and how much is free, by the limit that the current container has now: its own, or the sandbox's.
pub fn memory() -> Memory {
    let total = frames::limit_bytes();
    let owner = container::current().memory().owner();
    let (promised, promises_max) = (commit::promised(owner), commit::limit(owner));
    if owners::limit(owner).is_none() {
        let free = total.saturating_sub(SANDBOX.used());
        return Memory { total, free, slab: heap::HEAP.stats().used_bytes as u64, promised, promises_max };
    }
    // What the other containers have taken of the sandbox's is not there for this one.
    let free = total.saturating_sub(owners::used(owner)).min(sandbox_bytes().saturating_sub(SANDBOX.used()));
    Memory { total, free, slab: heap::owned_bytes(owner) as u64, promised, promises_max }
}

/// The sandbox's memory.
fn sandbox_bytes() -> u64 {
    frames::stats().limit_frames as u64 * PAGE
}

/// `/proc/meminfo`.
pub fn meminfo(_: &Whole, out: &mut Out) -> Result<()> {
    push_meminfo(out, &memory());
    Ok(())
}

fn push_meminfo(out: &mut Out, memory: &Memory) {
    let used = memory.used();
    let lines = [
        ("MemTotal", memory.total),
        ("MemFree", memory.free),
        ("MemAvailable", memory.free),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", used),
        ("Inactive", 0),
        ("Active(anon)", used),
        ("Inactive(anon)", 0),
        ("Active(file)", 0),
        ("Inactive(file)", 0),
        ("Unevictable", 0),
        ("Mlocked", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", used),
        ("Mapped", 0),
        ("Shmem", 0),
        ("KReclaimable", 0),
        ("Slab", memory.slab),
        ("SReclaimable", 0),
        ("SUnreclaim", memory.slab),
        ("KernelStack", 0),
        ("PageTables", 0),
        ("NFS_Unstable", 0),
        ("Bounce", 0),
        ("WritebackTmp", 0),
        ("CommitLimit", memory.promises_max),
        ("Committed_AS", memory.promised),
        ("VmallocTotal", 34_359_738_367 << 10),
        ("VmallocUsed", 0),
        ("VmallocChunk", 0),
        ("Percpu", 0),
        ("AnonHugePages", 0),
        ("ShmemHugePages", 0),
        ("ShmemPmdMapped", 0),
        ("FileHugePages", 0),
        ("FilePmdMapped", 0),
    ];
    for (name, bytes) in lines {
        writeln!(out, "{:<16}{:>8} kB", alloc::format!("{name}:"), bytes / 1024);
    }
    out.push(b"HugePages_Total:       0\nHugePages_Free:        0\nHugePages_Rsvd:        0\n");
    out.push(b"HugePages_Surp:        0\nHugepagesize:       2048 kB\nHugetlb:               0 kB\n");
}

/// Nanoseconds since the sandbox's first process began.
fn age_ns() -> u64 {
    let start = container::current().first_process().map_or(0, |process| process.start_ns);
    time::boottime_ns().saturating_sub(start)
}

/// `/proc/stat`. Time isn't counted by CPU, so each CPU shows its share.
pub fn stat(_: &Whole, out: &mut Out) -> Result<()> {
    let cpus = platform::cpus() as u64;
    let Used { user, system, switches, .. } = container::current().used();
    let (user, system) = (clock_ticks(user), clock_ticks(system));
    let idle = (age_ns() / crate::proc::status::TICK_NS * cpus).saturating_sub(user + system);
    writeln!(out, "cpu  {user} 0 {system} {idle} 0 0 0 0 0 0");
    for cpu in 0..cpus {
        writeln!(out, "cpu{cpu} {} 0 {} {} 0 0 0 0 0 0", user / cpus, system / cpus, idle / cpus);
    }
    let boot = time::realtime_ns().saturating_sub(time::boottime_ns()) / NSEC;
    writeln!(out, "intr 0\nctxt {switches}\nbtime {boot}\nprocesses {}", last_id());
    writeln!(out, "procs_running {}\nprocs_blocked 0", running_tasks());
    out.push(b"softirq 0 0 0 0 0 0 0 0 0 0 0\n");
    Ok(())
}

/// The id that was given last.
fn last_id() -> u32 {
    container::current().pids.tree.lock().last_id()
}

/// `/proc/uptime`: seconds since boot, and idle seconds of all CPUs.
pub fn uptime(_: &Whole, out: &mut Out) -> Result<()> {
    let cpus = platform::cpus() as u64;
    let (user, system) = container::current().cpu_ticks();
    let idle = (age_ns() * cpus).saturating_sub(time::ticks_to_ns(user + system));
    let push = |out: &mut Out, ns: u64| write!(out, "{}.{:02}", ns / NSEC, ns % NSEC / 10_000_000);
    push(out, time::boottime_ns());
    out.push(b" ");
    push(out, idle);
    out.push(b"\n");
    Ok(())
}

/// The container's load averages, with [`LOAD_SHIFT`] fraction bits.
pub fn load_averages() -> [u64; 3] {
    sched::load_averages(container::current().memory().owner())
}

/// The container's tasks that run or wait for a CPU: whoever asks is one.
fn running_tasks() -> usize {
    sched::running_tasks(container::current().memory().owner()).max(1)
}

/// `/proc/loadavg`.
pub fn loadavg(_: &Whole, out: &mut Out) -> Result<()> {
    for average in load_averages() {
        let hundredths = (average * 100 + (1 << (LOAD_SHIFT - 1))) >> LOAD_SHIFT;
        write!(out, "{}.{:02} ", hundredths / 100, hundredths % 100);
    }
    let tasks = container::current().pids.tree.lock().tasks.len();
    writeln!(out, "{}/{tasks} {}", running_tasks(), last_id());
    Ok(())
}

/// `/proc/version`.
pub fn version(_: &Whole, out: &mut Out) -> Result<()> {
    writeln!(out, "Linux version {KERNEL_RELEASE} (dormouse@dormouse) {KERNEL_VERSION}");
    Ok(())
}

/// `/proc/vmstat`: the counters that mean something here, and those `vmstat(8)` wants.
pub fn vmstat(_: &Whole, out: &mut Out) -> Result<()> {
    let memory = memory();
    let lines = [
        ("nr_free_pages", memory.free / PAGE),
        ("nr_anon_pages", (memory.total - memory.free) / PAGE),
        ("nr_mapped", 0),
        ("nr_file_pages", 0),
        ("nr_dirty", 0),
        ("nr_writeback", 0),
        ("nr_shmem", 0),
        ("pgpgin", 0),
        ("pgpgout", 0),
        ("pswpin", 0),
        ("pswpout", 0),
        ("pgalloc_normal", 0),
        ("pgfree", 0),
        ("pgfault", 0),
        ("pgmajfault", 0),
        ("oom_kill", 0),
    ];
    for (name, value) in lines {
        writeln!(out, "{name} {value}");
    }
    Ok(())
}

/// `/proc/zoneinfo`: one node with one zone.
pub fn zoneinfo(_: &Whole, out: &mut Out) -> Result<()> {
    let memory = memory();
    let (free, total) = (memory.free / PAGE, memory.total / PAGE);
    writeln!(out, "Node 0, zone   Normal\n  pages free     {free}\n        boost    0\n        min      0");
    writeln!(
        out,
        "        low      0\n        high     0\n        spanned  {total}\n        present  {total}"
    );
    writeln!(out, "        managed  {total}");
    Ok(())
}

/// `/proc/interrupts`: there are none to see.
pub fn interrupts(_: &Whole, out: &mut Out) -> Result<()> {
    out.push(b"           ");
    for cpu in 0..platform::cpus() {
        write!(out, "{:<11}", alloc::format!("CPU{cpu}"));
    }
    out.push(b"\n");
    Ok(())
}

/// `/proc/softirqs`: none either.
pub fn softirqs(_: &Whole, out: &mut Out) -> Result<()> {
    out.push(b"                    ");
    for cpu in 0..platform::cpus() {
        write!(out, "{:<11}", alloc::format!("CPU{cpu}"));
    }
    out.push(b"\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_has_the_columns_that_free_reads() {
        let mut out = Out::default();
        let (total, free) = (24_684_092 << 10, 1 << 30);
        push_meminfo(&mut out, &Memory { total, free, slab: 0, promised: 0, promises_max: 0 });
        let text = core::str::from_utf8(&out.bytes).unwrap();
        assert!(text.starts_with("MemTotal:       24684092 kB\nMemFree:         1048576 kB\n"));
        assert!(text.contains("\nHugepagesize:       2048 kB\n"));
    }
}
