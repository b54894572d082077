//! New tasks: `clone(2)`, `fork(2)`, `vfork(2)`.

use abi::word::low32;
use alloc::boxed::Box;
use alloc::sync::Arc;
use bitflags::bitflags;
use core::sync::atomic::Ordering;

use crate::creds::{CAP_SYS_ADMIN, CAP_SYS_RESOURCE};
use crate::fs::file::OpenFlags;
use crate::limits;
use crate::limits::RLIMIT_NPROC;
use crate::task::container::FIRST_PID;
use crate::task::context::Ctx;
use crate::task::core::{Task, TaskParts};
use crate::task::groups::GroupId;
use crate::task::keyrings::Seeker;
use crate::task::pidfd::PidFile;
use crate::task::process::Process;
use crate::task::tree::Node;
use crate::task::vfork::VforkDone;
use alloc::vec::Vec;
use machine::errno::{Errno, Result};
use machine::mm::{Access, AddressSpace, UserAddr, account, page_down};
use machine::platform::{FpuArea, UserContext};

bitflags! {
    /// `CLONE_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CloneFlags: u64 {
        const VM = 0x100;
        const FS = 0x200;
        const FILES = 0x400;
        const SIGHAND = 0x800;
        const PIDFD = 0x1000;
        const PTRACE = 0x2000;
        const VFORK = 0x4000;
        const PARENT = 0x8000;
        const THREAD = 0x1_0000;
        const NEWNS = 0x2_0000;
        const SYSVSEM = 0x4_0000;
        const SETTLS = 0x8_0000;
        const PARENT_SETTID = 0x10_0000;
        const CHILD_CLEARTID = 0x20_0000;
        const DETACHED = 0x40_0000;
        const UNTRACED = 0x80_0000;
        const CHILD_SETTID = 0x100_0000;
        const NEWCGROUP = 0x200_0000;
        const NEWUTS = 0x400_0000;
        const NEWIPC = 0x800_0000;
        const NEWUSER = 0x1000_0000;
        const NEWPID = 0x2000_0000;
        const NEWNET = 0x4000_0000;
        const IO = 0x8000_0000;
        const CLEAR_SIGHAND = 0x1_0000_0000;
    }
}

/// Flags of namespaces.
pub const NAMESPACES: CloneFlags = CloneFlags::NEWNS
    .union(CloneFlags::NEWCGROUP)
    .union(CloneFlags::NEWUTS)
    .union(CloneFlags::NEWIPC)
    .union(CloneFlags::NEWUSER)
    .union(CloneFlags::NEWPID)
    .union(CloneFlags::NEWNET);

/// The arguments of `clone` and `clone3`.
#[derive(Clone, Copy, Debug)]
pub struct CloneArgs {
    pub flags: CloneFlags,
    pub exit_signal: u32,
    /// Stack pointer of the new task; 0: the caller's.
    pub stack: UserAddr,
    pub tls: u64,
    pub parent_tid: UserAddr,
    pub child_tid: UserAddr,
    /// The address that receives the descriptor of `CLONE_PIDFD`.
    pub pidfd: UserAddr,
    /// The control group of a new process (`CLONE_INTO_CGROUP`); `None`: that of its creator.
    pub group: Option<GroupId>,
}

fn check(args: &CloneArgs) -> Result<()> {
    let flags = args.flags;
    let needs = |a: CloneFlags, b: CloneFlags| flags.contains(a) && !flags.contains(b);
    if needs(CloneFlags::SIGHAND, CloneFlags::VM)
        || needs(CloneFlags::THREAD, CloneFlags::SIGHAND)
        || flags.contains(CloneFlags::CLEAR_SIGHAND | CloneFlags::SIGHAND)
        || args.exit_signal > 64
    {
        return Err(Errno::EINVAL);
    }
    if flags.intersects(NAMESPACES) {
        // No namespaces inside a sandbox yet.
        return Err(Errno::EPERM);
    }
    // A pid descriptor is of a process, and older callers get it where the thread's id would go.
    if flags.contains(CloneFlags::PTRACE)
        || (flags.contains(CloneFlags::PIDFD) && flags.intersects(CloneFlags::THREAD | CloneFlags::DETACHED))
        || (flags.contains(CloneFlags::PIDFD | CloneFlags::PARENT_SETTID) && args.pidfd == args.parent_tid)
    {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Makes a new task as a copy of the caller and starts it; returns its id.
pub fn clone_task(cx: &Ctx<'_>, args: &CloneArgs) -> Result<u64> {
    check(args)?;
    let flags = args.flags;
    let me = cx.task;
    check_room(cx)?;
    let aspace = child_space(cx, args)?;
    let files = if flags.contains(CloneFlags::FILES) { cx.files().clone() } else { cx.files().fork()? };
    let fs = me.fs.get();
    let fs = if flags.contains(CloneFlags::FS) { fs } else { fs.fork() };
    let context = child_context(cx, args);
    let signals =
        me.signals.lock().fork(flags.contains(CloneFlags::VM) && !flags.contains(CloneFlags::VFORK));
    let comm = *me.comm.lock();

    let tid = me.process.container.pids.tree.lock().new_id();
    let process =
        if flags.contains(CloneFlags::THREAD) { me.process.clone() } else { new_process(me, tid, args) };
    let parts = TaskParts {
        process: process.clone(),
        aspace: Some(aspace),
        files: Some(files),
        fs,
        creds: me.creds.get(),
        signals,
        context,
        comm,
        main: me.thread.sched.main(),
    };
    let child = Task::new(tid, parts)?;
    inherit(&child, me, args)?;
    let vfork = flags.contains(CloneFlags::VFORK).then(VforkDone::new);
    *child.vfork_parent.lock() = vfork.clone();

    let pidfd = match flags.contains(CloneFlags::PIDFD) {
        true => Some(low32(cx.install(PidFile::open(&process, OpenFlags::empty())?, true)?).cast_signed()),
        false => None,
    };
    let entered = tell_parent(cx, args, tid, pidfd).and_then(|()| enter_tree(me, &child, &process, args));
    process.container.groups.tell();
    if let (Err(_), Some(fd)) = (&entered, pidfd) {
        let _ = cx.files().close(fd);
    }
    entered?;
    if flags.contains(CloneFlags::CHILD_SETTID)
        && let Some(aspace) = child.aspace()
    {
        // As on Linux, a bad address is the child's problem alone.
        let _ = aspace.copy_out(args.child_tid, &tid.to_ne_bytes());
    }
    child.start();
    if let Some(vfork) = vfork {
        *me.vfork_wait.lock() = Some(vfork.clone());
        // A signal that kills it ends the wait.
        let is_ending = || me.process.is_exiting() || me.is_dying();
        me.process.container.resting(|| vfork.wait(is_ending));
        *me.vfork_wait.lock() = None;
    }
    Ok(u64::from(tid))
}

/// The address space of the new task: the caller's, or a copy of it.
fn child_space(cx: &Ctx<'_>, args: &CloneArgs) -> Result<Arc<AddressSpace>> {
    let flags = args.flags;
    let aspace = if flags.contains(CloneFlags::VM) { cx.aspace().clone() } else { fork_space(cx, args)? };
    // The caller of `vfork(2)` waits; other threads of its process do not.
    if flags.contains(CloneFlags::VM)
        && !flags.contains(CloneFlags::THREAD)
        && !(flags.contains(CloneFlags::VFORK) && is_alone(cx.task))
    {
        aspace.share();
    }
    Ok(aspace)
}

/// The child gets what a task has of its creator.
fn inherit(child: &Arc<Task>, me: &Arc<Task>, args: &CloneArgs) -> Result<()> {
    let flags = args.flags;
    child.policy.inherit(&me.policy);
    child.thread.sched.inherit_cpus(&me.thread.sched);
    child.timer_slack_ns.inherit(&me.timer_slack_ns);
    child.keyrings.inherit(&me.keyrings);
    if flags.contains(CloneFlags::THREAD) && me.keyrings.thread().is_some() {
        Seeker::new(child).make_thread_ring()?;
    }
    child.mempolicy.store(me.mempolicy.load(Ordering::Relaxed), Ordering::Relaxed);
    if !flags.contains(CloneFlags::VM) {
        child.rseq.inherit(&me.rseq);
    }
    if flags.contains(CloneFlags::THREAD) && me.thread.sched.uses_reserve() {
        child.thread.sched.allow_reserve();
    }
    if flags.contains(CloneFlags::CHILD_CLEARTID) {
        child.clear_child_tid.store(args.child_tid.get(), Ordering::Relaxed);
    }
    if flags.contains(CloneFlags::SYSVSEM) {
        *child.sem_undo.lock() = Some(me.undo_list());
    }
    Ok(())
}

/// Writes the ids of a child where its parent asked for them.
fn tell_parent(cx: &Ctx<'_>, args: &CloneArgs, tid: u32, pidfd: Option<i32>) -> Result<()> {
    if let Some(fd) = pidfd {
        cx.user().write(args.pidfd, &fd)?;
    }
    if args.flags.contains(CloneFlags::PARENT_SETTID) {
        cx.user().write(args.parent_tid, &tid)?;
    }
    Ok(())
}

/// How many tasks a user has in the caller's container.
fn tasks_of(cx: &Ctx<'_>, uid: u32) -> u64 {
    cx.container().tasks().iter().filter(|task| task.creds.get().uid == uid).count() as u64
}

fn check_room(cx: &Ctx<'_>) -> Result<()> {
    let tasks = cx.container().task_count();
    if tasks >= cx.container().limits.tasks_max() {
        cx.container().events.forks_refused.fetch_add(1, Ordering::Relaxed);
        return Err(Errno::EAGAIN);
    }
    let creds = cx.task.creds.get();
    let is_limited = creds.uid != 0 && !creds.has(CAP_SYS_RESOURCE) && !creds.has(CAP_SYS_ADMIN);
    // The user has no more than all have.
    if is_limited
        && tasks as u64 >= cx.limit(RLIMIT_NPROC)
        && tasks_of(cx, creds.uid) >= cx.limit(RLIMIT_NPROC)
    {
        return Err(Errno::EAGAIN);
    }
    account::check(limits::TASK_BYTES).map_err(|_| Errno::EAGAIN)
}

/// A copy of the caller's memory, with what the child touches first.
fn fork_space(cx: &Ctx<'_>, args: &CloneArgs) -> Result<Arc<AddressSpace>> {
    let regs = cx.task.context().run.regs;
    let stack = if args.stack.is_null() { regs.rsp } else { args.stack.get() };
    // The C library has the word for `rseq(2)` beside its own data.
    let word = cx.task.rseq.addr().filter(|addr| page_down(*addr) != page_down(regs.fs_base));
    let touches = [(regs.rip, Access::Execute), (stack, Access::Write), (regs.fs_base, Access::Write)];
    let touches = touches.into_iter().chain(word.map(|addr| (addr, Access::Write)));
    cx.aspace().fork(touches, is_alone(cx.task) && !cx.aspace().is_shared())
}

/// Whether the task is the only one of its process.
pub fn is_alone(task: &Task) -> bool {
    task.process.tasks.lock().len() == 1
}

/// The child's registers: the caller's, with `rax` 0.
fn child_context(cx: &Ctx<'_>, args: &CloneArgs) -> UserContext {
    let mut mine = cx.task.context();
    mine.sync_fpu();
    let mut context = UserContext { run: mine.run, fpu: Box::new(FpuArea(mine.fpu.0)), fpu_live: false };
    context.run.regs.rax = 0;
    if !args.stack.is_null() {
        context.run.regs.rsp = args.stack.get();
    }
    if args.flags.contains(CloneFlags::SETTLS) {
        context.run.regs.fs_base = args.tls;
    }
    context
}

fn new_process(me: &Arc<Task>, pid: u32, args: &CloneArgs) -> Arc<Process> {
    let mine = &me.process;
    let sighand = mine.sighand.get();
    let sighand = if args.flags.contains(CloneFlags::SIGHAND) {
        sighand
    } else if args.flags.contains(CloneFlags::CLEAR_SIGHAND) {
        sighand.reset_for_exec()
    } else {
        sighand.fork()
    };
    let limits = mine.limits.lock().clone();
    let process = Process::new(mine.container.clone(), pid, sighand, limits);
    let exe = mine.exe.lock().clone();
    *process.exe.lock() = exe;
    // A sister is told of as its creator is.
    let (exit_signal, parents_programs) = if args.flags.contains(CloneFlags::PARENT) {
        (mine.exit_signal.load(Ordering::Relaxed), mine.parents_programs.load(Ordering::Relaxed))
    } else {
        (args.exit_signal, mine.programs.load(Ordering::Relaxed))
    };
    process.exit_signal.store(exit_signal, Ordering::Relaxed);
    process.parents_programs.store(parents_programs, Ordering::Relaxed);
    process.dumpable.store(mine.dumpable.load(Ordering::Relaxed), Ordering::Relaxed);
    process.personality.store(mine.personality.load(Ordering::Relaxed), Ordering::Relaxed);
    process.refuses_huge_pages.store(mine.refuses_huge_pages.load(Ordering::Relaxed), Ordering::Relaxed);
    process.coredump_filter.store(mine.coredump_filter.load(Ordering::Relaxed), Ordering::Relaxed);
    process.autogroup.set(mine.autogroup.get());
    process.kept.inherit(&mine.kept);
    process.pass.store(mine.pass.load(Ordering::Relaxed), Ordering::Relaxed);
    process.oom_score_adj.store(mine.oom_score_adj.load(Ordering::Relaxed), Ordering::Relaxed);
    process
}

fn enter_tree(me: &Arc<Task>, child: &Arc<Task>, process: &Arc<Process>, args: &CloneArgs) -> Result<()> {
    let flags = args.flags;
    let mut tree = process.container.pids.tree.lock();
    if !tree.admits(&process.container) {
        return Err(Errno::ENOMEM);
    }
    let groups = &process.container.groups;
    if !flags.contains(CloneFlags::THREAD) {
        // Whoever kills all processes of a group looks again until it finds none that lives (`cgroup.kill`).
        if me.process.is_exiting() {
            return Err(Errno::EAGAIN);
        }
        match args.group {
            Some(group) => groups.begin_in(&process.member, group)?,
            None => groups.inherit(&process.member, &me.process.member),
        }
    }
    // Tasks are added under the tree's lock alone, so there is room for this one until it is counted.
    groups.check_room(process.member.group())?;
    if flags.contains(CloneFlags::THREAD) {
        let mut tasks = process.tasks.lock();
        if process.group_exit.lock().is_some() || me.is_dying() {
            return Err(Errno::EAGAIN);
        }
        child.confinement.inherit(&me.confinement);
        tasks.push(child.clone());
    } else {
        {
            let _tasks = me.process.tasks.lock();
            child.confinement.inherit(&me.confinement);
        }
        let (parent, group, session) = match tree.nodes.get(&me.process.pid) {
            // A process from outside has a parent that cannot be waited for; process 1 has none.
            Some(node) if flags.contains(CloneFlags::PARENT) => match node.parent() {
                0 if me.process.pid == FIRST_PID => return Err(Errno::EINVAL),
                parent => (parent.max(FIRST_PID), node.group, node.session),
            },
            Some(node) => (me.process.pid, node.group, node.session),
            None => return Err(Errno::EAGAIN),
        };
        // Process and task hold each other from here until the task ends, so it has to begin.
        process.tasks.lock().push(child.clone());
        process.parent.store(parent, Ordering::Relaxed);
        let node = Node {
            process: process.clone(),
            children: Vec::new(),
            group,
            session,
            exit_status: None,
            report: None,
            uid: me.creds.get().uid,
        };
        tree.nodes.insert(process.pid, node);
        if let Some(parent) = tree.nodes.get_mut(&parent) {
            parent.children.push(process.pid);
        }
    }
    tree.add_task(child);
    Ok(())
}
