//! System V semaphores: `semget(2)`, `semop(2)`, `semctl(2)`.

use alloc::vec::Vec;

use crate::ipc::IpcNamespace;
use crate::ipc::sem::ops::{SEMVMX, SemOp};
use crate::ipc::sem::{Answer, Facts, Question, semaphore_value};
use crate::syscall::context::SyscallResult;
use crate::syscall::ipc::{IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, PermView, check_id, pid_for, read, who};
use crate::syscall::timeout::nohand;
use crate::syscall::timespec::read_timespec_opt;
use crate::task::context::Ctx;
use abi::word::low32;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::time;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const GETPID: i32 = 11;
const GETVAL: i32 = 12;
const GETALL: i32 = 13;
const GETNCNT: i32 = 14;
const GETZCNT: i32 = 15;
const SETVAL: i32 = 16;
const SETALL: i32 = 17;
const SEM_STAT: i32 = 18;
const SEM_INFO: i32 = 19;
const SEM_STAT_ANY: i32 = 20;
/// Most operations of a call, whatever the limit says, so that their room is bounded.
const OPS_MAX: u32 = 32_768;

/// `struct semid64_ds`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct SemidDs {
    perm: PermView,
    otime: i64,
    unused: u64,
    ctime: i64,
    unused_too: u64,
    size: u64,
    rest: [u64; 2],
}
const _: () = assert!(size_of::<SemidDs>() == 104);

/// `struct seminfo`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct SemInfo {
    map: i32,
    sets: i32,
    all: i32,
    undo_structures: i32,
    per_set: i32,
    operations: i32,
    undo_entries: i32,
    undo_size: i32,
    value: i32,
    adjustment: i32,
}

fn int(value: impl TryInto<i32>) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}

/// `semget(2)`.
pub(super) fn semget(cx: &Ctx<'_>, key: i32, size: i32, flags: u32) -> SyscallResult {
    cx.container().ipc().sem_get(&who(cx), key, size, flags).map(|id| u64::from(id.unsigned_abs()))
}

/// `semop(2)`.
pub(super) fn semop(cx: &Ctx<'_>, id: i32, ops: UserAddr, count: u32) -> SyscallResult {
    operate(cx, id, ops, count, None)
}

/// `semtimedop(2)`.
pub(super) fn semtimedop(
    cx: &Ctx<'_>,
    id: i32,
    ops: UserAddr,
    count: u32,
    timeout: UserAddr,
) -> SyscallResult {
    let timeout_ns = read_timespec_opt(cx, timeout)?;
    operate(cx, id, ops, count, timeout_ns.map(|ns| time::monotonic_ns().saturating_add(ns)))
}

fn operate(cx: &Ctx<'_>, id: i32, ops: UserAddr, count: u32, deadline_ns: Option<u64>) -> SyscallResult {
    if count == 0 || id < 0 {
        return Err(Errno::EINVAL);
    }
    let ipc = cx.container().ipc();
    if count > ipc.limits().semopm.min(OPS_MAX) {
        return Err(Errno::E2BIG);
    }
    let ops: Vec<SemOp> = cx.user().read_array(ops, count as usize)?;
    let undo = ops.iter().any(SemOp::is_undone).then(|| cx.task.undo_list());
    let set = ipc.sem_set(id)?;
    set.operate(&who(cx), ops, undo.as_ref(), deadline_ns).map_err(nohand)?;
    Ok(0)
}

/// `semctl(2)`.
pub(super) fn semctl(cx: &Ctx<'_>, id: i32, number: i32, command: i32, arg: u64) -> SyscallResult {
    check_id(id)?;
    let ipc = cx.container().ipc();
    let caller = who(cx);
    let creds = &caller.creds;
    let buf = UserAddr::new(arg);
    match command {
        IPC_INFO | SEM_INFO => {
            let (info, last) = limits_and_usage(&ipc, command == SEM_INFO);
            cx.user().write(buf, &info)?;
            Ok(last.into())
        }
        IPC_STAT => {
            let facts = ipc.sem_set(id)?.facts(creds, false)?;
            cx.user().write(buf, &view(id, &facts))?;
            Ok(0)
        }
        SEM_STAT | SEM_STAT_ANY => {
            let (id, set) = ipc.sem_set_at(id)?;
            let facts = set.facts(creds, command == SEM_STAT_ANY)?;
            cx.user().write(buf, &view(id, &facts))?;
            Ok(id.unsigned_abs().into())
        }
        IPC_SET => {
            let SemidDs { perm, .. } = read(cx, buf)?;
            ipc.sem_set(id)?.set(creds, perm.uid, perm.gid, perm.mode).map(|()| 0)
        }
        IPC_RMID => ipc.sem_remove(creds, id).map(|()| 0),
        GETALL => {
            let values = ipc.sem_set(id)?.values(creds)?;
            cx.user().write_bytes(buf, values.as_bytes())?;
            Ok(0)
        }
        SETALL => {
            let set = ipc.sem_set(id)?;
            let values: Vec<u16> = cx.user().read_array(buf, set.size())?;
            set.set_values(&caller, &values).map(|()| 0)
        }
        SETVAL => {
            // The value is looked at first, as on Linux.
            let value = semaphore_value(low32(arg).cast_signed())?;
            ipc.sem_set(id)?.set_value(&caller, number, value).map(|()| 0)
        }
        _ => {
            let answer = ipc.sem_set(id)?.ask(creds, number, question(command)?)?;
            Ok(match answer {
                Answer::Number(value) => value.into(),
                Answer::Pid(pid) => pid_for(cx, pid).unsigned_abs().into(),
            })
        }
    }
}

/// The limits of semaphores, with what is in use for `is_usage`; and the index of the last set.
fn limits_and_usage(ipc: &IpcNamespace, is_usage: bool) -> (SemInfo, u32) {
    let limits = ipc.limits();
    let (sets, used, last) = ipc.sem_usage();
    let info = SemInfo {
        map: int(limits.semmns),
        sets: int(limits.semmni),
        all: int(limits.semmns),
        undo_structures: int(limits.semmns),
        per_set: int(limits.semmsl),
        operations: int(limits.semopm),
        undo_entries: int(limits.semopm),
        undo_size: if is_usage { int(sets) } else { 20 },
        value: SEMVMX,
        adjustment: if is_usage { int(used) } else { SEMVMX },
    };
    (info, last)
}

fn question(command: i32) -> Result<Question> {
    Ok(match command {
        GETVAL => Question::Value,
        GETPID => Question::Pid,
        GETNCNT => Question::Increase,
        GETZCNT => Question::Zero,
        _ => return Err(Errno::EINVAL),
    })
}

fn view(id: i32, facts: &Facts) -> SemidDs {
    SemidDs {
        perm: PermView::new(id, &facts.perm, facts.perm.mode),
        otime: facts.otime,
        unused: 0,
        ctime: facts.ctime,
        unused_too: 0,
        size: facts.size as u64,
        rest: [0; 2],
    }
}
