//! Boot of the lower half, on each CPU.

use abi::boot::BootInfo;
use abi::layout::{RECORDS_MAX, RECORDS_PHYS};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::mm::{AddressSpace, commit, frames, pagetable, residency, stats};
use crate::upcall::{self, Upcalls};
use crate::{handles, heap, host, lock_order, log, platform, random, sched, time};

/// Number of VMMs under which the first CPU has made everything, the present one included. Memory keeps what a former one left here.
static READY: AtomicU32 = AtomicU32::new(0);

/// The kernel above, as far as boot needs it.
pub struct Kernel {
    pub upcalls: Upcalls,
    /// Called on the first CPU with the records the VMM left, when memory and clock work: makes everything, and calls
    /// [`release_others`].
    pub first_cpu: fn(&BootInfo, Vec<u8>) -> !,
    /// Called on the first CPU instead of that when there has been another VMM: sets right what only that one knew, and calls
    /// [`release_others`].
    pub revived: fn(&BootInfo, Vec<u8>) -> !,
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
        while READY.load(Ordering::Acquire) != boot.former_vmms.wrapping_add(1) {
            if platform::is_ready_for(boot) {
                platform::relax();
            }
            core::hint::spin_loop();
        }
        // SAFETY: the caller's promise.
        unsafe { platform::current().init_cpu(boot, cpu) };
        (kernel.other_cpu)()
    }
    if boot.former_vmms != 0 {
        // SAFETY: the first CPU is alone, and its kernel was asleep.
        unsafe { revive(boot) };
        (kernel.revived)(boot, take_records(boot))
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

/// Sets up on the first CPU, for a kernel that was asleep under another VMM, what that one's end took away: the clock, the CPUs, the
/// stubs, and what was learnt of the host. Memory and all that lies in it stay.
///
/// # Safety
/// Called once under each VMM, on the first CPU before others have begun, with kernel memory as it was when the scheduler was frozen.
pub unsafe fn revive(boot: &BootInfo) {
    let fits = platform::fits(boot);
    platform::init(boot);
    log::set_level(boot.log_level);
    if boot.version != abi::ABI_VERSION || !fits {
        host::die("the VMM or its processor is another than this kernel began with");
    }
    // SAFETY: the caller's promise.
    unsafe { platform::current().init_cpu(boot, 0) };
    sched::forget_cpus();
    handles::init(boot.handles_max);
    residency::revive();
    time::revive(boot.tsc_hz, boot.keeps_news == 0);
    commit::init(u64::from(boot.host_memory_mib) << 20);
    random::reseed();
    AddressSpace::lose_stubs();
}

/// Lets the other CPUs begin.
pub fn release_others() {
    READY.store(platform::vmms(), Ordering::Release);
}

fn take_records(boot: &BootInfo) -> Vec<u8> {
    let len = boot.records_len.min(RECORDS_MAX) as usize;
    // SAFETY: the VMM wrote the records there before the kernel started.
    let records = unsafe { core::slice::from_raw_parts(platform::ptr::<u8>(RECORDS_PHYS), len) }.to_vec();
    // Memory that stays is only lost.
    let _ = platform::release(RECORDS_PHYS, (len as u64).next_multiple_of(abi::PAGE_SIZE));
    records
}
