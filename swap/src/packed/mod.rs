//! The file of packed pages, after *Sabre* (section 3): sets of partitions, each of which is packed, and sealed, by itself.
//! A set is written once, and never changed; its room comes back when none of its pages is in use any more.

mod press;
mod read;
mod seal;
mod set;
mod write;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use codec::Engine;

use self::seal::Key;
pub use self::seal::{PageKey, wipe};
pub use self::set::{Layout, PackedSet};
pub use self::write::{Outcome, SetPlan, Source, write_set};
use crate::error::SwapError;
use crate::page_file::PageFile;
use crate::slots::{PLACE_BITS, SLOTS_MAX};

/// Most pages of a set: 4 GiB.
pub const SET_PAGES_MAX: usize = 1 << PLACE_BITS;
/// Most sets.
const SETS_MAX: usize = (SLOTS_MAX >> PLACE_BITS) as usize;

/// Sets in one file.
pub struct PackedFile {
    file: PageFile,
    /// By their numbers.
    sets: Vec<Option<PackedSet>>,
    /// The key to seal with, if the pages are sealed. It is made when it is first needed: by then nobody else is forked, who
    /// would have it, too.
    key: Option<OnceLock<Key>>,
    unpack_ns: AtomicU64,
    /// The engine that packs and unpacks sets that are packed for one; `None`: the processor does.
    engine: Option<Arc<dyn Engine>>,
    /// Partitions that the processor unpacked again, since what the engine made of them had other checksums.
    redone: AtomicU64,
    /// Those that no thread uses.
    benches: Mutex<Vec<read::Bench>>,
}

/// A page in a packed file by one number: that of its set, and its place there.
pub fn slot_of(set: usize, place: u32) -> u32 {
    u32::try_from(set).unwrap_or(u32::MAX) << PLACE_BITS | place
}

/// The set and the place.
pub fn split(slot: u32) -> (usize, u32) {
    ((slot >> PLACE_BITS) as usize, slot % (1 << PLACE_BITS))
}

impl PackedFile {
    pub fn new(file: PageFile, is_sealed: bool) -> Self {
        let key = is_sealed.then(OnceLock::new);
        let (unpack_ns, benches) = (AtomicU64::new(0), Mutex::default());
        Self { file, sets: Vec::new(), key, unpack_ns, engine: None, redone: AtomicU64::new(0), benches }
    }

    /// With pages that are sealed by this key, if one is given. `None`: the key cannot be used.
    pub fn with_key(file: PageFile, key: Option<&PageKey>) -> Option<Self> {
        let plain = Self::new(file, false);
        let Some(key) = key else { return Some(plain) };
        Some(Self { key: Some(OnceLock::from(Key::of(key)?)), ..plain })
    }

    /// The descriptor of the file, if it is one of this process's.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.descriptor()
    }

    pub fn with_engine(self, engine: Arc<dyn Engine>) -> Self {
        Self { engine: Some(engine), ..self }
    }

    /// The engine for sets of this layout.
    fn engine_for(&self, layout: &Layout) -> Option<&dyn Engine> {
        self.engine.as_deref().filter(|_| layout.for_engine)
    }

    /// Returns the engine's counters, and how many partitions the processor did again for it; none without an engine.
    pub fn engine_counters(&self) -> Vec<(&'static str, u64)> {
        let Some(engine) = &self.engine else { return Vec::new() };
        let redone = ("iaa_redone", self.redone.load(Ordering::Relaxed));
        engine.counters().into_iter().chain([redone]).collect()
    }

    /// Whether no page is ever stored in the clear.
    pub fn is_sealed(&self) -> bool {
        self.key.is_some()
    }

    fn key(&self) -> Result<Option<&Key>, SwapError> {
        let Some(key) = &self.key else { return Ok(None) };
        if key.get().is_none() {
            // Of two that are made at once one stays, and nothing was sealed by the other.
            let _ = key.set(Key::new().ok_or(SwapError::NoKey)?);
        }
        Ok(key.get())
    }

    /// How many pages the file is long enough for.
    pub fn room(&self) -> u64 {
        self.file.room()
    }

    /// The sets and their numbers.
    pub fn sets(&self) -> impl Iterator<Item = (usize, &PackedSet)> {
        self.sets.iter().enumerate().filter_map(|(number, set)| Some((number, set.as_ref()?)))
    }

    pub fn set(&self, number: usize) -> Option<&PackedSet> {
        self.sets.get(number).and_then(Option::as_ref)
    }

    pub fn set_mut(&mut self, number: usize) -> Option<&mut PackedSet> {
        self.sets.get_mut(number).and_then(Option::as_mut)
    }

    /// Room for sets that are still to come.
    pub fn numbers_left(&self) -> usize {
        SETS_MAX - self.sets().count()
    }

    /// Adds a set, whose region nobody else has. Result: its number.
    pub fn add(&mut self, set: PackedSet) -> usize {
        let number = self.sets.iter().position(Option::is_none).unwrap_or(self.sets.len());
        if number == self.sets.len() {
            self.sets.push(None);
        }
        self.sets[number] = Some(set);
        number
    }

    /// Puts a set back under its number.
    pub fn restore(&mut self, number: usize, set: PackedSet) {
        if number >= self.sets.len() {
            self.sets.resize_with(number + 1, || None);
        }
        self.sets[number] = Some(set);
    }

    /// Takes a place that is free for the page with this checksum.
    pub fn take(&mut self, slot: u32, sum: u32) {
        let (number, place) = split(slot);
        if let Some(set) = self.set_mut(number) {
            set.take(place, sum);
        }
    }

    /// Forgets sets of which nothing is in use.
    pub fn drop_unused(&mut self) {
        for set in &mut self.sets {
            set.take_if(|set| set.live() == 0);
        }
    }

    /// Frees a page, and with the last one of its set the set.
    pub fn free(&mut self, slot: u32) {
        let (number, place) = split(slot);
        let Some(set) = self.set_mut(number) else { return };
        set.free(place);
        if set.live() == 0 {
            let region = set.region();
            self.sets[number] = None;
            self.file.discard_pages(region);
        }
    }

    /// A free region of so many pages, which is in none of `others` either.
    fn place(&self, pages: u32, others: &[Range<u32>]) -> Option<u32> {
        let mut taken: Vec<Range<u32>> =
            self.sets().map(|(_, set)| set.region()).chain(others.iter().cloned()).collect();
        taken.sort_unstable_by_key(|region| region.start);
        let mut first = 0_u32;
        for region in taken {
            if region.start.saturating_sub(first) >= pages {
                break;
            }
            first = first.max(region.end);
        }
        first.checked_add(pages).map(|_| first)
    }

    /// Gives back the parts of a region that belong to no set: it was written in vain.
    pub fn give_up(&self, region: Range<u32>) {
        let mut taken: Vec<Range<u32>> = self.sets().map(|(_, set)| set.region()).collect();
        taken.sort_unstable_by_key(|region| region.start);
        let mut first = region.start;
        for other in taken {
            self.file.discard_pages(first..other.start.clamp(first, region.end));
            first = first.max(other.end.min(region.end));
        }
        self.file.discard_pages(first..region.end);
    }

    /// Bytes of the regions of all sets.
    pub fn used_bytes(&self) -> u64 {
        self.sets().map(|(_, set)| set.region_bytes()).sum()
    }

    /// How long its pages were unpacked, by all threads together.
    pub fn unpack_us(&self) -> u64 {
        self.unpack_ns.load(Ordering::Relaxed) / 1000
    }

    /// Nothing is unpacked for a while.
    pub fn rest(&self) {
        *self.benches.lock().unwrap_or_else(PoisonError::into_inner) = Vec::new();
        if let Some(engine) = &self.engine {
            engine.rest();
        }
    }

    pub fn trim(&mut self) {
        self.rest();
        self.sets.iter_mut().flatten().for_each(PackedSet::trim);
    }
}
