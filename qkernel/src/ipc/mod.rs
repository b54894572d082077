//! System V IPC and POSIX message queues (`sysvipc(7)`, `mq_overview(7)`).
//!
//! All objects hang on an [`IpcNamespace`], which a container has alone or, in a pod, together with others. They go with the
//! last container. What keys, ids and permissions mean is the same for the three kinds of System V objects
//! ([`table`], [`perm`]).

pub mod limits;
pub mod mqueue;
pub mod msg;
pub mod perm;
pub mod sem;
pub mod shm;
pub mod table;

use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;

use crate::creds::Creds;
use crate::fs::caller::{Caller, PidOf};
use crate::ipc::limits::Limits;
use crate::ipc::mqueue::Queues;
use crate::ipc::msg::MessageQueues;
use crate::ipc::sem::Sets;
use crate::ipc::shm::Segments;
use crate::ipc::table::Table;
use machine::errno::{Errno, Result};
use machine::sync::{Rank, SpinLock};
use machine::time;

/// Kernel memory of one object without what it holds.
const OBJECT_BYTES: usize = 1024;

/// The objects that a set of containers has in common.
pub struct IpcNamespace {
    limits: SpinLock<Limits>,
    segments: SpinLock<Segments>,
    sets: SpinLock<Sets>,
    message_queues: SpinLock<MessageQueues>,
    queues: SpinLock<Queues>,
    /// Bytes of messages, and messages, in all System V queues.
    message_bytes: AtomicU64,
    messages: AtomicU64,
}

/// A caller as these objects know it.
pub struct Who {
    pub pid: PidOf,
    pub creds: Arc<Creds>,
}

impl Who {
    /// A task.
    pub fn of(caller: &dyn Caller) -> Self {
        Self { pid: PidOf::of(caller), creds: caller.creds() }
    }
}

/// The time in seconds that attributes show.
fn now() -> i64 {
    (time::realtime_ns() / time::NSEC).cast_signed()
}

impl IpcNamespace {
    /// A namespace without objects.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            limits: SpinLock::new(Rank::Leaf, Limits::default()),
            segments: SpinLock::new(Rank::Ipc, Table::new()),
            sets: SpinLock::new(Rank::Ipc, Table::new()),
            message_queues: SpinLock::new(Rank::Ipc, Table::new()),
            queues: SpinLock::new(Rank::Ipc, Queues::new()),
            message_bytes: AtomicU64::new(0),
            messages: AtomicU64::new(0),
        })
    }

    /// Its limits now.
    pub fn limits(&self) -> Limits {
        *self.limits.lock()
    }

    /// A setting by its name below `/proc/sys`, as its file shows it.
    pub fn setting(&self, name: &str) -> Option<String> {
        let next = match name {
            "kernel/shm_next_id" => self.segments.lock().next_id,
            "kernel/sem_next_id" => self.sets.lock().next_id,
            "kernel/msg_next_id" => self.message_queues.lock().next_id,
            _ => return self.limits().show(name),
        };
        Some(alloc::format!("{}\n", next.unwrap_or(-1)))
    }

    /// Changes a setting. `ENOENT`: there is none of this name. `EINVAL`: it cannot have that value.
    pub fn set(&self, name: &str, text: &[u8]) -> Result<()> {
        let next = || {
            let id = crate::pseudo::parse_number(text)?;
            i32::try_from(id).ok().filter(|id| *id >= 0).map(Some).ok_or(Errno::EINVAL)
        };
        match name {
            "kernel/shm_next_id" => self.segments.lock().next_id = next()?,
            "kernel/sem_next_id" => self.sets.lock().next_id = next()?,
            "kernel/msg_next_id" => self.message_queues.lock().next_id = next()?,
            _ => self.limits.lock().store(name, text)?,
        }
        self.drop_unattached();
        Ok(())
    }
}
