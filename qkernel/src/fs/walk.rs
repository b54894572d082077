//! The path walk: component by component, through mounts and symbolic links.

use alloc::vec::Vec;
use bitflags::bitflags;

use crate::config::{NAME_MAX, SYMLINKS_MAX};
use crate::fs::access;
use crate::fs::access::Actor;
use crate::fs::caller::CallerCtx;
use crate::fs::dentry::Dentry;
use crate::fs::inode::{CachePolicy, LinkTarget, S_IFDIR, S_IFLNK, S_IFMT, Stat};
use crate::fs::mount;
use crate::fs::mount::Limits;
use crate::fs::path::Path;
use machine::errno::{Errno, Result};
use machine::mm::account;

/// `AT_FDCWD` of `openat(2)`.
pub const AT_FDCWD: i32 = -100;
/// `AT_EMPTY_PATH`.
pub const AT_EMPTY_PATH: u32 = 0x1000;
/// `AT_SYMLINK_NOFOLLOW`.
pub const AT_SYMLINK_NOFOLLOW: u32 = 0x100;

bitflags! {
    /// `RESOLVE_*` of `openat2(2)`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Resolve: u64 {
        const NO_XDEV = 1;
        const NO_MAGICLINKS = 2;
        const NO_SYMLINKS = 4;
        const BENEATH = 8;
        const IN_ROOT = 16;
        const CACHED = 32;
    }
}

/// The last component of a path whose parent was walked to.
#[derive(Debug, PartialEq, Eq)]
pub enum Last {
    /// The path was only slashes.
    Root,
    Dot,
    DotDot,
    /// A name, and whether slashes follow it.
    Name(Vec<u8>, bool),
}

/// A walk in progress.
pub struct Walker<'a> {
    actor: &'a Actor,
    root: Path,
    at: Path,
    text: Vec<u8>,
    position: usize,
    links: usize,
    resolve: Resolve,
}

/// One component cut off a path.
struct Component {
    start: usize,
    end: usize,
    slash: bool,
    last: bool,
}

/// The component at or behind `from`, if there is one.
fn next_component(text: &[u8], from: usize) -> Option<Component> {
    let start = from + text[from..].iter().position(|byte| *byte != b'/')?;
    let end = text[start..].iter().position(|byte| *byte == b'/').map_or(text.len(), |len| start + len);
    let last = text[end..].iter().all(|byte| *byte == b'/');
    Some(Component { start, end, slash: end < text.len(), last })
}

impl<'a> Walker<'a> {
    /// A walk of `path` that begins at `start` if `path` is relative.
    pub fn new(actor: &'a Actor, start: Path, path: &[u8], resolve: Resolve) -> Result<Self> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        let scoped = resolve.intersects(Resolve::BENEATH | Resolve::IN_ROOT);
        let root = if scoped { start.clone() } else { actor.fs.root() };
        let at = if path[0] == b'/' { root.clone() } else { start };
        if path[0] == b'/' && resolve.contains(Resolve::BENEATH) {
            return Err(Errno::EXDEV);
        }
        Ok(Self { actor, root, at, text: path.to_vec(), position: 0, links: 0, resolve })
    }

    /// The place that the walk has reached.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Walks to the end; a link at the very end is followed if `follow`.
    pub fn finish(self, follow: bool) -> Result<Path> {
        self.finish_unless(follow, |_, _| false)?.ok_or(Errno::ENOENT)
    }

    /// Walks to the end as [`Self::finish`] does; `None`: `is_enough` was true of the last name and its directory, so that it was
    /// not looked up.
    fn finish_unless(
        mut self,
        follow: bool,
        mut is_enough: impl FnMut(&Path, &[u8]) -> bool,
    ) -> Result<Option<Path>> {
        while let Some(part) = next_component(&self.text, self.position) {
            let name = self.take(&part)?;
            match name.as_slice() {
                b"." => {}
                b".." => self.up()?,
                _ if part.last && !part.slash && is_enough(&self.at, &name) => return Ok(None),
                _ => {
                    let found = self.child(&name)?.ok_or(Errno::ENOENT)?;
                    if found.inode.kind() == S_IFLNK && (follow || part.slash) {
                        if part.last {
                            access::check_link(&self.actor.creds, &self.at, &found)?;
                        }
                        self.follow(&found)?;
                    } else {
                        self.go(found)?;
                    }
                }
            }
        }
        if self.text.ends_with(b"/") {
            self.check_dir()?;
        }
        Ok(Some(self.at))
    }

    /// Walks to the directory of the last component, which the caller deals with.
    pub fn to_parent(&mut self) -> Result<Last> {
        while let Some(part) = next_component(&self.text, self.position) {
            let name = self.take(&part)?;
            match name.as_slice() {
                b"." if part.last => return Ok(Last::Dot),
                b".." if part.last => {
                    self.up()?;
                    return Ok(Last::DotDot);
                }
                b"." => {}
                b".." => self.up()?,
                _ if part.last => return Ok(Last::Name(name, part.slash)),
                _ => {
                    let found = self.child(&name)?.ok_or(Errno::ENOENT)?;
                    if found.inode.kind() == S_IFLNK {
                        self.follow(&found)?;
                    } else {
                        self.go(found)?;
                    }
                }
            }
        }
        Ok(Last::Root)
    }

    /// Cuts a component off, having checked that it may be looked up where the walk is.
    fn take(&mut self, part: &Component) -> Result<Vec<u8>> {
        self.check_dir()?;
        access::check_search(&self.actor.creds, &self.at.inode)?;
        self.position = part.end;
        if part.end - part.start > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(self.text[part.start..part.end].to_vec())
    }

    fn check_dir(&self) -> Result<()> {
        if self.at.inode.kind() == S_IFDIR { Ok(()) } else { Err(Errno::ENOTDIR) }
    }

    fn child(&self, name: &[u8]) -> Result<Option<Path>> {
        child(&self.at, name)
    }

    fn go(&mut self, to: Path) -> Result<()> {
        if self.resolve.contains(Resolve::NO_XDEV) && self.at.mount.id != to.mount.id {
            return Err(Errno::EXDEV);
        }
        self.at = to;
        Ok(())
    }

    fn up(&mut self) -> Result<()> {
        if self.at.same(&self.root) {
            return if self.resolve.contains(Resolve::BENEATH) { Err(Errno::EXDEV) } else { Ok(()) };
        }
        let Some(place) = mount::leave(self.at.clone()) else { return Ok(()) };
        let Some(parent) = place.dentry.parent() else { return Ok(()) };
        let inode = parent.inode().ok_or(Errno::ENOENT)?;
        self.go(mount::enter(place.with(parent, inode)))?;
        // A directory that was moved away meanwhile leads out of the one that the walk must stay in.
        let scoped = self.resolve.intersects(Resolve::BENEATH | Resolve::IN_ROOT);
        if scoped && !self.at.is_below(&self.root) { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// Goes on at the target of a link in the current directory.
    pub fn follow(&mut self, link: &Path) -> Result<()> {
        self.links += 1;
        let is_allowed =
            !self.resolve.contains(Resolve::NO_SYMLINKS) && !access::forbids(link, Limits::NO_SYM_FOLLOW);
        if self.links > SYMLINKS_MAX || !is_allowed {
            return Err(Errno::ELOOP);
        }
        let target = link.inode.readlink()?;
        link.accessed();
        match target {
            LinkTarget::Direct(path) => {
                if self.resolve.contains(Resolve::NO_MAGICLINKS) {
                    return Err(Errno::ELOOP);
                }
                if self.resolve.intersects(Resolve::BENEATH | Resolve::IN_ROOT) {
                    return Err(Errno::EXDEV);
                }
                // The rest of the path is walked from there.
                self.go(path)
            }
            LinkTarget::Text(target) => {
                if target.is_empty() {
                    return Err(Errno::ENOENT);
                }
                if target[0] == b'/' {
                    if self.resolve.contains(Resolve::BENEATH) {
                        return Err(Errno::EXDEV);
                    }
                    let root = self.root.clone();
                    self.go(root)?;
                }
                let mut text = target;
                text.extend_from_slice(&self.text[self.position..]);
                self.text = text;
                self.position = 0;
                Ok(())
            }
        }
    }
}

/// Looks `name` up in `dir` and enters the mount that covers it, if any; `None` when there is no such name.
pub fn child(dir: &Path, name: &[u8]) -> Result<Option<Path>> {
    let policy = dir.inode.cache_policy();
    if let Some(dentry) = dir.dentry.cached(name)
        && (policy == CachePolicy::Trust || dentry.is_fixed())
    {
        return Ok(dentry.inode().map(|inode| mount::enter(dir.with(dentry, inode))));
    }
    let _changes = dir.dentry.changes.lock();
    Ok(child_locked(dir, name)?.map(mount::enter))
}

/// Bytes of kernel memory a name in the cache takes, with its inode.
const DENTRY_BYTES: usize = 2048;

/// Looks `name` up in `dir`, whose [`Dentry::changes`] the caller holds; mounts aren't entered.
pub fn child_locked(dir: &Path, name: &[u8]) -> Result<Option<Path>> {
    let policy = dir.inode.cache_policy();
    let cached = dir.dentry.cached(name);
    if let Some(dentry) = &cached
        && (policy == CachePolicy::Trust || dentry.is_fixed())
    {
        return Ok(dentry.inode().map(|inode| dir.with(dentry.clone(), inode)));
    }
    account::check_name(DENTRY_BYTES)?;
    let inode = match dir.inode.lookup(name) {
        Ok(inode) => inode,
        Err(Errno::ENOENT) => {
            match policy {
                CachePolicy::Trust if !dir.dentry.is_gone() => drop(dir.dentry.insert(name, None)),
                _ => dir.dentry.forget(name),
            }
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if policy == CachePolicy::Never {
        let dentry = Dentry::detached(&dir.dentry, name, inode.clone());
        return Ok(Some(dir.with(dentry, inode)));
    }
    let known = cached.filter(|dentry| {
        dentry.inode().is_some_and(|old| {
            core::ptr::addr_eq(alloc::sync::Arc::as_ptr(&old), alloc::sync::Arc::as_ptr(&inode))
        })
    });
    let dentry = known.unwrap_or_else(|| dir.dentry.insert(name, Some(inode.clone())));
    Ok(Some(dir.with(dentry, inode)))
}

/// The place where a walk of `path` relative to `dirfd` begins.
pub fn start(cx: &CallerCtx<'_>, actor: &Actor, dirfd: i32, path: &[u8]) -> Result<Path> {
    if dirfd == AT_FDCWD || path.first() == Some(&b'/') {
        return Ok(actor.fs.cwd());
    }
    let file = cx.file(dirfd)?;
    match &file.path {
        Some(place) if path.is_empty() || place.inode.kind() == S_IFDIR => Ok(place.clone()),
        _ => Err(Errno::ENOTDIR),
    }
}

/// The node at a path whose attributes are asked for.
pub enum Named {
    At(Path),
    /// Known by a listing, without an inode: the attributes, and the mount.
    Listed(Stat, u64),
}

/// Walks `path` from `dirfd` to what has its attributes; a link at the end is followed if `follow`.
pub fn resolve_for_stat(
    cx: &CallerCtx<'_>,
    actor: &Actor,
    dirfd: i32,
    path: &[u8],
    follow: bool,
) -> Result<Named> {
    let mut listed = None;
    let walker = Walker::new(actor, start(cx, actor, dirfd, path)?, path, Resolve::empty())?;
    let place = walker.finish_unless(follow, |dir, name| {
        // What is in the cache counts: it may be covered by a mount.
        let stat = dir.inode.stat_listed(name).filter(|stat| match stat.mode & S_IFMT {
            S_IFDIR => false,
            S_IFLNK => !follow,
            _ => true,
        });
        listed = stat.filter(|_| dir.dentry.cached(name).is_none()).map(|stat| (stat, dir.mount.id));
        listed.is_some()
    })?;
    match (place, listed) {
        (Some(place), _) => Ok(Named::At(place)),
        (None, Some((stat, mount))) => Ok(Named::Listed(stat, mount)),
        (None, None) => Err(Errno::ENOENT),
    }
}

/// Walks `path` from `dirfd`; a link at the end is followed if `follow`.
pub fn resolve(cx: &CallerCtx<'_>, actor: &Actor, dirfd: i32, path: &[u8], follow: bool) -> Result<Path> {
    let start = start(cx, actor, dirfd, path)?;
    Walker::new(actor, start, path, Resolve::empty())?.finish(follow)
}

/// [`resolve`] with the `AT_EMPTY_PATH` and `AT_SYMLINK_NOFOLLOW` of `flags`. `None`: the path is empty, and stands
/// for the open file `dirfd`.
pub fn resolve_at(
    cx: &CallerCtx<'_>,
    actor: &Actor,
    dirfd: i32,
    path: &[u8],
    flags: u32,
) -> Result<Option<Path>> {
    if path.is_empty() {
        if flags & AT_EMPTY_PATH == 0 {
            return Err(Errno::ENOENT);
        }
        return if dirfd == AT_FDCWD { Ok(Some(actor.fs.cwd())) } else { Ok(None) };
    }
    resolve(cx, actor, dirfd, path, flags & AT_SYMLINK_NOFOLLOW == 0).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_cut_at_slashes() {
        let text = b"//a/bc//";
        let first = next_component(text, 0).map(|part| (part.start, part.end, part.slash, part.last));
        assert_eq!(first, Some((2, 3, true, false)));
        let second = next_component(text, 3).map(|part| (part.start, part.end, part.slash, part.last));
        assert_eq!(second, Some((4, 6, true, true)));
        assert!(next_component(text, 6).is_none());
    }
}
