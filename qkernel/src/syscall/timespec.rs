//! `struct timespec` and `struct timeval`.

use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::time::NSEC;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct timespec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: i64,
}

/// `struct timeval`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Timeval {
    pub sec: i64,
    pub usec: i64,
}

impl Timespec {
    /// Nanoseconds; `EINVAL` when negative or not normal. A time that does not fit becomes the largest number.
    pub fn to_ns(self) -> Result<u64> {
        let sec = u64::try_from(self.sec).map_err(|_| Errno::EINVAL)?;
        let nsec = u64::try_from(self.nsec).ok().filter(|nsec| *nsec < NSEC).ok_or(Errno::EINVAL)?;
        Ok(sec.saturating_mul(NSEC).saturating_add(nsec))
    }

    /// The time of so many nanoseconds.
    pub fn from_ns(ns: u64) -> Self {
        Self { sec: (ns / NSEC).cast_signed(), nsec: (ns % NSEC).cast_signed() }
    }
}

impl Timeval {
    /// Nanoseconds; `EINVAL` when negative or not normal.
    pub fn to_ns(self) -> Result<u64> {
        let usec = u64::try_from(self.usec).ok().filter(|usec| *usec < 1_000_000).ok_or(Errno::EINVAL)?;
        Timespec { sec: self.sec, nsec: (usec * 1000).cast_signed() }.to_ns()
    }

    /// The time of so many nanoseconds, rounded down.
    pub fn from_ns(ns: u64) -> Self {
        let Timespec { sec, nsec } = Timespec::from_ns(ns);
        Self { sec, usec: nsec / 1000 }
    }
}

/// Reads a `struct timespec` as nanoseconds unless the address is null.
pub(super) fn read_timespec_opt(cx: &Ctx<'_>, addr: UserAddr) -> Result<Option<u64>> {
    cx.user().read_opt::<Timespec>(addr)?.map(Timespec::to_ns).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_checked_and_converted() {
        assert_eq!(Timespec { sec: 1, nsec: 5 }.to_ns(), Ok(NSEC + 5));
        assert_eq!(Timespec { sec: 0, nsec: 1_000_000_000 }.to_ns(), Err(Errno::EINVAL));
        assert_eq!(Timespec { sec: -1, nsec: 0 }.to_ns(), Err(Errno::EINVAL));
        assert_eq!(Timespec { sec: i64::MAX, nsec: 0 }.to_ns(), Ok(u64::MAX));
        assert_eq!(Timeval { sec: 2, usec: 3 }.to_ns(), Ok(2 * NSEC + 3000));
        assert_eq!(Timeval { sec: 0, usec: 1_000_000 }.to_ns(), Err(Errno::EINVAL));
        assert_eq!(Timespec::from_ns(3 * NSEC + 7), Timespec { sec: 3, nsec: 7 });
    }
}
