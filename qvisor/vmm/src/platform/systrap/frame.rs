//! The signal frame a trap leaves in a stub thread's area: its place, and the fields of it that the VMM reads and
//! writes.
//!
//! The host kernel writes the frame at the end of the signal stack, which is shared memory, so user code of the same
//! address space can change it at any time. Each field is read once; nothing in it is believed but by the user code
//! it belongs to.

use std::ptr;

use abi::layout::STUB_AREA_SIZE;
use abi::run::{TRAP_BUS, TRAP_EXCEPTION, TRAP_INTERRUPT, TRAP_PAGE_FAULT, TRAP_SYSCALL, TrapInfo, UserRegs};

use super::area::INTERRUPT_SIGNAL;
use crate::cpu::{self, XsaveLayout};

/// `struct rt_sigframe` of x86-64: return address, `ucontext`, `siginfo`.
const FRAME_BYTES: u64 = 8 + 304 + 128;
const FLAGS: usize = 8;
const STACK: usize = FLAGS + 16;
const MCONTEXT: usize = FLAGS + 40;
const SIGMASK: usize = FLAGS + 296;
const SIGINFO: usize = FLAGS + 304;
/// Registers in the order of `struct sigcontext`: r8 … r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags.
const GENERAL: usize = 18;
const SELECTORS: usize = GENERAL;
const ERROR: usize = GENERAL + 1;
const TRAPNO: usize = GENERAL + 2;
const CR2: usize = GENERAL + 4;
const FPSTATE: usize = GENERAL + 5;

/// cs, gs, fs, ss as 64-bit user code has them.
const USER_SELECTORS: u64 = 0x002b_0000_0000_0033;
const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;
const SS_AUTODISARM: u64 = 1 << 31;
/// CF, PF, AF, ZF, SF, TF, DF, OF, RF, AC, ID.
pub(super) const USER_RFLAGS: u64 = 0x0025_0dd5;
/// IF, and the bit that is always set.
pub(super) const FIXED_RFLAGS: u64 = 0x202;

const SW_RESERVED: usize = 464;
const XSAVE_HEADER: usize = 512;
const XSAVE_HEADER_END: usize = 576;
const MAGIC1: u64 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
const MXCSR: usize = 24;

const SI_CODE: usize = SIGINFO + 8;
const SI_ADDR: usize = SIGINFO + 16;
const SI_ARCH: usize = SIGINFO + 28;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const BUS_ADRALN: i32 = 1;

const VECTOR_DEBUG: u32 = 1;
const VECTOR_INVALID_OPCODE: u32 = 6;
const VECTOR_GENERAL_PROTECTION: u32 = 13;
const VECTOR_PAGE_FAULT: u32 = 14;
const VECTOR_ALIGNMENT: u32 = 17;
/// Bytes of `int 0x80`.
const INT_80_BYTES: u64 = 2;

/// Offsets in every area, given the size of the host's XSAVE image.
#[derive(Clone, Copy, Debug)]
pub struct FrameLayout {
    xsave: XsaveLayout,
    /// Offset of the frame in the area.
    pub frame: usize,
    /// Offset of the XSAVE image in the area.
    fpu: usize,
}

impl FrameLayout {
    /// The layout on this host; `None` if its XSAVE image leaves no room for a stack.
    pub fn new() -> Option<Self> {
        const LEAST_STACK: u64 = 8192;
        let xsave = cpu::xsave_layout();
        let fpu = STUB_AREA_SIZE.checked_sub(u64::from(xsave.size) + 4)? & !63;
        let frame = (fpu.checked_sub(FRAME_BYTES)? & !15) - 8;
        if frame < 4096 + LEAST_STACK {
            return None;
        }
        Some(Self { xsave, frame: usize::try_from(frame).ok()?, fpu: usize::try_from(fpu).ok()? })
    }

    /// Bytes of an XSAVE image.
    pub fn fpu_bytes(&self) -> usize {
        self.xsave.size as usize
    }
}

/// One thread's frame. `area` is the VMM's address of a whole area, mapped as long as the value is used.
#[derive(Clone, Copy)]
pub struct Frame {
    area: *mut u8,
    layout: FrameLayout,
}

impl Frame {
    /// # Safety
    /// `area` is the start of `STUB_AREA_SIZE` bytes that stay mapped as long as the value is used.
    pub unsafe fn new(area: *mut u8, layout: FrameLayout) -> Self {
        Self { area, layout }
    }

    fn read<T: Copy>(&self, offset: usize) -> T {
        debug_assert!(self.layout.frame + offset + size_of::<T>() <= self.layout.fpu);
        let at = self.area.wrapping_add(self.layout.frame + offset).cast::<T>();
        // SAFETY: (1) offsets are constants inside the frame; (2) the fields are aligned integers; (3) the area is
        // mapped, as `new` was promised.
        unsafe { ptr::read_volatile(at) }
    }

    fn write<T: Copy>(&self, offset: usize, value: T) {
        debug_assert!(self.layout.frame + offset + size_of::<T>() <= self.layout.fpu);
        let at = self.area.wrapping_add(self.layout.frame + offset).cast::<T>();
        // SAFETY: as in `read`.
        unsafe { ptr::write_volatile(at, value) }
    }

    fn word(&self, index: usize) -> u64 {
        self.read(MCONTEXT + 8 * index)
    }

    fn set_word(&self, index: usize, value: u64) {
        self.write(MCONTEXT + 8 * index, value);
    }

    /// Writes a whole frame for a thread whose area is at `address` in the stub: all zeros, the initial FPU state.
    pub fn reset(&self, address: u64) {
        let start = self.area.wrapping_add(self.layout.frame);
        // SAFETY: the frame and the image end inside the area, and the thread does not run.
        unsafe {
            ptr::write_bytes(start, 0, self.layout.fpu + self.layout.fpu_bytes() + 4 - self.layout.frame)
        };
        self.write(FLAGS, UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS);
        // Auto-disarm: a trap with a stack pointer inside this stack gets its frame at the end all the same.
        let stack = 4096;
        self.write(STACK, address + stack);
        self.write(STACK + 8, SS_AUTODISARM);
        self.write(STACK + 16, STUB_AREA_SIZE - stack);
        self.write(SIGMASK, user_mask());
        self.set_word(SELECTORS, USER_SELECTORS);
        self.set_word(FPSTATE, address + self.layout.fpu as u64);
        let size = u64::from(self.layout.xsave.size);
        self.write_fpu(0, 0x37f_u32);
        self.write_fpu(MXCSR, 0x1f80_u32);
        self.write_fpu(SW_RESERVED, MAGIC1 | (size + 4) << 32);
        self.write_fpu(SW_RESERVED + 8, self.layout.xsave.mask);
        self.write_fpu(SW_RESERVED + 16, size);
        self.write_fpu(self.layout.fpu_bytes(), MAGIC2);
    }

    fn write_fpu<T: Copy>(&self, offset: usize, value: T) {
        let at = self.area.wrapping_add(self.layout.fpu + offset).cast::<T>();
        // SAFETY: constants inside the image or its end mark, aligned; the area is mapped.
        unsafe { ptr::write_volatile(at, value) }
    }

    /// The user registers, but for FS and GS base, which no frame holds.
    pub fn registers(&self) -> UserRegs {
        let [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags] =
            self.read::<[u64; GENERAL]>(MCONTEXT);
        UserRegs {
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            rip,
            rflags,
            rsp,
            fs_base: 0,
            gs_base: 0,
        }
    }

    /// Sets the registers user code goes on with. Flags it may not choose are fixed, and so are the selectors.
    pub fn set_registers(&self, regs: &UserRegs) {
        let rflags = regs.rflags & USER_RFLAGS | FIXED_RFLAGS;
        let general: [u64; GENERAL] = [
            regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15, regs.rdi, regs.rsi,
            regs.rbp, regs.rbx, regs.rdx, regs.rax, regs.rcx, regs.rsp, regs.rip, rflags,
        ];
        self.write(MCONTEXT, general);
        self.set_word(SELECTORS, USER_SELECTORS);
    }

    /// Why user code stopped, given the signal the stub named; registers that go with it are corrected.
    pub fn trap(&self, signal: u32, regs: &mut UserRegs) -> TrapInfo {
        if signal == libc::SIGSYS.cast_unsigned() {
            if self.read::<u32>(SI_ARCH) == AUDIT_ARCH_X86_64 {
                return TrapInfo { kind: TRAP_SYSCALL, ..TrapInfo::default() };
            }
            // `int 0x80`: to Linux programs without i386 support it is a protection fault.
            regs.rip = regs.rip.wrapping_sub(INT_80_BYTES);
            return exception(VECTOR_GENERAL_PROTECTION, 0);
        }
        let code: i32 = self.read(SI_CODE);
        if signal == INTERRUPT_SIGNAL || code <= 0 {
            // It may also be a fault signal that a process sent with `kill`.
            return TrapInfo { kind: TRAP_INTERRUPT, ..TrapInfo::default() };
        }
        let vector = u32::try_from(self.word(TRAPNO)).unwrap_or(VECTOR_GENERAL_PROTECTION);
        match signal.cast_signed() {
            libc::SIGSEGV if vector == VECTOR_PAGE_FAULT => TrapInfo {
                kind: TRAP_PAGE_FAULT,
                vector,
                error: self.word(ERROR) & 0xffff,
                addr: self.word(CR2),
            },
            libc::SIGBUS if code == BUS_ADRALN => exception(VECTOR_ALIGNMENT, 0),
            libc::SIGBUS => TrapInfo {
                kind: TRAP_BUS,
                error: if vector == VECTOR_PAGE_FAULT { self.word(ERROR) & 0xffff } else { 0 },
                addr: self.read(SI_ADDR),
                ..TrapInfo::default()
            },
            libc::SIGTRAP if vector > 3 => exception(VECTOR_DEBUG, 0),
            libc::SIGILL => exception(VECTOR_INVALID_OPCODE, 0),
            _ if vector < 32 && vector != VECTOR_PAGE_FAULT => exception(vector, self.word(ERROR) & 0xffff),
            _ => exception(VECTOR_GENERAL_PROTECTION, 0),
        }
    }

    /// Copies the XSAVE image out, without the host kernel's marks in it.
    ///
    /// # Safety
    /// `to` has room for `FrameLayout::fpu_bytes` bytes.
    pub unsafe fn save_fpu(&self, to: *mut u8) {
        let from = self.area.wrapping_add(self.layout.fpu);
        // SAFETY: the image lies in the area; the caller answers for `to`.
        unsafe {
            ptr::copy_nonoverlapping(from, to, self.layout.fpu_bytes());
            ptr::write_bytes(to.add(SW_RESERVED), 0, XSAVE_HEADER - SW_RESERVED);
            sanitise_header(to, self.layout.xsave.mask);
        }
    }

    /// Copies an XSAVE image in. Parts that would make the host refuse it are corrected.
    ///
    /// # Safety
    /// `from` has `FrameLayout::fpu_bytes` readable bytes.
    pub unsafe fn load_fpu(&self, from: *const u8) {
        let to = self.area.wrapping_add(self.layout.fpu);
        // SAFETY: as in `save_fpu`.
        unsafe {
            ptr::copy_nonoverlapping(from, to, SW_RESERVED);
            let rest = self.layout.fpu_bytes() - XSAVE_HEADER;
            ptr::copy_nonoverlapping(from.add(XSAVE_HEADER), to.add(XSAVE_HEADER), rest);
            sanitise_header(to, self.layout.xsave.mask);
        }
    }
}

/// Makes the XSAVE header and MXCSR valid: known components, standard format, no reserved bits.
///
/// # Safety
/// `image` is an XSAVE image.
unsafe fn sanitise_header(image: *mut u8, mask: u64) {
    // SAFETY: the fields lie in the first 576 bytes of the image.
    unsafe {
        let components = image.add(XSAVE_HEADER).cast::<u64>();
        components.write_unaligned(components.read_unaligned() & mask);
        ptr::write_bytes(image.add(XSAVE_HEADER + 8), 0, XSAVE_HEADER_END - XSAVE_HEADER - 8);
        let mxcsr = image.add(MXCSR).cast::<u32>();
        mxcsr.write_unaligned(mxcsr.read_unaligned() & 0xffff);
    }
}

fn exception(vector: u32, error: u64) -> TrapInfo {
    TrapInfo { kind: TRAP_EXCEPTION, vector, error, addr: 0 }
}

/// Every signal blocked but those a stub handles.
fn user_mask() -> u64 {
    super::area::SIGNALS.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)))
}
