//! How vCPU and stub threads wait for each other: spinning on two cores, or sleeping by turns on one.
//!
//! A hand-over between two threads that spin takes the least time, but keeps two cores busy. So:
//! - Threads that spin are on two cores. The host's scheduler may leave both on one for long, since neither sleeps;
//!   then each waits for the other's time slice to end. The stub reports its core, so this is seen, and the stub is
//!   sent to another core.
//! - Where there are not two cores for each busy vCPU, or other load takes the second one, or user code runs longer
//!   than a thread should spin, the stub thread follows its vCPU's core and both sleep: the host then switches from one
//!   to the other, which costs two switches and no wake-up of an idle core.
//! - While they share a core, one hand-over every now and then lets the host choose the stub's core: it takes an idle one
//!   if there is one, and then they spin again.
//! - User code that runs for milliseconds is bound to no core. The vCPU that waits for it lifts what the hand-over bound
//!   it to ([`FREED_NS`]), and it stays free until its runs are short again: two vCPUs may wait on one core, and a stub
//!   that is bound by where its vCPU happens to be would share that core with the other's for as long as it makes no call.
//!   Where the host leaves two of them on one core all the same, though another has none, one is sent there ([`free_cores`]).
//!
//! The core that a stub reports is no more to be believed than its other reports: by a wrong one it can make its own
//! vCPU wait the wrong way.

/// How long either side spins for its turn, in TSC cycles: some tens of microseconds.
pub const SPIN_FREE: u64 = 100_000;
/// How long either side spins, in TSC cycles, while the sandbox itself is short of cores, until that has held for
/// [`RUNS_TO_CROWD`] runs.
const SPIN_CROWDED: u64 = 2_000;
/// Crowded runs in a row until the threads share a core: changing costs system calls.
const RUNS_TO_CROWD: u32 = 8;
/// Waits in a row that outlasted the spinning until they share a core.
const VAIN_WAITS: u32 = 4;
/// Time over which waits that outlasted the spinning are summed up, in TSC cycles: some milliseconds …
const WINDOW: u64 = 20_000_000;
/// … and the part of it, 1 in so many, that they may take.
const LOST_PART: u64 = 5;
/// Short waits in a row, while a core is shared, until another core is looked for …
const SHORT_WAITS: u32 = 16;
/// … and how long until the next look, in TSC cycles: a few tenths of a millisecond.
const LOOK_EVERY: u64 = 1_000_000;
/// A wait of so many TSC cycles, some milliseconds, was for user code that computes: it is bound to no core until its
/// runs are short again.
const LONG_RUN: u64 = 10_000_000;
/// User code that runs longer than this loses its binding. Not before the host's own next tick, as a rule: a nearer timer
/// would have to be set in hardware for each hand-over.
pub const FREED_NS: u64 = 5_000_000;
/// How long after that its core is looked at for the first time …
const SPREAD_NS: u64 = 20_000_000;
/// … and most of the time between two looks, which doubles.
const SPREAD_MAX_NS: u64 = 320_000_000;

/// The core on which the stub thread is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StubPlacement {
    /// Where the host likes.
    Anywhere,
    /// On the vCPU thread's core.
    SameCore,
    /// On any but the vCPU thread's core.
    OtherCore,
}

/// How to wait this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// In TSC cycles.
    pub spin: u64,
    pub place: StubPlacement,
}

/// How a wait went.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    /// The time now, in TSC cycles.
    pub now: u64,
    /// How long the stub had its turn, in TSC cycles.
    pub cycles: u64,
    /// The stub reports that it ran on the vCPU thread's core.
    pub same_core: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Spin,
    Share,
}

/// One vCPU's choice, and the observations that it rests on.
#[derive(Debug)]
pub struct HandoverPolicy {
    mode: Mode,
    /// Runs in a row that spoke for the other mode.
    streak: u32,
    /// Spinning: waits in a row that outlasted it.
    vain: u32,
    /// Spinning: when the window began, and the time lost in it.
    window: (u64, u64),
    /// Spinning: both were on one core.
    collided: bool,
    /// Sharing: when another core may be looked for, and whether this run does.
    look_at: u64,
    looks: bool,
    /// Sharing: user code computes, and is bound to no core.
    computes: bool,
}

impl Default for HandoverPolicy {
    fn default() -> Self {
        Self {
            mode: Mode::Spin,
            streak: 0,
            vain: 0,
            window: (0, 0),
            collided: false,
            look_at: 0,
            looks: false,
            computes: false,
        }
    }
}

impl HandoverPolicy {
    /// Chooses for the next run; `crowded`: the busy vCPUs have fewer than two cores each. `now`: in TSC cycles.
    pub fn choose(&mut self, crowded: bool, now: u64) -> Handover {
        self.looks = false;
        match self.mode {
            Mode::Spin if crowded => {
                self.streak += 1;
                if self.streak >= RUNS_TO_CROWD {
                    self.change(Mode::Share, now);
                }
            }
            Mode::Spin => self.streak = 0,
            Mode::Share => {
                self.looks = !crowded && self.streak >= SHORT_WAITS && now >= self.look_at;
                if self.looks {
                    self.look_at = now + LOOK_EVERY;
                }
            }
        }
        self.handover(crowded)
    }

    /// The handover as things stand: for what is no run of user code as well, so that the stub is not sent elsewhere for it.
    pub fn handover(&self, crowded: bool) -> Handover {
        match self.mode {
            Mode::Share if self.looks || self.computes => {
                Handover { spin: 0, place: StubPlacement::Anywhere }
            }
            Mode::Share => Handover { spin: 0, place: StubPlacement::SameCore },
            Mode::Spin => Handover {
                spin: if crowded { SPIN_CROWDED } else { SPIN_FREE },
                place: if self.collided { StubPlacement::OtherCore } else { StubPlacement::Anywhere },
            },
        }
    }

    fn change(&mut self, mode: Mode, now: u64) {
        let computes = self.computes && mode == Mode::Share;
        *self = Self { mode, window: (now, 0), look_at: now, computes, ..Self::default() };
    }

    /// Notes how the wait went.
    pub fn note(&mut self, waited: Waited) {
        let short = waited.cycles < SPIN_FREE;
        self.computes |= waited.cycles >= LONG_RUN;
        match self.mode {
            Mode::Share if self.looks && !waited.same_core => self.change(Mode::Spin, waited.now),
            Mode::Share => {
                self.streak = if short { self.streak.saturating_add(1) } else { 0 };
                self.computes &= self.streak < SHORT_WAITS;
            }
            Mode::Spin if short => self.vain = 0,
            Mode::Spin => self.note_vain(waited),
        }
        if self.mode == Mode::Spin && waited.now.wrapping_sub(self.window.0) >= WINDOW {
            self.window = (waited.now, 0);
        }
    }

    fn note_vain(&mut self, waited: Waited) {
        self.vain += 1;
        self.window.1 += waited.cycles;
        self.collided |= waited.same_core;
        if self.vain >= VAIN_WAITS || self.window.1 > WINDOW / LOST_PART {
            self.change(Mode::Share, waited.now);
        }
    }
}

/// When the vCPU that waits for a run of user code sees to where it runs.
#[derive(Clone, Copy, Debug)]
pub struct LongRun {
    next_ns: u64,
    interval_ns: u64,
}

impl LongRun {
    /// Of a run whose vCPU begins to wait now.
    pub fn new(now_ns: u64) -> Self {
        Self { next_ns: now_ns.saturating_add(FREED_NS), interval_ns: SPREAD_NS }
    }

    /// The next time.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Whether that has come; then the one after it is set.
    pub fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.next_ns;
        if is_due {
            self.next_ns = now_ns.saturating_add(self.interval_ns);
            self.interval_ns = (2 * self.interval_ns).min(SPREAD_MAX_NS);
        }
        is_due
    }
}

/// Where to send a stub that computes on the core `own`; `None`: it stays. `earlier` and `later` are the cores of those
/// that compute for the vCPUs before and after its own. Of several on one core the first stays, so that never all of them
/// leave; who leaves may go to each of the cores in `all` on which none computes.
pub fn free_cores(
    own: u32,
    earlier: &[u32],
    later: impl IntoIterator<Item = u32>,
    all: &Affinity,
) -> Option<Affinity> {
    if !earlier.contains(&own) {
        return None;
    }
    let taken = earlier.iter().copied().chain(later).chain([own]);
    let free = taken.fold(*all, |free, core| free.less(core));
    (!free.is_empty()).then_some(free)
}

/// A set of cores.
#[derive(Clone, Copy)]
pub struct Affinity(libc::cpu_set_t);

impl Affinity {
    /// The cores the calling thread may use.
    pub fn of_this_thread() -> Self {
        let mut set = Self::none();
        // SAFETY: the set is this function's own.
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set.0) };
        set
    }

    fn none() -> Self {
        // SAFETY: all zeros is a valid set.
        Self(unsafe { std::mem::zeroed() })
    }

    /// The core the calling thread runs on; `None` if it has no place in a set.
    pub fn current_core() -> Option<u32> {
        // SAFETY: touches no memory of ours.
        let core = u32::try_from(unsafe { libc::sched_getcpu() }).ok()?;
        (usize::try_from(core).ok()? < 8 * size_of::<libc::cpu_set_t>()).then_some(core)
    }

    /// A core alone.
    pub fn only(core: u32) -> Self {
        let mut set = Self::none();
        // SAFETY: `current_core` checked the index.
        unsafe { libc::CPU_SET(core as usize, &mut set.0) };
        set
    }

    /// The set without a core; the set itself if there would be none left.
    pub fn without(self, core: u32) -> Self {
        let less = self.less(core);
        if less.is_empty() { self } else { less }
    }

    /// The set without a core, which may be empty then.
    fn less(mut self, core: u32) -> Self {
        if (core as usize) < 8 * size_of::<libc::cpu_set_t>() {
            // SAFETY: the index was checked.
            unsafe { libc::CPU_CLR(core as usize, &mut self.0) };
        }
        self
    }

    fn is_empty(&self) -> bool {
        // SAFETY: reads the set.
        unsafe { libc::CPU_COUNT(&self.0) == 0 }
    }

    /// Binds a thread of a child to the cores.
    pub fn apply(&self, tid: i32) {
        // SAFETY: reads the set.
        unsafe { libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &raw const self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Handover = Handover { spin: 0, place: StubPlacement::SameCore };
    const SPIN: Handover = Handover { spin: SPIN_FREE, place: StubPlacement::Anywhere };

    fn waited(now: u64, cycles: u64, same_core: bool) -> Waited {
        Waited { now, cycles, same_core }
    }

    /// A policy that shares a core, at time 0.
    fn sharing() -> HandoverPolicy {
        let mut policy = HandoverPolicy::default();
        for _ in 0..VAIN_WAITS {
            assert_eq!(policy.choose(false, 0), SPIN);
            policy.note(waited(0, SPIN_FREE, false));
        }
        policy
    }

    #[test]
    fn crowding_is_believed_slowly() {
        let mut policy = HandoverPolicy::default();
        assert_eq!(policy.choose(false, 0), SPIN);
        for _ in 1..RUNS_TO_CROWD {
            assert_eq!(policy.choose(true, 0), Handover { spin: SPIN_CROWDED, ..SPIN });
        }
        assert_eq!(policy.choose(true, 0), SHARE);
    }

    #[test]
    fn a_shared_core_is_left_as_soon_as_the_host_has_another() {
        let mut policy = sharing();
        for _ in 0..SHORT_WAITS {
            assert_eq!(policy.choose(false, 0), SHARE);
            policy.note(waited(0, 1, true));
        }
        let look = Handover { spin: 0, place: StubPlacement::Anywhere };
        assert_eq!(policy.choose(false, 0), look);
        policy.note(waited(1, 1, true));
        // There was none: again a little later, and not while the sandbox itself is crowded.
        assert_eq!(policy.choose(false, LOOK_EVERY - 1), SHARE);
        assert_eq!(policy.choose(true, LOOK_EVERY), SHARE);
        assert_eq!(policy.choose(false, LOOK_EVERY), look);
        policy.note(waited(LOOK_EVERY, 1, false));
        assert_eq!(policy.choose(false, LOOK_EVERY), SPIN);
    }

    #[test]
    fn user_code_that_outlasts_the_spinning_keeps_the_shared_core() {
        let mut policy = sharing();
        for round in 0..1000 {
            assert_eq!(policy.choose(false, round * LOOK_EVERY), SHARE);
            policy.note(waited(round * LOOK_EVERY, if round % 8 == 0 { SPIN_FREE } else { 1 }, true));
        }
    }

    #[test]
    fn user_code_that_computes_is_bound_to_no_core_until_its_runs_are_short() {
        const FREE: Handover = Handover { spin: 0, place: StubPlacement::Anywhere };
        let mut policy = sharing();
        assert_eq!(policy.choose(true, 0), SHARE);
        policy.note(waited(0, LONG_RUN, true));
        for round in 0..1000 {
            assert_eq!(policy.choose(true, 0), FREE, "round {round}");
            policy.note(waited(0, if round % 8 == 0 { SPIN_FREE } else { 1 }, round % 2 == 0));
        }
        policy.note(waited(0, LONG_RUN, false));
        for _ in 0..SHORT_WAITS {
            assert_eq!(policy.choose(true, 0), FREE);
            policy.note(waited(0, 1, false));
        }
        assert_eq!(policy.choose(true, 0), SHARE);
        // So it is when long runs ended the spinning.
        let mut policy = HandoverPolicy::default();
        for _ in 0..VAIN_WAITS {
            assert_eq!(policy.choose(false, 0).spin, SPIN_FREE);
            policy.note(waited(0, LONG_RUN, true));
            if policy.mode == Mode::Share {
                break;
            }
        }
        assert_eq!(policy.choose(true, 0), FREE);
    }

    #[test]
    fn a_long_run_is_looked_at_ever_more_seldom() {
        let mut run = LongRun::new(7);
        assert!(!run.is_due(6 + FREED_NS) && run.is_due(7 + FREED_NS));
        let mut last_ns = 7 + FREED_NS;
        for interval_ns in [1, 2, 4, 8, 16, 16, 16].map(|times| times * SPREAD_NS) {
            assert!(!run.is_due(last_ns + interval_ns - 1));
            last_ns += interval_ns;
            assert_eq!(run.next_ns(), last_ns);
            assert!(run.is_due(last_ns));
        }
    }

    /// Each core of the host that `set` holds.
    fn listed(set: &Affinity, cores: u32) -> Vec<u32> {
        // SAFETY: reads the set.
        (0..cores).filter(|core| unsafe { libc::CPU_ISSET(*core as usize, &set.0) }).collect()
    }

    /// A host with so many cores, which never moves a thread by itself: where its threads run, and how often one was sent.
    fn spread(
        all: &Affinity,
        cores: u32,
        mut places: Vec<u32>,
        mut pick: impl FnMut(usize) -> usize,
    ) -> (Vec<u32>, usize) {
        let mut sent = 0;
        // Each looks a few times, in any order.
        for _ in 0..16 * places.len() {
            let me = pick(places.len());
            let later: Vec<u32> = places[me + 1..].to_vec();
            if let Some(set) = free_cores(places[me], &places[..me], later, all) {
                let set = listed(&set, cores);
                places[me] = set[pick(set.len())];
                sent += 1;
            }
        }
        (places, sent)
    }

    #[test]
    fn who_computes_gets_a_core_of_its_own_where_one_is_free() {
        let mut state = 1_u64;
        let mut pick = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        for round in 0..2000 {
            let cores = 1 + u32::try_from(pick(8)).unwrap();
            // Not all cores of the host are the sandbox's.
            let mut all = (0..cores).fold(Affinity::none(), |mut all, core| {
                // SAFETY: the index is small.
                unsafe { libc::CPU_SET(core as usize, &mut all.0) };
                all
            });
            for _ in 0..pick(cores as usize) {
                all = all.without(u32::try_from(pick(cores as usize)).unwrap());
            }
            let allowed = listed(&all, cores);
            let threads = 1 + pick(10);
            let places: Vec<u32> = (0..threads).map(|_| allowed[pick(allowed.len())]).collect();
            let (after, sent) = spread(&all, cores, places.clone(), &mut pick);
            let used: std::collections::BTreeSet<u32> = after.iter().copied().collect();
            assert_eq!(used.len(), threads.min(allowed.len()), "round {round}: {places:?} to {after:?}");
            assert!(after.iter().all(|core| allowed.contains(core)), "round {round}");
            // Each core is settled by one move.
            assert!(sent < threads, "round {round}: {sent} moves of {threads}");
        }
    }

    #[test]
    fn of_two_on_one_core_the_later_leaves() {
        let all = Affinity::only(1);
        let two = (0..2).fold(Affinity::none(), |mut all, core| {
            // SAFETY: the index is small.
            unsafe { libc::CPU_SET(core, &mut all.0) };
            all
        });
        assert!(free_cores(1, &[], [1], &two).is_none());
        assert_eq!(free_cores(1, &[1], [], &two).map(|set| listed(&set, 2)), Some(vec![0]));
        assert!(free_cores(1, &[0], [], &two).is_none());
        assert!(free_cores(1, &[1], [0], &two).is_none(), "no core is free");
        assert!(free_cores(1, &[1], [], &all).is_none(), "there is no other");
    }

    #[test]
    fn who_spins_on_the_others_core_is_sent_away() {
        let mut policy = HandoverPolicy::default();
        assert_eq!(policy.choose(false, 0), SPIN);
        policy.note(waited(0, SPIN_FREE, true));
        assert_eq!(policy.choose(false, 0), Handover { place: StubPlacement::OtherCore, ..SPIN });
    }

    #[test]
    fn time_lost_now_and_then_counts_as_well() {
        let mut policy = HandoverPolicy::default();
        policy.change(Mode::Spin, 0);
        // A fifth of each window at most.
        for round in 0..100 {
            let now = round * WINDOW;
            policy.note(waited(now + 1, WINDOW / LOST_PART, false));
            policy.note(waited(now + 2, 1, false));
            assert_eq!(policy.choose(false, now), SPIN);
            policy.note(waited(now + WINDOW, 1, false));
        }
        policy.note(waited(100 * WINDOW, WINDOW / LOST_PART, false));
        policy.note(waited(100 * WINDOW + 1, 1, false));
        policy.note(waited(100 * WINDOW + 2, SPIN_FREE, false));
        assert_eq!(policy.choose(false, 100 * WINDOW), SHARE);
    }

    #[test]
    fn the_last_core_stays() {
        let one = Affinity::only(3);
        // SAFETY: reads the sets.
        assert!(unsafe { libc::CPU_ISSET(3, &one.without(3).0) && libc::CPU_ISSET(3, &one.without(2).0) });
    }
}
