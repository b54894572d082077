//! Inode numbers and attributes of files that belong to no file system.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::fs::inode::{AttrChange, Stat};
use machine::errno::Result;
use machine::mm::account;
use machine::sync::{Rank, SpinLock};
use machine::time;

/// Most bytes of kernel memory that an object takes with the entries of descriptor tables that lead to it. Queues and
/// buffers are charged as they grow.
const OBJECT_BYTES: usize = 4096;

static NEXT_INO: AtomicU64 = AtomicU64::new(1);

/// Device number of pipes, sockets and anonymous inodes.
pub const ANON_DEV: u64 = 0xd;

/// A number no other pipe or socket has.
pub fn next_ino() -> u64 {
    NEXT_INO.fetch_add(1, Ordering::Relaxed)
}

/// Attributes of an unnamed file: mode with type, number, and owner.
pub fn stat(mode: u32, ino: u64, owner: (u32, u32)) -> Stat {
    let now = time::realtime_ns().cast_signed();
    Stat {
        dev: ANON_DEV,
        ino,
        mode,
        nlink: 1,
        uid: owner.0,
        gid: owner.1,
        blksize: 4096,
        atime_ns: now,
        mtime_ns: now,
        ctime_ns: now,
        ..Stat::default()
    }
}

/// Permission bits and owner of a pipe or socket, which `fchmod(2)` and `fchown(2)` change.
pub struct Attrs(SpinLock<(u32, u32, u32)>);

impl Attrs {
    /// The bits and the owner to begin with.
    pub const fn new(mode: u32, owner: (u32, u32)) -> Self {
        Self(SpinLock::new(Rank::Leaf, (mode, owner.0, owner.1)))
    }

    /// Attributes of the file, of which `kind` is the type.
    pub fn stat(&self, kind: u32, ino: u64) -> Stat {
        let (mode, uid, gid) = *self.0.lock();
        stat(kind | mode, ino, (uid, gid))
    }

    /// Changes what `change` names of them.
    pub fn change(&self, change: &AttrChange) {
        let mut held = self.0.lock();
        held.0 = change.mode.map_or(held.0, |mode| mode & 0o7777);
        held.1 = change.uid.unwrap_or(held.1);
        held.2 = change.gid.unwrap_or(held.2);
    }
}

/// `lseek(2)` of what has no positions, but does not say so: nothing happens.
pub fn seek() -> Result<u64> {
    Ok(0)
}

/// Whether the guest may make another kernel object; `ENOMEM`.
pub fn check_room() -> Result<()> {
    account::check(OBJECT_BYTES)
}
