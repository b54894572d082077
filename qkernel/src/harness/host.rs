//! The host's side: "user code" is the next step of the sequence.

use abi::report::{Report, WakeEvent};
use abi::run::{PF_USER, RunState, TRAP_INTERRUPT, TRAP_PAGE_FAULT, TRAP_SYSCALL, TrapInfo};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::harness::steps::{Step, Steps};
use crate::task;
use crate::task::container::ContainerId;
use machine::mm::UserAddr;
use machine::sync::{Rank, SpinLock};

const EXIT_GROUP: u64 = 231;

struct Feed {
    steps: Steps,
    first_pid: u32,
    own: BTreeMap<(ContainerId, u32), Own>,
}

/// The steps of one process, and what its calls have come to.
#[derive(Default)]
struct Own {
    steps: VecDeque<Step>,
    calls: bool,
    results: Vec<i64>,
}

impl Own {
    /// The next step; `result` is of the former one, if that was a call.
    fn next(&mut self, result: u64) -> Step {
        if self.calls {
            self.results.push(result.cast_signed());
        }
        let step = self.steps.pop_front().unwrap_or(Step::End);
        self.calls = matches!(step, Step::Call { .. });
        step
    }
}

static FEED: SpinLock<Feed> =
    SpinLock::new(Rank::Leaf, Feed { steps: Steps::new(Vec::new()), first_pid: 0, own: BTreeMap::new() });
/// Innermost: a line may be written under any lock.
static TRACE: SpinLock<Option<fn(&str)>> = SpinLock::new(Rank::Heap, None);

/// A report that scenarios look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A container rests, as this request asked for.
    Paused(ContainerId, u64),
    /// The sandbox wakes.
    WakeEvent(WakeEvent),
}

/// Reports of pauses and wakes.
static REPORTS: SpinLock<Vec<Told>> = SpinLock::new(Rank::Leaf, Vec::new());

/// How hibernations came out.
static OUTCOMES: SpinLock<Vec<u64>> = SpinLock::new(Rank::Leaf, Vec::new());

/// Keeps the outcome of a hibernation.
pub fn hibernated(outcome: u64) {
    OUTCOMES.lock().push(outcome);
}

/// The outcomes since the last question.
pub fn take_outcomes() -> Vec<u64> {
    core::mem::take(&mut *OUTCOMES.lock())
}

/// Keeps a report of a container's pause, or of a wake event.
pub fn report(report: Report<'_>) {
    let told = match report {
        Report::ContainerPaused { container, request } => Told::Paused(container, request),
        Report::WakeEvent { by } => Told::WakeEvent(by),
        _ => return,
    };
    REPORTS.lock().push(told);
}

/// The reports since the last question.
pub fn take_reports() -> Vec<Told> {
    core::mem::take(&mut *REPORTS.lock())
}

/// Gives the tasks their steps.
pub fn feed(bytes: &[u8], first_pid: u32) {
    *FEED.lock() = Feed { steps: Steps::new(bytes.to_vec()), first_pid, own: BTreeMap::new() };
}

/// Gives one process steps of its own.
pub fn feed_process(container: ContainerId, pid: u32, steps: impl IntoIterator<Item = Step>) {
    let own = Own { steps: steps.into_iter().collect(), ..Own::default() };
    FEED.lock().own.insert((container, pid), own);
}

/// Returns the results of the calls of a process with steps of its own, in order.
pub fn results(container: ContainerId, pid: u32) -> Vec<i64> {
    FEED.lock().own.get(&(container, pid)).map_or_else(Vec::new, |own| own.results.clone())
}

/// Sets the function that prints the kernel's log.
pub fn set_trace(trace: Option<fn(&str)>) {
    *TRACE.lock() = trace;
}

/// Prints a line of the kernel's log.
pub fn log(line: &str) {
    let trace = *TRACE.lock();
    if let Some(trace) = trace {
        trace(line);
    }
}

/// The next step of the current task.
pub fn run(state: &mut RunState) {
    let task = task::current();
    let step = {
        let mut feed = FEED.lock();
        let (first_pid, process) = (feed.first_pid, &task.process);
        match feed.own.get_mut(&(process.container.id, process.pid)) {
            Some(own) => own.next(state.regs.rax),
            None => feed.steps.next(process.pid, first_pid),
        }
    };
    let aspace = task.aspace();
    state.trap = TrapInfo { kind: TRAP_INTERRUPT, ..TrapInfo::default() };
    match step {
        Step::Call { number, args } => {
            let regs = &mut state.regs;
            regs.rax = number;
            [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = args;
            state.trap.kind = TRAP_SYSCALL;
        }
        Step::Write { addr, bytes } => {
            // A page that cannot be written stays as it is.
            let _ = aspace.map(|aspace| aspace.copy_out(UserAddr::new(addr), &bytes));
        }
        Step::Host(happens) => happens(),
        Step::Fault { addr, error } => {
            state.trap = TrapInfo { kind: TRAP_PAGE_FAULT, vector: 14, error: error | PF_USER, addr };
        }
        Step::End => {
            state.regs.rax = EXIT_GROUP;
            state.regs.rdi = 0;
            state.trap.kind = TRAP_SYSCALL;
        }
    }
}
