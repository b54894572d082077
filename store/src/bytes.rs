//! Numbers in files: little-endian, behind a kind and a version, and with a checksum of all behind them.

use crate::error::StoreError;

/// Bytes of a checksum.
pub const SUM_BYTES: usize = 4;

/// The rest of what is read.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Begins bytes of this kind and version.
pub fn begin(kind: &[u8; 8], version: u32) -> Vec<u8> {
    [kind.as_slice(), &version.to_le_bytes()].concat()
}

/// Ends them with their checksum.
pub fn seal(bytes: &mut Vec<u8>) {
    let sum = crc32c::crc32c(bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
}

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    Version(u32),
    Damaged(&'static str),
}

impl Bad {
    /// The error of a file.
    pub fn of(
        self,
        of: &'static str,
        known: u32,
        damaged: impl Fn(&'static str) -> StoreError,
    ) -> StoreError {
        match self {
            Self::Version(found) => StoreError::Version { of, found, known },
            Self::Damaged(what) => damaged(what),
        }
    }
}

/// Reads from behind the version on; the checksum is right.
pub fn open<'a>(bytes: &'a [u8], kind: &[u8; 8], known: u32) -> Result<Reader<'a>, Bad> {
    let short = Bad::Damaged("it is too short");
    let (content, sum) = bytes.split_last_chunk::<SUM_BYTES>().ok_or(short)?;
    let mut reader = Reader(content);
    if reader.array::<8>().ok_or(short)? != *kind {
        return Err(Bad::Damaged("it is of another kind"));
    }
    let found = reader.u32().ok_or(short)?;
    if found != known {
        return Err(Bad::Version(found));
    }
    if crc32c::crc32c(content) != u32::from_le_bytes(*sum) {
        return Err(Bad::Damaged("its checksum is wrong"));
    }
    Ok(reader)
}
