//! Counters of the kernel that the VMM shows. The VMM reads them at any time, without the kernel's help, and takes them
//! as hearsay.

use core::sync::atomic::{AtomicU64, Ordering};

/// Lies in kernel memory for good; [`crate::hostcall::STATS`] says where. Brought up to date when a CPU goes idle, and
/// when one is kicked.
#[repr(C)]
#[derive(Debug, Default)]
pub struct KernelStats {
    /// Frames of user memory that are in use.
    pub user_frames: AtomicU64,
    /// Those of them whose content is in the home of pages.
    pub swapped_frames: AtomicU64,
    /// Bytes of the kernel's heap that are in use.
    pub heap_bytes: AtomicU64,
    /// System calls that the kernel does not have and programs made, each time.
    pub unknown_calls: AtomicU64,
    /// Pages that were copied to patch call sites in them, so far.
    pub patched_pages: AtomicU64,
    /// Pages that were free and went back to the host while the sandbox ran, so far.
    pub returned_pages: AtomicU64,
}
pin_layout!(
    KernelStats, 48, user_frames: 0, swapped_frames: 8, heap_bytes: 16, unknown_calls: 24, patched_pages: 32, returned_pages: 40
);

/// The VMM's copy of [`KernelStats`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelFigures {
    /// See [`KernelStats::user_frames`].
    pub user_frames: u64,
    /// See [`KernelStats::swapped_frames`].
    pub swapped_frames: u64,
    /// See [`KernelStats::heap_bytes`].
    pub heap_bytes: u64,
    /// See [`KernelStats::unknown_calls`].
    pub unknown_calls: u64,
    /// See [`KernelStats::patched_pages`].
    pub patched_pages: u64,
    /// See [`KernelStats::returned_pages`].
    pub returned_pages: u64,
}
pin_layout!(
    KernelFigures, 48, user_frames: 0, swapped_frames: 8, heap_bytes: 16, unknown_calls: 24, patched_pages: 32, returned_pages: 40
);

impl KernelStats {
    /// All zeros.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            user_frames: AtomicU64::new(0),
            swapped_frames: AtomicU64::new(0),
            heap_bytes: AtomicU64::new(0),
            unknown_calls: AtomicU64::new(0),
            patched_pages: AtomicU64::new(0),
            returned_pages: AtomicU64::new(0),
        }
    }

    /// Sets what is measured.
    pub fn set(&self, user_frames: u64, swapped_frames: u64, heap_bytes: u64) {
        self.user_frames.store(user_frames, Ordering::Relaxed);
        self.swapped_frames.store(swapped_frames, Ordering::Relaxed);
        self.heap_bytes.store(heap_bytes, Ordering::Relaxed);
    }
}
