//! `/proc`.

pub mod cpuinfo;
pub mod fd;
mod identity;
mod kept;
mod keys;
mod locks;
mod maps;
mod mem;
pub mod mounts;
pub mod net;
mod net_counters;
mod net_tables;
pub mod ns;
mod pagemap;
mod pid;
pub mod pressure;
pub mod status;
pub mod subject;
pub mod sys;
pub mod system;
mod sysvipc;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::file::{File, OpenFlags};
use crate::fs::inode::{Inode, LinkTarget, S_IFDIR};
use crate::proc::identity::PROC;
use crate::proc::subject::Subject;
use crate::pseudo::{Context, Dynamic, Entry, FileSystem, InodeNumbers, Item, Node, parse_id};
use crate::task;
use crate::task::container;
use crate::task::process::Process;

use machine::errno::{Errno, Result};

pub use status::push_cpu_list;

/// The context of entries about the sandbox as a whole.
#[derive(Clone, Copy)]
pub struct Whole;

impl Context for Whole {
    fn file_system(&self) -> &'static FileSystem {
        &PROC
    }
}

/// The root of `/proc`.
pub fn root() -> Arc<dyn Inode> {
    static ROOT: Entry<Whole> = Entry::dynamic("", TABLE, &Processes);
    Node::new(Whole, &ROOT, InodeNumbers::ROOT)
}

static TABLE: &[Entry<Whole>] = &[
    Entry::text("buddyinfo", |_, _| Ok(())),
    Entry::dir("bus", &[]),
    Entry::fixed("cgroups", system::CGROUPS),
    Entry::fixed("cmdline", "dormouse\n"),
    Entry::text("consoles", |_, _| Ok(())),
    Entry::text("cpuinfo", cpuinfo::cpuinfo),
    Entry::text("crypto", |_, _| Ok(())),
    Entry::fixed("devices", system::DEVICES),
    Entry::text("diskstats", |_, _| Ok(())),
    Entry::dir("driver", &[]),
    Entry::fixed("execdomains", "0-0\tLinux           \t[kernel]\n"),
    Entry::fixed("filesystems", system::FILE_SYSTEMS),
    Entry::dir("fs", &[]),
    Entry::text("interrupts", system::interrupts),
    Entry::dir("irq", &[]),
    Entry::text("key-users", |_, out| keys::key_users(out)),
    Entry::text("keys", |_, out| keys::keys(out)),
    Entry::text("kmsg", |_, _| Err(Errno::EPERM)).mode(0o400),
    Entry::text("loadavg", system::loadavg),
    Entry::text("locks", locks::locks),
    Entry::text("meminfo", system::meminfo),
    Entry::fixed("misc", ""),
    Entry::fixed("modules", ""),
    Entry::link("mounts", |_| Ok(LinkTarget::Text(b"self/mounts".to_vec()))),
    Entry::link("net", |_| Ok(LinkTarget::Text(b"self/net".to_vec()))),
    Entry::fixed("partitions", "major minor  #blocks  name\n\n"),
    Entry::dir("pressure", pressure::TABLE),
    Entry::link("self", |_| Ok(LinkTarget::Text(format!("{}", own_ids().0).into_bytes()))),
    Entry::text("softirqs", system::softirqs),
    Entry::text("stat", system::stat),
    Entry::fixed("swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"),
    Entry::dir("sys", sys::TABLE),
    Entry::dir("sysvipc", sysvipc::Lists::TABLE),
    Entry::link("thread-self", |_| {
        let (pid, tid) = own_ids();
        Ok(LinkTarget::Text(format!("{pid}/task/{tid}").into_bytes()))
    }),
    Entry::dir(
        "tty",
        &[Entry::fixed("drivers", system::TTY_DRIVERS), Entry::fixed("ldiscs", "n_tty       0\n")],
    ),
    Entry::text("uptime", system::uptime),
    Entry::text("version", system::version),
    Entry::text("vmstat", system::vmstat),
    Entry::text("zoneinfo", system::zoneinfo),
];

/// The current task's process and thread.
fn own_ids() -> (u32, u32) {
    let task = task::current();
    (task.process.pid, task.tid())
}

/// The process whose directory is open as `file`.
pub fn process_of(file: &File) -> Option<Arc<Process>> {
    let node = file.path.as_ref()?.inode.as_any().downcast_ref::<Node<Subject>>()?;
    let is_whole = node.is(&pid::PROCESS) && !file.flags().contains(OpenFlags::PATH);
    is_whole.then(|| node.cx.process.clone())
}

/// The processes by their ids. A thread's id is found as well, though not listed.
struct Processes;

impl Dynamic<Whole> for Processes {
    fn find(&self, _: &Whole, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let id = parse_id(name).ok_or(Errno::ENOENT)?;
        let process = match container::current().pids.find_process(id) {
            Some(process) => process,
            None => container::current().pids.find_task(id).ok_or(Errno::ENOENT)?.process.clone(),
        };
        Ok(Node::new(Subject::process(process, id), &pid::PROCESS, dir.child(name)))
    }

    fn list(&self, _: &Whole, from: u64, add: &mut dyn FnMut(Item) -> bool) {
        let Ok(from) = u32::try_from(from) else { return };
        let ids: Vec<u32> =
            container::current().pids.tree.lock().nodes.range(from..).map(|(pid, _)| *pid).collect();
        for pid in ids {
            let name = format!("{pid}").into_bytes();
            if !add(Item { key: u64::from(pid), name, kind: S_IFDIR }) {
                return;
            }
        }
    }
}
