//! Descriptors by their numbers: those that a process keeps, and those that its caller left open for it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::calls::check;

/// Puts `keep` at the numbers from 3 on, in order, and closes every other descriptor from there.
///
/// # Safety
/// Nothing else in the process may own or use a descriptor above 2 afterwards.
pub unsafe fn keep_only<const N: usize>(keep: [OwnedFd; N]) -> io::Result<[OwnedFd; N]> {
    // SAFETY: the caller's promise.
    let kept = unsafe { keep_all(keep.into()) }?;
    kept.try_into().map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Keeps only some descriptors as [`keep_only`] does; those that are `None` take no number.
///
/// # Safety
/// As [`keep_only`].
pub unsafe fn keep_some<const N: usize>(keep: [Option<OwnedFd>; N]) -> io::Result<[Option<OwnedFd>; N]> {
    let are_there = keep.each_ref().map(Option::is_some);
    // SAFETY: the caller's promise.
    let mut kept = unsafe { keep_all(keep.into_iter().flatten().collect()) }?.into_iter();
    Ok(are_there.map(|is_there| if is_there { kept.next() } else { None }))
}

/// Keeps only these descriptors as [`keep_only`] does, for any number of them.
///
/// # Safety
/// As [`keep_only`].
pub unsafe fn keep_all(keep: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    let first = 3 + RawFd::try_from(keep.len()).unwrap_or(0);
    let mut kept = Vec::with_capacity(keep.len());
    // Out of the way first, so that no target number is still in use by another one to keep.
    for fd in keep {
        // SAFETY: a plain duplication of a live descriptor.
        kept.push(check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, first) })?);
        std::mem::forget(fd);
    }
    for (target, source) in (3..).zip(&kept) {
        // SAFETY: the caller gave up every descriptor above 2.
        check(unsafe { libc::dup3(*source, target, libc::O_CLOEXEC) })?;
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    // SAFETY: the numbers from 3 on are the copies made above, and nobody else owns them.
    Ok((3..first).map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}

/// Takes the descriptors 3 to 2 + `count` that the caller left open, away from these numbers. The error has the number of
/// the one that is not open.
///
/// # Safety
/// This process has not opened any descriptor of its own that is still open.
pub unsafe fn take_inherited(count: usize) -> Result<Vec<OwnedFd>, (RawFd, io::Error)> {
    let end = 3 + RawFd::try_from(count).unwrap_or(RawFd::MAX - 3);
    let mut taken = Vec::with_capacity(count);
    for number in 3..end {
        // SAFETY: a plain duplication of a number; the copy is in nobody else's hands.
        let copy = unsafe {
            check(libc::fcntl(number, libc::F_DUPFD_CLOEXEC, end)).map(|fd| OwnedFd::from_raw_fd(fd))
        };
        taken.push(copy.map_err(|error| (number, error))?);
    }
    // SAFETY: by the caller's promise nobody in this process owns these numbers.
    (3..end).for_each(|number| unsafe { drop(OwnedFd::from_raw_fd(number)) });
    Ok(taken)
}

/// Raises the limit of open files as far as this process may; result: the limit. The programs of a sandbox meet limits of
/// their own, which are to come first.
pub fn raise_open_files() -> u64 {
    /// The host's `fs.nr_open`, as it is by default.
    const MOST: u64 = 1 << 20;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live for both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 256;
        }
        let most = libc::rlimit { rlim_cur: MOST, rlim_max: MOST };
        if limit.rlim_max < MOST && libc::setrlimit(libc::RLIMIT_NOFILE, &raw const most) == 0 {
            return MOST;
        }
        let soft = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 { limit.rlim_max } else { soft }
    }
}

/// The ways that a descriptor is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub reads: bool,
    pub writes: bool,
}

/// The ways that a descriptor is open; neither for one that only names a file (`O_PATH`).
pub fn access(fd: BorrowedFd<'_>) -> io::Result<Access> {
    // SAFETY: integers only.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    let (is_path, mode) = (flags & libc::O_PATH != 0, flags & libc::O_ACCMODE);
    Ok(Access { reads: !is_path && mode != libc::O_WRONLY, writes: !is_path && mode != libc::O_RDONLY })
}
