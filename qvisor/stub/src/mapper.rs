//! The mapper thread of a stub process: carries out the system calls that the VMM orders, and answers. It also starts the
//! process's further threads, since threads that run application code have no `clone`.
//!
//! It shares its memory with application code that may do anything there, so it uses no memory that such code can
//! write: orders come in pages that are read-only in every thread, everything else is in registers, answers go through a
//! pipe that only mapper threads have, and a new thread's id through a file position. A thread that it starts reads no
//! other memory either before it has the filter of application threads.

use core::arch::naked_asm;
use core::mem::offset_of;

use abi::layout::STUB_AREA;

use crate::area::{
    Area, CLOSE_RANGE_UNSHARE, Call, FD_FILE, FD_IDS, MAPPER_FLAGS, Orders, STUB_ORDERS, THREAD_FLAGS,
};
use crate::{sys, thread_main};

const READY: u64 = STUB_AREA + offset_of!(Area, mapper_ready) as u64;
const TID: u64 = STUB_AREA + offset_of!(Area, mapper_tid) as u64;
const FILTER: u64 = STUB_ORDERS + offset_of!(Orders, mapper_filter) as u64;
const ORDERS_FD: u64 = STUB_AREA + offset_of!(Area, orders_fd) as u64;

/// Lines of assembly as one text.
macro_rules! lines {
    ($($line:literal),* $(,)?) => { concat!($($line, "\n"),*) };
}

/// The first steps of the mapper thread. Nobody runs application code yet: the area can still be believed.
macro_rules! set_up {
    () => {
        lines!(
            "2: mov edi, {file}",
            "mov eax, {close}",
            "syscall",
            "movabs rdi, {orders_fd}",
            "mov edi, [rdi]",
            "mov eax, {close}",
            "syscall",
            "mov edi, {set_filter}",
            "xor esi, esi",
            "movabs rdx, {filter}",
            "mov eax, {seccomp}",
            "syscall",
            "test rax, rax",
            "jnz 9f",
            "movabs rdi, {ready}",
            "mov dword ptr [rdi], 1",
            "mov esi, {wake}",
            "mov edx, 1",
            "mov eax, {futex}",
            "syscall",
            "movabs r12, {orders}",
            "xor ebx, ebx",
        )
    };
}

/// Waits for an order.
macro_rules! wait {
    () => {
        lines!(
            "3: mov eax, [r12 + {sequence}]",
            "cmp eax, ebx",
            "jne 4f",
            "lea rdi, [r12 + {sequence}]",
            "mov esi, {wait}",
            "mov edx, ebx",
            "xor r10d, r10d",
            "mov eax, {futex}",
            "syscall",
            "jmp 3b",
        )
    };
}

/// Carries an order out.
macro_rules! carry_out {
    () => {
        lines!(
            "4: mov ebx, eax",
            "mov r14d, [r12 + {calls_len}]",
            "lea r15, [r12 + {calls}]",
            "xor ebp, ebp",
            "5: test r14d, r14d",
            "jz 7f",
            "mov eax, [r15]",
            "mov rdi, [r15 + {args}]",
            "mov rsi, [r15 + {args} + 8]",
            "mov rdx, [r15 + {args} + 16]",
            "mov r10, [r15 + {args} + 24]",
            "mov r8, [r15 + {args} + 32]",
            "mov r9, [r15 + {args} + 40]",
            "cmp eax, {clone}",
            "je 20f",
            "syscall",
            "21: cmp rax, -4095",
            "jb 6f",
            "cmp dword ptr [r15 + {may_fail}], 0",
            "jne 6f",
            "mov ebp, 1",
            "6: add r15, {call_size}",
            "dec r14d",
            "jmp 5b",
        )
    };
}

/// Answers an order, and waits for the next one.
macro_rules! answer {
    () => {
        lines!(
            "7: mov edi, [r12 + {answer_fd}]",
            "lea rsi, [r12 + {answers} + rbp * 8]",
            "mov edx, 8",
            "mov eax, {write}",
            "syscall",
            "jmp 3b",
        )
    };
}

/// Starts a thread, and tells its id.
macro_rules! start_thread {
    () => {
        lines!(
            "20: mov edi, {thread_flags}",
            "syscall",
            "test rax, rax",
            "jz 22f",
            "js 21b",
            "mov edi, {ids}",
            "mov rsi, rax",
            "xor edx, edx",
            "mov eax, {lseek}",
            "syscall",
            "jmp 21b",
        )
    };
}

/// The first steps of a thread that the mapper has started, with the mapper's filter and descriptors still: it gives up both.
macro_rules! begin_thread {
    () => {
        lines!(
            "22: xor edi, edi",
            "mov esi, -1",
            "mov edx, {unshare}",
            "mov eax, {close_range}",
            "syscall",
            "test rax, rax",
            "jnz 9f",
            "mov edi, {set_filter}",
            "xor esi, esi",
            "lea rdx, [r12 + {application_filter}]",
            "mov eax, {seccomp}",
            "syscall",
            "test rax, rax",
            "jnz 9f",
            "mov rdi, r9",
            "xor ebp, ebp",
            "call {main}",
            "9: ud2",
        )
    };
}

/// Starts the thread; the result is its id, or a negative errno.
///
/// The registers of the thread: r12 the orders, ebx the last one's number, r14d calls that are left, r15 the next one,
/// rbp 1 once one has failed. A thread that it starts has its area's address in r9.
#[unsafe(naked)]
pub unsafe extern "C" fn start() -> i64 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r14",
        "push r15",
        "mov edi, {flags}",
        "xor esi, esi",
        "movabs rdx, {tid}",
        "xor r10d, r10d",
        "xor r8d, r8d",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "pop r15",
        "pop r14",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        set_up!(),
        wait!(),
        carry_out!(),
        answer!(),
        start_thread!(),
        begin_thread!(),
        flags = const MAPPER_FLAGS,
        tid = const TID,
        clone = const sys::CLONE,
        file = const FD_FILE,
        close = const sys::CLOSE,
        orders_fd = const ORDERS_FD,
        set_filter = const sys::SECCOMP_SET_MODE_FILTER,
        filter = const FILTER,
        application_filter = const offset_of!(Orders, application_filter),
        seccomp = const sys::SECCOMP,
        ready = const READY,
        wake = const sys::FUTEX_WAKE,
        wait = const sys::FUTEX_WAIT,
        futex = const sys::FUTEX,
        orders = const STUB_ORDERS,
        sequence = const offset_of!(Orders, sequence),
        calls_len = const offset_of!(Orders, calls_len),
        answer_fd = const offset_of!(Orders, answer_fd),
        answers = const offset_of!(Orders, answers),
        calls = const offset_of!(Orders, calls),
        args = const offset_of!(Call, args),
        may_fail = const offset_of!(Call, may_fail),
        call_size = const size_of::<Call>(),
        write = const sys::WRITE,
        thread_flags = const THREAD_FLAGS,
        ids = const FD_IDS,
        lseek = const sys::LSEEK,
        unshare = const CLOSE_RANGE_UNSHARE,
        close_range = const sys::CLOSE_RANGE,
        main = sym thread_main,
    )
}
