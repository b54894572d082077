//! The limits of a container that its kernel knows of.

/// A limit, by its number on the wire: in the records at boot ([`crate::records::Record::Limit`]), and changed while the container
/// runs ([`crate::hostcall::EVENT_LIMIT`]). Its value is a `u64`; [`NO_LIMIT`]: there is none.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerLimit {
    /// Bytes of memory. The kernel enforces it.
    MemoryMax = 0,
    /// Bytes of memory that are protected where the host's memory is short. The host's affair; only shown.
    MemoryLow = 1,
    /// Bytes that the host may swap out. The host's affair; only shown.
    SwapMax = 2,
    /// Tasks. The kernel enforces it.
    TasksMax = 3,
    /// Processor time in microseconds in each period. The kernel enforces it for a pod's further containers; that of the first
    /// is the host's affair.
    CpuQuota = 4,
    /// The period in microseconds.
    CpuPeriod = 5,
    /// The part of the processors against others, 1 to 10000. Only shown.
    CpuWeight = 6,
    /// The part of the processors against the pod's other containers, 2 to 262144. The kernel enforces it.
    CpuShares = 7,
}

/// A limit's value where there is none.
pub const NO_LIMIT: u64 = u64::MAX;

impl ContainerLimit {
    /// All of them, each at the place of its number.
    pub const ALL: [Self; 8] = [
        Self::MemoryMax,
        Self::MemoryLow,
        Self::SwapMax,
        Self::TasksMax,
        Self::CpuQuota,
        Self::CpuPeriod,
        Self::CpuWeight,
        Self::CpuShares,
    ];

    /// The limit with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// Request numbers begin again after so many.
pub const REQUESTS: u32 = 1 << 24;

/// The `flags` of an [`crate::hostcall::EVENT_LIMIT`]: the limit, and the number of the request, which is less than [`REQUESTS`].
#[must_use]
pub const fn event_flags(limit: ContainerLimit, request: u32) -> u32 {
    limit.number() | (request % REQUESTS) << 8
}

/// The number of a limit, and that of the request, in such `flags`.
#[must_use]
pub const fn split_event_flags(flags: u32) -> (u32, u32) {
    (flags & 0xff, flags >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_name_limit_and_request() {
        for request in [0, 1, REQUESTS - 1] {
            let flags = event_flags(ContainerLimit::CpuWeight, request);
            assert_eq!(split_event_flags(flags), (ContainerLimit::CpuWeight.number(), request));
        }
        assert_eq!(event_flags(ContainerLimit::MemoryMax, REQUESTS), 0);
    }

    #[test]
    fn each_is_found_by_its_number() {
        for limit in ContainerLimit::ALL {
            assert_eq!(ContainerLimit::from_number(limit.number()), Some(limit));
        }
        assert_eq!(ContainerLimit::from_number(8), None);
    }
}
