//! Platform *kvm*: the kernel runs in guest ring 0, applications in ring 3 on the kernel's own page tables.

use abi::boot::BootInfo;
use abi::hostcall as hc;
use abi::run::{MapOp, TrapInfo};
use core::sync::atomic::{AtomicU64, Ordering};

use super::call::{call, cpus, header_of, kick};
use super::seam::{Platform, UserContext, UserSpace};
use crate::arch::{self, ring0};
use crate::errno::Result;

pub(super) struct Kvm;

/// Guest-physical address of the page-table root that maps only the kernel.
static KERNEL_ROOT: AtomicU64 = AtomicU64::new(0);

/// Page tables that no address space owns; used while none is entered.
pub fn set_kernel_root(root: u64) {
    KERNEL_ROOT.store(root, Ordering::SeqCst);
}

/// Per-CPU memory of what the TLB holds.
struct TlbState {
    space: AtomicU64,
    generation: AtomicU64,
}

static TLB: [TlbState; abi::layout::MAX_CPUS as usize] =
    [const { TlbState { space: AtomicU64::new(0), generation: AtomicU64::new(0) } };
        abi::layout::MAX_CPUS as usize];

impl Platform for Kvm {
    fn mirrors(&self) -> bool {
        false
    }

    unsafe fn init_cpu(&self, boot: &BootInfo, cpu: u32) {
        ring0::init_cpu(boot, cpu);
    }

    fn create_space(&self, _space: &UserSpace) -> Result<()> {
        Ok(())
    }

    fn destroy_space(&self, _space: &UserSpace) {}

    fn run_user(&self, context: &mut UserContext, space: &UserSpace) -> TrapInfo {
        let cpu = arch::cpu();
        let tlb = &TLB[cpu.cpu as usize];
        cpu.in_user.store(space.id, Ordering::SeqCst);
        // Only this CPU writes it.
        cpu.user_entries.store(cpu.user_entries.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let generation = space.generation();
        self.enter_space(Some(space));
        if tlb.generation.load(Ordering::Relaxed) != generation {
            ring0::flush_all();
        }
        tlb.generation.store(generation, Ordering::Relaxed);
        if !context.fpu_live {
            // SAFETY: the area is an aligned XSAVE image.
            unsafe { ring0::restore_fpu(context.fpu.0.as_ptr()) };
            context.fpu_live = true;
        }
        let info = ring0::run_user(&mut context.run.regs);
        // User code has stopped; nothing later depends on when others see it.
        cpu.in_user.store(0, Ordering::Release);
        info
    }

    unsafe fn save_fpu(&self, _space: &UserSpace, area: *mut u8) {
        // SAFETY: the caller vouches for the area; the CPU holds the current task's state.
        unsafe { ring0::save_fpu(area) };
    }

    fn keeps_registers(&self) -> bool {
        false
    }

    unsafe fn fetch_fpu(&self, _cpu: usize, _space: &UserSpace, _area: *mut u8) {
        // Nobody rests: a processor's registers are its own.
    }

    fn enter_space(&self, space: Option<&UserSpace>) {
        let tlb = &TLB[arch::cpu_index()];
        let id = space.map_or(0, |space| space.id);
        if tlb.space.load(Ordering::Relaxed) == id {
            return;
        }
        tlb.space.store(id, Ordering::Relaxed);
        let root = match space {
            Some(space) => {
                tlb.generation.store(space.generation(), Ordering::Relaxed);
                space.root
            }
            None => KERNEL_ROOT.load(Ordering::SeqCst),
        };
        // SAFETY: the root stays allocated while the task that holds the address space is current, and maps the kernel.
        unsafe { ring0::load_page_table(root) };
    }

    fn shoot_down(&self, space: &UserSpace) {
        let me = arch::cpu_index();
        for cpu in (0..cpus()).filter(|&cpu| cpu != me) {
            let header = header_of(cpu);
            let runs = || header.in_user.load(Ordering::SeqCst) == space.id;
            while runs() {
                kick(cpu);
                if (0..1000).all(|_| {
                    core::hint::spin_loop();
                    runs()
                }) {
                    // The host does not run that CPU: this one may be in its way.
                    let _ = call(hc::YIELD, [0; 6]);
                }
            }
        }
    }

    fn sync_mirror(&self, _space: &UserSpace, _operations: &[MapOp]) -> Result<()> {
        Ok(())
    }

    fn arm(&self, deadline_ns: u64) {
        // A timer that fires before is armed anew by the VMM. Whether it has fired is the VMM's to say: the two clocks
        // differ.
        if deadline_ns < arch::cpu().alarm_ns.load(Ordering::SeqCst) {
            let _ = call(hc::SET_DEADLINE, [deadline_ns, 0, 0, 0, 0, 0]);
        }
    }

    fn spin_patience(&self) -> u32 {
        64
    }
}
