//! A host's node as the VFS uses it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::Ordering;

use crate::fs::file::{File, FileOps, OpenFlags};
use crate::fs::inode::{
    Attachment, AttrChange, CachePolicy, Inode, LinkTarget, NewNode, NodeKind, S_IFBLK, S_IFCHR, S_IFDIR,
    S_IFIFO, S_IFLNK, S_IFREG, Stat,
};
use crate::fs::locks::held::HostView;
use crate::fs::opens::Opens;
use crate::fs::special;
use machine::errno::{Errno, Result};
use machine::host;
use machine::host::Handle;

use super::common::{Common, outlives_handles};
use super::file::{self, HostFile};
use super::open_dir::HostDir;
use super::{HostInode, NodeName, host_inode};

impl Inode for HostInode {
    fn direct_align(&self) -> u32 {
        if self.kind == S_IFREG { file::DIRECT_ALIGN } else { 0 }
    }
    fn stat(&self) -> Result<Stat> {
        self.host_stat(None).map(|stat| self.shown(&stat))
    }
    fn protection(&self) -> Result<Stat> {
        match self.known_protection() {
            Some(stat) => Ok(self.shown(&stat)),
            None => self.stat(),
        }
    }
    fn kind(&self) -> u32 {
        self.kind
    }
    fn cache_policy(&self) -> CachePolicy {
        if self.fs.shared { CachePolicy::Revalidate } else { CachePolicy::Trust }
    }
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if self.kind != S_IFDIR {
            return Err(Errno::ENOTDIR);
        }
        let stat = match self.came_ahead(name).or_else(|| self.stat_with_next(name)) {
            Some(stat) => stat,
            None => self.stat_name(name)?,
        };
        Ok(self.fs.node(self, name, &stat)?)
    }
    fn stat_listed(&self, name: &[u8]) -> Option<Stat> {
        self.stat_ahead(name)
    }
    fn create(&self, name: &[u8], kind: NodeKind, new: NewNode) -> Result<Arc<dyn Inode>> {
        self.create_node(name, kind, new)
    }
    fn mkdir(&self, name: &[u8], new: NewNode) -> Result<Arc<dyn Inode>> {
        self.make_dir(name, new)
    }
    fn symlink(&self, name: &[u8], target: &[u8], new: NewNode) -> Result<Arc<dyn Inode>> {
        self.make_symlink(name, target, new)
    }
    fn link(&self, name: &[u8], node: &Arc<dyn Inode>) -> Result<()> {
        self.make_link(name, host_inode(node)?)
    }
    fn unlink(&self, name: &[u8]) -> Result<()> {
        self.leave_lower();
        let result = host::unlink(&*self.handle()?, name, 0);
        self.invalidate();
        result
    }
    fn rmdir(&self, name: &[u8]) -> Result<()> {
        const AT_REMOVEDIR: u32 = 0x200;
        self.leave_lower();
        let result = host::unlink(&*self.handle()?, name, AT_REMOVEDIR);
        self.invalidate();
        result
    }
    fn rename(&self, old: &[u8], new_dir: &Arc<dyn Inode>, new: &[u8], flags: u32) -> Result<()> {
        let new_dir = host_inode(new_dir)?;
        self.leave_lower();
        new_dir.leave_lower();
        let result = host::rename(&*self.handle()?, old, &*new_dir.handle()?, new, flags);
        self.invalidate();
        new_dir.invalidate();
        result
    }
    fn tmpfile(&self, new: NewNode) -> Result<Arc<dyn Inode>> {
        self.make_tmpfile(new)
    }
    fn before_unlink(&self, dir: &Arc<dyn Inode>, name: &[u8], used: bool) {
        if (used || outlives_handles(self.kind)) && self.is_at(dir, name) {
            // Before the handle is looked for: from then on it is not given up.
            self.loses_name.store(true, Ordering::SeqCst);
            // Failing means that the node is out of reach later: the calls then say so.
            let _ = self.handle();
        }
    }
    fn after_unlink(&self, dir: &Arc<dyn Inode>, name: &[u8]) {
        self.unlinked(dir, name);
        self.invalidate();
        let fresh = self.fresh.lock().take();
        drop(fresh);
        if outlives_handles(self.kind) && self.is_nameless() {
            self.common().forget();
        }
        self.forget_if_unreachable();
    }
    fn moved(&self, dir: &Arc<dyn Inode>, name: &[u8]) {
        if let Some(dir) = host_inode(dir).ok().and_then(|dir| dir.me.upgrade()) {
            self.set_name(NodeName::Known { dir, name: name.into() });
            // It may be the one that has moved.
            self.set_other_name(NodeName::Unknown);
        }
        self.invalidate();
    }
    fn attachment(&self) -> Option<&Attachment> {
        Some(&self.common().attachment)
    }
    fn readlink(&self) -> Result<LinkTarget> {
        if self.kind != S_IFLNK {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = self.link.get() {
            return Ok(LinkTarget::Text(target.clone()));
        }
        let below = self.named().ok().and_then(|(dir, name)| dir.readlink_below(&name));
        let target = below.map_or_else(|| self.reach(host::readlink), Ok)?;
        Ok(LinkTarget::Text(self.link.call_once(|| target).clone()))
    }
    fn accessed(&self, _strictly: bool) {
        self.was_read();
    }
    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        // A write restores the mode it found before, and must not restore one older than this change.
        let _io = self.common().io.lock();
        let mut change = *change;
        if change.set_id.is_some() {
            let stat = self.host_stat(None)?;
            change.mode = change.mode_for(stat.mode, stat.gid);
        }
        let mut cut = Ok(());
        if let (Some(size), true) = (change.size, change.mode.is_some()) {
            // The host cuts a file last, and takes the bits away by its own rules.
            cut = self.change(&AttrChange { size: Some(size), ..AttrChange::default() }, None);
            change.size = None;
        }
        let result = cut.and_then(|()| self.change(&change, None));
        self.changed();
        result
    }
    fn is_mapped_writable(&self) -> bool {
        Self::is_mapped_writable(self)
    }
    fn opens(&self) -> Option<&Opens> {
        Some(&self.common().opens)
    }
    fn lock_key(&self) -> usize {
        Arc::as_ptr(self.common()) as usize
    }
    fn watch_key(&self) -> Option<usize> {
        let known = self.common.get().cloned().or_else(|| Common::known(self.file_id()));
        known.map(|common| Arc::as_ptr(&common) as usize)
    }
    fn tells_its_end(&self) -> bool {
        true
    }
    fn watched_by(&self) -> Option<Result<Arc<Handle>>> {
        self.fs.is_volume.then(|| match self.node_handle() {
            Some(node) => Ok(node),
            // A directory's is not kept: it would keep the host from telling of the directory's end.
            None => self.open_path().map(Arc::new),
        })
    }
    fn host_locks(&self) -> Option<HostView<'_>> {
        let is_locked = self.fs.is_volume && matches!(self.kind, S_IFREG | S_IFDIR);
        is_locked.then(|| HostView { locks: &self.common().locks, may_exclude: !self.fs.is_read_only })
    }
    fn open_to_lock(&self, file: &File, writes: bool) -> Result<Handle> {
        self.open_again(file, writes)
    }
    fn spare_handle(&self) {
        self.close_own();
    }
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        match self.kind {
            S_IFREG => {
                let handle = self.open_content(flags)?;
                Ok(Box::new(HostFile::new(self, handle, flags.writable())?))
            }
            S_IFDIR => Ok(Box::new(HostDir::open(self)?)),
            S_IFIFO => special::open_fifo(&(self as Arc<dyn Inode>), flags),
            S_IFCHR | S_IFBLK => {
                let (rdev, is_block) = (self.stat()?.rdev, self.kind == S_IFBLK);
                special::open_device(&(self as Arc<dyn Inode>), rdev, is_block, flags)
            }
            S_IFLNK => Err(Errno::ELOOP),
            _ => Err(Errno::ENXIO),
        }
    }
    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.read_xattr(name)
    }
    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        self.write_xattr(name, value, flags)
    }
    fn list_xattr(&self) -> Result<Vec<u8>> {
        self.xattr_names()
    }
    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.delete_xattr(name)
    }
    fn statfs(&self) -> Result<abi::hostcall::HostStatFs> {
        self.with_own_handle(host::statfs)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
