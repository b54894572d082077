//! Steps out of the host, and how they fail.

use std::io;

/// Why the host could not be left.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    #[error(
        "cannot jail the sandbox: {step} failed: {source}; run it as root or on a file system that can be left"
    )]
    Step { step: &'static str, source: io::Error },
    #[error(
        "cannot choose the sandbox's user namespace: only root may; leave out --userns, or run dormouse as root"
    )]
    NeedsRoot,
    #[error(
        "cannot make the sandbox's user namespace: its id 0 is none of the host's; map it, for users and groups"
    )]
    NoRoot,
    #[error("cannot restrict the VMM's system calls: {0}; the host's kernel needs seccomp filters")]
    Filter(String),
}

impl JailError {
    /// Whether this is the host's error for changing the mount at `/` where there is none, as in a chroot.
    pub(super) fn is_of_chroot(&self) -> bool {
        matches!(self, Self::Step { source, .. } if source.raw_os_error() == Some(libc::EINVAL))
    }
}

/// Takes a step; a negative result says that it failed, with the reason in `errno`.
pub(super) fn step(name: &'static str, run: impl FnOnce() -> i64) -> Result<(), JailError> {
    if run() >= 0 { Ok(()) } else { Err(JailError::Step { step: name, source: io::Error::last_os_error() }) }
}

/// `prctl(2)` of options that take two numbers; the result.
pub(super) fn prctl_with(option: i32, first: u64, second: u64) -> io::Result<i32> {
    // SAFETY: the options passed to this take integers only.
    let result = unsafe { libc::prctl(option, first, second, 0_u64, 0_u64) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
