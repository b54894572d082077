//! The form that the tables of all homes have in common as bytes: a kind, a version, and a checksum of the whole. All
//! numbers are little-endian.

use std::ops::RangeInclusive;

use crate::error::TablesError;

/// Tables of this kind and version, with nothing in them yet.
pub fn begin(kind: &[u8; 8], version: u32) -> Vec<u8> {
    [kind.as_slice(), &version.to_le_bytes()].concat()
}

/// Ends the tables with their checksum.
pub fn seal(tables: &mut Vec<u8>) {
    let sum = crc32c::crc32c(tables);
    tables.extend_from_slice(&sum.to_le_bytes());
}

/// Reads tables from behind their version on, which is one of the known ones; their checksum is right. Result: the version, and
/// what follows it.
pub fn open<'a>(
    tables: &'a [u8],
    kind: &[u8; 8],
    known: RangeInclusive<u32>,
) -> Result<(u32, Reader<'a>), TablesError> {
    let (content, sum) = tables.split_last_chunk::<4>().ok_or(SHORT)?;
    let mut reader = Reader(content);
    if reader.bytes(kind.len() as u64)? != kind {
        return Err(TablesError::Damaged { what: "they are of another kind" });
    }
    let found = reader.u32()?;
    if !known.contains(&found) {
        return Err(TablesError::Version { found, known: *known.end() });
    }
    if crc32c::crc32c(content) != u32::from_le_bytes(*sum) {
        return Err(TablesError::Damaged { what: "their checksum is wrong" });
    }
    Ok((found, reader))
}

const SHORT: TablesError = TablesError::Damaged { what: "they are too short" };

/// The rest of the tables.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader of these bytes.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next bytes.
    pub fn bytes(&mut self, len: u64) -> Result<&'a [u8], TablesError> {
        let split = usize::try_from(len).ok().and_then(|len| self.0.split_at_checked(len));
        let (bytes, rest) = split.ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A reader of the next bytes alone.
    pub fn part(&mut self, len: u64) -> Result<Self, TablesError> {
        self.bytes(len).map(Self)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TablesError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*array)
    }

    pub fn u8(&mut self) -> Result<u8, TablesError> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Result<u16, TablesError> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, TablesError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, TablesError> {
        self.array().map(u64::from_le_bytes)
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// How many bytes are left.
    pub fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
