//! Who may do what: permission bits, ownership and capabilities.

use alloc::sync::Arc;
use bitflags::bitflags;

use super::inode::{S_IFDIR, S_IFLNK, S_IFREG, S_ISGID, S_ISVTX};
use super::mount::Limits;
use super::{FsContext, Inode, Path, Stat};
use crate::errno::{Errno, Result};
use crate::syscall::Ctx;
use crate::task::creds::{CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, Creds};

bitflags! {
    /// What is wanted of a node; the bits of `access(2)`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Want: u32 {
        const EXEC = 1;
        const WRITE = 2;
        const READ = 4;
    }
}

/// A task's identity and place, as file-system calls need them.
pub struct Actor {
    pub creds: Arc<Creds>,
    pub fs: Arc<FsContext>,
}

impl Actor {
    /// The caller of a system call.
    pub fn of(cx: &Ctx<'_>) -> Self {
        Self { creds: cx.task.creds.get(), fs: cx.task.fs.get() }
    }
}

/// Whether `creds` may do `want` to a node with these attributes; `EACCES`.
pub fn permitted(creds: &Creds, stat: &Stat, want: Want) -> Result<()> {
    let bits = if stat.uid == creds.fsuid {
        stat.mode >> 6
    } else if creds.in_group(stat.gid) {
        stat.mode >> 3
    } else {
        stat.mode
    };
    if want.bits() & !bits & 7 == 0 {
        return Ok(());
    }
    let runnable = stat.is_dir() || stat.mode & 0o111 != 0;
    if creds.has(CAP_DAC_OVERRIDE) && (!want.contains(Want::EXEC) || runnable) {
        return Ok(());
    }
    let searching = stat.is_dir() && !want.contains(Want::WRITE);
    if creds.has(CAP_DAC_READ_SEARCH) && (want == Want::READ || searching) {
        return Ok(());
    }
    Err(Errno::EACCES)
}

/// [`permitted`] for a place, whose mount may forbid writing (`EROFS`).
pub fn check(creds: &Creds, path: &Path, want: Want) -> Result<()> {
    if want.contains(Want::WRITE) && matches!(path.inode.kind(), S_IFREG | S_IFDIR | S_IFLNK) {
        path.mount.check_writable()?;
    }
    if want.contains(Want::EXEC) && path.inode.kind() == S_IFREG && forbids(path, Limits::NO_EXEC) {
        return Err(Errno::EACCES);
    }
    if want.is_empty() {
        return Ok(());
    }
    permitted(creds, &path.inode.protection()?, want)
}

/// Whether the place's mount does not allow this.
pub fn forbids(path: &Path, limit: Limits) -> bool {
    path.mount.limits().contains(limit)
}

/// Whether names below the directory may be looked up.
pub fn check_search(creds: &Creds, dir: &Arc<dyn Inode>) -> Result<()> {
    if creds.has(CAP_DAC_OVERRIDE) || creds.has(CAP_DAC_READ_SEARCH) {
        return Ok(());
    }
    permitted(creds, &dir.protection()?, Want::EXEC)
}

/// Whether names may be made in, or removed from, the directory.
pub fn check_change(creds: &Creds, dir: &Path) -> Result<()> {
    dir.mount.check_writable()?;
    if creds.has(CAP_DAC_OVERRIDE) {
        return Ok(());
    }
    permitted(creds, &dir.inode.protection()?, Want::WRITE | Want::EXEC)
}

/// Whether `creds` own the node, or may act as if.
pub fn is_owner(creds: &Creds, stat: &Stat) -> bool {
    stat.uid == creds.fsuid || creds.has(CAP_FOWNER)
}

/// Whether `victim`'s name may be removed from `dir` (the sticky bit protects others' files); `EPERM`.
pub fn check_sticky(creds: &Creds, dir: &Path, victim: &Arc<dyn Inode>) -> Result<()> {
    if creds.has(CAP_FOWNER) {
        return Ok(());
    }
    let dir = dir.inode.protection()?;
    if dir.mode & S_ISVTX == 0 || dir.uid == creds.fsuid || victim.protection()?.uid == creds.fsuid {
        return Ok(());
    }
    Err(Errno::EPERM)
}

/// Owner and permission bits of a new node in `dir`: set-gid directories give their group on.
pub fn new_node(
    creds: &Creds,
    dir: &Arc<dyn Inode>,
    mode: u32,
    is_dir: bool,
) -> Result<super::inode::NewNode> {
    let parent = dir.protection()?;
    let inherits = parent.mode & S_ISGID != 0;
    let gid = if inherits { parent.gid } else { creds.fsgid };
    let mut mode = mode;
    if inherits && is_dir {
        mode |= S_ISGID;
    } else if inherits
        && mode & (S_ISGID | 0o010) == S_ISGID | 0o010
        && !creds.in_group(gid)
        && !creds.has(CAP_FSETID)
    {
        mode &= !S_ISGID;
    }
    Ok(super::inode::NewNode { mode, uid: creds.fsuid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn stat(mode: u32) -> Stat {
        Stat { mode, uid: 10, gid: 20, ..Stat::default() }
    }

    #[test]
    fn only_the_first_matching_class_counts() {
        let owner = Creds::new(10, 99, vec![]);
        let group = Creds::new(11, 99, vec![20]);
        let other = Creds::new(11, 99, vec![]);
        let node = stat(S_IFREG | 0o047);
        assert_eq!(permitted(&owner, &node, Want::READ), Err(Errno::EACCES));
        assert_eq!(permitted(&group, &node, Want::READ), Ok(()));
        assert_eq!(permitted(&group, &node, Want::WRITE), Err(Errno::EACCES));
        assert_eq!(permitted(&other, &node, Want::READ | Want::WRITE | Want::EXEC), Ok(()));
    }

    #[test]
    fn root_runs_only_what_someone_may_run() {
        let root = Creds::new(0, 0, vec![]);
        assert_eq!(permitted(&root, &stat(S_IFREG | 0o600), Want::EXEC), Err(Errno::EACCES));
        assert_eq!(permitted(&root, &stat(S_IFREG | 0o601), Want::EXEC), Ok(()));
        assert_eq!(permitted(&root, &stat(S_IFDIR), Want::EXEC | Want::WRITE), Ok(()));
    }
}
