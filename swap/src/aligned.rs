//! Private memory that devices read and write without the page cache, which takes pages at their boundaries alone.

use crate::page::{PAGE_BYTES, PageBytes};
use crate::piece::Piece;

/// A page of this process's own.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct AlignedPage(pub PageBytes);

impl AlignedPage {
    pub const ZERO: Self = Self([0; PAGE_BYTES]);

    /// The bytes of pages.
    pub fn bytes(pages: &[Self]) -> &[u8] {
        // SAFETY: a page is its bytes and nothing else, so they follow each other, and they are borrowed as the pages are.
        unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), size_of_val(pages)) }
    }

    /// The bytes of pages, to be changed.
    pub fn bytes_mut(pages: &mut [Self]) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), size_of_val(pages)) }
    }

    /// Pages as one piece, for a device.
    pub fn piece(pages: &mut [Self]) -> Piece<'_> {
        let len = size_of_val(pages);
        // SAFETY: the pages are borrowed for as long as the piece lives.
        unsafe { Piece::new(pages.as_mut_ptr().cast(), len) }
    }
}
