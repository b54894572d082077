//! The stub: runs application code under a seccomp filter and hands every trap to the VMM.
//!
//! The program starts as the *zygote* (`zygote.rs`), which forks a stub process for each address space. A stub thread
//! lives in its signal handler: user code runs between `rt_sigreturn` and the next signal. It can wait for its turn and
//! nothing else; a further thread of each process, the mapper thread, changes the mappings and starts threads
//! (`mapper.rs`).
//! It has no libc, no writable data of its own and no descriptors.
#![no_std]
#![no_main]

mod area;
mod call;
mod mapper;
mod sys;
mod zygote;

use core::arch::asm;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use abi::layout::{STUB_AREA, STUB_AREA_SIZE, STUB_TEXT};

use area::*;

const EINVAL: u32 = 22;
/// Offset of RIP in a `ucontext`.
const CONTEXT_RIP: u64 = 168;
const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    die()
}

/// Ends the process: the trap's signal is blocked in all of this code, and a blocked one kills.
#[inline(always)]
fn die() -> ! {
    // SAFETY: does not return, touches nothing.
    unsafe { asm!("ud2", options(noreturn)) }
}

fn area_at(address: u64) -> &'static Area {
    // SAFETY: every area this is called for is mapped before, and stays as long as the process.
    unsafe { &*((address & !(STUB_AREA_SIZE - 1)) as *const Area) }
}

/// Every signal's handler. Does not return: user code goes on with `rt_sigreturn` from here.
unsafe extern "C" fn on_signal(signal: u32, _info: u64, context: u64) -> ! {
    let area = area_at(context);
    // SAFETY: the frame is whole.
    let address = unsafe { *((context + CONTEXT_RIP) as *const u64) };
    let signal = if !(STUB_TEXT..ZYGOTE_TEXT).contains(&address) {
        area.has_call.store(0, Relaxed);
        signal
    } else if let Some(signal) = call::interrupted(area, signal, address) {
        signal
    } else {
        resume(context)
    };
    area.is_calling.store(0, Relaxed);
    area.signal.store(signal, Relaxed);
    area.errno.store(0, Relaxed);
    area.frame.store(context - 8, Relaxed);
    note_place(area);
    give_turn(area);
    serve(area, context)
}

/// Tells the core that this runs on, and the bases of user code.
#[inline(always)]
fn note_place(area: &Area) {
    area.core.store(current_core(), Relaxed);
    if area.has_fsgsbase.load(Relaxed) != 0 {
        let (fs, gs): (u64, u64);
        // SAFETY: reads two registers; the VMM saw that the processor and the host allow it.
        unsafe { asm!("rdfsbase {}", "rdgsbase {}", out(reg) fs, out(reg) gs, options(nomem, nostack)) };
        area.trap_fs_base.store(fs, Relaxed);
        area.trap_gs_base.store(gs, Relaxed);
    }
}

/// A new thread's beginning, under its filter: it waits for its first command.
unsafe extern "C" fn thread_main(area: u64) -> ! {
    let area = area_at(area);
    serve(area, area.frame_at.load(Relaxed) + 8)
}

#[inline(always)]
fn give_turn(area: &Area) {
    if area.turn.swap(0, SeqCst) & TURN_SLEEPS != 0 {
        // SAFETY: wakes all threads that wait on the word, so that none of them can take the wake-up from the VMM.
        unsafe { sys::call(sys::FUTEX, [area.turn.as_ptr() as u64, sys::FUTEX_WAKE, sys::EVERYBODY, 0, 0, 0]) };
    }
}

#[inline(always)]
fn wait_turn(area: &Area) {
    let start = tsc();
    let spin = area.spin_cycles.load(Relaxed);
    loop {
        let turn = area.turn.load(Acquire);
        if turn & TURN_STUB != 0 {
            return;
        }
        if turn & TURN_PARK == 0 && tsc().wrapping_sub(start) < spin {
            core::hint::spin_loop();
            continue;
        }
        let asleep = turn | TURN_SLEEPS;
        if turn == asleep || area.turn.compare_exchange(turn, asleep, SeqCst, Relaxed).is_ok() {
            let word = area.turn.as_ptr() as u64;
            // SAFETY: sleeps while the word has this value.
            unsafe { sys::call(sys::FUTEX, [word, sys::FUTEX_WAIT, u64::from(asleep), 0, 0, 0]) };
        }
    }
}

/// The core this runs on: Linux keeps its number in the limit of a segment, for programs to read.
#[inline(always)]
fn current_core() -> u32 {
    const CPU_AND_NODE: u32 = 0x7b;
    let limit: u32;
    // SAFETY: reads a descriptor's limit; nothing is loaded.
    unsafe { asm!("lsl {0:e}, {1:e}", out(reg) limit, in(reg) CPU_AND_NODE, options(nomem, nostack)) };
    limit & 0xfff
}

fn tsc() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Carries out commands until one says to run user code.
fn serve(area: &Area, context: u64) -> ! {
    loop {
        wait_turn(area);
        if area.command.load(Relaxed) == COMMAND_RUN {
            load_bases(area);
            resume(context);
        }
        area.signal.store(0, Relaxed);
        area.errno.store(EINVAL, Relaxed);
        give_turn(area);
    }
}

#[inline(always)]
fn load_bases(area: &Area) {
    let bases = area.bases.load(Relaxed);
    if bases == 0 {
        return;
    }
    let (fs, gs) = (area.fs_base.load(Relaxed), area.gs_base.load(Relaxed));
    let direct = area.has_fsgsbase.load(Relaxed) != 0;
    // SAFETY: the bases belong to user code; this code uses neither FS nor GS. The VMM gives canonical addresses.
    unsafe {
        match (bases & SET_FS != 0, direct) {
            (true, true) => asm!("wrfsbase {}", in(reg) fs, options(nomem, nostack)),
            (true, false) => drop(sys::call(sys::ARCH_PRCTL, [ARCH_SET_FS, fs, 0, 0, 0, 0])),
            _ => {}
        }
        match (bases & SET_GS != 0, direct) {
            (true, true) => asm!("wrgsbase {}", in(reg) gs, options(nomem, nostack)),
            (true, false) => drop(sys::call(sys::ARCH_PRCTL, [ARCH_SET_GS, gs, 0, 0, 0, 0])),
            _ => {}
        }
    }
}

/// Loads the user state of the frame whose `ucontext` is at `context`.
#[inline(always)]
fn resume(context: u64) -> ! {
    // SAFETY: the stack below the frame is given up; the frame is the kernel's or one the VMM wrote.
    unsafe {
        asm!("mov rsp, {}", "syscall", "ud2", in(reg) context, in("rax") sys::RT_SIGRETURN, options(noreturn))
    }
}

/// Last steps of a new stub process: drops the zygote's pages, starts the mapper, gives up everything that the filter
/// does not allow, and becomes the first thread.
unsafe extern "C" fn begin_process() -> ! {
    let area = area_at(STUB_AREA);
    // SAFETY: nothing of the zygote is used from here on; the stack is in the area already. The mapper uses no stack,
    // and has a copy of the descriptors.
    let result = unsafe {
        sys::call(sys::MUNMAP, [ZYGOTE_TEXT, ZYGOTE_END - ZYGOTE_TEXT, 0, 0, 0, 0]) | mapper::start()
    };
    if result < 0 {
        die();
    }
    while area.mapper_ready.load(Acquire) == 0 {
        // SAFETY: sleeps while the word is zero.
        unsafe { sys::call(sys::FUTEX, [area.mapper_ready.as_ptr() as u64, sys::FUTEX_WAIT, 0, 0, 0, 0]) };
    }
    let program = STUB_ORDERS + core::mem::offset_of!(Orders, application_filter) as u64;
    // SAFETY: the VMM put the filter there; nobody else can.
    let result = unsafe {
        sys::call(sys::CLOSE_RANGE, [0, u64::from(u32::MAX), 0, 0, 0, 0])
            | sys::call(sys::SECCOMP, [sys::SECCOMP_SET_MODE_FILTER, 0, program, 0, 0, 0])
    };
    if result < 0 {
        die();
    }
    // SAFETY: the areas are mapped, and the VMM set the first one up.
    unsafe { thread_main(STUB_AREA) }
}
