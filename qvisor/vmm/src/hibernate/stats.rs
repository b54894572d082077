//! The figures of `dormouse stats`. None is asked of the kernel, so a sandbox that sleeps goes on sleeping.
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abi::PAGE_SIZE;
use abi::layout::{USER_PHYS, WINDOW_CHUNK};
use abi::stats::{KernelFigures, KernelStats};
use serde::{Deserialize, Serialize};
use swap::{Stat, Stored};

use super::timers::TimerWake;
use crate::memory::SandboxMemory;

/// Classes of the histogram: the first is below 2 µs, each other one twice as far.
pub const CLASSES: usize = 32;

/// Memory by class, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStats {
    /// Of applications, in memory.
    pub user_resident_bytes: u64,
    /// Of applications, in the swap or the REAP file (pages of one repeated word included, which take no room there).
    pub swapped_bytes: u64,
    /// The pages that come back at once with the next wake.
    pub working_set_bytes: u64,
    /// Address space in which host files are shown; their pages are the host's page cache.
    pub file_mapped_bytes: u64,
    pub kernel_heap_bytes: u64,
    /// Of the VMM's process, with all that it maps; 0 when the host does not say.
    pub vmm_rss_bytes: u64,
    pub vmm_pss_bytes: u64,
    /// In use in the files.
    pub swap_file_bytes: u64,
    pub reap_file_bytes: u64,
    #[serde(default)]
    pub packed_file_bytes: u64,
    /// In use by pages that are kept in memory while it sleeps; of the VMM's.
    #[serde(default)]
    pub home_bytes: u64,
}

/// Wakes that took less than `below_us` microseconds, and not less than the class before says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeClass {
    pub below_us: u64,
    pub wakes: u64,
}

/// How often it fell asleep or woke for a cause, as `dormouse events` names causes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseCount {
    pub cause: String,
    /// The kind of request, where the cause is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    pub count: u64,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    pub memory: MemoryStats,
    /// Faults that brought pages back, and how many pages came that way, neighbours included.
    pub swap_in_faults: u64,
    pub swap_in_pages: u64,
    /// Pages that were shown where the snapshot has them, so far: each as often as it was first touched.
    #[serde(default)]
    pub shown_pages: u64,
    /// From and to the two files.
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub hibernations: u64,
    pub failed_hibernations: u64,
    pub wakes: u64,
    /// By cause.
    #[serde(default)]
    pub hibernations_by: Vec<CauseCount>,
    #[serde(default)]
    pub wakes_by: Vec<CauseCount>,
    /// How long it has been asleep or awake without a break, and how long it has been asleep in all.
    #[serde(default)]
    pub unchanged_ms: u64,
    #[serde(default)]
    pub asleep_ms: u64,
    /// The time that all wakes together took.
    #[serde(default)]
    pub wakes_us: u64,
    /// Those for a timer of a program, and the last of them.
    #[serde(default)]
    pub timer_wakes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_timer_wake: Option<TimerWake>,
    /// Probes by a command that were answered without a wake.
    #[serde(default)]
    pub answered_probes: u64,
    /// System calls that programs made and the kernel does not have.
    #[serde(default)]
    pub unknown_calls: u64,
    /// Copies of pages that were made to patch call sites in them, so far.
    #[serde(default)]
    pub patched_bytes: u64,
    /// Free memory that went back to the host while the sandbox ran, so far.
    #[serde(default)]
    pub returned_bytes: u64,
    /// How its pages are packed.
    #[serde(default)]
    pub codec: String,
    /// The counters of the home of the sandbox's pages, by name.
    #[serde(default)]
    pub home: BTreeMap<String, u64>,
    /// Classes without any are left out.
    pub wake_times: Vec<WakeClass>,
}

/// Counters of the home of a sandbox's pages.
#[derive(Debug, Default)]
pub struct Counters {
    swap_in_faults: AtomicU64,
    swap_in_pages: AtomicU64,
    shown_pages: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    working_set_bytes: AtomicU64,
}

impl Counters {
    pub(super) fn stored(&self, stored: &Stored, working_set: usize) {
        self.written_bytes
            .fetch_add((stored.swap_pages + stored.reap_pages) * PAGE_SIZE + stored.packed_bytes, Relaxed);
        self.working_set_bytes.store(working_set as u64 * PAGE_SIZE, Relaxed);
    }

    pub(super) fn fetched(&self, pages: u64, bytes: u64) {
        self.swap_in_faults.fetch_add(1, Relaxed);
        self.swap_in_pages.fetch_add(pages, Relaxed);
        self.read_bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn shown(&self, pages: u64) {
        self.shown_pages.fetch_add(pages, Relaxed);
    }

    pub(super) fn prefetched(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Relaxed);
    }
}

/// A cause of [`CauseCount`], and the kind of request.
type Cause = (&'static str, Option<&'static str>);

/// How often it hibernated and woke.
#[derive(Clone, Debug)]
pub struct Cycles {
    pub hibernations: u64,
    pub failed: u64,
    pub wakes: u64,
    pub timer_wakes: u64,
    pub last_timer_wake: Option<TimerWake>,
    pub answered_probes: u64,
    classes: [u64; CLASSES],
    hibernations_by: BTreeMap<Cause, u64>,
    wakes_by: BTreeMap<Cause, u64>,
    wakes_us: u64,
    /// When it fell asleep or woke last, or began.
    changed: Instant,
    is_asleep: bool,
    /// Without the present sleep.
    asleep: Duration,
}

impl Default for Cycles {
    fn default() -> Self {
        Self {
            hibernations: 0,
            failed: 0,
            wakes: 0,
            timer_wakes: 0,
            last_timer_wake: None,
            answered_probes: 0,
            classes: [0; CLASSES],
            hibernations_by: BTreeMap::new(),
            wakes_by: BTreeMap::new(),
            wakes_us: 0,
            changed: Instant::now(),
            is_asleep: false,
            asleep: Duration::ZERO,
        }
    }
}

impl Cycles {
    /// Counts a hibernation.
    pub fn hibernated(&mut self, cause: &'static str) {
        self.hibernations += 1;
        *self.hibernations_by.entry((cause, None)).or_default() += 1;
    }

    /// Keeps the time: whether it is asleep now, told after each thing that may have changed it. Its memory may come back
    /// without a wake, on its way to the next sleep.
    pub fn is_now(&mut self, asleep: bool) {
        if asleep != self.is_asleep {
            self.asleep = self.asleep();
            self.changed = Instant::now();
            self.is_asleep = asleep;
        }
    }

    /// Counts a wake.
    pub fn woken(&mut self, cause: &'static str, request: Option<&'static str>, total_us: u64) {
        *self.wakes_by.entry((cause, request)).or_default() += 1;
        self.wakes_us = self.wakes_us.saturating_add(total_us);
        self.wakes += 1;
        let class = total_us.max(1).ilog2() as usize;
        if let Some(count) = self.classes.get_mut(class.min(CLASSES - 1)) {
            *count += 1;
        }
    }

    /// The wake was for a timer.
    pub fn woken_by_timer(&mut self, timer: TimerWake) {
        self.timer_wakes += 1;
        self.last_timer_wake = Some(timer);
    }

    /// How long it has been asleep in all.
    fn asleep(&self) -> Duration {
        if self.is_asleep { self.asleep + self.changed.elapsed() } else { self.asleep }
    }

    fn wake_times(&self) -> Vec<WakeClass> {
        let classes = (1..).zip(&self.classes).filter(|(_, wakes)| **wakes > 0);
        classes.map(|(class, wakes)| WakeClass { below_us: 1 << class, wakes: *wakes }).collect()
    }
}

/// The address of the kernel's own counters; 0: it has not said.
#[derive(Debug, Default)]
pub struct KernelPlace(AtomicU64);

impl KernelPlace {
    /// The kernel says it; false when that is no place in its memory.
    pub(crate) fn set(&self, memory: &SandboxMemory, phys: u64) -> bool {
        let len = size_of::<KernelStats>() as u64;
        let is_good = phys < USER_PHYS && phys.is_multiple_of(8) && memory.host_ptr(phys, len).is_some();
        if is_good {
            self.0.store(phys, Ordering::Release);
        }
        is_good
    }

    /// The kernel's counters, within the possible; zeros if it has not said.
    fn read(&self, memory: &SandboxMemory) -> KernelFigures {
        let phys = self.0.load(Ordering::Acquire);
        let said: Option<KernelFigures> = (phys != 0).then(|| memory.read(phys)).flatten();
        let said = said.unwrap_or_default();
        // The kernel may say anything.
        let user_frames = said.user_frames.min(memory.user_bytes() / PAGE_SIZE);
        KernelFigures { user_frames, swapped_frames: said.swapped_frames.min(user_frames), ..said }
    }
}

fn counts(by_cause: &BTreeMap<Cause, u64>) -> Vec<CauseCount> {
    let count = |(&(cause, request), &count): (&Cause, &u64)| CauseCount {
        cause: cause.to_owned(),
        request: request.map(str::to_owned),
        count,
    };
    by_cause.iter().map(count).collect()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The figures of a sandbox.
/// `home`: what the home of its pages counts, and how it packs.
/// `vmm`: what the host says of the VMM's memory, as `/proc/PID/smaps_rollup` has it.
pub(crate) fn collect(
    memory: &SandboxMemory,
    kernel: &KernelPlace,
    counters: &Counters,
    (home, codec): (&[Stat], String),
    vmm: &str,
    cycles: &Cycles,
) -> Stats {
    let said = kernel.read(memory);
    let of_vmm = |name: &str| {
        let line = vmm.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    let get = |counter: &AtomicU64| counter.load(Relaxed);
    let home: BTreeMap<String, u64> = home.iter().map(|stat| (stat.name.into(), stat.value)).collect();
    let of_home = |name| home.get(name).copied().unwrap_or(0);
    Stats {
        memory: MemoryStats {
            user_resident_bytes: (said.user_frames - said.swapped_frames) * PAGE_SIZE,
            swapped_bytes: said.swapped_frames * PAGE_SIZE,
            working_set_bytes: get(&counters.working_set_bytes),
            file_mapped_bytes: memory.window_chunks() * WINDOW_CHUNK,
            kernel_heap_bytes: said.heap_bytes,
            vmm_rss_bytes: of_vmm("Rss:"),
            vmm_pss_bytes: of_vmm("Pss:"),
            swap_file_bytes: of_home("swap_file_bytes"),
            reap_file_bytes: of_home("reap_file_bytes"),
            packed_file_bytes: of_home("packed_file_bytes"),
            home_bytes: of_home("memory_bytes"),
        },
        swap_in_faults: get(&counters.swap_in_faults),
        swap_in_pages: get(&counters.swap_in_pages),
        shown_pages: get(&counters.shown_pages),
        read_bytes: get(&counters.read_bytes),
        written_bytes: get(&counters.written_bytes),
        hibernations: cycles.hibernations,
        failed_hibernations: cycles.failed,
        wakes: cycles.wakes,
        hibernations_by: counts(&cycles.hibernations_by),
        wakes_by: counts(&cycles.wakes_by),
        unchanged_ms: millis(cycles.changed.elapsed()),
        asleep_ms: millis(cycles.asleep()),
        wakes_us: cycles.wakes_us,
        timer_wakes: cycles.timer_wakes,
        last_timer_wake: cycles.last_timer_wake.clone(),
        answered_probes: cycles.answered_probes,
        unknown_calls: said.unknown_calls,
        patched_bytes: said.patched_pages.saturating_mul(PAGE_SIZE),
        returned_bytes: said.returned_pages.saturating_mul(PAGE_SIZE),
        wake_times: cycles.wake_times(),
        codec,
        home,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::boot::Platform;

    #[test]
    fn wakes_are_counted_by_powers_of_two() {
        let mut cycles = Cycles::default();
        [0, 1, 2, 3, 4, 1000, 1024, u64::MAX].into_iter().for_each(|us| cycles.woken("order", None, us));
        let times: Vec<_> = cycles.wake_times().iter().map(|class| (class.below_us, class.wakes)).collect();
        assert_eq!(times, [(2, 2), (4, 2), (8, 1), (1024, 1), (2048, 1), (1 << 32, 1)]);
        assert_eq!(cycles.wakes, 8);
        assert_eq!(cycles.wakes_us, u64::MAX);
    }

    #[test]
    fn causes_are_counted_and_sleep_is_timed() {
        let mut cycles = Cycles::default();
        for request in ["stdin", "timer", "stdin"] {
            cycles.hibernated("idle-timeout");
            cycles.is_now(true);
            std::thread::sleep(Duration::from_millis(2));
            cycles.is_now(true);
            assert!(cycles.asleep() >= Duration::from_millis(2));
            cycles.woken("request", Some(request), 5);
            cycles.is_now(false);
        }
        let slept = cycles.asleep();
        assert!(slept >= Duration::from_millis(6));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(cycles.asleep(), slept, "it is awake");
        let by = |counts: Vec<CauseCount>| -> Vec<_> {
            counts.into_iter().map(|by| (by.cause, by.request.unwrap_or_default(), by.count)).collect()
        };
        assert_eq!(by(counts(&cycles.hibernations_by)), [("idle-timeout".into(), String::new(), 3)]);
        let woken = [("request".into(), "stdin".into(), 2), ("request".into(), "timer".into(), 1)];
        assert_eq!(by(counts(&cycles.wakes_by)), woken);
    }

    #[test]
    fn the_kernels_numbers_are_hearsay() {
        let memory = SandboxMemory::new(Platform::Kvm, 16 << 20, 4 << 20).unwrap();
        let place = KernelPlace::default();
        assert_eq!(place.read(&memory), KernelFigures::default());
        for bad in [1, 0x1004, USER_PHYS, USER_PHYS - 8, u64::MAX - 7] {
            assert!(!place.set(&memory, bad), "{bad:#x}");
        }
        assert!(place.set(&memory, 0x1000));
        let wild = KernelFigures {
            user_frames: u64::MAX,
            swapped_frames: u64::MAX,
            heap_bytes: 7,
            unknown_calls: 0,
            patched_pages: 0,
            returned_pages: 0,
        };
        memory.write(0x1000, &wild).unwrap();
        assert_eq!(place.read(&memory), KernelFigures { user_frames: 1024, swapped_frames: 1024, ..wild });
        let sane = KernelFigures { user_frames: 5, swapped_frames: 2, ..wild };
        memory.write(0x1000, &sane).unwrap();
        assert_eq!(place.read(&memory), sane);
    }
}
