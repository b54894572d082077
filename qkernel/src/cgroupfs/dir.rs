//! The directory of a group.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use abi::hostcall::HostStatFs;

use crate::cgroupfs::file::FileNode;
use crate::cgroupfs::table::{self, FILES};
use crate::cgroupfs::{DEV, WeakGroup, statfs};
use crate::fs::file::{DirEntry, FileOps, OpenFlags};
use crate::fs::inode::{AttrChange, CachePolicy, Inode, NewNode, NodeKind, S_IFDIR, S_IFREG, Stat};
use crate::pseudo::{DirFile, Listing, dirent_type};
use crate::task::groups::{DIR, GroupId, NewGroup, Owner, file_key};
use machine::errno::{Errno, Result};
use machine::sched::work;

pub(super) struct Dir {
    pub group: WeakGroup,
}

impl Dir {
    pub fn node(group: WeakGroup) -> Arc<dyn Inode> {
        Arc::new(Self { group })
    }

    /// The directory of another group.
    fn of(&self, id: GroupId) -> Result<Arc<dyn Inode>> {
        let group = self.group.at(id);
        self.group.groups.dir(id, || Self::node(group))
    }
}

impl Inode for Dir {
    fn stat(&self) -> Result<Stat> {
        let WeakGroup { groups, id, .. } = &self.group;
        let (owner, made_ns) = groups.owner(*id, DIR, 0)?;
        Ok(Stat {
            dev: DEV,
            ino: self.group.ino(0),
            mode: S_IFDIR | owner.mode,
            nlink: u32::try_from(groups.count_below(*id) + 2).unwrap_or(u32::MAX),
            uid: owner.uid,
            gid: owner.gid,
            blksize: 4096,
            atime_ns: made_ns,
            mtime_ns: made_ns,
            ctime_ns: made_ns,
            ..Stat::default()
        })
    }

    fn kind(&self) -> u32 {
        S_IFDIR
    }

    /// Files come and go with the controllers that the group above hands on.
    fn cache_policy(&self) -> CachePolicy {
        CachePolicy::Revalidate
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if let Some(number) = FILES.iter().position(|file| file.name.as_bytes() == name) {
            let has = self.group.groups.facts(self.group.id).map_err(|_| Errno::ENOENT)?.standing.has;
            return match FILES[number].is_shown(self.group.is_root(), has) {
                true => Ok(FileNode::node(self.group.clone(), number)),
                false => Err(Errno::ENOENT),
            };
        }
        self.of(self.group.groups.find(self.group.id, name)?).map_err(|_| Errno::ENOENT)
    }

    fn create(&self, _name: &[u8], kind: NodeKind, _new: NewNode) -> Result<Arc<dyn Inode>> {
        Err(if kind == NodeKind::Regular { Errno::EACCES } else { Errno::EPERM })
    }

    fn mkdir(&self, name: &[u8], new: NewNode) -> Result<Arc<dyn Inode>> {
        if name.contains(&b'\n') {
            return Err(Errno::EINVAL);
        }
        if FILES.iter().any(|file| file.name.as_bytes() == name) {
            return Err(Errno::EEXIST);
        }
        let owner = Owner { mode: new.mode & 0o7777, uid: new.uid, gid: new.gid };
        self.of(self.group.groups.make(self.group.id, &NewGroup { name, owner })?)
    }

    fn rmdir(&self, name: &[u8]) -> Result<()> {
        let group = self.group.upgrade().map_err(|_| Errno::ENOENT)?;
        let no_forks = || group.container.pids.tree.lock();
        self.group.groups.remove((self.group.id, name), &table::names(), no_forks)
    }

    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        self.group.groups.set_owner(self.group.id, DIR, 0, change)
    }

    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        Ok(Box::new(DirFile::new(self)))
    }

    fn lock_key(&self) -> usize {
        file_key(self.group.id, DIR)
    }

    fn tells_its_end(&self) -> bool {
        true
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.group.groups.xattr(self.group.id, keeps(name)?)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        self.group.groups.set_xattr(self.group.id, keeps(name)?, value, flags)
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        self.group.groups.list_xattrs(self.group.id)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.group.groups.remove_xattr(self.group.id, keeps(name)?)
    }

    fn statfs(&self) -> Result<HostStatFs> {
        Ok(statfs())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Access control lists and what else is the system's are not kept.
fn keeps(name: &[u8]) -> Result<&[u8]> {
    if name.starts_with(b"system.") { Err(Errno::EOPNOTSUPP) } else { Ok(name) }
}

impl Listing for Dir {
    fn numbers(&self) -> crate::pseudo::InodeNumbers {
        let parent = self.group.at(self.group.groups.parent(self.group.id));
        crate::pseudo::InodeNumbers { ino: self.group.ino(0), parent: parent.ino(0) }
    }

    fn check(&self) -> Result<()> {
        self.group.groups.facts(self.group.id).map(drop).map_err(|_| Errno::ENOENT)
    }

    fn entries(&self, from: u64, add: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let WeakGroup { groups, id, .. } = &self.group;
        let has = groups.facts(*id).map_err(|_| Errno::ENOENT)?.standing.has;
        let first = usize::try_from(from.saturating_sub(2)).unwrap_or(usize::MAX);
        for (number, file) in FILES.iter().enumerate().skip(first) {
            let next = number as u64 + 3;
            let (name, ino) = (file.name.as_bytes(), self.group.ino(number + 1));
            let kind = dirent_type(S_IFREG);
            if file.is_shown(self.group.is_root(), has) && !add(&DirEntry { name, ino, next, kind }) {
                return Ok(());
            }
        }
        // Groups follow in the order in which they were made.
        let base = FILES.len() as u64 + 2;
        let mut at = GroupId(groups.root().0.saturating_add(from.saturating_sub(base)));
        while let Some((id, name)) = groups.next_below(*id, at) {
            at = GroupId(id.0 + 1);
            let next = base + (at.0 - groups.root().0);
            let entry =
                DirEntry { name: &name, ino: self.group.at(id).ino(0), next, kind: dirent_type(S_IFDIR) };
            if !add(&entry) {
                return Ok(());
            }
            work::count_or_end(4)?;
        }
        Ok(())
    }
}
