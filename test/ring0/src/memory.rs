//! Page tables and frames: never freed.

use abi::boot::BootInfo;
use abi::layout::{LINEAR_BASE_KVM, USER_PHYS};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::ring0;

pub const READ: u64 = 1 << 63 | 5;
pub const WRITE: u64 = READ | 2;
pub const EXECUTE: u64 = 5;

static HEAP: AtomicU64 = AtomicU64::new(0);
static USER: AtomicU64 = AtomicU64::new(USER_PHYS);

pub fn init(boot: &BootInfo) {
    HEAP.store(boot.heap_phys.next_multiple_of(4096), Ordering::SeqCst);
}

pub fn linear(phys: u64) -> u64 {
    LINEAR_BASE_KVM + phys
}

fn table() -> u64 {
    HEAP.fetch_add(4096, Ordering::SeqCst)
}

/// A frame of user memory; zeros.
pub fn frame() -> u64 {
    USER.fetch_add(4096, Ordering::SeqCst)
}

/// Copies `bytes` to guest-physical memory.
pub fn write(phys: u64, bytes: &[u8]) {
    let to = linear(phys) as *mut u8;
    for (i, byte) in bytes.iter().enumerate() {
        // SAFETY: callers write to frames they own.
        unsafe { to.add(i).write_volatile(*byte) };
    }
}

pub fn read_u64(phys: u64) -> u64 {
    // SAFETY: callers read frames they own.
    unsafe { (linear(phys) as *const u64).read_volatile() }
}

/// An address space.
#[derive(Clone, Copy)]
pub struct Space {
    root: u64,
}

impl Space {
    pub fn new() -> Self {
        let root = table();
        for (i, entry) in ring0::kernel_page_table_template().into_iter().enumerate() {
            store(root + (256 + i as u64) * 8, entry);
        }
        Self { root }
    }

    pub fn load(self) {
        // SAFETY: the root holds the kernel's upper half and is never freed.
        unsafe { ring0::load_page_table(self.root) };
    }

    pub fn map(self, addr: u64, phys: u64, flags: u64) {
        let mut at = self.root;
        for shift in [39, 30, 21] {
            let slot = at + (addr >> shift & 511) * 8;
            if read_u64(slot) == 0 {
                store(slot, table() | 7);
            }
            at = read_u64(slot) & 0x000f_ffff_ffff_f000;
        }
        store(at + (addr >> 12 & 511) * 8, phys | flags);
        ring0::flush_page(addr);
    }
}

fn store(phys: u64, value: u64) {
    write(phys, &value.to_le_bytes());
}

/// Eight pages of kernel memory, the fourth of which is a guard page; their linear-map address.
fn guarded() -> u64 {
    // Behind the page tables the tests use, and not where the image is.
    let pages = linear((HEAP.load(Ordering::SeqCst) + (8 << 20)).next_multiple_of(2 << 20));
    // SAFETY: nothing else uses these pages, nor the spare frame.
    unsafe {
        ring0::guard_page(pages + 3 * 4096, table());
        ring0::guard_page(pages + 5 * 4096, table());
        ring0::unguard_page(pages + 5 * 4096);
    }
    pages
}

/// Runs off the end of a guarded stack, beside pages that are still there.
pub fn overflow_stack() {
    let pages = guarded();
    for page in [0, 1, 2, 4, 5, 6, 7] {
        // SAFETY: these pages are present and nobody else's.
        unsafe { ((pages + page * 4096) as *mut u64).write_volatile(page) };
    }
    // SAFETY: it ends the machine, as asked: pushes until the guard page is hit.
    unsafe { core::arch::asm!("mov rsp, {}", "2: push rax", "jmp 2b", in(reg) pages + 8 * 4096 - 3 * 4096) };
}
