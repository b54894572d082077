//! The pages that processes write soon after a `fork(2)`. A program that forks again and again writes the same ones each time, in
//! the parent and in the child: those are copied with the fork, so that neither has to fault for them.

use alloc::sync::Arc;

use crate::rank::Rank;
use crate::spin::SpinLock;

/// Pages that are known, at most: as many frames a fork takes at once.
const WRITTEN_MAX: usize = 16;
/// After so many forks the pages are learned anew.
const FORKS: u32 = 64;

/// The pages that an address space and its copies write after forks, as far as they are known.
pub(super) struct Family(SpinLock<Written>);

#[derive(Clone, Copy, Default)]
struct Written {
    pages: [u64; WRITTEN_MAX],
    len: usize,
    forks: u32,
}

impl Family {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(SpinLock::new(Rank::Leaf, Written::default())))
    }

    /// A page was written that another process may have a reference to, or had one.
    pub fn note(&self, page: u64) {
        let mut written = self.0.lock();
        let Written { pages, len, .. } = &mut *written;
        let is_known = pages.iter().take(*len).any(|known| *known == page);
        if let Some(free) = pages.get_mut(*len).filter(|_| !is_known) {
            *free = page;
            *len += 1;
        }
    }

    /// There is another fork; the pages that are known.
    pub fn forked(&self) -> impl Iterator<Item = u64> + Clone {
        let mut written = self.0.lock();
        let known = *written;
        written.forks += 1;
        if written.forks.is_multiple_of(FORKS) {
            *written = Written::default();
        }
        known.pages.into_iter().take(known.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn pages_are_known_once_and_few_and_not_for_ever() {
        let family = Family::new();
        [4096, 8192, 4096].into_iter().for_each(|page| family.note(page));
        assert_eq!(family.forked().collect::<Vec<_>>(), [4096, 8192]);
        (0..100).for_each(|page| family.note(page << 12));
        assert_eq!(family.forked().count(), WRITTEN_MAX);
        (2..FORKS).for_each(|_| drop(family.forked()));
        assert_eq!(family.forked().count(), 0);
    }
}
