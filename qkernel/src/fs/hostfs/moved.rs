//! Trees of the host under another VMM, which shows them anew: on another file system the nodes have other numbers.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::fs::file::OpenFlags;
use crate::fs::hostfs::common::Common;
use crate::fs::hostfs::lower::LowerSide;
use crate::fs::hostfs::{HostFs, HostInode, TREES};
use crate::fs::inode::Inode;
use crate::fs::notify;
use machine::errno::Errno;
use machine::host;
use machine::objects::Origin;

/// Most directories above a node that count.
const DEPTH_MAX: usize = 1 << 16;

/// Asks for the numbers that all nodes have now, and has the host lock and watch files again. The handles are those of this VMM already, and
/// no task runs. An error is a sentence.
pub fn look_anew() -> Result<(), String> {
    let trees: Vec<Arc<HostFs>> = TREES.lock().iter().filter_map(Weak::upgrade).collect();
    trees.iter().filter_map(|tree| tree.lower.as_ref()).for_each(LowerSide::end);
    let mut nodes: Vec<Arc<HostInode>> = trees.iter().flat_map(|tree| tree.nodes_now()).collect();
    // Directories first: what is opened by them is compared with what they are.
    nodes.sort_by_cached_key(|node| node.depth());
    for node in &nodes {
        // One whose name nobody has any more is found by nobody.
        if let Ok(stat) = node.reach(host::stat) {
            node.identity.set(&stat);
            node.attr.lock().store(&stat, None);
        }
    }
    trees.iter().for_each(|tree| tree.list_anew(&nodes));
    Common::list_anew(nodes.iter().filter_map(|node| Some((node.file_id(), node.common.get()?.clone()))));
    let mut locked = BTreeSet::new();
    for node in &nodes {
        // Several views of a file have its locks in common.
        if node.common.get().is_some_and(|common| locked.insert(Arc::as_ptr(common).addr())) {
            node.lock_anew()?;
        }
    }
    notify::feed::revive(&|key| {
        let is_it = |node: &&Arc<HostInode>| {
            node.common.get().is_some_and(|common| Arc::as_ptr(common).addr() == key)
        };
        nodes.iter().find(is_it).and_then(|node| node.watched_by()?.ok())
    });
    Ok(())
}

impl HostInode {
    /// Has the host lock the file again as the sandbox had.
    fn lock_anew(&self) -> Result<(), String> {
        let Some(common) = self.common.get() else { return Ok(()) };
        let open = |writes: bool| {
            let flags = if writes { OpenFlags::RDWR } else { OpenFlags::empty() }.bits();
            self.reach(|at, name| host::open(at, name, flags, 0, Origin::Locks))
        };
        let key = Arc::as_ptr(common).addr();
        common.locks.lock_anew(key, &open).map_err(|error| match error {
            Errno::EAGAIN | Errno::EACCES => {
                "somebody else has locked a file that the sandbox had locked".into()
            }
            error => format!("cannot lock a file again: {error:?}"),
        })
    }

    /// How many directories are above it.
    fn depth(&self) -> usize {
        let above = |dir: &Arc<Self>| dir.named().ok().map(|(dir, _)| dir);
        let first = self.me.upgrade();
        core::iter::successors(first, above).take(DEPTH_MAX).count()
    }
}

impl HostFs {
    fn nodes_now(&self) -> Vec<Arc<HostInode>> {
        self.nodes.lock().values().filter_map(Weak::upgrade).collect()
    }

    fn list_anew(self: &Arc<Self>, all: &[Arc<HostInode>]) {
        let own = all.iter().filter(|node| Arc::ptr_eq(&node.fs, self));
        let new = own.map(|node| (node.id(), Arc::downgrade(node))).collect();
        let old = core::mem::replace(&mut *self.nodes.lock(), new);
        drop(old);
    }
}
