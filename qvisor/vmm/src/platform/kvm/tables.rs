//! Boot page tables: the linear map.
//!
//! One entry of the root maps everything: 4 KiB pages over the start of kernel memory and the image, where protection
//! differs from page to page, 2 MiB pages elsewhere. All of it is global, and nothing is a user page.

use abi::layout::{
    KERNEL_IMAGE_PHYS, KERNEL_PHYS, LINEAR_BASE_KVM, PAGE_BYTES, PAGE_SIZE, USER_PHYS, WINDOW_PHYS,
    WINDOW_PHYS_END,
};

use crate::image::Part;

/// Present, writable, accessed, dirty, global; the accessed and dirty bits spare the processor writing them.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;

const TABLE: u64 = PRESENT | WRITABLE | ACCESSED;
const DATA: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY | GLOBAL | NO_EXECUTE;

const LARGE_PAGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

/// Writable kernel memory as an array of 64-bit words by guest-physical address.
pub trait TableMemory {
    /// Stores `value` at `phys` (a multiple of 8, below the end the builder was given).
    fn store(&mut self, phys: u64, value: u64);
}

/// The memory to map.
pub struct LinearMap<'a> {
    /// End of kernel memory (a multiple of the page size).
    pub kernel_end: u64,
    /// End of user memory (a multiple of 2 MiB).
    pub user_end: u64,
    /// The kernel image's pages; memory between them is plain data. Where two of them overlap, the later one counts.
    pub image: &'a [Part],
}

/// The tables do not fit in kernel memory.
#[derive(Debug)]
pub struct NoRoom;

/// Writes the tables to kernel memory from `free` (a multiple of the page size) on; it must be zero there. Returns the
/// root's address and the first byte behind the tables.
pub fn build(memory: &mut impl TableMemory, map: &LinearMap<'_>, free: u64) -> Result<(u64, u64), NoRoom> {
    let mut builder = Builder { memory, next: free, end: map.kernel_end };
    let root = builder.table()?;
    let directories = builder.table()?;
    builder.memory.store(root + index(LINEAR_BASE_KVM, 39) * 8, directories | TABLE);
    for (start, end) in
        [(KERNEL_PHYS, map.kernel_end), (USER_PHYS, map.user_end), (WINDOW_PHYS, WINDOW_PHYS_END)]
    {
        let mut at = start;
        while at < end {
            let directory = builder.table()?;
            builder.memory.store(directories + index(at, 30) * 8, directory | TABLE);
            let stop = end.min(at + GIB);
            while at < stop {
                let entry = builder.large_or_small(at, stop, map)?;
                builder.memory.store(directory + index(at, 21) * 8, entry);
                at += LARGE_PAGE;
            }
        }
    }
    Ok((root, builder.next))
}

struct Builder<'m, M> {
    memory: &'m mut M,
    next: u64,
    end: u64,
}

impl<M: TableMemory> Builder<'_, M> {
    fn table(&mut self) -> Result<u64, NoRoom> {
        let table = self.next;
        self.next += PAGE_SIZE;
        if self.next > self.end { Err(NoRoom) } else { Ok(table) }
    }

    /// The entry for the 2 MiB at `phys`, of which those from `end` on do not exist.
    fn large_or_small(&mut self, phys: u64, end: u64, map: &LinearMap<'_>) -> Result<u64, NoRoom> {
        let image_end = map.image.iter().map(|part| part.phys + part.len).max().unwrap_or(KERNEL_IMAGE_PHYS);
        let image = KERNEL_IMAGE_PHYS <= phys && phys < image_end;
        if phys != KERNEL_PHYS && !image && phys + LARGE_PAGE <= end {
            return Ok(phys | DATA | LARGE);
        }
        let table = self.table()?;
        for page in (phys..end.min(phys + LARGE_PAGE)).step_by(PAGE_BYTES) {
            let entry = if page == KERNEL_PHYS { 0 } else { page | page_flags(page, map.image) };
            self.memory.store(table + index(page, 12) * 8, entry);
        }
        Ok(table | TABLE)
    }
}

/// Protection of one page.
fn page_flags(page: u64, image: &[Part]) -> u64 {
    let Some(part) = image.iter().rev().find(|part| part.phys <= page && page < part.phys + part.len) else {
        return DATA;
    };
    let writable = if part.writable { WRITABLE | DIRTY } else { 0 };
    let executable = if part.executable { 0 } else { NO_EXECUTE };
    PRESENT | ACCESSED | GLOBAL | writable | executable
}

fn index(addr: u64, shift: u32) -> u64 {
    addr >> shift & 511
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    struct Words(HashMap<u64, u64>);
    impl TableMemory for Words {
        fn store(&mut self, phys: u64, value: u64) {
            assert!(phys.is_multiple_of(8));
            self.0.insert(phys, value);
        }
    }

    impl Words {
        /// Walks the tables as the processor does: entry and page size.
        fn walk(&self, root: u64, addr: u64) -> Option<(u64, u64)> {
            let mut table = root;
            for shift in [39, 30, 21, 12] {
                let entry = self.0.get(&(table + index(addr, shift) * 8)).copied().unwrap_or(0);
                if entry & PRESENT == 0 {
                    return None;
                }
                if shift == 12 || (shift == 21 && entry & LARGE != 0) {
                    let size = 1 << shift;
                    return Some((
                        entry,
                        (entry & 0x000f_ffff_ffff_f000 & !(size - 1)) + (addr & (size - 1)),
                    ));
                }
                table = entry & 0x000f_ffff_ffff_f000;
            }
            None
        }
    }

    fn image() -> Vec<Part> {
        let base = KERNEL_IMAGE_PHYS;
        vec![
            Part { phys: base, len: 0x3000, writable: false, executable: false },
            Part { phys: base + 0x3000, len: 0x5000, writable: false, executable: true },
            Part { phys: base + 0x8000, len: 0x200000, writable: true, executable: false },
            Part { phys: base + 0x8000, len: 0x1000, writable: false, executable: false },
        ]
    }

    #[test]
    fn the_linear_map_is_linear_and_never_writable_and_executable() {
        let image = image();
        let (kernel_end, user_end) = ((64 << 20) + 0x3000, USER_PHYS + (3 << 30) + (4 << 20));
        let map = LinearMap { kernel_end, user_end, image: &image };
        let mut words = Words(HashMap::new());
        let (root, free) = build(&mut words, &map, 0x200_0000).unwrap();
        assert!(free > root && free <= kernel_end);
        let samples = [
            0x1000,
            0x1_0000,
            0x1f_f000,
            0x20_0000,
            KERNEL_IMAGE_PHYS,
            KERNEL_IMAGE_PHYS + 0x3123,
            KERNEL_IMAGE_PHYS + 0x8000,
            KERNEL_IMAGE_PHYS + 0x21_0000,
            kernel_end - 1,
            USER_PHYS,
            user_end - 1,
            WINDOW_PHYS,
            WINDOW_PHYS_END - 1,
        ];
        for phys in samples {
            let (entry, found) =
                words.walk(root, LINEAR_BASE_KVM + phys).unwrap_or_else(|| panic!("{phys:#x}"));
            assert_eq!(found, phys);
            assert!(entry & WRITABLE == 0 || entry & NO_EXECUTE != 0, "{phys:#x} is writable and executable");
            assert_eq!(entry & 4, 0, "{phys:#x} is a user page");
        }
        let flags = |phys| words.walk(root, LINEAR_BASE_KVM + phys).unwrap().0 & (WRITABLE | NO_EXECUTE);
        assert_eq!(flags(KERNEL_IMAGE_PHYS + 0x2000), NO_EXECUTE);
        assert_eq!(flags(KERNEL_IMAGE_PHYS + 0x3000), 0);
        assert_eq!(flags(KERNEL_IMAGE_PHYS + 0x8000), NO_EXECUTE);
        assert_eq!(flags(KERNEL_IMAGE_PHYS + 0x9000), WRITABLE | NO_EXECUTE);
        for hole in [0, 0xfff, kernel_end, user_end, WINDOW_PHYS_END] {
            assert!(words.walk(root, LINEAR_BASE_KVM + hole).is_none(), "{hole:#x}");
        }
    }

    #[test]
    fn tables_that_do_not_fit_are_an_error() {
        let map = LinearMap { kernel_end: 32 << 20, user_end: USER_PHYS + (250 << 30), image: &image() };
        assert!(build(&mut Words(HashMap::new()), &map, (32 << 20) - 0x8000).is_err());
    }
}
