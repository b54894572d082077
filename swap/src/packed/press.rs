//! Packing of one piece.

use std::sync::Arc;

use codec::{Engine, Packer, Style, Table, TableSet, Work};

use super::set::Layout;
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
    pub fn new(layout: &Layout, tables: Option<&Arc<TableSet>>) -> Self {
        let packer = || Packer::new(layout.style, tables.cloned()).with_window(layout.window_bytes());
        let packer = (layout.style != Style::None).then(packer);
        Self { packer, room: Vec::new() }
    }

    /// Packs a piece, unless that saves less than an eighth of it.
    pub fn press(&mut self, piece: &[u8]) -> Pressed {
        self.room.resize(room_for(piece), 0);
        let len = self.packer.as_mut().and_then(|packer| packer.pack(piece, &mut self.room));
        pressed(piece, &self.room, len)
    }
}

/// Has an engine pack pieces.
pub fn press_all(engine: &dyn Engine, table: &Arc<Table>, pieces: &[&[u8]]) -> Vec<Pressed> {
    let mut rooms: Vec<Vec<u8>> = pieces.iter().map(|piece| vec![0; room_for(piece)]).collect();
    let mut work: Vec<Work<'_>> = pieces
        .iter()
        .zip(&mut rooms)
        .map(|(piece, out)| Work::Pack { piece, out, packed_bytes: None })
        .collect();
    // Only what is unpacked can be damaged.
    let _ = engine.run(table, &mut work);
    let press = |work: Work<'_>| match work {
        Work::Pack { piece, out, packed_bytes } => Some(pressed(piece, out, packed_bytes)),
        Work::Unpack { .. } => None,
    };
    work.into_iter().filter_map(press).collect()
}

/// Packing is worth an eighth of a piece.
fn room_for(piece: &[u8]) -> usize {
    piece.len() - piece.len() / 8
}

/// A piece that was packed to the first `len` bytes of `room`, or not.
fn pressed(piece: &[u8], room: &[u8], len: Option<usize>) -> Pressed {
    let sums = piece.chunks(PAGE_BYTES).map(crc32c::crc32c).collect();
    // No length is 0, and seven eighths of the longest piece are below the largest.
    let packed = len.and_then(|len| u16::try_from(len).ok()).filter(|len| *len > 0);
    let bytes = match packed {
        Some(len) => room[..usize::from(len)].to_vec(),
        None => piece.to_vec(),
    };
    Pressed { bytes, packed, sums }
}
