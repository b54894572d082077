//! Packing: pieces of memory to packed bytes.

use crate::{
    bits::BitWriter,
    coding::{Codes, Counts},
    header::{CodeLengths, FIXED, Header},
    huffman::LengthMaker,
    matcher::{Matcher, Token},
    piece::{PIECE_BYTES, WINDOW_BYTES},
    style::Style,
    symbols::{DISTANCES, FIXED_DISTANCES, FIXED_LITLENS, LITLENS, MAX_BITS},
    table_set::{CannedPacker, TableSet},
};

/// Packs pieces in one style, with memory that is used for one after the other.
pub struct Packer {
    way: Way,
    window: usize,
}

enum Way {
    None,
    Lz4(Vec<u8>),
    Zstd(zstd::bulk::Compressor<'static>),
    Fixed { matcher: Matcher, codes: Codes },
    Dynamic { matcher: Matcher, maker: LengthMaker, fixed: Codes },
    Canned { matcher: Matcher, packer: CannedPacker },
}

impl Packer {
    /// # Panics
    /// If the style is [`Style::DeflateCanned`] and there are no tables.
    #[must_use]
    pub fn new(style: Style, tables: Option<impl Into<TableSet>>) -> Self {
        let fixed = || Codes::of(&FIXED_LITLENS, &FIXED_DISTANCES);
        let way = match style {
            Style::None => Way::None,
            Style::Lz4 => Way::Lz4(vec![0; lz4_flex::block::get_maximum_output_size(PIECE_BYTES)]),
            Style::Zstd(level) => Way::Zstd(zstd_packer(level)),
            Style::DeflateFixed => Way::Fixed { matcher: Matcher::new(), codes: fixed() },
            Style::DeflateDynamic => {
                Way::Dynamic { matcher: Matcher::new(), maker: LengthMaker::default(), fixed: fixed() }
            }
            Style::DeflateCanned => {
                let tables = tables.expect("canned packing is by tables").into();
                Way::Canned { matcher: Matcher::new(), packer: CannedPacker::new(&tables) }
            }
        };
        Self { way, window: WINDOW_BYTES }
    }

    /// Lets DEFLATE go back `bytes` at most, for what reads with a smaller window than [`WINDOW_BYTES`].
    #[must_use]
    pub fn with_window(self, bytes: usize) -> Self {
        Self { window: bytes.min(WINDOW_BYTES), ..self }
    }

    /// Packs a piece to the front of `out`. Returns how many bytes it takes there, or nothing if it does not fit: the caller
    /// gives as much room as packing is worth. What `out` holds then means nothing.
    ///
    /// # Panics
    /// If the piece is longer than [`PIECE_BYTES`].
    pub fn pack(&mut self, piece: &[u8], out: &mut [u8]) -> Option<usize> {
        assert!(piece.len() <= PIECE_BYTES, "a piece is at most {PIECE_BYTES} bytes");
        match &mut self.way {
            Way::None => {
                out.get_mut(..piece.len())?.copy_from_slice(piece);
                Some(piece.len())
            }
            Way::Lz4(scratch) => {
                let len = lz4_flex::block::compress_into(piece, scratch).ok()?;
                out.get_mut(..len)?.copy_from_slice(&scratch[..len]);
                Some(len)
            }
            Way::Zstd(packer) => packer.compress_to_buffer(piece, out).ok(),
            Way::Fixed { matcher, codes } => write_fixed(codes, matcher.tokens(piece, self.window), out),
            Way::Dynamic { matcher, maker, fixed } => {
                write_dynamic(maker, fixed, matcher.tokens(piece, self.window), out)
            }
            Way::Canned { matcher, packer } => packer.pack(matcher.tokens(piece, self.window), out),
        }
    }
}

/// A frame without what the store knows already: the length, and a checksum.
fn zstd_packer(level: u8) -> zstd::bulk::Compressor<'static> {
    let mut packer = zstd::bulk::Compressor::new(i32::from(level)).expect("zstd has this level");
    packer
        .include_checksum(false)
        .and_then(|()| packer.include_contentsize(false))
        .expect("zstd has these settings");
    packer
}

fn write_fixed(codes: &Codes, tokens: &[Token], out: &mut [u8]) -> Option<usize> {
    let mut writer = BitWriter::new(out);
    writer.put(1 | FIXED << 1, 3);
    codes.write(tokens, &mut writer).then_some(())?;
    writer.finish()
}

/// One block with the best codes for it, or with the fixed ones if they are as good.
fn write_dynamic(maker: &mut LengthMaker, fixed: &Codes, tokens: &[Token], out: &mut [u8]) -> Option<usize> {
    let mut counts = Counts::new();
    counts.add(tokens);
    let mut lengths = CodeLengths { litlens: [0; LITLENS], distances: [0; DISTANCES] };
    maker.make(&counts.litlens, MAX_BITS, &mut lengths.litlens);
    maker.make(&counts.distances, MAX_BITS, &mut lengths.distances);
    let header = Header::new(&lengths, maker);
    let bits = header.bits() as u64 + counts.bits(&lengths.litlens, &lengths.distances);
    if bits.div_ceil(8) > out.len() as u64 {
        return None;
    }
    if 3 + counts.bits(&FIXED_LITLENS, &FIXED_DISTANCES) <= bits {
        return write_fixed(fixed, tokens, out);
    }
    let mut writer = BitWriter::new(out);
    header.write(&mut writer);
    Codes::new(&lengths).write(tokens, &mut writer).then_some(())?;
    debug_assert_eq!(writer.bits_put() as u64, bits);
    writer.finish()
}
