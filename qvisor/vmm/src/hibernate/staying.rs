//! Content that stays in memory while the sandbox sleeps for an image (`abi::hostcall::SwapOut::stays`). The image gets each page from
//! memory: behind the running program, or at once when somebody is about to reach it. To the kernel such a page is away like any other,
//! so there is no way to one that does not lead through here.
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use abi::PAGE_SIZE;
use abi::hostcall as hc;
use abi::layout::USER_PHYS;
use swap::{Bits, ExportError, FileBase, Page, PageBytes, PageId, Regions};

use super::parent::{FileId, KnownParent};
use super::{Fetch, Hibernation};
use crate::lock::{Guard, Mutex, Rank};
use crate::memory::SandboxMemory;

/// Pages that are copied for the image while whoever wants one of them waits: 256 KiB.
const COPIED: usize = 64;
/// Pages that are kept until they are written: 16 MiB. Whoever reaches more of them waits for the disk.
const SAVED: usize = 4096;
const ENDED: &str = "it was given up meanwhile";

/// The pages whose content stays.
pub(super) struct Staying {
    /// There are none otherwise.
    is_begun: AtomicBool,
    /// A [`Phase`]. Who only asks for it waits for no disk.
    phase: AtomicU8,
    is_given_up: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The pages.
    pages: Bits,
    /// Pages that are stored, and belong to the image as well.
    kept: Bits,
    /// Pages that have not been reached since an image was written which goes on being known, and the files of it that have them.
    unchanged: Bits,
    known: Vec<(FileId, Bits)>,
    /// Of `pages` those whose content is in memory alone.
    left: Bits,
    /// The content of others that are to be written.
    saved: BTreeMap<PageId, Box<PageBytes>>,
    /// Where they go if there is no room.
    image: Option<File>,
    error: Option<String>,
    /// When nothing ran any more.
    since: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// Nobody wants them any more, if there are any.
    Over,
    /// An image is to be taken next.
    Waiting,
    /// One is written.
    Writing,
    /// One is written, and known: the next may leave to it whatever has not been reached.
    Known,
}

impl Default for Staying {
    fn default() -> Self {
        Self {
            is_begun: AtomicBool::new(false),
            phase: AtomicU8::new(Phase::Over as u8),
            is_given_up: AtomicBool::new(false),
            state: Mutex::new(Rank::Staying, State::default()),
        }
    }
}

impl Staying {
    fn state(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    fn is_in(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::SeqCst) == phase as u8
    }

    /// False: it is in another phase than it was thought to be.
    fn goes(&self, from: Phase, to: Phase) -> bool {
        self.phase.compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether any page has stayed since pages were last stored.
    fn is_begun(&self) -> bool {
        self.is_begun.load(Ordering::Acquire)
    }

    /// The sandbox sleeps. These pages have stayed where they are; `kept` are those that belong to it, and were stored earlier or have not been
    /// reached since they stayed.
    pub fn begin(&self, pages: impl Iterator<Item = PageId>, kept: Bits) {
        let mut state = self.state();
        let before = std::mem::take(&mut *state);
        *state = State { pages: pages.collect(), ..State::default() };
        if self.is_in(Phase::Known) {
            for id in kept.ids() {
                if before.pages.has(id) {
                    state.pages.set(id);
                } else {
                    state.kept.set(id);
                }
                if before.pages.has(id) || before.kept.has(id) {
                    state.unchanged.set(id);
                }
            }
            state.known = before.known;
        } else {
            state.kept = kept;
        }
        drop(state);
        self.phase.store(Phase::Waiting as u8, Ordering::SeqCst);
        self.is_begun.store(true, Ordering::Release);
    }

    /// Nothing has run for so long.
    pub fn rests_for(&self, time: Duration) {
        if self.is_in(Phase::Waiting) {
            self.state().since = Instant::now().checked_sub(time);
        }
    }

    /// All pages are stored now.
    pub fn forget(&self) {
        if self.is_begun() {
            self.is_begun.store(false, Ordering::Release);
            self.phase.store(Phase::Over as u8, Ordering::SeqCst);
            *self.state() = State::default();
        }
    }

    /// Nobody takes an image of them, unless one is being written. Result: whether pages have stayed.
    pub fn wake(&self) -> bool {
        self.goes(Phase::Waiting, Phase::Over);
        self.is_begun()
    }

    /// Whether the pages are wanted still for an image.
    pub fn is_wanted(&self) -> bool {
        self.is_in(Phase::Waiting) || self.is_in(Phase::Writing)
    }

    /// The result of `KEEP`.
    fn wanted(&self) -> u64 {
        match self.phase.load(Ordering::SeqCst) {
            phase if phase == Phase::Over as u8 => 0,
            phase if phase == Phase::Known as u8 => hc::KEEP_KNOWN,
            _ => hc::KEEP_IMAGE,
        }
    }

    /// Takes those out of `pages` that have stayed, as far as `how` asks for them. Those that come are returned; others of them do not.
    pub fn bring(&self, memory: &SandboxMemory, pages: &mut Vec<Page>, how: Fetch) -> Vec<PageId> {
        if !self.is_begun() {
            return Vec::new();
        }
        let mut state = self.state();
        let is_first_here = pages.first().is_some_and(|first| state.pages.has(first.id));
        let here = pages.extract_if(.., |page| state.pages.has(page.id));
        let mut here: Vec<PageId> = here.map(|page| page.id).collect();
        if how.is_around() && is_first_here {
            pages.clear();
        } else if how.is_around() {
            here.retain(|id| !state.left.has(*id));
        }
        for id in &here {
            self.save(&mut state, memory, *id..*id + 1);
        }
        here
    }

    /// Frames get other content.
    pub fn keep(&self, memory: &SandboxMemory, frames: Range<PageId>) {
        if self.is_begun() {
            self.save(&mut self.state(), memory, frames);
        }
    }

    /// The content of these pages may change from now on.
    fn save(&self, state: &mut State, memory: &SandboxMemory, pages: Range<PageId>) {
        let pages = pages.start..pages.end.min(state.pages.end());
        if self.is_in(Phase::Waiting) {
            // The image takes them as the kernel's.
            pages.for_each(|id| state.pages.clear(id));
        } else if self.is_in(Phase::Writing) {
            pages.for_each(|id| state.save(memory, id));
        }
    }

    /// The pages in memory that have stayed, by their guest-physical addresses.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        if !self.is_in(Phase::Waiting) {
            return Vec::new();
        }
        let address = |id: PageId| USER_PHYS + u64::from(id) * PAGE_SIZE;
        self.state().pages.runs().map(|(first, end)| address(first)..address(end)).collect()
    }

    /// Whoever writes the image stops soon.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
    }

    /// An image that has these pages begins, and they go to this file; `None`: no page has stayed for one. Result: its pages.
    fn begin_image(&self, file: &File) -> io::Result<Option<Bits>> {
        if !self.is_in(Phase::Waiting) {
            return Ok(None);
        }
        let mut state = self.state();
        let words = state.pages.words().len().max(state.kept.words().len());
        let word = |bits: &Bits, at: usize| bits.words().get(at).copied().unwrap_or(0);
        let all: Vec<u64> = (0..words).map(|at| word(&state.pages, at) | word(&state.kept, at)).collect();
        let all = Bits::from_words(all);
        swap::make_room(file, &all)?;
        state.image = Some(file.try_clone()?);
        state.left = state.pages.clone();
        if !self.goes(Phase::Waiting, Phase::Writing) {
            return Err(io::Error::other(ENDED));
        }
        Ok(Some(all))
    }

    /// The image is over. `known`: its files, by which it goes on being known if it could be written. Result: why it could not be written, if
    /// it could not.
    fn end_image(&self, known: Option<Vec<(FileId, Bits)>>) -> Option<String> {
        let mut state = self.state();
        (state.left, state.saved, state.image, state.unchanged) = Default::default();
        let phase = if known.is_some() && state.error.is_none() { Phase::Known } else { Phase::Over };
        state.known = known.unwrap_or_default();
        self.phase.store(phase as u8, Ordering::SeqCst);
        state.error.take()
    }

    /// Leaves pages to the parent of an image that has begun, which have not been reached since the parent, or what has them from the same
    /// file, was written.
    fn leave_unchanged(&self, image: &ImagePages, parent: &mut KnownParent) {
        let mut state = self.state();
        let State { unchanged, known, left, .. } = &mut *state;
        for (file, pages) in &*known {
            for id in pages.ids().filter(|id| unchanged.has(*id) && image.pages.has(*id)) {
                if parent.leave_to(*file, id) {
                    left.clear(id);
                }
            }
        }
    }

    /// Copies pages out of memory that the image has not got. Result: those that it had.
    fn copy_left(&self, memory: &SandboxMemory, pages: &[Page]) -> Result<Vec<Page>, String> {
        let mut had = Vec::new();
        for pages in pages.chunks(COPIED) {
            let mut state = self.state();
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if self.is_given_up.load(Ordering::SeqCst) {
                return Err(ENDED.into());
            }
            for page in pages {
                if let Some(saved) = state.saved.remove(&page.id) {
                    page.copy_in(&saved);
                } else if state.left.has(page.id) {
                    let from = super::lists::pages_of(memory, &[page.id]).unwrap_or_default();
                    from.iter().for_each(|from| from.copy(page));
                    state.left.clear(page.id);
                } else {
                    had.push(*page);
                }
            }
        }
        Ok(had)
    }
}

impl State {
    /// Keeps the content of a page, unless the image has it.
    fn save(&mut self, memory: &SandboxMemory, id: PageId) {
        if !self.left.has(id) {
            return;
        }
        self.left.clear(id);
        let Some(page) = super::lists::pages_of(memory, &[id]).unwrap_or_default().pop() else { return };
        if self.saved.len() < SAVED {
            self.saved.insert(id, page.content());
            return;
        }
        let Some(image) = self.image.as_ref().filter(|_| self.error.is_none()) else { return };
        let start = u64::from(id) * PAGE_SIZE;
        if let Err(error) = memory.save_at(USER_PHYS + start..USER_PHYS + start + PAGE_SIZE, image, start) {
            self.error = Some(format!("cannot write its pages: {error}"));
        }
    }
}

/// The pages of an image that has begun.
pub(crate) struct ImagePages {
    pages: Bits,
    may_follow: bool,
    regions: Regions,
}

impl ImagePages {
    /// Says of which regions the pages are.
    pub fn of(self, regions: Regions) -> Self {
        Self { regions, ..self }
    }

    /// How many.
    pub fn len(&self) -> u64 {
        self.pages.len()
    }

    /// Whether tasks may run before they are written.
    pub fn may_follow(&self) -> bool {
        self.may_follow
    }
}

impl Hibernation {
    /// `KEEP`.
    pub(crate) fn keep(&self, memory: &SandboxMemory, first: u64, count: u64) -> i64 {
        let number = |number| PageId::try_from(number).unwrap_or(PageId::MAX);
        self.staying.keep(memory, number(first)..number(first.saturating_add(count)));
        self.staying.wanted().cast_signed()
    }

    /// Memory is about to be given back.
    pub(crate) fn keep_range(&self, memory: &SandboxMemory, phys: u64, len: u64) {
        if let Some(start) = phys.checked_sub(USER_PHYS) {
            self.keep(memory, start / PAGE_SIZE, len.div_ceil(PAGE_SIZE));
        }
    }

    /// The pages in memory that have stayed there, by their guest-physical addresses: an image has them elsewhere.
    pub(crate) fn staying_ranges(&self) -> Vec<Range<u64>> {
        self.staying.ranges()
    }

    /// Whether pages have stayed in memory, and are wanted for an image.
    pub(crate) fn stays(&self) -> bool {
        self.staying.is_wanted()
    }

    /// Nobody takes an image of what has stayed, unless one is being written.
    pub fn end_stay(&self) {
        self.staying.wake();
    }

    /// How long the sandbox has rested for an image, if it rests for one.
    pub(crate) fn rested_for(&self) -> Option<Duration> {
        self.staying.is_wanted().then(|| self.staying.state().since.map(|since| since.elapsed())).flatten()
    }

    /// Begins the pages of an image in a file, of what has stayed or what is stored.
    pub(crate) fn begin_pages(&self, file: &File) -> Result<ImagePages, String> {
        // Whoever gave up meant an earlier one, or is answered that this one is given up.
        self.staying.is_given_up.store(false, Ordering::SeqCst);
        let failed = |error| format!("cannot write its pages: {error}");
        if let Some(pages) = self.staying.begin_image(file).map_err(failed)? {
            return Ok(ImagePages { pages, may_follow: true, regions: Regions::default() });
        }
        let pages = self.home.as_ref().map_err(Clone::clone)?.read().pages().pages();
        swap::make_room(file, &pages).map_err(failed)?;
        Ok(ImagePages { pages, may_follow: false, regions: Regions::default() })
    }

    /// Writes the pages of an image that has begun, and the table of them. Tasks may run meanwhile.
    pub(crate) fn write_begun_pages(
        &self,
        memory: &SandboxMemory,
        image: &ImagePages,
        (pages, table): (&File, &File),
        mut parent: Option<&mut KnownParent>,
    ) -> Result<(), String> {
        let knows = image.may_follow && parent.is_some();
        let mut wanted = image.pages.clone();
        if let Some(parent) = &mut parent {
            self.staying.leave_unchanged(image, parent);
            self.leave_unread(image, parent);
            parent.pages().left().ids().for_each(|id| wanted.clear(id));
        }
        let fetch = |wanted: &[Page]| -> Result<(), ExportError> {
            let had = self.staying.copy_left(memory, wanted).map_err(ExportError::Ended)?;
            let (written, stored): (Vec<Page>, Vec<Page>) = {
                let state = self.staying.state();
                had.into_iter().partition(|page| image.may_follow && state.pages.has(page.id))
            };
            swap::read_pages(pages, &written)?;
            if !stored.is_empty() {
                let home = self.home.as_ref().map_err(|why| ExportError::Ended(why.clone()))?;
                home.read().pages().fetch(&stored)?;
            }
            Ok(())
        };
        let of_parent = parent.as_mut().map(|parent| parent.pages());
        let result = swap::write_set(&wanted, &image.regions, (pages, table), of_parent, &fetch);
        self.home.iter().for_each(|home| home.read().pages().rest());
        let known = parent
            .filter(|_| knows && result.is_ok())
            .and_then(|parent| parent.known(image.pages.clone(), pages));
        let error = self.staying.end_image(known);
        match (result, error) {
            (_, Some(error)) => Err(error),
            (result, None) => result.map_err(|error| error.to_string()),
        }
    }

    /// Leaves those pages of an image to its parent that were never read since the sandbox began with the parent, or with what has them
    /// from the same file.
    fn leave_unread(&self, image: &ImagePages, parent: &mut KnownParent) {
        let Ok(home) = &self.home else { return };
        let home = home.read();
        let Some(home) = home.on_a_base() else { return };
        let file = |(file, _): (&FileBase, _)| file.descriptor().and_then(|file| FileId::of(file).ok());
        let files: Vec<Option<FileId>> = home.base().files().map(file).collect();
        let here = if image.may_follow { self.staying.state().pages.clone() } else { Bits::default() };
        for id in image.pages.ids().filter(|id| !here.has(*id) && home.is_in_base(*id)) {
            if let Some(file) = home.base().place_of(id).and_then(|place| *files.get(place)?) {
                parent.leave_to(file, id);
            }
        }
    }

    /// Nobody writes pages of an image any more.
    pub(crate) fn end_pages(&self) {
        let _ = self.staying.end_image(None);
    }

    /// Whoever writes pages of an image stops soon.
    pub fn give_up_pages(&self) {
        self.staying.give_up();
    }
}

#[cfg(test)]
#[path = "staying_tests.rs"]
mod tests;
