//! POSIX message queues (`mq_overview(7)`): queues with names, which are files of the file system `mqueue`.

pub mod dir;
pub mod file;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::creds::{CAP_SYS_RESOURCE, Creds};
use crate::fs::access::{self, Want};
use crate::fs::anon;
use crate::fs::caller::PidOf;
use crate::fs::inode::{NewNode, S_IFDIR, S_IFREG, Stat};
use crate::ipc::limits::{Limits, MQ_MSG_HARD_MAX, MQ_MSGSIZE_HARD_MAX};
use crate::ipc::{IpcNamespace, OBJECT_BYTES, Who};
use crate::pseudo::ROOT_INO;
use machine::errno::{Errno, Result};
use machine::mm::account::Charge;
use machine::sched::wait::{PollEvents, WaitQueue};
use machine::sync::{Rank, SpinLock};
use machine::time;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Priorities are below.
pub const MQ_PRIO_MAX: u32 = 32_768;
/// Longest name, without the slash.
pub const NAME_MAX: usize = 255;
/// Kernel memory of a message beside its bytes, as Linux charges it to a user.
const MESSAGE_BYTES: u64 = 48;
const NODE_BYTES: u64 = 48;

/// `struct mq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
pub struct Attr {
    pub flags: i64,
    pub maxmsg: i64,
    pub msgsize: i64,
    pub curmsgs: i64,
    pub reserved: [i64; 4],
}

/// The most that a queue holds. A message's size is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub messages: u32,
    pub message_bytes: u32,
}

impl Capacity {
    /// Returns the capacity that was asked for, or the default. `EINVAL`: it is not positive, or more than the caller
    /// may have.
    fn new(asked: Option<&Attr>, limits: &Limits, creds: &Creds) -> Result<Self> {
        let Some(attr) = asked else {
            return Ok(Self {
                messages: limits.mq_msg_default.min(limits.mq_msg_max),
                message_bytes: limits.mq_msgsize_default.min(limits.mq_msgsize_max),
            });
        };
        let is_privileged = creds.has(CAP_SYS_RESOURCE);
        let most = |limit, hard| if is_privileged { hard } else { limit };
        let within = |value: i64, most: u32| {
            u32::try_from(value).ok().filter(|value| (1..=most).contains(value)).ok_or(Errno::EINVAL)
        };
        Ok(Self {
            messages: within(attr.maxmsg, most(limits.mq_msg_max, MQ_MSG_HARD_MAX))?,
            message_bytes: within(attr.msgsize, most(limits.mq_msgsize_max, MQ_MSGSIZE_HARD_MAX))?,
        })
    }

    /// Bytes that count for `RLIMIT_MSGQUEUE` (`getrlimit(2)`).
    fn charge(self) -> u64 {
        let messages = u64::from(self.messages);
        let tree = messages.min(MQ_PRIO_MAX.into()) * NODE_BYTES;
        messages * u64::from(self.message_bytes) + messages * MESSAGE_BYTES + tree
    }
}

struct Stored {
    bytes: Vec<u8>,
    _charge: Charge,
}

/// Tells a process of the first message in an empty queue, or that it will not be told (`false`).
pub type Notifier = Box<dyn FnOnce(bool) + Send>;

/// Who is to be told of a message.
pub struct Registration {
    pub who: PidOf,
    /// `SIGEV_*` and the signal, as the queue's file shows them.
    pub kind: u32,
    pub signal: u32,
    pub tell: Notifier,
}

struct State {
    mode: u32,
    uid: u32,
    gid: u32,
    /// By priority.
    messages: BTreeMap<u32, VecDeque<Stored>>,
    count: usize,
    bytes: u64,
    receivers: usize,
    registration: Option<Registration>,
    atime_ns: i64,
    mtime_ns: i64,
    ctime_ns: i64,
}

impl State {
    fn pop(&mut self) -> Option<(u32, Stored)> {
        let mut highest = self.messages.last_entry()?;
        let priority = *highest.key();
        let stored = highest.get_mut().pop_front()?;
        if highest.get().is_empty() {
            highest.remove();
        }
        self.count -= 1;
        self.bytes -= stored.bytes.len() as u64;
        self.atime_ns = time::realtime_ns().cast_signed();
        Some((priority, stored))
    }
}

/// A queue. It lives as long as it has a name or is open.
pub struct Queue {
    ino: u64,
    capacity: Capacity,
    maker: u32,
    namespace_bytes: Arc<UserBytes>,
    state: SpinLock<State>,
    /// Woken when a message comes.
    filled: Arc<WaitQueue>,
    /// Woken when one goes.
    emptied: Arc<WaitQueue>,
    _charge: Charge,
}

/// Bytes that each user's queues count for (`RLIMIT_MSGQUEUE`).
struct UserBytes(SpinLock<BTreeMap<u32, u64>>);

/// The names of a namespace's queues.
pub struct Queues {
    names: BTreeMap<Box<[u8]>, Arc<Queue>>,
    users: Option<Arc<UserBytes>>,
    root: NewNode,
}

impl Queues {
    /// No queues.
    pub const fn new() -> Self {
        Self { names: BTreeMap::new(), users: None, root: NewNode { mode: 0o1777, uid: 0, gid: 0 } }
    }

    /// Whether names may be made and removed in the directory. `EACCES`.
    fn check_change(&self, creds: &Creds) -> Result<()> {
        access::permitted(creds, &self.root_stat(), Want::WRITE | Want::EXEC)
    }

    fn root_stat(&self) -> Stat {
        let NewNode { mode, uid, gid } = self.root;
        Stat { nlink: 2, ..anon::stat(S_IFDIR | mode, ROOT_INO, (uid, gid)) }
    }
}

impl Default for Queues {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut users = self.namespace_bytes.0.lock();
        if let Some(bytes) = users.get_mut(&self.maker) {
            *bytes = bytes.saturating_sub(self.capacity.charge());
            if *bytes == 0 {
                users.remove(&self.maker);
            }
        }
    }
}

/// A queue to be made.
pub struct NewQueue<'a> {
    pub mode: u32,
    pub attr: Option<&'a Attr>,
    /// The maker's `RLIMIT_MSGQUEUE`.
    pub most_bytes: u64,
}

impl Queue {
    fn stat(&self) -> Stat {
        let state = self.state.lock();
        Stat {
            size: FILE_BYTES,
            atime_ns: state.atime_ns,
            mtime_ns: state.mtime_ns,
            ctime_ns: state.ctime_ns,
            ..anon::stat(S_IFREG | state.mode, self.ino, (state.uid, state.gid))
        }
    }

    /// Whether the caller may open it so. `EACCES`.
    pub fn check(&self, who: &Who, want: Want) -> Result<()> {
        access::permitted(&who.creds, &self.stat(), want)
    }

    /// Returns the most that the queue holds.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// How many messages it holds.
    pub fn count(&self) -> usize {
        self.state.lock().count
    }

    /// Puts a message in; returns who is to be told. `EAGAIN`: it is full.
    fn push(&self, priority: u32, bytes: &mut Option<Vec<u8>>) -> Result<Option<Registration>> {
        let len = bytes.as_ref().map_or(0, Vec::len);
        let registration = {
            let mut state = self.state.lock();
            if state.count >= self.capacity.messages as usize {
                return Err(Errno::EAGAIN);
            }
            let charge = Charge::lasting(len + OBJECT_BYTES / 4).map_err(|_| Errno::ENOMEM)?;
            let stored = bytes.take().map(|bytes| Stored { bytes, _charge: charge });
            state.messages.entry(priority).or_default().extend(stored);
            state.count += 1;
            state.bytes += len as u64;
            state.mtime_ns = time::realtime_ns().cast_signed();
            let is_first = state.count == 1 && state.receivers == 0;
            if is_first { state.registration.take() } else { None }
        };
        self.filled.wake(PollEvents::READABLE);
        Ok(registration)
    }

    /// Takes the oldest message of the highest priority. `EAGAIN`: there is none.
    fn pop(&self) -> Result<(u32, Vec<u8>)> {
        let popped = self.state.lock().pop();
        self.freed(popped)
    }

    /// Tells that a message has gone, if one has.
    fn freed(&self, popped: Option<(u32, Stored)>) -> Result<(u32, Vec<u8>)> {
        let (priority, stored) = popped.ok_or(Errno::EAGAIN)?;
        self.emptied.wake(PollEvents::WRITABLE);
        Ok((priority, stored.bytes))
    }

    /// `mq_timedsend(2)`. `ETIMEDOUT` at the deadline; `Errno::RESTART` when a signal comes.
    pub fn send(&self, priority: u32, bytes: Vec<u8>, wait: &Wait) -> Result<()> {
        let mut bytes = Some(bytes);
        if let Some(registration) = wait.until(&self.emptied, || self.push(priority, &mut bytes))? {
            (registration.tell)(true);
        }
        Ok(())
    }

    /// `mq_timedreceive(2)`: priority and bytes.
    pub fn receive(&self, wait: &Wait) -> Result<(u32, Vec<u8>)> {
        if let Ok(got) = self.pop() {
            return Ok(got);
        }
        // Who waits takes the message, and nobody is told.
        self.state.lock().receivers += 1;
        let got = wait.until(&self.filled, || self.pop());
        let last = {
            let mut state = self.state.lock();
            state.receivers -= 1;
            // What came after the last look came for this receiver, so nobody was told of it.
            if got.is_err() { state.pop() } else { None }
        };
        got.or_else(|error| self.freed(last).map_err(|_| error))
    }

    /// `mq_notify(2)`: registers, or withdraws what the caller has registered. `EBUSY`: somebody has.
    pub fn notify(&self, who: PidOf, registration: Option<Registration>) -> Result<()> {
        let former = {
            let mut state = self.state.lock();
            let is_own = state.registration.as_ref().is_some_and(|now| now.who == who);
            match (&state.registration, &registration) {
                (Some(_), Some(_)) => return Err(Errno::EBUSY),
                (Some(_), None) if !is_own => return Ok(()),
                _ => {}
            }
            state.atime_ns = time::realtime_ns().cast_signed();
            core::mem::replace(&mut state.registration, registration)
        };
        if let Some(former) = former {
            (former.tell)(false);
        }
        Ok(())
    }

    /// A process has closed a descriptor: what it has registered is withdrawn.
    fn closed_by(&self, who: PidOf) {
        let former = {
            let mut state = self.state.lock();
            let is_own = state.registration.as_ref().is_some_and(|now| now.who == who);
            if is_own { state.registration.take() } else { None }
        };
        if let Some(former) = former {
            (former.tell)(false);
        }
    }
}

/// How long a call waits.
pub struct Wait {
    pub is_nonblocking: bool,
    /// Monotonic time; `None`: for ever.
    pub deadline_ns: Option<u64>,
}

impl Wait {
    fn until<R>(&self, queue: &WaitQueue, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        let is_nonblocking = self.is_nonblocking;
        let result = queue.wait_until(self.deadline_ns, || match attempt() {
            Err(Errno::EAGAIN) if !is_nonblocking => None,
            result => Some(result),
        })?;
        result.unwrap_or(Err(Errno::ETIMEDOUT))
    }
}

/// Size that a queue's file shows.
const FILE_BYTES: u64 = 80;

impl IpcNamespace {
    /// The queue of this name. `ENOENT`. Anybody may look for it, as on Linux.
    pub fn mq_find(&self, name: &[u8]) -> Result<Arc<Queue>> {
        self.queues.lock().names.get(name).cloned().ok_or(Errno::ENOENT)
    }

    /// Takes a queue's name away again, whose maker could not open it.
    pub fn mq_give_up(&self, name: &[u8], queue: &Arc<Queue>) {
        let gone = {
            let mut queues = self.queues.lock();
            let is_it = queues.names.get(name).is_some_and(|found| Arc::ptr_eq(found, queue));
            if is_it { queues.names.remove(name) } else { None }
        };
        drop(gone);
    }

    /// Makes a queue. `EEXIST`: there is one of this name. `ENOSPC`: there are as many as may be. `EMFILE`: the user's queues
    /// would be too large.
    pub fn mq_make(&self, who: &Who, name: &[u8], new: &NewQueue<'_>) -> Result<Arc<Queue>> {
        let limits = self.limits();
        let creds = &who.creds;
        let mut queues = self.queues.lock();
        if queues.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        queues.check_change(creds)?;
        if queues.names.len() >= limits.queues_max as usize && !creds.has(CAP_SYS_RESOURCE) {
            return Err(Errno::ENOSPC);
        }
        let capacity = Capacity::new(new.attr, &limits, creds)?;
        let charge = Charge::lasting(OBJECT_BYTES).map_err(|_| Errno::ENOMEM)?;
        let users = queues
            .users
            .get_or_insert_with(|| Arc::new(UserBytes(SpinLock::new(Rank::Leaf, BTreeMap::new()))));
        let users = users.clone();
        {
            let mut bytes = users.0.lock();
            let now = bytes.get(&creds.uid).copied().unwrap_or(0);
            let sum = now.saturating_add(capacity.charge());
            if sum > new.most_bytes {
                return Err(Errno::EMFILE);
            }
            bytes.insert(creds.uid, sum);
        }
        let time_ns = time::realtime_ns().cast_signed();
        let state = State {
            mode: new.mode & 0o777,
            uid: creds.fsuid,
            gid: creds.fsgid,
            messages: BTreeMap::new(),
            count: 0,
            bytes: 0,
            receivers: 0,
            registration: None,
            atime_ns: time_ns,
            mtime_ns: time_ns,
            ctime_ns: time_ns,
        };
        let queue = Arc::new(Queue {
            ino: anon::next_ino(),
            capacity,
            maker: creds.uid,
            namespace_bytes: users,
            state: SpinLock::new(Rank::Leaf, state),
            filled: Arc::new(WaitQueue::new()),
            emptied: Arc::new(WaitQueue::new()),
            _charge: charge,
        });
        queues.names.insert(name.into(), queue.clone());
        Ok(queue)
    }

    /// `mq_unlink(2)`: takes the name away. `EACCES`: the directory is not the caller's to change. `EPERM`: the queue is
    /// another's, and the directory sticky.
    pub fn mq_unlink(&self, who: &Who, name: &[u8]) -> Result<()> {
        let gone = {
            let mut queues = self.queues.lock();
            let queue = queues.names.get(name).ok_or(Errno::ENOENT)?;
            queues.check_change(&who.creds)?;
            let is_owner = access::is_owner(&who.creds, &queue.stat()) || queues.root.uid == who.creds.fsuid;
            if !is_owner && queues.root.mode & 0o1000 != 0 {
                return Err(Errno::EPERM);
            }
            queues.names.remove(name)
        };
        drop(gone);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn user(uid: u32) -> Who {
        Who { pid: PidOf::default(), creds: Arc::new(Creds::new(uid, uid, vec![])) }
    }

    #[test]
    fn a_queue_that_is_too_large_leaves_no_trace_of_its_user() {
        let ipc = IpcNamespace::new();
        let new = |most_bytes| NewQueue { mode: 0o600, attr: None, most_bytes };
        for uid in 1..50 {
            assert_eq!(ipc.mq_make(&user(uid), b"q", &new(0)).map(drop), Err(Errno::EMFILE));
        }
        let users = || ipc.queues.lock().users.as_ref().map(|users| users.0.lock().len());
        assert_eq!(users(), Some(0));
        let made = ipc.mq_make(&user(7), b"q", &new(1 << 20));
        assert_eq!((made.is_ok(), users()), (true, Some(1)));
        drop(made);
        assert_eq!((ipc.mq_unlink(&user(7), b"q"), users()), (Ok(()), Some(0)));
    }

    #[test]
    fn names_are_changed_by_those_whom_the_directory_lets() {
        let ipc = IpcNamespace::new();
        let new = NewQueue { mode: 0o666, attr: None, most_bytes: 1 << 20 };
        assert!(ipc.mq_make(&user(0), b"of root", &new).is_ok());
        ipc.queues.lock().root.mode = 0o755;
        assert_eq!(ipc.mq_make(&user(5), b"q", &new).map(drop), Err(Errno::EACCES));
        assert_eq!(ipc.mq_unlink(&user(5), b"of root"), Err(Errno::EACCES));
        assert_eq!(ipc.mq_unlink(&user(5), b"q"), Err(Errno::ENOENT));
        ipc.queues.lock().root.mode = 0o1777;
        assert_eq!(ipc.mq_unlink(&user(5), b"of root"), Err(Errno::EPERM));
        assert!(ipc.mq_make(&user(5), b"q", &new).is_ok());
        assert_eq!(ipc.mq_unlink(&user(0), b"q"), Ok(()));
    }

    #[test]
    fn capacities_are_within_limits() {
        let limits = Limits::default();
        let (root, user) = (Creds::new(0, 0, vec![]), Creds::new(5, 5, vec![]));
        let attr = |maxmsg, msgsize| Attr { maxmsg, msgsize, ..Attr::default() };
        let default = Capacity::new(None, &limits, &user);
        assert_eq!(default, Ok(Capacity { messages: 10, message_bytes: 8192 }));
        for (maxmsg, msgsize) in [(0, 1), (1, 0), (-1, 1), (11, 1), (1, 8193), (i64::MAX, 1)] {
            assert_eq!(Capacity::new(Some(&attr(maxmsg, msgsize)), &limits, &user), Err(Errno::EINVAL));
        }
        assert!(Capacity::new(Some(&attr(10, 8192)), &limits, &user).is_ok());
        assert!(Capacity::new(Some(&attr(65_536, 1 << 24)), &limits, &root).is_ok());
        assert!(Capacity::new(Some(&attr(65_537, 1)), &limits, &root).is_err());
        assert_eq!(default.map(Capacity::charge), Ok(10 * 8192 + 10 * 96));
    }
}
