//! Storing: chunks that the store has are left to it, the others go to dblocks of their region ("SnapStore", section 4.5).

mod gather;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::File;

use codec::{Packer, Style, TableSet};

use self::gather::SPARSE_BYTES;
use crate::dblock::{Filling, Footer, Record};
use crate::difference::{self, DIFFERENCE_MAX, Features};
use crate::directory::Store;
use crate::error::StoreError;
use crate::fingerprint::{Domain, Fingerprint};
use crate::footers::Footers;
use crate::index::{ID_END, Index, Place};
use crate::recipe::Recipe;
use crate::region::{CHUNK_MAX, Chunking, Region};

/// So many places are looked at for a chunk: more have its tag by ill will alone.
const CANDIDATES_MAX: usize = 64;
/// Bytes that a difference takes beside its own: an entry, and likely a run of one chunk.
const RECORD_COST: usize = 32;

/// The outcome of storing one region of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// Bytes that were given.
    pub bytes: u64,
    /// Of them in chunks of zeros, which are kept nowhere.
    pub zero_bytes: u64,
    /// Of them in chunks that the store had.
    pub shared_bytes: u64,
    /// Of them in chunks that are kept as differences from others.
    pub near_bytes: u64,
    /// Bytes that these and the other chunks take in dblocks, without their entries.
    pub stored_bytes: u64,
    /// Bytes of chunks, or differences, that the store had and keeps once more, so that the snapshot comes back by few reads.
    pub again_bytes: u64,
}

/// A snapshot that was stored. Until it is dropped nobody collects what its recipe needs.
#[derive(Debug)]
pub struct Written {
    /// Its recipe.
    pub recipe: Recipe,
    /// The outcome of each region.
    pub added: [Added; Region::ALL.len()],
    _lock: Option<File>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // No recipe names them. What stays is collected.
        self.made.iter().for_each(|id| drop(self.store.remove(*id)));
    }
}

/// Where a chunk is: in a place, or what is there with a difference.
#[derive(Clone, Copy)]
struct Kept {
    place: Place,
    difference: Option<Place>,
}

/// Stores the files of one snapshot. There is one at a time; what it wrote before it was dropped without an end goes.
pub struct Writer<'s> {
    store: &'s Store,
    domain: Domain,
    domain_tag: u32,
    feature_keys: [u64; Region::ALL.len()],
    chunking: Chunking,
    style: Style,
    /// By that style, if it packs.
    packer: Option<Packer>,
    lock: Option<File>,
    index: Index,
    /// The dblocks that the index is of.
    ids: BTreeSet<u32>,
    next: u32,
    /// The number of its first one.
    first: u32,
    sparse_bytes: u32,
    /// Those that it has made, which go if it is dropped before its end.
    made: Vec<u32>,
    filling: [Option<Filling>; Region::ALL.len()],
    footers: Footers,
    recipe: Recipe,
    added: [Added; Region::ALL.len()],
    /// Bytes of all that it has put into dblocks.
    stored_bytes: u64,
    /// A chunk that was read, the record that is to be written, and one that may be.
    room: Vec<u8>,
    record: Vec<u8>,
    record_room: Vec<u8>,
}

impl<'s> Writer<'s> {
    /// Begins. Chunks are packed by `style`: none, LZ4 or zstd.
    ///
    /// # Errors
    /// [`StoreError::Busy`]: there is another writer. The store cannot be read.
    pub fn begin(
        store: &'s Store,
        domain: &Domain,
        chunking: Chunking,
        style: Style,
    ) -> Result<Self, StoreError> {
        let lock = store.lock()?;
        store.sweep()?;
        let (all, dead) = store.ids()?;
        let ids: BTreeSet<u32> = all.difference(&dead).copied().collect();
        let index = store.index(&ids);
        let next = store.next_id(&all, &lock);
        Ok(Self {
            store,
            domain: domain.clone(),
            domain_tag: domain.tag(),
            feature_keys: Region::ALL.map(|region| domain.feature_key(region)),
            chunking,
            style,
            packer: (style != Style::None).then(|| Packer::new(style, None::<TableSet>)),
            lock: Some(lock),
            index,
            ids,
            next,
            first: next,
            sparse_bytes: SPARSE_BYTES,
            made: Vec::new(),
            filling: [const { None }; Region::ALL.len()],
            footers: Footers::default(),
            recipe: Recipe::new(Region::ALL.map(|region| chunking.chunk_bytes(region))),
            added: Default::default(),
            stored_bytes: 0,
            room: Vec::new(),
            record: Vec::new(),
            record_room: Vec::new(),
        })
    }

    /// With so many bytes of a dblock as little: if a snapshot needs less of one, they are kept once more; to measure what that brings.
    #[must_use]
    pub fn gathering(mut self, sparse_bytes: u32) -> Self {
        self.sparse_bytes = sparse_bytes;
        self
    }

    /// With so many dblocks at most whose fingerprints are kept in memory; to measure what that brings.
    #[must_use]
    pub fn keeping(mut self, dblocks: usize) -> Self {
        self.footers = Footers::keeping(dblocks);
        self
    }

    /// Adds bytes of a file, which begin at a multiple of its region's chunks. What is missing of the last chunk is zeros.
    ///
    /// # Errors
    /// A dblock cannot be written, or there are too many.
    pub fn add(&mut self, file: u8, region: Region, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let size = self.chunking.chunk_bytes(region) as usize;
        let mut room = [0; CHUNK_MAX as usize];
        let mut at = at;
        for chunk in bytes.chunks(size) {
            let added = &mut self.added[usize::from(region.number())];
            added.bytes += chunk.len() as u64;
            if chunk.iter().all(|byte| *byte == 0) {
                added.zero_bytes += chunk.len() as u64;
            } else {
                let whole = if chunk.len() == size {
                    chunk
                } else {
                    room.fill(0);
                    room[..chunk.len()].copy_from_slice(chunk);
                    &room[..size]
                };
                let Kept { place, difference } = self.place(region, whole)?;
                self.recipe.push(file, region, at, place);
                if let Some(place) = difference {
                    self.recipe.push(file, Region::Difference, at, place);
                }
            }
            at += size as u64;
        }
        Ok(())
    }

    /// Where a chunk is from now on.
    fn place(&mut self, region: Region, chunk: &[u8]) -> Result<Kept, StoreError> {
        let compares = self.chunking.compares(region);
        let print = if compares { self.domain.fingerprint(region, chunk) } else { Fingerprint::NONE };
        if compares && let Some(kept) = self.find(region, &print, chunk) {
            self.added[usize::from(region.number())].shared_bytes += chunk.len() as u64;
            return Ok(kept);
        }
        let nears = self.chunking.nears(region);
        let features = if nears { self.features(region, chunk) } else { None };
        let base = features.and_then(|features| self.nearest(region, &features, chunk));
        if let Some(base) = base {
            let record = std::mem::take(&mut self.record);
            let difference = self.put(Region::Difference, print, &record, None);
            let added = &mut self.added[usize::from(region.number())];
            added.near_bytes += chunk.len() as u64;
            added.stored_bytes += record.len() as u64;
            self.record = record;
            return Ok(Kept { place: base, difference: Some(difference?) });
        }
        let features = nears.then(|| features.unwrap_or_default());
        let before = self.stored_bytes;
        let place = self.put(region, print, chunk, features)?;
        self.added[usize::from(region.number())].stored_bytes += self.stored_bytes - before;
        Ok(Kept { place, difference: None })
    }

    fn features(&self, region: Region, chunk: &[u8]) -> Option<Features> {
        difference::features(self.feature_keys[usize::from(region.number())], chunk)
    }

    /// Puts a chunk, or a record of one, into a dblock of its region.
    fn put(
        &mut self,
        of: Region,
        print: Fingerprint,
        bytes: &[u8],
        features: Option<Features>,
    ) -> Result<Place, StoreError> {
        let number = usize::from(of.number());
        if self.filling[number].as_ref().is_some_and(|filling| !filling.has_room()) {
            self.seal(number)?;
        }
        if self.filling[number].is_none() {
            if self.next >= ID_END {
                return Err(StoreError::Full);
            }
            let size = self.chunking.chunk_bytes(of);
            self.filling[number] = Some(Filling::new(self.next, of, self.domain.tag(), self.style, size));
            self.next += 1;
        }
        let Some(filling) = &mut self.filling[number] else { return Err(StoreError::Full) };
        let before = filling.footer().data_len;
        let slot = match of {
            Region::Difference => filling.push_packed(print, crc32c::crc32c(bytes), bytes),
            _ => filling.push(print, bytes),
        };
        let place = Place { id: filling.id, slot };
        self.stored_bytes += u64::from(filling.footer().data_len - before);
        if let Some(features) = features {
            filling.push_features(features);
            self.index.insert_features(&features, place);
        }
        if print != Fingerprint::NONE {
            self.index.insert(&print, place);
        }
        Ok(place)
    }

    /// A chunk that the store has, and that is this one.
    fn find(&mut self, region: Region, print: &Fingerprint, chunk: &[u8]) -> Option<Kept> {
        // Not finding one costs no more than its room. What was stored last is likely near what is looked for next.
        let mut places: Vec<Place> = self.index.find(print).take(CANDIDATES_MAX).collect();
        places.sort_unstable_by_key(|place| Reverse(*place));
        places.into_iter().find_map(|place| {
            let (of, record) = self.content(place, |footer, slot| {
                let entry = footer.entries.get(usize::from(slot));
                let may_be = footer.region == region && footer.chunk_bytes as usize == chunk.len()
                    || footer.region == Region::Difference;
                may_be && entry.is_some_and(|entry| entry.print == *print)
            })?;
            if of == region {
                return (self.room == *chunk).then_some(Kept { place, difference: None });
            }
            let record = Record::read(&record)?;
            let (base, domain) = (record.base, self.domain_tag);
            let is_base = |footer: &Footer, _| footer.region == region && footer.domain == domain;
            let (of, _) = self.content(base, is_base)?;
            let is_same = of == region && record.apply(&mut self.room) && self.room == *chunk;
            is_same.then_some(Kept { place: base, difference: Some(place) })
        })
    }

    /// The chunk that this one is most like. Its difference from it is in `record` then.
    fn nearest(&mut self, region: Region, features: &Features, chunk: &[u8]) -> Option<Place> {
        let mut best = None;
        self.record.clear();
        let domain = self.domain_tag;
        let mut most = 0;
        for place in self.index.like(features) {
            let is_base = |footer: &Footer, slot: u16| {
                let of_it = footer.features.get(usize::from(slot));
                let is_like =
                    of_it.is_some_and(|of_it| of_it.iter().any(|one| *one != 0 && features.contains(one)));
                is_like
                    && footer.region == region
                    && footer.domain == domain
                    && footer.chunk_bytes as usize == chunk.len()
            };
            if self.content(place, is_base).is_none() {
                continue;
            }
            if best.is_none() {
                most = self.longest_difference(chunk);
            }
            if Record::make(place, &self.room, chunk, most, &mut self.record_room) {
                std::mem::swap(&mut self.record, &mut self.record_room);
                best = Some(place);
                most = self.record.len();
            }
        }
        best
    }

    /// How long a difference may be that is kept in place of a chunk: it has an entry of its own, and a run in the recipe.
    fn longest_difference(&mut self, chunk: &[u8]) -> usize {
        let mut room = [0; CHUNK_MAX as usize];
        let packed = self.packer.as_mut().and_then(|packer| packer.pack(chunk, &mut room[..chunk.len()]));
        packed.map_or(DIFFERENCE_MAX, |packed| packed.saturating_sub(RECORD_COST).min(DIFFERENCE_MAX))
    }

    /// Reads the chunk in a place, if it is one that `is_wanted`: into `room`; or the record there. `None`: it is none, or damaged, or gone.
    fn content(
        &mut self,
        place: Place,
        is_wanted: impl Fn(&Footer, u16) -> bool,
    ) -> Option<(Region, Vec<u8>)> {
        let open = self.filling.iter().flatten().find(|filling| filling.id == place.id);
        let mut read = [0; CHUNK_MAX as usize];
        let dblock;
        let (footer, bytes): (&Footer, &[u8]) = match open {
            Some(filling) if is_wanted(filling.footer(), place.slot) => {
                (filling.footer(), filling.bytes(place.slot)?)
            }
            // What is about to be collected is no base.
            None if self.ids.contains(&place.id) => {
                dblock = self.footers.get(self.store, place.id).ok()?;
                if !is_wanted(&dblock.footer, place.slot) {
                    return None;
                }
                (&dblock.footer, dblock.bytes(place.slot, &mut read).ok()?)
            }
            _ => return None,
        };
        if footer.region == Region::Difference {
            footer.record(place.id, place.slot, bytes).ok()?;
            return Some((footer.region, bytes.to_vec()));
        }
        self.room.resize(footer.chunk_bytes as usize, 0);
        footer.unpack(place.id, place.slot, bytes, &mut self.room).ok()?;
        Some((footer.region, Vec::new()))
    }

    fn seal(&mut self, number: usize) -> Result<(), StoreError> {
        if let Some(filling) = self.filling[number].take() {
            self.made.push(filling.id);
            self.store.write(&filling)?;
            self.ids.insert(filling.id);
        }
        Ok(())
    }

    /// Ends: all is on the disk but the recipe, which the caller writes there. `lengths`: of the files, by their numbers.
    ///
    /// # Errors
    /// A dblock cannot be written.
    pub fn end(mut self, lengths: &[(u8, u64)]) -> Result<Written, StoreError> {
        self.recipe.sort();
        self.gather()?;
        for number in 0..self.filling.len() {
            self.seal(number)?;
        }
        self.store.sync()?;
        lengths.iter().for_each(|(file, bytes)| self.recipe.set_length(*file, *bytes));
        self.recipe.check()?;
        self.made.clear();
        // The next writer can do without.
        let _ = self.store.write_index(&self.index, &self.ids);
        let recipe = std::mem::take(&mut self.recipe);
        Ok(Written { recipe, added: self.added, _lock: self.lock.take() })
    }

    /// Bytes of memory that the index takes.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.index.bytes()
    }
}
