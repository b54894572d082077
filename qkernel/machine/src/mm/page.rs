//! Pages, how memory is touched, and why a touch fails.

use crate::errno::Errno;

pub use abi::PAGE_BYTES;

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
    /// The mapping forbids it (`SEGV_ACCERR`).
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
