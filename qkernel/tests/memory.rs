//! The memory of containers, in a kernel that has its own heap: what is allocated for it comes from there.

#[path = "../../fuzz/arena.rs"]
mod arena;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use machine::heap::HEAP;
use machine::platform;
use qkernel::harness::memory;

/// The kernel's heap for the thread that plays the kernel's CPU, the host's for all others. What a thread without a CPU gets
/// of the kernel's, such as the message of a panic, is only lost.
struct Allocator;

std::thread_local! {
    static IS_KERNEL: Cell<bool> = const { Cell::new(false) };
}

/// Whether the kernel's heap gave it.
fn is_kernels(pointer: *mut u8) -> bool {
    let start = platform::linear(0);
    platform::is_ready() && (start..start + machine::testing::ARENA_BYTES).contains(&(pointer as u64))
}

// SAFETY: each block goes back to the allocator that it came from, if at all, and both keep the contract.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { if IS_KERNEL.get() { HEAP.alloc(layout) } else { System.alloc(layout) } }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match (is_kernels(pointer), IS_KERNEL.get()) {
            // SAFETY: as above.
            (true, true) => unsafe { HEAP.dealloc(pointer, layout) },
            (true, false) => {}
            // SAFETY: as above.
            (false, _) => unsafe { System.dealloc(pointer, layout) },
        }
    }
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

#[test]
fn containers_take_no_memory_from_each_other() {
    arena::boot();
    IS_KERNEL.set(true);
    let trace: Option<fn(&str)> =
        if std::env::var_os("SEQUENCES_TRACE").is_some() { Some(|line| eprintln!("{line}")) } else { None };
    memory::only_its_own_are_killed(trace);
    memory::the_largest_is_killed_at_the_sandboxes_limit(trace);
    memory::hoarders_take_nothing_from_others(trace);
    memory::files_outlive_their_container(trace);
    memory::limits_change_while_it_runs(trace);
    memory::there_is_room_to_look_into_a_full_container(trace);
    memory::files_are_removed_while_kernel_memory_is_full(trace);
    memory::a_reader_without_memory_reads_to_the_end(trace);
    // The test's own thread goes on as any other.
    IS_KERNEL.set(false);
}
