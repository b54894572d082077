//! Memory: frames, page tables, address spaces, faults, and copies to and from user memory.

mod addr;
pub mod advice;
mod arrival;
#[cfg(test)]
mod arrival_life;
pub mod aspace;
mod attach;
mod away;
pub mod commit;
pub mod copies;
mod family;
mod fault;
mod file_faults;
mod forced;
mod fork;
#[cfg(test)]
mod frame_life;
pub mod give_back;
pub mod io;
mod lock;
pub mod map;
mod mappers;
mod mirror;
pub mod object;
mod page;
pub mod pages;
pub mod pagetable;
mod patches;
pub mod physical;
mod quota;
pub mod remap;
pub mod report;
mod shown;
pub mod sites;
pub mod stats;
mod swap_window;
pub mod template;
mod touches;
pub mod user;
pub mod vma;
pub mod window;
pub mod working_set;

pub use addr::UserAddr;
pub use aspace::{AddressSpace, HeldSpace};
pub use io::IoBuf;
pub use object::{MemoryObject, PageStore};
pub use page::{Access, Fault, PAGE, PAGE_BYTES, page_down, page_up};
pub use physical::{account, frames, owners, residency};
pub use quota::Quota;
pub use user::{Pod, UserMemory};
pub use vma::{MapFlags, Prot};
