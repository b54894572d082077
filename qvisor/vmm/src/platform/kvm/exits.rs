//! How often vCPUs left the guest, and why.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Exits of all vCPUs of a machine, by reason.
        #[derive(Debug, Default)]
        pub struct ExitCounters { $($(#[$doc])* pub(super) $name: AtomicU64,)* }

        impl ExitCounters {
            /// Names and values, for display.
            pub fn values(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Hostcalls.
    hostcall,
    /// A signal: kicks and deadlines.
    signal,
    /// User mode began, and an interrupt waited for it.
    interrupt_window,
    /// User code touched a mapped file behind its end.
    bus,
    /// Everything else.
    other,
}

/// One more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
