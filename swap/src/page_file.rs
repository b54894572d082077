//! A file of pages: which of its slots are in use, and the checksums of their contents.

use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::SwapError;
use crate::io::{Device, Direction, Piece, transfer};
use crate::page::{PAGE_BYTES, PageBytes, PageId};
use crate::slots::Slots;

/// A file in slots of a page each.
pub struct PageFile {
    pub name: &'static str,
    pub slots: Slots,
    device: Box<dyn Device>,
    /// Its length, as far as this object has set it.
    len: AtomicU64,
}

impl PageFile {
    /// A file that holds nothing.
    pub fn new(name: &'static str, device: Box<dyn Device>) -> Self {
        Self { name, slots: Slots::default(), device, len: AtomicU64::new(0) }
    }

    /// A file that may hold something already.
    pub fn existing(name: &'static str, device: Box<dyn Device>) -> io::Result<Self> {
        let len = AtomicU64::new(device.file_len()?);
        Ok(Self { len, ..Self::new(name, device) })
    }

    /// The descriptor of the file, if it is one of this process's.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.device.descriptor()
    }

    /// How many slots the file is long enough for.
    pub fn room(&self) -> u64 {
        self.len.load(Ordering::Relaxed) / PAGE_BYTES as u64
    }

    /// Makes the file long enough for slots up to `end`.
    pub fn lengthen(&self, end: u32) {
        let len = offset_of(end);
        if self.len.fetch_max(len, Ordering::Relaxed) < len {
            self.device.lengthen(len);
        }
    }

    /// Writes pages to slots that follow each other.
    pub fn write(&self, pages: &[Piece<'_>], slot: u32) -> Result<(), SwapError> {
        transfer(&*self.device, Direction::Write, pages, offset_of(slot))
            .map_err(|source| SwapError::Write { file: self.name, source })
    }

    /// Reads pages from slots that follow each other.
    pub fn read(&self, pages: &[Piece<'_>], slot: u32) -> Result<(), SwapError> {
        transfer(&*self.device, Direction::Read, pages, offset_of(slot))
            .map_err(|source| SwapError::Read { file: self.name, source })
    }

    /// Whether this is what was written to the slot.
    pub fn check(&self, id: PageId, content: &PageBytes, slot: u32) -> Result<(), SwapError> {
        let (stored, found) = (self.slots.sum(slot), crc32c::crc32c(content));
        if stored == found {
            return Ok(());
        }
        Err(SwapError::Damaged { file: self.name, id, stored, found })
    }

    /// Gives back the blocks behind the last slot in use.
    pub fn drop_tail(&self) {
        self.discard(offset_of(self.slots.end()));
    }

    /// Gives back the blocks from `offset` to the end. (Some file systems refuse a range that no file can have.)
    fn discard(&self, offset: u64) {
        let len = self.len.load(Ordering::Relaxed).saturating_sub(offset);
        if len > 0 {
            self.device.discard(offset, len);
        }
    }

    /// Gives back the blocks of free slots, in runs no shorter than this, as long as `goes_on` says so.
    pub fn discard_free(&self, shortest: u32, goes_on: &dyn Fn() -> bool) {
        let runs = self.slots.free_runs(shortest).take_while(|_| goes_on());
        runs.for_each(|(first, len)| self.discard_pages(first..first + len));
    }

    /// Gives back the blocks of these pages.
    pub fn discard_pages(&self, pages: Range<u32>) {
        if !pages.is_empty() {
            self.device.discard(offset_of(pages.start), offset_of(pages.end - pages.start));
        }
    }

    /// Frees a slot, and with the last one all blocks.
    pub fn free(&mut self, slot: u32) {
        self.slots.free(slot);
        if self.slots.count() == 0 {
            self.discard(0);
        }
    }

    /// Bytes of the slots in use.
    pub fn used_bytes(&self) -> u64 {
        offset_of(self.slots.count())
    }
}

fn offset_of(slot: u32) -> u64 {
    u64::from(slot) * PAGE_BYTES as u64
}

#[repr(align(4096))]
struct Gap(UnsafeCell<PageBytes>);

// SAFETY: it is written by system calls alone, and nobody reads it.
unsafe impl Sync for Gap {}

/// The place that slots are read to which are read only because they lie between others.
pub fn gap() -> Piece<'static> {
    static GAP: Gap = Gap(UnsafeCell::new([0; PAGE_BYTES]));
    // SAFETY: nobody has a reference to the page's bytes.
    unsafe { Piece::new(GAP.0.get().cast(), PAGE_BYTES) }
}
