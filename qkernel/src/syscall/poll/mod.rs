//! `poll(2)` and `ppoll(2)`.

pub(super) mod select;
mod sets;
mod watched;

use abi::word::low16;
use alloc::vec::Vec;

use crate::fs::file::OpenFlags;
use crate::limits::RLIMIT_NOFILE;
use crate::syscall::context::SyscallResult;
use crate::syscall::poll::watched::{Watched, wait_for};
use crate::syscall::timeout::{deadline_of_ms, nohand, read_deadline, with_mask, write_rest};
use crate::task::context::Ctx;
use crate::task::signal::state::Restart;
use machine::errno::Errno;
use machine::mm::{UserAddr, account};
use machine::sched::wait::PollEvents;
use machine::sched::work;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct pollfd`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

/// Polls `count` files from user memory and writes the answers back.
fn poll_files(cx: &Ctx<'_>, fds: UserAddr, count: u32, deadline_ns: Option<u64>) -> SyscallResult {
    if u64::from(count) > cx.limit(RLIMIT_NOFILE) {
        return Err(Errno::EINVAL);
    }
    let mut list: Vec<PollFd> = cx.user().read_array(fds, count as usize)?;
    let mut watched = account::collect(list.len(), list.iter().map(|entry| watch(cx, entry)))?;
    let ready = wait_for(&mut watched, deadline_ns)?;
    for (entry, one) in list.iter_mut().zip(&watched) {
        entry.revents = low16(one.found.bits().into()).cast_signed();
    }
    for (at, entry) in list.iter().enumerate() {
        // Only this field: others may change the rest meanwhile. The array was read, so its addresses do not overflow.
        cx.user().write(fds.offset(at as u64 * 8 + 6), &entry.revents)?;
        work::count(1);
    }
    Ok(ready as u64)
}

fn watch(cx: &Ctx<'_>, entry: &PollFd) -> Watched {
    let events = PollEvents::from_bits_truncate(u32::from(entry.events.cast_unsigned()));
    let events = events | PollEvents::ERR | PollEvents::HUP;
    let file = cx.file(entry.fd).ok().filter(|file| !file.flags().contains(OpenFlags::PATH));
    let invalid = file.is_none() && entry.fd >= 0;
    let found = if invalid { PollEvents::NVAL } else { PollEvents::empty() };
    Watched { file, events, found }
}

/// `poll(2)`.
pub(super) fn poll(cx: &Ctx<'_>, fds: UserAddr, count: u32, timeout_ms: i32) -> SyscallResult {
    poll_until(cx, fds, count, deadline_of_ms(timeout_ms))
}

/// `poll(2)` until a monotonic time; also what `restart_syscall(2)` does for [`Restart::Poll`].
pub fn poll_until(cx: &Ctx<'_>, fds: UserAddr, count: u32, deadline_ns: Option<u64>) -> SyscallResult {
    poll_files(cx, fds, count, deadline_ns).map_err(|error| {
        if error != Errno::RESTART {
            return error;
        }
        *cx.task.restart.lock() = Some(Restart::Poll { fds, count, deadline_ns });
        Errno::RESTART_BLOCK
    })
}

/// `ppoll(2)`.
pub(super) fn ppoll(
    cx: &Ctx<'_>,
    fds: UserAddr,
    count: u32,
    timeout: UserAddr,
    mask: UserAddr,
    mask_size: u64,
) -> SyscallResult {
    let deadline_ns = read_deadline(cx, timeout)?;
    let result = with_mask(cx, mask, mask_size, || poll_files(cx, fds, count, deadline_ns));
    write_rest(cx, timeout, deadline_ns, 1);
    result.map_err(nohand)
}
