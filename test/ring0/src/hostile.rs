//! Attempts of user code to bring the kernel down.

use abi::run::{TRAP_EXCEPTION, TRAP_INTERRUPT, TRAP_SYSCALL, UserRegs};
use core::sync::atomic::Ordering;

use crate::memory::{EXECUTE, frame, write};
use crate::user::{CODE, DATA, Process, STACK};
use crate::{Outcome, Test, code, cpus, holds, host, ring0, same};

pub const TESTS: &[Test] = &[
    ("a system call at the end of the lower half", last_syscall),
    ("jumps to addresses that do not exist", wild_jumps),
    ("a stack pointer that does not exist", wild_stack),
    ("flags that user code must not have", flags),
    ("descriptor tables are hidden where the processor can", descriptor_tables),
    ("random code", random_code),
    ("random registers", random_registers),
];

fn last_syscall() -> Outcome {
    let mut process = Process::new(&[]);
    let page = frame();
    write(page + 4094, code!("syscall"));
    process.space.map(0x7fff_ffff_f000, page, EXECUTE);
    process.regs.rip = 0x7fff_ffff_fffe;
    same("kind", process.run().kind, TRAP_SYSCALL)?;
    same("rip", process.regs.rip, 0x8000_0000_0000u64)?;
    let trap = process.run();
    same("kind", trap.kind, TRAP_EXCEPTION)?;
    same("vector", trap.vector, 13u32)
}

fn wild_jumps() -> Outcome {
    for addr in [0x8000_0000_0000, 0xffff_8000_0000_1000, u64::MAX, 1 << 63, 0] {
        let mut process = Process::new(code!("jmp rdi"));
        process.regs.rdi = addr;
        let first = process.run();
        holds("a fault", matches!((first.kind, first.vector), (1, 14) | (2, 13)))?;
        let again = process.run();
        holds("a fault again", matches!((again.kind, again.vector), (1, 14) | (2, 13)))?;
    }
    Ok(())
}

fn wild_stack() -> Outcome {
    let mut process = Process::new(code!("syscall", "ud2"));
    for rsp in [0, 1, u64::MAX, 1 << 63, 0x8000_0000_0000, abi::layout::LINEAR_BASE_KVM + 0x1_1000] {
        process.regs = UserRegs { rip: CODE, rsp, rflags: 0x202, ..Default::default() };
        process.expect(TRAP_SYSCALL, 0, 0, 2)?;
        same("rsp", process.regs.rsp, rsp)?;
        process.expect(TRAP_EXCEPTION, 6, 0, 2)?;
        same("rsp", process.regs.rsp, rsp)?;
        process.regs.rcx = 0;
        process.expect(TRAP_EXCEPTION, 6, 0, 2)?;
    }
    Ok(())
}

fn flags() -> Outcome {
    let mut process = Process::new(code!(
        "pushfq", "pop rax", "syscall", "push rdi", "popfq", "pushfq", "pop rax", "syscall"
    ));
    process.regs.rflags = !(1 << 8);
    process.regs.rdi = !(1 << 8);
    process.expect(TRAP_SYSCALL, 0, 0, 4)?;
    same("IOPL, VM, VIF, VIP", process.regs.rax & 0x1a_3000, 0u64)?;
    process.expect(TRAP_SYSCALL, 0, 0, 10)?;
    same("IOPL, VM, VIF, VIP", process.regs.rax & 0x1a_3000, 0u64)?;
    holds("IF", process.regs.rax & 0x200 != 0)?;
    // The direction and alignment flags, nested task and resume: none must reach the kernel through an exception.
    let mut process = Process::new(code!("ud2"));
    process.regs.rflags = 0x202 | 1 << 10 | 1 << 14 | 1 << 16 | 1 << 18;
    for _ in 0..3 {
        same("vector", process.run().vector, 6u32)?;
        let kernel: u64;
        // SAFETY: reads the flags through the stack.
        unsafe { core::arch::asm!("pushfq", "pop {}", out(reg) kernel) };
        same("kernel's flags", kernel & (1 << 9 | 1 << 10 | 1 << 14 | 1 << 18), 0u64)?;
    }
    Ok(())
}

fn descriptor_tables() -> Outcome {
    let umip = core::arch::x86_64::__cpuid_count(7, 0).ecx & 1 << 2 != 0;
    for code in [code!("sgdt [rdi]", "syscall"), code!("sidt [rdi]", "syscall"), code!("str eax", "syscall")]
    {
        let mut process = Process::new(code);
        process.regs.rdi = DATA;
        let trap = process.run();
        same("kind", trap.kind, if umip { TRAP_EXCEPTION } else { TRAP_SYSCALL })?;
    }
    Ok(())
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number that is likely to matter.
    fn interesting(&mut self) -> u64 {
        match self.next() % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (self.next() % 64),
            3 => 0x8000_0000_0000,
            4 => abi::layout::LINEAR_BASE_KVM + self.next() % (1 << 32),
            5 => DATA + self.next() % 4096,
            6 => CODE + self.next() % 64,
            _ => self.next(),
        }
    }

    fn regs(&mut self) -> UserRegs {
        let mut n = || self.interesting();
        UserRegs {
            r15: n(),
            r14: n(),
            r13: n(),
            r12: n(),
            rbp: n(),
            rbx: n(),
            r11: n(),
            r10: n(),
            r9: n(),
            r8: n(),
            rax: n(),
            rcx: n(),
            rdx: n(),
            rsi: n(),
            rdi: n(),
            rip: CODE,
            rflags: n(),
            rsp: STACK + 0x800,
            fs_base: 0,
            gs_base: 0,
        }
    }
}

/// Runs until `most` traps or the deadline.
fn run_bounded(process: &mut Process, most: u32) {
    host::deadline_in(2_000_000);
    for _ in 0..most {
        let trap = process.run();
        if trap.kind == TRAP_INTERRUPT && cpus::header().pending.swap(0, Ordering::SeqCst) != 0 {
            break;
        }
        if trap.kind != TRAP_SYSCALL {
            process.regs.rip = process.regs.rip.wrapping_add(1);
        }
    }
    host::no_deadline();
    cpus::header().pending.store(0, Ordering::SeqCst);
}

/// Opcodes that deserve to come up often: system, segment, interrupt and string instructions.
const PREFIXES: [&[u8]; 14] = [
    &[0x0f, 0x01],
    &[0x0f, 0x05],
    &[0x0f, 0x00],
    &[0x0f, 0xae],
    &[0xcd],
    &[0x8e],
    &[0xcf],
    &[0x48, 0xcf],
    &[0x9d],
    &[0xcb],
    &[0x0f, 0x07],
    &[0x0f, 0x34],
    &[0xf3, 0x0f],
    &[0x0f, 0x22],
];

fn random_code() -> Outcome {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut process = Process::new(&[]);
    let clean = UserRegs { rip: CODE, rsp: STACK + 0x800, rflags: 0x202, ..Default::default() };
    for _ in 0..400 {
        let mut code = [0u8; 128];
        for byte in &mut code {
            *byte = abi::word::low8(random.next());
        }
        for _ in 0..random.next() % 8 {
            let at = (random.next() % 120) as usize;
            let prefix = PREFIXES[(random.next() % 14) as usize];
            code[at..at + prefix.len()].copy_from_slice(prefix);
        }
        write(process.code, &code);
        process.regs = if random.next().is_multiple_of(2) { clean } else { random.regs() };
        run_bounded(&mut process, 40);
        // Whatever happened, the next well-behaved program runs.
        write(process.code, code!("mov eax, 0x1234", "syscall"));
        process.regs = clean;
        same("kind", process.run().kind, TRAP_SYSCALL)?;
        same("rax", process.regs.rax, 0x1234u64)?;
    }
    Ok(())
}

fn random_registers() -> Outcome {
    let mut random = Random(0x0123_4567_89ab_cdef);
    let mut process = Process::new(code!("syscall", "syscall", "ud2"));
    for round in 0..2000u32 {
        let mut regs = random.regs();
        regs.rip = random.interesting();
        regs.rsp = random.interesting();
        regs.fs_base = random.interesting();
        regs.gs_base = random.interesting();
        if round.is_multiple_of(3) {
            (regs.rcx, regs.r11) = (regs.rip, regs.rflags);
        }
        process.regs = regs;
        run_bounded(&mut process, 3);
    }
    let mut again = Process::new(code!("syscall"));
    same("kind", again.run().kind, TRAP_SYSCALL)?;
    ring0::flush_all();
    Ok(())
}
