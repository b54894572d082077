//! Application code that has taken over its stub: it jumps to the stub's own system call instructions with registers of
//! its choice, and writes where the stub and its mapper look.

use abi::layout::{STUB_AREA, STUB_TEXT, USER_PHYS};
use abi::run::*;
use core::sync::atomic::Ordering::SeqCst;

use crate::host::*;
use crate::{DATA, check_eq, log, user};

/// More than the stub's text.
const TEXT_BYTES: u64 = 0x1000;
/// Where a process sees its orders.
const STUB_ORDERS: u64 = STUB_TEXT + 0x800_0000;
const THREAD_FLAGS: u64 = 0x0005_0f00;
const X32: u64 = 0x4000_0000;

/// The calls that such code may try, with arguments that would do harm.
const CALLS: &[(u64, [u64; 6])] = &[
    (0, [0, DATA, 8, 0, 0, 0]),                       // read
    (1, [4, DATA, 8, 0, 0, 0]),                       // write: an answer of a mapper's
    (2, [DATA, 0, 0, 0, 0, 0]),                       // open
    (3, [0, 0, 0, 0, 0, 0]),                          // close
    (9, [DATA, 0x1000, 3, 0x11, 0, 0]),               // mmap of user memory: another process's frame
    (9, [DATA, 0x1000, 3, 0x32, u64::MAX, 0]),        // mmap of anonymous memory
    (9, [STUB_ORDERS, 0x1000, 3, 0x32, u64::MAX, 0]), // mmap in place of the orders
    (10, [STUB_ORDERS, 0x1000, 3, 0, 0, 0]),          // mprotect
    (10, [STUB_TEXT, 0x1000, 7, 0, 0, 0]),
    (11, [STUB_AREA, 0x8000, 0, 0, 0, 0]),             // munmap
    (13, [11, DATA, 0, 8, 0, 0]),                      // rt_sigaction
    (14, [0, DATA, 0, 8, 0, 0]),                       // rt_sigprocmask
    (25, [DATA, 0x1000, 0x2000, 1, 0, 0]),             // mremap
    (41, [1, 1, 0, 0, 0, 0]),                          // socket
    (46, [2, DATA, 0, 0, 0, 0]),                       // sendmsg
    (47, [2, DATA, 0, 0, 0, 0]),                       // recvmsg: files of others
    (56, [17, 0, 0, 0, 0, 0]),                         // clone of a process
    (56, [THREAD_FLAGS, STUB_AREA + 0x7000, 0, 0, 0, STUB_AREA]), // clone of a thread that nobody knows of
    (56, [THREAD_FLAGS & !0x400, 0, 0, 0, 0, 0]),      // clone of another mapper
    (56, [THREAD_FLAGS | 0x1000_0000, 0, 0, 0, 0, 0]), // clone into a user namespace
    (57, [0; 6]),                                      // fork
    (59, [DATA, 0, 0, 0, 0, 0]),                       // execve
    (62, [1, 9, 0, 0, 0, 0]),                          // kill
    (101, [16, 1, 0, 0, 0, 0]),                        // ptrace: attach
    (157, [4, 1, 0, 0, 0, 0]),                         // prctl
    (200, [1, 9, 0, 0, 0, 0]),                         // tkill
    (202, [DATA, 3, 1, 0, 0, 0]),                      // futex: requeue
    (202, [STUB_ORDERS, 0, 0, 0, 0, 0]),               // futex: wait for what wakes the mapper
    (202, [STUB_AREA, 3, 1, 0, 0, 0]),
    (8, [2, 1, 0, 0, 0, 0]),                           // lseek: another thread's id
    (436, [0, u64::MAX, 2, 0, 0, 0]),                  // close_range
    (234, [1, 1, 9, 0, 0, 0]),                         // tgkill
    (257, [u64::MAX, DATA, 0, 0, 0, 0]),               // openat
    (310, [1, DATA, 1, DATA, 1, 0]),                   // process_vm_readv
    (311, [1, DATA, 1, DATA, 1, 0]),                   // process_vm_writev
    (317, [1, 0, DATA, 0, 0, 0]),                      // seccomp
    (322, [u64::MAX, DATA, 0, 0, 0, 0]),               // execveat
    (425, [1, DATA, 0, 0, 0, 0]),                      // io_uring_setup
    (434, [1, 0, 0, 0, 0, 0]),                         // pidfd_open
    (435, [DATA, 88, 0, 0, 0, 0]),                     // clone3
    (438, [0, 0, 0, 0, 0, 0]),                         // pidfd_getfd
    (X32 + 9, [DATA, 0x1000, 3, 0x11, 0, 0]),          // mmap as an x32 program would
    (X32 + 39, [0; 6]),
    (X32 + 202, [DATA, 1, 1, 0, 0, 0]),
    (X32 + 512, [0; 6]),
];

/// Runs it until it traps. On a busy host it may be interrupted before it has begun.
fn run_on(task: &mut Task) -> TrapInfo {
    for _ in 0..200 {
        let trap = task.run_with(&[]);
        if trap.kind != TRAP_INTERRUPT || task.run.regs.rip >= STUB_TEXT {
            return trap;
        }
        header().pending.store(0, SeqCst);
        header().deadline_ns.store(now() + 3_000_000, SeqCst);
    }
    task.run.trap
}

/// A task that jumps to `target` with a call's registers.
fn leap(target: u64, number: u64, args: [u64; 6]) -> Task {
    let mut task = Task::new(user::leap());
    let regs = &mut task.run.regs;
    (regs.r15, regs.rax) = (target, number);
    [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = args;
    header().deadline_ns.store(now() + 3_000_000, SeqCst);
    task
}

/// Where the stub's text has a system call instruction: one that traps at once, with the registers it was given.
fn instructions() -> ([u64; 64], usize) {
    let (mut found, mut count) = ([0; 64], 0);
    for offset in 0..TEXT_BYTES {
        let mut task = leap(STUB_TEXT + offset, 39, [0; 6]);
        let trap = run_on(&mut task);
        if trap.kind == TRAP_SYSCALL && task.run.regs.rip == STUB_TEXT + offset + 2 && count < found.len() {
            found[count] = STUB_TEXT + offset;
            count += 1;
        }
        task.destroy();
    }
    (found, count)
}

pub fn takeover() {
    let (found, count) = instructions();
    if count < 4 {
        panic!("{count} system call instructions reached");
    }
    for target in &found[..count] {
        for (number, args) in CALLS {
            let mut task = leap(*target, *number, *args);
            let trap = run_on(&mut task);
            let regs = &task.run.regs;
            if trap.kind != TRAP_SYSCALL || regs.rax != *number || regs.rip != target + 2 {
                panic!("call {number} at {target:#x}: {trap:?}, rax {:#x}, rip {:#x}", regs.rax, regs.rip);
            }
            task.destroy();
        }
    }
    log!("{count} system call instructions, {} calls each: all of them trapped", CALLS.len());
    header().deadline_ns.store(u64::MAX, SeqCst);
    orders_cannot_be_written();
    mappings_are_what_was_ordered();
}

/// Neither are the pages that a mapper takes its orders from, nor the stub's text.
fn orders_cannot_be_written() {
    for address in [STUB_ORDERS, STUB_ORDERS + 8, STUB_ORDERS + 256, STUB_TEXT] {
        let mut task = Task::new(user::poke());
        task.run.regs.rdi = address;
        let trap = task.expect(TRAP_PAGE_FAULT);
        check_eq!((trap.addr, trap.error & PF_WRITE), (address, PF_WRITE));
        task.destroy();
    }
}

/// Whatever is written to the area, where messages are received and turns are taken, an order maps the frame that the
/// kernel named.
fn mappings_are_what_was_ordered() {
    let frames = user_frames(2);
    unsafe { linear::<u64>(frames).write_volatile(0x1111) };
    unsafe { linear::<u64>(frames + 4096).write_volatile(0x2222) };
    let mut task = Task::new(user::poke());
    task.run.regs.rdi = STUB_AREA + 256;
    task.run.regs.rsi = frames + 4096 - USER_PHYS;
    task.expect_call(1);
    check_eq!(task.sync(&[map(DATA, frames, 1, PROT_READ)]), 0);
    let mut reader = Task::thread(task.id, user::faults());
    (reader.run.regs.rdi, reader.run.regs.rsi) = (DATA, DATA);
    // The read succeeds, the write traps.
    let trap = reader.expect(TRAP_PAGE_FAULT);
    check_eq!((trap.addr, reader.run.regs.rax), (DATA, 0x1111));
    check_eq!(trap.error & PF_WRITE, PF_WRITE);
    task.destroy();
}
