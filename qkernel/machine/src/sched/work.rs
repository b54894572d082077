//! Work whose amount a program chooses: others go on in between.
//!
//! The kernel is not pre-empted. A loop over something that a program made long would keep its CPU, and with it timers, news of
//! the host and everybody who waits for that CPU, so each such loop counts what it does ([`count`], [`count_or_end`]) in *units*
//! of very roughly 100 ns: a step of a path, a mount, an entry of a list, [`BYTES_A_UNIT`] bytes of text. After
//! [`UNITS_AT_ONCE`] of them, on one CPU, others get a turn if it is theirs ([`super::let_others_go_on`]). What moves much at
//! once, such as 1 MiB of data, calls [`super::go_on`] itself.
//!
//! The bounds of all such loops are listed in `qkernel/src/loops.rs`.

use core::sync::atomic::Ordering;

use super::cpu::this_cpu;
use super::turns::{go_on, let_others_go_on};

use crate::errno::Result;
use crate::{lock_order, platform};

pub use super::stretch::end_stretch;

/// Units that are done before others are looked for: some 100 µs.
const UNITS_AT_ONCE: u32 = 1024;
/// Bytes of text that are one unit.
pub const BYTES_A_UNIT: usize = 64;

/// The current task has done so much; it may have to wait for the CPU now. The caller may sleep.
#[inline]
#[cfg_attr(feature = "checks", track_caller)]
pub fn count(units: u32) {
    if is_due(units) {
        let_others_go_on();
    }
}

/// [`count`] for work that is not worth finishing once the task is to end: `EINTR` then.
#[inline]
#[cfg_attr(feature = "checks", track_caller)]
pub fn count_or_end(units: u32) -> Result<()> {
    if is_due(units) { go_on() } else { Ok(()) }
}

/// [`count`] for so many bytes of text.
#[inline]
#[cfg_attr(feature = "checks", track_caller)]
pub fn count_bytes(bytes: usize) {
    count(u32::try_from(bytes / BYTES_A_UNIT).unwrap_or(u32::MAX));
}

/// Adds to what this CPU has done; whether that is enough for now.
#[inline]
#[cfg_attr(feature = "checks", track_caller)]
fn is_due(units: u32) -> bool {
    // In unit tests there is no CPU of the kernel's.
    if !platform::is_ready() {
        return false;
    }
    lock_order::may_sleep();
    // Only this CPU writes it, and what is lost of it by a switch in between is little.
    let done = &this_cpu().work;
    let sum = done.load(Ordering::Relaxed).saturating_add(units);
    let is_due = sum >= UNITS_AT_ONCE;
    done.store(if is_due { 0 } else { sum }, Ordering::Relaxed);
    is_due
}
