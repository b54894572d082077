//! The vCPUs: their headers in kernel memory, and how one sleeps and is woken.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::time::Duration;

use abi::hostcall::Event;
use abi::layout::{CPU_AREA_PHYS, CPU_AREA_SIZE, MAX_CPUS};
use abi::run::CpuHeader;

use crate::hostcall::io_threads::{IoThreads, Woken};
use crate::memory::SandboxMemory;
use crate::{cpu, futex};

/// All vCPUs of a sandbox.
#[derive(Debug)]
pub struct Cpus {
    memory: Arc<SandboxMemory>,
    cpus: Vec<Cpu>,
    busy: AtomicUsize,
    stopping: AtomicBool,
    /// The idle vCPU that waits for the host's files as well; [`NOBODY`].
    watcher: AtomicU32,
    /// Each vCPU that leaves the guest is to note its place.
    wants_places: AtomicBool,
    /// Those that sleep are to stay there.
    held: AtomicBool,
}

const NOBODY: u32 = u32::MAX;
/// How soon a vCPU that was called sees that it is held no more.
const HELD_LOOK: Duration = Duration::from_micros(100);
/// Most words of a stack that are looked at.
const STACK_WORDS: u64 = 512;

#[derive(Debug, Default)]
struct Cpu {
    /// Sleeps on `pending`, or is about to.
    sleeps: AtomicBool,
    /// Instruction and stack pointer in the guest when it last noted them; 0 before that.
    place: [AtomicU64; 2],
}

impl Cpus {
    /// Writes the headers of `count` vCPUs. `linear_base` is the linear map's base as the kernel sees it.
    /// `None` unless `count` is 1 to [`MAX_CPUS`].
    #[must_use]
    pub fn new(memory: Arc<SandboxMemory>, count: u32, linear_base: u64) -> Option<Self> {
        if count == 0 || count > MAX_CPUS {
            return None;
        }
        for cpu in 0..count {
            let phys = header_phys(cpu);
            let at = memory.host_ptr(phys, CPU_AREA_SIZE)?.cast::<CpuHeader>();
            let header = CpuHeader {
                this: linear_base.wrapping_add(phys),
                current: AtomicU64::new(0),
                trap_sp: 0,
                scratch: 0,
                host_sp: 0,
                pending: AtomicU32::new(0),
                cpu,
                deadline_ns: AtomicU64::new(u64::MAX),
                in_user: AtomicU64::new(0),
                alarm_ns: AtomicU64::new(u64::MAX),
                user_entries: AtomicU64::new(0),
            };
            // SAFETY: the range was checked, and no CPU runs yet.
            unsafe { at.write(header) };
        }
        let cpus = (0..count).map(|_| Cpu::default()).collect();
        Some(Self {
            memory,
            cpus,
            busy: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            watcher: AtomicU32::new(NOBODY),
            wants_places: AtomicBool::new(false),
            held: AtomicBool::new(false),
        })
    }

    /// Number of vCPUs.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.cpus.len()).unwrap_or(MAX_CPUS)
    }

    /// vCPUs that are neither idle nor ended.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.busy.load(Relaxed)
    }

    /// Host address of a vCPU's header; `None` if there is no such vCPU.
    #[must_use]
    pub fn header(&self, cpu: u32) -> Option<*mut CpuHeader> {
        let exists = cpu < self.count();
        exists.then(|| self.memory.host_ptr(header_phys(cpu), CPU_AREA_SIZE).map(<*mut u8>::cast))?
    }

    /// `CpuHeader::pending`.
    #[must_use]
    pub fn pending(&self, cpu: u32) -> Option<&AtomicU32> {
        // SAFETY: (1) the header lives as long as `self.memory`; (2) both sides use this word atomically only.
        self.header(cpu).map(|header| unsafe { AtomicU32::from_ptr((&raw mut (*header).pending).cast()) })
    }

    /// `CpuHeader::deadline_ns`.
    #[must_use]
    pub fn deadline(&self, cpu: u32) -> Option<&AtomicU64> {
        // SAFETY: as for `pending`.
        self.header(cpu).map(|header| unsafe { AtomicU64::from_ptr((&raw mut (*header).deadline_ns).cast()) })
    }

    /// `CpuHeader::in_user`.
    #[must_use]
    pub fn in_user(&self, cpu: u32) -> Option<&AtomicU64> {
        // SAFETY: as for `pending`.
        self.header(cpu).map(|header| unsafe { AtomicU64::from_ptr((&raw mut (*header).in_user).cast()) })
    }

    /// `CpuHeader::alarm_ns`.
    #[must_use]
    pub fn alarm(&self, cpu: u32) -> Option<&AtomicU64> {
        // SAFETY: as for `pending`.
        self.header(cpu).map(|header| unsafe { AtomicU64::from_ptr((&raw mut (*header).alarm_ns).cast()) })
    }

    /// `CpuHeader::user_entries`; 0 if there is no such vCPU.
    #[must_use]
    pub fn user_entries(&self, cpu: u32) -> u64 {
        // SAFETY: as for `pending`.
        let word =
            |header: *mut CpuHeader| unsafe { AtomicU64::from_ptr((&raw mut (*header).user_entries).cast()) };
        self.header(cpu).map_or(0, |header| word(header).load(Relaxed))
    }

    /// Whether a vCPU runs user code now, as the kernel says.
    #[must_use]
    pub fn runs_user_code(&self, cpu: u32) -> bool {
        self.in_user(cpu).is_some_and(|in_user| in_user.load(Relaxed) != 0)
    }

    /// Sets `pending` and ends the vCPU's sleep, if it sleeps. The caller looks at `in_user` afterwards: the vCPU sets
    /// that before it looks at `pending` for the last time, so one of the two sees the other.
    pub fn set_pending(&self, cpu: u32, io: &IoThreads) {
        let (Some(pending), Some(state)) = (self.pending(cpu), self.cpus.get(cpu as usize)) else { return };
        pending.store(1, SeqCst);
        if !state.sleeps.load(SeqCst) {
            return;
        }
        if self.watcher.load(SeqCst) == cpu {
            io.kick();
        } else {
            futex::wake(pending, 1, futex::Scope::Private);
        }
    }

    /// A vCPU that sleeps, or the first one.
    #[must_use]
    pub fn any_idle(&self) -> u32 {
        (0..self.count()).find(|&cpu| self.cpus[cpu as usize].sleeps.load(Relaxed)).unwrap_or(0)
    }

    /// Sleeps until `pending` is set, the deadline has come, or the sandbox ends. One vCPU at a time waits for edges of
    /// the host's sockets as well, and takes up to `most` of them.
    pub fn idle(&self, cpu: u32, io: &IoThreads, most: usize, take: &mut dyn FnMut(Event)) {
        let (Some(pending), Some(deadline)) = (self.pending(cpu), self.deadline(cpu)) else { return };
        let Some(state) = self.cpus.get(cpu as usize) else { return };
        let deadline = deadline.load(Relaxed);
        let watches =
            most > 0 && io.watches() && self.watcher.compare_exchange(NOBODY, cpu, SeqCst, Relaxed).is_ok();
        // After that: a thread that sees it sleep must see how it sleeps.
        state.sleeps.store(true, SeqCst);
        self.busy.fetch_sub(1, Relaxed);
        let called = || pending.load(SeqCst) != 0 || self.stopping.load(SeqCst);
        let mut has_taken = false;
        // No spinning: the receiver of what this vCPU has just sent waits for this core as a rule.
        while !called() {
            if deadline != u64::MAX && cpu::clock_ns(libc::CLOCK_MONOTONIC) >= deadline {
                break;
            }
            if !watches {
                futex::wait(pending, 0, deadline, futex::Scope::Private);
            } else if io.wait(deadline) == Woken::Edges {
                // What is taken is with this vCPU alone, which is not to be held with it.
                self.end_sleep(state);
                has_taken = io.take_edges(most, &mut *take) > 0;
                if has_taken {
                    break;
                }
                state.sleeps.store(true, SeqCst);
            }
        }
        if !has_taken {
            self.end_sleep(state);
        }
        self.busy.fetch_add(1, Relaxed);
        if watches {
            self.watcher.store(NOBODY, SeqCst);
        }
    }

    /// A vCPU's sleep ends as soon as nobody holds it.
    fn end_sleep(&self, state: &Cpu) {
        state.sleeps.store(false, SeqCst);
        // Whoever holds it has seen one of the two.
        while self.held.load(SeqCst) && !self.is_stopping() {
            state.sleeps.store(true, SeqCst);
            std::thread::sleep(HELD_LOOK);
            state.sleeps.store(false, SeqCst);
        }
    }

    /// Keeps all vCPUs asleep but `cpu`, which calls it, until they are let go; false: one of them does not sleep.
    pub fn hold_others(&self, cpu: u32) -> bool {
        self.held.store(true, SeqCst);
        let mut others = (0..self.count()).filter(|other| *other != cpu);
        let all = others.all(|other| self.cpus[other as usize].sleeps.load(SeqCst));
        if !all {
            self.let_go();
        }
        all
    }

    /// They go on when they are called, as those do that were called meanwhile.
    pub fn let_go(&self) {
        self.held.store(false, SeqCst);
    }

    /// A vCPU's thread begins (`true`) or ends (`false`).
    pub fn set_running(&self, running: bool) {
        if running {
            self.busy.fetch_add(1, Relaxed);
        } else {
            self.busy.fetch_sub(1, Relaxed);
        }
    }

    /// Lets every vCPU end at its next hostcall.
    pub fn stop(&self, io: &IoThreads) {
        self.stopping.store(true, SeqCst);
        (0..self.count()).for_each(|cpu| self.set_pending(cpu, io));
    }

    /// From now on each vCPU that leaves the guest is to [note its place](Self::note_place).
    pub fn ask_places(&self) {
        self.wants_places.store(true, SeqCst);
    }

    /// Whether that was asked for.
    #[must_use]
    pub fn wants_places(&self) -> bool {
        self.wants_places.load(Relaxed)
    }

    /// A vCPU has left the guest with these registers.
    pub fn note_place(&self, cpu: u32, rip: u64, rsp: u64) {
        let Some(state) = self.cpus.get(cpu as usize) else { return };
        state.place[1].store(rsp, SeqCst);
        state.place[0].store(rip, SeqCst);
    }

    /// The instruction pointer that a vCPU noted, and the words on its stack in the guest's kernel, as far as they lie in
    /// the sandbox's memory.
    #[must_use]
    pub fn place_in_guest(&self, cpu: u32) -> Option<(u64, Vec<u64>)> {
        let [rip, rsp] = self.cpus.get(cpu as usize)?.place.each_ref().map(|word| word.load(SeqCst));
        // SAFETY: the header lives as long as `self.memory`, and this word never changes.
        let this = unsafe { (&raw const (*self.header(cpu)?).this).read_volatile() };
        let phys = rsp.wrapping_sub(this.wrapping_sub(header_phys(cpu)));
        let words = (0..STACK_WORDS).map_while(|index| self.memory.read(phys.wrapping_add(8 * index) & !7));
        (rip != 0).then(|| (rip, words.collect()))
    }

    /// Whether the vCPUs are to end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }
}

fn header_phys(cpu: u32) -> u64 {
    CPU_AREA_PHYS + u64::from(cpu) * CPU_AREA_SIZE
}
