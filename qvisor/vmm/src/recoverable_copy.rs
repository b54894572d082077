//! A copy that survives a fault: the signal handler ends it early.

use std::arch::naked_asm;

/// Copies `len` bytes and answers how many were left when a page was missing: 0 after a full copy.
///
/// # Safety
/// Both ranges belong to mappings that no Rust object lives in. Faults inside them are harmless once
/// [`crate::fault_signals::install`] has run.
#[unsafe(naked)]
pub unsafe extern "C" fn copy_recoverable(dst: *mut u8, src: *const u8, len: usize) -> usize {
    naked_asm!(
        "mov rcx, rdx",
        ".globl dormouse_copy_begin",
        "dormouse_copy_begin:",
        "rep movsb",
        ".globl dormouse_copy_end",
        "dormouse_copy_end:",
        "mov rax, rcx",
        "ret",
    )
}

unsafe extern "C" {
    static dormouse_copy_begin: u8;
    static dormouse_copy_end: u8;
}

/// The address to go on at after a fault at `rip`, if the fault was in the copy.
pub fn fix_up(rip: u64) -> Option<u64> {
    let (begin, end) = (&raw const dormouse_copy_begin as u64, &raw const dormouse_copy_end as u64);
    (begin..end).contains(&rip).then_some(end)
}
