//! `/proc/PID/{stat,statm,status}`: the files that `ps` and `top` read.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::creds::Creds;
use crate::limits::{RLIM_INFINITY, RLIMIT_SIGPENDING};
use crate::proc::subject::{Family, Subject};
use crate::pseudo::{Context, Out};
use crate::task::core::Task;
use crate::task::used::Used;
use machine::errno::Result;
use machine::mm::aspace::Layout;
use machine::mm::vma::VmaFlags;
use machine::mm::{AddressSpace, PAGE, Prot};
use machine::platform;
use machine::sched::CpuSet;
use machine::time;

/// Nanoseconds of one clock tick of user space (`sysconf(_SC_CLK_TCK)` is 100).
pub const TICK_NS: u64 = 10_000_000;
/// `RLIMIT_RSS`.
const RLIMIT_RSS: usize = 5;

/// Counter ticks as clock ticks.
pub fn clock_ticks(ticks: u64) -> u64 {
    time::ticks_to_ns(ticks) / TICK_NS
}

/// `comm` without its padding.
pub fn comm_of(comm: &[u8; 16]) -> &[u8] {
    let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
    &comm[..end]
}

/// The name of a thread, or the one a zombie had.
pub fn name_of(subject: &Subject, task: Option<&Arc<Task>>) -> [u8; 16] {
    match task {
        Some(task) => *task.comm.lock(),
        None => *subject.process.ended_comm.lock(),
    }
}

/// The letter and the word for a state.
pub fn state_of(subject: &Subject, family: &Family) -> (char, &'static str) {
    let letter = match subject.task() {
        Err(_) => b'Z',
        Ok(_) if family.ended.is_some() || subject.leader_has_ended() => b'Z',
        Ok(_) if subject.process.stopped.load(Ordering::Relaxed) => b'T',
        Ok(task) => task.thread.sched.letter(),
    };
    match letter {
        b'R' => ('R', "running"),
        b'S' => ('S', "sleeping"),
        b'T' => ('T', "stopped"),
        b'Z' => ('Z', "zombie"),
        _ => ('D', "disk sleep"),
    }
}

/// Signal sets of a task and its process.
#[derive(Default)]
struct SignalSets {
    /// Waiting for the thread, and for the process.
    own: u64,
    group: u64,
    blocked: u64,
    ignored: u64,
    caught: u64,
}

impl SignalSets {
    fn of(subject: &Subject, task: Option<&Arc<Task>>) -> Self {
        let (ignored, caught) = subject.process.sighand.get().ignored_and_caught();
        let group = subject.process.pending.lock().set;
        let mut sets = Self { group, ignored, caught, ..Self::default() };
        if let Some(task) = task {
            let signals = task.signals.lock();
            sets.own = signals.pending.set;
            sets.blocked = signals.blocked;
        }
        sets
    }
}

/// Sizes of a process's memory in bytes.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub mapped: u64,
    pub resident: u64,
    pub shared: u64,
    pub text: u64,
    /// Private writable memory, without and with the stack.
    pub data: u64,
    pub stack: u64,
    pub locked: u64,
    /// Executable mappings of files.
    pub executable: u64,
    pub start_brk: u64,
}

impl Sizes {
    /// Adds up the mappings.
    pub fn of(aspace: &AddressSpace, layout: &Layout) -> Self {
        let (mapped, resident) = aspace.sizes();
        let mut sizes = Self {
            mapped,
            resident,
            text: layout.end_code.saturating_sub(layout.start_code),
            start_brk: layout.end_data,
            ..Self::default()
        };
        aspace.for_each_vma(|vma| {
            if vma.flags.contains(VmaFlags::STACK) {
                sizes.stack += vma.len();
            } else if vma.prot.contains(Prot::WRITE) && !vma.is_shared() {
                sizes.data += vma.len();
            } else if vma.prot.contains(Prot::EXEC) && vma.object.is_some() {
                sizes.executable += vma.len();
            }
            if vma.flags.contains(VmaFlags::LOCKED) {
                sizes.locked += vma.len();
            }
            if vma.flags.contains(VmaFlags::HEAP) {
                sizes.start_brk = vma.start;
            }
        });
        sizes
    }
}

/// `/proc/PID/stat`; see `proc_pid_stat(5)` for the fields.
pub fn stat(subject: &Subject, out: &mut Out) -> Result<()> {
    push_stat(out, subject, &subject.family()?, subject.guard().is_ok());
    Ok(())
}

/// `open`: addresses are shown.
fn push_stat(out: &mut Out, subject: &Subject, family: &Family, open: bool) {
    let process = &subject.process;
    let task = subject.task().ok();
    let (state, _) = state_of(subject, family);
    let aspace = task.as_ref().and_then(|task| task.held_aspace());
    let layout = aspace.as_ref().map(|aspace| aspace.with_layout(|layout| layout.clone()));
    let layout = layout.unwrap_or_default();
    let sizes = aspace.as_ref().map(|aspace| Sizes::of(aspace, &layout)).unwrap_or_default();

    write!(out, "{} (", subject.id());
    out.push(comm_of(&name_of(subject, task.as_ref())));
    let Family { parent, group, session, terminal, foreground, ended } = *family;
    write!(out, ") {state} {parent} {group} {session} {terminal} {foreground} 4194304 ");
    push_times(subject, task.as_ref(), out);
    let rss_limit = process.limits.lock().soft(RLIMIT_RSS);
    write!(out, "{} {} {rss_limit} ", sizes.mapped, sizes.resident / PAGE);
    let addresses = [layout.start_code, layout.end_code, layout.start_stack];
    push_words(out, &addresses.map(|addr| if open { addr } else { u64::from(addr != 0) }));
    let sets = SignalSets::of(subject, task.as_ref());
    // Stack and instruction pointers are not told; then the signal sets that fit 31 bits, and the wait channel.
    let low = |set: u64| set & 0x7fff_ffff;
    let cpu = task.as_ref().map_or(0, |task| task.thread.sched.last_cpu.load(Ordering::Relaxed));
    push_words(
        out,
        &[0, 0, low(sets.own | sets.group), low(sets.blocked), low(sets.ignored), low(sets.caught)],
    );
    push_words(out, &[0, 0, 0]);
    let exit_signal =
        if subject.is_thread() { -1 } else { process.exit_signal.load(Ordering::Relaxed).cast_signed() };
    write!(out, "{exit_signal} {cpu} 0 0 0 0 0 ");
    let Layout { start_data, end_data, arg_start, arg_end, env_start, env_end, .. } = layout;
    let addresses = [start_data, end_data, sizes.start_brk, arg_start, arg_end, env_start, env_end];
    push_words(out, &addresses.map(|addr| if open { addr } else { 0 }));
    writeln!(out, "{}", if open { ended.unwrap_or(0) } else { 0 });
}

fn push_words(out: &mut Out, words: &[u64]) {
    for word in words {
        write!(out, "{word} ");
    }
}

/// The fields from `minflt` to `starttime`.
fn push_times(subject: &Subject, task: Option<&Arc<Task>>, out: &mut Out) {
    let process = &subject.process;
    let (own, children) = (subject.used(task), *process.children_used.lock());
    push_words(out, &[own.minor_faults, children.minor_faults, own.major_faults, children.major_faults]);
    push_words(out, &[own.user, own.system, children.user, children.system].map(clock_ticks));
    let policy = task.map(|task| task.policy.clone());
    let policy = policy.or_else(|| process.ended.lock().as_ref().map(|ended| ended.policy.clone()));
    let nice = policy.map_or(0, |policy| policy.nice.load(Ordering::Relaxed));
    let threads = process.tasks.lock().len().max(1);
    let start = match task {
        Some(task) if subject.is_thread() => task.start_ns,
        _ => process.start_ns,
    };
    write!(out, "{} {nice} {threads} 0 {} ", 20 + nice, start / TICK_NS);
}

/// `/proc/PID/statm`, in pages: size, resident, shared, text, lib, data, dt.
pub fn statm(subject: &Subject, out: &mut Out) -> Result<()> {
    let Ok(aspace) = subject.aspace() else {
        out.push(b"0 0 0 0 0 0 0\n");
        return Ok(());
    };
    let layout = aspace.with_layout(|layout| layout.clone());
    let sizes = Sizes::of(&aspace, &layout);
    let [mapped, resident, shared, text, data] =
        [sizes.mapped, sizes.resident, sizes.shared, sizes.text, sizes.data + sizes.stack]
            .map(|bytes| bytes.div_ceil(PAGE));
    writeln!(out, "{mapped} {resident} {shared} {text} 0 {data} 0");
    Ok(())
}

/// `/proc/PID/status`.
pub fn status(subject: &Subject, out: &mut Out) -> Result<()> {
    push_status(out, subject, &subject.family()?);
    Ok(())
}

fn push_status(out: &mut Out, subject: &Subject, family: &Family) {
    let task = subject.task().ok();
    let (letter, word) = state_of(subject, family);
    out.push(b"Name:\t");
    out.push_escaped(comm_of(&name_of(subject, task.as_ref())), b"\n");
    out.push(b"\n");
    if let Some(task) = &task {
        writeln!(out, "Umask:\t{:04o}", task.fs.get().umask());
    }
    let parent = family.parent;
    let (pid, tgid) = (subject.id(), subject.process.pid);
    writeln!(
        out,
        "State:\t{letter} ({word})\nTgid:\t{tgid}\nNgid:\t0\nPid:\t{pid}\nPPid:\t{parent}\nTracerPid:\t0"
    );
    push_ids(subject, task.as_ref(), out);
    let (group, session) = (family.group, family.session);
    writeln!(out, "NStgid:\t{tgid}\nNSpid:\t{pid}\nNSpgid:\t{group}\nNSsid:\t{session}\nKthread:\t0");
    if let Some(aspace) = task.as_ref().and_then(|task| task.held_aspace()) {
        push_memory(&aspace, out);
    }
    push_signals(subject, task.as_ref(), out);
    if let Some(task) = &task {
        push_rights(&task.creds.get(), out);
        push_confinement(task, out);
    }
    push_places(task.as_ref(), out);
}

fn push_ids(subject: &Subject, task: Option<&Arc<Task>>, out: &mut Out) {
    let Some(task) = task else {
        let (uid, gid) = subject.owner();
        writeln!(
            out,
            "Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{gid}\t{gid}\t{gid}\t{gid}\nFDSize:\t0\nGroups:\t "
        );
        return;
    };
    let creds = task.creds.get();
    let Creds { uid, euid, suid, fsuid, gid, egid, sgid, fsgid, .. } = *creds;
    writeln!(out, "Uid:\t{uid}\t{euid}\t{suid}\t{fsuid}\nGid:\t{gid}\t{egid}\t{sgid}\t{fsgid}");
    let highest = task.files().and_then(|files| files.list().last().map(|(fd, _)| *fd));
    let size = highest.map_or(0, |fd| (i64::from(fd) + 1).max(64)).cast_unsigned().next_power_of_two();
    write!(out, "FDSize:\t{size}\nGroups:\t");
    for group in creds.groups.iter() {
        write!(out, "{group} ");
    }
    if creds.groups.is_empty() {
        out.push(b" ");
    }
    out.push(b"\n");
}

/// One line of sizes, as `status` and `meminfo` write them.
pub fn push_kilobytes(out: &mut Out, name: &str, bytes: u64) {
    writeln!(out, "{name}:\t{:>8} kB", bytes / 1024);
}

fn push_memory(aspace: &AddressSpace, out: &mut Out) {
    let layout = aspace.with_layout(|layout| layout.clone());
    let sizes = Sizes::of(aspace, &layout);
    let lines = [
        ("VmPeak", sizes.mapped),
        ("VmSize", sizes.mapped),
        ("VmLck", sizes.locked),
        ("VmPin", 0),
        ("VmHWM", aspace.resident_peak()),
        ("VmRSS", sizes.resident),
        ("RssAnon", sizes.resident),
        ("RssFile", 0),
        ("RssShmem", 0),
        ("VmData", sizes.data),
        ("VmStk", sizes.stack),
        ("VmExe", sizes.text),
        ("VmLib", sizes.executable.saturating_sub(sizes.text)),
        ("VmPTE", sizes.resident / 512 + 16 * 1024),
        ("VmSwap", 0),
        ("HugetlbPages", 0),
    ];
    for (name, bytes) in lines {
        push_kilobytes(out, name, bytes);
    }
    out.push(b"CoreDumping:\t0\nTHP_enabled:\t0\n");
}

fn push_signals(subject: &Subject, task: Option<&Arc<Task>>, out: &mut Out) {
    let threads = subject.process.tasks.lock().len().max(1);
    let limit = subject.process.limits.lock().soft(RLIMIT_SIGPENDING);
    let sets = SignalSets::of(subject, task);
    let queued = (sets.own | sets.group).count_ones();
    write!(out, "Threads:\t{threads}\nSigQ:\t{queued}/");
    writeln!(out, "{}", if limit == RLIM_INFINITY { i64::MAX.cast_unsigned() } else { limit });
    let lines = [
        ("SigPnd", sets.own),
        ("ShdPnd", sets.group),
        ("SigBlk", sets.blocked),
        ("SigIgn", sets.ignored),
        ("SigCgt", sets.caught),
    ];
    push_masks(out, &lines);
}

fn push_masks(out: &mut Out, lines: &[(&str, u64)]) {
    for (name, mask) in lines {
        writeln!(out, "{name}:\t{mask:016x}");
    }
}

fn push_rights(creds: &Creds, out: &mut Out) {
    let lines = [
        ("CapInh", creds.inheritable),
        ("CapPrm", creds.permitted),
        ("CapEff", creds.effective),
        ("CapBnd", creds.bounding),
        ("CapAmb", creds.ambient),
    ];
    push_masks(out, &lines);
}

fn push_confinement(task: &Task, out: &mut Out) {
    let confinement = &task.confinement;
    let (mode, filters) = (confinement.mode() as u32, confinement.filters());
    writeln!(out, "NoNewPrivs:\t{}", u32::from(confinement.no_new_privs()));
    writeln!(out, "Seccomp:\t{mode}\nSeccomp_filters:\t{filters}");
    out.push(b"Speculation_Store_Bypass:\tvulnerable\n");
    out.push(b"SpeculationIndirectBranch:\talways enabled\n");
}

fn push_places(task: Option<&Arc<Task>>, out: &mut Out) {
    let cpus = task.map_or(CpuSet::ALL, |task| task.thread.sched.cpus());
    let mask = cpus.among(platform::cpus());
    write!(out, "Cpus_allowed:\t{mask:x}\nCpus_allowed_list:\t");
    push_cpu_list(out, mask);
    out.push(b"Mems_allowed:\t00000000,00000001\nMems_allowed_list:\t0\n");
    let used = task.map(|task| Used::by(&task.thread.sched)).unwrap_or_default();
    let (voluntary, forced) = (used.voluntary(), used.involuntary);
    writeln!(out, "voluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{forced}");
}

/// The list of the CPUs of a mask, such as `0-1,3`, and a line's end.
pub fn push_cpu_list(out: &mut Out, mask: u64) {
    let has = |cpu: u32| cpu < 64 && mask & 1 << cpu != 0;
    let mut between = "";
    let mut at = 0;
    while let Some(first) = (at..64).find(|cpu| has(*cpu)) {
        let end = (first..65).find(|cpu| !has(*cpu)).unwrap_or(64);
        match end - first {
            1 => write!(out, "{between}{first}"),
            _ => write!(out, "{between}{first}-{}", end - 1),
        };
        (between, at) = (",", end);
    }
    out.push(b"\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::FsContext;
    use crate::limits::Limits;
    use crate::task::container::Container;
    use crate::task::signal::{SigHand, TaskSignals};
    use crate::task::{Process, TaskParts};
    use machine::platform::UserContext;
    use std::collections::BTreeSet;
    use std::string::String;
    use std::vec::Vec;

    fn subject(with_thread: bool) -> Subject {
        let process = Process::new(Container::kernel(), 42, SigHand::new(), Limits::default());
        process.ended_comm.lock()[..4].copy_from_slice(b"gone");
        let task = Task::idle(TaskParts {
            process: process.clone(),
            aspace: None,
            files: None,
            fs: FsContext::none(),
            creds: Arc::new(Creds::new(7, 8, Vec::new())),
            signals: TaskSignals::default(),
            context: UserContext::new(),
            comm: *b"a) b (c\0\0\0\0\0\0\0\0\0",
            main: || {},
        });
        task.set_tid(42);
        if with_thread {
            process.tasks.lock().push(task);
        }
        Subject::process(process, 42)
    }

    fn text(push: impl FnOnce(&mut Out)) -> String {
        let mut out = Out::default();
        push(&mut out);
        String::from_utf8(out.bytes).unwrap()
    }

    #[test]
    fn stat_has_the_fields_of_linux() {
        let family =
            Family { parent: 1, group: 40, session: 39, terminal: 0x8801, foreground: 41, ended: None };
        let line = text(|out| push_stat(out, &subject(true), &family, true));
        let (head, tail) = line.trim_end().rsplit_once(") ").unwrap();
        assert_eq!(head, "42 (a) b (c");
        let fields: Vec<&str> = tail.split(' ').collect();
        // Together with the id and the name.
        assert_eq!(fields.len(), 50);
        assert_eq!(fields[..6], ["R", "1", "40", "39", "34817", "41"]);
        assert_eq!((fields[15], fields[16], fields[17]), ("20", "0", "1"));
        assert_eq!(fields[22], "18446744073709551615");
        assert_eq!(fields[35], "17");
        let host = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(host.rsplit_once(") ").unwrap().1.split_whitespace().count(), fields.len());
    }

    #[test]
    fn a_zombie_has_a_state_and_no_memory() {
        let family = Family { ended: Some(0x100), ..Family::default() };
        let line = text(|out| push_stat(out, &subject(false), &family, true));
        assert!(line.starts_with("42 (gone) Z 0 "), "{line}");
        assert!(line.ends_with(" 256\n"));
        let status = text(|out| push_status(out, &subject(false), &family));
        assert!(status.contains("State:\tZ (zombie)\n") && !status.contains("VmSize"));
    }

    #[test]
    fn cpus_are_listed_in_runs() {
        for (mask, list) in
            [(1, "0\n"), (3, "0-1\n"), (0b1011, "0-1,3\n"), (0b1010, "1,3\n"), (1 << 63, "63\n")]
        {
            assert_eq!(text(|out| push_cpu_list(out, mask)), list);
        }
    }

    #[test]
    fn status_has_lines_that_linux_has() {
        let status = text(|out| push_status(out, &subject(true), &Family::default()));
        let host = std::fs::read_to_string("/proc/self/status").unwrap();
        let keys = |text: &str| -> BTreeSet<String> {
            text.lines().filter_map(|line| Some(line.split_once(':')?.0.into())).collect()
        };
        let unknown: Vec<String> = keys(&status).difference(&keys(&host)).cloned().collect();
        assert!(unknown.iter().all(|key| key == "Kthread"), "{unknown:?}");
        assert!(status.contains("\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\n"));
        assert!(status.contains("\nThreads:\t1\nSigQ:\t0/31000\n"));
        assert!(status.contains("\nCapBnd:\t000001ffffffffff\n"));
    }
}
