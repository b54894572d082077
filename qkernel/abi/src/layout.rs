//! The layout of addresses: guest-physical regions, the linear map, and the user half of an address space.
//!
//! Guest-physical memory has four regions. The kernel reaches all of them through its *linear map*: the byte at
//! guest-physical `p` is at `linear_base + p`, where `linear_base` comes in [`crate::boot::BootInfo`] (it differs
//! between the platforms). Kernel code and data are themselves reached through the linear map.

/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// The page size in bytes.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;
/// The page size in bytes, as a length in memory.
pub const PAGE_BYTES: usize = 1 << PAGE_SHIFT;

/// Kernel memory: ELF image, boot information, buddy heap, page tables, stacks. Never visible to applications.
pub const KERNEL_PHYS: u64 = 0;
/// Upper bound of the kernel region; a kernel physical address fits in 32 bits.
pub const KERNEL_PHYS_MAX: u64 = 4 << 30;
/// Kernel memory that a sandbox has beside its applications' memory, whatever that is. More than this counts as theirs.
pub const KERNEL_ALLOWANCE: u64 = 48 << 20;

/// Most bytes of kernel memory that the programs of a sandbox with `memory_bytes` can make its kernel use.
#[must_use]
pub const fn kernel_limit(memory_bytes: u64) -> u64 {
    let limit = KERNEL_ALLOWANCE + memory_bytes / 4;
    if limit < 1 << 30 { limit } else { 1 << 30 }
}

/// The size of the kernel region: address space that costs nothing until it is used. It is so much larger than the limit
/// that fragments and what is allocated without asking never fill it.
#[must_use]
pub const fn kernel_bytes(memory_bytes: u64) -> u64 {
    let wanted = (4 * kernel_limit(memory_bytes) + (64 << 20)).next_multiple_of(2 << 20);
    if wanted < 1 << 30 {
        1 << 30
    } else if wanted < KERNEL_PHYS_MAX {
        wanted
    } else {
        KERNEL_PHYS_MAX
    }
}

/// The address of [`crate::boot::BootInfo`].
pub const BOOT_INFO_PHYS: u64 = 0x1000;
/// Per-CPU pages: CPU `i` has `CPU_AREA_PHYS + i * CPU_AREA_SIZE`, opened by a [`crate::run::CpuHeader`].
pub const CPU_AREA_PHYS: u64 = 0x1_0000;
/// Size of one CPU's area in bytes. The first page is the header (rest of the page is the platform's scratch);
/// the remaining pages are the boot stack, which grows down from the end and later serves as the idle stack.
pub const CPU_AREA_SIZE: u64 = 0x8000;
/// Most vCPUs a sandbox may have.
pub const MAX_CPUS: u32 = 16;
/// Serialised [`crate::boot::Record`]s; `BootInfo::records_len` bytes.
pub const RECORDS_PHYS: u64 = 0x10_0000;
/// Most bytes of records.
pub const RECORDS_MAX: u64 = 0x40_0000;
/// The address of the kernel's ELF image (its lowest `PT_LOAD` address is moved here).
pub const KERNEL_IMAGE_PHYS: u64 = 0x80_0000;

/// User memory: 4 MiB blocks of application frames. On systrap one sealed memory file; offset = phys - USER_PHYS.
pub const USER_PHYS: u64 = 4 << 30;
/// Upper bound of the user region.
pub const USER_PHYS_MAX: u64 = 256 << 30;
/// File window: host files are mapped here by chunk.
pub const WINDOW_PHYS: u64 = 256 << 30;
/// Bytes of one window chunk; a chunk holds the same-aligned range of one host file.
pub const WINDOW_CHUNK: u64 = 2 << 20;
/// Number of window chunks.
pub const WINDOW_CHUNKS: u64 = 4096;
/// End of the file window.
pub const WINDOW_PHYS_END: u64 = WINDOW_PHYS + WINDOW_CHUNKS * WINDOW_CHUNK;
/// The template: the pages of the snapshot that the sandbox began with, read-only, where it shares them with others. The page of frame
/// `n` is at `TEMPLATE_PHYS + n * PAGE_SIZE`.
pub const TEMPLATE_PHYS: u64 = WINDOW_PHYS_END;
/// Upper bound of the template.
pub const TEMPLATE_PHYS_MAX: u64 = 512 << 30;

/// Linear map base on kvm: the start of the canonical upper half.
pub const LINEAR_BASE_KVM: u64 = 0xffff_8000_0000_0000;
/// Linear map base on systrap, inside the VMM process.
pub const LINEAR_BASE_SYSTRAP: u64 = 0x1000_0000_0000;

/// First address an application may map.
pub const USER_MIN: u64 = 0x1_0000;
/// End of the addresses an application may map, the same on both platforms. Above it, systrap keeps its stub.
pub const USER_MAX: u64 = 0x7fff_0000_0000;
/// The stub's ELF image (systrap), readable and executable in every application address space.
pub const STUB_TEXT: u64 = 0x7fff_1000_0000;
/// The stub threads' hand-over areas (systrap): thread of vCPU `i` has `STUB_AREA + i * STUB_AREA_SIZE`.
pub const STUB_AREA: u64 = 0x7fff_2000_0000;
/// Bytes of one hand-over area: a header page, then the thread's signal stack.
pub const STUB_AREA_SIZE: u64 = 0x8000;
/// End of the addresses the stub keeps to itself.
pub const STUB_END: u64 = 0x7fff_f000_0000;

const _: () = assert!(CPU_AREA_PHYS + MAX_CPUS as u64 * CPU_AREA_SIZE <= RECORDS_PHYS);
const _: () = assert!(RECORDS_PHYS + RECORDS_MAX <= KERNEL_IMAGE_PHYS);
const _: () = assert!(TEMPLATE_PHYS < TEMPLATE_PHYS_MAX && TEMPLATE_PHYS_MAX <= 1 << 39);
