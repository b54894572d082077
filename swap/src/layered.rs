//! A home on top of a base: what a page has in common with the base is not stored again.
//!
//! A page is in the base, or in the home's own storage, or unknown. It is in the base as long as the base has it and it is
//! not *gone*. It goes when it is stored with another content, and when it is forgotten: its number may then get a new
//! owner, who must never see what the base has there. Only being stored with the base's very content brings it back.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::base::Base;
use crate::bits::Bits;
use crate::error::{SwapError, TablesError};
use crate::home::{Home, Stat, Stored};
use crate::page::{Page, PageId};
use crate::tables;

const KIND: &[u8; 8] = b"DORMLAYR";
const VERSION: u32 = 1;
/// How far from a touched page others are read along.
const AROUND_PAGES: u32 = 32;

/// See the module.
pub struct Layered<B, H> {
    base: Arc<B>,
    /// Pages that are not in the base any more.
    gone: Bits,
    own: H,
}

impl<B: Base, H: Home> Layered<B, H> {
    /// The pages of `base`, with whatever is stored later in `own`, which is empty.
    #[must_use]
    pub fn new(base: Arc<B>, own: H) -> Self {
        Self { base, gone: Bits::default(), own }
    }

    /// The base.
    #[must_use]
    pub fn base(&self) -> &B {
        &self.base
    }

    /// The home of what differs from the base.
    #[must_use]
    pub fn own(&self) -> &H {
        &self.own
    }

    /// The home of what differs from the base. Pages are stored and forgotten in both together alone.
    pub fn own_mut(&mut self) -> &mut H {
        &mut self.own
    }

    /// Takes the home of what differs from the base.
    #[must_use]
    pub fn into_own(self) -> H {
        self.own
    }

    /// The home that had this base and wrote down `tables` ([`Home::persist`]). `own` opens the home whose tables follow
    /// in them. Which base it was the owner knows: the tables do not say.
    pub fn reopen(
        base: Arc<B>,
        tables: &[u8],
        own: impl FnOnce(&[u8]) -> Result<H, TablesError>,
    ) -> Result<Self, TablesError> {
        let (_, mut from) = tables::open(tables, KIND, VERSION..=VERSION)?;
        let count = from.u64()?;
        let bytes = count.checked_mul(8).ok_or(TablesError::Damaged { what: "a count is too large" })?;
        let gone = from.bytes(bytes)?.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let len = from.u64()?;
        let own = own(from.bytes(len)?)?;
        if !from.is_empty() {
            return Err(TablesError::Damaged { what: "there is more than they say" });
        }
        Ok(Self { base, gone: Bits::from_words(gone), own })
    }

    /// Whether the page is in the base.
    #[must_use]
    pub fn is_in_base(&self, id: PageId) -> bool {
        self.base.has(id) && !self.gone.has(id)
    }

    /// The offset of a page in a file of the base's that may be mapped in its place; `None`: it is not in the base, or in no such file.
    #[must_use]
    pub fn window(&self, id: PageId) -> Option<u64> {
        if self.is_in_base(id) { self.base.window(id) } else { None }
    }

    /// The pages that are in the base.
    fn in_base(&self) -> impl Iterator<Item = PageId> {
        (0..self.base.end()).filter(|id| self.is_in_base(*id))
    }
}

/// Tells the pages that equal those of the base from the others.
fn split(base: &dyn Base, pages: &[Page]) -> (Vec<Page>, Vec<Page>) {
    let (mut same, mut others) = (Vec::new(), Vec::new());
    for (page, is_same) in pages.iter().zip(base.equals(pages)) {
        if is_same { same.push(*page) } else { others.push(*page) }
    }
    (same, others)
}

impl<B: Base, H: Home> Home for Layered<B, H> {
    fn store(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError> {
        let base = Arc::clone(&self.base);
        let (mut same, set) = split(&*base, working_set);
        let (same_of_rest, rest) = split(&*base, rest);
        same.extend(same_of_rest);
        // The sandbox is about to sleep.
        base.rest();
        let stored = self.own.store(&set, &rest)?;
        // From here on nothing can fail.
        for page in set.iter().chain(&rest).filter(|page| base.has(page.id)) {
            self.gone.set(page.id);
        }
        let back: Bits = same.iter().map(|page| page.id).filter(|id| self.gone.has(*id)).collect();
        if back.end() > 0 {
            self.own.retain(&mut |id| !back.has(id));
        }
        same.iter().for_each(|page| self.gone.clear(page.id));
        Ok(Stored { base_pages: same.len() as u64, ..stored })
    }

    fn fetch(&self, pages: &[Page]) -> Result<u64, SwapError> {
        let (of_base, own): (Vec<Page>, Vec<Page>) =
            pages.iter().copied().partition(|page| self.is_in_base(page.id));
        Ok(self.base.fetch(of_base)? + self.own.fetch(&own)?)
    }

    fn fetch_around(&self, pages: &mut Vec<Page>) -> Result<u64, SwapError> {
        let Some(first) = pages.first().copied() else { return Ok(0) };
        if self.is_in_base(first.id) {
            pages.retain(|page| first.id.abs_diff(page.id) <= AROUND_PAGES && self.is_in_base(page.id));
            return self.fetch(pages);
        }
        pages.retain(|page| !self.is_in_base(page.id));
        self.own.fetch_around(pages)
    }

    fn forget(&self, pages: &[PageId]) {
        // The base costs nothing.
        self.own.forget(pages);
    }

    fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool) {
        let forgotten: Vec<PageId> = self.in_base().filter(|id| !kept(*id)).collect();
        forgotten.into_iter().for_each(|id| self.gone.set(id));
        self.own.retain(kept);
    }

    fn rest(&self) {
        self.base.rest();
        self.own.rest();
    }

    fn pages(&self) -> Bits {
        let mut pages = self.own.pages();
        self.in_base().for_each(|id| pages.set(id));
        pages
    }

    fn stored_bytes(&self) -> u64 {
        self.own.stored_bytes()
    }

    fn stats(&self) -> Vec<Stat> {
        let base_pages = Stat { name: "base_pages", value: self.in_base().count() as u64 };
        [self.own.stats(), vec![base_pages]].concat()
    }

    fn persist(&self, to: &mut dyn Write) -> Result<(), TablesError> {
        let mut own = Vec::new();
        self.own.persist(&mut own)?;
        let mut out = tables::begin(KIND, VERSION);
        let gone = self.gone.words();
        out.extend_from_slice(&(gone.len() as u64).to_le_bytes());
        gone.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out.extend_from_slice(&(own.len() as u64).to_le_bytes());
        out.extend_from_slice(&own);
        tables::seal(&mut out);
        to.write_all(&out).map_err(TablesError::from)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.own.descriptors()
    }
}

#[cfg(test)]
#[path = "layered_tests.rs"]
mod tests;
