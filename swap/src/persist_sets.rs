//! The sets of a packed file as bytes: `docs/swap-format.md`, section "Tables".

use std::ops::Range;
use std::sync::Arc;

use codec::{Style, Table, TableSet};

use crate::error::TablesError;
use crate::packed::{Layout, PackedFile, PackedSet, SET_PAGES_MAX};
use crate::page::PAGE_BYTES;
use crate::slots::SLOTS_MAX;
use crate::tables::Reader;

/// The version of sets as they are written. Those of version 2 are read, too.
pub const VERSION: u32 = 3;
pub const OLDEST_VERSION: u32 = 2;

/// The flags of a set.
const WORKING: u8 = 1;
const SETTLED: u8 = 2;
const FOR_ENGINE: u8 = 4;

fn damaged(what: &'static str) -> TablesError {
    TablesError::Damaged { what }
}

/// A style's number, and zstd's level.
fn number(style: Style) -> [u8; 2] {
    match style {
        Style::None => [0, 0],
        Style::Lz4 => [1, 0],
        Style::Zstd(level) => [2, level],
        Style::DeflateFixed => [3, 0],
        Style::DeflateDynamic => [4, 0],
        Style::DeflateCanned => [5, 0],
    }
}

fn style(number: [u8; 2]) -> Option<Style> {
    Some(match number {
        [0, 0] => Style::None,
        [1, 0] => Style::Lz4,
        [2, level @ 1..=19] => Style::Zstd(level),
        [3, 0] => Style::DeflateFixed,
        [4, 0] => Style::DeflateDynamic,
        [5, 0] => Style::DeflateCanned,
        _ => return None,
    })
}

/// All sets of a file, whose pages are not sealed by a key that ends with this process.
pub fn sets(file: &PackedFile) -> Result<Vec<u8>, TablesError> {
    if file.sets().any(|(_, set)| set.seal.is_some()) {
        return Err(TablesError::Sealed);
    }
    Ok(all_sets(file))
}

/// All sets of a file. If they are sealed, then by their own numbers.
pub fn all_sets(file: &PackedFile) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, set) in file.sets() {
        let layout = set.layout;
        let flags =
            [(layout.is_working, WORKING), (layout.is_settled, SETTLED), (layout.for_engine, FOR_ENGINE)];
        let flags = flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum::<u8>();
        let tables = set.tables.as_ref().map_or(&[][..], |set| set.tables());
        let bytes: Vec<u8> = tables.iter().flat_map(|table| of_table(table)).collect();
        let small = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        let pages = u8::try_from(layout.partition_pages).unwrap_or(u8::MAX);
        out.extend([small(at), flags, pages, small(tables.len())]);
        out.extend(number(layout.style));
        out.extend(length(&bytes));
        out.extend(set.first.to_le_bytes());
        out.extend(set.pages().to_le_bytes());
        out.extend(bytes);
        set.lens().iter().for_each(|len| out.extend(len.to_le_bytes()));
    }
    out
}

fn length(bytes: &[u8]) -> [u8; 2] {
    u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes()
}

/// A table behind its length.
fn of_table(table: &Table) -> Vec<u8> {
    let bytes = table.to_bytes();
    [&length(bytes), bytes].concat()
}

/// Reads the tables of a canned set, as many as it says; before version 3 one, without its length.
fn tables(version: u32, count: u8, mut from: Reader<'_>) -> Result<TableSet, TablesError> {
    let is_none = || damaged("the codes of a set are none");
    let table = |bytes: &[u8]| Table::from_bytes(bytes).map_err(|_| is_none());
    if version < VERSION {
        return table(from.rest()).map(TableSet::from);
    }
    let mut tables = Vec::new();
    for _ in 0..count {
        let len = from.u16()?;
        tables.push(table(from.bytes(len.into())?)?);
    }
    TableSet::new(tables).filter(|_| from.is_empty()).ok_or_else(is_none)
}

/// Reads the partitions of a set of so many pages. None of them is in use.
fn push_partitions(set: &mut PackedSet, pages: u32, from: &mut Reader<'_>) -> Result<(), TablesError> {
    let partition_pages = set.layout.partition_pages;
    let mut left = pages as usize;
    let mut lens = from.part(u64::from(pages).div_ceil(partition_pages.into()) * 2)?;
    let no_sums = [0; 16];
    while left > 0 {
        let of_partition = left.min(partition_pages as usize);
        let len = lens.u16()?;
        if usize::from(len) > of_partition * PAGE_BYTES / 8 * 7 {
            return Err(damaged("a partition is too long"));
        }
        set.push((len > 0).then_some(len), &no_sums[..of_partition]);
        left -= of_partition;
    }
    set.free_all();
    set.trim();
    Ok(())
}

/// Reads sets, with their numbers, of no more than `most` pages together. None of their pages is in use. The file is long enough for
/// `room` pages; whoever made the tables may be hostile. `is_sealed`: each is sealed by its own number.
pub fn read(
    version: u32,
    mut from: Reader<'_>,
    (room, most): (u64, u64),
    is_sealed: bool,
) -> Result<Vec<(usize, PackedSet)>, TablesError> {
    let mut sets: Vec<(usize, PackedSet)> = Vec::new();
    let mut left_of_all = most;
    while !from.is_empty() {
        let (at, flags, partition_pages, count) = (from.u8()?, from.u8()?, from.u8()?, from.u8()?);
        let of_style = [from.u8()?, from.u8()?];
        let tables_len = from.u16()?;
        let (first, pages) = (from.u32()?, from.u32()?);
        let style = style(of_style).ok_or(damaged("a set is packed in an unknown way"))?;
        let is_good = matches!(partition_pages, 1 | 16)
            && flags & !(WORKING | SETTLED | FOR_ENGINE) == 0
            && (flags & FOR_ENGINE == 0 || style == Style::DeflateCanned && count <= 1)
            && (version == VERSION || count == 0)
            && pages as usize <= SET_PAGES_MAX
            && sets.last().is_none_or(|(before, _)| *before < usize::from(at));
        if !is_good {
            return Err(damaged("a set is out of place"));
        }
        // Before memory is taken for them.
        left_of_all =
            left_of_all.checked_sub(pages.into()).ok_or(damaged("sets have more pages than there are"))?;
        let of_tables = from.part(tables_len.into())?;
        let tables = match style {
            Style::DeflateCanned => Some(Arc::new(tables(version, count, of_tables)?)),
            _ if of_tables.is_empty() && count == 0 => None,
            _ => return Err(damaged("a set has codes that it cannot use")),
        };
        let layout = Layout {
            style,
            partition_pages: partition_pages.into(),
            is_working: flags & WORKING != 0,
            is_settled: flags & SETTLED != 0,
            for_engine: flags & FOR_ENGINE != 0,
        };
        let mut set = PackedSet::new(layout, tables, is_sealed.then_some(at.into()), first);
        push_partitions(&mut set, pages, &mut from)?;
        let region = set.region();
        let fits = u64::from(region.end) <= room.min(SLOTS_MAX.into()) && region.start < region.end;
        let overlaps = |other: &Range<u32>| region.start < other.end && other.start < region.end;
        if !fits || sets.iter().any(|(_, other)| overlaps(&other.region())) {
            return Err(damaged("a set is not where it can be"));
        }
        sets.push((at.into(), set));
    }
    Ok(sets)
}
