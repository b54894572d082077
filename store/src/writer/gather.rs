//! Gathering: where a snapshot needs little of a dblock, what it needs is kept once more beside its other chunks, so that it comes back by few
//! reads (what "SnapStore", section 6.2.2, calls rewriting).

use std::collections::HashMap;

use super::Writer;
use crate::dblock::Dblock;
use crate::difference;
use crate::error::StoreError;
use crate::index::Place;
use crate::recipe::Relocations;
use crate::region::Region;
use crate::usage::{slots, slots_of};

/// Bytes that are little: in the time of another request a disk that turns reads five times as many.
pub const SPARSE_BYTES: u32 = 256 << 10;

impl Writer<'_> {
    /// Keeps chunks once more of which the recipe, whose runs are in order, needs little of their dblocks.
    pub(super) fn gather(&mut self) -> Result<(), StoreError> {
        let needed = slots_of(&self.recipe, &self.ids);
        let mut sparse = Vec::new();
        for (id, bits) in needed.range(..self.first) {
            // What was found there was compared, and is as good as any.
            let Ok(dblock) = self.footers.get(self.store, *id) else { continue };
            let bytes = slots(bits).filter_map(|slot| dblock.footer.entries.get(usize::from(slot)));
            let bytes: u32 = bytes.map(|entry| u32::from(entry.len)).sum();
            if bytes < self.sparse_bytes && bytes < dblock.footer.data_len / 2 {
                sparse.push((dblock.footer.region, *id));
            }
        }
        // Differences last: they say where their bases are.
        sparse.sort_unstable();
        let mut moved = Relocations::default();
        for (_, id) in sparse {
            let Ok(dblock) = self.footers.get(self.store, id) else { continue };
            let places = self.keep_again(&dblock, slots(&needed[&id]), &moved)?;
            moved.0.insert(id, places);
        }
        if let Some(recipe) = self.recipe.relocated(&moved)? {
            self.recipe = recipe;
        }
        Ok(())
    }

    /// Keeps chunks of a dblock once more. Result: where.
    fn keep_again(
        &mut self,
        dblock: &Dblock,
        slots: impl Iterator<Item = u16>,
        moved: &Relocations,
    ) -> Result<HashMap<u16, Place>, StoreError> {
        let (region, mut room) = (dblock.footer.region, [0; difference::PAGE]);
        let mut places = HashMap::new();
        for slot in slots {
            let Some(entry) = dblock.footer.entries.get(usize::from(slot)) else { continue };
            let place = if region == Region::Difference {
                let Ok(record) = dblock.record(slot) else { continue };
                self.put(region, entry.print, &moved.of_record(&record), None)?
            } else {
                let Ok(chunk) = dblock.chunk(slot, &mut room) else { continue };
                let nears = self.chunking.nears(region);
                let features = nears.then(|| self.features(region, chunk).unwrap_or_default());
                self.put(region, entry.print, chunk, features)?
            };
            self.added[usize::from(region.number())].again_bytes += u64::from(entry.len);
            places.insert(slot, place);
        }
        Ok(places)
    }
}
