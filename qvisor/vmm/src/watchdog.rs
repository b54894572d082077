//! The watchdog: notices a vCPU or the control thread that makes no progress, reports where they are, and ends the
//! sandbox.
//!
//! Progress is a hostcall, a return to user code, or a round of the control thread. Time counts against a thread only
//! while it could have made some: not while it rests (waits for work, or runs user code), while the host keeps it from
//! running, or while it waits for the host's disk; and not at all while the whole VMM is stopped, frozen, suspended or
//! starved, which the watchdog sees by its own lateness.
//!
//! A vCPU that waits for a lock of the kernel's says so by each wait ([`Pulse::waits_for_lock`]), and one that computes does not. Who
//! waits that long is stuck, and with it the sandbox. Who computes does something that takes long, which is no reason to end
//! the sandbox: that is told once, and only a vCPU that goes on for [`ENDLESS`] times as long without any sign is given up, since
//! all loops whose length a program chooses show progress (`sched::work` in the kernel).

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use std::thread::Thread;
use std::time::{Duration, Instant};

use abi::hostcall as hc;

use crate::activity::Activity;
use crate::cpu;
use crate::fault_signals;
use crate::hostcall::host_io::HostIo;
use crate::vcpu::Cpus;

/// How often it looks while a thread does not rest.
const TICK: Duration = Duration::from_secs(1);
/// A look that comes later than this shows that the watchdog itself did not run.
const LATE: Duration = Duration::from_millis(1500);
/// A thread that wants to run and ran for less than this part of a tick was starved. The time that it waits for a core
/// cannot be used: the host adds that up only once it gets one.
const STARVED_NS: u64 = 500_000_000;
/// How long after the verdict the process ends by itself, should the orderly end be stuck as well.
const LAST_RESORT: Duration = Duration::from_secs(10);
/// Looks in a row at which all threads rested and had done nothing, until the watchdog sleeps: it is not to be woken by every
/// request.
const QUIET_LOOKS: u32 = 2;
/// How often, and how far apart, it looks whether a sandbox that has begun to sleep is at rest.
const HUSH_TRIES: u32 = 5;
const HUSH_PAUSE: Duration = Duration::from_millis(20);
/// When it looks again whether a quiet sandbox that is doing something has come to rest.
const STIR_PAUSE: Duration = Duration::from_millis(100);
/// A vCPU that computes is given up after so many times the patience with one that waits.
const ENDLESS: u32 = 15;
/// How often after the start, and how far apart, it looks whether the program waits for the first time: what the start alone
/// needed is given back then.
const START_TRIES: u32 = 12;
const START_PAUSE: Duration = Duration::from_millis(250);
/// How long a vCPU may take to note where it was in the guest, before the report is written.
const NOTE_PAUSE: Duration = Duration::from_millis(100);
/// Most callers named for one thread.
const CALLERS: usize = 12;
/// [`Pulse::place`]: kernel code, or the control thread's own.
const IN_CODE: u32 = 0;
/// [`Pulse::place`]: it rests.
const RESTS: u32 = u32::MAX;

/// One thread's record of its progress. Written by that thread alone.
#[derive(Debug)]
pub struct Pulse {
    name: String,
    tid: AtomicI32,
    beats: AtomicU64,
    /// The hostcall it is in, [`IN_CODE`] or [`RESTS`].
    place: AtomicU32,
    /// Moments that it has spent on waiting for locks.
    lock_waits: AtomicU32,
}

impl Pulse {
    fn new(name: String) -> Self {
        Self {
            name,
            tid: AtomicI32::new(0),
            beats: AtomicU64::new(0),
            place: AtomicU32::new(RESTS),
            lock_waits: AtomicU32::new(0),
        }
    }

    #[inline]
    fn beat(&self, place: u32) {
        self.beats.store(self.beats.load(Relaxed).wrapping_add(1), Relaxed);
        self.place.store(place, SeqCst);
    }

    /// It is in a hostcall now.
    #[inline]
    pub fn enter(&self, call: u32) {
        self.beats.store(self.beats.load(Relaxed).wrapping_add(1), Relaxed);
        self.place.store(call, Relaxed);
    }

    /// It waits for a lock of the kernel's, which is no progress.
    pub fn waits_for_lock(&self) {
        self.lock_waits.store(self.lock_waits.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// It goes on in the kernel.
    #[inline]
    pub fn leave(&self) {
        self.enter(IN_CODE);
    }
}

/// The watched threads of one sandbox, and their watcher.
#[derive(Debug)]
pub struct Pulses {
    cpus: Vec<Pulse>,
    control: Pulse,
    watcher: OnceLock<Thread>,
    /// The watcher sleeps, since all threads rest: the next one that does not wakes it.
    sleeps: AtomicBool,
    /// The sandbox has begun to sleep, so the watcher need not wait whether it is quiet.
    hushed: AtomicBool,
    /// The sandbox ends.
    is_over: AtomicBool,
    /// Processor time of the control thread, in nanoseconds.
    control_cpu_ns: AtomicU64,
}

impl Pulses {
    /// For a sandbox with `cpus` vCPUs.
    #[must_use]
    pub fn new(cpus: u32) -> Self {
        Self {
            cpus: (0..cpus).map(|cpu| Pulse::new(format!("vCPU {cpu}"))).collect(),
            control: Pulse::new("the control thread".into()),
            watcher: OnceLock::new(),
            sleeps: AtomicBool::new(false),
            hushed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            control_cpu_ns: AtomicU64::new(0),
        }
    }

    /// A vCPU's.
    #[inline]
    #[must_use]
    pub fn cpu(&self, cpu: u32) -> Option<&Pulse> {
        self.cpus.get(cpu as usize)
    }

    /// The control thread's.
    #[must_use]
    pub fn control(&self) -> &Pulse {
        &self.control
    }

    /// The calling thread is the one that `pulse` is about.
    pub fn begin(&self, pulse: &Pulse) {
        // SAFETY: takes nothing and cannot fail.
        pulse.tid.store(unsafe { libc::gettid() }, Relaxed);
        self.goes_on(pulse, IN_CODE);
    }

    /// It ends.
    pub fn end(&self, pulse: &Pulse) {
        pulse.beat(RESTS);
        pulse.tid.store(0, Relaxed);
    }

    /// Calls `wait`, which waits for an event that may never come.
    pub fn resting<R>(&self, pulse: Option<&Pulse>, wait: impl FnOnce() -> R) -> R {
        let Some(pulse) = pulse else { return wait() };
        let place = pulse.place.load(Relaxed);
        pulse.beat(RESTS);
        let result = wait();
        self.goes_on(pulse, place);
        result
    }

    /// After that either the watcher sees that it does not rest, or we see that the watcher sleeps.
    fn goes_on(&self, pulse: &Pulse, place: u32) {
        pulse.beat(place);
        if self.sleeps.load(SeqCst) {
            self.wake_watcher();
        }
    }

    /// The sandbox sleeps: nothing is to be watched until something goes on.
    pub fn hush(&self) {
        self.hushed.store(true, SeqCst);
        self.wake_watcher();
    }

    /// The control thread notes how much processor time it has used.
    pub fn note_control_time(&self) {
        self.control_cpu_ns.store(cpu::clock_ns(libc::CLOCK_THREAD_CPUTIME_ID), Relaxed);
    }

    /// How much that was, in nanoseconds.
    #[must_use]
    pub fn control_cpu_ns(&self) -> u64 {
        self.control_cpu_ns.load(Relaxed)
    }

    /// The sandbox ends: the watcher rests no more.
    pub fn finish(&self) {
        self.is_over.store(true, SeqCst);
        self.wake_watcher();
    }

    fn wake_watcher(&self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.unpark();
        }
    }

    fn all(&self) -> impl Iterator<Item = &Pulse> {
        self.cpus.iter().chain([&self.control])
    }

    fn all_rest(&self) -> bool {
        self.all().all(|pulse| pulse.place.load(SeqCst) == RESTS)
    }
}

/// The state of a thread at the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    progress: (u64, u64),
    /// How long it had run.
    ran_ns: u64,
    /// Of [`Pulse::lock_waits`].
    lock_waits: u32,
    /// Looks in a row without progress: at which it was waiting, or at which it computed.
    stuck: u32,
    computed: u32,
}

/// The result of a look.
#[derive(Debug)]
pub enum Verdict {
    Well,
    /// A thread computes for long, which is worth a line in the log.
    Long(String),
    /// A thread is stuck.
    Stuck(String),
}

/// The objects that the watchdog looks at.
pub struct Watched<'a> {
    pub pulses: &'a Pulses,
    pub cpus: &'a Cpus,
    /// Tells the activity of a thread.
    pub files: &'a HostIo,
    /// The place of an address in the kernel's image or in this program's text; `None` for any other.
    pub name_of: Box<dyn Fn(u64) -> Option<String> + 'a>,
}

/// The watcher's own part.
#[derive(Debug)]
pub struct Watchdog {
    seen: Vec<Seen>,
    patience: Duration,
    last: Instant,
    quiet: u32,
    /// Looks for the end of the start that are left.
    start_tries: u32,
}

impl Watchdog {
    /// The calling thread watches. A thread that makes no progress for `patience` is given up.
    #[must_use]
    pub fn new(pulses: &Pulses, patience: Duration) -> Self {
        let _ = pulses.watcher.set(std::thread::current());
        let seen = vec![Seen::default(); pulses.all().count()];
        Self { seen, patience, last: Instant::now(), quiet: 0, start_tries: START_TRIES }
    }

    /// Waits for the next look, or until [`Pulses::finish`] is called. Once the start is over, and the program waits for the
    /// first time, the result is true.
    pub fn rest(&mut self, pulses: &Pulses) -> bool {
        if pulses.hushed.swap(false, SeqCst) {
            // The vCPU that said so is on its way to rest.
            for _ in 0..HUSH_TRIES {
                if pulses.is_over.load(SeqCst) {
                    break;
                }
                if pulses.all_rest() {
                    self.quiet = QUIET_LOOKS;
                    break;
                }
                std::thread::park_timeout(HUSH_PAUSE);
            }
            // Another thread may have called meanwhile: the caller looks before this thread sleeps.
            return false;
        }
        if self.quiet >= QUIET_LOOKS {
            // Until a look finds that it is not quiet any more: a single request is no reason to stay up.
            pulses.sleeps.store(true, SeqCst);
            let rests = pulses.all_rest();
            if rests {
                std::thread::park();
                self.last = Instant::now();
            }
            pulses.sleeps.store(false, SeqCst);
            if !rests {
                std::thread::park_timeout(STIR_PAUSE);
            }
            return false;
        }
        if self.start_tries > 0 {
            std::thread::park_timeout(START_PAUSE);
            let is_over = pulses.all_rest();
            self.start_tries = if is_over { 0 } else { self.start_tries - 1 };
            return is_over;
        }
        std::thread::park_timeout((self.last + TICK).saturating_duration_since(Instant::now()));
        false
    }

    /// Looks at every thread, once a tick; the report about one that is stuck, or that computes for long.
    pub fn look(&mut self, watched: &Watched<'_>) -> Verdict {
        let past = self.last.elapsed();
        if past < TICK {
            return Verdict::Well;
        }
        self.last = Instant::now();
        let most = u32::try_from(self.patience.as_secs()).unwrap_or(u32::MAX).max(1);
        let mut is_quiet = true;
        for (index, (pulse, seen)) in (0..).zip(watched.pulses.all().zip(&mut self.seen)) {
            is_quiet &= look_at(watched, index, pulse, seen, past > LATE);
        }
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        let all = || watched.pulses.all().zip(&self.seen);
        if let Some((stuck, _)) = all().find(|(_, seen)| seen.stuck >= most) {
            return Verdict::Stuck(report(watched, stuck, self.patience));
        }
        if let Some((stuck, _)) = all().find(|(_, seen)| seen.computed >= most.saturating_mul(ENDLESS)) {
            return Verdict::Stuck(report(watched, stuck, self.patience * ENDLESS));
        }
        match all().find(|(_, seen)| seen.computed == most) {
            Some((long, _)) => Verdict::Long(report(watched, long, self.patience)),
            None => Verdict::Well,
        }
    }
}

/// Ends the process by force in a while: a stuck thread may hold a lock that the orderly end needs.
pub fn end_by_force() {
    let end = || {
        std::thread::sleep(LAST_RESORT);
        crate::process::exit_now(125);
    };
    let _ = std::thread::Builder::new().stack_size(64 << 10).spawn(end);
}

/// Looks at a thread; whether it rests, and has since the last look.
fn look_at(watched: &Watched<'_>, cpu: u32, pulse: &Pulse, seen: &mut Seen, late: bool) -> bool {
    let place = pulse.place.load(SeqCst);
    let progress = (pulse.beats.load(Relaxed), watched.cpus.user_entries(cpu));
    let moved = std::mem::replace(&mut seen.progress, progress) != progress;
    let lock_waits = pulse.lock_waits.load(Relaxed);
    let waited = std::mem::replace(&mut seen.lock_waits, lock_waits) != lock_waits;
    if moved || place == RESTS || watched.cpus.runs_user_code(cpu) {
        (seen.stuck, seen.computed) = (0, 0);
        return !moved && place == RESTS;
    }
    let Some(found) = watched.files.thread_activity(pulse.tid.load(Relaxed)) else { return false };
    let starved = found.ran_ns.saturating_sub(std::mem::replace(&mut seen.ran_ns, found.ran_ns)) < STARVED_NS;
    if !late && could_go_on(found, starved, place) {
        let computes = computes(found, waited, place);
        let count = if computes { &mut seen.computed } else { &mut seen.stuck };
        *count = count.saturating_add(1);
    }
    false
}

/// Whether a thread without progress has something to do that takes long: it waits neither for a lock nor for another thread.
fn computes(found: Activity, waited: bool, place: u32) -> bool {
    !found.sleeps && !waited && (place == IN_CODE || place >= hc::OPEN)
}

/// Whether a thread is to blame for making no progress.
fn could_go_on(found: Activity, starved: bool, place: u32) -> bool {
    found.could_run && if found.sleeps { !waits_for_files(place) } else { !starved }
}

/// Whether a hostcall waits for files of the host, or for the reader of the log, which may take any time.
fn waits_for_files(place: u32) -> bool {
    place >= hc::OPEN
        || matches!(
            place,
            hc::SWAP_OUT | hc::SWAP_IN | hc::RELEASE | hc::BEGIN_WAKE | hc::LOG | hc::REPORT | hc::HIBERNATED
        )
}

fn report(watched: &Watched<'_>, stuck: &Pulse, patience: Duration) -> String {
    let mut text = format!("{} made no progress for {} s", stuck.name, patience.as_secs());
    watched.cpus.ask_places();
    for pulse in watched.pulses.all() {
        let tid = pulse.tid.load(Relaxed);
        if tid == 0 {
            continue;
        }
        let doing = match pulse.place.load(Relaxed) {
            RESTS => "rests".to_owned(),
            IN_CODE => "is in code of its own".to_owned(),
            call => format!("is in hostcall {call}"),
        };
        let _ = write!(text, "\n  {} {doing}", pulse.name);
        let Some((at, stack)) = fault_signals::place_of(tid) else { continue };
        let _ = write!(text, ", at {}", (watched.name_of)(at).unwrap_or_else(|| format!("{at:#x}")));
        name_callers(&mut text, watched, &stack);
    }
    // The signals that asked made the vCPUs leave the guest.
    std::thread::sleep(NOTE_PAUSE);
    for cpu in 0..watched.cpus.count() {
        let Some((at, stack)) = watched.cpus.place_in_guest(cpu) else { continue };
        let _ = write!(
            text,
            "\n  vCPU {cpu} was at {}",
            (watched.name_of)(at).unwrap_or_else(|| format!("{at:#x}"))
        );
        name_callers(&mut text, watched, &stack);
    }
    text
}

fn name_callers(text: &mut String, watched: &Watched<'_>, stack: &[u64]) {
    for caller in stack.iter().filter_map(|word| (watched.name_of)(*word)).take(CALLERS) {
        let _ = write!(text, "\n    {caller}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_could_go_on_is_to_blame() {
        let runs = Activity { could_run: true, ..Activity::default() };
        let sleeps = Activity { sleeps: true, ..runs };
        assert!(could_go_on(runs, false, IN_CODE) && could_go_on(sleeps, false, hc::AS_SYNC));
        assert!(!could_go_on(runs, true, IN_CODE), "starved");
        let held = Activity::default();
        assert!(!could_go_on(held, false, hc::AS_SYNC), "waits for a disk, or is stopped");
        assert!(!could_go_on(sleeps, false, hc::OPEN) && !could_go_on(sleeps, false, hc::SWAP_IN));
    }

    #[test]
    fn who_computes_is_not_stuck() {
        let runs = Activity { could_run: true, ..Activity::default() };
        let sleeps = Activity { sleeps: true, ..runs };
        assert!(computes(runs, false, IN_CODE) && computes(runs, false, hc::OPEN));
        assert!(!computes(runs, true, IN_CODE), "waits for a lock");
        assert!(
            !computes(sleeps, false, IN_CODE) && !computes(runs, false, hc::AS_SYNC),
            "waits for a thread"
        );
    }

    #[test]
    fn the_watcher_sleeps_only_while_all_rest() {
        let pulses = Pulses::new(1);
        assert!(pulses.all_rest());
        pulses.begin(pulses.control());
        assert!(!pulses.all_rest());
        pulses.resting(Some(pulses.control()), || assert!(pulses.all_rest()));
        pulses.end(pulses.control());
        assert!(pulses.all_rest());
    }
}
