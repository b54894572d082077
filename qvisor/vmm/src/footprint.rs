//! The memory of processes that mostly wait: there may be thousands of them.

use abi::PAGE_BYTES;
use abi::word::to_usize;

/// A heap block of at least so many bytes is mapped for itself, and goes back to the host whole; the buffers of single
/// system calls are smaller.
const MAPPED_BYTES: libc::c_int = 256 << 10;
/// How far below this function's frame the stack is left alone: its own calls stand there.
const STACK_MARGIN_BYTES: usize = 4 << 10;
/// How much of a stack below that is given back; deep calls happen at the start.
const STACK_BYTES: usize = 256 << 10;

/// Has the allocator prefer little memory to speed: one arena for all threads, in which memory that one frees serves
/// another.
pub fn keep_heap_small() {
    for (option, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, MAPPED_BYTES)] {
        // SAFETY: integers only. An option that is not taken does no harm.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Gives free heap memory back to the host.
pub fn trim_heap() {
    // SAFETY: memory in use stays.
    unsafe { libc::malloc_trim(0) };
}

/// Gives back to the host free heap memory, and memory that the process needed until now but will hardly need again:
/// the stack below its present calls, and pages of programs' files, which come back from the page cache as they are
/// used. For a process's first thread.
pub fn trim() {
    trim_heap();
    let local = 0_u8;
    let here = std::ptr::from_ref(std::hint::black_box(&local)).addr();
    let end = (here - STACK_MARGIN_BYTES) / PAGE_BYTES * PAGE_BYTES;
    // SAFETY: pages below the stack pointer, and below a signal handler's or the kernel's data there, hold nothing that
    // is used again; pages that are not mapped are refused, and stay so.
    unsafe { libc::madvise((end - STACK_BYTES) as *mut libc::c_void, STACK_BYTES, libc::MADV_DONTNEED) };
    // SAFETY: the function fits, and no library is loaded or unloaded meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(drop_constant_segments), std::ptr::null_mut()) };
}

/// Gives back the pages of a program's or library's segments that are never written.
///
/// # Safety
/// `object` is the argument that `dl_iterate_phdr` passes.
unsafe extern "C" fn drop_constant_segments(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the caller's promise.
    let (base, headers) = unsafe {
        let object = &*object;
        (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
    };
    for header in
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0)
    {
        let start = (base + header.p_vaddr) / abi::PAGE_SIZE * abi::PAGE_SIZE;
        let end = (base + header.p_vaddr + header.p_memsz) / abi::PAGE_SIZE * abi::PAGE_SIZE;
        // SAFETY: a private mapping of a file, never written, reads the same from the file.
        unsafe { libc::madvise(start as *mut libc::c_void, to_usize(end - start), libc::MADV_DONTNEED) };
    }
    0
}
