//! The pages of a base in a sealed file of memory: they are looked at where they are.

use std::fs::File;
use std::io;

use crate::bits::Bits;
use crate::error::SwapError;
use crate::mapping::Mapping;
use crate::page::{PAGE_BYTES, Page, PageBytes, PageId, sorted};
use crate::pool;
use crate::sums::Sums;

/// Pages that one thread copies or compares at a time.
const PART_PAGES: usize = 256;

/// See the module.
pub struct MappedPages {
    pub file: File,
    mapping: Mapping,
    pub sums: Sums,
}

impl MappedPages {
    /// The pages of a file; it comes back if it may change.
    pub fn open(file: File, sums: Sums) -> io::Result<Result<Self, (File, Sums)>> {
        Ok(match Mapping::of_sealed(&file)? {
            Some(mapping) => Ok(Self { file, mapping, sums }),
            None => Err((file, sums)),
        })
    }

    /// A page; `None`: the file ends before.
    pub fn page(&self, id: PageId) -> Option<&PageBytes> {
        self.pages_from(id).first()
    }

    /// The pages from one on.
    fn pages_from(&self, id: PageId) -> &[PageBytes] {
        self.mapping.bytes().as_chunks().0.get(id as usize..).unwrap_or_default()
    }

    /// A page of these, as it was written.
    pub fn checked(&self, present: &Bits, id: PageId) -> Result<&PageBytes, SwapError> {
        let page = self.page(id).filter(|_| present.has(id)).ok_or(SwapError::Unknown { id })?;
        self.sums.check(present, id, page)?;
        Ok(page)
    }

    /// Brings pages.
    pub fn fetch(&self, present: &Bits, pages: &[Page]) -> Result<u64, SwapError> {
        let pages = sorted(pages);
        let parts: Vec<&[Page]> = pages.chunks(PART_PAGES).collect();
        let bring = |part: &&[Page]| {
            part.chunk_by(Page::is_followed_by).try_for_each(|run| {
                run.iter().try_for_each(|page| self.checked(present, page.id).map(drop))?;
                // Those that follow each other do so here.
                let Some(first) = run.first() else { return Ok(()) };
                let content = self.pages_from(first.id).get(..run.len());
                Page::copy_in_run(run, content.ok_or(SwapError::Unknown { id: first.id })?);
                Ok(())
            })
        };
        pool::map(&parts, bring).into_iter().collect::<Result<(), SwapError>>()?;
        Ok((pages.len() * PAGE_BYTES) as u64)
    }

    /// Whether pages equal these.
    pub fn equals(&self, present: &Bits, pages: &[Page]) -> Vec<bool> {
        let parts: Vec<&[Page]> = pages.chunks(PART_PAGES).collect();
        let compare = |part: &&[Page]| {
            let mut copy = [0; PAGE_BYTES];
            let mut is_same = |page: &Page| {
                let Some(of_base) = self.page(page.id).filter(|_| present.has(page.id)) else { return false };
                page.copy_out(&mut copy);
                // Not what was compared in vain: what is damaged equals nothing.
                copy == *of_base && self.sums.check(present, page.id, &copy).is_ok()
            };
            part.iter().map(&mut is_same).collect::<Vec<_>>()
        };
        pool::map(&parts, compare).into_iter().flatten().collect()
    }

    /// Nothing is looked at for a while.
    pub fn rest(&self) {
        self.mapping.rest();
    }
}
