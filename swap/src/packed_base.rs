//! The pages of a base, packed: sets of a [`PackedFile`], in which pages have their places by their order. A page is found by how many
//! come before it.

use std::fs::File;
use std::os::fd::BorrowedFd;

use crate::bits::Bits;
use crate::error::{BaseError, SwapError, TablesError};
use crate::packed::{PackedFile, PackedSet, PageKey, SET_PAGES_MAX};
use crate::page::Page;
use crate::page_file::PageFile;
use crate::persist_sets;
use crate::ranks::Ranks;
use crate::tables::Reader;

/// The file, in errors.
pub const BASE_FILE: &str = "base file";

/// See the module.
pub struct PackedPages {
    file: PackedFile,
    ranks: Ranks,
}

impl PackedPages {
    /// Those of `present` in a file, with these checksums, packed as `sets` says. Whoever wrote that may be hostile.
    /// `key`: by which they are sealed, if they are.
    pub fn open(
        file: File,
        (present, sums): (&Bits, &[u32]),
        sets: &[u8],
        key: Option<&PageKey>,
    ) -> Result<Self, BaseError> {
        let pages = PageFile::existing(BASE_FILE, Box::new(file)).map_err(BaseError::File)?;
        let sets = Self::sets(sets, (pages.room(), present.len()), key.is_some())?;
        let mut packed = PackedFile::with_key(pages, key).ok_or(BaseError::damaged("its key is none"))?;
        sets.into_iter().for_each(|(number, set)| packed.restore(number, set));
        (0..).zip(sums).for_each(|(rank, sum)| packed.take(rank, *sum));
        Ok(Self { file: packed, ranks: Ranks::new(present) })
    }

    /// Reads the sets of so many pages, in a file of this length in pages.
    pub fn sets(
        sets: &[u8],
        (room, pages): (u64, u64),
        is_sealed: bool,
    ) -> Result<Vec<(usize, PackedSet)>, BaseError> {
        let sets = persist_sets::read(persist_sets::VERSION, Reader::of(sets), (room, pages), is_sealed)?;
        let mut left = pages;
        for (at, (number, set)) in sets.iter().enumerate() {
            let wanted = left.min(SET_PAGES_MAX as u64);
            if *number != at || u64::from(set.pages()) != wanted || wanted == 0 {
                return Err(BaseError::damaged("its sets have other pages than there are"));
            }
            left -= wanted;
        }
        if left > 0 {
            return Err(BaseError::damaged("it has not all pages"));
        }
        Ok(sets)
    }

    /// Reads pages, which are all `present`. Result: bytes read.
    pub fn fetch(&self, present: &Bits, pages: &[Page]) -> Result<u64, SwapError> {
        let find = |page: &Page| {
            let rank = self.ranks.of(present, page.id).ok_or(SwapError::Unknown { id: page.id })?;
            Ok((rank, *page))
        };
        let mut found = pages.iter().map(find).collect::<Result<Vec<_>, SwapError>>()?;
        self.file.fetch(&mut found, None)
    }

    /// The checksums of its pages.
    pub fn sums(&self) -> Vec<u32> {
        let of =
            |(_, set): (usize, &PackedSet)| (0..set.pages()).map(|place| set.sum(place)).collect::<Vec<_>>();
        self.file.sets().flat_map(of).collect()
    }

    /// How its pages are packed.
    pub fn tables(&self) -> Result<Vec<u8>, TablesError> {
        persist_sets::sets(&self.file)
    }

    /// Whether its pages are sealed.
    pub fn is_sealed(&self) -> bool {
        self.file.is_sealed()
    }

    /// The descriptor of its file.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.descriptor()
    }

    /// Nothing is read for a while.
    pub fn rest(&self) {
        self.file.rest();
    }
}
