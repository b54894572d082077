//! Waiting for files: `poll(2)` and `select(2)` in all their forms.

use abi::word::low16;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::file::{File, OpenFlags};
use crate::fs::host_poll;
use crate::fs::poll::PollTable;
use crate::limits::RLIMIT_NOFILE;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::signal::state::Restart;
use machine::errno::{Errno, Result};
use machine::mm::{UserAddr, account};
use machine::sched;
use machine::sched::wait::PollEvents;
use machine::sched::wait::Waker;
use machine::time;
use machine::time::NSEC;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct pollfd`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

/// One file to wait for.
struct Watched {
    file: Option<Arc<File>>,
    /// The events that end the wait.
    events: PollEvents,
    found: PollEvents,
}

impl Watched {
    fn look(&mut self, table: Option<&mut PollTable>) {
        if let Some(file) = &self.file {
            self.found = file.ops.poll_for(file, table, self.events) & self.events;
        }
    }
}

/// A file to wait for, alone or beside its descriptor.
trait Watch {
    fn watched(&mut self) -> &mut Watched;
}

impl Watch for Watched {
    fn watched(&mut self) -> &mut Watched {
        self
    }
}

impl Watch for (usize, Watched) {
    fn watched(&mut self) -> &mut Watched {
        &mut self.1
    }
}

/// Looks at all files; how many have something to report.
fn scan<W: Watch>(watched: &mut [W]) -> usize {
    watched.iter_mut().map(Watch::watched).fold(0, |count, one| {
        one.look(None);
        count + usize::from(!one.found.is_empty())
    })
}

/// Waits until a file has something to report, or `deadline_ns` (monotonic; `None`: for ever, 0: not at all).
/// Returns how many have; `Errno::RESTART` by a signal.
fn wait_for<W: Watch>(watched: &mut [W], deadline_ns: Option<u64>) -> Result<usize> {
    let count = scan(watched);
    if count > 0 {
        return Ok(count);
    }
    if deadline_ns == Some(0) {
        host_poll::look();
        return Ok(scan(watched));
    }
    let mut table = PollTable::new(Waker::Task(crate::task::core::current()), PollEvents::all());
    for one in watched.iter_mut().map(Watch::watched) {
        table.set_events(one.events);
        one.look(Some(&mut table));
    }
    if table.is_short() {
        return Err(Errno::ENOMEM);
    }
    let ready = || Some(scan(watched)).filter(|count| *count > 0);
    Ok(sched::sleep_until(sched::Sleep::Interruptible, deadline_ns, ready)?.unwrap_or(0))
}

/// The monotonic time `seconds` and `nanoseconds` from now; 0 for no waiting at all.
fn deadline(duration_ns: u64) -> u64 {
    if duration_ns == 0 { 0 } else { time::monotonic_ns().saturating_add(duration_ns) }
}

/// A user's `struct timespec` as nanoseconds; `EINVAL` when it isn't normal.
pub fn duration_ns(spec: [i64; 2]) -> Result<u64> {
    let seconds = u64::try_from(spec[0]).map_err(|_| Errno::EINVAL)?;
    let nanoseconds = u64::try_from(spec[1]).ok().filter(|ns| *ns < NSEC).ok_or(Errno::EINVAL)?;
    Ok(seconds.saturating_mul(NSEC).saturating_add(nanoseconds))
}

/// Reads an optional `struct timespec` and turns it into a deadline.
pub fn read_deadline(cx: &Ctx<'_>, addr: UserAddr) -> Result<Option<u64>> {
    let spec: Option<[i64; 2]> = cx.user().read_opt(addr)?;
    spec.map(|spec| duration_ns(spec).map(deadline)).transpose()
}

/// A timeout in milliseconds, negative for none, as a deadline.
pub fn deadline_of_ms(timeout_ms: i32) -> Option<u64> {
    u64::try_from(timeout_ms).ok().map(|ms| deadline(ms * 1_000_000))
}

/// Runs a waiting call with a signal mask read from the user (null: the present one). When the call is interrupted
/// the mask stays until the handler has run, so that the signal that ended the wait is delivered.
pub fn with_mask<R>(cx: &Ctx<'_>, mask: UserAddr, size: u64, call: impl FnOnce() -> Result<R>) -> Result<R> {
    let mask: Option<u64> = if mask.is_null() {
        None
    } else if size == 8 {
        Some(cx.user().read(mask)?)
    } else {
        return Err(Errno::EINVAL);
    };
    crate::task::signal::mask::with_temporary_mask(cx.task, mask, call)
}

/// Writes the time that is left to the caller's memory, as far as that can be written.
fn write_rest(cx: &Ctx<'_>, addr: UserAddr, deadline_ns: Option<u64>, unit_ns: u64) {
    if let (Some(deadline), false) = (deadline_ns, addr.is_null()) {
        let rest = deadline.saturating_sub(time::monotonic_ns());
        let parts = [(rest / NSEC).cast_signed(), (rest % NSEC / unit_ns).cast_signed()];
        let _ = cx.user().write(addr, &parts);
    }
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

/// Interrupted calls that go on only if no handler runs.
fn nohand(error: Errno) -> Errno {
    if error == Errno::RESTART { Errno::RESTART_NOHAND } else { error }
}

/// The three sets of `select(2)`.
struct Sets {
    addrs: [UserAddr; 3],
    bits: [Vec<u64>; 3],
}

/// The events that count as an answer in each set.
const ANSWER: [PollEvents; 3] = [
    PollEvents::READABLE.union(PollEvents::RDBAND).union(PollEvents::HUP).union(PollEvents::ERR),
    PollEvents::WRITABLE.union(PollEvents::WRBAND).union(PollEvents::ERR),
    PollEvents::PRI,
];

impl Sets {
    fn read(cx: &Ctx<'_>, count: usize, addrs: [UserAddr; 3]) -> Result<Self> {
        let mut bits = [const { Vec::new() }; 3];
        for (set, addr) in bits.iter_mut().zip(addrs) {
            let words = count.div_ceil(64);
            *set = if addr.is_null() {
                account::filled(0, words)?
            } else {
                cx.user().read_array(addr, words)?
            };
        }
        Ok(Self { addrs, bits })
    }

    fn events(&self, fd: usize) -> PollEvents {
        let mut events = PollEvents::empty();
        for (set, asked) in self.bits.iter().zip(ANSWER) {
            if set[fd / 64] & (1 << (fd % 64)) != 0 {
                events |= asked;
            }
        }
        events
    }

    /// Replaces the sets by the answers; returns how many bits are set.
    fn answer(&mut self, found: &[(usize, Watched)]) -> Result<u64> {
        let asked = core::mem::replace(&mut self.bits, [const { Vec::new() }; 3]);
        let mut count = 0;
        for (which, set) in asked.iter().enumerate() {
            let mut out = account::filled(0u64, set.len())?;
            for (fd, one) in found {
                let bit = 1 << (fd % 64);
                if set[fd / 64] & bit != 0 && one.found.intersects(ANSWER[which]) {
                    out[fd / 64] |= bit;
                    count += 1;
                }
            }
            self.bits[which] = out;
        }
        Ok(count)
    }

    fn write(&self, cx: &Ctx<'_>) -> Result<()> {
        for (set, addr) in self.bits.iter().zip(self.addrs) {
            if !addr.is_null() {
                for (at, word) in set.iter().enumerate() {
                    cx.user().write(addr.offset(at as u64 * 8), word)?;
                }
            }
        }
        Ok(())
    }
}

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
pub(super) fn select(
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
pub(super) fn pselect6(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_checked() {
        assert_eq!(duration_ns([1, 5]), Ok(NSEC + 5));
        assert_eq!(duration_ns([-1, 0]), Err(Errno::EINVAL));
        assert_eq!(duration_ns([0, 1_000_000_000]), Err(Errno::EINVAL));
        assert_eq!(duration_ns([i64::MAX, 0]), Ok(u64::MAX));
    }

    #[test]
    fn sets_report_what_was_asked() {
        let bits = [alloc::vec![0b11], alloc::vec![0b10], alloc::vec![0]];
        let mut sets = Sets { addrs: [UserAddr::NULL; 3], bits };
        assert_eq!(sets.events(0), ANSWER[0]);
        assert_eq!(sets.events(1), ANSWER[0] | ANSWER[1]);
        let one = |found| Watched { file: None, events: PollEvents::empty(), found };
        let found = [(0, one(PollEvents::HUP)), (1, one(PollEvents::OUT))];
        assert_eq!(sets.answer(&found), Ok(2));
        assert_eq!(sets.bits, [alloc::vec![0b01], alloc::vec![0b10], alloc::vec![0]]);
    }
}
