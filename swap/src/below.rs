//! The part of a base's table that names pages in other files: a set of them for each of those.

use crate::bits::Bits;
use crate::error::BaseError;
use crate::page::PageId;
use crate::tables::Reader;

/// Most files that a base has pages in beside its own.
pub const BELOW_MAX: usize = 8;

const WORD_BITS: u32 = u64::BITS;
const WORD_BYTES: u64 = 8;
const COUNT_BYTES: u64 = 4;

/// Most bytes of the part, where pages have numbers below `end`.
pub const fn bytes_max(end: PageId) -> u64 {
    let set = COUNT_BYTES + end.div_ceil(WORD_BITS) as u64 * WORD_BYTES;
    COUNT_BYTES + BELOW_MAX as u64 * set
}

/// Adds the part to a table.
pub fn put(to: &mut Vec<u8>, sets: &[&Bits]) {
    to.extend_from_slice(&u32::try_from(sets.len()).unwrap_or(u32::MAX).to_le_bytes());
    sets.iter().for_each(|set| put_set(to, set));
}

/// Adds a set of pages: how many words, and those.
pub fn put_set(to: &mut Vec<u8>, set: &Bits) {
    let words = set.words();
    let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    to.extend_from_slice(&u32::try_from(used).unwrap_or(u32::MAX).to_le_bytes());
    words[..used].iter().for_each(|word| to.extend_from_slice(&word.to_le_bytes()));
}

/// Reads the part of a table whose own pages are `own`. Whoever wrote it may be hostile.
pub fn take(from: &mut Reader<'_>, own: &Bits, end: PageId) -> Result<Vec<Bits>, BaseError> {
    let count = from.u32()? as usize;
    if count == 0 || count > BELOW_MAX {
        return Err(BaseError::damaged("it has pages in too many files, or in none"));
    }
    let mut seen = own.words().to_vec();
    seen.resize(end.div_ceil(WORD_BITS) as usize, 0);
    let mut sets = Vec::with_capacity(count);
    for _ in 0..count {
        let len = u64::from(from.u32()?) * WORD_BYTES;
        let words = from.bytes(len)?;
        let words: Vec<u64> = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        if words.len() > seen.len() {
            return Err(BaseError::damaged("it has pages that cannot be"));
        }
        for (word, seen) in words.iter().zip(&mut seen) {
            if word & *seen != 0 {
                return Err(BaseError::damaged("it has a page in two files"));
            }
            *seen |= word;
        }
        let set = Bits::from_words(words);
        if set.end() > end || set.is_empty() {
            return Err(BaseError::damaged("it has pages that cannot be"));
        }
        sets.push(set);
    }
    Ok(sets)
}
