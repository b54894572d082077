//! Resource limits: those of processes, and in [`container`] those of a container.

pub mod container;

use crate::config::KERNEL_STACK_BYTES;

/// Kernel memory of a task: its stack and descriptions, and what its system calls allocate without asking.
pub const TASK_BYTES: usize = KERNEL_STACK_BYTES + (24 << 10);
/// Tasks beyond the limit, for processes that come in from outside.
pub const TASKS_RESERVE: usize = 8;

/// Number of resources of `setrlimit(2)`.
pub const RLIM_COUNT: usize = 16;
pub const RLIM_INFINITY: u64 = u64::MAX;
pub const RLIMIT_CPU: usize = 0;
pub const RLIMIT_FSIZE: usize = 1;
pub const RLIMIT_DATA: usize = 2;
pub const RLIMIT_STACK: usize = 3;
pub const RLIMIT_CORE: usize = 4;
pub const RLIMIT_NPROC: usize = 6;
pub const RLIMIT_NOFILE: usize = 7;
pub const RLIMIT_MEMLOCK: usize = 8;
pub const RLIMIT_AS: usize = 9;
pub const RLIMIT_SIGPENDING: usize = 11;
pub const RLIMIT_MSGQUEUE: usize = 12;
pub const RLIMIT_NICE: usize = 13;
pub const RLIMIT_RTPRIO: usize = 14;

/// A soft and a hard limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    pub soft: u64,
    pub hard: u64,
}

/// The limits of a process.
#[derive(Clone, Debug)]
pub struct Limits(pub [Limit; RLIM_COUNT]);

impl Limits {
    /// The soft limit of a resource.
    pub fn soft(&self, resource: usize) -> u64 {
        self.0[resource].soft
    }
}

impl Default for Limits {
    /// The limits that Linux gives init.
    fn default() -> Self {
        let open = Limit { soft: RLIM_INFINITY, hard: RLIM_INFINITY };
        let mut limits = [open; RLIM_COUNT];
        limits[RLIMIT_STACK] = Limit { soft: 8 << 20, hard: RLIM_INFINITY };
        limits[RLIMIT_CORE] = Limit { soft: 0, hard: RLIM_INFINITY };
        limits[RLIMIT_NPROC] = Limit { soft: 31_000, hard: 31_000 };
        limits[RLIMIT_NOFILE] = Limit { soft: 1024, hard: 1 << 20 };
        limits[RLIMIT_MEMLOCK] = Limit { soft: 8 << 20, hard: 8 << 20 };
        limits[RLIMIT_SIGPENDING] = Limit { soft: 31_000, hard: 31_000 };
        limits[RLIMIT_MSGQUEUE] = Limit { soft: 819_200, hard: 819_200 };
        limits[RLIMIT_NICE] = Limit { soft: 0, hard: 0 };
        limits[RLIMIT_RTPRIO] = Limit { soft: 0, hard: 0 };
        Self(limits)
    }
}
