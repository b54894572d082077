//! Tables that turn the next bits of packed data into symbols.
//!
//! A table is indexed by the next bits, as many as its first level has; a code that is longer leads to a second level by its
//! further bits. What an entry says lies in one word, so that a symbol costs one load:
//!
//! | bits | |
//! |---|---|
//! | 0 to 5 | how many bits the symbol takes, its extra bits among them; of a link, how many the first level takes |
//! | 8 to 11 | how many of them are the code; of a link, how many bits the second level has |
//! | 12 | of literals: two, not one; of special ones: no symbol |
//! | 13 | of special ones: the end of the block |
//! | 14 | literals |
//! | 15 | special, neither literal nor length nor distance: a link, the end of the block, or no symbol |
//! | 16 to 31 | the literals, the least length or distance, or where the second level begins |

use crate::{
    error::Corrupt,
    huffman::codes,
    symbols::{DISTANCE, END, LENGTH},
};

/// A pair of literals.
pub const PAIR: u32 = 1 << 12;
/// One literal, or a pair.
pub const LITERAL: u32 = 1 << 14;
/// Something out of the ordinary.
pub const SPECIAL: u32 = 1 << 15;
/// Of special ones: the end of the block.
const IS_END: u32 = 1 << 13;
/// Of special ones: no code begins like this. A link is neither.
const IS_INVALID: u32 = 1 << 12;
const INVALID: u32 = SPECIAL | IS_INVALID;

/// The meaning of an entry that is neither literal nor length.
pub enum Special {
    End,
    /// The second level has the symbol.
    Link,
    Invalid,
}

pub fn special(entry: u32) -> Special {
    match entry & (IS_END | IS_INVALID) {
        0 => Special::Link,
        IS_END => Special::End,
        _ => Special::Invalid,
    }
}

/// A table of two levels, `1 << BITS` entries the first, `SIZE` (a power of two) both.
pub struct Lookup<const BITS: u32, const SIZE: usize> {
    entries: [u32; SIZE],
}

/// Literals and lengths. The largest table for 286 symbols of at most 15 bits has 2342 entries.
pub type Litlens = Lookup<11, 4096>;
/// Distances. The largest table for 30 symbols has 402 entries.
pub type Distances = Lookup<8, 512>;

impl<const BITS: u32, const SIZE: usize> Lookup<BITS, SIZE> {
    pub const fn new() -> Self {
        Self { entries: [INVALID; SIZE] }
    }

    /// The entry for the next bits.
    #[inline(always)]
    pub fn first(&self, bits: u64) -> u32 {
        self.entries[bits as usize & ((1 << BITS) - 1)]
    }

    /// The entry of the second level, after the first level's bits were consumed.
    #[inline(always)]
    pub fn second(&self, link: u32, bits: u64) -> u32 {
        let mask = (1_usize << (link >> 8 & 15)) - 1;
        self.entries[((link >> 16) as usize + (bits as usize & mask)) & (SIZE - 1)]
    }

    /// Fills it for a code. `entry` makes a symbol's entry without the bits that it takes.
    fn fill(&mut self, lengths: &[u8], entry: impl Fn(usize) -> (u32, u8)) -> Result<(), Corrupt> {
        let first = 1_usize << BITS;
        self.entries[..first].fill(INVALID);
        let mut longest = [0_u8; 1 << 11];
        let mut is_deep = false;
        codes(lengths, |symbol, code, length| {
            if u32::from(length) > BITS {
                let prefix = usize::from(code) & (first - 1);
                longest[prefix] = longest[prefix].max(length);
                is_deep = true;
                return;
            }
            let (meaning, extra) = entry(symbol);
            let word = meaning | u32::from(length) << 8 | u32::from(length + extra);
            for place in self.entries[..first].iter_mut().skip(usize::from(code)).step_by(1 << length) {
                *place = word;
            }
        });
        if !is_deep {
            return Ok(());
        }
        let mut next = first;
        for (prefix, longest) in longest[..first].iter().enumerate().filter(|(_, longest)| **longest > 0) {
            let bits = u32::from(*longest) - BITS;
            let end = next + (1 << bits);
            self.entries.get_mut(next..end).ok_or(Corrupt("a code needs too large a table"))?.fill(INVALID);
            self.entries[prefix] = SPECIAL | (next as u32) << 16 | bits << 8 | BITS;
            next = end;
        }
        codes(lengths, |symbol, code, length| {
            if u32::from(length) > BITS {
                let link = self.entries[usize::from(code) & (first - 1)];
                let (start, size) = ((link >> 16) as usize, 1_usize << (link >> 8 & 15));
                let rest = length - BITS as u8;
                let (meaning, extra) = entry(symbol);
                let word = meaning | u32::from(rest) << 8 | u32::from(rest + extra);
                for index in (usize::from(code) >> BITS..size).step_by(1 << rest) {
                    self.entries[start + index] = word;
                }
            }
        });
        Ok(())
    }
}

impl Litlens {
    /// Fills it for a code of literals and lengths.
    pub fn set(&mut self, lengths: &[u8]) -> Result<(), Corrupt> {
        self.fill(lengths, |symbol| match symbol {
            0..END => ((symbol as u32) << 16 | LITERAL, 0),
            END => (SPECIAL | IS_END, 0),
            _ => match LENGTH.get(symbol - END - 1) {
                Some((least, extra)) => (u32::from(*least) << 16, *extra),
                None => (INVALID, 0),
            },
        })
    }

    /// Joins literals with those that follow them, where the first level's bits have both.
    pub fn pair(&mut self) {
        let first = 1 << 11;
        let singles: Vec<u32> = self.entries[..first].to_vec();
        for (index, entry) in singles.iter().enumerate() {
            let taken = entry & 63;
            let next = singles[index >> taken];
            let both = taken + (next & 63);
            if entry & (LITERAL | SPECIAL) == LITERAL && next & (LITERAL | SPECIAL) == LITERAL && both <= 11 {
                let literals = (next >> 16 & 0xff) << 24 | (entry >> 16 & 0xff) << 16;
                self.entries[index] = literals | LITERAL | PAIR | both << 8 | both;
            }
        }
    }
}

impl Distances {
    /// Fills it for a code of distances.
    pub fn set(&mut self, lengths: &[u8]) -> Result<(), Corrupt> {
        self.fill(lengths, |symbol| match DISTANCE.get(symbol) {
            Some((least, extra)) => (u32::from(*least) << 16, *extra),
            None => (INVALID, 0),
        })
    }
}
