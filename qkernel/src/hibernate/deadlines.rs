//! When a sandbox that hibernates wakes for a deadline of its programs, and when it may sleep again.
//!
//! A [`Deadlines`] is a value: it is told which deadlines stand and what the time is, and calls nobody. The rules:
//! - A deadline counts if it was set at least [`Rules::ahead_ns`] before it is due (a sixteenth less will do).
//! - The sandbox wakes for its earliest one, and never sooner than [`Rules::gap_ns`] after the wake before, or at multiples of
//!   [`Rules::grid_ns`] of the host's clock alone. So however many timers there are, the host is not kept busy.
//! - A timer that has woken the sandbox [`FREE_WAKES`] times in a row, while nothing was written to the outside, is served ever later:
//!   each time four times its period, up to an hour. Once something is written it is served on time again.
//! - One that fell asleep by itself with work begun, which happens where the host is too busy to run it, goes on after the gap.
//! - A timer is known by who waits and for how long, not by its address, which changes with each call.

use abi::report::TimerKind;

/// So many wakes in a row that wrote nothing are served on time.
const FREE_WAKES: u32 = 3;
/// Each further one makes the next wait this many times as long …
const SLOWER: u64 = 4;
/// … but not longer than this.
const WAIT_MAX_NS: u64 = 3_600_000_000_000;
/// A deadline that was set this part of the time before less is still long: programs round, and count from when their loop turned.
const SLACK_PART: u64 = 16;
/// Periods are the same if they differ by less than this part.
const PERIOD_PART: u64 = 8;
/// Timers whose wakes are remembered. Who has more is told apart less well, and wakes no more often than the gap allows.
const KNOWN: usize = 64;
/// A sandbox falls asleep by itself if it does so within this time after it said that it is idle.
const BY_ITSELF_NS: u64 = 10_000_000_000;
/// Waiters for short deadlines that are known from before a sleep.
const SHORT: usize = 32;

/// The rules by which deadlines wake the sandbox, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// How long before a deadline it must have been set; 0: none wakes the sandbox.
    pub ahead_ns: u64,
    /// Wakes are at multiples of this; 0: anywhere.
    pub grid_ns: u64,
}

impl Rules {
    /// Whether any deadline wakes the sandbox.
    pub const fn is_on(self) -> bool {
        self.ahead_ns != 0
    }

    /// Whether a deadline that was set then counts.
    pub const fn counts(self, due_ns: u64, set_ns: u64) -> bool {
        let ahead_ns = due_ns.saturating_sub(set_ns);
        self.is_on() && ahead_ns.saturating_add(self.ahead_ns / SLACK_PART) >= self.ahead_ns
    }

    /// How long after a wake the next one is at the earliest. On a grid there is one at each of its points at most.
    const fn gap_ns(self) -> u64 {
        if self.grid_ns == 0 { self.ahead_ns } else { 0 }
    }

    fn on_grid(self, at_ns: u64) -> u64 {
        if self.grid_ns == 0 {
            at_ns
        } else {
            at_ns.checked_next_multiple_of(self.grid_ns).unwrap_or(u64::MAX)
        }
    }
}

/// Who waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The container's id.
    pub container: u64,
    /// The process id of its parent, if the task is its process's first, and else its own process's: a shell's loop begins each of its
    /// waits in a new process.
    pub family: u32,
    /// Of the process, for whoever reads it; not a part of what it is known by.
    pub pid: u32,
    /// The task's name.
    pub name: [u8; 16],
    pub kind: TimerKind,
}

impl Waiter {
    fn is(&self, other: &Self) -> bool {
        let key = |waiter: &Self| (waiter.container, waiter.family, waiter.name, waiter.kind);
        key(self) == key(other)
    }
}

/// A deadline that stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    pub waiter: Waiter,
    pub due_ns: u64,
    pub set_ns: u64,
}

impl Deadline {
    /// How long before it is due it was set.
    pub fn ahead_ns(&self) -> u64 {
        self.due_ns.saturating_sub(self.set_ns)
    }
}

/// A timer that has woken the sandbox.
#[derive(Clone, Copy)]
struct Known {
    waiter: Waiter,
    period_ns: u64,
    woke_ns: u64,
    /// Wakes in a row in which nothing was written.
    empty: u32,
}

impl Known {
    fn is_of(&self, deadline: &Deadline) -> bool {
        let period_ns = deadline.ahead_ns();
        self.waiter.is(&deadline.waiter)
            && self.period_ns.abs_diff(period_ns) <= self.period_ns.max(period_ns) / PERIOD_PART
    }

    /// How long after its last wake it wakes the sandbox again, at the earliest.
    fn wait_ns(&self) -> u64 {
        match self.empty.checked_sub(FREE_WAKES) {
            None => 0,
            Some(more) => {
                let times = SLOWER.saturating_pow(more.saturating_add(1));
                self.period_ns.saturating_mul(times).min(WAIT_MAX_NS)
            }
        }
    }
}

/// A wake for a deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wake {
    pub at_ns: u64,
    pub deadline: Deadline,
}

/// A wake whose sleep has not come yet.
#[derive(Clone, Copy)]
struct Awake {
    deadline: Deadline,
    since_ns: u64,
    /// The count of what had been written to the outside before the wake.
    written: u64,
}

/// See the module. Times are of the monotonic clock, the host's.
pub struct Deadlines {
    rules: Rules,
    known: [Option<Known>; KNOWN],
    /// The waiters for deadlines that do not count, when it last fell asleep; and whether there were more.
    short: [Option<Waiter>; SHORT],
    has_more_short: bool,
    next: Option<Wake>,
    /// When it last said that it is idle; 0: never.
    idle_ns: u64,
    /// When it last fell asleep by itself, if that was the last sleep.
    slept_by_itself_ns: Option<u64>,
    awake: Option<Awake>,
    /// When it last woke for a deadline; 0: it has not.
    woke_ns: u64,
}

impl Deadlines {
    pub const fn new() -> Self {
        Self {
            rules: Rules { ahead_ns: 0, grid_ns: 0 },
            known: [None; KNOWN],
            short: [None; SHORT],
            has_more_short: false,
            next: None,
            idle_ns: 0,
            slept_by_itself_ns: None,
            awake: None,
            woke_ns: 0,
        }
    }

    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// It says that it is idle, and may be put to sleep.
    pub fn note_idle(&mut self, now_ns: u64) {
        self.idle_ns = now_ns;
    }

    /// The sandbox falls asleep. Each deadline that stands is told afterwards. `written`: a count of what was written to the outside.
    pub fn begin_sleep(&mut self, now_ns: u64, written: u64) {
        let is_by_itself = self.idle_ns != 0 && now_ns.saturating_sub(self.idle_ns) < BY_ITSELF_NS;
        self.slept_by_itself_ns = is_by_itself.then_some(now_ns);
        if let Some(awake) = self.awake.take()
            && let Some(known) = self.known.iter_mut().flatten().find(|known| known.is_of(&awake.deadline))
        {
            known.empty = if written == awake.written { known.empty.saturating_add(1) } else { 0 };
        }
        self.short = [None; SHORT];
        (self.next, self.has_more_short) = (None, false);
    }

    /// No deadline wakes it from this sleep.
    pub fn forget(&mut self) {
        self.next = None;
    }

    /// A deadline stands.
    pub fn stands(&mut self, deadline: Deadline) {
        if !self.rules.counts(deadline.due_ns, deadline.set_ns) {
            return self.note_short(deadline.waiter);
        }
        let known = self.known.iter().flatten().find(|known| known.is_of(&deadline));
        let held_back_ns = known.map_or(0, |known| known.woke_ns.saturating_add(known.wait_ns()));
        let gap_ns = if self.woke_ns == 0 { 0 } else { self.woke_ns.saturating_add(self.rules.gap_ns()) };
        let at_ns = self.rules.on_grid(deadline.due_ns.max(held_back_ns).max(gap_ns));
        if self.next.is_none_or(|next| at_ns < next.at_ns) {
            self.next = Some(Wake { at_ns, deadline });
        }
    }

    /// Tasks have something to do in their sleep. An order puts a sandbox to sleep whatever it does, and that is no reason to wake it.
    pub fn has_unfinished_work(&mut self) {
        let Some(due_ns) = self.slept_by_itself_ns.take().filter(|_| self.rules.is_on()) else { return };
        let waiter = Waiter { container: 0, family: 0, pid: 0, name: [0; 16], kind: TimerKind::Unfinished };
        self.stands(Deadline { waiter, due_ns, set_ns: due_ns.saturating_sub(self.rules.ahead_ns) });
    }

    fn note_short(&mut self, waiter: Waiter) {
        if self.short.iter().flatten().any(|short| short.is(&waiter)) {
            return;
        }
        match self.short.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(waiter),
            None => self.has_more_short = true,
        }
    }

    /// When the sandbox wakes, if it sleeps until then; `u64::MAX`: for no deadline. No deadline that is due later comes earlier.
    pub fn next_ns(&self) -> u64 {
        self.next.map_or(u64::MAX, |next| next.at_ns)
    }

    /// The wake that is due, once.
    pub fn take_due(&mut self, now_ns: u64, written: u64) -> Option<Wake> {
        let wake = self.next.take_if(|next| next.at_ns <= now_ns)?;
        self.woke_ns = now_ns;
        self.awake = Some(Awake { deadline: wake.deadline, since_ns: now_ns, written });
        let (waiter, period_ns) = (wake.deadline.waiter, wake.deadline.ahead_ns());
        match self.known.iter_mut().flatten().find(|known| known.is_of(&wake.deadline)) {
            Some(known) => (known.woke_ns, known.period_ns) = (now_ns, period_ns),
            None => {
                let oldest = self.known.iter_mut().min_by_key(|known| known.map_or(0, |known| known.woke_ns));
                if let Some(place) = oldest {
                    *place = Some(Known { waiter, period_ns, woke_ns: now_ns, empty: 0 });
                }
            }
        }
        Some(wake)
    }

    /// Whether a deadline woke it, and it has not slept since.
    pub fn is_awake_for_one(&self) -> bool {
        self.awake.is_some()
    }

    /// Whether the deadline belongs to work that the last wake has begun: nobody waited so before the sleep, and it would not wake
    /// the sandbox again.
    pub fn is_of_new_work(&self, deadline: &Deadline) -> bool {
        let Some(awake) = &self.awake else { return false };
        deadline.set_ns >= awake.since_ns
            && !self.rules.counts(deadline.due_ns, deadline.set_ns)
            && !self.has_more_short
            && !self.short.iter().flatten().any(|short| short.is(&deadline.waiter))
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
