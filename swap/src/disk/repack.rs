//! Packing of what a home stores: when there is time for it, all or nothing; or at once, where pages are sealed or the limit
//! leaves no room for them as they are.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use codec::Style;

use super::{SHORTEST_RUN, SwapHome};
use crate::aligned::AlignedPage;
use crate::error::SwapError;
use crate::home::{Home, Stat, Stored};
use crate::packed::{
    Layout, Outcome, PackedFile, PackedSet, SET_PAGES_MAX, SetPlan, Source, split, write_set,
};
use crate::packing::{Clock, Codec, Repacked, WrittenSet};
use crate::page::{Class, PAGE_BYTES, Page, PageBytes, PageId};
use crate::sampling;
use crate::staging::repeated_word;
use crate::table::{Located, PageLocation};

/// Pages of a partition, as Sabre has them for a working set, which comes back as a whole.
const PARTITION_PAGES: u32 = 16;
/// A home with more sets packs all of them anew when there is time, and with many at once.
const SETS_MAX: usize = 8;
const SETS_MANY: usize = 32;

/// Pages of a home, in the order of a list.
struct OfHome<'a> {
    home: &'a SwapHome,
    ids: &'a [(PageId, Class)],
}

impl Source for OfHome<'_> {
    fn read(&mut self, pages: Range<usize>, into: &mut [AlignedPage]) -> Result<(), SwapError> {
        let first: *mut AlignedPage = into.as_mut_ptr();
        let place = |at: usize| NonNull::new(first.wrapping_add(at).cast::<u8>());
        let pages: Vec<Page> = (0..into.len())
            .zip(&self.ids[pages])
            // SAFETY: the place is one of `into`, which is borrowed for this alone and not used until the pages are there.
            .filter_map(|(at, (id, _))| Some(unsafe { Page::new(*id, place(at)?) }))
            .collect();
        let (bytes, _) = self.home.fetch_all(&pages)?;
        self.home.progress.pack_read_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Pages in memory.
struct InMemory<'a>(&'a [Page]);

impl Source for InMemory<'_> {
    fn read(&mut self, pages: Range<usize>, into: &mut [AlignedPage]) -> Result<(), SwapError> {
        self.0[pages].iter().zip(into).for_each(|(page, to)| page.copy_out(&mut to.0));
        Ok(())
    }
}

/// Pages of another source, from one of them on.
struct Later<'a> {
    source: &'a mut dyn Source,
    first: usize,
}

impl Source for Later<'_> {
    fn read(&mut self, pages: Range<usize>, into: &mut [AlignedPage]) -> Result<(), SwapError> {
        self.source.read(self.first + pages.start..self.first + pages.end, into)
    }
}

/// Sets that are written one after the other, to be taken over or given up together.
struct Batch<'a> {
    home: &'a SwapHome,
    in_parallel: bool,
    goes_on: &'a dyn Fn() -> bool,
    budget: u64,
    written: Vec<WrittenSet>,
}

impl<'a> Batch<'a> {
    fn new(home: &'a SwapHome, in_parallel: bool, goes_on: &'a dyn Fn() -> bool) -> Self {
        Self { home, in_parallel, goes_on, budget: home.free_bytes(), written: Vec::new() }
    }

    /// Writes the pages of `source` as sets; false: it was stopped, or there is no room for all of them.
    fn write(
        &mut self,
        layout: Layout,
        ids: &[(PageId, Class)],
        source: &mut dyn Source,
    ) -> Result<bool, SwapError> {
        for (at, pages) in ids.chunks(SET_PAGES_MAX).enumerate() {
            let beside: Vec<Range<u32>> = self.written.iter().map(|one| one.set.region()).collect();
            let plan = SetPlan {
                layout,
                pages: pages.len(),
                budget: self.budget,
                in_parallel: self.in_parallel,
                beside: &beside,
                goes_on: self.goes_on,
            };
            let mut source = Later { source: &mut *source, first: at * SET_PAGES_MAX };
            let Outcome::Done(set) = self.home.write_set(&plan, &mut source)? else { return Ok(false) };
            self.budget = self.budget.saturating_sub(set.region_bytes());
            self.written.push(WrittenSet { set, pages: pages.to_vec() });
        }
        Ok(true)
    }
}

/// The pages of a partition in this style. A canned page has no header, so that each can stand by itself.
fn partition_pages(style: Style, is_working: bool) -> u32 {
    match style {
        Style::None | Style::DeflateCanned | Style::DeflateFixed if !is_working => 1,
        _ => PARTITION_PAGES,
    }
}

fn layout(codec: Codec, style: Style, is_working: bool, is_settled: bool) -> Layout {
    let partition_pages = partition_pages(style, is_working);
    let for_engine = codec.is_for_engine() && style == Style::DeflateCanned;
    Layout { style, partition_pages, is_working, is_settled, for_engine }
}

impl SwapHome {
    /// Whether [`Self::pack`] may have anything to do.
    #[must_use]
    pub fn packs(&self) -> bool {
        self.packed.is_some() && self.packing.codec != Codec::Style(Style::None)
    }

    /// Whether no page may be stored as it is.
    pub(crate) fn stores_packed(&self) -> bool {
        self.packed.as_ref().is_some_and(PackedFile::is_sealed)
    }

    /// Whether so many bytes, as they are, are to be packed at once: together with what is stored they would take more than half
    /// of the limit, and the next store needs room beside them.
    pub(crate) fn is_short_of(&self, bytes: u64) -> bool {
        self.packs()
            && self.limit_bytes < u64::MAX
            && Home::stored_bytes(self).saturating_add(bytes) > self.limit_bytes / 2
    }

    /// Returns how many bytes of the limit are left.
    fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(Home::stored_bytes(self))
    }

    /// Stores pages as sets. `is_full`: they don't fit as they are.
    pub(crate) fn store_packed(
        &mut self,
        working_set: &[Page],
        rest: &[Page],
        is_full: bool,
    ) -> Result<Stored, SwapError> {
        let style = match self.packing.codec {
            _ if !is_full => Style::None,
            Codec::Style(style) => style,
            Codec::Iaa => Style::DeflateCanned,
            // The best ratio of those that are quick enough to be waited for.
            Codec::Auto => Style::Zstd(Style::ZSTD_LEVEL),
        };
        self.compact();
        let result = self.write_packed(working_set, rest, style, is_full);
        match result {
            Err(SwapError::Limit { .. }) if !is_full && self.packs() => {
                self.store_packed(working_set, rest, true)
            }
            result => result,
        }
    }

    fn write_packed(
        &mut self,
        working_set: &[Page],
        rest: &[Page],
        style: Style,
        is_settled: bool,
    ) -> Result<Stored, SwapError> {
        let mut words = Vec::new();
        let mut batch = Batch::new(self, true, &|| true);
        for (pages, is_working) in [(working_set, true), (rest, false)] {
            let pages = without_words(pages, &mut words);
            let ids: Vec<(PageId, Class)> = pages.iter().map(|page| (page.id, page.class)).collect();
            let layout = layout(self.packing.codec, style, is_working, is_settled);
            let result = batch.write(layout, &ids, &mut InMemory(&pages));
            if !matches!(result, Ok(true)) {
                self.give_up(&batch.written);
                return Err(result.err().unwrap_or(SwapError::Limit { limit_bytes: self.limit_bytes }));
            }
        }
        let written = batch.written;
        // All is written: from here on nothing can fail.
        let mut stored = Stored { word_pages: words.len() as u64, ..Stored::default() };
        for one in written {
            stored.packed_pages += u64::from(one.set.pages());
            stored.packed_bytes += one.set.bytes();
            self.take_set(one);
        }
        for (page, word) in words {
            self.set_word(page.id, word);
            self.settle(page.id, Located { place: PageLocation::Word, class: page.class });
        }
        self.trim();
        Ok(stored)
    }

    /// Copies the pages of sets that are mostly gone, and of all sets if there are many, so that nothing keeps the room of the
    /// others. What fails stays.
    fn compact(&mut self) {
        let Some(packed) = &self.packed else { return };
        let is_many = packed.sets().count() > SETS_MANY;
        let is_wanted = |set: &PackedSet| is_many || set.live() * 2 < set.pages();
        if !packed.sets().any(|(_, set)| is_wanted(set)) {
            return;
        }
        let mut found: Vec<(u32, PageId, Class)> = Vec::new();
        for run in self.places.runs() {
            let PageLocation::Packed(first) = run.at.place else { continue };
            if packed.set(split(first).0).is_some_and(is_wanted) {
                found.extend((0..run.pages).map(|on| (first + on, run.first + on, run.at.class)));
            }
        }
        found.sort_unstable_by_key(|(slot, ..)| *slot);
        let layout_of = |slot: u32| packed.set(split(slot).0).map(|set| set.layout);
        let mut groups: Vec<(Layout, Vec<(PageId, Class)>)> = Vec::new();
        for (slot, id, class) in found {
            let Some(layout) = layout_of(slot) else { continue };
            match groups.iter_mut().find(|(known, _)| *known == layout) {
                Some((_, pages)) => pages.push((id, class)),
                None => groups.push((layout, vec![(id, class)])),
            }
        }
        for (layout, pages) in groups {
            let mut batch = Batch::new(self, true, &|| true);
            let result = batch.write(layout, &pages, &mut OfHome { home: self, ids: &pages });
            batch.written.into_iter().for_each(|set| self.take_set(set));
            if !matches!(result, Ok(true)) {
                return;
            }
        }
    }

    fn write_set(&self, plan: &SetPlan<'_>, source: &mut dyn Source) -> Result<Outcome, SwapError> {
        match &self.packed {
            Some(packed) if packed.numbers_left() > plan.beside.len() => {
                let outcome = write_set(packed, plan, source)?;
                if let Outcome::Done(set) = &outcome {
                    self.progress.pack_written_bytes.fetch_add(set.region_bytes(), Ordering::Relaxed);
                }
                Ok(outcome)
            }
            _ => Ok(Outcome::NoRoom),
        }
    }

    /// Gives back what was written in vain.
    fn give_up(&self, written: &[WrittenSet]) {
        if let Some(packed) = &self.packed {
            written.iter().for_each(|one| packed.give_up(one.set.region()));
        }
    }

    /// Packs what is stored, as far as that is worth it; `None`: it is not. Nothing changes but for the storage in use. It may
    /// take long, by this thread alone, and ends early when `goes_on` says no. No second thread may call it meanwhile.
    pub fn pack(&self, goes_on: &dyn Fn() -> bool) -> Result<Option<Repacked>, SwapError> {
        if !self.packs() {
            return Ok(None);
        }
        let begin = Clock::start();
        let result = self.repack(goes_on);
        self.rest();
        // What a store replaced was freed when it was done: as many blocks again as it wrote. There is time to give them back,
        // until a wake: whoever stores next waits for this.
        [&self.swap, &self.reap].iter().for_each(|file| file.discard_free(SHORTEST_RUN, goes_on));
        self.progress.took(&begin);
        if !matches!(&result, Ok(Some(_))) {
            self.progress.cancelled.fetch_add(1, Ordering::Relaxed);
        }
        // That nothing was to be done is no failure.
        result.map(|packed| packed.filter(|packed| !packed.written.is_empty() || !packed.settled.is_empty()))
    }

    fn repack(&self, goes_on: &dyn Fn() -> bool) -> Result<Option<Repacked>, SwapError> {
        let changes = self.progress.change();
        let mut batch = Batch::new(self, false, goes_on);
        let mut settled = Vec::new();
        let result = self.repack_into(&mut batch, &mut settled);
        if !matches!(result, Ok(true)) {
            self.give_up(&batch.written);
        }
        let Batch { written, .. } = batch;
        result.map(|is_done| is_done.then_some(Repacked { changes, written, settled }))
    }

    /// False: it was stopped, or there is no room. `settled`: sets that stay as they are for good.
    fn repack_into(&self, batch: &mut Batch<'_>, settled: &mut Vec<usize>) -> Result<bool, SwapError> {
        for Group { is_working, pages, fresh } in self.groups() {
            let style = match self.packing.codec {
                Codec::Style(style) => style,
                Codec::Iaa => Style::DeflateCanned,
                Codec::Auto => match self.chosen(is_working, &pages, batch.goes_on)? {
                    Some(style) => style,
                    None => return Ok(false),
                },
            };
            if style == Style::None {
                settled.extend(fresh);
                continue;
            }
            let layout = layout(self.packing.codec, style, is_working, true);
            if !batch.write(layout, &pages, &mut OfHome { home: self, ids: &pages })? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The style that `auto` means for these pages.
    fn chosen(
        &self,
        is_working: bool,
        pages: &[(PageId, Class)],
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<Style>, SwapError> {
        let mut source = OfHome { home: self, ids: pages };
        let read_bytes_s = self.progress.read_bytes_s.load(Ordering::Relaxed);
        let host = sampling::Host { read_bytes_s, cpus: self.packing.cpus, is_working };
        sampling::choose(&host, pages.len(), &mut source, goes_on)
    }

    /// Pages that are to be packed: the working set, and the rest.
    fn groups(&self) -> Vec<Group> {
        let is_many = self.packed.as_ref().is_some_and(|packed| packed.sets().count() > SETS_MAX);
        let mut groups = [Group::new(true), Group::new(false)];
        let mut found: Vec<(PageLocation, PageId, Class)> = Vec::new();
        for run in self.places.runs() {
            let ids = run.first..run.first + run.pages;
            found.extend(ids.filter_map(|id| Some((self.places.get(id)?, id, run.at.class))));
        }
        found.sort_unstable_by_key(|(place, ..)| order(*place));
        for (place, id, class) in found {
            let group = match place {
                PageLocation::Word => continue,
                PageLocation::Reap(_) => 0,
                PageLocation::Swap(_) => 1,
                PageLocation::Packed(slot) => {
                    let (number, _) = split(slot);
                    let Some(set) = self.packed.as_ref().and_then(|packed| packed.set(number)) else {
                        continue;
                    };
                    // Sets of which most pages are gone only take up room.
                    if set.layout.is_settled && set.live() * 2 >= set.pages() && !is_many {
                        continue;
                    }
                    let group = usize::from(!set.layout.is_working);
                    if !set.layout.is_settled && !groups[group].fresh.contains(&number) {
                        groups[group].fresh.push(number);
                    }
                    group
                }
            };
            groups[group].pages.push((id, class));
        }
        groups.into_iter().filter(|group| !group.pages.is_empty()).collect()
    }

    /// Takes over what was packed, if it is still wanted and no pages were stored or forgotten since; else gives it up.
    /// Result: whether it did.
    pub fn adopt(&mut self, packed: Repacked, is_wanted: bool) -> bool {
        if !is_wanted || packed.changes != self.progress.changes.load(Ordering::Relaxed) {
            // What was stored since may have its regions.
            self.give_up(&packed.written);
            self.progress.cancelled.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.progress.change();
        for set in packed.written {
            self.take_set(set);
        }
        if let Some(file) = &mut self.packed {
            for number in packed.settled {
                if let Some(set) = file.set_mut(number) {
                    set.layout.is_settled = true;
                }
            }
        }
        self.progress.packings += 1;
        self.trim();
        true
    }

    /// Returns the counters of packing; none, if the home has no packed file.
    pub(crate) fn packing_stats(&self) -> Vec<Stat> {
        let Some(packed) = &self.packed else { return Vec::new() };
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sum = |of: &dyn Fn(&PackedSet) -> u64| packed.sets().map(|(_, set)| of(set)).sum::<u64>();
        let of_set = |set: &PackedSet, value: u64| if set.layout.is_working { value } else { 0 };
        let input = |set: &PackedSet| u64::from(set.pages()) * PAGE_BYTES as u64;
        let stat = |name, value| Stat { name, value };
        let mut stats = vec![
            stat("packed_file_bytes", packed.used_bytes()),
            stat("packed_pages", sum(&|set| u64::from(set.live()))),
            stat("packed_input_bytes", sum(&input)),
            stat("packed_output_bytes", sum(&PackedSet::bytes)),
            stat("set_input_bytes", sum(&|set| of_set(set, input(set)))),
            stat("set_output_bytes", sum(&|set| of_set(set, set.bytes()))),
            stat("raw_partitions", sum(&PackedSet::raw_partitions)),
            stat("packings", self.progress.packings),
            stat("packings_cancelled", get(&self.progress.cancelled)),
            stat("pack_us", get(&self.progress.pack_us)),
            stat("pack_cpu_us", get(&self.progress.pack_cpu_us)),
            stat("pack_read_bytes", get(&self.progress.pack_read_bytes)),
            stat("pack_written_bytes", get(&self.progress.pack_written_bytes)),
            stat("unpack_us", packed.unpack_us()),
            stat("read_bytes_s", get(&self.progress.read_bytes_s)),
        ];
        stats.extend(packed.engine_counters().into_iter().map(|(name, value)| stat(name, value)));
        stats
    }

    /// How pages are packed, by the names that users give.
    #[must_use]
    pub fn packing(&self) -> String {
        let set = |working: bool| {
            let sets = self.packed.iter().flat_map(PackedFile::sets);
            let of = sets.filter(|(_, set)| set.layout.is_working == working && set.layout.is_settled);
            of.last().map(|(_, set)| set.layout.style.to_string())
        };
        match (self.packing.codec, set(true), set(false)) {
            (Codec::Auto, Some(working), _) => format!("auto: {working}"),
            (Codec::Auto, None, Some(rest)) => format!("auto: {rest}"),
            (codec, ..) => codec.to_string(),
        }
    }
}

/// Pages that are to be packed together.
struct Group {
    is_working: bool,
    pages: Vec<(PageId, Class)>,
    /// Sets among them whose style is not chosen yet.
    fresh: Vec<usize>,
}

impl Group {
    fn new(is_working: bool) -> Self {
        Self { is_working, pages: Vec::new(), fresh: Vec::new() }
    }
}

/// Where a page lies, in the order of the files.
fn order(place: PageLocation) -> (u8, u32) {
    match place {
        PageLocation::Word => (0, 0),
        PageLocation::Reap(slot) => (1, slot),
        PageLocation::Swap(slot) => (2, slot),
        PageLocation::Packed(slot) => (3, slot),
    }
}

/// The pages that are not one repeated word; the others go to `words`.
fn without_words(pages: &[Page], words: &mut Vec<(Page, u64)>) -> Vec<Page> {
    let mut copy: PageBytes = [0; PAGE_BYTES];
    let mut others = Vec::with_capacity(pages.len());
    for page in pages {
        page.copy_out(&mut copy);
        match repeated_word(&copy) {
            Some(word) => words.push((*page, word)),
            None => others.push(*page),
        }
    }
    others
}

#[cfg(test)]
#[path = "packing_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "engine_tests.rs"]
mod engine_tests;
