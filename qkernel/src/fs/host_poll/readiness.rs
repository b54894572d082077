//! The cached readiness of a host socket, so that few questions go to the host.
//!
//! The host tells of every change once: an event sets bits, and begins a new generation. An attempt that would have to
//! wait clears its bits, unless the generation changed since before the attempt. So a bit that isn't set is the truth,
//! or an event is on its way; a bit that is set may be stale, and is confirmed by the host before a program is told,
//! unless it is *fresh*: nothing was consumed since the host said so.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::fs::host_poll;
use crate::fs::poll::PollTable;
use machine::errno::Result;
use machine::events;
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;

const MASK: u64 = 0xffff;
/// By direction.
const FRESH: [u64; 2] = [1 << 16, 1 << 17];
const GENERATION: u64 = 1 << 18;

/// The direction of a call that receives or sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    Receive = 0,
    Send = 1,
}

impl Direction {
    /// Events one of which must hold, besides errors, for an attempt to be worth while.
    fn events(self) -> PollEvents {
        match self {
            Self::Receive => INPUT,
            Self::Send => PollEvents::OUT,
        }
    }
}

const INPUT: PollEvents = PollEvents::IN.union(PollEvents::PRI).union(PollEvents::RDHUP);
const ERRORS: PollEvents = PollEvents::ERR.union(PollEvents::HUP);
/// The events that the host is asked about.
const ASKED: PollEvents = INPUT.union(PollEvents::OUT);

/// How often an answer may be overtaken by events.
const OVERTAKEN_MAX: usize = 4;

/// The readiness of one socket.
pub struct Readiness {
    /// Events that hold, freshness, generation.
    state: AtomicU64,
    /// The round of events in which something was last received, and sent.
    used: [AtomicU64; 2],
    queue: Arc<WaitQueue>,
    token: u64,
    /// An event means that somebody has come.
    counts: AtomicBool,
    /// Whether events wake nobody: [`HUSHED`], or [`MISSED`] once there was one.
    hush: AtomicU8,
}

const HUSHED: u8 = 1;
const MISSED: u8 = 2;

/// A moment to compare with.
#[derive(Clone, Copy)]
pub struct Moment(u64);

fn mask(state: u64) -> PollEvents {
    PollEvents::from_bits_truncate((state & MASK) as u32)
}

/// Both spellings.
fn spelled(events: PollEvents) -> PollEvents {
    let mut all = events;
    all.set(PollEvents::RDNORM, events.contains(PollEvents::IN));
    all.set(PollEvents::WRNORM, events.contains(PollEvents::OUT));
    all
}

/// The one spelling the state knows.
fn plain(events: PollEvents) -> PollEvents {
    let mut all = events & (ASKED | ERRORS);
    if events.intersects(PollEvents::RDNORM) {
        all |= PollEvents::IN;
    }
    if events.intersects(PollEvents::WRNORM | PollEvents::WRBAND) {
        all |= PollEvents::OUT;
    }
    if events.intersects(PollEvents::RDBAND) {
        all |= PollEvents::PRI;
    }
    all
}

impl Readiness {
    /// Of a new socket: everything may hold, nothing is known.
    pub fn new() -> Arc<Self> {
        Self::of_queue(Arc::new(WaitQueue::new()))
    }

    /// The readiness of a new socket, which wakes those who wait in a queue that is there already.
    pub fn of_queue(queue: Arc<WaitQueue>) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| Self::with(host_poll::register_edges(me.clone()), queue))
    }

    fn with(token: u64, queue: Arc<WaitQueue>) -> Self {
        Self {
            state: AtomicU64::new(u64::from((ASKED | ERRORS).bits())),
            used: [const { AtomicU64::new(0) }; 2],
            queue,
            token,
            counts: AtomicBool::new(true),
            hush: AtomicU8::new(0),
        }
    }

    /// Says whether an event means that somebody has come, as it does at first.
    pub fn count(&self, counts: bool) {
        self.counts.store(counts, Ordering::Relaxed);
    }

    pub fn counts(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    /// For the hostcall that makes the socket.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Those who wait for it.
    pub fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// Before an attempt.
    pub fn moment(&self) -> Moment {
        Moment(self.state.load(Ordering::SeqCst))
    }

    /// Whether an attempt in this direction may find something. If not, an event will come.
    pub fn may(&self, direction: Direction) -> bool {
        mask(self.moment().0).intersects(direction.events() | ERRORS)
    }

    /// An attempt found that it would have to wait.
    pub fn would_wait(&self, before: Moment, direction: Direction) {
        self.clear(before, direction.events() | ERRORS);
    }

    /// An attempt did something. `short`: a stream had, or took, less than was asked for; that was all there was, unless
    /// something else than bytes is to come.
    pub fn done(&self, before: Moment, direction: Direction, short: bool) {
        let more = ERRORS | PollEvents::RDHUP | PollEvents::PRI;
        if short && direction == Direction::Send {
            self.clear(before, PollEvents::OUT);
        } else if short && !mask(before.0).intersects(more) {
            self.clear(before, PollEvents::IN);
        }
        self.used(direction);
    }

    fn clear(&self, before: Moment, events: PollEvents) {
        let clear = !u64::from(events.bits());
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
            (now / GENERATION == before.0 / GENERATION).then_some(now & clear)
        });
    }

    /// Something was received or sent, or the socket's state was changed otherwise: the bits that are set need
    /// confirmation.
    pub fn used(&self, direction: Direction) {
        let which = direction as usize;
        // The round first: an event that is being handled now may be older than this.
        self.used[which].fetch_max(events::round(), Ordering::SeqCst);
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
            Some((now & !FRESH[which]).wrapping_add(GENERATION))
        });
    }

    /// The socket became another (it was connected, shut down…): nothing is known.
    pub fn touched(&self) {
        self.used(Direction::Receive);
        self.used(Direction::Send);
        self.state.fetch_or(u64::from((ASKED | ERRORS).bits()), Ordering::SeqCst);
    }

    /// Wakes those who wait for events that the host knows nothing of.
    pub fn tell(&self, events: PollEvents) {
        self.queue.wake(events);
    }

    /// Has events wake nobody until [`Self::end_hush`]: the kernel itself reads from the socket.
    pub fn hush(&self) {
        self.hush.store(HUSHED, Ordering::SeqCst);
    }

    pub fn is_hushed(&self) -> bool {
        self.hush.load(Ordering::SeqCst) != 0
    }

    /// Something happens that its waiters are to know of; true: they are told at [`Self::end_hush`].
    pub fn misses(&self) -> bool {
        let miss = |hush: u8| (hush != 0).then_some(MISSED);
        self.hush.fetch_update(Ordering::SeqCst, Ordering::SeqCst, miss).is_ok()
    }

    /// Tells those who wait that something may have happened, if so it is.
    pub fn end_hush(&self) {
        if self.hush.swap(0, Ordering::SeqCst) == MISSED {
            self.may_hold_all();
        }
    }

    /// Everything may hold, and nothing is known: it is like that of a new socket.
    pub(super) fn may_hold_all(&self) {
        self.hush.store(0, Ordering::SeqCst);
        let all = u64::from((ASKED | ERRORS).bits());
        let update = |now: u64| Some((now & !(FRESH[0] | FRESH[1]) | all).wrapping_add(GENERATION));
        // It is never refused.
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update);
        self.queue.wake(spelled(ASKED | ERRORS));
    }

    /// The host says what holds.
    pub(super) fn changed(&self, events: PollEvents, round: u64) {
        let events = events & (ASKED | ERRORS);
        let unused = self.used.each_ref().map(|used| used.load(Ordering::SeqCst) < round);
        let update = |now: u64| {
            let mut new = now & !(FRESH[0] | FRESH[1]) | u64::from(events.bits());
            for direction in [Direction::Receive, Direction::Send] {
                // Other bits that are set are older than this event, and it does not confirm them.
                let confirmed = events.contains(mask(now) & direction.events());
                if unused[direction as usize] && confirmed {
                    new |= FRESH[direction as usize];
                }
            }
            Some(new.wrapping_add(GENERATION))
        };
        let old =
            self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update).unwrap_or_else(|old| old);
        // Room to write that was known for sure is no news, no task waits for it; anything else may be another arrival.
        let sure = old & FRESH[Direction::Send as usize] != 0;
        let known = if sure { mask(old) & PollEvents::OUT } else { PollEvents::empty() };
        self.queue.wake(spelled(events - known));
    }

    /// Which of `wanted` hold (errors always count); `ask` asks the host. Nothing is asked when the answer is no.
    pub fn poll(
        &self,
        table: Option<&mut PollTable>,
        wanted: PollEvents,
        ask: impl Fn(u32) -> Result<u32>,
    ) -> PollEvents {
        if let Some(table) = table {
            table.add(&self.queue);
        }
        let wanted = plain(wanted) | ERRORS;
        // An answer that an event overtook is asked for again: the event woke only the tasks that waited then.
        let mut found = Err(PollEvents::empty());
        for _ in 0..OVERTAKEN_MAX {
            found = self.poll_once(wanted, &ask);
            if found.is_ok() {
                break;
            }
        }
        found.unwrap_or_else(|overtaken| overtaken)
    }

    /// One look; `Err` with the host's answer when something happened meanwhile.
    fn poll_once(
        &self,
        wanted: PollEvents,
        ask: &impl Fn(u32) -> Result<u32>,
    ) -> core::result::Result<PollEvents, PollEvents> {
        let before = self.moment();
        let holds = mask(before.0) & wanted;
        if holds.is_empty() {
            return Ok(holds);
        }
        let is_fresh = |events: PollEvents, direction: Direction| {
            !holds.intersects(events) || before.0 & FRESH[direction as usize] != 0
        };
        // Who is told that there is room to write does not wait for the news of input, which may be on its way.
        let lacks_input =
            holds.contains(PollEvents::OUT) && wanted.intersects(INPUT) && !holds.intersects(INPUT);
        let sure = !lacks_input
            && !mask(before.0).intersects(ERRORS)
            && is_fresh(INPUT, Direction::Receive)
            && is_fresh(PollEvents::OUT, Direction::Send);
        if sure {
            return Ok(spelled(holds));
        }
        let Ok(now) = ask(ASKED.bits()) else { return Ok(spelled(holds)) };
        let now = PollEvents::from_bits_truncate(now) & (ASKED | ERRORS);
        let update = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| {
            let same = state / GENERATION == before.0 / GENERATION;
            same.then_some(state & !MASK | u64::from(now.bits()) | FRESH[0] | FRESH[1])
        });
        let found = spelled(now & wanted);
        update.map(|_| found).map_err(|_| found)
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        host_poll::unregister(self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{Receive, Send};

    const IN: PollEvents = PollEvents::IN;
    const OUT: PollEvents = PollEvents::OUT;

    /// Polls for input; the host, if it is asked, says `host`.
    fn poll(readiness: &Readiness, host: PollEvents) -> (bool, bool) {
        let asked = core::cell::Cell::new(false);
        let found = readiness.poll(None, IN, |_| {
            asked.set(true);
            Ok(host.bits())
        });
        (found.contains(IN), asked.get())
    }

    #[test]
    fn nothing_is_asked_when_nothing_came() {
        let it = Readiness::with(0, Arc::new(WaitQueue::new()));
        assert_eq!(poll(&it, OUT), (false, true), "new: asks once");
        assert_eq!(poll(&it, OUT), (false, false));
        assert!(!it.may(Receive) && it.may(Send));
        it.changed(IN | OUT, events::begin_round());
        assert_eq!(poll(&it, IN), (true, false), "fresh");
        it.used(Receive);
        assert_eq!(poll(&it, OUT), (false, true), "stale: asks");
    }

    #[test]
    fn who_would_be_told_of_room_alone_hears_of_input_as_well() {
        let it = Readiness::with(0, Arc::new(WaitQueue::new()));
        it.poll(None, IN | OUT, |_| Ok(OUT.bits()));
        assert_eq!(it.poll(None, OUT, |_| unreachable!()), OUT | PollEvents::WRNORM);
        assert!(it.poll(None, IN | OUT, |_| Ok((IN | OUT).bits())).contains(IN | OUT));
        assert!(it.poll(None, IN | OUT, |_| unreachable!()).contains(IN | OUT), "both are fresh");
    }

    #[test]
    fn an_event_during_an_attempt_is_not_lost() {
        let it = Readiness::with(0, Arc::new(WaitQueue::new()));
        let before = it.moment();
        it.changed(IN, events::begin_round());
        it.would_wait(before, Receive);
        assert!(it.may(Receive));
        it.would_wait(it.moment(), Receive);
        assert!(!it.may(Receive));
    }

    #[test]
    fn an_answer_that_an_event_overtook_is_asked_for_again() {
        let it = Readiness::with(0, Arc::new(WaitQueue::new()));
        let first = core::cell::Cell::new(true);
        let found = it.poll(None, IN, |_| {
            if first.replace(false) {
                it.changed(IN, events::begin_round());
                return Ok(0);
            }
            Ok(IN.bits())
        });
        assert!(found.contains(IN) && it.may(Receive));
    }

    #[test]
    fn what_is_missed_in_a_hush_is_told_in_the_end() {
        let it = Readiness::with(0, Arc::new(WaitQueue::new()));
        assert!(!it.misses(), "nothing is hushed");
        it.would_wait(it.moment(), Receive);
        it.hush();
        it.end_hush();
        assert!(!it.may(Receive), "nothing was missed");
        it.hush();
        assert!(it.misses());
        it.end_hush();
        assert!(it.may(Receive) && !it.misses());
    }

    #[test]
    fn an_event_older_than_a_use_is_not_trusted() {
        let it = Readiness::with(0, Arc::new(WaitQueue::new()));
        assert_eq!(poll(&it, PollEvents::empty()), (false, true));
        let round = events::begin_round();
        it.used(Receive);
        it.changed(IN, round);
        assert_eq!(poll(&it, PollEvents::empty()), (false, true), "read in the meantime");
    }

    #[test]
    fn an_event_confirms_nothing_but_itself() {
        let it = Readiness::with(0, Arc::new(WaitQueue::new()));
        // A new socket whose buffer is full: the end of its input was assumed, and never looked for.
        it.would_wait(it.moment(), Send);
        it.changed(PollEvents::OUT, events::begin_round());
        let found = it.poll(None, PollEvents::all(), |_| Ok(PollEvents::OUT.bits()));
        assert!(found.contains(PollEvents::OUT) && !found.intersects(INPUT), "{found:?}");
    }

    #[test]
    fn the_end_of_a_stream_outlives_a_short_read() {
        let it = Readiness::with(0, Arc::new(WaitQueue::new()));
        it.changed(IN | PollEvents::RDHUP, events::begin_round());
        it.done(it.moment(), Receive, true);
        assert!(it.may(Receive));
        let it = Readiness::with(0, Arc::new(WaitQueue::new()));
        poll(&it, IN);
        it.done(it.moment(), Receive, true);
        assert!(!it.may(Receive));
    }
}
