//! The tables of a set of pieces, and which of them packs what.
//!
//! With one table a piece is the symbols of one block. With several it is *parts* one behind the other, without gaps: the number
//! of a table in two bits, and the symbols of one block by it. The piece ends with the part that reaches its length.

use std::{ops::Range, sync::Arc};

use crate::{
    bits::{BitReader, BitWriter},
    coding::Codes,
    error::Corrupt,
    inflate::Tables,
    matcher::Token,
    piece::PAGE_BYTES,
    symbols::{DISTANCES, END, MAX_BITS, MAX_MATCH, MIN_MATCH, distance_symbol, length_symbol},
    table::Table,
    window::Window,
};

/// Bits of a table's number.
const NUMBER_BITS: u32 = 2;
/// A part has at least so many bytes but for the last one: pages differ more than what is in a page.
const PART_BYTES: usize = PAGE_BYTES;
/// Bits that another table has to save at least, beside what its number and the end of the part before take.
const SAVED_MIN: u32 = 2;

/// The tables of a set: one, or a few of which each part of a piece takes the best one.
#[derive(Clone)]
pub struct TableSet {
    tables: Vec<Arc<Table>>,
}

impl From<Arc<Table>> for TableSet {
    fn from(table: Arc<Table>) -> Self {
        Self { tables: vec![table] }
    }
}

impl From<Table> for TableSet {
    fn from(table: Table) -> Self {
        Arc::new(table).into()
    }
}

impl From<Arc<Self>> for TableSet {
    fn from(tables: Arc<Self>) -> Self {
        tables.as_ref().clone()
    }
}

impl TableSet {
    /// Most tables of a set.
    pub const MOST: usize = 1 << NUMBER_BITS;

    /// `None`: there are none of them, or too many.
    #[must_use]
    pub fn new(tables: Vec<Table>) -> Option<Self> {
        let is_good = (1..=Self::MOST).contains(&tables.len());
        is_good.then(|| Self { tables: tables.into_iter().map(Arc::new).collect() })
    }

    /// The only table, if there is no other.
    #[must_use]
    pub fn sole(&self) -> Option<&Arc<Table>> {
        self.tables.first().filter(|_| self.tables.len() == 1)
    }

    /// The tables by their numbers.
    #[must_use]
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }
}

/// Cuts the tokens of a piece behind each [`PART_BYTES`].
pub fn parts(tokens: &[Token]) -> impl Iterator<Item = Range<usize>> {
    let (mut first, mut at) = (0, 0);
    std::iter::from_fn(move || {
        let limit = (at / PART_BYTES + 1) * PART_BYTES;
        let mut end = first;
        while end < tokens.len() && at < limit {
            at += tokens[end].len();
            end += 1;
        }
        let part = first..end;
        first = end;
        (!part.is_empty()).then_some(part)
    })
}

/// By symbol, how many bits it takes in each table: 16 bits for each table, so that one addition adds for all of them. A part has
/// too few symbols to carry. Extra bits are left out: they are the same everywhere.
struct Costs {
    literals: [u64; 256],
    lengths: [u64; MAX_MATCH + 1],
    distances: [u64; DISTANCES],
}

const _: () = assert!((PART_BYTES + MAX_MATCH) * MAX_BITS < 1 << 16 && TableSet::MOST * 16 <= 64);

impl Costs {
    fn new(set: &TableSet) -> Self {
        let mut costs = Self { literals: [0; 256], lengths: [0; MAX_MATCH + 1], distances: [0; DISTANCES] };
        for (number, table) in set.tables.iter().enumerate() {
            let (litlens, distances) = table.code_lengths();
            // A symbol without a code makes no table good.
            let lane = |bits: u8| {
                let bits = if bits == 0 { MAX_BITS as u8 } else { bits };
                u64::from(bits) << (16 * number)
            };
            for (cost, bits) in costs.literals.iter_mut().zip(litlens) {
                *cost += lane(*bits);
            }
            for length in MIN_MATCH..=MAX_MATCH {
                costs.lengths[length] += lane(litlens[END + 1 + length_symbol(length)]);
            }
            for (cost, bits) in costs.distances.iter_mut().zip(distances) {
                *cost += lane(*bits);
            }
        }
        costs
    }

    /// Returns how many bits a part takes in each table, without extra bits.
    fn of(&self, part: &[Token]) -> [u32; TableSet::MOST] {
        // Without a branch: which tokens are literals is hard to guess.
        let cost = |token: &Token| {
            let distance = self.distances[distance_symbol(token.distance())];
            let found = self.lengths[token.len()].wrapping_add(distance);
            if token.is_literal() { self.literals[token.low_byte()] } else { found }
        };
        let sum = part.iter().map(cost).fold(0, u64::wrapping_add);
        std::array::from_fn(|number| u32::from((sum >> (16 * number)) as u16))
    }
}

/// Packs canned pieces.
pub struct CannedPacker {
    codes: Vec<Codes>,
    costs: Costs,
    /// Bits of the end of a part, by table.
    ends: Vec<u32>,
}

impl CannedPacker {
    pub fn new(set: &TableSet) -> Self {
        let codes = set.tables.iter().map(|table| table.codes()).collect();
        let ends = set.tables.iter().map(|table| u32::from(table.code_lengths().0[END])).collect();
        Self { codes, costs: Costs::new(set), ends }
    }

    /// How many bytes the tokens take at the front of `out`, if they fit.
    pub fn pack(&self, tokens: &[Token], out: &mut [u8]) -> Option<usize> {
        let mut writer = BitWriter::new(out);
        if let [codes] = self.codes.as_slice() {
            codes.write(tokens, &mut writer).then_some(())?;
            return writer.finish();
        }
        let (mut current, mut first) = (None, 0);
        for part in parts(tokens) {
            let best = self.best(current, &tokens[part.clone()]);
            if let Some(before) = current.filter(|before| *before != best) {
                self.write(before, &tokens[first..part.start], &mut writer)?;
                first = part.start;
            }
            current = Some(best);
        }
        self.write(current.unwrap_or(0), &tokens[first..], &mut writer)?;
        writer.finish()
    }

    /// The table for a part, after one by the table `before`: another one only if that pays.
    fn best(&self, before: Option<usize>, part: &[Token]) -> usize {
        let costs = self.costs.of(part);
        let mut best = before.unwrap_or(0);
        let another = before.map_or(0, |before| self.ends[before] + NUMBER_BITS + SAVED_MIN);
        let mut least = costs[best];
        for number in (0..self.codes.len()).filter(|number| Some(*number) != before) {
            if costs[number] + another < least {
                (best, least) = (number, costs[number] + another);
            }
        }
        best
    }

    fn write(&self, number: usize, tokens: &[Token], writer: &mut BitWriter) -> Option<()> {
        writer.put(number as u32, NUMBER_BITS);
        self.codes[number].write(tokens, writer).then_some(())
    }
}

/// Unpacks canned pieces. Lookups are made when they are first needed: a set that is at rest takes little memory.
pub struct CannedUnpacker {
    set: TableSet,
    lookups: [Option<Box<Tables>>; TableSet::MOST],
}

impl CannedUnpacker {
    pub fn new(set: TableSet) -> Self {
        Self { set, lookups: [const { None }; TableSet::MOST] }
    }

    /// Whether a piece says by itself where it ends.
    pub fn has_ends(&self) -> bool {
        self.set.sole().is_some()
    }

    /// Unpacks a piece to the beginning of `window`, `limit` bytes at most. Returns how many there are; with several tables, never
    /// fewer.
    pub fn unpack(
        &mut self,
        input: &mut BitReader,
        window: &mut Window,
        limit: usize,
    ) -> Result<usize, Corrupt> {
        if self.has_ends() {
            return self.lookup(0)?.inflate(input, window, 0, limit);
        }
        let mut at = 0;
        loop {
            let number = input.take(NUMBER_BITS) as usize;
            at = self.lookup(number)?.inflate(input, window, at, limit)?;
            if at >= limit {
                return Ok(at);
            }
            // Zeros behind the end must not make a piece that never ends.
            if input.is_behind_end() {
                return Err(Corrupt("it ends too early"));
            }
        }
    }

    fn lookup(&mut self, number: usize) -> Result<&Tables, Corrupt> {
        let table = self.set.tables.get(number).ok_or(Corrupt("there is no table of this number"))?;
        let lookup = match self.lookups[number].take() {
            Some(lookup) => lookup,
            None => table.lookup()?,
        };
        Ok(self.lookups[number].insert(lookup))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{matcher::Matcher, piece::PIECE_BYTES};

    #[test]
    fn parts_are_cut_behind_pages_and_nothing_is_left_out() {
        let mut matcher = Matcher::new();
        for len in [0, 1, 4095, 4096, 4097, PIECE_BYTES] {
            let piece: Vec<u8> = (0..len).map(|at| (at / 7 * at) as u8).collect();
            let tokens = matcher.tokens(&piece, PIECE_BYTES / 2);
            let (mut at, mut next) = (0, 0);
            for part in parts(tokens) {
                assert_eq!(part.start, next);
                next = part.end;
                let bytes: usize = tokens[part].iter().map(|token| token.len()).sum();
                assert!(at % PART_BYTES < MAX_MATCH && bytes <= PART_BYTES + MAX_MATCH);
                at += bytes;
            }
            assert_eq!((at, next), (len, tokens.len()));
        }
    }
}
