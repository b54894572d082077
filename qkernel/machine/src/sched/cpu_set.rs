//! Sets of CPUs.

/// A set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuSet(u64);

impl CpuSet {
    /// All there are.
    pub const ALL: Self = Self(u64::MAX);

    /// Those of the bits of `mask`, of `cpus` that there are.
    pub fn of(mask: u64, cpus: usize) -> Self {
        let there = Self(mask).among(cpus);
        if there == Self::ALL.among(cpus) { Self::ALL } else { Self(there) }
    }

    /// One bit for each of them, of `cpus` that there are.
    pub fn among(self, cpus: usize) -> u64 {
        self.0 & u64::MAX >> (64 - cpus.clamp(1, 64))
    }

    /// Whether it is no restriction.
    pub fn is_all(self) -> bool {
        self == Self::ALL
    }

    pub fn has(self, cpu: usize) -> bool {
        self.0 & 1 << cpu != 0
    }

    /// Makes the set whose [`Self::bits`] these are.
    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// One bit for each.
    pub fn bits(self) -> u64 {
        self.0
    }
}
