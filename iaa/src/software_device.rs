//! A device of software for the tests: it reads the very bytes of descriptors, records and tables, as strictly as it can.
//!
//! It does a job whenever somebody waits, in an order of its own. Where a real one would take what this driver never says
//! (other operations, filters, streams in parts), it reports an error: what is taken is what the driver means.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use codec::{PIECE_BYTES, Packer, Style, Table, Unpacker};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    job::code_word,
    layout::{
        COMPRESS_STATE_BYTES, Completion, CompressState, DECOMPRESS_STATE_BYTES, Descriptor, STATE_ALIGN,
        WINDOW_BYTES, compress, decompress, flag, opcode, status,
    },
    memory::Shared,
    portal::{Portal, Submitted},
};

/// The outcome that a test plans for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The job succeeds.
    Done,
    /// A page of the destination is not there, after some output.
    PageFault,
    /// It never ends.
    Hang,
    /// The engine fails.
    Fail,
    /// The record's checksum is not that of the data.
    BadChecksum,
    /// The output is not what the input says, though the record says so.
    BadOutput,
    /// The record says that it is done, but nothing was: for a test that tests would see it.
    Idle,
}

/// Counters of a software device: descriptors that came, how they were taken, and bytes that were moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Descriptors that it took.
    pub taken: u64,
    /// Descriptors that it had no room for.
    pub turned_away: u64,
    /// The most that waited at once.
    pub most_waiting: usize,
    /// Jobs that it finished before one that came earlier.
    pub out_of_order: u64,
    /// Descriptors whose completion record is nowhere: a real device notes them for the kernel only.
    pub without_record: u64,
    /// Bytes of sources that jobs read.
    pub bytes_read: u64,
    /// Bytes of destinations that jobs wrote.
    pub bytes_written: u64,
}

type Plan = Box<dyn FnMut(u64) -> Fate + Send>;

/// A work queue with one engine.
pub struct SoftwareDevice {
    inner: Mutex<Inner>,
}

struct Inner {
    room: usize,
    blocks_on_fault: bool,
    is_closed: bool,
    memory: Vec<Shared>,
    waiting: VecDeque<(u64, [u8; 64])>,
    plan: Plan,
    order: u64,
    seen: Seen,
}

/// Why a job does not succeed: the status, and what else the record says.
struct Failure(Completion);

fn fail(status: u8) -> Failure {
    Failure(Completion { status, ..Completion::default() })
}

impl SoftwareDevice {
    /// A queue that holds `room` jobs. `plan` says what becomes of each, counted from 0.
    #[must_use]
    pub fn new(room: usize, plan: impl FnMut(u64) -> Fate + Send + 'static) -> Self {
        let inner = Inner {
            room,
            blocks_on_fault: false,
            is_closed: false,
            memory: Vec::new(),
            waiting: VecDeque::new(),
            plan: Box::new(plan),
            order: 0x9e37_79b9_7f4a_7c15,
            seen: Seen::default(),
        };
        Self { inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue whose engine waits for pages.
    #[must_use]
    pub fn with_block_on_fault(self) -> Self {
        self.inner().blocks_on_fault = true;
        self
    }

    /// The counters so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.inner().seen
    }

    /// Takes no further job.
    pub fn close(&self) {
        self.inner().is_closed = true;
    }
}

impl Portal for SoftwareDevice {
    fn submit(&self, descriptor: &Descriptor) -> Submitted {
        let mut inner = self.inner();
        if inner.is_closed {
            return Submitted::Refused;
        }
        if inner.waiting.len() >= inner.room {
            inner.seen.turned_away += 1;
            return Submitted::Retry;
        }
        let number = inner.seen.taken;
        let bytes = descriptor.as_bytes().try_into().expect("a descriptor has 64 bytes");
        inner.waiting.push_back((number, bytes));
        inner.seen.taken += 1;
        inner.seen.most_waiting = inner.seen.most_waiting.max(inner.waiting.len());
        Submitted::Accepted
    }

    fn wait(&self) {
        let mut inner = self.inner();
        while !inner.step() && !inner.waiting.is_empty() {}
    }

    fn share(&self, memory: &Shared) {
        let mut inner = self.inner();
        if !inner.memory.iter().any(|known| known.addresses() == memory.addresses()) {
            inner.memory.push(memory.clone());
        }
    }
}

impl Inner {
    /// Does one of the jobs that wait. False if none ended.
    fn step(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        self.order = self.order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let chosen = usize::try_from(self.order >> 33).expect("31 bits") % self.waiting.len();
        let Some((number, bytes)) = self.waiting.remove(chosen) else { return false };
        self.seen.out_of_order += u64::from(chosen > 0);
        let fate = (self.plan)(number);
        if fate == Fate::Hang {
            return false;
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let record_at = word(8);
        let flags = word(0) >> 32 & 0xff_ffff;
        let wants_record = flags & u64::from(flag::RECORD) == u64::from(flag::RECORD);
        let Some((memory, at)) = self.at(record_at, 64).filter(|_| record_at % 64 == 0 && wants_record)
        else {
            self.seen.without_record += 1;
            return false;
        };
        let (memory, at) = (memory.clone(), at);
        let record = match self.run(&bytes, fate) {
            Ok(record) => Completion { status: status::SUCCESS, ..record },
            Err(Failure(record)) => record,
        };
        // The status goes last: who sees it sees the rest.
        memory.write(at + 1, &record.as_bytes()[1..]);
        memory.store(at, record.status);
        true
    }

    /// The memory that has a range of addresses, and where.
    fn at(&self, address: u64, len: u64) -> Option<(&Shared, usize)> {
        let end = address.checked_add(len)?;
        let memory = self.memory.iter().find(|memory| {
            let range = memory.addresses();
            range.start <= address && end <= range.end
        })?;
        Some((memory, usize::try_from(address - memory.addresses().start).ok()?))
    }

    fn read(&mut self, address: u64, len: u32) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len as usize];
        let fault = Completion {
            status: status::PAGE_FAULT,
            fault_address: address & !4095,
            ..Completion::default()
        };
        let (memory, at) = self.at(address, u64::from(len)).ok_or(Failure(fault))?;
        memory.read(at, &mut bytes);
        self.seen.bytes_read += u64::from(len);
        Ok(bytes)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Failure> {
        let status = status::PAGE_FAULT | status::IS_WRITE;
        let fault = Completion { status, fault_address: address & !4095, ..Completion::default() };
        let (memory, at) = self.at(address, bytes.len() as u64).ok_or(Failure(fault))?;
        memory.write(at, bytes);
        self.seen.bytes_written += bytes.len() as u64;
        Ok(())
    }

    /// Decodes a descriptor and does what it says.
    fn run(&mut self, bytes: &[u8; 64], fate: Fate) -> Result<Completion, Failure> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (operation, flags) = (word(4) >> 24, word(4) & 0xff_ffff);
        let coding = u16::from_le_bytes([bytes[38], bytes[39]]);
        // The address space is the submitter's, whatever the low 20 bits say; above them nothing may be said.
        if word(0) >> 20 != 0 || bytes[36] != 0 || bytes[37] != 0 || word(60) != 0 {
            return Err(fail(status::RESERVED_NOT_ZERO));
        }
        if word(56) != 0 {
            return Err(fail(status::INVALID_FILTER_FLAGS));
        }
        let is_header = coding & decompress::SUPPRESS_OUTPUT != 0;
        let (state_flag, state_bytes) = match operation {
            opcode::DECOMPRESS if is_header => (flag::WRITE_STATE, DECOMPRESS_STATE_BYTES),
            opcode::DECOMPRESS => (flag::READ_STATE, DECOMPRESS_STATE_BYTES),
            opcode::COMPRESS => (flag::READ_STATE, COMPRESS_STATE_BYTES),
            _ => return Err(fail(status::BAD_OPCODE)),
        };
        let may = flag::RECORD | state_flag | if self.blocks_on_fault { flag::BLOCK_ON_FAULT } else { 0 };
        if flags & !may != 0 || flags & state_flag == 0 {
            let record = Completion { invalid_flags: flags & !may, ..fail(status::INVALID_FLAGS).0 };
            return Err(Failure(record));
        }
        let job = Job {
            source: long(16),
            source_bytes: word(32),
            destination: long(24),
            room: word(48),
            state: long(40),
            coding,
        };
        if !job.state.is_multiple_of(STATE_ALIGN as u64) {
            return Err(fail(status::ADDRESS_ALIGNMENT));
        }
        if word(52) != state_bytes
            || job.source_bytes == 0
            || job.source_bytes > 2 << 20
            || job.room > 2 << 20
        {
            return Err(fail(status::INVALID_SIZE));
        }
        let (source_end, end) =
            (job.source.wrapping_add(job.source_bytes.into()), job.destination.wrapping_add(job.room.into()));
        if job.room > 0 && job.source < end && job.destination < source_end {
            return Err(fail(status::OVERLAP));
        }
        if fate == Fate::Fail {
            return Err(fail(status::HARDWARE_ERROR));
        }
        match operation {
            opcode::DECOMPRESS if is_header => self.read_header(job),
            opcode::DECOMPRESS => self.unpack(job, fate),
            _ => self.pack(job, fate),
        }
    }

    fn read_header(&mut self, job: Job) -> Result<Completion, Failure> {
        let ignored = job.coding >> decompress::IGNORE_BITS_SHIFT & 7;
        if job.coding
            != decompress::ENABLE | decompress::SUPPRESS_OUTPUT | ignored << decompress::IGNORE_BITS_SHIFT
        {
            return Err(fail(status::INVALID_CODING_FLAGS));
        }
        if job.room != 0 {
            return Err(fail(status::INVALID_SIZE));
        }
        let header = self.read(job.source, job.source_bytes)?;
        let table = Table::from_bytes(&header).map_err(|_| fail(status::ANALYTICS_ERROR))?;
        if table.header_bits() + usize::from(ignored) != header.len() * 8 {
            return Err(fail(status::ANALYTICS_ERROR));
        }
        // What is in the state is this device's own affair: how long the header is, and the header.
        let mut state = vec![0; DECOMPRESS_STATE_BYTES as usize];
        state[..4].copy_from_slice(&job.source_bytes.to_le_bytes());
        state[4..4 + header.len()].copy_from_slice(&header);
        self.write(job.state, &state)?;
        Ok(Completion { bytes_completed: job.source_bytes, ..Completion::default() })
    }

    fn unpack(&mut self, job: Job, fate: Fate) -> Result<Completion, Failure> {
        if job.coding
            != decompress::ENABLE | decompress::FLUSH | decompress::CHECK_END | decompress::STOP_AT_END
        {
            return Err(fail(status::INVALID_CODING_FLAGS));
        }
        let state = self.read(job.state, DECOMPRESS_STATE_BYTES)?;
        let len = u32::from_le_bytes(state[..4].try_into().expect("four bytes")) as usize;
        let header = state.get(4..4 + len).ok_or_else(|| fail(status::ANALYTICS_ERROR))?;
        let table = Table::from_bytes(header).map_err(|_| fail(status::ANALYTICS_ERROR))?;
        let packed = self.read(job.source, job.source_bytes)?;
        let mut out = vec![0; PIECE_BYTES];
        let mut unpacker = Unpacker::new(Style::DeflateCanned, Some(Arc::new(table)));
        let (read, written) =
            unpacker.unpack_prefix(&packed, &mut out).map_err(|_| fail(status::ANALYTICS_ERROR))?;
        // A real device stops at the end of the block, whatever follows.
        if read != packed.len() {
            return Err(fail(status::ANALYTICS_ERROR));
        }
        out.truncate(written);
        self.finish(job, fate, read, &out.clone(), out)
    }

    fn pack(&mut self, job: Job, fate: Fate) -> Result<Completion, Failure> {
        if job.coding != compress::FLUSH | compress::APPEND_END {
            return Err(fail(status::INVALID_CODING_FLAGS));
        }
        let state = self.read(job.state, COMPRESS_STATE_BYTES)?;
        let state = CompressState::read_from_bytes(&state).map_err(|_| fail(status::INVALID_SIZE))?;
        let table = table_of(&state).ok_or_else(|| fail(status::ANALYTICS_ERROR))?;
        let piece = self.read(job.source, job.source_bytes)?;
        let mut packer = Packer::new(Style::DeflateCanned, Some(Arc::new(table))).with_window(WINDOW_BYTES);
        let mut out = vec![0; 2 * PIECE_BYTES + 1024];
        let len = packer.pack(&piece, &mut out).ok_or_else(|| fail(status::ANALYTICS_ERROR))?;
        out.truncate(len);
        self.finish(job, fate, piece.len(), &piece, out)
    }

    /// Writes a job's output. The checksum is of `plain`.
    fn finish(
        &mut self,
        job: Job,
        fate: Fate,
        read: usize,
        plain: &[u8],
        mut out: Vec<u8>,
    ) -> Result<Completion, Failure> {
        let bytes = |len: usize| u32::try_from(len).expect("two pieces at most");
        if out.len() > job.room as usize {
            self.write(job.destination, &out[..job.room as usize])?;
            let record = Completion {
                bytes_completed: bytes(read) / 2,
                output_bytes: job.room,
                ..fail(status::OUTPUT_OVERFLOW).0
            };
            return Err(Failure(record));
        }
        // A page that is not there is found even where the output does not reach.
        let room = u64::from(job.room);
        let fault = Completion {
            status: status::PAGE_FAULT | status::IS_WRITE,
            fault_address: job.destination & !4095,
            output_bytes: bytes(out.len() / 2),
            ..Completion::default()
        };
        self.at(job.destination, room).ok_or(Failure(fault))?;
        if fate == Fate::PageFault {
            self.write(job.destination, &out[..out.len() / 2])?;
            return Err(Failure(fault));
        }
        let crc = crc32fast::hash(plain) ^ u32::from(fate == Fate::BadChecksum);
        if let (Fate::BadOutput, Some(first)) = (fate, out.first_mut()) {
            *first ^= 0x10;
        }
        if fate != Fate::Idle {
            self.write(job.destination, &out)?;
        }
        Ok(Completion {
            bytes_completed: bytes(read),
            output_bytes: bytes(out.len()),
            crc,
            ..Completion::default()
        })
    }
}

#[derive(Clone, Copy)]
struct Job {
    source: u64,
    source_bytes: u32,
    destination: u64,
    room: u32,
    state: u64,
    coding: u16,
}

/// The table whose codes an engine's state has, if it has those of one and nothing else.
fn table_of(state: &CompressState) -> Option<Table> {
    let length = |word: &u32| u8::try_from(word >> 15).ok();
    let litlens = state.litlens.iter().map(length).collect::<Option<Vec<u8>>>()?;
    let distances = state.distances.iter().map(length).collect::<Option<Vec<u8>>>()?;
    let table = Table::from_code_lengths(&litlens, &distances).ok()?;
    let words = table.code_words();
    let same = |words: Vec<(u16, u8)>, state: &[u32]| {
        words.iter().zip(state).all(|((bits, length), word)| code_word(*bits, *length) == *word)
    };
    let rest = [state.crc, state.xor_checksum, state.accumulated_bits];
    let is_clean = rest == [0; 3]
        && state.reserved == [0; 5]
        && state.reserved2 == [0; 2]
        && state.reserved3 == [0; 2]
        && state.accumulated == [0; 256];
    (is_clean && same(words.0, &state.litlens) && same(words.1, &state.distances)).then_some(table)
}
