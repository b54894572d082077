//! Out of memory: the process that holds most is killed, be it frames or kernel memory, before the host has to act. A container
//! that has reached its own limit loses one of its own; only where the sandbox's is reached may it be any container's.

use crate::task::signal::send::kill_process;
use abi::report::Report;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::limits::TASK_BYTES;
use crate::net::passing;
use crate::task::container;
use crate::task::container::ContainerId;
use crate::task::core::Task;
use crate::task::process::Process;
use machine::host;
use machine::log::RateLimit;
use machine::mm::account::Shortage;
use machine::mm::{account, copies, frames};
use machine::owner::Owner;
use machine::sched;
use machine::sync::{Rank, SpinLock};
use machine::time::{NSEC, monotonic_ns};

/// How long a killed process may take to give its memory back before another one is killed.
const PATIENCE_NS: u64 = 2 * NSEC;
/// How long a task that found no memory sleeps before it tries again.
const PAUSE_NS: u64 = 2_000_000;
/// `oom_score_adj` of a process that is killed last.
const NEVER: i32 = -1000;

/// The process that was killed last, and until when the others wait for its memory.
struct Victim {
    process: Weak<Process>,
    until_ns: u64,
}

/// The last one in each container that reached its own limit, by its owner, and under the sandbox's that where the sandbox's was
/// reached.
static VICTIMS: SpinLock<BTreeMap<Owner, Victim>> = SpinLock::new(Rank::OomVictim, BTreeMap::new());
/// How often in a row there was memory again when somebody was to be killed.
static OVER: AtomicU32 = AtomicU32::new(0);
const OVER_MAX: u32 = 50;
static SAID: RateLimit = RateLimit::new();

/// There is no memory for the current task: kills the largest process, unless one that was killed is still ending, and
/// gives that time to end. No lock is held. Whoever calls this tries again then, or ends.
pub fn relieve(task: &Arc<Task>) {
    account::relieve();
    copies::let_go();
    passing::collect_in_need();
    let shortage = match account::shortage() {
        // Something else than what was measured may be short: not for ever.
        Shortage::Over if OVER.fetch_add(1, Ordering::Relaxed) >= OVER_MAX => {
            OVER.store(0, Ordering::Relaxed);
            Shortage::Owner
        }
        shortage => shortage,
    };
    if shortage != Shortage::Over {
        OVER.store(0, Ordering::Relaxed);
        if !is_one_ending(payer(task, shortage)) {
            kill_largest(task, shortage);
        }
    }
    if !task.process.is_exiting() {
        let until = Some(monotonic_ns() + PAUSE_NS);
        // A signal ends the pause as well.
        let _ = sched::sleep_until(sched::Sleep::Interruptible, until, || None::<()>);
    }
}

/// Makes room for a process that comes in from outside, at the cost of the largest; gives up when that does not help.
pub fn make_room(task: &Arc<Task>, bytes: usize) {
    let deadline = monotonic_ns() + 2 * PATIENCE_NS;
    let is_short = || account::check(bytes).is_err() || !frames::has_any();
    while is_short() && monotonic_ns() < deadline && !task.process.is_exiting() {
        relieve(task);
    }
}

/// Whose processes are to pay for it.
fn payer(task: &Arc<Task>, shortage: Shortage) -> Owner {
    match shortage {
        Shortage::Owner | Shortage::Over => task.process.container.memory().owner(),
        Shortage::Sandbox => Owner::SANDBOX,
    }
}

fn is_one_ending(payer: Owner) -> bool {
    let (process, until_ns) = match VICTIMS.lock().get(&payer) {
        Some(victim) => (victim.process.upgrade(), victim.until_ns),
        None => return false,
    };
    monotonic_ns() < until_ns && process.is_some_and(|process| !process.tasks.lock().is_empty())
}

fn kill_largest(task: &Arc<Task>, shortage: Shortage) {
    let all: Vec<Arc<Process>> = match shortage {
        Shortage::Owner | Shortage::Over => task.process.container.processes(),
        Shortage::Sandbox => container::all().iter().flat_map(|container| container.processes()).collect(),
    };
    let candidates = all.iter().filter(|process| !process.is_exiting() && !process.tasks.lock().is_empty());
    // The largest of the user who has most in all: many small processes do not get a larger one of somebody else's killed.
    // A process that takes others with it goes only if nobody else is left.
    let is_spared = |process: &Arc<Process>| {
        let container = &process.container;
        container.is_first(process) && (shortage == Shortage::Owner || container.id == ContainerId::FIRST)
    };
    let rows: Vec<_> = candidates.map(|process| (user(process), points(process), process)).collect();
    let mut totals = BTreeMap::<User, i64>::new();
    for (user, points, _) in rows.iter().filter(|(.., process)| !is_spared(process)) {
        let total = totals.entry(*user).or_default();
        *total = total.saturating_add((*points).max(0));
    }
    let rank = |(user, points, process): &&(User, i64, &Arc<Process>)| {
        (!is_spared(process), *points >= 0, totals.get(user).copied(), *points)
    };
    let largest = rows.iter().max_by_key(rank).map(|(_, points, process)| (*points, *process));
    let (points, process) = largest.unwrap_or((0, &task.process));
    task.process.container.events.out_of_memory.fetch_add(1, Ordering::Relaxed);
    process.container.events.oom_kills.fetch_add(1, Ordering::Relaxed);
    // Before the kill, which may be the sandbox's end.
    host::report(&Report::OomKill { container: process.container.id });
    if SAID.allow() {
        machine::info!(
            "out of memory: process {} is killed, {} KiB are its",
            process.pid,
            points.max(0) / 1024
        );
    }
    say(process);
    let victim =
        Victim { process: Arc::downgrade(process), until_ns: monotonic_ns().saturating_add(PATIENCE_NS) };
    VICTIMS.lock().insert(payer(task, shortage), victim);
    kill_process(process, crate::signals::SIGKILL);
    kill_group_of(process);
}

/// Counts the kill for the process's control group, and kills all processes of one that stands or falls as a whole
/// (`memory.oom.group`).
fn kill_group_of(victim: &Process) {
    let container = &victim.container;
    if let Some(whole) = container.groups.killed_for_memory(victim.member.group()) {
        let is_in = |process: &&Arc<Process>| {
            let is_spared = process.oom_score_adj.load(Ordering::Relaxed) == NEVER;
            !is_spared && container.groups.is_within(whole, process.member.group())
        };
        for process in container.processes().iter().filter(is_in) {
            kill_process(process, crate::signals::SIGKILL);
            sched::work::count(8);
        }
    }
    container.groups.tell();
}

/// Tells the process's container who is killed, in the words of Linux.
fn say(process: &Arc<Process>) {
    let kib = |bytes: u64| bytes / 1024;
    let Some(task) = process.any_task() else { return };
    let (mapped, resident, tables) = match task.held_aspace() {
        Some(aspace) => {
            let (mapped, resident) = aspace.sizes();
            (mapped, resident, aspace.kernel_bytes() as u64)
        }
        None => (0, 0, 0),
    };
    let comm = *task.comm.lock();
    let name = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    process.container.log.say(&alloc::format!(
        "Out of memory: Killed process {} ({}) total-vm:{}kB, anon-rss:{}kB, file-rss:0kB, shmem-rss:0kB, UID:{} \
         pgtables:{}kB oom_score_adj:{}",
        process.pid,
        alloc::string::String::from_utf8_lossy(name),
        kib(mapped),
        kib(resident),
        task.creds.get().uid,
        kib(tables),
        process.oom_score_adj.load(Ordering::Relaxed),
    ));
}

/// A user of a container.
type User = (ContainerId, u32);

fn user(process: &Arc<Process>) -> User {
    (process.container.id, process.any_task().map_or(0, |task| task.creds.get().uid))
}

/// Bytes that would come back with a process's end, more or less as its `oom_score_adj` says.
fn points(process: &Arc<Process>) -> i64 {
    let adjust = process.oom_score_adj.load(Ordering::Relaxed);
    if adjust == NEVER {
        return -1;
    }
    let total = frames::limit_bytes().cast_signed();
    let bytes = i64::try_from(footprint(process)).unwrap_or(i64::MAX);
    bytes.saturating_add(total / 1000 * i64::from(adjust)).max(0)
}

/// Bytes of applications' and of kernel memory that a process holds; of what it shares with others its part.
fn footprint(process: &Arc<Process>) -> u64 {
    let mut bytes = 0_u64;
    for task in process.tasks.lock().iter() {
        // Filters that threads have in common count for each of them.
        bytes = bytes.saturating_add(TASK_BYTES as u64).saturating_add(task.confinement.filter_bytes());
    }
    let Some(task) = process.any_task() else { return bytes };
    if let Some(aspace) = task.held_aspace() {
        bytes = bytes.saturating_add(aspace.sizes().1).saturating_add(aspace.kernel_bytes() as u64);
    }
    if let Some(files) = task.files() {
        bytes = bytes.saturating_add(files.held_bytes());
    }
    bytes
}
