//! `select(2)` and `pselect6(2)`.

use alloc::vec::Vec;

use crate::limits::RLIMIT_NOFILE;
use crate::syscall::context::SyscallResult;
use crate::syscall::poll::sets::Sets;
use crate::syscall::poll::watched::{Watched, wait_for};
use crate::syscall::timeout::{deadline, nohand, read_deadline, with_mask, write_rest};
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::{UserAddr, account};
use machine::sched::wait::PollEvents;
use machine::time::NSEC;

fn select_files(cx: &Ctx<'_>, count: i32, addrs: [UserAddr; 3], deadline_ns: Option<u64>) -> SyscallResult {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    // No descriptor lies beyond the table: bits there mean nothing.
    let count = count.min(usize::try_from(cx.limit(RLIMIT_NOFILE)).unwrap_or(count)).min(1 << 20);
    let mut sets = Sets::read(cx, count, addrs)?;
    let mut found: Vec<(usize, Watched)> = Vec::new();
    for fd in 0..count {
        let events = sets.events(fd);
        if !events.is_empty() {
            let file = cx.file(i32::try_from(fd).map_err(|_| Errno::EBADF)?)?;
            account::reserve(&mut found, 1)?;
            found.push((fd, Watched { file: Some(file), events, found: PollEvents::empty() }));
        }
    }
    wait_for(&mut found, deadline_ns)?;
    let ready = sets.answer(&found)?;
    sets.write(cx)?;
    Ok(ready)
}

/// `select(2)`.
pub(in crate::syscall) fn select(
    cx: &Ctx<'_>,
    count: i32,
    read: UserAddr,
    write: UserAddr,
    except: UserAddr,
    timeout: UserAddr,
) -> SyscallResult {
    let limit: Option<[i64; 2]> = cx.user().read_opt(timeout)?;
    let limit = match limit {
        Some([seconds, micros]) if seconds < 0 || micros < 0 => return Err(Errno::EINVAL),
        // Microseconds beyond a second carry over, as Linux lets them.
        Some([seconds, micros]) => {
            let (seconds, micros) = (seconds.cast_unsigned(), micros.cast_unsigned());
            Some(deadline(seconds.saturating_mul(NSEC).saturating_add(micros.saturating_mul(1000))))
        }
        None => None,
    };
    let result = select_files(cx, count, [read, write, except], limit);
    write_rest(cx, timeout, limit, 1000);
    result.map_err(nohand)
}

/// `pselect6(2)`; `mask` leads to the mask's address and size.
pub(in crate::syscall) fn pselect6(
    cx: &Ctx<'_>,
    count: i32,
    read: UserAddr,
    write: UserAddr,
    except: UserAddr,
    timeout: UserAddr,
    mask: UserAddr,
) -> SyscallResult {
    let limit = read_deadline(cx, timeout)?;
    let [mask, size] = cx.user().read_opt::<[u64; 2]>(mask)?.unwrap_or([0, 8]);
    let sets = [read, write, except];
    let result = with_mask(cx, UserAddr::new(mask), size, || select_files(cx, count, sets, limit));
    write_rest(cx, timeout, limit, 1);
    result.map_err(nohand)
}
