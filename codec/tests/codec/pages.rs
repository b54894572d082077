//! Pieces of memory of many kinds, and what packs them.

use std::{fmt, sync::Arc};

use codec::{PAGE_BYTES, PIECE_BYTES, Packer, Statistics, Style, Table, TableSet, Unpacker};

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ self.0 >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next()).unwrap() % bound
    }
}

fn fill(len: usize, mut byte: impl FnMut(usize) -> u8) -> Vec<u8> {
    (0..len).map(&mut byte).collect()
}

pub fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    fill(len, |_| random.next().to_le_bytes()[0])
}

pub fn text(len: usize) -> Vec<u8> {
    let words = include_str!("pages.rs").split_inclusive(' ').collect::<Vec<_>>();
    let mut random = Random(7);
    let mut text = Vec::new();
    while text.len() < len {
        text.extend_from_slice(words[random.below(words.len())].as_bytes());
    }
    text.truncate(len);
    text
}

/// Words as a heap has them: pointers near each other, small numbers, and zeros.
pub fn pointers(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut words = Vec::new();
    while words.len() < len {
        let word = match random.below(4) {
            0 => 0,
            1 => random.next() % 300,
            _ => 0x7f3a_9c00_0000 + random.next() % 5000 * 16,
        };
        words.extend_from_slice(&word.to_le_bytes());
    }
    words.truncate(len);
    words
}

/// `period` random bytes again and again.
pub fn periodic(len: usize, period: usize) -> Vec<u8> {
    let bytes = random(period, period as u64);
    fill(len, |at| bytes[at % period])
}

/// Random bytes in which `length` bytes come again after `distance`.
pub fn one_repeat(len: usize, distance: usize, length: usize) -> Vec<u8> {
    let mut bytes = random(len, 11);
    let length = length.min(len - distance);
    bytes.copy_within(..length, distance);
    bytes
}

/// Every kind, by name, of one length.
pub fn kinds(len: usize) -> Vec<(String, Vec<u8>)> {
    let mut kinds = vec![
        ("text".to_owned(), text(len)),
        ("pointers".to_owned(), pointers(len, 3)),
        ("zeros".to_owned(), vec![0; len]),
        ("random".to_owned(), random(len, 5)),
        ("two values".to_owned(), random(len, 9).iter().map(|byte| byte & 1).collect()),
        ("last byte".to_owned(), fill(len, |at| u8::from(at == len - 1))),
        ("first byte".to_owned(), fill(len, |at| u8::from(at == 0))),
        ("half of each".to_owned(), [text(len / 2), random(len - len / 2, 2)].concat()),
        ("every byte".to_owned(), fill(len, |at| at.to_le_bytes()[0])),
    ];
    for period in (1..20).chain([31, 32, 33, 63, 64, 65, 255, 256, 257, 258, 259, 4095]) {
        kinds.push((format!("period {period}"), periodic(len, period)));
    }
    for distance in [1, 4, 1000, len - 300, len - 4, len - 3].into_iter().chain([4096, 32767, 32768, 32769]) {
        for length in [3, 4, 257, 258, 259, 600] {
            if distance < len {
                kinds.push((format!("{length} after {distance}"), one_repeat(len, distance, length)));
            }
        }
    }
    kinds
}

pub fn table_of(pieces: &[&[u8]]) -> Arc<Table> {
    let mut statistics = Statistics::new();
    for piece in pieces {
        statistics.add(piece);
    }
    Arc::new(Table::from(&statistics))
}

/// A table of text and pointers.
pub fn table() -> Arc<Table> {
    table_of(&[&text(4 * PAGE_BYTES), &pointers(4 * PAGE_BYTES, 1)])
}

/// Tables of text, of pointers and of two values.
pub fn table_set() -> TableSet {
    let mut statistics = Statistics::new();
    let two_values = random(PIECE_BYTES, 9).iter().map(|byte| byte & 1).collect();
    for piece in [text(PIECE_BYTES), pointers(PIECE_BYTES, 1), two_values] {
        statistics.add(&piece);
    }
    statistics.tables(TableSet::MOST)
}

/// A style, canned with one table; or canned with several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    Style(Style),
    Several,
}

impl Way {
    pub fn all() -> impl Iterator<Item = Self> {
        Style::ALL.into_iter().map(Self::Style).chain([Self::Several])
    }

    pub fn is_zstd(self) -> bool {
        matches!(self, Self::Style(Style::Zstd(_)))
    }

    fn parts(self) -> (Style, TableSet) {
        match self {
            Self::Style(style) => (style, table().into()),
            Self::Several => (Style::DeflateCanned, table_set()),
        }
    }
}

impl From<Style> for Way {
    fn from(style: Style) -> Self {
        Self::Style(style)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Style(style) => style.fmt(f),
            Self::Several => f.write_str("deflate-canned by several tables"),
        }
    }
}

pub fn packer(way: impl Into<Way>) -> Packer {
    let (style, tables) = way.into().parts();
    Packer::new(style, Some(tables))
}

pub fn unpacker(way: impl Into<Way>) -> Unpacker {
    let (style, tables) = way.into().parts();
    Unpacker::new(style, Some(tables))
}

/// Makes a packer and an unpacker by one table.
pub fn by_table(table: Arc<Table>) -> (Packer, Unpacker) {
    let packer = Packer::new(Style::DeflateCanned, Some(Arc::clone(&table)));
    (packer, Unpacker::new(Style::DeflateCanned, Some(table)))
}

/// Packs with as much room as it may take.
pub fn pack(packer: &mut Packer, piece: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 2 * PIECE_BYTES + 1024];
    let len = packer.pack(piece, &mut out).expect("there is room");
    out.truncate(len);
    out
}
