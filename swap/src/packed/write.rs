//! Writing a set.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use codec::{Statistics, TableSet};

use super::press::{Press, Pressed, press_all};
use super::seal::TAG_BYTES;
use super::set::{Layout, PackedSet};
use super::{PackedFile, SET_PAGES_MAX};
use crate::aligned::AlignedPage;
use crate::error::SwapError;
use crate::page::PAGE_BYTES;
use crate::piece::Piece;
use crate::pool;

/// Pages that are read, packed and written at a time: 512 KiB, and with helpers 4 MiB.
const BATCH_PAGES: usize = 128;
const LARGE_BATCH_PAGES: usize = 1024;

/// Where pages come from, by their order in the set.
pub trait Source {
    fn read(&mut self, pages: Range<usize>, into: &mut [AlignedPage]) -> Result<(), SwapError>;
}

/// How a set is to be written.
pub struct SetPlan<'a> {
    pub layout: Layout,
    pub pages: usize,
    /// Most bytes that it may take in the file.
    pub budget: u64,
    /// Whether other threads help; else all is done by the caller's.
    pub in_parallel: bool,
    /// Regions of other sets that are being written.
    pub beside: &'a [Range<u32>],
    /// Asked now and then.
    pub goes_on: &'a dyn Fn() -> bool,
}

/// How it came out; but for `Done` nothing stays.
pub enum Outcome {
    Done(PackedSet),
    Stopped,
    NoRoom,
}

/// Writes one set to a packed file; it holds the bytes that are packed and not written yet.
struct Writer<'a> {
    file: &'a PackedFile,
    set: PackedSet,
    /// Pages of the file that are written.
    written: u32,
    buffer: Vec<AlignedPage>,
    /// Bytes of the buffer.
    filled: usize,
}

impl Writer<'_> {
    /// Adds a partition; false: the set takes more than `budget` then.
    fn push(&mut self, mut pressed: Pressed, budget: u64) -> Result<bool, SwapError> {
        if let (Some(key), Some(set)) = (self.file.key()?, self.set.seal) {
            key.seal(set, u32::try_from(self.set.lens().len()).unwrap_or(u32::MAX), &mut pressed.bytes);
        }
        self.set.push(pressed.packed, &pressed.sums);
        if self.set.region_bytes() > budget {
            return Ok(false);
        }
        let mut rest = pressed.bytes.as_slice();
        while !rest.is_empty() {
            let room = &mut AlignedPage::bytes_mut(&mut self.buffer)[self.filled..];
            let (now, later) = rest.split_at(rest.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.filled += now.len();
            rest = later;
            if self.filled == self.buffer.len() * PAGE_BYTES {
                self.flush()?;
            }
        }
        Ok(true)
    }

    /// Writes the buffer, to a whole page.
    fn flush(&mut self) -> Result<(), SwapError> {
        let pages = self.filled.div_ceil(PAGE_BYTES);
        AlignedPage::bytes_mut(&mut self.buffer)[self.filled..pages * PAGE_BYTES].fill(0);
        if pages > 0 {
            let at = self.set.first + self.written;
            let count = u32::try_from(pages).unwrap_or(u32::MAX);
            self.file.file.lengthen(at.saturating_add(count));
            let piece: Piece<'_> = AlignedPage::piece(&mut self.buffer[..pages]);
            // What fails may have been written in part.
            self.written += count;
            self.file.file.write(&[piece], at)?;
        }
        self.filled = 0;
        Ok(())
    }
}

/// Writes a set with the pages of `source`. Whoever calls it lets no other set be written beside that it is not told of.
pub fn write_set(
    file: &PackedFile,
    plan: &SetPlan<'_>,
    source: &mut dyn Source,
) -> Result<Outcome, SwapError> {
    let partition = plan.layout.partition_pages as usize;
    let tags = if file.is_sealed() { plan.pages.div_ceil(partition) * TAG_BYTES } else { 0 };
    let most = (plan.pages * PAGE_BYTES + tags).div_ceil(PAGE_BYTES);
    let place = u32::try_from(most).ok().and_then(|most| file.place(most, plan.beside));
    let Some(first) = place.filter(|_| plan.pages <= SET_PAGES_MAX) else { return Ok(Outcome::NoRoom) };
    let is_large = plan.in_parallel || file.engine_for(&plan.layout).is_some();
    let batch = if is_large { LARGE_BATCH_PAGES } else { BATCH_PAGES };
    let mut pages = vec![AlignedPage::ZERO; batch.min(plan.pages)];
    let Some(tables) = tables_of(plan, source, &mut pages)? else { return Ok(Outcome::Stopped) };
    let seal = file.key()?.map(super::Key::next_set);
    let mut writer = Writer {
        file,
        set: PackedSet::new(plan.layout, tables, seal, first),
        written: 0,
        buffer: vec![AlignedPage::ZERO; BATCH_PAGES],
        filled: 0,
    };
    match fill(&mut writer, plan, source, &mut pages) {
        Ok(None) => Ok(Outcome::Done(writer.set)),
        Ok(Some(outcome)) => {
            file.give_up(first..first + writer.written);
            Ok(outcome)
        }
        Err(error) => {
            file.give_up(first..first + writer.written);
            Err(error)
        }
    }
}

/// Packs and writes all pages. Result: why not, if not.
fn fill(
    writer: &mut Writer<'_>,
    plan: &SetPlan<'_>,
    source: &mut dyn Source,
    pages: &mut [AlignedPage],
) -> Result<Option<Outcome>, SwapError> {
    let presses = Mutex::new(Vec::new());
    for range in batches(plan.pages, pages.len()) {
        if !(plan.goes_on)() {
            return Ok(Some(Outcome::Stopped));
        }
        let content = &mut pages[..range.len()];
        source.read(range, content)?;
        let bytes: &[u8] = AlignedPage::bytes_mut(content);
        let pieces: Vec<&[u8]> = bytes.chunks(plan.layout.partition_pages as usize * PAGE_BYTES).collect();
        let (layout, tables) = (&plan.layout, writer.set.tables.clone());
        let press = |piece: &&[u8]| {
            let idle = presses.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut press = idle.unwrap_or_else(|| Press::new(layout, tables.as_ref()));
            let pressed = press.press(piece);
            presses.lock().unwrap_or_else(PoisonError::into_inner).push(press);
            pressed
        };
        let pressed: Vec<Pressed> = match (writer.file.engine_for(layout), writer.set.sole_table()) {
            (Some(engine), Some(table)) => press_all(engine, table, &pieces),
            _ if plan.in_parallel => pool::map(&pieces, press),
            _ => pieces.iter().map_while(|piece| (plan.goes_on)().then(|| press(piece))).collect(),
        };
        if pressed.len() < pieces.len() {
            return Ok(Some(Outcome::Stopped));
        }
        for pressed in pressed {
            if !writer.push(pressed, plan.budget)? {
                return Ok(Some(Outcome::NoRoom));
            }
        }
    }
    writer.flush()?;
    writer.set.trim();
    Ok(None)
}

/// The tables that the style takes, from a sample of the pages; `None`: stopped.
#[expect(clippy::option_option, reason = "stopped, or no tables")]
fn tables_of(
    plan: &SetPlan<'_>,
    source: &mut dyn Source,
    pages: &mut [AlignedPage],
) -> Result<Option<Option<Arc<TableSet>>>, SwapError> {
    let most = plan.layout.tables_max();
    if most == 0 {
        return Ok(Some(None));
    }
    let mut statistics = Statistics::new().with_window(plan.layout.window_bytes());
    for range in Statistics::sample(plan.pages) {
        if !(plan.goes_on)() {
            return Ok(None);
        }
        let content = &mut pages[..range.len()];
        source.read(range, content)?;
        let bytes: &[u8] = AlignedPage::bytes_mut(content);
        bytes
            .chunks(plan.layout.partition_pages as usize * PAGE_BYTES)
            .for_each(|piece| statistics.add(piece));
    }
    Ok(Some(Some(Arc::new(statistics.tables(most)))))
}

fn batches(pages: usize, batch: usize) -> impl Iterator<Item = Range<usize>> {
    (0..pages).step_by(batch.max(1)).map(move |first| first..(first + batch).min(pages))
}
