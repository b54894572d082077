//! Copies to and from memory that somebody else may write meanwhile, a guest for one. They are opaque to the compiler,
//! which would otherwise be free to read a place twice and to rely on both reads being equal.

use std::arch::asm;

/// Copies `len` bytes.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes, and the ranges do not overlap. Either may be written by others
/// meanwhile if no Rust reference to it exists.
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear on entry to every block.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Writes `word` so many times.
///
/// # Safety
/// `to` is writable for `words` words of eight bytes; otherwise as [`copy`].
pub unsafe fn fill(to: *mut u8, word: u64, words: usize) {
    // SAFETY: as above.
    unsafe {
        asm!(
            "rep stosq",
            inout("rcx") words => _,
            inout("rdi") to => _,
            in("rax") word,
            options(nostack, preserves_flags),
        );
    }
}
