//! Pages: memory, a number, and what kind of memory it is.

use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;

use rustix::io::pwrite;

use crate::piece::Piece;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// A page's number: its owner's, dense enough to index a table with.
pub type PageId = u32;

/// A private copy of a page.
pub type PageBytes = [u8; PAGE_BYTES];

/// The kind of memory that a page is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// A copy of a file's page
    File,
    /// A program's own
    #[default]
    Anonymous,
    /// Of a file in memory
    Store,
    /// The kernel's
    Kernel,
}

impl Class {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::File, Self::Anonymous, Self::Store, Self::Kernel];

    /// The class of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its number, from 0.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// A page of memory, its number and its class. The memory may be shared with a guest: it is copied, and never referred to.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The page's number.
    pub id: PageId,
    /// The page's class.
    pub class: Class,
    addr: NonNull<u8>,
    /// The file whose memory it is; negative: none.
    file: RawFd,
}

// SAFETY: an address and numbers; the promise of `Page::new` bounds the use of the memory behind it.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// The page at `addr`, of a program's own memory.
    ///
    /// # Safety
    /// `addr` is page-aligned. As long as the value or a copy of it is used the page stays mapped, readable and writable,
    /// and nobody uses a Rust reference to any of it. Others may write it meanwhile: that only spoils its own content or
    /// checksum.
    #[must_use]
    pub unsafe fn new(id: PageId, addr: NonNull<u8>) -> Self {
        Self { id, class: Class::default(), addr, file: -1 }
    }

    /// Says that its memory is that of a file, at the place of its number, so that content can come through the file: the host then neither
    /// empties memory that it gives, nor maps it here.
    ///
    /// # Safety
    /// The page lies there, and the file stays open as long as the value or a copy of it is used.
    #[must_use]
    pub unsafe fn in_file(self, file: BorrowedFd<'_>) -> Self {
        Self { file: std::os::fd::AsRawFd::as_raw_fd(&file), ..self }
    }

    /// Gives the page another class.
    #[must_use]
    pub fn with_class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// Its memory.
    pub(crate) fn piece(&self) -> Piece<'_> {
        // SAFETY: the promise of `new`.
        unsafe { Piece::new(self.addr.as_ptr(), PAGE_BYTES) }
    }

    /// Copies the page to another one's memory.
    pub fn copy(&self, to: &Self) {
        let mut bytes = [0; PAGE_BYTES];
        self.copy_out(&mut bytes);
        to.copy_in(&bytes);
    }

    /// A copy of what is in its memory.
    #[must_use]
    pub fn content(&self) -> Box<PageBytes> {
        let mut content = Box::new([0; PAGE_BYTES]);
        self.copy_out(&mut content);
        content
    }

    /// Copies the page out of its memory.
    pub(crate) fn copy_out(&self, to: &mut PageBytes) {
        self.piece().copy_out(to);
    }

    /// Whether `next` follows it in memory and, if there is one, in their file.
    pub(crate) fn is_followed_by(&self, next: &Self) -> bool {
        self.id.checked_add(1) == Some(next.id) && self.file == next.file
    }

    /// Copies content into the memory of pages that follow each other, at once where they are in a file.
    pub(crate) fn copy_in_run(run: &[Self], content: &[PageBytes]) {
        let Some(first) = run.first() else { return };
        let mut written = 0;
        if first.file >= 0 {
            // SAFETY: the promise of `in_file`.
            let file = unsafe { BorrowedFd::borrow_raw(first.file) };
            // Whatever does not get there so is copied.
            written = pwrite(file, content.as_flattened(), offset_of(first.id)).unwrap_or(0) / PAGE_BYTES;
        }
        run.iter().zip(content).skip(written).for_each(|(page, content)| page.copy_in(content));
    }

    /// Copies a page into its memory.
    pub fn copy_in(&self, from: &PageBytes) {
        self.piece().copy_in(from);
    }
}

/// The pages by their numbers: those that follow each other lie side by side.
pub(crate) fn sorted(pages: &[Page]) -> Vec<Page> {
    let mut pages = pages.to_vec();
    pages.sort_unstable_by_key(|page| page.id);
    pages
}

/// The offset of a page in a file that has it by its number.
pub(crate) fn offset_of(page: PageId) -> u64 {
    u64::from(page) * PAGE_BYTES as u64
}
