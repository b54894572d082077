//! Names of descriptors, by which they are opened anew.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A descriptor's name in `/proc/self/fd`, zero-terminated.
pub(crate) struct FdName([u8; 32]);

impl FdName {
    pub(crate) fn new(prefix: &str, fd: BorrowedFd<'_>) -> Self {
        use std::io::Write;
        let mut text = [0; 32];
        let _ = write!(&mut text[..31], "{prefix}{}", fd.as_raw_fd());
        Self(text)
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}
