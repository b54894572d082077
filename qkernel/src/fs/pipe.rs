//! Pipes and named FIFOs.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::fs::anon;
use crate::fs::caller;
use crate::fs::caller::CallerCtx;
use crate::fs::file::{At, File, FileOps, OpenFlags};
use crate::fs::inode::S_IFIFO;
use crate::fs::inode::{AttrChange, Stat};
use crate::fs::pages::PageQueue;
use crate::fs::poll::PollTable;
use crate::fs::sigio;
use crate::signals::{SIGPIPE, Source};
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, UserAddr, account};
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;
use machine::sync::{Mutex, Rank, SpinLock};

/// Writes of at most this many bytes go whole or not at all.
pub const PIPE_BUF: usize = 4096;
const DEFAULT_CAPACITY: usize = 64 * 1024;
/// `fs.pipe-max-size`.
const CAPACITY_MAX: usize = 1 << 20;
/// Most bytes that go through the kernel's own memory at once.
const COPY_MAX: usize = 64 * 1024;
const FIONREAD: u32 = 0x541b;

/// The content of a pipe. Reads don't cross the end of a packet; bytes of plain writes form one run.
struct Ring {
    data: PageQueue,
    /// Lengths of the writes, in order; whether each is a packet.
    runs: VecDeque<(usize, bool)>,
}

/// The object behind both ends.
pub struct Pipe {
    ino: u64,
    attrs: anon::Attrs,
    ring: Mutex<Ring>,
    /// Mirrors the ring's length, for looks without the lock.
    used: AtomicUsize,
    runs: AtomicUsize,
    capacity: AtomicUsize,
    readers: AtomicU32,
    writers: AtomicU32,
    /// How often it was opened for reading and for writing (`open(2)` of a FIFO waits for a change).
    read_opens: AtomicU32,
    write_opens: AtomicU32,
    read_queue: Arc<WaitQueue>,
    write_queue: Arc<WaitQueue>,
    open_queue: WaitQueue,
}

/// The slot where a FIFO's inode keeps its pipe while it is open.
pub struct FifoSlot(SpinLock<Weak<Pipe>>);

impl Default for FifoSlot {
    fn default() -> Self {
        Self(SpinLock::new(Rank::Leaf, Weak::new()))
    }
}

impl FifoSlot {
    /// A slot whose FIFO is not open.
    pub fn new() -> Self {
        Self::default()
    }

    fn pipe(&self) -> Arc<Pipe> {
        let mut slot = self.0.lock();
        if let Some(pipe) = slot.upgrade() {
            return pipe;
        }
        let pipe = Pipe::new((0, 0));
        *slot = Arc::downgrade(&pipe);
        pipe
    }
}

impl Pipe {
    fn new(owner: (u32, u32)) -> Arc<Self> {
        Arc::new(Self {
            ino: anon::next_ino(),
            attrs: anon::Attrs::new(0o600, owner),
            ring: Mutex::new(Rank::Pipe, Ring { data: PageQueue::new(), runs: VecDeque::new() }),
            used: AtomicUsize::new(0),
            runs: AtomicUsize::new(0),
            capacity: AtomicUsize::new(DEFAULT_CAPACITY),
            readers: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            read_opens: AtomicU32::new(0),
            write_opens: AtomicU32::new(0),
            read_queue: Arc::new(WaitQueue::new()),
            write_queue: Arc::new(WaitQueue::new()),
            open_queue: WaitQueue::new(),
        })
    }

    fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Whether a writer of up to `PIPE_BUF` bytes would find room.
    fn has_room(&self) -> bool {
        let capacity = self.capacity();
        self.used.load(Ordering::Acquire) + PIPE_BUF <= capacity
            && self.runs.load(Ordering::Acquire) < capacity / PIPE_BUF
    }

    fn mirror(&self, ring: &Ring) {
        self.used.store(ring.data.len(), Ordering::Release);
        self.runs.store(ring.runs.len(), Ordering::Release);
    }

    /// One attempt to write; see [`FileOps::write`].
    fn write(&self, buf: &mut IoBuf<'_>, packets: bool) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let mut ring = self.ring.lock();
        if self.readers.load(Ordering::Acquire) == 0 {
            drop(ring);
            raise_sigpipe();
            return Err(Errno::EPIPE);
        }
        let result =
            if packets { self.push_packets(&mut ring, buf) } else { self.push_plain(&mut ring, buf) };
        self.mirror(&ring);
        drop(ring);
        if result.is_ok() {
            self.read_queue.wake(PollEvents::READABLE);
        }
        result
    }

    fn push_plain(&self, ring: &mut Ring, buf: &mut IoBuf<'_>) -> Result<usize> {
        let free = self.capacity().saturating_sub(ring.data.len());
        let want = buf.remaining();
        if free == 0 || (want <= PIPE_BUF && free < want) {
            return Err(Errno::EAGAIN);
        }
        ring.runs.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let merges = matches!(ring.runs.back(), Some((_, false)));
        if !merges && ring.runs.len() >= self.capacity() / PIPE_BUF {
            return Err(Errno::EAGAIN);
        }
        let moved = ring.data.push(buf, want.min(free))?;
        match ring.runs.back_mut() {
            Some((len, false)) => *len += moved,
            _ => ring.runs.push_back((moved, false)),
        }
        Ok(moved)
    }

    fn push_packets(&self, ring: &mut Ring, buf: &mut IoBuf<'_>) -> Result<usize> {
        let mut done = 0;
        while !buf.is_empty() {
            let len = buf.remaining().min(PIPE_BUF);
            let room =
                ring.data.len() + len <= self.capacity() && ring.runs.len() < self.capacity() / PIPE_BUF;
            ring.runs.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            let pushed = if room { ring.data.push(buf, len) } else { Err(Errno::EAGAIN) };
            match pushed {
                Ok(moved) => {
                    ring.runs.push_back((moved, true));
                    done += moved;
                    if moved < len {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// One attempt to read; see [`FileOps::read`].
    fn read(&self, buf: &mut IoBuf<'_>) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if self.used.load(Ordering::Acquire) == 0 && self.writers.load(Ordering::Acquire) != 0 {
            return Err(Errno::EAGAIN);
        }
        let mut ring = self.ring.lock();
        if ring.data.is_empty() {
            return if self.writers.load(Ordering::Acquire) == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        let full = !self.has_room();
        let result = ring.pop(buf);
        self.mirror(&ring);
        drop(ring);
        self.after_read(full);
        result
    }

    /// Wakes writers when there is room again.
    fn after_read(&self, was_full: bool) {
        if was_full && self.has_room() {
            self.write_queue.wake(PollEvents::WRITABLE);
        }
    }

    fn resize(&self, bytes: u64, privileged: bool) -> Result<u64> {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= 1 << 30).ok_or(Errno::EINVAL)?;
        let capacity = bytes.max(PIPE_BUF).next_power_of_two();
        if capacity > CAPACITY_MAX && !privileged {
            return Err(Errno::EPERM);
        }
        let ring = self.ring.lock();
        if ring.data.len() > capacity || ring.runs.len() > capacity / PIPE_BUF {
            return Err(Errno::EBUSY);
        }
        self.capacity.store(capacity, Ordering::Relaxed);
        drop(ring);
        if self.has_room() {
            self.write_queue.wake(PollEvents::WRITABLE);
        }
        Ok(capacity as u64)
    }

    /// Lets `use_it` look at the pipe's first bytes (at most `max`), and takes as many as it says it used.
    /// `EAGAIN` when there are none yet; 0 at the end.
    pub fn take_with(&self, max: usize, use_it: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let mut ring = self.ring.lock();
        let mut bytes = ring.copy_front(max)?;
        if bytes.is_empty() {
            return if self.writers.load(Ordering::Acquire) == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        let full = !self.has_room();
        let used = use_it(&mut bytes)?;
        ring.consume(used);
        self.mirror(&ring);
        drop(ring);
        self.after_read(full);
        Ok(used)
    }

    /// Lets `fill` put bytes into the pipe: it gets a buffer as large as there is room (at most `max` bytes) and says
    /// how much of it counts. `EAGAIN` when there is no room. Who fills it from another pipe holds that one's lock, and
    /// is the only one to work on two.
    pub fn put_with(&self, max: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let mut ring = self.ring.lock_beside();
        if self.readers.load(Ordering::Acquire) == 0 {
            drop(ring);
            raise_sigpipe();
            return Err(Errno::EPIPE);
        }
        let free = self.capacity().saturating_sub(ring.data.len()).min(max);
        if free == 0 {
            return Err(Errno::EAGAIN);
        }
        let mut bytes = account::filled(0u8, free.min(COPY_MAX))?;
        let free = bytes.len();
        let filled = fill(&mut bytes)?.min(free);
        let result = if filled == 0 {
            Ok(0)
        } else {
            self.push_plain(&mut ring, &mut IoBuf::constant(&bytes[..filled]))
        };
        self.mirror(&ring);
        drop(ring);
        if filled > 0 && result.is_ok() {
            self.read_queue.wake(PollEvents::READABLE);
        }
        result
    }

    /// Copies of the first bytes, for `tee(2)`; as [`Self::take_with`], but they stay.
    pub fn peek_with(&self, max: usize, use_it: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let ring = self.ring.lock();
        let mut bytes = ring.copy_front(max)?;
        if bytes.is_empty() {
            return if self.writers.load(Ordering::Acquire) == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        use_it(&mut bytes)
    }
}

impl Ring {
    /// Moves bytes into `buf`, up to the end of a packet, whose rest is lost.
    fn pop(&mut self, buf: &mut IoBuf<'_>) -> Result<usize> {
        let Some(&(len, packet)) = self.runs.front() else { return Ok(0) };
        if packet {
            let got = self.data.peek(0, buf, len)?;
            self.data.discard(len);
            self.runs.pop_front();
            return Ok(got);
        }
        let got = self.data.pop(buf, len)?;
        self.shorten_front(got);
        Ok(got)
    }

    fn shorten_front(&mut self, count: usize) {
        if let Some((len, _)) = self.runs.front_mut() {
            *len -= count.min(*len);
            if *len == 0 {
                self.runs.pop_front();
            }
        }
    }

    /// A copy of the first run, at most `max` bytes.
    fn copy_front(&self, max: usize) -> Result<Vec<u8>> {
        let len = self.runs.front().map_or(0, |run| run.0).min(max).min(COPY_MAX);
        let mut bytes = account::filled(0u8, len)?;
        self.data.peek(0, &mut IoBuf::kernel(&mut bytes), len)?;
        Ok(bytes)
    }

    fn consume(&mut self, count: usize) {
        self.data.discard(count);
        self.shorten_front(count);
    }
}

/// The caller wrote to a pipe that no reader has open.
pub fn raise_sigpipe() {
    let caller = caller::current();
    let source = Source::User { pid: caller.pid(), uid: caller.creds().uid };
    caller.send_signal(SIGPIPE, source);
}

/// An open end (or both, of a FIFO opened `O_RDWR`).
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
    /// Writers so far when a reader opened without waiting: no hang-up before the first of them.
    write_opens_before: Option<u32>,
}

impl PipeEnd {
    fn open(pipe: &Arc<Pipe>, reads: bool, writes: bool) -> Self {
        if reads {
            pipe.readers.fetch_add(1, Ordering::AcqRel);
            pipe.read_opens.fetch_add(1, Ordering::AcqRel);
        }
        if writes {
            pipe.writers.fetch_add(1, Ordering::AcqRel);
            pipe.write_opens.fetch_add(1, Ordering::AcqRel);
        }
        Self { pipe: pipe.clone(), reads, writes, write_opens_before: None }
    }

    /// Opens the same pipe again, in a direction of its own (`/proc/self/fd/N`).
    pub fn reopen(&self, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        anon::check_room()?;
        Ok(Box::new(Self::open(&self.pipe, flags.readable(), flags.writable())))
    }

    /// The pipe behind.
    pub fn pipe(&self) -> &Arc<Pipe> {
        &self.pipe
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let pipe = &self.pipe;
        if self.reads && pipe.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
            pipe.write_queue.wake(PollEvents::WRITABLE | PollEvents::ERR);
        }
        if self.writes && pipe.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            pipe.read_queue.wake(PollEvents::READABLE | PollEvents::HUP);
        }
    }
}

/// Makes a pipe: its read end and its write end. `flags`: `O_NONBLOCK`, `O_DIRECT`.
pub fn new_pipe(owner: (u32, u32), flags: OpenFlags) -> Result<(Arc<File>, Arc<File>)> {
    anon::check_room()?;
    let pipe = Pipe::new(owner);
    // Only what writes shows that it makes packets.
    let read = File::new(Box::new(PipeEnd::open(&pipe, true, false)), flags - OpenFlags::DIRECT, None);
    let write = File::new(Box::new(PipeEnd::open(&pipe, false, true)), flags | OpenFlags::WRONLY, None);
    Ok((read, write))
}

/// Opens a FIFO, waiting for the other side as `fifo(7)` says. Called without locks; `Errno::RESTART` by a signal.
pub fn fifo_open(slot: &FifoSlot, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
    anon::check_room()?;
    let pipe = slot.pipe();
    let (reads, writes) = (flags.readable(), flags.writable());
    let nonblock = flags.contains(OpenFlags::NONBLOCK);
    if writes && !reads && nonblock && pipe.readers.load(Ordering::Acquire) == 0 {
        return Err(Errno::ENXIO);
    }
    let (opens_before, others) =
        if reads { (&pipe.write_opens, &pipe.writers) } else { (&pipe.read_opens, &pipe.readers) };
    let before = opens_before.load(Ordering::Acquire);
    let mut end = PipeEnd::open(&pipe, reads, writes);
    pipe.open_queue.wake_all();
    if reads && writes {
        return Ok(Box::new(end));
    }
    if others.load(Ordering::Acquire) == 0 {
        if nonblock {
            end.write_opens_before = Some(before);
        } else {
            pipe.open_queue.wait(|| (opens_before.load(Ordering::Acquire) != before).then_some(()))?;
        }
    }
    Ok(Box::new(end))
}

impl FileOps for PipeEnd {
    /// Each end counts as half of the pipe.
    fn held_bytes(&self) -> u64 {
        self.pipe.used.load(Ordering::Relaxed) as u64 / 2
    }

    fn read(&self, _file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        self.pipe.read(buf)
    }

    fn write(&self, file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        self.pipe.write(buf, file.flags().contains(OpenFlags::DIRECT))
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        let pipe = &self.pipe;
        if let Some(table) = table {
            if self.reads {
                table.add(&pipe.read_queue);
            }
            if self.writes {
                table.add(&pipe.write_queue);
            }
        }
        let mut events = PollEvents::empty();
        if self.reads {
            // Writers first: data written before the last of them went is seen.
            let writers = pipe.writers.load(Ordering::Acquire);
            if pipe.used.load(Ordering::Acquire) != 0 {
                events |= PollEvents::READABLE;
            }
            let opens = pipe.write_opens.load(Ordering::Acquire);
            if writers == 0 && self.write_opens_before != Some(opens) {
                events |= PollEvents::HUP;
            }
        }
        if self.writes {
            if pipe.has_room() {
                events |= PollEvents::WRITABLE;
            }
            if pipe.readers.load(Ordering::Acquire) == 0 {
                events |= PollEvents::ERR;
            }
        }
        events
    }

    fn ioctl(&self, cx: &CallerCtx<'_>, _file: &File, request: u32, arg: u64) -> Result<u64> {
        if request != FIONREAD {
            return Err(Errno::ENOTTY);
        }
        let used = self.pipe.used.load(Ordering::Acquire);
        cx.user().write(UserAddr::new(arg), &i32::try_from(used).unwrap_or(i32::MAX))?;
        Ok(0)
    }

    fn signals(&self) -> Option<sigio::Kind> {
        Some(sigio::Kind::Pipe)
    }

    fn pipe_size(&self) -> Result<u64> {
        Ok(self.pipe.capacity() as u64)
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn lock_key(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.pipe) as usize)
    }

    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        self.pipe.attrs.change(change);
        Ok(())
    }

    fn set_pipe_size(&self, bytes: u64, privileged: bool) -> Result<u64> {
        self.pipe.resize(bytes, privileged)
    }

    fn stat(&self, file: &File) -> Result<Stat> {
        match &file.path {
            Some(path) => path.inode.stat(),
            None => Ok(self.pipe.attrs.stat(S_IFIFO, self.pipe.ino)),
        }
    }

    fn describe(&self) -> Vec<u8> {
        format!("pipe:[{}]", self.pipe.ino).into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(file: &Arc<File>, bytes: &[u8]) -> Result<usize> {
        file.ops.write(file, &mut IoBuf::constant(bytes), At::Position)
    }

    fn get(file: &Arc<File>, count: usize) -> Result<Vec<u8>> {
        let mut bytes = alloc::vec![0; count];
        let got = file.ops.read(file, &mut IoBuf::kernel(&mut bytes), At::Position)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    fn events(file: &Arc<File>) -> PollEvents {
        file.ops.poll(file, None) & (PollEvents::IN | PollEvents::OUT | PollEvents::HUP | PollEvents::ERR)
    }

    #[test]
    fn small_writes_are_whole_and_large_ones_partial() {
        let (read, write) = new_pipe((0, 0), OpenFlags::empty()).unwrap();
        assert_eq!(get(&read, 1), Err(Errno::EAGAIN));
        assert_eq!(events(&write), PollEvents::OUT);
        assert_eq!(put(&write, &[1; 100_000]), Ok(65536));
        assert_eq!(put(&write, b"x"), Err(Errno::EAGAIN));
        assert_eq!(get(&read, 100).map(|bytes| bytes.len()), Ok(100));
        assert_eq!(put(&write, &[1; 4096]), Err(Errno::EAGAIN));
        assert_eq!(events(&write), PollEvents::empty());
        assert_eq!(get(&read, 4096).map(|bytes| bytes.len()), Ok(4096));
        assert_eq!(put(&write, &[1; 4096]), Ok(4096));
        assert_eq!(put(&write, &[1; 4097]), Ok(100));
    }

    #[test]
    fn the_end_comes_after_the_data() {
        let (read, write) = new_pipe((0, 0), OpenFlags::empty()).unwrap();
        assert_eq!(put(&write, b"last"), Ok(4));
        drop(write);
        assert_eq!(events(&read), PollEvents::IN | PollEvents::HUP);
        assert_eq!(get(&read, 10).as_deref(), Ok(&b"last"[..]));
        assert_eq!(get(&read, 10).as_deref(), Ok(&b""[..]));
        assert_eq!(events(&read), PollEvents::HUP);
    }

    #[test]
    fn packets_keep_their_borders() {
        let (read, write) = new_pipe((0, 0), OpenFlags::DIRECT).unwrap();
        for packet in [&b"one"[..], b"three", b"x"] {
            assert_eq!(put(&write, packet), Ok(packet.len()));
        }
        assert_eq!(get(&read, 100).as_deref(), Ok(&b"one"[..]));
        assert_eq!(get(&read, 2).as_deref(), Ok(&b"th"[..]));
        assert_eq!(get(&read, 2).as_deref(), Ok(&b"x"[..]));
        for _ in 0..16 {
            assert_eq!(put(&write, b"y"), Ok(1));
        }
        assert_eq!(put(&write, b"y"), Err(Errno::EAGAIN));
        assert_eq!(events(&write), PollEvents::empty());
    }
}
