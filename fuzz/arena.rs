//! Memory and a CPU for the kernel without a VMM.

use abi::word::to_usize;

use machine::testing;
use qkernel::boot::KERNEL;
use qkernel::harness;

/// Boots the kernel on the calling thread.
pub fn boot() {
    const ALIGN: usize = 4 << 20;
    const ARCH_SET_GS: libc::c_int = 0x1001;
    let bytes = to_usize(testing::ARENA_BYTES);
    // SAFETY: a new mapping. Pages take memory once they are touched.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes + ALIGN,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED, "no address space");
    let arena = (start as usize).next_multiple_of(ALIGN) as *mut u8;
    let set_gs = |addr: u64| {
        // SAFETY: programs for x86-64 Linux keep their own thread-local data by FS.
        let set = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, addr) };
        assert_eq!(set, 0, "GS base");
    };
    // SAFETY: the arena is ours, zero-filled and aligned; nobody boots a second time.
    unsafe { testing::boot(arena, set_gs, harness::HOST, &KERNEL.upcalls) };
    harness::start();
}
