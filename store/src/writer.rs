//! Storing: chunks that the store has are left to it, the others go to dblocks of their region ("SnapStore", section 4.5).

use std::collections::BTreeSet;
use std::fs::File;

use codec::Style;

use crate::dblock::Filling;
use crate::directory::Store;
use crate::error::StoreError;
use crate::fingerprint::{Domain, Fingerprint};
use crate::footers::Footers;
use crate::index::{ID_END, Index, Place};
use crate::recipe::Recipe;
use crate::region::{CHUNK_MAX, Chunking, Region};

/// So many places are looked at for a chunk: more have its tag by ill will alone.
const CANDIDATES_MAX: usize = 64;

/// The outcome of storing one region of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// Bytes that were given.
    pub bytes: u64,
    /// Of them in chunks of zeros, which are kept nowhere.
    pub zero_bytes: u64,
    /// Of them in chunks that the store had.
    pub shared_bytes: u64,
    /// Bytes that the other chunks take in dblocks, without their entries.
    pub stored_bytes: u64,
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

/// Stores the files of one snapshot. There is one at a time; what it wrote before it was dropped without an end goes.
pub struct Writer<'s> {
    store: &'s Store,
    domain: Domain,
    chunking: Chunking,
    style: Style,
    lock: Option<File>,
    index: Index,
    /// The dblocks that the index is of.
    ids: BTreeSet<u32>,
    next: u32,
    /// Those that it has made, which go if it is dropped before its end.
    made: Vec<u32>,
    filling: [Option<Filling>; Region::ALL.len()],
    footers: Footers,
    recipe: Recipe,
    added: [Added; Region::ALL.len()],
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
            chunking,
            style,
            lock: Some(lock),
            index,
            ids,
            next,
            made: Vec::new(),
            filling: [const { None }; Region::ALL.len()],
            footers: Footers::default(),
            recipe: Recipe::new(Region::ALL.map(|region| chunking.chunk_bytes(region))),
            added: Default::default(),
        })
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
                let place = self.place(region, whole)?;
                self.recipe.push(file, region, at, place);
            }
            at += size as u64;
        }
        Ok(())
    }

    /// Where a chunk is from now on.
    fn place(&mut self, region: Region, chunk: &[u8]) -> Result<Place, StoreError> {
        let compares = self.chunking.compares(region);
        let print = if compares { self.domain.fingerprint(region, chunk) } else { Fingerprint::NONE };
        if compares && let Some(place) = self.find(region, &print, chunk) {
            self.added[usize::from(region.number())].shared_bytes += chunk.len() as u64;
            return Ok(place);
        }
        let number = usize::from(region.number());
        if self.filling[number].as_ref().is_some_and(|filling| !filling.has_room()) {
            self.seal(number)?;
        }
        if self.filling[number].is_none() {
            if self.next >= ID_END {
                return Err(StoreError::Full);
            }
            let size = self.chunking.chunk_bytes(region);
            self.filling[number] = Some(Filling::new(self.next, region, self.domain.tag(), self.style, size));
            self.next += 1;
        }
        let Some(filling) = &mut self.filling[number] else { return Err(StoreError::Full) };
        let before = filling.footer().data_len;
        let place = Place { id: filling.id, slot: filling.push(print, chunk) };
        self.added[number].stored_bytes += u64::from(filling.footer().data_len - before);
        if compares {
            self.index.insert(&print, place);
        }
        Ok(place)
    }

    /// A chunk that the store has, and that is this one.
    fn find(&mut self, region: Region, print: &Fingerprint, chunk: &[u8]) -> Option<Place> {
        let mut room = [0; CHUNK_MAX as usize];
        // Not finding one costs no more than its room.
        for place in self.index.find(print).take(CANDIDATES_MAX) {
            let open = self.filling.iter().flatten().find(|filling| filling.id == place.id);
            let is_same = match open {
                Some(filling) => filling.footer().region == region && filling.is(place.slot, *print, chunk),
                None => {
                    // One that is damaged, or gone, is none.
                    let Ok(dblock) = self.footers.get(self.store, place.id) else { continue };
                    let entry = dblock.footer.entries.get(usize::from(place.slot));
                    dblock.footer.region == region
                        && dblock.footer.chunk_bytes as usize == chunk.len()
                        && entry.is_some_and(|entry| entry.print == *print)
                        && dblock.chunk(place.slot, &mut room).is_ok_and(|content| content == chunk)
                }
            };
            if is_same {
                return Some(place);
            }
        }
        None
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
        for number in 0..self.filling.len() {
            self.seal(number)?;
        }
        self.store.sync()?;
        lengths.iter().for_each(|(file, bytes)| self.recipe.set_length(*file, *bytes));
        self.recipe.sort();
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
