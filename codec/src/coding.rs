//! Writes DEFLATE (RFC 1951).

use crate::{
    bits::BitWriter,
    header::CodeLengths,
    huffman::codes,
    matcher::Token,
    symbols::{
        DISTANCE, DISTANCES, END, LENGTH, LITLENS, MAX_MATCH, MIN_MATCH, distance_symbol, length_symbol,
    },
};

/// Bits to write, the lowest first: the bits, and how many. Their number is never zero, except where there is no code.
#[derive(Clone, Copy, Default)]
struct Code {
    bits: u32,
    count: u32,
}

/// Two codes, ready to be written.
pub struct Codes {
    litlens: [Code; LITLENS],
    distances: [Code; DISTANCES],
    /// By length, its symbol's code and its extra bits.
    lengths: [Code; MAX_MATCH + 1],
}

impl Codes {
    pub fn new(lengths: &CodeLengths) -> Self {
        Self::of(&lengths.litlens, &lengths.distances)
    }

    /// Symbols beyond the alphabets, which the fixed codes have, are left out.
    pub fn of(litlens: &[u8], distances: &[u8]) -> Self {
        let mut made = Self {
            litlens: [Code::default(); LITLENS],
            distances: [Code::default(); DISTANCES],
            lengths: [Code::default(); MAX_MATCH + 1],
        };
        let set = |place: Option<&mut Code>, bits: u16, count: u8| {
            if let Some(place) = place {
                *place = Code { bits: u32::from(bits), count: u32::from(count) };
            }
        };
        codes(litlens, |symbol, bits, count| set(made.litlens.get_mut(symbol), bits, count));
        codes(distances, |symbol, bits, count| set(made.distances.get_mut(symbol), bits, count));
        for length in MIN_MATCH..=MAX_MATCH {
            let symbol = length_symbol(length);
            let (least, extra) = LENGTH[symbol];
            let code = made.litlens[END + 1 + symbol];
            if code.count > 0 {
                let above = length as u32 - u32::from(least);
                made.lengths[length] =
                    Code { bits: code.bits | above << code.count, count: code.count + u32::from(extra) };
            }
        }
        made
    }

    /// Writes tokens and the end of the block. False if it did not fit, or a symbol has no code.
    pub fn write(&self, tokens: &[Token], writer: &mut BitWriter) -> bool {
        for token in tokens {
            match token.as_literal() {
                Some(byte) => {
                    let code = self.litlens[byte];
                    if code.count == 0 {
                        return false;
                    }
                    writer.put(code.bits, code.count);
                }
                None => {
                    let length = self.lengths[token.len()];
                    let distance = token.distance();
                    let symbol = distance_symbol(distance);
                    let code = self.distances[symbol];
                    if length.count == 0 || code.count == 0 {
                        return false;
                    }
                    let (least, extra) = DISTANCE[symbol];
                    writer.put(length.bits, length.count);
                    writer.put(
                        code.bits | (distance - u32::from(least)) << code.count,
                        code.count + u32::from(extra),
                    );
                }
            }
            writer.flush();
            if writer.is_full() {
                return false;
            }
        }
        let end = self.litlens[END];
        writer.put(end.bits, end.count);
        end.count > 0
    }
}

/// How often each symbol occurs.
#[derive(Clone)]
pub struct Counts {
    pub litlens: [u32; LITLENS],
    pub distances: [u32; DISTANCES],
}

impl Counts {
    pub fn new() -> Self {
        Self { litlens: [0; LITLENS], distances: [0; DISTANCES] }
    }

    /// Counts tokens and the end of their block.
    pub fn add(&mut self, tokens: &[Token]) {
        for token in tokens {
            match token.as_literal() {
                Some(byte) => self.litlens[byte] = self.litlens[byte].saturating_add(1),
                None => {
                    let length = &mut self.litlens[END + 1 + length_symbol(token.len())];
                    *length = length.saturating_add(1);
                    let distance = &mut self.distances[distance_symbol(token.distance())];
                    *distance = distance.saturating_add(1);
                }
            }
        }
        self.litlens[END] = self.litlens[END].saturating_add(1);
    }

    /// How many bits they take in codes of these lengths.
    pub fn bits(&self, litlens: &[u8], distances: &[u8]) -> u64 {
        let sum = |counts: &[u32], lengths: &[u8], extra: &dyn Fn(usize) -> u8| -> u64 {
            let each = counts.iter().zip(lengths).enumerate();
            each.map(|(symbol, (count, length))| u64::from(*count) * u64::from(length + extra(symbol))).sum()
        };
        let length_extra = |symbol: usize| symbol.checked_sub(END + 1).map_or(0, |length| LENGTH[length].1);
        sum(&self.litlens, litlens, &length_extra)
            + sum(&self.distances, distances, &|symbol| DISTANCE[symbol].1)
    }
}
