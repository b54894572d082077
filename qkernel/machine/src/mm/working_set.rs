//! The working set: which pages were touched since the last wake, in the order of touch (Hibernate Container, section
//! 3.4.2). It comes back as a whole with the next wake.
//!
//! A touch is a fault on an entry whose content was stored. The first wake has no set: it brings in content with its
//! neighbours', but makes entries present one at a time, but for those touched one after the other. Later wakes make the
//! entries of the set present with its content ([`bring_back`]), so that only pages new to it fault, and join. The entries
//! of a small part, another one in each wake, are *probed*: their content comes back, but they fault at their first use
//! ([`touches`]); pages that were probed in vain leave.

use abi::report::WRITTEN;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::arrival;
use super::aspace::{AddressSpace, Space};
use super::physical::frames;
use super::physical::residency;
use super::template;
use super::touches::{self, NO_SPACE, TOUCHES_MAX};
use crate::mutex::MutexGuard;
use crate::rank::Rank;
use crate::spin::SpinLock;
use crate::{platform, sched};

pub use super::touches::{
    GUESSED_MAX, Touch, begin_in_place, begin_wake, record, recorded, see_until, store, store_guess,
};

/// Pages of a batch that comes back while tasks run, or while another CPU is busy with the last one: 512 KiB, 16 MiB.
const STREAM_PAGES: usize = 128;
const SHARED_PAGES: usize = 4096;
/// How often spaces are tried that are in use, and other CPUs are waited for.
const HELP_ATTEMPTS: usize = 1000;

/// Entries whose content is back, by space and page, and how many: to be made present by whichever CPU comes to it.
static HIDDEN: SpinLock<Vec<(u64, u64)>> = SpinLock::new(Rank::WorkingSet, Vec::new());
static HIDDEN_COUNT: AtomicUsize = AtomicUsize::new(0);
/// The entries may be made present before their content is back: no task runs until all of it is.
static EARLY: AtomicBool = AtomicBool::new(false);
/// CPUs that are at it.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// The next working set, of those frames that are `here`, and of those that the template shows; [`store`] makes it so.
pub fn next(
    spaces: &[Arc<AddressSpace>],
    locked: &[MutexGuard<'_, Space>],
    here: impl Fn(u32) -> bool,
) -> Vec<Touch> {
    let by_id: BTreeMap<u64, usize> = spaces.iter().enumerate().map(|(at, space)| (space.id(), at)).collect();
    let now = |touch: &Touch| {
        if touch.space == NO_SPACE {
            return Some((touch.frame, false)).filter(|(frame, _)| here(*frame));
        }
        let entry = locked.get(*by_id.get(&touch.space)?)?.entry(touch.page);
        let frame = frames::index(entry.held()?)?;
        // What the template shows has not come, and is shown the next time.
        let is_read = !here(frame) && entry.is_of_template();
        (is_read || here(frame)).then_some((frame, is_read))
    };
    touches::next(now)
}

/// All pages that are `here`, as if each had been touched; none if there are more than `most`.
pub fn all(
    spaces: &[Arc<AddressSpace>],
    locked: &mut [MutexGuard<'_, Space>],
    here: impl Fn(u32) -> bool,
    most: usize,
) -> Vec<Touch> {
    let mut all = Vec::new();
    if all.try_reserve_exact(most).is_err() {
        return all;
    }
    let mut count = 0;
    for (space, locked) in spaces.iter().zip(locked) {
        locked.for_each_page(|page, frame| {
            let frame = frames::index(frame).filter(|frame| here(*frame));
            let Some(frame) = frame else { return };
            count += 1;
            if count <= most {
                // Nobody knows whether it will be written.
                all.push(Touch::new(space.id(), page, frame).read_only(true));
            }
        });
    }
    if count > most { Vec::new() } else { all }
}

/// Makes those of `recorded` that are away the set of the wake that comes next; which of them were written, [`WRITTEN`] says. No task runs.
/// They may be any numbers.
pub fn adopt(mut recorded: Vec<u32>) {
    let is_away = |index: u32| (index as usize) < frames::reach() && residency::is_swapped(frames::at(index));
    recorded.retain(|number| is_away(*number & !WRITTEN));
    recorded.sort_unstable_by_key(|number| *number & !WRITTEN);
    recorded.dedup_by_key(|number| *number & !WRITTEN);
    let find = |frame: &u32| recorded.binary_search_by_key(frame, |number| *number & !WRITTEN).ok();
    let (mut members, mut mapped) = (Vec::new(), BTreeSet::new());
    for space in AddressSpace::all() {
        // Nobody uses it.
        let Some(mut locked) = space.try_lock() else { continue };
        locked.for_each_page(|page, frame| {
            if let Some(frame) = frames::index(frame)
                && let Some(at) = find(&frame)
                && members.len() < TOUCHES_MAX
            {
                let is_read = recorded[at] & WRITTEN == 0;
                members.push(Touch::new(space.id(), page, frame).read_only(is_read));
                mapped.insert(frame);
            }
        });
    }
    // Files in memory, which system calls reach.
    let others = recorded.iter().map(|number| *number & !WRITTEN).filter(|frame| !mapped.contains(frame));
    members.extend(others.map(|frame| Touch::new(NO_SPACE, 0, frame)));
    touches::adopt(&members);
}

/// Brings the set back and makes its entries present. While tasks run (`streams`) it comes in small batches; else another
/// CPU that is idle makes the entries present meanwhile, and has the stubs map them. Best effort: faults do the rest.
pub fn bring_back(streams: bool) {
    // Where it is recorded what is wanted, and pages need only be shown, nothing comes unasked.
    let is_recorded = template::is_there() && touches::sees_writes();
    let members = if is_recorded { Vec::new() } else { touches::members() };
    let shared = !streams && platform::current().mirrors() && platform::cpus() > 1;
    // While no task runs, user or kernel code, nobody sees that an entry comes before its content.
    let frozen = if shared { sched::freeze_queue() } else { None };
    let early = frozen.is_some();
    template::show_set(&members, early);
    EARLY.store(early, Ordering::SeqCst);
    let batch = match (streams, shared && !early) {
        (true, _) => STREAM_PAGES,
        (false, true) => SHARED_PAGES,
        (false, false) => members.len().max(1),
    };
    for members in members.chunks(batch) {
        let present = || {
            let shown = |(space, page): &(u64, u64)| *space != NO_SPACE && !touches::is_probed(*space, *page);
            hide(members.iter().map(Touch::key).filter(shown));
            shared && sched::rouse_another()
        };
        let mut helped = early && present();
        arrival::bring_set(&once_each(members), early);
        if !early {
            helped = present();
        }
        if !helped {
            make_present(false);
        }
    }
    finish();
    EARLY.store(false, Ordering::SeqCst);
}

/// The frames of these members; few are there twice.
fn once_each(members: &[Touch]) -> Vec<u32> {
    let frames: Vec<u32> = members.iter().map(|member| member.frame).collect();
    let mut sorted = frames.clone();
    sorted.sort_unstable();
    if sorted.array_windows().all(|[a, b]| a != b) {
        return frames;
    }
    let mut seen = BTreeSet::new();
    frames.into_iter().filter(|frame| seen.insert(*frame)).collect()
}

/// Makes present what is left, and waits for other CPUs that are at it.
fn finish() {
    for _ in 0..HELP_ATTEMPTS {
        make_present(false);
        if HIDDEN_COUNT.load(Ordering::SeqCst) == 0 && HELPERS.load(Ordering::SeqCst) == 0 {
            return;
        }
        platform::relax();
    }
    // Faults bring back the rest.
    HIDDEN.lock().clear();
    HIDDEN_COUNT.store(0, Ordering::SeqCst);
}

fn hide(pages: impl Iterator<Item = (u64, u64)>) {
    let mut hidden = HIDDEN.lock();
    hidden.extend(pages);
    HIDDEN_COUNT.store(hidden.len(), Ordering::SeqCst);
}

/// Makes entries present whose content is back or on its way, if there are any, and has the stubs map them. For idle CPUs.
pub fn help() {
    make_present(true);
}

/// Makes entries present as [`help`] does; `maps`: the stubs are to map them at once, and not only when they run.
fn make_present(maps: bool) {
    if HIDDEN_COUNT.load(Ordering::SeqCst) == 0 {
        return;
    }
    HELPERS.fetch_add(1, Ordering::SeqCst);
    let hidden = core::mem::take(&mut *HIDDEN.lock());
    HIDDEN_COUNT.store(0, Ordering::SeqCst);
    let busy = restore(hidden, maps);
    if !busy.is_empty() {
        hide(busy.into_iter());
    }
    HELPERS.fetch_sub(1, Ordering::SeqCst);
}

/// Makes entries present whose content is back or on its way, and shows them to the stubs; those of spaces that are in use
/// remain.
fn restore(mut hidden: Vec<(u64, u64)>, maps: bool) -> Vec<(u64, u64)> {
    hidden.sort_unstable();
    let mut busy = Vec::new();
    for of_space in hidden.chunk_by(|(a, _), (b, _)| a == b) {
        let space = of_space.first().and_then(|(id, _)| AddressSpace::find(*id));
        let pages = of_space.iter().map(|(_, page)| *page);
        let is_absent = |frame| !EARLY.load(Ordering::SeqCst) && residency::is_swapped(frame);
        let Some(space) = space else { continue };
        if !space.bring_in_entries(pages, is_absent) {
            busy.extend_from_slice(of_space);
        } else if maps {
            space.flush_mirror_if_free();
        }
    }
    busy
}
