//! A base whose pages are in several files: its own, and those of others that were there before.

use std::sync::Arc;

use crate::base::{Base, FileBase};
use crate::bits::Bits;
use crate::bounce::Bounces;
use crate::error::{BaseError, SwapError};
use crate::page::{Page, PageBytes, PageId};
use crate::sums::LACKS;

/// Pages that are read at a time.
const READ_PAGES: usize = 512;

/// See the module.
#[derive(Debug)]
pub struct StackedBase {
    own: Arc<FileBase>,
    below: Vec<(FileBase, Bits)>,
}

impl From<FileBase> for StackedBase {
    fn from(own: FileBase) -> Self {
        Self { own: Arc::new(own), below: Vec::new() }
    }
}

impl StackedBase {
    /// The base with these pages of others beside its own. They have them, and no page is in two of them.
    pub fn new(own: FileBase, below: Vec<(FileBase, Bits)>) -> Result<Self, BaseError> {
        let mut seen = own.present().clone();
        for (base, pages) in &below {
            for id in pages.ids() {
                if !base.has(id) || seen.has(id) {
                    return Err(LACKS);
                }
                seen.set(id);
            }
        }
        Ok(Self { own: Arc::new(own), below })
    }

    /// Its own file.
    #[must_use]
    pub fn own(&self) -> &Arc<FileBase> {
        &self.own
    }

    /// The files, and which of the pages of those below are its; its own is the first.
    pub fn files(&self) -> impl Iterator<Item = (&FileBase, Option<&Bits>)> {
        let below = self.below.iter().map(|(base, pages)| (base, Some(pages)));
        [(&*self.own, None)].into_iter().chain(below)
    }

    /// The place among its [files](Self::files) of the one that has the page.
    #[must_use]
    pub fn place_of(&self, id: PageId) -> Option<usize> {
        let has =
            |(base, pages): (&FileBase, Option<&Bits>)| pages.map_or(base.has(id), |pages| pages.has(id));
        self.files().position(has)
    }

    /// All of its pages, whose numbers ascend, each as it was written.
    ///
    /// # Errors
    /// One of them is damaged or cannot be read, or there is no memory.
    pub fn read(&self) -> Result<Vec<(PageId, PageBytes)>, SwapError> {
        let ids: Vec<PageId> = (0..self.end()).filter(|id| self.has(*id)).collect();
        let mut read = Vec::with_capacity(ids.len());
        let mut room = Bounces::new(READ_PAGES).take().ok_or(SwapError::NoMemory)?;
        for part in ids.chunks(READ_PAGES) {
            self.fetch(room.pages(part))?;
            read.extend(part.iter().copied().zip(room.places().iter().copied()));
        }
        Ok(read)
    }

    /// Pages by the places of the files that have them; those that none has come last.
    fn by_file(&self, pages: &[Page]) -> Vec<Vec<usize>> {
        let mut found = vec![Vec::new(); self.below.len() + 2];
        for (at, page) in pages.iter().enumerate() {
            found[self.place_of(page.id).unwrap_or(self.below.len() + 1)].push(at);
        }
        found
    }
}

impl Base for StackedBase {
    fn has(&self, page: PageId) -> bool {
        self.own.has(page) || self.below.iter().any(|(_, pages)| pages.has(page))
    }

    fn end(&self) -> PageId {
        self.below.iter().map(|(_, pages)| pages.end()).fold(self.own.end(), PageId::max)
    }

    fn fetch(&self, pages: Vec<Page>) -> Result<u64, SwapError> {
        if self.below.is_empty() {
            return self.own.fetch(pages);
        }
        let found = self.by_file(&pages);
        if let Some(unknown) = found.last().and_then(|at| at.first()) {
            return Err(SwapError::Unknown { id: pages[*unknown].id });
        }
        let fetch = |((base, _), of): ((&FileBase, Option<&Bits>), &Vec<usize>)| {
            base.fetch(of.iter().map(|at| pages[*at]).collect())
        };
        self.files().zip(&found).map(fetch).sum()
    }

    fn equals(&self, pages: &[Page]) -> Vec<bool> {
        if self.below.is_empty() {
            return self.own.equals(pages);
        }
        let mut same = vec![false; pages.len()];
        for ((base, _), of) in self.files().zip(&self.by_file(pages)) {
            let compared: Vec<Page> = of.iter().map(|at| pages[*at]).collect();
            of.iter().zip(base.equals(&compared)).for_each(|(at, is_same)| same[*at] = is_same);
        }
        same
    }

    fn check(&self, pages: &[PageId]) -> Vec<Result<(), SwapError>> {
        if self.below.is_empty() {
            return self.own.check(pages);
        }
        let check = |id: &PageId| {
            let found = self.place_of(*id).and_then(|place| self.files().nth(place));
            let Some((base, _)) = found else { return Err(SwapError::Unknown { id: *id }) };
            base.check(&[*id]).pop().unwrap_or(Ok(()))
        };
        pages.iter().map(check).collect()
    }

    fn window(&self, page: PageId) -> Option<u64> {
        // It is in one of several files.
        if self.below.is_empty() { self.own.window(page) } else { None }
    }

    fn rest(&self) {
        self.files().for_each(|(base, _)| base.rest());
    }
}

#[cfg(test)]
#[path = "stacked_tests.rs"]
mod tests;
