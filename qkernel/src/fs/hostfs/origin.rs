//! Where handles of nodes come from, for another VMM.

use crate::fs::hostfs::{HostInode, NodeName};
use crate::fs::inode::{S_IFMT, S_IFREG};
use abi::hostcall::HostStat;
use machine::host::{self, Handle};
use machine::objects::{Named, Node, Origin};

impl HostInode {
    /// The origin of a handle by which the node is open.
    pub(super) fn origin(&self, flags: u32) -> Origin {
        Origin::Node { node: self.me.clone(), flags, is_lower: false }
    }

    /// The origin of a handle of the directory below ([`super::lower`]).
    pub(super) fn origin_below(&self, flags: u32) -> Origin {
        Origin::Node { node: self.me.clone(), flags, is_lower: true }
    }
}

impl Node for HostInode {
    fn named(&self) -> Option<Named> {
        match &*self.name.lock() {
            NodeName::Known { dir, name } => Some(Named { dir: dir.clone(), name: name.clone() }),
            NodeName::Unknown => None,
        }
    }

    fn own_handle(&self) -> Option<u32> {
        self.node_handle().as_deref().map(Handle::raw)
    }

    fn root_handle(&self) -> Option<u32> {
        // Not with the lock held: the root has one of its own for this.
        let root = self.fs.root.lock().upgrade();
        root?.own_handle()
    }

    fn is_by_name(&self, now: &HostStat) -> bool {
        let found = HostInode::named(self).and_then(|(dir, name)| host::stat(&*dir.handle()?, &name));
        found.is_ok_and(|found| (found.dev, found.ino) == (now.dev, now.ino))
    }

    fn note(&self, now: &HostStat) {
        self.attr.lock().store(now, None);
    }

    fn is_noted(&self, now: &HostStat) -> bool {
        let noted = self.attr.lock().noted();
        let content = |stat: &HostStat| (stat.size, stat.mtime_ns);
        now.mode & S_IFMT == self.kind && (self.kind != S_IFREG || content(now) == content(&noted))
    }
}
