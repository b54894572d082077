//! The slots of a file that are in use, one bit and a checksum each.

/// Most slots of a file: 1 TiB.
pub const SLOTS_MAX: u32 = 1 << 28;
/// Bits of a slot of the packed file that number the place in its set.
pub const PLACE_BITS: u32 = 20;

/// Slots of one file.
#[derive(Debug, Default)]
pub struct Slots {
    used: Vec<u64>,
    sums: Vec<u32>,
    count: u32,
}

impl Slots {
    /// Slots in use.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The slot behind the last one that was ever in use since all were free.
    pub fn end(&self) -> u32 {
        u32::try_from(self.sums.len()).unwrap_or(u32::MAX)
    }

    pub fn sum(&self, slot: u32) -> u32 {
        self.sums.get(slot as usize).copied().unwrap_or(0)
    }

    pub fn is_used(&self, slot: u32) -> bool {
        self.used.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }

    /// Takes a slot that was found free for a page with this checksum.
    pub fn take(&mut self, slot: u32, sum: u32) {
        let at = slot as usize;
        if at >= self.sums.len() {
            self.sums.resize(at + 1, 0);
            self.used.resize(at / 64 + 1, 0);
        }
        self.sums[at] = sum;
        if !self.is_used(slot) {
            self.used[at / 64] |= 1 << (slot % 64);
            self.count += 1;
        }
    }

    pub fn free(&mut self, slot: u32) {
        if self.is_used(slot) {
            self.used[slot as usize / 64] &= !(1 << (slot % 64));
            self.count -= 1;
        }
        if self.count == 0 {
            // A file without used slots begins again at the front, and is written sequentially.
            self.used.clear();
            self.sums.clear();
        }
    }

    /// Free runs `(first, length)` before the end, none shorter than `shortest`.
    pub fn free_runs(&self, shortest: u32) -> impl Iterator<Item = (u32, u32)> {
        let (end, mut at) = (self.end(), 0);
        let runs = std::iter::from_fn(move || {
            while at < end && self.is_used(at) {
                at += 1;
            }
            let first = at;
            while at < end && !self.is_used(at) {
                at += 1;
            }
            (first < at).then_some((first, at - first))
        });
        runs.filter(move |(_, len)| *len >= shortest)
    }

    /// Frees the memory that the tables took to grow.
    pub fn trim(&mut self) {
        self.used.shrink_to_fit();
        self.sums.shrink_to_fit();
    }

    /// Free runs `(first, length)` for `wanted` slots, none shorter than `shortest` (but for the last, behind the end).
    pub fn find(&self, wanted: u32, shortest: u32) -> Option<Vec<(u32, u32)>> {
        let end = self.end();
        let (mut runs, mut left, mut at) = (Vec::new(), wanted, 0);
        while left > 0 && at < end {
            if at % 64 == 0 && self.used[at as usize / 64] == u64::MAX {
                at += 64;
                continue;
            }
            if self.is_used(at) {
                at += 1;
                continue;
            }
            let first = at;
            while at < end && at - first < left && !self.is_used(at) {
                at += 1;
            }
            let len = at - first;
            if at < end && (len >= shortest || len == left) {
                runs.push((first, len));
                left -= len;
            } else if at == end {
                // The last run is open to the end of the file: slots still missing go behind it.
                runs.push((first, left));
                left = 0;
            }
        }
        if left > 0 {
            runs.push((end, left));
        }
        let fits =
            runs.iter().all(|(first, len)| first.checked_add(*len).is_some_and(|end| end <= SLOTS_MAX));
        fits.then_some(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_runs_are_found() {
        let mut slots = Slots::default();
        assert_eq!(slots.find(3, 1), Some(vec![(0, 3)]));
        (0..200).for_each(|slot| slots.take(slot, slot));
        (10..20).chain(64..140).for_each(|slot| slots.free(slot));
        assert_eq!(slots.find(5, 5), Some(vec![(10, 5)]));
        assert_eq!(slots.find(80, 16), Some(vec![(64, 76), (200, 4)]));
        assert_eq!(slots.find(300, 300), Some(vec![(200, 300)]));
        assert_eq!(slots.free_runs(1).collect::<Vec<_>>(), [(10, 10), (64, 76)]);
        assert_eq!(slots.free_runs(11).collect::<Vec<_>>(), [(64, 76)]);
        slots.free(199);
        assert_eq!(slots.free_runs(1).last(), Some((199, 1)));
        assert_eq!(slots.find(300, 300), Some(vec![(199, 300)]));
        assert_eq!((slots.count(), slots.sum(150)), (113, 150));
        (0..200).for_each(|slot| slots.free(slot));
        assert_eq!(slots.find(1, 1), Some(vec![(0, 1)]));
    }
}
