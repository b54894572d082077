//! Host files. Stands in until host I/O is there.

use std::os::fd::OwnedFd;

use abi::HostCall;

use crate::sandbox::Sandbox;

/// The host objects the kernel holds handles of.
#[derive(Debug, Default)]
pub struct FileTable {}

impl FileTable {
    /// A duplicate of the file behind a handle.
    #[must_use]
    pub fn descriptor(&self, _handle: u32) -> Option<OwnedFd> {
        None
    }
}

/// Carries out one call from `OPEN` on.
pub fn handle(_sandbox: &Sandbox, _cpu: u32, _call: &HostCall) -> i64 {
    -i64::from(libc::ENOSYS)
}
