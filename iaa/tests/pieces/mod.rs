//! Pieces of memory, and what they are packed to.

use std::sync::Arc;

use codec::{PAGE_BYTES, PIECE_BYTES, Packer, Statistics, Style, Table};

/// Words near each other, as a heap has them.
pub fn piece(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut words = Vec::new();
    while words.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = if state >> 62 == 0 { 0 } else { 0x7f3a_9c00_0000 + (state >> 40) % 3000 * 16 };
        words.extend_from_slice(&word.to_le_bytes());
    }
    words.truncate(len);
    words
}

pub fn table() -> Arc<Table> {
    let mut statistics = Statistics::new().with_window(PAGE_BYTES);
    (0..4).for_each(|seed| statistics.add(&piece(PAGE_BYTES, seed)));
    Arc::new(Table::from(&statistics))
}

pub fn packed(table: &Arc<Table>, pieces: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut packer = Packer::new(Style::DeflateCanned, Some(Arc::clone(table))).with_window(PAGE_BYTES);
    let mut out = vec![0; 2 * PIECE_BYTES];
    pieces.iter().map(|piece| packer.pack(piece, &mut out).map(|len| out[..len].to_vec()).unwrap()).collect()
}
