//! The system-call table. Each line: number, handler in its family's file, arguments with their types.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use super::{Ctx, FromArg, SyscallResult, unknown};
use super::{memory, process};
use crate::task::Task;

static STRACE: AtomicBool = AtomicBool::new(false);

/// Turns logging of every call on or off.
pub fn set_strace(on: bool) {
    STRACE.store(on, Ordering::Relaxed);
}

/// Whether every call is logged.
pub fn strace() -> bool {
    STRACE.load(Ordering::Relaxed)
}

macro_rules! syscalls {
    ($($number:literal => $family:ident :: $name:ident ( $($arg:ident : $type:ty),* );)*) => {
        /// Performs a call.
        pub(super) fn call(cx: &Ctx<'_>, number: u64, args: [u64; 6]) -> SyscallResult {
            match number {
                $($number => {
                    #[allow(unused_mut, unused_variables)]
                    let mut rest = args.into_iter();
                    $(let $arg = <$type as FromArg>::from_arg(rest.next().unwrap_or(0));)*
                    $family::$name(cx $(, $arg)*)
                })*
                _ => unknown(number),
            }
        }

        /// Number, name and family of every implemented call.
        pub const IMPLEMENTED: &[(u64, &str, &str)] = &[$(($number, stringify!($name), stringify!($family))),*];

        fn describe(number: u64, args: &[u64; 6]) -> String {
            match number {
                $($number => {
                    #[allow(unused_mut)]
                    let mut text = String::from(stringify!($name));
                    text.push('(');
                    #[allow(unused_mut, unused_variables)]
                    let mut rest = args.iter();
                    $(text.push_str(&format!("{}={:#x} ", stringify!($arg), rest.next().unwrap_or(&0)));)*
                    text.push(')');
                    text
                })*
                _ => format!("syscall_{number}({args:x?})"),
            }
        }
    };
}

/// Logs one call, as `--strace` asks.
pub(super) fn trace(task: &Arc<Task>, number: u64, args: &[u64; 6], result: &SyscallResult) {
    let line = match result {
        Ok(value) => format!("[{}] {} = {value:#x}", task.tid(), describe(number, args)),
        Err(error) => format!("[{}] {} = {error:?}", task.tid(), describe(number, args)),
    };
    crate::host::log(0, &line);
}

syscalls! {
    // memory
    9 => memory::mmap(addr: u64, len: u64, prot: u32, flags: u32, fd: i32, offset: u64);
    10 => memory::mprotect(addr: u64, len: u64, prot: u32);
    11 => memory::munmap(addr: u64, len: u64);
    12 => memory::brk(addr: u64);
    25 => memory::mremap(old: u64, old_len: u64, new_len: u64, flags: u32, new: u64);
    26 => memory::msync(addr: u64, len: u64, flags: u32);
    27 => memory::mincore(addr: u64, len: u64, vec: u64);
    28 => memory::madvise(addr: u64, len: u64, advice: u32);
    149 => memory::mlock(addr: u64, len: u64);
    150 => memory::munlock(addr: u64, len: u64);
    151 => memory::mlockall(flags: u32);
    152 => memory::munlockall();
    325 => memory::mlock2(addr: u64, len: u64, flags: u32);

    // processes and threads
    39 => process::getpid();
    56 => process::clone(flags: u64, stack: u64, parent_tid: u64, child_tid: u64, tls: u64);
    57 => process::fork();
    58 => process::vfork();
    59 => process::execve(path: u64, argv: u64, envp: u64);
    60 => process::exit(status: i32);
    61 => process::wait4(pid: i32, status: u64, options: u32, usage: u64);
    110 => process::getppid();
    158 => process::arch_prctl(code: u32, addr: u64);
    186 => process::gettid();
    218 => process::set_tid_address(addr: u64);
    231 => process::exit_group(status: i32);
    247 => process::waitid(kind: u32, id: u32, info: u64, options: u32, usage: u64);
    322 => process::execveat(dirfd: i32, path: u64, argv: u64, envp: u64, flags: u32);
    435 => process::clone3(args: u64, size: u64);
}
