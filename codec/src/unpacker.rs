//! Unpacking: packed bytes to pieces of memory. What was packed may have been changed since, and no harm comes of it.

use crate::{
    bits::BitReader,
    error::Corrupt,
    inflate::{Tables, inflate_stream},
    piece::PIECE_BYTES,
    style::Style,
    table_set::{CannedUnpacker, TableSet},
    window::Window,
};

/// Unpacks pieces of one style, with memory that is used for one after the other.
pub struct Unpacker {
    way: Way,
}

enum Way {
    None,
    Lz4,
    Zstd(zstd::bulk::Decompressor<'static>),
    Stream { window: Window, fixed: Box<Tables>, own: Box<Tables> },
    Canned { window: Window, unpacker: CannedUnpacker },
}

impl Unpacker {
    /// # Panics
    /// If the style is [`Style::DeflateCanned`] and there are no tables.
    #[must_use]
    pub fn new(style: Style, tables: Option<impl Into<TableSet>>) -> Self {
        let way = match style {
            Style::None => Way::None,
            Style::Lz4 => Way::Lz4,
            Style::Zstd(_) => Way::Zstd(zstd::bulk::Decompressor::new().expect("there is memory for zstd")),
            Style::DeflateFixed | Style::DeflateDynamic => Way::Stream {
                window: Window::new(),
                fixed: Box::new(Tables::fixed()),
                own: Box::new(Tables::new()),
            },
            Style::DeflateCanned => {
                let tables = tables.expect("canned unpacking is by tables").into();
                Way::Canned { window: Window::new(), unpacker: CannedUnpacker::new(tables) }
            }
        };
        Self { way }
    }

    /// Unpacks a canned piece of one table that is as long as it is, and may be followed by something. Returns how many bytes of
    /// `packed` were read, and how many of `out` were written.
    ///
    /// # Errors
    /// The bytes are not what a packer wrote, or more than `out` holds; or the style is another one, or has several tables.
    ///
    /// # Panics
    /// If `out` is longer than [`PIECE_BYTES`].
    pub fn unpack_prefix(&mut self, packed: &[u8], out: &mut [u8]) -> Result<(usize, usize), Corrupt> {
        assert!(out.len() <= PIECE_BYTES, "a piece is at most {PIECE_BYTES} bytes");
        let (window, unpacker) = match &mut self.way {
            Way::Canned { window, unpacker } if unpacker.has_ends() => (window, unpacker),
            _ => return Err(Corrupt("its style does not say where it ends")),
        };
        let mut input = BitReader::new(packed);
        let len = unpacker.unpack(&mut input, window, out.len())?;
        let read = input.position().div_ceil(8);
        if len > out.len() || read > packed.len() {
            return Err(Corrupt("it ends too early"));
        }
        out[..len].copy_from_slice(window.content(len));
        Ok((read, len))
    }

    /// Unpacks all of `packed` into all of `out`.
    ///
    /// # Errors
    /// The bytes are not what a packer of this style, or another of its format, wrote for a piece of this length. `out` may
    /// have been written to.
    ///
    /// # Panics
    /// If `out` is longer than [`PIECE_BYTES`].
    pub fn unpack(&mut self, packed: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
        assert!(out.len() <= PIECE_BYTES, "a piece is at most {PIECE_BYTES} bytes");
        let full = |len: usize| {
            if len == out.len() { Ok(()) } else { Err(Corrupt("it is shorter than it should be")) }
        };
        match &mut self.way {
            Way::None => {
                full(packed.len())?;
                out.copy_from_slice(packed);
                Ok(())
            }
            Way::Lz4 => {
                let len = lz4_flex::block::decompress_into(packed, out)
                    .map_err(|_| Corrupt("lz4 cannot read it"))?;
                if len == out.len() { Ok(()) } else { Err(Corrupt("it is shorter than it should be")) }
            }
            Way::Zstd(unpacker) => {
                let len =
                    unpacker.decompress_to_buffer(packed, out).map_err(|_| Corrupt("zstd cannot read it"))?;
                if len == out.len() { Ok(()) } else { Err(Corrupt("it is shorter than it should be")) }
            }
            Way::Stream { window, fixed, own } => {
                inflate_stream(packed, window, out.len(), fixed, own)?;
                out.copy_from_slice(window.content(out.len()));
                Ok(())
            }
            Way::Canned { window, unpacker } => {
                let mut input = BitReader::new(packed);
                let len = unpacker.unpack(&mut input, window, out.len())?;
                if len != out.len() {
                    return Err(Corrupt("it is not as long as it should be"));
                }
                input.finish()?;
                out.copy_from_slice(window.content(len));
                Ok(())
            }
        }
    }
}
