//! The tables of a home in two files as bytes: `docs/swap-format.md`, section "Tables".

use crate::bits::Bits;
use crate::error::TablesError;
use crate::page::{Class, PageId};
use crate::slots::{SLOTS_MAX, Slots};
use crate::table::{Located, PageLocation, Run};
use crate::tables::{self, Reader};

const KIND: &[u8; 8] = b"DORMHOME";
const VERSION: u32 = 1;
/// What a file's partition has room for: the nonce and the tag of an authenticated cipher.
const SEAL_BYTES: usize = 12 + 16;
const RUN_BYTES: u64 = 16;
const SUM_BYTES: u64 = 4;
const WORD_BYTES: u64 = 12;

const WORD: u8 = 1;
const SWAP: u8 = 2;
const REAP: u8 = 3;

/// A page as the tables have it.
pub struct Entry {
    pub id: PageId,
    pub at: Located,
    /// The checksum of what is in its slot, if it has one.
    pub sum: u32,
    /// The word that it repeats, if it has no slot.
    pub word: u64,
}

/// The tables of the pages in `runs`, whose numbers ascend; `slots` are those of the swap file and of the REAP file, and
/// `word` says which word a page repeats.
pub fn tables(runs: &[Run], slots: [&Slots; 2], word: impl Fn(PageId) -> u64) -> Vec<u8> {
    let pages = |run: &Run| run.first..run.first + run.pages;
    let is_word = |run: &&Run| run.at.place == PageLocation::Word;
    let of_words = runs.iter().filter(is_word).flat_map(pages);
    let words: Vec<(PageId, u64)> =
        of_words.map(|id| (id, word(id))).filter(|(_, word)| *word != 0).collect();
    let mut out = tables::begin(KIND, VERSION);
    let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
    for count in [runs.len(), words.len()] {
        put(&(count as u64).to_le_bytes());
    }
    for slots in slots {
        put(&slots.end().to_le_bytes());
        put(&[0; SEAL_BYTES]);
    }
    for run in runs {
        let (kind, slot) = match run.at.place {
            PageLocation::Word => (WORD, 0),
            PageLocation::Swap(slot) => (SWAP, slot),
            PageLocation::Reap(slot) => (REAP, slot),
        };
        [run.first, run.pages, slot].iter().for_each(|number| put(&number.to_le_bytes()));
        put(&[kind, run.at.class.number(), 0, 0]);
    }
    let [swap, reap] = slots;
    for run in runs {
        let (slots, first) = match run.at.place {
            PageLocation::Word => continue,
            PageLocation::Swap(slot) => (swap, slot),
            PageLocation::Reap(slot) => (reap, slot),
        };
        (first..first + run.pages).for_each(|slot| put(&slots.sum(slot).to_le_bytes()));
    }
    for (id, word) in words {
        put(&id.to_le_bytes());
        put(&word.to_le_bytes());
    }
    tables::seal(&mut out);
    out
}

fn damaged(what: &'static str) -> TablesError {
    TablesError::Damaged { what }
}

/// What the header says.
struct Header {
    runs: u64,
    words: u64,
    /// The slots behind the last ones in use, of the swap file and of the REAP file.
    ends: [u32; 2],
}

impl Header {
    /// `room` says how many slots the files are long enough for.
    fn read(from: &mut Reader<'_>, room: [u64; 2]) -> Result<Self, TablesError> {
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
        _ => return Err(damaged("a run is nowhere")),
    };
    let class = Class::from_number(class).filter(|_| zero == 0).ok_or(damaged("a class is unknown"))?;
    Ok(Run { first, pages, at: Located { place, class } })
}

/// Reads tables and passes on each page. Pages have numbers below `end`, and the files are long enough for `room` slots.
/// Whoever made the tables may be hostile.
pub fn read(
    tables: &[u8],
    end: PageId,
    room: [u64; 2],
    entry: &mut dyn FnMut(Entry),
) -> Result<(), TablesError> {
    let mut from = tables::open(tables, KIND, VERSION)?;
    let header = Header::read(&mut from, room)?;
    let mut runs = records(&mut from, header.runs, RUN_BYTES)?;
    let (checked, stored) = check_runs(runs, end, header.ends)?;
    let mut sums = records(&mut from, stored, SUM_BYTES)?;
    let mut words = Words::new(records(&mut from, header.words, WORD_BYTES)?)?;
    if !from.is_empty() {
        return Err(damaged("there is more than they say"));
    }
    let mut next = 0;
    for _ in 0..checked {
        let run = read_run(&mut runs, next, end)?;
        next = run.first + run.pages;
        for on in 0..run.pages {
            let id = run.first + on;
            let (place, sum, word) = match run.at.place {
                PageLocation::Word => (PageLocation::Word, 0, words.take(id)?),
                PageLocation::Swap(slot) => (PageLocation::Swap(slot + on), sums.u32()?, 0),
                PageLocation::Reap(slot) => (PageLocation::Reap(slot + on), sums.u32()?, 0),
            };
            entry(Entry { id, at: Located { place, ..run.at }, sum, word });
        }
    }
    if words.next.is_some() {
        return Err(damaged("a word belongs to no page"));
    }
    Ok(())
}

/// Checks that the runs agree with each other and with the files. Result: how many they are, and how many pages of theirs
/// have a slot.
fn check_runs(mut runs: Reader<'_>, end: PageId, ends: [u32; 2]) -> Result<(u64, u64), TablesError> {
    let (mut next, mut count, mut stored) = (0, 0, 0);
    let mut used = [Bits::default(), Bits::default()];
    while !runs.is_empty() {
        let run = read_run(&mut runs, next, end)?;
        (next, count) = (run.first + run.pages, count + 1);
        let (slot, file) = match run.at.place {
            PageLocation::Word => continue,
            PageLocation::Swap(slot) => (slot, 0),
            PageLocation::Reap(slot) => (slot, 1),
        };
        let behind = slot.checked_add(run.pages).filter(|behind| *behind <= ends[file]);
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
