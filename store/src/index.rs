//! The index: in which dblocks chunks with a fingerprint may be.
//!
//! It is a hint of eight bytes a chunk: a part of the fingerprint, and a place. Whoever finds something compares the whole. On the disk it is
//! a copy of what the dblocks' footers say, and made anew from them when it does not fit them.

use std::collections::BTreeSet;

use crate::bytes::{begin, open, seal};
use crate::difference::Features;
use crate::fingerprint::Fingerprint;

const KIND: &[u8; 8] = b"DORMINDX";
const VERSION: u32 = 2;
const SLOT_BITS: u32 = 16;
const ID_BITS: u32 = 22;
const TAG_BITS: u32 = 64 - SLOT_BITS - ID_BITS;
/// Numbers of dblocks are below: with 4 MiB in each, 16 TiB. None is ever used again.
pub const ID_END: u32 = 1 << ID_BITS;
/// How far is looked: where so many are next to each other, somebody has made them so.
const STEPS_MAX: usize = 1 << 16;
/// Places of a feature that are added, and that are looked at: others may have a part of it in common.
const LIKE_ADDED: usize = 4;
const LIKE_MAX: usize = 8;
/// Fewest words.
const WORDS_MIN: usize = 1 << 10;

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub id: u32,
    pub slot: u16,
}

/// See the module. A word is 0, or has a tag, the number of a dblock, and a slot in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    words: Vec<u64>,
    len: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self { words: vec![0; WORDS_MIN], len: 0 }
    }
}

fn tag(print: &Fingerprint) -> u64 {
    print.front() & ((1 << TAG_BITS) - 1)
}

fn word(tag: u64, place: Place) -> u64 {
    tag << (ID_BITS + SLOT_BITS) | u64::from(place.id) << SLOT_BITS | u64::from(place.slot)
}

fn place(word: u64) -> Place {
    let id = (word >> SLOT_BITS) & u64::from(ID_END - 1);
    Place { id: u32::try_from(id).unwrap_or(0), slot: u16::try_from(word & 0xffff).unwrap_or(0) }
}

impl Index {
    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> u64 {
        (self.words.len() * size_of::<u64>()) as u64
    }

    /// Where the search for a tag begins: tags are spread by a multiplication, and their order by it is kept as the table grows.
    fn home(&self, tag: u64) -> usize {
        let spread = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from((u128::from(spread) * self.words.len() as u128) >> 64).unwrap_or(0)
    }

    /// Adds a place, whose dblock has a number from 1 on.
    pub fn insert(&mut self, print: &Fingerprint, place: Place) {
        // Four fifths full, the table has ten bytes a chunk.
        if (self.len + 1) * 5 > self.words.len() * 4 {
            self.grow();
        }
        self.put(word(tag(print), place));
        self.len += 1;
    }

    /// Adds a place by features, of each of which a few places are known: more would be as good.
    pub fn insert_features(&mut self, features: &Features, place: Place) {
        for feature in features.iter().filter(|feature| **feature != 0) {
            let print = Fingerprint::of_feature(*feature);
            if self.find(&print).nth(LIKE_ADDED - 1).is_none() {
                self.insert(&print, place);
            }
        }
    }

    /// Places of chunks that may be like one with these features.
    pub fn like(&self, features: &Features) -> Vec<Place> {
        let mut places = Vec::new();
        for feature in features.iter().filter(|feature| **feature != 0) {
            let print = Fingerprint::of_feature(*feature);
            for place in self.find(&print).take(LIKE_MAX) {
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        places
    }

    fn put(&mut self, word: u64) {
        let mut at = self.home(word >> (ID_BITS + SLOT_BITS));
        while self.words[at] != 0 {
            at = (at + 1) % self.words.len();
        }
        self.words[at] = word;
    }

    fn grow(&mut self) {
        // By a quarter: twice as many would be more than half empty for long.
        let len = self.words.len() + self.words.len() / 4;
        let old = std::mem::replace(&mut self.words, vec![0; len]);
        old.into_iter().filter(|word| *word != 0).for_each(|word| self.put(word));
    }

    /// Places where a chunk with the fingerprint may be.
    pub fn find(&self, print: &Fingerprint) -> impl Iterator<Item = Place> {
        let (tag, len) = (tag(print), self.words.len());
        let home = self.home(tag);
        let run = (0..len.min(STEPS_MAX))
            .map(move |step| self.words[(home + step) % len])
            .take_while(|word| *word != 0);
        run.filter(move |word| word >> (ID_BITS + SLOT_BITS) == tag).map(place)
    }

    /// Its bytes in a file, beside which dblocks they are of.
    pub fn encode(&self, of: &BTreeSet<u32>) -> Vec<u8> {
        let mut out = begin(KIND, VERSION);
        out.extend_from_slice(&(of.len() as u64).to_le_bytes());
        out.extend_from_slice(&digest(of).to_le_bytes());
        out.extend_from_slice(&(self.len as u64).to_le_bytes());
        self.words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        seal(&mut out);
        out
    }

    /// Reads one that is of these dblocks. `None`: it is damaged, or of others.
    pub fn decode(bytes: &[u8], of: &BTreeSet<u32>) -> Option<Self> {
        let mut from = open(bytes, KIND, VERSION).ok()?;
        if (from.u64()?, from.u64()?) != (of.len() as u64, digest(of)) {
            return None;
        }
        let len = usize::try_from(from.u64()?).ok()?;
        let mut words = Vec::with_capacity(from.len() / size_of::<u64>());
        while from.len() > 0 {
            words.push(from.u64()?);
        }
        let used = words.iter().filter(|word| **word != 0).count();
        let is_possible = words.len() >= WORDS_MIN && used == len && len * 5 <= words.len() * 4;
        is_possible.then_some(Self { words, len })
    }
}

/// Tells sets of numbers apart.
fn digest(of: &BTreeSet<u32>) -> u64 {
    let bytes: Vec<u8> = of.iter().flat_map(|id| id.to_le_bytes()).collect();
    blake3::hash(&bytes).as_bytes().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(number: u64) -> Fingerprint {
        let hash = blake3::hash(&number.to_le_bytes());
        Fingerprint(*hash.as_bytes().first_chunk().unwrap())
    }

    fn at(number: u64) -> Place {
        Place { id: u32::try_from(number / 1000 + 1).unwrap(), slot: u16::try_from(number % 1000).unwrap() }
    }

    #[test]
    fn what_was_added_is_found_as_the_table_grows() {
        let mut index = Index::default();
        (0..50_000).for_each(|number| index.insert(&print(number), at(number)));
        for number in 0..50_000 {
            assert!(index.find(&print(number)).any(|found| found == at(number)), "{number}");
        }
        let vain: usize = (50_000..60_000).map(|number| index.find(&print(number)).count()).sum();
        assert!(vain < 20, "{vain}");
        assert!(index.bytes() < 50_000 * 13, "{}", index.bytes());
        assert_eq!(index.len, 50_000);
    }

    #[test]
    fn alike_fingerprints_are_all_found() {
        let mut index = Index::default();
        (0..300).for_each(|number| index.insert(&print(1), at(number)));
        assert_eq!(index.find(&print(1)).collect::<BTreeSet<_>>().len(), 300);
    }

    #[test]
    fn a_file_of_it_is_of_certain_dblocks() {
        let mut index = Index::default();
        (0..2000).for_each(|number| index.insert(&print(number), at(number)));
        let of: BTreeSet<u32> = [1, 2].into();
        let bytes = index.encode(&of);
        assert_eq!(Index::decode(&bytes, &of), Some(index));
        assert_eq!(Index::decode(&bytes, &[1, 3].into()), None);
        assert_eq!(Index::decode(&bytes, &[1, 2, 3].into()), None);
        for at in [0, 9, 13, 21, 30, bytes.len() / 2, bytes.len() - 1] {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert_eq!(Index::decode(&bad, &of), None, "{at}");
        }
        assert_eq!(Index::decode(&bytes[..bytes.len() - 8], &of), None);
        assert_eq!(Index::decode(&[], &of), None);
    }
}
