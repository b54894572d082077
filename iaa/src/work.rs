//! How a driver goes about its work, and what it tells of it.

use std::time::Duration;

/// How a driver uses its queue.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many jobs may be in flight; of a dedicated queue not more than its size.
    pub in_flight: usize,
    /// The queue is one process's alone, and drops what it has no room for.
    pub is_dedicated: bool,
    /// The engine waits for pages that are not there, as the queue allows.
    pub blocks_on_fault: bool,
    /// A device that finishes no job for so long has hung.
    pub patience: Duration,
    /// How often one piece is submitted before the processor does it.
    pub attempts: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            in_flight: 32,
            is_dedicated: false,
            blocks_on_fault: false,
            patience: Duration::from_secs(1),
            attempts: 4,
        }
    }
}

/// Counters of a driver's work since it was made, or since they were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Descriptors that the queue took.
    pub submitted: u64,
    /// The most jobs that were in flight at once.
    pub most_in_flight: usize,
    /// How often the queue was full.
    pub full: u64,
    /// Pieces that the device did.
    pub by_device: u64,
    /// Pieces that the processor did for the device.
    pub by_software: u64,
    /// Jobs that stopped at a page fault and began anew.
    pub page_faults: u64,
    /// Bytes that those jobs had written until then.
    pub partial_bytes: u64,
    /// Jobs whose output did not fit.
    pub overflows: u64,
    /// Jobs whose input the device found damaged.
    pub bad_data: u64,
    /// Jobs that failed otherwise.
    pub failed: u64,
    /// Jobs whose output was not what their record said.
    pub bad_checksums: u64,
    /// Jobs that did not end. Their memory is never used again.
    pub hung: u64,
    /// Bytes, packed, of the pieces that the device did.
    pub packed_bytes: u64,
    /// Bytes, not packed, of the pieces that the device did.
    pub unpacked_bytes: u64,
}

impl Counters {
    /// Adds what another driver, or the same one later, did.
    pub fn add(&mut self, other: &Self) {
        let sums = [
            (&mut self.submitted, other.submitted),
            (&mut self.full, other.full),
            (&mut self.by_device, other.by_device),
            (&mut self.by_software, other.by_software),
            (&mut self.page_faults, other.page_faults),
            (&mut self.partial_bytes, other.partial_bytes),
            (&mut self.overflows, other.overflows),
            (&mut self.bad_data, other.bad_data),
            (&mut self.failed, other.failed),
            (&mut self.bad_checksums, other.bad_checksums),
            (&mut self.hung, other.hung),
            (&mut self.packed_bytes, other.packed_bytes),
            (&mut self.unpacked_bytes, other.unpacked_bytes),
        ];
        sums.into_iter().for_each(|(sum, value)| *sum += value);
        self.most_in_flight = self.most_in_flight.max(other.most_in_flight);
    }

    /// All of them, by the names that `dormouse stats` shows.
    #[must_use]
    pub fn by_name(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("iaa_jobs", self.submitted),
            ("iaa_most_in_flight", self.most_in_flight as u64),
            ("iaa_by_device", self.by_device),
            ("iaa_by_software", self.by_software),
            ("iaa_page_faults", self.page_faults),
            ("iaa_partial_bytes", self.partial_bytes),
            ("iaa_full", self.full),
            ("iaa_overflows", self.overflows),
            ("iaa_bad_data", self.bad_data),
            ("iaa_failed", self.failed),
            ("iaa_bad_checksums", self.bad_checksums),
            ("iaa_hung", self.hung),
            ("iaa_packed_bytes", self.packed_bytes),
            ("iaa_unpacked_bytes", self.unpacked_bytes),
        ]
    }
}
