//! Handles of files that were read lately: opening such a file again asks the host nothing.
//!
//! Only for files the sandbox alone changes, opened for reading. On an overlay, opening a file for writing can copy it
//! up, so that the new handle leads to another file than the handles opened before. A kept handle therefore ends with
//! every change that may have this effect.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};

use crate::fs::file::OpenFlags;
use crate::fs::hostfs::HostInode;
use crate::fs::inode::S_IFREG;
use machine::host::Handle;
use machine::sync::{Rank, SpinLock};

/// Most handles kept.
const MOST: usize = 64;

/// The inodes whose handles are kept, the oldest first.
static RECENT: SpinLock<VecDeque<Weak<HostInode>>> = SpinLock::new(Rank::Leaf, VecDeque::new());

/// The handle that a node keeps.
#[derive(Default)]
pub(super) struct Kept {
    handle: Option<Arc<Handle>>,
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
        }
        let oldest = {
            let mut recent = RECENT.lock();
            recent.push_back(self.me.clone());
            if recent.len() > MOST { recent.pop_front() } else { None }
        };
        if let Some(oldest) = oldest.and_then(|node| node.upgrade()) {
            let handle = oldest.kept.lock().handle.take();
            drop(handle);
        }
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

/// Gives all of them up.
pub(super) fn forget_all() {
    let recent = core::mem::take(&mut *RECENT.lock());
    for node in recent.iter().filter_map(Weak::upgrade) {
        let handle = node.kept.lock().handle.take();
        drop(handle);
    }
}
