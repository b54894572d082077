//! System V message queues: `msgget(2)`, `msgsnd(2)`, `msgrcv(2)`, `msgctl(2)`.

use crate::ipc::msg::{Facts, Message, Receive};
use crate::syscall::context::SyscallResult;
use crate::syscall::ipc::{IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, PermView, check_id, pid_for, read, who};
use crate::syscall::timeout::nohand;
use crate::task::context::Ctx;
use abi::word::to_usize;
use machine::errno::Errno;
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const MSG_STAT: i32 = 11;
const MSG_INFO: i32 = 12;
const MSG_STAT_ANY: i32 = 13;
/// Bytes of the kind in front of a message's text.
const KIND_BYTES: u64 = 8;
/// `MSGPOOL` (KiB), `MSGMAP` and `MSGTQL`: what follows from the default limits, whatever they are now.
const POOL_KIB: i32 = 512_000;
const MAP_ENTRIES: i32 = 16_384;
const HEADERS: i32 = 16_384;
/// `MSGSSZ` and `MSGSEG`, which mean nothing any more.
const SEGMENT_BYTES: i32 = 16;
const SEGMENTS: u16 = 0xffff;

/// `struct msqid64_ds`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct MsqidDs {
    perm: PermView,
    stime: i64,
    rtime: i64,
    ctime: i64,
    bytes: u64,
    messages: u64,
    most_bytes: u64,
    lspid: i32,
    lrpid: i32,
    unused: [u64; 2],
}
const _: () = assert!(size_of::<MsqidDs>() == 120);

/// `struct msginfo`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct MsgInfo {
    pool: i32,
    map: i32,
    max: i32,
    mnb: i32,
    mni: i32,
    segment_bytes: i32,
    headers: i32,
    segments: u16,
    pad: u16,
}

fn int(value: impl TryInto<i32>) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}

/// `msgget(2)`.
pub(super) fn msgget(cx: &Ctx<'_>, key: i32, flags: u32) -> SyscallResult {
    cx.container().ipc().msg_get(&who(cx), key, flags).map(|id| u64::from(id.unsigned_abs()))
}

/// `msgsnd(2)`.
pub(super) fn msgsnd(cx: &Ctx<'_>, id: i32, from: UserAddr, size: u64, flags: u32) -> SyscallResult {
    let ipc = cx.container().ipc();
    if id < 0 || size > ipc.limits().msgmax.into() {
        return Err(Errno::EINVAL);
    }
    let kind: i64 = cx.user().read(from)?;
    if kind < 1 {
        return Err(Errno::EINVAL);
    }
    let bytes = cx.user().read_array(from.offset(KIND_BYTES), to_usize(size))?;
    ipc.msg_send(&who(cx), id, Message::new(kind, bytes)?, flags).map_err(nohand)?;
    Ok(0)
}

/// `msgrcv(2)`: returns the bytes of the text.
pub(super) fn msgrcv(cx: &Ctx<'_>, id: i32, to: UserAddr, size: u64, kind: i64, flags: u32) -> SyscallResult {
    if id < 0 || i64::try_from(size).is_err() {
        return Err(Errno::EINVAL);
    }
    let how = Receive { size: to_usize(size), kind, flags };
    let (kind, bytes) = cx.container().ipc().msg_receive(&who(cx), id, &how).map_err(nohand)?;
    cx.user().write(to, &kind)?;
    let len = bytes.len().min(how.size);
    cx.user().write_bytes(to.offset(KIND_BYTES), &bytes[..len])?;
    Ok(len as u64)
}

/// `msgctl(2)`.
pub(super) fn msgctl(cx: &Ctx<'_>, id: i32, command: i32, buf: UserAddr) -> SyscallResult {
    check_id(id)?;
    let ipc = cx.container().ipc();
    let caller = who(cx);
    let creds = &caller.creds;
    match command {
        IPC_INFO | MSG_INFO => {
            let limits = ipc.limits();
            let (queues, last) = ipc.msg_usage();
            let (messages, bytes) = ipc.messages();
            let usage = (int(queues), int(messages), int(bytes));
            let (pool, map, headers) =
                if command == MSG_INFO { usage } else { (POOL_KIB, MAP_ENTRIES, HEADERS) };
            let info = MsgInfo {
                pool,
                map,
                max: int(limits.msgmax),
                mnb: int(limits.msgmnb),
                mni: int(limits.msgmni),
                segment_bytes: SEGMENT_BYTES,
                headers,
                segments: SEGMENTS,
                pad: 0,
            };
            cx.user().write(buf, &info)?;
            Ok(last.into())
        }
        IPC_STAT => {
            let facts = ipc.message_queue(id)?.facts(creds, false)?;
            cx.user().write(buf, &view(cx, id, &facts))?;
            Ok(0)
        }
        MSG_STAT | MSG_STAT_ANY => {
            let (id, queue) = ipc.message_queue_at(id)?;
            let facts = queue.facts(creds, command == MSG_STAT_ANY)?;
            cx.user().write(buf, &view(cx, id, &facts))?;
            Ok(id.unsigned_abs().into())
        }
        IPC_SET => {
            let MsqidDs { perm, most_bytes, .. } = read(cx, buf)?;
            let change = (perm.uid, perm.gid, perm.mode);
            ipc.message_queue(id)?.set(creds, change, most_bytes, ipc.limits().msgmnb).map(|()| 0)
        }
        IPC_RMID => ipc.msg_remove(creds, id).map(|()| 0),
        _ => Err(Errno::EINVAL),
    }
}

fn view(cx: &Ctx<'_>, id: i32, facts: &Facts) -> MsqidDs {
    MsqidDs {
        perm: PermView::new(id, &facts.perm, facts.perm.mode),
        stime: facts.stime,
        rtime: facts.rtime,
        ctime: facts.ctime,
        bytes: facts.bytes,
        messages: facts.messages,
        most_bytes: facts.most_bytes,
        lspid: pid_for(cx, facts.sender),
        lrpid: pid_for(cx, facts.receiver),
        unused: [0; 2],
    }
}
