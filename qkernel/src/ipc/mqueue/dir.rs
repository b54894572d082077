//! The file system `mqueue`, whose files are a namespace's queues.

use abi::hostcall::HostStatFs;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::caller;
use crate::fs::file::{DirEntry, FileOps, OpenFlags};
use crate::fs::inode::{AttrChange, CachePolicy, Inode, NewNode, NodeKind, S_IFDIR, S_IFREG, Stat};
use crate::ipc::mqueue::file::QueueFile;
use crate::ipc::mqueue::{NewQueue, Queue};
use crate::ipc::{IpcNamespace, Who};
use crate::limits::RLIMIT_MSGQUEUE;
use crate::pseudo::{DirFile, InodeNumbers, Listing};
use machine::errno::{Errno, Result};

/// `MQUEUE_MAGIC`.
const MAGIC: u64 = 0x1980_0202;
const DT_REG: u8 = 8;

/// The root. The namespace outlives no mount of it.
struct Root(Weak<IpcNamespace>);

/// The root directory of a namespace's queues.
pub fn root(namespace: &Arc<IpcNamespace>) -> Arc<dyn Inode> {
    Arc::new(Root(Arc::downgrade(namespace)))
}

fn statfs() -> HostStatFs {
    HostStatFs { kind: MAGIC, bsize: 4096, namelen: 255, frsize: 4096, ..Default::default() }
}

impl Root {
    fn namespace(&self) -> Result<Arc<IpcNamespace>> {
        self.0.upgrade().ok_or(Errno::ENOENT)
    }
}

impl Inode for Root {
    fn stat(&self) -> Result<Stat> {
        Ok(self.namespace()?.queues.lock().root_stat())
    }
    fn kind(&self) -> u32 {
        S_IFDIR
    }
    fn cache_policy(&self) -> CachePolicy {
        CachePolicy::Never
    }
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let namespace = self.namespace()?;
        let queue = namespace.queues.lock().names.get(name).cloned().ok_or(Errno::ENOENT)?;
        Ok(Arc::new(Node(queue)))
    }
    fn create(&self, name: &[u8], kind: NodeKind, new: NewNode) -> Result<Arc<dyn Inode>> {
        if kind != NodeKind::Regular {
            return Err(Errno::EPERM);
        }
        let caller = caller::current();
        let most_bytes = caller.soft_limit(RLIMIT_MSGQUEUE);
        let new = NewQueue { mode: new.mode, attr: None, most_bytes };
        let queue = self.namespace()?.mq_make(&Who::of(&*caller), name, &new)?;
        Ok(Arc::new(Node(queue)))
    }
    fn unlink(&self, name: &[u8]) -> Result<()> {
        self.namespace()?.mq_unlink(&Who::of(&*caller::current()), name)
    }
    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        let namespace = self.namespace()?;
        let mut queues = namespace.queues.lock();
        let root = &mut queues.root;
        root.mode = change.mode.map_or(root.mode, |mode| mode & 0o7777);
        root.uid = change.uid.unwrap_or(root.uid);
        root.gid = change.gid.unwrap_or(root.gid);
        Ok(())
    }
    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        Ok(Box::new(DirFile::new(self)))
    }
    fn statfs(&self) -> Result<HostStatFs> {
        Ok(statfs())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Listing for Root {
    fn numbers(&self) -> InodeNumbers {
        InodeNumbers::ROOT
    }

    fn entries(&self, from: u64, add: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        // A queue's number is its position: numbers grow, so those that come meanwhile are behind.
        let namespace = self.namespace()?;
        let mut all: Vec<(u64, Box<[u8]>)> = {
            let queues = namespace.queues.lock();
            queues.names.iter().map(|(name, queue)| (queue.ino + 2, name.clone())).collect()
        };
        all.sort_unstable();
        for (at, name) in all.iter().filter(|(at, _)| *at >= from) {
            if !add(&DirEntry { name, ino: at - 2, next: at + 1, kind: DT_REG }) {
                break;
            }
        }
        Ok(())
    }
}

/// A queue's file.
struct Node(Arc<Queue>);

impl Inode for Node {
    fn stat(&self) -> Result<Stat> {
        Ok(self.0.stat())
    }
    fn kind(&self) -> u32 {
        S_IFREG
    }
    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        let mut state = self.0.state.lock();
        state.mode = change.mode.map_or(state.mode, |mode| mode & 0o777);
        state.uid = change.uid.unwrap_or(state.uid);
        state.gid = change.gid.unwrap_or(state.gid);
        Ok(())
    }
    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        Ok(Box::new(QueueFile { queue: self.0.clone() }))
    }
    fn statfs(&self) -> Result<HostStatFs> {
        Ok(statfs())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
