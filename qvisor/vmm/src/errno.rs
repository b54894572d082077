//! Errors of the host: as numbers for the guest, and as sentences for the user.

use std::io;

/// A positive Linux error number.
///
/// Not the kernel's type of that name: this one is made from [`io::Error`] and shows itself as one, which a type that the
/// `no_std` kernel shares cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The error of the system call this thread just made.
    #[must_use]
    pub fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// The result of a hostcall that fails with this error: its number, negated.
    #[must_use]
    pub fn as_result(self) -> i64 {
        -i64::from(self.0)
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f)
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// A call of the host's that failed, and its purpose.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct HostError {
    pub what: &'static str,
    pub source: io::Error,
}

impl HostError {
    /// The error of the call this thread just made.
    #[must_use]
    pub fn last(what: &'static str) -> Self {
        Self { what, source: io::Error::last_os_error() }
    }
}
