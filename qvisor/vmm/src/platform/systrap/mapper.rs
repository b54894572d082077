//! The mappings and threads of a stub process: orders to its mapper thread, and its answers.
//!
//! Orders lie in pages that only the VMM can write, and answers come through pipes that only mapper threads have: code
//! that has taken over the process's other threads can neither give an order nor pretend that one was carried out. The
//! id of a thread that was started comes as the position of a file that only mapper threads and the VMM have.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

use abi::layout::STUB_AREA;
use abi::run::{MAP_OP_MAP, MAP_OP_PROTECT, MAP_OP_UNMAP, MapOp, PROT_WRITE};

use super::area::{
    Area, CALLS_MAX, Call, FD_FILE, FD_SOCKETS, FD_TEMPLATE, FD_USER, FILTER_MAX, Orders, SCRATCH_WORDS,
    STUB_ORDERS, THREAD_FLAGS,
};
use super::filter::Instruction;
use super::handover::Affinity;
use super::spawn::{self, Ends};
use super::thread::{Lost, StubThread};
use crate::futex;
use crate::lock::{Guard, Mutex, Rank};
use crate::platform::folios::{self, FOLIO_BYTES, Folios};

/// Most calls of one operation: a file is received, mapped, and closed.
const CALLS_OF_ONE: usize = 3;
const _: () = assert!(2 * FILES_MAX <= CALLS_MAX);
/// Runs longer than this are left to page faults.
const POPULATE_MAX: u64 = 2 << 20;
/// Read-only runs longer than this are left to page faults: the host brings neighbours in with one fault.
const POPULATE_TO_READ: u64 = 128 << 10;
/// How often, and for how long each time, an answer is waited for while the mapper sleeps, and in all: it may have to wait for a
/// core or for a lock of the host's. After longer than that the watchdog would end the sandbox.
const ANSWER_ROUND_MS: i32 = 100;
const ANSWER_ROUNDS: u32 = 50;
const ANSWER_ROUNDS_MAX: u32 = 160;
/// Files that may wait in a vCPU's socket: as many as are sent with one order.
pub const FILES_MAX: usize = 32;

/// Tells answers from those to orders that were given up.
static NEXT_ANSWER: AtomicU64 = AtomicU64::new(1);

/// The state of a mapper that has not answered yet.
pub enum Doing {
    /// Its process has ended.
    Ended,
    /// It runs, or waits for a core, a disk or a lock of the host's.
    Works,
    /// It sleeps, as if there were no order.
    Waits,
}

/// A vCPU's way to mapper threads.
pub struct MapperLine {
    pub ends: Ends,
    pub cpu: u32,
    /// An order was given up, and files that came with it may still be in the socket.
    stale: AtomicBool,
}

impl MapperLine {
    pub fn new(ends: Ends, cpu: u32) -> Self {
        Self { ends, cpu, stale: AtomicBool::new(false) }
    }
}

/// A process's mapper thread.
pub struct Mapper {
    orders: *mut Orders,
    /// Number of the last order.
    sequence: Mutex<u32>,
    cpus: u32,
    /// Its thread's id; 0 until the host has told it.
    tid: AtomicI32,
    /// The core it is bound to, plus one; 0: to none.
    core: AtomicU32,
}

// SAFETY: the orders are shared memory that outlives the process's entry; `sequence` is held while they are written.
unsafe impl Send for Mapper {}
// SAFETY: as above.
unsafe impl Sync for Mapper {}

impl Mapper {
    /// The mapper of a process that does not exist yet, and the filters of the process: of threads that run application
    /// code, and of the mapper.
    ///
    /// # Safety
    /// `orders` is the start of a process's orders in their file's mapping, all zeros, and outlives the value.
    pub unsafe fn new(orders: *mut u8, cpus: u32, filters: &[Vec<Instruction>; 2]) -> Self {
        let orders = orders.cast::<Orders>();
        // The bytes received beside a descriptor go to a place that nobody reads.
        let scratch = STUB_AREA + std::mem::offset_of!(Area, scratch) as u64;
        let place = STUB_ORDERS + std::mem::offset_of!(Orders, iovec) as u64;
        let message = [0, 0, place, 1, scratch + 64, 24, 0, 0];
        let mut iovec = [0; 16];
        (iovec[0], iovec[1]) = (scratch, 1);
        // SAFETY: the caller answers for the memory; the process does not exist yet.
        unsafe {
            (*orders).message.get().write(message);
            (*orders).iovec.get().write(iovec);
        }
        let mapper = Self {
            orders,
            sequence: Mutex::new(Rank::StubOrder, 0),
            cpus,
            tid: AtomicI32::new(0),
            core: AtomicU32::new(0),
        };
        mapper.put_filters(filters);
        mapper
    }

    fn put_filters(&self, [application, mapper]: &[Vec<Instruction>; 2]) {
        let orders = self.orders();
        let at = std::mem::offset_of!(Orders, programs);
        let rows =
            [(&orders.application_filter, application, 0), (&orders.mapper_filter, mapper, FILTER_MAX[0])];
        for ((place, program, first), most) in rows.into_iter().zip(FILTER_MAX) {
            assert!(program.len() <= most, "there is room for the filters");
            // SAFETY: in bounds, as just checked; the process does not exist yet.
            unsafe {
                let to = orders.programs.get().cast::<u64>().add(first).cast::<Instruction>();
                std::ptr::copy_nonoverlapping(program.as_ptr(), to, program.len());
            }
            place[0].store(program.len() as u64, Relaxed);
            place[1].store(STUB_ORDERS + (at + 8 * first) as u64, Relaxed);
        }
    }

    /// Takes the thread's id from `area`, where the host's kernel has put it. The process must not have run application
    /// code yet: that may write there.
    pub fn learn_id(&self, area: &Area) {
        self.tid.store(area.mapper_tid.load(Relaxed).cast_signed(), Relaxed);
    }

    /// Binds the thread to the calling thread's core, which is about to be free: the host then switches from one to the
    /// other, instead of waking another core.
    fn follow(&self) {
        let tid = self.tid.load(Relaxed);
        if let (1.., Some(core)) = (tid, Affinity::current_core())
            && self.core.swap(core + 1, Relaxed) != core + 1
        {
            Affinity::only(core).apply(tid);
        }
    }

    /// Lets the thread go to any core, where it is bound to one that somebody else has.
    fn free(&self) {
        let tid = self.tid.load(Relaxed);
        if tid > 0 && self.core.swap(0, Relaxed) != 0 {
            Affinity::of_this_thread().apply(tid);
        }
    }

    /// The host's number of the thread; 0: it has not told it yet.
    pub fn tid(&self) -> i32 {
        self.tid.load(Relaxed)
    }

    fn orders(&self) -> &Orders {
        // SAFETY: `new` was promised the memory; `Orders` is atomics and cells.
        unsafe { &*self.orders }
    }

    /// Begins an order of a vCPU's; nobody else can give the process one until it is done.
    pub fn begin(&self, line: &MapperLine, doing: impl Fn() -> Doing) -> Result<MapperOrder<'_>, Lost> {
        let mut order = MapperOrder { mapper: self, sequence: self.sequence.lock(), len: 0, files: 0 };
        if line.stale.load(Relaxed) {
            order.drop_stale(line, doing)?;
        }
        Ok(order)
    }
}

/// An order in the making.
pub struct MapperOrder<'a> {
    mapper: &'a Mapper,
    sequence: Guard<'a, u32>,
    len: usize,
    files: usize,
}

impl MapperOrder<'_> {
    /// Whether another operation fits.
    pub fn has_room(&self) -> bool {
        self.len + CALLS_OF_ONE <= CALLS_MAX && self.files < FILES_MAX
    }

    fn push(&mut self, number: i64, args: [u64; 6], may_fail: bool) {
        assert!(self.len < CALLS_MAX, "the callers ask for room");
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let call = Call { number, may_fail: may_fail.into(), args, _pad: 0 };
        // SAFETY: in bounds, and the mapper waits for the next order.
        unsafe { self.mapper.orders().calls.get().cast::<Call>().add(self.len).write_volatile(call) };
        self.len += 1;
    }

    /// Adds an operation that was checked; `phys` of a map is an offset in the user memory file.
    pub fn add(&mut self, op: &MapOp) {
        let prot = u64::from(op.prot);
        match op.kind {
            MAP_OP_MAP if wants_folios(op) => {
                self.map(op, FD_USER, 0);
                for advice in [libc::MADV_HUGEPAGE, libc::MADV_POPULATE_READ] {
                    let advice = u64::from(advice.cast_unsigned());
                    // What is not to be had comes with faults.
                    self.push(libc::SYS_madvise, [op.addr, op.len, advice, 0, 0, 0], true);
                }
            }
            MAP_OP_MAP => {
                let most = if op.prot & PROT_WRITE == 0 { POPULATE_TO_READ } else { POPULATE_MAX };
                let populate = if op.len <= most { libc::MAP_POPULATE } else { 0 };
                self.map(op, FD_USER, populate);
            }
            MAP_OP_UNMAP => self.push(libc::SYS_munmap, [op.addr, op.len, 0, 0, 0, 0], false),
            MAP_OP_PROTECT => self.push(libc::SYS_mprotect, [op.addr, op.len, prot, 0, 0, 0], false),
            _ => self.push(libc::SYS_munmap, [0, abi::layout::USER_MAX, 0, 0, 0, 0], false),
        }
    }

    fn map(&mut self, op: &MapOp, fd: i32, more_flags: i32) {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | more_flags;
        let (flags, fd) = (u64::from(flags.cast_unsigned()), u64::from(fd.cast_unsigned()));
        self.push(libc::SYS_mmap, [op.addr, op.len, u64::from(op.prot), flags, fd, op.phys], false);
    }

    /// Adds the mapping of a part of the template, which is only read; `phys` is the offset in it. Its pages have just been read.
    pub fn add_template(&mut self, op: &MapOp) {
        let populate = if op.len <= POPULATE_TO_READ { libc::MAP_POPULATE } else { 0 };
        self.map(op, FD_TEMPLATE, populate);
    }

    /// Adds the mapping of a file; `phys` is the offset in it.
    pub fn add_file(&mut self, op: &MapOp, file: &OwnedFd, line: &MapperLine) -> Result<(), i32> {
        spawn::send_descriptor(&line.ends.socket, file)?;
        self.files += 1;
        self.receive(line.cpu);
        self.map(op, FD_FILE, 0);
        self.push(libc::SYS_close, [u64::from(FD_FILE.cast_unsigned()), 0, 0, 0, 0, 0], true);
        Ok(())
    }

    /// The descriptor gets the lowest number that is free, [`FD_FILE`]. The host's kernel cannot note in the read-only
    /// header what it received, and so reports a failure.
    fn receive(&mut self, cpu: u32) {
        let message = STUB_ORDERS + std::mem::offset_of!(Orders, message) as u64;
        let socket = u64::from(FD_SOCKETS.cast_unsigned() + cpu);
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT).cast_unsigned();
        self.push(libc::SYS_recvmsg, [socket, message, u64::from(flags), 0, 0, 0], true);
    }

    /// Has the process start the thread of an unused area; the result is its id. `ids` is the file whose position tells
    /// the id, which no other thread uses meanwhile.
    pub fn spawn(
        &mut self,
        thread: &StubThread,
        ids: &OwnedFd,
        line: &MapperLine,
        doing: impl Fn() -> Doing,
    ) -> Result<i32, Lost> {
        seek(ids, 0, libc::SEEK_SET)?;
        let stack = thread.frame_address() & !15;
        self.push(libc::SYS_clone, [THREAD_FLAGS, stack, 0, 0, 0, thread.address()], false);
        let result = self.carry_out(line, doing)?;
        let tid = seek(ids, 0, libc::SEEK_CUR)?;
        if result == 0 && tid > 0 { Ok(tid) } else { Err(Lost) }
    }

    /// Has the order carried out; the result is 0, or the errno that stands for any failure. The order is empty again.
    pub fn carry_out(&mut self, line: &MapperLine, doing: impl Fn() -> Doing) -> Result<u32, Lost> {
        if self.len == 0 {
            return Ok(0);
        }
        let result = self.send(line, doing);
        if result.is_err() && self.files > 0 {
            line.stale.store(true, Relaxed);
        }
        (self.len, self.files) = (0, 0);
        result
    }

    /// Takes files of orders that were given up out of the vCPU's socket: mappers take them in turn.
    fn drop_stale(&mut self, line: &MapperLine, doing: impl Fn() -> Doing) -> Result<(), Lost> {
        for _ in 0..FILES_MAX {
            self.receive(line.cpu);
            self.push(libc::SYS_close, [u64::from(FD_FILE.cast_unsigned()), 0, 0, 0, 0, 0], true);
        }
        self.send(line, doing)?;
        self.len = 0;
        line.stale.store(false, Relaxed);
        Ok(())
    }

    fn send(&mut self, line: &MapperLine, doing: impl Fn() -> Doing) -> Result<u32, Lost> {
        let orders = self.mapper.orders();
        let answer = NEXT_ANSWER.fetch_add(1, Relaxed) << 1;
        orders.answers[0].store(answer, Relaxed);
        orders.answers[1].store(answer | 1, Relaxed);
        orders.answer_fd.store(FD_SOCKETS.cast_unsigned() + self.mapper.cpus + line.cpu, Relaxed);
        orders.calls_len.store(u32::try_from(self.len).unwrap_or(0), Relaxed);
        self.mapper.follow();
        *self.sequence = self.sequence.wrapping_add(1);
        orders.sequence.store(*self.sequence, SeqCst);
        futex::wake(&orders.sequence, i32::MAX, futex::Scope::Shared);
        let (mut idle, mut all) = (0, 0);
        while idle < ANSWER_ROUNDS && all < ANSWER_ROUNDS_MAX {
            match spawn::read_answer(&line.ends.answers, ANSWER_ROUND_MS) {
                Some(word) if word & !1 == answer => {
                    return Ok(if word & 1 == 0 { 0 } else { libc::ENOMEM.cast_unsigned() });
                }
                // To an order that was given up.
                Some(_) => {}
                None => {
                    match doing() {
                        Doing::Ended => return Err(Lost),
                        Doing::Works => {}
                        Doing::Waits => idle += 1,
                    }
                    all += 1;
                    self.mapper.free();
                }
            }
        }
        Err(Lost)
    }
}

/// Whether an operation maps a run whose pages may come in large folios, and the host is to be asked for them.
fn wants_folios(op: &MapOp) -> bool {
    op.len >= FOLIO_BYTES
        && op.len <= POPULATE_MAX
        && op.prot & PROT_WRITE != 0
        && op.addr % FOLIO_BYTES == op.phys % FOLIO_BYTES
        && folios::policy() == Folios::Asked
}

fn seek(file: &OwnedFd, to: i64, whence: i32) -> Result<i32, Lost> {
    // SAFETY: no memory is involved.
    let at = unsafe { libc::lseek(file.as_raw_fd(), to, whence) };
    i32::try_from(at).map_err(|_| Lost).and_then(|at| if at < 0 { Err(Lost) } else { Ok(at) })
}

/// Writes the zygote's filter to where it takes it from.
pub fn put_base_filter(area: &Area, program: &[Instruction]) {
    assert!(program.len() <= SCRATCH_WORDS, "there is room for the filter");
    // SAFETY: in bounds, as just checked; the zygote does not exist yet.
    unsafe {
        std::ptr::copy_nonoverlapping(
            program.as_ptr(),
            area.scratch.get().cast::<Instruction>(),
            program.len(),
        );
    }
    area.filter[0].store(program.len() as u64, Relaxed);
    area.filter[1].store(STUB_AREA + std::mem::offset_of!(Area, scratch) as u64, Relaxed);
}
