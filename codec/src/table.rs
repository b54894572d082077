//! One pair of codes for many pieces (*canned* DEFLATE: Sabre, section 3).

use crate::{
    bits::{BitReader, BitWriter},
    coding::Codes,
    error::Corrupt,
    header::{self, CodeLengths, DYNAMIC, Header, MAX_HEADER_BYTES},
    huffman::{LengthMaker, codes},
    inflate::Tables,
    symbols::{DISTANCES, LITLENS, MAX_BITS},
};

/// By symbol, its code and how many bits it has.
pub type CodeWords = Vec<(u16, u8)>;

/// The codes of a set of pieces. Made once, used by any number of packers and unpackers, and small.
pub struct Table {
    lengths: CodeLengths,
    header: Vec<u8>,
    header_bits: usize,
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
        Ok(Self::of(lengths))
    }

    fn of(lengths: CodeLengths) -> Self {
        let header = Header::new(&lengths, &mut LengthMaker::default());
        let mut bytes = vec![0; MAX_HEADER_BYTES];
        let mut writer = BitWriter::new(&mut bytes);
        header.write(&mut writer);
        let len = writer.finish().expect("no header is longer than the longest");
        bytes.truncate(len);
        bytes.shrink_to_fit();
        Self { lengths, header: bytes, header_bits: header.bits() }
    }

    /// Its codes, to pack by.
    pub(crate) fn codes(&self) -> Codes {
        Codes::new(&self.lengths)
    }

    /// Its lookup tables, to unpack by.
    pub(crate) fn lookup(&self) -> Result<Box<Tables>, Corrupt> {
        let mut tables = Box::new(Tables::new());
        tables.set(&self.lengths.litlens, &self.lengths.distances)?;
        tables.pair();
        Ok(tables)
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
        Ok(Self { lengths, header: bytes.to_vec(), header_bits: bits })
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
