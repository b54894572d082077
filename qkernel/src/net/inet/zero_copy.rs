//! `MSG_ZEROCOPY`: bytes are copied as ever, and the socket's error queue tells so, as Linux does where it had to copy.

use alloc::vec;
use alloc::vec::Vec;

use crate::net::families::AF_INET;
use machine::errno::{Errno, Result};

const SOL_IP: u32 = 0;
const IP_RECVERR: u32 = 11;
const SOL_IPV6: u32 = 41;
const IPV6_RECVERR: u32 = 25;
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;
/// Bytes of `struct cmsghdr`, and of `struct sock_extended_err` with the address behind it.
const HEADER_BYTES: usize = 16;
const ERROR_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 16;
const ADDRESS6_BYTES: usize = 28;

/// The messages that a socket has sent by `MSG_ZEROCOPY`. They are numbered from 0, and told of in ranges.
#[derive(Default)]
pub struct ZeroCopy {
    is_on: bool,
    next: u32,
    /// The first message that was not told of.
    untold: u32,
}

impl ZeroCopy {
    /// `SO_ZEROCOPY`.
    pub fn set(&mut self, value: &[u8]) -> Result<()> {
        let value = value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)?;
        if !(0..=1).contains(&value) {
            return Err(Errno::EINVAL);
        }
        self.is_on = value == 1;
        Ok(())
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether something is to be told.
    pub fn is_due(&self) -> bool {
        self.next != self.untold
    }

    /// A message was sent; true: that is to be told.
    pub fn sent(&mut self) -> bool {
        if self.is_on {
            self.next = self.next.wrapping_add(1);
        }
        self.is_on
    }

    /// The control message that tells of all that is due.
    pub fn tell(&mut self, family: u16) -> Option<Vec<u8>> {
        if !self.is_due() {
            return None;
        }
        let (first, last) = (self.untold, self.next.wrapping_sub(1));
        self.untold = self.next;
        let (level, kind, address) = if family == AF_INET {
            (SOL_IP, IP_RECVERR, ADDRESS_BYTES)
        } else {
            (SOL_IPV6, IPV6_RECVERR, ADDRESS6_BYTES)
        };
        let len = HEADER_BYTES + ERROR_BYTES + address;
        let mut message = vec![0; len.next_multiple_of(8)];
        let mut put = |at: usize, field: &[u8]| message[at..at + field.len()].copy_from_slice(field);
        put(0, &(len as u64).to_ne_bytes());
        put(8, &level.to_ne_bytes());
        put(12, &kind.to_ne_bytes());
        put(HEADER_BYTES + 4, &[ORIGIN_ZEROCOPY, 0, CODE_COPIED]);
        put(HEADER_BYTES + 8, &first.to_ne_bytes());
        put(HEADER_BYTES + 12, &last.to_ne_bytes());
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_of_in_ranges() {
        let mut it = ZeroCopy::default();
        assert!(!it.sent() && it.tell(AF_INET).is_none());
        assert_eq!(it.set(&[2, 0, 0, 0]), Err(Errno::EINVAL));
        assert_eq!(it.set(&[1, 0]), Err(Errno::EINVAL));
        it.set(&[1, 0, 0, 0]).unwrap();
        assert!(it.sent() && it.sent() && it.is_due());
        let told = it.tell(AF_INET).unwrap();
        assert_eq!((told.len(), told[0], told[12], told[20], told[22]), (48, 48, 11, 5, 1));
        assert_eq!((told[24], told[28]), (0, 1));
        assert!(!it.is_due() && it.tell(AF_INET).is_none());
        assert!(it.sent());
        let told = it.tell(10).unwrap();
        assert_eq!((told.len(), told[0], told[8], told[24], told[28]), (64, 60, 41, 2, 2));
    }
}
