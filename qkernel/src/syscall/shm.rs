//! System V shared memory: `shmget(2)`, `shmat(2)`, `shmdt(2)`, `shmctl(2)`.

use crate::creds::CAP_IPC_LOCK;
use crate::ipc::perm;
use crate::ipc::shm::Facts;
use crate::limits::RLIMIT_MEMLOCK;
use crate::syscall::context::SyscallResult;
use crate::syscall::ipc::{IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, PermView, check_id, pid_for, read, who};
use crate::syscall::memory::{check_exec_gain, check_limit};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::map::{NewMapping, Placement};
use machine::mm::vma::VmaFlags;
use machine::mm::{MemoryObject, PAGE, Prot, UserAddr, page_up};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SHM_RDONLY: u32 = 0o10_000;
const SHM_RND: u32 = 0o20_000;
const SHM_REMAP: u32 = 0o40_000;
const SHM_EXEC: u32 = 0o100_000;

const SHM_LOCK: i32 = 11;
const SHM_UNLOCK: i32 = 12;
const SHM_STAT: i32 = 13;
const SHM_INFO: i32 = 14;
const SHM_STAT_ANY: i32 = 15;

/// `struct shmid64_ds`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct ShmidDs {
    perm: PermView,
    size: u64,
    atime: i64,
    dtime: i64,
    ctime: i64,
    cpid: i32,
    lpid: i32,
    attached: u64,
    unused: [u64; 2],
}
const _: () = assert!(size_of::<ShmidDs>() == 112);

/// `struct shminfo64`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct ShmInfo64 {
    max: u64,
    min: u64,
    segments: u64,
    per_process: u64,
    all: u64,
    unused: [u64; 4],
}

/// `struct shm_info`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct ShmInfo {
    used: i32,
    pad: u32,
    total: u64,
    resident: u64,
    swapped: u64,
    swap_attempts: u64,
    swap_successes: u64,
}

/// `shmget(2)`.
pub(super) fn shmget(cx: &Ctx<'_>, key: i32, size: u64, flags: u32) -> SyscallResult {
    cx.container().ipc().shm_get(&who(cx), key, size, flags).map(id_result)
}

/// An id, which is not below 0, as a call returns it.
fn id_result(id: i32) -> u64 {
    u64::from(id.unsigned_abs())
}

/// `shmat(2)`: returns the address.
pub(super) fn shmat(cx: &Ctx<'_>, id: i32, addr: UserAddr, flags: u32) -> SyscallResult {
    check_id(id)?;
    let placement = placement(addr.get(), flags)?;
    let mut wanted = perm::READ;
    let mut prot = Prot::READ;
    let mut max_prot = Prot::all();
    if flags & SHM_RDONLY != 0 {
        max_prot -= Prot::WRITE;
    } else {
        wanted |= perm::WRITE;
        prot |= Prot::WRITE;
    }
    if flags & SHM_EXEC != 0 {
        wanted |= perm::EXECUTE;
        prot |= Prot::EXEC;
    }
    let caller = who(cx);
    let segment = cx.container().ipc().segment(id)?;
    let (store, size) = segment.for_attach(&caller.creds, wanted)?;
    let len = page_up(size).ok_or(Errno::ENOMEM)?;
    check_exec_gain(cx, prot, || true)?;
    check_limit(cx, len)?;
    let new = NewMapping {
        placement,
        len,
        prot,
        max_prot,
        flags: VmaFlags::SHARED | VmaFlags::SEGMENT,
        object: Some(MemoryObject::Store(store)),
        offset: 0,
    };
    let taken = |error| match (placement, error) {
        (Placement::FixedNoReplace(_), Errno::EEXIST | Errno::ENOMEM) => Errno::EINVAL,
        _ => error,
    };
    let start = cx.aspace().map(new).map_err(taken)?;
    segment.attached(&caller);
    Ok(start)
}

fn placement(addr: u64, flags: u32) -> Result<Placement> {
    let remaps = flags & SHM_REMAP != 0;
    let addr = match addr % PAGE {
        0 => addr,
        inside if flags & SHM_RND != 0 => addr - inside,
        _ => return Err(Errno::EINVAL),
    };
    match (addr, remaps) {
        (0, true) => Err(Errno::EINVAL),
        (0, false) => Ok(Placement::Hint(0)),
        (addr, true) => Ok(Placement::Fixed(addr)),
        (addr, false) => Ok(Placement::FixedNoReplace(addr)),
    }
}

/// `shmdt(2)`.
pub(super) fn shmdt(cx: &Ctx<'_>, addr: UserAddr) -> SyscallResult {
    let store = cx.aspace().detach(addr.get())?;
    cx.container().ipc().shm_detached(&who(cx), store);
    Ok(0)
}

/// `shmctl(2)`.
pub(super) fn shmctl(cx: &Ctx<'_>, id: i32, command: i32, buf: UserAddr) -> SyscallResult {
    check_id(id)?;
    let ipc = cx.container().ipc();
    let caller = who(cx);
    let creds = &caller.creds;
    match command {
        IPC_INFO => {
            let limits = ipc.limits();
            let info = ShmInfo64 {
                max: limits.shmmax,
                min: 1,
                segments: limits.shmmni.into(),
                per_process: limits.shmmni.into(),
                all: limits.shmall,
                unused: [0; 4],
            };
            cx.user().write(buf, &info)?;
            Ok(ipc.shm_usage().last_index.into())
        }
        SHM_INFO => {
            let usage = ipc.shm_usage();
            let info = ShmInfo {
                used: i32::try_from(usage.segments).unwrap_or(i32::MAX),
                pad: 0,
                total: usage.total,
                resident: usage.held,
                swapped: 0,
                swap_attempts: 0,
                swap_successes: 0,
            };
            cx.user().write(buf, &info)?;
            Ok(usage.last_index.into())
        }
        IPC_STAT => {
            let facts = ipc.segment(id)?.facts(creds, false)?;
            cx.user().write(buf, &view(cx, id, &facts))?;
            Ok(0)
        }
        SHM_STAT | SHM_STAT_ANY => {
            let (id, segment) = ipc.segment_at(id)?;
            let facts = segment.facts(creds, command == SHM_STAT_ANY)?;
            cx.user().write(buf, &view(cx, id, &facts))?;
            Ok(id_result(id))
        }
        IPC_SET => {
            let ShmidDs { perm, .. } = read(cx, buf)?;
            ipc.segment(id)?.set(creds, perm.uid, perm.gid, perm.mode).map(|()| 0)
        }
        IPC_RMID => ipc.shm_remove(creds, id).map(|()| 0),
        SHM_LOCK | SHM_UNLOCK => {
            let may_lock = cx.limit(RLIMIT_MEMLOCK) > 0;
            let segment = ipc.segment(id)?;
            segment.lock(creds, command == SHM_LOCK, creds.has(CAP_IPC_LOCK), may_lock).map(|()| 0)
        }
        _ => Err(Errno::EINVAL),
    }
}

fn view(cx: &Ctx<'_>, id: i32, facts: &Facts) -> ShmidDs {
    ShmidDs {
        perm: PermView::new(id, &facts.perm, facts.mode),
        size: facts.size,
        atime: facts.atime,
        dtime: facts.dtime,
        ctime: facts.ctime,
        cpid: pid_for(cx, facts.creator),
        lpid: pid_for(cx, facts.last),
        attached: facts.attached,
        unused: [0; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_rounded_only_when_asked() {
        assert_eq!(placement(0, 0), Ok(Placement::Hint(0)));
        assert_eq!(placement(0x1fff, 0), Err(Errno::EINVAL));
        assert_eq!(placement(0x1fff, SHM_RND), Ok(Placement::FixedNoReplace(0x1000)));
        assert_eq!(placement(0xfff, SHM_RND | SHM_REMAP), Err(Errno::EINVAL));
        assert_eq!(placement(0x2000, SHM_REMAP), Ok(Placement::Fixed(0x2000)));
    }
}
