//! Inode numbers and attributes of files that belong to no file system.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::fs::inode::Stat;
use machine::errno::Result;
use machine::mm::account;
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

/// Whether the guest may make another kernel object; `ENOMEM`.
pub fn check_room() -> Result<()> {
    account::check(OBJECT_BYTES)
}
