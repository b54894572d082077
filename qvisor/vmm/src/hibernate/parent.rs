//! The image that another one is put on: pages that it has are not written again.
#![deny(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{self, AtFlags, StatxFlags};
use serde::{Deserialize, Serialize};
use swap::{BaseError, Bits, PageId, PageSums, Parent};

/// A file, wherever it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
    /// When it was made, in nanoseconds: the number may become another one's. 0: the file system does not say.
    pub made_ns: u64,
}

impl FileId {
    /// Which file this is.
    pub fn of(file: impl AsFd) -> std::io::Result<Self> {
        // The jail has no other call for it.
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let found = fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted)?;
        let device = fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        let seconds = u64::try_from(found.stx_btime.tv_sec).unwrap_or_default();
        let made_ns = seconds.saturating_mul(1_000_000_000).saturating_add(found.stx_btime.tv_nsec.into());
        let is_told = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Self { device, inode: found.stx_ino, made_ns: if is_told { made_ns } else { 0 } })
    }
}

/// The parent of an image that is to be taken.
#[derive(Clone, Debug)]
pub struct KnownParent {
    pages: Parent,
    /// The files of its pages: its own, and those below it.
    files: Vec<FileId>,
}

impl KnownParent {
    /// By the tables of its pages, its own and those below it, of a sandbox whose pages have numbers below `end`. `files`: where the pages
    /// of each are.
    pub fn read(tables: &[File], files: Vec<FileId>, end: PageId) -> Result<Self, BaseError> {
        if tables.len() != files.len() {
            return Err(BaseError::Damaged { what: "there is another number of files than of tables" });
        }
        let tables = tables.iter().map(|table| PageSums::read(table, end));
        let tables = tables.collect::<Result<Vec<_>, BaseError>>()?;
        Ok(Self { pages: Parent::new(tables)?, files })
    }

    /// Leaves a page to it that is known to be the one in this file. False: it has another one there, or none.
    pub(crate) fn leave_to(&mut self, file: FileId, id: PageId) -> bool {
        let place = self.files.iter().position(|has| *has == file && file.made_ns != 0);
        place.is_some_and(|place| self.pages.leave_to(place, id))
    }

    /// The pages.
    pub(crate) fn pages(&mut self) -> &mut Parent {
        &mut self.pages
    }

    /// The files of an image that has these pages, those that are left to the parent's among them, and its own in this file.
    pub(crate) fn known(&self, mut all: Bits, own: &File) -> Option<Vec<(FileId, Bits)>> {
        let mut known = Vec::new();
        for (place, left) in self.pages.used() {
            left.ids().for_each(|id| all.clear(id));
            known.push((*self.files.get(place)?, left.clone()));
        }
        known.push((FileId::of(own).ok()?, all));
        Some(known)
    }

    /// The places of those of its files that pages are left to.
    pub(crate) fn used(&self) -> Vec<usize> {
        self.pages.used().map(|(place, _)| place).collect()
    }
}
