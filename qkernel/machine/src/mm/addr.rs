//! Addresses as types of their own, so that no length is taken for one.

use abi::layout::USER_MAX;
use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::page::PAGE;

/// An address in a program's memory, as the program named it: any 64-bit value, checked where memory is touched.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, FromBytes, Immutable, IntoBytes)]
pub struct UserAddr(u64);

impl UserAddr {
    /// The address that stands for none.
    pub const NULL: Self = Self(0);

    #[inline]
    pub const fn new(addr: u64) -> Self {
        Self(addr)
    }

    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    #[inline]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Whether it lies where programs have their memory.
    #[inline]
    pub const fn is_user(self) -> bool {
        self.0 < USER_MAX
    }

    /// Whether `len` bytes from here end in user memory, or where it ends.
    #[inline]
    pub const fn has_room(self, len: u64) -> bool {
        match self.0.checked_add(len) {
            Some(end) => end <= USER_MAX,
            None => false,
        }
    }

    /// Whether it is a multiple of `bytes`.
    #[inline]
    pub const fn is_aligned(self, bytes: u64) -> bool {
        self.0.is_multiple_of(bytes)
    }

    /// The address `bytes` further on. Beyond the last address there is none that a copy accepts, so it stays at the last.
    #[inline]
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }

    /// The address `bytes` further on; `None` beyond the last one.
    #[inline]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// Bytes up to the end of its page, 1 to [`PAGE`].
    #[inline]
    pub const fn left_in_page(self) -> u64 {
        PAGE - self.0 % PAGE
    }
}

impl fmt::LowerHex for UserAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl fmt::Debug for UserAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_beyond_the_last_one_has_no_room() {
        let last = UserAddr::new(u64::MAX);
        assert_eq!(last.offset(8), last);
        assert_eq!(last.checked_add(1), None);
        assert!(!last.has_room(1) && !last.has_room(0) && !last.is_user());
        assert!(UserAddr::new(USER_MAX - 8).has_room(8) && !UserAddr::new(USER_MAX - 8).has_room(9));
    }

    #[test]
    fn a_page_is_left_at_its_start_and_a_byte_at_its_end() {
        assert_eq!(UserAddr::NULL.left_in_page(), PAGE);
        assert_eq!(UserAddr::new(2 * PAGE - 1).left_in_page(), 1);
    }

    #[test]
    fn addresses_are_shown_in_hexadecimal() {
        assert_eq!(alloc::format!("{:?} {:x}", UserAddr::new(0xabc), UserAddr::new(0xabc)), "0xabc abc");
    }
}
