//! Traps and exceptions of well-behaved user code.

use abi::run::{
    PF_FETCH, PF_PRESENT, PF_USER, PF_WRITE, TRAP_BUS, TRAP_EXCEPTION, TRAP_INTERRUPT, TRAP_PAGE_FAULT,
    TRAP_SYSCALL, UserRegs,
};
use core::sync::atomic::Ordering;

use crate::memory::{READ, WRITE, frame, read_u64, write};
use crate::user::{CODE, DATA, NOWHERE, Process, STACK};
use crate::{Outcome, Test, code, cpus, holds, ring0, same};

pub const TESTS: &[Test] = &[
    ("a system call keeps every register", syscall_registers),
    ("a changed return state goes back by iretq", changed_return),
    ("page faults report address and error", page_faults),
    ("a fault is repaired and the instruction runs again", fault_repair),
    ("exceptions report vector and error", exceptions),
    ("single steps pass over a system call", single_step),
    ("FS and GS bases are the user's", bases),
    ("FPU state goes in and out", fpu),
    ("a hostile FPU image loads the initial state", hostile_fpu),
    ("address spaces are apart", spaces),
    ("pending work keeps user code from starting", pending),
    ("a truncated file mapping is a bus error", truncated),
];

fn pattern() -> UserRegs {
    UserRegs {
        r15: 0x1500,
        r14: 0x1400,
        r13: 0x1300,
        r12: 0x1200,
        rbp: 0xb900,
        rbx: 0xb800,
        r10: 0x1000,
        r9: 0x900,
        r8: 0x800,
        rax: 0xa000,
        rdx: 0xd000,
        rsi: 0x5100,
        rdi: 0xd100,
        rsp: STACK + 0x800,
        fs_base: 0x1234_5000,
        gs_base: 0xffff_9000_0000_0000,
        rflags: 0x202 | 0x8d5,
        rip: CODE,
        rcx: 0,
        r11: 0,
    }
}

fn syscall_registers() -> Outcome {
    let mut process = Process::new(code!("syscall", "syscall"));
    process.regs = pattern();
    for round in 1..=2 {
        process.expect(TRAP_SYSCALL, 0, 0, 2 * round)?;
        let rip = CODE + 2 * round;
        let want = UserRegs { rip, rcx: rip, r11: 0x202 | 0x8d5, ..pattern() };
        holds("registers", process.regs == want)?;
    }
    Ok(())
}

fn changed_return() -> Outcome {
    let mut process = Process::new(code!("syscall", "ud2", "nop", "nop", "syscall"));
    process.regs = pattern();
    process.expect(TRAP_SYSCALL, 0, 0, 2)?;
    process.regs = UserRegs { rip: CODE + 4, rcx: 7, r11: 8, ..pattern() };
    process.expect(TRAP_SYSCALL, 0, 0, 8)?;
    let want = UserRegs { rip: CODE + 8, rcx: CODE + 8, r11: 0xad7, ..pattern() };
    holds("registers", process.regs == want)?;
    // An interrupt-like return keeps rcx and r11: seen through an exception.
    let mut process = Process::new(code!("ud2"));
    process.regs = UserRegs { rcx: 7, r11: 8, ..pattern() };
    process.expect(TRAP_EXCEPTION, 6, 0, 0)?;
    // A fault sets RF in the flags it saves.
    process.regs.rflags &= !(1 << 16);
    holds("all registers", process.regs == UserRegs { rcx: 7, r11: 8, ..pattern() })
}

fn page_faults() -> Outcome {
    let cases = [
        (code!("mov rax, [rdi]"), NOWHERE + 0x123, PF_USER),
        (code!("mov [rdi], rax"), NOWHERE + 0x456, PF_USER | PF_WRITE),
        (code!("mov [rdi], rax"), CODE + 0x800, PF_USER | PF_WRITE | PF_PRESENT),
        (code!("mov rax, [rdi]"), abi::layout::LINEAR_BASE_KVM + 0x1000, PF_USER | PF_PRESENT),
        (code!("mov rax, [rdi]"), 0xffff_ffff_ffff_f000, PF_USER),
    ];
    for (code, addr, error) in cases {
        let mut process = Process::new(code);
        process.regs.rdi = addr;
        let trap = process.run();
        same("kind", trap.kind, TRAP_PAGE_FAULT)?;
        same("address", trap.addr, addr)?;
        same("error", trap.error, error)?;
        same("rip", process.regs.rip, CODE)?;
    }
    for (addr, error) in [(DATA, PF_USER | PF_FETCH | PF_PRESENT), (NOWHERE, PF_USER | PF_FETCH)] {
        let mut process = Process::new(code!("jmp rdi"));
        process.regs.rdi = addr;
        let trap = process.run();
        same("kind", trap.kind, TRAP_PAGE_FAULT)?;
        same("address", trap.addr, addr)?;
        same("error", trap.error, error)?;
        same("rip", process.regs.rip, addr)?;
    }
    Ok(())
}

fn fault_repair() -> Outcome {
    let mut process = Process::new(code!("mov [rdi], rsi", "mov rax, [rdi]", "syscall"));
    process.regs.rdi = NOWHERE + 8;
    process.regs.rsi = 0x77;
    same("kind", process.run().kind, TRAP_PAGE_FAULT)?;
    let page = frame();
    process.space.map(NOWHERE, page, READ);
    let trap = process.run();
    same("error", trap.error, PF_USER | PF_WRITE | PF_PRESENT)?;
    process.space.map(NOWHERE, page, WRITE);
    same("kind", process.run().kind, TRAP_SYSCALL)?;
    same("rax", process.regs.rax, 0x77u64)?;
    same("memory", read_u64(page + 8), 0x77u64)
}

fn exceptions() -> Outcome {
    let cases = [
        (code!("ud2"), 6, 0, 0),
        (code!("xor edx, edx", "xor ecx, ecx", "div ecx"), 0, 0, 4),
        (code!("int3"), 3, 0, 1),
        (code!("int 3"), 3, 0, 1),
        (code!("int 4"), 4, 0, 2),
        (code!("hlt"), 13, 0, 0),
        (code!("cli"), 13, 0, 0),
        (code!("sti"), 13, 0, 0),
        (code!("in al, dx"), 13, 0, 0),
        (code!("out 0xd0, eax"), 13, 0, 0),
        (code!("mov rax, cr3"), 13, 0, 0),
        (code!("mov cr3, rax"), 13, 0, 0),
        (code!("mov rax, dr7"), 13, 0, 0),
        (code!("rdmsr"), 13, 0, 0),
        (code!("wrmsr"), 13, 0, 0),
        (code!("swapgs"), 13, 0, 0),
        (code!("sysretq"), 13, 0, 0),
        (code!("invlpg [rax]"), 13, 0, 0),
        (code!("lgdt [rsp]"), 13, 0, 0),
        (code!("lidt [rsp]"), 13, 0, 0),
        (code!("ltr ax"), 13, 0, 0),
        (code!("clts"), 13, 0, 0),
        (code!("wbinvd"), 13, 0, 0),
        (code!("xsetbv"), 13, 0, 0),
        (code!("mov rax, 0x8000000000000000", "mov rax, [rax]"), 13, 0, 10),
        (code!("mov eax, 0x10", "mov ss, eax"), 13, 0x10, 5),
        (code!("xor eax, eax", "mov ss, eax"), 13, 0, 2),
    ];
    for (code, vector, error, offset) in cases {
        let mut process = Process::new(code);
        process.expect(TRAP_EXCEPTION, vector, error, offset).inspect_err(|_| {
            crate::host::log(format_args!("        code {code:x?}"));
        })?;
    }
    refused_gates()?;
    // A stack outside the address space: a stack fault (QEMU's emulator: a protection fault).
    let mut process = Process::new(code!("mov rsp, 0x8000000000000000", "push rax"));
    let trap = process.run();
    holds("stack fault", trap.kind == TRAP_EXCEPTION && (trap.vector == 12 || trap.vector == 13))?;
    same("rip", process.regs.rip, CODE + 10)?;
    refused_segments()?;
    // An unaligned access with AC set. (QEMU's emulator does not check alignment and runs on.)
    let mut process = Process::new(code!("mov rax, [rsp + 1]", "syscall"));
    process.regs.rflags |= 1 << 18;
    let trap = process.run();
    holds("alignment", trap.kind == TRAP_SYSCALL || (trap.kind == TRAP_EXCEPTION && trap.vector == 17))
}

/// Gates that are not for user code. (QEMU's emulator names the table entry by another factor than processors do.)
fn refused_gates() -> Outcome {
    for (code, gate) in [(code!("int 0x80"), 0x80u64), (code!("int 0x20"), 0x20), (code!("int 14"), 14)] {
        let mut process = Process::new(code);
        let trap = process.run();
        same("kind", trap.kind, TRAP_EXCEPTION)?;
        same("vector", trap.vector, 13u32)?;
        holds("error", trap.error == gate * 8 + 2 || trap.error == gate * 16 + 2)?;
        same("rip", process.regs.rip, CODE)?;
    }
    Ok(())
}

/// Segments that are not for user code: 32-bit mode, the kernel's. (QEMU's emulator reads the stack of a far return with
/// the kernel's rights, which SMAP forbids.)
fn refused_segments() -> Outcome {
    for (code, selector) in
        [(code!("push 0x23", "push 0", "retfq"), 0x20), (code!("push 0x10", "push 0", "retfq"), 0x10)]
    {
        let mut process = Process::new(code);
        let trap = process.run();
        let emulator =
            trap.kind == TRAP_PAGE_FAULT && trap.error == PF_PRESENT && trap.addr == process.regs.rsp;
        holds(
            "refused",
            emulator || (trap.kind == TRAP_EXCEPTION && trap.vector == 13 && trap.error == selector),
        )?;
        same("rip", process.regs.rip, CODE + 4)?;
    }
    Ok(())
}

fn single_step() -> Outcome {
    const TF: u64 = 1 << 8;
    let mut process = Process::new(code!("nop", "nop", "syscall", "nop", "ud2"));
    process.regs.rflags |= TF;
    process.expect(TRAP_EXCEPTION, 1, 0, 1)?;
    process.expect(TRAP_EXCEPTION, 1, 0, 2)?;
    process.expect(TRAP_SYSCALL, 0, 0, 4)?;
    holds("TF is kept", process.regs.rflags & TF != 0)?;
    process.expect(TRAP_EXCEPTION, 1, 0, 5)?;
    process.regs.rflags &= !TF;
    process.expect(TRAP_EXCEPTION, 6, 0, 5)?;
    // A stack switch holds a debug exception back over the next instruction, the kernel's entry.
    let mut process = Process::new(code!("mov eax, ss", "mov ss, eax", "syscall", "nop"));
    process.regs.rflags |= TF;
    process.expect(TRAP_EXCEPTION, 1, 0, 2)?;
    process.expect(TRAP_SYSCALL, 0, 0, 6)?;
    let mut process = Process::new(code!("mov eax, ss", "mov ss, eax", "int3"));
    process.regs.rflags |= TF;
    process.expect(TRAP_EXCEPTION, 1, 0, 2)?;
    process.expect(TRAP_EXCEPTION, 3, 0, 5)
}

fn bases() -> Outcome {
    let mut process = Process::new(code!(
        "rdfsbase rax",
        "rdgsbase rbx",
        "wrfsbase rsi",
        "wrgsbase rdi",
        "syscall",
        "mov eax, 0x2b",
        "mov gs, eax",
        "ud2"
    ));
    process.regs.fs_base = 0x7000_1000;
    process.regs.gs_base = 0x7fff_ffff_f000;
    process.regs.rsi = 0xffff_8000_0000_0000;
    process.regs.rdi = 0x1234;
    same("kind", process.run().kind, TRAP_SYSCALL)?;
    same("fs read", process.regs.rax, 0x7000_1000u64)?;
    same("gs read", process.regs.rbx, 0x7fff_ffff_f000u64)?;
    same("fs written", process.regs.fs_base, 0xffff_8000_0000_0000u64)?;
    same("gs written", process.regs.gs_base, 0x1234u64)?;
    same("kind", process.run().kind, TRAP_EXCEPTION)?;
    same("gs after loading a selector", process.regs.gs_base, 0u64)?;
    same("fs", process.regs.fs_base, 0xffff_8000_0000_0000u64)?;
    same("kernel's own", cpus::header().cpu, 0u32)
}

#[repr(C, align(64))]
struct Area([u8; 4096]);

fn initial() -> Area {
    let mut area = Area([0; 4096]);
    // SAFETY: the area is aligned and large enough.
    unsafe { ring0::init_fpu(area.0.as_mut_ptr()) };
    area
}

fn restore(area: &Area) {
    // SAFETY: the area is aligned and large enough.
    unsafe { ring0::restore_fpu(area.0.as_ptr()) };
}

fn save(area: &mut Area) {
    // SAFETY: the area is aligned and large enough.
    unsafe { ring0::save_fpu(area.0.as_mut_ptr()) };
}

fn fpu() -> Outcome {
    let mut process = Process::new(code!(
        "movups [rdi], xmm5",
        "stmxcsr [rdi + 16]",
        "movups xmm7, [rsi]",
        "fld1",
        "syscall"
    ));
    let mut area = initial();
    area.0[512] = 3;
    area.0[160 + 5 * 16..160 + 6 * 16].copy_from_slice(&[0x5a; 16]);
    write(process.data + 0x100, &[0xc3; 16]);
    process.regs.rdi = DATA;
    process.regs.rsi = DATA + 0x100;
    restore(&area);
    same("kind", process.run().kind, TRAP_SYSCALL)?;
    same("xmm5 as restored", read_u64(process.data), 0x5a5a_5a5a_5a5a_5a5au64)?;
    same("mxcsr", read_u64(process.data + 16) & 0xffff_ffff, 0x1f80u64)?;
    let mut area = Area([0xff; 4096]);
    save(&mut area);
    holds("xmm7 is saved", area.0[160 + 7 * 16..160 + 8 * 16] == [0xc3; 16])?;
    holds("x87 is saved", area.0[32 + 7..32 + 10] == [0x80, 0xff, 0x3f])?;
    holds("the header is clean", area.0[520..576].iter().all(|b| *b == 0))
}

fn hostile_fpu() -> Outcome {
    for (at, value) in [(519, 0x80), (512, 0x08), (520, 1), (527, 0x80), (575, 1), (27, 1)] {
        let mut area = initial();
        area.0[512] |= 3;
        area.0[160..176].fill(0x11);
        area.0[at] = value;
        restore(&area);
        let mut process = Process::new(code!("movups [rdi], xmm0", "syscall"));
        process.regs.rdi = DATA;
        same("kind", process.run().kind, TRAP_SYSCALL)?;
        same("xmm0", read_u64(process.data), 0u64)?;
    }
    Ok(())
}

fn spaces() -> Outcome {
    let mut one = Process::new(code!("mov rax, [rdi]", "syscall", "mov rax, [rdi]", "syscall"));
    let mut two = Process::new(code!("mov rax, [rdi]", "syscall", "mov rax, [rdi]", "syscall"));
    write(one.data, &[1]);
    write(two.data, &[2]);
    for _ in 0..2 {
        for (process, value) in [(&mut one, 1u64), (&mut two, 2)] {
            process.space.load();
            process.regs.rdi = DATA;
            same("kind", process.run().kind, TRAP_SYSCALL)?;
            same("rax", process.regs.rax, value)?;
        }
    }
    Ok(())
}

fn pending() -> Outcome {
    let mut process = Process::new(code!("ud2"));
    let before = process.regs;
    cpus::header().pending.store(1, Ordering::SeqCst);
    same("kind", process.run().kind, TRAP_INTERRUPT)?;
    holds("registers", process.regs == before)?;
    cpus::header().pending.store(0, Ordering::SeqCst);
    process.expect(TRAP_EXCEPTION, 6, 0, 0)
}

/// The test's VMM maps a file of one page at the start of the file window.
fn truncated() -> Outcome {
    let mut process = Process::new(code!("mov rax, [rdi]", "mov rbx, [rsi]", "syscall"));
    process.space.map(NOWHERE, abi::layout::WINDOW_PHYS, READ);
    process.space.map(NOWHERE + 4096, abi::layout::WINDOW_PHYS + 4096, READ);
    process.regs.rdi = NOWHERE;
    process.regs.rsi = NOWHERE + 4096;
    for _ in 0..3 {
        process.expect(TRAP_BUS, 0, 0, 3)?;
        same("the byte that exists", process.regs.rax & 0xff, u64::from(b'f'))?;
    }
    process.regs.rsi = NOWHERE;
    same("kind", process.run().kind, TRAP_SYSCALL)
}
