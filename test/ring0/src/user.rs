//! A process to test with: code, data and a stack.

use abi::run::{TrapInfo, UserRegs};

use crate::memory::{EXECUTE, Space, WRITE, frame, write};
use crate::{Outcome, ring0, same};

pub const CODE: u64 = 0x40_0000;
pub const DATA: u64 = 0x50_0000;
pub const STACK: u64 = 0x60_0000;
/// Nothing is mapped there.
pub const NOWHERE: u64 = 0x70_0000;

pub struct Process {
    pub space: Space,
    pub regs: UserRegs,
    pub code: u64,
    pub data: u64,
}

impl Process {
    /// A process about to run `code`; its address space is current.
    pub fn new(code: &[u8]) -> Self {
        let space = Space::new();
        let process = Self { space, regs: UserRegs::default(), code: frame(), data: frame() };
        space.map(CODE, process.code, EXECUTE);
        space.map(DATA, process.data, WRITE);
        space.map(STACK, frame(), WRITE);
        write(process.code, code);
        space.load();
        let regs = UserRegs { rip: CODE, rsp: STACK + 4096 - 64, rflags: 0x202, ..process.regs };
        Self { regs, ..process }
    }

    pub fn run(&mut self) -> TrapInfo {
        ring0::run_user(&mut self.regs)
    }

    /// Runs and expects this trap, at this offset in the code.
    pub fn expect(&mut self, kind: u32, vector: u32, error: u64, offset: u64) -> Outcome {
        let trap = self.run();
        same("trap kind", trap.kind, kind)?;
        if kind == abi::run::TRAP_EXCEPTION {
            same("vector", trap.vector, vector)?;
        }
        same("error code", trap.error, error)?;
        same("rip", self.regs.rip, CODE + offset)
    }
}

/// Machine code from a naked function: everything between its two labels.
#[macro_export]
macro_rules! code {
    ($($line:expr),* $(,)?) => {{
        #[unsafe(naked)]
        extern "sysv64" fn code() {
            core::arch::naked_asm!("lea rax, [rip + 2f]", "lea rdx, [rip + 3f]", "ret", "2:", $($line,)* "3:")
        }
        let (start, end): (u64, u64);
        // SAFETY: the function returns the bounds of what follows it in rax and rdx.
        unsafe { core::arch::asm!("call {}", sym code, out("rax") start, out("rdx") end) };
        // SAFETY: the bytes are part of the kernel's text.
        unsafe { core::slice::from_raw_parts(start as *const u8, abi::word::to_usize(end - start)) }
    }};
}
