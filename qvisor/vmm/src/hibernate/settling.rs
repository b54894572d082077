//! Packing the pages of a sandbox that has been asleep for a while (Sabre, section 3): in idle time, by one thread at a time, and only
//! while the sandbox sleeps. Sandboxes with one swap directory take turns, so that all of them together use one processor.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};
use std::{io, thread};

use swap::{Repacked, Stat, Tier};

use super::injection::{self, Point};
use super::moving::{MoveCause, Told};
use super::{Hibernation, Packed};
use crate::footprint;
use crate::lock::{Mutex, Rank};
use crate::process;

/// The stacks of the threads, in bytes. What waits also takes over what was packed, and writes the line that tells of it.
const WAITING_STACK: usize = 96 << 10;
pub(super) const PACKING_STACK: usize = 256 << 10;
/// How often a turn is asked for, and how long at most; the next sleep asks again.
const TURN_EVERY: Duration = Duration::from_millis(200);
const TURN_PATIENCE: Duration = Duration::from_secs(600);

/// Whether it is time to pack.
pub struct Settling {
    after: Duration,
    turn: Option<File>,
    /// Counts sleeps and wakes.
    changes: AtomicU64,
    /// The number of the sleep, or of the last one.
    sleep: AtomicU64,
    /// Held by who waits for the time to come.
    waiting: Mutex<()>,
    woken: Condvar,
    /// One thread packs; its turn keeps others out, but not another one of the same process.
    packs: AtomicBool,
}

impl Default for Settling {
    fn default() -> Self {
        Self::new(Duration::MAX, None)
    }
}

impl Settling {
    pub fn new(after: Duration, turn: Option<File>) -> Self {
        let waiting = Mutex::new(Rank::Settling, ());
        Self {
            after,
            turn,
            changes: AtomicU64::new(0),
            sleep: AtomicU64::new(u64::MAX),
            waiting,
            woken: Condvar::new(),
            packs: AtomicBool::new(false),
        }
    }

    /// The file of the turn, where there is one.
    pub fn turn_file(&self) -> Option<&File> {
        self.turn.as_ref()
    }

    /// The sandbox wakes: whatever packs gives up soon.
    pub fn awake(&self) {
        let _waiting = self.waiting.lock();
        self.begin(false);
    }

    /// The sandbox sleeps. Result: the number of the sleep.
    fn fall_asleep(&self) -> u64 {
        let _waiting = self.waiting.lock();
        self.begin(true)
    }

    /// If the sandbox sleeps, whoever packs or moves pages gives up soon, for somebody else. Result: the new number of the sleep.
    pub fn interrupt(&self) -> Option<u64> {
        let _waiting = self.waiting.lock();
        self.asleep()?;
        Some(self.begin(true))
    }

    /// A sleep, or the end of one, gets the next number. Called with the lock of those who wait.
    fn begin(&self, is_asleep: bool) -> u64 {
        let number = self.changes.load(Ordering::Relaxed) + 1;
        self.sleep.store(if is_asleep { number } else { u64::MAX }, Ordering::Relaxed);
        self.changes.store(number, Ordering::Relaxed);
        self.woken.notify_all();
        number
    }

    /// The number of the sleep; `None`: the sandbox is awake.
    pub fn asleep(&self) -> Option<u64> {
        Some(self.sleep.load(Ordering::Relaxed)).filter(|sleep| self.is(*sleep))
    }

    /// Nobody packs from now on: the sandbox is left to another VMM.
    pub fn end_packing(&self) {
        self.awake();
        while self.packs.swap(true, Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits so long; false: the sandbox woke.
    pub fn wait(&self, time: Duration, sleep: u64) -> bool {
        let waiting = self.waiting.lock();
        // A wake that comes between is seen the next time.
        let (_guard, _) = waiting.wait_while(&self.woken, time, |_| self.is(sleep));
        self.is(sleep)
    }

    pub fn is(&self, sleep: u64) -> bool {
        self.changes.load(Ordering::Relaxed) == sleep
    }

    /// Waits until nobody else of this process packs; `None`: the sandbox woke. Whoever does was told to end.
    pub fn alone(&self, sleep: u64) -> Option<Alone<'_>> {
        while self.packs.swap(true, Ordering::Acquire) {
            if !self.wait(TURN_EVERY, sleep) {
                return None;
            }
        }
        Some(Alone(&self.packs))
    }

    /// Waits for the turn, which only one thread may do; `None`: the sandbox woke, or it does not come.
    pub fn turn(&self, sleep: u64) -> Option<Turn<'_>> {
        let begin = Instant::now();
        loop {
            let Some(file) = &self.turn else { return Some(Turn(None)) };
            // SAFETY: the descriptor is this value's.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Some(Turn(Some(file)));
            }
            if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
                return Some(Turn(None));
            }
            if begin.elapsed() > TURN_PATIENCE || !self.wait(TURN_EVERY, sleep) {
                return None;
            }
        }
    }
}

/// Times of a sleep.
#[derive(Clone, Copy)]
struct Times {
    /// Pages move to where they are to be, at once.
    first: Option<(Tier, MoveCause)>,
    /// Pages are in memory, or will be.
    watches: bool,
    /// They go to the disk.
    disk_after: Option<Duration>,
    /// Pages on the disk are packed.
    pack_after: Option<Duration>,
}

impl Times {
    fn is_never(self) -> bool {
        self.first.is_none() && self.after().is_none()
    }

    /// After how long asleep there is something else to do; what has waited so long to go to the disk is packed at once.
    fn after(self) -> Option<Duration> {
        self.disk_after.or(self.pack_after)
    }
}

/// The right to ask for the turn.
pub struct Alone<'a>(&'a AtomicBool);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The turn to pack.
pub struct Turn<'a>(Option<&'a File>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            let_go(file);
        }
    }
}

/// Lets others have the turn.
pub(super) fn let_go(turn: &File) {
    // SAFETY: integers only.
    unsafe { libc::flock(turn.as_raw_fd(), libc::LOCK_UN) };
}

impl Hibernation {
    /// The sandbox sleeps. Result: the number of the sleep, for [`Self::arm`].
    pub(crate) fn fall_asleep(&self) -> u64 {
        self.moving.begin_sleep();
        // Whoever waits for an earlier sleep's time goes.
        self.settling.fall_asleep()
    }

    /// The sandbox sleeps, and its pages are moved and packed at their times.
    #[cfg(test)]
    pub(crate) fn settle(this: &Arc<Self>) {
        Self::arm(this, this.fall_asleep());
    }

    /// Has pages moved and packed at their times, as long as the sleep has this number. Without a thread to be had they stay as they are.
    pub(crate) fn arm(this: &Arc<Self>, sleep: u64) {
        let Some(times) = this.times() else { return };
        if times.watches {
            Self::watch_pressure(this);
        }
        if times.is_never() {
            return;
        }
        let this = Arc::clone(this);
        let waiting = move || {
            let settling = &this.settling;
            if let Some((tier, cause)) = times.first
                && apart(|| this.move_pages(tier, cause, sleep)) == Some(false)
            {
                // Pages that stay on the disk are packed there.
                return Self::arm_anew(&this);
            }
            let Some(after) = times.after() else { return };
            if after > Duration::ZERO && !settling.wait(after, sleep) {
                return;
            }
            if times.disk_after.is_some() {
                apart(|| this.move_pages(Tier::Disk, MoveCause::Time, sleep));
            }
            if times.pack_after.is_none() {
                return;
            }
            let Some(_alone) = settling.alone(sleep) else { return };
            let Some(_turn) = settling.turn(sleep) else { return };
            this.pack(sleep);
        };
        let _ = thread::Builder::new().name("settle".into()).stack_size(WAITING_STACK).spawn(waiting);
    }

    /// When pages of the sleep are to move and to be packed; `None`: it has no home.
    fn times(&self) -> Option<Times> {
        let home = self.home.as_ref().ok()?.read();
        let tiers = home.tiers();
        let first = if tiers.is_settled() {
            self.moving.have_settled();
            None
        } else {
            self.moving.first(tiers.goes_to())
        };
        let lifts = first.is_some_and(|(tier, _)| tier == Tier::Memory);
        let watches = lifts || tiers.occupied().is_some();
        let disk_after = self.plan.home.disk_after.filter(|_| watches);
        let packs = home.own().packs() && (disk_after.is_some() || !lifts && !home.own().is_empty());
        let pack_after = Some(self.settling.after).filter(|after| packs && *after < Duration::MAX);
        Some(Times { first, watches, disk_after, pack_after })
    }

    /// Packs, in idle time, and takes over what was packed. That is done by this thread, which others may have to wait for.
    fn pack(&self, sleep: u64) {
        let Ok(home) = &self.home else { return };
        let before = home.read().pages().stats();
        let result = thread::scope(|scope| {
            let pack = || {
                process::be_idle();
                let home = home.read();
                home.own().pack(&|| self.settling.is(sleep)).map_err(|error| error.to_string())
            };
            let thread = thread::Builder::new().name("pack".into()).stack_size(PACKING_STACK);
            let thread = thread.spawn_scoped(scope, pack).map_err(|error| error.to_string())?;
            thread.join().unwrap_or(Ok(None))
        });
        match result {
            Ok(Some(packed)) => self.adopt(packed, sleep, &before),
            Ok(None) => {}
            // What fails stays as it is, and the next sleep tries again.
            Err(why) => self.tell(Told::Packed(Err(format!("its pages cannot be packed: {why}")))),
        }
        if self.settling.is(sleep) {
            footprint::trim_heap();
        }
    }

    /// Takes over what was packed, and tells of it.
    fn adopt(&self, packed: Repacked, sleep: u64, before: &[Stat]) {
        injection::pass(Point::Packed);
        let Ok(home) = &self.home else { return };
        let mut home = home.write();
        let is_adopted = home.own_mut().adopt(packed, self.settling.is(sleep));
        let (stats, packing) = (home.pages().stats(), home.own().packing());
        drop(home);
        let told = Packed::new(packing.clone(), before, &stats);
        {
            let mut figures = self.figures();
            (figures.home, figures.packing) = (stats, packing);
        }
        injection::pass(Point::Adopted);
        if is_adopted {
            self.tell(Told::Packed(Ok(told)));
        }
    }

    pub(super) fn tell(&self, told: Told) {
        if let Some(listener) = self.listener.get() {
            listener(told);
        }
    }
}

/// Whether it is a file of the user's who runs this process.
pub(super) fn is_own(file: &File) -> bool {
    // SAFETY: it takes nothing, and cannot fail.
    let user = unsafe { libc::geteuid() };
    file.metadata().is_ok_and(|found| found.is_file() && found.uid() == user)
}

/// Calls something in a thread with a larger stack, which goes then. Without a thread to be had it is not called.
fn apart<R: Send>(work: impl FnOnce() -> Option<R> + Send) -> Option<R> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("move".into()).stack_size(PACKING_STACK);
        thread.spawn_scoped(scope, work).ok()?.join().ok()?
    })
}
