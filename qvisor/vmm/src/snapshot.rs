//! The memory of a sandbox that is asleep, as a file: what lies at a guest-physical address lies there in the file as well, and what is
//! not there holds nothing. What is in the home of pages is not in it.
#![deny(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use abi::layout::{PAGE_SIZE, WINDOW_PHYS_END};
use abi::word::to_usize;

use crate::image::Part;
use crate::memory::{self, SandboxMemory};

/// See the module.
#[derive(Debug)]
pub struct Snapshot {
    file: OwnedFd,
    bytes: u64,
    vmms: u32,
    keeps_news: bool,
    orphans: Option<File>,
}

impl Snapshot {
    /// Takes the memory, which nobody changes meanwhile, without what the same `image` of a kernel has again. `pagemap` is this process's;
    /// `vmms`: how many its kernel has had, this one included.
    pub(crate) fn take(
        memory: &SandboxMemory,
        image: &[Part],
        pagemap: &File,
        vmms: u32,
    ) -> io::Result<Self> {
        let file = File::from(memory::memory_file(c"dormouse-snapshot").map_err(io::Error::other)?);
        let bytes = write_ranges(memory, ranges_to_take(memory, image, &[], pagemap)?, &file)?;
        Ok(Self { file: file.into(), bytes, vmms, keeps_news: true, orphans: None })
    }

    /// The memory that a former VMM has taken of a kernel which has had so many VMMs.
    pub(crate) fn of_former(file: OwnedFd, bytes: u64, vmms: u32) -> Self {
        Self { file, bytes, vmms, keeps_news: true, orphans: None }
    }

    /// The memory alone: the next VMM has none of the files that the former one had open, but the content of those without a name.
    #[must_use]
    pub fn without_files(self, orphans: File) -> Self {
        Self { keeps_news: false, orphans: Some(orphans), ..self }
    }

    /// The memory in an image: the VMM has none of the handles that the kernel had, and no news for it.
    #[must_use]
    pub fn of_image(file: File, orphans: File, bytes: u64, vmms: u32) -> Self {
        Self { file: file.into(), bytes, vmms, keeps_news: false, orphans: Some(orphans) }
    }

    /// The file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes of memory that it holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many VMMs its kernel has had.
    #[must_use]
    pub fn vmms(&self) -> u32 {
        self.vmms
    }

    /// Whether the VMM has the handles that the kernel had, and what the host has to tell of them.
    #[must_use]
    pub fn keeps_news(&self) -> bool {
        self.keeps_news
    }

    /// The content of files without a name, if it is kept with it.
    pub(crate) fn orphans(&self) -> io::Result<Option<File>> {
        self.orphans.as_ref().map(File::try_clone).transpose()
    }

    /// Puts it into another sandbox's memory, into which the same kernel has been loaded: what nobody may write to there is as it is.
    pub(crate) fn put(&self, memory: &SandboxMemory, image: &[Part]) -> io::Result<()> {
        let file = File::from(self.file.try_clone()?);
        let ranges = memory::data_of(&self.file, WINDOW_PHYS_END)?;
        ranges
            .into_iter()
            .flat_map(|range| changing(range, image))
            .try_for_each(|range| memory.fill(range, &file))
    }
}

/// Writes [these ranges](ranges_to_take) of memory to an empty file, each at the offset that is its address. Result: bytes of memory.
pub(crate) fn write_ranges(memory: &SandboxMemory, ranges: Vec<Range<u64>>, file: &File) -> io::Result<u64> {
    let (mut taken, mut end) = (0, 0);
    for range in ranges {
        taken += range.end - range.start;
        end = range.end;
        memory.save(range, file)?;
    }
    // The file of whoever had it before may be longer.
    file.set_len(end)?;
    Ok(taken)
}

/// The ranges of memory, which nobody changes meanwhile, that are taken: without what the same `image` of a kernel has again, and what is kept
/// `elsewhere`, in ascending order.
pub(crate) fn ranges_to_take(
    memory: &SandboxMemory,
    image: &[Part],
    elsewhere: &[Range<u64>],
    pagemap: &File,
) -> io::Result<Vec<Range<u64>>> {
    let ranges = memory.populated(pagemap, elsewhere)?.into_iter();
    Ok(ranges.flat_map(|range| changing(range, image)).collect())
}

/// Memory that was copied, which is sooner done than written: the bytes by their guest-physical addresses, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct MemoryCopy(Vec<(u64, Vec<u8>)>);

impl MemoryCopy {
    /// Copies [these ranges](ranges_to_take); `None`: they are more than `most` bytes, or there is no memory.
    pub(crate) fn of(memory: &SandboxMemory, ranges: &[Range<u64>], most: u64) -> Option<Self> {
        if ranges.iter().map(|range| range.end - range.start).sum::<u64>() > most {
            return None;
        }
        let copy =
            |range: &Range<u64>| Some((range.start, memory.copy_in(range.start, range.end - range.start)?));
        ranges.iter().map(copy).collect::<Option<_>>().map(Self)
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Writes it to an empty file, as [`write_ranges`] would have.
    pub(crate) fn write_to(&self, file: &File) -> io::Result<()> {
        self.0.iter().try_for_each(|(at, bytes)| file.write_all_at(bytes, *at))?;
        file.set_len(self.0.last().map_or(0, |(at, bytes)| at + bytes.len() as u64))
    }
}

/// The pieces of a range of whole pages that the kernel may have changed.
fn changing(range: Range<u64>, image: &[Part]) -> Vec<Range<u64>> {
    let is_constant = |page: u64| {
        // If two overlap, the later one counts.
        let part = image.iter().rev().find(|part| (part.phys..part.phys + part.len).contains(&page));
        part.is_some_and(|part| !part.writable)
    };
    let end = image.iter().map(|part| part.phys + part.len).max().unwrap_or(0).clamp(range.start, range.end);
    let pages = (range.start..end).step_by(to_usize(PAGE_SIZE)).filter(|page| !is_constant(*page));
    let mut pieces = Vec::new();
    pages
        .map(|page| page..page + PAGE_SIZE)
        .chain(std::iter::once(end..range.end))
        .for_each(|piece| memory::add_range(&mut pieces, piece));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_constant_in_the_image_is_left_out() {
        let part = |first: u64, pages: u64, writable| Part {
            phys: first * PAGE_SIZE,
            len: pages * PAGE_SIZE,
            writable,
            executable: false,
        };
        let image = [part(10, 5, false), part(15, 10, true), part(16, 2, false)];
        let of = |first: u64, end: u64| {
            let pieces = changing(first * PAGE_SIZE..end * PAGE_SIZE, &image);
            pieces.iter().map(|piece| (piece.start / PAGE_SIZE, piece.end / PAGE_SIZE)).collect::<Vec<_>>()
        };
        assert_eq!(of(0, 40), [(0, 10), (15, 16), (18, 40)]);
        assert_eq!((of(11, 14), of(17, 20), of(30, 31)), (vec![], vec![(18, 20)], vec![(30, 31)]));
    }
}
