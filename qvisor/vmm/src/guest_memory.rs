//! Guest memory as host calls see it: checked ranges, copied once.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use abi::hostcall::{HostLock, HostStat, HostStatFs, SEGMENTS_MAX, Segment, SetAttr};

use crate::errno::Errno;
use crate::memory::SandboxMemory;

/// Most bytes of one vectored call, as in Linux.
pub const TRANSFER_MAX: u64 = 0x7fff_f000;

/// Guest-physical memory that host calls may read and write: kernel and user memory, not the file window
/// (a mapped file may be truncated under us).
///
/// # Safety
/// A pointer from [`GuestMemory::slice`] must stay readable and writable for `len` bytes as long as `self` lives.
/// The bytes are shared with the guest; nobody may make a Rust reference to them.
pub unsafe trait GuestMemory: Sync {
    /// Host address of `len` bytes at `phys`, or `None` when any of them is not memory of one region.
    fn slice(&self, phys: u64, len: u64) -> Option<*mut u8>;
}

// SAFETY: the reservation lives as long as the value, `host_ptr` hands out only kernel and user memory, and pages given
// back to the host read as zeros. Nobody makes references to guest memory.
unsafe impl GuestMemory for SandboxMemory {
    fn slice(&self, phys: u64, len: u64) -> Option<*mut u8> {
        self.host_ptr(phys, len)
    }
}

/// A checked range of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct GuestSlice<'m> {
    ptr: *mut u8,
    len: usize,
    memory: PhantomData<&'m ()>,
}

// SAFETY: the range is plain shared memory; every access is a raw copy or a system call on the address.
unsafe impl Send for GuestSlice<'_> {}

impl<'m> GuestSlice<'m> {
    /// Checks the range; `EFAULT` when it is not guest memory.
    pub fn new<M: GuestMemory + ?Sized>(memory: &'m M, phys: u64, len: u64) -> Result<Self, Errno> {
        let size = usize::try_from(len).map_err(|_| Errno(libc::EFAULT))?;
        let ptr = if len == 0 {
            std::ptr::null_mut()
        } else {
            memory.slice(phys, len).ok_or(Errno(libc::EFAULT))?
        };
        Ok(Self { ptr, len: size, memory: PhantomData })
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for a system call that reads or writes the range.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The first `len` bytes of the range, or all of it.
    #[must_use]
    pub fn truncated(self, len: usize) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// The range from byte `at` on; nothing, if it ends before.
    #[must_use]
    pub fn from(self, at: usize) -> Self {
        let at = at.min(self.len);
        // SAFETY: no further than the end of the range. Of an empty one the pointer stays as it is.
        Self { ptr: unsafe { self.ptr.add(at) }, len: self.len - at, ..self }
    }

    /// Copies the range out of shared memory; later changes by the guest do not matter any more.
    #[must_use]
    pub fn copy_in(&self) -> Vec<u8> {
        let mut bytes = vec![0_u8; self.len];
        self.copy_to(&mut bytes);
        bytes
    }

    fn copy_to(&self, bytes: &mut [u8]) {
        let len = self.len.min(bytes.len());
        if len > 0 {
            // SAFETY: `GuestMemory::slice` promised `self.len` readable bytes; `bytes` is ours and cannot overlap.
            unsafe { std::ptr::copy_nonoverlapping(self.ptr, bytes.as_mut_ptr(), len) };
        }
    }

    /// Writes the start of the range; bytes that do not fit are left out.
    pub fn write(&self, bytes: &[u8]) {
        let len = self.len.min(bytes.len());
        if len > 0 {
            // SAFETY: `GuestMemory::slice` promised `self.len` writable bytes; `bytes` is ours and cannot overlap.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr, len) };
        }
    }
}

impl GuestSlice<'_> {
    /// Writes structures one after another; bytes that do not fit are left out.
    pub fn write_all_of<T: Plain>(&self, values: &[T]) {
        // SAFETY: `T: Plain` has no padding, so each byte of the values is initialised.
        self.write(unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) });
    }
}

/// A structure of the interface: only integers, no padding, any bit pattern is a value.
///
/// # Safety
/// The type must be `#[repr(C)]`, made of integers only, without padding.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: integers only; the sizes pinned in `abi` leave no room for padding.
unsafe impl Plain for HostStat {}
// SAFETY: as above.
unsafe impl Plain for HostStatFs {}
// SAFETY: as above.
unsafe impl Plain for HostLock {}
// SAFETY: as above.
unsafe impl Plain for SetAttr {}
// SAFETY: as above.
unsafe impl Plain for Segment {}
// SAFETY: as above.
unsafe impl Plain for abi::socket::Message {}

/// The place of one structure in guest memory.
#[derive(Clone, Copy, Debug)]
pub struct GuestBox<'m, T: Plain> {
    slice: GuestSlice<'m>,
    kind: PhantomData<T>,
}

impl<'m, T: Plain> GuestBox<'m, T> {
    /// Checks the range.
    pub fn new<M: GuestMemory + ?Sized>(memory: &'m M, phys: u64) -> Result<Self, Errno> {
        let slice = GuestSlice::new(memory, phys, size_of::<T>() as u64)?;
        Ok(Self { slice, kind: PhantomData })
    }

    /// Copies the structure out.
    #[must_use]
    pub fn read(&self) -> T {
        let mut value = T::default();
        // SAFETY: `T: Plain` has no padding and takes every bit pattern, so its bytes may be overwritten freely.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut value).cast::<u8>(), size_of::<T>()) };
        self.slice.copy_to(bytes);
        value
    }

    /// Copies `value` in.
    pub fn write(&self, value: &T) {
        // SAFETY: `T: Plain` has no padding, so each of its bytes is initialised.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) };
        self.slice.write(bytes);
    }
}

/// Checked buffers of a vectored call.
#[derive(Debug)]
pub struct GuestBuffers<'m> {
    iovecs: Vec<libc::iovec>,
    memory: PhantomData<&'m ()>,
}

// SAFETY: the ranges are plain shared memory, used only by system calls on the addresses.
unsafe impl Send for GuestBuffers<'_> {}

impl<'m> GuestBuffers<'m> {
    /// Copies and checks `count` segments: each in guest memory, all together no longer than a Linux transfer.
    pub fn new<M: GuestMemory + ?Sized>(
        memory: &'m M,
        segments_phys: u64,
        count: u64,
    ) -> Result<Self, Errno> {
        if count > SEGMENTS_MAX {
            return Err(Errno(libc::EINVAL));
        }
        let bytes = GuestSlice::new(memory, segments_phys, count * size_of::<Segment>() as u64)?.copy_in();
        let mut iovecs = Vec::with_capacity(bytes.len() / size_of::<Segment>());
        let mut left = TRANSFER_MAX;
        for entry in bytes.chunks_exact(size_of::<Segment>()) {
            let (phys, len) = (read_u64(entry, 0), read_u64(entry, 8));
            let slice = GuestSlice::new(memory, phys, len)?;
            let slice = slice.truncated(usize::try_from(left).unwrap_or(usize::MAX));
            left -= slice.len() as u64;
            if !slice.is_empty() {
                iovecs.push(libc::iovec { iov_base: slice.as_ptr().cast(), iov_len: slice.len() });
            }
        }
        Ok(Self { iovecs, memory: PhantomData })
    }

    /// The buffers, for a system call.
    #[must_use]
    pub fn iovecs(&self) -> &[libc::iovec] {
        &self.iovecs
    }

    /// Sum of the lengths in bytes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.iovecs.iter().map(|v| v.iov_len).sum()
    }

    /// Shortens the buffers to `most` bytes in all.
    pub fn truncate(&mut self, most: usize) {
        let mut left = most;
        for iovec in &mut self.iovecs {
            iovec.iov_len = iovec.iov_len.min(left);
            left -= iovec.iov_len;
        }
        self.iovecs.retain(|v| v.iov_len > 0);
    }
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostcall::testing::TestMemory;

    #[test]
    fn segments_are_checked_and_bounded() {
        let memory = TestMemory::new();
        let segments = memory.put_segments(&[(memory.base() + 0x1000, 16), (memory.base() + 0x2000, 0)]);
        let buffers = GuestBuffers::new(&memory, segments, 2).unwrap();
        assert_eq!((buffers.iovecs().len(), buffers.total()), (1, 16));
        let outside = memory.put_segments(&[(memory.end() - 8, 16)]);
        assert_eq!(GuestBuffers::new(&memory, outside, 1).unwrap_err(), Errno(libc::EFAULT));
        let wrapping = memory.put_segments(&[(u64::MAX - 4, 16)]);
        assert_eq!(GuestBuffers::new(&memory, wrapping, 1).unwrap_err(), Errno(libc::EFAULT));
        assert_eq!(GuestBuffers::new(&memory, segments, 257).unwrap_err(), Errno(libc::EINVAL));
        assert_eq!(GuestBuffers::new(&memory, segments, u64::MAX).unwrap_err(), Errno(libc::EINVAL));
    }

    #[test]
    fn truncation_keeps_the_front() {
        let memory = TestMemory::new();
        let base = memory.base() + 0x1000;
        let segments = memory.put_segments(&[(base, 16), (base + 32, 16), (base + 64, 16)]);
        let mut buffers = GuestBuffers::new(&memory, segments, 3).unwrap();
        buffers.truncate(20);
        assert_eq!((buffers.iovecs().len(), buffers.total()), (2, 20));
    }

    #[test]
    fn structures_go_both_ways() {
        let memory = TestMemory::new();
        let at = GuestBox::<SetAttr>::new(&memory, memory.base() + 0x100).unwrap();
        at.write(&SetAttr { valid: 3, mode: 0o644, ..SetAttr::default() });
        assert_eq!(at.read().mode, 0o644);
        assert!(GuestBox::<SetAttr>::new(&memory, memory.end() - 39).is_err());
    }
}
