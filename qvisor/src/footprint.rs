//! The memory of processes that mostly wait: there may be thousands of them.

/// A heap block of at least so many bytes is mapped for itself, and goes back to the host whole.
const MAPPED_BYTES: libc::c_int = 32 << 10;
/// The allocator asks for, and keeps at its end, no more than this at a time.
const STEP_BYTES: libc::c_int = 16 << 10;
/// How far below this function's frame the stack is left alone: its own calls stand there.
const STACK_MARGIN_BYTES: usize = 4 << 10;
/// How much of a stack below that is given back; deep calls happen at the start.
const STACK_BYTES: usize = 256 << 10;
const PAGE: usize = 4096;

/// Has the allocator prefer little memory to speed: one arena for all threads, in which what one frees serves another.
pub fn keep_heap_small() {
    let options = [
        (libc::M_ARENA_MAX, 1),
        (libc::M_MMAP_THRESHOLD, MAPPED_BYTES),
        (libc::M_TOP_PAD, STEP_BYTES),
        (libc::M_TRIM_THRESHOLD, STEP_BYTES),
    ];
    for (option, value) in options {
        // SAFETY: integers only. An option that is not taken does no harm.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Gives free heap memory back to the host.
pub fn trim_heap() {
    // SAFETY: what is in use stays.
    unsafe { libc::malloc_trim(0) };
}

/// The same, and what the calls until now have used of this thread's stack. For a process's first thread.
pub fn trim() {
    trim_heap();
    let local = 0_u8;
    let here = std::ptr::from_ref(std::hint::black_box(&local)).addr();
    let end = (here - STACK_MARGIN_BYTES) / PAGE * PAGE;
    // SAFETY: pages below the stack pointer and what a signal handler or the kernel may have put there hold nothing
    // that is used again; what is not mapped is refused, and stays so.
    unsafe { libc::madvise((end - STACK_BYTES) as *mut libc::c_void, STACK_BYTES, libc::MADV_DONTNEED) };
}
