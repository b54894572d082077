//! The pass over the pieces of a set that its tables are made from: what occurs in a sample of them, and which of them are alike.

use std::ops::Range;

use crate::{
    huffman::LengthMaker,
    matcher::{Matcher, Token},
    piece::{PAGE_BYTES, PIECE_BYTES, WINDOW_BYTES},
    symbols::{DISTANCES, END, LITLENS, MAX_BITS, distance_symbol, length_symbol},
    table::Table,
    table_set::{TableSet, parts},
};

/// Symbols of both alphabets, the distances behind the others.
const SYMBOLS: usize = LITLENS + DISTANCES;
/// Most parts that are kept: about 1.3 MB.
const KEPT_MAX: usize = 2048;
/// A part of so many is enough, but for sets of few.
const STEP: usize = 8;
const ENOUGH: usize = 256;
/// Pages that are taken or left together.
const RUN_PAGES: usize = PIECE_BYTES / PAGE_BYTES;
/// With a table more, so many parts are expected to take it.
const PARTS_OF_A_TABLE: usize = 16;
/// A new table begins with this share of the parts: those that the others suit least.
const SHARE: usize = 3;
/// How often parts change to a better table, and tables to their parts, after each new table.
const ROUNDS: usize = 2;

/// How often each symbol occurs in a part of a piece.
struct Part {
    /// At most as many as a part has bytes. Signed, as processors multiply them fastest.
    counts: [i16; SYMBOLS],
    bytes: u16,
    /// How many bits it would take by codes of its own, of any lengths.
    entropy: f32,
}

/// Code lengths of both alphabets.
type Lengths = [u8; SYMBOLS];

/// Statistics of the pages of a set, or of a sample of them: how often each symbol occurs in their parts.
pub struct Statistics {
    matcher: Matcher,
    window: usize,
    parts: Vec<Part>,
    /// Of so many parts one is kept, and how many there were.
    step: usize,
    seen: usize,
}

impl Default for Statistics {
    fn default() -> Self {
        Self::new()
    }
}

impl Statistics {
    /// Statistics of no piece yet, for packers with the largest window.
    #[must_use]
    pub fn new() -> Self {
        Self { matcher: Matcher::new(), window: WINDOW_BYTES, parts: Vec::new(), step: 1, seen: 0 }
    }

    /// For packers with such a window: see [`Packer::with_window`](crate::Packer::with_window).
    #[must_use]
    pub fn with_window(self, bytes: usize) -> Self {
        Self { window: bytes.min(WINDOW_BYTES), ..self }
    }

    /// The pages of a set, of `pages` pages, that it is enough to add: runs of up to 16.
    pub fn sample(pages: usize) -> impl Iterator<Item = Range<usize>> {
        let step = (pages / ENOUGH).min(STEP).max(pages / KEPT_MAX).max(1);
        (0..pages).step_by(step * RUN_PAGES).map(move |first| first..(first + RUN_PAGES).min(pages))
    }

    /// Adds a sample of memory, whole pages, that is packed by pieces of a length.
    ///
    /// # Panics
    /// If this is longer than [`PIECE_BYTES`].
    pub fn add_sample(&mut self, memory: &[u8], piece_bytes: usize) {
        for pages in Self::sample(memory.len() / PAGE_BYTES) {
            let run = &memory[pages.start * PAGE_BYTES..pages.end * PAGE_BYTES];
            run.chunks(piece_bytes).for_each(|piece| self.add(piece));
        }
    }

    /// Adds a piece, which is cut as a [`Packer`](crate::Packer) would pack it.
    ///
    /// # Panics
    /// If it is longer than [`PIECE_BYTES`].
    pub fn add(&mut self, piece: &[u8]) {
        assert!(piece.len() <= PIECE_BYTES, "a piece is at most {PIECE_BYTES} bytes");
        let tokens = self.matcher.tokens(piece, self.window);
        for range in parts(tokens) {
            if self.seen.is_multiple_of(self.step) {
                if self.parts.len() == KEPT_MAX {
                    let mut number = 0_usize;
                    self.parts.retain(|_| {
                        number += 1;
                        !number.is_multiple_of(2)
                    });
                    self.step *= 2;
                }
                let ends = range.end == tokens.len();
                self.parts.push(Part::new(&tokens[range], ends));
            }
            self.seen += 1;
        }
    }

    /// Tables for such pieces, at most `most` and [`TableSet::MOST`] of them.
    #[must_use]
    pub fn tables(&self, most: usize) -> TableSet {
        let most = most.min(TableSet::MOST).min(1 + self.parts.len() / PARTS_OF_A_TABLE);
        let mut tables = vec![self.lengths()];
        // A table that no part takes goes again, so that there may be fewer in the end.
        for _ in 1..most {
            let Some(next) = self.next(&tables) else { break };
            tables.push(next);
            for _ in 0..ROUNDS {
                tables = self.suited(&tables);
            }
        }
        TableSet::new(tables.iter().map(table).collect()).expect("one to four tables")
    }

    /// The code lengths that suit all parts.
    fn lengths(&self) -> Lengths {
        lengths(self.parts.iter())
    }

    /// One more table, of the parts that the others suit least.
    fn next(&self, tables: &[Lengths]) -> Option<Lengths> {
        let excess = |part: &Part| {
            let (_, bits) = best(part, tables)?;
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            Some(bits as f32 - part.entropy)
        };
        let mut worst: Vec<(f32, &Part)> =
            self.parts.iter().filter_map(|part| Some((excess(part)?, part))).collect();
        worst.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let share = worst.len() / SHARE;
        (share > 0).then(|| lengths(worst[..share].iter().map(|(_, part)| *part)))
    }

    /// Tables for the parts that take each of these; without those that none takes.
    fn suited(&self, tables: &[Lengths]) -> Vec<Lengths> {
        let mut takers: Vec<Vec<&Part>> = vec![Vec::new(); tables.len()];
        for part in &self.parts {
            if let Some((number, _)) = best(part, tables) {
                takers[number].push(part);
            }
        }
        let taken = takers.into_iter().filter(|parts| !parts.is_empty());
        let suited: Vec<Lengths> = taken.map(|parts| lengths(parts.into_iter())).collect();
        if suited.is_empty() { tables.to_vec() } else { suited }
    }
}

impl From<&Statistics> for Table {
    /// Every symbol gets a code, also one that was not seen: any piece can be packed by the table.
    fn from(statistics: &Statistics) -> Self {
        table(&statistics.lengths())
    }
}

fn table(lengths: &Lengths) -> Table {
    let (litlens, distances) = lengths.split_at(LITLENS);
    Table::from_code_lengths(litlens, distances).expect("codes that were just made are complete")
}

impl Part {
    /// `ends`: whether the piece ends with it.
    fn new(tokens: &[Token], ends: bool) -> Self {
        let mut part = Self { counts: [0; SYMBOLS], bytes: 0, entropy: 0.0 };
        for token in tokens {
            match token.as_literal() {
                Some(byte) => part.counts[byte] += 1,
                None => {
                    part.counts[END + 1 + length_symbol(token.len())] += 1;
                    part.counts[LITLENS + distance_symbol(token.distance())] += 1;
                }
            }
            part.bytes += token.len() as u16;
        }
        part.counts[END] += i16::from(ends);
        let (litlens, distances) = part.counts.split_at(LITLENS);
        part.entropy = entropy(litlens) + entropy(distances);
        part
    }

    /// How many bits it takes, extra bits left out.
    fn bits(&self, lengths: &Lengths) -> u32 {
        let products =
            self.counts.iter().zip(lengths).map(|(count, length)| i32::from(*count) * i32::from(*length));
        // A part has at most two symbols a byte, of 15 bits each.
        products.fold(0, i32::wrapping_add).cast_unsigned()
    }
}

/// How many bits these take by the best code, of any lengths.
fn entropy(counts: &[i16]) -> f32 {
    let weight = |count: f32| count * count.log2();
    let all: f32 = counts.iter().map(|count| f32::from(*count)).sum();
    let each = counts.iter().filter(|count| **count > 1).map(|count| weight(f32::from(*count)));
    if all > 1.0 { weight(all) - each.sum::<f32>() } else { 0.0 }
}

/// The table that suits a part best, and what it takes by it; `None`: packing saves too little of it to count.
fn best(part: &Part, tables: &[Lengths]) -> Option<(usize, u32)> {
    let bits = tables.iter().map(|lengths| part.bits(lengths)).enumerate();
    bits.min_by_key(|(_, bits)| *bits).filter(|(_, bits)| *bits <= 7 * u32::from(part.bytes))
}

/// The code lengths that suit parts. Every symbol has one.
fn lengths<'a>(parts: impl Iterator<Item = &'a Part>) -> Lengths {
    let mut sums = [1_u32; SYMBOLS];
    for part in parts {
        for (sum, count) in sums.iter_mut().zip(&part.counts) {
            *sum += u32::from(count.cast_unsigned());
        }
    }
    let (mut maker, mut made) = (LengthMaker::default(), [0; SYMBOLS]);
    let (litlens, distances) = made.split_at_mut(LITLENS);
    maker.make(&sums[..LITLENS], MAX_BITS, litlens);
    maker.make(&sums[LITLENS..], MAX_BITS, distances);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sets_are_taken_whole_and_large_ones_in_bounds() {
        for pages in [0, 1, 16, 17, ENOUGH, 2 * ENOUGH - 1] {
            let all: Vec<usize> = Statistics::sample(pages).flatten().collect();
            assert!(all.iter().copied().eq(0..pages), "{pages}");
        }
        for pages in [10_000, 100_001, 1 << 20] {
            let runs: Vec<Range<usize>> = Statistics::sample(pages).collect();
            assert!(runs.iter().all(|run| run.end <= pages && (1..=RUN_PAGES).contains(&run.len())));
            let all: usize = runs.iter().map(Range::len).sum();
            assert!(all >= ENOUGH && all <= pages / STEP + RUN_PAGES && all <= KEPT_MAX + KEPT_MAX / 8);
        }
    }

    #[test]
    fn of_many_parts_some_are_kept_from_everywhere() {
        let mut statistics = Statistics::new();
        for number in 0..10 * KEPT_MAX {
            statistics.add(&[number as u8, (number / KEPT_MAX) as u8]);
        }
        assert!((KEPT_MAX / 2..=KEPT_MAX).contains(&statistics.parts.len()));
        let of_tenth = |tenth: usize| statistics.parts.iter().filter(|part| part.counts[tenth] > 0).count();
        assert!((0..10).all(|tenth| of_tenth(tenth) >= KEPT_MAX / 32));
    }
}
