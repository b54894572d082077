//! Descriptor passing between processes (`SCM_RIGHTS`), and senders' credentials.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::fs::caller::Caller;
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
    /// The credentials that `SO_PEERCRED` shows when there is no peer.
    pub const NOBODY: Self = Self { pid: 0, uid: u32::MAX, gid: u32::MAX };

    /// Process and effective ids of a task.
    pub fn of(caller: &dyn Caller) -> Self {
        let creds = caller.creds();
        Self { pid: caller.pid(), uid: creds.euid, gid: creds.egid }
    }

    /// Process and real ids, which messages carry.
    pub fn real(caller: &dyn Caller) -> Self {
        let creds = caller.creds();
        Self { pid: caller.pid(), uid: creds.uid, gid: creds.gid }
    }
}

/// Files in messages that were not received yet, in the whole sandbox. Sockets sent through each other can keep each
/// other alive unreachably; this bounds the memory that they can hold.
static IN_FLIGHT: AtomicU64 = AtomicU64::new(0);

/// Files in a message. Dropped with it when nobody receives it.
#[derive(Default)]
pub struct Rights(Vec<Arc<File>>);

impl Rights {
    /// Puts files into a message; `ETOOMANYREFS` when more than `limit` (the sender's `RLIMIT_NOFILE`) would be on
    /// their way.
    pub fn new(files: Vec<Arc<File>>, limit: u64) -> Result<Self> {
        let count = files.len() as u64;
        if count > 0 && IN_FLIGHT.fetch_add(count, Ordering::Relaxed) + count > limit {
            IN_FLIGHT.fetch_sub(count, Ordering::Relaxed);
            return Err(Errno::ETOOMANYREFS);
        }
        Ok(Self(files))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The files have arrived.
    pub fn take(mut self) -> Vec<Arc<File>> {
        IN_FLIGHT.fetch_sub(self.0.len() as u64, Ordering::Relaxed);
        core::mem::take(&mut self.0)
    }

    /// The files, of a message that stays (`MSG_PEEK`).
    pub fn copy(&self) -> Vec<Arc<File>> {
        self.0.clone()
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            IN_FLIGHT.fetch_sub(self.0.len() as u64, Ordering::Relaxed);
            bury(core::mem::take(&mut self.0));
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
