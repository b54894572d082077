//! How long, and under which signal mask, a call waits for files.

use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::time;
use machine::time::NSEC;

/// The monotonic time `seconds` and `nanoseconds` from now; 0 for no waiting at all.
pub(super) fn deadline(duration_ns: u64) -> u64 {
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
pub(super) fn write_rest(cx: &Ctx<'_>, addr: UserAddr, deadline_ns: Option<u64>, unit_ns: u64) {
    if let (Some(deadline), false) = (deadline_ns, addr.is_null()) {
        let rest = deadline.saturating_sub(time::monotonic_ns());
        let parts = [(rest / NSEC).cast_signed(), (rest % NSEC / unit_ns).cast_signed()];
        let _ = cx.user().write(addr, &parts);
    }
}

/// Interrupted calls that go on only if no handler runs.
pub(super) fn nohand(error: Errno) -> Errno {
    if error == Errno::RESTART { Errno::RESTART_NOHAND } else { error }
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
}
