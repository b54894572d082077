//! Touches: which stored pages were used, in order, and the working set made of them.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use super::frames::{self, Frame};
use super::page::PAGE;
use crate::rank::Rank;
use crate::spin::SpinLock;

/// How many recorded wakes a page stays in the set without being touched.
const KEEP_WAKES: u8 = 2;
/// A set is recorded anew after so many wakes.
const RECORD_EVERY: u32 = 16;
/// Most touches that are written down (512 MiB); a set this large comes back as fast by faults.
const TOUCHES_MAX: usize = 1 << 17;
/// The space of touches of in-memory files by system calls.
pub(super) const NO_SPACE: u64 = 0;

static SET: SpinLock<WorkingSet> = SpinLock::new(Rank::WorkingSet, WorkingSet::new());
/// Each entry's first use since the wake is to be seen.
static RECORDING: AtomicBool = AtomicBool::new(false);
/// The neighbours of touched pages are in the set, too.
static GUESSING: AtomicBool = AtomicBool::new(true);

/// A page that was used for the first time since it was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    pub frame: u32,
    /// Recorded wakes after which it was not touched.
    idle_wakes: u8,
    /// The address space and the page's address in it, by which it was touched.
    pub(super) space: u64,
    pub(super) page: u64,
}

impl Touch {
    const fn new(space: u64, page: u64, frame: u32) -> Self {
        Self { frame, idle_wakes: 0, space, page }
    }

    /// The identity of a page: its frame changes by copy-on-write.
    pub(super) const fn key(&self) -> (u64, u64) {
        if self.space == NO_SPACE { (NO_SPACE, self.frame as u64) } else { (self.space, self.page) }
    }

    /// The same `i` pages on.
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

/// In runs.
fn packed(touches: impl Iterator<Item = Touch>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for touch in touches {
        match runs.last_mut() {
            Some(last) if last.first.after(last.len) == touch => last.len += 1,
            _ => runs.push(Run { first: touch, len: 1 }),
        }
    }
    runs.shrink_to_fit();
    runs
}

struct WorkingSet {
    /// Since the set was stored, in order.
    touched: Vec<Touch>,
    /// The set that is stored.
    members: Vec<Run>,
    /// Wakes since it was last recorded, and touches in the set then; `None`: never yet.
    wakes: Option<u32>,
    recorded: usize,
}

impl WorkingSet {
    const fn new() -> Self {
        Self { touched: Vec::new(), members: Vec::new(), wakes: None, recorded: 0 }
    }

    fn members(&self) -> impl Iterator<Item = Touch> {
        self.members.iter().flat_map(|run| run.touches())
    }

    fn touch(&mut self, touch: Touch) {
        if self.touched.len() < TOUCHES_MAX && self.touched.try_reserve(1).is_ok() {
            self.touched.push(touch);
        }
    }

    /// Whether the wake that begins is to be recorded: the first one with a set, which was found by faults that bring
    /// neighbours along, and then one in a while.
    fn begins_to_record(&mut self) -> bool {
        if self.members.is_empty() {
            return false;
        }
        let len = self.members.iter().map(|run| run.len as usize).sum::<usize>();
        let outgrown = len > self.recorded + self.recorded / 2;
        let record = match self.wakes {
            None => true,
            // The first set after a recorded wake.
            Some(0) => {
                self.recorded = len;
                false
            }
            Some(wakes) => outgrown || wakes + 1 >= RECORD_EVERY,
        };
        self.wakes = Some(if record { 0 } else { self.wakes.unwrap_or(0) + 1 });
        record
    }

    /// The next set; `now` says what frame a page has now, if any.
    fn next(&self, recorded: bool, now: impl Fn(&Touch) -> Option<u32>) -> Vec<Touch> {
        let mut keys: Vec<_> = self.touched.iter().map(Touch::key).collect();
        keys.sort_unstable();
        let untouched = self.members().filter(|member| keys.binary_search(&member.key()).is_err());
        let idle =
            untouched.map(|member| Touch { idle_wakes: member.idle_wakes + u8::from(recorded), ..member });
        let both = self.touched.iter().copied().chain(idle.filter(|member| member.idle_wakes < KEEP_WAKES));
        both.filter_map(|touch| now(&touch).map(|frame| Touch { frame, ..touch })).collect()
    }
}

/// The entry at `page` of the space became present, because it was `touched` or next to such a one.
pub fn came(space: u64, page: u64, frame: Frame, touched: bool) {
    if (touched || GUESSING.load(Ordering::Relaxed))
        && let Some(frame) = frames::index(frame)
    {
        // A wrong guess leaves with the first wake that is recorded.
        let idle_wakes = if touched { 0 } else { KEEP_WAKES - 1 };
        SET.lock().touch(Touch { idle_wakes, ..Touch::new(space, page, frame) });
    }
}

/// A system call reached the frame without an entry, for the first time since its content was stored.
pub fn touched_in_store(frame: u32) {
    SET.lock().touch(Touch::new(NO_SPACE, 0, frame));
}

/// Whether a fault may make nothing present but the page that was touched.
pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

/// The set was stored; touches count from here on.
pub fn store(members: Vec<Touch>) {
    let mut set = SET.lock();
    (set.members, set.touched) = (packed(members.into_iter()), Vec::new());
}

/// A wake begins; what follows is recorded or not. Without REAP nobody asks for the set.
pub fn begin_wake(with_reap: bool) {
    let mut set = SET.lock();
    GUESSING.store(set.members.is_empty(), Ordering::Relaxed);
    RECORDING.store(with_reap && set.begins_to_record(), Ordering::Relaxed);
}

/// The set that is stored, in order.
pub(super) fn members() -> Vec<Touch> {
    SET.lock().members().collect()
}

/// The next working set; `now` says which frame a page has now, if any.
pub(super) fn next(now: impl Fn(&Touch) -> Option<u32>) -> Vec<Touch> {
    SET.lock().next(is_recording(), now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames_of(set: &[Touch]) -> Vec<u32> {
        set.iter().map(|touch| touch.frame).collect()
    }

    fn unpacked(set: &WorkingSet) -> Vec<Touch> {
        set.members().collect()
    }

    fn set_of(touches: &[(u64, u32)]) -> WorkingSet {
        let mut set = WorkingSet::new();
        touches.iter().for_each(|&(page, frame)| set.touch(Touch::new(1, page, frame)));
        set
    }

    #[test]
    fn the_order_of_touch_comes_first_and_what_is_gone_does_not() {
        let mut set = set_of(&[(0x7000, 7), (0x3000, 3), (0x9000, 9)]);
        let next = set.next(false, |touch| (touch.frame != 9).then_some(touch.frame));
        assert_eq!(frames_of(&next), [7, 3]);
        set.members = packed(next.into_iter());
        set.touched = vec![Touch::new(1, 0x5000, 5)];
        assert_eq!(frames_of(&set.next(false, |touch| Some(touch.frame))), [5, 7, 3]);
    }

    #[test]
    fn neighbours_take_the_room_of_one() {
        let set = set_of(&[(0x1000, 7), (0x2000, 8), (0x3000, 9), (0x5000, 10), (0x6000, 12)]);
        let store = [4, 5].map(|frame| Touch::new(NO_SPACE, 0, frame));
        let all: Vec<Touch> = set.touched.iter().chain(&store).copied().collect();
        let runs = packed(all.iter().copied());
        assert_eq!(runs.len(), 4);
        assert_eq!(runs.into_iter().flat_map(Run::touches).collect::<Vec<_>>(), all);
    }

    #[test]
    fn a_page_that_was_copied_is_in_the_set_with_its_new_frame() {
        let set = set_of(&[(0x7000, 7)]);
        assert_eq!(frames_of(&set.next(false, |touch| (touch.page == 0x7000).then_some(8))), [8]);
    }

    #[test]
    fn the_untouched_leave_after_two_recorded_wakes() {
        let mut set = set_of(&[(0x7000, 7), (0x3000, 3)]);
        set.members = packed(set.next(false, |touch| Some(touch.frame)).into_iter());
        set.touched.clear();
        set.members = packed(set.next(false, |touch| Some(touch.frame)).into_iter());
        assert_eq!(frames_of(&unpacked(&set)), [7, 3]);
        for left in [vec![3, 7], vec![3]] {
            set.touched = vec![Touch::new(1, 0x3000, 3)];
            set.members = packed(set.next(true, |touch| Some(touch.frame)).into_iter());
            assert_eq!(frames_of(&unpacked(&set)), left);
        }
    }

    #[test]
    fn the_first_set_is_recorded_and_then_one_in_a_while() {
        let mut set = WorkingSet::new();
        assert!(!set.begins_to_record());
        set.members = packed([Touch::new(1, 0x1000, 1)].into_iter());
        assert!(set.begins_to_record());
        let recorded: Vec<u32> = (1..=2 * RECORD_EVERY).filter(|_| set.begins_to_record()).collect();
        assert_eq!(recorded, [RECORD_EVERY, 2 * RECORD_EVERY]);
    }

    #[test]
    fn a_set_that_grew_by_half_is_recorded() {
        let of_pages = |count: u64| packed((1..=count).map(|page| Touch::new(1, page * 0x5000, 1)));
        let mut set = WorkingSet { members: of_pages(40), ..WorkingSet::new() };
        assert!(set.begins_to_record());
        set.members = of_pages(10);
        assert!(!set.begins_to_record());
        set.members = of_pages(15);
        assert!(!set.begins_to_record());
        set.members = of_pages(16);
        assert!(set.begins_to_record() && !set.begins_to_record());
    }
}
