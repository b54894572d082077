//! Touches: which stored pages were used, in order, and the working set made of them.
//!
//! The set is recorded a part at a time. In each wake the members of one part are *probed*: their content comes back with
//! that of the others, but their entries fault at their first use, and so show whether they are used at all. Which part a
//! page belongs to depends on nothing but the page, so each is probed once in a round of wakes.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::report::{WORKING_SET_MAX_PAGES, WRITTEN};
use abi::word::{high32, low32};

use super::page::PAGE;
use super::physical::account;
use super::physical::frames::{self, Frame};
use crate::rank::Rank;
use crate::spin::SpinLock;
use crate::time;

/// A page leaves the set when it was probed so many times in a row without being touched.
const KEEP_PROBES: u8 = 2;
/// A page that is new has that many behind it: most pages that are used once are not used again.
const NEW_PROBES: u8 = KEEP_PROBES - 1;
/// Each member is probed in one of so many wakes: a small part costs a wake little.
const PARTS: u32 = 64;
/// Each member is probed in one of so many wakes in a round of wakes with a set that was made of faults without REAP,
/// or that has grown by half: the sooner it shrinks, the fewer wakes bring back what nobody uses.
const QUICK_PARTS: u32 = 8;
/// Sequences of touches that are followed at the same time, and most bytes that come with one touch of them.
const SEQUENCES: usize = 8;
const SEQUENCE_MAX: u64 = 32 * PAGE;
/// Most touches that are written down (512 MiB); a set this large comes back as fast by faults.
pub(super) const TOUCHES_MAX: usize = 1 << 17;
/// Most pages that are a set for want of another (32 MiB).
pub const GUESSED_MAX: usize = WORKING_SET_MAX_PAGES;
/// Room for so many is made first, and doubled.
const TOUCHES_MIN: usize = 128;
/// Kernel memory that touches leave to programs.
const SPARE_BYTES: usize = 1 << 20;
/// The space of touches of in-memory files by system calls.
pub(super) const NO_SPACE: u64 = 0;

static SET: SpinLock<WorkingSet> = SpinLock::new(Rank::WorkingSet, WorkingSet::new());
/// The [`Probe`] of the current wake.
static PROBE: AtomicU64 = AtomicU64::new(Probe::NONE.word());
/// The current wake is recorded, and writes are to be seen.
static RECORDING: AtomicBool = AtomicBool::new(false);
/// Until when that is so (monotonic), though nobody has told yet what was recorded.
static SEEN_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// There is no set yet, and neighbours that become present with touched pages join it, too.
static GUESSING: AtomicBool = AtomicBool::new(true);

/// The way in which a wake learns about the set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Learning {
    /// A part is probed, or all of it if there is none.
    Usual,
    /// Nothing is probed: the set was recorded.
    Recorded,
    /// All is probed, so that each first use is seen.
    Recording,
}

/// A page that was used for the first time since it was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    pub frame: u32,
    /// How many times in a row it was probed and not touched.
    idle_probes: u8,
    /// It was only read when it was used last: where the template has it, that is shown.
    pub(super) is_read: bool,
    /// The address space and the page's address in it, by which it was touched.
    pub(super) space: u64,
    pub(super) page: u64,
}

impl Touch {
    pub(super) const fn new(space: u64, page: u64, frame: u32) -> Self {
        Self { frame, idle_probes: NEW_PROBES, is_read: false, space, page }
    }

    /// With whether the page is only read.
    pub(super) const fn read_only(self, is_read: bool) -> Self {
        Self { is_read, ..self }
    }

    /// The identity of a page: its frame changes by copy-on-write.
    pub(super) const fn key(&self) -> (u64, u64) {
        if self.space == NO_SPACE { (NO_SPACE, self.frame as u64) } else { (self.space, self.page) }
    }

    /// The touch of the page that lies `i` pages further on.
    const fn after(&self, i: u32) -> Self {
        let page = if self.space == NO_SPACE { self.page } else { self.page + i as u64 * PAGE };
        Self { frame: self.frame.saturating_add(i), page, ..*self }
    }
}

/// Touches of pages that follow each other in memory as they do in frames: a set takes little room while it waits.
#[derive(Clone, Copy)]
struct Run {
    first: Touch,
    len: u32,
}

impl Run {
    fn touches(self) -> impl Iterator<Item = Touch> {
        (0..self.len).map(move |i| self.first.after(i))
    }
}

/// The set while it waits.
struct Members {
    runs: Vec<Run>,
    /// Of each member, apart from the runs: neighbours are probed in different wakes.
    idle_probes: Vec<u8>,
}

impl Members {
    const fn new() -> Self {
        Self { runs: Vec::new(), idle_probes: Vec::new() }
    }

    fn of(touches: &[Touch]) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for touch in touches.iter().map(|touch| Touch { idle_probes: 0, ..*touch }) {
            match runs.last_mut() {
                Some(last) if last.first.after(last.len) == touch => last.len += 1,
                _ => runs.push(Run { first: touch, len: 1 }),
            }
        }
        runs.shrink_to_fit();
        Self { runs, idle_probes: touches.iter().map(|touch| touch.idle_probes).collect() }
    }

    fn len(&self) -> usize {
        self.idle_probes.len()
    }

    fn touches(&self) -> impl Iterator<Item = Touch> {
        let touches = self.runs.iter().flat_map(|run| run.touches()).zip(&self.idle_probes);
        touches.map(|(touch, idle_probes)| Touch { idle_probes: *idle_probes, ..touch })
    }
}

/// The part of all pages whose first uses in a wake are to be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Probe {
    part: u32,
    /// How many parts there are; 0 where nothing is probed.
    parts: u32,
}

impl Probe {
    const NONE: Self = Self { part: 0, parts: 0 };
    /// A wake without a set shows every page, but for those that are touched one after the other.
    const ALL: Self = Self { part: 0, parts: 1 };

    const fn word(self) -> u64 {
        (self.part as u64) << 32 | self.parts as u64
    }

    fn current() -> Self {
        let word = PROBE.load(Ordering::Relaxed);
        Self { part: high32(word), parts: low32(word) }
    }

    /// Whether the page of this identity ([`Touch::key`]) is in the part.
    fn includes(self, (space, page): (u64, u64)) -> bool {
        // Multiplied by the golden ratio's fraction, pages next to each other are far from each other.
        let spread = (page ^ space.rotate_right(16)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.parts != 0 && high32(u64::from(high32(spread)) * u64::from(self.parts)) == self.part
    }
}

/// Pages that are touched one after the other.
#[derive(Clone)]
struct Sequence {
    space: u64,
    /// Those that come with the last touch of it.
    pages: Range<u64>,
}

impl Sequence {
    const NONE: Self = Self { space: NO_SPACE, pages: 0..0 };

    /// Whether a touch of this page goes on with it.
    fn leads_to(&self, space: u64, page: u64) -> bool {
        self.space == space && self.pages.start < page && page <= self.pages.end
    }
}

/// Which neighbours of a touched page may become present with it.
pub struct Along {
    probe: Probe,
    space: u64,
    sequence: Range<u64>,
}

impl Along {
    pub fn with(space: u64, page: u64) -> Self {
        let probe = Probe::current();
        let sequence = if probe == Probe::ALL { SET.lock().sequence(space, page) } else { 0..0 };
        Self { probe, space, sequence }
    }

    pub fn includes(&self, page: u64) -> bool {
        self.sequence.contains(&page) || !self.probe.includes((self.space, page))
    }
}

struct WorkingSet {
    /// Sequences of touches in a wake without a set, that which went on last comes last.
    sequences: [Sequence; SEQUENCES],
    /// Since the set was stored, in order.
    touched: Vec<Touch>,
    /// Frames that were written while that is recorded.
    written: BTreeSet<u32>,
    /// The set that is stored.
    members: Members,
    /// Wakes with a set since the last quick round began; a wake that shows every page does for a round.
    wakes: u32,
    /// Touches in the set when the last quick round was over.
    recorded: usize,
    /// The set is a guess, for who wakes with an image of this memory.
    is_for_image: bool,
    /// Touches do not count: here it is as if nothing had been stored.
    ignores: bool,
    /// Of the wake that comes next, or that has begun.
    learning: Learning,
}

impl WorkingSet {
    const fn new() -> Self {
        Self {
            sequences: [Sequence::NONE; SEQUENCES],
            touched: Vec::new(),
            written: BTreeSet::new(),
            members: Members::new(),
            wakes: 0,
            recorded: 0,
            is_for_image: false,
            ignores: false,
            learning: Learning::Usual,
        }
    }

    fn touch(&mut self, touch: Touch) {
        if self.ignores {
            return;
        }
        let len = self.touched.len();
        if len == self.touched.capacity() {
            let more = len.max(TOUCHES_MIN);
            // Programs need the memory more.
            let is_granted = account::check(more * size_of::<Touch>() + SPARE_BYTES).is_ok();
            if len >= TOUCHES_MAX || !is_granted || self.touched.try_reserve_exact(more).is_err() {
                return;
            }
        }
        self.touched.push(touch);
    }

    fn store(&mut self, members: &[Touch]) {
        (self.members, self.touched) = (Members::of(members), Vec::new());
        self.written = BTreeSet::new();
        (self.is_for_image, self.learning) = (false, Learning::Usual);
    }

    fn store_guess(&mut self, pages: &[Touch]) {
        self.store(pages);
        (self.is_for_image, self.wakes) = (true, 0);
    }

    fn begin_in_place(&mut self) {
        if self.is_for_image {
            (self.members, self.is_for_image) = (Members::new(), false);
        }
        self.ignores = self.members.len() == 0;
    }

    /// The pages whose entries become present with the touched one: the longer it goes on page by page, the more.
    fn sequence(&mut self, space: u64, page: u64) -> Range<u64> {
        let found = self.sequences.iter().position(|sequence| sequence.leads_to(space, page));
        let bytes = match found {
            Some(at) => {
                (2 * (self.sequences[at].pages.end - self.sequences[at].pages.start)).min(SEQUENCE_MAX)
            }
            None => PAGE,
        };
        let at = found.unwrap_or(0);
        self.sequences[at] = Sequence { space, pages: page..page + bytes };
        // Where none goes on, the next one takes the place of that which has waited longest.
        self.sequences[at..].rotate_left(1);
        page..page + bytes
    }

    /// The frames that were touched, each once, in the order of touch, as they are recorded.
    fn frames(&self) -> Vec<u32> {
        let mut seen = BTreeSet::new();
        let frames = self.touched.iter().map(|touch| touch.frame).filter(|frame| seen.insert(*frame));
        let numbered = |frame| if self.written.contains(&frame) { frame | WRITTEN } else { frame };
        frames.take(WORKING_SET_MAX_PAGES).map(numbered).collect()
    }

    /// Chooses the pages that the wake that begins probes.
    fn probe(&mut self, with_reap: bool) -> Probe {
        match self.learning {
            Learning::Recording => Probe::ALL,
            Learning::Usual if with_reap => self.next_probe(),
            Learning::Usual | Learning::Recorded => Probe::NONE,
        }
    }

    /// Chooses the part of the pages that the wake that begins probes.
    fn next_probe(&mut self) -> Probe {
        let len = self.members.len();
        if len == 0 {
            self.wakes = QUICK_PARTS;
            return Probe::ALL;
        }
        if self.wakes == QUICK_PARTS {
            self.recorded = len;
        } else if self.wakes > QUICK_PARTS && len > self.recorded + self.recorded / 2 {
            self.wakes = 0;
        }
        let wake = self.wakes;
        self.wakes = wake.wrapping_add(1);
        let parts = if wake < QUICK_PARTS { QUICK_PARTS } else { PARTS };
        Probe { part: wake % parts, parts }
    }

    /// The next set; `now` says what frame a page has now, if any, and whether it is only read. Members keep their places, since of most nobody knows
    /// when they were used; a page that is new comes after the member that was touched last before it.
    fn next(&self, probe: Probe, now: impl Fn(&Touch) -> Option<(u32, bool)>) -> Vec<Touch> {
        // By identity: which touch it is.
        let mut by_key: Vec<_> = self.touched.iter().map(Touch::key).zip(0_usize..).collect();
        by_key.sort_unstable();
        // The place of each touch among the members, from 1 on; 0 if it is new.
        let mut places = alloc::vec![0; self.touched.len()];
        let mut next = Vec::new();
        for (member, place) in self.members.touches().zip(1_usize..) {
            let key = member.key();
            let first = by_key.partition_point(|(other, _)| *other < key);
            let touches = by_key[first..].iter().take_while(|(other, _)| *other == key);
            let mut idle_probes = member.idle_probes + u8::from(probe.includes(key));
            for (_, touch) in touches {
                places[*touch] = place;
                idle_probes = 0;
            }
            // What the template shows stays shown, and does not fault: a probe of it says nothing.
            if idle_probes > 0 && now(&member).is_some_and(|(_, is_read)| is_read) {
                idle_probes = 0;
            }
            if idle_probes < KEEP_PROBES {
                next.push((place, Touch { idle_probes, ..member }));
            }
        }
        let mut last = 0;
        for (touch, place) in self.touched.iter().zip(places) {
            if place == 0 {
                next.push((last, *touch));
            } else {
                last = place;
            }
        }
        // A stable sort: of one place the member comes first, and then those new after it, in order.
        next.sort_by_key(|(place, _)| *place);
        let next = next
            .into_iter()
            .filter_map(|(_, touch)| now(&touch).map(|(frame, is_read)| Touch { frame, is_read, ..touch }));
        next.take(TOUCHES_MAX).collect()
    }
}

/// The entry at `page` of the space became present, because it was `touched` or next to such a one.
pub fn came(space: u64, page: u64, frame: Frame, touched: bool) {
    if (touched || GUESSING.load(Ordering::Relaxed))
        && let Some(frame) = frames::index(frame)
    {
        SET.lock().touch(Touch::new(space, page, frame));
    }
}

/// A system call reached the frame without an entry, for the first time since its content was stored.
pub fn touched_in_store(frame: u32) {
    SET.lock().touch(Touch::new(NO_SPACE, 0, frame));
}

/// Whether the first write to each page is to be seen, by a fault of its own.
pub fn sees_writes() -> bool {
    RECORDING.load(Ordering::Relaxed) && time::monotonic_ns() < SEEN_UNTIL_NS.load(Ordering::Relaxed)
}

/// The frame is written, where that is to be seen.
pub fn wrote(frame: Frame) {
    if sees_writes()
        && let Some(frame) = frames::index(frame)
    {
        let mut set = SET.lock();
        if set.written.len() < WORKING_SET_MAX_PAGES {
            set.written.insert(frame);
        }
    }
}

/// Whether the first use of this page in this wake is to be seen: only its own fault may make its entry present.
pub fn is_probed(space: u64, page: u64) -> bool {
    Probe::current().includes((space, page))
}

/// The set was stored; touches count from here on.
pub fn store(members: &[Touch]) {
    SET.lock().store(members);
}

/// Stores as [`store`] does, for an image of a sandbox that has never woken: nobody knows its set, so it has all `pages`. Who goes on here has none still.
pub fn store_guess(pages: &[Touch]) {
    SET.lock().store_guess(pages);
}

/// A wake begins in which nothing was stored before. What was touched till then still counts, and so does what is touched now, if there
/// is a set.
pub fn begin_in_place() {
    SET.lock().begin_in_place();
    GUESSING.store(false, Ordering::Relaxed);
    PROBE.store(Probe::NONE.word(), Ordering::Relaxed);
}

/// A wake begins. Without REAP nobody asks for the set, and nothing is probed.
pub fn begin_wake(with_reap: bool) {
    let mut set = SET.lock();
    (set.is_for_image, set.ignores) = (false, false);
    // What comes along unseen is taken to be touched as well.
    let guesses = set.members.len() == 0 || set.learning == Learning::Recording;
    GUESSING.store(guesses, Ordering::Relaxed);
    RECORDING.store(set.learning == Learning::Recording, Ordering::Relaxed);
    let probe = set.probe(with_reap);
    PROBE.store(probe.word(), Ordering::Relaxed);
}

/// Nothing is shown any more: of what was only read nobody knows for how long, and it leaves if the next probe of it is in vain.
pub(super) fn doubt_shown() {
    let mut set = SET.lock();
    let read: Vec<bool> = set.members.touches().map(|touch| touch.is_read).collect();
    let probes = set.members.idle_probes.iter_mut().zip(read).filter(|(_, is_read)| *is_read);
    probes.for_each(|(idle_probes, _)| *idle_probes = NEW_PROBES);
}

/// In the wake that comes next these pages come back first, and no others: they were recorded in another sandbox with this memory.
pub(super) fn adopt(pages: &[Touch]) {
    let mut set = SET.lock();
    set.members = Members::of(pages);
    // Each was seen to be used: few leave, and none has to soon.
    set.wakes = QUICK_PARTS;
    set.learning = Learning::Recorded;
}

/// The wake that comes next is recorded.
pub fn record() {
    see_until(u64::MAX);
    SET.lock().learning = Learning::Recording;
}

/// Writes are seen until then where they are recorded.
pub fn see_until(until_ns: u64) {
    SEEN_UNTIL_NS.store(until_ns, Ordering::Relaxed);
}

/// The frames that were touched first since then, in order, those that were written with [`WRITTEN`]. The record is over.
pub fn recorded() -> Vec<u32> {
    RECORDING.store(false, Ordering::Relaxed);
    let mut set = SET.lock();
    let frames = set.frames();
    set.written = BTreeSet::new();
    frames
}

/// The set that is stored, in order.
pub(super) fn members() -> Vec<Touch> {
    SET.lock().members.touches().collect()
}

/// The next working set; `now` says which frame a page has now, if any, and whether it is only read.
pub(super) fn next(now: impl Fn(&Touch) -> Option<(u32, bool)>) -> Vec<Touch> {
    SET.lock().next(Probe::current(), now)
}

#[cfg(test)]
#[path = "touches_tests.rs"]
mod tests;
