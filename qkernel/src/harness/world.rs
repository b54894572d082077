//! The world that sequences run in: containers, roots, and the processes that begin.

use abi::limits::ContainerLimit;
use abi::mount::{FileSystem, Settings};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::container::create::become_first;
use crate::creds::Creds;
use crate::filesystems;
use crate::fs::file::FileTable;
use crate::fs::mount;
use crate::fs::mount::Mount;
use crate::fs::path::{FsContext, Path};
use crate::harness::steps;
use crate::limits::Limits;
use crate::spec::MountSpec;
use crate::task::container;
use crate::task::container::{Container, ContainerId, FIRST_PID};
use crate::task::core::{Task, TaskParts};
use crate::task::process::Process;
use crate::task::signal::action::SigHand;
use crate::task::signal::state::TaskSignals;
use crate::task::tree::Node;
use machine::mm::map::{NewMapping, Placement};
use machine::mm::vma::VmaFlags;
use machine::mm::{AddressSpace, Prot};
use machine::platform::UserContext;

/// Most tasks of a sequence.
pub(super) const TASKS_MAX: u64 = 24;

/// The first container, with a first process without tasks, to which those are left whose parents have ended.
pub(super) fn make_init() {
    let first = Container::new(ContainerId::FIRST).expect("the first container");
    first.limits.set(ContainerLimit::TasksMax, TASKS_MAX);
    let pid = first.pids.tree.lock().new_id();
    assert_eq!(pid, FIRST_PID);
    let process = Process::new(first.clone(), pid, SigHand::new(), Limits::default());
    become_first(&first, &process, false);
    first.pids.tree.lock().nodes.insert(pid, node(process));
}

pub(super) fn first_container() -> Arc<Container> {
    container::find(ContainerId::FIRST).expect("the first container")
}

pub(super) fn node(process: Arc<Process>) -> Node {
    let pid = process.pid;
    Node { process, children: Vec::new(), group: pid, session: pid, exit_status: None, report: None, uid: 0 }
}

/// A fresh tree: a root in memory, with the kernel's own file systems where they are in a sandbox.
pub(super) fn make_root() -> Path {
    let root_inode =
        filesystems::with_settings(FileSystem::Tmpfs, &Settings::default(), &Container::kernel())
            .expect("a root");
    let mount = Mount::of(root_inode, b"tmpfs", b"none", mount::Limits::empty());
    // It is not listed, and so goes with the sequence.
    let root = mount.path();
    for (path, kind) in [
        ("/proc", FileSystem::Proc),
        ("/sys", FileSystem::Sysfs),
        ("/dev", FileSystem::Devices),
        ("/dev/pts", FileSystem::Terminals),
        ("/tmp", FileSystem::Tmpfs),
    ] {
        crate::container::setup::attach_own(&root, MountSpec::of_kernel(kind, path.into(), 0))
            .expect("a mount");
    }
    steps::fill(&root);
    root
}

/// A process that begins the sequence, with its memory as [`steps`] expects it: its container's first one, or else a child
/// of that.
pub(super) fn make_leader(container: &Arc<Container>, root: &Path, uid: u32) -> Arc<Task> {
    let _charged = container.charge();
    let pid = container.pids.tree.lock().new_id();
    let process = Process::new(container.clone(), pid, SigHand::new(), Limits::default());
    let aspace = AddressSpace::new().expect("an address space");
    aspace.set_bounds(steps::SCRATCH + (16 << 20), 0x7000_0000_0000);
    let scratch = NewMapping {
        placement: Placement::Fixed(steps::SCRATCH),
        len: steps::SCRATCH_BYTES,
        prot: Prot::READ | Prot::WRITE | Prot::EXEC,
        max_prot: Prot::all(),
        flags: VmaFlags::empty(),
        object: None,
        offset: 0,
    };
    aspace.map(scratch).expect("scratch memory");
    steps::write_paths(&aspace);
    let mut context = UserContext::new();
    context.run.regs.rip = steps::SCRATCH;
    context.run.regs.rsp = steps::SCRATCH + steps::SCRATCH_BYTES / 2;
    context.run.regs.rflags = 0x202;
    let parts = TaskParts {
        process: process.clone(),
        aspace: Some(aspace),
        files: Some(FileTable::new()),
        fs: FsContext::new(root.clone(), root.clone(), 0o022),
        creds: Arc::new(Creds::new(uid, uid, Vec::new())),
        signals: TaskSignals::default(),
        context,
        comm: *b"sequence\0\0\0\0\0\0\0\0",
        main: crate::run::run_task,
    };
    let task = Task::new(pid, parts).expect("a task");
    process.tasks.lock().push(task.clone());
    let is_first = container.first_process().is_none();
    if is_first {
        become_first(container, &process, true);
    }
    let mut tree = container.pids.tree.lock();
    if let Some(init) = tree.nodes.get_mut(&FIRST_PID).filter(|_| !is_first) {
        init.children.push(pid);
        process.parent.store(FIRST_PID, Ordering::Relaxed);
    }
    tree.add_task(&task);
    tree.nodes.insert(pid, node(process));
    task
}
