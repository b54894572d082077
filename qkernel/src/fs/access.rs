//! Access checks of files: permission bits, ownership and capabilities.

use alloc::sync::Arc;
use bitflags::bitflags;

use crate::creds::{CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, Creds};
use crate::fs::caller::{self, CallerCtx};
use crate::fs::inode::{AttrChange, Inode, Stat};
use crate::fs::inode::{S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_ISGID, S_ISUID, S_ISVTX};
use crate::fs::mount::Limits;
use crate::fs::path::{FsContext, Path};
use machine::errno::{Errno, Result};

bitflags! {
    /// The kinds of access to a node that are asked for; the bits of `access(2)`.
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
    pub fn of(cx: &CallerCtx<'_>) -> Self {
        Self { creds: cx.caller.creds(), fs: cx.caller.fs() }
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

/// Whether `creds` own the node, or hold the capability that makes them count as its owner.
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

/// Whether `dir` is sticky and writable for everybody, so that users make names there but cannot remove each other's.
fn is_shared_dir(dir: &Stat) -> bool {
    const S_IWOTH: u32 = 0o002;
    dir.mode & (S_ISVTX | S_IWOTH) == S_ISVTX | S_IWOTH
}

/// `fs.protected_symlinks`: whether the link at the end of a path may be followed. In a directory for all it must be
/// the caller's own, or the directory's owner's.
pub fn check_link(creds: &Creds, dir: &Path, link: &Path) -> Result<()> {
    let dir = dir.inode.protection()?;
    if !is_shared_dir(&dir) {
        return Ok(());
    }
    let owner = link.inode.protection()?.uid;
    if owner == creds.fsuid || owner == dir.uid { Ok(()) } else { Err(Errno::EACCES) }
}

/// `fs.protected_regular`, `fs.protected_fifos`: whether `O_CREAT` may open what it found instead of making it.
pub fn check_found(creds: &Creds, dir: &Path, found: &Path) -> Result<()> {
    if !matches!(found.inode.kind(), S_IFREG | S_IFIFO) {
        return Ok(());
    }
    let dir = dir.inode.protection()?;
    if !is_shared_dir(&dir) {
        return Ok(());
    }
    let owner = found.inode.protection()?.uid;
    if owner == creds.fsuid || owner == dir.uid { Ok(()) } else { Err(Errno::EACCES) }
}

/// Set-id bits: a changed program does not run as its owner.
pub const SET_ID: u32 = S_ISUID | S_ISGID;

/// The permission bits of a regular file once its content was changed by `creds`. The group's bit without its right to
/// run the file is no set-id bit (it is for locks), and stays for members of the group.
pub fn mode_after_write(creds: &Creds, mode: u32, gid: u32) -> u32 {
    if creds.has(CAP_FSETID) { mode } else { without_set_id(creds, mode, gid) }
}

/// The permission bits of a file that is not a directory once its owner or group was changed by `creds`.
pub fn without_set_id(creds: &Creds, mode: u32, gid: u32) -> u32 {
    let for_locks = mode & 0o010 == 0 && (creds.in_group(gid) || creds.has(CAP_FSETID));
    mode & !if for_locks { S_ISUID } else { SET_ID }
}

impl AttrChange {
    /// The mode to set on a node with these attributes now, if any.
    pub fn mode_for(&self, mode: u32, gid: u32) -> Option<u32> {
        let concerns = mode & SET_ID != 0 && mode & S_IFMT != S_IFDIR;
        let rule = self.set_id.filter(|_| concerns);
        rule.map_or(self.mode, |rule| Some(rule(&caller::current().creds(), mode, gid) & 0o7777))
    }
}

/// Owner and permission bits of a new node in `dir`: set-gid directories give their group on.
pub fn new_node(
    creds: &Creds,
    dir: &Arc<dyn Inode>,
    mode: u32,
    is_dir: bool,
) -> Result<crate::fs::inode::NewNode> {
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
    Ok(crate::fs::inode::NewNode { mode, uid: creds.fsuid, gid })
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
    fn who_changes_a_program_takes_its_set_id_bits() {
        let owner = Creds::new(10, 99, vec![]);
        let member = Creds::new(11, 20, vec![]);
        let root = Creds::new(0, 0, vec![]);
        for (creds, mode, after) in [
            (&owner, 0o6755, 0o755),
            (&member, 0o6777, 0o777),
            (&member, 0o6767, 0o2767),
            (&owner, 0o6767, 0o767),
            (&root, 0o6755, 0o6755),
        ] {
            assert_eq!(mode_after_write(creds, mode, 20), after, "{mode:o}");
        }
        assert_eq!(without_set_id(&root, 0o6755, 20), 0o755);
        assert_eq!(without_set_id(&root, 0o6745, 20), 0o2745);
    }

    #[test]
    fn root_runs_only_what_someone_may_run() {
        let root = Creds::new(0, 0, vec![]);
        assert_eq!(permitted(&root, &stat(S_IFREG | 0o600), Want::EXEC), Err(Errno::EACCES));
        assert_eq!(permitted(&root, &stat(S_IFREG | 0o601), Want::EXEC), Ok(()));
        assert_eq!(permitted(&root, &stat(S_IFDIR), Want::EXEC | Want::WRITE), Ok(()));
    }
}
