//! Helpers that many calls need.

use std::io;

pub(super) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(super) fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: `set` is initialised by `sigemptyset` before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}
