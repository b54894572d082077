//! Where a piece is unpacked: memory whose every index is in range by its type, so that nothing is checked twice.

use crate::piece::PIECE_BYTES;

/// How far one symbol, or a few literals, may write behind the end of a piece.
const SLACK: usize = 512;
/// Places are masked to this. No place that is used is beyond it.
const MASK: usize = 2 * PIECE_BYTES - 1;

/// Memory for one piece, and some more behind it.
pub struct Window {
    bytes: Box<[u8; 2 * PIECE_BYTES + SLACK]>,
}

impl Window {
    pub fn new() -> Self {
        // From zeroed memory, of which what is never used is never backed.
        let bytes = vec![0; 2 * PIECE_BYTES + SLACK].into_boxed_slice();
        Self { bytes: bytes.try_into().expect("it is as long as that") }
    }

    /// The first `len` bytes.
    pub fn content(&self, len: usize) -> &[u8] {
        &self.bytes[..len]
    }

    pub fn content_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[..len]
    }

    #[inline(always)]
    fn load<const N: usize>(&self, at: usize) -> [u8; N] {
        const { assert!(N <= SLACK) };
        let at = at & MASK;
        *self.bytes[at..at + N].first_chunk().expect("the range has this length")
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        const { assert!(N <= SLACK) };
        let at = at & MASK;
        self.bytes[at..at + N].copy_from_slice(&value);
    }

    /// Puts two bytes at `at`.
    #[inline(always)]
    pub fn put_two(&mut self, at: usize, bytes: u16) {
        self.store(at, bytes.to_le_bytes());
    }

    /// Copies `len` bytes, at most 258, to `at` from `distance` before it, the first of them again and again if there are
    /// fewer between. Up to 15 bytes behind them are overwritten too.
    #[inline(always)]
    pub fn repeat(&mut self, at: usize, distance: usize, len: usize) {
        let from = at.wrapping_sub(distance);
        if distance >= 16 {
            let mut done = 0;
            loop {
                self.store::<16>(at + done, self.load(from.wrapping_add(done)));
                done += 16;
                if done >= len {
                    return;
                }
            }
        }
        self.repeat_near(at, from, distance, len);
    }

    #[inline(always)]
    fn repeat_near(&mut self, at: usize, from: usize, distance: usize, len: usize) {
        // Copies of one byte to fill a word, and how many bytes of the word are whole periods.
        const SPREAD: [(u64, u8); 9] = [
            (0, 8),
            (0x0101_0101_0101_0101, 8),
            (0x0001_0001_0001_0001, 8),
            (0x0001_0000_0100_0001, 6),
            (0x0000_0001_0000_0001, 8),
            (0x0000_0100_0000_0001, 5),
            (0x0001_0000_0000_0001, 6),
            (0x0100_0000_0000_0001, 7),
            (1, 8),
        ];
        let word = u64::from_le_bytes(self.load(from));
        if distance > 8 {
            let mut done = 0;
            while done < len {
                self.store::<8>(at + done, self.load(from.wrapping_add(done)));
                done += 8;
            }
            return;
        }
        let (spread, step) = SPREAD[distance.min(8)];
        let once = if distance == 8 { word } else { word & ((1_u64 << (8 * (distance & 7))) - 1) };
        let word = once.wrapping_mul(spread).to_le_bytes();
        let mut done = 0;
        while done < len {
            self.store::<8>(at + done, word);
            done += usize::from(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_period_and_length_is_repeated() {
        let mut window = Window::new();
        for distance in 1..300 {
            for len in 3..=258 {
                let mut expected: Vec<u8> = (0..300_usize).map(|n| (n * 7 + distance) as u8).collect();
                window.content_mut(300).copy_from_slice(&expected);
                window.repeat(300, distance, len);
                for n in 0..len {
                    expected.push(expected[300 + n - distance]);
                }
                assert_eq!(window.content(300 + len), expected, "{distance} {len}");
            }
        }
    }

    #[test]
    fn places_beyond_it_are_harmless() {
        let mut window = Window::new();
        window.repeat(MASK, MASK, 258);
        window.put_two(MASK, 7);
        window.repeat(3, 9, 20);
    }
}
