//! How a home packs, and what it counts of it.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use codec::Style;

use crate::packed::PackedSet;
use crate::page::{Class, PageId};
use crate::sampling;

/// Which coder packs pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// The style that brings pages back soonest from this disk with these processors
    #[default]
    Auto,
    /// This style, whatever the disk and the processors are
    Style(Style),
    /// Canned DEFLATE as an accelerator packs and unpacks it (Intel's IAA)
    Iaa,
}

impl Codec {
    /// Whether what it packs is for a [`codec::Engine`].
    pub(crate) fn is_for_engine(self) -> bool {
        self == Self::Iaa
    }
}

/// A name that is no codec's.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}; or iaa, or auto")]
pub struct CodecError(codec::StyleError);

impl FromStr for Codec {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self, CodecError> {
        match text {
            "auto" => Ok(Self::Auto),
            "iaa" => Ok(Self::Iaa),
            _ => text.parse().map(Self::Style).map_err(CodecError),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Iaa => f.write_str("iaa"),
            Self::Style(style) => style.fmt(f),
        }
    }
}

/// How a home packs.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing {
    /// The coder of all pages.
    pub codec: Codec,
    /// Whether partitions are sealed, so that nothing is ever stored in the clear.
    pub encrypt: bool,
    /// Processors that the sandbox may use, when it is limited to less than there are.
    pub cpus: Option<f64>,
}

impl Default for Packing {
    /// Nothing is packed.
    fn default() -> Self {
        Self { codec: Codec::Style(Style::None), encrypt: false, cpus: None }
    }
}

/// Counters of a home's packing.
#[derive(Debug, Default)]
pub struct Progress {
    /// Stores and the like, and packings that were begun; what was packed before one of them is stale.
    pub changes: AtomicU64,
    pub packings: u64,
    /// Begun, and ended without a result.
    pub cancelled: AtomicU64,
    pub pack_us: AtomicU64,
    pub pack_cpu_us: AtomicU64,
    /// Bytes read and written to pack.
    pub pack_read_bytes: AtomicU64,
    pub pack_written_bytes: AtomicU64,
    /// The fastest that pages came from the disk as they are, in bytes a second.
    pub read_bytes_s: AtomicU64,
}

/// Reads of fewer bytes say nothing of the disk's speed.
const TELLING_BYTES: u64 = 1 << 20;

impl Progress {
    /// Counts a change, so that packings that were begun before are stale. Result: the number of changes until now.
    pub fn change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// So much was read as it is, in that time.
    pub fn read(&self, bytes: u64, time: Duration) {
        if bytes >= TELLING_BYTES {
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
            self.read_bytes_s.fetch_max(bytes.saturating_mul(1_000_000) / micros, Ordering::Relaxed);
        }
    }

    pub fn took(&self, begin: &Clock) {
        let (wall, cpu) = begin.elapsed();
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.pack_us.fetch_add(micros(wall), Ordering::Relaxed);
        self.pack_cpu_us.fetch_add(micros(cpu), Ordering::Relaxed);
    }
}

/// Time that goes by, and this thread's share of a processor.
pub struct Clock {
    wall: Instant,
    cpu: Duration,
}

impl Clock {
    pub fn start() -> Self {
        Self { wall: Instant::now(), cpu: sampling::thread_time() }
    }

    fn elapsed(&self) -> (Duration, Duration) {
        (self.wall.elapsed(), sampling::thread_time().saturating_sub(self.cpu))
    }
}

/// A set that is written, and its pages by their places.
pub struct WrittenSet {
    pub set: PackedSet,
    pub pages: Vec<(PageId, Class)>,
}

/// The result of [`SwapHome::pack`](crate::SwapHome::pack), for [`SwapHome::adopt`](crate::SwapHome::adopt): sets that were written, and those that stay.
pub struct Repacked {
    pub(crate) changes: u64,
    pub(crate) written: Vec<WrittenSet>,
    /// Sets that stay as they are for good.
    pub(crate) settled: Vec<usize>,
}
