//! Boot of the lower half, on each CPU.

use abi::boot::BootInfo;
use abi::layout::{RECORDS_MAX, RECORDS_PHYS};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::mm::{commit, frames, pagetable, stats};
use crate::upcall::{self, Upcalls};
use crate::{handles, heap, host, lock_order, log, platform, time};

static IS_READY: AtomicBool = AtomicBool::new(false);

/// The kernel above, as far as boot needs it.
pub struct Kernel {
    pub upcalls: Upcalls,
    /// Called on the first CPU with the records the VMM left, when memory and clock work: makes everything, and calls
    /// [`release_others`].
    pub first_cpu: fn(&BootInfo, Vec<u8>) -> !,
    /// Called on the others once everything is made.
    pub other_cpu: fn() -> !,
}

/// The entry of every CPU, on its boot stack.
///
/// # Safety
/// `boot` is the VMM's boot information; called once on each CPU.
pub unsafe fn enter(boot: *const BootInfo, cpu: u32, kernel: &'static Kernel) -> ! {
    // SAFETY: the caller vouches for the pointer; nobody writes to it any more.
    let boot = unsafe { &*boot };
    if cpu != 0 {
        while !IS_READY.load(Ordering::Acquire) {
            if platform::is_ready() {
                platform::relax();
            }
            core::hint::spin_loop();
        }
        // SAFETY: the caller's promise.
        unsafe { platform::current().init_cpu(boot, cpu) };
        (kernel.other_cpu)()
    }
    // SAFETY: the VMM left the heap's range free and zero-filled, and nobody else has called this.
    unsafe { init(boot) };
    upcall::register(&kernel.upcalls);
    (kernel.first_cpu)(boot, take_records(boot))
}

/// Sets up memory and clock on the first CPU.
///
/// # Safety
/// Called once; the heap's range in `boot` is zero-filled memory that nobody else uses.
pub unsafe fn init(boot: &BootInfo) {
    platform::init(boot);
    log::set_level(boot.log_level);
    handles::init(boot.handles_max);
    // SAFETY: the caller's promise.
    unsafe {
        heap::init(boot.heap_phys, frames::tables_phys(boot));
        platform::current().init_cpu(boot, 0);
    }
    lock_order::enable();
    if boot.version != abi::ABI_VERSION {
        host::die("the VMM speaks another version of the interface");
    }
    time::init(boot.tsc_hz);
    if frames::init(boot).is_err() || pagetable::init().is_err() {
        host::die("user memory cannot be set up");
    }
    commit::init(u64::from(boot.host_memory_mib) << 20);
    stats::init();
}

/// Lets the other CPUs begin.
pub fn release_others() {
    IS_READY.store(true, Ordering::Release);
}

fn take_records(boot: &BootInfo) -> Vec<u8> {
    let len = boot.records_len.min(RECORDS_MAX) as usize;
    // SAFETY: the VMM wrote the records there before the kernel started.
    let records = unsafe { core::slice::from_raw_parts(platform::ptr::<u8>(RECORDS_PHYS), len) }.to_vec();
    // Memory that stays is only lost.
    let _ = platform::release(RECORDS_PHYS, (len as u64).next_multiple_of(abi::PAGE_SIZE));
    records
}
