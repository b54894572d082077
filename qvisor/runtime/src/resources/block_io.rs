//! Weights and rates of block devices. The host's disks are used by the VMM, so only the control groups know of them.

/// Limits of `linux.resources.blockIO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockIo {
    /// 10 to 1000.
    pub weight: Option<u16>,
    pub device_weights: Vec<(Device, u16)>,
    /// The most that each device does for the container in a second.
    pub rates: Vec<Rate>,
}

/// A block device of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

/// The most that a device does in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub kind: RateKind,
    pub device: Device,
    /// 0: no limit.
    pub most: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateKind {
    ReadBytes,
    WriteBytes,
    Reads,
    Writes,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl BlockIo {
    /// Nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
