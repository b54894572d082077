//! The receive queue of a Unix socket: bytes, with a record for each message.

mod queue;
mod urgent;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::fs::file::File;
use crate::net::ancillary::SenderCreds;
use crate::net::families::MsgFlags;
use crate::net::filter::Filter;
use crate::net::inbox::queue::{Queue, Record};
use crate::net::inbox::urgent::Mark;
use crate::net::passing::{self, Rights};
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, account};
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;
use machine::sync::{Mutex, Rank, SpinLock};

/// Bytes that a record counts against the sender's buffer size besides its content.
const RECORD_COST: usize = 512;
/// Messages whose files are looked at with the queue locked. Each has up to [`crate::net::ancillary::FILES_MAX`].
const MESSAGES_AT_ONCE: usize = 8;
/// Messages without files that are dropped at once.
const DROPPED_AT_ONCE: usize = 256;

/// Files, control messages and addresses that travel with a message.
#[derive(Default)]
pub struct Envelope {
    /// The sender's name; empty when it has none.
    pub from: Arc<[u8]>,
    /// Whose it is; `None` where neither side had asked for that.
    pub creds: Option<SenderCreds>,
    pub rights: Rights,
}

/// The result of a receive.
#[derive(Default)]
pub struct Received {
    /// Bytes put into the buffer.
    pub bytes: usize,
    /// Bytes the message had.
    pub full: usize,
    pub from: Option<Arc<[u8]>>,
    pub creds: Option<SenderCreds>,
    pub files: Vec<Arc<File>>,
    /// Control messages of the network, as `struct cmsghdr`s.
    pub control: Vec<u8>,
    /// Flags that the network sets on the message.
    pub flags: MsgFlags,
    /// It ends where the urgent byte is: the call waits for no more.
    pub at_mark: bool,
}

/// How to receive.
#[derive(Clone, Copy, Default)]
pub struct ReceiveHow {
    /// Leave the message.
    pub peek: bool,
    /// With `peek`: where to begin (`SO_PEEK_OFF`).
    pub skip: Option<usize>,
    /// Only bytes of this sender; of another's none.
    pub only_from: Option<Option<SenderCreds>>,
    /// The urgent byte is one of the others (`SO_OOBINLINE`).
    pub urgent_inline: bool,
    /// Don't join bytes of different senders.
    pub split_senders: bool,
    /// The caller waits when it must, so that an attempt without a chance need not be made.
    pub wait: bool,
    /// `MSG_*` for the network.
    pub flags: MsgFlags,
    /// The sender's address is wanted.
    pub name: bool,
    /// Bytes of control data there is room for.
    pub control_room: usize,
}

/// A receiving socket's queue.
pub struct Inbox {
    queue: Mutex<Queue>,
    /// Mirrors: cost of what is queued, bytes, records.
    cost: AtomicUsize,
    bytes: AtomicUsize,
    records: AtomicUsize,
    /// There is an urgent byte.
    urgent: AtomicBool,
    /// The smallest buffer size of a sender that found no room; `usize::MAX`: none did.
    starved: AtomicUsize,
    /// How many messages may wait before senders are held back that it does not send to (`max_dgram_qlen`).
    messages_max: usize,
    /// One was.
    holds_back: AtomicBool,
    /// Nothing more comes: the sender is done, or the receiver.
    ended: AtomicBool,
    /// The receiver is gone.
    closed: AtomicBool,
    /// The peer went without reading all that was sent to it.
    reset: AtomicBool,
    /// The receiver wants to know who sent a message (`SO_PASSCRED`).
    wants_creds: AtomicBool,
    /// The receiver's filter, which leaves out messages, or their ends (`SO_ATTACH_FILTER`).
    filter: SpinLock<Option<Arc<Filter>>>,
    /// The receiver's queue.
    wait: Arc<WaitQueue>,
    /// The queue of senders that wait for room; a connection's is the sender's own.
    room: Arc<WaitQueue>,
}

impl Inbox {
    /// An empty inbox: `wait` hears of messages, `room` of room.
    pub fn new(wait: Arc<WaitQueue>, room: Arc<WaitQueue>) -> Arc<Self> {
        Self::bounded(wait, room, usize::MAX)
    }

    /// An empty inbox for datagrams of many senders, which are held back while more than `messages_max` messages wait.
    pub fn bounded(wait: Arc<WaitQueue>, room: Arc<WaitQueue>, messages_max: usize) -> Arc<Self> {
        Arc::new(Self {
            messages_max,
            holds_back: AtomicBool::new(false),
            queue: Mutex::new(Rank::Inbox, Queue::default()),
            cost: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            records: AtomicUsize::new(0),
            urgent: AtomicBool::new(false),
            starved: AtomicUsize::new(usize::MAX),
            ended: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            reset: AtomicBool::new(false),
            wants_creds: AtomicBool::new(false),
            filter: SpinLock::new(Rank::Leaf, None),
            wait,
            room,
        })
    }

    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Nothing more comes.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wait.wake_all();
        self.room.wake_all();
    }

    /// The peer is gone and hadn't read everything.
    pub fn set_reset(&self) {
        self.reset.store(true, Ordering::Release);
    }

    /// Takes the pending error.
    pub fn take_reset(&self) -> bool {
        self.reset.swap(false, Ordering::AcqRel)
    }

    pub fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Acquire)
    }

    /// Says whether the receiver wants to know who sent a message.
    pub fn set_wants_creds(&self, wants: bool) {
        self.wants_creds.store(wants, Ordering::Relaxed);
    }

    pub fn wants_creds(&self) -> bool {
        self.wants_creds.load(Ordering::Relaxed)
    }

    /// Replaces the receiver's filter of messages.
    pub fn set_filter(&self, filter: Option<Arc<Filter>>) {
        let old = core::mem::replace(&mut *self.filter.lock(), filter);
        drop(old);
    }

    /// Whether something can be received.
    pub fn has_message(&self) -> bool {
        self.records.load(Ordering::Acquire) != 0
    }

    /// Bytes queued.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// Bytes of memory that it takes.
    pub fn held_bytes(&self) -> usize {
        self.cost.load(Ordering::Relaxed)
    }

    /// Files in the messages.
    pub fn waiting_files(&self) -> usize {
        self.queue.lock().records.iter().map(|record| record.envelope.rights.len()).sum()
    }

    /// The number that the next message will have. Each has one that no other has had.
    pub fn next_message(&self) -> u64 {
        let queue = self.queue.lock();
        queue.gone + queue.records.len() as u64
    }

    /// Shows the files of some messages from the one with this number on; returns the number to go on from.
    pub fn each_message(&self, from: u64, each: &mut dyn FnMut(&mut Rights)) -> u64 {
        let mut queue = self.queue.lock();
        let from = from.max(queue.gone);
        let start = usize::try_from(from - queue.gone).unwrap_or(usize::MAX);
        let records = queue.records.iter_mut().skip(start).take(MESSAGES_AT_ONCE);
        let with_files =
            records.map(|record| &mut record.envelope.rights).filter(|rights| !rights.is_empty());
        with_files.for_each(each);
        from + MESSAGES_AT_ONCE as u64
    }

    /// Bytes of the first message.
    pub fn first_len(&self) -> usize {
        self.queue.lock().records.front().map_or(0, |record| record.len)
    }

    /// Whether a sender with this buffer size should try: a quarter of it is in use at most.
    pub fn has_room(&self, limit: usize) -> bool {
        let roomy = || self.cost.load(Ordering::SeqCst).saturating_mul(4) <= limit;
        if roomy() {
            return true;
        }
        self.starved.fetch_min(limit, Ordering::SeqCst);
        // Room that was made before the line above is seen here; later room is announced.
        roomy()
    }

    /// Whether more messages wait than senders may leave that it does not send to. Who is told so hears of the change by
    /// [`Self::room_queue`].
    pub fn is_full(&self) -> bool {
        let is_full = || self.records.load(Ordering::SeqCst) > self.messages_max;
        if !is_full() {
            return false;
        }
        self.holds_back.store(true, Ordering::SeqCst);
        // A message that was taken before the line above is seen here; later ones are announced.
        is_full()
    }

    /// The queue of waiting senders.
    pub fn room_queue(&self) -> &Arc<WaitQueue> {
        &self.room
    }

    fn mirror(&self, queue: &Queue) {
        self.bytes.store(queue.data.len() - queue.taken, Ordering::Release);
        self.records.store(queue.records.len() - queue.taken, Ordering::Release);
        self.urgent.store(queue.urgent().is_some(), Ordering::Release);
        self.cost.store(queue.data.len() + queue.records.len() * RECORD_COST, Ordering::SeqCst);
    }

    /// One attempt to append bytes to a stream: as many as fit, but for `spare` at the end. The envelope goes with the first that
    /// do.
    pub fn push_stream(
        &self,
        buf: &mut IoBuf<'_>,
        envelope: &mut Option<Envelope>,
        limit: usize,
        spare: usize,
    ) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let mut queue = self.queue.lock();
        let free = self.check_room(limit)?;
        queue.reserve()?;
        let moved = queue.data.push(buf, (buf.remaining() - spare).min(free))?;
        let envelope = envelope.take().unwrap_or_default();
        match queue.records.back_mut() {
            Some(last) if envelope.rights.is_empty() && last.joins(&envelope) => last.len += moved,
            _ => queue.records.push_back(Record { len: moved, envelope, mark: Mark::None }),
        }
        self.mirror(&queue);
        drop(queue);
        self.wait.wake(PollEvents::READABLE);
        Ok(moved)
    }

    /// One attempt to append a message, whole or not at all. `EAGAIN` also while it is full, if `may_be_full` is false.
    pub fn push_message(
        &self,
        buf: &mut IoBuf<'_>,
        envelope: &mut Option<Envelope>,
        limit: usize,
        may_be_full: bool,
    ) -> Result<usize> {
        let len = buf.remaining();
        if len > limit.saturating_sub(32) {
            return Err(Errno::EMSGSIZE);
        }
        if !may_be_full && !self.is_ended() && self.is_full() {
            return Err(Errno::EAGAIN);
        }
        let filter = self.filter.lock().clone();
        if let Some(filter) = filter {
            return self.push_filtered(&filter, buf, envelope, limit);
        }
        self.push_whole(buf, envelope, limit)
    }

    /// Appends what a filter leaves of a message; nobody is told when that is nothing.
    fn push_filtered(
        &self,
        filter: &Filter,
        buf: &mut IoBuf<'_>,
        envelope: &mut Option<Envelope>,
        limit: usize,
    ) -> Result<usize> {
        self.check_room(limit)?;
        let start = buf.mark();
        let mut bytes = account::filled(0u8, buf.remaining())?;
        buf.drain(&mut bytes)?;
        let kept = filter.keeps(&bytes);
        if kept == 0 {
            let dropped = envelope.take();
            drop(dropped);
            return Ok(bytes.len());
        }
        let kept = kept.min(bytes.len());
        match self.push_whole(&mut IoBuf::constant(&bytes[..kept]), envelope, limit) {
            Ok(_) => Ok(bytes.len()),
            Err(error) => {
                buf.rewind(start);
                Err(error)
            }
        }
    }

    fn push_whole(
        &self,
        buf: &mut IoBuf<'_>,
        envelope: &mut Option<Envelope>,
        limit: usize,
    ) -> Result<usize> {
        let len = buf.remaining();
        let mut queue = self.queue.lock();
        self.check_room(limit)?;
        queue.reserve()?;
        let (start, before) = (buf.mark(), queue.data.len());
        match queue.data.push(buf, len) {
            Ok(moved) if moved == len => {}
            result => {
                queue.data.cut(before);
                buf.rewind(start);
                return Err(result.err().unwrap_or(Errno::EFAULT));
            }
        }
        let envelope = envelope.take().unwrap_or_default();
        queue.records.push_back(Record { len, envelope, mark: Mark::None });
        self.mirror(&queue);
        drop(queue);
        self.wait.wake(PollEvents::READABLE);
        Ok(len)
    }

    /// Bytes of room that are left, at least 1; `EAGAIN`, or `EPIPE` once there is no reader.
    fn check_room(&self, limit: usize) -> Result<usize> {
        if self.is_ended() {
            return Err(Errno::EPIPE);
        }
        let free = limit.saturating_sub(self.cost.load(Ordering::Acquire));
        if free == 0 {
            self.starved.fetch_min(limit, Ordering::SeqCst);
            return Err(Errno::EAGAIN);
        }
        Ok(free)
    }

    /// A reader's result when the queue is empty.
    fn empty<T: Default>(&self) -> Result<T> {
        if self.take_reset() {
            return Err(Errno::ECONNRESET);
        }
        if self.is_ended() { Ok(T::default()) } else { Err(Errno::EAGAIN) }
    }

    /// One attempt to take bytes of a stream. Nothing at the end.
    pub fn receive_stream(&self, buf: &mut IoBuf<'_>, how: ReceiveHow) -> Result<Received> {
        // Goes once the lock has gone.
        let mut passed = Vec::new();
        let mut queue = self.queue.lock();
        if !how.peek {
            passed = queue.pass_marks(how.urgent_inline);
            self.mirror(&queue);
        }
        let Some((mut at, skip, mut start)) = queue.first_behind(how.skip, true) else {
            drop(queue);
            self.after_receive();
            return self.empty();
        };
        while how.peek && skip == 0 && queue.is_passed(at, how.urgent_inline) {
            at += 1;
            start += 1;
        }
        let Some(first) = queue.records.get(at) else {
            drop(queue);
            return self.empty();
        };
        let creds = first.envelope.creds;
        if how.only_from.is_some_and(|only| only != creds) {
            return Ok(Received::default());
        }
        let mut out = Received { from: Some(first.envelope.from.clone()), creds, ..Received::default() };
        let taken = queue.read_bytes((at, skip, start), buf, &how, &mut out)?;
        out.full = out.bytes;
        self.mirror(&queue);
        drop(queue);
        drop(passed);
        if !how.peek {
            out.files = taken.arrive();
            self.after_receive();
        }
        Ok(out)
    }

    /// One attempt to take a message; bytes that the buffer has no room for are lost.
    pub fn receive_message(&self, buf: &mut IoBuf<'_>, how: ReceiveHow) -> Result<Received> {
        // An error of the connection comes before what was sent by it.
        if self.take_reset() {
            return Err(Errno::ECONNRESET);
        }
        let mut queue = self.queue.lock();
        let Some((at, skip, start)) = queue.first_behind(how.skip, false) else { return self.empty() };
        let Some(first) = queue.records.get(at) else { return self.empty() };
        let full = first.len - skip;
        let bytes = queue.data.peek(start + skip, buf, full)?;
        let mut out = Received { bytes, full, ..Received::default() };
        if how.peek {
            if let Some(first) = queue.records.get(at) {
                out.creds = first.envelope.creds;
                out.from = Some(first.envelope.from.clone());
                out.files = first.envelope.rights.copy();
            }
            return Ok(out);
        }
        queue.data.discard(full);
        if let Some(mut first) = queue.pop() {
            out.creds = first.envelope.creds;
            out.from = Some(first.envelope.from);
            out.files = first.envelope.rights.leave().arrive();
        }
        self.mirror(&queue);
        drop(queue);
        self.after_receive();
        Ok(out)
    }

    /// Wakes the senders that found no room, once there is enough for the one that needs least.
    fn after_receive(&self) {
        let is_held_back = self.holds_back.load(Ordering::SeqCst);
        if is_held_back && self.records.load(Ordering::SeqCst) <= self.messages_max {
            self.holds_back.store(false, Ordering::SeqCst);
            self.room.wake(PollEvents::WRITABLE);
        }
        let limit = self.starved.load(Ordering::SeqCst);
        if limit != usize::MAX && self.cost.load(Ordering::SeqCst).saturating_mul(4) <= limit {
            self.starved.store(usize::MAX, Ordering::SeqCst);
            self.room.wake(PollEvents::WRITABLE);
        }
    }

    /// The receiver is gone: forgets everything; true if something was left unread.
    pub fn close(&self) -> bool {
        self.closed.store(true, Ordering::Release);
        self.end();
        let mut queue = {
            let mut queue = self.queue.lock();
            self.mirror(&Queue::default());
            core::mem::take(&mut *queue)
        };
        let is_unread = queue.records.len() > queue.taken;
        while !queue.records.is_empty() {
            let some = queue.records.len().min(DROPPED_AT_ONCE);
            queue.records.drain(..some).for_each(drop);
            if !queue.records.is_empty() {
                passing::let_others_go_on();
            }
        }
        is_unread
    }
}
