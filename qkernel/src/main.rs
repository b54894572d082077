//! Stands in for the kernel until it is there: boots, logs a line and ends.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use abi::HostCall;
use abi::boot::BootInfo;
use abi::hostcall::{EXIT, LOG};

static HOSTCALL: AtomicU64 = AtomicU64::new(0);
static TEXT: &str = "the kernel is not there yet";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

#[unsafe(no_mangle)]
extern "C" fn _start(boot: *const BootInfo, cpu: u32) -> ! {
    // SAFETY: the VMM wrote it.
    let boot = unsafe { &*boot };
    HOSTCALL.store(boot.hostcall_entry, Ordering::Relaxed);
    if cpu == 0 {
        call(LOG, [TEXT.as_ptr() as u64 - boot.linear_base, TEXT.len() as u64, 2]);
        call(EXIT, [0; 3]);
    }
    loop {
        core::hint::spin_loop();
    }
}

fn call(number: u32, [a, b, c]: [u64; 3]) -> i64 {
    let mut call = HostCall { number, args: [a, b, c, 0, 0, 0], ..HostCall::default() };
    // SAFETY: the VMM gave this address as such a function.
    unsafe {
        let entry: extern "C" fn(*mut HostCall) = core::mem::transmute(HOSTCALL.load(Ordering::Relaxed));
        entry(&raw mut call);
        (&raw const call).read_volatile().result
    }
}
