//! A home in memory ("Phoenix", section 3.5): of each page what a base does not have of it, or what is left when it is packed. Any page is
//! put together in constant time, and what comes back to stay is forgotten, since its memory would be paid for twice.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use codec::{Style, TableSet, Unpacker};

use super::chunks::{Chunks, Place};
use super::coding::{self, DIFF_MAX};
use super::matcher::{Kept, LENGTH_BYTES, PagePacker, Reference};
use super::record::{Head, Kind};
use crate::bits::Bits;
use crate::error::{SwapError, TablesError};
use crate::home::{Home, Stat, Stored};
use crate::page::{Class, PAGE_BYTES, Page, PageBytes, PageId, sorted};
use crate::pool;

const MEMORY: &str = "memory";
/// Pages that one thread packs, and puts together, at a time.
const PACKED_PAGES: usize = 128;
const FETCHED_PAGES: usize = 512;
/// How far from a touched page others come along.
const AROUND_PAGES: u32 = 16;
/// Records are moved together when more than a quarter of the memory is lost between them, and more than so much.
const LOSS_MIN: u64 = 256 << 10;

/// See the module.
pub struct MemoryHome {
    reference: Option<Reference>,
    limit_bytes: u64,
    state: RwLock<State>,
    /// Until it rests: to empty a room for each page would take a tenth of the page's time.
    rooms: Mutex<Vec<Box<Room>>>,
}

#[derive(Default)]
struct State {
    places: HashMap<PageId, Code, BuildHasherDefault<OfNumber>>,
    chunks: Chunks,
    /// The pages of the last working set, in its order, as far as they were stored then.
    set: Vec<PageId>,
    counts: Counts,
}

/// Where a page is: two bits say how, two its class, and 28 which page of the base it is or where its record is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Code(u32);

#[derive(Clone, Copy)]
enum Way {
    Zero,
    Base(PageId),
    Record(Place),
}

impl Code {
    const VALUE: u32 = (1 << 28) - 1;

    fn new(way: Way, class: Class) -> Self {
        let (how, value) = match way {
            Way::Zero => (0, 0),
            Way::Base(id) => (1, id),
            Way::Record(place) => (2, place),
        };
        Self(how << 30 | u32::from(class.number()) << 28 | value & Self::VALUE)
    }

    fn way(self) -> Way {
        match self.0 >> 30 {
            0 => Way::Zero,
            1 => Way::Base(self.0 & Self::VALUE),
            _ => Way::Record(self.0 & Self::VALUE),
        }
    }

    fn class(self) -> Class {
        u8::try_from(self.0 >> 28 & 3).ok().and_then(Class::from_number).unwrap_or_default()
    }
}

/// Hashes a number by a multiplication: the numbers are the kernel's own, and at worst its own pages come slowly.
#[derive(Default)]
struct OfNumber(u64);

impl Hasher for OfNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// How many pages are kept in which way, and their records' bytes.
#[derive(Clone, Copy, Default)]
struct Counts {
    zero: u64,
    same_place: u64,
    elsewhere: u64,
    word: u64,
    xor: (u64, u64),
    packed: (u64, u64),
    raw: (u64, u64),
}

impl Counts {
    /// Counts a page, or counts it off.
    fn count(&mut self, id: PageId, code: Code, record: Option<&Head>, is_new: bool) {
        let step = |count: &mut u64, by: u64| {
            *count = if is_new { count.wrapping_add(by) } else { count.wrapping_sub(by) };
        };
        let of = match (code.way(), record) {
            (Way::Zero, _) => return step(&mut self.zero, 1),
            (Way::Base(base), _) if base == id => return step(&mut self.same_place, 1),
            (Way::Base(_), _) => return step(&mut self.elsewhere, 1),
            (Way::Record(_), Some(Head { kind: Kind::Word, .. })) | (Way::Record(_), None) => {
                return step(&mut self.word, 1);
            }
            (Way::Record(_), Some(Head { kind: Kind::Xor | Kind::XorPacked, .. })) => &mut self.xor,
            (Way::Record(_), Some(Head { kind: Kind::Packed, .. })) => &mut self.packed,
            (Way::Record(_), Some(Head { kind: Kind::Raw, .. })) => &mut self.raw,
        };
        step(&mut of.0, 1);
        step(&mut of.1, record.map_or(0, |head| head.len.into()));
    }
}

impl State {
    fn record(&self, code: Code) -> Option<Head> {
        match code.way() {
            Way::Record(place) => self.chunks.get(place).map(|(head, _)| head),
            Way::Zero | Way::Base(_) => None,
        }
    }

    fn set(&mut self, id: PageId, code: Code) {
        let record = self.record(code);
        self.counts.count(id, code, record.as_ref(), true);
        if let Some(old) = self.places.insert(id, code) {
            self.free(id, old);
        }
    }

    fn remove(&mut self, id: PageId) {
        if let Some(old) = self.places.remove(&id) {
            self.free(id, old);
        }
    }

    fn free(&mut self, id: PageId, old: Code) {
        let record = self.record(old);
        self.counts.count(id, old, record.as_ref(), false);
        if let Way::Record(place) = old.way() {
            self.chunks.free(place);
        }
    }

    /// Gives back what is lost. If much of it lies between records, they move together, chunk by chunk.
    fn compact(&mut self) {
        self.chunks.give_back();
        let (held, live) = (self.chunks.held_bytes(), self.chunks.live_bytes());
        if held.saturating_sub(live) > LOSS_MIN.max(live / 4) {
            self.move_together();
        }
        self.places.shrink_to_fit();
        self.set.shrink_to_fit();
    }

    fn move_together(&mut self) {
        let place = |(id, code): (&PageId, &Code)| match code.way() {
            Way::Record(place) => Some((place, *id)),
            Way::Zero | Way::Base(_) => None,
        };
        let mut records: Vec<(Place, PageId)> = self.places.iter().filter_map(place).collect();
        records.sort_unstable();
        let mut bytes = Vec::new();
        for of_chunk in records.chunk_by(|a, b| Chunks::are_together(a.0, b.0)) {
            let Some(&(first, _)) = of_chunk.first() else { continue };
            if !self.chunks.leave(first) {
                continue;
            }
            for (place, id) in of_chunk {
                let Some((head, content)) = self.chunks.get(*place) else { continue };
                bytes.clear();
                bytes.extend_from_slice(content);
                // Without memory for it they stay where they are.
                let Some(moved) = self.chunks.put(&head, &bytes) else { return };
                if let Some(code) = self.places.get_mut(id) {
                    *code = Code::new(Way::Record(moved), code.class());
                }
                self.chunks.free(*place);
            }
            self.chunks.give_back();
        }
    }
}

impl MemoryHome {
    /// A home of pages like those of the base, if there is one, whose records may take so many bytes.
    #[must_use]
    pub fn new(reference: Option<Reference>, limit_bytes: u64) -> Self {
        Self { reference, limit_bytes, state: RwLock::default(), rooms: Mutex::default() }
    }

    /// The home, which is empty, with another base to compare pages with.
    pub fn compare_with(&mut self, reference: Reference) {
        self.reference = Some(reference);
    }

    /// From now on its records may take so many bytes.
    pub fn limit(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
    }

    /// The base that it compares pages with.
    #[must_use]
    pub fn reference(&self) -> Option<&Reference> {
        self.reference.as_ref()
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn rooms(&self) -> MutexGuard<'_, Vec<Box<Room>>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is compared or fetched for a while.
    fn rest_all(&self) {
        *self.rooms() = Vec::new();
        self.reference.iter().for_each(Reference::rest);
    }

    fn state(&mut self) -> &mut State {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has a page.
    #[must_use]
    pub fn has(&self, id: PageId) -> bool {
        self.read().places.contains_key(&id)
    }

    /// How many pages it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read().places.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its pages with their classes, those of the last working set first, in its order; and how many of them are of that.
    #[must_use]
    pub fn listed(&self) -> (Vec<(PageId, Class)>, usize) {
        let state = self.read();
        let with_class = |id: &PageId| state.places.get(id).map(|code| (*id, code.class()));
        let mut listed: Vec<_> = state.set.iter().filter_map(with_class).collect();
        let (of_set, in_set) = (listed.len(), state.set.iter().copied().collect::<Bits>());
        let others = state.places.iter().filter(|(id, _)| !in_set.has(**id));
        listed.extend(others.map(|(id, code)| (*id, code.class())));
        listed[of_set..].sort_unstable_by_key(|(id, _)| *id);
        (listed, of_set)
    }

    /// Packs a part. `None`: there is no room.
    fn pack_part(&self, pages: &[Page], chunks: &Mutex<&mut Chunks>) -> Option<Vec<(PageId, Code)>> {
        let mut packer = PagePacker::new(self.reference.as_ref());
        let mut copy = Box::new([0; PAGE_BYTES]);
        let mut codes = Vec::with_capacity(pages.len());
        for page in pages {
            page.copy_out(&mut copy);
            let (kept, bytes) = packer.pack(page.id, page.class, &copy);
            let way = match kept {
                Kept::Zero => Way::Zero,
                Kept::Base(id) => Way::Base(id),
                Kept::Record(head) => {
                    let mut chunks = chunks.lock().unwrap_or_else(PoisonError::into_inner);
                    let has_room = chunks.held_bytes() + bytes.len() as u64 <= self.limit_bytes;
                    match has_room.then(|| chunks.put(&head, bytes)).flatten() {
                        Some(place) => Way::Record(place),
                        None => {
                            // All of it or nothing.
                            free_all(&mut chunks, &codes);
                            return None;
                        }
                    }
                }
            };
            codes.push((page.id, Code::new(way, page.class)));
        }
        Some(codes)
    }

    /// Puts pages together that follow each other, at most [`RUN_PAGES`], and has them in their memory.
    fn bring(&self, state: &State, run: &[Page], room: &mut Room) -> Result<(), SwapError> {
        let Room { content, diff } = room;
        run.iter().zip(&mut *content).try_for_each(|(page, to)| self.rebuild(state, page.id, to, diff))?;
        Page::copy_in_run(run, content.get(..run.len()).unwrap_or_default());
        Ok(())
    }

    /// Puts a page together in `to`.
    fn rebuild(
        &self,
        state: &State,
        id: PageId,
        to: &mut PageBytes,
        diff: &mut Diff,
    ) -> Result<(), SwapError> {
        let code = state.places.get(&id).ok_or(SwapError::Unknown { id })?;
        let base = |page| {
            let reference = self.reference.as_ref().ok_or(SwapError::Unknown { id })?;
            Ok::<_, SwapError>((reference, page))
        };
        let place = match code.way() {
            Way::Zero => {
                to.fill(0);
                return Ok(());
            }
            Way::Base(of) => {
                let (reference, of) = base(of)?;
                *to = *reference.base().mapped_checked(of)?;
                return Ok(());
            }
            Way::Record(place) => place,
        };
        let (head, bytes) = state.chunks.get(place).ok_or(SwapError::Unknown { id })?;
        let damaged = |source| SwapError::Unpack { file: MEMORY, id, source };
        let unpack =
            |to: &mut [u8]| Unpacker::new(Style::Lz4, None::<TableSet>).unpack(bytes, to).map_err(damaged);
        let bad = SwapError::Damaged { file: MEMORY, id, stored: head.sum, found: 0 };
        match head.kind {
            Kind::Word => {
                let word = bytes.first_chunk::<8>().ok_or(bad)?;
                to.as_chunks_mut().0.fill(*word);
            }
            Kind::Raw => *to = *bytes.first_chunk().ok_or(bad)?,
            Kind::Packed => unpack(to)?,
            Kind::Xor | Kind::XorPacked => {
                let (reference, of) = base(head.base)?;
                *to = *reference.base().mapped(of).ok_or(SwapError::Unknown { id })?;
                let diffed = match head.kind {
                    Kind::Xor => coding::decode(bytes, to),
                    _ => decode_packed(bytes, diff, to),
                };
                diffed.ok_or(bad)?;
            }
        }
        match crc32c::crc32c(to) {
            found if found == head.sum => Ok(()),
            found => Err(SwapError::Damaged { file: MEMORY, id, stored: head.sum, found }),
        }
    }
}

fn free_all(chunks: &mut Chunks, codes: &[(PageId, Code)]) {
    for (_, code) in codes {
        if let Way::Record(place) = code.way() {
            chunks.free(place);
        }
    }
}

/// Pages that are put together before they go to their memory.
const RUN_PAGES: usize = 8;

type Diff = [u8; DIFF_MAX];

/// Room in which pages are put together.
struct Room {
    content: [PageBytes; RUN_PAGES],
    diff: Diff,
}

impl Default for Room {
    fn default() -> Self {
        Self { content: [[0; PAGE_BYTES]; RUN_PAGES], diff: [0; DIFF_MAX] }
    }
}

/// Undoes a difference that was packed ([`coding::decode`]). Its length is in front of it.
fn decode_packed(bytes: &[u8], room: &mut Diff, page: &mut PageBytes) -> Option<()> {
    let (len, packed) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let diff = room.get_mut(..usize::from(u16::from_le_bytes(*len)))?;
    Unpacker::new(Style::Lz4, None::<TableSet>).unpack(packed, diff).ok()?;
    coding::decode(diff, page)
}

impl MemoryHome {
    /// Tells its pages from others.
    pub(crate) fn split(&self, pages: &[Page]) -> (Vec<Page>, Vec<Page>) {
        let state = self.read();
        pages.iter().copied().partition(|page| state.places.contains_key(&page.id))
    }

    /// Stores pages beside those that it has; the first ones belong to the working set. After an error nothing has changed.
    pub(crate) fn add(&mut self, of_set: &[Page], rest: &[Page]) -> Result<(), SwapError> {
        let State { set, places, .. } = self.state();
        set.retain(|id| places.contains_key(id));
        self.put(of_set, rest)?;
        let state = self.state();
        state.set.extend(of_set.iter().map(|page| page.id));
        self.rest_all();
        Ok(())
    }

    /// Packs pages and takes them over; all or nothing.
    fn put(&mut self, working_set: &[Page], rest: &[Page]) -> Result<(), SwapError> {
        let mut chunks = std::mem::take(&mut self.state().chunks);
        let parts: Vec<&[Page]> = working_set.chunks(PACKED_PAGES).chain(rest.chunks(PACKED_PAGES)).collect();
        let (is_full, shared) = (AtomicBool::new(false), Mutex::new(&mut chunks));
        let packed = pool::map(&parts, |part| {
            let packed = (!is_full.load(Ordering::Relaxed)).then(|| self.pack_part(part, &shared)).flatten();
            is_full.fetch_or(packed.is_none(), Ordering::Relaxed);
            packed
        });
        if is_full.into_inner() {
            packed.iter().flatten().for_each(|part| free_all(&mut chunks, part));
            chunks.give_back();
            self.state().chunks = chunks;
            return Err(SwapError::Limit { limit_bytes: self.limit_bytes });
        }
        let state = self.state();
        state.chunks = chunks;
        for (id, code) in packed.into_iter().flatten().flatten() {
            state.set(id, code);
        }
        Ok(())
    }
}

impl Home for MemoryHome {
    fn store(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError> {
        self.put(working_set, rest)?;
        let state = self.state();
        state.set = working_set.iter().map(|page| page.id).collect();
        self.rest_all();
        let pages = (working_set.len() + rest.len()) as u64;
        Ok(Stored { memory_pages: pages, memory_bytes: self.stored_bytes(), ..Stored::default() })
    }

    fn fetch(&self, pages: &[Page]) -> Result<u64, SwapError> {
        let state = self.read();
        let bring = |pages: &&[Page]| {
            let mut runs = pages.chunk_by(Page::is_followed_by).flat_map(|run| run.chunks(RUN_PAGES));
            let mut room = self.rooms().pop().unwrap_or_default();
            runs.try_for_each(|run| self.bring(&state, run, &mut room))?;
            self.rooms().push(room);
            Ok(())
        };
        let pages = sorted(pages);
        if pages.len() <= FETCHED_PAGES {
            bring(&pages.as_slice())?;
        } else {
            let parts: Vec<&[Page]> = pages.chunks(FETCHED_PAGES).collect();
            pool::map(&parts, bring).into_iter().collect::<Result<(), SwapError>>()?;
        }
        Ok(0)
    }

    fn fetch_around(&self, pages: &mut Vec<Page>) -> Result<u64, SwapError> {
        let Some(first) = pages.first().map(|page| page.id) else { return Ok(0) };
        {
            let state = self.read();
            let is_near = |id: PageId| id.abs_diff(first) <= AROUND_PAGES && state.places.contains_key(&id);
            pages.retain(|page| page.id == first || is_near(page.id));
        }
        self.fetch(pages)
    }

    fn forget(&self, pages: &[PageId]) {
        let mut state = self.write();
        pages.iter().for_each(|id| state.remove(*id));
    }

    fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool) {
        let state = self.state();
        let dropped: Vec<PageId> = state.places.keys().copied().filter(|id| !kept(*id)).collect();
        dropped.into_iter().for_each(|id| state.remove(id));
        if state.places.is_empty() {
            *state = State::default();
        }
        state.compact();
    }

    fn rest(&self) {
        self.write().compact();
        self.rest_all();
    }

    fn pages(&self) -> Bits {
        self.read().places.keys().copied().collect()
    }

    fn stored_bytes(&self) -> u64 {
        self.read().chunks.held_bytes()
    }

    fn stats(&self) -> Vec<Stat> {
        let state = self.read();
        let Counts { zero, same_place, elsewhere, word, xor, packed, raw } = state.counts;
        let stat = |name, value| Stat { name, value };
        vec![
            stat("memory_bytes", state.chunks.held_bytes()),
            stat("memory_pages", state.places.len() as u64),
            stat("memory_zero_pages", zero),
            stat("memory_word_pages", word),
            stat("memory_same_pages", same_place),
            stat("memory_elsewhere_pages", elsewhere),
            stat("memory_xor_pages", xor.0),
            stat("memory_xor_bytes", xor.1),
            stat("memory_packed_pages", packed.0),
            stat("memory_packed_bytes", packed.1),
            stat("memory_raw_pages", raw.0),
            stat("memory_raw_bytes", raw.1),
        ]
    }

    fn persist(&self, _: &mut dyn Write) -> Result<(), TablesError> {
        Err(TablesError::InMemory)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

#[cfg(test)]
#[path = "home_tests.rs"]
mod tests;
