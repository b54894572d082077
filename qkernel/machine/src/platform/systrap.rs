//! Platform *systrap*: applications live in stub processes of the host, one for each address space.

use abi::boot::BootInfo;
use abi::hostcall as hc;
use abi::run::{self, MAP_OP_MAP, MapOp, TrapInfo};
use core::sync::atomic::Ordering;

use super::call::{call, xsave_size};
use super::seam::{Platform, UserContext, UserSpace};
use crate::errno::Result;

/// Operations of one hostcall: on a busy host each order to a stub takes long, and the VMM's watchdog sees each call.
const SYNC_AT_ONCE: usize = 512;

pub(super) struct Systrap;

/// The number of the space's stub, which is made if there is none.
fn stub_of(space: &UserSpace) -> Result<u64> {
    space.number_or_made(|| call(hc::AS_CREATE, [0; 6]), end_stub)
}

fn end_stub(number: u64) {
    let _ = call(hc::AS_DESTROY, [number, 0, 0, 0, 0, 0]);
}

impl Platform for Systrap {
    fn mirrors(&self) -> bool {
        true
    }

    unsafe fn init_cpu(&self, _boot: &BootInfo, _cpu: u32) {}

    fn create_space(&self, space: &UserSpace) -> Result<()> {
        stub_of(space).map(drop)
    }

    fn destroy_space(&self, space: &UserSpace) {
        match space.number() {
            0 => {}
            number => end_stub(number),
        }
    }

    fn run_user(&self, context: &mut UserContext, space: &UserSpace) -> TrapInfo {
        context.run.fpu_load = if context.fpu_live { 0 } else { context.fpu.0.as_ptr() as u64 };
        context.run.has_patches = space.has_patches.load(Ordering::Relaxed).into();
        let state = &raw mut context.run as u64;
        let result = stub_of(space).and_then(|number| call(hc::AS_RUN, [number, state, 0, 0, 0, 0]));
        if result.is_err() {
            return TrapInfo { kind: run::TRAP_LOST, ..Default::default() };
        }
        context.fpu_live = true;
        context.run.trap
    }

    unsafe fn save_fpu(&self, space: &UserSpace, area: *mut u8) {
        let _ = call(hc::AS_SAVE_FPU, [space.number(), area as u64, xsave_size() as u64, 0, 0, 0]);
    }

    fn keeps_registers(&self) -> bool {
        true
    }

    unsafe fn fetch_fpu(&self, cpu: usize, space: &UserSpace, area: *mut u8) {
        let args = [space.number(), area as u64, xsave_size() as u64, cpu as u64 + 1, 0, 0];
        let _ = call(hc::AS_SAVE_FPU, args);
    }

    fn enter_space(&self, _space: Option<&UserSpace>) {}

    fn shoot_down(&self, _space: &UserSpace) {}

    fn sync_mirror(&self, space: &UserSpace, operations: &[MapOp]) -> Result<()> {
        // A stub that is not there maps nothing.
        if space.number() == 0 && operations.iter().all(|operation| operation.kind != MAP_OP_MAP) {
            return Ok(());
        }
        let number = stub_of(space)?;
        operations.chunks(SYNC_AT_ONCE).try_for_each(|some| {
            let args = [number, some.as_ptr() as u64, some.len() as u64, 0, 0, 0];
            call(hc::AS_SYNC, args).map(drop)
        })
    }

    fn arm(&self, _deadline_ns: u64) {}

    fn spin_patience(&self) -> u32 {
        1
    }
}
