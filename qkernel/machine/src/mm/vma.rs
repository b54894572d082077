//! Mappings: what each range of an address space is.

use bitflags::bitflags;

use super::object::MemoryObject;
use super::page::{Access, PAGE};
use super::pagetable::Entry;
use super::swap_window::SwapWindow;
use abi::run;

bitflags! {
    /// `PROT_*` of `mmap(2)`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Prot: u32 {
        const READ = 1;
        const WRITE = 2;
        const EXEC = 4;
    }
}

bitflags! {
    /// `MAP_*` of `mmap(2)`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MapFlags: u32 {
        const SHARED = 0x01;
        const PRIVATE = 0x02;
        const FIXED = 0x10;
        const ANONYMOUS = 0x20;
        const BIT32 = 0x40;
        const GROWSDOWN = 0x100;
        const DENYWRITE = 0x800;
        const EXECUTABLE = 0x1000;
        const LOCKED = 0x2000;
        const NORESERVE = 0x4000;
        const POPULATE = 0x8000;
        const NONBLOCK = 0x1_0000;
        const STACK = 0x2_0000;
        const HUGETLB = 0x4_0000;
        const SYNC = 0x8_0000;
        const FIXED_NOREPLACE = 0x10_0000;
    }
}

/// The lowest of the bits of [`VmaFlags::POLICY`].
const POLICY_SHIFT: u32 = 16;

bitflags! {
    /// Properties of a mapping beyond its protection.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct VmaFlags: u32 {
        const SHARED = 1;
        const GROWS_DOWN = 2;
        /// Not copied by `fork(2)` (`MADV_DONTFORK`).
        const DONT_FORK = 4;
        /// Zeroed in the child (`MADV_WIPEONFORK`).
        const WIPE_ON_FORK = 8;
        const LOCKED = 16;
        const NO_RESERVE = 32;
        /// The heap made by `brk(2)`.
        const HEAP = 64;
        const STACK = 128;
        /// The kernel's own (vDSO): not to be changed by programs' mistakes, named in maps.
        const SPECIAL = 256;
        /// A private mapping of an object that holds pages of its own: `fork(2)` copies its entries.
        const COPIED = 512;
        /// The slots of patched call sites.
        const SLOTS = 1024;
        /// The pages of its file that were in memory when it, or a mapping beside it, was first touched are mapped.
        const SHOWN = 2048;
        /// A System V segment (`shmat(2)`).
        const SEGMENT = 4096;
        /// Locked pages come as they are touched (`MLOCK_ONFAULT`).
        const LOCK_ON_FAULT = 1 << 13;
        /// Its addresses and protection stay (`mseal(2)`).
        const SEALED = 1 << 14;
        /// Not in core dumps (`MADV_DONTDUMP`): only told, since none are written.
        const DONT_DUMP = 1 << 15;
        /// The mode of its memory policy (`mbind(2)`), a number of three bits.
        const POLICY = 7 << POLICY_SHIFT;
    }
}

impl VmaFlags {
    /// The flags that `mlock(2)` sets.
    pub const LOCKS: Self = Self::LOCKED.union(Self::LOCK_ON_FAULT);

    /// The mode of the memory policy.
    pub fn policy(self) -> u32 {
        (self & Self::POLICY).bits() >> POLICY_SHIFT
    }

    /// Gives these flags another mode of the memory policy, of which three bits count.
    #[must_use]
    pub fn with_policy(self, mode: u32) -> Self {
        (self - Self::POLICY) | (Self::from_bits_retain(mode << POLICY_SHIFT) & Self::POLICY)
    }
}

/// Kernel memory of a mapping.
pub const VMA_BYTES: usize = 4 * size_of::<Vma>();

/// One mapping: `[start, end)` is page aligned and not empty.
#[derive(Clone)]
pub struct Vma {
    pub start: u64,
    pub end: u64,
    pub prot: Prot,
    /// The most that `mprotect(2)` may grant.
    pub max_prot: Prot,
    pub flags: VmaFlags,
    /// The object behind it; `None`: private anonymous memory.
    pub object: Option<MemoryObject>,
    /// Offset of `start` in the object, in bytes.
    pub offset: u64,
    /// The page where the next sequential fault is expected, and how many pages it will map.
    pub next_fault: u64,
    pub window_pages: u32,
    /// How much comes back with a page whose content is away.
    pub swap_window: SwapWindow,
}

impl Vma {
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    pub fn is_shared(&self) -> bool {
        self.flags.contains(VmaFlags::SHARED)
    }

    /// Whether it counts against `RLIMIT_DATA`: private, writable, and no stack that grows.
    pub fn is_data(&self) -> bool {
        self.prot.contains(Prot::WRITE)
            && !self.flags.intersects(VmaFlags::SHARED | VmaFlags::STACK | VmaFlags::GROWS_DOWN)
    }

    /// Whether the protection permits the access. Reading is implied by any permission, as on x86.
    pub fn permits(&self, access: Access) -> bool {
        match access {
            Access::Read => !self.prot.is_empty(),
            Access::Write => self.prot.contains(Prot::WRITE),
            Access::Execute => self.prot.contains(Prot::EXEC),
        }
    }

    /// Pages that the program was promised by it: those of its own that it may write.
    pub fn promised_pages(&self) -> u64 {
        let is_promised = self.prot.contains(Prot::WRITE)
            && !self.flags.intersects(VmaFlags::SHARED | VmaFlags::NO_RESERVE);
        if is_promised { self.len() / PAGE } else { 0 }
    }

    /// Whether the kernel made it for itself.
    pub fn is_kernels(&self) -> bool {
        self.flags.intersects(VmaFlags::SPECIAL | VmaFlags::SLOTS)
    }

    /// Flags of a present entry; writable as asked and allowed.
    pub fn entry_flags(&self, writable: bool) -> u64 {
        let mut flags = Entry::PRESENT | Entry::USER;
        if writable && self.prot.contains(Prot::WRITE) {
            flags |= Entry::WRITABLE;
        }
        if !self.prot.contains(Prot::EXEC) {
            flags |= Entry::NO_EXECUTE;
        }
        flags
    }

    /// Offset in the object of the page at `addr`.
    pub fn object_offset(&self, addr: u64) -> u64 {
        self.offset + (addr - self.start)
    }

    /// Cuts `[at, end)` off and returns it.
    pub fn split_off(&mut self, at: u64) -> Vma {
        debug_assert!(at > self.start && at < self.end && at.is_multiple_of(PAGE));
        let mut tail = self.clone();
        tail.offset = self.object_offset(at);
        tail.start = at;
        self.end = at;
        tail
    }

    /// Whether `next`, which begins where this one ends, is a continuation of it.
    pub fn continues_with(&self, next: &Vma) -> bool {
        self.end == next.start
            && self.prot == next.prot
            && self.max_prot == next.max_prot
            && self.flags - VmaFlags::SHOWN == next.flags - VmaFlags::SHOWN
            && match (&self.object, &next.object) {
                (None, None) => true,
                (Some(a), Some(b)) => a.same(b) && self.offset + self.len() == next.offset,
                _ => false,
            }
    }
}

/// The mirror's protection for a present entry.
pub fn mirror_prot(entry: Entry) -> u32 {
    let mut prot = run::PROT_READ;
    if entry.has(Entry::WRITABLE) {
        prot |= run::PROT_WRITE;
    }
    if !entry.has(Entry::NO_EXECUTE) {
        prot |= run::PROT_EXEC;
    }
    prot
}
