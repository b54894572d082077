//! Which task runs next.
//!
//! While there is one owner, tasks take turns. With several, the owner comes first that has had least for its shares: each
//! has a *lane* with its tasks, which take turns, and a virtual time, which its processor time moves on, more slowly the more
//! shares it has (start-time fair queueing: Goyal, Guo and Vin, *A Hierarchical CPU Scheduler for Multimedia Operating
//! Systems*, OSDI 1996). Three rules keep that fair:
//! - Only time while some task waits for a CPU counts. Who runs while nobody waits takes nothing from anybody.
//! - No lane is further behind the present, the latest virtual time at which one was served, than a time slice. So nobody
//!   saves up time by sleeping, or by having fewer tasks than CPUs are its share.
//! - A task that was woken in a sleep no signal ends may hold a mutex of the kernel's, so it comes before all lanes, as far
//!   as the way to user code. There it queues up as if its time slice were over.
//!
//! A lane whose owner has used up its budget ([`Budget`]) is *throttled*: those of its tasks that are on the way to user code
//! are *parked*, the others are not held up.
//!
//! A task may be bound to some of the CPUs ([`CpuSet`]): the others pass it by, wherever it waits.
//!
//! The queue also keeps the load of each owner ([`Load`]), since it knows what runs and what waits.
//!
//! Nothing here knows a clock: whoever calls says what time it is (monotonic, in nanoseconds). But for the
//! load it is looked at only if times are kept ([`RunQueue::keeps_time`]).

mod line;

use alloc::vec::Vec;

use self::line::{CPUS, Entry, Line};
use super::budget::{Budget, Left, Quota, Throttling};
use super::cpu_set::CpuSet;
use super::load::{Averages, Clock, Load};
use super::pressure::{Pressure, Sample};
use crate::config::TIME_SLICE_NS;
use crate::owner::Owner;

/// The shares of an owner for which nobody chose any, and the bounds.
const SHARES: u64 = 1024;
const SHARES_MIN: u64 = 2;
const SHARES_MAX: u64 = 262_144;
/// Virtual time of an owner with so many shares goes like time itself.
const SHARES_UNIT: u64 = 64;
/// The shortest time slice, which lanes have that have far fewer shares than another.
const SLICE_MIN_NS: u64 = 1_000_000;
/// For so long at least user code runs before the budget is looked at again.
const GRANT_MIN_NS: u64 = 200_000;
/// More time than this on a CPU without a look at the clock is the host's doing, and is not charged.
const STINT_MAX_NS: u64 = 1_000_000_000;

/// The class in which a task waits for a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueClass {
    /// Before all lanes.
    Urgent,
    /// In its lane, somewhere in the kernel.
    Kernel,
    /// In its lane, on the way to user code.
    Boundary,
}

/// The time that an owner's task is granted in user code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grant {
    Unlimited,
    /// Run until then, and ask again.
    Until(u64),
    /// Nothing. With a time: whoever is told calls [`RunQueue::refill`] then.
    Wait(Option<u64>),
}

struct Lane<T> {
    shares: u64,
    virtual_ns: u64,
    kernel: Line<T>,
    boundary: Line<T>,
    budget: Budget,
    /// Its owner is one beside the sandbox itself.
    is_further: bool,
    load: Load,
    pressure: Pressure,
}

impl<T> Lane<T> {
    const fn new() -> Self {
        Self {
            shares: SHARES,
            virtual_ns: 0,
            kernel: Line::new(),
            boundary: Line::new(),
            budget: Budget::new(),
            is_further: false,
            load: Load::new(),
            pressure: Pressure::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.kernel.is_empty() && self.boundary.is_empty()
    }

    fn line(&mut self, class: QueueClass) -> &mut Line<T> {
        if class == QueueClass::Boundary { &mut self.boundary } else { &mut self.kernel }
    }

    /// Converts time that tasks ran, in nanoseconds, to the lane's virtual time.
    fn scale(&self, ns: u64) -> u64 {
        ns.saturating_mul(SHARES_UNIT) / self.shares
    }

    /// Tasks that wait for the budget.
    fn parked(&self) -> usize {
        if self.budget.is_throttled() { self.boundary.len() } else { 0 }
    }

    /// Whether those on the way to user code go on.
    fn may_pass(&self, with_parked: bool) -> bool {
        with_parked || !self.budget.is_throttled()
    }

    /// Whether there is something for the CPU.
    fn has_for(&self, cpu: usize, with_parked: bool) -> bool {
        self.kernel.has_for(cpu) || self.may_pass(with_parked) && self.boundary.has_for(cpu)
    }

    /// Whose turn it is: where it stands, and its ticket.
    fn first(
        &self,
        cpu: usize,
        with_parked: bool,
        free: &impl Fn(&T) -> bool,
    ) -> Option<(QueueClass, usize, u64)> {
        let find = |class, line: &Line<T>| {
            let at = line.find(cpu, free)?;
            Some((class, at, line.entries[at].ticket))
        };
        let kernel = find(QueueClass::Kernel, &self.kernel);
        if self.boundary.is_empty() || !self.may_pass(with_parked) {
            return kernel;
        }
        let boundary = find(QueueClass::Boundary, &self.boundary);
        kernel.into_iter().chain(boundary).min_by_key(|found| found.2)
    }
}

/// The stretch for which a CPU runs one task: the task's owner, and up to when the owner has been charged.
#[derive(Clone, Copy)]
struct Stint {
    owner: Option<Owner>,
    charged_until_ns: u64,
    contended_ns: u64,
}

/// Goes while some task waits for a CPU.
struct Contention {
    total_ns: u64,
    since_ns: Option<u64>,
}

impl Contention {
    fn at(&self, now_ns: u64) -> u64 {
        self.total_ns + self.since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns))
    }
}

/// See the module.
pub(super) struct RunQueue<T> {
    /// By owner.
    lanes: Vec<Lane<T>>,
    /// Owners in whose lanes tasks wait.
    busy: Vec<Owner>,
    urgent: Line<T>,
    tickets: u64,
    len: usize,
    /// Those that may not run on every CPU.
    bound: usize,
    parked: usize,
    /// The latest virtual time of a lane that was served.
    present_ns: u64,
    contention: Contention,
    stints: [Stint; CPUS],
    /// Owners beside the sandbox itself.
    further: usize,
    samples: Clock,
}

impl<T> RunQueue<T> {
    pub const fn new() -> Self {
        let stint = Stint { owner: None, charged_until_ns: 0, contended_ns: 0 };
        Self {
            lanes: Vec::new(),
            busy: Vec::new(),
            urgent: Line::new(),
            tickets: 0,
            len: 0,
            bound: 0,
            parked: 0,
            present_ns: 0,
            contention: Contention { total_ns: 0, since_ns: None },
            stints: [stint; CPUS],
            further: 0,
            samples: Clock::new(),
        }
    }

    /// Whether it matters what time it is.
    pub fn keeps_time(&self) -> bool {
        self.further != 0
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tasks that wait for a CPU.
    pub fn waiting(&self) -> usize {
        self.len - self.parked
    }

    /// Tasks that wait for their owner's budget.
    pub fn parked(&self) -> usize {
        self.parked
    }

    fn lane(&mut self, owner: Owner) -> &mut Lane<T> {
        let at = usize::from(owner.number());
        if at >= self.lanes.len() {
            self.lanes.resize_with(at + 1, Lane::new);
        }
        &mut self.lanes[at]
    }

    /// There is an owner beside the sandbox itself.
    pub fn begin_owner(&mut self, owner: Owner, now_ns: u64) {
        if self.further == 0 {
            self.stints.iter_mut().for_each(|stint| stint.charged_until_ns = now_ns);
            self.contention = Contention { total_ns: 0, since_ns: None };
            self.stints.iter_mut().for_each(|stint| stint.contended_ns = 0);
        }
        let lane = self.lane(owner);
        if !lane.is_further {
            lane.is_further = true;
            self.further += 1;
        }
        self.note_contention(now_ns);
    }

    /// There is not any more. It has no tasks.
    pub fn end_owner(&mut self, owner: Owner, now_ns: u64) {
        self.set_quota(owner, None, now_ns);
        let lane = self.lane(owner);
        let was_further = core::mem::take(&mut lane.is_further);
        (lane.shares, lane.virtual_ns, lane.budget) = (SHARES, 0, Budget::new());
        (lane.load, lane.pressure) = (Load::new(), Pressure::new());
        self.further -= usize::from(was_further);
    }

    pub fn set_shares(&mut self, owner: Owner, shares: u64) {
        self.lane(owner).shares = shares.clamp(SHARES_MIN, SHARES_MAX);
    }

    /// Limits an owner that is not the sandbox itself, or does not any more; whether that is news.
    pub fn set_quota(&mut self, owner: Owner, quota: Option<Quota>, now_ns: u64) -> bool {
        let is_news = self.lane(owner).budget.quota() != quota;
        if is_news {
            self.charge_all(owner, now_ns);
            self.with_budget(owner, now_ns, |budget| budget.set(quota, now_ns));
        }
        is_news
    }

    /// Does something with an owner's budget that may park or release tasks.
    fn with_budget<R>(&mut self, owner: Owner, now_ns: u64, act: impl FnOnce(&mut Budget) -> R) -> R {
        let lane = self.lane(owner);
        let before = lane.parked();
        let result = act(&mut lane.budget);
        let after = lane.parked();
        self.parked = self.parked - before + after;
        self.note_contention(now_ns);
        result
    }

    pub fn throttling(&self, owner: Owner, now_ns: u64) -> Throttling {
        let lane = self.lanes.get(usize::from(owner.number()));
        lane.map_or_else(Throttling::default, |lane| lane.budget.figures(now_ns))
    }

    /// A task waits from now on; result: its ticket.
    pub fn add(&mut self, owner: Owner, class: QueueClass, (task, cpus): (T, CpuSet), now_ns: u64) -> u64 {
        self.tickets += 1;
        let entry = Entry { ticket: self.tickets, owner, cpus, task };
        let keeps_time = self.keeps_time();
        if keeps_time && class == QueueClass::Urgent {
            self.urgent.push(entry);
        } else {
            let present_ns = self.present_ns;
            let lane = self.lane(owner);
            let was_empty = lane.is_empty();
            let before = lane.parked();
            if keeps_time {
                let least_ns = present_ns.saturating_sub(lane.scale(TIME_SLICE_NS));
                lane.virtual_ns = lane.virtual_ns.max(least_ns);
            }
            lane.line(class).push(entry);
            self.parked = self.parked - before + self.lane(owner).parked();
            if was_empty {
                self.busy.push(owner);
            }
        }
        self.len += 1;
        self.bound += usize::from(!cpus.is_all());
        self.note_contention(now_ns);
        self.tickets
    }

    /// A task waits no more.
    pub fn remove(&mut self, owner: Owner, ticket: u64, now_ns: u64) -> Option<T> {
        let entry = match self.urgent.take(ticket) {
            Some(entry) => entry,
            None => {
                self.take_from(owner, |lane| lane.kernel.take(ticket).or_else(|| lane.boundary.take(ticket)))?
            }
        };
        self.count_out(&entry);
        self.note_contention(now_ns);
        Some(entry.task)
    }

    /// A task on the way to user code is needed in the kernel: it comes before all others. Result: its new ticket.
    pub fn promote(&mut self, owner: Owner, ticket: u64, now_ns: u64) -> Option<u64> {
        let entry = self.take_from(owner, |lane| lane.boundary.take(ticket))?;
        self.count_out(&entry);
        Some(self.add(owner, QueueClass::Urgent, (entry.task, entry.cpus), now_ns))
    }

    /// A task that waits may run on these CPUs from now on. Nothing, if it does not wait.
    pub fn bind(&mut self, owner: Owner, ticket: u64, cpus: CpuSet) {
        let mut former = self.urgent.bind(ticket, cpus);
        if former.is_none() {
            let lane = self.lane(owner);
            former = lane.kernel.bind(ticket, cpus).or_else(|| lane.boundary.bind(ticket, cpus));
        }
        let Some(former) = former else { return };
        self.bound = self.bound + usize::from(!cpus.is_all()) - usize::from(!former.is_all());
    }

    /// Whether a task waits that may not run on every CPU.
    pub fn has_bound(&self) -> bool {
        self.bound != 0
    }

    /// Whether a task waits that the CPU may run. `with_parked`: also one that waits for a budget.
    pub fn has_for(&self, cpu: usize, with_parked: bool) -> bool {
        let lane_has = |owner: &Owner| {
            self.lanes.get(usize::from(owner.number())).is_some_and(|lane| lane.has_for(cpu, with_parked))
        };
        self.urgent.has_for(cpu) || self.busy.iter().any(lane_has)
    }

    fn count_out(&mut self, entry: &Entry<T>) {
        self.len -= 1;
        self.bound -= usize::from(!entry.cpus.is_all());
    }

    fn take_from<R>(&mut self, owner: Owner, act: impl FnOnce(&mut Lane<T>) -> Option<R>) -> Option<R> {
        let lane = self.lane(owner);
        let before = lane.parked();
        let taken = act(lane)?;
        let (after, is_empty) = (lane.parked(), lane.is_empty());
        self.parked = self.parked - before + after;
        if is_empty && let Some(at) = self.busy.iter().position(|busy| *busy == owner) {
            self.busy.swap_remove(at);
        }
        Some(taken)
    }

    /// The CPU runs the next task for which `free` holds, which is taken out, and has a time slice of so many nanoseconds.
    /// `with_parked`: also one that waits for a budget.
    pub fn pick(
        &mut self,
        cpu: usize,
        with_parked: bool,
        now_ns: u64,
        free: impl Fn(&T) -> bool,
    ) -> Option<(T, u64)> {
        let urgent = self.urgent.find(cpu, &free);
        let (entry, slice_ns) = match urgent.and_then(|at| self.urgent.remove(at)) {
            Some(entry) => (entry, 0),
            None => self.pick_from_lanes(cpu, with_parked, free)?,
        };
        self.count_out(&entry);
        let contended_ns = self.contention.at(now_ns);
        self.stints[cpu] = Stint { owner: Some(entry.owner), charged_until_ns: now_ns, contended_ns };
        self.note_contention(now_ns);
        Some((entry.task, slice_ns))
    }

    fn pick_from_lanes(
        &mut self,
        cpu: usize,
        with_parked: bool,
        free: impl Fn(&T) -> bool,
    ) -> Option<(Entry<T>, u64)> {
        let mut best: Option<((u64, u64), Owner, QueueClass, usize)> = None;
        let mut most_shares = 0;
        for &owner in &self.busy {
            let lane = &self.lanes[usize::from(owner.number())];
            let Some((class, at, ticket)) = lane.first(cpu, with_parked, &free) else { continue };
            most_shares = most_shares.max(lane.shares);
            let key = (lane.virtual_ns, ticket);
            if best.as_ref().is_none_or(|best| key < best.0) {
                best = Some((key, owner, class, at));
            }
        }
        let (_, owner, class, at) = best?;
        let entry = self.take_from(owner, |lane| lane.line(class).remove(at))?;
        let lane = &self.lanes[usize::from(owner.number())];
        self.present_ns = self.present_ns.max(lane.virtual_ns);
        let slice_ns = TIME_SLICE_NS * lane.shares / most_shares.max(1);
        Some((entry, slice_ns.clamp(SLICE_MIN_NS, TIME_SLICE_NS)))
    }

    /// The CPU runs what it ran no longer.
    pub fn leave(&mut self, cpu: usize, now_ns: u64) {
        self.charge(cpu, now_ns);
        self.stints[cpu].owner = None;
    }

    /// Charges what the CPU has done so far.
    fn charge(&mut self, cpu: usize, now_ns: u64) {
        let Some(owner) = self.stints[cpu].owner.filter(|_| self.keeps_time()) else { return };
        let clock_ns = self.contention.at(now_ns);
        let stint = &mut self.stints[cpu];
        let ran_ns = now_ns.saturating_sub(stint.charged_until_ns).min(STINT_MAX_NS);
        let contended_ns = clock_ns.saturating_sub(stint.contended_ns).min(ran_ns);
        (stint.charged_until_ns, stint.contended_ns) = (now_ns, clock_ns);
        let lane = self.lane(owner);
        lane.virtual_ns = lane.virtual_ns.saturating_add(lane.scale(contended_ns));
        lane.budget.charge(ran_ns);
    }

    /// Charges what all CPUs have done so far for this owner; on how many of them its tasks run.
    fn charge_all(&mut self, owner: Owner, now_ns: u64) -> usize {
        let runs = |cpu: &usize| self.stints[*cpu].owner == Some(owner);
        let mask = (0..self.stints.len()).filter(runs).fold(0_u32, |mask, cpu| mask | 1 << cpu);
        (0..self.stints.len()).filter(|cpu| mask & 1 << cpu != 0).for_each(|cpu| self.charge(cpu, now_ns));
        mask.count_ones() as usize
    }

    /// A task of this owner, which runs, is about to run user code.
    pub fn ask(&mut self, owner: Owner, now_ns: u64) -> Grant {
        if self.lane(owner).budget.quota().is_none() {
            return Grant::Unlimited;
        }
        let cpus = self.charge_all(owner, now_ns).max(1) as u64;
        match self.with_budget(owner, now_ns, |budget| budget.look(now_ns)) {
            Left::Unlimited => Grant::Unlimited,
            // What the others on other CPUs will have had by then is charged afterwards.
            Left::Some(left_ns) => Grant::Until(now_ns.saturating_add((left_ns / cpus).max(GRANT_MIN_NS))),
            Left::Nothing { until_ns, is_news } => Grant::Wait(is_news.then_some(until_ns)),
        }
    }

    /// Releases what is parked of an owner if its budget has come back; result: when to look again, if it has not and nobody
    /// else was told to.
    pub fn refill(&mut self, owner: Owner, now_ns: u64) -> Option<u64> {
        if !self.lane(owner).budget.is_throttled() {
            return None;
        }
        self.charge_all(owner, now_ns);
        match self.with_budget(owner, now_ns, |budget| budget.look(now_ns)) {
            Left::Nothing { until_ns, is_news } => is_news.then_some(until_ns),
            Left::Unlimited | Left::Some(_) => None,
        }
    }

    /// Takes the samples of the load that are due since the last call. What runs and waits has been the same all that time: every
    /// change is made after a call. `held_up`: how many tasks of an owner wait for the host; `None`: nothing runs at all.
    pub fn sample(&mut self, now_ns: u64, held_up: Option<impl Fn(Owner) -> usize>) {
        let periods = self.samples.periods(now_ns);
        if periods == 0 {
            return;
        }
        for number in 0..self.lanes.len() {
            let owner = Owner::new(u8::try_from(number).unwrap_or(u8::MAX));
            let found = held_up.as_ref().map_or(Sample::NONE, |held_up| self.found(owner, held_up(owner)));
            let lane = &mut self.lanes[number];
            lane.load.advance(periods, (found.running + found.waiting + found.held_up) as u64);
            lane.pressure.advance(periods, found);
        }
    }

    fn found(&self, owner: Owner, held_up: usize) -> Sample {
        let running = self.stints.iter().filter(|stint| stint.owner == Some(owner)).count();
        Sample { running, waiting: self.running(owner).saturating_sub(running), held_up }
    }

    /// Returns the pressure on an owner's tasks, as of the last call of [`Self::sample`].
    pub fn pressure(&self, owner: Owner) -> Pressure {
        self.lanes.get(usize::from(owner.number())).map_or(Pressure::new(), |lane| lane.pressure)
    }

    /// The tasks of an owner that run or wait for a CPU.
    pub fn running(&self, owner: Owner) -> usize {
        let lane = self.lanes.get(usize::from(owner.number()));
        let waiting = lane.map_or(0, |lane| lane.kernel.len() + lane.boundary.len() - lane.parked());
        let urgent = self.urgent.entries.iter().filter(|entry| entry.owner == owner).count();
        waiting + urgent + self.stints.iter().filter(|stint| stint.owner == Some(owner)).count()
    }

    /// The load of an owner, as of the last call of [`Self::sample`].
    pub fn load(&self, owner: Owner) -> Averages {
        self.lanes.get(usize::from(owner.number())).map_or([0; 3], |lane| lane.load.averages())
    }

    /// Whether tasks wait for a CPU may be another thing now.
    fn note_contention(&mut self, now_ns: u64) {
        if !self.keeps_time() || (self.waiting() != 0) == self.contention.since_ns.is_some() {
            return;
        }
        self.contention.total_ns = self.contention.at(now_ns);
        self.contention.since_ns = (self.waiting() != 0).then_some(now_ns);
    }
}

#[cfg(test)]
mod tests;
