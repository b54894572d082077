//! The alphabets of DEFLATE (RFC 1951, section 3.2.5): what lengths and distances are in symbols and extra bits.

/// Symbols for literals, the end of a block and lengths that may occur.
pub const LITLENS: usize = 286;
/// Symbols for distances that may occur.
pub const DISTANCES: usize = 30;
/// The end of a block.
pub const END: usize = 256;
/// The longest code, in bits.
pub const MAX_BITS: usize = 15;
/// The longest code of code lengths, in bits.
pub const MAX_PRECODE_BITS: usize = 7;

pub const MIN_MATCH: usize = 3;
pub const MAX_MATCH: usize = 258;

/// Of each length symbol from 257 on: the least length, and how many extra bits follow.
#[rustfmt::skip]
pub const LENGTH: [(u16, u8); 29] = [
    (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (11, 1), (13, 1), (15, 1), (17, 1), (19, 2), (23, 2), (27, 2),
    (31, 2), (35, 3), (43, 3), (51, 3), (59, 3), (67, 4), (83, 4), (99, 4), (115, 4), (131, 5), (163, 5), (195, 5), (227, 5), (258, 0),
];

/// Of each distance symbol: the least distance, and how many extra bits follow.
#[rustfmt::skip]
pub const DISTANCE: [(u16, u8); DISTANCES] = [
    (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (7, 1), (9, 2), (13, 2), (17, 3), (25, 3), (33, 4), (49, 4), (65, 5), (97, 5), (129, 6),
    (193, 6), (257, 7), (385, 7), (513, 8), (769, 8), (1025, 9), (1537, 9), (2049, 10), (3073, 10), (4097, 11), (6145, 11),
    (8193, 12), (12289, 12), (16385, 13), (24577, 13),
];

/// The order in which a header gives the lengths of the code of code lengths.
pub const PRECODE_ORDER: [u8; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Which symbol, counted from 257, a length has.
static LENGTH_SYMBOL: [u8; MAX_MATCH + 1] = {
    let mut symbols = [0; MAX_MATCH + 1];
    let mut symbol = 0_u8;
    while (symbol as usize) < LENGTH.len() {
        let mut length = LENGTH[symbol as usize].0 as usize;
        // 258 is within the range of the symbol before the last too, and has one of its own.
        while length <= MAX_MATCH {
            symbols[length] = symbol;
            length += 1;
        }
        symbol += 1;
    }
    symbols
};

/// The symbol of a length from 3 to 258, counted from 257.
pub fn length_symbol(length: usize) -> usize {
    usize::from(LENGTH_SYMBOL[length])
}

/// The symbol of a distance from 1 to 32768.
#[inline(always)]
pub fn distance_symbol(distance: u32) -> usize {
    let below = (distance - 1) | 1;
    let top = 31 - below.leading_zeros();
    // Two symbols for each power of two; the lowest two distances have one each.
    let symbol = if distance <= 2 { distance - 1 } else { 2 * top + ((distance - 1) >> (top - 1) & 1) };
    symbol as usize
}

/// The code lengths that need no header (RFC 1951, section 3.2.6).
pub const FIXED_LITLENS: [u8; 288] = {
    let mut lengths = [8; 288];
    let mut symbol = 144;
    while symbol < 280 {
        lengths[symbol] = if symbol < 256 { 9 } else { 7 };
        symbol += 1;
    }
    lengths
};
pub const FIXED_DISTANCES: [u8; 32] = [5; 32];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_distance_is_in_the_range_of_its_symbol() {
        for length in MIN_MATCH..=MAX_MATCH {
            let (base, extra) = LENGTH[length_symbol(length)];
            let above = length - usize::from(base);
            assert!(above < 1 << extra, "{length}");
        }
        assert_eq!((length_symbol(257), length_symbol(258)), (27, 28));
        for distance in 1..=32768_u32 {
            let (base, extra) = DISTANCE[distance_symbol(distance)];
            assert!(distance >= u32::from(base) && distance - u32::from(base) < 1 << extra, "{distance}");
        }
    }
}
