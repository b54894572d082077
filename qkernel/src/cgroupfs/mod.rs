//! The file system of control groups (`cgroup2`): a directory for each group, with the files of its controllers.
//!
//! A container sees its own group as the root, as with a cgroup namespace of its own, and makes groups below where its mount
//! is writable. Limits of the root are the runtime's: they are shown, and writing them is refused, as on Linux where groups
//! are delegated (`nsdelegate`). `docs/oci.md` says which values of groups below are held to and which are kept or refused.

mod dir;
mod file;
mod members;
mod own;
mod processes;
mod resources;
mod table;

use alloc::sync::{Arc, Weak};

use crate::creds::Creds;
use crate::fs::access::{self, Want};
use crate::fs::inode::{Inode, S_IFREG, Stat};
use crate::task::container::Container;
use crate::task::context::Ctx;
use crate::task::groups::{GroupId, Groups};
use machine::errno::{Errno, Result};

use abi::hostcall::HostStatFs;
use dir::Dir;

/// `st_dev` of all of them.
const DEV: u64 = 0xf2;
/// `CGROUP2_SUPER_MAGIC`.
const MAGIC: u64 = 0x6367_7270;
/// Permission bits of `cgroup.procs`.
const PROCS_MODE: u32 = 0o644;
const PROCS: &str = "cgroup.procs";

/// A group of a container that may have ended.
#[derive(Clone)]
struct WeakGroup {
    container: Weak<Container>,
    groups: Arc<Groups>,
    id: GroupId,
}

/// A group whose container is kept for as long as something is done with the group.
struct Group {
    container: Arc<Container>,
    id: GroupId,
}

impl WeakGroup {
    /// `ENODEV`: the container has ended.
    fn upgrade(&self) -> Result<Group> {
        Ok(Group { container: self.container.upgrade().ok_or(Errno::ENODEV)?, id: self.id })
    }

    fn is_root(&self) -> bool {
        self.id == self.groups.root()
    }

    fn at(&self, id: GroupId) -> Self {
        Self { id, ..self.clone() }
    }

    /// A number that stays the same; 0 is the directory's.
    fn ino(&self, file: usize) -> u64 {
        (self.id.0 - self.groups.root().0) << 8 | (file as u64 + 1)
    }
}

impl Group {
    fn groups(&self) -> &Arc<Groups> {
        &self.container.groups
    }

    fn is_root(&self) -> bool {
        self.id == self.groups().root()
    }
}

/// The root of a container's file system of control groups.
pub fn root(container: &Arc<Container>) -> Arc<dyn Inode> {
    let groups = container.groups.clone();
    let group = WeakGroup { container: Arc::downgrade(container), id: groups.root(), groups };
    let root = Dir::node(group.clone());
    // Only a removed group has none, and the root is not removed.
    group.groups.dir(group.id, || root.clone()).unwrap_or(root)
}

/// The group whose directory is open as `fd`, for a new process of the caller (`CLONE_INTO_CGROUP`). `EBADF`: it is no group of
/// the caller's container. `ENOENT`: it was removed. `EACCES`: the caller may not move processes there.
pub fn target(cx: &Ctx<'_>, fd: i32) -> Result<GroupId> {
    let file = cx.opened(fd)?;
    let dir = file.path.as_ref().and_then(|path| path.inode.as_any().downcast_ref::<Dir>());
    let dir = dir.filter(|dir| Arc::ptr_eq(&dir.group.groups, &cx.container().groups)).ok_or(Errno::EBADF)?;
    let creds = cx.task.creds.get();
    let is_there = |error| if error == Errno::ENODEV { Errno::ENOENT } else { error };
    check_write(&dir.group.groups, dir.group.id, &creds).map_err(is_there)?;
    check_move(&dir.group.groups, cx.task.process.member.group(), dir.group.id, &creds)?;
    Ok(dir.group.id)
}

/// Whether a task with these credentials may write to the group's `cgroup.procs`.
fn check_write(groups: &Groups, id: GroupId, creds: &Creds) -> Result<()> {
    let (owner, _) = groups.owner(id, PROCS, PROCS_MODE)?;
    let stat = Stat { mode: S_IFREG | owner.mode, uid: owner.uid, gid: owner.gid, ..Stat::default() };
    access::permitted(creds, &stat, Want::WRITE)
}

/// Whoever moves a process needs the right to do so in the lowest group around both its places.
fn check_move(groups: &Groups, from: GroupId, to: GroupId, creds: &Creds) -> Result<()> {
    check_write(groups, groups.common(from, to), creds)
}

fn statfs() -> HostStatFs {
    HostStatFs { kind: MAGIC, bsize: 4096, namelen: 255, frsize: 4096, ..Default::default() }
}
