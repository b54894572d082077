//! System V message queues (`msgget(2)`).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::creds::{CAP_SYS_RESOURCE, Creds};
use crate::fs::caller::PidOf;
use crate::ipc::perm::{self, IPC_NOWAIT, Perm};
use crate::ipc::table::{self, Got, Table};
use crate::ipc::{IpcNamespace, OBJECT_BYTES, Who, now};
use machine::errno::{Errno, Result};
use machine::mm::account::Charge;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};

const MSG_NOERROR: u32 = 0o10_000;
const MSG_EXCEPT: u32 = 0o20_000;
const MSG_COPY: u32 = 0o40_000;
/// Kernel memory of a message beside its bytes.
const MESSAGE_BYTES: usize = 256;

/// A message.
pub struct Message {
    pub kind: i64,
    pub bytes: Arc<[u8]>,
    _charge: Charge,
}

impl Message {
    /// A message of some kind (above 0). `ENOMEM`.
    pub fn new(kind: i64, bytes: Vec<u8>) -> Result<Self> {
        let charge = Charge::lasting(bytes.len() + MESSAGE_BYTES).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { kind, bytes: bytes.into(), _charge: charge })
    }
}

/// Which message a receiver wants (`msgrcv(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Any,
    Kind(i64),
    Except(i64),
    /// The first one of the lowest kind up to this one.
    UpTo(i64),
    /// The one at this position.
    At(i64),
}

impl Wanted {
    fn new(kind: i64, flags: u32) -> Self {
        match kind {
            _ if flags & MSG_COPY != 0 => Self::At(kind),
            0 => Self::Any,
            kind if kind < 0 => Self::UpTo(kind.checked_neg().unwrap_or(i64::MAX)),
            kind if flags & MSG_EXCEPT != 0 => Self::Except(kind),
            kind => Self::Kind(kind),
        }
    }

    /// The number of the message among numbers and kinds, in their order.
    fn find(self, mut kinds: impl Iterator<Item = (u64, i64)>) -> Option<u64> {
        let found = match self {
            Self::Any => kinds.next()?,
            Self::Kind(wanted) => kinds.find(|(_, kind)| *kind == wanted)?,
            Self::Except(other) => kinds.find(|(_, kind)| *kind != other)?,
            // Of several of one kind the first is the least.
            Self::UpTo(most) => kinds.filter(|(_, kind)| *kind <= most).min_by_key(|(_, kind)| *kind)?,
            Self::At(wanted) => kinds.nth(usize::try_from(wanted).ok()?)?,
        };
        Some(found.0)
    }
}

struct State {
    perm: Perm,
    /// By number, in the order they came. A tree gives the room of those that go back.
    messages: BTreeMap<u64, Message>,
    next_number: u64,
    bytes: u64,
    /// Most bytes that it holds.
    most_bytes: u64,
    stime: i64,
    rtime: i64,
    ctime: i64,
    sender: PidOf,
    receiver: PidOf,
    is_removed: bool,
}

/// A queue.
pub struct MessageQueue {
    state: SpinLock<State>,
    senders: WaitQueue,
    receivers: WaitQueue,
    _charge: Charge,
}

/// All queues of a namespace.
pub type MessageQueues = Table<MessageQueue>;

/// The facts about a queue that `IPC_STAT` tells.
pub struct Facts {
    pub perm: Perm,
    pub stime: i64,
    pub rtime: i64,
    pub ctime: i64,
    pub bytes: u64,
    pub messages: u64,
    pub most_bytes: u64,
    pub sender: PidOf,
    pub receiver: PidOf,
}

/// Most bytes of a message's text, for a receiver.
pub struct Receive {
    pub size: usize,
    pub kind: i64,
    pub flags: u32,
}

impl State {
    fn check_alive(&self) -> Result<()> {
        if self.is_removed { Err(Errno::EIDRM) } else { Ok(()) }
    }

    /// Whether a message of so many bytes finds room: empty ones are bounded by their number.
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes as u64 <= self.most_bytes && (self.messages.len() as u64) < self.most_bytes
    }
}

impl MessageQueue {
    fn check(&self, creds: &Creds, wanted: u32) -> Result<()> {
        self.state.lock().perm.check(creds, wanted)
    }

    /// `IPC_STAT`, `MSG_STAT`; with `any` for those who may not read it, too.
    pub fn facts(&self, creds: &Creds, any: bool) -> Result<Facts> {
        let state = self.state.lock();
        state.check_alive()?;
        if !any {
            state.perm.check(creds, perm::READ)?;
        }
        Ok(Facts {
            perm: state.perm,
            stime: state.stime,
            rtime: state.rtime,
            ctime: state.ctime,
            bytes: state.bytes,
            messages: state.messages.len() as u64,
            most_bytes: state.most_bytes,
            sender: state.sender,
            receiver: state.receiver,
        })
    }

    /// `IPC_SET`. `default_bytes`: what anybody may give a queue (`kernel.msgmnb`).
    pub fn set(
        &self,
        creds: &Creds,
        (uid, gid, mode): (u32, u32, u32),
        most_bytes: u64,
        default_bytes: u32,
    ) -> Result<()> {
        let mut state = self.state.lock();
        state.check_alive()?;
        state.perm.check_owner(creds)?;
        if most_bytes > default_bytes.into() && !creds.has(CAP_SYS_RESOURCE) {
            return Err(Errno::EPERM);
        }
        state.perm.change(uid, gid, mode)?;
        state.most_bytes = most_bytes;
        state.ctime = now();
        drop(state);
        // Receivers look at their permission anew, senders at the room.
        self.receivers.wake_all();
        self.senders.wake_all();
        Ok(())
    }
}

impl IpcNamespace {
    /// `msgget(2)`.
    pub fn msg_get(&self, who: &Who, key: i32, flags: u32) -> Result<i32> {
        let limits = self.limits();
        let perm = Perm::new(key, flags, &who.creds);
        let got = self.message_queues.lock().get_or(key, flags, |queues| {
            queues.insert(key, limits.msgmni, |_| {
                let charge = Charge::lasting(OBJECT_BYTES)?;
                let state = State {
                    perm,
                    messages: BTreeMap::new(),
                    next_number: 0,
                    bytes: 0,
                    most_bytes: limits.msgmnb.into(),
                    stime: 0,
                    rtime: 0,
                    ctime: now(),
                    sender: PidOf::default(),
                    receiver: PidOf::default(),
                    is_removed: false,
                };
                Ok(Arc::new(MessageQueue {
                    state: SpinLock::new(Rank::Leaf, state),
                    senders: WaitQueue::new(),
                    receivers: WaitQueue::new(),
                    _charge: charge,
                }))
            })
        });
        match got? {
            Got::New(id) => Ok(id),
            Got::Old(id, queue) => queue.check(&who.creds, flags).map(|()| id),
        }
    }

    /// The queue with this id. `EINVAL`.
    pub fn message_queue(&self, id: i32) -> Result<Arc<MessageQueue>> {
        self.message_queues.lock().get(id)
    }

    /// Id and queue at an index. `EINVAL`.
    pub fn message_queue_at(&self, index: i32) -> Result<(i32, Arc<MessageQueue>)> {
        self.message_queues.lock().at(index)
    }

    /// Calls `f` for each queue and its id; see [`table::for_each`].
    pub fn for_each_message_queue(&self, f: impl FnMut(i32, &Arc<MessageQueue>) -> Result<()>) -> Result<()> {
        table::for_each(&self.message_queues, f)
    }

    /// How many queues there are, and the largest index.
    pub fn msg_usage(&self) -> (usize, u32) {
        let queues = self.message_queues.lock();
        (queues.count(), queues.last_index())
    }

    /// Messages, and their bytes, in all queues.
    pub fn messages(&self) -> (u64, u64) {
        (self.messages.load(Ordering::Relaxed), self.message_bytes.load(Ordering::Relaxed))
    }

    fn count_sent(&self, bytes: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.message_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn count_gone(&self, messages: usize, bytes: u64) {
        self.messages.fetch_sub(messages as u64, Ordering::Relaxed);
        self.message_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// `IPC_RMID`: who waits is woken with `EIDRM`.
    pub fn msg_remove(&self, creds: &Creds, id: i32) -> Result<()> {
        let queue = self.message_queue(id)?;
        queue.state.lock().perm.check_owner(creds)?;
        if self.message_queues.lock().remove(id).is_none() {
            return Err(Errno::EIDRM);
        }
        let messages = {
            let mut state = queue.state.lock();
            state.is_removed = true;
            self.count_gone(state.messages.len(), state.bytes);
            core::mem::take(&mut state.messages)
        };
        drop(messages);
        queue.senders.wake_all();
        queue.receivers.wake_all();
        Ok(())
    }

    /// `msgsnd(2)`, waiting for room unless the flags say otherwise. `Errno::RESTART` when a signal comes.
    pub fn msg_send(&self, who: &Who, id: i32, message: Message, flags: u32) -> Result<()> {
        let queue = self.message_queue(id)?;
        let len = message.bytes.len();
        let mut message = Some(message);
        queue.senders.wait(|| {
            let mut state = queue.state.lock();
            let may_send = state.perm.check(&who.creds, perm::WRITE).and_then(|()| state.check_alive());
            if may_send.is_err() {
                return Some(may_send);
            }
            if !state.has_room(len) {
                return (flags & IPC_NOWAIT != 0).then_some(Err(Errno::EAGAIN));
            }
            let number = state.next_number;
            state.next_number += 1;
            state.messages.extend(message.take().map(|message| (number, message)));
            state.bytes += len as u64;
            (state.sender, state.stime) = (who.pid, now());
            self.count_sent(len);
            Some(Ok(()))
        })??;
        queue.receivers.wake_all();
        Ok(())
    }

    /// `msgrcv(2)`, waiting for a message unless the flags say otherwise: its kind, and its bytes as far as they are wanted.
    /// `Errno::RESTART` when a signal comes.
    pub fn msg_receive(&self, who: &Who, id: i32, how: &Receive) -> Result<(i64, Arc<[u8]>)> {
        let Receive { size, kind, flags } = *how;
        if flags & MSG_COPY != 0 && (flags & MSG_EXCEPT != 0 || flags & IPC_NOWAIT == 0) {
            return Err(Errno::EINVAL);
        }
        let queue = self.message_queue(id)?;
        let wanted = Wanted::new(kind, flags);
        let got = queue.receivers.wait(|| {
            let mut state = queue.state.lock();
            let may_receive = state.perm.check(&who.creds, perm::READ).and_then(|()| state.check_alive());
            if let Err(error) = may_receive {
                return Some(Err(error));
            }
            let Some(at) =
                wanted.find(state.messages.iter().map(|(number, message)| (*number, message.kind)))
            else {
                return (flags & IPC_NOWAIT != 0).then_some(Err(Errno::ENOMSG));
            };
            let len = state.messages.get(&at).map_or(0, |message| message.bytes.len());
            if len > size && flags & MSG_NOERROR == 0 {
                return Some(Err(Errno::E2BIG));
            }
            if matches!(wanted, Wanted::At(_)) {
                return state.messages.get(&at).map(|message| Ok((message.kind, message.bytes.clone())));
            }
            let message = state.messages.remove(&at)?;
            state.bytes -= len as u64;
            (state.receiver, state.rtime) = (who.pid, now());
            self.count_gone(1, len as u64);
            Some(Ok((message.kind, message.bytes.clone())))
        })??;
        queue.senders.wake_all();
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_choose_by_kind() {
        let kinds = [5, 3, 9, 3, 1];
        let find = |kind, flags| Wanted::new(kind, flags).find((0..).zip(kinds));
        assert_eq!(find(0, 0), Some(0));
        assert_eq!(find(3, 0), Some(1));
        assert_eq!(find(4, 0), None);
        assert_eq!(find(5, MSG_EXCEPT), Some(1));
        assert_eq!(find(-4, 0), Some(4));
        assert_eq!(find(i64::MIN, 0), Some(4));
        assert_eq!(Wanted::new(-4, 0).find((0..).zip([5, 3, 9, 3])), Some(1));
        assert_eq!(find(2, MSG_COPY), Some(2));
        assert_eq!((find(5, MSG_COPY), find(-1, MSG_COPY)), (None, None));
    }
}
