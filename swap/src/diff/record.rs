//! Records of pages that are neither zero nor one of the base's: a head, and bytes.

use crate::page::{Class, PageId};

/// Bytes of a head.
pub const HEAD_BYTES: usize = 12;
/// A page of more bytes is kept as it is ("Phoenix", section 3.5).
pub const PACKED_MAX: usize = 4088;

/// In which way a page is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// One word, repeated
    Word,
    /// Words that differ from a page of the base
    Xor,
    /// Those, packed by LZ4
    XorPacked,
    /// By LZ4, without the base
    Packed,
    /// Unchanged
    Raw,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Word, Self::Xor, Self::XorPacked, Self::Packed, Self::Raw];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub kind: Kind,
    pub class: Class,
    /// Bytes that follow.
    pub len: u16,
    /// The page of the base that it differs from.
    pub base: PageId,
    /// The checksum of the page.
    pub sum: u32,
}

impl Head {
    pub fn bytes(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.class.number();
        bytes[2..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.base.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sum.to_le_bytes());
        bytes
    }

    /// The head at the front of `bytes`, and what follows it. `None`: there is none.
    pub fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let [kind, class, len @ ..] = head;
        let (len, numbers) = len.split_first_chunk::<2>()?;
        let (base, sum) = numbers.split_first_chunk::<4>()?;
        let head = Self {
            kind: Kind::from_number(*kind)?,
            class: Class::from_number(*class)?,
            len: u16::from_le_bytes(*len),
            base: PageId::from_le_bytes(*base),
            sum: u32::from_le_bytes(sum.try_into().ok()?),
        };
        Some((head, rest.get(..usize::from(head.len))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_and_bad_ones_are_refused() {
        for kind in Kind::ALL {
            let head = Head { kind, class: Class::Store, len: 3, base: 1 << 27, sum: 0xfedc_ba98 };
            let bytes = [&head.bytes()[..], b"abcdef"].concat();
            assert_eq!(Head::read(&bytes), Some((head, &b"abc"[..])));
            assert_eq!(Head::read(&bytes[..HEAD_BYTES + 2]), None);
        }
        let mut bytes = [0; 20];
        bytes[0] = 5;
        assert_eq!(Head::read(&bytes), None);
        assert_eq!(Head::read(&bytes[..4]), None);
        (bytes[0], bytes[1]) = (1, 4);
        assert_eq!(Head::read(&bytes), None);
    }
}
