//! The host name.

use alloc::vec::Vec;
use machine::sync::{Rank, SpinLock};

static HOSTNAME: SpinLock<Vec<u8>> = SpinLock::new(Rank::Leaf, Vec::new());

/// Sets the sandbox's host name.
pub fn set_hostname(name: &[u8]) {
    *HOSTNAME.lock() = name.to_vec();
}

/// The sandbox's host name.
pub fn hostname() -> Vec<u8> {
    HOSTNAME.lock().clone()
}
