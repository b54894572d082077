//! Handles of files that were read lately: opening such a file again asks the host nothing.
//!
//! Only for files the sandbox alone changes, opened for reading. On an overlay, opening a file for writing can copy it
//! up, so that the new handle leads to another file than the handles opened before. A kept handle therefore ends with
//! every change that may have this effect.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::mem;
use core::sync::atomic::Ordering;

use crate::fs::file::OpenFlags;
use crate::fs::hostfs::HostInode;
use crate::fs::inode::{S_IFDIR, S_IFREG};
use machine::handles;
use machine::host::Handle;
use machine::sync::{Rank, SpinLock};

/// Most handles kept: a program's start, or a search of a tree, opens some hundred files, and the next one the same. For each the
/// host keeps some 1.5 KiB. The VMM's table of descriptors has room for as many and some more before it has to grow.
const MOST: usize = 512;
/// … and of the handles that there may be, one of so many.
const PART: usize = 8;

/// The inodes whose handles are kept, the oldest first.
static RECENT: SpinLock<VecDeque<Weak<HostInode>>> = SpinLock::new(Rank::Leaf, VecDeque::new());

/// The handle that a node keeps.
#[derive(Default)]
pub(super) struct Kept {
    handle: Option<Arc<Handle>>,
    /// The node is among the recent ones.
    is_listed: bool,
    /// Changes so far.
    changes: u64,
}

/// The node kept no handle: the number of changes at that moment, for [`HostInode::keep`].
pub(super) struct Missed(u64);

impl HostInode {
    /// The kept handle; else, if one may be kept, the value that [`Self::keep`] needs.
    pub(super) fn kept(&self, flags: OpenFlags) -> Result<Arc<Handle>, Option<Missed>> {
        let special = OpenFlags::TRUNC | OpenFlags::DSYNC | OpenFlags::SYNC_BIT;
        if self.kind != S_IFREG || self.fs.shared || flags.writable() || flags.intersects(special) {
            return Err(None);
        }
        let kept = self.kept.lock();
        kept.handle.clone().ok_or(Some(Missed(kept.changes)))
    }

    /// Keeps a handle that was opened after [`Self::kept`] found none, unless the file was changed since.
    pub(super) fn keep(&self, handle: &Arc<Handle>, missed: &Missed) {
        {
            let mut kept = self.kept.lock();
            if kept.changes != missed.0 || kept.handle.is_some() {
                return;
            }
            kept.handle = Some(handle.clone());
            if mem::replace(&mut kept.is_listed, true) {
                return;
            }
        }
        let oldest = {
            let mut recent = RECENT.lock();
            recent.push_back(self.me.clone());
            if recent.len() > most() { recent.pop_front() } else { None }
        };
        if let Some(oldest) = oldest.and_then(|node| node.upgrade()) {
            oldest.let_go();
        }
    }

    /// It is not among the recent ones any more.
    fn let_go(&self) {
        let handle = {
            let mut kept = self.kept.lock();
            kept.is_listed = false;
            kept.handle.take()
        };
        drop(handle);
    }

    /// Closes a directory's own handle, if it has a name to be opened by again.
    pub(super) fn close_own(&self) {
        if self.kind != S_IFDIR || self.named().is_err() {
            return;
        }
        let _closed = {
            let mut node = self.node.lock();
            // Set before the handle is looked for whose name goes: it is still there, or is opened once more.
            if self.loses_name.load(Ordering::SeqCst) { None } else { node.take() }
        };
    }

    /// The file was, or may have been, changed.
    pub(super) fn changed(&self) {
        let handle = {
            let mut kept = self.kept.lock();
            kept.changes += 1;
            kept.handle.take()
        };
        drop(handle);
    }
}

fn most() -> usize {
    MOST.min(handles::most() / PART)
}

/// Closes all of them.
pub fn close_kept() {
    let recent = mem::take(&mut *RECENT.lock());
    recent.iter().filter_map(Weak::upgrade).for_each(|node| node.let_go());
}
