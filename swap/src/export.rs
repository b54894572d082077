//! Writes the pages of a home as a base of others, with the table of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::bits::Bits;
use crate::bounce::Bounces;
use crate::error::ExportError;
use crate::home::Home;
use crate::page::{PAGE_BYTES, Page, PageBytes, PageId, offset_of};
use crate::parent::Parent;
use crate::regions::Regions;
use crate::sums::SumsWriter;

/// Pages that are fetched and written at a time: 4 MiB, which several threads read.
const BATCH_PAGES: usize = 1024;
/// Pages that are written by one call: others who write to the file wait for its end.
const WRITE_PAGES: usize = 64;
const ZERO: PageBytes = [0; PAGE_BYTES];

/// Writes all pages of a home to a file, as [`FileBase`](crate::FileBase) has them, and their table to another. The content of both
/// goes. Pages of zeros are holes. Result: how many pages. The home stays as it is.
pub fn write_pages(home: &dyn Home, pages: &File, table: &File) -> Result<u64, ExportError> {
    let present = home.pages();
    make_room(pages, &present).map_err(|source| ExportError::Pages { source })?;
    write_set(&present, &Regions::default(), (pages, table), None, &|pages| {
        Ok(home.fetch(pages).map(drop)?)
    })?;
    home.rest();
    Ok(present.len())
}

/// Makes a file empty that is to have these pages, and as long as they need.
pub fn make_room(pages: &File, present: &Bits) -> io::Result<()> {
    pages.set_len(0)?;
    pages.set_len(offset_of(present.end()))
}

/// Writes pages, which `fetch` brings to where it is told, to a file that has [room](make_room) for them, and their table to another. Those
/// that `parent` has are left to it; pages that it was told of before belong to the table, too, which tells of `regions`.
pub fn write_set(
    present: &Bits,
    regions: &Regions,
    (pages, table): (&File, &File),
    mut parent: Option<&mut Parent>,
    fetch: &dyn Fn(&[Page]) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let ids: Vec<PageId> = present.ids().collect();
    let to_table = |source| ExportError::Table { source };
    let mut sums = SumsWriter::begin(table).map_err(to_table)?;
    let mut bounce = Bounces::new(BATCH_PAGES).take().ok_or(ExportError::Memory)?;
    for batch in ids.chunks(BATCH_PAGES) {
        fetch(&bounce.pages(batch))?;
        let content = &bounce.places()[..batch.len()];
        let mut leaves =
            |id, digest: &_| parent.as_deref_mut().is_some_and(|parent| parent.leaves(id, digest));
        let added = sums.add(batch, content, &mut leaves).map_err(to_table)?;
        write_batch(pages, batch, content, &added).map_err(|source| ExportError::Pages { source })?;
    }
    let below: Vec<&Bits> =
        parent.as_deref().into_iter().flat_map(Parent::used).map(|(_, left)| left).collect();
    sums.end(&below, regions).map_err(to_table)
}

/// Reads pages back from a file that they were written to.
pub fn read_pages(from: &File, pages: &[Page]) -> Result<(), ExportError> {
    pages.iter().try_for_each(|page| {
        let mut bytes = [0; PAGE_BYTES];
        from.read_exact_at(&mut bytes, offset_of(page.id)).map_err(|source| ExportError::Read { source })?;
        page.copy_in(&bytes);
        Ok(())
    })
}

/// Writes those pages that are `wanted`, such as follow each other by few calls, but for those of zeros.
fn write_batch(to: &File, ids: &[PageId], content: &[PageBytes], wanted: &[bool]) -> io::Result<()> {
    let is_written = |at: usize| wanted[at] && content[at] != ZERO;
    let mut at = 0;
    while at < ids.len() {
        if !is_written(at) {
            at += 1;
            continue;
        }
        let follows = |next: &usize| ids[*next] - ids[at] == distance(*next - at) && is_written(*next);
        let end = (at + 1..ids.len().min(at + WRITE_PAGES))
            .take_while(follows)
            .last()
            .map_or(at + 1, |last| last + 1);
        to.write_all_at(content[at..end].as_flattened(), offset_of(ids[at]))?;
        at = end;
    }
    Ok(())
}

/// How far apart the numbers of pages are that follow each other.
fn distance(places: usize) -> PageId {
    PageId::try_from(places).unwrap_or(PageId::MAX)
}
