//! Descriptor passing between processes (`SCM_RIGHTS`), and senders' credentials.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::caller::{Caller, PidOf};
use crate::fs::file::File;
use machine::errno::{Errno, Result};
use machine::sync::{Rank, SpinLock};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most files in one message (`SCM_MAX_FD`).
pub const FILES_MAX: usize = 253;

/// `struct ucred`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, Immutable, IntoBytes)]
pub struct Ucred {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Ucred {
    /// The credentials that are shown when there is no peer.
    pub const NOBODY: Self = Self { pid: 0, uid: u32::MAX, gid: u32::MAX };
    /// Those of a message whose sender was not noted, as nobody had asked for that: the ids that stand for unknown ones.
    pub const UNKNOWN: Self = Self { pid: 0, uid: 65534, gid: 65534 };
}

/// The credentials of a sender or a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SenderCreds {
    pub process: PidOf,
    /// The process's [`Caller::process_serial`]; 0: of none that is known.
    pub serial: u64,
    pub uid: u32,
    pub gid: u32,
}

/// The credentials of a peer, as they were when it connected or listened.
#[derive(Clone, Default)]
pub struct PeerCreds {
    pub creds: SenderCreds,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
}

impl PeerCreds {
    /// Those of a task.
    pub fn of(caller: &dyn Caller) -> Self {
        Self { creds: SenderCreds::of(caller), groups: caller.creds().groups.clone() }
    }
}

impl SenderCreds {
    /// Process and effective ids of a task.
    pub fn of(caller: &dyn Caller) -> Self {
        let creds = caller.creds();
        let serial = caller.process_serial();
        Self { process: PidOf::of(caller), serial, uid: creds.euid, gid: creds.egid }
    }

    /// Process and real ids, which messages carry.
    pub fn real(caller: &dyn Caller) -> Self {
        let creds = caller.creds();
        let serial = caller.process_serial();
        Self { process: PidOf::of(caller), serial, uid: creds.uid, gid: creds.gid }
    }

    /// What the caller is shown of them.
    pub fn seen_by(self, caller: &dyn Caller) -> Ucred {
        Ucred { pid: self.process.seen_by(caller), uid: self.uid, gid: self.gid }
    }
}

/// Files in messages that were not received yet, by the user who sent them. Sockets sent through each other can keep each
/// other alive unreachably; this bounds how many such a user can hold. Kernel memory bounds all users' together.
static IN_FLIGHT: SpinLock<BTreeMap<u32, u64>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

/// Files in a message of user `sender`. Dropped with it when nobody receives it.
#[derive(Default)]
pub struct Rights {
    files: Vec<Arc<File>>,
    sender: u32,
}

/// Takes files of a message back out of its sender's count.
fn landed(sender: u32, files: usize) {
    let mut in_flight = IN_FLIGHT.lock();
    if let Some(count) = in_flight.get_mut(&sender) {
        *count = count.saturating_sub(files as u64);
        if *count == 0 {
            in_flight.remove(&sender);
        }
    }
}

impl Rights {
    /// Puts files into a message of user `sender`; `ETOOMANYREFS` when more than `limit` (the sender's `RLIMIT_NOFILE`)
    /// of the user's would be on their way.
    pub fn new(files: Vec<Arc<File>>, sender: u32, limit: u64) -> Result<Self> {
        if !files.is_empty() {
            let mut in_flight = IN_FLIGHT.lock();
            let before = in_flight.get(&sender).copied().unwrap_or(0);
            let count = before.saturating_add(files.len() as u64);
            if count > limit {
                return Err(Errno::ETOOMANYREFS);
            }
            in_flight.insert(sender, count);
        }
        Ok(Self { files, sender })
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The files have arrived.
    pub fn take(mut self) -> Vec<Arc<File>> {
        if !self.files.is_empty() {
            landed(self.sender, self.files.len());
        }
        core::mem::take(&mut self.files)
    }

    /// The files, of a message that stays (`MSG_PEEK`).
    pub fn copy(&self) -> Vec<Arc<File>> {
        self.files.clone()
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        if !self.files.is_empty() {
            landed(self.sender, self.files.len());
            bury(core::mem::take(&mut self.files));
        }
    }
}

/// Files that are still to be dropped, and whether a task is dropping them.
static GRAVE: SpinLock<(Vec<Arc<File>>, bool)> = SpinLock::new(Rank::Leaf, (Vec::new(), false));

/// Drops files one after the other: a socket whose messages hold sockets whose messages hold sockets would otherwise
/// recurse as deep as the guest likes.
fn bury(files: Vec<Arc<File>>) {
    let mut grave = GRAVE.lock();
    grave.0.extend(files);
    if grave.1 {
        return;
    }
    grave.1 = true;
    while let Some(file) = grave.0.pop() {
        drop(grave);
        drop(file);
        grave = GRAVE.lock();
    }
    grave.1 = false;
    grave.0.shrink_to(64);
}
