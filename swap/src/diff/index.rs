//! The index of a base: by which of its pages to look for a relative of another page ("Phoenix", section 3.3).
//!
//! Equal pages are found by a keyed hash. For similar ones there are [`MAPS`] maps, each of which takes a page by [`SAMPLE`] of its bytes,
//! at places that were drawn when the index was made, and has at most [`WAYS`] pages for each sample, drawn from all that have it. All of it
//! is a hint: whoever looks compares the pages themselves, so a damaged index only finds less. It knows of the base alone, and never learns
//! of the pages that are looked for.

use std::fs::File;
use std::io;

use crate::base::FileBase;
use crate::mapping::Mapping;
use crate::page::{PAGE_BYTES, PageBytes, PageId};
use crate::pool;

const KIND: &[u8; 8] = b"DORMINDX";
const VERSION: u32 = 1;
pub const MAPS: usize = 16;
pub const SAMPLE: usize = 8;
pub const WAYS: usize = 4;
/// Most candidates of a page.
pub const CANDIDATES: usize = MAPS * WAYS;
/// Samples that a map tells apart, as powers of two: at least, and at most.
const BUCKETS_MIN: u32 = 8;
const BUCKETS_MAX: u32 = 16;
/// The bits of a place in a page.
const PLACES_MASK: u16 = 0xfff;
const _: () = assert!(PLACES_MASK as usize + 1 == PAGE_BYTES);
const NONE: PageId = PageId::MAX;
/// Of whatever the index is made for, and of the key of its hash.
const OF_BYTES: usize = 32;
/// Words of a page that are hashed side by side.
const LANES: usize = 8;
const KEY_BYTES: usize = LANES * 8;
/// Bytes before the hashes: kind, version, buckets, pages, the two above, and the places of samples.
const HEAD_BYTES: usize = 24 + OF_BYTES + KEY_BYTES + MAPS * SAMPLE * 2;
/// Bytes of a page's hash, and of its number.
const HASH_BYTES: usize = size_of::<u64>();
const ID_BYTES: usize = size_of::<PageId>();
/// Pages that one thread hashes at a time.
const PART_PAGES: usize = 256;

/// Why an index is not used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given")]
pub enum IndexError {
    #[error("cannot use the index of a base: {0}")]
    File(#[from] io::Error),
    #[error("the index of a base is damaged, or of another version")]
    Damaged,
    #[error("the index is of another base")]
    OfAnother,
    #[error("cannot make the index of a base: the host has no randomness to give")]
    NoRandomness,
}

/// See the module.
pub struct BaseIndex {
    bytes: Bytes,
    key: [u8; KEY_BYTES],
    places: [[u16; SAMPLE]; MAPS],
    pages: usize,
    buckets: u32,
}

/// Pages, each with how many samples it has in common with another one.
pub struct Candidates {
    pages: [(u8, PageId); CANDIDATES],
    count: usize,
}

impl Candidates {
    fn add(&mut self, id: PageId) {
        if let Some(seen) = self.pages[..self.count].iter_mut().find(|(_, seen)| *seen == id) {
            seen.0 += 1;
        } else if let Some(place) = self.pages.get_mut(self.count) {
            (*place, self.count) = ((1, id), self.count + 1);
        }
    }

    fn order(&mut self) {
        self.pages[..self.count].sort_by_key(|(samples, _)| std::cmp::Reverse(*samples));
    }

    /// The pages in that order.
    pub fn ids(&self) -> impl Iterator<Item = PageId> {
        self.pages[..self.count].iter().map(|(_, id)| *id)
    }
}

enum Bytes {
    Own(Vec<u8>),
    Mapped(Mapping),
}

impl Bytes {
    fn all(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Mapped(mapping) => mapping.bytes(),
        }
    }
}

impl std::fmt::Debug for BaseIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BaseIndex").field("pages", &self.pages).finish_non_exhaustive()
    }
}

/// Takes numbers from a generator that needs to be fair, and no more: who can guess it only spoils what he could spoil anyway.
struct Lots(u64);

impl Lots {
    /// A number below `end`.
    fn draw(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end.max(1)
    }
}

impl FileBase {
    /// Makes the [index](BaseIndex) of its pages, which are in memory. Result: its bytes.
    ///
    /// # Errors
    /// The host has no randomness to give.
    pub fn index(&self) -> Result<Vec<u8>, IndexError> {
        let ids: Vec<PageId> = self.present().ids().collect();
        BaseIndex::build(&ids, &|id| self.mapped(id), &[0; OF_BYTES])
    }
}

/// How many buckets, as a power of two, do for so many pages.
fn buckets_for(pages: usize) -> u32 {
    pages.next_power_of_two().ilog2().clamp(BUCKETS_MIN, BUCKETS_MAX)
}

impl BaseIndex {
    /// Makes the index of pages, which `page` gives; `of` tells what it was made for. Result: its bytes, for [`Self::open`].
    ///
    /// # Errors
    /// The host has no randomness to give.
    pub fn build<'p>(
        ids: &[PageId],
        page: &(dyn Fn(PageId) -> Option<&'p PageBytes> + Sync),
        of: &[u8; OF_BYTES],
    ) -> Result<Vec<u8>, IndexError> {
        let random = ring::rand::SystemRandom::new();
        let mut fill = [0; KEY_BYTES + 8];
        ring::rand::SecureRandom::fill(&random, &mut fill).map_err(|_| IndexError::NoRandomness)?;
        let (key, seed) = fill.split_first_chunk::<KEY_BYTES>().ok_or(IndexError::NoRandomness)?;
        let mut lots = Lots(u64::from_le_bytes(seed.try_into().unwrap_or([1; 8])) | 1);
        let buckets = buckets_for(ids.len());
        let mut out = Vec::with_capacity(bytes_of(ids.len(), buckets));
        out.extend_from_slice(KIND);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&buckets.to_le_bytes());
        out.extend_from_slice(&(ids.len() as u64).to_le_bytes());
        out.extend_from_slice(of);
        out.extend_from_slice(key);
        let places: [[u16; SAMPLE]; MAPS] = std::array::from_fn(|_| {
            std::array::from_fn(|_| u16::try_from(lots.draw(PAGE_BYTES as u64)).unwrap_or(0))
        });
        places.iter().flatten().for_each(|place| out.extend_from_slice(&place.to_le_bytes()));
        put_hashes(&mut out, ids, page, key);
        put_maps(&mut out, ids, page, (&places, buckets), &mut lots);
        Ok(out)
    }

    /// The index in bytes; `of`: what it is to be made for, if that is known.
    ///
    /// # Errors
    /// They are no index, or another one's.
    pub fn open(bytes: Vec<u8>, of: Option<&[u8; OF_BYTES]>) -> Result<Self, IndexError> {
        Self::read(Bytes::Own(bytes), of)
    }

    /// The index in a sealed file of memory.
    ///
    /// # Errors
    /// It is not sealed, or no index.
    pub fn map(file: &File) -> Result<Self, IndexError> {
        let mapping = Mapping::of_sealed(file)?.ok_or(IndexError::Damaged)?;
        Self::read(Bytes::Mapped(mapping), None)
    }

    fn read(bytes: Bytes, wanted: Option<&[u8; OF_BYTES]>) -> Result<Self, IndexError> {
        let head = bytes.all().get(..HEAD_BYTES).ok_or(IndexError::Damaged)?;
        let (start, head) = head.split_at(24);
        let (of, head) = head.split_at(OF_BYTES);
        let (key, head) = head.split_at(KEY_BYTES);
        let number =
            |at| start.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes);
        let buckets = number(12);
        let pages = usize::try_from(number(16)).map_err(|_| IndexError::Damaged)?;
        let is_one = start.starts_with(KIND)
            && number(8) == VERSION
            && (BUCKETS_MIN..=BUCKETS_MAX).contains(&buckets)
            && number(20) == 0
            && bytes.all().len() == bytes_of(pages, buckets);
        if !is_one {
            return Err(IndexError::Damaged);
        }
        if wanted.is_some_and(|wanted| wanted != of) {
            return Err(IndexError::OfAnother);
        }
        let mut places = [[0; SAMPLE]; MAPS];
        for (place, said) in places.iter_mut().flatten().zip(head.as_chunks::<2>().0) {
            // Below the bytes of a page.
            *place = u16::from_le_bytes(*said) & PLACES_MASK;
        }
        let key = key.try_into().map_err(|_| IndexError::Damaged)?;
        Ok(Self { bytes, key, places, pages, buckets })
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.all().len()
    }

    /// Whether it has no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Nothing is looked for for a while.
    pub(super) fn rest(&self) {
        if let Bytes::Mapped(mapping) = &self.bytes {
            mapping.rest();
        }
    }

    /// A page that may equal this one.
    pub(super) fn equal(&self, page: &PageBytes) -> Option<PageId> {
        let wanted = hash(&self.key, page);
        let hashes = self.bytes.all().get(HEAD_BYTES..)?.get(..self.pages * HASH_BYTES)?;
        let hashes = hashes.as_chunks::<HASH_BYTES>().0;
        let at = hashes.binary_search_by(|hash| u64::from_le_bytes(*hash).cmp(&wanted)).ok()?;
        self.number(HEAD_BYTES + self.pages * HASH_BYTES + at * ID_BYTES)
    }

    /// Pages that may be like this one, those that have most samples in common with it first.
    pub(super) fn candidates(&self, page: &PageBytes) -> Candidates {
        let first = HEAD_BYTES + self.pages * (HASH_BYTES + ID_BYTES);
        let starts: [usize; MAPS] = std::array::from_fn(|map| {
            let bucket = bucket(page, &self.places[map], self.buckets);
            first + ((map << self.buckets) + bucket) * WAYS * ID_BYTES
        });
        let mut found = Candidates { pages: [(0, 0); CANDIDATES], count: 0 };
        for start in starts {
            for way in 0..WAYS {
                match self.number(start + way * ID_BYTES) {
                    Some(NONE) | None => break,
                    Some(id) => found.add(id),
                }
            }
        }
        found.order();
        found
    }

    fn number(&self, at: usize) -> Option<PageId> {
        let bytes = self.bytes.all().get(at..)?.first_chunk::<ID_BYTES>()?;
        Some(PageId::from_le_bytes(*bytes))
    }
}

/// Bytes of an index.
fn bytes_of(pages: usize, buckets: u32) -> usize {
    HEAD_BYTES + pages * (HASH_BYTES + ID_BYTES) + (MAPS << buckets) * WAYS * ID_BYTES
}

/// The hash of a page by a key, which is quick, and no proof of anything: pages are compared, so that who finds another page with the same
/// hash only spoils the search for his own.
fn hash(key: &[u8; KEY_BYTES], page: &PageBytes) -> u64 {
    let key = key.as_chunks::<8>().0;
    let mut lanes: [u64; LANES] =
        std::array::from_fn(|at| key.get(at).map_or(0, |word| u64::from_le_bytes(*word)));
    let mix = |hash: u64, word: u64| {
        // Each step can be undone, so that no difference gets lost, and brings high bits down.
        let hash = (hash ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
        hash ^ hash >> 29
    };
    for line in page.as_chunks::<8>().0.as_chunks::<LANES>().0 {
        for (lane, word) in lanes.iter_mut().zip(line) {
            *lane = mix(*lane, u64::from_le_bytes(*word));
        }
    }
    lanes.into_iter().fold(0, mix)
}

/// The number of the bucket for a page's sample.
fn bucket(page: &PageBytes, places: &[u16; SAMPLE], buckets: u32) -> usize {
    let sample = places.map(|place| page[usize::from(place) % PAGE_BYTES]);
    let mixed = (u64::from_le_bytes(sample) ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    usize::try_from(mixed >> (64 - buckets)).unwrap_or(0)
}

fn put_hashes<'p>(
    out: &mut Vec<u8>,
    ids: &[PageId],
    page: &(dyn Fn(PageId) -> Option<&'p PageBytes> + Sync),
    key: &[u8; KEY_BYTES],
) {
    let parts: Vec<&[PageId]> = ids.chunks(PART_PAGES).collect();
    let hashed = pool::map(&parts, |part| {
        let hash = |id: &PageId| (page(*id).map_or(0, |page| hash(key, page)), *id);
        part.iter().map(hash).collect::<Vec<_>>()
    });
    let mut hashes: Vec<(u64, PageId)> = hashed.into_iter().flatten().collect();
    hashes.sort_unstable();
    hashes.iter().for_each(|(hash, _)| out.extend_from_slice(&hash.to_le_bytes()));
    hashes.iter().for_each(|(_, id)| out.extend_from_slice(&id.to_le_bytes()));
}

fn put_maps<'p>(
    out: &mut Vec<u8>,
    ids: &[PageId],
    page: &(dyn Fn(PageId) -> Option<&'p PageBytes> + Sync),
    (places, buckets): (&[[u16; SAMPLE]; MAPS], u32),
    lots: &mut Lots,
) {
    let mut ways = vec![[NONE; WAYS]; MAPS << buckets];
    // How many pages have had the bucket so far.
    let mut seen = vec![0_u32; MAPS << buckets];
    for id in ids {
        let Some(page) = page(*id) else { continue };
        for (map, places) in places.iter().enumerate() {
            let at = (map << buckets) + bucket(page, places, buckets);
            seen[at] = seen[at].saturating_add(1);
            let way = match seen[at] as usize {
                count @ 1..=WAYS => count - 1,
                // Each of so many is among the drawn ones as likely as any other.
                count => usize::try_from(lots.draw(count as u64)).unwrap_or(usize::MAX),
            };
            if let Some(way) = ways[at].get_mut(way) {
                *way = *id;
            }
        }
    }
    ways.iter().flatten().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(count: u8) -> Vec<PageBytes> {
        let page = |seed: u8| {
            let mut lots = Lots(u64::from(seed) + 1);
            std::array::from_fn(|_| u8::try_from(lots.draw(256)).unwrap())
        };
        (0..count).map(page).collect()
    }

    fn index(pages: &[PageBytes]) -> BaseIndex {
        let ids: Vec<PageId> = (0..).zip(pages).map(|(id, _)| id).collect();
        let bytes = BaseIndex::build(&ids, &|id| pages.get(id as usize), &[7; 32]).unwrap();
        BaseIndex::open(bytes, Some(&[7; 32])).unwrap()
    }

    fn like(index: &BaseIndex, page: &PageBytes) -> Vec<PageId> {
        let mut found: Vec<PageId> = index.candidates(page).ids().collect();
        found.sort_unstable();
        assert!(found.windows(2).all(|two| two[0] != two[1]));
        found
    }

    #[test]
    fn equal_and_similar_pages_are_found() {
        let pages = pages(200);
        let index = index(&pages);
        for (id, page) in (0..).zip(&pages) {
            assert_eq!(index.equal(page), Some(id));
            let mut other = *page;
            other[100..300].fill(0);
            assert_eq!(index.equal(&other), None);
            assert!(like(&index, &other).contains(&id));
        }
        assert!(like(&index, &[3; PAGE_BYTES]).len() <= CANDIDATES);
    }

    #[test]
    fn of_many_that_have_a_sample_each_is_drawn_as_likely() {
        let pages = vec![[9; PAGE_BYTES]; 64];
        let mut drawn = [0_u32; 64];
        for _ in 0..40 {
            like(&index(&pages), &pages[0]).iter().for_each(|id| drawn[*id as usize] += 1);
        }
        let early: u32 = drawn[..32].iter().sum();
        let late: u32 = drawn[32..].iter().sum();
        assert!(early.abs_diff(late) < (early + late) / 4, "{early} of the first half, {late} of the second");
    }

    #[test]
    fn what_is_no_index_is_refused_and_a_damaged_one_does_no_harm() {
        let pages = pages(20);
        let ids: Vec<PageId> = (0..20).collect();
        let bytes = BaseIndex::build(&ids, &|id| pages.get(id as usize), &[7; 32]).unwrap();
        assert!(matches!(BaseIndex::open(bytes.clone(), Some(&[8; 32])), Err(IndexError::OfAnother)));
        assert!(BaseIndex::open(bytes[..bytes.len() - 1].to_vec(), None).is_err());
        assert!(BaseIndex::open(Vec::new(), None).is_err());
        for at in [0, 8, 12, 16, 20, 23] {
            let mut bad = bytes.clone();
            bad[at] ^= 0x81;
            assert!(BaseIndex::open(bad, None).is_err(), "byte {at}");
        }
        let mut wild = bytes;
        wild[HEAD_BYTES - MAPS * SAMPLE * 2..].fill(0xee);
        let wild = BaseIndex::open(wild, None).unwrap();
        assert!(like(&wild, &pages[3]).iter().all(|id| *id == 0xeeee_eeee));
        assert_eq!(wild.equal(&pages[3]), None);
    }

    #[test]
    fn a_base_without_pages_has_an_index() {
        let index = index(&[]);
        assert!(index.is_empty() && index.len() > HEAD_BYTES);
        assert_eq!((index.equal(&[1; PAGE_BYTES]), like(&index, &[1; PAGE_BYTES])), (None, vec![]));
    }
}
