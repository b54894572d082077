//! The seam: what a platform does for the kernel.

use abi::boot::BootInfo;
use abi::run::{self, MapOp, RunState, TrapInfo};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::call::FPU_AREA_BYTES;
use super::current;
use crate::errno::Result;

/// Where user code runs.
///
/// Page tables in x86-64 format are the truth on every platform. One whose processor walks them needs to be told of
/// changes; one that *mirrors* them is given each change as an operation.
pub trait Platform: Sync {
    /// Whether page tables are mirrored.
    fn mirrors(&self) -> bool;
    /// Prepares the CPU it is called on.
    ///
    /// # Safety
    /// Called once on each CPU with the VMM's boot information, before anything else but `platform::init`.
    unsafe fn init_cpu(&self, boot: &BootInfo, cpu: u32);
    /// Makes the platform's side of an address space, unless it is there.
    fn create_space(&self, space: &UserSpace) -> Result<()>;
    /// Ends the platform's side. On return it maps nothing any more. Nobody uses the space.
    fn destroy_space(&self, space: &UserSpace);
    /// Runs user code of the current task on this CPU until it traps.
    ///
    /// The caller holds the task's registers exclusively, and what the space's mirror lacks has been carried out. On
    /// return the registers hold the user state at the trap. Interrupts that arrived meanwhile are pending.
    fn run_user(&self, context: &mut UserContext, space: &UserSpace) -> TrapInfo;
    /// Stores the FPU state that this CPU holds for the current task.
    ///
    /// # Safety
    /// `area` is 64-byte aligned and has `call::xsave_size()` bytes.
    unsafe fn save_fpu(&self, space: &UserSpace, area: *mut u8);
    /// Whether a CPU that idles can leave the FPU state where it is, and any CPU can store it from there.
    fn keeps_registers(&self) -> bool;
    /// Stores the FPU state that a CPU holds of a task that rests on it. Called by any CPU; that one runs no user code meanwhile.
    ///
    /// # Safety
    /// As for [`Self::save_fpu`].
    unsafe fn fetch_fpu(&self, cpu: usize, space: &UserSpace, area: *mut u8);
    /// Makes this CPU use the page tables of a space, or the kernel's alone, so that others may be freed.
    fn enter_space(&self, space: Option<&UserSpace>);
    /// Makes every CPU that runs user code of the space leave it, so that it sees changed page tables when it returns.
    fn shoot_down(&self, space: &UserSpace);
    /// Carries out mapping operations now, for all threads of the space. `ESRCH`: its stub is dead, so nothing is mapped
    /// there any more. Any other error: some were carried out and some were not.
    fn sync_mirror(&self, space: &UserSpace, operations: &[MapOp]) -> Result<()>;
    /// Has this CPU interrupted at `deadline_ns`, should it run user code then.
    fn arm(&self, deadline_ns: u64);
    /// Spins this often before it gives the core away. Leaving costs more on some platforms than on others.
    fn spin_patience(&self) -> u32;
}

/// The platform's side of an address space.
pub struct UserSpace {
    /// The address space's id.
    pub id: u64,
    /// The number of the platform's side of it; 0: there is none.
    number: AtomicU64,
    /// Guest-physical address of the page-table root.
    pub root: u64,
    /// Changes whenever present entries changed; CPUs that walk page tables compare it before they run user code.
    generation: AtomicU64,
    /// Call sites in it are patched, or were.
    pub has_patches: AtomicBool,
}

impl UserSpace {
    /// A space whose page tables begin at `root`.
    pub fn new(id: u64, root: u64) -> Self {
        Self {
            id,
            number: AtomicU64::new(0),
            root,
            generation: AtomicU64::new(1),
            has_patches: AtomicBool::new(false),
        }
    }

    /// The number of the platform's side of it; 0: there is none, or none yet.
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    /// Returns the number of the platform's side, which is made first if there is none. Where two make it at once, one of them ends its
    /// own.
    pub(super) fn number_or_made(
        &self,
        make: impl FnOnce() -> Result<u64>,
        end: impl FnOnce(u64),
    ) -> Result<u64> {
        let number = self.number();
        if number != 0 {
            return Ok(number);
        }
        let made = make()?;
        match self.number.compare_exchange(0, made, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Ok(made),
            Err(first) => {
                end(made);
                Ok(first)
            }
        }
    }

    /// Under another VMM the platform's side is gone; it is made anew when something is mapped there or user code runs.
    pub(crate) fn lose_number(&self) {
        self.number.store(0, Ordering::SeqCst);
    }

    /// The value of `CpuHeader::in_user` while a CPU runs its user code.
    pub fn mark(&self) -> u64 {
        match self.number() {
            // On systrap no CPU has this, nor a stub.
            0 if current().mirrors() => u64::MAX,
            0 => self.id,
            number => number,
        }
    }

    /// See the field.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Present entries have changed.
    pub fn change_generation(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }
}

/// Why user code stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    Syscall,
    /// A system call of a site that was patched.
    PatchedSyscall,
    PageFault {
        addr: u64,
        error: u64,
    },
    /// `error` is that of a page fault, as far as the platform knows it.
    Bus {
        addr: u64,
        error: u64,
    },
    Exception {
        vector: u32,
        error: u64,
    },
    Interrupt,
    /// The address space's stub is gone; its tasks cannot run any more.
    Lost,
}

impl From<TrapInfo> for Trap {
    fn from(info: TrapInfo) -> Self {
        match info.kind {
            run::TRAP_SYSCALL if info.vector == run::SYSCALL_PATCHED => Self::PatchedSyscall,
            run::TRAP_SYSCALL => Self::Syscall,
            run::TRAP_PAGE_FAULT => Self::PageFault { addr: info.addr, error: info.error },
            run::TRAP_BUS => Self::Bus { addr: info.addr, error: info.error },
            run::TRAP_EXCEPTION => Self::Exception { vector: info.vector, error: info.error },
            run::TRAP_INTERRUPT => Self::Interrupt,
            _ => Self::Lost,
        }
    }
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
}

impl Default for UserContext {
    fn default() -> Self {
        Self::new()
    }
}
