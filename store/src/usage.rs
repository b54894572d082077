//! How much of what is stored a snapshot has to itself, and how much others have as well.

use std::collections::{BTreeMap, BTreeSet};

use crate::directory::Store;
use crate::error::StoreError;
use crate::recipe::Recipe;

/// Slots of a dblock, one bit each.
pub type Slots = Vec<u64>;

/// The chunks that snapshots need, and those that several do. [`Usage::add`] each recipe once.
#[derive(Clone, Debug)]
pub struct Usage<'s> {
    store: &'s Store,
    /// The dblocks that there are.
    ids: BTreeSet<u32>,
    needed: BTreeMap<u32, Slots>,
    shared: BTreeMap<u32, Slots>,
    /// Bytes of the chunks of dblocks; `None`: one is damaged.
    lengths: BTreeMap<u32, Option<Vec<u16>>>,
}

/// Bytes in dblocks that a snapshot needs, without their entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Of chunks that no other snapshot needs.
    pub unique_bytes: u64,
    /// Of chunks that others need as well.
    pub shared_bytes: u64,
}

/// The slots of each of these dblocks that a recipe needs.
pub fn slots_of(recipe: &Recipe, ids: &BTreeSet<u32>) -> BTreeMap<u32, Slots> {
    let mut all: BTreeMap<u32, Slots> = BTreeMap::new();
    for run in recipe.all_runs().filter(|run| ids.contains(&run.first.id)) {
        let slots = all.entry(run.first.id).or_default();
        let first = usize::from(run.first.slot);
        let end = first + usize::from(run.count);
        slots.resize(slots.len().max(end.div_ceil(64)), 0);
        (first..end).for_each(|slot| slots[slot / 64] |= 1 << (slot % 64));
    }
    all
}

/// Those of a dblock that are set.
pub fn slots(bits: &[u64]) -> impl Iterator<Item = u16> {
    (0..=u16::MAX).take(bits.len() * 64).filter(|slot| has(bits, usize::from(*slot)))
}

fn has(bits: &[u64], slot: usize) -> bool {
    bits.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
}

impl<'s> Usage<'s> {
    /// Of no snapshots yet.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn new(store: &'s Store) -> Result<Self, StoreError> {
        let (needed, shared, lengths) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { store, ids: store.ids()?.0, needed, shared, lengths })
    }

    /// A snapshot needs the chunks of its recipe.
    pub fn add(&mut self, recipe: &Recipe) {
        for (id, slots) in slots_of(recipe, &self.ids) {
            let needed = self.needed.entry(id).or_default();
            needed.resize(needed.len().max(slots.len()), 0);
            let shared = self.shared.entry(id).or_default();
            shared.resize(needed.len(), 0);
            for ((needed, shared), word) in needed.iter_mut().zip(shared).zip(&slots) {
                *shared |= *needed & word;
                *needed |= word;
            }
        }
    }

    /// Bytes that a snapshot needs, whose recipe was added, of dblocks that are there and can be read.
    pub fn of(&mut self, recipe: &Recipe) -> Needed {
        let mut found = Needed::default();
        for (id, slots) in slots_of(recipe, &self.ids) {
            let read = || {
                let dblock = self.store.dblock(id).ok()?;
                Some(dblock.footer.entries.iter().map(|entry| entry.len).collect())
            };
            let lengths = self.lengths.entry(id).or_insert_with(read);
            let shared = self.shared.get(&id).map_or(&[][..], Vec::as_slice);
            for (slot, len) in lengths.iter().flatten().enumerate().filter(|(slot, _)| has(&slots, *slot)) {
                let bytes = if has(shared, slot) { &mut found.shared_bytes } else { &mut found.unique_bytes };
                *bytes += u64::from(*len);
            }
        }
        found
    }
}
