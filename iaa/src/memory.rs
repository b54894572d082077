//! Memory that a device reads and writes by address, at times of its own.

#![allow(unsafe_code)]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    mem,
    ops::Range,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering, fence},
    },
};

/// Zeroed memory, aligned as descriptors and completion records are. It is reached by copies only: nobody ever has a reference
/// to it, so that a device may write to it at any time. It goes when the last handle does.
#[derive(Clone)]
pub struct Shared(Arc<Allocation>);

struct Allocation {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the memory belongs to the allocation, and every access is by raw copies or atomic.
unsafe impl Send for Allocation {}
// SAFETY: as above. Two copies at once may mix their bytes, as with a device; bytes have no invalid values.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with this layout, and the last handle to it goes.
        unsafe { dealloc(self.start, self.layout) };
    }
}

impl Shared {
    const ALIGN: usize = 64;

    /// Makes memory of `len` bytes, all 0.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), Self::ALIGN).expect("a few megabytes at most");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        let memory = Self(Arc::new(Allocation { start, layout }));
        // A device stops where a page is not there yet.
        (0..len).step_by(4096).for_each(|at| memory.touch(at));
        memory
    }

    /// Its addresses.
    #[must_use]
    pub fn addresses(&self) -> Range<u64> {
        let start = self.0.start.expose_provenance() as u64;
        start..start + self.0.layout.size() as u64
    }

    /// The address of a place in it.
    #[must_use]
    pub fn address(&self, at: usize) -> u64 {
        self.addresses().start + at as u64
    }

    fn check(&self, at: usize, len: usize) {
        assert!(
            at <= self.0.layout.size() && len <= self.0.layout.size() - at,
            "memory is used within its bounds"
        );
    }

    /// Copies to it.
    ///
    /// # Panics
    /// If it is not within the memory.
    pub fn write(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        // SAFETY: the range is within the allocation; `from` is a reference, and there is none to the allocation.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.0.start.add(at), from.len()) };
    }

    /// Copies from it.
    ///
    /// # Panics
    /// If it is not within the memory.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        self.check(at, to.len());
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(self.0.start.add(at), to.as_mut_ptr(), to.len()) };
    }

    /// A byte that says that what was written before it can be read.
    #[must_use]
    pub fn load(&self, at: usize) -> u8 {
        self.check(at, 1);
        // SAFETY: the byte is within the allocation, and an atomic byte has no alignment.
        unsafe { AtomicU8::from_ptr(self.0.start.add(at)) }.load(Ordering::Acquire)
    }

    /// Writes such a byte, after everything before.
    pub fn store(&self, at: usize, byte: u8) {
        self.check(at, 1);
        fence(Ordering::Release);
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(self.0.start.add(at)) }.store(byte, Ordering::Release);
    }

    /// Has the page of a place brought in for writing. What is there stays, whoever else writes meanwhile.
    pub fn touch(&self, at: usize) {
        self.check(at, 1);
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(self.0.start.add(at)) }.fetch_or(0, Ordering::Relaxed);
    }

    /// Keeps the memory for ever: a device that does not answer may still write to it.
    pub fn leak(self) {
        mem::forget(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_zeroed_and_kept_to() {
        let memory = Shared::new(100);
        assert_eq!(memory.addresses().start % 64, 0);
        let mut bytes = [1; 100];
        memory.read(0, &mut bytes);
        assert_eq!(bytes, [0; 100]);
        memory.write(90, &[7; 10]);
        memory.store(99, 9);
        memory.read(88, &mut bytes[..12]);
        assert_eq!((&bytes[..3], bytes[11], memory.load(99)), (&[0, 0, 7][..], 9, 9));
    }

    #[test]
    fn two_handles_are_of_the_same_memory() {
        let memory = Shared::new(8);
        memory.clone().write(0, &[3]);
        assert_eq!(memory.load(0), 3);
    }
}
