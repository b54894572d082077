//! The zygote: set up once a sandbox, it forks stub processes on request.
//!
//! All of it lies in the section `.zygote`; a stub process unmaps it before it runs any application code. The zygote
//! itself never runs such code. Its filter allows every call that the zygote or a stub needs at some time; each process
//! adds a closer filter for each of its two kinds of threads.

use core::arch::{asm, naked_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::Relaxed;

use abi::layout::{STUB_AREA, STUB_AREA_SIZE, STUB_TEXT};

use crate::area::*;
use crate::{area_at, begin_process, die, give_turn, on_signal, sys, wait_turn};

const PROT_READ: u64 = 1;
const PROT_RW: u64 = 3;
const MAP_SHARED_FIXED: u64 = 0x11;
const PR_SET_PDEATHSIG: u64 = 1;
const PR_SET_NO_NEW_PRIVS: u64 = 38;
const SIGKILL: u64 = 9;
const SA_FLAGS: u64 = 0x0c00_0004; // SA_ONSTACK | SA_RESTORER | SA_SIGINFO
const TASK_END: u64 = 0x7fff_ffff_f000;
const STACK_BYTES: usize = 0x2000;

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; STACK_BYTES]>);
// SAFETY: the zygote has one thread.
unsafe impl Sync for Stack {}
static STACK: Stack = Stack(UnsafeCell::new([0; STACK_BYTES]));

#[repr(C)]
struct SigAction {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// The ELF's entry: leaves the initial stack, which goes away.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".zygote")]
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "lea rsp, [rip + {stack} + {size}]",
        "xor ebp, ebp",
        "call {main}",
        "ud2",
        stack = sym STACK,
        size = const STACK_BYTES,
        main = sym main,
    )
}

#[unsafe(link_section = ".zygote")]
unsafe extern "C" fn main() -> ! {
    if map_areas(0, STUB_AREA_SIZE) < 0 {
        die();
    }
    let area = area_at(STUB_AREA);
    // Everything but the ELF and the area is unmapped: the initial stack, the vDSO, and other mappings of the host
    // kernel.
    unmap(0, STUB_TEXT);
    unmap(ZYGOTE_END, STUB_AREA);
    unmap(STUB_AREA + STUB_AREA_SIZE, TASK_END);
    handle_signals();
    prepare(area);
    // The VMM gave the zygote the first turn to set itself up.
    give_turn(area);
    loop {
        wait_turn(area);
        let result = if area.command.load(Relaxed) == COMMAND_FORK { fork(area) } else { -22 };
        area.value.store(result.cast_unsigned(), Relaxed);
        area.errno.store(u32::from(result < 0), Relaxed);
        give_turn(area);
    }
}

#[inline(always)]
fn map_areas(offset: u64, len: u64) -> i64 {
    let fd = FD_FILE as u64;
    // SAFETY: the place is reserved for the areas.
    unsafe { sys::call(sys::MMAP, [STUB_AREA, len, PROT_RW, MAP_SHARED_FIXED, fd, offset]) }
}

#[inline(always)]
fn unmap(start: u64, end: u64) {
    // SAFETY: nothing there is used any more.
    if unsafe { sys::call(sys::MUNMAP, [start, end - start, 0, 0, 0, 0]) } < 0 {
        die();
    }
}

#[inline(always)]
fn handle_signals() {
    let all = u64::MAX;
    let action = SigAction {
        handler: on_signal as *const () as u64,
        flags: SA_FLAGS,
        restorer: die_restorer as *const () as u64,
        mask: all,
    };
    for signal in SIGNALS {
        // SAFETY: the structure lives through the call.
        let result = unsafe {
            sys::call(sys::RT_SIGACTION, [u64::from(signal), (&raw const action) as u64, 0, 8, 0, 0])
        };
        if result < 0 {
            die();
        }
    }
    // SAFETY: as above. Signals are taken in user code only; its mask comes with the frame.
    unsafe { sys::call(sys::RT_SIGPROCMASK, [2, (&raw const all) as u64, 0, 8, 0, 0]) };
}

/// The host kernel insists on a restorer; the handler never returns to it.
#[unsafe(naked)]
unsafe extern "C" fn die_restorer() {
    naked_asm!("ud2")
}

#[inline(always)]
fn die_with_parent(area: &Area) {
    // SAFETY: these calls touch no memory.
    unsafe {
        sys::call(sys::PRCTL, [PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0]);
        if sys::call(sys::GETPPID, [0; 6]) != i64::from(area.vmm_pid.load(Relaxed)) {
            die();
        }
    }
}

#[inline(always)]
fn prepare(area: &Area) {
    die_with_parent(area);
    let program = area.filter.as_ptr() as u64;
    // SAFETY: the VMM put the filter there.
    let result = unsafe {
        sys::call(sys::PRCTL, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0])
            | sys::call(sys::SECCOMP, [sys::SECCOMP_SET_MODE_FILTER, 0, program, 0, 0, 0])
    };
    if result < 0 {
        die();
    }
}

/// Forks a stub process as a sibling, so that the VMM is its parent.
#[unsafe(link_section = ".zygote")]
#[inline(never)]
fn fork(area: &Area) -> i64 {
    let offset = area.argument.load(Relaxed);
    let (orders, orders_fd) = (area.orders_at.load(Relaxed), u64::from(area.orders_fd.load(Relaxed)));
    let len = area.areas_len.load(Relaxed);
    let vmm = area.vmm_pid.load(Relaxed);
    // SAFETY: a plain fork; both sides go on here, the child on its own copy of the stack.
    let pid = unsafe { sys::call(sys::CLONE, [FORK_FLAGS, 0, 0, 0, 0, 0]) };
    if pid != 0 {
        return pid;
    }
    // SAFETY: the place is reserved for it. Never writable: neither here nor later, since the filters let nobody change
    // what lies here.
    let mapped = unsafe {
        sys::call(sys::MMAP, [STUB_ORDERS, ORDERS_SIZE, PROT_READ, MAP_SHARED_FIXED, orders_fd, orders])
    };
    // The areas of this process take the place of the zygote's.
    if mapped < 0 || map_areas(offset, len) < 0 {
        die();
    }
    // SAFETY: as above.
    unsafe {
        sys::call(sys::PRCTL, [PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0]);
        if sys::call(sys::GETPPID, [0; 6]) != i64::from(vmm) {
            die();
        }
        let stack = area_at(STUB_AREA).frame_at.load(Relaxed) & !15;
        asm!("mov rsp, {}", "call {}", "ud2", in(reg) stack, sym begin_process, options(noreturn))
    }
}
