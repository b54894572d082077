//! The options of `prctl(2)` whose settings are kept, and those about what the processor does.

use core::sync::atomic::Ordering;

use crate::creds::{CAP_SYS_RESOURCE, Creds};
use crate::syscall::context::SyscallResult;
use crate::syscall::prctl::privileges::capabilities;
use crate::task::context::Ctx;
use crate::task::kept::{MCE_KILL_DEFAULT, NO_INHERIT, REFUSE_EXEC_GAIN};
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

const PR_SET_TSC: u32 = 26;
const PR_MCE_KILL: u32 = 33;
const PR_MCE_KILL_GET: u32 = 34;
const PR_GET_SPECULATION_CTRL: u32 = 52;
const PR_SET_SPECULATION_CTRL: u32 = 53;
const PR_SET_IO_FLUSHER: u32 = 57;
const PR_GET_IO_FLUSHER: u32 = 58;
const PR_SET_MDWE: u32 = 65;
const PR_GET_MDWE: u32 = 66;
const PR_SET_MEMORY_MERGE: u32 = 67;
const PR_GET_MEMORY_MERGE: u32 = 68;
const PR_GET_AUXV: u32 = 0x4155_5856;

/// All arguments are 0.
pub(super) fn unused(args: &[u64]) -> Result<()> {
    if args.iter().all(|arg| *arg == 0) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// The options about settings that are kept.
pub(super) fn kept(cx: &Ctx<'_>, creds: &Creds, option: u32, args: [u64; 4]) -> SyscallResult {
    let [a, b, c, d] = args;
    let kept = &cx.process().kept;
    match option {
        // Reading the counter never faults.
        PR_SET_TSC if a == u64::from(super::PR_TSC_ENABLE) => Ok(0),
        PR_MCE_KILL => {
            unused(&[c, d])?;
            kept.mce_kill.store(mce_kill(a, b)?, Ordering::Relaxed);
            Ok(0)
        }
        PR_MCE_KILL_GET => unused(&args).map(|()| kept.mce_kill.load(Ordering::Relaxed).into()),
        PR_GET_SPECULATION_CTRL => unused(&[b, c, d]).and_then(|()| speculation(a)),
        PR_SET_SPECULATION_CTRL => unused(&[c, d]).and_then(|()| set_speculation(a, b)),
        PR_SET_IO_FLUSHER | PR_GET_IO_FLUSHER if !creds.has(CAP_SYS_RESOURCE) => Err(Errno::EPERM),
        PR_SET_IO_FLUSHER => {
            unused(&[b, c, d])?;
            kept.is_io_flusher.store(flag(a)?, Ordering::Relaxed);
            Ok(0)
        }
        PR_GET_IO_FLUSHER => unused(&args).map(|()| kept.is_io_flusher.load(Ordering::Relaxed).into()),
        PR_SET_MDWE => unused(&[b, c, d]).and_then(|()| set_mdwe(cx, a)),
        PR_GET_MDWE => unused(&args).map(|()| kept.mdwe.load(Ordering::Relaxed).into()),
        PR_SET_MEMORY_MERGE => {
            unused(&[b, c, d])?;
            kept.merges_memory.store(a != 0, Ordering::Relaxed);
            Ok(0)
        }
        PR_GET_MEMORY_MERGE => unused(&args).map(|()| kept.merges_memory.load(Ordering::Relaxed).into()),
        PR_GET_AUXV => unused(&[c, d]).and_then(|()| auxv(cx, UserAddr::new(a), b)),
        _ => capabilities(cx, creds, option, a, b),
    }
}

fn flag(value: u64) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

/// `PR_MCE_KILL`: what is kept.
fn mce_kill(command: u64, policy: u64) -> Result<u32> {
    const CLEAR: u64 = 0;
    const SET: u64 = 1;
    match (command, policy) {
        (CLEAR, 0) => Ok(MCE_KILL_DEFAULT),
        (SET, 0) => Ok(0),
        (SET, 1) => Ok(1),
        (SET, 2) => Ok(MCE_KILL_DEFAULT),
        _ => Err(Errno::EINVAL),
    }
}

const STORE_BYPASS: u64 = 0;
const INDIRECT_BRANCH: u64 = 1;
const L1D_FLUSH: u64 = 2;

/// `PR_GET_SPECULATION_CTRL`: the processor speculates as the host has it, and programs cannot change that. `/proc/PID/status`
/// says the same.
fn speculation(what: u64) -> SyscallResult {
    const ENABLED: u64 = 2;
    const FORCED_OFF: u64 = 8;
    match what {
        STORE_BYPASS | INDIRECT_BRANCH => Ok(ENABLED),
        L1D_FLUSH => Ok(FORCED_OFF),
        _ => Err(Errno::ENODEV),
    }
}

/// `PR_SET_SPECULATION_CTRL`.
fn set_speculation(what: u64, how: u64) -> SyscallResult {
    const ENABLE: u64 = 2;
    const DISABLE: u64 = 4;
    const FORCE_DISABLE: u64 = 8;
    const DISABLE_NOEXEC: u64 = 16;
    match (what, how) {
        (L1D_FLUSH, _) => Err(Errno::EPERM),
        (STORE_BYPASS | INDIRECT_BRANCH, ENABLE | DISABLE | FORCE_DISABLE | DISABLE_NOEXEC) => {
            Err(Errno::ENXIO)
        }
        (STORE_BYPASS | INDIRECT_BRANCH, _) => Err(Errno::ERANGE),
        _ => Err(Errno::ENODEV),
    }
}

/// `PR_SET_MDWE`: once set it stays.
fn set_mdwe(cx: &Ctx<'_>, bits: u64) -> SyscallResult {
    let wanted = u32::try_from(bits).map_err(|_| Errno::EINVAL)?;
    if wanted & !(REFUSE_EXEC_GAIN | NO_INHERIT) != 0 || wanted == NO_INHERIT {
        return Err(Errno::EINVAL);
    }
    let mdwe = &cx.process().kept.mdwe;
    match mdwe.compare_exchange(0, wanted, Ordering::Relaxed, Ordering::Relaxed) {
        Err(held) if held != wanted => Err(Errno::EPERM),
        _ => Ok(0),
    }
}

/// `PR_GET_AUXV`: writes as much of the auxiliary vector as there is room for; returns how long it is.
fn auxv(cx: &Ctx<'_>, to: UserAddr, room: u64) -> SyscallResult {
    let words = cx.aspace().with_layout(|layout| layout.auxv.clone());
    let bytes: alloc::vec::Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let written = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
    cx.user().write_bytes(to, &bytes[..written])?;
    Ok(bytes.len() as u64)
}
