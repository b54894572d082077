//! Pieces of memory that a device reads or writes.

use std::marker::PhantomData;

use crate::shared;

/// A range of memory that others may read and write meanwhile; as the host's kernel takes it (`struct iovec`).
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Piece<'a> {
    range: libc::iovec,
    memory: PhantomData<&'a ()>,
}

impl<'a> Piece<'a> {
    /// `len` bytes at `addr`.
    ///
    /// # Safety
    /// For `'a` the range is mapped, readable and writable, and nobody uses a Rust reference to any of it.
    #[must_use]
    pub unsafe fn new(addr: *mut u8, len: usize) -> Self {
        Self { range: libc::iovec { iov_base: addr.cast(), iov_len: len }, memory: PhantomData }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.iov_len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn addr(&self) -> *mut u8 {
        self.range.iov_base.cast()
    }

    /// Its first `len` bytes, or all of it.
    #[must_use]
    pub fn first(self, len: usize) -> Self {
        let range = libc::iovec { iov_len: self.len().min(len), ..self.range };
        Self { range, ..self }
    }

    /// Returns the rest of it, without its first `len` bytes.
    #[must_use]
    pub fn skip(self, len: usize) -> Self {
        let len = self.len().min(len);
        let range = libc::iovec { iov_base: self.addr().wrapping_add(len).cast(), iov_len: self.len() - len };
        Self { range, ..self }
    }

    /// This piece and `next` as one, if `next` follows it in memory.
    #[must_use]
    pub fn joined(self, next: Self) -> Option<Self> {
        let range = libc::iovec { iov_len: self.len() + next.len(), ..self.range };
        (self.addr().wrapping_add(self.len()) == next.addr()).then_some(Self { range, ..self })
    }

    /// Copies the front out of it, as much as both hold.
    pub fn copy_out(&self, to: &mut [u8]) {
        // SAFETY: the promise of `new`; nobody else has `to`, so that the two do not overlap.
        unsafe { shared::copy(to.as_mut_ptr(), self.addr(), self.len().min(to.len())) };
    }

    /// Copies to the front of it, as much as both hold.
    pub fn copy_in(&self, from: &[u8]) {
        // SAFETY: as above.
        unsafe { shared::copy(self.addr(), from.as_ptr(), self.len().min(from.len())) };
    }

    /// Writes `word` over it, as often as it fits.
    pub fn fill(&self, word: u64) {
        // SAFETY: as above.
        unsafe { shared::fill(self.addr(), word, self.len() / size_of::<u64>()) };
    }

    /// Pieces as the host's kernel takes them.
    #[must_use]
    pub fn as_iovecs(pieces: &[Self]) -> *const libc::iovec {
        pieces.as_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_and_joined() {
        let mut bytes: Vec<u8> = (0..64).collect();
        // SAFETY: the bytes are used by the piece alone until it goes.
        let all = unsafe { Piece::new(bytes.as_mut_ptr(), bytes.len()) };
        let (front, back) = (all.first(24), all.skip(24));
        assert_eq!((front.len(), back.len(), all.skip(99).len(), all.first(99).len()), (24, 40, 0, 64));
        assert_eq!(front.joined(back).map(|piece| piece.len()), Some(64));
        assert!(back.joined(front).is_none());
        let mut copy = [0; 3];
        back.copy_out(&mut copy);
        assert_eq!(copy, [24, 25, 26]);
        front.copy_in(&[9; 2]);
        back.first(17).fill(u64::MAX);
        front.copy_out(&mut copy);
        assert_eq!(copy, [9, 9, 2]);
        assert_eq!(bytes[24..42], [[255; 16].as_slice(), &[40, 41]].concat());
    }
}
