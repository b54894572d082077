//! Files in messages that nobody has received yet (`SCM_RIGHTS`): who sent how many, which sockets are among them, and what becomes
//! of sockets that only each other's messages still hold.

mod burial;
mod collect;
mod sockets;

#[cfg(feature = "harness")]
pub use collect::collect_with;
pub use collect::{collect_all, collect_if_due, collect_in_need, collect_on_exit};
pub use sockets::{after_close, is_looked_for, register};

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::file::File;
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::sync::{Rank, SpinLock};

/// Kernel memory that a file in a message takes besides itself.
const FILE_BYTES: usize = 128;

/// A queue of messages, as the collector sees it.
pub trait Queue {
    /// The number that the next message will have. Each has one that no other has had.
    fn next_message(&self) -> u64;
    /// Shows the files of some messages from the one with this number on; returns the number to go on from.
    fn each_message(&self, from: u64, each: &mut dyn FnMut(&mut Rights)) -> u64;
}

/// A socket whose messages may have files.
pub trait Carrier {
    /// Where its messages lie; `None`: it has none yet, or any more.
    fn queue(&self) -> Option<Arc<dyn Queue>>;
    /// That of the connection with this number, or else of the first one after it, that waits for `accept(2)`, with the number to go
    /// on from.
    fn waiting_queue(&self, from: u64) -> Option<(u64, Option<Arc<dyn Queue>>)>;
    /// The number that the next connection will have which waits for `accept(2)`.
    fn next_waiting(&self) -> u64;
}

/// How many files each user of a container has in messages. A container's end takes it along: users of the same number in another
/// container, or in one that comes later, have nothing to do with them.
pub struct Passing {
    users: SpinLock<BTreeMap<u32, u64>>,
}

impl Passing {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { users: SpinLock::new(Rank::Leaf, BTreeMap::new()) })
    }

    /// Files that a user has in messages.
    pub fn files_of(&self, uid: u32) -> u64 {
        self.users.lock().get(&uid).copied().unwrap_or(0)
    }

    /// Counts more files of a user, `limit` in all at most (`ETOOMANYREFS`).
    fn count(self: &Arc<Self>, uid: u32, files: u64, limit: u64) -> Result<Counted> {
        let mut users = self.users.lock();
        let count = users.get(&uid).copied().unwrap_or(0).saturating_add(files);
        if count > limit {
            return Err(Errno::ETOOMANYREFS);
        }
        users.insert(uid, count);
        Ok(Counted { passing: self.clone(), uid, files })
    }
}

/// Files of a user that are counted; no longer once this is dropped.
struct Counted {
    passing: Arc<Passing>,
    uid: u32,
    files: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut users = self.passing.users.lock();
        if let Some(count) = users.get_mut(&self.uid) {
            *count = count.saturating_sub(self.files);
            if *count == 0 {
                users.remove(&self.uid);
            }
        }
    }
}

/// Files in a message. Dropped with it when nobody receives it.
#[derive(Default)]
pub struct Rights {
    files: Vec<Arc<File>>,
    _counted: Option<Counted>,
}

impl Rights {
    /// Puts files into a message of a user of the container that `passing` belongs to; `ETOOMANYREFS` when more than `limit` (the
    /// sender's `RLIMIT_NOFILE`) of the user's would be on their way. What nobody can receive any more does not count.
    pub fn new(files: Vec<Arc<File>>, passing: &Arc<Passing>, uid: u32, limit: u64) -> Result<Self> {
        if files.is_empty() {
            return Ok(Self::default());
        }
        account::check(files.len() * FILE_BYTES)?;
        let more = files.len() as u64;
        let counted = passing.count(uid, more, limit).or_else(|error| {
            collect_in_need();
            passing.count(uid, more, limit).map_err(|_| error)
        })?;
        sockets::depart(&files);
        Ok(Self { files, _counted: Some(counted) })
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Takes the files out of a message that still lies in its queue, which is locked. The collector follows what it finds in
    /// queues, so it has to know of each socket before that leaves one.
    pub fn leave(&mut self) -> Self {
        sockets::touch(&self.files);
        core::mem::take(self)
    }

    /// The files have arrived.
    pub fn arrive(mut self) -> Vec<Arc<File>> {
        sockets::land(&self.files);
        core::mem::take(&mut self.files)
    }

    /// The files, of a message that stays in its locked queue (`MSG_PEEK`).
    pub fn copy(&self) -> Vec<Arc<File>> {
        let files = self.files.clone();
        // Once the references are there: a pass that chose a socket before them sees the touch, one that comes later the references.
        sockets::touch(&files);
        files
    }

    /// The files, for a look at them.
    pub fn files(&self) -> &[Arc<File>] {
        &self.files
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        if !self.files.is_empty() {
            sockets::land(&self.files);
            burial::bury(core::mem::take(&mut self.files));
        }
    }
}

/// Lets others go on in the middle of work whose length a program has chosen; not on an idle CPU, which has nobody to wait for.
pub fn let_others_go_on() {
    if !machine::sched::current().sched().is_idle() {
        machine::sched::let_others_go_on();
    }
}

/// The sockets in messages now, and the files that wait to be dropped.
pub fn census() -> (usize, usize) {
    (sockets::count(), burial::count())
}

/// Marks the files of messages that are about to leave the place where the collector looks for them.
pub fn touch(files: &[Arc<File>]) {
    sockets::touch(files);
}
