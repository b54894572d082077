//! The seam between the kernel and what it runs on: run user code, make mapping changes visible, call the host.

mod call;
mod kvm;
mod ops;
mod seam;
mod systrap;

use abi::boot::Platform as Kind;
use abi::hostcall as hc;
use core::sync::atomic::{AtomicU32, Ordering};

pub use call::{
    FPU_AREA_BYTES, Line, call, cpus, die, fits, header_of, init, is_ready, is_ready_for, kick, linear,
    phys_of, ptr, release, vmms, xsave_mask, xsave_size,
};
pub use kvm::set_kernel_root;
pub use ops::{OPS_MAX, OpBatch};
pub use seam::{FpuArea, Platform, Trap, UserContext, UserSpace};

/// The platform that the VMM chose.
#[inline]
pub fn current() -> &'static dyn Platform {
    if call::kind() == Kind::Systrap as u32 { &systrap::Systrap } else { &kvm::Kvm }
}

/// One moment of waiting for a spin lock.
pub fn relax() {
    for _ in 0..64 {
        core::hint::spin_loop();
    }
    give_way();
}

/// Shows the host that long work goes on.
pub fn show_progress() {
    if is_ready() {
        let _ = call(hc::YIELD, [1, 0, 0, 0, 0, 0]);
    }
}

/// Lets the host run the lock's holder. Where there is no host yet, as in unit tests, spinning has to do.
fn give_way() {
    static RELAXED: AtomicU32 = AtomicU32::new(0);
    if is_ready() && RELAXED.fetch_add(1, Ordering::Relaxed).is_multiple_of(current().spin_patience()) {
        let _ = call(hc::YIELD, [0; 6]);
    }
}
