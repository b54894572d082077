//! The control groups of a container (version 2): its own group, which nobody inside removes, and the groups that its
//! programs make below.
//!
//! A group is a number in a table, so that a file which outlives its group finds nothing, and a deep tree is freed without
//! recursion. Each process is in one group ([`Member`]), and with it all its threads: groups of threads do not exist. What is
//! counted of a group (tasks, processor time) counts for the groups above it as well, up to the container's own.
//!
//! Groups are bounded by [`GROUPS_MAX`] and by kernel memory, and are never deeper than [`DEPTH_MAX`], so every walk upwards is
//! short. Nothing here walks through all groups, or through processes: `cgroupfs` does that, outside of locks.

mod controllers;
mod events;
mod nodes;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::fs::changes::Changes;
use machine::errno::{Errno, Result};
use machine::mm::account::Charge;
use machine::sync::{Rank, SpinLock};

pub use controllers::{Change, Controllers, Standing};
pub use events::{Event, file_key};
pub use nodes::{DIR, NewGroup, Owner};

/// Most groups of a container.
pub const GROUPS_MAX: usize = 16_384;
/// Most groups on the way from a container's own group to one below.
pub const DEPTH_MAX: usize = 64;
/// No limit.
pub const MAX: u64 = u64::MAX;

/// A group's number. No other group of the sandbox ever has the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GroupId(pub u64);

impl GroupId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// User and system time in counter ticks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Ticks {
    pub user: u64,
    pub system: u64,
}

/// A process's place among the groups. Written under the lock of its container's groups.
pub struct Member {
    group: AtomicU64,
    /// How many tasks of the process its group counts.
    tasks: AtomicUsize,
    /// Processor time of the process that groups have counted for good.
    counted_user: AtomicU64,
    counted_system: AtomicU64,
}

impl Member {
    /// Of a process that has no tasks yet.
    pub fn new(group: GroupId) -> Self {
        Self {
            group: AtomicU64::new(group.0),
            tasks: AtomicUsize::new(0),
            counted_user: AtomicU64::new(0),
            counted_system: AtomicU64::new(0),
        }
    }

    /// The group that the process is in, or was in when it ended.
    pub fn group(&self) -> GroupId {
        GroupId(self.group.load(Ordering::Relaxed))
    }

    /// How many tasks it has.
    pub fn tasks(&self) -> usize {
        self.tasks.load(Ordering::Relaxed)
    }

    /// Returns the processor time that the process has used since it came into its group, if it has used `used` in all.
    pub fn used_here(&self, used: Ticks) -> Ticks {
        Ticks {
            user: used.user.saturating_sub(self.counted_user.load(Ordering::Relaxed)),
            system: used.system.saturating_sub(self.counted_system.load(Ordering::Relaxed)),
        }
    }
}

/// The values that a group's files keep.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub pids_max: u64,
    pub max_depth: u64,
    pub max_descendants: u64,
    pub cpu_weight: u64,
    pub cpu_period_us: u64,
    pub is_idle: bool,
    pub memory_low: u64,
    pub memory_min: u64,
    /// Whoever kills one of its processes for memory kills all of them.
    pub is_oom_group: bool,
    pub io_weight: u64,
    pub swap_high: u64,
    pub swap_max: u64,
}

impl Settings {
    const NEW: Self = Self {
        pids_max: MAX,
        max_depth: MAX,
        max_descendants: MAX,
        cpu_weight: 100,
        cpu_period_us: 100_000,
        is_idle: false,
        memory_low: 0,
        memory_min: 0,
        is_oom_group: false,
        io_weight: 100,
        swap_high: MAX,
        swap_max: MAX,
    };

    /// Resets the settings of these controllers to their first values.
    fn forget(&mut self, controllers: Controllers) {
        let new = Self::NEW;
        if controllers.contains(Controllers::PIDS) {
            self.pids_max = new.pids_max;
        }
        if controllers.contains(Controllers::CPU) {
            (self.cpu_weight, self.cpu_period_us, self.is_idle) =
                (new.cpu_weight, new.cpu_period_us, new.is_idle);
        }
        if controllers.contains(Controllers::MEMORY) {
            (self.memory_low, self.memory_min, self.is_oom_group) =
                (new.memory_low, new.memory_min, new.is_oom_group);
            (self.swap_high, self.swap_max) = (new.swap_high, new.swap_max);
        }
        if controllers.contains(Controllers::IO) {
            self.io_weight = new.io_weight;
        }
    }
}

/// How often something happened in a group or below it.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    pub forks_refused: u64,
    pub oom: u64,
    pub oom_kills: u64,
    pub oom_group_kills: u64,
}

struct Group {
    parent: Option<GroupId>,
    name: Box<[u8]>,
    depth: usize,
    /// The groups directly below, by name and in the order in which they were made.
    by_name: BTreeMap<Box<[u8]>, GroupId>,
    in_order: BTreeMap<GroupId, Box<[u8]>>,
    descendants: usize,
    gives: Controllers,
    /// How many groups directly below hand on each controller in turn.
    users: [usize; Controllers::COUNT],
    settings: Settings,
    counts: Counts,
    /// Tasks of its own, and with those below.
    own_tasks: usize,
    tasks: usize,
    tasks_peak: usize,
    /// Processor time used in it, or in a group below, by processes that have left or ended.
    used: Ticks,
    changes: [Option<Arc<Changes>>; Event::ALL.len()],
    nodes: nodes::Nodes,
    _charge: Charge,
}

struct State {
    groups: BTreeMap<GroupId, Group>,
    /// Events that nobody was told of yet.
    due: events::Due,
}

/// The groups of a container.
pub struct Groups {
    root: GroupId,
    state: SpinLock<State>,
}

/// A group's facts, copied out of the table.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub settings: Settings,
    pub counts: Counts,
    pub standing: Standing,
    pub descendants: usize,
    pub tasks: usize,
    pub tasks_peak: usize,
    pub used: Ticks,
}

impl Groups {
    /// A container's own group, without processes.
    pub fn new() -> Arc<Self> {
        let root = GroupId::next();
        let new = NewGroup { name: b"", owner: Owner::ROOT_DIR };
        let group = Group::new(None, 0, &new, Charge::default());
        let state = State { groups: BTreeMap::from([(root, group)]), due: events::Due::new() };
        Arc::new(Self { root, state: SpinLock::new(Rank::Leaf, state) })
    }

    /// The container's own group.
    pub fn root(&self) -> GroupId {
        self.root
    }

    /// `ENODEV`: the group was removed.
    pub fn facts(&self, id: GroupId) -> Result<Facts> {
        let state = self.state.lock();
        let group = state.get(id)?;
        Ok(Facts {
            settings: group.settings,
            counts: group.counts,
            standing: state.standing(group),
            descendants: group.descendants,
            tasks: group.tasks,
            tasks_peak: group.tasks_peak,
            used: group.used,
        })
    }

    /// Changes the values that a group keeps.
    pub fn set(&self, id: GroupId, change: impl FnOnce(&mut Settings)) -> Result<()> {
        change(&mut self.state.lock().get_mut(id)?.settings);
        Ok(())
    }

    /// A write to `cgroup.subtree_control`.
    pub fn hand_on(&self, id: GroupId, change: Change) -> Result<()> {
        let mut state = self.state.lock();
        let gives = state.standing(state.get(id)?).after(change)?;
        state.set_gives(id, gives)
    }

    /// The group's path below the container's own; `None`: it was removed.
    pub fn path(&self, id: GroupId) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let mut names: Vec<&[u8]> = Vec::new();
        for group in state.upwards(id) {
            names.push(&group.name);
        }
        names.pop()?;
        if names.is_empty() {
            return Some(b"/".to_vec());
        }
        Some(names.iter().rev().flat_map(|name| [b"/", *name]).flatten().copied().collect())
    }

    /// Whether `id` is `top`, or below it.
    pub fn is_within(&self, top: GroupId, id: GroupId) -> bool {
        self.state.lock().chain(id).any(|at| at == top)
    }

    /// The lowest group that both are in or below.
    pub fn common(&self, one: GroupId, other: GroupId) -> GroupId {
        let state = self.state.lock();
        let chain: Vec<GroupId> = state.chain(one).collect();
        state.chain(other).find(|at| chain.contains(at)).unwrap_or(self.root)
    }

    /// Whether a task more may begin in the group; `EAGAIN`, which is counted. The container's own limit is not looked at.
    pub fn check_room(&self, id: GroupId) -> Result<()> {
        let mut state = self.state.lock();
        // A limit holds while its controller is there.
        let is_full = |group: &Group| {
            group.tasks as u64 >= group.settings.pids_max
                && state.standing(group).has.contains(Controllers::PIDS)
        };
        let full = state.chain(id).find(|at| state.groups.get(at).is_some_and(is_full));
        let Some(full) = full else { return Ok(()) };
        state.count(full, Event::Pids, |counts| counts.forks_refused += 1);
        Err(Errno::EAGAIN)
    }

    /// A process without tasks comes in from outside; `first` is the container's first process. It begins in the container's own
    /// group or, where that must not have processes any more, beside the first process.
    pub fn come_in(&self, member: &Member, first: &Member) {
        let state = self.state.lock();
        let root = state.groups.get(&self.root).map(|group| state.standing(group).admits_process());
        let group = if matches!(root, Some(Ok(()))) { self.root } else { first.group() };
        // The first process may have left a group that is gone.
        let group = if state.groups.contains_key(&group) { group } else { self.root };
        member.group.store(group.0, Ordering::Relaxed);
    }

    /// A process without tasks begins in the group; `ENODEV`: that was removed, `EBUSY`: it must not have processes.
    pub fn begin_in(&self, member: &Member, id: GroupId) -> Result<()> {
        let state = self.state.lock();
        state.standing(state.get(id)?).admits_process()?;
        member.group.store(id.0, Ordering::Relaxed);
        Ok(())
    }

    /// A process without tasks begins in the group of the process that forks it.
    pub fn inherit(&self, member: &Member, parent: &Member) {
        // The lock keeps the parent where it is.
        let _state = self.state.lock();
        member.group.store(parent.group.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A task of the process begins.
    pub fn add_task(&self, member: &Member) {
        let mut state = self.state.lock();
        member.tasks.fetch_add(1, Ordering::Relaxed);
        state.add_tasks(member.group(), 1, None);
    }

    /// A task of the process has ended, which has used `used` in all if that was its last one.
    pub fn remove_task(&self, member: &Member, used: Option<Ticks>) {
        let mut state = self.state.lock();
        member.tasks.fetch_sub(1, Ordering::Relaxed);
        if let Some(used) = used {
            state.settle(member, used);
        }
        state.remove_tasks(member.group(), 1, None);
    }

    /// Moves a process, which has used `used` in all; false: it is not in the group any more that it is to leave. `ESRCH`: it has
    /// ended. `ENODEV`: the group was removed. `EBUSY`: it must not have processes.
    pub fn move_to(&self, member: &Member, (from, to): (GroupId, GroupId), used: Ticks) -> Result<bool> {
        let mut state = self.state.lock();
        state.get(to)?;
        if from != member.group() {
            return Ok(false);
        }
        if from == to {
            return Ok(true);
        }
        state.standing(state.get(to)?).admits_process()?;
        let tasks = member.tasks();
        if tasks == 0 {
            return Err(Errno::ESRCH);
        }
        state.settle(member, used);
        // Those above both keep them.
        let shared = state.chain(to).find(|at| state.chain(from).any(|other| other == *at));
        state.remove_tasks(from, tasks, shared);
        state.add_tasks(to, tasks, shared);
        member.group.store(to.0, Ordering::Relaxed);
        Ok(true)
    }

    /// A process of the group was killed for memory; result: a group whose processes are all to be killed with it.
    pub fn killed_for_memory(&self, id: GroupId) -> Option<GroupId> {
        let mut state = self.state.lock();
        let is_whole = |group: &Group| {
            group.settings.is_oom_group && state.standing(group).has.contains(Controllers::MEMORY)
        };
        let whole = |at: &GroupId| state.groups.get(at).is_some_and(is_whole);
        let whole = state.chain(id).filter(whole).last();
        state.count(id, Event::Memory, |counts| counts.oom_kills += 1);
        if let Some(whole) = whole {
            state.count(whole, Event::Memory, |counts| counts.oom_group_kills += 1);
        }
        whole
    }
}

impl State {
    fn get(&self, id: GroupId) -> Result<&Group> {
        self.groups.get(&id).ok_or(Errno::ENODEV)
    }

    fn get_mut(&mut self, id: GroupId) -> Result<&mut Group> {
        self.groups.get_mut(&id).ok_or(Errno::ENODEV)
    }

    /// A group and those above it, upwards.
    fn chain(&self, id: GroupId) -> impl Iterator<Item = GroupId> {
        let known = |id: GroupId| Some(id).filter(|id| self.groups.contains_key(id));
        core::iter::successors(known(id), |at| self.groups.get(at)?.parent)
    }

    fn upwards(&self, id: GroupId) -> impl Iterator<Item = &Group> {
        self.chain(id).filter_map(|at| self.groups.get(&at))
    }

    fn standing(&self, group: &Group) -> Standing {
        let has = match group.parent {
            Some(parent) => self.groups.get(&parent).map_or(Controllers::empty(), |parent| parent.gives),
            None => Controllers::all(),
        };
        Standing {
            has,
            gives: group.gives,
            used_below: Controllers::of(|number| group.users[number] != 0),
            has_tasks: group.own_tasks != 0,
            is_populated_below: group.tasks != group.own_tasks,
        }
    }

    fn set_gives(&mut self, id: GroupId, gives: Controllers) -> Result<()> {
        let group = self.get_mut(id)?;
        let (before, above) = (core::mem::replace(&mut group.gives, gives), group.parent);
        // As on Linux, what a controller keeps goes with it.
        if !gives.contains(before) {
            let below = core::mem::take(&mut group.in_order);
            for id in below.keys() {
                self.get_mut(*id)?.settings.forget(before - gives);
            }
            self.get_mut(id)?.in_order = below;
        }
        if let Some(above) = above.and_then(|above| self.groups.get_mut(&above)) {
            for (number, users) in above.users.iter_mut().enumerate() {
                *users += usize::from(gives.has(number));
                *users = users.saturating_sub(usize::from(before.has(number)));
            }
        }
        Ok(())
    }

    /// Does something to a group and to those above it, at most [`DEPTH_MAX`] of them.
    fn for_chain(&mut self, id: GroupId, mut act: impl FnMut(GroupId, &mut Group, &mut events::Due)) {
        let mut at = Some(id);
        while let Some(id) = at
            && let Some(group) = self.groups.get_mut(&id)
        {
            act(id, group, &mut self.due);
            at = group.parent;
        }
    }

    fn count(&mut self, id: GroupId, event: Event, count: impl Fn(&mut Counts)) {
        self.for_chain(id, |id, group, due| {
            count(&mut group.counts);
            due.insert((id, event));
        });
    }

    /// Tasks count for a group and those above, below `end` if there is one.
    fn add_tasks(&mut self, id: GroupId, tasks: usize, end: Option<GroupId>) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.own_tasks += tasks;
        }
        let mut is_below = true;
        self.for_chain(id, |id, group, due| {
            is_below &= Some(id) != end;
            if !is_below {
                return;
            }
            if group.tasks == 0 {
                due.insert((id, Event::Group));
            }
            group.tasks += tasks;
            group.tasks_peak = group.tasks_peak.max(group.tasks);
        });
    }

    /// The opposite of [`Self::add_tasks`].
    fn remove_tasks(&mut self, id: GroupId, tasks: usize, end: Option<GroupId>) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.own_tasks = group.own_tasks.saturating_sub(tasks);
        }
        let mut is_below = true;
        self.for_chain(id, |id, group, due| {
            is_below &= Some(id) != end;
            if !is_below {
                return;
            }
            group.tasks = group.tasks.saturating_sub(tasks);
            if group.tasks == 0 {
                due.insert((id, Event::Group));
            }
        });
    }

    /// Counts the processor time that the process has used so far for its group, and those above, for good.
    fn settle(&mut self, member: &Member, used: Ticks) {
        let more = member.used_here(used);
        self.for_chain(member.group(), |_, group, _| {
            group.used.user += more.user;
            group.used.system += more.system;
        });
        member.counted_user.fetch_max(used.user, Ordering::Relaxed);
        member.counted_system.fetch_max(used.system, Ordering::Relaxed);
    }
}
