//! Packs the pages of a base.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use codec::Style;

use crate::aligned::AlignedPage;
use crate::error::{PackError, SwapError};
use crate::packed::{Layout, Outcome, PackedFile, PageKey, SET_PAGES_MAX, SetPlan, Source, write_set};
use crate::packed_base::BASE_FILE;
use crate::page::{PageId, offset_of};
use crate::page_file::PageFile;
use crate::persist_sets;
use crate::sums::PageSums;

/// Pages of a partition.
const PARTITION_PAGES: u32 = 16;

/// Packs pages that lie in a file by their numbers, as `table` has them, to another file, which is empty, and writes the table of what that
/// is then. Pages that are not as the table says are not packed. With a key they are sealed; by it nothing else is. `goes_on` is asked now
/// and then.
pub fn pack_base(
    (from, table): (&File, &PageSums),
    (style, key): (Style, Option<&PageKey>),
    (to, to_table): (&File, &File),
    goes_on: &dyn Fn() -> bool,
) -> Result<(), PackError> {
    if table.is_packed() {
        return Err(PackError::Packed);
    }
    let ids: Vec<PageId> = table.present().ids().collect();
    let file = PageFile::existing(BASE_FILE, Box::new(to.try_clone()?))?;
    let mut packed = PackedFile::with_key(file, key).ok_or(SwapError::NoKey)?;
    let layout = Layout {
        style,
        partition_pages: PARTITION_PAGES,
        is_working: false,
        is_settled: true,
        for_engine: false,
    };
    for ids in ids.chunks(SET_PAGES_MAX) {
        let plan =
            SetPlan { layout, pages: ids.len(), budget: u64::MAX, in_parallel: true, beside: &[], goes_on };
        match write_set(&packed, &plan, &mut Plain { file: from, table, ids })? {
            Outcome::Done(set) if packed.numbers_left() > 0 => packed.add(set),
            Outcome::Stopped => return Err(PackError::Stopped),
            _ => return Err(PackError::TooMany),
        };
    }
    let bytes = table.of_packed(&persist_sets::all_sets(&packed));
    let mut to_table = to_table;
    to_table.set_len(0)?;
    to_table.seek(SeekFrom::Start(0))?;
    Ok(to_table.write_all(&bytes)?)
}

/// Pages in a file by their numbers.
struct Plain<'a> {
    file: &'a File,
    table: &'a PageSums,
    ids: &'a [PageId],
}

impl Source for Plain<'_> {
    fn read(&mut self, pages: Range<usize>, into: &mut [AlignedPage]) -> Result<(), SwapError> {
        let ids = self.ids.get(pages).unwrap_or_default();
        let follows = |a: &PageId, b: &PageId| a + 1 == *b;
        let mut rest = into;
        for run in ids.chunk_by(follows) {
            let (now, later) = rest.split_at_mut(run.len().min(rest.len()));
            rest = later;
            let first = run.first().copied().unwrap_or_default();
            let failed = |source: io::Error| SwapError::ReadPage { file: BASE_FILE, id: first, source };
            self.file.read_exact_at(AlignedPage::bytes_mut(now), offset_of(first)).map_err(failed)?;
            run.iter().zip(&*now).try_for_each(|(id, page)| self.table.check(*id, &page.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "pack_tests.rs"]
mod tests;
