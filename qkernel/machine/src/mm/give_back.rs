//! Free memory goes back to the host while the sandbox runs, as Linux's free page reporting does: frames that programs freed,
//! and free pages of the kernel's heap.
//!
//! Memory that is soon taken again stays, since the host would have to clear new pages for it. So time is divided into
//! *windows*. The allocators take free memory that holds the host's before other, and keep the *low watermark* of it: what
//! nobody needed in a whole window. That goes back, in steps, so that others run between them. If much of it is missed soon
//! afterwards, the next windows are longer ([`next_window`]).
//!
//! One timer does all of this, on whatever CPU found that there is something to give back, busy or idle. It is armed only
//! while there is more than was left the last time ([`look`]), so an idle sandbox comes to rest after a pass.
//!
//! Nobody can take what is going back: the allocators set it aside first.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::page::PAGE_BYTES;
use super::physical::frames;
use crate::heap;
use crate::rank::Rank;
use crate::sched::timer::{self, Alarm};
use crate::spin::SpinLock;
use crate::time;

/// The shortest and the longest window.
const WINDOW_NS: u64 = 1_000_000_000;
const WINDOW_MAX_NS: u64 = 16 * WINDOW_NS;
/// Frames that are missed within so many windows count against giving back.
const SOON_WINDOWS: u64 = 4;
/// Fewer pages than this are not worth a timer.
const WORTHWHILE_PAGES: usize = 1024;
/// Most pages of a step, which takes some hundred microseconds …
const STEP_PAGES: usize = 1024;
/// … and the time until the next one, in which the CPU does something else.
const PAUSE_NS: u64 = 2_000_000;
/// Frames in a row that go back together, at least: the host does so much for each range, and takes large pages apart for
/// a small one.
const LEAST_FRAMES: usize = 16;

static GIVE_BACK: GiveBack = GiveBack {
    is_armed: AtomicBool::new(false),
    left_pages: AtomicUsize::new(0),
    given_pages: AtomicU64::new(0),
    work: SpinLock::new(Rank::Leaf, Work::new()),
};

struct GiveBack {
    /// The timer is armed, or fires.
    is_armed: AtomicBool,
    /// Pages that the last pass left, or that are held now if those are fewer.
    left_pages: AtomicUsize,
    /// Pages that went back so far.
    given_pages: AtomicU64,
    /// Only whoever serves the timer takes it.
    work: SpinLock<Work>,
}

/// Where the timer's work stands.
#[derive(Clone, Copy)]
struct Work {
    window_ns: u64,
    pass: Option<Pass>,
    last: Last,
}

/// The state of a pass: how many pages are to go back still, and where it stands.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Pass {
    frames: usize,
    heap: usize,
    /// Blocks of frames below this one, and pages of the heap from this one on, are to be looked at.
    below: usize,
    from: usize,
    given: usize,
    /// All that was to go back, and [`given_pages`] when the pass began.
    wanted: usize,
    given_before: u64,
}

/// The last pass: how many frames it gave back, when it ended, and how many frames had been taken from the host by then.
#[derive(Clone, Copy)]
struct Last {
    given: usize,
    ended_ns: u64,
    taken: u64,
}

impl Work {
    const fn new() -> Self {
        Self { window_ns: WINDOW_NS, pass: None, last: Last { given: 0, ended_ns: 0, taken: 0 } }
    }
}

/// The window after a pass gave `given` frames back, of which `missed` had to be taken from the host again within
/// `since_ns`: twice as long if that was many soon, half as long otherwise.
fn next_window(window_ns: u64, given: usize, missed: u64, since_ns: u64) -> u64 {
    let is_soon = since_ns < SOON_WINDOWS.saturating_mul(window_ns);
    if is_soon && given > 0 && missed >= given as u64 / 2 {
        (2 * window_ns).min(WINDOW_MAX_NS)
    } else if is_soon {
        window_ns
    } else {
        (window_ns / 2).max(WINDOW_NS)
    }
}

/// Pages of free memory that hold the host's.
fn held_pages() -> usize {
    frames::held_free() + heap::HEAP.dirty_free_bytes() / PAGE_BYTES
}

/// Pages that went back so far.
pub fn given_pages() -> u64 {
    GIVE_BACK.given_pages.load(Ordering::Relaxed)
}

/// [`look`], if a program has freed much lately. For CPUs that are never idle.
pub fn look_if_freed() {
    if frames::take_freed_many() {
        look();
    }
}

/// Sees to it that free memory goes back if there is much. Some loads as a rule.
pub fn look() {
    let held = held_pages();
    let left = GIVE_BACK.left_pages.load(Ordering::Relaxed);
    if held < left {
        GIVE_BACK.left_pages.store(held, Ordering::Relaxed);
    }
    if held < left.saturating_add(WORTHWHILE_PAGES) || GIVE_BACK.is_armed.swap(true, Ordering::Acquire) {
        return;
    }
    timer::fire_at(begin_windows(time::monotonic_ns()), Arc::new(Turn));
}

/// A window begins now, after a time without any; its end.
fn begin_windows(now_ns: u64) -> u64 {
    let (_, taken) = frames::take_watermark();
    heap::HEAP.take_dirty_low_bytes();
    let mut work = GIVE_BACK.work.lock();
    let last = work.last;
    let missed = taken.saturating_sub(last.taken);
    work.window_ns = next_window(work.window_ns, last.given, missed, now_ns.saturating_sub(last.ended_ns));
    work.pass = None;
    now_ns.saturating_add(work.window_ns)
}

/// The timer.
struct Turn;

impl Alarm for Turn {
    fn fire(&self, _due_ns: u64) -> Option<u64> {
        let work = *GIVE_BACK.work.lock();
        let next = match work.pass {
            None => end_window(work.window_ns),
            Some(pass) => go_on(pass),
        };
        if next.is_none() {
            GIVE_BACK.is_armed.store(false, Ordering::Release);
        }
        next
    }
}

/// A window is over. What was not needed in it is to go back; if there is little, another window begins, as long as there
/// is more than the last pass left. The time of the next turn.
fn end_window(window_ns: u64) -> Option<u64> {
    let (frames, _) = frames::take_watermark();
    let heap = heap::HEAP.take_dirty_low_bytes() / PAGE_BYTES;
    let now_ns = time::monotonic_ns();
    if frames + heap < WORTHWHILE_PAGES {
        let left = GIVE_BACK.left_pages.load(Ordering::Relaxed);
        let is_more = held_pages() >= left.saturating_add(WORTHWHILE_PAGES);
        return is_more.then(|| now_ns.saturating_add(window_ns));
    }
    let pass = Pass {
        frames,
        heap,
        below: usize::MAX,
        from: 0,
        given: 0,
        wanted: frames + heap,
        given_before: given_pages(),
    };
    GIVE_BACK.work.lock().pass = Some(pass);
    Some(now_ns)
}

/// Takes a step of a pass. The time of the next turn.
fn go_on(mut pass: Pass) -> Option<u64> {
    if !step(&mut pass) {
        GIVE_BACK.work.lock().pass = Some(pass);
        return Some(time::monotonic_ns().saturating_add(PAUSE_NS));
    }
    let (_, taken) = frames::take_watermark();
    heap::HEAP.take_dirty_low_bytes();
    // What could not go back, since it lies in too small pieces. What was freed meanwhile may go next.
    let given = usize::try_from(given_pages().saturating_sub(pass.given_before)).unwrap_or(usize::MAX);
    let left = pass.wanted.saturating_sub(given);
    GIVE_BACK.left_pages.store(left, Ordering::Relaxed);
    let now_ns = time::monotonic_ns();
    let mut work = GIVE_BACK.work.lock();
    work.pass = None;
    work.last = Last { given: pass.given, ended_ns: now_ns, taken };
    let is_more = held_pages() >= left.saturating_add(WORTHWHILE_PAGES);
    is_more.then(|| now_ns.saturating_add(work.window_ns))
}

/// Gives some of it back; whether the pass is over.
fn step(pass: &mut Pass) -> bool {
    if pass.frames > 0 {
        match frames::give_back(pass.below, LEAST_FRAMES, pass.frames.min(STEP_PAGES)) {
            Some((below, given)) => {
                pass.below = below;
                pass.frames -= given.min(pass.frames);
                pass.given += given;
                GIVE_BACK.given_pages.fetch_add(given as u64, Ordering::Relaxed);
            }
            None => pass.frames = 0,
        }
        return pass.frames == 0 && pass.heap == 0;
    }
    match heap::trim_step(pass.from, pass.heap.min(STEP_PAGES) * PAGE_BYTES) {
        Some((from, bytes)) => {
            pass.from = from;
            pass.heap -= (bytes / PAGE_BYTES).min(pass.heap);
            GIVE_BACK.given_pages.fetch_add((bytes / PAGE_BYTES) as u64, Ordering::Relaxed);
        }
        None => pass.heap = 0,
    }
    pass.heap == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_misses_what_went_back_keeps_it_longer() {
        let mut window_ns = WINDOW_NS;
        for _ in 0..10 {
            window_ns = next_window(window_ns, 1000, 600, window_ns);
        }
        assert_eq!(window_ns, WINDOW_MAX_NS);
        assert_eq!(next_window(window_ns, 1000, 400, window_ns), window_ns, "little was missed");
        assert_eq!(next_window(window_ns, 0, 400, window_ns), window_ns, "nothing went back");
        for _ in 0..10 {
            window_ns = next_window(window_ns, 1000, 600, SOON_WINDOWS * window_ns);
        }
        assert_eq!(window_ns, WINDOW_NS, "it was missed late");
    }

    /// How much of its time a program pays for what goes back, that takes memory and frees it again every `period_ns` for
    /// `total_ns`; each pass costs `cost_ns`.
    fn cost(period_ns: u64, total_ns: u64, cost_ns: u64) -> u64 {
        let (mut window_ns, mut now_ns, mut spent_ns, mut last) = (WINDOW_NS, 0, 0, None);
        while now_ns < total_ns {
            // It frees, and takes again a period later. A window without a need has to pass in between.
            window_ns = match last {
                Some(ended_ns) => next_window(window_ns, 75_000, 75_000, now_ns - ended_ns),
                None => window_ns,
            };
            if 2 * window_ns <= period_ns {
                spent_ns += cost_ns;
                last = Some(now_ns + 2 * window_ns);
            } else {
                last = None;
            }
            now_ns += period_ns;
        }
        spent_ns
    }

    #[test]
    fn a_program_that_takes_and_frees_pays_little() {
        // 300 MB cost 150 ms to give back and to take again.
        for period_ms in [50, 100, 500, 1000, 1900, 2100, 3000, 5000, 9000, 20_000, 40_000] {
            let total_ns = 1_000_000_000_000;
            let spent_ns = cost(period_ms * 1_000_000, total_ns, 150_000_000);
            assert!(spent_ns < total_ns / 33, "every {period_ms} ms: {spent_ns} ns");
        }
    }
}
