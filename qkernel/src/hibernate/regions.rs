//! The regions of memory, which an image tells: which frames have copies of files' pages, which are of files in memory, and which are run.

use abi::hostcall as hc;

use super::deflate::Bits;
use machine::heap;
use machine::mm::PageStore;
use machine::mm::aspace::AddressSpace;
use machine::mm::frames;
use machine::platform;
use machine::sched::Frozen;

/// Tells the VMM the regions of the image that is taken next. Where that cannot be, all of it counts as programs' own.
pub(super) fn tell(_frozen: &Frozen) {
    let (Ok(mut files), Ok(mut memory), Ok(mut executable)) = (Bits::new(), Bits::new(), Bits::new()) else {
        return;
    };
    for store in PageStore::all() {
        let set = if store.class() == hc::CLASS_FILE { &mut files } else { &mut memory };
        store.for_each_frame(|frame| {
            frames::index(frame).map(|index| set.set(index));
        });
    }
    for space in AddressSpace::all() {
        // Nobody uses one that sleeps.
        let Some(mut space) = space.try_lock() else { return };
        space.for_each_executable_frame(|frame| {
            frames::index(frame).map(|index| executable.set(index));
        });
    }
    let sets = [(hc::CLASS_FILE, files), (hc::CLASS_STORE, memory), (hc::CLASS_EXECUTABLE, executable)];
    for (region, set) in sets {
        let (phys, words) = set.words();
        // Only room depends on it.
        let _ = platform::call(hc::IMAGE_REGION, [u64::from(region), phys, words, 0, 0, 0]);
    }
    // What they lay in is no part of the image.
    heap::trim();
}
