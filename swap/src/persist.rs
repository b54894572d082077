//! The tables of a home in its files as bytes: `docs/swap-format.md`, section "Tables".

use crate::bits::Bits;
use crate::error::TablesError;
use crate::packed::{PackedFile, PackedSet, split};
use crate::page::{Class, PageId};
use crate::persist_sets;
use crate::slots::{SLOTS_MAX, Slots};
use crate::table::{Located, PageLocation, Run};
use crate::tables::{self, Reader};

const KIND: &[u8; 8] = b"DORMHOME";
/// Without sets; with them, theirs.
const VERSION_WITHOUT_SETS: u32 = 1;
/// Bytes that the header reserves for a file: the nonce and the tag of an authenticated cipher.
const SEAL_BYTES: usize = 12 + 16;
const RUN_BYTES: u64 = 16;
const SUM_BYTES: u64 = 4;
const WORD_BYTES: u64 = 12;

const WORD: u8 = 1;
const SWAP: u8 = 2;
const REAP: u8 = 3;
const PACKED: u8 = 4;

/// A page as the tables have it.
pub struct Entry {
    pub id: PageId,
    pub at: Located,
    /// The checksum of what is in its slot, if it has one.
    pub sum: u32,
    /// The word that it repeats, if it has no slot.
    pub word: u64,
}

/// The tables of the pages in `runs`, whose numbers ascend; `slots` are those of the swap file and of the REAP file, `packed` is
/// the packed file, and `word` says which word a page repeats.
pub fn tables(
    runs: &[Run],
    slots: [&Slots; 2],
    packed: Option<&PackedFile>,
    word: impl Fn(PageId) -> u64,
) -> Result<Vec<u8>, TablesError> {
    let pages = |run: &Run| run.first..run.first + run.pages;
    let is_word = |run: &&Run| run.at.place == PageLocation::Word;
    let of_words = runs.iter().filter(is_word).flat_map(pages);
    let words: Vec<(PageId, u64)> =
        of_words.map(|id| (id, word(id))).filter(|(_, word)| *word != 0).collect();
    let sets = packed.map_or(Ok(Vec::new()), persist_sets::sets)?;
    let version = if sets.is_empty() { VERSION_WITHOUT_SETS } else { persist_sets::VERSION };
    let mut out = tables::begin(KIND, version);
    let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
    for count in [runs.len(), words.len()] {
        put(&(count as u64).to_le_bytes());
    }
    for slots in slots {
        put(&slots.end().to_le_bytes());
        put(&[0; SEAL_BYTES]);
    }
    if !sets.is_empty() {
        put(&(sets.len() as u64).to_le_bytes());
        put(&sets);
    }
    for run in runs {
        let (kind, slot) = match run.at.place {
            PageLocation::Packed(slot) => (PACKED, slot),
            PageLocation::Word => (WORD, 0),
            PageLocation::Swap(slot) => (SWAP, slot),
            PageLocation::Reap(slot) => (REAP, slot),
        };
        [run.first, run.pages, slot].iter().for_each(|number| put(&number.to_le_bytes()));
        put(&[kind, run.at.class.number(), 0, 0]);
    }
    let [swap, reap] = slots;
    let packed_sum = |slot: u32| {
        let (number, place) = split(slot);
        packed.and_then(|packed| packed.set(number)).map_or(0, |set| set.sum(place))
    };
    for run in runs {
        for on in 0..run.pages {
            let sum = match run.at.place {
                PageLocation::Word => continue,
                PageLocation::Swap(slot) => swap.sum(slot + on),
                PageLocation::Reap(slot) => reap.sum(slot + on),
                PageLocation::Packed(slot) => packed_sum(slot + on),
            };
            put(&sum.to_le_bytes());
        }
    }
    for (id, word) in words {
        put(&id.to_le_bytes());
        put(&word.to_le_bytes());
    }
    tables::seal(&mut out);
    Ok(out)
}

fn damaged(what: &'static str) -> TablesError {
    TablesError::Damaged { what }
}

/// The header of the tables: how many records there are, and how long the files have to be.
struct Header {
    runs: u64,
    words: u64,
    /// The slots behind the last ones in use, of the swap file and of the REAP file.
    ends: [u32; 2],
}

impl Header {
    /// `room` says how many slots the files are long enough for.
    fn read(from: &mut Reader<'_>, room: [u64; 3]) -> Result<Self, TablesError> {
        let (runs, words) = (from.u64()?, from.u64()?);
        let mut ends = [0; 2];
        for (end, room) in ends.iter_mut().zip(room) {
            *end = from.u32()?;
            if u64::from(*end) > room.min(SLOTS_MAX.into()) {
                return Err(damaged("a file is shorter than they say"));
            }
            if from.bytes(SEAL_BYTES as u64)?.iter().any(|byte| *byte != 0) {
                return Err(TablesError::Encrypted);
            }
        }
        Ok(Self { runs, words, ends })
    }
}

/// A part of `count` records of `bytes` each.
fn records<'a>(from: &mut Reader<'a>, count: u64, bytes: u64) -> Result<Reader<'a>, TablesError> {
    from.part(count.checked_mul(bytes).ok_or(damaged("a count is too large"))?)
}

/// Reads runs and checks each by itself: its pages come behind `next`, the one before, and end before `end`.
fn read_run(from: &mut Reader<'_>, next: PageId, end: PageId) -> Result<Run, TablesError> {
    let (first, pages, slot) = (from.u32()?, from.u32()?, from.u32()?);
    let (kind, class, zero) = (from.u8()?, from.u8()?, from.u16()?);
    let behind = first.checked_add(pages).filter(|behind| *behind <= end && pages > 0 && first >= next);
    behind.ok_or(damaged("a run of pages is out of place"))?;
    let place = match kind {
        WORD if slot == 0 => PageLocation::Word,
        SWAP => PageLocation::Swap(slot),
        REAP => PageLocation::Reap(slot),
        PACKED if slot < SLOTS_MAX => PageLocation::Packed(slot),
        _ => return Err(damaged("a run is nowhere")),
    };
    let class = Class::from_number(class).filter(|_| zero == 0).ok_or(damaged("a class is unknown"))?;
    Ok(Run { first, pages, at: Located { place, class } })
}

/// A record of the tables: sets come first, then pages.
pub enum Said {
    Set(usize, PackedSet),
    Page(Entry),
}

/// Reads tables and passes on sets and pages. Pages have numbers below `end`, and the files are long enough for `room` slots,
/// the packed file last. Whoever made the tables may be hostile.
pub fn read(
    tables: &[u8],
    end: PageId,
    room: [u64; 3],
    said: &mut dyn FnMut(Said),
) -> Result<(), TablesError> {
    let (version, mut from) = tables::open(tables, KIND, VERSION_WITHOUT_SETS..=persist_sets::VERSION)?;
    let header = Header::read(&mut from, room)?;
    let sets = if version >= persist_sets::OLDEST_VERSION {
        let bytes = from.u64()?;
        persist_sets::read(version, from.part(bytes)?, (room[2], u64::MAX), false)?
    } else {
        Vec::new()
    };
    let mut runs = records(&mut from, header.runs, RUN_BYTES)?;
    let (checked, stored) = check_runs(runs, end, header.ends, &sets)?;
    let mut sums = records(&mut from, stored, SUM_BYTES)?;
    let mut words = Words::new(records(&mut from, header.words, WORD_BYTES)?)?;
    if !from.is_empty() {
        return Err(damaged("there is more than they say"));
    }
    let mut next = 0;
    sets.into_iter().for_each(|(number, set)| said(Said::Set(number, set)));
    for _ in 0..checked {
        let run = read_run(&mut runs, next, end)?;
        next = run.first + run.pages;
        for on in 0..run.pages {
            let id = run.first + on;
            let (place, sum, word) = match run.at.place {
                PageLocation::Word => (PageLocation::Word, 0, words.take(id)?),
                PageLocation::Swap(slot) => (PageLocation::Swap(slot + on), sums.u32()?, 0),
                PageLocation::Reap(slot) => (PageLocation::Reap(slot + on), sums.u32()?, 0),
                PageLocation::Packed(slot) => (PageLocation::Packed(slot + on), sums.u32()?, 0),
            };
            said(Said::Page(Entry { id, at: Located { place, ..run.at }, sum, word }));
        }
    }
    if words.next.is_some() {
        return Err(damaged("a word belongs to no page"));
    }
    Ok(())
}

/// Checks that the runs agree with each other and with the files. Result: how many they are, and how many pages of theirs
/// have a slot.
fn check_runs(
    mut runs: Reader<'_>,
    end: PageId,
    ends: [u32; 2],
    sets: &[(usize, PackedSet)],
) -> Result<(u64, u64), TablesError> {
    let (mut next, mut count, mut stored) = (0, 0, 0);
    let mut used = vec![Bits::default(); 2 + sets.len()];
    while !runs.is_empty() {
        let run = read_run(&mut runs, next, end)?;
        (next, count) = (run.first + run.pages, count + 1);
        let (slot, file, end) = match run.at.place {
            PageLocation::Word => continue,
            PageLocation::Swap(slot) => (slot, 0, ends[0]),
            PageLocation::Reap(slot) => (slot, 1, ends[1]),
            PageLocation::Packed(slot) => {
                let (number, place) = split(slot);
                let at =
                    sets.iter().position(|(at, _)| *at == number).ok_or(damaged("there is no such set"))?;
                (place, 2 + at, sets[at].1.pages())
            }
        };
        let behind = slot.checked_add(run.pages).filter(|behind| *behind <= end);
        for slot in slot..behind.ok_or(damaged("a slot is behind the file's last one"))? {
            if used[file].has(slot) {
                return Err(damaged("two pages have one slot"));
            }
            used[file].set(slot);
        }
        stored += u64::from(run.pages);
    }
    Ok((count, stored))
}

/// The words that pages repeat, in the order of the pages.
struct Words<'a> {
    rest: Reader<'a>,
    next: Option<(PageId, u64)>,
}

impl<'a> Words<'a> {
    fn new(rest: Reader<'a>) -> Result<Self, TablesError> {
        let mut words = Self { rest, next: None };
        words.advance()?;
        Ok(words)
    }

    fn advance(&mut self) -> Result<(), TablesError> {
        self.next = if self.rest.is_empty() { None } else { Some((self.rest.u32()?, self.rest.u64()?)) };
        match self.next {
            Some((_, 0)) => Err(damaged("a word is zero")),
            _ => Ok(()),
        }
    }

    /// The word of page `id`, which is asked for once and after those before it.
    fn take(&mut self, id: PageId) -> Result<u64, TablesError> {
        let Some((_, word)) = self.next.filter(|(next, _)| *next == id) else { return Ok(0) };
        self.advance()?;
        Ok(word)
    }
}

#[cfg(test)]
#[path = "persist_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "persist_golden_tests.rs"]
mod golden_tests;
