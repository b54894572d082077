//! Stub processes: the zygote that makes them, the ready and the used ones, and the keeper that buries them (`keeper`).
//!
//! A process that has run application code never serves another address space: whatever such code has made of its threads
//! and their areas ends with it. So fresh ones are forked ahead.

mod keeper;

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock};

use abi::layout::STUB_AREA_SIZE;
use abi::run::{MAP_OP_UNMAP_ALL, MapOp};

use self::keeper::{TOKEN_WAKE, TOKEN_ZYGOTE};
use super::area::{COMMAND_FORK, FD_SOCKETS, INTERRUPT_SIGNAL, ORDERS_SIZE, TURN_STUB};
use super::filter::{self, Instruction};
use super::frame::FrameLayout;
use super::mapper::{self, Doing, Mapper, MapperLine};
use super::spawn::{self, Control, Ends};
use super::thread::{Lost, Patience, StubThread};
use crate::activity::Activity;
use crate::cpu;
use crate::lock::{Mutex, Rank};
use crate::memory::{SandboxMemory, memory_file};
use crate::platform::machine::PlatformError;

/// Most stub processes of a sandbox, the zygote's areas included.
pub const SLOTS: usize = 8192;
/// Fresh processes kept ready.
const READY: usize = 2;
/// Slots of dead processes whose memory is kept for the next ones.
const WARM_SLOTS: usize = 4;
const SPIN_COMMAND: u64 = 50_000;
/// A stub process. It serves one address space, and none after it.
pub struct Process {
    slot: usize,
    pid: i32,
    pidfd: OwnedFd,
    /// The address space it serves, 0 if none.
    pub id: AtomicU64,
    pub threads: Vec<StubThread>,
    pub mapper: Mapper,
    /// The index of a vCPU's thread, plus one; 0: it has none yet.
    of_cpu: Vec<AtomicU32>,
    /// How many threads have a vCPU; held while one is started.
    used: Mutex<usize>,
    /// Set once it is reaped; locked while its pid is used.
    reaped: Mutex<bool>,
    dead: AtomicBool,
    buried: AtomicBool,
    slot_freed: AtomicBool,
}

impl Process {
    /// The process's thread for a vCPU, which is made if need be.
    pub fn thread_for(&self, cpu: u32, stubs: &Stubs, line: &MapperLine) -> Result<usize, Lost> {
        let place = self.of_cpu.get(cpu as usize).ok_or(Lost)?;
        if let Some(index) = place.load(Relaxed).checked_sub(1) {
            return Ok(index as usize);
        }
        let mut used = self.used.lock();
        let index = *used;
        let thread = self.threads.get(index).ok_or(Lost)?;
        if self.is_dead() {
            return Err(Lost);
        }
        // The first thread is there from the start.
        if index != 0 {
            thread.reset(stubs.areas_len);
            thread.area().turn.store(0, Relaxed);
            let doing = || self.mapper_is_doing(stubs.proc.as_ref());
            let spawned = self.mapper.begin(line, doing).and_then(|mut order| {
                // Only now: another vCPU's order to this process may take long.
                let ids = stubs.ids.lock();
                // Ended before somebody else uses the file: a mapper that is late must not tell its thread's id then.
                order.spawn(thread, &ids, line, doing).inspect_err(|_| self.end())
            });
            thread.tid.store(spawned?, Relaxed);
        }
        *used = index + 1;
        place.store(u32::try_from(*used).unwrap_or(0), Relaxed);
        Ok(index)
    }

    /// Whether it has a thread for a vCPU.
    pub fn has_thread_for(&self, cpu: u32) -> bool {
        self.of_cpu.get(cpu as usize).is_some_and(|place| place.load(Relaxed) != 0)
    }

    /// Sends the interrupt signal to the thread that works for a vCPU. Takes no lock that is held while anybody waits for
    /// a stub.
    pub fn interrupt_cpu(&self, cpu: u32) {
        let index = self.of_cpu.get(cpu as usize).and_then(|place| place.load(Relaxed).checked_sub(1));
        let thread = index.and_then(|index| self.threads.get(index as usize));
        let tid = thread.map_or(0, |thread| thread.tid.load(Relaxed));
        let reaped = self.reaped.lock();
        if !*reaped && tid != 0 {
            // SAFETY: the pid is not reaped while the lock is held, so it is still this child's; the host checks that
            // the thread is one of it.
            unsafe { libc::syscall(libc::SYS_tgkill, self.pid, tid, INTERRUPT_SIGNAL) };
        }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// The activity of one of its threads, by the host's `/proc`; `None`: nothing is known of it.
    pub fn activity_of(&self, tid: i32, proc: Option<&OwnedFd>) -> Option<Activity> {
        Activity::of(proc?.as_fd(), &format!("{}/task/{tid}", self.pid))
    }

    /// The state of its mapper.
    pub fn mapper_is_doing(&self, proc: Option<&OwnedFd>) -> Doing {
        // The keeper may be held up.
        if self.is_dead() || spawn::has_ended(&self.pidfd) {
            return Doing::Ended;
        }
        let seen = self.activity_of(self.mapper.tid(), proc);
        if seen.is_none_or(|seen| seen.sleeps) { Doing::Waits } else { Doing::Works }
    }

    /// Kills it; the keeper does the rest. It may go on for a moment: see [`Self::end`].
    pub fn kill(&self) {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a descriptor of this process, which is named for good by it.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.pidfd.as_raw_fd(), libc::SIGKILL, none, 0) };
    }

    /// Kills it and waits for its end: when this returns, none of its threads runs, and its memory is unmapped.
    pub fn end(&self) {
        self.kill();
        spawn::wait_end(&self.pidfd);
    }

    /// Reaps it after its end, and adds its processor time to `cpu_ns`.
    fn bury(&self, cpu_ns: &AtomicU64) {
        let mut reaped = self.reaped.lock();
        if *reaped {
            return;
        }
        self.dead.store(true, SeqCst);
        cpu_ns.fetch_add(spawn::reap(self.pid), Relaxed);
        *reaped = true;
        drop(reaped);
        self.threads.iter().for_each(StubThread::mark_dead);
        // Only now may the areas be another process's.
        self.buried.store(true, SeqCst);
    }

    /// Removes every mapping of the user half, whatever its threads do meanwhile; false if it does not confirm that.
    fn unmap_all(&self, line: &MapperLine, proc: Option<&OwnedFd>) -> bool {
        let doing = || self.mapper_is_doing(proc);
        self.mapper.begin(line, doing).is_ok_and(|mut order| {
            order.add(&MapOp { kind: MAP_OP_UNMAP_ALL, ..MapOp::default() });
            order.carry_out(line, doing) == Ok(0)
        })
    }

    /// Waits until it has set itself up, and takes the id of its mapper over. It has not run application code yet.
    fn settle(&self) {
        let Some(first) = self.threads.first() else { return };
        let area = first.area();
        while area.mapper_ready.load(SeqCst) == 0 && !self.is_dead() {
            cpu::yield_core();
        }
        self.mapper.learn_id(area);
    }
}

/// All stub processes of a sandbox.
pub struct Stubs {
    control: Control,
    orders: Control,
    /// Its position is the id of the thread that was started last. Inside `Process::used` and a mapper's order.
    ids: Mutex<OwnedFd>,
    filters: [Vec<Instruction>; 2],
    cpus: u32,
    layout: FrameLayout,
    areas_len: u64,
    zygote: Mutex<StubThread>,
    zygote_pid: i32,
    zygote_pidfd: OwnedFd,
    slots: Mutex<Slots>,
    spaces: RwLock<HashMap<u64, Arc<Process>>>,
    next_id: AtomicU64,
    ready: Mutex<Vec<Arc<Process>>>,
    /// No processes are made ready.
    resting: AtomicBool,
    /// The sandbox has just begun to sleep: see [`Self::keep`].
    asleep: AtomicBool,
    /// It has begun to sleep, and no stub was given a turn since …
    is_still: AtomicBool,
    /// … and how often that has come to an end.
    disturbed: AtomicU64,
    epoll: OwnedFd,
    wake: OwnedFd,
    stopping: AtomicBool,
    dead_cpu_ns: AtomicU64,
    zygote_dead: AtomicBool,
    /// For looking at threads that do not come back.
    pub proc: Option<OwnedFd>,
}

#[derive(Default)]
struct Slots {
    living: HashMap<usize, Arc<Process>>,
    /// Nothing is stored there.
    free: Vec<usize>,
    /// Zeros are.
    warm: Vec<usize>,
    next: usize,
}

impl Stubs {
    /// Starts the zygote, a child of the calling thread.
    pub fn start(
        memory: &SandboxMemory,
        cpus: u32,
        proc: Option<OwnedFd>,
    ) -> Result<(Self, Vec<Ends>), PlatformError> {
        let layout = FrameLayout::new().ok_or(PlatformError::Stub)?;
        let areas_len = u64::from(cpus) * STUB_AREA_SIZE;
        let control = Control::new(c"dormouse-stubs", SLOTS as u64 * areas_len)?;
        let orders = Control::new(c"dormouse-orders", SLOTS as u64 * ORDERS_SIZE)?;
        // SAFETY: the zygote's area opens the control file.
        let zygote = unsafe { StubThread::new(control.at(0), 0, layout) };
        zygote.reset(areas_len);
        let area = zygote.area();
        area.orders_fd.store(orders_descriptor(cpus), Relaxed);
        mapper::put_base_filter(area, &filter::base());
        area.spin_cycles.store(0, Relaxed);
        area.turn.store(TURN_STUB, SeqCst);
        let user = memory.user_file().ok_or(PlatformError::Stub)?;
        let ids = memory_file(c"dormouse-ids")?;
        let template = memory.template().map(|(file, _)| file);
        let (zygote_pid, zygote_pidfd, sockets) =
            spawn::zygote((user, template), &control, &orders, &ids, cpus)?;
        let (epoll, wake) = spawn::epoll_and_event()?;
        spawn::watch(&epoll, &wake, TOKEN_WAKE)?;
        spawn::watch(&epoll, &zygote_pidfd, TOKEN_ZYGOTE)?;
        let stubs = Self {
            control,
            orders,
            ids: Mutex::new(Rank::StubIds, ids),
            filters: [filter::application(cpus), filter::mapper(cpus)],
            cpus,
            layout,
            areas_len,
            zygote: Mutex::new(Rank::Zygote, zygote),
            zygote_pid,
            zygote_pidfd,
            slots: Mutex::new(Rank::StubSlots, Slots { next: 1, ..Slots::default() }),
            spaces: RwLock::default(),
            next_id: AtomicU64::new(1),
            ready: Mutex::new(Rank::StubsReady, Vec::new()),
            resting: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            is_still: AtomicBool::new(false),
            disturbed: AtomicU64::new(0),
            epoll,
            wake,
            stopping: AtomicBool::new(false),
            dead_cpu_ns: AtomicU64::new(0),
            zygote_dead: AtomicBool::new(false),
            proc,
        };
        Ok((stubs, sockets))
    }

    /// Bytes of an XSAVE image.
    pub fn fpu_bytes(&self) -> usize {
        self.layout.fpu_bytes()
    }

    /// Lets the zygote fork a process.
    fn fork(&self) -> Result<Arc<Process>, i32> {
        let slot = {
            let mut slots = self.slots.lock();
            let next = slots.next;
            match slots.warm.pop().or_else(|| slots.free.pop()) {
                Some(slot) => slot,
                None if next < SLOTS => {
                    slots.next += 1;
                    next
                }
                None => return Err(libc::EAGAIN),
            }
        };
        let result = self.fork_into(slot);
        if result.is_err() {
            self.give_up_slot(slot);
        }
        result
    }

    fn fork_into(&self, slot: usize) -> Result<Arc<Process>, i32> {
        let offset = slot as u64 * self.areas_len;
        let threads: Vec<StubThread> = (0..self.areas_len / STUB_AREA_SIZE)
            // SAFETY: inside the control file's mapping, which lives as long as `self`, and so longer than its
            // processes (see `Drop`).
            .map(|i| unsafe { StubThread::new(self.control.at(offset + i * STUB_AREA_SIZE), i, self.layout) })
            .collect();
        let first = threads.first().ok_or(libc::EINVAL)?;
        first.reset(self.areas_len);
        let area = first.area();
        area.turn.store(0, SeqCst);
        area.orders_fd.store(orders_descriptor(self.cpus), Relaxed);
        area.mapper_ready.store(0, Relaxed);
        area.mapper_tid.store(0, Relaxed);
        let orders_at = slot as u64 * ORDERS_SIZE;
        // SAFETY: inside the file's mapping, which lives as long as `self`, and so longer than its processes.
        let mapper = unsafe { Mapper::new(self.orders.at(orders_at), self.cpus, &self.filters) };
        let pid = self.have_zygote_fork(offset, orders_at)?;
        let pidfd = spawn::pidfd(pid).map_err(|_| {
            spawn::kill(pid);
            spawn::reap(pid);
            libc::EMFILE
        })?;
        first.tid.store(pid, Relaxed);
        let process = Arc::new(Process {
            slot,
            pid,
            pidfd,
            id: AtomicU64::new(0),
            threads,
            mapper,
            of_cpu: (0..self.cpus).map(|_| AtomicU32::new(0)).collect(),
            used: Mutex::new(Rank::StubThreads, 0),
            reaped: Mutex::new(Rank::StubReaped, false),
            dead: AtomicBool::new(false),
            buried: AtomicBool::new(false),
            slot_freed: AtomicBool::new(false),
        });
        self.slots.lock().living.insert(slot, Arc::clone(&process));
        if spawn::watch(&self.epoll, &process.pidfd, slot as u64).is_err() {
            // The keeper would not hear of its end, and whoever has the slot next must not meet it there.
            self.slots.lock().living.remove(&slot);
            process.kill();
            process.bury(&self.dead_cpu_ns);
            return Err(libc::ENOMEM);
        }
        Ok(process)
    }

    /// Lets the zygote fork, once it has set itself up; result: the pid of the child, whose areas and orders lie at these
    /// offsets.
    fn have_zygote_fork(&self, offset: u64, orders_at: u64) -> Result<i32, i32> {
        let zygote = self.zygote.lock();
        if self.zygote_dead.load(SeqCst) {
            return Err(libc::EAGAIN);
        }
        // Its first turn, to set itself up, may still be under way.
        self.wait_zygote(&zygote).map_err(|Lost| libc::EAGAIN)?;
        zygote.area().argument.store(offset, Relaxed);
        zygote.area().orders_at.store(orders_at, Relaxed);
        zygote.give_turn(COMMAND_FORK, 0);
        self.wait_zygote(&zygote).map_err(|Lost| libc::EAGAIN)?;
        let result = zygote.area().value.load(Relaxed).cast_signed();
        drop(zygote);
        if result <= 0 {
            return Err(i32::try_from(-result).unwrap_or(libc::EAGAIN));
        }
        i32::try_from(result).map_err(|_| libc::EAGAIN)
    }

    fn wait_zygote(&self, zygote: &StubThread) -> Result<(), Lost> {
        zygote.wait_turn(SPIN_COMMAND, &WhileItLives(&self.zygote_pidfd))
    }

    /// Makes an address space; the result is its id, or an errno.
    pub fn create(&self) -> Result<u64, i32> {
        let process = self.take()?;
        process.settle();
        let id = self.next_id.fetch_add(1, Relaxed);
        // In this order: either the keeper, which buries it, sees that it serves an address space, or it is seen to be dead here.
        process.id.store(id, SeqCst);
        if process.is_dead() {
            process.id.store(0, SeqCst);
            self.free_slot(&process);
            return Err(libc::EAGAIN);
        }
        self.spaces.write().unwrap_or_else(PoisonError::into_inner).insert(id, process);
        Ok(id)
    }

    fn take(&self) -> Result<Arc<Process>, i32> {
        self.resting.store(false, SeqCst);
        loop {
            let (ready, left) = {
                let mut pool = self.ready.lock();
                (pool.pop(), pool.len())
            };
            if left < READY {
                spawn::signal(&self.wake);
            }
            match ready {
                Some(process) if process.is_dead() => {}
                Some(process) => return Ok(process),
                None => return self.fork(),
            }
        }
    }

    /// Ends an address space: on return its process maps nothing any more, or is dead.
    pub fn destroy(&self, id: u64, line: &MapperLine) -> Result<(), i32> {
        let removed = self.spaces.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let process = removed.ok_or(libc::ESRCH)?;
        // The caller waits for the mappings only, not for the end.
        if process.unmap_all(line, self.proc.as_ref()) {
            process.kill();
        } else {
            process.end();
        }
        process.id.store(0, SeqCst);
        self.free_slot(&process);
        Ok(())
    }

    /// Ends the processes that are kept for other address spaces, until one is made; the sandbox sleeps. A stub that goes on
    /// using the processor is none that waits for its turn, and is ended as well.
    pub fn trim(&self) {
        self.is_still.store(true, SeqCst);
        self.asleep.store(true, SeqCst);
        spawn::signal(&self.wake);
        let kept = {
            let mut ready = self.ready.lock();
            self.resting.store(true, SeqCst);
            std::mem::take(&mut *ready)
        };
        let warm = std::mem::take(&mut self.slots.lock().warm);
        warm.into_iter().for_each(|slot| self.give_up_slot(slot));
        for process in kept {
            process.kill();
            self.free_slot(&process);
        }
    }

    /// A stub process is about to be given work: a turn for a thread, or an order for its mapper.
    pub fn note_work(&self) {
        if self.is_still.load(Relaxed) && self.is_still.swap(false, SeqCst) {
            self.disturbed.fetch_add(1, SeqCst);
        }
    }

    /// The process of an address space.
    pub fn find(&self, id: u64) -> Option<Arc<Process>> {
        self.spaces.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Processor time of all stubs, the dead ones included.
    pub fn cpu_ns(&self) -> u64 {
        let living = self.slots.lock().living.values().map(|p| cpu::process_cpu_ns(p.pid)).sum::<u64>();
        self.dead_cpu_ns.load(Relaxed) + living
    }

    /// Gives a process's slot back once it is dead and serves no address space: called after either has come true.
    fn free_slot(&self, process: &Process) {
        if process.buried.load(SeqCst)
            && process.id.load(SeqCst) == 0
            && !process.slot_freed.swap(true, SeqCst)
        {
            self.recycle_slot(process);
        }
    }

    /// Leaves nothing of a dead process in its slot, whose memory a few of the next ones get.
    fn recycle_slot(&self, process: &Process) {
        let slot = process.slot;
        let is_kept = !self.resting.load(SeqCst) && self.slots.lock().warm.len() < WARM_SLOTS;
        if !is_kept {
            self.give_up_slot(slot);
            return;
        }
        // Application code could write in those of threads that there never were as well; mostly there is nothing.
        let threads = (*process.used.lock()).max(1) as u64;
        let (start, used) = (slot as u64 * self.areas_len, threads * STUB_AREA_SIZE);
        self.control.clear(start, used.min(self.areas_len));
        if used < self.areas_len {
            self.control.punch(start + used, self.areas_len - used);
        }
        self.orders.clear(slot as u64 * ORDERS_SIZE, ORDERS_SIZE);
        let mut slots = self.slots.lock();
        // Whoever takes all that are kept says before that no more are to be.
        if !self.resting.load(SeqCst) && slots.warm.len() < WARM_SLOTS {
            slots.warm.push(slot);
            return;
        }
        drop(slots);
        self.give_up_slot(slot);
    }

    fn give_up_slot(&self, slot: usize) {
        self.control.punch(slot as u64 * self.areas_len, self.areas_len);
        self.orders.punch(slot as u64 * ORDERS_SIZE, ORDERS_SIZE);
        self.slots.lock().free.push(slot);
    }

    /// Whether the zygote has set itself up; waits for it.
    pub fn is_ready(&self) -> bool {
        self.wait_zygote(&self.zygote.lock()).is_ok()
    }

    /// Ends the keeper.
    pub fn stop(&self) {
        self.stopping.store(true, SeqCst);
        spawn::signal(&self.wake);
    }
}

impl Drop for Stubs {
    fn drop(&mut self) {
        let living: Vec<_> = self.slots.lock().living.drain().collect();
        living.iter().for_each(|(_, process)| process.kill());
        living.iter().for_each(|(_, process)| process.bury(&self.dead_cpu_ns));
        if !self.zygote_dead.load(SeqCst) {
            spawn::kill(self.zygote_pid);
            spawn::reap(self.zygote_pid);
        }
    }
}

/// The zygote runs no application code: it is waited for as long as it lives.
struct WhileItLives<'a>(&'a OwnedFd);

impl Patience for WhileItLives<'_> {
    fn is_over(&self) -> bool {
        spawn::has_ended(self.0)
    }

    fn call_back(&self) -> bool {
        false
    }

    fn end_ns(&self) -> u64 {
        u64::MAX
    }
}

/// Number of the file of orders in the zygote, behind everything else.
fn orders_descriptor(cpus: u32) -> u32 {
    FD_SOCKETS.cast_unsigned() + 2 * cpus
}
