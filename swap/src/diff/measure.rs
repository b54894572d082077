//! How small pages become as differences from those of a base, and how long that takes ("Phoenix", section 6.1).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::chunks::Chunks;
use super::home::MemoryHome;
use super::index::{BaseIndex, IndexError};
use super::matcher::{Kept, PagePacker, Reference};
use super::record::{Head, Kind};
use crate::base::FileBase;
use crate::bounce::{Bounce, Bounces};
use crate::error::{BaseError, SwapError};
use crate::home::Home;
use crate::page::{Class, PAGE_BYTES, Page, PageBytes, PageId};

/// Bytes by which a page is found, beside its record.
const PLACE_BYTES: u64 = 4;
/// Pages that one call puts together: few enough that this thread does it alone.
const CALL_PAGES: usize = 64;
/// Pages are touched so far apart: a prime, so that each is touched once and few are neighbours in time.
const STRIDE: usize = 7919;

/// Why differences could not be measured.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given")]
pub enum MeasureError {
    #[error("the base cannot be held in memory: {0}")]
    Base(#[from] BaseError),
    #[error("the base has more pages than differences can name")]
    Large,
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Swap(#[from] SwapError),
    #[error("there is no memory for the pages")]
    Memory,
    #[error("page {id} came back another one")]
    Wrong { id: PageId },
}

/// Pages and their numbers, which ascend.
#[derive(Clone, Debug, Default)]
pub struct PagesInMemory {
    /// The numbers, one for each page.
    pub ids: Vec<PageId>,
    /// The pages.
    pub content: Vec<PageBytes>,
}

impl PagesInMemory {
    /// All pages, one behind the other.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.content.as_flattened()
    }

    /// The pages with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (PageId, &PageBytes)> {
        self.ids.iter().copied().zip(&self.content)
    }
}

impl FromIterator<(PageId, PageBytes)> for PagesInMemory {
    fn from_iter<I: IntoIterator<Item = (PageId, PageBytes)>>(pages: I) -> Self {
        let (ids, content) = pages.into_iter().unzip();
        Self { ids, content }
    }
}

/// A time over several rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread {
    /// That of the round in the middle.
    pub median: Duration,
    /// The shortest.
    pub lowest: Duration,
    /// The longest.
    pub highest: Duration,
}

impl Spread {
    /// The spread of these times; of none it is 0.
    #[must_use]
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |place: usize| times.get(place).copied().unwrap_or_default();
        Self { median: at(times.len() / 2), lowest: at(0), highest: at(times.len().saturating_sub(1)) }
    }

    /// How much processor time of this process passes while something is done.
    pub fn processor<R>(work: impl FnOnce() -> R) -> (R, Duration) {
        let start = processor_time();
        let result = work();
        (result, processor_time().saturating_sub(start))
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Pages that are kept in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WayMeasured {
    /// Its name.
    pub name: &'static str,
    /// How many pages.
    pub pages: u64,
    /// Bytes of their records, with heads, and of the places by which they are found.
    pub bytes: u64,
}

/// Measurements of pages as differences from those of a base.
#[derive(Clone, Debug)]
pub struct DiffMeasured {
    /// Processor time to make the base's index, once a base.
    pub index: Spread,
    /// Bytes of that index.
    pub index_bytes: usize,
    /// Processor time to pack all pages.
    pub pack: Spread,
    /// Bytes that all of them take: records, as they lie in memory, and places.
    pub bytes: u64,
    /// The ways in which they are kept.
    pub ways: Vec<WayMeasured>,
    /// Processor time to put all pages together, in their order.
    pub unpack: Spread,
    /// Time to put a page together, one here and one there: the median of all, and the 99th percentile.
    pub page: (Spread, Spread),
    /// Those times right after a rest, when the base must be mapped again.
    pub page_after_rest: (Spread, Spread),
    /// All places and records, one behind the other, for whoever packs them once more.
    pub diff: Vec<u8>,
}

/// Times of all rounds.
#[derive(Default)]
struct Times {
    index: Vec<Duration>,
    pack: Vec<Duration>,
    unpack: Vec<Duration>,
    page: [Vec<Duration>; 2],
    page_after_rest: [Vec<Duration>; 2],
}

/// Packs pages as differences from those of a base, and puts them together again, so many times. Each time all are compared with what they
/// were.
///
/// # Errors
/// There is no memory, or a page came back another one.
pub fn measure_diffs(
    base: &PagesInMemory,
    data: &PagesInMemory,
    rounds: usize,
) -> Result<DiffMeasured, MeasureError> {
    let mapped = Arc::new(FileBase::in_memory(base.all())?);
    let mut room = Bounces::new(data.ids.len()).take().ok_or(MeasureError::Memory)?;
    let (mut times, mut last) = (Times::default(), None);
    for _ in 0..rounds.max(1) {
        let (index, time) =
            Spread::processor(|| BaseIndex::build(&base.ids, &|id| mapped.mapped(id), &[0; 32]));
        times.index.push(time);
        let index = BaseIndex::open(index?, None)?;
        let index_bytes = index.len();
        let reference = Reference::new(mapped.clone(), Some(index)).ok_or(MeasureError::Large)?;
        let (packed, time) = Spread::processor(|| Packed::new(&reference, data));
        times.pack.push(time);
        last = Some((packed.ok_or(MeasureError::Memory)?, index_bytes));
        put_together(reference, data, &mut room, &mut times)?;
    }
    let (packed, index_bytes) = last.ok_or(MeasureError::Memory)?;
    let both = |[median, p99]: [Vec<Duration>; 2]| (Spread::of(median), Spread::of(p99));
    Ok(DiffMeasured {
        index: Spread::of(times.index),
        index_bytes,
        pack: Spread::of(times.pack),
        bytes: packed.chunks.live_bytes() + PLACE_BYTES * data.ids.len() as u64,
        ways: packed.ways(data),
        unpack: Spread::of(times.unpack),
        page: both(times.page),
        page_after_rest: both(times.page_after_rest),
        diff: packed.diff(),
    })
}

/// Pages as they are kept: of each its way, and the place of its record.
struct Packed {
    pages: Vec<(Kept, u32)>,
    chunks: Chunks,
}

impl Packed {
    fn new(reference: &Reference, data: &PagesInMemory) -> Option<Self> {
        let mut packer = PagePacker::new(Some(reference));
        let mut packed = Self { pages: Vec::with_capacity(data.ids.len()), chunks: Chunks::default() };
        for (id, page) in data.all() {
            let (kept, bytes) = packer.pack(id, Class::Anonymous, page);
            let place = match &kept {
                Kept::Zero => 0,
                Kept::Base(of) => *of,
                Kept::Record(head) => packed.chunks.put(head, bytes)?,
            };
            packed.pages.push((kept, place));
        }
        Some(packed)
    }

    fn ways(&self, data: &PagesInMemory) -> Vec<WayMeasured> {
        let names = ["zero", "word", "same place", "elsewhere", "xor", "packed", "raw"];
        let mut ways = names.map(|name| WayMeasured { name, pages: 0, bytes: 0 });
        for ((kept, _), id) in self.pages.iter().zip(&data.ids) {
            let (way, record) = match kept {
                Kept::Zero => (0, 0),
                Kept::Base(of) if of == id => (2, 0),
                Kept::Base(_) => (3, 0),
                Kept::Record(head) => (way_of(head.kind), Chunks::bytes_of(head)),
            };
            ways[way].pages += 1;
            ways[way].bytes += PLACE_BYTES + record;
        }
        ways.into()
    }

    fn diff(&self) -> Vec<u8> {
        let mut diff = Vec::new();
        self.pages.iter().for_each(|(_, place)| diff.extend_from_slice(&place.to_le_bytes()));
        for (kept, place) in &self.pages {
            if let (Kept::Record(_), Some((head, bytes))) = (kept, self.chunks.get(*place)) {
                let head: Head = head;
                diff.extend_from_slice(&head.bytes());
                diff.extend_from_slice(bytes);
            }
        }
        diff
    }
}

fn way_of(kind: Kind) -> usize {
    match kind {
        Kind::Word => 1,
        Kind::Xor | Kind::XorPacked => 4,
        Kind::Packed => 5,
        Kind::Raw => 6,
    }
}

/// Puts all pages together in `room`, which has been written before, and compares them.
fn put_together(
    reference: Reference,
    data: &PagesInMemory,
    room: &mut Bounce,
    times: &mut Times,
) -> Result<(), MeasureError> {
    let mut home = MemoryHome::new(Some(reference), u64::MAX);
    room.places().copy_from_slice(&data.content);
    home.store(&[], &room.pages(&data.ids))?;
    let mut passed = |times: &mut [Vec<Duration>; 2]| {
        spoil(room);
        let mut one_by_one = touch_each(&home, &room.pages(&data.ids))?;
        one_by_one.sort_unstable();
        for (times, share) in times.iter_mut().zip([50, 99]) {
            times.extend(one_by_one.get(one_by_one.len() * share / 100));
        }
        compare(room, data)
    };
    // The home has just had its base rest.
    passed(&mut times.page_after_rest)?;
    passed(&mut times.page)?;
    spoil(room);
    let pages = room.pages(&data.ids);
    let fetch = || pages.chunks(CALL_PAGES).try_for_each(|pages| home.fetch(pages).map(drop));
    let (fetched, time) = Spread::processor(fetch);
    fetched?;
    times.unpack.push(time);
    compare(room, data)
}

/// The time that it takes to put each page together, those far apart one after the other.
fn touch_each(home: &MemoryHome, pages: &[Page]) -> Result<Vec<Duration>, MeasureError> {
    let mut took = Vec::with_capacity(pages.len());
    let step = if pages.len().is_multiple_of(STRIDE) { 1 } else { STRIDE };
    for number in 0..pages.len() {
        let page = [pages[number * step % pages.len()]];
        let start = Instant::now();
        home.fetch(&page)?;
        took.push(start.elapsed());
    }
    Ok(took)
}

fn spoil(room: &mut Bounce) {
    room.places().iter_mut().for_each(|page| page.fill(0xa5));
}

fn compare(room: &mut Bounce, data: &PagesInMemory) -> Result<(), MeasureError> {
    debug_assert_eq!(size_of_val(room.places()), data.ids.len() * PAGE_BYTES);
    let wrong = room.places().iter().zip(data.all()).find(|(found, (_, page))| found != page);
    wrong.map_or(Ok(()), |(_, (id, _))| Err(MeasureError::Wrong { id }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(seed: u64) -> PageBytes {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        std::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_le_bytes()[7]
        })
    }

    #[test]
    fn pages_of_every_way_are_counted_and_come_back() {
        let base: PagesInMemory = (0..200).map(|id| (2 * id, filled(id.into()))).collect();
        let changed = |seed| {
            let mut page = filled(seed);
            page[500..520].fill(1);
            page
        };
        let text: PageBytes = std::array::from_fn(|at| u8::try_from(at / 64).unwrap());
        let data: PagesInMemory = [
            (0, filled(0)),
            (3, [0; PAGE_BYTES]),
            (4, [7; PAGE_BYTES]),
            (6, filled(90)),
            (8, changed(4)),
            (9, changed(50)),
            (1000, text),
            (1001, filled(1 << 40)),
        ]
        .into_iter()
        .collect();
        let measured = measure_diffs(&base, &data, 2).unwrap();
        let pages: Vec<u64> = measured.ways.iter().map(|way| way.pages).collect();
        assert_eq!(pages, [1, 1, 1, 1, 2, 1, 1]);
        assert_eq!(measured.ways.iter().map(|way| way.bytes).sum::<u64>(), measured.bytes);
        assert!(measured.bytes > 4096 && measured.bytes < 5000, "{}", measured.bytes);
        assert!(measured.diff.len() as u64 <= measured.bytes && measured.diff.len() > 4096);
        assert!(measured.index_bytes > 200 * 20);
        for spread in [measured.page.0, measured.page.1, measured.page_after_rest.0, measured.index] {
            assert!(spread.lowest <= spread.median && spread.median <= spread.highest);
            assert!(spread.highest > Duration::ZERO);
        }
        assert!(measured.page.0.lowest <= measured.page.1.highest);
    }

    #[test]
    fn a_base_in_disorder_is_refused_and_an_empty_one_does() {
        let page = [(3, filled(1))].into_iter().collect();
        let disorder: PagesInMemory = [(5, filled(1)), (4, filled(2))].into_iter().collect();
        assert!(matches!(measure_diffs(&disorder, &page, 1), Err(MeasureError::Base(_))));
        let measured = measure_diffs(&PagesInMemory::default(), &page, 1).unwrap();
        assert_eq!(measured.ways[6].pages, 1);
    }

    #[test]
    fn a_spread_is_of_times_in_any_order() {
        let millis = |times: &[u64]| Spread::of(times.iter().copied().map(Duration::from_millis).collect());
        let spread = millis(&[5, 1, 3]);
        assert_eq!([spread.lowest, spread.median, spread.highest].map(|time| time.as_millis()), [1, 3, 5]);
        assert_eq!(millis(&[]).highest, Duration::ZERO);
    }
}
