//! Huffman codes: lengths from frequencies, no longer than a limit, and the canonical codes of lengths (RFC 1951, section
//! 3.2.2).

use crate::symbols::MAX_BITS;

/// Makes optimal code lengths of at most `limit` bits. A symbol that never occurs gets none, unless fewer than two occur:
/// the code is always complete.
#[derive(Default)]
pub struct LengthMaker {
    /// The symbols that occur, the rarest first: frequency, symbol.
    leaves: Vec<(u32, u16)>,
    /// Of each inner node its weight, and later its depth.
    weights: Vec<u64>,
    /// Of each leaf, then of each inner node, the inner node above it.
    above: Vec<u16>,
}

impl LengthMaker {
    pub fn make(&mut self, frequencies: &[u32], limit: usize, lengths: &mut [u8]) {
        debug_assert!(frequencies.len() == lengths.len() && frequencies.len() <= 1 << limit);
        lengths.fill(0);
        self.leaves.clear();
        for (symbol, frequency) in (0..).zip(frequencies) {
            if *frequency > 0 {
                self.leaves.push((*frequency, symbol));
            }
        }
        if self.leaves.len() < 2 {
            // A code has at least two symbols, so that it is complete.
            let symbol = self.leaves.first().map_or(0, |leaf| usize::from(leaf.1));
            lengths[symbol] = 1;
            lengths[usize::from(symbol == 0)] = 1;
            return;
        }
        self.leaves.sort_unstable();
        if self.tree(lengths) > limit {
            package_merge(&self.leaves, limit, lengths);
        }
    }

    /// Huffman's own way, over sorted leaves. Returns the longest length.
    fn tree(&mut self, lengths: &mut [u8]) -> usize {
        let leaves = self.leaves.len();
        self.weights.clear();
        self.above.clear();
        self.above.resize(2 * leaves - 1, 0);
        let (mut leaf, mut node) = (0, 0);
        for made in 0..leaves - 1 {
            let mut weight = 0;
            for _ in 0..2 {
                let takes_leaf = leaf < leaves
                    && (node >= self.weights.len() || u64::from(self.leaves[leaf].0) <= self.weights[node]);
                let index = if takes_leaf { leaf } else { leaves + node };
                weight += if takes_leaf { u64::from(self.leaves[leaf].0) } else { self.weights[node] };
                self.above[index] = u16::try_from(made).expect("few symbols");
                if takes_leaf { leaf += 1 } else { node += 1 }
            }
            self.weights.push(weight);
        }
        // From the root down: a node's depth is known before that of those below it.
        let depths = &mut self.weights;
        depths[leaves - 2] = 0;
        for node in (0..leaves - 2).rev() {
            depths[node] = depths[usize::from(self.above[leaves + node])] + 1;
        }
        let mut longest = 0;
        for (leaf, (_, symbol)) in self.leaves.iter().enumerate() {
            let depth = depths[usize::from(self.above[leaf])] + 1;
            lengths[usize::from(*symbol)] = u8::try_from(depth).unwrap_or(u8::MAX);
            longest = longest.max(usize::try_from(depth).expect("few symbols"));
        }
        longest
    }
}

/// Optimal lengths under a limit (Larmore and Hirschberg): in each of `limit` rounds neighbours of the list before are
/// packaged, and merged with the leaves. How often a leaf is in the first 2n - 2 of the last list is its length.
fn package_merge(leaves: &[(u32, u16)], limit: usize, lengths: &mut [u8]) {
    // Of each list, which of its items are leaves; a package stands for two of the list before it.
    let mut lists: Vec<Vec<bool>> = Vec::with_capacity(limit);
    let mut weights: Vec<u64> = Vec::new();
    for _ in 0..limit {
        let packages: Vec<u64> = weights.chunks_exact(2).map(|pair| pair[0] + pair[1]).collect();
        let (mut leaf, mut package) = (0, 0);
        let mut list = Vec::with_capacity(leaves.len() + packages.len());
        weights.clear();
        while leaf < leaves.len() || package < packages.len() {
            let is_leaf = package == packages.len()
                || leaf < leaves.len() && u64::from(leaves[leaf].0) <= packages[package];
            weights.push(if is_leaf { u64::from(leaves[leaf].0) } else { packages[package] });
            list.push(is_leaf);
            if is_leaf { leaf += 1 } else { package += 1 }
        }
        lists.push(list);
    }
    for (_, symbol) in leaves {
        lengths[usize::from(*symbol)] = 0;
    }
    let mut count = 2 * leaves.len() - 2;
    for list in lists.iter().rev() {
        let taken = list[..count].iter().filter(|is_leaf| **is_leaf).count();
        for (_, symbol) in &leaves[..taken] {
            lengths[usize::from(*symbol)] += 1;
        }
        count = 2 * (count - taken);
    }
}

/// How much of all bit strings a code covers: one that is complete covers [`FULL`].
pub const FULL: u32 = 1 << MAX_BITS;

/// The sum over a code's lengths of what each covers.
pub fn coverage(lengths: &[u8]) -> u32 {
    lengths.iter().filter(|length| **length > 0).map(|length| FULL >> length).sum()
}

/// Gives each symbol that has a length its code, the first bit lowest, as it is written.
pub fn codes(lengths: &[u8], mut each: impl FnMut(usize, u16, u8)) {
    let mut next = first_codes(lengths);
    for (symbol, length) in lengths.iter().enumerate().filter(|(_, length)| **length > 0) {
        let code = &mut next[usize::from(*length)];
        each(symbol, code.reverse_bits() >> (16 - length), *length);
        *code = code.wrapping_add(1);
    }
}

fn first_codes(lengths: &[u8]) -> [u16; MAX_BITS + 1] {
    let mut counts = [0_u16; MAX_BITS + 1];
    for length in lengths {
        counts[usize::from(*length)] += 1;
    }
    counts[0] = 0;
    let mut next = [0_u16; MAX_BITS + 1];
    for bits in 1..=MAX_BITS {
        next[bits] = (next[bits - 1].wrapping_add(counts[bits - 1])).wrapping_shl(1);
    }
    next
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cost(frequencies: &[u32], lengths: &[u8]) -> u64 {
        frequencies.iter().zip(lengths).map(|(count, length)| u64::from(*count) * u64::from(*length)).sum()
    }

    fn lengths(frequencies: &[u32], limit: usize) -> Vec<u8> {
        let mut lengths = vec![0; frequencies.len()];
        LengthMaker::default().make(frequencies, limit, &mut lengths);
        lengths
    }

    #[test]
    fn frequent_symbols_get_short_codes() {
        assert_eq!(lengths(&[1, 1, 2, 4, 0, 8], 15), [4, 4, 3, 2, 0, 1]);
        // Fibonacci's numbers make the longest codes.
        let mut frequencies = vec![1_u32, 1];
        while frequencies.len() < 40 {
            frequencies.push(frequencies[frequencies.len() - 1] + frequencies[frequencies.len() - 2]);
        }
        for limit in [6, 7, 9, 15] {
            let lengths = lengths(&frequencies, limit);
            assert_eq!(lengths.iter().max().map(|longest| usize::from(*longest)), Some(limit));
            assert_eq!(coverage(&lengths), FULL);
        }
    }

    #[test]
    fn codes_of_one_symbol_and_of_none_are_complete() {
        assert_eq!(lengths(&[0, 0, 0], 15), [1, 1, 0]);
        assert_eq!(lengths(&[9, 0, 0], 15), [1, 1, 0]);
        assert_eq!(lengths(&[0, 0, 9], 15), [1, 0, 1]);
    }

    #[test]
    fn codes_are_those_of_the_rfc() {
        let mut codes_seen = Vec::new();
        codes(&[3, 3, 3, 3, 3, 2, 4, 4], |symbol, code, length| {
            codes_seen.push((symbol, code.reverse_bits() >> (16 - length)));
        });
        let expected = [0b010, 0b011, 0b100, 0b101, 0b110, 0b00, 0b1110, 0b1111];
        assert_eq!(codes_seen, expected.into_iter().enumerate().collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn lengths_are_complete_and_packages_are_as_good_as_trees(
            frequencies in prop::collection::vec(prop_oneof![Just(0_u32), 1..50_u32, 1..1_000_000_u32], 2..286),
        ) {
            let occurring = frequencies.iter().filter(|count| **count > 0).count();
            let free = lengths(&frequencies, 30);
            let limited = lengths(&frequencies, 15);
            prop_assert_eq!(coverage(&limited), FULL);
            prop_assert!(limited.iter().all(|length| *length <= 15));
            if occurring >= 2 {
                let mut leaves: Vec<(u32, u16)> =
                    (0..).zip(&frequencies).filter(|(_, count)| **count > 0).map(|(symbol, count)| (*count, symbol)).collect();
                leaves.sort_unstable();
                let mut packaged = vec![0; frequencies.len()];
                package_merge(&leaves, 30, &mut packaged);
                prop_assert_eq!(cost(&frequencies, &packaged), cost(&frequencies, &free));
                prop_assert!(cost(&frequencies, &limited) >= cost(&frequencies, &free));
            }
        }
    }
}
