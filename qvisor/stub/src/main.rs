//! The stub: runs application code under a seccomp filter and hands every trap to the VMM.
//!
//! The program starts as the *zygote* (`zygote.rs`), which forks a stub process for each address space. A stub
//! thread lives in its signal handler: user code runs between `rt_sigreturn` and the next signal.
//! It has no libc, no writable data of its own and no descriptors but those `area.rs` lists.
#![no_std]
#![no_main]

mod area;
mod sys;
mod zygote;

use core::arch::{asm, naked_asm};
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use abi::layout::{STUB_AREA, STUB_AREA_SIZE, USER_MAX};
use abi::run::{MAP_OP_MAP, MAP_OP_PROTECT, MAP_OP_UNMAP, MAP_OP_UNMAP_ALL, MapOp};

use area::*;

const PROT_BITS: u64 = 7;
const MAP_SHARED_FIXED: u64 = 0x11;
const MAP_POPULATE: u64 = 0x8000;
/// Runs longer than this are left to page faults.
const POPULATE_MAX: u64 = 2 << 20;
const MSG_FLAGS: u64 = 0x4000_0040; // MSG_CMSG_CLOEXEC | MSG_DONTWAIT
const EBADF: u32 = 9;
const EINVAL: u32 = 22;
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
    area.signal.store(signal, Relaxed);
    area.errno.store(0, Relaxed);
    area.frame.store(context - 8, Relaxed);
    if area.has_fsgsbase.load(Relaxed) != 0 {
        let (fs, gs): (u64, u64);
        // SAFETY: reads two registers; the VMM saw that the processor and the host allow it.
        unsafe { asm!("rdfsbase {}", "rdgsbase {}", out(reg) fs, out(reg) gs, options(nomem, nostack)) };
        area.trap_fs_base.store(fs, Relaxed);
        area.trap_gs_base.store(gs, Relaxed);
    }
    give_turn(area);
    serve(area, context)
}

/// A new thread's beginning: it waits for its first command.
unsafe extern "C" fn thread_main(area: u64) -> ! {
    let area = area_at(area);
    serve(area, area.frame_at.load(Relaxed) + 8)
}

#[inline(always)]
fn give_turn(area: &Area) {
    if area.turn.swap(0, SeqCst) & TURN_SLEEPS != 0 {
        // SAFETY: wakes whoever waits on the word.
        unsafe { sys::call(sys::FUTEX, [area.turn.as_ptr() as u64, sys::FUTEX_WAKE, 1, 0, 0, 0]) };
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

fn tsc() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Carries out commands until one says to run user code.
fn serve(area: &Area, context: u64) -> ! {
    loop {
        wait_turn(area);
        let command = area.command.load(Relaxed);
        let errno = match command {
            COMMAND_RUN | COMMAND_OPS => operate(area),
            COMMAND_SPAWN => {
                let id = spawn(area.argument.load(Relaxed));
                area.value.store(id.cast_unsigned(), Relaxed);
                errno_of(id)
            }
            _ => EINVAL,
        };
        if command == COMMAND_RUN && errno == 0 {
            load_bases(area);
            resume(context);
        }
        area.signal.store(0, Relaxed);
        area.errno.store(errno, Relaxed);
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

/// Carries out the area's operations; answers the errno of the first that failed. Later ones are skipped then, but
/// their descriptors are taken from the socket and closed.
fn operate(area: &Area) -> u32 {
    let len = (area.ops_len.load(Relaxed) as usize).min(OPS_MAX);
    let mut errno = 0;
    for i in 0..len {
        // SAFETY: `i` is below OPS_MAX, and it is the stub's turn.
        let op = unsafe { area.ops.get().cast::<MapOp>().add(i).read_volatile() };
        let result = one_operation(area, &op, errno == 0);
        if errno == 0 {
            errno = errno_of(result);
        }
    }
    errno
}

fn errno_of(result: i64) -> u32 {
    if result < 0 { u32::try_from(-result).unwrap_or(EINVAL) } else { 0 }
}

fn one_operation(area: &Area, op: &MapOp, wanted: bool) -> i64 {
    let prot = u64::from(op.prot) & PROT_BITS;
    if op.kind & 0xff == OP_MAP_RECEIVED {
        let fd = receive(area, op.kind >> OP_TAG_SHIFT);
        if fd < 0 {
            return -i64::from(EBADF);
        }
        let fd = fd.cast_unsigned();
        let args = [op.addr, op.len, prot, MAP_SHARED_FIXED, fd, op.phys];
        // SAFETY: changes only the user half, which this code does not use; `fd` was just received.
        unsafe {
            let result = if wanted { sys::call(sys::MMAP, args) } else { 0 };
            sys::call(sys::CLOSE, [fd, 0, 0, 0, 0, 0]);
            return result;
        }
    }
    if !wanted {
        return 0;
    }
    let fd_user = FD_USER as u64;
    let flags = if op.len <= POPULATE_MAX { MAP_SHARED_FIXED | MAP_POPULATE } else { MAP_SHARED_FIXED };
    // SAFETY: changes only the user half (the filter sees to that), which this code does not use.
    unsafe {
        match op.kind {
            MAP_OP_MAP => sys::call(sys::MMAP, [op.addr, op.len, prot, flags, fd_user, op.phys]),
            MAP_OP_UNMAP => sys::call(sys::MUNMAP, [op.addr, op.len, 0, 0, 0, 0]),
            MAP_OP_PROTECT => sys::call(sys::MPROTECT, [op.addr, op.len, prot, 0, 0, 0]),
            MAP_OP_UNMAP_ALL => sys::call(sys::MUNMAP, [0, USER_MAX, 0, 0, 0, 0]),
            _ => -i64::from(EINVAL),
        }
    }
}

#[repr(C)]
struct Iovec {
    base: *mut u32,
    len: u64,
}

#[repr(C)]
struct Message {
    name: u64,
    name_len: u64,
    iov: *mut Iovec,
    iov_len: u64,
    control: *mut [u64; 3],
    control_len: u64,
    flags: u64,
}

/// Takes the descriptor that came with `tag` from the vCPU's socket; older messages are dropped. -1: there is none.
fn receive(area: &Area, tag: u32) -> i64 {
    loop {
        let mut found = u32::MAX;
        // struct cmsghdr (length 8, level 4, type 4), then one descriptor.
        let mut control = [0_u64; 3];
        let mut iov = Iovec { base: &raw mut found, len: 4 };
        let mut message = Message {
            name: 0,
            name_len: 0,
            iov: &raw mut iov,
            iov_len: 1,
            control: &raw mut control,
            control_len: 24,
            flags: 0,
        };
        let socket = u64::from(area.socket.load(Relaxed));
        let at = (&raw mut message) as u64;
        // SAFETY: the buffers are this function's own.
        let result = unsafe { sys::call(sys::RECVMSG, [socket, at, MSG_FLAGS, 0, 0, 0]) };
        if result < 0 {
            return -1;
        }
        // SAFETY: own array, written by the call.
        let control = unsafe { (&raw const control).read_volatile() };
        // SAFETY: own variable, written by the call.
        let found = unsafe { (&raw const found).read_volatile() };
        if control[0] < 20 {
            continue;
        }
        let fd = i64::from((control[2] & 0xffff_ffff) as u32);
        if result == 4 && found == tag {
            return fd;
        }
        // SAFETY: nobody else knows this descriptor.
        unsafe { sys::call(sys::CLOSE, [fd.cast_unsigned(), 0, 0, 0, 0, 0]) };
    }
}

/// Starts the thread of area `index`, with its stack below the place of its signal frame.
fn spawn(index: u64) -> i64 {
    let area = STUB_AREA + index * STUB_AREA_SIZE;
    let stack = area_at(area).frame_at.load(Relaxed) & !15;
    // SAFETY: the area belongs to a thread that does not exist yet.
    unsafe { clone_thread(THREAD_FLAGS, stack, area) }
}

/// `clone` with a new stack; the child calls [`thread_main`] with `area`.
#[unsafe(naked)]
unsafe extern "C" fn clone_thread(flags: u64, stack: u64, area: u64) -> i64 {
    naked_asm!(
        "mov r9, rdx",
        "xor edx, edx",
        "xor r10d, r10d",
        "xor r8d, r8d",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2: mov rdi, r9",
        "xor ebp, ebp",
        "call {main}",
        "ud2",
        clone = const sys::CLONE,
        main = sym thread_main,
    )
}

/// Last step of a new stub process: drops the zygote's pages and becomes the first thread.
unsafe extern "C" fn begin_process() -> ! {
    // SAFETY: nothing of the zygote is used from here on; the stack is in the area already.
    let result = unsafe { sys::call(sys::MUNMAP, [ZYGOTE_TEXT, ZYGOTE_END - ZYGOTE_TEXT, 0, 0, 0, 0]) };
    if result < 0 {
        die();
    }
    // SAFETY: the areas are mapped, and the VMM set the first one up.
    unsafe { thread_main(STUB_AREA) }
}
