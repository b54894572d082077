//! Copies to and from memory that somebody else may write meanwhile, a guest for one. They are opaque to the compiler,
//! which would otherwise be free to read a place twice and to rely on both reads being equal.

use std::arch::asm;

/// Bytes that one turn of the loop of [`copy`] moves.
const LINE_BYTES: usize = 64;

/// Copies `len` bytes. A loop over lines takes half the time of `rep movsb` for a page that is in no cache.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes, and the ranges do not overlap. Either may be written by others
/// meanwhile if no Rust reference to it exists.
pub unsafe fn copy(mut to: *mut u8, mut from: *const u8, len: usize) {
    let (lines, rest) = (len / LINE_BYTES, len % LINE_BYTES);
    if lines > 0 {
        // SAFETY: the caller's promise; there are so many lines in the ranges.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}",
                "movups [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {lines}",
                "jnz 2b",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                from = inout(reg) from,
                to = inout(reg) to,
                lines = inout(reg) lines => _,
                options(nostack),
            );
        }
    }
    if rest > 0 {
        // SAFETY: as above, for what is left; the direction flag is clear on entry to every block.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") rest => _,
                inout("rdi") to => _,
                inout("rsi") from => _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Writes `word` so many times.
///
/// # Safety
/// `to` is writable for `words` words of eight bytes; otherwise as [`copy`].
pub unsafe fn fill(to: *mut u8, word: u64, words: usize) {
    // SAFETY: the caller's promise; the direction flag is clear on entry to every block.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_and_no_byte_more() {
        let from: Vec<u8> = (0..=255).collect();
        for len in 0..=from.len() {
            let mut to = [0xee; 260];
            // SAFETY: both are long enough.
            unsafe { copy(to.as_mut_ptr(), from.as_ptr(), len) };
            assert!(to[..len] == from[..len] && to[len..].iter().all(|byte| *byte == 0xee), "{len} bytes");
        }
    }
}
