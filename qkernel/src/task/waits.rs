//! How a task waits for a time: what it waits for now, and how it did while no request was open.
//!
//! A server waits for a time by itself, again and again: for its next look at whether it is to end, for its next round. Those waits
//! are its *habits*, and nobody outside waits for what they lead to. They are learned while no request is open
//! ([`crate::net::talks`]), but for long waits that begin right after one has ended: a server that gives the connection some more seconds
//! waits so. A wait that begins while one is open, and is not like a habit, is *new*: an answer may depend on it.
//! Only a sandbox that falls asleep by itself keeps this; it is written when a task begins to sleep with a time-out.

use machine::sync::{Rank, SpinLock};
use machine::time::NSEC;

use crate::net::talks;

/// Habits that are kept of a task; of more the oldest goes.
const HABITS_MAX: usize = 6;
/// A habit that is at most so long is a *tick*: shorter waits from the same place are it, cut short by something that came.
const TICK_MAX_NS: u64 = NSEC;
/// Due times that are closer to each other are the same: programs round to milliseconds.
const SAME_DUE_NS: u64 = 3_000_000;

/// A wait that has an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedWait {
    /// The number of the system call.
    pub call: u32,
    /// When it began, and when it ends at the latest (monotonic).
    pub begun_ns: u64,
    pub due_ns: u64,
    /// The task waited so while no request was open.
    pub is_habit: bool,
    /// It is what is left of a long habit, after something came in between: a loop that has set itself a later time meanwhile waits so.
    pub is_rest: bool,
}

impl TimedWait {
    /// Whether it waits for the time and for nothing else (`nanosleep(2)`).
    pub fn is_sleep(&self) -> bool {
        matches!(self.call, 35 | 230)
    }
}

/// A place in a program that waits, and for how long it does.
#[derive(Clone, Copy, Default)]
struct Habit {
    site: u64,
    longest_ns: u64,
    /// When the last one was due.
    due_ns: u64,
}

impl Habit {
    /// Whether a wait from the same place is this one again.
    fn is(&self, site: u64, length_ns: u64, due_ns: u64) -> bool {
        let slack_ns = self.longest_ns / 4;
        self.site == site
            && (self.due_ns.abs_diff(due_ns) <= SAME_DUE_NS
                || length_ns.abs_diff(self.longest_ns) <= slack_ns
                || self.longest_ns <= TICK_MAX_NS && length_ns <= self.longest_ns)
    }

    /// Whether a wait that is this one again is only what is left of it.
    fn is_rest(&self, length_ns: u64) -> bool {
        self.longest_ns > TICK_MAX_NS && length_ns < self.longest_ns - self.longest_ns / 4
    }
}

/// The waits that become habits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Learning {
    /// Some request is open.
    Nothing,
    /// The last request has just ended: what is longer than a tick may follow from that.
    Ticks,
    All,
}

/// The wait and the habits of one task.
pub struct Waits(SpinLock<State>);

#[derive(Default)]
struct State {
    now: Option<TimedWait>,
    habits: [Habit; HABITS_MAX],
    /// Where the next habit goes.
    next: usize,
}

impl Default for Waits {
    fn default() -> Self {
        Self(SpinLock::new(Rank::Leaf, State::default()))
    }
}

impl Waits {
    /// The task is about to wait, in the system call `call` at the place `site` of its program.
    pub fn begin(&self, site: u64, call: u32, begun_ns: u64, due_ns: u64) {
        let learning = match talks::is_any_open() {
            true => Learning::Nothing,
            false if talks::has_just_ended(begun_ns) => Learning::Ticks,
            false => Learning::All,
        };
        self.0.lock().begin(site, call, (begun_ns, due_ns), learning);
    }

    /// The wait is over.
    pub fn end(&self) {
        self.0.lock().now = None;
    }

    /// Returns the task's wait of now, if it has an end.
    pub fn now(&self) -> Option<TimedWait> {
        self.0.lock().now
    }
}

impl State {
    fn begin(&mut self, site: u64, call: u32, (begun_ns, due_ns): (u64, u64), learning: Learning) {
        let length_ns = due_ns.saturating_sub(begun_ns);
        let known = self.habits.iter_mut().find(|habit| habit.is(site, length_ns, due_ns));
        let is_habit = known.is_some() || learning != Learning::Nothing;
        let learns = match learning {
            Learning::Nothing => false,
            Learning::Ticks => length_ns <= TICK_MAX_NS,
            Learning::All => true,
        };
        let is_rest = known.as_ref().is_some_and(|habit| habit.is_rest(length_ns));
        match known {
            Some(habit) => {
                habit.due_ns = due_ns;
                if learns {
                    habit.longest_ns = habit.longest_ns.max(length_ns);
                }
            }
            None if learns => self.learn(Habit { site, longest_ns: length_ns, due_ns }),
            None => {}
        }
        self.now = Some(TimedWait { call, begun_ns, due_ns, is_habit, is_rest });
    }

    fn learn(&mut self, new: Habit) {
        let is_tick = |habit: &Habit| habit.longest_ns <= TICK_MAX_NS;
        // A longer tick from the place of a shorter one takes that in.
        let tick =
            self.habits.iter().position(|habit| habit.site == new.site && is_tick(habit) && is_tick(&new));
        let at = tick.unwrap_or(self.next % HABITS_MAX);
        self.habits[at] = new;
        self.next += usize::from(tick.is_none());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Begins a wait from a place; whether it is a habit.
    fn begin(state: &mut State, site: u64, at_ms: u64, for_ms: u64, learns: bool) -> bool {
        let learning = if learns { Learning::All } else { Learning::Nothing };
        state.begin(site, 7, (at_ms * MS, (at_ms + for_ms) * MS), learning);
        state.now.unwrap().is_habit
    }

    #[test]
    fn what_a_server_waits_for_after_a_request_hides_no_pause_of_a_later_one() {
        let mut state = State::default();
        // Node gives a connection five seconds more, and its peer is gone.
        state.begin(1, 7, (0, 5000 * MS), Learning::Ticks);
        assert!(state.now.unwrap().is_habit, "nobody waits for it");
        assert!(!begin(&mut state, 1, 60_000, 6000, false), "an answer may depend on it");
        state.begin(1, 7, (70_000 * MS, 70_500 * MS), Learning::Ticks);
        assert!(begin(&mut state, 1, 80_000, 500, false), "a tick");
    }

    #[test]
    fn a_wait_is_a_habit_if_it_was_learned_while_no_request_was_open() {
        let mut state = State::default();
        assert!(!begin(&mut state, 1, 0, 500, false));
        assert!(begin(&mut state, 1, 500, 500, true));
        assert!(begin(&mut state, 1, 1200, 500, false) && begin(&mut state, 1, 1800, 77, false), "a tick");
        assert!(!begin(&mut state, 1, 2000, 6000, false), "a longer one");
        assert!(!begin(&mut state, 2, 3000, 500, false), "from another place");
    }

    #[test]
    fn a_long_habit_is_known_by_its_length_or_by_when_it_is_due() {
        let mut state = State::default();
        assert!(begin(&mut state, 1, 0, 30_000, true));
        assert!(begin(&mut state, 1, 7000, 23_001, false) && !state.now.unwrap().is_rest, "most of it");
        assert!(
            begin(&mut state, 1, 17_000, 13_001, false) && state.now.unwrap().is_rest,
            "what is left of it"
        );
        assert!(!begin(&mut state, 1, 7000, 6000, false), "a shorter one");
        assert!(begin(&mut state, 1, 30_000, 30_000, false), "the next one");
    }

    #[test]
    fn of_many_habits_the_oldest_goes_and_ticks_from_one_place_are_one() {
        let mut state = State::default();
        for length in [10, 20, 90, 40] {
            assert!(begin(&mut state, 1, 0, length, true));
        }
        assert_eq!(state.next, 1);
        for site in 2..=HABITS_MAX as u64 {
            begin(&mut state, site, 0, 5000, true);
        }
        assert!(begin(&mut state, 1, 1000, 90, false));
        begin(&mut state, 99, 0, 5000, true);
        assert!(!begin(&mut state, 1, 2000, 90, false) && begin(&mut state, 2, 9000, 5000, false));
    }
}
