//! One stub thread as the VMM sees it: its area, and taking turns with it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

use abi::layout::{STUB_AREA, STUB_AREA_SIZE};
use abi::run::UserRegs;

use super::area::{Area, CALL_RFLAGS, CALL_RIP, CALL_RSP, TURN_DEAD, TURN_PARK, TURN_SLEEPS, TURN_STUB};
use super::frame::{self, Frame, FrameLayout};
use super::handover::{Affinity, LongRun, StubPlacement};
use crate::{cpu, futex};

/// The stub process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// The rule by which a wait for the turn is given up.
pub trait Patience {
    /// Whether the stub is to be called back now.
    fn is_over(&self) -> bool;

    /// Calls it back, once more as a rule. False: it does not come although it could, and counts as lost.
    fn call_back(&self) -> bool;

    /// When [`Self::is_over`] becomes true by itself: monotonic time in nanoseconds; `u64::MAX`: never.
    fn end_ns(&self) -> u64;

    /// The stub has had its turn for long, and goes on: the place to choose its core anew. Called at the times of a [`LongRun`].
    fn see_to_core(&self) {}
}

/// A wait that sleeps looks at the word this often: another thread that took its wake-up holds it up no longer than
/// this.
const CHECK_NS: u64 = 20_000_000;
/// Flags that a call may go on with: CF, PF, AF, ZF, SF, IF, DF, OF, ID, and the bit that is always set.
const CALL_FLAGS: u64 = 0x0020_0ed7;
/// How often a stub that is called back is looked at.
const CALL_NS: u64 = 10_000_000;

/// A stub thread, existing or to be made.
pub struct StubThread {
    area: *mut u8,
    layout: FrameLayout,
    /// Its index among the areas of its process.
    index: u64,
    /// Host thread id; 0 before it exists.
    pub tid: AtomicI32,
    fs_base: AtomicU64,
    gs_base: AtomicU64,
    /// The core it was sent to: see [`StubThread::send_to`].
    sent: AtomicU32,
    /// It handed over by a call without a signal: its FPU's registers are in no frame.
    in_call: AtomicBool,
}

// SAFETY: the area is shared memory that outlives the thread table; it is used through atomics and raw copies only.
unsafe impl Send for StubThread {}
// SAFETY: as above; a thread belongs to one vCPU, whose `own` lock everybody has who uses it.
unsafe impl Sync for StubThread {}

impl StubThread {
    /// # Safety
    /// `area` is the start of an area in the control file's mapping, which outlives the value.
    pub unsafe fn new(area: *mut u8, index: u64, layout: FrameLayout) -> Self {
        Self {
            area,
            layout,
            index,
            tid: AtomicI32::new(0),
            fs_base: AtomicU64::new(0),
            gs_base: AtomicU64::new(0),
            sent: AtomicU32::new(0),
            in_call: AtomicBool::new(false),
        }
    }

    /// The header page.
    pub fn area(&self) -> &Area {
        // SAFETY: `new` was promised a mapped, aligned area; `Area` is atomics and an `UnsafeCell`.
        unsafe { &*self.area.cast::<Area>() }
    }

    /// The signal frame.
    pub fn frame(&self) -> Frame {
        // SAFETY: `new` was promised a whole area.
        unsafe { Frame::new(self.area, self.layout) }
    }

    /// The area, in the stub's addresses.
    pub fn address(&self) -> u64 {
        STUB_AREA + self.index * STUB_AREA_SIZE
    }

    /// The address of the frame, in the stub's memory.
    pub fn frame_address(&self) -> u64 {
        self.address() + self.layout.frame as u64
    }

    /// Sets up the area of a thread that does not exist or is parked.
    pub fn reset(&self, areas_len: u64) {
        let area = self.area();
        self.frame().reset(self.address());
        area.frame_at.store(self.frame_address(), Relaxed);
        area.has_fsgsbase.store(u32::from(cpu::has_fsgsbase()), Relaxed);
        area.vmm_pid.store(std::process::id(), Relaxed);
        area.areas_len.store(areas_len, Relaxed);
        area.frame.store(self.frame_address(), Relaxed);
        area.trap_fs_base.store(0, Relaxed);
        area.trap_gs_base.store(0, Relaxed);
        // Unknown: the next run sets both.
        self.fs_base.store(u64::MAX, Relaxed);
        self.gs_base.store(u64::MAX, Relaxed);
        self.in_call.store(false, Relaxed);
    }

    /// The FS and GS bases the stub thread has, as far as the VMM knows.
    pub fn bases(&self) -> (u64, u64) {
        (self.fs_base.load(Relaxed), self.gs_base.load(Relaxed))
    }

    /// Notes the bases.
    pub fn set_bases(&self, fs_base: u64, gs_base: u64) {
        self.fs_base.store(fs_base, Relaxed);
        self.gs_base.store(gs_base, Relaxed);
    }

    /// Whether it waits in a call that came without a signal.
    pub fn is_in_call(&self) -> bool {
        self.in_call.load(Relaxed)
    }

    /// Notes it.
    pub fn set_in_call(&self, is_in_call: bool) {
        self.in_call.store(is_in_call, Relaxed);
    }

    /// The registers that a call left in the area, as the instruction it stands for would have left them. As little to be
    /// believed as a frame's.
    pub fn call_registers(&self) -> UserRegs {
        let at = |index: usize| self.area().call.get(index).map_or(0, |word| word.load(Relaxed));
        let (rip, rflags) = (at(CALL_RIP), at(CALL_RFLAGS));
        UserRegs {
            r15: at(0),
            r14: at(1),
            r13: at(2),
            r12: at(3),
            r11: rflags,
            r10: at(4),
            r9: at(5),
            r8: at(6),
            rax: at(7),
            rcx: rip,
            rdx: at(8),
            rsi: at(9),
            rdi: at(10),
            rbp: at(11),
            rbx: at(12),
            rip,
            rflags,
            rsp: at(CALL_RSP),
            fs_base: 0,
            gs_base: 0,
        }
    }

    /// Sets the registers that a call goes on with. False: these need a frame.
    pub fn set_call_registers(&self, regs: &UserRegs) -> bool {
        let rflags = regs.rflags & frame::USER_RFLAGS | frame::FIXED_RFLAGS;
        // R11 and RCX are what a system call leaves there; no flag may stop the stub's own code.
        if (regs.rcx, regs.r11) != (regs.rip, regs.rflags) || rflags & !CALL_FLAGS != 0 {
            return false;
        }
        let words = [
            regs.r15, regs.r14, regs.r13, regs.r12, regs.r10, regs.r9, regs.r8, regs.rax, regs.rdx, regs.rsi,
            regs.rdi, regs.rbp, regs.rbx, regs.rip, rflags, regs.rsp,
        ];
        self.area().call.iter().zip(words).for_each(|(place, word)| place.store(word, Relaxed));
        true
    }

    /// Gives the stub its turn with a command.
    pub fn give_turn(&self, command: u32, spin_cycles: u64) {
        let area = self.area();
        area.command.store(command, Relaxed);
        area.spin_cycles.store(spin_cycles, Relaxed);
        // A dead process stays marked.
        let mut turn = area.turn.load(Relaxed);
        while let Err(seen) =
            area.turn.compare_exchange_weak(turn, turn & TURN_DEAD | TURN_STUB, AcqRel, Relaxed)
        {
            turn = seen;
        }
        if turn & TURN_SLEEPS != 0 {
            futex::wake(&area.turn, 1, futex::Scope::Shared);
        }
    }

    /// Tells a waiting stub to stop spinning.
    pub fn park(&self) {
        let turn = &self.area().turn;
        let _ = turn.compare_exchange(0, TURN_PARK, Relaxed, Relaxed);
    }

    /// Waits until the stub gives the turn back.
    pub fn wait_turn(&self, spin_cycles: u64, patience: &impl Patience) -> Result<(), Lost> {
        let word = &self.area().turn;
        let start = cpu::tsc();
        loop {
            let turn = word.load(Acquire);
            if turn & TURN_STUB == 0 {
                return if turn & TURN_DEAD == 0 { Ok(()) } else { Err(Lost) };
            }
            if turn & TURN_DEAD != 0 {
                return Err(Lost);
            }
            if cpu::tsc().wrapping_sub(start) > spin_cycles {
                break;
            }
            std::hint::spin_loop();
        }
        self.sleep_for_turn(word, patience)
    }

    #[cold]
    fn sleep_for_turn(&self, word: &AtomicU32, patience: &impl Patience) -> Result<(), Lost> {
        let mut is_called = false;
        let mut now = cpu::clock_ns(libc::CLOCK_MONOTONIC);
        let mut run = LongRun::new(now);
        loop {
            let turn = word.load(Acquire);
            if turn & TURN_DEAD != 0 {
                return Err(Lost);
            }
            if turn & TURN_STUB == 0 {
                return Ok(());
            }
            if patience.is_over() {
                if !patience.call_back() {
                    return Err(Lost);
                }
                is_called = true;
            }
            // Also of one that is called back: it may be bound to a core that somebody else has.
            if run.is_due(now) {
                patience.see_to_core();
            }
            let asleep = turn | TURN_SLEEPS;
            if turn != asleep && word.compare_exchange(turn, asleep, SeqCst, Relaxed).is_err() {
                continue;
            }
            let soon = run.next_ns().min(now + CHECK_NS);
            let until = if is_called { now + CALL_NS } else { patience.end_ns().min(soon) };
            futex::wait(word, asleep, until, futex::Scope::Shared);
            now = cpu::clock_ns(libc::CLOCK_MONOTONIC);
        }
    }

    /// Sends the thread to cores, relative to that of the calling thread; `all` are those it may have.
    pub fn send_to(&self, place: StubPlacement, all: &Affinity) {
        // 0 for all of them; else the core it is on, or is not on, so that nothing is done twice.
        let core = match place {
            StubPlacement::Anywhere => None,
            StubPlacement::SameCore | StubPlacement::OtherCore => Affinity::current_core(),
        };
        let (code, set) = match (place, core) {
            (StubPlacement::SameCore, Some(core)) => (2 * core + 1, Affinity::only(core)),
            (StubPlacement::OtherCore, Some(core)) => (2 * core + 2, all.without(core)),
            _ => (0, *all),
        };
        if self.sent.swap(code, Relaxed) != code {
            set.apply(self.tid.load(Relaxed));
        }
    }

    /// Sends the thread, which runs, to one of some cores at once. It is bound to none of them afterwards; `all` are those
    /// it may have.
    pub fn move_to(&self, cores: &Affinity, all: &Affinity) {
        let tid = self.tid.load(Relaxed);
        cores.apply(tid);
        self.sent.store(0, Relaxed);
        all.apply(tid);
    }

    /// Whether the thread says that it stopped on the calling thread's core.
    pub fn is_on_this_core(&self) -> bool {
        Affinity::current_core() == Some(self.area().core.load(Relaxed))
    }

    /// Marks the thread as dead and wakes the vCPU that waits for it.
    pub fn mark_dead(&self) {
        let turn = &self.area().turn;
        turn.fetch_or(TURN_DEAD, SeqCst);
        futex::wake(turn, i32::MAX, futex::Scope::Shared);
    }
}
