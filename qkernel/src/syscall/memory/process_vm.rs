//! `process_vm_readv(2)`, `process_vm_writev(2)`: bytes between the memory of two processes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::creds::Inspection;
use crate::syscall::context::SyscallResult;
use crate::syscall::rw::vectored::{read_iovecs, read_raw_iovecs};
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::inspect;
use abi::word::to_usize;
use machine::errno::{Errno, Result};
use machine::mm::{AddressSpace, HeldSpace, IoBuf, PAGE_BYTES, UserAddr, account};
use machine::sched;

/// The memory of a task, for a caller that may look into it. `ESRCH`: it has given it up. `EPERM`.
pub(super) fn memory_of(cx: &Ctx<'_>, task: &Arc<Task>, by: Inspection) -> Result<HeldSpace> {
    let aspace = task.held_aspace().ok_or(Errno::ESRCH)?;
    inspect::check(cx.task, task, by)?;
    // The rights that were looked at are those of the program whose memory it is: nobody may look into one that changes its own.
    let now = task.held_aspace();
    let is_same = now.is_some_and(|now| Arc::ptr_eq(&now, &aspace));
    if is_same { Ok(aspace) } else { Err(Errno::EPERM) }
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    FromOther,
    ToOther,
}

/// `process_vm_readv(2)`.
pub(in crate::syscall) fn process_vm_readv(
    cx: &Ctx<'_>,
    pid: i32,
    local: UserAddr,
    local_count: u64,
    remote: UserAddr,
    remote_count: u64,
    flags: u64,
) -> SyscallResult {
    transfer(cx, pid, (local, local_count), (remote, remote_count), flags, Way::FromOther)
}

/// `process_vm_writev(2)`.
pub(in crate::syscall) fn process_vm_writev(
    cx: &Ctx<'_>,
    pid: i32,
    local: UserAddr,
    local_count: u64,
    remote: UserAddr,
    remote_count: u64,
    flags: u64,
) -> SyscallResult {
    transfer(cx, pid, (local, local_count), (remote, remote_count), flags, Way::ToOther)
}

fn transfer(
    cx: &Ctx<'_>,
    pid: i32,
    local: (UserAddr, u64),
    remote: (UserAddr, u64),
    flags: u64,
    way: Way,
) -> SyscallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let local = read_iovecs(cx, local.0, local.1)?;
    let mut buf = IoBuf::user_pieces(cx.aspace(), local);
    if buf.is_empty() {
        return Ok(0);
    }
    let remote = read_raw_iovecs(cx, remote.0, remote.1)?;
    if remote.iter().all(|(_, len)| *len == 0) {
        return Ok(0);
    }
    let task = u32::try_from(pid).ok().and_then(|pid| cx.pids().find_task(pid)).ok_or(Errno::ESRCH)?;
    let other = memory_of(cx, &task, Inspection::Process)?;
    move_bytes(&other, &mut buf, remote, way).map(|done| done as u64)
}

/// Moves bytes page by page through the kernel's memory, since both may be the same address space, until either side has no
/// more. An error counts if nothing was moved before.
fn move_bytes(
    other: &AddressSpace,
    buf: &mut IoBuf<'_>,
    remote: Vec<(UserAddr, u64)>,
    way: Way,
) -> Result<usize> {
    let mut page = account::filled(0u8, PAGE_BYTES)?;
    let mut done = 0;
    for (mut addr, mut len) in remote {
        while len > 0 && !buf.is_empty() {
            let part = to_usize(addr.left_in_page().min(len)).min(buf.remaining());
            let bytes = &mut page[..part];
            let before = buf.done();
            let mut is_written = true;
            let moved = match way {
                Way::FromOther => other.copy_in(addr, bytes).and_then(|()| buf.fill(bytes)),
                Way::ToOther => {
                    let drained = buf.drain(bytes);
                    let written = other.copy_out(addr, &bytes[..buf.done() - before]);
                    is_written = written.is_ok();
                    written.and(drained)
                }
            };
            // What came before a bad address of the caller's counts.
            done += if is_written { buf.done() - before } else { 0 };
            match moved.and_then(|()| sched::go_on()) {
                Ok(()) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            addr = addr.offset(part as u64);
            len -= part as u64;
        }
    }
    Ok(done)
}
