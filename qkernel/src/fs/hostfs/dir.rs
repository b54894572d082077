//! Making nodes in host directories.

use abi::hostcall::{HostStat, SET_GID, SET_MODE, SET_UID, SetAttr};
use alloc::sync::Arc;

use crate::fs::file::OpenFlags;
use crate::fs::hostfs::{HostInode, NodeName, host_inode, with_room};
use crate::fs::inode::{Inode, NewNode, NodeKind, S_IFDIR, S_IFIFO, S_IFLNK, S_IFSOCK};
use machine::errno::{Errno, Result};
use machine::host;
use machine::host::Handle;
use machine::objects::Origin;

impl HostInode {
    pub(super) fn is_at(&self, dir: &Arc<dyn Inode>, name: &[u8]) -> bool {
        self.name.lock().is(dir, name)
    }

    /// Drops an inode that has neither names nor handles: the host may give its number to another node.
    pub(super) fn forget_if_unreachable(&self) {
        if self.node_handle().is_some() || self.named().is_ok() {
            return;
        }
        let forgotten = {
            let mut nodes = self.fs.nodes.lock();
            match nodes.get(&self.id()) {
                Some(known) if core::ptr::eq(known.as_ptr(), self) => nodes.remove(&self.id()),
                _ => None,
            }
        };
        drop(forgotten);
    }

    pub(super) fn create_node(&self, name: &[u8], kind: NodeKind, new: NewNode) -> Result<Arc<dyn Inode>> {
        let dir = self.handle()?;
        let special = match kind {
            NodeKind::Regular => return self.create_file(&dir, name, new),
            NodeKind::Fifo => S_IFIFO,
            NodeKind::Socket => S_IFSOCK,
            NodeKind::CharDevice(_) | NodeKind::BlockDevice(_) => return Err(Errno::EPERM),
        };
        self.leave_lower();
        host::mknod(&dir, name, new.mode & 0o7777, special)?;
        self.made(&dir, name, new)
    }

    fn create_file(&self, dir: &Handle, name: &[u8], new: NewNode) -> Result<Arc<dyn Inode>> {
        let flags = (OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::RDWR).bits();
        self.leave_lower();
        let handle = with_room(|| host::open(dir, name, flags, new.mode & 0o7777, Origin::Unnamed))?;
        let stat = own(&handle, b"", host::stat_handle(&handle)?, new)?;
        self.invalidate();
        let inode = self.fs.new_node(self, name, &stat)?;
        handle.comes_from(inode.origin(OpenFlags::RDWR.bits()));
        *inode.fresh.lock() = Some(Arc::new(handle));
        Ok(inode)
    }

    pub(super) fn make_dir(&self, name: &[u8], new: NewNode) -> Result<Arc<dyn Inode>> {
        let dir = self.handle()?;
        self.leave_lower();
        host::mkdir(&dir, name, new.mode & 0o1777)?;
        let made = self.made(&dir, name, new)?;
        host_inode(&made)?.is_made();
        Ok(made)
    }

    pub(super) fn make_symlink(&self, name: &[u8], target: &[u8], new: NewNode) -> Result<Arc<dyn Inode>> {
        let dir = self.handle()?;
        self.leave_lower();
        host::symlink(&dir, name, target)?;
        self.made(&dir, name, new)
    }

    /// The inode of a node just made by name.
    fn made(&self, dir: &Handle, name: &[u8], new: NewNode) -> Result<Arc<dyn Inode>> {
        self.invalidate();
        let stat = own(dir, name, host::stat(dir, name)?, new)?;
        Ok(self.fs.new_node(self, name, &stat)?)
    }

    pub(super) fn make_link(&self, name: &[u8], node: &HostInode) -> Result<()> {
        let dir = self.handle()?;
        self.leave_lower();
        node.leave_lower_above();
        let result = node.with_own_handle(|handle| host::link(handle, &dir, name));
        self.invalidate();
        node.invalidate();
        result?;
        let Some(dir) = self.me.upgrade() else { return Ok(()) };
        let new = NodeName::Known { dir, name: name.into() };
        if node.named().is_err() {
            node.set_name(new)
        } else {
            node.set_other_name(new)
        }
        Ok(())
    }

    pub(super) fn make_tmpfile(&self, new: NewNode) -> Result<Arc<dyn Inode>> {
        let dir = self.handle()?;
        self.leave_lower();
        let handle = with_room(|| host::tmpfile(&dir, OpenFlags::RDWR.bits(), new.mode & 0o7777))?;
        own(&handle, b"", host::stat_handle(&handle)?, new)?;
        Ok(self.fs.unnamed(handle)?)
    }
}

/// Sets the owner of a node that the VMM has made. A VMM that isn't privileged cannot; the files are then its own.
fn own(at: &Handle, name: &[u8], stat: HostStat, new: NewNode) -> Result<HostStat> {
    let is_link = stat.mode & crate::fs::inode::S_IFMT == S_IFLNK;
    let is_dir = stat.mode & crate::fs::inode::S_IFMT == S_IFDIR;
    let mode_kept = is_link || (stat.mode ^ new.mode) & if is_dir { 0o3777 } else { 0o7777 } == 0;
    if (stat.uid, stat.gid) == (new.uid, new.gid) && mode_kept {
        return Ok(stat);
    }
    let valid = SET_UID | SET_GID | if is_link { 0 } else { SET_MODE };
    let set = SetAttr { valid, mode: new.mode & 0o7777, uid: new.uid, gid: new.gid, ..SetAttr::default() };
    match host::set_attr(at, name, &set) {
        Ok(()) => host::stat(at, name),
        Err(Errno::EPERM | Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(stat),
        Err(error) => Err(error),
    }
}
