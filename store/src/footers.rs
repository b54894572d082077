//! The dblocks that were looked at last, with their fingerprints: what is looked for next is most often beside what was found ("SnapStore",
//! the fingerprint cache of section 4.3).

use std::collections::HashMap;
use std::sync::Arc;

use crate::dblock::Dblock;
use crate::directory::Store;
use crate::error::StoreError;

/// Bytes of all that are kept, and how many, since each has a descriptor.
const BYTES_MAX: usize = 8 << 20;
const COUNT_MAX: usize = 64;

/// See the module.
pub struct Footers {
    kept: HashMap<u32, (Arc<Dblock>, u64)>,
    bytes: usize,
    uses: u64,
    opened: u64,
    most: usize,
}

impl Default for Footers {
    fn default() -> Self {
        Self::keeping(COUNT_MAX)
    }
}

impl Footers {
    /// So many at a time.
    pub fn keeping(most: usize) -> Self {
        Self { kept: HashMap::new(), bytes: 0, uses: 0, opened: 0, most }
    }

    /// How often one was opened.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// A dblock of the store.
    pub fn get(&mut self, store: &Store, id: u32) -> Result<Arc<Dblock>, StoreError> {
        self.uses += 1;
        if let Some((dblock, last)) = self.kept.get_mut(&id) {
            *last = self.uses;
            return Ok(Arc::clone(dblock));
        }
        let dblock = Arc::new(store.dblock(id)?);
        self.opened += 1;
        self.bytes += dblock.footer.bytes();
        self.kept.insert(id, (Arc::clone(&dblock), self.uses));
        while self.kept.len() > 1 && (self.bytes > BYTES_MAX || self.kept.len() > self.most) {
            let oldest = self.kept.iter().min_by_key(|(_, (_, last))| *last).map(|(id, _)| *id);
            let Some((dropped, _)) = oldest.and_then(|id| self.kept.remove(&id)) else { break };
            self.bytes -= dropped.footer.bytes();
        }
        Ok(dblock)
    }
}
