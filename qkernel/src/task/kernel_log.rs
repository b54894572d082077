//! The kernel's messages to a container's programs (`syslog(2)`, `dmesg(1)`): who was killed for want of memory. All
//! other messages of the kernel go to the host.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use machine::sync::{Rank, SpinLock};
use machine::time::{self, NSEC};

/// Lines that are kept, and the longest one.
const LINES_MAX: usize = 64;
const LINE_BYTES_MAX: usize = 256;
/// The size in bytes that `SYSLOG_ACTION_SIZE_BUFFER` tells.
pub const BUFFER_BYTES: usize = LINES_MAX * LINE_BYTES_MAX;
/// The priority of all lines: an error of the kernel's.
const PRIORITY: &str = "<3>";

/// The messages of a container.
pub struct KernelLog(SpinLock<Lines>);

struct Lines {
    kept: VecDeque<String>,
    /// The number of the first line that is kept.
    first: u64,
    /// Up to these lines they were read one by one, and cleared.
    read: u64,
    cleared: u64,
}

impl KernelLog {
    /// Without messages.
    pub fn new() -> Self {
        Self(SpinLock::new(Rank::Leaf, Lines { kept: VecDeque::new(), first: 0, read: 0, cleared: 0 }))
    }

    /// Adds a line with the time of now. Bytes that could be taken for another line's are shown as question marks.
    pub fn say(&self, text: &str) {
        let now = time::boottime_ns();
        let mut line = alloc::format!("{PRIORITY}[{:5}.{:06}] ", now / NSEC, now % NSEC / 1000);
        let room = LINE_BYTES_MAX - line.len() - 1;
        line.extend(text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).take(room));
        line.push('\n');
        let mut lines = self.0.lock();
        let gone = if lines.kept.len() >= LINES_MAX { lines.kept.pop_front() } else { None };
        lines.first += u64::from(gone.is_some());
        lines.kept.push_back(line);
        drop(lines);
        drop(gone);
    }

    /// The last lines that fit into `len` bytes, but for those that were cleared; then all are, if `clear`.
    pub fn last(&self, len: usize, clear: bool) -> Vec<u8> {
        let mut lines = self.0.lock();
        let skipped = lines.skipped(lines.cleared);
        let mut start = lines.kept.len();
        let mut bytes = 0;
        while start > skipped && bytes + lines.kept[start - 1].len() <= len {
            start -= 1;
            bytes += lines.kept[start].len();
        }
        let out = lines.kept.range(start..).flat_map(|line| line.bytes()).collect();
        if clear {
            lines.cleared = lines.end();
        }
        out
    }

    /// The next lines that nobody has read, as many as fit into `len` bytes.
    pub fn next(&self, len: usize) -> Vec<u8> {
        let mut lines = self.0.lock();
        let skipped = lines.skipped(lines.read);
        let mut out = Vec::new();
        let mut count = 0;
        for line in lines.kept.range(skipped..) {
            if out.len() + line.len() > len {
                break;
            }
            out.extend_from_slice(line.as_bytes());
            count += 1;
        }
        lines.read = lines.first + (skipped + count) as u64;
        out
    }

    /// From now on they are not among the last ones any more.
    pub fn clear(&self) {
        let mut lines = self.0.lock();
        lines.cleared = lines.end();
    }

    /// Bytes that nobody has read.
    pub fn unread_bytes(&self) -> usize {
        let lines = self.0.lock();
        lines.kept.range(lines.skipped(lines.read)..).map(String::len).sum()
    }
}

impl Default for KernelLog {
    fn default() -> Self {
        Self::new()
    }
}

impl Lines {
    fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// How many of the lines that are kept come before line `number`.
    fn skipped(&self, number: u64) -> usize {
        usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX).min(self.kept.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_last_lines_stay_until_they_are_cleared() {
        let log = KernelLog::new();
        log.say("one");
        log.say("two\n<0>[    0.000000] forged");
        let all = text(log.last(BUFFER_BYTES, false));
        assert_eq!(all.lines().count(), 2);
        assert!(all.starts_with("<3>[") && all.contains("] one\n") && all.contains("two?<0>["), "{all}");
        let first = all.find('\n').unwrap() + 1;
        assert_eq!(text(log.last(all.len() - 1, false)), all[first..]);
        assert_eq!(text(log.last(all.len(), true)), all);
        assert_eq!(log.last(BUFFER_BYTES, false), b"");
        assert_eq!(log.unread_bytes(), all.len());
        assert_eq!(text(log.next(first)), all[..first]);
        assert_eq!(text(log.next(BUFFER_BYTES)), all[first..]);
        assert_eq!(log.next(BUFFER_BYTES), b"");
    }

    #[test]
    fn old_lines_go() {
        let log = KernelLog::new();
        for number in 0..3 * LINES_MAX {
            log.say(&std::format!("{number} {}", "x".repeat(2 * LINE_BYTES_MAX)));
        }
        let all = text(log.last(BUFFER_BYTES, false));
        assert_eq!(all.lines().count(), LINES_MAX);
        assert!(all.len() <= BUFFER_BYTES && all.contains("] 128 ") && !all.contains("] 127 "));
    }
}
