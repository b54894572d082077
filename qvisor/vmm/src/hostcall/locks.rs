//! Locks of files in volumes, which the host's programs and other sandboxes see: the sandbox is one owner of them.
//!
//! No call waits. How many pieces of files are locked is counted here as well as in the kernel, since the host keeps memory for each.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abi::hostcall::{HostLock, LOCK_EXCLUSIVE, LOCK_SHARED, LOCKS_MAX};
use serde::{Deserialize, Serialize};

use super::arguments::Handle;
use super::decode::{LockKind, Request};
use super::file::{FileKind, HostFile};
use super::host_io::HostIo;
use crate::errno::Errno;
use crate::lock::{Mutex, Rank};
use crate::sys;

/// The record locks that the sandbox has, by the handle that holds them.
pub(super) struct Locks {
    files: Mutex<BTreeMap<Handle, Arc<Mutex<Held>>>>,
    /// Pieces of all files.
    total: AtomicUsize,
}

/// The record locks of one handle.
#[derive(Default)]
struct Held {
    pieces: Pieces,
    is_closed: bool,
}

impl Default for Locks {
    fn default() -> Self {
        Self { files: Mutex::new(Rank::Locks, BTreeMap::new()), total: AtomicUsize::new(0) }
    }
}

/// A lock for the next VMM: the host has it, by the open file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LockPlan {
    handle: Handle,
    first: u64,
    last: u64,
    is_exclusive: bool,
}

impl LockPlan {
    /// The handle by which the lock is held.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Whether it is of some bytes.
    pub fn is_whole(&self) -> bool {
        self.first <= self.last
    }
}

impl From<Vec<LockPlan>> for Locks {
    fn from(plan: Vec<LockPlan>) -> Self {
        let locks = Self::default();
        for LockPlan { handle, first, last, is_exclusive } in plan {
            let kind = if is_exclusive { LockKind::Exclusive } else { LockKind::Shared };
            locks.of(handle).lock().pieces.set(first, last, kind);
        }
        let total = locks.files.lock().values().map(|held| held.lock().pieces.len()).sum();
        Self { total: AtomicUsize::new(total), ..locks }
    }
}

impl Locks {
    /// The locks for the next VMM.
    pub fn plan(&self) -> Vec<LockPlan> {
        let mut all = Vec::new();
        for (handle, held) in &*self.files.lock() {
            for (first, (last, is_exclusive)) in &held.lock().pieces.0 {
                all.push(LockPlan {
                    handle: *handle,
                    first: *first,
                    last: *last,
                    is_exclusive: *is_exclusive,
                });
            }
        }
        all
    }

    fn of(&self, handle: Handle) -> Arc<Mutex<Held>> {
        let new = || Arc::new(Mutex::new(Rank::LockedFile, Held::default()));
        Arc::clone(self.files.lock().entry(handle).or_insert_with(new))
    }

    /// The handle is about to be closed, and its locks go with it.
    pub fn closed(&self, handle: Handle) {
        let removed = self.files.lock().remove(&handle);
        if let Some(removed) = removed {
            let mut held = removed.lock();
            held.is_closed = true;
            self.total.fetch_sub(held.pieces.len(), Ordering::Relaxed);
            held.pieces = Pieces::default();
        }
    }

    /// Has the host change a lock by `lock`, as long as there are no more than the sandbox may have.
    fn change(
        &self,
        handle: Handle,
        (first, last, kind): (u64, u64, LockKind),
        lock: impl FnOnce() -> Result<i64, Errno>,
    ) -> Result<i64, Errno> {
        let held = self.of(handle);
        let mut held = held.lock();
        if held.is_closed {
            return Err(Errno(libc::EBADF));
        }
        let before = held.pieces.len();
        let undo = held.pieces.set(first, last, kind);
        let after = held.pieces.len();
        let more = after.saturating_sub(before);
        let total = self.total.fetch_add(more, Ordering::Relaxed) + more;
        let is_one_too_many = more > 0 && total as u64 > LOCKS_MAX;
        let result = if is_one_too_many { Err(Errno(libc::ENOLCK)) } else { lock() };
        if result.is_err() {
            held.pieces.undo(undo);
            self.total.fetch_sub(more, Ordering::Relaxed);
        } else {
            self.total.fetch_sub(before.saturating_sub(after), Ordering::Relaxed);
        }
        result
    }
}

/// Disjoint locked pieces by their first byte: the last one, and whether the lock is exclusive. As the host has them, neighbours of
/// one kind are one piece.
#[derive(Default, Debug, PartialEq, Eq, Clone)]
struct Pieces(BTreeMap<u64, (u64, bool)>);

/// Pieces that a change took away, and the first bytes of those that it made.
struct Undo {
    removed: Vec<(u64, (u64, bool))>,
    made: Vec<u64>,
}

impl Pieces {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn set(&mut self, first: u64, last: u64, kind: LockKind) -> Undo {
        let exclusive = match kind {
            LockKind::None => None,
            LockKind::Shared => Some(false),
            LockKind::Exclusive => Some(true),
        };
        let near = self.0.range(..=last.saturating_add(1)).rev();
        let near = near.take_while(|(_, (end, _))| end.saturating_add(1) >= first);
        let near: Vec<_> = near.map(|(at, held)| (*at, *held)).collect();
        let (mut new, mut undo) = ((first, last), Undo { removed: Vec::new(), made: Vec::new() });
        let mut made = Vec::new();
        for (at, (end, is_exclusive)) in near {
            if exclusive == Some(is_exclusive) {
                new = (new.0.min(at), new.1.max(end));
            } else if at > last || end < first {
                continue;
            } else {
                made.extend((at < first).then(|| (at, (first - 1, is_exclusive))));
                made.extend((end > last).then(|| (last + 1, (end, is_exclusive))));
            }
            self.0.remove(&at);
            undo.removed.push((at, (end, is_exclusive)));
        }
        made.extend(exclusive.map(|exclusive| (new.0, (new.1, exclusive))));
        undo.made = made.iter().map(|(at, _)| *at).collect();
        self.0.extend(made);
        undo
    }

    fn undo(&mut self, undo: Undo) {
        for at in undo.made {
            self.0.remove(&at);
        }
        self.0.extend(undo.removed);
    }
}

impl HostIo {
    pub(super) fn carry_out_lock(&self, request: Request<'_>) -> Result<i64, Errno> {
        match request {
            Request::LockBytes { handle, first, last, kind } => {
                let file = self.lockable(handle, kind)?;
                check_kind(&file, &[FileKind::Regular])?;
                self.locks().change(handle, (first, last, kind), || {
                    sys::lock_bytes(file.as_fd(), first, last, kind.as_record())
                })
            }
            Request::LockQuery { handle, first, last, kind, out } => {
                // To ask is no lock: what a read-only mount allows does not matter.
                let file = self.lockable(handle, LockKind::Shared)?;
                check_kind(&file, &[FileKind::Regular])?;
                let Some(found) = sys::lock_in_the_way(file.as_fd(), first, last, kind.as_record())? else {
                    return Ok(0);
                };
                out.write(&HostLock {
                    first: found.first,
                    last: found.last,
                    kind: if found.is_exclusive { LOCK_EXCLUSIVE } else { LOCK_SHARED },
                    is_process: found.is_process.into(),
                });
                Ok(1)
            }
            Request::LockWhole { handle, kind } => {
                let file = self.lockable(handle, kind)?;
                check_kind(&file, &[FileKind::Regular, FileKind::Directory])?;
                sys::lock_whole(file.as_fd(), kind.as_whole())
            }
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// An open file that may have locks of this kind: of a volume, and exclusive ones only where it may be written.
    fn lockable(&self, handle: Handle, kind: LockKind) -> Result<Arc<HostFile>, Errno> {
        let file = self.files().get(handle)?;
        if file.is_path_only() {
            return Err(Errno(libc::EBADF));
        }
        if !file.mount().is_volume {
            return Err(Errno(libc::EPERM));
        }
        if kind == LockKind::Exclusive {
            file.check_writable()?;
        }
        Ok(file)
    }
}

fn check_kind(file: &HostFile, kinds: &[FileKind]) -> Result<(), Errno> {
    if kinds.contains(&file.kind()) { Ok(()) } else { Err(Errno(libc::EINVAL)) }
}

impl LockKind {
    fn as_record(self) -> i32 {
        match self {
            Self::None => libc::F_UNLCK,
            Self::Shared => libc::F_RDLCK,
            Self::Exclusive => libc::F_WRLCK,
        }
    }

    fn as_whole(self) -> i32 {
        match self {
            Self::None => libc::LOCK_UN,
            Self::Shared => libc::LOCK_SH | libc::LOCK_NB,
            Self::Exclusive => libc::LOCK_EX | libc::LOCK_NB,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use std::fs::{self, File};

    use abi::hostcall::{self as nr, LOCK_END, LOCK_NONE};

    use crate::guest_memory::GuestBox;
    use crate::hostcall::testing::Bench;

    const LAST: u64 = 24;
    const BYTES: usize = 25;

    fn neg(code: i32) -> i64 {
        Errno(code).as_result()
    }

    /// A file of a volume, opened for reading and, unless the volume is read-only, writing.
    fn file_of_volume(bench: &Bench, read_only: bool) -> u64 {
        fs::write(bench.dir.path().join("f"), "data").unwrap();
        let dir = File::open(bench.dir.path()).unwrap();
        let volume = bench.io.files().adopt_volume(dir.into(), read_only).unwrap();
        let flags = if read_only { libc::O_RDONLY } else { libc::O_RDWR };
        bench.handle(volume, "f", flags).into()
    }

    #[test]
    fn locks_are_the_hosts_and_conflict_with_others() {
        let bench = Bench::new();
        let one = file_of_volume(&bench, false);
        let other = bench.call(nr::OPEN, &[one, 0, 0, libc::O_RDWR as u64, 0]).cast_unsigned();
        let lock = |handle, first, last, kind| bench.call(nr::LOCK_BYTES, &[handle, first, last, kind]);
        assert_eq!(lock(one, 10, 19, LOCK_EXCLUSIVE), 0);
        assert_eq!(lock(other, 19, LOCK_END, LOCK_SHARED), neg(libc::EAGAIN));
        assert_eq!(lock(other, 20, LOCK_END, LOCK_SHARED), 0);
        let out = bench.memory.room(size_of::<HostLock>());
        let query = |first| bench.call(nr::LOCK_QUERY, &[one, first, LOCK_END, LOCK_EXCLUSIVE, out]);
        assert_eq!(query(5), 1);
        let found: HostLock = GuestBox::new(&bench.memory, out).unwrap().read();
        assert_eq!(found, HostLock { first: 20, last: LOCK_END, kind: LOCK_SHARED, is_process: 0 });
        assert_eq!(bench.call(nr::CLOSE, &[other]), 0);
        assert_eq!((query(5), lock(one, 0, LOCK_END, LOCK_EXCLUSIVE)), (0, 0));
        for bad in [[one, 5, 4, LOCK_SHARED], [one, 0, LOCK_END + 1, LOCK_SHARED], [one, 0, 1, 3]] {
            assert_eq!(bench.call(nr::LOCK_BYTES, &bad), neg(libc::EINVAL));
        }
        let whole = |handle, kind| bench.call(nr::LOCK_WHOLE, &[handle, kind]);
        let other = bench.call(nr::OPEN, &[one, 0, 0, libc::O_RDONLY as u64, 0]).cast_unsigned();
        assert_eq!((whole(one, LOCK_SHARED), whole(other, LOCK_EXCLUSIVE)), (0, neg(libc::EAGAIN)));
        assert_eq!((whole(one, LOCK_NONE), whole(other, LOCK_EXCLUSIVE)), (0, 0));
    }

    #[test]
    fn a_read_only_volume_has_shared_locks_alone_and_other_mounts_have_none() {
        let bench = Bench::new();
        let file = file_of_volume(&bench, true);
        let lock = |handle: u64, kind| {
            let bytes = bench.call(nr::LOCK_BYTES, &[handle, 0, 9, kind]);
            (bytes, bench.call(nr::LOCK_WHOLE, &[handle, kind]))
        };
        assert_eq!(lock(file, LOCK_EXCLUSIVE), (neg(libc::EROFS), neg(libc::EROFS)));
        assert_eq!(lock(file, LOCK_SHARED), (0, 0));
        let reopened = bench.call(nr::OPEN, &[file, 0, 0, libc::O_RDWR as u64, 0]);
        assert_eq!(reopened, neg(libc::EROFS));
        let other = u64::from(bench.handle(bench.root, "f", libc::O_RDWR));
        assert_eq!(lock(other, LOCK_SHARED), (neg(libc::EPERM), neg(libc::EPERM)));
        assert_eq!(bench.call(nr::OPEN, &[other, 0, 0, libc::O_RDWR as u64, 0]), neg(libc::EBADF));
    }

    #[test]
    fn there_are_so_many_pieces_and_no_more() {
        let bench = Bench::new();
        let file = file_of_volume(&bench, false);
        let lock = |at: u64, kind| bench.call(nr::LOCK_BYTES, &[file, at, at, kind]);
        for number in 0..LOCKS_MAX {
            assert_eq!(lock(2 * number, LOCK_SHARED), 0, "{number}");
        }
        assert_eq!(lock(2 * LOCKS_MAX, LOCK_SHARED), neg(libc::ENOLCK));
        // Three that are joined are one, and one whose middle goes would be two.
        assert_eq!(bench.call(nr::LOCK_BYTES, &[file, 0, 3, LOCK_SHARED]), 0);
        assert_eq!(lock(2 * LOCKS_MAX, LOCK_SHARED), 0);
        assert_eq!(lock(2 * LOCKS_MAX + 2, LOCK_SHARED), 0);
        assert_eq!(lock(1, LOCK_NONE), neg(libc::ENOLCK));
        assert_eq!(bench.call(nr::LOCK_BYTES, &[file, 0, 99, LOCK_NONE]), 0);
        assert_eq!(lock(2 * LOCKS_MAX + 4, LOCK_SHARED), 0);
        assert_eq!(bench.call(nr::CLOSE, &[file]), 0);
        assert_eq!(bench.io.locks().total.load(Ordering::Relaxed), 0);
    }

    proptest! {
        /// The pieces are what a table of single bytes says, in as few pieces as can be, and an undo is one.
        #[test]
        fn pieces_are_the_bytes_that_are_locked(
            steps in prop::collection::vec((0..=LAST, 0..=LAST, 0_u8..3, any::<bool>()), 0..40),
        ) {
            let (mut pieces, mut bytes) = (Pieces::default(), [None; BYTES]);
            for (one, other, kind, stays) in steps {
                let (first, last) = (one.min(other), one.max(other));
                let kind = [LockKind::None, LockKind::Shared, LockKind::Exclusive][usize::from(kind)];
                let before = pieces.clone();
                let undo = pieces.set(first, last, kind);
                if !stays {
                    pieces.undo(undo);
                    prop_assert_eq!(&pieces, &before);
                    continue;
                }
                let value = (kind != LockKind::None).then_some(kind == LockKind::Exclusive);
                (first..=last).for_each(|at| bytes[usize::try_from(at).unwrap()] = value);
                let mut expected = Vec::new();
                for (at, value) in (0_u64..).zip(bytes) {
                    let Some(value) = value else { continue };
                    match expected.last_mut() {
                        Some((_, (end, exclusive))) if *end + 1 == at && *exclusive == value => *end = at,
                        _ => expected.push((at, (at, value))),
                    }
                }
                prop_assert_eq!(pieces.0.iter().map(|(at, held)| (*at, *held)).collect::<Vec<_>>(), expected);
            }
        }
    }
}
