//! Packing of one piece.

use std::sync::Arc;

use codec::{Packer, Style, Table};

use crate::page::PAGE_BYTES;

/// Packs pieces for a set, with memory that is used for one after the other.
pub struct Press {
    packer: Option<Packer>,
    room: Vec<u8>,
}

/// A packed piece.
pub struct Pressed {
    pub bytes: Vec<u8>,
    /// Its length, if it is packed.
    pub packed: Option<u16>,
    /// Checksums of its pages.
    pub sums: Vec<u32>,
}

impl Press {
    pub fn new(style: Style, table: Option<&Arc<Table>>) -> Self {
        let packer = (style != Style::None).then(|| Packer::new(style, table.cloned()));
        Self { packer, room: Vec::new() }
    }

    /// Packs a piece, unless that saves less than an eighth of it.
    pub fn press(&mut self, piece: &[u8]) -> Pressed {
        let sums = piece.chunks(PAGE_BYTES).map(crc32c::crc32c).collect();
        self.room.resize(piece.len() - piece.len() / 8, 0);
        let len = self.packer.as_mut().and_then(|packer| packer.pack(piece, &mut self.room));
        // No length is 0, and seven eighths of the longest piece are below the largest.
        let packed = len.and_then(|len| u16::try_from(len).ok()).filter(|len| *len > 0);
        let bytes = match packed {
            Some(len) => self.room[..usize::from(len)].to_vec(),
            None => piece.to_vec(),
        };
        Pressed { bytes, packed, sums }
    }
}
