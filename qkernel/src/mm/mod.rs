//! Memory: frames, page tables, address spaces, faults, and copies to and from user memory.

pub mod account;
pub mod aspace;
pub mod copies;
mod fault;
mod fork;
#[cfg(test)]
mod frame_life;
pub mod frames;
pub mod heap;
pub mod io;
pub mod map;
pub mod object;
pub mod pages;
pub mod pagetable;
pub mod report;
pub mod residency;
mod shown;
pub mod user;
pub mod vma;
pub mod window;

pub use aspace::AddressSpace;
pub use io::IoBuf;
pub use object::{MemoryObject, PageStore, Quota};
pub use user::{Pod, UserMemory};
pub use vma::{MapFlags, Prot};

use crate::errno::Errno;

pub const PAGE: u64 = abi::PAGE_SIZE;

/// Rounds down to a page.
pub const fn page_down(value: u64) -> u64 {
    value & !(PAGE - 1)
}

/// Rounds up to a page; `None` on overflow.
pub const fn page_up(value: u64) -> Option<u64> {
    match value.checked_add(PAGE - 1) {
        Some(sum) => Some(page_down(sum)),
        None => None,
    }
}

/// How memory is touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
    Execute,
}

/// Why a touch failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing is mapped there (`SEGV_MAPERR`).
    NotMapped { addr: u64 },
    /// What is mapped forbids it (`SEGV_ACCERR`).
    Forbidden { addr: u64 },
    /// The mapped file has no such byte (`BUS_ADRERR`).
    Bus { addr: u64 },
    /// The sandbox is out of memory.
    NoMemory,
}

impl From<Fault> for Errno {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::NoMemory => Errno::ENOMEM,
            _ => Errno::EFAULT,
        }
    }
}
