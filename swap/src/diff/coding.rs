//! The difference between two pages: which words of the one are not the other's, and by which bits.
//!
//! A mask of 64 bits says which lines of 64 bytes differ, a byte for each of those which of its words do, and each of those words follows,
//! by exclusive or. All is little-endian.

use crate::page::{PAGE_BYTES, PageBytes};

/// Bytes of a word, and of a line.
const WORD: usize = 8;
const LINE: usize = 64;
/// Most bytes of a difference.
pub const DIFF_MAX: usize = WORD + PAGE_BYTES / LINE + PAGE_BYTES;

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + WORD).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// In how many words two pages differ; more than `most` are not all counted.
pub fn distance(a: &PageBytes, b: &PageBytes, most: u32) -> u32 {
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function is compiled for.
        return unsafe { distance_avx2(a, b, most) };
    }
    count_words(a, b, most)
}

/// [`distance`] by vectors of four words.
#[target_feature(enable = "avx2")]
fn distance_avx2(a: &PageBytes, b: &PageBytes, most: u32) -> u32 {
    count_words(a, b, most)
}

#[inline(always)]
fn count_words(a: &PageBytes, b: &PageBytes, most: u32) -> u32 {
    let mut count = 0;
    // An eighth of a page at a time, which the compiler compares by whole vectors.
    for (a, b) in a.chunks_exact(PAGE_BYTES / 8).zip(b.chunks_exact(PAGE_BYTES / 8)) {
        let (a, b) = (a.as_chunks::<WORD>().0, b.as_chunks::<WORD>().0);
        count += a
            .iter()
            .zip(b)
            .map(|(a, b)| u64::from(u64::from_ne_bytes(*a) != u64::from_ne_bytes(*b)))
            .sum::<u64>();
        if count > u64::from(most) {
            break;
        }
    }
    // A page has 512.
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Appends the difference of a page from one of the base.
pub fn encode(page: &PageBytes, base: &PageBytes, out: &mut Vec<u8>) {
    let (mut lines, begin) = (0_u64, out.len());
    let mut masks = [0_u8; PAGE_BYTES / LINE];
    for (at, mask) in masks.iter_mut().enumerate() {
        for place in 0..LINE / WORD {
            let at = at * LINE + place * WORD;
            *mask |= u8::from(word(page, at) != word(base, at)) << place;
        }
        lines |= u64::from(*mask != 0) << at;
    }
    out.extend_from_slice(&lines.to_le_bytes());
    out.extend(masks.iter().filter(|mask| **mask != 0));
    for (at, mask) in masks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
        for place in (0..LINE / WORD).filter(|place| mask >> place & 1 != 0) {
            let at = at * LINE + place * WORD;
            out.extend_from_slice(&(word(page, at) ^ word(base, at)).to_le_bytes());
        }
    }
    debug_assert!(out.len() - begin <= DIFF_MAX);
}

/// Makes the base's page, which `page` holds, the one that the difference was taken of. `None`: it is no difference.
pub fn decode(diff: &[u8], page: &mut PageBytes) -> Option<()> {
    let (head, rest) = diff.split_first_chunk::<WORD>()?;
    let mut lines = u64::from_le_bytes(*head);
    let (masks, words) = rest.split_at_checked(lines.count_ones() as usize)?;
    let (words, left) = words.as_chunks::<WORD>();
    let mut words = words.iter();
    for mask in masks {
        let line = lines.trailing_zeros() as usize;
        lines &= lines - 1;
        let mut mask = *mask;
        while mask != 0 {
            let at = line * LINE + mask.trailing_zeros() as usize * WORD;
            mask &= mask - 1;
            let place = page.get_mut(at..)?.first_chunk_mut::<WORD>()?;
            *place = (u64::from_le_bytes(*place) ^ u64::from_le_bytes(*words.next()?)).to_le_bytes();
        }
    }
    (left.is_empty() && words.next().is_none()).then_some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn page() -> impl Strategy<Value = Box<PageBytes>> {
        (any::<u64>(), proptest::collection::vec((0..PAGE_BYTES, any::<u8>()), 0..200)).prop_map(
            |(word, changes)| {
                let mut page = Box::new([0; PAGE_BYTES]);
                page.as_chunks_mut::<WORD>().0.fill(word.to_ne_bytes());
                changes.into_iter().for_each(|(at, byte)| page[at] = byte);
                page
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_comes_back(page in page(), base in page()) {
            let mut diff = vec![9];
            encode(&page, &base, &mut diff);
            let mut again = base.clone();
            prop_assert_eq!(decode(&diff[1..], &mut again), Some(()));
            prop_assert!(again == page);
            let words = distance(&page, &base, u32::MAX);
            prop_assert!(diff.len() - 1 <= WORD + 64 + WORD * words as usize);
            prop_assert!(distance(&page, &base, words / 2) >= words.min(words / 2 + 1));
            prop_assert_eq!(distance(&page, &page, 0), 0);
        }

        #[test]
        fn anything_else_does_no_harm(diff in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let mut page = [7; PAGE_BYTES];
            let _ = decode(&diff, &mut page);
        }
    }

    #[test]
    fn what_is_too_short_or_too_long_is_refused() {
        let (page, base) = ([3; PAGE_BYTES], [1; PAGE_BYTES]);
        let mut diff = Vec::new();
        encode(&page, &base, &mut diff);
        assert_eq!(diff.len(), DIFF_MAX);
        for bad in
            [&diff[..diff.len() - 1], &diff[..20], &diff[..3], &[], &[diff.as_slice(), &[0; 8]].concat()]
        {
            assert_eq!(decode(bad, &mut base.clone()), None);
        }
    }
}
