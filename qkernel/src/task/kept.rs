//! Settings that `prctl(2)` and `membarrier(2)` keep for a process, and for its children and later programs, and that
//! have no place of their own elsewhere.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// `PR_MDWE_REFUSE_EXEC_GAIN`: nothing that can be written, or could, becomes executable.
pub const REFUSE_EXEC_GAIN: u32 = 1;
/// `PR_MDWE_NO_INHERIT`.
pub const NO_INHERIT: u32 = 2;
/// `PR_MCE_KILL_DEFAULT`.
pub const MCE_KILL_DEFAULT: u32 = 2;

/// The settings of a process.
pub struct Kept {
    /// `PR_SET_MDWE`.
    pub mdwe: AtomicU32,
    /// `PR_SET_MEMORY_MERGE`: kept, and nothing else. Nobody can see whether pages are merged.
    pub merges_memory: AtomicBool,
    /// `PR_MCE_KILL`: kept, and nothing else. What the host's memory breaks is the sandbox's end.
    pub mce_kill: AtomicU32,
    /// `PR_SET_IO_FLUSHER`: kept, and nothing else. No memory is written back for want of it.
    pub is_io_flusher: AtomicBool,
    /// The commands of `membarrier(2)` that its program has registered by.
    pub barriers: AtomicU32,
}

impl Default for Kept {
    /// Those of a process that has changed none.
    fn default() -> Self {
        Self {
            mdwe: AtomicU32::new(0),
            merges_memory: AtomicBool::new(false),
            mce_kill: AtomicU32::new(MCE_KILL_DEFAULT),
            is_io_flusher: AtomicBool::new(false),
            barriers: AtomicU32::new(0),
        }
    }
}

impl Kept {
    /// Takes over those of a parent.
    pub fn inherit(&self, parent: &Self) {
        let mdwe = parent.mdwe.load(Ordering::Relaxed);
        self.mdwe.store(if mdwe & NO_INHERIT != 0 { 0 } else { mdwe }, Ordering::Relaxed);
        self.merges_memory.store(parent.merges_memory.load(Ordering::Relaxed), Ordering::Relaxed);
        self.mce_kill.store(parent.mce_kill.load(Ordering::Relaxed), Ordering::Relaxed);
        self.is_io_flusher.store(parent.is_io_flusher.load(Ordering::Relaxed), Ordering::Relaxed);
        self.barriers.store(parent.barriers.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The process begins another program.
    pub fn begin_program(&self) {
        self.barriers.store(0, Ordering::Relaxed);
        if self.mdwe.load(Ordering::Relaxed) & NO_INHERIT != 0 {
            self.mdwe.store(0, Ordering::Relaxed);
        }
    }

    /// Whether memory is kept from becoming executable.
    pub fn refuses_exec_gain(&self) -> bool {
        self.mdwe.load(Ordering::Relaxed) & REFUSE_EXEC_GAIN != 0
    }
}
