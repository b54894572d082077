//! Guard pages: holes in the linear map, below kernel stacks.

use abi::layout::{LINEAR_BASE_KVM, PAGE_SIZE};
use core::sync::atomic::{AtomicU64, Ordering};

use super::{BOOT_ROOT, flush_page};

const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
/// Present, writable, accessed: a table.
const TABLE: u64 = 0x23;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// The entry of `addr` in the table at `table_phys`, which translates the address bits from `shift` on.
///
/// # Safety
/// `table_phys` is a page table of the kernel's own.
unsafe fn entry(table_phys: u64, addr: u64, shift: u32) -> &'static AtomicU64 {
    let at = LINEAR_BASE_KVM + (table_phys & FRAME) + (addr >> shift & 511) * 8;
    // SAFETY: the caller vouches for the table; entries are 8-byte words that are never freed.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }
}

/// The directory entry that maps the 2 MiB around `addr`.
///
/// # Safety
/// [`super::init_cpu`] ran on CPU 0, and `addr` lies in kernel memory.
unsafe fn directory_entry(addr: u64) -> &'static AtomicU64 {
    // SAFETY: the VMM's tables map all of kernel memory, by 2 MiB or by tables below.
    unsafe {
        let directories = entry(BOOT_ROOT.load(Ordering::Relaxed), addr, 39).load(Ordering::Relaxed);
        let directory = entry(directories, addr, 30).load(Ordering::Relaxed);
        entry(directory, addr, 21)
    }
}

/// Makes the page at linear-map address `addr` inaccessible. A touch is then an exception of the kernel, which is
/// reported with the address. Where the linear map has a large page, `spare_phys` (a frame of kernel memory) becomes
/// the table that splits it; the result says whether it was taken.
///
/// Another CPU may go on using the page until it happens to forget its translation: a guard finds mistakes, it does not
/// protect secrets.
///
/// # Safety
/// Nothing uses the page. One call at a time.
pub unsafe fn guard_page(addr: u64, spare_phys: u64) -> bool {
    // SAFETY: the caller vouches for the address.
    let directory = unsafe { directory_entry(addr) };
    let large = directory.load(Ordering::Relaxed);
    let split = large & LARGE != 0;
    if split {
        for page in 0..512 {
            // SAFETY: the spare frame is the caller's to give; nothing else uses it.
            let slot = unsafe { entry(spare_phys, page << 12, 12) };
            slot.store((large & !LARGE) + page * PAGE_SIZE, Ordering::Relaxed);
        }
        directory.store(spare_phys | TABLE, Ordering::Release);
    }
    // SAFETY: the directory entry names a table now.
    let slot = unsafe { entry(directory.load(Ordering::Relaxed), addr, 12) };
    slot.fetch_and(!PRESENT, Ordering::Relaxed);
    flush_page(addr);
    split
}

/// Makes a page that [`guard_page`] took away accessible again.
///
/// # Safety
/// As for [`guard_page`].
pub unsafe fn unguard_page(addr: u64) {
    // SAFETY: the caller vouches for the address; a guarded page lies below a table.
    unsafe {
        let table = directory_entry(addr).load(Ordering::Relaxed);
        entry(table, addr, 12).fetch_or(PRESENT, Ordering::Relaxed);
    }
}
