//! The pages of one store on their way into a file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::bounce::{Bounce, Bounces};
use crate::error::SwapError;
use crate::page::{PAGE_BYTES, Page, PageBytes};
use crate::page_file::PageFile;
use crate::pool;

/// Pages that one thread writes at a time: 4 MiB.
pub const WRITE_PAGES: usize = 1024;
/// A store of at least so many writes gathers the pages of each in one piece first; less does not pay for the memory.
pub const BOUNCED_PARTS: usize = 16;

/// A page that was written, and its checksum.
#[derive(Clone, Copy)]
pub struct Staged {
    pub page: Page,
    pub sum: u32,
}

/// Pages that were written, by free runs of slots in their order, and those that are a word.
#[derive(Default)]
pub struct Put {
    runs: Vec<(u32, u32)>,
    staged: Vec<Staged>,
    pub words: Vec<(Page, u64)>,
}

impl Put {
    /// Looks at pages: tells those that are one repeated word from the others, whose checksums it takes. With a bounce
    /// buffer the others are copied to its front.
    fn stage(pages: &[Page], mut bounce: Option<&mut Bounce>) -> Self {
        let mut put = Self { staged: Vec::with_capacity(pages.len()), ..Self::default() };
        let mut scratch = [0; PAGE_BYTES];
        for &page in pages {
            let copy = match &mut bounce {
                Some(bounce) => &mut bounce.places()[put.staged.len()],
                None => &mut scratch,
            };
            page.copy_out(copy);
            match repeated_word(copy) {
                Some(word) => put.words.push((page, word)),
                None => put.staged.push(Staged { page, sum: crc32c::crc32c(copy) }),
            }
        }
        put
    }

    /// Writes what was staged to its runs of slots.
    fn write(&self, file: &PageFile, bounce: Option<&mut Bounce>) -> Result<(), SwapError> {
        let pieces = match bounce {
            Some(bounce) => bounce.pieces(self.staged.len()),
            None => self.staged.iter().map(|staged| staged.page.piece()).collect(),
        };
        let mut rest = pieces.as_slice();
        for &(first, len) in &self.runs {
            let (run, later) = rest.split_at(rest.len().min(len as usize));
            file.write(run, first)?;
            rest = later;
        }
        Ok(())
    }

    /// The pages with their slots.
    pub fn placed(&self) -> impl Iterator<Item = (u32, &Staged)> {
        let slots = self.runs.iter().flat_map(|&(first, len)| first..first + len);
        slots.zip(&self.staged)
    }
}

/// The word that the page repeats.
pub fn repeated_word(page: &PageBytes) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let first = words.first()?;
    words.iter().all(|word| word == first).then(|| u64::from_ne_bytes(*first))
}

/// Free slots that a store found, given out from the front, and how many pages it may write in all.
struct Room<'a> {
    runs: Mutex<Vec<(u32, u32)>>,
    budget: &'a AtomicU64,
}

impl<'a> Room<'a> {
    fn new(mut runs: Vec<(u32, u32)>, budget: &'a AtomicU64) -> Self {
        runs.reverse();
        Self { runs: Mutex::new(runs), budget }
    }

    /// Runs for `count` pages; `None`: there is no room.
    fn take(&self, count: u32) -> Option<Vec<(u32, u32)>> {
        let less = |left: u64| left.checked_sub(count.into());
        self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, mut missing) = (Vec::new(), count);
        while missing > 0 {
            let (first, len) = runs.pop()?;
            let part = len.min(missing);
            taken.push((first, part));
            missing -= part;
            if part < len {
                runs.push((first + part, len - part));
            }
        }
        Some(taken)
    }
}

/// Writes pages to free slots of a file, in about their order, in runs no shorter than `shortest`; one part is checked
/// while another one is written. `None`: there is no room, in the file or by `budget`, which counts pages.
pub fn put_all(
    file: &PageFile,
    pages: &[Page],
    shortest: u32,
    budget: &AtomicU64,
) -> Result<Option<Vec<Put>>, SwapError> {
    let found = u32::try_from(pages.len()).ok().and_then(|wanted| file.slots.find(wanted, shortest));
    let Some(runs) = found else { return Ok(None) };
    file.lengthen(runs.iter().map(|(first, len)| first + len).max().unwrap_or(0));
    let room = Room::new(runs, budget);
    let parts: Vec<&[Page]> = pages.chunks(WRITE_PAGES).collect();
    let bounces = Bounces::new(WRITE_PAGES);
    let put = pool::map(&parts, |part| {
        let mut bounce = if parts.len() >= BOUNCED_PARTS { bounces.take() } else { None };
        let mut put = Put::stage(part, bounce.as_mut());
        let runs = u32::try_from(put.staged.len()).ok().and_then(|count| room.take(count));
        let Some(runs) = runs else { return Ok(None) };
        put.runs = runs;
        put.write(file, bounce.as_mut())?;
        bounce.into_iter().for_each(|bounce| bounces.give_back(bounce));
        Ok(Some(put))
    });
    put.into_iter().collect()
}
