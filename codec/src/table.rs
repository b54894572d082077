//! One pair of codes for many pieces (*canned* DEFLATE: Sabre, section 3), made from a statistics pass over them.

use crate::{
    bits::{BitReader, BitWriter},
    coding::{Codes, Counts},
    error::Corrupt,
    header::{self, CodeLengths, DYNAMIC, Header, MAX_HEADER_BYTES},
    huffman::{LengthMaker, codes},
    inflate::Tables,
    matcher::Matcher,
    piece::{PIECE_BYTES, WINDOW_BYTES},
    symbols::{DISTANCES, LITLENS, MAX_BITS},
};

/// What occurs in the pages of a set, or in a sample of them.
pub struct Statistics {
    matcher: Matcher,
    counts: Counts,
    window: usize,
}

impl Default for Statistics {
    fn default() -> Self {
        Self::new()
    }
}

impl Statistics {
    #[must_use]
    pub fn new() -> Self {
        Self { matcher: Matcher::new(), counts: Counts::new(), window: WINDOW_BYTES }
    }

    /// For packers with such a window: see [`Packer::with_window`](crate::Packer::with_window).
    #[must_use]
    pub fn with_window(self, bytes: usize) -> Self {
        Self { window: bytes.min(WINDOW_BYTES), ..self }
    }

    /// Adds a piece, which is cut as a [`Packer`](crate::Packer) would pack it.
    ///
    /// # Panics
    /// If it is longer than [`PIECE_BYTES`].
    pub fn add(&mut self, piece: &[u8]) {
        assert!(piece.len() <= PIECE_BYTES, "a piece is at most {PIECE_BYTES} bytes");
        self.counts.add(self.matcher.tokens(piece, self.window));
    }
}

/// By symbol, its code and how many bits it has.
pub type CodeWords = Vec<(u16, u8)>;

/// The codes of a set of pieces. Made once, used by any number of packers and unpackers.
pub struct Table {
    lengths: CodeLengths,
    header: Vec<u8>,
    header_bits: usize,
    pub(crate) codes: Codes,
    pub(crate) tables: Tables,
}

impl From<&Statistics> for Table {
    /// Every symbol gets a code, also one that was not seen: any piece can be packed by the table.
    fn from(statistics: &Statistics) -> Self {
        let mut maker = LengthMaker::default();
        let mut lengths = CodeLengths { litlens: [0; LITLENS], distances: [0; DISTANCES] };
        maker.make(
            &statistics.counts.litlens.map(|count| count.saturating_add(1)),
            MAX_BITS,
            &mut lengths.litlens,
        );
        maker.make(
            &statistics.counts.distances.map(|count| count.saturating_add(1)),
            MAX_BITS,
            &mut lengths.distances,
        );
        Self::of(lengths).expect("codes that were just made are complete")
    }
}

impl Table {
    /// The table of two codes: of literals and lengths (at most 286 symbols), and of distances (at most 30), each by the lengths
    /// of its symbols' codes.
    ///
    /// # Errors
    /// The codes are not what RFC 1951 allows.
    pub fn from_code_lengths(litlens: &[u8], distances: &[u8]) -> Result<Self, Corrupt> {
        let mut lengths = CodeLengths { litlens: [0; LITLENS], distances: [0; DISTANCES] };
        let is_short = litlens.iter().chain(distances).all(|length| usize::from(*length) <= MAX_BITS);
        if litlens.len() > LITLENS || distances.len() > DISTANCES || !is_short {
            return Err(Corrupt("a code is too large"));
        }
        lengths.litlens[..litlens.len()].copy_from_slice(litlens);
        lengths.distances[..distances.len()].copy_from_slice(distances);
        header::check(&lengths)?;
        Self::of(lengths)
    }

    fn of(lengths: CodeLengths) -> Result<Self, Corrupt> {
        let header = Header::new(&lengths, &mut LengthMaker::default());
        let mut bytes = vec![0; MAX_HEADER_BYTES];
        let mut writer = BitWriter::new(&mut bytes);
        header.write(&mut writer);
        let len = writer.finish().expect("no header is longer than the longest");
        Self::new(lengths, &bytes[..len], header.bits())
    }

    fn new(lengths: CodeLengths, header: &[u8], header_bits: usize) -> Result<Self, Corrupt> {
        let mut tables = Tables::new();
        tables.set(&lengths.litlens, &lengths.distances)?;
        tables.pair();
        Ok(Self { lengths, header: header.to_vec(), header_bits, codes: Codes::new(&lengths), tables })
    }

    /// The table as it is stored: the header of a last DEFLATE block (RFC 1951, section 3.2.7), in whole bytes. Its first
    /// [`header_bits`](Self::header_bits) bits with those of a packed piece behind them are a stream that any inflater reads.
    #[must_use]
    pub fn to_bytes(&self) -> &[u8] {
        &self.header
    }

    /// How many bits of [`to_bytes`](Self::to_bytes) count.
    #[must_use]
    pub fn header_bits(&self) -> usize {
        self.header_bits
    }

    /// Reads a stored table. The bytes may be anything.
    ///
    /// # Errors
    /// They are not the header of a last block, all of it and nothing else, or its codes are not what RFC 1951 allows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Corrupt> {
        if bytes.len() > MAX_HEADER_BYTES {
            return Err(Corrupt("a table is too long"));
        }
        let mut reader = BitReader::new(bytes);
        if reader.take(3) != 1 | DYNAMIC << 1 {
            return Err(Corrupt("a table is not the header of a last block with codes of its own"));
        }
        let lengths = header::read(&mut reader)?;
        let bits = reader.position();
        if bits < bytes.len() * 8 && reader.take((8 - bits as u32 % 8) % 8) != 0 {
            return Err(Corrupt("something follows a table"));
        }
        reader.finish()?;
        Self::new(lengths, bytes, bits)
    }

    /// The codes themselves and their lengths, the first bit of a code highest: of literals and lengths, and of distances.
    #[must_use]
    pub fn code_words(&self) -> (CodeWords, CodeWords) {
        let words = |lengths: &[u8]| {
            let mut words = vec![(0, 0); lengths.len()];
            codes(lengths, |symbol, code, length| {
                words[symbol] = (code.reverse_bits() >> (16 - length), length);
            });
            words
        };
        (words(&self.lengths.litlens), words(&self.lengths.distances))
    }

    /// The lengths of the codes: of literals and lengths, and of distances.
    #[must_use]
    pub fn code_lengths(&self) -> (&[u8], &[u8]) {
        (&self.lengths.litlens, &self.lengths.distances)
    }
}
