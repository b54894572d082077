//! How a task's waits look to whoever asks what the sandbox waits for.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Written by the task itself, right before it sleeps and after; read by anybody.
pub struct Waiting {
    /// Its last sleep ended because the time was up.
    timed_out: AtomicBool,
    /// How many files it waits for in one call of the `poll(2)` family; 0: it waits for one thing alone.
    files: AtomicU32,
    /// It waits for something from outside: a socket, a stream, a terminal.
    outside: AtomicBool,
}

impl Waiting {
    pub(super) const fn new() -> Self {
        Self { timed_out: AtomicBool::new(false), files: AtomicU32::new(0), outside: AtomicBool::new(false) }
    }

    /// A sleep has ended. `timed_out`: because the time was up.
    pub(super) fn ended(&self, timed_out: bool) {
        if self.timed_out.load(Ordering::Relaxed) != timed_out {
            self.timed_out.store(timed_out, Ordering::Relaxed);
        }
    }

    /// Whether the task does what it does because a time was up.
    pub fn follows_a_timer(&self) -> bool {
        self.timed_out.load(Ordering::Relaxed)
    }

    /// Something from outside came to the task: what it does now follows from that.
    pub fn was_asked(&self) {
        self.ended(false);
    }

    /// Does `wait`, during which the task sleeps for some of `files` files, one of which at least may be from `outside`.
    pub fn on<R>(&self, files: usize, outside: bool, wait: impl FnOnce() -> R) -> R {
        self.files.store(u32::try_from(files).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.outside.store(outside, Ordering::Relaxed);
        let result = wait();
        self.files.store(0, Ordering::Relaxed);
        self.outside.store(false, Ordering::Relaxed);
        result
    }

    /// Whether the task waits for one thing alone, if it waits.
    pub fn is_for_one(&self) -> bool {
        self.files.load(Ordering::Relaxed) <= 1
    }

    /// Whether the task waits for something from outside.
    pub fn is_for_outside(&self) -> bool {
        self.outside.load(Ordering::Relaxed)
    }
}
