//! Running user code, and changing the mappings of a stub.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use abi::layout::{PAGE_SIZE, STUB_TEXT, TEMPLATE_PHYS, USER_MAX, USER_PHYS, WINDOW_PHYS};
use abi::run::{
    MAP_OP_MAP, MAP_OP_PROTECT, MAP_OP_UNMAP, MAP_OP_UNMAP_ALL, MapOp, PROT_EXEC, PROT_READ, PROT_WRITE,
    RunState, SYSCALL_PATCHED, TRAP_INTERRUPT, TRAP_LOST, TRAP_SYSCALL, TrapInfo,
};

use super::area::{COMMAND_LEAVE_CALL, COMMAND_RUN, COMMAND_RUN_CALL, GS_BELOW, SET_FS, SET_GS, SIGNAL_CALL};
use super::handover::{HandoverPolicy, StubPlacement, Waited};
use super::mapper::MapperOrder;
use super::process::Process;
use super::thread::{Lost, Patience, StubThread};
use super::{CpuState, Last, Own, Systrap};
use crate::activity::Activity;
use crate::cpu;
use crate::vcpu::Cpus;

/// Most operations in one hostcall.
const OPERATIONS_MAX: u64 = 1 << 20;

/// Why operations stopped.
enum Stop {
    Lost,
    /// It does something that no stub does.
    Odd,
    Errno(u32),
}

impl From<Lost> for Stop {
    fn from(_: Lost) -> Self {
        Stop::Lost
    }
}

/// A stub thread that this vCPU holds.
struct HeldThread<'a> {
    process: &'a Process,
    thread: &'a StubThread,
    /// The one it held before, which still spins for a turn that will not come soon.
    former: Cell<Option<Last>>,
}

impl HeldThread<'_> {
    /// Lets the former stub thread sleep. Only after this one was woken: so its core never becomes idle in between.
    fn park_former(&self) {
        if let Some(former) = self.former.take()
            && let Some(thread) = former.process.threads.get(former.index)
        {
            thread.park();
        }
    }
}

impl Drop for HeldThread<'_> {
    fn drop(&mut self) {
        self.park_former();
    }
}

/// The rule by which a vCPU calls its stub back, and gives up one that does not come.
struct UntilWanted<'a> {
    process: &'a Process,
    tid: i32,
    proc: Option<&'a OwnedFd>,
    cpu: u32,
    deadline_ns: u64,
    pending: &'a AtomicU32,
    /// The last look at a stub that was called back.
    last: Cell<Option<Look>>,
    platform: &'a Systrap,
    thread: &'a StubThread,
}

#[derive(Clone, Copy, Default)]
struct Look {
    at_ns: u64,
    seen: Activity,
    /// Time in which it could have come.
    idled_ns: u64,
}

/// A stub that is called back and could run comes at once. One that has not come after so much time, in which it could,
/// runs code that keeps it away.
const DEFIANT_NS: u64 = 50_000_000;
/// Most of the time between two looks that counts: beyond this the vCPU itself did not run, and so perhaps the stub did
/// not either.
const LOOK_NS: u64 = 15_000_000;
/// Where nothing is known of the stub it counts as lost after this time.
const GIVEN_UP_NS: u64 = 5_000_000_000;

impl Look {
    /// The look after this one, at which the stub's activity was `seen`.
    fn next(self, now_ns: u64, seen: Option<Activity>) -> Self {
        let past = now_ns.saturating_sub(self.at_ns);
        let counts = match seen {
            // The stub waits for a disk, or is stopped from outside.
            Some(seen) if !seen.could_run => 0,
            // The stub wants a core and has got none since: the host counts its waiting time only once it gets one.
            Some(seen) if !seen.sleeps && seen.slices == self.seen.slices => {
                seen.ran_ns.saturating_sub(self.seen.ran_ns).min(past)
            }
            Some(seen) => {
                past.min(LOOK_NS).saturating_sub(seen.waited_ns.saturating_sub(self.seen.waited_ns))
            }
            None => past * DEFIANT_NS / GIVEN_UP_NS,
        };
        Self { at_ns: now_ns, seen: seen.unwrap_or(self.seen), idled_ns: self.idled_ns + counts }
    }
}

impl Patience for UntilWanted<'_> {
    fn is_over(&self) -> bool {
        self.pending.load(SeqCst) != 0
            || self.deadline_ns != u64::MAX && cpu::clock_ns(libc::CLOCK_MONOTONIC) >= self.deadline_ns
    }

    /// A stub that is called back comes with its next instruction of user code. Only a stub whose code has blocked the
    /// signal, or changes its turn, does not; a stub that the host keeps from running cannot, and is waited for.
    fn call_back(&self) -> bool {
        self.process.interrupt_cpu(self.cpu);
        let seen = self.process.activity_of(self.tid, self.proc);
        let now_ns = cpu::clock_ns(libc::CLOCK_MONOTONIC);
        let look = match self.last.get() {
            Some(last) => last.next(now_ns, seen),
            None => Look { at_ns: now_ns, seen: seen.unwrap_or_default(), idled_ns: 0 },
        };
        self.last.set(Some(look));
        look.idled_ns < DEFIANT_NS
    }

    fn end_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Whoever computes is bound to no core, and gets one of its own if the host does not see to it.
    fn see_to_core(&self) {
        self.thread.send_to(StubPlacement::Anywhere, &self.platform.affinity);
        let Some(state) = self.platform.cpus.get(self.cpu as usize) else { return };
        if !state.computes.is_said() {
            // The host has some time to choose first.
            return state.computes.say(self.process.pid(), self.tid);
        }
        if let Some(cores) = self.platform.free_cores_for(self.cpu) {
            self.thread.move_to(&cores, &self.platform.affinity);
        }
    }
}

/// The patience of [`UntilWanted`] up to a time, for a stub that waits for its turn itself: it has no reason to be kept
/// from running, so it is not waited for without an end.
struct AtMost<'a> {
    until: UntilWanted<'a>,
    end_ns: u64,
}

impl Patience for AtMost<'_> {
    fn is_over(&self) -> bool {
        self.until.is_over()
    }

    fn call_back(&self) -> bool {
        self.until.call_back() && cpu::clock_ns(libc::CLOCK_MONOTONIC) < self.end_ns
    }

    fn end_ns(&self) -> u64 {
        self.until.end_ns()
    }

    fn see_to_core(&self) {
        self.until.see_to_core();
    }
}

impl Systrap {
    /// Calls `work` with this vCPU's stub thread of address space `id`, or answers `ESRCH`.
    fn with_thread<R>(
        &self,
        cpu: u32,
        id: u64,
        work: impl FnOnce(&mut HandoverPolicy, &HeldThread<'_>) -> R,
    ) -> Result<Option<R>, i32> {
        let state = self.cpus.get(cpu as usize).ok_or(libc::EINVAL)?;
        let Own { policy, last } = &mut *state.own.lock();
        let mut former = None;
        if last.as_ref().is_none_or(|last| last.id != id || last.process.id.load(Relaxed) != id) {
            let process = self.stubs.find(id).ok_or(libc::ESRCH)?;
            let Ok(index) = process.thread_for(cpu, &self.stubs, &state.line) else {
                process.kill();
                return Ok(None);
            };
            former = last.replace(Last { id, process, index });
        }
        let Some(Last { process, index, .. }) = last else { return Ok(None) };
        let Some(thread) = process.threads.get(*index) else { return Ok(None) };
        Ok(Some(work(policy, &HeldThread { process, thread, former: Cell::new(former) })))
    }

    /// `AS_RUN`. The FPU image is taken over even if an interrupt is pending and no user code runs.
    pub(super) fn run(&self, cpus: &Cpus, cpu: u32, id: u64, address: u64) -> Result<i64, i32> {
        let len = size_of::<RunState>() as u64;
        let place = self.memory.kernel_ptr(address, len).ok_or(libc::EFAULT)?.cast::<RunState>();
        // SAFETY: the range was checked; the structure is integers only.
        let mut run = unsafe { ptr::read_unaligned(place) };
        let result =
            self.with_thread(cpu, id, |policy, held| self.run_thread(cpus, cpu, id, policy, held, &mut run))?;
        run.trap = match result.unwrap_or(Err(Stop::Lost)) {
            Ok(trap) => trap,
            Err(Stop::Lost) => TrapInfo { kind: TRAP_LOST, ..TrapInfo::default() },
            Err(Stop::Odd) => {
                // Only after the lock is released: the receiver of log lines takes locks of its own.
                (self.log)(1, "a stub's signal frame is not where it must be; its process ends");
                TrapInfo { kind: TRAP_LOST, ..TrapInfo::default() }
            }
            Err(Stop::Errno(errno)) => return Err(errno.cast_signed()),
        };
        // SAFETY: as above.
        unsafe { ptr::write_unaligned(place, run) };
        Ok(0)
    }

    /// Readies a stub thread for its turn, with the FPU image that it is to have; result: the command to give it.
    #[inline(always)]
    fn prepare(
        &self,
        cpu: u32,
        policy: &HandoverPolicy,
        held: &HeldThread<'_>,
        run: &RunState,
    ) -> Result<u32, Stop> {
        let thread = held.thread;
        let mut command = COMMAND_RUN;
        if thread.is_in_call() {
            if run.fpu_load == 0 && run.regs.gs_base == 0 && thread.set_call_registers(&run.regs) {
                command = COMMAND_RUN_CALL;
            } else {
                self.leave_call(cpu, policy, held)?;
            }
        }
        if run.fpu_load != 0 {
            let image = self.memory.kernel_ptr(run.fpu_load, self.stubs.fpu_bytes() as u64);
            let image = image.ok_or(Stop::Errno(libc::EFAULT.cast_unsigned()))?;
            // SAFETY: as many bytes were checked.
            unsafe { thread.frame().load_fpu(image) };
        }
        Ok(command)
    }

    fn run_thread(
        &self,
        cpus: &Cpus,
        cpu: u32,
        id: u64,
        policy: &mut HandoverPolicy,
        held: &HeldThread<'_>,
        run: &mut RunState,
    ) -> Result<TrapInfo, Stop> {
        let thread = held.thread;
        let (Some(pending), Some(in_user), Some(deadline)) =
            (cpus.pending(cpu), cpus.in_user(cpu), cpus.deadline(cpu))
        else {
            return Err(Stop::Lost);
        };
        let command = self.prepare(cpu, policy, held, run)?;
        thread.area().was_called_back.store(0, Relaxed);
        // In this order against `Cpus::set_pending` and `Machine::interrupt`: either we see the request, or its
        // sender sees that user code runs.
        in_user.store(id, SeqCst);
        if pending.load(SeqCst) != 0 {
            in_user.store(0, SeqCst);
            return Ok(TrapInfo { kind: TRAP_INTERRUPT, ..TrapInfo::default() });
        }
        self.set_state(thread, run, command);
        self.stubs.note_work();
        let handover = policy.choose(cpus.busy() * 2 > self.cores, cpu::tsc());
        thread.send_to(handover.place, &self.affinity);
        thread.give_turn(command, handover.spin);
        held.park_former();
        let patience = UntilWanted {
            process: held.process,
            tid: thread.tid.load(Relaxed),
            proc: self.stubs.proc.as_ref(),
            cpu,
            deadline_ns: deadline.load(Relaxed),
            pending,
            last: Cell::new(None),
            platform: self,
            thread,
        };
        let start = cpu::tsc();
        let waited = thread.wait_turn(handover.spin, &patience);
        if let Some(state) = self.cpus.get(cpu as usize) {
            state.computes.unsay();
        }
        let now = cpu::tsc();
        let cycles = now.wrapping_sub(start);
        policy.note(Waited { now, cycles, same_core: thread.is_on_this_core() });
        in_user.store(0, SeqCst);
        if waited.is_err() {
            held.process.kill();
            return Err(Stop::Lost);
        }
        self.read_state(held, run)
    }

    /// Has a stub thread that waits in a call leave a whole frame behind, as by a signal.
    fn leave_call(&self, cpu: u32, policy: &HandoverPolicy, held: &HeldThread<'_>) -> Result<(), Stop> {
        /// A stub that can run takes some microseconds.
        const SOON_NS: u64 = 1_000_000;
        let thread = held.thread;
        thread.set_in_call(false);
        self.stubs.note_work();
        // The vCPU may be on another core than when the stub ran last.
        let handover = policy.handover(false);
        thread.send_to(handover.place, &self.affinity);
        thread.give_turn(COMMAND_LEAVE_CALL, handover.spin);
        let never = AtomicU32::new(0);
        let now_ns = cpu::clock_ns(libc::CLOCK_MONOTONIC);
        let until = UntilWanted {
            process: held.process,
            tid: thread.tid.load(Relaxed),
            proc: self.stubs.proc.as_ref(),
            cpu,
            deadline_ns: now_ns + SOON_NS,
            pending: &never,
            last: Cell::new(None),
            platform: self,
            thread,
        };
        let patience = AtMost { until, end_ns: now_ns + GIVEN_UP_NS };
        let waited = thread.wait_turn(handover.spin, &patience);
        if let Some(state) = self.cpus.get(cpu as usize) {
            state.computes.unsay();
        }
        if waited.is_err() {
            held.process.kill();
            return Err(Stop::Lost);
        }
        if thread.area().frame.load(Relaxed) != thread.frame_address() {
            held.process.kill();
            return Err(Stop::Odd);
        }
        Ok(())
    }

    /// Writes registers and bases to the places that the stub takes them from with this command.
    fn set_state(&self, thread: &StubThread, run: &RunState, command: u32) {
        let area = thread.area();
        if command == COMMAND_RUN {
            thread.frame().set_registers(&run.regs);
        }
        let (fs_base, gs_base) = (canonical(run.regs.fs_base), canonical(run.regs.gs_base));
        // Code that has no use for GS has it lead to the thread's area, for calls without a signal.
        let gs_base =
            if run.regs.gs_base == 0 && run.has_patches != 0 { thread.address() - GS_BELOW } else { gs_base };
        let (old_fs, old_gs) = thread.bases();
        let mut bases = 0;
        if fs_base != old_fs {
            area.fs_base.store(fs_base, Relaxed);
            bases |= SET_FS;
        }
        if gs_base != old_gs {
            area.gs_base.store(gs_base, Relaxed);
            bases |= SET_GS;
        }
        area.bases.store(bases, Relaxed);
        thread.set_bases(fs_base, gs_base);
    }

    /// Reads what the stub reports after it ran.
    fn read_state(&self, held: &HeldThread<'_>, run: &mut RunState) -> Result<TrapInfo, Stop> {
        let thread = held.thread;
        let area = thread.area();
        if area.errno.load(Relaxed) != 0 || area.frame.load(Relaxed) != thread.frame_address() {
            held.process.kill();
            return Err(Stop::Odd);
        }
        let signal = area.signal.load(Relaxed);
        let (mut fs_base, mut gs_base) = thread.bases();
        if cpu::has_fsgsbase() {
            (fs_base, gs_base) = (area.trap_fs_base.load(Relaxed), area.trap_gs_base.load(Relaxed));
            thread.set_bases(fs_base, gs_base);
        }
        let frame = thread.frame();
        let in_call = area.has_call.load(Relaxed) != 0;
        let mut regs = if in_call { thread.call_registers() } else { frame.registers() };
        // What leads to an area is no base of a program's.
        let is_area = (STUB_TEXT..1 << 47).contains(&gs_base);
        (regs.fs_base, regs.gs_base) = (fs_base, if is_area { 0 } else { gs_base });
        let is_call = in_call && signal == SIGNAL_CALL;
        thread.set_in_call(is_call);
        let trap = if is_call {
            TrapInfo { kind: TRAP_SYSCALL, vector: SYSCALL_PATCHED, ..TrapInfo::default() }
        } else {
            frame.trap(signal, &mut regs)
        };
        run.regs = regs;
        Ok(trap)
    }

    /// `AS_SYNC`.
    pub(super) fn sync(&self, cpu: u32, id: u64, address: u64, count: u64) -> Result<i64, i32> {
        let state = self.cpus.get(cpu as usize).ok_or(libc::EINVAL)?;
        let process = self.stubs.find(id).ok_or(libc::ESRCH)?;
        match self.operate(state, &process, address, count) {
            Ok(()) => Ok(0),
            Err(Stop::Errno(errno)) => Err(errno.cast_signed()),
            Err(Stop::Lost | Stop::Odd) => Err(libc::ESRCH),
        }
    }

    /// `AS_SAVE_FPU`, of the stub thread of any vCPU.
    pub(super) fn save_fpu(&self, cpu: u32, id: u64, address: u64, len: u64) -> Result<i64, i32> {
        let bytes = self.stubs.fpu_bytes() as u64;
        if len < bytes {
            return Err(libc::EINVAL);
        }
        let to = self.memory.kernel_ptr(address, bytes).ok_or(libc::EFAULT)?;
        // A thread that never ran has nothing to save, and none is made by another vCPU's line to mappers.
        if !self.stubs.find(id).is_some_and(|process| process.has_thread_for(cpu)) {
            return Err(libc::ESRCH);
        }
        let saved = self.with_thread(cpu, id, |policy, held| {
            if held.thread.is_in_call() {
                self.leave_call(cpu, policy, held)?;
            }
            // SAFETY: as many bytes were checked.
            unsafe { held.thread.frame().save_fpu(to) };
            Ok::<_, Stop>(())
        })?;
        saved.and_then(Result::ok).map(|()| 0).ok_or(libc::ESRCH)
    }

    /// Has `count` operations at `address` carried out, order by order. A process that does not confirm them is lost, and
    /// has ended when this returns.
    fn operate(&self, state: &CpuState, process: &Process, address: u64, count: u64) -> Result<(), Stop> {
        if count == 0 {
            return Ok(());
        }
        let len = size_of::<MapOp>() as u64;
        if count > OPERATIONS_MAX || self.memory.kernel_ptr(address, count * len).is_none() {
            return Err(Stop::Errno(libc::EFAULT.cast_unsigned()));
        }
        // A mapper that shows a working set before any turn is given uses the processor, and is not restless.
        self.stubs.note_work();
        let line = &state.line;
        let doing = || process.mapper_is_doing(self.stubs.proc.as_ref());
        let result = process.mapper.begin(line, doing).map_err(Stop::from).and_then(|mut order| {
            for i in 0..count {
                let at = self.memory.kernel_ptr(address + i * len, len).ok_or(Stop::Lost)?;
                // SAFETY: the range was checked; the structure is integers only.
                let op = unsafe { ptr::read_unaligned(at.cast::<MapOp>()) };
                if !order.has_room() {
                    stop_on(order.carry_out(line, doing))?;
                }
                if let Err(errno) = self.add(state, &op, &mut order) {
                    // The operations before it count, as if they were carried out one by one.
                    stop_on(order.carry_out(line, doing))?;
                    return Err(Stop::Errno(errno.cast_unsigned()));
                }
            }
            stop_on(order.carry_out(line, doing))
        });
        // A caller that wanted everything unmapped relies on it, whatever the reason for the failure.
        let is_open = matches!(result, Err(Stop::Errno(_))) && count == 1 && self.unmaps_all(address);
        if is_open || matches!(result, Err(Stop::Lost)) {
            if !process.is_dead() {
                self.tell_of_mapper(process);
            }
            process.end();
            return Err(Stop::Lost);
        }
        result
    }

    /// A mapper did not answer, though it does nothing but that: says what the host says of it.
    fn tell_of_mapper(&self, process: &Process) {
        let seen = process.activity_of(process.mapper.tid(), self.stubs.proc.as_ref());
        (self.log)(1, &format!("a stub's mapper does not answer, and its process ends: {seen:?}"));
    }

    fn unmaps_all(&self, address: u64) -> bool {
        let at = self.memory.kernel_ptr(address, size_of::<MapOp>() as u64);
        // SAFETY: the range was checked; the structure is integers only.
        at.is_some_and(|at| unsafe { ptr::read_unaligned(at.cast::<MapOp>()) }.kind == MAP_OP_UNMAP_ALL)
    }

    /// Checks an operation and adds it to an order: offsets of the user file, or a file sent along.
    fn add(&self, state: &CpuState, op: &MapOp, order: &mut MapperOrder<'_>) -> Result<(), i32> {
        if op.kind == MAP_OP_UNMAP_ALL {
            order.add(op);
            return Ok(());
        }
        let end = op.addr.checked_add(op.len).ok_or(libc::EINVAL)?;
        let known = matches!(op.kind, MAP_OP_MAP | MAP_OP_UNMAP | MAP_OP_PROTECT);
        let aligned = (op.addr | op.len | op.phys).is_multiple_of(PAGE_SIZE);
        if !known
            || !aligned
            || op.len == 0
            || end > USER_MAX
            || op.prot & !(PROT_READ | PROT_WRITE | PROT_EXEC) != 0
        {
            return Err(libc::EINVAL);
        }
        if op.kind == MAP_OP_MAP && op.phys >= TEMPLATE_PHYS {
            let offset = self.memory.template_offset(op.phys, op.len).ok_or(libc::EFAULT)?;
            if op.prot & PROT_WRITE != 0 {
                return Err(libc::EACCES);
            }
            order.add_template(&MapOp { phys: offset, ..*op });
            return Ok(());
        }
        if op.kind == MAP_OP_MAP && op.phys >= WINDOW_PHYS {
            let (chunk, offset) = self.memory.window_chunk(op.phys, op.len).ok_or(libc::EFAULT)?;
            if op.prot & PROT_WRITE != 0 && !chunk.writable {
                return Err(libc::EACCES);
            }
            return order.add_file(&MapOp { phys: offset, ..*op }, &chunk.file, &state.line);
        }
        if op.kind == MAP_OP_MAP {
            // User memory only: kernel memory has no file, and must never be seen by a stub.
            if op.phys < USER_PHYS || self.memory.host_ptr(op.phys, op.len).is_none() {
                return Err(libc::EFAULT);
            }
            order.add(&MapOp { phys: op.phys - USER_PHYS, ..*op });
            return Ok(());
        }
        order.add(op);
        Ok(())
    }
}

fn stop_on(result: Result<u32, Lost>) -> Result<(), Stop> {
    match result? {
        0 => Ok(()),
        errno => Err(Stop::Errno(errno)),
    }
}

/// A base register must hold a canonical user address; anything else would be a fault in the stub's own code.
fn canonical(base: u64) -> u64 {
    const MASK: u64 = (1 << 47) - 1;
    if base > MASK { 0 } else { base }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks every 10 ms until the stub counts as lost; how many there were, 1000 at most.
    fn looks(mut seen: impl FnMut(u64) -> Option<Activity>) -> u64 {
        let mut look = Look::default();
        for round in 1..1000 {
            look = look.next(10 * round * MS, seen(round));
            if look.idled_ns >= DEFIANT_NS {
                return round;
            }
        }
        1000
    }

    /// It got a core in each round.
    fn running(round: u64, waited_ns: u64) -> Option<Activity> {
        Some(Activity { could_run: true, slices: round, waited_ns, ..Activity::default() })
    }

    #[test]
    fn who_could_come_and_does_not_is_lost_soon() {
        assert_eq!(looks(|round| running(round, 0)), 5);
        // Half of the time others had the core.
        assert_eq!(looks(|round| running(round, 5 * round * MS)), 10);
        let sleeps = Activity { could_run: true, sleeps: true, ..Activity::default() };
        assert_eq!(looks(|_| Some(sleeps)), 5);
        // It never gives the core away.
        assert_eq!(
            looks(|round| Some(Activity { could_run: true, ran_ns: 10 * round * MS, ..Activity::default() })),
            5
        );
        assert_eq!(looks(|_| None), 500);
    }

    #[test]
    fn who_cannot_come_is_waited_for() {
        assert_eq!(looks(|round| running(round, 10 * round * MS)), 1000, "got a core, and lost it");
        assert_eq!(looks(|_| running(0, 0)), 1000, "got none at all");
        let held = |_| Some(Activity::default());
        assert_eq!(looks(held), 1000, "waits for a disk, or stopped");
        // The vCPU itself did not run: one late look counts little.
        let late = Look::default().next(900 * MS, running(1, 0));
        assert!(late.idled_ns < DEFIANT_NS / 2);
    }
}
