//! Files of `/proc/PID` that are written: settings that are kept, and requests.

use core::num::IntErrorKind;
use core::sync::atomic::Ordering;

use crate::creds::{CAP_SYS_NICE, CAP_SYS_TIME};
use crate::proc::subject::Subject;
use crate::pseudo::{Entry, Out};
use crate::task;
use machine::errno::{Errno, Result};

/// Kinds of memory that Linux knows to put into a core dump or not.
const COREDUMP_KINDS: u32 = 0x1ff;

/// A number as `kstrtoint` reads it: no white space but one line's end, and an error of its own for what does not fit.
fn parse_strictly(bytes: &[u8]) -> Result<i64> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    if digits.starts_with(['+', '-']) {
        return Err(Errno::EINVAL);
    }
    let value = i64::from_str_radix(digits, radix).map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow => Errno::ERANGE,
        _ => Errno::EINVAL,
    })?;
    Ok(sign * value)
}

/// `coredump_filter`: kept, and inherited. No core dumps are written.
pub fn coredump_filter(subject: &Subject, out: &mut Out) -> Result<()> {
    if subject.aspace().is_ok() {
        writeln!(out, "{:08x}", subject.process.coredump_filter.load(Ordering::Relaxed));
    }
    Ok(())
}

pub fn set_coredump_filter(subject: &Subject, bytes: &[u8]) -> Result<()> {
    let value = match parse_strictly(bytes)? {
        ..0 => return Err(Errno::EINVAL),
        value => u32::try_from(value).map_err(|_| Errno::ERANGE)?,
    };
    subject.aspace()?;
    subject.process.coredump_filter.store(value & COREDUMP_KINDS, Ordering::Relaxed);
    Ok(())
}

/// `autogroup`: what the processes of a session are among all. Kept and told: there is one group.
pub fn autogroup(subject: &Subject, out: &mut Out) -> Result<()> {
    let group = subject.process.autogroup.get();
    writeln!(out, "/autogroup-{} nice {}", group.id, group.nice.load(Ordering::Relaxed));
    Ok(())
}

pub fn set_autogroup(subject: &Subject, bytes: &[u8]) -> Result<()> {
    let nice = parse_strictly(bytes.trim_ascii())?;
    let nice = i32::try_from(nice).ok().filter(|nice| (-20..20).contains(nice)).ok_or(Errno::EINVAL)?;
    if nice < 0 && !task::current().creds.get().has(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    subject.process.autogroup.get().nice.store(nice, Ordering::Relaxed);
    Ok(())
}

/// `clear_refs`. Which pages were used or written since is not tracked: all that are there count as used, and none
/// as written, so four of the five requests have nothing to do.
pub fn clear_refs(subject: &Subject, bytes: &[u8]) -> Result<()> {
    const PEAK: i64 = 5;
    let request = parse_strictly(bytes.trim_ascii())?;
    if !(1..=PEAK).contains(&request) {
        return Err(Errno::EINVAL);
    }
    if request == PEAK
        && let Ok(aspace) = subject.aspace()
    {
        aspace.forget_peak();
    }
    Ok(())
}

/// `timens_offsets`: the clocks are those of the first time namespace, for good.
pub fn set_time_offsets(_: &Subject, bytes: &[u8]) -> Result<()> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let is_offset = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let clock = words.next().is_some_and(|word| matches!(word, "monotonic" | "boottime" | "1" | "7"));
        let numbers = [words.next(), words.next()].map(|word| word.and_then(|word| word.parse::<i64>().ok()));
        clock && numbers.iter().all(Option::is_some) && words.next().is_none()
    };
    if text.is_empty() || !text.lines().all(is_offset) {
        return Err(Errno::EINVAL);
    }
    if !task::current().creds.get().has(CAP_SYS_TIME) {
        return Err(Errno::EPERM);
    }
    Err(Errno::EACCES)
}

/// A name that a security module would use. There is none, so nothing is there, and nothing can be set.
const fn attribute(name: &'static str) -> Entry<Subject> {
    Entry::setting(name, |_, _| Err(Errno::EINVAL), set_attribute).mode(0o666)
}

/// Only a process itself could.
fn set_attribute(subject: &Subject, _: &[u8]) -> Result<()> {
    Err(if subject.is_own() { Errno::EINVAL } else { Errno::EPERM })
}

/// `attr/`.
pub static ATTRIBUTES: &[Entry<Subject>] = &[
    attribute("current"),
    attribute("exec"),
    attribute("fscreate"),
    attribute("keycreate"),
    Entry::text("prev", |_, _| Err(Errno::EINVAL)),
    attribute("sockcreate"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_strictly_as_linux_reads_them() {
        for (text, value) in [("5\n", 5), ("+5", 5), ("-3", -3), ("0x1f", 31), ("010", 8), ("0", 0)] {
            assert_eq!(parse_strictly(text.as_bytes()), Ok(value));
        }
        for text in ["", "\n", "5x", " 5", "08", "5 5", "--5", "+-5", "0x", "5\n\n"] {
            assert_eq!(parse_strictly(text.as_bytes()), Err(Errno::EINVAL), "{text:?}");
        }
        assert_eq!(parse_strictly(b"99999999999999999999"), Err(Errno::ERANGE));
    }
}
