//! Sets of pages.

use crate::page::PageId;

/// A set of page numbers, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// The set whose members are the bits of `words`.
    #[must_use]
    pub fn from_words(words: Vec<u64>) -> Self {
        Self(words)
    }

    /// Its members as bits; behind the last word there is none.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// Whether a page is in the set.
    #[must_use]
    pub fn has(&self, id: PageId) -> bool {
        self.0.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 != 0)
    }

    /// Adds a page.
    pub fn set(&mut self, id: PageId) {
        let at = id as usize / 64;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (id % 64);
    }

    /// Takes a page out, if it is there.
    pub fn clear(&mut self, id: PageId) {
        if let Some(word) = self.0.get_mut(id as usize / 64) {
            *word &= !(1 << (id % 64));
        }
    }

    /// Its members as ranges, in ascending order: the first of each, and the number behind the last.
    pub fn runs(&self) -> impl Iterator<Item = (PageId, PageId)> {
        let (end, mut at) = (self.end(), 0);
        std::iter::from_fn(move || {
            let first = (at..end).find(|id| self.has(*id))?;
            at = (first..end).find(|id| !self.has(*id)).unwrap_or(end);
            Some((first, at))
        })
    }

    /// Its members, in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = PageId> {
        self.runs().flat_map(|(first, end)| first..end)
    }

    /// How many members it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number behind the last member.
    #[must_use]
    pub fn end(&self) -> PageId {
        let last = self.0.iter().rposition(|word| *word != 0);
        let end = last.map_or(0, |at| at as u64 * 64 + u64::from(self.0[at].ilog2()) + 1);
        PageId::try_from(end).unwrap_or(PageId::MAX)
    }
}

impl FromIterator<PageId> for Bits {
    fn from_iter<I: IntoIterator<Item = PageId>>(ids: I) -> Self {
        let mut bits = Self::default();
        ids.into_iter().for_each(|id| bits.set(id));
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_and_go() {
        let mut bits: Bits = [3, 64, 130].into_iter().collect();
        assert!(bits.has(3) && bits.has(130) && !bits.has(4) && !bits.has(PageId::MAX));
        assert_eq!(bits.end(), 131);
        assert_eq!(bits.runs().collect::<Vec<_>>(), [(3, 4), (64, 65), (130, 131)]);
        assert_eq!((60..70).collect::<Bits>().runs().collect::<Vec<_>>(), [(60, 70)]);
        bits.clear(130);
        bits.clear(9999);
        assert_eq!((bits.end(), bits.words().len()), (65, 3));
        assert_eq!((Bits::default().end(), Bits::from_words(vec![0, 0]).end()), (0, 0));
        assert_eq!(Bits::default().runs().count(), 0);
    }
}
