//! How many pages of a set come before one of them.

use crate::bits::Bits;
use crate::page::PageId;

/// The order of the pages of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranks {
    /// How many pages come before those of each word of the set.
    before: Box<[u32]>,
}

impl Ranks {
    /// Those of these pages.
    pub fn new(pages: &Bits) -> Self {
        let mut count = 0_u32;
        let before = pages.words().iter().map(|word| {
            let before = count;
            count += word.count_ones();
            before
        });
        Self { before: before.collect() }
    }

    /// How many of the pages come before this one, which is one of them.
    pub fn of(&self, pages: &Bits, id: PageId) -> Option<u32> {
        let word = id as usize / 64;
        let earlier = pages.words().get(word)? & ((1 << (id % 64)) - 1);
        let at = self.before.get(word)? + earlier.count_ones();
        pages.has(id).then_some(at)
    }
}
