//! Changing names: making, removing, linking and renaming them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr;

use crate::fs::access;
use crate::fs::access::{Actor, Want};
use crate::fs::dentry::Dentry;
use crate::fs::inode::{Inode, NewNode, NodeKind, S_IFDIR, S_IFREG, S_ISGID, S_ISUID};
use crate::fs::notify::{self, Mask};
use crate::fs::path::Path;
use crate::fs::walk;
use crate::fs::walk::{Last, Resolve, Walker};
use machine::errno::{Errno, Result};
use machine::sync::{Mutex, Rank};

/// `RENAME_NOREPLACE`.
pub const RENAME_NOREPLACE: u32 = 1;
/// `RENAME_EXCHANGE`.
pub const RENAME_EXCHANGE: u32 = 2;

/// Only one rename at a time, so that directories don't move while they are compared.
static RENAMES: Mutex<()> = Mutex::new(Rank::Renames, ());

/// A path's directory and last component.
struct Target {
    dir: Path,
    last: Last,
}

fn target(actor: &Actor, start: Path, path: &[u8]) -> Result<Target> {
    let mut walker = Walker::new(actor, start, path, Resolve::empty())?;
    let last = walker.to_parent()?;
    Ok(Target { dir: walker.at().clone(), last })
}

/// Makes a name that doesn't exist yet.
fn make(
    actor: &Actor,
    start: Path,
    path: &[u8],
    is_dir: bool,
    mode: u32,
    f: impl FnOnce(&Arc<dyn Inode>, &[u8], NewNode) -> Result<Arc<dyn Inode>>,
) -> Result<Path> {
    let Target { dir, last } = target(actor, start, path)?;
    let Last::Name(name, slash) = last else { return Err(Errno::EEXIST) };
    let _changes = dir.dentry.changes.lock();
    if dir.dentry.is_gone() {
        return Err(Errno::ENOENT);
    }
    if walk::child_locked(&dir, &name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    if slash && !is_dir {
        return Err(Errno::ENOENT);
    }
    access::check_change(&actor.creds, &dir)?;
    let new = access::new_node(&actor.creds, &dir.inode, mode, is_dir)?;
    let inode = f(&dir.inode, &name, new)?;
    let dentry = dir.dentry.insert(&name, Some(inode.clone()));
    dir.notify_name(Mask::CREATE, &name, is_dir, 0);
    Ok(dir.with(dentry, inode))
}

/// `mkdir(2)`.
pub fn mkdir(actor: &Actor, start: Path, path: &[u8], mode: u32) -> Result<()> {
    let mode = mode & 0o1777 & !actor.fs.umask();
    make(actor, start, path, true, mode, |dir, name, new| dir.mkdir(name, new)).map(drop)
}

/// `mknod(2)`. The caller has checked that the kind is permitted.
pub fn mknod(actor: &Actor, start: Path, path: &[u8], kind: NodeKind, mode: u32) -> Result<Path> {
    let mode = mode & 0o7777 & !actor.fs.umask();
    make(actor, start, path, false, mode, |dir, name, new| dir.create(name, kind, new))
}

/// `symlink(2)`.
pub fn symlink(actor: &Actor, start: Path, path: &[u8], text: &[u8]) -> Result<()> {
    make(actor, start, path, false, 0o777, |dir, name, new| dir.symlink(name, text, new)).map(drop)
}

/// `link(2)`: another name for `node`.
pub fn link(actor: &Actor, node: &Path, start: Path, path: &[u8]) -> Result<()> {
    let Target { dir, last } = target(actor, start, path)?;
    let Last::Name(name, slash) = last else { return Err(Errno::EEXIST) };
    if !Arc::ptr_eq(&dir.mount, &node.mount) {
        return Err(Errno::EXDEV);
    }
    let _changes = dir.dentry.changes.lock();
    if dir.dentry.is_gone() {
        return Err(Errno::ENOENT);
    }
    if walk::child_locked(&dir, &name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    if slash {
        return Err(Errno::ENOENT);
    }
    access::check_change(&actor.creds, &dir)?;
    if node.inode.kind() == S_IFDIR {
        return Err(Errno::EPERM);
    }
    check_link_source(actor, node)?;
    dir.inode.link(&name, &node.inode)?;
    node.dentry.named();
    dir.dentry.insert(&name, Some(node.inode.clone()));
    node.notify_self(Mask::ATTRIB);
    dir.notify_name(Mask::CREATE, &name, false, 0);
    Ok(())
}

/// Whether the file may get another name. `fs.protected_hardlinks`: a user may link files that the user owns or could
/// have copied.
fn check_link_source(actor: &Actor, node: &Path) -> Result<()> {
    let stat = node.inode.stat()?;
    // A file whose last name was removed gets none again.
    if stat.nlink == 0 && !node.dentry.is_linkable() {
        return Err(Errno::ENOENT);
    }
    let set_id = stat.mode & S_ISUID != 0 || stat.mode & (S_ISGID | 0o010) == S_ISGID | 0o010;
    let plain = stat.kind() == S_IFREG && !set_id;
    if access::is_owner(&actor.creds, &stat)
        || (plain && access::permitted(&actor.creds, &stat, Want::READ | Want::WRITE).is_ok())
    {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// `unlink(2)`.
pub fn unlink(actor: &Actor, start: Path, path: &[u8]) -> Result<()> {
    let Target { dir, last } = target(actor, start, path)?;
    let Last::Name(name, slash) = last else { return Err(Errno::EISDIR) };
    dir.mount.check_writable()?;
    let _changes = dir.dentry.changes.lock();
    let victim = walk::child_locked(&dir, &name)?.ok_or(Errno::ENOENT)?;
    let is_dir = victim.inode.kind() == S_IFDIR;
    if slash {
        return Err(if is_dir { Errno::EISDIR } else { Errno::ENOTDIR });
    }
    access::check_change(&actor.creds, &dir)?;
    access::check_sticky(&actor.creds, &dir, &victim.inode)?;
    if is_dir {
        return Err(Errno::EISDIR);
    }
    if victim.dentry.is_mountpoint() {
        return Err(Errno::EBUSY);
    }
    victim.inode.before_unlink(&dir.inode, &name, is_used(&victim));
    dir.inode.unlink(&name)?;
    victim.inode.after_unlink(&dir.inode, &name);
    dir.dentry.remove(&victim.dentry);
    victim.notify_self(Mask::ATTRIB);
    name_went(victim);
    dir.notify_name(Mask::DELETE, &name, false, 0);
    Ok(())
}

/// Whether a name that is about to be removed has users other than the cache and the caller, who holds `path`.
fn is_used(path: &Path) -> bool {
    path.dentry.is_used_beyond(1) || Arc::strong_count(&path.inode) > 2
}

/// `rmdir(2)`.
pub fn rmdir(actor: &Actor, start: Path, path: &[u8]) -> Result<()> {
    let Target { dir, last } = target(actor, start, path)?;
    let name = match last {
        Last::Name(name, _) => name,
        Last::Dot => return Err(Errno::EINVAL),
        Last::DotDot => return Err(Errno::ENOTEMPTY),
        Last::Root => return Err(Errno::EBUSY),
    };
    dir.mount.check_writable()?;
    let _changes = dir.dentry.changes.lock();
    let victim = walk::child_locked(&dir, &name)?.ok_or(Errno::ENOENT)?;
    access::check_change(&actor.creds, &dir)?;
    access::check_sticky(&actor.creds, &dir, &victim.inode)?;
    if victim.inode.kind() != S_IFDIR {
        return Err(Errno::ENOTDIR);
    }
    if victim.dentry.is_mountpoint() {
        return Err(Errno::EBUSY);
    }
    victim.inode.before_unlink(&dir.inode, &name, is_used(&victim));
    dir.inode.rmdir(&name)?;
    victim.inode.after_unlink(&dir.inode, &name);
    dir.dentry.remove(&victim.dentry);
    name_went(victim);
    dir.notify_name(Mask::DELETE, &name, true, 0);
    Ok(())
}

/// The name is one of the node's no more. If it was the last one, those who watch the node do not keep it. The caller has no
/// other reference, so that those are told first whose watches end with it.
fn name_went(node: Path) {
    if !notify::is_any() {
        return;
    }
    let Some(key) = node.inode.watch_key().filter(|key| notify::is_watched(*key, Mask::all())) else {
        return;
    };
    let is_left = || node.inode.stat().is_ok_and(|stat| stat.nlink > 0);
    if node.inode.kind() != S_IFDIR && is_left() {
        notify::release_names(key);
    } else if node.inode.tells_its_end() {
        notify::release(key);
    } else {
        notify::end(key, Mask::DELETE_SELF);
    }
}

/// One side of a rename.
struct Side {
    dir: Path,
    name: Vec<u8>,
    slash: bool,
}

/// `renameat2(2)`; `flags` are known ones.
pub fn rename(actor: &Actor, old: (Path, &[u8]), new: (Path, &[u8]), flags: u32) -> Result<()> {
    let from = target(actor, old.0, old.1)?;
    let to = target(actor, new.0, new.1)?;
    if !Arc::ptr_eq(&from.dir.mount, &to.dir.mount) {
        return Err(Errno::EXDEV);
    }
    let Last::Name(name, slash) = from.last else { return Err(Errno::EBUSY) };
    let from = Side { dir: from.dir, name, slash };
    let Last::Name(name, slash) = to.last else {
        return Err(if flags & RENAME_NOREPLACE != 0 { Errno::EEXIST } else { Errno::EBUSY });
    };
    let to = Side { dir: to.dir, name, slash };
    from.dir.mount.check_writable()?;
    let _one = RENAMES.lock();
    let (a, b) = (&from.dir.dentry, &to.dir.dentry);
    let _first = if Arc::as_ptr(a) <= Arc::as_ptr(b) { a.changes.lock() } else { b.changes.lock() };
    let _second = match Arc::as_ptr(a).cmp(&Arc::as_ptr(b)) {
        core::cmp::Ordering::Less => Some(b.changes.lock_beside()),
        core::cmp::Ordering::Equal => None,
        core::cmp::Ordering::Greater => Some(a.changes.lock_beside()),
    };
    rename_locked(actor, &from, &to, flags)
}

fn rename_locked(actor: &Actor, from: &Side, to: &Side, flags: u32) -> Result<()> {
    let exchange = flags & RENAME_EXCHANGE != 0;
    let source = walk::child_locked(&from.dir, &from.name)?.ok_or(Errno::ENOENT)?;
    let victim = walk::child_locked(&to.dir, &to.name)?;
    if victim.is_some() && flags & RENAME_NOREPLACE != 0 {
        return Err(Errno::EEXIST);
    }
    if exchange && victim.is_none() {
        return Err(Errno::ENOENT);
    }
    let source_dir = source.inode.kind() == S_IFDIR;
    let victim_dir = victim.as_ref().is_some_and(|victim| victim.inode.kind() == S_IFDIR);
    if (!source_dir && (from.slash || (!exchange && to.slash))) || (exchange && to.slash && !victim_dir) {
        return Err(Errno::ENOTDIR);
    }
    if to.dir.dentry.is_below(&source.dentry) {
        return Err(Errno::EINVAL);
    }
    if let Some(victim) = &victim
        && from.dir.dentry.is_below(&victim.dentry)
    {
        return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
    }
    if let Some(victim) = &victim
        && ptr::addr_eq(Arc::as_ptr(&victim.inode), Arc::as_ptr(&source.inode))
    {
        return Ok(());
    }
    check_rename(actor, from, to, &source, victim.as_ref(), exchange)?;
    if !exchange && let Some(victim) = &victim {
        victim.inode.before_unlink(&to.dir.inode, &to.name, is_used(victim));
    }
    from.dir.inode.rename(&from.name, &to.dir.inode, &to.name, flags)?;
    after_rename(from, to, &source, victim, exchange);
    Ok(())
}

fn check_rename(
    actor: &Actor,
    from: &Side,
    to: &Side,
    source: &Path,
    victim: Option<&Path>,
    exchange: bool,
) -> Result<()> {
    let creds = &actor.creds;
    access::check_change(creds, &from.dir)?;
    access::check_sticky(creds, &from.dir, &source.inode)?;
    let source_dir = source.inode.kind() == S_IFDIR;
    if to.dir.dentry.is_gone() {
        return Err(Errno::ENOENT);
    }
    access::check_change(creds, &to.dir)?;
    if let Some(victim) = victim {
        access::check_sticky(creds, &to.dir, &victim.inode)?;
        let victim_dir = victim.inode.kind() == S_IFDIR;
        if !exchange && source_dir != victim_dir {
            return Err(if source_dir { Errno::ENOTDIR } else { Errno::EISDIR });
        }
        if victim.dentry.is_mountpoint() {
            return Err(Errno::EBUSY);
        }
    }
    // A directory that gets another parent has its `..` written to.
    if !Arc::ptr_eq(&from.dir.dentry, &to.dir.dentry) {
        let exchanged = victim.filter(|_| exchange);
        for moved in [Some(source), exchanged].into_iter().flatten().filter(|at| at.inode.kind() == S_IFDIR) {
            access::check(creds, moved, Want::WRITE)?;
        }
    }
    if source.dentry.is_mountpoint() { Err(Errno::EBUSY) } else { Ok(()) }
}

fn after_rename(from: &Side, to: &Side, source: &Path, victim: Option<Path>, exchange: bool) {
    source.inode.moved(&to.dir.inode, &to.name);
    match &victim {
        Some(victim) if exchange => {
            victim.inode.moved(&from.dir.inode, &from.name);
            Dentry::exchange(&from.dir.dentry, &source.dentry, &to.dir.dentry, &victim.dentry);
            tell_of_move(from, to, source, None);
            tell_of_move(to, from, victim, None);
            return;
        }
        Some(victim) => {
            victim.inode.after_unlink(&to.dir.inode, &to.name);
            to.dir.dentry.remove(&victim.dentry);
        }
        None => {}
    }
    from.dir.dentry.move_child(&source.dentry, &to.dir.dentry, &to.name);
    tell_of_move(from, to, source, victim.as_ref());
    victim.into_iter().for_each(name_went);
}

/// Tells of a node that has moved, in the place of another one, if there was one.
fn tell_of_move(from: &Side, to: &Side, node: &Path, replaced: Option<&Path>) {
    if !notify::is_any() {
        return;
    }
    let cookie = notify::next_cookie();
    let is_dir = node.inode.kind() == S_IFDIR;
    from.dir.notify_name(Mask::MOVED_FROM, &from.name, is_dir, cookie);
    to.dir.notify_name(Mask::MOVED_TO, &to.name, is_dir, cookie);
    if let Some(replaced) = replaced {
        replaced.notify_self(Mask::ATTRIB);
    }
    node.notify_self(Mask::MOVE_SELF);
}
