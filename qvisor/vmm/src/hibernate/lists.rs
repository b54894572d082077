//! Lists in guest memory that the kernel's requests name: frames, their classes, and sets of frames.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use abi::PAGE_SIZE;
use abi::hostcall::SwapOut;
use abi::layout::USER_PHYS;
use swap::{Bits, Class, Page, PageId};

use crate::memory::SandboxMemory;

/// The page that a frame number stands for; `None` when it is not one of user memory.
fn page_of(memory: &SandboxMemory, id: PageId) -> Option<Page> {
    let at = memory.host_ptr(USER_PHYS + u64::from(id) * PAGE_SIZE, PAGE_SIZE)?;
    // SAFETY: the range was checked, and user memory is mapped, readable and writable, as long as the sandbox lives; it is
    // shared with the guest, so that nobody makes a reference to it, and a guest that writes it meanwhile only spoils its
    // own pages.
    let page = NonNull::new(at).map(|at| unsafe { Page::new(id, at) })?;
    Some(match memory.user_file() {
        // SAFETY: user memory lies in the file, from its front, and both stay as long as the sandbox lives.
        Some(file) => unsafe { page.in_file(file) },
        None => page,
    })
}

/// The pages that frame numbers stand for.
pub(super) fn pages_of(memory: &SandboxMemory, numbers: &[PageId]) -> Option<Vec<Page>> {
    numbers.iter().map(|id| page_of(memory, *id)).collect()
}

/// Copies `count` records of `bytes` each out of guest memory; no more records than there are frames.
fn records(memory: &SandboxMemory, phys: u64, count: u64, bytes: u64) -> Option<Vec<u8>> {
    if count > memory.user_bytes() / PAGE_SIZE {
        return None;
    }
    // An empty list has no place.
    if count == 0 { Some(Vec::new()) } else { memory.copy_in(phys, count * bytes) }
}

/// Copies `count` numbers out of guest memory.
pub(super) fn numbers(memory: &SandboxMemory, phys: u64, count: u64) -> Option<Vec<PageId>> {
    let bytes = records(memory, phys, count, 4)?;
    Some(bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect())
}

/// The pages of a list of `count` numbers, of the classes in a list beside it.
fn pages(memory: &SandboxMemory, phys: u64, classes: u64, count: u64) -> Option<Vec<Page>> {
    let pages = pages_of(memory, &numbers(memory, phys, count)?)?;
    let classes = records(memory, classes, count, 1)?;
    let with_class =
        |(page, class): (Page, u8)| Class::from_number(class).map(|class| page.with_class(class));
    pages.into_iter().zip(classes).map(with_class).collect()
}

/// A bitmap of frames.
pub fn bits(memory: &SandboxMemory, phys: u64, words: u64) -> Option<Bits> {
    if words > (memory.user_bytes() / PAGE_SIZE).div_ceil(64) {
        return None;
    }
    let bytes = memory.copy_in(phys, words * 8)?;
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    Some(Bits::from_words(words.collect()))
}

/// The pages that `SWAP_OUT` stores or keeps.
pub(super) struct Outgoing {
    pub working: Vec<Page>,
    pub rest: Vec<Page>,
    /// The pages stored earlier that stay stored.
    pub kept: Bits,
    /// The content of `working` and `rest` stays in memory.
    pub stays: bool,
}

impl Outgoing {
    /// Copies the request at `phys`; `None` when anything it names is not where it says.
    pub fn read(memory: &SandboxMemory, phys: u64) -> Option<Self> {
        let list: SwapOut = memory.read(phys)?;
        Some(Self {
            working: pages(memory, list.working, list.working_classes, list.working_count)?,
            rest: pages(memory, list.rest, list.rest_classes, list.rest_count)?,
            kept: bits(memory, list.kept, list.kept_words)?,
            stays: list.stays != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::boot::Platform;

    #[test]
    fn only_frames_of_user_memory_are_taken() {
        let memory = SandboxMemory::new(Platform::Kvm, 16 << 20, 4 << 20).unwrap();
        let put = |list: &[u32]| {
            let bytes: Vec<u8> = list.iter().flat_map(|id| id.to_ne_bytes()).collect();
            memory.copy_out(0x1000, &bytes).unwrap();
            pages(&memory, 0x1000, 0x3000, list.len() as u64)
        };
        assert_eq!(put(&[0, 1023]).unwrap().len(), 2);
        assert!(put(&[0, 1024]).is_none());
        assert!(put(&[u32::MAX]).is_none());
        assert!(pages(&memory, 0x1000, 0x3000, 1025).is_none());
        assert!(pages(&memory, 0x1000, 0x3000, u64::MAX).is_none());
        assert!(pages(&memory, u64::MAX - 4, 0x3000, 2).is_none());
        assert!(pages(&memory, u64::MAX, u64::MAX, 0).is_some());
        assert!(bits(&memory, 0x1000, 17).is_none() && bits(&memory, 0x1000, 16).is_some());
    }

    #[test]
    fn only_classes_that_there_are_are_taken() {
        let memory = SandboxMemory::new(Platform::Kvm, 16 << 20, 4 << 20).unwrap();
        let with = |classes: [u8; 2]| {
            memory.copy_out(0x3000, &classes).unwrap();
            let pages = pages(&memory, 0x1000, 0x3000, 2);
            pages.map(|pages| pages.iter().map(|page| page.class).collect::<Vec<_>>())
        };
        use abi::hostcall::{CLASS_ANONYMOUS, CLASS_FILE, CLASS_KERNEL, CLASS_STORE};
        assert_eq!(with([CLASS_FILE, CLASS_ANONYMOUS]), Some(vec![Class::File, Class::Anonymous]));
        assert_eq!(with([CLASS_STORE, CLASS_KERNEL]), Some(vec![Class::Store, Class::Kernel]));
        assert_eq!(with([CLASS_STORE, 4]), None);
        assert!(pages(&memory, 0x1000, u64::MAX, 2).is_none());
    }
}
