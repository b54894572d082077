//! Ring 0 under KVM (placeholder until the platform lands).

use abi::HostCall;
use abi::boot::BootInfo;
use abi::run::{TrapInfo, UserRegs};

pub fn init_cpu(_boot: &BootInfo, _cpu: u32) {}
pub fn run_user(_regs: &mut UserRegs) -> TrapInfo {
    TrapInfo::default()
}
/// # Safety
/// See the platform.
pub unsafe fn load_page_table(_root_phys: u64) {}
pub fn flush_all() {}
/// # Safety
/// See the platform.
pub unsafe fn save_fpu(_area: *mut u8) {}
/// # Safety
/// See the platform.
pub unsafe fn restore_fpu(_area: *const u8) {}
pub fn hostcall(_call: &mut HostCall) {}
pub fn kernel_page_table_template() -> [u64; 256] {
    [0; 256]
}
