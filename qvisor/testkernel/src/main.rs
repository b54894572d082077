//! A kernel that tries the VMM. Its first argument names a case; it ends with status 0, or panics.
#![no_std]
#![no_main]
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

mod bench;
mod host;
mod takeover;
mod user;

use core::sync::atomic::{AtomicU64, Ordering::*};

use abi::boot::BootInfo;
use abi::hostcall::*;
use abi::layout::*;
use abi::run::*;

use host::*;

const DATA: u64 = 0x50_0000;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    send(PANIC, format_args!("{info}"));
    loop {
        core::hint::spin_loop();
    }
}

#[unsafe(no_mangle)]
extern "C" fn _start(boot: &'static BootInfo, cpu: u32) -> ! {
    if cpu != 0 {
        wait_for_init();
        second_cpu();
    }
    check_boot(boot);
    init(boot);
    match argument(boot) {
        "boot" => log!("hello from the kernel"),
        "syscalls" => syscalls(),
        "faults" => faults(),
        "fpu" => fpu(boot),
        "bases" => bases(),
        "shared" => shared(),
        "interrupts" => interrupts(),
        "lost" => lost(),
        "wreck" => wreck(),
        "hijack" => hijack(),
        "takeover" => takeover::takeover(),
        "threads" => threads(),
        "idle" => idle(),
        "kicks" => kicks(),
        "sleep" => sleep(),
        "window" => window(),
        "operations" => operations(),
        "afresh" => afresh(),
        "stuck" => loop {
            core::hint::spin_loop();
        },
        "long" => gives_way(boot, 5, 1),
        "contended" => gives_way(boot, 30, 0),
        "kernel-fault" => unsafe { (0x123_4567_8000 as *mut u8).write_volatile(1) },
        "overflow" => overflow(0),
        "bench" => bench::bench(),
        "bench-two" => bench::bench_two(),
        other => panic!("no case {other:?}"),
    }
    exit(0)
}

fn check_boot(boot: &BootInfo) {
    if boot.version != abi::ABI_VERSION || boot.tsc_hz < 100_000_000 || boot.random_seed == [0; 32] {
        panic!("boot information {boot:?}");
    }
}

fn syscalls() {
    let mut task = Task::new(user::syscalls());
    task.run.regs.rflags = u64::MAX;
    task.run.regs.rbx = 0x1122_3344_5566_7788;
    // The trap flag is the application's to set: a single step.
    let trap = task.run();
    check_eq!((trap.kind, trap.vector), (TRAP_EXCEPTION, 1));
    task.run.regs.rflags &= !0x100;
    task.expect_call(39);
    check_eq!(task.run.regs.rcx, task.run.regs.rip);
    check_eq!(task.run.regs.rbx, 0x1122_3344_5566_7788);
    check_eq!(task.run.regs.rflags & 0x200, 0x200);
    check_eq!(task.run.regs.rflags & 0x3000, 0);
    task.run.regs.rax = 1234;
    task.expect_call(110);
    check_eq!(task.run.regs.rdi, 1234);
    check_eq!(task.expect(TRAP_EXCEPTION).vector, 6);
    task.destroy();
}

fn faults() {
    let mut task = Task::new(user::faults());
    (task.run.regs.rdi, task.run.regs.rsi) = (DATA + 8, DATA + 0x1010);
    let trap = task.expect(TRAP_PAGE_FAULT);
    check_eq!((trap.addr, trap.error), (DATA + 8, PF_USER));
    let frames = user_frames(2);
    unsafe { linear::<u64>(frames + 8).write_volatile(42) };
    let trap = task.run_with(&[map(DATA, frames, 2, PROT_READ)]);
    check_eq!((trap.kind, trap.addr), (TRAP_PAGE_FAULT, DATA + 0x1010));
    check_eq!(trap.error, PF_USER | PF_WRITE | PF_PRESENT);
    let protect = MapOp { kind: MAP_OP_PROTECT, prot: 3, addr: DATA + 0x1000, len: 0x1000, phys: 0 };
    check_eq!(task.run_with(&[protect]).kind, TRAP_SYSCALL);
    check_eq!(unsafe { linear::<u64>(frames + 0x1010).read_volatile() }, 42);
    for (vector, skip) in [(6, 2), (3, 0), (0, 2), (13, 1), (13, 2), (13, 3)] {
        let trap = task.expect(TRAP_EXCEPTION);
        check_eq!(trap.vector, vector);
        task.run.regs.rip += skip;
    }
    check_eq!(task.expect(TRAP_EXCEPTION).vector, 6);
    // Not even a fetch from where nothing can be.
    task.run.regs.rip = 0x6000_0000;
    let trap = task.expect(TRAP_PAGE_FAULT);
    check_eq!((trap.addr, trap.error & PF_FETCH), (0x6000_0000, PF_FETCH));
    task.run.regs.rip = 0x8000_0000_0000_0000;
    check_eq!(task.expect(TRAP_EXCEPTION).vector, 13);
    // A stack pointer in the stub's signal stack does no harm.
    task.run.regs.rip = CODE + user::syscalls();
    task.run.regs.rsp = STUB_AREA + STUB_AREA_SIZE - 64;
    task.expect_call(39);
    task.destroy();
}

fn fpu(boot: &BootInfo) {
    let image = kernel_pages(4);
    let len = 4 * 4096;
    let mut task = Task::new(user::fpu());
    let mut other = Task::new(user::fpu());
    task.run.regs.rdi = 0xaaaa_bbbb_cccc_dddd;
    other.run.regs.rdi = 0x1111_2222_3333_4444;
    task.expect_call(1);
    other.expect_call(1);
    check_eq!(call(AS_SAVE_FPU, &[task.id, image, len]), 0);
    check_eq!(unsafe { ((image + 160) as *const u64).read_volatile() }, 0xaaaa_bbbb_cccc_dddd);
    let header = unsafe { ((image + 512) as *const [u64; 8]).read_volatile() };
    check_eq!(header[0] & !boot.xsave_mask, 0);
    check_eq!(header[1..].iter().all(|word| *word == 0), true);
    check_eq!(unsafe { ((image + 464) as *const [u64; 6]).read_volatile() }, [0; 6]);
    check_eq!(call(AS_SAVE_FPU, &[task.id, image, 512]), -22);
    // The other one gets this one's registers; components the host does not know, and reserved bits, are dropped.
    unsafe {
        let parts = (image + 512) as *mut u64;
        parts.write(parts.read() | 1 << 62);
        ((image + 520) as *mut u64).write(1 << 63);
        ((image + 24) as *mut u32).write(0xffff_1f80);
    }
    other.run.fpu_load = image;
    for task in [&mut other, &mut task] {
        task.expect_call(2);
        check_eq!((task.run.regs.rdi, task.run.regs.rsi), (0xaaaa_bbbb_cccc_dddd, 0xaaaa_bbbb_cccc_dddd));
    }
}

fn bases() {
    let mut task = Task::new(user::bases());
    let frame = user_frames(1);
    for i in 0..8 {
        unsafe { linear::<u64>(frame + 8 * i).write_volatile(100 + i) };
    }
    (task.run.regs.fs_base, task.run.regs.gs_base) = (DATA, DATA + 8);
    check_eq!(task.run_with(&[map(DATA, frame, 1, PROT_READ)]).kind, TRAP_SYSCALL);
    check_eq!((task.run.regs.rdi, task.run.regs.rsi), (100, 101));
    check_eq!((task.run.regs.fs_base, task.run.regs.gs_base), (DATA, DATA + 8));
    task.expect_call(2);
    check_eq!(task.run.regs.rdi, 101);
    check_eq!(task.run.regs.fs_base, DATA + 8);
    // A base that no user may have does not hurt the stub.
    task.run.regs.rip = CODE + user::syscalls();
    task.run.regs.fs_base = 1 << 63;
    task.expect_call(39);
}

/// Two address spaces share a frame, as after a fork.
fn shared() {
    let frame = user_frames(1);
    let mut parent = Task::new(user::count());
    let mut child = Task::new(user::count());
    for (task, _) in [(&mut parent, 0), (&mut child, 1)] {
        (task.run.regs.rdi, task.run.regs.rsi) = (DATA, 10);
        check_eq!(task.run_with(&[map(DATA, frame, 1, PROT_READ | PROT_WRITE)]).kind, TRAP_SYSCALL);
    }
    check_eq!((parent.run.regs.r12, child.run.regs.r12), (0, 1));
    // Write-protected in one of them only.
    let protect = MapOp { kind: MAP_OP_PROTECT, prot: PROT_READ, addr: DATA, len: 4096, phys: 0 };
    check_eq!(child.sync(&[protect]), 0);
    parent.expect_call(1);
    check_eq!(parent.run.regs.r12, 2);
    check_eq!(child.expect(TRAP_PAGE_FAULT).error, PF_USER | PF_WRITE | PF_PRESENT);
    let copy = user_frames(1);
    unsafe { linear::<u64>(copy).write_volatile(70) };
    check_eq!(child.run_with(&[map(DATA, copy, 1, PROT_READ | PROT_WRITE)]).kind, TRAP_SYSCALL);
    check_eq!(child.run.regs.r12, 70);
    // Released memory is gone for both the kernel and the stub.
    check_eq!(call(RELEASE, &[frame, 4096]), 0);
    check_eq!(unsafe { linear::<u64>(frame).read_volatile() }, 0);
    parent.expect_call(1);
    check_eq!(parent.run.regs.r12, 0);
    parent.destroy();
    child.expect_call(1);
    check_eq!(child.run.regs.r12, 71);
}

fn interrupts() {
    let mut task = Task::new(user::spin());
    for i in 0..20 {
        let start = now();
        header().deadline_ns.store(start + 2_000_000, SeqCst);
        check_eq!(task.run_with(&[]).kind, TRAP_INTERRUPT);
        let took = now() - start;
        if !(1_900_000..=20_000_000_000).contains(&took) {
            panic!("round {i}: interrupted after {took} ns");
        }
        let at = task.run.regs.rip.wrapping_sub(CODE + user::spin());
        check_eq!((at < 8, at), (true, at));
    }
    header().deadline_ns.store(u64::MAX, SeqCst);
    // Pending: no user code runs, registers stay; operations and FPU state are taken over all the same.
    header().pending.store(1, SeqCst);
    let before = task.run.regs;
    let trap = task.run_with(&[map(DATA, user_frames(1), 1, PROT_READ)]);
    check_eq!((trap.kind, task.run.regs == before), (TRAP_INTERRUPT, true));
    header().pending.store(0, SeqCst);
    task.run.regs.rip = CODE + user::faults();
    (task.run.regs.rdi, task.run.regs.rsi) = (DATA, DATA);
    check_eq!(task.expect(TRAP_PAGE_FAULT).error, PF_USER | PF_WRITE | PF_PRESENT);
    // The host posts an event while user code runs.
    task.run.regs.rip = CODE + user::spin();
    log!("post");
    check_eq!(task.run().kind, TRAP_INTERRUPT);
    check_eq!(header().pending.swap(0, SeqCst), 1);
    let mut event = Event::default();
    check_eq!(call(EVENTS, &[phys((&raw mut event).cast()), 1]), 1);
    check_eq!(unsafe { (&raw const event).read_volatile() }.value, 77);
}

fn lost() {
    let mut task = Task::new(user::spin());
    header().deadline_ns.store(now() + 1_000_000, SeqCst);
    check_eq!(task.run_with(&[]).kind, TRAP_INTERRUPT);
    header().deadline_ns.store(u64::MAX, SeqCst);
    log!("kill");
    task.expect(TRAP_LOST);
    task.expect(TRAP_LOST);
    check_eq!(task.sync(&[]), 0);
    check_eq!(task.sync(&[map(DATA, user_frames(1), 1, PROT_READ)]), -3);
    task.destroy();
    // The ready ones may have been hit as well.
    loop {
        let id = call(AS_CREATE, &[]) as u64;
        let mut task = Task::thread(id, user::syscalls());
        let trap = task.run();
        check_eq!(call(AS_DESTROY, &[id]), 0);
        if trap.kind == TRAP_PAGE_FAULT {
            break;
        }
        check_eq!(trap.kind, TRAP_LOST);
    }
}

/// User code that takes the turn away from its own stub gets nothing but trouble.
fn wreck() {
    let mut task = Task::new(user::wreck());
    task.run.regs.rdi = STUB_AREA;
    header().deadline_ns.store(now() + 10_000_000, SeqCst);
    for _ in 0..1000 {
        let trap = task.run_with(&[]);
        if trap.kind == TRAP_LOST {
            break;
        }
    }
    task.destroy();
    header().deadline_ns.store(u64::MAX, SeqCst);
    // Zeros all over the area: the frame, the restorer's state, all of it.
    let mut task = Task::new(user::touch());
    task.run.regs.rdi = STUB_AREA + 1024;
    task.run.regs.rsi = 1000;
    let trap = task.run();
    if trap.kind != TRAP_PAGE_FAULT && trap.kind != TRAP_LOST {
        panic!("{trap:?}");
    }
    task.destroy();
    let mut task = Task::new(user::syscalls());
    task.expect_call(39);
}

/// User code that jumps into the stub's text cannot make other system calls than the stub.
fn hijack() {
    let mut found = 0;
    for offset in 0..0x800 {
        let mut task = Task::new(user::jump());
        task.run.regs.rdi = STUB_TEXT + offset;
        task.run.regs.rax = 39;
        header().deadline_ns.store(now() + 3_000_000, SeqCst);
        for _ in 0..3 {
            let trap = task.run_with(&[]);
            if trap.kind == TRAP_SYSCALL && task.run.regs.rip > STUB_TEXT && task.run.regs.rax == 39 {
                found += 1;
            }
            if trap.kind != TRAP_INTERRUPT {
                break;
            }
        }
        task.destroy();
    }
    log!("{found} system call instructions reached, all of them trapped");
    if found == 0 {
        panic!("no system call instruction was reached");
    }
    header().deadline_ns.store(u64::MAX, SeqCst);
    Task::new(user::syscalls()).expect_call(39);
}

static SHARED_ID: AtomicU64 = AtomicU64::new(0);
static SHARED_FRAME: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);
static KICKS: AtomicU64 = AtomicU64::new(0);
const ROUNDS: u64 = 2000;

fn count_up(id: u64) {
    let mut task = Task::thread(id, user::count());
    (task.run.regs.rdi, task.run.regs.rsi) = (DATA, ROUNDS);
    let mut seen = None;
    for _ in 0..ROUNDS {
        task.expect_call(1);
        if seen.is_some_and(|seen| seen >= task.run.regs.r12) {
            panic!("the counter went back");
        }
        seen = Some(task.run.regs.r12);
    }
    task.expect_call(2);
}

/// Two vCPUs run threads of one address space at the same time.
fn threads() {
    let mut task = Task::new(user::spin());
    let frame = user_frames(1);
    check_eq!(task.sync(&[map(DATA, frame, 1, PROT_READ | PROT_WRITE)]), 0);
    SHARED_FRAME.store(frame, SeqCst);
    header().deadline_ns.store(now() + 200_000_000, SeqCst);
    SHARED_ID.store(task.id, SeqCst);
    check_eq!(call(KICK, &[1]), 0);
    // The other vCPU needs a stub thread while this one runs user code.
    let mut rounds = 0;
    while task.run_with(&[]).kind == TRAP_INTERRUPT && DONE.load(SeqCst) == 0 {
        rounds += 1;
        if now() > header().deadline_ns.load(SeqCst) {
            header().deadline_ns.store(now() + 200_000_000, SeqCst);
        }
    }
    log!("{rounds} interrupts");
    header().deadline_ns.store(u64::MAX, SeqCst);
    count_up(task.id);
    while DONE.load(SeqCst) < 2 {
        call(YIELD, &[]);
    }
    check_eq!(unsafe { linear::<u64>(frame).read_volatile() }, 3 * ROUNDS);
}

fn second_cpu() -> ! {
    loop {
        call(IDLE, &[]);
        header().pending.store(0, SeqCst);
        if KICKS.load(SeqCst) & 1 == 1 {
            KICKS.fetch_add(1, SeqCst);
            call(KICK, &[0]);
        }
        if bench::NULL_CALLS.load(SeqCst) == 1 {
            let mut task = Task::new(user::null());
            while bench::NULL_CALLS.load(SeqCst) == 1 {
                task.run_with(&[]);
            }
        }
        let id = SHARED_ID.swap(0, SeqCst);
        if id != 0 {
            count_up(id);
            DONE.fetch_add(1, SeqCst);
            call(KICK, &[0]);
            count_up(id);
            DONE.fetch_add(1, SeqCst);
        }
    }
}

fn idle() {
    let start = now();
    header().deadline_ns.store(start + 5_000_000, SeqCst);
    check_eq!(call(IDLE, &[]), 0);
    let took = now() - start;
    if !(4_900_000..=20_000_000_000).contains(&took) {
        panic!("idle for {took} ns");
    }
    header().deadline_ns.store(u64::MAX, SeqCst);
    log!("post");
    check_eq!(call(IDLE, &[]), 0);
    check_eq!(header().pending.load(SeqCst), 1);
    // Still pending: does not sleep.
    check_eq!(call(IDLE, &[]), 0);
}

/// Runs a little user code and sleeps for good.
fn sleep() {
    Task::new(user::null()).expect_call(39);
    log!("asleep");
    loop {
        call(IDLE, &[]);
        header().pending.store(0, SeqCst);
    }
}

/// Works for so many seconds, unless it is ended before, and gives the core away meanwhile.
fn gives_way(boot: &BootInfo, seconds: u64, progress: u64) {
    let now = || unsafe { core::arch::x86_64::_rdtsc() };
    let end = now() + seconds * boot.tsc_hz;
    while now() < end {
        call(YIELD, &[progress]);
    }
}

/// Two vCPUs wake each other by turns: no wake-up may be lost.
fn kicks() {
    for _ in 0..20_000 {
        KICKS.fetch_add(1, SeqCst);
        call(KICK, &[1]);
        while KICKS.load(SeqCst) & 1 == 1 {
            call(IDLE, &[]);
            header().pending.store(0, SeqCst);
        }
    }
}

fn window() {
    log!("map window");
    let window = WINDOW_PHYS + 5 * WINDOW_CHUNK;
    let frame = user_frames(1);
    check_eq!(call(WINDOW_COPY, &[frame, window + 8, 8]), 0);
    check_eq!(unsafe { linear::<u64>(frame).read_volatile() }, u64::from_le_bytes(*b"efgh4567"));
    let mut task = Task::new(user::faults());
    (task.run.regs.rdi, task.run.regs.rsi) = (DATA + 8, DATA);
    // Five batches of descriptors, at other places first.
    let mut ops = [MapOp::default(); 150];
    for (i, op) in (1..).zip(&mut ops) {
        *op = map(DATA + i * 0x10000, window, 1, PROT_READ);
    }
    check_eq!(task.sync(&ops), 0);
    let trap = task.run_with(&[map(DATA, window, 2, PROT_READ)]);
    check_eq!((trap.kind, trap.addr, trap.error), (TRAP_PAGE_FAULT, DATA, PF_USER | PF_WRITE | PF_PRESENT));
    check_eq!(task.run.regs.rax, u64::from_le_bytes(*b"efgh4567"));
    // The chunk is mapped read-only.
    task.run_with(&[map(DATA, window, 1, PROT_READ | PROT_WRITE)]);
    check_eq!(task.ops_errno, 13);
    task.run.regs.rip = CODE + user::faults();
    task.run.regs.rdi = DATA + 0x1008;
    log!("truncate window");
    let trap = task.expect(TRAP_BUS);
    check_eq!(trap.addr, DATA + 0x1008);
    check_eq!(call(WINDOW_COPY, &[frame, window + 0x1000, 8]), -14);
    check_eq!(call(WINDOW_UNMAP, &[5]), 0);
    task.run_with(&[map(DATA, window, 1, PROT_READ)]);
    check_eq!(task.ops_errno, 14);
}

fn operations() {
    let mut task = Task::new(user::touch());
    let frame = user_frames(1);
    let good = map(DATA, frame, 1, PROT_READ | PROT_WRITE);
    let bad = [
        MapOp { addr: USER_MAX, ..good },
        MapOp { addr: USER_MAX - 0x1000, len: 0x2000, ..good },
        MapOp { addr: DATA + 1, ..good },
        MapOp { len: 0, ..good },
        MapOp { len: !0xfff, ..good },
        MapOp { prot: 8, ..good },
        MapOp { kind: 16, ..good },
        MapOp { kind: 0, ..good },
        MapOp { phys: KERNEL_IMAGE_PHYS, ..good },
        MapOp { phys: CPU_AREA_PHYS, ..good },
        MapOp { phys: USER_PHYS_MAX - 0x1000, ..good },
        MapOp { phys: WINDOW_PHYS, ..good },
        MapOp { kind: MAP_OP_UNMAP, addr: STUB_TEXT, ..good },
    ];
    for op in bad {
        let errno = task.sync(&[op]);
        if errno != -22 && errno != -14 {
            panic!("{op:x?}: {errno}");
        }
        task.run_with(&[good, op]);
        check_eq!(task.ops_errno, errno.unsigned_abs());
    }
    // Protecting what is not mapped fails in the stub.
    let hole = MapOp { kind: MAP_OP_PROTECT, prot: PROT_READ, addr: DATA + 0x10_0000, len: 4096, phys: 0 };
    check_eq!(task.sync(&[hole]), -12);
    task.run_with(&[hole]);
    check_eq!(task.ops_errno, 12);
    many_operations(&mut task, good);
}

/// A thousand operations in one call, each page on its own, so that none can be merged; then more mappings than the host
/// allows.
fn many_operations(task: &mut Task, good: MapOp) {
    let frames = user_frames(2000);
    let page = kernel_pages(8) as *mut MapOp;
    for i in 0..1000 {
        unsafe {
            page.add(i as usize).write(map(DATA + i * 4096, frames + 2 * i * 4096, 1, PROT_READ | PROT_WRITE))
        };
    }
    let ops = unsafe { core::slice::from_raw_parts(page, 1000) };
    (task.run.regs.rdi, task.run.regs.rsi) = (DATA, 1000);
    check_eq!(task.run_with(ops).kind, TRAP_SYSCALL);
    check_eq!(unsafe { linear::<u8>(frames + 1998 * 4096).read_volatile() }, 1);
    check_eq!(unsafe { linear::<u8>(frames + 1997 * 4096).read_volatile() }, 0);
    // All of it away, and a far end of the user half.
    let all = MapOp { kind: MAP_OP_UNMAP_ALL, ..MapOp::default() };
    let code = MapOp { addr: USER_MAX - 4096, ..good };
    check_eq!(task.run_with(&[all, code]).kind, TRAP_PAGE_FAULT);
    check_eq!(task.run.trap.error, PF_USER | PF_FETCH);
    // More mappings than the host allows.
    let mut errno = 0;
    for round in 0..80 {
        for i in 0..1000_u64 {
            let at = 0x1_0000_0000 + (round * 1000 + i) * 8192;
            unsafe { page.add(i as usize).write(map(at, good.phys, 1, PROT_READ)) };
        }
        errno = task.sync(ops);
        if errno != 0 {
            break;
        }
    }
    check_eq!(errno, -12);
    check_eq!(task.sync(&[all]), 0);
}

/// An address space sees nothing of a former one.
fn afresh() {
    for round in 0..50 {
        let mut task = Task::new(user::fpu());
        let trap = Task::thread(task.id, user::spin())
            .run_with(&[MapOp { kind: MAP_OP_UNMAP_ALL, ..MapOp::default() }]);
        check_eq!((round, trap.kind, trap.error), (round, TRAP_PAGE_FAULT, PF_USER | PF_FETCH));
        check_eq!(task.sync(&[map(DATA, user_frames(1), 1, PROT_READ | PROT_WRITE)]), 0);
        let mut probe = Task::thread(task.id, user::faults());
        (probe.run.regs.rdi, probe.run.regs.rsi) = (DATA, DATA + 0x10_0000);
        let trap = probe.run();
        check_eq!((trap.kind, trap.error), (TRAP_PAGE_FAULT, PF_USER | PF_FETCH));
        task.run.regs.rdi = 1;
        task.destroy();
    }
    check_eq!(call(AS_DESTROY, &[1]), -3);
    check_eq!(call(AS_DESTROY, &[u64::MAX]), -3);
    check_eq!(call(AS_RUN, &[12345, initial_fpu()]), -3);
}

#[allow(unconditional_recursion)]
fn overflow(depth: u64) {
    let buffer = [depth; 64];
    core::hint::black_box(&buffer);
    overflow(depth + 1);
    core::hint::black_box(&buffer);
}
