//! Counts what programs send and write to the outside: bytes for host files, streams and the host's network, and changes of the
//! host's directories. The count only tells whether anything was written between two looks.

use core::sync::atomic::{AtomicU64, Ordering};

static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Something has been sent or written.
pub fn note() {
    WRITTEN.fetch_add(1, Ordering::Relaxed);
}

/// How often, so far.
pub fn count() -> u64 {
    WRITTEN.load(Ordering::Relaxed)
}
