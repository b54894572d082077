//! The pages of a sleeping sandbox: the VMM's side of hibernation (Hibernate Container, section 3.4).
//!
//! The files are made before the jail and have no name. What the kernel asks for is checked here, and nowhere else: every
//! frame number must be one of user memory. A page that cannot come back as it was ends the sandbox.
#![deny(unsafe_code)]

mod accelerator;
pub(crate) mod handover;
mod home;
mod ignored;
mod image;
pub mod injection;
pub(crate) mod lists;
mod moving;
mod parent;
mod plan;
mod settling;
pub mod stats;
mod staying;
mod template;
mod timers;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use abi::PAGE_SIZE;
use abi::hostcall::{self as hc, HibernateReport};
use serde::{Deserialize, Serialize};
use swap::{Home, PageId, Stat, Stored, SwapError, SwapFileError};

use self::home::PagesHome;
pub use self::home::{BaseInMemory, HomePlan};
pub use self::ignored::Ignored;
use self::injection::Point;
use self::lists::Outgoing;
use self::moving::Moving;
pub use self::moving::{HomeState, MoveCause, Moved, Told};
pub use self::parent::{FileId, KnownParent};
pub use self::plan::{
    AWAKE_AT_MOST, Codec, CodecError, DEFAULT_DIR, ExecProbe, HomePolicy, Outbound, Reap, SwapPlan, Tier,
    Wishes,
};
use self::settling::Settling;
pub(crate) use self::staying::ImagePages;
use self::staying::Staying;
pub use self::timers::{TimerWake, Timers};
use crate::host_paths::HostPaths;
use crate::lock::{Guard, Mutex, Rank, RwLock};
use crate::memory::SandboxMemory;

/// Why a sandbox's pages have no home.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error(transparent)]
    File(#[from] SwapFileError),
    #[error("cannot use IAA: {0} (or choose another codec)")]
    Accelerator(#[from] iaa::Unusable),
    #[error("cannot watch the pressure of memory: /proc/pressure/memory: {0}; leave --memory-pressure out")]
    Pressure(#[source] std::io::Error),
    #[error("pages that are encrypted are not kept in memory; leave --encrypt out, or use --home disk")]
    Sealed,
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
    /// Packed at once: because they are sealed, or the limit left no room.
    #[serde(default)]
    pub packed_bytes: u64,
    /// Pages kept in memory, and the bytes that all pages take there.
    #[serde(default)]
    pub memory_pages: u64,
    #[serde(default)]
    pub memory_bytes: u64,
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

/// Figures of packing: of all that is packed now, and of what it took this time. Times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    pub codec: String,
    /// Bytes of the pages, none of which is one repeated word, and of the same packed.
    pub input_bytes: u64,
    pub output_bytes: u64,
    /// Of the working set.
    pub set_input_bytes: u64,
    pub set_output_bytes: u64,
    /// Partitions that stay as they are.
    pub raw_partitions: u64,
    pub pack_us: u64,
    pub pack_cpu_us: u64,
}

impl Packed {
    fn new(codec: String, before: &[Stat], now: &[Stat]) -> Self {
        let of =
            |stats: &[Stat], name| stats.iter().find(|stat| stat.name == name).map_or(0, |stat| stat.value);
        let since = |name| of(now, name).saturating_sub(of(before, name));
        Self {
            codec,
            input_bytes: of(now, "packed_input_bytes"),
            output_bytes: of(now, "packed_output_bytes"),
            set_input_bytes: of(now, "set_input_bytes"),
            set_output_bytes: of(now, "set_output_bytes"),
            raw_partitions: of(now, "raw_partitions"),
            pack_us: since("pack_us"),
            pack_cpu_us: since("pack_cpu_us"),
        }
    }
}

/// Told what became of pages while the sandbox slept.
type Listener = Box<dyn Fn(Told) + Send + Sync>;

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
pub struct Hibernation {
    /// Or why there is none. Held to read by all who fetch, and to write while pages are stored.
    home: Result<RwLock<PagesHome>, String>,
    plan: SwapPlan,
    settling: Settling,
    moving: Moving,
    staying: Staying,
    listener: OnceLock<Listener>,
    /// Never held while the disk is read or written.
    figures: Mutex<Figures>,
    /// Apart, since page faults count in them.
    pub(crate) counters: stats::Counters,
}

#[derive(Debug)]
struct Figures {
    /// The mode that was asked for the wake at hand.
    reap_now: Option<Reap>,
    /// The results of the last hibernation and the last wake.
    last: Result<Hibernated, String>,
    stored: Stored,
    store_error: Option<String>,
    /// Why pages did not move.
    move_error: Option<String>,
    woken: Woken,
    /// The home's figures at the time when something was last stored.
    home: Vec<Stat>,
    packing: String,
}

impl std::fmt::Debug for Hibernation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hibernation").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Hibernation {
    /// Makes the home of a sandbox's pages, for the process that calls this alone. If it was not asked for, the sandbox may go
    /// without; an accelerator is asked for.
    pub fn open(_: &HostPaths, plan: impl Into<HomePlan>) -> Result<Self, HomeError> {
        let plan = plan.into();
        let own = plan.own.clone();
        if own.packing.encrypt && own.home.tier == Tier::Memory {
            return Err(HomeError::Sealed);
        }
        let engine = accelerator::open(own.packing.codec)?;
        let home = match PagesHome::create(plan, engine) {
            Err(error) if own.dir.is_some() => return Err(error.into()),
            home => home.map_err(|error| error.to_string()),
        };
        let settling = Settling::new(own.settle, plan::open_turn(&own));
        Ok(Self { settling, moving: Moving::open(own.pressure)?, ..Self::new(home, own) })
    }

    /// Of a sandbox that never hibernates.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Err("it has no swap files".into()), SwapPlan::default())
    }

    fn new(home: Result<PagesHome, String>, plan: SwapPlan) -> Self {
        let figures = Figures {
            reap_now: None,
            last: Err("it was never asked to".into()),
            stored: Stored::default(),
            store_error: None,
            move_error: None,
            woken: Woken::default(),
            home: Vec::new(),
            packing: String::new(),
        };
        Self {
            home: home.map(|home| RwLock::new(Rank::Hibernation, home)),
            plan,
            settling: Settling::default(),
            moving: Moving::default(),
            staying: Staying::default(),
            listener: OnceLock::new(),
            figures: Mutex::new(Rank::HibernationFigures, figures),
            counters: stats::Counters::default(),
        }
    }

    fn figures(&self) -> Guard<'_, Figures> {
        self.figures.lock()
    }

    /// Says who is told how packing and moving come out; the first counts.
    pub fn when_told(&self, listener: impl Fn(Told) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// Whether it can be done at all, or why not.
    pub fn check(&self) -> Result<(), String> {
        self.home.as_ref().map(drop).map_err(Clone::clone)
    }

    /// A wake begins: whether it brings the working set back at once; `None`: as the sandbox was started.
    pub fn begin_wake(&self, reap: Option<Reap>) {
        // Nobody waits for an answer of the sandbox's, only for the end of this.
        let usual = if self.plan.reap == Reap::Stream { Reap::On } else { self.plan.reap };
        self.figures().reap_now = Some(reap.unwrap_or(usual));
        self.settling.awake();
        injection::pass(Point::Waking);
    }

    /// How the last hibernation came out.
    pub fn last(&self) -> Result<Hibernated, String> {
        self.figures().last.clone()
    }

    /// Figures of the last wake.
    pub fn woken(&self) -> Woken {
        self.figures().woken.clone()
    }

    /// The home's figures; while it stores pages, those of the time after it last stored some.
    pub(crate) fn home_stats(&self) -> (Vec<Stat>, String) {
        let home = self.home.as_ref().ok().and_then(RwLock::try_read);
        home.map(|home| (home.pages().stats(), home.own().packing())).unwrap_or_else(|| {
            let figures = self.figures();
            (figures.home.clone(), figures.packing.clone())
        })
    }
}

const BAD: i64 = -(libc::EFAULT as i64);
const NONE: i64 = -(libc::ENODEV as i64);

/// Which of the pages that are named come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// The first, and those of the others that cost next to nothing
    Around,
    All,
    /// All, as a part of the working set
    Set,
    /// Of each that the template has, only whether it is as it was written; of the others as [`Self::Around`], where the first is one
    Shown,
    /// Of each that the template has, only whether it is as it was written; and all others
    ShownAll,
}

impl Fetch {
    fn from_number(number: u64) -> Option<Self> {
        match number {
            hc::SWAP_IN_AROUND => Some(Self::Around),
            hc::SWAP_IN_ALL | hc::SWAP_IN_AHEAD => Some(Self::All),
            hc::SWAP_IN_SET => Some(Self::Set),
            hc::SWAP_IN_SHOWN => Some(Self::Shown),
            hc::SWAP_IN_SHOWN_ALL | hc::SWAP_IN_SHOWN_AHEAD => Some(Self::ShownAll),
            _ => None,
        }
    }

    /// Whether only some of those that are named need come.
    fn is_around(self) -> bool {
        matches!(self, Self::Around | Self::Shown | Self::ShownAll)
    }
}

/// Overwrites the numbers of pages that did not come.
fn strike(numbers: &mut [PageId], came: &mut [PageId]) {
    came.sort_unstable();
    for number in numbers.iter_mut().filter(|number| came.binary_search(number).is_err()) {
        *number = hc::NO_FRAME;
    }
}

/// The hostcalls by which the kernel uses the home.
impl Hibernation {
    /// `SWAP_OUT`.
    pub(crate) fn swap_out(&self, memory: &SandboxMemory, phys: u64) -> i64 {
        let Some(Outgoing { mut working, mut rest, mut kept, stays }) = Outgoing::read(memory, phys) else {
            return BAD;
        };
        if stays {
            self.staying.begin(working.iter().chain(&rest).map(|page| page.id), kept);
            let mut figures = self.figures();
            (figures.stored, figures.store_error) = (Stored::default(), None);
            return 0;
        }
        let in_set = working.len();
        if self.plan.reap == Reap::Off {
            // Neighbours in memory are neighbours in the file, for page faults.
            rest.append(&mut working);
            rest.sort_unstable_by_key(|page| page.id);
        }
        let Ok(home) = &self.home else { return NONE };
        let mut home = home.write();
        // The others there are in frames again, or nowhere; they would take the room of new ones.
        if let Some(in_memory) = home.tiers_mut().memory_mut().filter(|in_memory| !in_memory.is_empty()) {
            in_memory.retain(&mut |id| kept.has(id));
        }
        let pages = home.pages_mut();
        match pages.store(&working, &rest) {
            Ok(stored) => {
                working.iter().chain(&rest).for_each(|page| kept.set(page.id));
                pages.retain(&mut |id| kept.has(id));
                self.staying.forget();
                self.counters.stored(&stored, in_set);
                let mut figures = self.figures();
                (figures.stored, figures.store_error, figures.move_error) = (stored, None, None);
                (figures.home, figures.packing) = (home.pages().stats(), home.own().packing());
                drop(figures);
                drop(home);
                self.moving.stored(&stored);
                if stored.fell_to_disk {
                    self.tell(Told::Moved(Ok(Moved::without_room(&stored))));
                }
                injection::stored();
                0
            }
            Err(error) => {
                self.figures().store_error = Some(error.to_string());
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
        let Some(how) = Fetch::from_number(how) else { return Ok(-i64::from(libc::EINVAL)) };
        let Some(mut numbers) = lists::numbers(memory, phys, count) else { return Ok(BAD) };
        let result = self.fetch(memory, &mut numbers, how)?;
        if result == 0 && how.is_around() {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
            // The list was just read from there.
            let _ = memory.copy_out(phys, &bytes);
        }
        Ok(result)
    }

    /// Brings pages back to their frames. Any threads may do so at once. With [`Fetch::Around`] and [`Fetch::Shown`] the numbers of those
    /// that did not come become [`hc::NO_FRAME`], and those that the template shows get [`hc::SHOWN`]. Result: 0 or a negative errno; an error says that a page is lost.
    pub(crate) fn fetch(
        &self,
        memory: &SandboxMemory,
        numbers: &mut [PageId],
        how: Fetch,
    ) -> Result<i64, SwapError> {
        let Some(mut pages) = lists::pages_of(memory, numbers) else { return Ok(BAD) };
        let mut came = self.staying.bring(memory, &mut pages, how);
        if pages.is_empty() && !came.is_empty() {
            strike(numbers, &mut came);
            return Ok(0);
        }
        let Ok(home) = &self.home else { return Ok(NONE) };
        injection::pass(if how == Fetch::Set { Point::Prefetching } else { Point::Fetching });
        let start = Instant::now();
        let mut shown = Vec::new();
        if matches!(how, Fetch::Shown | Fetch::ShownAll) {
            shown = template::shown(&home.read(), memory, &mut pages, how)?;
            self.counters.shown(shown.len() as u64);
        }
        let bytes = match how {
            _ if pages.is_empty() => 0,
            Fetch::Around | Fetch::Shown => home.read().pages().fetch_around(&mut pages)?,
            Fetch::All | Fetch::Set | Fetch::ShownAll => home.read().pages().fetch(&pages)?,
        };
        // An image that is written meanwhile takes them from their home.
        if !pages.is_empty() && !self.staying.is_wanted() {
            let home = home.read();
            if home.tiers().occupied().is_some() {
                home.pages().forget(&pages.iter().map(|page| page.id).collect::<Vec<_>>());
            }
        }
        match how {
            Fetch::Set => {
                injection::pass(Point::Prefetched);
                self.counters.prefetched(bytes);
                let woken = &mut self.figures().woken;
                woken.pages += pages.len() as u64;
                woken.bytes += bytes;
                woken.prefetch_us += micros(start.elapsed());
            }
            _ if pages.is_empty() => {}
            Fetch::Around | Fetch::All | Fetch::Shown | Fetch::ShownAll => {
                self.counters.fetched(pages.len() as u64, bytes)
            }
        }
        if how.is_around() {
            came.extend(pages.iter().map(|page| page.id));
            came.extend(&shown);
            strike(numbers, &mut came);
            template::mark(numbers, &shown);
        }
        Ok(0)
    }

    /// The sandbox has come to rest after a wake.
    pub(crate) fn rest(&self) {
        if let Ok(home) = &self.home {
            home.read().pages().rest();
        }
    }

    /// `BEGIN_WAKE`: forgets the last wake; result: how the working set comes back now.
    pub(crate) fn wake_mode(&self) -> i64 {
        self.settling.awake();
        let at_once = if self.comes_at_once() { hc::REAP_AT_ONCE } else { 0 };
        let mut figures = self.figures();
        figures.woken = Woken::default();
        let how = match figures.reap_now.take().unwrap_or(self.plan.reap) {
            _ if self.staying.wake() => hc::REAP_IN_PLACE,
            Reap::Off => hc::REAP_OFF,
            Reap::On => hc::REAP_FIRST,
            Reap::Stream => hc::REAP_STREAM,
        };
        (how | at_once).cast_signed()
    }

    /// `HIBERNATED`: takes down how a hibernation came out; `None`: `phys` is no place in memory.
    pub(crate) fn hibernated(&self, memory: &SandboxMemory, phys: u64) -> Option<CameOut> {
        let report: HibernateReport = memory.read(phys)?;
        injection::pass(Point::Released);
        let rested_ns = [report.collect_ns, report.write_ns, report.release_ns].into_iter().sum();
        self.staying.rests_for(Duration::from_nanos(rested_ns));
        let mut figures = self.figures();
        let stored = figures.stored;
        figures.last = match report.outcome {
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
                packed_bytes: stored.packed_bytes,
                memory_pages: stored.memory_pages,
                memory_bytes: stored.memory_bytes,
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
            _ => Err(figures.store_error.take().unwrap_or_else(|| "its pages could not be stored".into())),
        };
        if figures.last.is_err() {
            return Some(CameOut::StayedWarm);
        }
        (figures.woken, figures.reap_now) = (Woken::default(), None);
        Some(CameOut::Asleep)
    }
}

/// A time in microseconds.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
