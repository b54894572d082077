//! Pages on their way between memory and the disk while the sandbox sleeps: after a time, when the host is short of memory, or by order.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use swap::{Home, Stored, SwapError, Tier};

use super::injection::{self, Point};
use super::settling::PACKING_STACK;
use super::{Hibernation, HomeError, Packed, micros};

/// Where the host tells how long tasks have waited for memory (`Documentation/accounting/psi.rst`).
const PRESSURE: &str = "/proc/pressure/memory";
/// The time of which a share counts, in microseconds: who has no special rights may ask for multiples of 2 s.
const WINDOW_US: u64 = 2_000_000;
/// How long a wait for pressure does not look at anything else.
const SLICE: Duration = Duration::from_millis(200);
/// Pages that move while nobody can fetch any: a wake waits for a few milliseconds.
const BATCH_PAGES: usize = 256;
/// Where there is time, a move rests for so many times as long as it works.
const PACE: u32 = 3;
/// Least time between two looks at the pressure.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Told of pages that were packed or moved while the sandbox slept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Packed(Result<Packed, String>),
    Moved(Result<Moved, String>),
}

/// The reason why pages move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveCause {
    /// There was no room for them in memory.
    NoRoom,
    /// They were too many to be packed before the sandbox slept.
    Many,
    /// The time in memory is over.
    Time,
    /// The host is short of memory.
    Pressure,
    Order,
}

/// Figures of a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// `disk` or `memory`.
    pub to: String,
    pub why: MoveCause,
    pub moved_pages: u64,
    /// Bytes that pages take in memory now.
    pub left_bytes: u64,
    pub move_us: u64,
}

impl Moved {
    /// Pages went to the disk as they were stored.
    pub(super) fn without_room(stored: &Stored) -> Self {
        let (to, moved_pages) = (name(Tier::Disk).into(), stored.disk_pages());
        Self { to, why: MoveCause::NoRoom, moved_pages, left_bytes: 0, move_us: 0 }
    }
}

/// Where pages are, and where they go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeState {
    /// `disk` or `memory`: where those go that are stored from now on.
    pub home: String,
    pub memory_pages: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    /// Some are on their way.
    pub is_moving: bool,
    /// Why the last ones did not arrive.
    pub error: Option<String>,
}

/// The name of a tier, as options have it.
pub(super) fn name(tier: Tier) -> &'static str {
    match tier {
        Tier::Disk => "disk",
        Tier::Memory => "memory",
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Moving {
    /// Ready to be read while the host is short of memory.
    pressure: Option<File>,
    is_watched: AtomicBool,
    /// How many orders have not been carried out; one thread carries them out.
    orders: AtomicU32,
    /// Pages are on their way.
    moves: AtomicBool,
    /// The last order was for memory.
    wants_memory: AtomicBool,
    /// Pages of the sleep that went to the disk first are to be lifted to memory, if they are fewer than were too many.
    lifts: AtomicBool,
    too_many: AtomicU64,
    /// The last order was not carried out to its end, as the sandbox woke.
    resumes: AtomicBool,
    /// In this sleep the disk has taken no more.
    disk_failed: AtomicBool,
}

impl Moving {
    /// With a watch for tasks that wait for memory for this part of their time, in per cent.
    pub fn open(pressure: Option<u8>) -> Result<Self, HomeError> {
        let watch = |percent: u8| {
            let mut file = File::options().read(true).write(true).open(PRESSURE)?;
            let wait_us = WINDOW_US / 100 * u64::from(percent.clamp(1, 100));
            file.write_all(format!("some {wait_us} {WINDOW_US}\0").as_bytes())?;
            Ok(file)
        };
        let pressure = pressure.map(watch).transpose().map_err(HomeError::Pressure)?;
        Ok(Self { pressure, ..Self::default() })
    }

    /// The sandbox sleeps: what could not be done in the last sleep may be now.
    pub fn begin_sleep(&self) {
        self.disk_failed.store(false, Ordering::Relaxed);
    }

    /// Pages have been stored: whether they are to be lifted to memory.
    pub fn stored(&self, stored: &Stored) {
        // 0: nothing was ever too much.
        let too_many = self.too_many.load(Ordering::Relaxed);
        self.lifts
            .store(stored.is_to_lift && (too_many == 0 || stored.disk_pages() < too_many), Ordering::Relaxed);
    }

    /// All pages are where they are sent.
    pub fn have_settled(&self) {
        self.resumes.store(false, Ordering::Relaxed);
    }

    /// Where pages that are not in this tier, which they are sent to, move at once, and why; `None`: they stay where they are.
    pub fn first(&self, tier: Tier) -> Option<(Tier, MoveCause)> {
        if self.resumes.load(Ordering::Relaxed) {
            Some((tier, MoveCause::Order))
        } else if tier == Tier::Memory && self.lifts.load(Ordering::Relaxed) {
            Some((tier, MoveCause::Many))
        } else {
            None
        }
    }
}

/// Waits until the host is short of memory; false: nobody will ever know.
fn wait_for(pressure: &File, time: Option<Duration>) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: pressure.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
    let time = time.map_or(-1, |time| i32::try_from(time.as_millis()).unwrap_or(i32::MAX));
    // SAFETY: the descriptor is the file's, and the place this function's own.
    match unsafe { libc::poll(&raw mut poll, 1, time) } {
        -1 => Err(io::Error::last_os_error()),
        _ if poll.revents & libc::POLLERR != 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count > 0),
    }
}

impl Hibernation {
    /// Where pages are, and where they go; `None`: it has no home.
    pub fn home_state(&self) -> Option<HomeState> {
        // First: whoever is told that nothing moves finds what was ordered before.
        let has_orders = self.moving.orders.load(Ordering::Acquire) > 0;
        let is_moving = has_orders || self.moving.moves.load(Ordering::Acquire);
        let Some(home) = self.home.as_ref().ok()?.try_read() else {
            // Pages are being stored, or moved.
            return Some(HomeState { is_moving: true, ..HomeState::default() });
        };
        let tiers = home.tiers();
        let memory = tiers.memory();
        let error = self.figures().move_error.clone();
        Some(HomeState {
            home: name(tiers.goes_to()).into(),
            memory_pages: memory.map_or(0, |memory| memory.len() as u64),
            memory_bytes: memory.map_or(0, Home::stored_bytes),
            disk_bytes: tiers.disk().stored_bytes(),
            is_moving,
            error,
        })
    }

    /// Whether pages of the sandbox are in memory.
    fn is_in_memory(&self) -> bool {
        self.home.as_ref().is_ok_and(|home| home.read().tiers().occupied().is_some())
    }

    /// Whether all pages that were stored come from memory, those of a base among them.
    pub(super) fn comes_at_once(&self) -> bool {
        let Ok(home) = &self.home else { return false };
        let home = home.read();
        home.tiers().occupied().is_some()
            && home.own().is_empty()
            && home.base().is_none_or(|base| base.own().is_mapped())
    }

    /// Sends pages to a tier from now on, and has those that there are moved there.
    pub fn order_home(this: &Arc<Self>, tier: Tier) -> Result<(), String> {
        this.home.as_ref().map_err(Clone::clone)?;
        if this.plan.packing.encrypt && tier == Tier::Memory {
            return Err("its pages are encrypted, and those are not kept in memory".into());
        }
        this.figures().move_error = None;
        this.moving.wants_memory.store(tier == Tier::Memory, Ordering::Release);
        if this.moving.orders.fetch_add(1, Ordering::AcqRel) > 0 {
            // Whoever carries out an earlier one hears of it, and stops moving.
            this.settling.interrupt();
            return Ok(());
        }
        let mover = Arc::clone(this);
        let thread = thread::Builder::new().name("move".into()).stack_size(PACKING_STACK);
        let thread = thread.spawn(move || Self::carry_out_orders(&mover));
        thread.map(drop).map_err(|error| {
            this.moving.orders.store(0, Ordering::Release);
            let why = error.to_string();
            this.figures().move_error = Some(why.clone());
            why
        })
    }

    /// Carries out the last order until there is none that came meanwhile.
    fn carry_out_orders(this: &Arc<Self>) {
        let orders = &this.moving.orders;
        let mut known = orders.load(Ordering::Acquire);
        let mut had_more = known > 1;
        loop {
            Self::carry_out(this);
            match orders.compare_exchange(known, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(more) => (known, had_more) = (more, true),
            }
        }
        // Orders that came meanwhile have interrupted whoever waited for the times of the sleep.
        if had_more {
            Self::arm_anew(this);
        }
    }

    /// Has pages moved and packed at the times of the sleep, if it is one, counted from now.
    pub(super) fn arm_anew(this: &Arc<Self>) {
        if let Some(number) = this.settling.interrupt() {
            Self::arm(this, number);
        }
    }

    /// Carries out the last order. Awake, the next sleep does. One that fails changes nothing for later sleeps.
    fn carry_out(this: &Arc<Self>) {
        let Ok(home) = &this.home else { return };
        let tier = if this.moving.wants_memory.load(Ordering::Acquire) { Tier::Memory } else { Tier::Disk };
        let before = {
            let home = home.read();
            if home.tiers().goes_to() == tier && home.tiers().is_settled() {
                return;
            }
            home.tiers().goes_to()
        };
        // Pages that do not get there now follow in the next sleep.
        this.moving.resumes.store(true, Ordering::Release);
        // Whoever packs holds the home until it hears of that.
        let number = this.settling.interrupt();
        home.write().tiers_mut().send_to(tier);
        // It may have fallen asleep meanwhile.
        let Some(number) = number.or_else(|| this.settling.interrupt()) else { return };
        this.moving.begin_sleep();
        this.moving.lifts.store(false, Ordering::Relaxed);
        if this.move_pages(tier, MoveCause::Order, number) == Some(false) {
            home.write().tiers_mut().send_to(before);
        }
        if this.settling.asleep() == Some(number) {
            Self::arm(this, number);
        }
    }

    /// Moves pages as long as the sleep has this number, and tells of it. Where there is time it does so in its turn. Result: whether that
    /// could be done; `None`: there was no occasion.
    pub(super) fn move_pages(&self, tier: Tier, cause: MoveCause, number: u64) -> Option<bool> {
        let _alone = self.settling.alone(number)?;
        let home = self.home.as_ref().ok()?;
        let asked = Instant::now();
        let _turn = if cause == MoveCause::Order { None } else { Some(self.settling.turn(number)?) };
        if cause == MoveCause::Pressure && !self.is_pressed(asked, number) || !self.settling.is(number) {
            return None;
        }
        self.moving.moves.store(true, Ordering::Release);
        let (start, mut pages) = (Instant::now(), 0);
        injection::pass(Point::Moving);
        let mut moves = home.read().tiers().moves(tier);
        let is_urgent = matches!(cause, MoveCause::Pressure | MoveCause::Order);
        let result = loop {
            // Not in idle time: a fetch that waits for the home would wait for whoever computes elsewhere.
            let batch = Instant::now();
            match home.write().tiers_mut().move_next(&mut moves, BATCH_PAGES) {
                Ok(Some(moved)) => pages += moved as u64,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
            injection::pass(Point::Moved);
            let rest = if is_urgent { Duration::ZERO } else { batch.elapsed() * PACE };
            if !self.settling.is(number) || !rest.is_zero() && !self.settling.wait(rest, number) {
                break Ok(());
            }
        };
        let (left_bytes, is_settled) = {
            let home = home.read();
            home.tiers().rest();
            (home.tiers().memory().map_or(0, Home::stored_bytes), home.tiers().is_settled())
        };
        let (to, move_us) = (name(tier).into(), micros(start.elapsed()));
        let moved = Moved { to, why: cause, moved_pages: pages, left_bytes, move_us };
        let outcome = self.outcome(result, tier, moved);
        let is_done = outcome.is_ok();
        if cause == MoveCause::Order && (!is_done || is_settled) {
            self.moving.resumes.store(false, Ordering::Release);
        }
        self.moving.moves.store(false, Ordering::Release);
        self.tell(Told::Moved(outcome));
        Some(is_done)
    }

    /// Whether the host is still short of memory for one who has waited for its turn since then.
    fn is_pressed(&self, since: Instant, number: u64) -> bool {
        let Some(pressure) = &self.moving.pressure else { return false };
        let until = Instant::now() + Duration::from_micros(WINDOW_US);
        let mut is_pressed = since.elapsed() < LOOK_EVERY;
        while !is_pressed && self.settling.is(number) && Instant::now() < until {
            is_pressed = wait_for(pressure, Some(SLICE)).unwrap_or(false);
        }
        is_pressed
    }

    fn outcome(&self, result: Result<(), SwapError>, tier: Tier, moved: Moved) -> Result<Moved, String> {
        result.map_err(|error| {
            let why = match (tier, error) {
                (Tier::Memory, SwapError::Limit { limit_bytes }) => {
                    format!("there is no room for all of its pages in memory, where they may take {limit_bytes} bytes")
                }
                (Tier::Memory, error) => format!("its pages cannot all come to memory: {error}"),
                (Tier::Disk, error) => format!("its pages cannot all go to the disk: {error}"),
            };
            self.figures().move_error = Some(why.clone());
            self.moving.disk_failed.fetch_or(tier == Tier::Disk, Ordering::Relaxed);
            if moved.why == MoveCause::Many {
                self.moving.lifts.store(false, Ordering::Relaxed);
                let all = self.home.as_ref().map_or(0, |home| home.read().own().pages().len());
                self.moving.too_many.store((all + moved.moved_pages).max(1), Ordering::Relaxed);
            }
            why
        })?;
        Ok(moved)
    }

    /// Watches the pressure of memory from now on, if that was asked for and nobody does.
    pub(super) fn watch_pressure(this: &Arc<Self>) {
        if this.moving.pressure.is_none() || this.moving.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let watched = Arc::clone(this);
        let watch = move || {
            let Some(pressure) = &watched.moving.pressure else { return };
            loop {
                match wait_for(pressure, None) {
                    Ok(_) => Self::relieve(&watched),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break watched.moving.is_watched.store(false, Ordering::Release),
                }
                thread::sleep(LOOK_EVERY);
            }
        };
        if thread::Builder::new().name("pressure".into()).stack_size(PACKING_STACK).spawn(watch).is_err() {
            this.moving.is_watched.store(false, Ordering::Release);
        }
    }

    /// The host is short of memory: pages go to the disk if the sandbox sleeps. Sandboxes of one swap directory do so in turns, and look
    /// again when theirs comes late. A disk without room is not asked again in the same sleep.
    fn relieve(this: &Arc<Self>) {
        if this.moving.disk_failed.load(Ordering::Relaxed) || !this.is_in_memory() {
            return;
        }
        // Whoever packs holds the turn.
        let Some(number) = this.settling.interrupt() else { return };
        if this.move_pages(Tier::Disk, MoveCause::Pressure, number).is_some() {
            // They stay there for this sleep.
            this.moving.lifts.store(false, Ordering::Relaxed);
            this.moving.resumes.store(false, Ordering::Release);
        }
        if this.settling.asleep() == Some(number) {
            Self::arm(this, number);
        }
    }
}

#[cfg(test)]
#[path = "moving_tests.rs"]
mod tests;
