//! Capabilities of files: the attribute `security.capability` (`capabilities(7)`, "File capabilities").

use machine::errno::{Errno, Result};

use crate::fs::file::File;

/// The capabilities that a file gives the program that it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileCaps {
    pub permitted: u64,
    pub inheritable: u64,
    /// The capabilities are in effect from the program's start.
    pub is_effective: bool,
}

impl FileCaps {
    /// Those of a program's file; `EINVAL`: they are in no known form.
    pub fn of(program: &File) -> Result<Option<Self>> {
        match program.ops.capabilities() {
            Ok(bytes) => Self::parse(&bytes),
            // `EOVERFLOW`: they are of a user namespace that the host does not show here.
            Err(Errno::ENODATA | Errno::EOPNOTSUPP | Errno::EOVERFLOW) => Ok(None),
            // A program that is to have few of them must not get all since they cannot be read.
            Err(error) => Err(error),
        }
    }

    /// `struct vfs_ns_cap_data`, in its three versions; `None`: they are of another user namespace.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        const VERSION: u32 = 0xff00_0000;
        const EFFECTIVE: u32 = 1;
        let word = |index: usize| {
            let bytes = bytes.get(4 * index..)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let magic = word(0).ok_or(Errno::EINVAL)?;
        let (words, owner) = match magic & VERSION {
            0x0100_0000 => (3, None),
            0x0200_0000 => (5, None),
            0x0300_0000 => (6, word(5)),
            _ => return Err(Errno::EINVAL),
        };
        if bytes.len() != 4 * words {
            return Err(Errno::EINVAL);
        }
        if owner.is_some_and(|root| root != 0) {
            return Ok(None);
        }
        let upper = |index| if words > 3 { u64::from(word(index).unwrap_or(0)) << 32 } else { 0 };
        let set = |index: usize| u64::from(word(index).unwrap_or(0)) | upper(index + 2);
        Ok(Some(Self { permitted: set(1), inheritable: set(2), is_effective: magic & EFFECTIVE != 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn three_versions_are_read() {
        let caps = |permitted, inheritable, is_effective| {
            Ok(Some(FileCaps { permitted, inheritable, is_effective }))
        };
        assert_eq!(FileCaps::parse(&bytes(&[0x0100_0001, 6, 8])), caps(6, 8, true));
        assert_eq!(FileCaps::parse(&bytes(&[0x0200_0000, 6, 8, 1, 0])), caps(1 << 32 | 6, 8, false));
        assert_eq!(FileCaps::parse(&bytes(&[0x0300_0001, 6, 8, 0, 2, 0])), caps(6, 2 << 32 | 8, true));
        assert_eq!(FileCaps::parse(&bytes(&[0x0300_0001, 6, 8, 0, 2, 1000])), Ok(None));
    }

    #[test]
    fn what_is_none_is_refused() {
        for words in [
            &[][..],
            &[0x0200_0001],
            &[0x0200_0001, 1, 0, 0],
            &[0x0400_0000, 1, 0, 0, 0],
            &[0x0300_0000, 1, 0, 0, 0],
        ] {
            assert_eq!(FileCaps::parse(&bytes(words)), Err(Errno::EINVAL));
        }
        assert_eq!(FileCaps::parse(&bytes(&[0x0200_0001, 1, 0, 0, 0])[..19]), Err(Errno::EINVAL));
    }
}
