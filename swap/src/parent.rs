//! Pages that a base which is being written leaves to others that are there already: of the same number, with the same content.

use std::sync::Arc;

use crate::below::BELOW_MAX;
use crate::bits::Bits;
use crate::error::BaseError;
use crate::page::PageId;
use crate::sums::{PageDigest, PageSums};

/// The bases that a new one may be put on: its parent, and those that the parent was put on.
#[derive(Clone, Debug)]
pub struct Parent {
    bases: Vec<Known>,
}

/// A base that is there.
#[derive(Clone, Debug)]
struct Known {
    /// Its place among the bases, its parent's being 0.
    place: usize,
    /// The pages of the parent that are in its file.
    pages: Bits,
    sums: Arc<PageSums>,
    /// Those that the new base leaves to it.
    left: Bits,
}

impl Parent {
    /// By their tables: the parent's own, and those of the bases that it was put on, in its order. If there are as many as a base may have,
    /// pages that are in the one with the fewest are written anew.
    pub fn new(tables: Vec<PageSums>) -> Result<Self, BaseError> {
        let Some(own) = tables.first() else { return Ok(Self { bases: Vec::new() }) };
        if own.below().len() + 1 != tables.len() {
            return Err(BaseError::damaged("it has pages in another number of files"));
        }
        let sets: Vec<Bits> = [own.present()].into_iter().chain(own.below()).cloned().collect();
        let known = |(place, (pages, sums)): (usize, (Bits, PageSums))| {
            sums.has_all(&pages)?;
            Ok(Known { place, pages, sums: Arc::new(sums), left: Bits::default() })
        };
        let mut bases =
            sets.into_iter().zip(tables).enumerate().map(known).collect::<Result<Vec<_>, BaseError>>()?;
        if bases.len() > BELOW_MAX {
            let fewest = (1..bases.len()).min_by_key(|at| bases[*at].pages.len()).unwrap_or_default();
            bases.remove(fewest);
        }
        Ok(Self { bases })
    }

    /// The page is the one in the file of the base in this place, if the parent has it there: it is left to that.
    pub fn leave_to(&mut self, place: usize, id: PageId) -> bool {
        let base = self.bases.iter_mut().find(|base| base.place == place && base.pages.has(id));
        base.is_some_and(|base| {
            base.left.set(id);
            true
        })
    }

    /// Leaves a page with this digest to the parent, if it has it.
    pub(crate) fn leaves(&mut self, id: PageId, digest: &PageDigest) -> bool {
        let same = |base: &&mut Known| base.pages.has(id) && base.sums.has_same(id, digest);
        self.bases.iter_mut().find(same).is_some_and(|base| {
            base.left.set(id);
            true
        })
    }

    /// The pages that are left to the bases.
    #[must_use]
    pub fn left(&self) -> Bits {
        self.used().flat_map(|(_, left)| left.ids()).collect()
    }

    /// The places of the bases to which any page is left, and those pages.
    pub fn used(&self) -> impl Iterator<Item = (usize, &Bits)> {
        self.bases.iter().filter(|base| !base.left.is_empty()).map(|base| (base.place, &base.left))
    }
}
