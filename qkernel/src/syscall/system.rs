//! System information: memory and load, random bytes, and the rest.

use core::sync::atomic::Ordering;

use crate::config::RW_MAX_BYTES;
use crate::fs::devfs;
use crate::proc::system::{load_averages, memory};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::kernel_log;
use crate::task::process::{ADDR_NO_RANDOMIZE, PER_LINUX32, UNAME26};
use machine::errno::Errno;
use machine::mm::{IoBuf, UserAddr};
use machine::time;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct sysinfo`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, Immutable, IntoBytes)]
struct SysInfo {
    uptime: u64,
    loads: [u64; 3],
    total_ram: u64,
    free_ram: u64,
    shared_ram: u64,
    buffer_ram: u64,
    total_swap: u64,
    free_swap: u64,
    processes: u16,
    pad: [u16; 3],
    total_high: u64,
    free_high: u64,
    unit: u32,
    end: [u32; 1],
}
const _: () = assert!(size_of::<SysInfo>() == 112);

/// `sysinfo(2)`.
pub(super) fn sysinfo(cx: &Ctx<'_>, to: UserAddr) -> SyscallResult {
    let memory = memory();
    let tasks = cx.pids().tree.lock().tasks.len();
    let info = SysInfo {
        uptime: time::boottime_ns() / time::NSEC,
        loads: load_averages(),
        total_ram: memory.total,
        free_ram: memory.free,
        processes: u16::try_from(tasks).unwrap_or(u16::MAX),
        unit: 1,
        ..Default::default()
    };
    cx.user().write(to, &info)?;
    Ok(0)
}

/// `getrandom(2)`: the generator is always ready, so the flags change nothing.
pub(super) fn getrandom(cx: &Ctx<'_>, buf: UserAddr, len: usize, flags: u32) -> SyscallResult {
    const NONBLOCK: u32 = 1;
    const RANDOM: u32 = 2;
    const INSECURE: u32 = 4;
    if flags & !(NONBLOCK | RANDOM | INSECURE) != 0 || flags & (RANDOM | INSECURE) == RANDOM | INSECURE {
        return Err(Errno::EINVAL);
    }
    let mut buf = IoBuf::user(cx.aspace(), buf, len.min(RW_MAX_BYTES));
    devfs::fill_random(&mut buf).map(|filled| filled as u64)
}

/// `syslog(2)`: the kernel's messages go to the host; programs see those about their own container.
pub(super) fn syslog(cx: &Ctx<'_>, kind: i32, buf: UserAddr, len: i32) -> SyscallResult {
    const CAP_SYSLOG: u32 = 34;
    const READ: i32 = 2;
    const READ_ALL: i32 = 3;
    const READ_CLEAR: i32 = 4;
    const CLEAR: i32 = 5;
    const CONSOLE_LEVEL: i32 = 8;
    const SIZE_UNREAD: i32 = 9;
    const SIZE_BUFFER: i32 = 10;
    if !cx.task.creds.get().has(CAP_SYSLOG) {
        return Err(Errno::EPERM);
    }
    let log = &cx.container().log;
    match kind {
        READ | READ_ALL | READ_CLEAR => {
            let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
            if buf.is_null() {
                return Err(Errno::EINVAL);
            }
            let text = if kind == READ { log.next(len) } else { log.last(len, kind == READ_CLEAR) };
            cx.user().write_bytes(buf, &text)?;
            Ok(text.len() as u64)
        }
        CLEAR => {
            log.clear();
            Ok(0)
        }
        CONSOLE_LEVEL if !(1..=8).contains(&len) => Err(Errno::EINVAL),
        SIZE_UNREAD => Ok(log.unread_bytes() as u64),
        SIZE_BUFFER => Ok(kernel_log::BUFFER_BYTES as u64),
        0..=CONSOLE_LEVEL => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// `personality(2)`: plain Linux and that of 32 bits, and of the flags those that do not change what programs may do.
pub(super) fn personality(cx: &Ctx<'_>, persona: u32) -> SyscallResult {
    const ASK: u32 = 0xffff_ffff;
    const KNOWN: u32 = ADDR_NO_RANDOMIZE | UNAME26 | PER_LINUX32;
    let kept = &cx.process().personality;
    match persona {
        ASK => Ok(kept.load(Ordering::Relaxed).into()),
        _ if persona & !KNOWN == 0 => Ok(kept.swap(persona, Ordering::Relaxed).into()),
        _ => Err(Errno::EINVAL),
    }
}

/// `getcpu(2)`.
pub(super) fn getcpu(cx: &Ctx<'_>, cpu: UserAddr, node: UserAddr) -> SyscallResult {
    let index = u32::try_from(machine::arch::cpu_index()).unwrap_or(0);
    cx.user().write_opt(cpu, &index)?;
    cx.user().write_opt(node, &0u32)?;
    Ok(0)
}
