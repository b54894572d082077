//! What a driver is asked for, how it goes about it, and what it tells of it.

use std::time::Duration;

/// How a driver uses its queue.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many jobs may be in flight; of a dedicated queue not more than its size.
    pub in_flight: usize,
    /// The engine waits for pages that are not there, as the queue allows.
    pub blocks_on_fault: bool,
    /// A device that finishes no job for so long has hung.
    pub patience: Duration,
    /// How often one piece is submitted before the processor does it.
    pub attempts: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { in_flight: 32, blocks_on_fault: false, patience: Duration::from_secs(1), attempts: 4 }
    }
}

/// What happened, since the driver was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Descriptors that the queue took.
    pub submitted: u64,
    /// The most jobs that were in flight at once.
    pub most_in_flight: usize,
    /// How often the queue was full.
    pub full: u64,
    /// Pieces that the device did, and that the processor did for it.
    pub by_device: u64,
    pub by_software: u64,
    /// Jobs that stopped at a page fault and began anew, and what they had written until then.
    pub page_faults: u64,
    pub partial_bytes: u64,
    /// Jobs whose output did not fit, whose input the device found damaged, and that failed otherwise.
    pub overflows: u64,
    pub bad_data: u64,
    pub failed: u64,
    /// Jobs whose output was not what their record said.
    pub bad_checksums: u64,
    /// Jobs that did not end. Their memory is never used again.
    pub hung: u64,
    /// Bytes that the device did: packed, and not packed.
    pub packed_bytes: u64,
    pub unpacked_bytes: u64,
}

/// A piece to be packed or unpacked.
#[derive(Debug)]
pub enum Work<'a> {
    /// All of `packed` into all of `out`.
    Unpack { packed: &'a [u8], out: &'a mut [u8] },
    /// `piece` to the front of `out`. `packed_bytes` is how much it takes there, or nothing if it does not fit.
    Pack { piece: &'a [u8], out: &'a mut [u8], packed_bytes: Option<usize> },
}

impl Work<'_> {
    pub(crate) fn input(&self) -> &[u8] {
        match self {
            Work::Unpack { packed, .. } => packed,
            Work::Pack { piece, .. } => piece,
        }
    }

    pub(crate) fn room(&self) -> usize {
        match self {
            Work::Unpack { out, .. } | Work::Pack { out, .. } => out.len(),
        }
    }
}
