//! Dblocks: files of chunks of one region, which never change once they have their name ("SnapStore", section 4.3).
//!
//! The chunks come first, one behind the other, then an entry for each, then their features, if they have some, then a trailer of a fixed
//! length. In those of [`Region::Difference`] each chunk is a [`Record`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use codec::{Packer, Style, TableSet, Unpacker};

use crate::bytes::{Bad, Reader, SUM_BYTES, begin, open, seal};
use crate::difference::{self, FEATURES, Features};
use crate::error::StoreError;
use crate::fingerprint::{FINGERPRINT_BYTES, Fingerprint};
use crate::index::Place;
use crate::region::{CHUNK_MAX, CHUNK_MIN, Region};

pub const KIND: &[u8; 8] = b"DORMDBLK";
pub const VERSION: u32 = 2;
/// Most bytes of chunks in one, and most chunks.
pub const DATA_MAX: usize = 4 << 20;
pub const CHUNKS_MAX: usize = 65_535;
pub const ENTRY_BYTES: usize = FINGERPRINT_BYTES + 2 + 4;
const FEATURE_BYTES: usize = 4;
/// Bytes of the trailer behind its version, before the checksums.
#[cfg(fuzzing)]
pub const TRAILER_FRONT: usize = 4 + 4 * 4;
const TRAILER_BYTES: usize = 8 + 4 + 4 + 5 * 4 + SUM_BYTES;
/// A chunk that is packed is at least so much shorter: an eighth.
const GAIN_PART: usize = 8;

/// A chunk in a dblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub print: Fingerprint,
    /// Where its bytes are, and how many: fewer than the chunk has if they are packed.
    pub at: u32,
    pub len: u16,
    /// CRC-32C of the chunk.
    pub sum: u32,
}

/// The chunks in a dblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    pub region: Region,
    /// Of the domain that has it to itself.
    pub domain: u32,
    pub style: Style,
    pub chunk_bytes: u32,
    pub entries: Vec<Entry>,
    /// Those of each chunk, by which others that are like it are found; 0: it has none. Empty: nobody looks for any.
    pub features: Vec<Features>,
    /// Bytes of all chunks, as they lie there.
    pub data_len: u32,
}

/// A chunk as its difference from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'b> {
    /// Where that was when this was written: recipes know where it is.
    pub base: Place,
    /// CRC-32C of the chunk.
    pub sum: u32,
    difference: &'b [u8],
}

/// Bytes of a record before the difference.
const RECORD_HEAD: usize = 4 + 2 + 4;

impl<'b> Record<'b> {
    pub fn read(bytes: &'b [u8]) -> Option<Self> {
        let (head, difference) = bytes.split_first_chunk::<RECORD_HEAD>()?;
        let mut from = Reader::new(head);
        Some(Self { base: Place { id: from.u32()?, slot: from.u16()? }, sum: from.u32()?, difference })
    }

    /// Makes the record of a page in `out`. False: it is not shorter than `most`.
    pub fn make(base: Place, of_base: &[u8], page: &[u8], most: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        Record { base, sum: crc32c::crc32c(page), difference: &[] }.put(out);
        difference::encode(page, of_base, most.saturating_sub(RECORD_HEAD), out)
    }

    /// The record, whose base is in another place by now.
    pub const fn with_base(self, base: Place) -> Self {
        Self { base, ..self }
    }

    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.base.id.to_le_bytes());
        out.extend_from_slice(&self.base.slot.to_le_bytes());
        out.extend_from_slice(&self.sum.to_le_bytes());
        out.extend_from_slice(self.difference);
    }

    /// Makes the base, which `page` holds, the chunk. False: it is another base, or something is damaged.
    pub fn apply(&self, page: &mut [u8]) -> bool {
        difference::decode(self.difference, page).is_some() && crc32c::crc32c(page) == self.sum
    }
}

pub fn style_number(style: Style) -> [u8; 2] {
    match style {
        Style::Lz4 => [1, 0],
        Style::Zstd(level) => [2, level],
        _ => [0, 0],
    }
}

fn style_of([number, level]: [u8; 2]) -> Option<Style> {
    match (number, level) {
        (0, 0) => Some(Style::None),
        (1, 0) => Some(Style::Lz4),
        (2, 1..=19) => Some(Style::Zstd(level)),
        _ => None,
    }
}

impl Footer {
    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        let features = self.features.len() * size_of::<Features>();
        self.entries.len() * size_of::<Entry>() + features + size_of::<Self>()
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.entries.len() * ENTRY_BYTES + TRAILER_BYTES);
        for entry in &self.entries {
            out.extend_from_slice(&entry.print.0);
            out.extend_from_slice(&entry.len.to_le_bytes());
            out.extend_from_slice(&entry.sum.to_le_bytes());
        }
        for feature in self.features.iter().flatten() {
            out.extend_from_slice(&feature.to_le_bytes());
        }
        let entries_sum = crc32c::crc32c(&out);
        let mut trailer = begin(KIND, VERSION);
        let features = if self.features.is_empty() { 0 } else { u8::try_from(FEATURES).unwrap_or(0) };
        trailer.extend_from_slice(&[self.region.number(), features]);
        trailer.extend_from_slice(&style_number(self.style));
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        for number in [self.domain, self.chunk_bytes, count, self.data_len, entries_sum] {
            trailer.extend_from_slice(&number.to_le_bytes());
        }
        seal(&mut trailer);
        out.extend_from_slice(&trailer);
        out
    }

    /// Reads the footer of a file, which anybody may have written.
    pub fn read(id: u32, file: &File) -> Result<Self, StoreError> {
        let failed = StoreError::io("read a dblock");
        let damaged = |what| StoreError::Dblock { id, what };
        let len = file.metadata().map_err(&failed)?.len();
        let at = len.checked_sub(TRAILER_BYTES as u64).ok_or(damaged("it is too short"))?;
        let mut trailer = [0; TRAILER_BYTES];
        file.read_exact_at(&mut trailer, at).map_err(&failed)?;
        let trailer = open(&trailer, KIND, VERSION).map_err(|bad| bad.of("dblock", VERSION, damaged))?;
        let (mut footer, counts, sum) =
            Self::of_trailer(trailer).map_err(|bad| bad.of("dblock", VERSION, damaged))?;
        let (count, features) = counts;
        let entries_bytes = count * ENTRY_BYTES;
        let mut entries = vec![0; entries_bytes + count * features * FEATURE_BYTES];
        if u64::from(footer.data_len) + entries.len() as u64 != at {
            return Err(damaged("it has another length than it says"));
        }
        file.read_exact_at(&mut entries, footer.data_len.into()).map_err(&failed)?;
        if crc32c::crc32c(&entries) != sum {
            return Err(damaged("the checksum of its entries is wrong"));
        }
        let (entries, of_features) = entries.split_at(entries_bytes);
        footer.take_entries(Reader::new(entries)).ok_or(damaged("its entries cannot be"))?;
        footer.take_features(Reader::new(of_features));
        Ok(footer)
    }

    /// The footer without entries, how many there are and how many features each has, and the checksum of both.
    fn of_trailer(mut from: Reader<'_>) -> Result<(Self, (usize, usize), u32), Bad> {
        let mut read = || {
            let (region, features) = (Region::from_number(from.u8()?)?, usize::from(from.u8()?));
            let style = style_of([from.u8()?, from.u8()?])?;
            let domain = from.u32()?;
            let (chunk_bytes, count, data_len, sum) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
            let is_possible = (features == 0 || features == FEATURES)
                && chunk_bytes.is_power_of_two()
                && (CHUNK_MIN..=CHUNK_MAX).contains(&chunk_bytes)
                && count as usize <= CHUNKS_MAX
                && data_len as usize <= DATA_MAX;
            let (entries, of_each) = (Vec::new(), Vec::new());
            let footer = Self { region, domain, style, chunk_bytes, entries, features: of_each, data_len };
            is_possible.then_some((footer, (count as usize, features), sum))
        };
        read().ok_or(Bad::Damaged("its trailer says what cannot be"))
    }

    fn take_entries(&mut self, mut from: Reader<'_>) -> Option<()> {
        let mut at = 0_u32;
        while from.len() > 0 {
            let mut print = Fingerprint([0; FINGERPRINT_BYTES]);
            for byte in &mut print.0 {
                *byte = from.u8()?;
            }
            let (len, sum) = (from.u16()?, from.u32()?);
            if u32::from(len) > self.chunk_bytes || len == 0 {
                return None;
            }
            self.entries.push(Entry { print, at, len, sum });
            at = at.checked_add(len.into())?;
        }
        (at == self.data_len).then_some(())
    }

    fn take_features(&mut self, mut from: Reader<'_>) {
        while from.len() > 0 {
            self.features.push([(); FEATURES].map(|()| from.u32().unwrap_or(0)));
        }
    }

    /// Unpacks a chunk from the bytes that lie there, and checks it.
    pub fn unpack(&self, id: u32, slot: u16, bytes: &[u8], to: &mut [u8]) -> Result<(), StoreError> {
        let damaged = || StoreError::Chunk { id, slot };
        let entry = self.entries.get(usize::from(slot)).ok_or_else(damaged)?;
        if self.region == Region::Difference {
            return Err(damaged());
        } else if bytes.len() == to.len() {
            to.copy_from_slice(bytes);
        } else {
            Unpacker::new(self.style, None::<TableSet>).unpack(bytes, to).map_err(|_| damaged())?;
        }
        if crc32c::crc32c(to) == entry.sum { Ok(()) } else { Err(damaged()) }
    }
}

/// A dblock that is there.
#[derive(Debug)]
pub struct Dblock {
    pub id: u32,
    pub file: File,
    pub footer: Footer,
}

impl Dblock {
    /// Reads the bytes of a chunk, as they lie there, to the front of `to`.
    pub fn bytes<'t>(&self, slot: u16, to: &'t mut [u8; CHUNK_MAX as usize]) -> Result<&'t [u8], StoreError> {
        let entry = self.footer.entries.get(usize::from(slot));
        let bytes = entry.and_then(|entry| Some((entry, to.get_mut(..usize::from(entry.len))?)));
        let (entry, bytes) = bytes.ok_or(StoreError::Chunk { id: self.id, slot })?;
        self.file.read_exact_at(bytes, entry.at.into()).map_err(StoreError::io("read a chunk"))?;
        Ok(bytes)
    }

    /// Reads a chunk, as long as those of the dblock are, to the front of `to`.
    pub fn chunk<'t>(&self, slot: u16, to: &'t mut [u8; CHUNK_MAX as usize]) -> Result<&'t [u8], StoreError> {
        let damaged = || StoreError::Chunk { id: self.id, slot };
        let mut packed = [0; CHUNK_MAX as usize];
        let packed = self.bytes(slot, &mut packed)?;
        let to = to.get_mut(..self.footer.chunk_bytes as usize).ok_or_else(damaged)?;
        self.footer.unpack(self.id, slot, packed, to)?;
        Ok(to)
    }
}

impl Dblock {
    /// The bytes of a record, which are whole.
    pub fn record(&self, slot: u16) -> Result<Vec<u8>, StoreError> {
        let mut room = [0; CHUNK_MAX as usize];
        let bytes = self.bytes(slot, &mut room)?;
        self.footer.record(self.id, slot, bytes)?;
        Ok(bytes.to_vec())
    }
}

impl Footer {
    /// The record in the bytes that lie there, if they are whole.
    pub fn record<'b>(&self, id: u32, slot: u16, bytes: &'b [u8]) -> Result<Record<'b>, StoreError> {
        let entry = self.entries.get(usize::from(slot)).filter(|_| self.region == Region::Difference);
        let whole = entry.filter(|entry| crc32c::crc32c(bytes) == entry.sum);
        whole.and_then(|_| Record::read(bytes)).ok_or(StoreError::Chunk { id, slot })
    }
}

/// A dblock that is being filled.
pub struct Filling {
    pub id: u32,
    footer: Footer,
    data: Vec<u8>,
    packer: Option<Packer>,
    room: Vec<u8>,
}

impl Filling {
    pub fn new(id: u32, region: Region, domain: u32, style: Style, chunk_bytes: u32) -> Self {
        let packer = (style_number(style) != [0, 0]).then(|| Packer::new(style, None::<TableSet>));
        let (entries, features) = (Vec::new(), Vec::new());
        let footer = Footer { region, domain, style, chunk_bytes, entries, features, data_len: 0 };
        Self { id, footer, data: Vec::new(), packer, room: vec![0; chunk_bytes as usize] }
    }

    pub fn footer(&self) -> &Footer {
        &self.footer
    }

    /// Whether there is room for another chunk, however long it is.
    pub fn has_room(&self) -> bool {
        self.data.len() + self.footer.chunk_bytes as usize <= DATA_MAX
            && self.footer.entries.len() < CHUNKS_MAX
    }

    /// Adds a chunk, for which there is room. Result: its slot.
    pub fn push(&mut self, print: Fingerprint, chunk: &[u8]) -> u16 {
        let most = chunk.len() - (chunk.len() / GAIN_PART).max(1);
        let room = &mut self.room[..most];
        let packed = self.packer.as_mut().and_then(|packer| packer.pack(chunk, room)).filter(|len| *len > 0);
        let sum = crc32c::crc32c(chunk);
        match packed {
            Some(len) => {
                let room = std::mem::take(&mut self.room);
                let slot = self.push_packed(print, sum, &room[..len]);
                self.room = room;
                slot
            }
            None => self.push_packed(print, sum, chunk),
        }
    }

    /// Says by which features the last chunk is found; all chunks have some or none.
    pub fn push_features(&mut self, features: Features) {
        self.footer.features.push(features);
    }

    /// Adds a chunk as it lies in another dblock of this style.
    pub fn push_packed(&mut self, print: Fingerprint, sum: u32, bytes: &[u8]) -> u16 {
        let slot = u16::try_from(self.footer.entries.len()).unwrap_or(u16::MAX);
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.footer.entries.push(Entry { print, at: self.footer.data_len, len, sum });
        self.footer.data_len += u32::from(len);
        self.data.extend_from_slice(bytes);
        slot
    }

    /// The bytes of a chunk, as they lie there.
    pub fn bytes(&self, slot: u16) -> Option<&[u8]> {
        let entry = self.footer.entries.get(usize::from(slot))?;
        self.data.get(entry.at as usize..)?.get(..usize::from(entry.len))
    }

    /// Writes it to a file, which is new.
    pub fn write(&self, to: &File) -> io::Result<()> {
        to.write_all_at(&self.data, 0)?;
        to.write_all_at(&self.footer.encode(), self.data.len() as u64)?;
        to.sync_data()
    }
}
