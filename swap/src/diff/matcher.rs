//! The nearest relative of a page among those of a base, and the shortest way to keep the page ("Phoenix", sections 3.1 and 3.2).

use std::fmt;
use std::sync::Arc;

use codec::{Packer, Style, TableSet};

use super::coding::{self, DIFF_MAX};
use super::index::BaseIndex;
use super::record::{Head, Kind, PACKED_MAX};
use crate::base::{Base, FileBase};
use crate::page::{Class, PageBytes, PageId};
use crate::staging::repeated_word;

/// With no more words of the base's page of the same number than these, no other page is looked for.
const NEAR_WORDS: u32 = 8;
/// So many candidates are looked at.
const TRIED: usize = 16;
/// From so many different words on a page is no relative.
const FAR_WORDS: u32 = 448;
/// Of a longer difference it is tried whether LZ4 makes it shorter, by so many bytes at least.
const PACKED_MIN: usize = 48;
const GAIN_MIN: usize = 16;
/// And by such a part of it: a page that is packed takes twice the time to come back.
const GAIN_PART: usize = 8;
/// Bytes of the length in front of it then.
pub const LENGTH_BYTES: usize = 2;
/// Beside a longer one it is tried whether the page packs better by itself.
const LONG: usize = 1024;
/// Pages of a base behind this have no room in a place.
pub const BASE_PAGES_MAX: PageId = 1 << 28;

/// A base in memory, and its index.
pub struct Reference {
    base: Arc<FileBase>,
    index: Option<BaseIndex>,
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reference").field("base", &self.base).field("index", &self.index).finish()
    }
}

/// A page of the base that is like another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Equal(PageId),
    Near(PageId),
    Nothing,
}

impl Reference {
    /// Pages of a base that is in memory; without an index those of the same numbers alone are compared.
    ///
    /// `None`: the base is not in memory, or its pages are too many.
    #[must_use]
    pub fn new(base: Arc<FileBase>, index: Option<BaseIndex>) -> Option<Self> {
        (base.is_mapped() && base.present().end() <= BASE_PAGES_MAX).then_some(Self { base, index })
    }

    /// The base.
    #[must_use]
    pub fn base(&self) -> &Arc<FileBase> {
        &self.base
    }

    /// Nothing is looked for for a while.
    pub fn rest(&self) {
        self.base.rest();
        self.index.iter().for_each(BaseIndex::rest);
    }

    /// Looks for a page that is like the one of this number.
    pub(super) fn find(&self, id: PageId, page: &PageBytes) -> Found {
        let (mut found, mut words) = (Found::Nothing, FAR_WORDS);
        let mut closer = |other: PageId, words: &mut u32| {
            let distance = self.base.mapped(other).map(|other| coding::distance(page, other, *words));
            match distance {
                Some(0) => (found, *words) = (Found::Equal(other), 0),
                Some(distance) if distance < *words => (found, *words) = (Found::Near(other), distance),
                _ => {}
            }
        };
        closer(id, &mut words);
        if let Some(index) = self.index.as_ref().filter(|_| words > NEAR_WORDS) {
            index.equal(page).iter().for_each(|other| closer(*other, &mut words));
            if words > NEAR_WORDS {
                let found = index.candidates(page);
                for other in found.ids().filter(|other| *other != id).take(TRIED) {
                    closer(other, &mut words);
                    if words <= NEAR_WORDS {
                        break;
                    }
                }
            }
        }
        found
    }
}

/// The way in which a page is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Zero,
    Base(PageId),
    /// A head, and bytes that the packer holds.
    Record(Head),
}

/// Packs page after page.
pub struct PagePacker<'r> {
    reference: Option<&'r Reference>,
    lz4: Packer,
    diff: Vec<u8>,
    packed: Box<[u8; PACKED_MAX]>,
    alone: Box<[u8; PACKED_MAX]>,
}

impl<'r> PagePacker<'r> {
    pub fn new(reference: Option<&'r Reference>) -> Self {
        let lz4 = Packer::new(Style::Lz4, None::<TableSet>);
        let room = || Box::new([0; PACKED_MAX]);
        Self { reference, lz4, diff: Vec::with_capacity(DIFF_MAX), packed: room(), alone: room() }
    }

    /// The shortest way to keep a page, and the bytes to keep.
    pub fn pack<'a>(&'a mut self, id: PageId, class: Class, page: &'a PageBytes) -> (Kept, &'a [u8]) {
        match repeated_word(page) {
            Some(0) => return (Kept::Zero, &[]),
            Some(word) => {
                self.diff.clear();
                self.diff.extend_from_slice(&word.to_le_bytes());
                return (Kept::Record(head(Kind::Word, class, &self.diff, 0, page)), &self.diff);
            }
            None => {}
        }
        let found = self.reference.map_or(Found::Nothing, |reference| reference.find(id, page));
        let near = match found {
            Found::Equal(base) => return (Kept::Base(base), &[]),
            Found::Near(base) => Some(base),
            Found::Nothing => None,
        };
        let (kind, base) = self.shortest(near, page);
        let bytes: &[u8] = match kind {
            (Kind::Xor | Kind::Word, _) => &self.diff,
            (Kind::XorPacked, len) => &self.packed[..len],
            (Kind::Packed, len) => &self.alone[..len],
            (Kind::Raw, _) => page,
        };
        (Kept::Record(head(kind.0, class, bytes, base, page)), bytes)
    }

    /// The shortest way, by a page of the base if there is one that is like this one: how many bytes it takes, and that page.
    fn shortest(&mut self, near: Option<PageId>, page: &PageBytes) -> ((Kind, usize), PageId) {
        let mut best = (Kind::Raw, PACKED_MAX + 1);
        let base = near.and_then(|base| Some((base, self.reference?.base.mapped(base)?)));
        if let Some((_, base)) = base {
            self.diff.clear();
            coding::encode(page, base, &mut self.diff);
            if self.diff.len() < best.1 {
                best = (Kind::Xor, self.diff.len());
            }
            if self.diff.len() > PACKED_MIN {
                let room = room_for(best.1);
                // LZ4's blocks do not say how long they were.
                let (front, packed) = self.packed[..room].split_at_mut(LENGTH_BYTES);
                if let Some(len) = self.lz4.pack(&self.diff, packed) {
                    front.copy_from_slice(&u16::try_from(self.diff.len()).unwrap_or(0).to_le_bytes());
                    best = (Kind::XorPacked, LENGTH_BYTES + len);
                }
            }
        }
        if best.1 > LONG {
            let room = room_for(best.1);
            if let Some(len) = self.lz4.pack(page, &mut self.alone[..room]) {
                best = (Kind::Packed, len);
            }
        }
        (best, base.map_or(0, |(base, _)| base))
    }
}

/// How long a record that is packed may be in place of one of so many bytes.
fn room_for(len: usize) -> usize {
    (len - GAIN_MIN.max(len / GAIN_PART)).min(PACKED_MAX)
}

fn head(kind: Kind, class: Class, bytes: &[u8], base: PageId, page: &PageBytes) -> Head {
    // A page at most.
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    Head { kind, class, len, base, sum: crc32c::crc32c(page) }
}
