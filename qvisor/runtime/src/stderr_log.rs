//! Lines of a sandbox's log on standard error.

use std::io::{self, Write};

/// `BootSpec::log_level` from which on a sandbox's work is summed up at its end.
pub const LOG_INFO: u32 = 2;
/// `BootSpec::log_level` from which everything is said.
pub const LOG_DEBUG: u32 = 3;

/// Writes a line of the kernel's; standard error may be closed, or a terminal that is in raw mode.
pub fn write(level: u32, text: &str, newline: &str) {
    let prefix = if level == 0 { "dormouse: " } else { "" };
    let _ = io::stderr()
        .write_all(format!("{prefix}{}{newline}", text.trim_end().replace('\n', newline)).as_bytes());
}
