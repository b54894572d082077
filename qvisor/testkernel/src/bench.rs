//! Measurements.

use core::sync::atomic::{AtomicU64, Ordering::*};

use abi::hostcall::*;
use abi::layout::*;
use abi::run::*;

use crate::host::*;
use crate::{check_eq, log, user};

pub fn bench() {
    let mut task = Task::new(user::null());
    for _ in 0..1000 {
        task.expect_call(39);
    }
    let rounds = 100_000;
    let start = now();
    for _ in 0..rounds {
        task.run_with(&[]);
    }
    log!("null round trip: {} ns", (now() - start) / rounds);
    address_spaces();
    many_address_spaces();
    first_touches(&mut task);
    first_touches_in_runs(&mut task);
    kernels_touches();
    two_spaces(task);
}

/// Making, first running and ending an address space.
fn address_spaces() {
    let rounds = 500;
    let (mut create, mut first, mut destroy) = (0, 0, 0);
    for _ in 0..rounds {
        let start = now();
        let id = call(AS_CREATE, &[]) as u64;
        let created = now();
        let mut task = Task::thread(id, user::syscalls());
        let op = [map(CODE, USER_PHYS, 1, PROT_READ | PROT_EXEC)];
        task.run_with(&op);
        let ran = now();
        task.destroy();
        let destroyed = now();
        create += created - start;
        first += ran - created;
        destroy += destroyed - ran;
    }
    log!(
        "address space: create {} ns, first run {} ns, destroy {} ns",
        create / rounds,
        first / rounds,
        destroy / rounds
    );
}

/// More address spaces at once than are kept ready: each is forked and killed.
fn many_address_spaces() {
    let rounds = 100;
    let start = now();
    for _ in 0..rounds / 20 {
        let mut ids = [0; 20];
        for id in &mut ids {
            *id = call(AS_CREATE, &[]) as u64;
        }
        for id in ids {
            call(AS_DESTROY, &[id]);
        }
    }
    log!("address space, 20 at a time: {} ns", (now() - start) / rounds);
}

const PAGES: u64 = 4096;

/// The first touches of pages, one fault each.
fn first_touches(task: &mut Task) {
    let pages = PAGES;
    let frames = user_frames(pages);
    (task.run.regs.rip, task.run.regs.rdi, task.run.regs.rsi) = (CODE + user::touch(), 0x1000_0000, pages);
    let start = now();
    let mut traps = 0;
    let mut trap = task.run();
    while trap.kind == TRAP_PAGE_FAULT {
        traps += 1;
        let at = trap.addr & !0xfff;
        let frame = frames + (at - 0x1000_0000);
        unsafe { linear::<u64>(frame).write_volatile(0) };
        trap = task.run_with(&[map(at, frame, 1, PROT_READ | PROT_WRITE)]);
    }
    check_eq!((trap.kind, traps), (TRAP_SYSCALL, pages));
    log!("first touch: {} ns a page", (now() - start) / pages);
}

/// Pages that are touched once more, brought in runs of 16 as fault-around does it.
fn first_touches_in_runs(task: &mut Task) {
    let pages = PAGES;
    let unmap = MapOp { kind: MAP_OP_UNMAP, prot: 0, addr: 0x1000_0000, len: pages * PAGE_SIZE, phys: 0 };
    check_eq!(task.sync(&[unmap]), 0);
    let frames = user_frames(pages);
    (task.run.regs.rip, task.run.regs.rdi, task.run.regs.rsi) = (CODE + user::touch(), 0x1000_0000, pages);
    let start = now();
    let mut trap = task.run();
    while trap.kind == TRAP_PAGE_FAULT {
        let at = trap.addr & !0xffff;
        let frame = frames + (at - 0x1000_0000);
        for i in 0..16 {
            unsafe { linear::<u64>(frame + i * PAGE_SIZE).write_volatile(0) };
        }
        trap = task.run_with(&[map(at, frame, 16, PROT_READ | PROT_WRITE)]);
    }
    log!("first touch in runs of 16: {} ns a page", (now() - start) / pages);
}

/// The part that the kernel's own touch of new pages has.
fn kernels_touches() {
    let pages = PAGES;
    let start = now();
    let fresh = user_frames(pages);
    for i in 0..pages {
        unsafe { linear::<u64>(fresh + i * PAGE_SIZE).write_volatile(0) };
    }
    log!("of it the kernel's touch: {} ns a page", (now() - start) / pages);
}

/// Null system calls on two vCPUs at once.
pub fn bench_two() {
    let mut task = Task::new(user::null());
    for _ in 0..1000 {
        task.expect_call(39);
    }
    NULL_CALLS.store(1, SeqCst);
    call(KICK, &[1]);
    let rounds = 50_000;
    let start = now();
    for _ in 0..rounds {
        task.run_with(&[]);
    }
    log!("null round trip, two busy vCPUs: {} ns", (now() - start) / rounds);
    NULL_CALLS.store(0, SeqCst);
}

pub static NULL_CALLS: AtomicU64 = AtomicU64::new(0);

/// Two processes on one vCPU, by turns.
fn two_spaces(mut task: Task) {
    let mut other = Task::new(user::null());
    task.run.regs.rip = CODE + user::null();
    let rounds = 5_000;
    let start = now();
    for _ in 0..rounds {
        task.run_with(&[]);
        other.run_with(&[]);
    }
    log!("switch between address spaces: {} ns", (now() - start) / (2 * rounds));
}
