//! Stub processes: the zygote that makes them, the ready and the used ones, and the keeper that buries them.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use abi::layout::STUB_AREA_SIZE;
use abi::run::{MAP_OP_UNMAP_ALL, MapOp};

use super::area::{COMMAND_FORK, COMMAND_SPAWN, FD_SOCKETS, INTERRUPT_SIGNAL, ORDERS_SIZE, TURN_STUB};
use super::filter::{self, Instruction};
use super::frame::FrameLayout;
use super::mapper::{self, Line, Mapper};
use super::spawn::{self, Control, Ends};
use super::thread::{Limit, Lost, StubThread};
use crate::memory::SandboxMemory;
use crate::platform::{PlatformError, cpu, failed};

/// Most stub processes of a sandbox, the zygote's areas included.
pub const SLOTS: usize = 8192;
/// Fresh processes kept ready.
const READY: usize = 2;
/// Used processes kept for another address space.
const RECYCLED: usize = 8;
/// The keeper's own wake-up and the zygote, among the process slots that its events name.
const TOKEN_WAKE: u64 = u64::MAX;
const TOKEN_ZYGOTE: u64 = 0;
const SPIN_COMMAND: u64 = 50_000;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stub process.
pub struct Process {
    slot: usize,
    pid: i32,
    pidfd: OwnedFd,
    /// The address space it serves now, 0 if none.
    pub id: AtomicU64,
    pub threads: Vec<StubThread>,
    pub mapper: Mapper,
    assigned: Mutex<Assigned>,
    /// A vCPU needs some thread of this process for a command; the others let it have one.
    pub spawn_wanted: AtomicBool,
    /// Set once it is reaped; locked while its pid is used.
    reaped: Mutex<bool>,
    dead: AtomicBool,
    slot_freed: AtomicBool,
}

/// Which threads exist, and which vCPU has which.
#[derive(Default)]
struct Assigned {
    exist: usize,
    used: usize,
    of_cpu: HashMap<u32, usize>,
}

impl Process {
    /// The process's thread for a vCPU, which is made if need be.
    pub fn thread_for(&self, cpu: u32, areas_len: u64) -> Result<usize, Lost> {
        let mut assigned = lock(&self.assigned);
        if let Some(index) = assigned.of_cpu.get(&cpu) {
            return Ok(*index);
        }
        let index = assigned.used;
        if index >= self.threads.len() || self.is_dead() {
            return Err(Lost);
        }
        if index >= assigned.exist {
            self.spawn_wanted.store(true, SeqCst);
            let result = self.spawn(index, assigned.exist, areas_len);
            self.spawn_wanted.store(false, SeqCst);
            result?;
            assigned.exist = index + 1;
        }
        assigned.used = index + 1;
        assigned.of_cpu.insert(cpu, index);
        Ok(index)
    }

    /// Lets one of the first `exist` threads start thread `index`: one that waits for its turn, or the first one
    /// that an interrupt brings back.
    fn spawn(&self, index: usize, exist: usize, areas_len: u64) -> Result<(), Lost> {
        let thread = self.threads.get(index).ok_or(Lost)?;
        thread.reset(areas_len);
        thread.area().turn.store(0, Relaxed);
        loop {
            if self.is_dead() {
                return Err(Lost);
            }
            if let Some(helper) = self.threads.iter().take(exist).find(|t| t.try_lock()) {
                helper.area().argument.store(index as u64, Relaxed);
                let result = helper.command(COMMAND_SPAWN, SPIN_COMMAND);
                let tid = helper.area().value.load(Relaxed);
                thread.inherit_core(helper);
                helper.unlock();
                if result? != 0 {
                    return Err(Lost);
                }
                thread.tid.store(i32::try_from(tid).map_err(|_| Lost)?, Relaxed);
                return Ok(());
            }
            self.interrupt(0);
            std::thread::sleep(std::time::Duration::from_micros(20));
        }
    }

    /// Sends the interrupt signal to a thread.
    pub fn interrupt(&self, index: usize) {
        let reaped = lock(&self.reaped);
        let tid = self.threads.get(index).map_or(0, |t| t.tid.load(Relaxed));
        if !*reaped && tid != 0 {
            // SAFETY: the pid is not reaped while the lock is held, so it is still this child's; the host checks that
            // the thread is one of it.
            unsafe { libc::syscall(libc::SYS_tgkill, self.pid, tid, INTERRUPT_SIGNAL) };
        }
    }

    /// Interrupts the thread that works for a vCPU.
    pub fn interrupt_cpu(&self, cpu: u32) {
        let index = lock(&self.assigned).of_cpu.get(&cpu).copied();
        if let Some(index) = index {
            self.interrupt(index);
        }
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// Kills it; the keeper does the rest.
    pub fn kill(&self) {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a descriptor of this process, which is named for good by it.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.pidfd.as_raw_fd(), libc::SIGKILL, none, 0) };
    }

    /// Reaps it after its end, and adds its processor time to `cpu_ns`.
    fn bury(&self, cpu_ns: &AtomicU64) {
        let mut reaped = lock(&self.reaped);
        if *reaped {
            return;
        }
        self.dead.store(true, SeqCst);
        cpu_ns.fetch_add(spawn::reap(self.pid), Relaxed);
        *reaped = true;
        drop(reaped);
        self.threads.iter().for_each(StubThread::mark_dead);
    }

    /// Forgets whom it served, and removes every mapping. False: it cannot be used again.
    ///
    /// Application code that found its way into the stub's text may have started threads of its own, so they are
    /// counted; the mapper is one more. What still runs application code has none any more when this returns.
    fn recycle(&self, areas_len: u64, proc: Option<&OwnedFd>, line: &Line) -> bool {
        self.id.store(0, SeqCst);
        let count = proc.and_then(|proc| spawn::thread_count(proc, self.pid));
        let mut assigned = lock(&self.assigned);
        let runs = |thread: &StubThread| thread.area().turn.load(SeqCst) & TURN_STUB != 0;
        let expected = count == Some(assigned.exist as u64 + 1);
        if !expected || self.is_dead() || self.threads.iter().take(assigned.exist).any(runs) {
            return false;
        }
        for thread in self.threads.iter().take(assigned.exist) {
            thread.reset(areas_len);
        }
        assigned.used = 0;
        assigned.of_cpu.clear();
        drop(assigned);
        let is_dead = || self.is_dead();
        self.mapper.begin(line, is_dead).is_ok_and(|mut order| {
            order.add(&MapOp { kind: MAP_OP_UNMAP_ALL, ..MapOp::default() });
            order.carry_out(line, is_dead) == Ok(0)
        })
    }
}

/// All stub processes of a sandbox.
pub struct Stubs {
    control: Control,
    orders: Control,
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
    pools: Mutex<Pools>,
    /// No processes are made ready.
    resting: AtomicBool,
    epoll: OwnedFd,
    wake: OwnedFd,
    stopping: AtomicBool,
    dead_cpu_ns: AtomicU64,
    zygote_dead: AtomicBool,
    /// For counting threads; without it no process is recycled.
    proc: Option<OwnedFd>,
}

#[derive(Default)]
struct Slots {
    living: HashMap<usize, Arc<Process>>,
    free: Vec<usize>,
    next: usize,
}

#[derive(Default)]
struct Pools {
    ready: Vec<Arc<Process>>,
    recycled: Vec<Arc<Process>>,
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
        mapper::put_filters(area, &filter::base(), &[]);
        area.spin_cycles.store(0, Relaxed);
        area.turn.store(TURN_STUB, SeqCst);
        let user = memory.user_file().ok_or(PlatformError::Stub)?;
        let (zygote_pid, zygote_pidfd, sockets) = spawn::zygote(user, &control, &orders, cpus)?;
        let (epoll, wake) = spawn::epoll_and_event()?;
        spawn::watch(&epoll, &wake, TOKEN_WAKE)?;
        spawn::watch(&epoll, &zygote_pidfd, TOKEN_ZYGOTE)?;
        let stubs = Self {
            control,
            orders,
            filters: [filter::application(), filter::mapper(cpus)],
            cpus,
            layout,
            areas_len,
            zygote: Mutex::new(zygote),
            zygote_pid,
            zygote_pidfd,
            slots: Mutex::new(Slots { next: 1, ..Slots::default() }),
            spaces: RwLock::default(),
            next_id: AtomicU64::new(1),
            pools: Mutex::default(),
            resting: AtomicBool::new(false),
            epoll,
            wake,
            stopping: AtomicBool::new(false),
            dead_cpu_ns: AtomicU64::new(0),
            zygote_dead: AtomicBool::new(false),
            proc,
        };
        Ok((stubs, sockets))
    }

    /// Bytes of one process's areas.
    pub fn areas_len(&self) -> u64 {
        self.areas_len
    }

    /// Bytes of an XSAVE image.
    pub fn fpu_bytes(&self) -> usize {
        self.layout.fpu_bytes()
    }

    /// Lets the zygote fork a process.
    fn fork(&self) -> Result<Arc<Process>, i32> {
        let slot = {
            let mut slots = lock(&self.slots);
            let next = slots.next;
            match slots.free.pop() {
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
            lock(&self.slots).free.push(slot);
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
        mapper::put_filters(area, &self.filters[0], &self.filters[1]);
        let orders_at = slot as u64 * ORDERS_SIZE;
        // A process that used this slot may have left its last order.
        self.orders.punch(orders_at, ORDERS_SIZE);
        // SAFETY: inside the file's mapping, which lives as long as `self`, and so longer than its processes.
        let mapper = unsafe { Mapper::new(self.orders.at(orders_at), area, self.cpus) };
        let zygote = lock(&self.zygote);
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
        let pid = i32::try_from(result).map_err(|_| libc::EAGAIN)?;
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
            assigned: Mutex::new(Assigned { exist: 1, ..Assigned::default() }),
            spawn_wanted: AtomicBool::new(false),
            reaped: Mutex::new(false),
            dead: AtomicBool::new(false),
            slot_freed: AtomicBool::new(false),
        });
        lock(&self.slots).living.insert(slot, Arc::clone(&process));
        spawn::watch(&self.epoll, &process.pidfd, slot as u64).map_err(|_| libc::ENOMEM)?;
        Ok(process)
    }

    fn wait_zygote(&self, zygote: &StubThread) -> Result<(), Lost> {
        zygote.wait_turn(SPIN_COMMAND, Limit::Command, || {
            if spawn::has_ended(&self.zygote_pidfd) {
                zygote.mark_dead();
            }
        })
    }

    /// Makes an address space; the result is its id, or an errno.
    pub fn create(&self) -> Result<u64, i32> {
        let process = self.take()?;
        let id = self.next_id.fetch_add(1, Relaxed);
        process.id.store(id, SeqCst);
        self.spaces.write().unwrap_or_else(PoisonError::into_inner).insert(id, process);
        Ok(id)
    }

    fn take(&self) -> Result<Arc<Process>, i32> {
        self.resting.store(false, SeqCst);
        while let Some(process) = lock(&self.pools).recycled.pop() {
            if !process.is_dead() {
                return Ok(process);
            }
        }
        loop {
            let (ready, left) = {
                let mut pools = lock(&self.pools);
                (pools.ready.pop(), pools.ready.len())
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

    /// Ends an address space.
    pub fn destroy(&self, id: u64, line: &Line) -> Result<(), i32> {
        let removed = self.spaces.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let process = removed.ok_or(libc::ESRCH)?;
        if process.recycle(self.areas_len, self.proc.as_ref(), line) {
            let mut pools = lock(&self.pools);
            if pools.recycled.len() < RECYCLED {
                pools.recycled.push(process);
                return Ok(());
            }
        }
        process.kill();
        self.free_slot(&process);
        Ok(())
    }

    /// Ends the processes that are kept for other address spaces, until one is made.
    pub fn trim(&self) {
        let kept = {
            let mut pools = lock(&self.pools);
            self.resting.store(true, SeqCst);
            let mut kept = std::mem::take(&mut pools.ready);
            kept.append(&mut pools.recycled);
            kept
        };
        for process in kept {
            process.kill();
            self.free_slot(&process);
        }
    }

    /// The process of an address space.
    pub fn find(&self, id: u64) -> Option<Arc<Process>> {
        self.spaces.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Processor time of all stubs, the dead ones included.
    pub fn cpu_ns(&self) -> u64 {
        let living = lock(&self.slots).living.values().map(|p| cpu::process_cpu_ns(p.pid)).sum::<u64>();
        self.dead_cpu_ns.load(Relaxed) + living
    }

    /// The keeper's thread: keeps some processes ready, and buries the dead.
    pub fn keep(&self) {
        spawn::block_signals();
        while !self.stopping.load(SeqCst) {
            while !self.stopping.load(SeqCst) && self.wants_ready() {
                match self.fork() {
                    Ok(process) => lock(&self.pools).ready.push(process),
                    Err(_) => break,
                }
            }
            for token in spawn::wait_events(&self.epoll) {
                match token {
                    TOKEN_WAKE => spawn::drain(&self.wake),
                    TOKEN_ZYGOTE => self.bury_zygote(),
                    slot => self.bury(usize::try_from(slot).unwrap_or(0)),
                }
            }
        }
    }

    fn wants_ready(&self) -> bool {
        !self.resting.load(SeqCst) && lock(&self.pools).ready.len() < READY
    }

    fn bury_zygote(&self) {
        if self.zygote_dead.swap(true, SeqCst) {
            return;
        }
        spawn::unwatch(&self.epoll, &self.zygote_pidfd);
        self.dead_cpu_ns.fetch_add(spawn::reap(self.zygote_pid), Relaxed);
        // SAFETY: the area outlives this; a second view of it, since a fork that waits holds the lock.
        unsafe { StubThread::new(self.control.at(0), 0, self.layout) }.mark_dead();
    }

    fn bury(&self, slot: usize) {
        let Some(process) = lock(&self.slots).living.remove(&slot) else { return };
        spawn::unwatch(&self.epoll, &process.pidfd);
        process.bury(&self.dead_cpu_ns);
        let same = |other: &Arc<Process>| Arc::ptr_eq(other, &process);
        {
            let mut pools = lock(&self.pools);
            pools.ready.retain(|p| !same(p));
            pools.recycled.retain(|p| !same(p));
        }
        self.free_slot(&process);
    }

    /// Gives a process's slot back once it is dead and serves no address space: called after either has come true.
    fn free_slot(&self, process: &Process) {
        if process.is_dead() && process.id.load(SeqCst) == 0 && !process.slot_freed.swap(true, SeqCst) {
            self.control.punch(process.slot as u64 * self.areas_len, self.areas_len);
            lock(&self.slots).free.push(process.slot);
        }
    }

    /// Whether the zygote has set itself up; waits for it.
    pub fn is_ready(&self) -> bool {
        self.wait_zygote(&lock(&self.zygote)).is_ok()
    }

    /// Ends the keeper.
    pub fn stop(&self) {
        self.stopping.store(true, SeqCst);
        spawn::signal(&self.wake);
    }
}

impl Drop for Stubs {
    fn drop(&mut self) {
        let living: Vec<_> = lock(&self.slots).living.drain().collect();
        living.iter().for_each(|(_, process)| process.kill());
        living.iter().for_each(|(_, process)| process.bury(&self.dead_cpu_ns));
        if !self.zygote_dead.load(SeqCst) {
            spawn::kill(self.zygote_pid);
            spawn::reap(self.zygote_pid);
        }
    }
}

/// Number of the file of orders in the zygote, behind everything else.
fn orders_descriptor(cpus: u32) -> u32 {
    FD_SOCKETS.cast_unsigned() + 2 * cpus
}

/// Makes an owned descriptor of a call's result.
pub(super) fn owned(fd: i32, what: &'static str) -> Result<OwnedFd, PlatformError> {
    if fd < 0 {
        return Err(failed(what));
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
