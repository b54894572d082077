//! Caches of what the host says about files.

use crate::fs::{dentry, hostfs};

/// Gives back what the kernel keeps of files only to ask the host less: names, attributes, listings, handles, and
/// copies of pages that nobody maps.
pub fn shrink() {
    dentry::shrink();
    hostfs::forget_listings();
    hostfs::close_kept();
    machine::objects::trim();
    machine::mm::copies::let_go();
}
