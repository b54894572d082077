//! The figures of a container's use.

use super::fields::Fields;

/// Memory and processor time of a container, as the kernel counts them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageFigures {
    /// Bytes of memory that count for its limit.
    pub memory_bytes: u64,
    /// Bytes of its programs' memory.
    pub frames_bytes: u64,
    /// Bytes of the kernel's memory for it.
    pub kernel_bytes: u64,
    /// Its own limit of memory; [`crate::limits::NO_LIMIT`]: none.
    pub limit_bytes: u64,
    /// The most bytes of memory that there were.
    pub peak_bytes: u64,
    /// How often there was no memory.
    pub out_of_memory: u64,
    /// How many of its processes were killed for their memory.
    pub oom_kills: u64,
    /// How many tasks there are.
    pub tasks: u64,
    /// Nanoseconds of processor time that all its tasks took in user code, ended ones included.
    pub user_ns: u64,
    /// Nanoseconds of processor time that all its tasks took in the kernel, ended ones included.
    pub system_ns: u64,
    /// Periods of its quota in which it had something to do.
    pub periods: u64,
    /// Periods in which it had to wait.
    pub throttled_periods: u64,
    /// Nanoseconds for which it had to wait.
    pub throttled_ns: u64,
}
pin_layout!(
    UsageFigures, 104,
    memory_bytes: 0, frames_bytes: 8, kernel_bytes: 16, limit_bytes: 24, peak_bytes: 32, out_of_memory: 40,
    oom_kills: 48, tasks: 56, user_ns: 64, system_ns: 72, periods: 80, throttled_periods: 88, throttled_ns: 96,
);

impl UsageFigures {
    /// Bytes of a value.
    pub const BYTES: u64 = size_of::<Self>() as u64;

    /// The value that lies in these bytes; `None`: they are too few or too many.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of::<Self>(bytes)?;
        // Fields are read in the order in which they stand here, which is that of their offsets.
        Some(Self {
            memory_bytes: fields.long(),
            frames_bytes: fields.long(),
            kernel_bytes: fields.long(),
            limit_bytes: fields.long(),
            peak_bytes: fields.long(),
            out_of_memory: fields.long(),
            oom_kills: fields.long(),
            tasks: fields.long(),
            user_ns: fields.long(),
            system_ns: fields.long(),
            periods: fields.long(),
            throttled_periods: fields.long(),
            throttled_ns: fields.long(),
        })
    }
}
