//! Finds what repeats in a piece (LZ77): chains of places with the same four bytes, and a look at the next byte before a
//! match is taken.

use crate::{
    piece::PIECE_BYTES,
    symbols::{MAX_MATCH, MIN_MATCH},
};

/// How many bytes are hashed: a shorter repeat rarely pays among the bytes of memory.
const HASHED: usize = 4;
const HASH_BITS: u32 = 13;
/// How many places of a chain are looked at, and how many when a match is there already.
const DEPTH: usize = 12;
const DEPTH_LAZY: usize = 4;
/// A match of this length is taken without a look at the next byte.
const GOOD: usize = 24;

/// A literal, or a match.
#[derive(Clone, Copy)]
pub struct Token(u32);

const MATCH: u32 = 1 << 31;

impl Token {
    #[inline(always)]
    fn literal(byte: u8) -> Self {
        Self(1 << 16 | u32::from(byte))
    }

    #[inline(always)]
    fn repeat(found: Match) -> Self {
        Self(MATCH | (found.len as u32) << 16 | (found.distance as u32 - 1))
    }

    /// The byte, or nothing for a match.
    #[inline(always)]
    pub fn as_literal(self) -> Option<usize> {
        self.is_literal().then_some(self.low_byte())
    }

    #[inline(always)]
    pub fn is_literal(self) -> bool {
        self.0 & MATCH == 0
    }

    /// Of a literal, the byte; of a match, nothing.
    #[inline(always)]
    pub fn low_byte(self) -> usize {
        self.0 as usize & 0xff
    }

    /// How many bytes it stands for: of a match from 3 to 258.
    #[inline(always)]
    pub fn len(self) -> usize {
        (self.0 >> 16 & 0x1ff) as usize
    }

    /// Of a match, from 1 to 32768.
    #[inline(always)]
    pub fn distance(self) -> u32 {
        (self.0 & 0x7fff) + 1
    }
}

#[derive(Clone, Copy)]
struct Match {
    len: usize,
    distance: usize,
}

/// Memory that is used for one piece after the other.
pub struct Matcher {
    /// The piece, and some zeros behind it.
    data: Box<[u8; PIECE_BYTES + 16]>,
    /// By hash, one more than the last place of four such bytes.
    heads: Box<[u16; 1 << HASH_BITS]>,
    /// By place, one more than the place before it with the same hash.
    before: Box<[u16; PIECE_BYTES]>,
    tokens: Vec<Token>,
}

fn zeroed<T: Copy + Default, const N: usize>() -> Box<[T; N]> {
    vec![T::default(); N].into_boxed_slice().try_into().ok().expect("it is as long as that")
}

impl Matcher {
    pub fn new() -> Self {
        Self { data: zeroed(), heads: zeroed(), before: zeroed(), tokens: Vec::new() }
    }

    /// A piece as literals and as matches that go back `window` bytes at most.
    pub fn tokens(&mut self, piece: &[u8], window: usize) -> &[Token] {
        self.data[..piece.len()].copy_from_slice(piece);
        self.data[piece.len()..piece.len() + 16].fill(0);
        self.heads.fill(0);
        self.tokens.clear();
        self.tokens.reserve(piece.len());
        let end = piece.len();
        let mut at = 0;
        while at < end {
            let found = self.find(at, end, window, DEPTH, HASHED - 1);
            self.insert(at, end);
            let Some(mut found) = found else {
                self.tokens.push(Token::literal(piece[at]));
                at += 1;
                continue;
            };
            // A match one byte later may be worth a literal: a longer one, or one as long that is nearer.
            while found.len < GOOD {
                match self.find(at + 1, end, window, DEPTH_LAZY, found.len - 1) {
                    Some(next) if is_better(next, found) => {
                        self.tokens.push(Token::literal(piece[at]));
                        at += 1;
                        self.insert(at, end);
                        found = next;
                    }
                    _ => break,
                }
            }
            self.tokens.push(Token::repeat(found));
            let after = at + found.len;
            // What is in the middle of a long one can be found by its beginning.
            let insert_to = if found.len > 16 { at + 8 } else { after };
            for place in at + 1..insert_to {
                self.insert(place, end);
            }
            at = after;
        }
        &self.tokens
    }

    #[inline(always)]
    fn load<const N: usize>(&self, at: usize) -> [u8; N] {
        let at = at & (PIECE_BYTES - 1);
        *self.data[at..at + N].first_chunk().expect("the range has this length")
    }

    #[inline(always)]
    fn hash(&self, at: usize) -> usize {
        let word = u32::from_le_bytes(self.load(at));
        (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
    }

    #[inline(always)]
    fn insert(&mut self, at: usize, end: usize) {
        if at + HASHED <= end {
            let head = &mut self.heads[self.hash(at)];
            self.before[at & (PIECE_BYTES - 1)] = *head;
            *head = at as u16 + 1;
        }
    }

    /// The best match for `at` that is longer than `least`.
    #[inline(always)]
    fn find(&mut self, at: usize, end: usize, window: usize, depth: usize, least: usize) -> Option<Match> {
        if at + HASHED > end {
            return None;
        }
        let longest = (end - at).min(MAX_MATCH);
        let mut best = Match { len: least, distance: 0 };
        let mut next = self.heads[self.hash(at)];
        for _ in 0..depth {
            if next == 0 {
                break;
            }
            let place = usize::from(next) - 1;
            if at - place > window || best.len >= longest {
                break;
            }
            let tail = best.len - 3;
            if self.load::<4>(place + tail) == self.load::<4>(at + tail) {
                let len = self.common(place, at, longest);
                if len > best.len {
                    best = Match { len, distance: at - place };
                }
            }
            next = self.before[place & (PIECE_BYTES - 1)];
        }
        (best.distance > 0).then_some(best)
    }

    /// How many bytes are the same at two places.
    #[inline(always)]
    fn common(&self, one: usize, other: usize, longest: usize) -> usize {
        let mut len = 0;
        while len < longest {
            let differing =
                u64::from_le_bytes(self.load(one + len)) ^ u64::from_le_bytes(self.load(other + len));
            if differing != 0 {
                return (len + (differing.trailing_zeros() >> 3) as usize).min(longest);
            }
            len += 8;
        }
        longest
    }
}

/// Whether a match one byte later is worth a literal: each further byte counts as four bits that a distance may cost.
#[inline(always)]
fn is_better(next: Match, found: Match) -> bool {
    let cost = |found: Match| found.distance.ilog2();
    4 * next.len + cost(found) as usize > 4 * found.len + cost(next) as usize + 2
}

// What is looked for is longer than three bytes, also where it may be as long as a match that was found.
const _: () = assert!(HASHED > MIN_MATCH && PIECE_BYTES <= 1 << 16);

#[cfg(test)]
mod tests {
    use super::*;

    /// Matches by length and distance.
    fn matches(piece: &[u8]) -> Vec<(usize, u32)> {
        let mut matcher = Matcher::new();
        let tokens = matcher.tokens(piece, PIECE_BYTES / 2);
        let matches = tokens.iter().filter(|token| token.as_literal().is_none());
        matches.map(|token| (token.len(), token.distance())).collect()
    }

    #[test]
    fn of_two_matches_of_one_length_the_nearer_one_is_taken_a_byte_later() {
        let filler: Vec<u8> =
            (0..1000_u16).flat_map(|number| [0x80 | number as u8, (number >> 4) as u8]).collect();
        // "abcde" far away, "bcdef" near by; then "abcdef", which no place has.
        let piece = [b"abcde".as_slice(), &filler[..1000], b"bcdef", b"__abcdef"].concat();
        assert_eq!(matches(&piece).last(), Some(&(5, 8)));
        let piece = [b"abcdefgh".as_slice(), &filler[..1000], b"bcdef", b"__abcdefgh"].concat();
        assert!(matches(&piece).last().unwrap().0 == 8);
    }
}
