//! The sets of a packed file as bytes: `docs/swap-format.md`, section "Tables".

use std::ops::Range;
use std::sync::Arc;

use codec::{Style, Table};

use crate::error::TablesError;
use crate::packed::{Layout, PackedFile, PackedSet, SET_PAGES_MAX};
use crate::page::PAGE_BYTES;
use crate::slots::SLOTS_MAX;
use crate::tables::Reader;

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

/// All sets of a file.
pub fn sets(file: &PackedFile) -> Result<Vec<u8>, TablesError> {
    let mut out = Vec::new();
    for (at, set) in file.sets() {
        if set.seal.is_some() {
            return Err(TablesError::Sealed);
        }
        let layout = set.layout;
        let flags =
            [(layout.is_working, WORKING), (layout.is_settled, SETTLED), (layout.for_engine, FOR_ENGINE)];
        let flags = flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum::<u8>();
        let table = set.table.as_ref().map_or(&[][..], |table| table.to_bytes());
        let small = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        let pages = u8::try_from(layout.partition_pages).unwrap_or(u8::MAX);
        out.extend([small(at), flags, pages, 0]);
        out.extend(number(layout.style));
        out.extend(u16::try_from(table.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend(set.first.to_le_bytes());
        out.extend(set.pages().to_le_bytes());
        out.extend(table);
        set.lens().iter().for_each(|len| out.extend(len.to_le_bytes()));
    }
    Ok(out)
}

/// Reads sets, with their numbers. None of their pages is in use. The file is long enough for `room` pages; whoever made the
/// tables may be hostile.
pub fn read(mut from: Reader<'_>, room: u64) -> Result<Vec<(usize, PackedSet)>, TablesError> {
    let mut sets: Vec<(usize, PackedSet)> = Vec::new();
    while !from.is_empty() {
        let (at, flags, partition_pages, zero) = (from.u8()?, from.u8()?, from.u8()?, from.u8()?);
        let of_style = [from.u8()?, from.u8()?];
        let table_len = from.u16()?;
        let (first, pages) = (from.u32()?, from.u32()?);
        let style = style(of_style).ok_or(damaged("a set is packed in an unknown way"))?;
        let is_good = matches!(partition_pages, 1 | 16)
            && flags & !(WORKING | SETTLED | FOR_ENGINE) == 0
            && (flags & FOR_ENGINE == 0 || style == Style::DeflateCanned)
            && zero == 0
            && pages as usize <= SET_PAGES_MAX
            && sets.last().is_none_or(|(before, _)| *before < usize::from(at));
        if !is_good {
            return Err(damaged("a set is out of place"));
        }
        let bytes = from.bytes(table_len.into())?;
        let table = match style {
            Style::DeflateCanned => {
                Some(Arc::new(Table::from_bytes(bytes).map_err(|_| damaged("the codes of a set are none"))?))
            }
            _ if bytes.is_empty() => None,
            _ => return Err(damaged("a set has codes that it cannot use")),
        };
        let layout = Layout {
            style,
            partition_pages: partition_pages.into(),
            is_working: flags & WORKING != 0,
            is_settled: flags & SETTLED != 0,
            for_engine: flags & FOR_ENGINE != 0,
        };
        let mut set = PackedSet::new(layout, table, None, first);
        let mut left = pages as usize;
        let mut lens = from.part(u64::from(pages).div_ceil(partition_pages.into()) * 2)?;
        let no_sums = [0; 16];
        while left > 0 {
            let of_partition = left.min(partition_pages.into());
            let len = lens.u16()?;
            if usize::from(len) > of_partition * PAGE_BYTES / 8 * 7 {
                return Err(damaged("a partition is too long"));
            }
            set.push((len > 0).then_some(len), &no_sums[..of_partition]);
            left -= of_partition;
        }
        set.free_all();
        set.trim();
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
