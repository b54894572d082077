//! The quota of a sandbox's copy-on-write views: an account of the nodes that are its own.
//!
//! The VMM keeps it, since every change of a view is a hostcall: neither project quotas nor loop devices nor privileges
//! are needed. A node is *charged* from the change on that makes it, or copies it up from the host's files, until its
//! last name and its last holder are gone. Its charge is the space it takes up by the host's count. A change first
//! reserves the most it can take, and is refused with `ENOSPC` if there is no room; afterwards the charge is set to the
//! host's new count, so that no error's path can leave a wrong one. Hence `used` is never below the space really taken
//! up, but for two things: the file system's own metadata, and directories of the host that are copied up along with a
//! file in them.
//!
//! Small writes are not measured one by one: their reservations stay *pending* with their handle, up to
//! [`PENDING_MAX`], until the file is measured: at that bound, when the handle is closed, or when the room runs out.

pub(super) mod handover;

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::layout::WINDOW_CHUNK;

use crate::errno::Errno;
use crate::lock::{Guard, Mutex, Rank};
use crate::sys;

/// Space is counted in blocks of so many bytes.
pub(super) const BLOCK: u64 = 4096;
/// One file or directory for so many bytes, as ext4 has it.
const NODE_BYTES: u64 = 16 << 10;
/// Files and directories that even the smallest quota has.
const NODES_LEAST: u64 = 4096;
/// Most bytes that the account of one node takes up in the VMM.
const LEDGER_BYTES: u64 = 128;
/// Most bytes that one handle's writes may leave to be measured.
const PENDING_MAX: u64 = 1 << 20;

/// A node of a view, by device and number.
type Key = (u64, u64);

/// The quota of one sandbox.
#[derive(Debug)]
pub struct Quota {
    limit: u64,
    nodes_most: u64,
    ledger: Mutex<Ledger>,
}

#[derive(Debug, Default)]
struct Ledger {
    /// Charges, reservations and pending bytes, in bytes.
    used: u64,
    /// Nodes that are about to be charged.
    nodes_reserved: u64,
    /// The charge of each node that is the sandbox's own.
    charged: HashMap<Key, u64>,
    /// How many handles and windows hold a node, whether it is charged or not.
    held: HashMap<Key, u32>,
    /// Charged nodes without a name that are held still.
    nameless: HashSet<Key>,
    /// Files that may take up more than their length: they may have blocks after their end, or attributes.
    by_blocks: HashSet<Key>,
    /// How many writable windows show a file.
    windows: HashMap<Key, u64>,
    /// Each window's file, and whether it is writable.
    chunks: HashMap<u64, (Key, bool)>,
    /// Nodes that got a new number when they were copied up, with their former one, which holders may know.
    renumbered: HashMap<Key, Key>,
}

/// A handle's part of the account.
#[derive(Debug)]
pub(super) struct Held {
    quota: Arc<Quota>,
    key: Key,
    /// Bytes that were reserved by writes and are not measured yet. Changed with the ledger locked.
    pending: AtomicU64,
}

/// Facts that the host reports of a node.
#[derive(Clone, Copy, Debug)]
struct Seen {
    key: Key,
    kind: u32,
    has_name: bool,
    size: u64,
    blocks: u64,
    born: Option<(i64, u32)>,
}

impl Seen {
    fn of(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let status = sys::statx(fd, c"")?;
        let born = (status.stx_btime.tv_sec, status.stx_btime.tv_nsec);
        Ok(Self {
            key: (libc::makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino),
            kind: u32::from(status.stx_mode) & libc::S_IFMT,
            has_name: status.stx_nlink > 0,
            size: whole_blocks(status.stx_size),
            blocks: status.stx_blocks.saturating_mul(512),
            born: (status.stx_mask & libc::STATX_BTIME != 0).then_some(born),
        })
    }

    fn is_file(&self) -> bool {
        self.kind == libc::S_IFREG
    }
}

fn whole_blocks(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
}

/// The most that a change can take beside the nodes it copies up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    pub bytes: u64,
    pub nodes: u64,
    /// The content of files is dropped at once, so that it is not copied up.
    pub truncates: bool,
    /// The length that a file is to get.
    pub size: Option<u64>,
    /// The node may take up more than its length.
    pub by_blocks: bool,
}

impl Need {
    /// A new name, and the node it is for.
    pub fn node() -> Self {
        Self { bytes: 2 * BLOCK, nodes: 1, ..Self::default() }
    }

    /// Nothing but the nodes that are copied up, and perhaps a block of a directory.
    pub fn name() -> Self {
        Self::default()
    }
}

/// Room for a change that is about to happen; given back when it is dropped, when the nodes are measured as well.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    quota: &'a Quota,
    bytes: u64,
    nodes: u64,
    touched: Vec<(BorrowedFd<'a>, Seen)>,
    by_blocks: bool,
    pub(super) succeeded: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut ledger = self.quota.lock();
        ledger.used = ledger.used.saturating_sub(self.bytes);
        ledger.nodes_reserved = ledger.nodes_reserved.saturating_sub(self.nodes);
        for (fd, before) in &self.touched {
            let Ok(after) = Seen::of(*fd) else { continue };
            // A change that failed may have copied the node up; the copy is younger.
            let is_other = after.key != before.key || after.born != before.born || after.born.is_none();
            if self.succeeded || is_other || ledger.charged.contains_key(&after.key) {
                if self.by_blocks {
                    ledger.by_blocks.insert(after.key);
                }
                ledger.settle(&after);
                if after.key != before.key {
                    ledger.renumbered.insert(after.key, before.key);
                }
            }
        }
    }
}

impl Quota {
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            nodes_most: nodes_most(limit),
            ledger: Mutex::new(Rank::Quota, Ledger::default()),
        })
    }

    /// Memory that the account of a quota of `limit` bytes may take up in the VMM.
    pub fn ledger_bytes(limit: u64) -> u64 {
        nodes_most(limit).saturating_mul(LEDGER_BYTES)
    }

    fn lock(&self) -> Guard<'_, Ledger> {
        self.ledger.lock()
    }

    fn room(&self, ledger: &Ledger) -> u64 {
        self.limit.saturating_sub(ledger.used)
    }

    fn take(&self, ledger: &mut Ledger, bytes: u64, nodes: u64) -> Result<(), Errno> {
        let all_nodes = ledger.charged.len() as u64 + ledger.nodes_reserved;
        let lacks_nodes = nodes > 0 && all_nodes.saturating_add(nodes) > self.nodes_most;
        // A change that takes nothing is allowed even beyond the limit, so that space can be given back.
        if lacks_nodes || bytes > 0 && bytes > self.room(ledger) {
            return Err(Errno(libc::ENOSPC));
        }
        ledger.used += bytes;
        ledger.nodes_reserved += nodes;
        Ok(())
    }

    /// Begins to account for a handle. Asking with the ledger locked sees each removal that was accounted for.
    pub(super) fn hold(self: &Arc<Self>, fd: BorrowedFd<'_>) -> Result<Held, Errno> {
        let mut ledger = self.lock();
        let seen = Seen::of(fd)?;
        *ledger.held.entry(seen.key).or_default() += 1;
        if !seen.has_name {
            ledger.settle(&seen);
        }
        Ok(Held { quota: Arc::clone(self), key: seen.key, pending: AtomicU64::new(0) })
    }

    /// Makes room for a change of `nodes`, and for `need` beside.
    pub(super) fn claim<'a>(&'a self, nodes: &[BorrowedFd<'a>], need: Need) -> Result<Claim<'a>, Errno> {
        let mut ledger = self.lock();
        let (mut bytes, mut count, mut touched) = (need.bytes, need.nodes, Vec::with_capacity(nodes.len()));
        for fd in nodes {
            let seen = Seen::of(*fd)?;
            if !ledger.charged.contains_key(&seen.key) {
                count += 1;
                bytes = bytes.saturating_add(match seen.is_file() {
                    true if need.truncates => 0,
                    true => seen.blocks,
                    false => BLOCK,
                });
            }
            if let Some(size) = need.size.filter(|_| seen.is_file()) {
                bytes = bytes.saturating_add(ledger.growth(&seen, size));
            }
            touched.push((*fd, seen));
        }
        self.take(&mut ledger, bytes, count)?;
        let by_blocks = need.by_blocks;
        Ok(Claim { quota: self, bytes, nodes: count, touched, by_blocks, succeeded: false })
    }

    /// Charges a node that was just made.
    pub(super) fn made(&self, fd: BorrowedFd<'_>) {
        let mut ledger = self.lock();
        if let Ok(seen) = Seen::of(fd) {
            ledger.settle(&seen);
        }
    }

    /// After a name of `node` was removed: drops its charge if neither a name nor a holder is left.
    pub(super) fn removed(&self, node: BorrowedFd<'_>) {
        let mut ledger = self.lock();
        if let Ok(seen) = Seen::of(node) {
            // A directory has one name, whatever its count of links.
            ledger.unnamed(&Seen { has_name: seen.has_name && seen.kind != libc::S_IFDIR, ..seen });
        }
    }

    /// Whether writing `len` bytes at `offset` takes no new block: all of the file's blocks are there, or those written
    /// to.
    pub(super) fn is_allocated(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
        let Ok(seen) = Seen::of(fd) else { return false };
        let end = offset.saturating_add(len);
        if end > seen.size {
            return false;
        }
        let is_whole = seen.blocks >= seen.size && !self.lock().by_blocks.contains(&seen.key);
        let hole = || i64::try_from(offset).ok().and_then(|at| sys::lseek(fd, at, libc::SEEK_HOLE).ok());
        is_whole || hole().is_some_and(|hole| hole.cast_unsigned() >= end)
    }

    /// Free blocks and files, and how many there are, where the host has so many blocks of so many bytes free.
    pub(super) fn space(&self, block: u64, host_free: u64, host_files: u64) -> Space {
        let ledger = self.lock();
        let free = (self.room(&ledger) / block.max(1)).min(host_free);
        let nodes = ledger.charged.len() as u64;
        let files_free = self.nodes_most.saturating_sub(nodes).min(host_files);
        Space {
            blocks: free + ledger.used.div_ceil(block.max(1)),
            free,
            files: files_free + nodes,
            files_free,
        }
    }

    /// Accounts for a window that is about to show `file` from `offset` on: the holes that stores into it may fill.
    pub(crate) fn show(&self, chunk: u64, file: BorrowedFd<'_>, writable: bool) -> Result<(), Errno> {
        self.hide(chunk, None);
        let mut ledger = self.lock();
        let seen = Seen::of(file)?;
        let holes = ledger.holes(&seen);
        let before = ledger.windows.get(&seen.key).map_or(0, |count| holes.min(count * WINDOW_CHUNK));
        let more = holes.min(WINDOW_CHUNK).min(holes - before);
        if writable {
            self.take(&mut ledger, more, 0)?;
            ledger.used -= more;
            *ledger.windows.entry(seen.key).or_default() += 1;
        }
        *ledger.held.entry(seen.key).or_default() += 1;
        ledger.chunks.insert(chunk, (seen.key, writable));
        if writable {
            ledger.settle(&seen);
        }
        Ok(())
    }

    /// After a window was taken away, which showed `file`.
    pub(crate) fn hide(&self, chunk: u64, file: Option<BorrowedFd<'_>>) {
        let mut ledger = self.lock();
        let Some((key, writable)) = ledger.chunks.remove(&chunk) else { return };
        if writable {
            if let Some(count) = ledger.windows.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    ledger.windows.remove(&key);
                }
            }
            if let Some(seen) = file.and_then(|file| Seen::of(file).ok()) {
                ledger.settle(&seen);
            }
        }
        ledger.let_go(key);
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> (u64, usize) {
        let ledger = self.lock();
        assert_eq!(ledger.nodes_reserved, 0);
        (ledger.used, ledger.charged.len())
    }
}

fn nodes_most(limit: u64) -> u64 {
    (limit / NODE_BYTES).max(NODES_LEAST)
}

/// The size of a view, in blocks and files, as `statfs(2)` shows it.
#[derive(Debug)]
pub(super) struct Space {
    pub blocks: u64,
    pub free: u64,
    pub files: u64,
    pub files_free: u64,
}

impl Ledger {
    /// Sets a node's charge to the space it takes up.
    fn settle(&mut self, seen: &Seen) {
        let mut bytes = seen.blocks;
        if seen.is_file() {
            if !self.by_blocks.contains(&seen.key) {
                // Some file systems (XFS) keep more blocks for a file that grows, and take them back by themselves.
                bytes = bytes.min(seen.size);
            }
            if let Some(windows) = self.windows.get(&seen.key) {
                // Stores into mapped pages fill holes at any time.
                bytes += (windows * WINDOW_CHUNK).min(self.holes(seen));
            }
        }
        let before = self.charged.insert(seen.key, bytes).unwrap_or(0);
        self.used = self.used.saturating_sub(before).saturating_add(bytes);
        match (seen.has_name, seen.kind) {
            // A directory that was removed does not come back, and its count of links means nothing.
            (true, libc::S_IFDIR) => {}
            (true, _) => _ = self.nameless.remove(&seen.key),
            (false, _) => self.unnamed(seen),
        }
    }

    /// The most that may be holes below a file's end. Blocks behind the end fill none of them.
    fn holes(&self, seen: &Seen) -> u64 {
        let filled = if self.by_blocks.contains(&seen.key) { 0 } else { seen.blocks };
        seen.size.saturating_sub(filled)
    }

    /// Bytes of new holes that windows may fill once a file that they show has grown.
    fn growth(&self, seen: &Seen, size: u64) -> u64 {
        let windows = self.windows.get(&seen.key).copied().unwrap_or(0);
        whole_blocks(size).saturating_sub(seen.size).min(windows.saturating_mul(WINDOW_CHUNK))
    }

    fn unnamed(&mut self, seen: &Seen) {
        if seen.has_name || !self.charged.contains_key(&seen.key) {
            return;
        }
        if self.is_held(seen.key) {
            self.nameless.insert(seen.key);
        } else {
            self.give_back(seen.key);
        }
    }

    fn is_held(&self, key: Key) -> bool {
        let former = self.renumbered.get(&key);
        self.held.contains_key(&key) || former.is_some_and(|former| self.held.contains_key(former))
    }

    fn give_back(&mut self, key: Key) {
        self.used = self.used.saturating_sub(self.charged.remove(&key).unwrap_or(0));
        self.nameless.remove(&key);
        self.by_blocks.remove(&key);
        self.renumbered.remove(&key);
    }

    fn let_go(&mut self, key: Key) {
        if let Some(count) = self.held.get_mut(&key) {
            *count -= 1;
            if *count > 0 {
                return;
            }
            self.held.remove(&key);
        }
        let renumbered = self.renumbered.iter().filter(|(_, former)| **former == key).map(|(new, _)| *new);
        let all: Vec<Key> = renumbered.chain([key]).collect();
        for key in all {
            if self.nameless.contains(&key) && !self.is_held(key) {
                self.give_back(key);
            }
        }
    }
}

impl Held {
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > 0
    }

    /// Reserves the space that writing `len` bytes at `offset` may take. Result: how many of them there is room for,
    /// and the bytes reserved.
    pub(super) fn reserve(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(u64, u64), Errno> {
        let start = offset - offset % BLOCK;
        let end = whole_blocks(offset.saturating_add(len));
        let mut ledger = self.quota.lock();
        if ledger.windows.contains_key(&self.key) {
            let growth = ledger.growth(&Seen::of(fd)?, end);
            let bytes = (end - start).saturating_add(growth);
            return self.quota.take(&mut ledger, bytes, 0).map(|()| (len, bytes));
        }
        let room = self.quota.room(&ledger) / BLOCK * BLOCK;
        let bytes = (end - start).min(room);
        let fits = start.saturating_add(bytes).saturating_sub(offset).min(len);
        if fits == 0 && len > 0 {
            return Err(Errno(libc::ENOSPC));
        }
        ledger.used += bytes;
        Ok((fits, bytes))
    }

    /// After a write for which `bytes` were reserved.
    pub(super) fn wrote(&self, fd: BorrowedFd<'_>, bytes: u64, measure: bool) {
        let mut ledger = self.quota.lock();
        let pending = self.pending.load(Ordering::Relaxed).saturating_add(bytes);
        self.pending.store(pending, Ordering::Relaxed);
        if measure || pending > PENDING_MAX {
            self.measure_locked(&mut ledger, fd);
        }
    }

    /// Sets the charge to the space that the file takes up.
    pub(super) fn measure(&self, fd: BorrowedFd<'_>) {
        self.measure_locked(&mut self.quota.lock(), fd);
    }

    fn measure_locked(&self, ledger: &mut Ledger, fd: BorrowedFd<'_>) {
        if let Ok(seen) = Seen::of(fd) {
            ledger.used = ledger.used.saturating_sub(self.pending.swap(0, Ordering::Relaxed));
            ledger.settle(&seen);
        }
    }

    /// The handle is about to be closed.
    pub(super) fn let_go(&self, fd: BorrowedFd<'_>) {
        let mut ledger = self.quota.lock();
        if self.is_pending() {
            self.measure_locked(&mut ledger, fd);
            ledger.used = ledger.used.saturating_sub(self.pending.swap(0, Ordering::Relaxed));
        }
        ledger.let_go(self.key);
    }
}
