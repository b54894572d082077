//! The seam between the kernel and what it runs on: run user code, make mapping changes visible, call the host.
//!
//! Contract: a hostcall switches no task. Page tables in x86-64 format are the truth on both platforms; kvm's
//! processor walks them, systrap mirrors them into a stub process as one would fill a TLB.

use abi::HostCall;
use abi::boot::{BootInfo, Platform};
use abi::hostcall as hc;
use abi::run::{self, MapOp, RunState};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::arch::{self, ring0};
use crate::errno::{Errno, Result};
use crate::mm::AddressSpace;

static PLATFORM: AtomicU32 = AtomicU32::new(0);
static HOSTCALL_ENTRY: AtomicUsize = AtomicUsize::new(0);
static LINEAR_BASE: AtomicU64 = AtomicU64::new(0);
static XSAVE_SIZE: AtomicUsize = AtomicUsize::new(0);
static XSAVE_MASK: AtomicU64 = AtomicU64::new(0);
static CPUS: AtomicU32 = AtomicU32::new(1);

/// Most bytes of an XSAVE image the kernel keeps.
pub const FPU_AREA_BYTES: usize = 4096;

/// Remembers what the VMM said. Called once, before anything else.
pub fn init(boot: &BootInfo) {
    HOSTCALL_ENTRY.store(usize::try_from(boot.hostcall_entry).unwrap_or(0), Ordering::Relaxed);
    LINEAR_BASE.store(boot.linear_base, Ordering::Relaxed);
    XSAVE_SIZE.store((boot.xsave_size as usize).min(FPU_AREA_BYTES), Ordering::Relaxed);
    XSAVE_MASK.store(boot.xsave_mask, Ordering::Relaxed);
    CPUS.store(boot.cpus, Ordering::Relaxed);
    PLATFORM.store(boot.platform, Ordering::Release);
}

/// Whether [`init`] has run.
pub fn is_ready() -> bool {
    PLATFORM.load(Ordering::Acquire) != 0
}

/// Whether applications live in stub processes.
#[inline]
pub fn is_systrap() -> bool {
    PLATFORM.load(Ordering::Relaxed) == Platform::Systrap as u32
}

/// Number of vCPUs.
#[inline]
pub fn cpus() -> usize {
    CPUS.load(Ordering::Relaxed) as usize
}

/// Bytes of an XSAVE image of the user state.
#[inline]
pub fn xsave_size() -> usize {
    XSAVE_SIZE.load(Ordering::Relaxed)
}

/// The state components of such an image.
#[inline]
pub fn xsave_mask() -> u64 {
    XSAVE_MASK.load(Ordering::Relaxed)
}

/// Linear-map address of a guest-physical one.
#[inline]
pub fn linear(phys: u64) -> u64 {
    LINEAR_BASE.load(Ordering::Relaxed) + phys
}

/// Linear-map pointer to a guest-physical address.
#[inline]
pub fn ptr<T>(phys: u64) -> *mut T {
    linear(phys) as *mut T
}

/// Guest-physical address of an object in kernel memory.
#[inline]
pub fn phys_of<T: ?Sized>(object: *const T) -> u64 {
    (object.cast::<u8>() as u64).wrapping_sub(LINEAR_BASE.load(Ordering::Relaxed))
}

/// One moment of waiting for a spin lock.
pub fn relax() {
    for _ in 0..64 {
        core::hint::spin_loop();
    }
    give_way();
}

/// Lets the host run the lock's holder. An exit costs more than a call, so on kvm only a long wait gives the core away.
#[cfg(not(test))]
fn give_way() {
    static RELAXED: AtomicU32 = AtomicU32::new(0);
    let patience = if is_systrap() { 1 } else { 64 };
    if RELAXED.fetch_add(1, Ordering::Relaxed).is_multiple_of(patience) {
        let _ = call(hc::YIELD, [0; 6]);
    }
}

/// Unit tests have no VMM to ask.
#[cfg(test)]
fn give_way() {
    std::thread::yield_now();
}

/// Performs a hostcall.
#[inline]
pub fn call(number: u32, args: [u64; 6]) -> Result<u64> {
    let mut call = HostCall { number, pad: 0, args, result: 0 };
    let entry = HOSTCALL_ENTRY.load(Ordering::Relaxed);
    if entry != 0 {
        // SAFETY: the VMM put the address of its hostcall entry there; it switches to the host's stack itself and
        // preserves what the C calling convention preserves.
        let entry: extern "sysv64" fn(*mut HostCall) = unsafe { core::mem::transmute(entry) };
        entry(&raw mut call);
    } else {
        ring0::hostcall(&mut call);
    }
    Errno::check(call.result)
}

/// Why user code stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    Syscall,
    PageFault {
        addr: u64,
        error: u64,
    },
    Bus {
        addr: u64,
    },
    Exception {
        vector: u32,
        error: u64,
    },
    Interrupt,
    /// The address space's stub is gone; its tasks cannot run any more.
    Lost,
}

/// An XSAVE image.
#[repr(C, align(64))]
pub struct FpuArea(pub [u8; FPU_AREA_BYTES]);

impl FpuArea {
    /// The state a new program starts with.
    pub fn initial() -> Box<Self> {
        let mut area = Box::new(Self([0; FPU_AREA_BYTES]));
        area.0[0..2].copy_from_slice(&0x37fu16.to_le_bytes());
        area.0[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
        area
    }
}

/// The user half of a task's processor state.
pub struct UserContext {
    pub run: RunState,
    pub fpu: Box<FpuArea>,
    /// Whether the CPU the task is on holds its FPU state (and `fpu` is stale).
    pub fpu_live: bool,
}

impl UserContext {
    /// Everything zero, FPU in its initial state.
    pub fn new() -> Self {
        Self { run: RunState::default(), fpu: FpuArea::initial(), fpu_live: false }
    }

    /// Makes `fpu` current. The task must be the one running.
    pub fn sync_fpu(&mut self, aspace: &AddressSpace) {
        if !self.fpu_live {
            return;
        }
        let area = self.fpu.0.as_mut_ptr();
        if is_systrap() {
            let _ = call(hc::AS_SAVE_FPU, [aspace.stub_id(), area as u64, xsave_size() as u64, 0, 0, 0]);
        } else {
            // SAFETY: the area is 64-byte aligned, large enough, and the CPU holds this task's state.
            unsafe { ring0::save_fpu(area) };
        }
    }

    /// Saves the FPU state so that the task may run elsewhere.
    pub fn release_fpu(&mut self, aspace: &AddressSpace) {
        self.sync_fpu(aspace);
        self.fpu_live = false;
    }
}

impl Default for UserContext {
    fn default() -> Self {
        Self::new()
    }
}

/// Per-CPU memory of what the TLB holds (kvm).
struct TlbState {
    space: AtomicU64,
    generation: AtomicU64,
}

static TLB: [TlbState; abi::layout::MAX_CPUS as usize] =
    [const { TlbState { space: AtomicU64::new(0), generation: AtomicU64::new(0) } };
        abi::layout::MAX_CPUS as usize];

/// Runs user code of the current task on this CPU until it traps.
///
/// The caller holds the task's registers exclusively. On return they hold the user state at the trap. Pending
/// mapping operations of `aspace` have been carried out.
pub fn run_user(cx: &mut UserContext, aspace: &AddressSpace) -> Trap {
    let info = if is_systrap() { run_stub(cx, aspace) } else { run_ring3(cx, aspace) };
    match info.kind {
        run::TRAP_SYSCALL => Trap::Syscall,
        run::TRAP_PAGE_FAULT => Trap::PageFault { addr: info.addr, error: info.error },
        run::TRAP_BUS => Trap::Bus { addr: info.addr },
        run::TRAP_EXCEPTION => Trap::Exception { vector: info.vector, error: info.error },
        run::TRAP_INTERRUPT => Trap::Interrupt,
        _ => Trap::Lost,
    }
}

fn run_stub(cx: &mut UserContext, aspace: &AddressSpace) -> run::TrapInfo {
    aspace.flush_mirror();
    cx.run.fpu_load = if cx.fpu_live { 0 } else { cx.fpu.0.as_ptr() as u64 };
    let result = call(hc::AS_RUN, [aspace.stub_id(), &raw mut cx.run as u64, 0, 0, 0, 0]);
    if result.is_err() {
        return run::TrapInfo { kind: run::TRAP_LOST, ..Default::default() };
    }
    cx.fpu_live = true;
    cx.run.trap
}

fn run_ring3(cx: &mut UserContext, aspace: &AddressSpace) -> run::TrapInfo {
    let cpu = arch::cpu();
    let tlb = &TLB[cpu.cpu as usize];
    cpu.in_user.store(aspace.id(), Ordering::SeqCst);
    // Only this CPU writes it.
    cpu.user_entries.store(cpu.user_entries.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    let generation = aspace.generation();
    enter_address_space(Some(aspace));
    if tlb.generation.load(Ordering::Relaxed) != generation {
        ring0::flush_all();
    }
    tlb.generation.store(generation, Ordering::Relaxed);
    if !cx.fpu_live {
        // SAFETY: the area is an aligned XSAVE image.
        unsafe { ring0::restore_fpu(cx.fpu.0.as_ptr()) };
        cx.fpu_live = true;
    }
    let info = ring0::run_user(&mut cx.run.regs);
    // User code has stopped; nothing later depends on when others see it.
    cpu.in_user.store(0, Ordering::Release);
    info
}

/// Makes this CPU use the page tables of `aspace` (or the kernel's alone), so that others may be freed (kvm).
pub fn enter_address_space(aspace: Option<&AddressSpace>) {
    if is_systrap() {
        return;
    }
    let tlb = &TLB[arch::cpu_index()];
    let id = aspace.map_or(0, AddressSpace::id);
    if tlb.space.load(Ordering::Relaxed) == id {
        return;
    }
    tlb.space.store(id, Ordering::Relaxed);
    let root = match aspace {
        Some(aspace) => {
            tlb.generation.store(aspace.generation(), Ordering::Relaxed);
            aspace.root_phys()
        }
        None => crate::mm::pagetable::kernel_root(),
    };
    // SAFETY: the root stays allocated while the task that holds the address space is current, and maps the kernel.
    unsafe { ring0::load_page_table(root) };
}

/// Makes every CPU that runs user code of `aspace` leave it, so that it sees changed mappings when it returns (kvm).
pub fn shoot_down(aspace: &AddressSpace) {
    let me = arch::cpu_index();
    for cpu in (0..cpus()).filter(|&cpu| cpu != me) {
        let header = header_of(cpu);
        let runs = || header.in_user.load(Ordering::SeqCst) == aspace.id();
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

/// Carries out mapping operations now, for all threads of the address space (systrap). `ESRCH`: its stub is dead, so
/// nothing is mapped there any more. Any other error: some were carried out and some were not.
pub fn sync_ops(aspace: &AddressSpace, ops: &[MapOp]) -> Result<()> {
    call(hc::AS_SYNC, [aspace.stub_id(), ops.as_ptr() as u64, ops.len() as u64, 0, 0, 0]).map(drop)
}

/// Makes the platform's side of an address space; 0 where it has none.
pub fn create_stub() -> Result<u64> {
    if is_systrap() { call(hc::AS_CREATE, [0; 6]) } else { Ok(0) }
}

/// Ends it. On return it maps nothing any more.
pub fn destroy_stub(id: u64) {
    if is_systrap() {
        let _ = call(hc::AS_DESTROY, [id, 0, 0, 0, 0, 0]);
    }
}

/// The header of any CPU.
pub fn header_of(cpu: usize) -> &'static run::CpuHeader {
    let phys = abi::layout::CPU_AREA_PHYS + cpu as u64 * abi::layout::CPU_AREA_SIZE;
    // SAFETY: the VMM lays out one header per CPU there; they are shared and live for ever.
    unsafe { &*ptr::<run::CpuHeader>(phys) }
}

/// Makes `cpu` look at timers, the run queue and events.
pub fn kick(cpu: usize) {
    let _ = call(hc::KICK, [cpu as u64, 0, 0, 0, 0, 0]);
}

/// Blocks this CPU until it is kicked, `deadline_ns` is reached, or host sockets have something to tell; returns how
/// many of `events` were filled.
pub fn idle(deadline_ns: u64, events: &mut [hc::Event]) -> usize {
    publish_deadline(deadline_ns);
    let args = [phys_of(events.as_mut_ptr()), events.len() as u64, 0, 0, 0, 0];
    (call(hc::IDLE, args).unwrap_or(0) as usize).min(events.len())
}

/// Lets others see when this CPU will look around by itself. [`set_deadline`] makes it come true.
pub fn publish_deadline(deadline_ns: u64) {
    let published = &arch::cpu().deadline_ns;
    // Only this CPU writes it; what stays the same need not be ordered anew.
    if published.load(Ordering::Relaxed) != deadline_ns {
        published.store(deadline_ns, Ordering::SeqCst);
    }
}

/// Sets when this CPU wants to be interrupted next, should it be running user code then.
pub fn set_deadline(deadline_ns: u64) {
    publish_deadline(deadline_ns);
    // A timer that fires before is armed anew by the VMM. Whether it has fired is the VMM's to say: the two clocks differ.
    if !is_systrap() && deadline_ns < arch::cpu().alarm_ns.load(Ordering::SeqCst) {
        let _ = call(hc::SET_DEADLINE, [deadline_ns, 0, 0, 0, 0, 0]);
    }
}

/// Gives whole pages back to the host; they read as zeros afterwards, unless there is an error.
pub fn release(phys: u64, bytes: u64) -> Result<()> {
    call(hc::RELEASE, [phys, bytes, 0, 0, 0, 0]).map(drop)
}

/// A batch of mapping operations, merged where they touch.
#[derive(Default)]
pub struct OpBatch {
    pub ops: Vec<MapOp>,
}

impl OpBatch {
    /// Adds an operation, extending the last one when they are neighbours of the same kind.
    pub fn push(&mut self, op: MapOp) {
        if let Some(last) = self.ops.last_mut()
            && last.kind == op.kind
            && last.prot == op.prot
            && last.addr + last.len == op.addr
            && (op.kind != run::MAP_OP_MAP || mergeable(last, &op))
        {
            last.len += op.len;
            return;
        }
        self.ops.push(op);
    }
}

/// Physically adjacent, and not across a window chunk (each chunk is another file mapping).
fn mergeable(last: &MapOp, op: &MapOp) -> bool {
    last.phys + last.len == op.phys
        && (op.phys < abi::layout::WINDOW_PHYS || !op.phys.is_multiple_of(abi::layout::WINDOW_CHUNK))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(addr: u64, phys: u64) -> MapOp {
        MapOp { kind: run::MAP_OP_MAP, prot: 3, addr, len: 4096, phys }
    }

    #[test]
    fn neighbouring_maps_merge_only_when_frames_are_neighbours() {
        let mut batch = OpBatch::default();
        batch.push(map(0x10000, 0x20000));
        batch.push(map(0x11000, 0x21000));
        batch.push(map(0x12000, 0x29000));
        assert_eq!(batch.ops.len(), 2);
        assert_eq!(batch.ops[0].len, 8192);
    }

    #[test]
    fn maps_do_not_merge_across_window_chunks() {
        let edge = abi::layout::WINDOW_PHYS + abi::layout::WINDOW_CHUNK;
        let mut batch = OpBatch::default();
        batch.push(map(0x10000, edge - 4096));
        batch.push(map(0x11000, edge));
        assert_eq!(batch.ops.len(), 2);
    }
}
