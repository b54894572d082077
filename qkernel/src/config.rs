//! Limits of the kernel; every guest-controlled quantity has one.

/// Bytes of a task's kernel stack (a power of two of pages).
pub const KERNEL_STACK_BYTES: usize = if cfg!(feature = "harness") { 512 * 1024 } else { 32 * 1024 };
/// A task's time slice when others wait, in nanoseconds.
pub const TIME_SLICE_NS: u64 = 10_000_000;
/// Most tasks (threads) in a sandbox.
pub const TASKS_MAX: usize = 32_768;
/// Most mappings of an address space (`vm.max_map_count`).
pub const VMAS_MAX: usize = 65_530;
/// Most bytes of arguments and environment of `execve(2)`.
pub const ARG_MAX_BYTES: usize = 2 << 20;
/// Most bytes of one argument.
pub const ARG_STRLEN_MAX: usize = 128 * 1024;
/// Longest path including its NUL.
pub const PATH_MAX: usize = 4096;
/// Longest component of a path.
pub const NAME_MAX: usize = 255;
/// Symbolic links followed in one walk.
pub const SYMLINKS_MAX: usize = 40;
/// Most open descriptors a process may ask for (`fs.nr_open`).
pub const NR_OPEN: u64 = 1 << 20;
/// Most bytes one read or write moves.
pub const RW_MAX_BYTES: usize = 0x7fff_f000;
/// Most pages a fault maps around the touched one.
pub const FAULT_AROUND_MAX_PAGES: u64 = 512;
/// The release that `uname(2)` reports.
pub const KERNEL_RELEASE: &str = "6.12.0-dormouse";
