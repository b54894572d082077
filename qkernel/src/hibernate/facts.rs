//! Gathers what a sandbox at rest waits for ([`Facts`]), and tells what keeps it awake.
//!
//! An idle CPU does so once the sandbox has been idle for long enough, and again every now and then while something keeps it awake.
//! A program chooses how many tasks and connections there are: each step looks at a few of them, and gives up where a task has
//! something to do, since the sandbox is not at rest then.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::report::{CALL_TIMER, Kept, KeptBy, Party, TimerKind};

use super::awaited::{Exec, Facts, Keeps, Reading, Request};
use crate::net::talks::{self, Phase, Talk, Visitor};
use crate::net::visits;
use crate::task::container::{self, Container};
use crate::task::core::Task;
use crate::task::waits::TimedWait;
use machine::sched::timer::{self, Interest, Standing};
use machine::sched::wait::Reader;
use machine::sched::{self, Run, Runnable};
use machine::time::NSEC;

/// So many connections are looked at under one lock, and between two looks at whether a task has something to do.
const STEP: usize = 32;
/// So many open requests, and tasks that are set aside, are taken into account: a program chooses how many there are. Of more
/// requests the others are looked at once some of these are over.
const REQUESTS_MAX: usize = 1 << 14;
const SET_ASIDE_MAX: usize = 1 << 16;
/// Most generations that a process is followed up, to find an exec'd one that it descends from.
const ANCESTORS_MAX: usize = 64;

/// The treatment of answers from outside that are waited for with a time-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Outbound {
    /// They keep the sandbox awake: the time-out would not wake it.
    #[default]
    Awake,
    /// The sandbox may sleep: the answer wakes it.
    Sleep,
}

/// Facts, with the things that their numbers stand for.
pub(super) struct Gathered {
    pub facts: Facts,
    tasks: Vec<Arc<Task>>,
    requests: Vec<Arc<Talk>>,
    questions: Vec<Arc<Talk>>,
    /// The first processes of [`Facts::execs`].
    execs: Vec<Arc<Task>>,
    /// There are more requests than were taken into account.
    pub is_short: bool,
}

/// The walk over tasks and connections.
struct Walk {
    outbound: Outbound,
    gathered: Gathered,
    /// Tasks that wait for one accepted connection alone, or for an answer that nobody is to stay awake for.
    set_aside: Vec<usize>,
}

/// Gathers the facts; `None`: a task has something to do. `facts` has the times alone.
pub(super) fn gather(outbound: Outbound, facts: Facts) -> Option<Gathered> {
    let (tasks, requests, questions, execs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let gathered = Gathered { facts, tasks, requests, questions, execs, is_short: false };
    let mut walk = Walk { outbound, gathered, set_aside: Vec::new() };
    walk.connections()?;
    walk.set_aside.sort_unstable();
    for container in container::all() {
        walk.tasks_of(&container)?;
    }
    walk.name_readers();
    walk.timers()?;
    is_at_rest()?;
    Some(walk.gathered)
}

/// `None`: a task has something to do, or the host has news that may give it something.
fn is_at_rest() -> Option<()> {
    (sched::is_at_rest() && !sched::has_news()).then_some(())
}

/// A wait of such a length is one for ever, as that of `sleep infinity`.
const FOR_EVER_NS: u64 = 30 * 24 * 3600 * NSEC;

/// A task's wait that has an end.
fn wait_of(task: &Task) -> Option<TimedWait> {
    task.waits.now().filter(|wait| wait.due_ns.saturating_sub(wait.begun_ns) < FOR_EVER_NS)
}

/// The wait of a task of the scheduler's, if the wait has an end.
fn timed(task: &Runnable) -> Option<TimedWait> {
    let task: &dyn core::any::Any = &**task;
    task.downcast_ref::<Task>().and_then(wait_of)
}

impl Walk {
    fn connections(&mut self) -> Option<()> {
        let mut from = 0;
        loop {
            is_at_rest()?;
            let (some, next) = talks::some_from(from, STEP);
            for talk in some {
                let readers = talk.readers();
                if talk.is_made() { self.question(talk, &readers) } else { self.request(talk, &readers) }
            }
            let Some(next) = next else { return Some(()) };
            from = next;
            let gathered = &mut self.gathered;
            if gathered.requests.len().max(gathered.questions.len()) >= REQUESTS_MAX {
                gathered.is_short = true;
                return Some(());
            }
        }
    }

    fn question(&mut self, talk: Arc<Talk>, readers: &[Reader]) {
        if talk.phase() != Phase::Asked {
            return;
        }
        let waits: Vec<TimedWait> = readers.iter().filter_map(|reader| timed(&reader.task)).collect();
        if self.outbound == Outbound::Sleep {
            self.set_aside(readers.iter());
        } else if let Some(wait) = waits.iter().min_by_key(|wait| wait.begun_ns) {
            let gathered = &mut self.gathered;
            gathered.facts.questions.push((gathered.questions.len(), *wait));
            gathered.questions.push(talk);
        }
    }

    fn set_aside<'a>(&mut self, readers: impl Iterator<Item = &'a Reader>) {
        let room = SET_ASIDE_MAX.saturating_sub(self.set_aside.len());
        self.set_aside.extend(readers.take(room).map(|reader| talks::name_of(&reader.task)));
    }

    fn request(&mut self, talk: Arc<Talk>, readers: &[Reader]) {
        let is_alone = |reader: &Reader| reader.is_direct && reader.task.sched().waiting.is_for_one();
        let (alone, among): (Vec<&Reader>, Vec<&Reader>) =
            readers.iter().partition(|reader| is_alone(reader));
        self.set_aside(alone.iter().copied());
        let phase = talk.phase();
        if phase == Phase::Quiet {
            return;
        }
        let of = |reader: &&Reader| {
            timed(&reader.task).map(|wait| (wait, talks::name_of(&reader.task) == talk.reader()))
        };
        // New ones first, and then those of who read the request.
        let counts_most =
            among.iter().filter_map(of).max_by_key(|(wait, is_reader)| (!wait.is_habit, *is_reader));
        let reading = match counts_most {
            Some((wait, is_reader)) => Reading::Loop(Some(wait), is_reader),
            None if !among.is_empty() => Reading::Loop(None, false),
            None if !alone.is_empty() => Reading::Alone,
            // The tasks come later.
            None => Reading::Nobody(None),
        };
        let (since_ns, opened_ns) = talk.since_ns();
        self.gathered.facts.requests.push(Request { phase, since_ns, opened_ns, reading });
        self.gathered.requests.push(talk);
    }

    /// How those wait who read requests that nobody reads on from.
    fn name_readers(&mut self) {
        let Gathered { facts, tasks, requests, .. } = &mut self.gathered;
        let is_left = |request: &Request| matches!(request.reading, Reading::Nobody(_));
        if !facts.requests.iter().any(is_left) {
            return;
        }
        let name = |task: &Arc<Task>| talks::name_of(&(task.clone() as Runnable));
        let waits = facts.waits.iter().filter_map(|(at, wait)| Some((name(tasks.get(*at)?), *wait)));
        let waits: BTreeMap<usize, TimedWait> = waits.collect();
        for (request, talk) in facts.requests.iter_mut().zip(requests) {
            if let Reading::Nobody(own) = &mut request.reading {
                *own = waits.get(&talk.reader()).copied();
            }
        }
    }

    /// Timers that were set while a request was open, and tell by a signal or a descriptor: they count as new waits of their tasks.
    /// A period that begins again was set before.
    fn timers(&mut self) -> Option<()> {
        let asked = |request: &&Request| matches!(request.phase, Phase::Asked | Phase::Late);
        let requests = self.gathered.facts.requests.iter().filter(asked);
        let Some(from_ns) = requests.map(|request| request.since_ns).min() else { return Some(()) };
        let interest = |due_ns: u64, set_ns: u64| {
            let is_one = set_ns >= from_ns && due_ns.saturating_sub(set_ns) < FOR_EVER_NS;
            if is_one { Interest::Yes } else { Interest::No }
        };
        let Gathered { facts, tasks, .. } = &mut self.gathered;
        let take = |Standing { due_ns, set_ns, is_period, waiter }: Standing| {
            let counts = waiter.kind != TimerKind::Wait && !is_period;
            if let Some(task) = waiter.task.filter(|_| counts).and_then(as_task) {
                let (call, is_habit, is_rest) = (CALL_TIMER, false, false);
                let wait = TimedWait { call, begun_ns: set_ns, due_ns, is_habit, is_rest };
                facts.waits.push((tasks.len(), wait));
                tasks.push(task);
            }
        };
        timer::standing(|| is_at_rest().is_some(), interest, take).then_some(())
    }

    fn tasks_of(&mut self, container: &Arc<Container>) -> Option<()> {
        let processes = container.processes();
        let mut leaders = BTreeMap::new();
        for process in processes.iter().filter(|process| process.on_end.get().is_some()) {
            let Some(task) = process.any_task() else { continue };
            leaders.insert(process.pid, self.gathered.execs.len());
            self.gathered.execs.push(task);
            self.gathered.facts.execs.push(Exec::default());
        }
        let parents: BTreeMap<u32, u32> = match leaders.is_empty() {
            true => BTreeMap::new(),
            false => processes
                .iter()
                .map(|process| (process.pid, process.parent.load(Ordering::Relaxed)))
                .collect(),
        };
        for process in &processes {
            let exec = exec_of(process.pid, &leaders, &parents);
            let tasks: Vec<Arc<Task>> = process.tasks.lock().clone();
            for (at, task) in tasks.into_iter().enumerate() {
                if at % STEP == 0 {
                    is_at_rest()?;
                }
                self.task(task, exec);
            }
        }
        Some(())
    }

    fn task(&mut self, task: Arc<Task>, exec: Option<usize>) {
        let (wait, number) = (wait_of(&task), self.gathered.tasks.len());
        if let Some(exec) = exec.and_then(|exec| self.gathered.facts.execs.get_mut(exec)) {
            let waiting = &task.sched().waiting;
            exec.reads |= waiting.is_for_outside();
            let wait = wait.filter(|_| !waiting.is_for_outside());
            // A single wait counts to its end, also beside one that begins again and again.
            let new = wait.map(|wait| (number, wait));
            exec.wait = exec.wait.into_iter().chain(new).min_by_key(|(_, wait)| wait.begun_ns);
        }
        let runnable: Runnable = task.clone();
        if let Some(wait) = wait.filter(|_| self.set_aside.binary_search(&talks::name_of(&runnable)).is_err())
        {
            self.gathered.facts.waits.push((number, wait));
        }
        if wait.is_some() {
            self.gathered.tasks.push(task);
        }
    }
}

/// The exec'd process that a process is, or descends from.
fn exec_of(pid: u32, leaders: &BTreeMap<u32, usize>, parents: &BTreeMap<u32, u32>) -> Option<usize> {
    let mut pid = pid;
    for _ in 0..ANCESTORS_MAX {
        if leaders.is_empty() || leaders.contains_key(&pid) {
            break;
        }
        pid = *parents.get(&pid)?;
    }
    leaders.get(&pid).copied()
}

impl Gathered {
    /// Ends the requests that are over, so that what tasks do from now on is learned as their habit.
    pub fn end_what_is_over(&self) {
        for at in self.facts.over() {
            if let (Some(talk), Some(request)) = (self.requests.get(at), self.facts.requests.get(at)) {
                talk.end(request.phase);
            }
        }
    }

    /// Returns what keeps the sandbox awake as the host is told of it.
    pub fn tell(&self, keeps: Keeps) -> Kept {
        let waiter = |task: Option<usize>| task.and_then(|at| self.tasks.get(at));
        let (by, talk, task) = match keeps {
            Keeps::Request(at, task) => {
                let talk = self.requests.get(at);
                let by = waiter(task).cloned().or_else(|| talk.and_then(|talk| self.reader_of(talk)));
                (KeptBy::Request, talk, by)
            }
            Keeps::Perhaps(at) => {
                let talk = self.requests.get(at);
                (KeptBy::PerhapsRequest, talk, talk.and_then(|talk| self.reader_of(talk)))
            }
            Keeps::Exec(at, task) => {
                (KeptBy::Exec, None, waiter(task).or_else(|| self.execs.get(at)).cloned())
            }
            Keeps::Question(at) => {
                let talk = self.questions.get(at);
                (KeptBy::Outbound, talk, talk.and_then(|talk| self.reader_of(talk)))
            }
        };
        let mut who = party(talk.map(|talk| (talk.port, talk.peer.as_slice())), task.as_deref());
        if let Some(wait) = task.and_then(|task| task.waits.now()) {
            who.call = wait.call;
            who.wait_ms = wait.due_ns.saturating_sub(wait.begun_ns) / 1_000_000;
        }
        Kept { who, ..Kept::by(by) }
    }

    /// A task that waits for more from a connection.
    fn reader_of(&self, talk: &Talk) -> Option<Arc<Task>> {
        talk.readers().into_iter().find_map(|reader| as_task(reader.task))
    }
}

/// The task that the scheduler runs so.
fn as_task(task: Runnable) -> Option<Arc<Task>> {
    let task: Arc<dyn core::any::Any + Send + Sync> = task;
    task.downcast().ok()
}

/// Somebody outside, by a local port and the address that the host has, and a task.
fn party(talk: Option<(u16, &[u8])>, task: Option<&Task>) -> Party {
    let mut party = Party::UNKNOWN;
    if let Some((port, peer)) = talk {
        party.port = port;
        party.peer = visits::internet(peer).unwrap_or(party.peer);
        party.peer_port =
            peer.get(2..).and_then(<[u8]>::first_chunk).map_or(0, |port| u16::from_be_bytes(*port));
    }
    if let Some(task) = task {
        (party.pid, party.tid) = (task.process.pid, task.tid());
        party.name = *task.comm.lock();
    }
    party
}

/// The one for whom the sandbox was woken, as the host is told of it.
pub(super) fn tell_visitor(visitor: Visitor) -> Party {
    let task = as_task(visitor.task);
    party(Some((visitor.port, &visitor.peer)), task.as_deref())
}
