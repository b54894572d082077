//! Frames by page index, in little room: an object's pages mostly follow each other.
#![deny(unsafe_code)]

use abi::word::to_usize;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use super::physical::frames::{self, Frame};

/// Pages of a group; a group has one entry in the tree.
const GROUP: u64 = 16;

/// Numbers of frames, plus one; 0 is a hole.
type Group = [u32; to_usize(GROUP)];

/// The pages of one object.
#[derive(Default)]
pub struct Pages {
    /// None of them is all holes.
    groups: BTreeMap<u64, Box<Group>>,
    len: usize,
}

impl Pages {
    pub const fn new() -> Self {
        Self { groups: BTreeMap::new(), len: 0 }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.len
    }

    /// The page's frame; `None` for a hole.
    pub fn get(&self, index: u64) -> Option<Frame> {
        let (group, at) = split(index);
        frame_of(self.groups.get(&group)?[at])
    }

    /// Fills a hole; false: it is none, and stays as it is.
    pub fn fill(&mut self, index: u64, frame: Frame) -> bool {
        let (group, at) = split(index);
        let Some(code) = code_of(frame) else { return false };
        let slot = &mut self.groups.entry(group).or_default()[at];
        let is_hole = *slot == 0;
        if is_hole {
            *slot = code;
            self.len += 1;
        }
        is_hole
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Frame)> {
        self.from(0)
    }

    /// Those from `index` on, in order.
    pub fn from(&self, index: u64) -> impl Iterator<Item = (u64, Frame)> {
        let groups = self.groups.range(split(index).0..);
        let pages = groups.flat_map(|(group, codes)| (group * GROUP..).zip(codes.iter().copied()));
        pages.filter(move |(page, _)| *page >= index).filter_map(|(page, code)| Some((page, frame_of(code)?)))
    }

    /// Makes holes of those in `[first, last)` that `goes` says, which has taken over their references.
    pub fn remove(&mut self, first: u64, last: u64, mut goes: impl FnMut(Frame) -> bool) {
        if first >= last {
            return;
        }
        let mut removed = 0;
        let mut emptied = alloc::vec::Vec::new();
        for (group, codes) in self.groups.range_mut(split(first).0..=split(last - 1).0) {
            for (page, code) in (group * GROUP..).zip(codes.iter_mut()) {
                if (first..last).contains(&page) && frame_of(*code).is_some_and(&mut goes) {
                    *code = 0;
                    removed += 1;
                }
            }
            if codes.iter().all(|code| *code == 0) {
                emptied.push(*group);
            }
        }
        self.len -= removed;
        for group in emptied {
            self.groups.remove(&group);
        }
    }
}

fn split(index: u64) -> (u64, usize) {
    (index / GROUP, (index % GROUP) as usize)
}

fn frame_of(code: u32) -> Option<Frame> {
    code.checked_sub(1).map(frames::at)
}

fn code_of(frame: Frame) -> Option<u32> {
    frames::index(frame)?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn of(indices: &[u64]) -> Pages {
        let mut pages = Pages::new();
        for (number, index) in (0..).zip(indices) {
            assert!(pages.fill(*index, frames::at(number)));
        }
        pages
    }

    fn indices(pages: &Pages) -> Vec<u64> {
        pages.iter().map(|(index, _)| index).collect()
    }

    #[test]
    fn holes_are_filled_once() {
        let mut pages = of(&[3, 15, 16, 1 << 50]);
        assert!(!pages.fill(15, frames::at(9)));
        assert_eq!((pages.count(), pages.get(15), pages.get(14)), (4, Some(frames::at(1)), None));
        assert_eq!(pages.get(1 << 50), Some(frames::at(3)));
    }

    #[test]
    fn they_are_found_in_order_from_anywhere() {
        let pages = of(&[40, 3, 15, 16]);
        assert_eq!(indices(&pages), [3, 15, 16, 40]);
        assert_eq!(pages.from(4).map(|(index, _)| index).collect::<Vec<_>>(), [15, 16, 40]);
        assert!(pages.from(41).next().is_none());
    }

    #[test]
    fn what_is_removed_goes_and_its_group_with_the_last() {
        let mut pages = of(&[3, 15, 16, 17, 40]);
        let mut gone = Vec::new();
        pages.remove(15, 17, |frame| {
            gone.push(frame);
            true
        });
        assert_eq!((indices(&pages), gone), (alloc::vec![3, 17, 40], [1, 2].map(frames::at).to_vec()));
        pages.remove(0, u64::MAX, |frame| frame != frames::at(4));
        assert_eq!((indices(&pages), pages.count(), pages.groups.len()), (alloc::vec![40], 1, 1));
        pages.remove(41, 41, |_| true);
        pages.remove(0, u64::MAX, |_| true);
        assert!(pages.count() == 0 && pages.groups.is_empty());
    }
}
