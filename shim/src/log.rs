//! Messages of the shim, on standard error, which containerd passes on to its own log.

use std::io::Write;

/// Says something. containerd may be away, and then nobody hears it.
pub fn note(words: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{words}");
}
