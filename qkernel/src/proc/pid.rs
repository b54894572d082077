//! `/proc/PID` and `/proc/PID/task/TID`.

use abi::word::to_usize;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::config::ARG_MAX_BYTES;
use crate::creds::{CAP_AUDIT_CONTROL, CAP_SYS_NICE, CAP_SYS_RESOURCE, Creds, Login};
use crate::fs::inode::{Inode, LinkTarget, S_IFDIR};
use crate::limits::{Limit, RLIM_INFINITY};
use crate::proc::status;
use crate::proc::status::{TICK_NS, comm_of};
use crate::proc::subject::Subject;
use crate::proc::{fd, kept, maps, mem, mounts, net, ns, pagemap};
use crate::pseudo::{Dynamic, Entry, InodeNumbers, Item, Kind, Node, Out, ShowPiece, parse_id, parse_number};
use crate::task;
use crate::task::container;
use crate::task::core::{Task, current};
use crate::task::used::Used;
use machine::errno::{Errno, Result};
use machine::mm::aspace::Layout;
use machine::mm::{AddressSpace, UserAddr, frames};
use machine::time;

/// A process's directory.
pub static PROCESS: Entry<Subject> = Entry::dir("", PROCESS_TABLE);
static THREAD: Entry<Subject> = Entry::dir("", THREAD_TABLE);

const fn own(name: &'static str, mode: u32, show: fn(&Subject, &mut Out) -> Result<()>) -> Entry<Subject> {
    Entry::text(name, show).mode(mode).guarded()
}

const fn own_pieces(name: &'static str, show: ShowPiece<Subject>) -> Entry<Subject> {
    Entry::pieces(name, show).guarded()
}

const fn memory(name: &'static str) -> Entry<Subject> {
    Entry { name, mode: 0o600, kind: Kind::File(mem::open), guarded: true }
}

macro_rules! table {
    ($name:ident: $($own:expr),* $(,)?) => {
        static $name: &[Entry<Subject>] = &[
            Entry::text("arch_status", |_, _| Ok(())),
            Entry::dir("attr", kept::ATTRIBUTES),
            own("auxv", 0o400, auxv),
            Entry::text("cgroup", cgroup),
            Entry::setting("clear_refs", |_, _| Err(Errno::EINVAL), kept::clear_refs).mode(0o200),
            Entry::text("cmdline", cmdline),
            Entry::setting("comm", comm, set_comm),
            Entry::fixed("cpuset", "/\n"),
            Entry::link("cwd", cwd).guarded(),
            own("environ", 0o400, environ),
            Entry::link("exe", exe).guarded(),
            Entry::dynamic("fd", &[], &fd::Descriptors).mode(0o500).guarded(),
            Entry::dynamic("fdinfo", &[], &fd::DescriptorFacts).mode(0o555).guarded(),
            Entry::setting("gid_map", gid_map, is_mapped),
            own("io", 0o400, io),
            own("ksm_merging_pages", 0o400, |_, out| { out.push(b"0\n"); Ok(()) }),
            own("ksm_stat", 0o400, |_, out| { out.push(KSM); Ok(()) }),
            Entry::text("limits", limits),
            Entry::setting("loginuid", login_uid, set_login_uid),
            own_pieces("maps", maps::maps),
            memory("mem"),
            Entry::watched("mountinfo", mounts::mountinfo, mounts::changes),
            Entry::watched("mounts", mounts::mounts, mounts::changes),
            Entry::dir("net", net::TABLE),
            Entry::dir("ns", ns::TABLE).mode(0o511),
            own_pieces("numa_maps", maps::numa_maps),
            Entry::setting("oom_adj", oom_adj, set_oom_adj),
            Entry::text("oom_score", oom_score),
            Entry::setting("oom_score_adj", oom_score_adj, set_oom_score_adj),
            Entry { name: "pagemap", mode: 0o400, kind: Kind::File(pagemap::open), guarded: true },
            own("personality", 0o400, personality),
            Entry::setting("projid_map", |_, out| { out.push(ALL_IDS.as_bytes()); Ok(()) }, is_mapped),
            Entry::link("root", root).guarded(),
            Entry::setting("sched", sched, |_, _| Ok(())),
            Entry::text("schedstat", schedstat),
            Entry::text("sessionid", login_session),
            own_pieces("smaps", maps::smaps),
            own("smaps_rollup", 0o444, maps::smaps_rollup),
            own("stack", 0o400, |_, _| Ok(())),
            Entry::text("stat", status::stat),
            Entry::text("statm", status::statm),
            Entry::text("status", status::status),
            own("syscall", 0o400, system_call),
            Entry::setting("uid_map", uid_map, is_mapped),
            Entry::fixed("wchan", "0"),
            $($own),*
        ];
    };
}

/// Number, arguments, stack and instruction pointers of the reader's own call. Of others it is known only that they run.
fn system_call(subject: &Subject, out: &mut Out) -> Result<()> {
    let reader = current();
    if reader.tid() != subject.id() || !Arc::ptr_eq(&reader.process, &subject.process) {
        out.push(b"running\n");
        return Ok(());
    }
    let regs = reader.context().run.regs;
    let [a, b, c, d, e, f] = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    let (number, sp, pc) = (regs.rax & 0xffff_ffff, regs.rsp, regs.rip);
    out.push(format!("{number} {a:#x} {b:#x} {c:#x} {d:#x} {e:#x} {f:#x} {sp:#x} {pc:#x}\n").as_bytes());
    Ok(())
}

/// The path of its control group below that of the reader's container; other containers' are beside that.
fn cgroup(subject: &Subject, out: &mut Out) -> Result<()> {
    let container = &subject.process.container;
    out.push(b"0::");
    if !Arc::ptr_eq(container, &container::current()) {
        write!(out, "/../{}", container.id.0);
    }
    out.push(
        &container.groups.path(subject.process.member.group()).unwrap_or_else(|| b"/ (deleted)".to_vec()),
    );
    out.push(b"\n");
    Ok(())
}

fn uid_map(subject: &Subject, out: &mut Out) -> Result<()> {
    id_map(subject.process.container.id_maps.get().map(|maps| &maps.users[..]), out)
}

fn gid_map(subject: &Subject, out: &mut Out) -> Result<()> {
    id_map(subject.process.container.id_maps.get().map(|maps| &maps.groups[..]), out)
}

fn id_map(map: Option<&[[u32; 3]]>, out: &mut Out) -> Result<()> {
    for [inside, outside, count] in map.unwrap_or(&[[0, 0, u32::MAX]]) {
        writeln!(out, "{inside:>10} {outside:>10} {count:>10}");
    }
    Ok(())
}

/// A map is set once.
fn is_mapped(_: &Subject, _: &[u8]) -> Result<()> {
    Err(Errno::EPERM)
}

const ALL_IDS: &str = "         0          0 4294967295\n";

table!(THREAD_TABLE:
    Entry::text("children", children),
);
table!(PROCESS_TABLE:
    Entry::setting("autogroup", kept::autogroup, kept::set_autogroup),
    Entry::setting("coredump_filter", kept::coredump_filter, kept::set_coredump_filter),
    Entry::dynamic("map_files", &[], &pagemap::MapFiles).mode(0o500).guarded(),
    Entry::pieces("mountstats", mounts::mountstats).mode(0o400),
    Entry::setting("setgroups", |_, out| { out.push(b"allow\n"); Ok(()) }, |_, _| Err(Errno::EPERM)),
    Entry::dynamic("task", &[], &Threads),
    Entry::setting("timens_offsets", |_, out| { out.push(TIME_OFFSETS); Ok(()) }, kept::set_time_offsets),
    Entry::fixed("timers", ""),
    Entry::setting("timerslack_ns", timer_slack, set_timer_slack).mode(0o666),
);

const TIME_OFFSETS: &[u8] = b"monotonic           0         0\nboottime            0         0\n";
/// Equal pages are not looked for.
const KSM: &[u8] = b"ksm_rmap_items 0\nksm_zero_pages 0\nksm_merging_pages 0\nksm_process_profit 0\n";

/// `task/`: the threads that have not ended.
struct Threads;

impl Dynamic<Subject> for Threads {
    fn find(&self, subject: &Subject, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let tid = parse_id(name).ok_or(Errno::ENOENT)?;
        let thread = Subject::thread(subject.process.clone(), tid);
        thread.task().map_err(|_| Errno::ENOENT)?;
        Ok(Node::new(thread, &THREAD, dir.child(name)))
    }

    fn list(&self, subject: &Subject, from: u64, add: &mut dyn FnMut(Item) -> bool) {
        let mut ids: Vec<u32> = subject.process.tasks.lock().iter().map(|task| task.tid()).collect();
        ids.sort_unstable();
        for tid in ids.into_iter().filter(|tid| u64::from(*tid) >= from) {
            let name = format!("{tid}").into_bytes();
            if !add(Item { key: u64::from(tid), name, kind: S_IFDIR }) {
                return;
            }
        }
    }

    fn directories(&self, subject: &Subject) -> u32 {
        u32::try_from(subject.process.tasks.lock().len()).unwrap_or(0)
    }
}

fn exe(subject: &Subject) -> Result<LinkTarget> {
    let file = subject.process.exe.lock().clone().ok_or(Errno::ENOENT)?;
    Ok(LinkTarget::Direct(fd::path_of(&file)))
}

fn cwd(subject: &Subject) -> Result<LinkTarget> {
    let context = subject.task().map_err(|_| Errno::ENOENT)?.fs.get();
    Ok(LinkTarget::Direct(context.cwd()))
}

fn root(subject: &Subject) -> Result<LinkTarget> {
    let context = subject.task().map_err(|_| Errno::ENOENT)?.fs.get();
    Ok(LinkTarget::Direct(context.root()))
}

fn comm(subject: &Subject, out: &mut Out) -> Result<()> {
    out.push(comm_of(&status::name_of(subject, subject.task().ok().as_ref())));
    out.push(b"\n");
    Ok(())
}

fn set_comm(subject: &Subject, bytes: &[u8]) -> Result<()> {
    if !subject.is_own() {
        return Err(Errno::EINVAL);
    }
    let mut comm = [0u8; 16];
    let len = bytes.len().min(15);
    comm[..len].copy_from_slice(&bytes[..len]);
    *subject.task()?.comm.lock() = comm;
    Ok(())
}

fn login_uid(subject: &Subject, out: &mut Out) -> Result<()> {
    write!(out, "{}", subject.task()?.creds.get().login.uid);
    Ok(())
}

fn login_session(subject: &Subject, out: &mut Out) -> Result<()> {
    write!(out, "{}", subject.task()?.creds.get().login.session);
    Ok(())
}

/// Only a task itself says who logged in, and who has done so once needs a capability to change it.
fn set_login_uid(subject: &Subject, bytes: &[u8]) -> Result<()> {
    let task = task::current();
    if !Arc::ptr_eq(&subject.task()?, &task) {
        return Err(Errno::EPERM);
    }
    let uid = match parse_number(bytes)? {
        ..0 => return Err(Errno::EINVAL),
        uid => u32::try_from(uid).map_err(|_| Errno::ERANGE)?,
    };
    let mut creds = Creds::clone(&task.creds.get());
    if creds.login != Login::UNSET && !creds.has(CAP_AUDIT_CONTROL) {
        return Err(Errno::EPERM);
    }
    creds.login = Login::new(uid);
    task.creds.set(Arc::new(creds));
    Ok(())
}

/// The bytes `[start, end)` of a process's memory, as far as they are there.
fn user_bytes(aspace: &AddressSpace, start: u64, end: u64) -> Vec<u8> {
    let len = to_usize(end.saturating_sub(start).min(ARG_MAX_BYTES as u64));
    let mut bytes = vec![0u8; len];
    let mut done = 0;
    while done < len {
        let at = UserAddr::new(start).offset(done as u64);
        let part = to_usize(at.left_in_page()).min(len - done);
        if aspace.copy_in(at, &mut bytes[done..done + part]).is_err() {
            break;
        }
        done += part;
    }
    bytes.truncate(done);
    bytes
}

/// The arguments. A program that has written over them and their last NUL goes on into the environment, up to the
/// next NUL (`setproctitle(3)`).
fn cmdline(subject: &Subject, out: &mut Out) -> Result<()> {
    let Ok(aspace) = subject.aspace() else { return Ok(()) };
    let layout = aspace.with_layout(|layout| layout.clone());
    let Layout { arg_start, arg_end, env_start, env_end, .. } = layout;
    let mut bytes = user_bytes(&aspace, arg_start, arg_end);
    if bytes.last().is_some_and(|last| *last != 0) {
        if arg_end == env_start {
            bytes.extend(user_bytes(&aspace, env_start, env_end));
        }
        let end = bytes.iter().position(|byte| *byte == 0);
        bytes.truncate(end.unwrap_or(bytes.len()));
    }
    out.push(&bytes);
    Ok(())
}

fn environ(subject: &Subject, out: &mut Out) -> Result<()> {
    let Ok(aspace) = subject.aspace() else { return Ok(()) };
    let (start, end) = aspace.with_layout(|layout| (layout.env_start, layout.env_end));
    out.push(&user_bytes(&aspace, start, end));
    Ok(())
}

fn auxv(subject: &Subject, out: &mut Out) -> Result<()> {
    let Ok(aspace) = subject.aspace() else { return Ok(()) };
    for word in aspace.with_layout(|layout| layout.auxv.clone()) {
        out.push(&word.to_le_bytes());
    }
    Ok(())
}

/// Shows the bytes that a thread, or a process and the children that it has waited for, moved by calls, and the calls.
/// How much of that went to a disk only the host knows.
fn io(subject: &Subject, out: &mut Out) -> Result<()> {
    let mut used = subject.used(subject.task().ok().as_ref());
    if !subject.is_thread() {
        used += *subject.process.children_used.lock();
    }
    for (name, count) in [
        ("rchar", used.read_bytes),
        ("wchar", used.written_bytes),
        ("syscr", used.reads),
        ("syscw", used.writes),
        ("read_bytes", 0),
        ("write_bytes", 0),
        ("cancelled_write_bytes", 0),
    ] {
        writeln!(out, "{name}: {count}");
    }
    Ok(())
}

const LIMITS: [(&str, &str); crate::limits::RLIM_COUNT] = [
    ("Max cpu time", "seconds"),
    ("Max file size", "bytes"),
    ("Max data size", "bytes"),
    ("Max stack size", "bytes"),
    ("Max core file size", "bytes"),
    ("Max resident set", "bytes"),
    ("Max processes", "processes"),
    ("Max open files", "files"),
    ("Max locked memory", "bytes"),
    ("Max address space", "bytes"),
    ("Max file locks", "locks"),
    ("Max pending signals", "signals"),
    ("Max msgqueue size", "bytes"),
    ("Max nice priority", ""),
    ("Max realtime priority", ""),
    ("Max realtime timeout", "us"),
];

fn limits(subject: &Subject, out: &mut Out) -> Result<()> {
    let limits = subject.process.limits.lock().0;
    push_limits(&limits, out);
    Ok(())
}

fn push_limits(limits: &[Limit], out: &mut Out) {
    let word = |value: u64| match value {
        RLIM_INFINITY => format!("{:<20}", "unlimited"),
        value => format!("{value:<20}"),
    };
    writeln!(out, "{:<25} {:<20} {:<20} {:<10}", "Limit", "Soft Limit", "Hard Limit", "Units");
    for ((name, unit), limit) in LIMITS.iter().zip(limits) {
        writeln!(out, "{name:<25} {} {} {unit:<10}", word(limit.soft), word(limit.hard));
    }
}

fn oom_score_adj(subject: &Subject, out: &mut Out) -> Result<()> {
    writeln!(out, "{}", subject.process.oom_score_adj.load(Ordering::Relaxed));
    Ok(())
}

fn set_oom_score_adj(subject: &Subject, bytes: &[u8]) -> Result<()> {
    let value = parse_number(bytes)?;
    let value = i32::try_from(value).ok().filter(|value| (-1000..=1000).contains(value));
    let value = value.ok_or(Errno::EINVAL)?;
    let slot = &subject.process.oom_score_adj;
    if value < slot.load(Ordering::Relaxed) && !task::current().creds.get().has(CAP_SYS_RESOURCE) {
        return Err(Errno::EACCES);
    }
    slot.store(value, Ordering::Relaxed);
    Ok(())
}

/// The thread whose `timerslack_ns` it is, for who may know it.
fn slack_of(subject: &Subject) -> Result<Arc<Task>> {
    let (task, me) = (subject.task()?, task::current());
    if !Arc::ptr_eq(&task, &me) && !me.creds.get().has(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    Ok(task)
}

fn timer_slack(subject: &Subject, out: &mut Out) -> Result<()> {
    writeln!(out, "{}", slack_of(subject)?.timer_slack_ns.get());
    Ok(())
}

fn set_timer_slack(subject: &Subject, bytes: &[u8]) -> Result<()> {
    let ns = u64::try_from(parse_number(bytes)?).map_err(|_| Errno::EINVAL)?;
    slack_of(subject)?.timer_slack_ns.set(ns);
    Ok(())
}

/// The processes that it has made and not waited for. All are counted with the first thread.
fn children(subject: &Subject, out: &mut Out) -> Result<()> {
    let process = &subject.process;
    if subject.id() != process.pid {
        return Ok(());
    }
    let pids: Vec<u32> = {
        let tree = process.container.pids.tree.lock();
        let children = tree.nodes.values().filter(|node| node.parent() == process.pid);
        children.map(|node| node.process.pid).collect()
    };
    for pid in pids {
        write!(out, "{pid} ");
    }
    Ok(())
}

fn personality(subject: &Subject, out: &mut Out) -> Result<()> {
    writeln!(out, "{:08x}", subject.process.personality.load(Ordering::Relaxed));
    Ok(())
}

/// The old scale, -17 to 15.
fn oom_adj(subject: &Subject, out: &mut Out) -> Result<()> {
    let adjust = subject.process.oom_score_adj.load(Ordering::Relaxed);
    writeln!(out, "{}", if adjust == 1000 { 15 } else { adjust * 17 / 1000 });
    Ok(())
}

fn set_oom_adj(subject: &Subject, bytes: &[u8]) -> Result<()> {
    let value = parse_number(bytes)?;
    if !(-17..=15).contains(&value) {
        return Err(Errno::EINVAL);
    }
    let scaled = if value == 15 { 1000 } else { value * 1000 / 17 };
    set_oom_score_adj(subject, format!("{scaled}").as_bytes())
}

fn oom_score(subject: &Subject, out: &mut Out) -> Result<()> {
    let resident = subject.aspace().map_or(0, |aspace| aspace.sizes().1);
    let share = resident * 1000 / frames::limit_bytes().max(1);
    let adjust = i64::from(subject.process.oom_score_adj.load(Ordering::Relaxed));
    let points = if adjust == -1000 { 0 } else { (1000 + share.cast_signed() + adjust) * 2 / 3 };
    writeln!(out, "{}", points.max(0));
    Ok(())
}

/// Time on a CPU in nanoseconds.
fn run_ns(subject: &Subject, task: &Arc<Task>) -> u64 {
    let used = subject.used(Some(task));
    time::ticks_to_ns(used.user + used.system)
}

fn schedstat(subject: &Subject, out: &mut Out) -> Result<()> {
    let task = subject.task()?;
    writeln!(out, "{} 0 {}", run_ns(subject, &task), Used::by(&task.thread.sched).switches);
    Ok(())
}

fn sched(subject: &Subject, out: &mut Out) -> Result<()> {
    let task = subject.task()?;
    let threads = subject.process.tasks.lock().len();
    out.push(comm_of(&task.comm.lock().clone()));
    writeln!(out, " ({}, #threads: {threads})\n{:-<67}", subject.id(), "");
    let ns = run_ns(subject, &task);
    let used = Used::by(&task.thread.sched);
    let nice = task.policy.nice.load(Ordering::Relaxed);
    writeln!(out, "{:<45}:{:>14}.{:06}", "se.sum_exec_runtime", ns / 1_000_000, ns % 1_000_000);
    let lines = [
        ("nr_switches", used.switches),
        ("nr_voluntary_switches", used.voluntary()),
        ("nr_involuntary_switches", used.involuntary),
        ("policy", 0),
        ("prio", u64::from((120 + nice).unsigned_abs())),
        ("start_ticks", task.start_ns / TICK_NS),
    ];
    for (name, value) in lines {
        writeln!(out, "{name:<45}:{value:>21}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    #[test]
    fn limits_are_in_columns_as_programs_cut_them() {
        let mut out = Out::default();
        push_limits(&Limits::default().0, &mut out);
        let text = core::str::from_utf8(&out.bytes).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 17);
        assert_eq!(
            lines[0],
            "Limit                     Soft Limit           Hard Limit           Units     "
        );
        assert_eq!(
            lines[4],
            "Max stack size            8388608              unlimited            bytes     "
        );
        assert_eq!(
            lines[14],
            "Max nice priority         0                    0                              "
        );
    }

    #[test]
    fn names_in_a_table_are_unique() {
        for (i, entry) in PROCESS_TABLE.iter().enumerate() {
            assert!(PROCESS_TABLE[i + 1..].iter().all(|other| other.name != entry.name), "{}", entry.name);
        }
    }
}
