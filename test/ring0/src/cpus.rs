//! Several CPUs, interrupts and idling.

use abi::layout::{CPU_AREA_PHYS, CPU_AREA_SIZE};
use abi::run::{CpuHeader, TRAP_INTERRUPT};
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::linear;
use crate::user::Process;
use crate::{Outcome, Test, code, holds, host, same};

pub const TESTS: &[Test] = &[
    ("a deadline interrupts a busy loop", deadline),
    ("a deadline that moves later comes later", moved_deadline),
    ("a kick does not put a deadline off", kicked_deadline),
    ("a timer that fires for nothing is known to have fired", useless_alarm),
    ("an idle CPU wakes at its deadline", idle_deadline),
    ("a kick wakes an idle CPU", kick_idle),
    ("a kick interrupts a busy CPU", kick_busy),
    ("kicks are never lost", kick_storm),
];

const IDLE: u32 = 0;
const SPIN: u32 = 1;
const KICK_BACK: u32 = 2;

/// The order for the second CPU, and how often it came back to the kernel.
static ORDER: AtomicU32 = AtomicU32::new(IDLE);
static ROUNDS: AtomicU64 = AtomicU64::new(0);
static IN_SPIN: AtomicU32 = AtomicU32::new(0);

/// This CPU's header.
pub fn header() -> &'static CpuHeader {
    let header: *const CpuHeader;
    // SAFETY: GS base is the header while kernel code runs.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) header, options(nostack, preserves_flags));
        &*header
    }
}

fn other() -> &'static CpuHeader {
    // SAFETY: the VMM lays out the headers there; all fields that change are atomic or the owner's.
    unsafe { &*(linear(CPU_AREA_PHYS + CPU_AREA_SIZE) as *const CpuHeader) }
}

/// The second CPU: carries out its order, and counts every time it is called back.
pub fn second(_cpu: u32) -> ! {
    let mut spinner = None;
    host::no_deadline();
    loop {
        header().pending.store(0, Ordering::SeqCst);
        if ORDER.load(Ordering::SeqCst) == SPIN {
            let process = spinner.get_or_insert_with(|| Process::new(code!("2: inc rbx", "jmp 2b")));
            IN_SPIN.store(1, Ordering::SeqCst);
            process.run();
            IN_SPIN.store(0, Ordering::SeqCst);
        } else if is_order_to_kick() {
            host::kick(0);
        } else {
            host::idle();
        }
        ROUNDS.fetch_add(1, Ordering::SeqCst);
    }
}

/// Takes the order to kick the first CPU, which holds once.
fn is_order_to_kick() -> bool {
    ORDER.compare_exchange(KICK_BACK, IDLE, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// Much later than anything is on an emulated machine, and sooner than what else would come.
const LATE_NS: u64 = 10_000_000_000;

/// Waits until the condition holds, until it is late.
fn wait_for(what: &'static str, condition: impl Fn() -> bool) -> Outcome {
    let end = host::monotonic_ns() + LATE_NS;
    while !condition() {
        if host::monotonic_ns() > end {
            return holds(what, false);
        }
        core::hint::spin_loop();
    }
    Ok(())
}

fn order(what: u32) {
    ORDER.store(what, Ordering::SeqCst);
    host::kick(1);
}

fn deadline() -> Outcome {
    let mut process = Process::new(code!("2: inc rbx", "jmp 2b"));
    for _ in 0..10 {
        let before = process.regs.rbx;
        let start = host::monotonic_ns();
        host::deadline_in(5_000_000);
        let trap = process.run();
        let took = host::monotonic_ns() - start;
        same("kind", trap.kind, TRAP_INTERRUPT)?;
        holds("the loop ran", process.regs.rbx > before)?;
        holds("not early", took >= 5_000_000)?;
        holds("not late", took < LATE_NS)?;
        same("pending", header().pending.swap(0, Ordering::SeqCst), 1u32)?;
    }
    host::no_deadline();
    Ok(())
}

/// A deadline moved later without a word: the timer that fires early is armed again.
fn moved_deadline() -> Outcome {
    let mut process = Process::new(code!("2: inc rbx", "jmp 2b"));
    // On a busy host the early deadline may come before it is moved: then again.
    let start = loop {
        header().pending.store(0, Ordering::SeqCst);
        host::deadline_in(3_000_000);
        let start = host::monotonic_ns();
        header().deadline_ns.store(start + 30_000_000, Ordering::SeqCst);
        if header().pending.load(Ordering::SeqCst) == 0 {
            break start;
        }
    };
    let trap = process.run();
    let took = host::monotonic_ns() - start;
    header().pending.store(0, Ordering::SeqCst);
    host::no_deadline();
    same("kind", trap.kind, TRAP_INTERRUPT)?;
    holds("at the later time", took >= 30_000_000)
}

/// The VMM was told of a deadline, and is kicked while there is a later one: it still fires at the first.
fn kicked_deadline() -> Outcome {
    for _ in 0..100 {
        host::deadline_in(10_000_000);
        let told = header().deadline_ns.load(Ordering::SeqCst);
        header().deadline_ns.store(told + 5_000_000_000, Ordering::SeqCst);
        let before = ROUNDS.load(Ordering::SeqCst);
        order(KICK_BACK);
        wait_for("it was kicked back", || {
            header().pending.load(Ordering::SeqCst) != 0 && ROUNDS.load(Ordering::SeqCst) > before
        })?;
        let alarm = header().alarm_ns.load(Ordering::SeqCst);
        header().pending.store(0, Ordering::SeqCst);
        host::no_deadline();
        // On a busy host it may have fired by now: then again.
        if host::monotonic_ns() < told {
            return holds("the timer fires in time", alarm <= told);
        }
    }
    holds("a kick came in time", false)
}

/// There is no deadline any more when the timer fires: the next one has to be told.
fn useless_alarm() -> Outcome {
    for _ in 0..100 {
        header().pending.store(0, Ordering::SeqCst);
        host::deadline_in(3_000_000);
        let told = header().deadline_ns.load(Ordering::SeqCst);
        host::no_deadline();
        // On a busy host the deadline may come before it is taken back, and is repeated until it is looked at: then again.
        if header().pending.load(Ordering::SeqCst) != 0 {
            continue;
        }
        same("alarm", header().alarm_ns.load(Ordering::SeqCst).min(told), told)?;
        wait_for("it is known", || header().alarm_ns.load(Ordering::SeqCst) == u64::MAX)?;
        return holds("not early", host::monotonic_ns() >= told);
    }
    holds("a deadline was taken back in time", false)
}

fn idle_deadline() -> Outcome {
    header().pending.store(0, Ordering::SeqCst);
    let start = host::monotonic_ns();
    header().deadline_ns.store(start + 10_000_000, Ordering::SeqCst);
    host::idle();
    let took = host::monotonic_ns() - start;
    host::no_deadline();
    header().pending.store(0, Ordering::SeqCst);
    holds("not early", took >= 10_000_000)?;
    holds("not late", took < LATE_NS)
}

fn kick_idle() -> Outcome {
    for _ in 0..20 {
        let before = ROUNDS.load(Ordering::SeqCst);
        order(IDLE);
        wait_for("the other CPU woke", || ROUNDS.load(Ordering::SeqCst) > before)?;
    }
    Ok(())
}

fn kick_busy() -> Outcome {
    order(SPIN);
    wait_for("the other CPU spins", || IN_SPIN.load(Ordering::SeqCst) == 1)?;
    for _ in 0..20 {
        let before = ROUNDS.load(Ordering::SeqCst);
        host::kick(1);
        wait_for("the other CPU was interrupted", || ROUNDS.load(Ordering::SeqCst) > before)?;
    }
    Ok(())
}

/// Kicks at all moments, of a CPU that goes back to user code at once: each is followed by a round.
fn kick_storm() -> Outcome {
    order(SPIN);
    for i in 0..500u64 {
        let before = ROUNDS.load(Ordering::SeqCst);
        host::kick(1);
        for _ in 0..i * 7 % 97 {
            core::hint::spin_loop();
        }
        wait_for("a round followed the kick", || ROUNDS.load(Ordering::SeqCst) > before)?;
    }
    order(IDLE);
    wait_for("nothing pending", || other().pending.load(Ordering::SeqCst) == 0)
}
