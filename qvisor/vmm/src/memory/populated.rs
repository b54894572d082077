//! The parts of a sandbox's memory that hold anything, and their way to a file and back.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use abi::layout::{KERNEL_IMAGE_PHYS, PAGE_SIZE, USER_PHYS};
use abi::word::to_usize;

use super::{SandboxMemory, data_within};

/// The host's `struct pm_scan_arg` (Linux 6.7).
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// Its `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
/// A range in which it takes long to look for what it holds, in bytes.
const LONG: u64 = 1 << 20;
/// Ranges that one call finds.
const REGIONS: usize = 256;
/// Bytes of a page's entry in the page map, and entries that are read at a time.
const ENTRY_BYTES: u64 = 8;
const ENTRIES: u64 = 8192;

impl SandboxMemory {
    /// The ranges of whole pages that hold something, by their guest-physical addresses: of kernel memory from the image on, without what
    /// is as it is in a file, and of user memory. `pagemap` is this process's `/proc/self/pagemap`. Nobody looks into ranges of user memory
    /// that are `elsewhere`, which ascend: in much memory that takes long.
    pub fn populated(&self, pagemap: &File, elsewhere: &[Range<u64>]) -> io::Result<Vec<Range<u64>>> {
        let mut ranges = self.private(pagemap, KERNEL_IMAGE_PHYS..self.kernel_len)?;
        // Around a short one nothing is spared.
        let long: Vec<_> =
            elsewhere.iter().filter(|range| range.end - range.start >= LONG).cloned().collect();
        for gap in without(USER_PHYS..USER_PHYS + self.user_len, &long) {
            match &self.user_file {
                Some(file) => ranges.extend(
                    data_within(file, gap.start - USER_PHYS..gap.end - USER_PHYS)?.into_iter().map(|range| {
                        range.start + USER_PHYS..range.end.next_multiple_of(PAGE_SIZE) + USER_PHYS
                    }),
                ),
                None => ranges.extend(self.private(pagemap, gap)?),
            }
        }
        Ok(ranges.into_iter().flat_map(|range| without(range, elsewhere)).collect())
    }

    /// The ranges of private memory in `within` that hold something of their own.
    fn private(&self, pagemap: &File, within: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        // Most of it was never touched, which a scan passes over quickly.
        self.scanned(pagemap, within.clone()).or_else(|_| self.read_from(pagemap, within))
    }

    /// Has the host find them; an error of a host that cannot.
    fn scanned(&self, pagemap: &File, within: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let (mut found, base) = (Vec::new(), self.base as u64);
        let mut regions = [Region::default(); REGIONS];
        let mut start = base + within.start;
        while start < base + within.end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                start,
                end: base + within.end,
                regions: regions.as_mut_ptr() as u64,
                regions_len: REGIONS as u64,
                // Pages of a file that nobody has written to are the file's, and some that were only read are the host's zeros.
                inverted: IS_FILE | IS_ZERO,
                all_of: IS_FILE | IS_ZERO,
                any_of: IS_PRESENT | IS_SWAPPED,
                returned: IS_PRESENT,
                ..Scan::default()
            };
            // SAFETY: reads and writes the structure, and writes as many regions as it says, all of this function's own.
            let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
            let new = regions.get(..count).ok_or(io::ErrorKind::InvalidData)?;
            new.iter().for_each(|region| add_range(&mut found, region.start - base..region.end - base));
            if scan.walk_end <= start {
                return Err(io::ErrorKind::InvalidData.into());
            }
            start = scan.walk_end;
        }
        Ok(found)
    }

    /// Finds them in the map's entries, page by page.
    fn read_from(&self, pagemap: &File, within: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        const OF_FILE: u64 = 1 << 61;
        const HERE: u64 = 1 << 63 | 1 << 62;
        let mut found = Vec::new();
        let mut entries = vec![0_u8; to_usize(ENTRIES * ENTRY_BYTES)];
        let mut phys = within.start;
        while phys < within.end {
            let pages = ((within.end - phys) / PAGE_SIZE).min(ENTRIES);
            let bytes = &mut entries[..to_usize(pages * ENTRY_BYTES)];
            pagemap.read_exact_at(bytes, (self.base as u64 + phys) / PAGE_SIZE * ENTRY_BYTES)?;
            for (entry, page) in bytes.as_chunks().0.iter().zip((phys..).step_by(to_usize(PAGE_SIZE))) {
                let entry = u64::from_le_bytes(*entry);
                if entry & HERE != 0 && entry & OF_FILE == 0 {
                    add_range(&mut found, page..page + PAGE_SIZE);
                }
            }
            phys += pages * PAGE_SIZE;
        }
        Ok(found)
    }
}

/// Adds a range behind all others, unless it is empty.
pub(crate) fn add_range(found: &mut Vec<Range<u64>>, range: Range<u64>) {
    match found.last_mut().filter(|last| last.end == range.start) {
        Some(last) => last.end = range.end,
        None if range.is_empty() => {}
        None => found.push(range),
    }
}

/// The pieces of a range that lie in none of `others`, which ascend.
fn without(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut pieces, mut start) = (Vec::new(), range.start);
    let first = others.partition_point(|other| other.end <= range.start);
    for other in others[first..].iter().take_while(|other| other.start < range.end) {
        add_range(&mut pieces, start..other.start.max(start));
        start = other.end;
    }
    add_range(&mut pieces, start.min(range.end)..range.end);
    pieces
}

impl SandboxMemory {
    /// Writes a range of memory to a file, at the offset that is its address.
    pub fn save(&self, range: Range<u64>, file: &File) -> io::Result<()> {
        let offset = range.start;
        self.save_at(range, file, offset)
    }

    /// Writes a range of memory to a file, at this offset.
    pub fn save_at(&self, range: Range<u64>, file: &File, offset: u64) -> io::Result<()> {
        self.move_all(range, offset, |at, len, offset| {
            // SAFETY: reads memory that `move_all` has checked.
            unsafe { libc::pwrite(file.as_raw_fd(), at.cast(), len, offset) }
        })
    }

    /// Fills a range of memory from a file, at the offset that is its address.
    pub fn fill(&self, range: Range<u64>, file: &File) -> io::Result<()> {
        let offset = range.start;
        self.move_all(range, offset, |at, len, offset| {
            // SAFETY: writes memory that `move_all` has checked, of which nobody has references.
            unsafe { libc::pread(file.as_raw_fd(), at.cast(), len, offset) }
        })
    }

    /// Has `part` move bytes until all of a range are moved. It gets their place, how many are left, and the offset in the file, from `offset` on.
    fn move_all(
        &self,
        range: Range<u64>,
        offset: u64,
        part: impl Fn(*mut u8, usize, libc::off_t) -> isize,
    ) -> io::Result<()> {
        let (mut start, mut offset) = (range.start, offset);
        while start < range.end {
            let len = range.end - start;
            let at = self.host_ptr(start, len).ok_or(io::ErrorKind::InvalidData)?;
            let place = libc::off_t::try_from(offset).map_err(io::Error::other)?;
            match part(at, to_usize(len), place) {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                moved => match u64::try_from(moved) {
                    Ok(moved) => (start, offset) = (start + moved, offset + moved),
                    Err(_) => match io::Error::last_os_error() {
                        error if error.kind() == io::ErrorKind::Interrupted => {}
                        error => return Err(error),
                    },
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use abi::boot::Platform;

    use super::*;
    use crate::memory::{USER_BLOCK, memory_file};

    const KERNEL: u64 = 64 << 20;

    #[test]
    fn what_is_kept_elsewhere_is_left_out() {
        let others = [2..4, 6..7, 9..20];
        let of =
            |range| without(range, &others).iter().map(|piece| (piece.start, piece.end)).collect::<Vec<_>>();
        assert_eq!(of(0..10), [(0, 2), (4, 6), (7, 9)]);
        assert_eq!((of(3..6), of(10..15)), (vec![(4, 6)], vec![]));
        assert_eq!((of(19..25), of(30..31)), (vec![(20, 25)], vec![(30, 31)]));
    }

    #[test]
    fn user_memory_is_found_but_for_what_is_elsewhere() {
        let page = |at: u64| USER_PHYS + at * PAGE_SIZE;
        for platform in [Platform::Kvm, Platform::Systrap] {
            let memory = SandboxMemory::new(platform, KERNEL, USER_BLOCK).unwrap();
            (0..8).chain([20]).for_each(|at| memory.write(page(at), &1_u64).unwrap());
            let pagemap = File::open("/proc/self/pagemap").unwrap();
            let found = |elsewhere: &[Range<u64>]| {
                let mut found = memory.populated(&pagemap, elsewhere).unwrap();
                found.retain(|range| range.start >= USER_PHYS);
                found
            };
            assert_eq!(found(&[]), [page(0)..page(8), page(20)..page(21)]);
            assert_eq!(
                found(&[page(2)..page(5), page(7)..page(20)]),
                [page(0)..page(2), page(5)..page(7), page(20)..page(21)]
            );
        }
    }

    fn memory() -> SandboxMemory {
        SandboxMemory::new(Platform::Kvm, KERNEL, USER_BLOCK).unwrap()
    }

    fn page(at: u64) -> Range<u64> {
        KERNEL_IMAGE_PHYS + at * PAGE_SIZE..KERNEL_IMAGE_PHYS + (at + 1) * PAGE_SIZE
    }

    #[test]
    fn what_was_written_is_found_either_way() {
        let memory = memory();
        let mut expected = Vec::new();
        // More pieces than one call tells, a long one, and the last page.
        for at in (0..2 * REGIONS as u64 + 3).map(|at| at * 2).chain(3000..5000).chain([14335]) {
            memory.write(page(at).start, &1_u64).unwrap();
            add_range(&mut expected, page(at));
        }
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let within = KERNEL_IMAGE_PHYS..KERNEL;
        assert!(memory.read_from(&pagemap, within.clone()).unwrap() == expected);
        match memory.scanned(&pagemap, within) {
            Ok(found) => assert!(found == expected),
            // A host before Linux 6.7.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY)),
        }
        memory.write(USER_PHYS, &1_u64).unwrap();
        expected.push(USER_PHYS..USER_PHYS + PAGE_SIZE);
        assert!(memory.populated(&pagemap, &[]).unwrap() == expected);
    }

    #[test]
    fn pages_of_a_file_and_pages_that_were_only_read_are_not_the_memorys() {
        let memory = memory();
        let image = File::from(memory_file(c"test").unwrap());
        image.write_all_at(&[1; 3 * 4096], 0).unwrap();
        memory.map_kernel_image(page(4).start, 3 * PAGE_SIZE, std::os::fd::AsFd::as_fd(&image), 0).unwrap();
        assert_eq!((memory.read(page(5).start), memory.read(page(9).start)), (Some(1_u8), Some(0_u8)));
        memory.write(page(6).start, &2_u8).unwrap();
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let found = memory.private(&pagemap, KERNEL_IMAGE_PHYS..KERNEL).unwrap();
        assert_eq!(found.first(), Some(&page(6)));
        // A host before Linux 6.7 does not know the other kind.
        if memory.scanned(&pagemap, KERNEL_IMAGE_PHYS..KERNEL).is_ok() {
            assert_eq!(found.len(), 1);
        }
    }

    #[test]
    fn a_range_goes_to_a_file_and_comes_back() {
        let (memory, other) = (memory(), memory());
        let file = File::from(memory_file(c"test").unwrap());
        let range = page(7).start..page(9).end;
        memory.copy_out(range.start + 4090, b"goes to a file").unwrap();
        memory.save(range.clone(), &file).unwrap();
        other.fill(range.clone(), &file).unwrap();
        assert_eq!(other.copy_in(range.start + 4090, 14).unwrap(), b"goes to a file");
        assert_eq!(
            other.fill(range.start..range.end + 1, &file).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert!(memory.save(KERNEL - 1..KERNEL + 1, &file).is_err());
    }
}
