//! A line of tasks that wait, each with the CPUs that may run it.

use alloc::collections::VecDeque;

use abi::layout::MAX_CPUS;

use crate::owner::Owner;
use crate::sched::cpu_set::CpuSet;

/// A task that waits, and the CPUs that may run it.
pub(super) struct Entry<T> {
    pub(super) ticket: u64,
    pub(super) owner: Owner,
    pub(super) cpus: CpuSet,
    pub(super) task: T,
}

/// Entries by their tickets.
pub(super) struct Line<T> {
    pub(super) entries: VecDeque<Entry<T>>,
    /// Entries that are bound, and how many of those each CPU may run.
    bound: usize,
    bound_to: [usize; CPUS],
}

/// CPUs that a sandbox has at most.
pub(super) const CPUS: usize = MAX_CPUS as usize;

impl<T> Line<T> {
    pub(super) const fn new() -> Self {
        Self { entries: VecDeque::new(), bound: 0, bound_to: [0; CPUS] }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn push(&mut self, entry: Entry<T>) {
        self.count(entry.cpus, 1);
        self.entries.push_back(entry);
    }

    /// Changes the counts by one entry more, or less.
    fn count(&mut self, cpus: CpuSet, change: isize) {
        if cpus.is_all() {
            return;
        }
        self.bound = self.bound.saturating_add_signed(change);
        let counts = self.bound_to.iter_mut().enumerate().filter(|(cpu, _)| cpus.has(*cpu));
        counts.for_each(|(_, count)| *count = count.saturating_add_signed(change));
    }

    /// Whether there is something for the CPU.
    pub(super) fn has_for(&self, cpu: usize) -> bool {
        self.len() > self.bound || self.bound_to[cpu] != 0
    }

    /// Where the first entry stands that the CPU may run and for which `free` holds.
    pub(super) fn find(&self, cpu: usize, free: impl Fn(&T) -> bool) -> Option<usize> {
        if !self.has_for(cpu) {
            return None;
        }
        self.entries.iter().position(|entry| entry.cpus.has(cpu) && free(&entry.task))
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<Entry<T>> {
        let entry = self.entries.remove(at)?;
        self.count(entry.cpus, -1);
        Some(entry)
    }

    pub(super) fn place_of(&self, ticket: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&ticket, |entry| entry.ticket).ok()
    }

    pub(super) fn take(&mut self, ticket: u64) -> Option<Entry<T>> {
        self.place_of(ticket).and_then(|at| self.remove(at))
    }

    /// Binds an entry anew; result: how it was bound. `None`: it is not here.
    pub(super) fn bind(&mut self, ticket: u64, cpus: CpuSet) -> Option<CpuSet> {
        let at = self.place_of(ticket)?;
        let former = core::mem::replace(&mut self.entries[at].cpus, cpus);
        self.count(former, -1);
        self.count(cpus, 1);
        Some(former)
    }
}
