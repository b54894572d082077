//! Collecting: chunks that no recipe needs go. Dblocks are never changed, so chunks that are needed move out of those that have few.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::time::Duration;

use crate::dblock::{Dblock, Filling, Footer, style_number};
use crate::directory::Store;
use crate::error::StoreError;
use crate::index::{ID_END, Place};
use crate::recipe::{Recipe, Relocations};
use crate::region::{CHUNK_MAX, Region};

/// Dblocks with less than so many bytes of chunks are put together.
const SMALL_BYTES: u32 = 1 << 20;

/// What a collection came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Dblocks whose chunks moved, and their bytes there.
    pub moved_dblocks: u64,
    /// See above.
    pub moved_bytes: u64,
    /// Dblocks that nobody needs, and those of them that were removed.
    pub dead_dblocks: u64,
    /// See above.
    pub removed_dblocks: u64,
    /// Bytes of those that were removed.
    pub removed_bytes: u64,
}

/// A collection: [`Collector::mark`] each recipe that there is, [`Collector::move_out`], put the [relocated](Recipe::relocated) recipes in place of those
/// that were, and [`Collector::end`]. Nobody writes meanwhile; if it ends before, nothing was lost.
pub struct Collector<'s> {
    store: &'s Store,
    lock: File,
    all: BTreeSet<u32>,
    /// Slots that are needed.
    live: BTreeMap<u32, BTreeSet<u16>>,
    next: u32,
    collected: Collected,
    /// Those whose chunks have moved.
    left: BTreeSet<u32>,
}

/// Dblocks into which chunks move, by what they have in common.
type Targets = BTreeMap<(Region, u32, [u8; 2]), Filling>;

impl<'s> Collector<'s> {
    /// Begins.
    ///
    /// # Errors
    /// [`StoreError::Busy`]: there is a writer. The store cannot be read.
    pub fn begin(store: &'s Store) -> Result<Self, StoreError> {
        let lock = store.lock()?;
        store.sweep()?;
        let (all, _) = store.ids()?;
        let next = store.next_id(&all, &lock);
        let (live, collected, left) = (BTreeMap::new(), Collected::default(), BTreeSet::new());
        Ok(Self { store, lock, all, live, next, collected, left })
    }

    /// The chunks of a recipe are needed.
    pub fn mark(&mut self, recipe: &Recipe) {
        for place in recipe.places() {
            self.live.entry(place.id).or_default().insert(place.slot);
        }
    }

    /// Moves chunks out of dblocks of which less than half is needed, and out of small ones if there are several; `most_bytes` at most.
    ///
    /// # Errors
    /// A chunk is damaged, or a dblock cannot be written: recipes stay as they are.
    pub fn move_out(&mut self, most_bytes: u64) -> Result<Relocations, StoreError> {
        let mut moved = Relocations::default();
        let mut targets = Targets::new();
        for id in self.to_leave()? {
            if self.collected.moved_bytes >= most_bytes {
                break;
            }
            let dblock = self.store.dblock(id)?;
            self.leave(&dblock, &mut targets, &mut moved)?;
            self.collected.moved_dblocks += 1;
            self.left.insert(id);
        }
        for filling in targets.values() {
            self.store.write(filling)?;
        }
        self.store.sync()?;
        Ok(moved)
    }

    /// The dblocks that chunks are to leave.
    fn to_leave(&self) -> Result<Vec<u32>, StoreError> {
        let mut leave = Vec::new();
        let mut small: BTreeMap<(Region, u32, [u8; 2]), Vec<u32>> = BTreeMap::new();
        for (id, slots) in self.live.iter().filter(|(id, _)| self.all.contains(id)) {
            let footer = self.store.dblock(*id)?.footer;
            let entries = slots.iter().filter_map(|slot| footer.entries.get(usize::from(*slot)));
            let needed: u32 = entries.map(|entry| u32::from(entry.len)).sum();
            if needed < footer.data_len / 2 {
                leave.push(*id);
            } else if footer.data_len < SMALL_BYTES {
                small.entry(kind(&footer)).or_default().push(*id);
            }
        }
        leave.extend(small.into_values().filter(|ids| ids.len() > 1).flatten());
        Ok(leave)
    }

    fn leave(
        &mut self,
        dblock: &Dblock,
        targets: &mut Targets,
        moved: &mut Relocations,
    ) -> Result<(), StoreError> {
        let footer = &dblock.footer;
        let mut room = [0; CHUNK_MAX as usize];
        for slot in self.live.get(&dblock.id).into_iter().flatten() {
            let Some(entry) = footer.entries.get(usize::from(*slot)) else {
                return Err(StoreError::Recipe { what: "its chunks are not where it says" });
            };
            let full = targets.get(&kind(footer)).is_some_and(|filling| !filling.has_room());
            if full && let Some(filling) = targets.remove(&kind(footer)) {
                self.store.write(&filling)?;
            }
            if self.next >= ID_END {
                return Err(StoreError::Full);
            }
            let target = targets.entry(kind(footer)).or_insert_with(|| {
                self.next += 1;
                Filling::new(self.next - 1, footer.region, footer.style, footer.chunk_bytes)
            });
            let chunk = dblock.chunk(*slot, &mut room)?;
            let place = Place { id: target.id, slot: target.push(entry.print, chunk) };
            moved.0.insert(Place { id: dblock.id, slot: *slot }, place);
            self.collected.moved_bytes += u64::from(entry.len);
        }
        Ok(())
    }

    /// Ends, once the relocated recipes are on the disk: says of dblocks that nobody needs them, and removes those of which that has been said
    /// for `grace`, since readers may have recipes of before.
    ///
    /// # Errors
    /// Anything cannot be removed; the next collection does.
    pub fn end(mut self, grace: Duration) -> Result<Collected, StoreError> {
        self.store.note_next(self.next, &self.lock)?;
        let (_, dead) = self.store.ids()?;
        for id in self.all.iter().copied() {
            let is_needed = self.live.contains_key(&id) && !self.left.contains(&id);
            if is_needed || !dead.contains(&id) {
                self.store.set_dead(id, !is_needed)?;
            }
            if is_needed {
                continue;
            }
            self.collected.dead_dblocks += 1;
            if self.store.dead_for(id) >= grace {
                self.collected.removed_bytes +=
                    std::fs::metadata(self.store.path(id)).map_or(0, |file| file.len());
                self.store.remove(id)?;
                self.collected.removed_dblocks += 1;
            }
        }
        Ok(self.collected)
    }
}

/// What dblocks have in common whose chunks may lie in one.
fn kind(footer: &Footer) -> (Region, u32, [u8; 2]) {
    (footer.region, footer.chunk_bytes, style_number(footer.style))
}
