//! Dblocks: files of chunks of one region, which never change once they have their name ("SnapStore", section 4.3).
//!
//! The chunks come first, one behind the other, then an entry for each, then a trailer of a fixed length.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use codec::{Packer, Style, TableSet, Unpacker};

use crate::bytes::{Bad, Reader, SUM_BYTES, begin, open, seal};
use crate::error::StoreError;
use crate::fingerprint::{FINGERPRINT_BYTES, Fingerprint};
use crate::region::{CHUNK_MAX, CHUNK_MIN, Region};

const KIND: &[u8; 8] = b"DORMDBLK";
pub const VERSION: u32 = 1;
/// Most bytes of chunks in one, and most chunks.
pub const DATA_MAX: usize = 4 << 20;
pub const CHUNKS_MAX: usize = 65_535;
pub const ENTRY_BYTES: usize = FINGERPRINT_BYTES + 2 + 4;
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
    /// Bytes of all chunks, as they lie there.
    pub data_len: u32,
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
        self.entries.len() * size_of::<Entry>() + size_of::<Self>()
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.entries.len() * ENTRY_BYTES + TRAILER_BYTES);
        for entry in &self.entries {
            out.extend_from_slice(&entry.print.0);
            out.extend_from_slice(&entry.len.to_le_bytes());
            out.extend_from_slice(&entry.sum.to_le_bytes());
        }
        let entries_sum = crc32c::crc32c(&out);
        let mut trailer = begin(KIND, VERSION);
        trailer.extend_from_slice(&[self.region.number(), 0]);
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
        let (mut footer, count, sum) =
            Self::of_trailer(trailer).map_err(|bad| bad.of("dblock", VERSION, damaged))?;
        if u64::from(footer.data_len) + (count * ENTRY_BYTES) as u64 != at {
            return Err(damaged("it has another length than it says"));
        }
        let mut entries = vec![0; count * ENTRY_BYTES];
        file.read_exact_at(&mut entries, footer.data_len.into()).map_err(&failed)?;
        if crc32c::crc32c(&entries) != sum {
            return Err(damaged("the checksum of its entries is wrong"));
        }
        footer.take_entries(Reader::new(&entries)).ok_or(damaged("its entries cannot be"))?;
        Ok(footer)
    }

    fn of_trailer(mut from: Reader<'_>) -> Result<(Self, usize, u32), Bad> {
        let mut read = || {
            let (region, reserved) = (Region::from_number(from.u8()?)?, from.u8()?);
            let style = style_of([from.u8()?, from.u8()?])?;
            let domain = from.u32()?;
            let (chunk_bytes, count, data_len, sum) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
            let is_possible = reserved == 0
                && chunk_bytes.is_power_of_two()
                && (CHUNK_MIN..=CHUNK_MAX).contains(&chunk_bytes)
                && count as usize <= CHUNKS_MAX
                && data_len as usize <= DATA_MAX;
            let footer = Self { region, domain, style, chunk_bytes, entries: Vec::new(), data_len };
            is_possible.then_some((footer, count as usize, sum))
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

    /// Unpacks a chunk from the bytes that lie there, and checks it.
    pub fn unpack(&self, id: u32, slot: u16, bytes: &[u8], to: &mut [u8]) -> Result<(), StoreError> {
        let damaged = || StoreError::Chunk { id, slot };
        let entry = self.entries.get(usize::from(slot)).ok_or_else(damaged)?;
        if bytes.len() == to.len() {
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
    /// Reads a chunk, as long as those of the dblock are, to the front of `to`.
    pub fn chunk<'t>(&self, slot: u16, to: &'t mut [u8; CHUNK_MAX as usize]) -> Result<&'t [u8], StoreError> {
        let damaged = || StoreError::Chunk { id: self.id, slot };
        let entry = self.footer.entries.get(usize::from(slot)).ok_or_else(damaged)?;
        let mut packed = [0; CHUNK_MAX as usize];
        let packed = packed.get_mut(..usize::from(entry.len)).ok_or_else(damaged)?;
        self.file.read_exact_at(packed, entry.at.into()).map_err(StoreError::io("read a chunk"))?;
        let to = to.get_mut(..self.footer.chunk_bytes as usize).ok_or_else(damaged)?;
        self.footer.unpack(self.id, slot, packed, to)?;
        Ok(to)
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
        let footer = Footer { region, domain, style, chunk_bytes, entries: Vec::new(), data_len: 0 };
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

    /// Adds a chunk as it lies in another dblock of this style.
    pub fn push_packed(&mut self, print: Fingerprint, sum: u32, bytes: &[u8]) -> u16 {
        let slot = u16::try_from(self.footer.entries.len()).unwrap_or(u16::MAX);
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.footer.entries.push(Entry { print, at: self.footer.data_len, len, sum });
        self.footer.data_len += u32::from(len);
        self.data.extend_from_slice(bytes);
        slot
    }

    /// Whether a chunk in it is this one.
    pub fn is(&self, slot: u16, print: Fingerprint, chunk: &[u8]) -> bool {
        let mut content = [0; CHUNK_MAX as usize];
        let mut same = || {
            let entry = self.footer.entries.get(usize::from(slot)).filter(|entry| entry.print == print)?;
            let bytes = self.data.get(entry.at as usize..)?.get(..usize::from(entry.len))?;
            let content = content.get_mut(..chunk.len())?;
            self.footer.unpack(self.id, slot, bytes, content).ok()?;
            Some(content == chunk)
        };
        same().unwrap_or(false)
    }

    /// Writes it to a file, which is new.
    pub fn write(&self, to: &File) -> io::Result<()> {
        to.write_all_at(&self.data, 0)?;
        to.write_all_at(&self.footer.encode(), self.data.len() as u64)?;
        to.sync_data()
    }
}
