//! Limits of memory and of the scheduler.

/// Bytes of a task's kernel stack (a power of two of pages).
pub const KERNEL_STACK_BYTES: usize = if cfg!(feature = "harness") { 512 * 1024 } else { 32 * 1024 };
/// A task's time slice when others wait, in nanoseconds.
pub const TIME_SLICE_NS: u64 = 10_000_000;
/// Most mappings of an address space (`vm.max_map_count`).
pub const VMAS_MAX: usize = 65_530;
/// Most pages a fault maps around the touched one.
pub const FAULT_AROUND_MAX_PAGES: u64 = 512;
/// Longest path including its NUL.
pub const PATH_MAX: usize = 4096;
