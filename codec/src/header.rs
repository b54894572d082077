//! The header of a DEFLATE block with codes of its own (RFC 1951, section 3.2.7): the lengths of both codes, themselves
//! coded.

use crate::{
    bits::{BitReader, BitWriter},
    error::Corrupt,
    huffman::{FULL, LengthMaker, codes, coverage},
    symbols::{DISTANCES, END, LITLENS, MAX_PRECODE_BITS, PRECODE_ORDER},
};

/// The longest header in bytes: what a hostile table may take up.
pub const MAX_HEADER_BYTES: usize =
    (17 + 19 * 3 + (LITLENS + DISTANCES) * (MAX_PRECODE_BITS + 7)).div_ceil(8);

/// The kinds of blocks, as their header has them.
pub const STORED: u32 = 0;
pub const FIXED: u32 = 1;
pub const DYNAMIC: u32 = 2;

/// Lengths of the two codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CodeLengths {
    pub litlens: [u8; LITLENS],
    pub distances: [u8; DISTANCES],
}

/// A symbol of the code of code lengths, and its extra bits.
#[derive(Clone, Copy)]
struct Run {
    symbol: u8,
    extra: u8,
}

/// A header that is not written yet.
pub struct Header {
    runs: Vec<Run>,
    precode: [u8; 19],
    litlens: usize,
    distances: usize,
    given: usize,
}

impl Header {
    pub fn new(lengths: &CodeLengths, maker: &mut LengthMaker) -> Self {
        let used = |lengths: &[u8]| lengths.iter().rposition(|length| *length > 0).map_or(0, |last| last + 1);
        let litlens = used(&lengths.litlens).max(END + 1);
        let distances = used(&lengths.distances).max(1);
        let mut all = [0; LITLENS + DISTANCES];
        all[..litlens].copy_from_slice(&lengths.litlens[..litlens]);
        all[litlens..litlens + distances].copy_from_slice(&lengths.distances[..distances]);
        let runs = runs(&all[..litlens + distances]);
        let mut counts = [0; 19];
        for run in &runs {
            counts[usize::from(run.symbol)] += 1;
        }
        let mut precode = [0; 19];
        maker.make(&counts, MAX_PRECODE_BITS, &mut precode);
        let given = PRECODE_ORDER
            .iter()
            .rposition(|symbol| precode[usize::from(*symbol)] > 0)
            .map_or(0, |last| last + 1);
        Self { runs, precode, litlens, distances, given: given.max(4) }
    }

    /// How long it will be.
    pub fn bits(&self) -> usize {
        let runs = self
            .runs
            .iter()
            .map(|run| u32::from(self.precode[usize::from(run.symbol)]) + extra_bits(run.symbol));
        17 + 3 * self.given + runs.sum::<u32>() as usize
    }

    /// Writes it, as that of the last block.
    pub fn write(&self, writer: &mut BitWriter) {
        let small = |count: usize| u32::try_from(count).expect("a few hundred at most");
        writer.put(1 | DYNAMIC << 1, 3);
        writer.put(small(self.litlens - 257), 5);
        writer.put(small(self.distances - 1), 5);
        writer.put(small(self.given - 4), 4);
        writer.flush();
        for symbol in &PRECODE_ORDER[..self.given] {
            writer.put(u32::from(self.precode[usize::from(*symbol)]), 3);
            writer.flush();
        }
        let mut table = [(0, 0); 19];
        codes(&self.precode, |symbol, code, length| table[symbol] = (code, length));
        for run in &self.runs {
            let (code, length) = table[usize::from(run.symbol)];
            writer.put(u32::from(code), u32::from(length));
            writer.put(u32::from(run.extra), extra_bits(run.symbol));
            writer.flush();
        }
    }
}

fn extra_bits(symbol: u8) -> u32 {
    match symbol {
        16 => 2,
        17 => 3,
        18 => 7,
        _ => 0,
    }
}

/// Code lengths, with runs of one length and of zeros as symbols of their own.
fn runs(lengths: &[u8]) -> Vec<Run> {
    let small = |count: usize| u8::try_from(count).expect("at most 138");
    let mut runs = Vec::with_capacity(lengths.len());
    for group in lengths.chunk_by(|one, next| one == next) {
        let mut left = group.len();
        if group[0] > 0 {
            runs.push(Run { symbol: group[0], extra: 0 });
            left -= 1;
        }
        while left > 0 {
            let (taken, run) = match (group[0], left) {
                (0, 11..) => (left.min(138), Run { symbol: 18, extra: small(left.min(138) - 11) }),
                (0, 3..) => (left, Run { symbol: 17, extra: small(left - 3) }),
                // Of seven it would leave one behind.
                (1.., 7) => (4, Run { symbol: 16, extra: 1 }),
                (1.., 3..) => (left.min(6), Run { symbol: 16, extra: small(left.min(6) - 3) }),
                (symbol, _) => (1, Run { symbol, extra: 0 }),
            };
            runs.push(run);
            left -= taken;
        }
    }
    runs
}

/// Reads what follows the three bits of the block's kind. The codes are complete, except that there may be one distance of
/// one bit or none, and a single symbol that ends the block.
pub fn read(reader: &mut BitReader) -> Result<CodeLengths, Corrupt> {
    let litlens = reader.take(5) as usize + 257;
    let distances = reader.take(5) as usize + 1;
    let given = reader.take(4) as usize + 4;
    if litlens > LITLENS || distances > DISTANCES {
        return Err(Corrupt("a header has too many symbols"));
    }
    let mut precode = [0_u8; 19];
    for symbol in &PRECODE_ORDER[..given] {
        precode[usize::from(*symbol)] = reader.take(3) as u8;
    }
    if coverage(&precode) != FULL {
        return Err(Corrupt("the code of code lengths is not complete"));
    }
    // By the next seven bits: symbol, and how long it is.
    let mut lookup = [(0_u8, 0_u8); 1 << MAX_PRECODE_BITS];
    codes(&precode, |symbol, code, length| {
        for index in (usize::from(code)..lookup.len()).step_by(1 << length) {
            lookup[index] = (symbol as u8, length);
        }
    });
    let mut lengths = [0; LITLENS + DISTANCES];
    let total = litlens + distances;
    let mut at = 0;
    while at < total {
        reader.refill();
        let (symbol, bits) = lookup[(reader.peek() & (lookup.len() as u64 - 1)) as usize];
        reader.consume(u32::from(bits));
        let (value, count) = match symbol {
            16 if at == 0 => return Err(Corrupt("a header repeats a length before the first")),
            16 => (lengths[at - 1], 3 + reader.take(2) as usize),
            17 => (0, 3 + reader.take(3) as usize),
            18 => (0, 11 + reader.take(7) as usize),
            length => (length, 1),
        };
        lengths
            .get_mut(at..at + count)
            .filter(|_| at + count <= total)
            .ok_or(Corrupt("a header has too many lengths"))?
            .fill(value);
        at += count;
    }
    let mut read = CodeLengths { litlens: [0; LITLENS], distances: [0; DISTANCES] };
    read.litlens[..litlens].copy_from_slice(&lengths[..litlens]);
    read.distances[..distances].copy_from_slice(&lengths[litlens..total]);
    check(&read)?;
    Ok(read)
}

/// Whether codes are complete, as far as they have to be.
pub fn check(lengths: &CodeLengths) -> Result<(), Corrupt> {
    if lengths.litlens[END] == 0 {
        return Err(Corrupt("a block has no end"));
    }
    let is_one_bit = |lengths: &[u8]| {
        let mut used = lengths.iter().filter(|length| **length > 0);
        used.next() == Some(&1) && used.next().is_none()
    };
    if coverage(&lengths.litlens) != FULL && !is_one_bit(&lengths.litlens) {
        return Err(Corrupt("the code of literals and lengths is not complete"));
    }
    let distances = coverage(&lengths.distances);
    if distances != FULL && distances != 0 && !is_one_bit(&lengths.distances) {
        return Err(Corrupt("the code of distances is not complete"));
    }
    Ok(())
}
