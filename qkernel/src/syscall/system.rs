//! System information: names, memory and load, random bytes, and calls about CPUs.

use alloc::vec;
use core::sync::atomic::Ordering;

use crate::config::{KERNEL_RELEASE, RW_MAX_BYTES};
use crate::creds::CAP_SYS_ADMIN;
use crate::fs::devfs;
use crate::proc::sys::UTS_NAME_MAX;
use crate::proc::system::{KERNEL_VERSION, load_averages, memory};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, UserAddr};
use machine::platform;
use machine::time;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of one field of `struct new_utsname`, with its NUL.
const UTS_FIELD: usize = UTS_NAME_MAX + 1;

/// `uname(2)`.
pub(super) fn uname(cx: &Ctx<'_>, to: UserAddr) -> SyscallResult {
    let (host, domain) = (cx.container().host_name(), cx.container().domain_name());
    let fields: [&[u8]; 6] =
        [b"Linux", &host, KERNEL_RELEASE.as_bytes(), KERNEL_VERSION.as_bytes(), b"x86_64", &domain];
    cx.user().write_bytes(to, &uts_bytes(&fields))?;
    Ok(0)
}

fn uts_bytes(fields: &[&[u8]; 6]) -> [u8; 6 * UTS_FIELD] {
    let mut bytes = [0u8; 6 * UTS_FIELD];
    for (to, from) in bytes.chunks_mut(UTS_FIELD).zip(fields) {
        let len = from.len().min(UTS_NAME_MAX);
        to[..len].copy_from_slice(&from[..len]);
    }
    bytes
}

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
    let tasks = cx.container().tree.lock().tasks.len();
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

fn read_name(cx: &Ctx<'_>, name: UserAddr, len: i32) -> Result<alloc::vec::Vec<u8>> {
    if !cx.task.creds.get().has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let len = usize::try_from(len).ok().filter(|len| *len <= UTS_NAME_MAX).ok_or(Errno::EINVAL)?;
    let mut bytes = vec![0u8; len];
    cx.user().read_bytes(name, &mut bytes)?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(len);
    bytes.truncate(end);
    Ok(bytes)
}

/// `sethostname(2)`.
pub(super) fn sethostname(cx: &Ctx<'_>, name: UserAddr, len: i32) -> SyscallResult {
    cx.container().set_host_name(read_name(cx, name, len)?);
    Ok(0)
}

/// `setdomainname(2)`.
pub(super) fn setdomainname(cx: &Ctx<'_>, name: UserAddr, len: i32) -> SyscallResult {
    cx.container().set_domain_name(read_name(cx, name, len)?);
    Ok(0)
}

/// `syslog(2)`: the kernel's messages go to the host; programs see an empty log.
pub(super) fn syslog(cx: &Ctx<'_>, kind: i32, buf: UserAddr, len: i32) -> SyscallResult {
    const CAP_SYSLOG: u32 = 34;
    const READ: i32 = 2;
    const READ_ALL: i32 = 3;
    const READ_CLEAR: i32 = 4;
    if !cx.task.creds.get().has(CAP_SYSLOG) {
        return Err(Errno::EPERM);
    }
    match kind {
        READ | READ_ALL | READ_CLEAR if buf.is_null() || len < 0 => Err(Errno::EINVAL),
        0..=10 => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// `personality(2)`: there is one, plain Linux.
pub(super) fn personality(_cx: &Ctx<'_>, persona: u32) -> SyscallResult {
    const ASK: u32 = 0xffff_ffff;
    match persona {
        0 | ASK => Ok(0),
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

/// `rseq(2)`: not provided. Listed so that the C library's question at every start isn't logged.
pub(super) fn rseq(_cx: &Ctx<'_>) -> SyscallResult {
    Err(Errno::ENOSYS)
}

const MEMBARRIER_QUERY: i32 = 0;
const MEMBARRIER_GLOBAL: i32 = 1;
const MEMBARRIER_GLOBAL_EXPEDITED: i32 = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const MEMBARRIER_PRIVATE_SYNC_CORE: i32 = 1 << 5;
const MEMBARRIER_REGISTER_PRIVATE_SYNC_CORE: i32 = 1 << 6;
const MEMBARRIER_ALL: i32 = (1 << 7) - 1;

/// `membarrier(2)`.
///
/// A CPU that enters the kernel has ordered its memory accesses, and one that goes back to user code has serialised its
/// instruction stream. So the barrier is to make every CPU that runs user code concerned leave it once; those in the
/// kernel are past their barrier already. Registration has nothing to prepare and isn't insisted on.
pub(super) fn membarrier(cx: &Ctx<'_>, command: i32, flags: u32, _cpu: i32) -> SyscallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    match command {
        MEMBARRIER_QUERY => return Ok(MEMBARRIER_ALL.unsigned_abs().into()),
        MEMBARRIER_GLOBAL | MEMBARRIER_GLOBAL_EXPEDITED => leave_user_code(|_| true),
        MEMBARRIER_PRIVATE_EXPEDITED | MEMBARRIER_PRIVATE_SYNC_CORE => {
            let aspace = cx.aspace();
            let mine = aspace.machine().mark();
            leave_user_code(|id| id == mine);
        }
        MEMBARRIER_REGISTER_GLOBAL_EXPEDITED
        | MEMBARRIER_REGISTER_PRIVATE_EXPEDITED
        | MEMBARRIER_REGISTER_PRIVATE_SYNC_CORE => {}
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Makes the other CPUs leave user code of the address spaces `concerned` says, as `platform::shoot_down` does.
fn leave_user_code(concerned: impl Fn(u64) -> bool) {
    let me = machine::arch::cpu_index();
    for cpu in (0..platform::cpus()).filter(|&cpu| cpu != me) {
        let header = platform::header_of(cpu);
        let runs = || {
            let id = header.in_user.load(Ordering::SeqCst);
            id != 0 && concerned(id)
        };
        while runs() {
            platform::kick(cpu);
            for _ in 0..1000 {
                if !runs() {
                    break;
                }
                core::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_to_their_fields() {
        let long = [b'x'; 100];
        let bytes = uts_bytes(&[b"Linux", &long, b"", b"", b"x86_64", b""]);
        assert_eq!(bytes.len(), 390);
        assert_eq!(&bytes[..6], b"Linux\0");
        assert_eq!(bytes[65 + 63..65 + 66], [b'x', 0, 0]);
        assert_eq!(&bytes[260..266], b"x86_64");
    }
}
