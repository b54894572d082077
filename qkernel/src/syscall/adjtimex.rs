//! `adjtimex(2)` and `clock_adjtime(2)`.

use crate::syscall::context::SyscallResult;
use crate::syscall::timespec::Timeval;
use crate::task::context::Ctx;

use machine::errno::Errno;
use machine::mm::UserAddr;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// `struct timex`, as far as its layout matters; the rest is zero.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct Timex {
    modes: u32,
    pad: u32,
    offset: i64,
    freq: i64,
    maxerror: i64,
    esterror: i64,
    status: u32,
    pad2: u32,
    constant: i64,
    precision: i64,
    tolerance: i64,
    time: Timeval,
    tick: i64,
    rest: [u64; 14],
}
const _: () = assert!(size_of::<Timex>() == 208);

/// `adjtimex(2)`: may be read; the clocks are the host's.
pub(super) fn adjtimex(cx: &Ctx<'_>, buf: UserAddr) -> SyscallResult {
    const STA_UNSYNC: u32 = 0x40;
    const TIME_ERROR: u64 = 5;
    const TICK_US: i64 = 10_000;
    let mut timex: Timex = cx.user().read(buf)?;
    if timex.modes != 0 {
        return Err(Errno::EPERM);
    }
    timex = Timex {
        maxerror: 16_000_000,
        esterror: 16_000_000,
        status: STA_UNSYNC,
        precision: 1,
        tolerance: 32_768_000,
        time: Timeval::from_ns(machine::time::realtime_ns()),
        tick: TICK_US,
        ..FromZeros::new_zeroed()
    };
    cx.user().write(buf, &timex)?;
    Ok(TIME_ERROR)
}

/// `clock_adjtime(2)`: of the real-time clock, as [`adjtimex`].
pub(super) fn clock_adjtime(cx: &Ctx<'_>, clock: i32, buf: UserAddr) -> SyscallResult {
    if clock == 0 { adjtimex(cx, buf) } else { Err(Errno::EOPNOTSUPP) }
}
