//! Reads DEFLATE (RFC 1951).

use crate::{
    bits::BitReader,
    error::Corrupt,
    header::{self, DYNAMIC, FIXED, STORED},
    lookup::{Distances, LITERAL, Litlens, PAIR, SPECIAL, Special, special},
    symbols::{FIXED_DISTANCES, FIXED_LITLENS},
    window::Window,
};

/// The lookup tables of a block's two codes.
pub struct Tables {
    litlens: Litlens,
    distances: Distances,
}

impl Tables {
    pub fn new() -> Self {
        Self { litlens: Litlens::new(), distances: Distances::new() }
    }

    /// Fills them for two codes that are complete, or as incomplete as [`header::read`] lets them be.
    pub fn set(&mut self, litlens: &[u8], distances: &[u8]) -> Result<(), Corrupt> {
        self.litlens.set(litlens)?;
        self.distances.set(distances)
    }

    /// Makes them faster, at a cost that pays if many pieces are unpacked by them.
    pub fn pair(&mut self) {
        self.litlens.pair();
    }

    /// Those of the fixed codes.
    pub fn fixed() -> Self {
        let mut tables = Self::new();
        tables.set(&FIXED_LITLENS, &FIXED_DISTANCES).expect("they fit");
        tables
    }

    /// Unpacks the symbols of one block to `window` from `at` on, up to its end, which is at `limit` at most. Returns
    /// where it is.
    pub fn inflate(
        &self,
        input: &mut BitReader,
        window: &mut Window,
        mut at: usize,
        limit: usize,
    ) -> Result<usize, Corrupt> {
        loop {
            if at > limit {
                return Err(Corrupt("it is longer than it should be"));
            }
            input.refill();
            let mut entry = self.litlens.first(input.peek());
            if entry & LITERAL != 0 {
                // Three of them take 33 bits at most.
                at = put(input, window, at, entry);
                entry = self.litlens.first(input.peek());
                if entry & LITERAL != 0 {
                    at = put(input, window, at, entry);
                    entry = self.litlens.first(input.peek());
                    if entry & LITERAL != 0 {
                        at = put(input, window, at, entry);
                        continue;
                    }
                }
                input.refill();
            }
            if entry & SPECIAL != 0 {
                match special(entry) {
                    Special::End => {
                        input.consume(entry);
                        return Ok(at);
                    }
                    Special::Invalid => return Err(Corrupt("a symbol has no meaning")),
                    Special::Link => {
                        input.consume(entry);
                        entry = self.litlens.second(entry, input.peek());
                        if entry & (LITERAL | SPECIAL) == LITERAL {
                            at = put(input, window, at, entry);
                            continue;
                        }
                        match special(entry) {
                            _ if entry & SPECIAL == 0 => {}
                            Special::End => {
                                input.consume(entry);
                                return Ok(at);
                            }
                            Special::Link | Special::Invalid => {
                                return Err(Corrupt("a symbol has no meaning"));
                            }
                        }
                    }
                }
            }
            // 56 bits were ready; a length takes 20 of them, a distance 28.
            let len = value(input, entry);
            let distance = self.distance(input, at)?;
            window.repeat(at, distance, len);
            at += len;
        }
    }

    /// Reads the distance behind a length. The window is filled up to `at`.
    #[inline(always)]
    fn distance(&self, input: &mut BitReader, at: usize) -> Result<usize, Corrupt> {
        let mut entry = self.distances.first(input.peek());
        if entry & SPECIAL != 0 {
            if !matches!(special(entry), Special::Link) {
                return Err(Corrupt("a distance has no meaning"));
            }
            input.consume(entry);
            entry = self.distances.second(entry, input.peek());
            if entry & SPECIAL != 0 {
                return Err(Corrupt("a distance has no meaning"));
            }
        }
        let distance = value(input, entry);
        if distance > at {
            return Err(Corrupt("a distance goes back beyond the beginning"));
        }
        Ok(distance)
    }
}

/// Writes the entry's one or two literals.
#[inline(always)]
fn put(input: &mut BitReader, window: &mut Window, at: usize, entry: u32) -> usize {
    input.consume(entry);
    window.put_two(at, (entry >> 16) as u16);
    at + 1 + usize::from(entry & PAIR != 0)
}

/// The length or distance that an entry and its extra bits give.
#[inline(always)]
fn value(input: &mut BitReader, entry: u32) -> usize {
    let bits = input.peek();
    input.consume(entry);
    let symbol = bits & 1_u64.wrapping_shl(entry).wrapping_sub(1);
    (entry >> 16) as usize + (symbol >> (entry >> 8 & 15)) as usize
}

/// Unpacks a whole stream of blocks to the beginning of `window`: `len` bytes, neither more nor fewer, and nothing left.
pub fn inflate_stream(
    packed: &[u8],
    window: &mut Window,
    len: usize,
    fixed: &Tables,
    own: &mut Tables,
) -> Result<(), Corrupt> {
    let mut input = BitReader::new(packed);
    let mut at = 0;
    loop {
        let is_last = input.take(1) == 1;
        match input.take(2) {
            STORED => {
                let sizes = input.take_bytes(4)?;
                let [low, high, not_low, not_high] = *sizes.first_chunk().expect("four bytes");
                if [!low, !high] != [not_low, not_high] {
                    return Err(Corrupt("a stored block's length is not its complement's"));
                }
                let count = usize::from(u16::from_le_bytes([low, high]));
                if count > len - at {
                    return Err(Corrupt("it is longer than it should be"));
                }
                window.content_mut(len)[at..at + count].copy_from_slice(input.take_bytes(count)?);
                at += count;
            }
            FIXED => at = fixed.inflate(&mut input, window, at, len)?,
            DYNAMIC => {
                let lengths = header::read(&mut input)?;
                own.set(&lengths.litlens, &lengths.distances)?;
                at = own.inflate(&mut input, window, at, len)?;
            }
            _ => return Err(Corrupt("a block is of no kind")),
        }
        // Zeros behind the end must not make a block that never ends.
        if at > len || input.is_behind_end() {
            return Err(Corrupt("it is longer than it should be"));
        }
        if is_last {
            break;
        }
    }
    if at < len {
        return Err(Corrupt("it is shorter than it should be"));
    }
    input.finish()
}
