//! Operations that never leave the guest, and the time they take.

use abi::run::{TRAP_PAGE_FAULT, TRAP_SYSCALL};

use crate::memory::{WRITE, frame};
use crate::user::Process;
use crate::{Outcome, Test, code, host, same};

pub const TESTS: &[Test] = &[
    ("system calls cause no exit", syscalls),
    ("page faults cause no exit", faults),
    ("hostcalls answer", hostcalls),
];

/// Logs the time of one of `rounds`. The test's VMM counts exits between the two marks.
fn measure(what: &str, rounds: u64, mut work: impl FnMut() -> Outcome) -> Outcome {
    host::log(format_args!("exits"));
    let start = host::monotonic_ns();
    work()?;
    let end = host::monotonic_ns();
    host::log(format_args!("exits {what}"));
    host::log(format_args!("time    {what}: {} ns", (end - start) / rounds));
    Ok(())
}

fn syscalls() -> Outcome {
    let rounds = 100_000;
    let mut process = Process::new(code!("2: syscall", "jmp 2b"));
    measure("null system call", rounds, || {
        for _ in 0..rounds {
            same("kind", process.run().kind, TRAP_SYSCALL)?;
        }
        Ok(())
    })?;
    let mut process = Process::new(code!("2: syscall", "jmp 2b"));
    measure("null system call, returning by iretq", rounds, || {
        for _ in 0..rounds {
            process.run();
            process.regs.rcx = 0;
        }
        Ok(())
    })
}

fn faults() -> Outcome {
    let rounds = 2000u64;
    let mut process = Process::new(code!("2: mov [rdi], rsi", "add rdi, 4096", "jmp 2b"));
    let start = 0x1000_0000;
    process.regs.rdi = start;
    // Twice over the same frames: the first time the host has to find memory for them.
    let frames = frame();
    for _ in 1..rounds {
        frame();
    }
    for round in ["first touch of host memory", "page fault on backed memory"] {
        let mut process = Process {
            regs: process.regs,
            ..Process::new(code!("2: mov [rdi], rsi", "add rdi, 4096", "jmp 2b"))
        };
        measure(round, rounds, || {
            for i in 0..rounds {
                let trap = process.run();
                same("kind", trap.kind, TRAP_PAGE_FAULT)?;
                same("addr", trap.addr, start + i * 4096)?;
                process.space.map(start + i * 4096, frames + i * 4096, WRITE);
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn hostcalls() -> Outcome {
    let rounds = 2000;
    let start = host::monotonic_ns();
    for _ in 0..rounds {
        host::monotonic_ns();
    }
    host::log(format_args!("time    hostcall: {} ns", (host::monotonic_ns() - start) / rounds));
    Ok(())
}
