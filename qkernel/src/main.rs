//! The kernel image: entry point, panic handler, global allocator.
#![no_std]
#![no_main]

extern crate alloc;

use abi::boot::BootInfo;
use core::alloc::{GlobalAlloc, Layout};
use core::fmt::Write;
use machine::heap::HEAP;
use machine::host::Line;

struct KernelAllocator;

// SAFETY: forwards to the heap, which keeps the contract.
unsafe impl GlobalAlloc for KernelAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { HEAP.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { HEAP.dealloc(pointer, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { HEAP.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { HEAP.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: KernelAllocator = KernelAllocator;

/// The entry point; see `abi::boot::BootInfo`.
#[unsafe(no_mangle)]
extern "sysv64" fn _start(boot: *const BootInfo, cpu: u32) -> ! {
    // SAFETY: the VMM calls this once on each CPU with its boot information.
    unsafe { machine::boot::enter(boot, cpu, &qkernel::boot::KERNEL) }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let mut line = Line::default();
    let _ = write!(line, "{info}");
    machine::host::die(line.text())
}
