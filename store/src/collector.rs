//! Collecting: chunks that no recipe needs go. Dblocks are never changed, so chunks that are needed move out of those that have few.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::time::Duration;

use crate::dblock::{Dblock, Filling, Footer, style_number};
use crate::directory::Store;
use crate::error::StoreError;
use crate::index::{ID_END, Place};
use crate::recipe::{Recipe, Relocations};
use crate::region::{CHUNK_MAX, Region};
use crate::usage::{slots, slots_of};

/// Dblocks with less than so many bytes of chunks are put together.
const SMALL_BYTES: u32 = 1 << 20;

/// The outcome of a collection.
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
    /// Slots that are needed, one bit each.
    live: BTreeMap<u32, Vec<u64>>,
    next: u32,
    collected: Collected,
    /// Those whose chunks have moved.
    left: BTreeSet<u32>,
}

/// Dblocks into which chunks move, by what they have in common.
type Targets = BTreeMap<Kind, Filling>;

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
        for (id, needed) in slots_of(recipe, &self.all) {
            let live = self.live.entry(id).or_default();
            live.resize(live.len().max(needed.len()), 0);
            live.iter_mut().zip(needed).for_each(|(live, needed)| *live |= needed);
        }
    }

    /// Moves chunks out of dblocks of which less than half is needed, and out of small ones if there are several; `most_bytes` at most. One that is
    /// damaged stays.
    ///
    /// # Errors
    /// A dblock cannot be written: all is as it was.
    pub fn move_out(&mut self, most_bytes: u64) -> Result<Relocations, StoreError> {
        let mut made = Vec::new();
        let moved = self.try_to_move_out(most_bytes, &mut made);
        if moved.is_err() {
            made.iter().for_each(|id| drop(self.store.remove(*id)));
            self.left.clear();
            (self.collected.moved_dblocks, self.collected.moved_bytes) = (0, 0);
        }
        moved
    }

    fn try_to_move_out(&mut self, most_bytes: u64, made: &mut Vec<u32>) -> Result<Relocations, StoreError> {
        let mut moved = Relocations::default();
        let mut targets = Targets::new();
        for id in self.to_leave() {
            if self.collected.moved_bytes >= most_bytes {
                break;
            }
            let Ok(dblock) = self.store.dblock(id) else { continue };
            match self.leave(&dblock, &moved, (&mut targets, made)) {
                Ok((places, bytes)) => {
                    moved.0.insert(id, places);
                    self.left.insert(id);
                    self.collected.moved_dblocks += 1;
                    self.collected.moved_bytes += bytes;
                }
                Err(error @ (StoreError::Io { .. } | StoreError::Full)) => return Err(error),
                // What has been copied of it nobody needs.
                Err(_) => {}
            }
        }
        for filling in targets.values() {
            made.push(filling.id);
            self.store.write(filling)?;
        }
        self.store.sync()?;
        Ok(moved)
    }

    /// The dblocks that chunks are to leave.
    fn to_leave(&self) -> Vec<u32> {
        let mut leave = Vec::new();
        let mut small: BTreeMap<Kind, Vec<u32>> = BTreeMap::new();
        for (id, bits) in &self.live {
            let Ok(Dblock { footer, .. }) = self.store.dblock(*id) else { continue };
            let entries = slots(bits).filter_map(|slot| footer.entries.get(usize::from(slot)));
            let needed: u32 = entries.map(|entry| u32::from(entry.len)).sum();
            if needed < footer.data_len / 2 {
                leave.push((footer.region, *id));
            } else if footer.data_len < SMALL_BYTES {
                small.entry(kind(&footer)).or_default().push(*id);
            }
        }
        let several = small.into_iter().filter(|(_, ids)| ids.len() > 1);
        leave.extend(several.flat_map(|(kind, ids)| ids.into_iter().map(move |id| (kind.0, id))));
        // Differences last: they say where their bases are.
        leave.sort_unstable();
        leave.into_iter().map(|(_, id)| id).collect()
    }

    /// Copies what is needed of a dblock. Result: where that lies then, and how many bytes it has there.
    fn leave(
        &mut self,
        dblock: &Dblock,
        moved: &Relocations,
        (targets, made): (&mut Targets, &mut Vec<u32>),
    ) -> Result<(HashMap<u16, Place>, u64), StoreError> {
        let footer = &dblock.footer;
        let mut room = [0; CHUNK_MAX as usize];
        let (mut places, mut bytes) = (HashMap::new(), 0);
        // One that cannot be read stays, as one that is damaged does.
        let unreadable = |_| StoreError::Dblock { id: dblock.id, what: "it cannot be read" };
        let needed: Vec<u16> =
            self.live.get(&dblock.id).map(|bits| slots(bits).collect()).unwrap_or_default();
        for slot in needed {
            let Some(entry) = footer.entries.get(usize::from(slot)) else {
                return Err(StoreError::Recipe { what: "its chunks are not where it says" });
            };
            let full = targets.get(&kind(footer)).is_some_and(|filling| !filling.has_room());
            if full && let Some(filling) = targets.remove(&kind(footer)) {
                made.push(filling.id);
                self.store.write(&filling)?;
            }
            if self.next >= ID_END {
                return Err(StoreError::Full);
            }
            let target = targets.entry(kind(footer)).or_insert_with(|| {
                self.next += 1;
                Filling::new(self.next - 1, footer.region, footer.domain, footer.style, footer.chunk_bytes)
            });
            let to = match footer.region {
                Region::Difference => {
                    let record = moved.of_record(&dblock.record(slot).map_err(unreadable)?);
                    target.push_packed(entry.print, crc32c::crc32c(&record), &record)
                }
                _ => target.push(entry.print, dblock.chunk(slot, &mut room).map_err(unreadable)?),
            };
            if let Some(features) = footer.features.get(usize::from(slot)) {
                target.push_features(*features);
            }
            places.insert(slot, Place { id: target.id, slot: to });
            bytes += u64::from(entry.len);
        }
        Ok((places, bytes))
    }

    /// The recipe of a snapshot could not be relocated: what it needs stays where it is.
    pub fn keep(&mut self, recipe: &Recipe) {
        for run in recipe.all_runs() {
            self.left.remove(&run.first.id);
        }
    }

    /// Removes dblocks of which it has been said for `grace` that nobody needs them, and that indeed nobody does: room for what moves.
    ///
    /// # Errors
    /// One cannot be removed.
    pub fn remove_dead(&mut self, grace: Duration) -> Result<(), StoreError> {
        self.store.note_next(self.next, &self.lock)?;
        let (_, dead) = self.store.ids()?;
        for id in dead {
            if !self.live.contains_key(&id) && self.store.dead_for(id) >= grace {
                self.remove(id)?;
            }
        }
        Ok(())
    }

    fn remove(&mut self, id: u32) -> Result<(), StoreError> {
        let bytes = std::fs::metadata(self.store.path(id)).map_or(0, |file| file.len());
        self.store.remove(id)?;
        self.all.remove(&id);
        self.collected.removed_bytes += bytes;
        self.collected.removed_dblocks += 1;
        self.collected.dead_dblocks += 1;
        Ok(())
    }

    /// Ends, once the relocated recipes are on the disk: says of dblocks that nobody needs them, and removes those of which that has been said
    /// for `grace`, since readers may have recipes of before.
    ///
    /// # Errors
    /// Anything cannot be removed; the next collection does.
    pub fn end(mut self, grace: Duration) -> Result<Collected, StoreError> {
        self.remove_dead(grace)?;
        let (_, dead) = self.store.ids()?;
        for id in self.all.clone() {
            let is_needed = self.live.contains_key(&id) && !self.left.contains(&id);
            if is_needed || !dead.contains(&id) {
                self.store.set_dead(id, !is_needed)?;
            }
            if is_needed {
                continue;
            }
            if self.store.dead_for(id) >= grace {
                self.remove(id)?;
            } else {
                self.collected.dead_dblocks += 1;
            }
        }
        Ok(self.collected)
    }
}

/// Properties that dblocks have in common whose chunks may lie in one.
type Kind = (Region, u32, u32, [u8; 2], bool);

fn kind(footer: &Footer) -> Kind {
    let has_features = !footer.features.is_empty();
    (footer.region, footer.domain, footer.chunk_bytes, style_number(footer.style), has_features)
}
