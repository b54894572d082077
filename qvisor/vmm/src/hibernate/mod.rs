//! The pages of a sleeping sandbox: the VMM's side of hibernation (Hibernate Container, section 3.4).
//!
//! The files are made before the jail and have no name. What the kernel asks for is checked here, and nowhere else: every
//! frame number must be one of user memory. A page that cannot come back as it was ends the sandbox.
#![allow(unsafe_code)]

pub mod injection;
pub mod stats;

use std::collections::HashSet;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::str::FromStr;
use std::time::{Duration, Instant};

use abi::PAGE_SIZE;
use abi::hostcall::{self as hc, HibernateReport, SwapOut};
use abi::layout::USER_PHYS;
use serde::{Deserialize, Serialize};
pub use swap::SwapFileError;
use swap::io::Device;
use swap::{Home, Page, PageId, Stored, SwapError, SwapHome};

use self::injection::Point;
use crate::lock::{Guard, Mutex, Rank};
use crate::memory::SandboxMemory;

/// The default directory of swap files.
pub const DEFAULT_DIR: &str = "/var/lib/dormouse/.swap";

/// How the working set comes back when a sandbox wakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reap {
    /// Page by page, as it is touched
    Off,
    /// As a whole, before anything runs
    #[default]
    On,
    /// As a whole, while programs run already
    Stream,
}

impl FromStr for Reap {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            "stream" => Ok(Self::Stream),
            _ => Err(()),
        }
    }
}

/// The settings of a sandbox's home of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapPlan {
    /// `None`: [`DEFAULT_DIR`], and a sandbox that cannot have its files there cannot hibernate.
    pub dir: Option<PathBuf>,
    pub limit_bytes: u64,
    pub reap: Reap,
}

impl Default for SwapPlan {
    fn default() -> Self {
        Self { dir: None, limit_bytes: u64::MAX, reap: Reap::default() }
    }
}

/// How a sandbox is to hibernate, as far as somebody has said so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The directory of its files; absolute.
    pub dir: Option<PathBuf>,
    pub limit_bytes: Option<u64>,
    pub reap: Option<Reap>,
    /// After how long without a request.
    pub idle_timeout: Option<Duration>,
}

impl Wishes {
    /// With those of somebody else for what is left open.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            dir: self.dir.or(other.dir),
            limit_bytes: self.limit_bytes.or(other.limit_bytes),
            reap: self.reap.or(other.reap),
            idle_timeout: self.idle_timeout.or(other.idle_timeout),
        }
    }
}

impl From<Wishes> for SwapPlan {
    fn from(wishes: Wishes) -> Self {
        let Wishes { dir, limit_bytes, reap, .. } = wishes;
        Self { dir, limit_bytes: limit_bytes.unwrap_or(u64::MAX), reap: reap.unwrap_or_default() }
    }
}

/// Figures of a hibernation. Times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hibernated {
    /// Pages stored now, and those of them in the working set.
    pub pages: u64,
    pub working_set_pages: u64,
    /// Pages that were still stored from before.
    pub kept_pages: u64,
    /// Pages of one repeated word, which take no room.
    pub word_pages: u64,
    pub swap_bytes: u64,
    pub reap_bytes: u64,
    /// Free memory and free kernel heap given back.
    pub freed_bytes: u64,
    pub heap_bytes: u64,
    /// Chunks of mapped files dropped.
    pub file_chunks: u64,
    pub pause_us: u64,
    pub collect_us: u64,
    pub write_us: u64,
    pub release_us: u64,
    pub total_us: u64,
}

/// Figures of a wake. Times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Woken {
    /// Pages of the working set that came back before anything ran.
    pub pages: u64,
    pub bytes: u64,
    pub prefetch_us: u64,
    pub total_us: u64,
}

/// How a hibernation came out, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CameOut {
    /// The sandbox sleeps.
    Asleep,
    /// It slept before, and there was nothing to do.
    AsleepAlready,
    /// It goes on.
    StayedWarm,
}

/// The home of a sandbox's pages.
#[derive(Debug)]
pub struct Hibernation {
    inner: Mutex<Inner>,
    /// Apart, so that whoever reads them does not wait for a disk.
    pub(crate) counters: stats::Counters,
}

struct Inner {
    /// Or why there is none.
    home: Result<SwapHome, String>,
    reap: Reap,
    /// The mode that was asked for the wake at hand.
    reap_now: Option<Reap>,
    /// The results of the last hibernation and the last wake.
    last: Result<Hibernated, String>,
    stored: Stored,
    store_error: Option<String>,
    woken: Woken,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("reap", &self.reap).finish_non_exhaustive()
    }
}

impl Hibernation {
    /// Makes the files of a sandbox. A directory that was not asked for may be missing.
    pub fn open(plan: &SwapPlan) -> Result<Self, SwapFileError> {
        let dir = plan.dir.as_deref().unwrap_or(Path::new(DEFAULT_DIR));
        let home = match files_in(dir) {
            Ok([swap, reap]) => Ok(SwapHome::new(swap, reap, plan.limit_bytes)),
            Err(error) if plan.dir.is_some() => return Err(error),
            Err(error) => Err(error.to_string()),
        };
        Ok(Self::new(home, plan.reap))
    }

    /// Of a sandbox that never hibernates.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Err("it has no swap files".into()), Reap::default())
    }

    fn new(home: Result<SwapHome, String>, reap: Reap) -> Self {
        let inner = Inner {
            home,
            reap,
            reap_now: None,
            last: Err("it was never asked to".into()),
            stored: Stored::default(),
            store_error: None,
            woken: Woken::default(),
        };
        Self { inner: Mutex::new(Rank::Hibernation, inner), counters: stats::Counters::default() }
    }

    fn lock(&self) -> Guard<'_, Inner> {
        self.inner.lock()
    }

    /// Whether it can be done at all, or why not.
    pub fn check(&self) -> Result<(), String> {
        self.lock().home.as_ref().map(drop).map_err(Clone::clone)
    }

    /// A wake begins: whether it brings the working set back at once; `None`: as the sandbox was started.
    pub fn begin_wake(&self, reap: Option<Reap>) {
        let mut inner = self.lock();
        // Nobody waits for an answer of the sandbox's, only for the end of this.
        let usual = if inner.reap == Reap::Stream { Reap::On } else { inner.reap };
        inner.reap_now = Some(reap.unwrap_or(usual));
        injection::pass(Point::Waking);
    }

    /// How the last hibernation came out.
    pub fn last(&self) -> Result<Hibernated, String> {
        self.lock().last.clone()
    }

    /// Figures of the last wake.
    pub fn woken(&self) -> Woken {
        self.lock().woken.clone()
    }
}

fn files_in(dir: &Path) -> Result<[Box<dyn Device>; 2], SwapFileError> {
    // A directory that cannot be made cannot be opened either, which says why.
    let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let open = |name| swap::open_unnamed(dir).map(|file| injection::faulty(Box::new(file), name));
    Ok([open("swap")?, open("reap")?])
}

/// The page that a frame number stands for; `None` when it is not one of user memory.
fn page_of(memory: &SandboxMemory, id: PageId) -> Option<Page> {
    let at = memory.host_ptr(USER_PHYS + u64::from(id) * PAGE_SIZE, PAGE_SIZE)?;
    // SAFETY: the range was checked, and user memory is mapped, readable and writable, as long as the sandbox lives; it is
    // shared with the guest, and a guest that writes it meanwhile only spoils its own pages.
    NonNull::new(at).map(|at| unsafe { Page::new(id, at) })
}

/// Copies `count` numbers out of guest memory; no more than there are frames.
fn numbers(memory: &SandboxMemory, phys: u64, count: u64) -> Option<Vec<PageId>> {
    if count > memory.user_bytes() / PAGE_SIZE {
        return None;
    }
    if count == 0 {
        // An empty list has no place.
        return Some(Vec::new());
    }
    let bytes = memory.copy_in(phys, count * 4)?;
    Some(bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect())
}

fn pages(memory: &SandboxMemory, phys: u64, count: u64) -> Option<Vec<Page>> {
    numbers(memory, phys, count)?.into_iter().map(|id| page_of(memory, id)).collect()
}

/// A bitmap of frames, copied out of guest memory.
struct Bits(Vec<u64>);

impl Bits {
    fn new(memory: &SandboxMemory, phys: u64, words: u64) -> Option<Self> {
        if words > (memory.user_bytes() / PAGE_SIZE).div_ceil(64) {
            return None;
        }
        let bytes = memory.copy_in(phys, words * 8)?;
        Some(Self(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()))
    }

    fn has(&self, id: PageId) -> bool {
        self.0.get(id as usize / 64).is_some_and(|word| word & 1 << (id % 64) != 0)
    }

    fn set(&mut self, id: PageId) {
        if let Some(word) = self.0.get_mut(id as usize / 64) {
            *word |= 1 << (id % 64);
        }
    }
}

const BAD: i64 = -(libc::EFAULT as i64);

/// What the kernel asks for.
impl Hibernation {
    /// `SWAP_OUT`.
    pub(crate) fn swap_out(&self, memory: &SandboxMemory, phys: u64) -> i64 {
        let Some(list) = memory.read::<SwapOut>(phys) else { return BAD };
        let working = pages(memory, list.working, list.working_count);
        let rest = pages(memory, list.rest, list.rest_count);
        let kept = Bits::new(memory, list.kept, list.kept_words);
        let (Some(mut working), Some(mut rest), Some(mut kept)) = (working, rest, kept) else { return BAD };
        let in_set = working.len();
        let mut inner = self.lock();
        if inner.reap == Reap::Off {
            // Neighbours in memory are neighbours in the file, for page faults.
            rest.append(&mut working);
            rest.sort_unstable_by_key(|page| page.id);
        }
        let Ok(home) = &mut inner.home else { return -i64::from(libc::ENODEV) };
        match home.store(&working, &rest) {
            Ok(stored) => {
                working.iter().chain(&rest).for_each(|page| kept.set(page.id));
                home.retain(&mut |id| kept.has(id));
                self.counters.stored(&stored, in_set, home);
                (inner.stored, inner.store_error) = (stored, None);
                injection::stored();
                0
            }
            Err(error) => {
                inner.store_error = Some(error.to_string());
                -i64::from(libc::EIO)
            }
        }
    }

    /// `SWAP_IN`. An error says that a page of its memory is lost.
    pub(crate) fn swap_in(
        &self,
        memory: &SandboxMemory,
        phys: u64,
        count: u64,
        how: u64,
    ) -> Result<i64, SwapError> {
        let Some(wanted) = numbers(memory, phys, count) else { return Ok(BAD) };
        let pages: Option<Vec<Page>> = wanted.iter().map(|id| page_of(memory, *id)).collect();
        let Some(mut pages) = pages else { return Ok(BAD) };
        let of_set = how == hc::SWAP_IN_SET;
        injection::pass(if of_set { Point::Prefetching } else { Point::Fetching });
        let counters = &self.counters;
        let mut inner = self.lock();
        let start = Instant::now();
        let Ok(home) = &mut inner.home else { return Ok(-i64::from(libc::ENODEV)) };
        let result =
            if how == hc::SWAP_IN_AROUND { home.fetch_around(&mut pages) } else { home.fetch(&mut pages) };
        match result {
            Ok(bytes) if of_set => {
                injection::pass(Point::Prefetched);
                counters.prefetched(bytes);
                let woken = &mut inner.woken;
                woken.pages += count;
                woken.bytes += bytes;
                woken.prefetch_us += micros(start.elapsed());
                Ok(0)
            }
            Ok(bytes) => {
                counters.fetched(pages.len() as u64, bytes);
                let came: HashSet<PageId> = pages.iter().map(|page| page.id).collect();
                for (at, _) in (0..).zip(&wanted).filter(|(_, id)| !came.contains(*id)) {
                    let _ = memory.write(phys + 4 * at, &hc::NO_FRAME);
                }
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// `BEGIN_WAKE`: forgets the last wake; result: how the working set comes back now.
    pub(crate) fn wake_mode(&self) -> i64 {
        let mut inner = self.lock();
        inner.woken = Woken::default();
        let how = match inner.reap_now.take().unwrap_or(inner.reap) {
            Reap::Off => hc::REAP_OFF,
            Reap::On => hc::REAP_FIRST,
            Reap::Stream => hc::REAP_STREAM,
        };
        how.cast_signed()
    }

    /// `HIBERNATED`: takes down how a hibernation came out; `None`: `phys` is no place in memory.
    pub(crate) fn hibernated(&self, memory: &SandboxMemory, phys: u64) -> Option<CameOut> {
        let report: HibernateReport = memory.read(phys)?;
        injection::pass(Point::Released);
        let mut inner = self.lock();
        let stored = inner.stored;
        inner.last = match report.outcome {
            hc::HIBERNATE_ALREADY => return Some(CameOut::AsleepAlready),
            // A later request came first, which has an outcome of its own.
            hc::HIBERNATE_CANCELLED => return Some(CameOut::StayedWarm),
            hc::HIBERNATE_DONE => Ok(Hibernated {
                pages: report.pages,
                working_set_pages: report.working_pages,
                kept_pages: report.kept_pages,
                word_pages: stored.word_pages,
                swap_bytes: stored.swap_pages * PAGE_SIZE,
                reap_bytes: stored.reap_pages * PAGE_SIZE,
                freed_bytes: report.freed_bytes,
                heap_bytes: report.heap_bytes,
                file_chunks: report.file_chunks,
                pause_us: report.pause_ns / 1000,
                collect_us: report.collect_ns / 1000,
                write_us: report.write_ns / 1000,
                release_us: report.release_ns / 1000,
                total_us: 0,
            }),
            hc::HIBERNATE_BUSY => Err("a process did not come to rest in time".into()),
            hc::HIBERNATE_NO_MEMORY => Err("the kernel has no memory left for its lists".into()),
            _ => Err(inner.store_error.take().unwrap_or_else(|| "its pages could not be stored".into())),
        };
        if inner.last.is_err() {
            return Some(CameOut::StayedWarm);
        }
        (inner.woken, inner.reap_now) = (Woken::default(), None);
        Some(CameOut::Asleep)
    }
}

/// A time in microseconds.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::boot::Platform;

    #[test]
    fn only_frames_of_user_memory_are_taken() {
        let memory = SandboxMemory::new(Platform::Kvm, 16 << 20, 4 << 20).unwrap();
        let put = |list: &[u32]| {
            let bytes: Vec<u8> = list.iter().flat_map(|id| id.to_ne_bytes()).collect();
            memory.copy_out(0x1000, &bytes).unwrap();
            pages(&memory, 0x1000, list.len() as u64)
        };
        assert_eq!(put(&[0, 1023]).unwrap().len(), 2);
        assert!(put(&[0, 1024]).is_none());
        assert!(put(&[u32::MAX]).is_none());
        assert!(pages(&memory, 0x1000, 1025).is_none());
        assert!(pages(&memory, 0x1000, u64::MAX).is_none());
        assert!(pages(&memory, u64::MAX - 4, 2).is_none());
        assert!(Bits::new(&memory, 0x1000, 17).is_none() && Bits::new(&memory, 0x1000, 16).is_some());
    }
}
