//! `/sys`: the files about CPUs, memory and interfaces that programs read. Everything else is left out.

mod net;

use alloc::format;
use alloc::sync::Arc;

use crate::fs::inode::{Inode, S_IFDIR};
use crate::proc::cpuinfo::{Cache, caches};
use crate::proc::status::push_cpu_list;
use crate::proc::system::memory;
use crate::pseudo::{Context, Dynamic, Entry, FileSystem, InodeNumbers, Item, Node, Out, parse_id};
use machine::errno::{Errno, Result};
use machine::platform;

static SYSFS: FileSystem = FileSystem { dev: 0xf1, magic: 0x6265_6572, no_new_names: Errno::EPERM };

/// The context of entries about the sandbox as a whole.
#[derive(Clone, Copy)]
struct Whole;

/// One CPU.
#[derive(Clone, Copy)]
struct Cpu(u32);

/// One cache of a CPU.
#[derive(Clone, Copy)]
struct CpuCache {
    cpu: u32,
    cache: Cache,
}

macro_rules! in_sysfs {
    ($($context:ty),*) => {$(
        impl Context for $context {
            fn file_system(&self) -> &'static FileSystem {
                &SYSFS
            }
        }
    )*};
}
in_sysfs!(Whole, Cpu, CpuCache);

/// The root of `/sys`.
pub fn root() -> Arc<dyn Inode> {
    static ROOT: Entry<Whole> = Entry::dir("", TABLE);
    Node::new(Whole, &ROOT, InodeNumbers::ROOT)
}

static TABLE: &[Entry<Whole>] = &[
    Entry::dir("block", &[]),
    Entry::dir("bus", &[Entry::dir("cpu", &[]), Entry::dir("pci", &[Entry::dir("devices", &[])])]),
    Entry::dir("class", CLASSES),
    Entry::dir("dev", &[Entry::dir("block", &[]), Entry::dir("char", &[])]),
    Entry::dir("devices", &[Entry::dir("system", SYSTEM), Entry::dir("virtual", net::VIRTUAL)]),
    Entry::dir("firmware", &[]),
    // The place of the control group's own file system.
    Entry::dir("fs", &[Entry::dir("cgroup", &[])]),
    Entry::dir("hypervisor", &[]),
    Entry::dir("kernel", KERNEL),
    Entry::dir("module", &[]),
    Entry::dir("power", &[]),
];

/// Kinds of devices. Of most there is none, and programs that ask for them list an empty directory.
static CLASSES: &[Entry<Whole>] = &[
    Entry::dir("block", &[]),
    net::CLASS,
    Entry::dir("power_supply", &[]),
    Entry::dir("thermal", &[]),
    Entry::dir("tty", &[]),
];

static KERNEL: &[Entry<Whole>] = &[
    Entry::dir("debug", &[]).mode(0o700),
    Entry::dir(
        "mm",
        &[
            Entry::dir("hugepages", &[]),
            Entry::dir(
                "transparent_hugepage",
                &[
                    Entry::fixed("defrag", "always defer defer+madvise madvise [never]\n"),
                    Entry::fixed("enabled", "always madvise [never]\n"),
                    Entry::fixed("hpage_pmd_size", "2097152\n"),
                    Entry::fixed("shmem_enabled", "always within_size advise [never] deny force\n"),
                    Entry::fixed("use_zero_page", "0\n"),
                ],
            ),
        ],
    ),
    Entry::fixed("profiling", "0\n"),
    Entry::dir("security", &[]),
    Entry::dir("tracing", &[]).mode(0o700),
];

// ---- CPUs and memory ----

static SYSTEM: &[Entry<Whole>] = &[
    Entry::dynamic("cpu", CPUS, &Cpus),
    Entry::dir(
        "node",
        &[
            Entry::fixed("has_cpu", "0\n"),
            Entry::fixed("has_memory", "0\n"),
            Entry::fixed("has_normal_memory", "0\n"),
            Entry::dir("node0", NODE),
            Entry::fixed("online", "0\n"),
            Entry::fixed("possible", "0\n"),
        ],
    ),
];

static CPUS: &[Entry<Whole>] = &[
    Entry::fixed("isolated", "\n"),
    Entry::text("kernel_max", |_, out| {
        writeln!(out, "{}", abi::layout::MAX_CPUS - 1);
        Ok(())
    }),
    Entry::fixed("offline", "\n"),
    Entry::text("online", |_, out| all_cpus(out)),
    Entry::text("possible", |_, out| all_cpus(out)),
    Entry::text("present", |_, out| all_cpus(out)),
    Entry::dir("smt", &[Entry::fixed("active", "0\n"), Entry::fixed("control", "notsupported\n")]),
    Entry::dir("vulnerabilities", &[]),
];

static NODE: &[Entry<Whole>] = &[
    Entry::text("cpulist", |_, out| all_cpus(out)),
    Entry::text("cpumap", |_, out| mask(out, every_cpu())),
    Entry::fixed("distance", "10\n"),
    Entry::text("meminfo", node_meminfo),
    Entry::fixed(
        "numastat",
        "numa_hit 0\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 0\nlocal_node 0\nother_node 0\n",
    ),
];

fn all_cpus(out: &mut Out) -> Result<()> {
    push_cpu_list(out, every_cpu().into());
    Ok(())
}

fn every_cpu() -> u32 {
    (1u32 << platform::cpus()) - 1
}

fn mask(out: &mut Out, cpus: u32) -> Result<()> {
    writeln!(out, "{cpus:x}");
    Ok(())
}

fn number(out: &mut Out, value: impl core::fmt::Display) -> Result<()> {
    writeln!(out, "{value}");
    Ok(())
}

fn node_meminfo(_: &Whole, out: &mut Out) -> Result<()> {
    let memory = memory();
    let lines = [
        ("MemTotal", memory.total),
        ("MemFree", memory.free),
        ("MemUsed", memory.total - memory.free),
        ("Active", memory.total - memory.free),
        ("Inactive", 0),
        ("AnonPages", memory.total - memory.free),
        ("Shmem", 0),
    ];
    for (name, bytes) in lines {
        writeln!(out, "Node 0 {:<15}{:>8} kB", format!("{name}:"), bytes / 1024);
    }
    Ok(())
}

/// `cpuN`.
struct Cpus;

static CPU: Entry<Cpu> = Entry::dynamic("", CPU_TABLE, &Caches);

impl Dynamic<Whole> for Cpus {
    fn find(&self, _: &Whole, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let index = name.strip_prefix(b"cpu").and_then(parse_id).ok_or(Errno::ENOENT)?;
        if index as usize >= platform::cpus() {
            return Err(Errno::ENOENT);
        }
        Ok(Node::new(Cpu(index), &CPU, dir.child(name)))
    }

    fn list(&self, _: &Whole, from: u64, add: &mut dyn FnMut(Item) -> bool) {
        list_numbered("cpu", from, platform::cpus() as u64, add);
    }
}

/// Adds `prefix0`, `prefix1`, … up to `count`.
fn list_numbered(prefix: &str, from: u64, count: u64, add: &mut dyn FnMut(Item) -> bool) {
    for key in from..count {
        if !add(Item { key, name: format!("{prefix}{key}").into_bytes(), kind: S_IFDIR }) {
            return;
        }
    }
}

static CPU_TABLE: &[Entry<Cpu>] = &[
    // The first CPU has no switch.
    Entry::text("online", |_, out| number(out, 1)),
    Entry::dir("topology", TOPOLOGY),
];

/// Every vCPU is a core of one package.
static TOPOLOGY: &[Entry<Cpu>] = &[
    Entry::text("core_cpus", |cpu, out| mask(out, 1 << cpu.0)),
    Entry::text("core_cpus_list", |cpu, out| number(out, cpu.0)),
    Entry::text("core_id", |cpu, out| number(out, cpu.0)),
    Entry::text("core_siblings", |_, out| mask(out, every_cpu())),
    Entry::text("core_siblings_list", |_, out| all_cpus(out)),
    Entry::text("die_cpus", |_, out| mask(out, every_cpu())),
    Entry::text("die_cpus_list", |_, out| all_cpus(out)),
    Entry::fixed("die_id", "0\n"),
    Entry::text("package_cpus", |_, out| mask(out, every_cpu())),
    Entry::text("package_cpus_list", |_, out| all_cpus(out)),
    Entry::fixed("physical_package_id", "0\n"),
    Entry::text("thread_siblings", |cpu, out| mask(out, 1 << cpu.0)),
    Entry::text("thread_siblings_list", |cpu, out| number(out, cpu.0)),
];

/// `cache/`, which is there when the processor tells of its caches.
struct Caches;

static CACHE_DIR: Entry<Cpu> = Entry::dynamic("cache", &[], &CacheIndex);

impl Dynamic<Cpu> for Caches {
    fn find(&self, cpu: &Cpu, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if name != b"cache" || caches().next().is_none() {
            return Err(Errno::ENOENT);
        }
        Ok(Node::new(*cpu, &CACHE_DIR, dir.child(name)))
    }

    fn list(&self, _: &Cpu, from: u64, add: &mut dyn FnMut(Item) -> bool) {
        if from == 0 && caches().next().is_some() {
            add(Item { key: 0, name: b"cache".to_vec(), kind: S_IFDIR });
        }
    }
}

/// `indexN`.
struct CacheIndex;

static CACHE: Entry<CpuCache> = Entry::dir("", CACHE_TABLE);

impl Dynamic<Cpu> for CacheIndex {
    fn find(&self, cpu: &Cpu, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let index = name.strip_prefix(b"index").and_then(parse_id).ok_or(Errno::ENOENT)?;
        let cache = caches().nth(index as usize).ok_or(Errno::ENOENT)?;
        Ok(Node::new(CpuCache { cpu: cpu.0, cache }, &CACHE, dir.child(name)))
    }

    fn list(&self, _: &Cpu, from: u64, add: &mut dyn FnMut(Item) -> bool) {
        list_numbered("index", from, caches().count() as u64, add);
    }
}

static CACHE_TABLE: &[Entry<CpuCache>] = &[
    Entry::text("coherency_line_size", |this, out| number(out, this.cache.line)),
    Entry::text("id", |this, out| number(out, if this.is_shared() { 0 } else { this.cpu })),
    Entry::text("level", |this, out| number(out, this.cache.level)),
    Entry::text("number_of_sets", |this, out| number(out, this.cache.sets)),
    Entry::fixed("physical_line_partition", "1\n"),
    Entry::text(
        "shared_cpu_list",
        |this, out| {
            if this.is_shared() { all_cpus(out) } else { number(out, this.cpu) }
        },
    ),
    Entry::text("shared_cpu_map", |this, out| {
        mask(out, if this.is_shared() { every_cpu() } else { 1 << this.cpu })
    }),
    Entry::text("size", |this, out| number(out, format_args!("{}K", this.cache.bytes / 1024))),
    Entry::text("type", |this, out| number(out, this.cache.kind)),
    Entry::text("ways_of_associativity", |this, out| number(out, this.cache.ways)),
];

impl CpuCache {
    /// Caches from the third level on serve the whole package.
    fn is_shared(&self) -> bool {
        self.cache.level >= 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{At, File, OpenFlags};
    use machine::mm::IoBuf;

    fn read(path: &str) -> Result<alloc::string::String> {
        let mut node = root();
        for name in path.split('/') {
            node = node.lookup(name.as_bytes())?;
        }
        let file = File::new(node.open(OpenFlags::empty())?, OpenFlags::empty(), None);
        let mut bytes = alloc::vec![0u8; 4096];
        let got = file.ops.read(&file, &mut IoBuf::kernel(&mut bytes), At::Position)?;
        bytes.truncate(got);
        Ok(alloc::string::String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn what_the_c_library_asks_for_is_there() {
        assert_eq!(read("devices/system/cpu/online").as_deref(), Ok("0\n"));
        assert_eq!(read("devices/system/cpu/cpu0/topology/core_siblings_list").as_deref(), Ok("0\n"));
        assert_eq!(read("devices/system/node/node0/cpulist").as_deref(), Ok("0\n"));
        assert_eq!(read("fs/cgroup/cpu.max"), Err(Errno::ENOENT));
        assert_eq!(read("devices/system/cpu/cpu1/online"), Err(Errno::ENOENT));
        assert_eq!(read("devices/virtual/net/lo/mtu").as_deref(), Ok("65536\n"));
    }

    #[test]
    fn caches_have_the_sizes_they_multiply_to() {
        let Ok(size) = read("devices/system/cpu/cpu0/cache/index0/size") else { return };
        let first = caches().next().unwrap();
        assert_eq!(size, format!("{}K\n", first.line * first.ways * first.sets / 1024));
    }
}
