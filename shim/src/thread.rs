//! The shim's threads. They do little and end soon; there may be thousands of shims.

use std::thread::Builder;

/// The stack in bytes that a thread's calls need at most, those of unoptimized builds included.
const STACK_BYTES: usize = 512 << 10;

/// Runs something beside; false: it cannot.
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(run).is_ok()
}
