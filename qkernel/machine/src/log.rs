//! Log lines to the host. Guest-reachable ones are rate-limited.

use alloc::string::String;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How bad it is; the numbers are the interface's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Level {
    Error = 0,
    Warn = 1,
    Info = 2,
    Debug = 3,
}

static LEVEL: AtomicU32 = AtomicU32::new(1);

/// Sets the least severe level that is passed on.
pub fn set_level(level: u32) {
    LEVEL.store(level, Ordering::Relaxed);
}

/// Whether lines of `level` reach anyone.
pub fn enabled(level: Level) -> bool {
    level as u32 <= LEVEL.load(Ordering::Relaxed)
}

/// Writes one line; use the macros.
pub fn write(level: Level, args: core::fmt::Arguments<'_>) {
    if enabled(level) {
        let mut line = String::new();
        let _ = line.write_fmt(args);
        crate::host::log(level as u32, &line);
    }
}

/// A guest can make these happen: at most `BURST` a second get through.
pub struct RateLimit {
    second: AtomicU64,
    count: AtomicU32,
}

const BURST: u32 = 10;

impl RateLimit {
    /// A fresh limit.
    pub const fn new() -> Self {
        Self { second: AtomicU64::new(0), count: AtomicU32::new(0) }
    }
    /// Whether one more line may be written now.
    pub fn allow(&self) -> bool {
        let now = crate::time::monotonic_ns() / 1_000_000_000;
        if self.second.swap(now, Ordering::Relaxed) != now {
            self.count.store(0, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed) < BURST
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new()
    }
}

#[macro_export]
macro_rules! error { ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!($($arg)*)) } }
#[macro_export]
macro_rules! warn { ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Warn, format_args!($($arg)*)) } }
#[macro_export]
macro_rules! info { ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Info, format_args!($($arg)*)) } }
#[macro_export]
macro_rules! debug { ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Debug, format_args!($($arg)*)) } }
