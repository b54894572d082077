//! Opening and making files.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use core::any::Any;

use crate::fs::access;
use crate::fs::access::{Actor, Want};
use crate::fs::caller::CallerCtx;
use crate::fs::dentry::Dentry;
use crate::fs::file::{File, FileOps, OpenFlags};
use crate::fs::inode::{AttrChange, NodeKind, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG};
use crate::fs::inode::{Stat, while_writing};
use crate::fs::leases;
use crate::fs::mount;
use crate::fs::mount::Limits;
use crate::fs::notify::Mask;
use crate::fs::path::Path;
use crate::fs::walk;
use crate::fs::walk::{Last, Resolve, Walker};
use machine::errno::{Errno, Result};

/// How often a walk is begun anew when the host changed what was found.
const STALE_TRIES: usize = 3;
/// How often with `O_CREAT`, which does not fail on Linux because others make, rename and remove the name meanwhile: every try
/// that is lost is one of theirs that went through.
const CREATE_TRIES: usize = 40;

/// How to open, as `openat2(2)` says it.
#[derive(Clone, Copy)]
pub struct How {
    pub flags: OpenFlags,
    pub mode: u32,
    pub resolve: Resolve,
}

/// Opens a file (`openat(2)`); `mode` counts when it is made.
pub fn open_at(
    cx: &CallerCtx<'_>,
    dirfd: i32,
    path: &[u8],
    flags: OpenFlags,
    mode: u32,
) -> Result<Arc<File>> {
    open_how(cx, dirfd, path, How { flags, mode, resolve: Resolve::empty() })
}

/// Opens a file (`openat2(2)`).
pub fn open_how(cx: &CallerCtx<'_>, dirfd: i32, path: &[u8], how: How) -> Result<Arc<File>> {
    let actor = Actor::of(cx);
    let creates = how.flags.contains(OpenFlags::CREAT);
    for _ in 0..if creates { CREATE_TRIES } else { STALE_TRIES } {
        match open_once(cx, &actor, dirfd, path, how) {
            Err(Errno::ESTALE) => {}
            result => return result,
        }
    }
    Err(if creates { Errno::ENOENT } else { Errno::ESTALE })
}

fn open_once(cx: &CallerCtx<'_>, actor: &Actor, dirfd: i32, path: &[u8], how: How) -> Result<Arc<File>> {
    let How { flags, mode, resolve } = how;
    // With the directory for a root, an absolute path begins there as well.
    let from: &[u8] = if resolve.contains(Resolve::IN_ROOT) && !path.is_empty() { b"." } else { path };
    let start = walk::start(cx, actor, dirfd, from)?;
    let walker = Walker::new(actor, start, path, resolve)?;
    if flags.contains(OpenFlags::PATH) {
        return open_path(walker.finish(!flags.contains(OpenFlags::NOFOLLOW))?, flags);
    }
    if flags.contains(OpenFlags::TMPFILE_BIT) {
        return open_tmpfile(actor, &walker.finish(true)?, flags, mode);
    }
    if flags.contains(OpenFlags::CREAT) {
        let (path, created) = find_or_create(actor, walker, flags, mode)?;
        // What was there may have been removed before it could be opened: it is made then.
        return finish(actor, path, flags, created)
            .map_err(|error| if error == Errno::ENOENT { Errno::ESTALE } else { error });
    }
    let path = walker.finish(!flags.contains(OpenFlags::NOFOLLOW))?;
    finish(actor, path, flags, false)
}

/// `O_PATH`: only names the place.
fn open_path(path: Path, flags: OpenFlags) -> Result<Arc<File>> {
    if flags.contains(OpenFlags::DIRECTORY) && path.inode.kind() != S_IFDIR {
        return Err(Errno::ENOTDIR);
    }
    let kept = OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW | OpenFlags::CLOEXEC;
    Ok(File::new(Box::new(PathOnly), flags & kept, Some(path)))
}

fn open_tmpfile(actor: &Actor, dir: &Path, flags: OpenFlags, mode: u32) -> Result<Arc<File>> {
    if !flags.writable() {
        return Err(Errno::EINVAL);
    }
    if dir.inode.kind() != S_IFDIR {
        return Err(Errno::ENOTDIR);
    }
    access::check_change(&actor.creds, dir)?;
    let new = access::new_node(&actor.creds, &dir.inode, mode & 0o7777 & !actor.fs.umask(), false)?;
    let inode = dir.inode.tmpfile(new)?;
    let name = format!("#{}", inode.stat()?.ino);
    let dentry =
        Dentry::unnamed(&dir.dentry, name.as_bytes(), inode.clone(), !flags.contains(OpenFlags::EXCL));
    let ops = inode.clone().open(flags)?;
    let file = File::new(ops, flags, Some(dir.with(dentry, inode)));
    file.check_mount()?;
    file.notify(Mask::OPEN);
    Ok(file)
}

/// Finds the file, or makes it; true: it was made.
fn find_or_create(
    actor: &Actor,
    mut walker: Walker<'_>,
    flags: OpenFlags,
    mode: u32,
) -> Result<(Path, bool)> {
    loop {
        let Last::Name(name, slash) = walker.to_parent()? else { return Ok((walker.at().clone(), false)) };
        if slash {
            return Err(Errno::EISDIR);
        }
        let dir = walker.at().clone();
        if let Some(found) = walk::child(&dir, &name)? {
            if flags.contains(OpenFlags::EXCL) {
                return Err(Errno::EEXIST);
            }
            if found.inode.kind() != S_IFLNK {
                access::check_found(&actor.creds, &dir, &found)?;
                return Ok((found, false));
            }
            if flags.contains(OpenFlags::NOFOLLOW) {
                return Err(Errno::ELOOP);
            }
            access::check_link(&actor.creds, &dir, &found)?;
            walker.follow(&found)?;
            continue;
        }
        match create(actor, &dir, &name, mode) {
            // Someone was faster.
            Err(Errno::EEXIST) if !flags.contains(OpenFlags::EXCL) => {
                forget_unless_fixed(&dir, &name);
                let found = walk::child(&dir, &name)?.ok_or(Errno::ESTALE)?;
                if found.inode.kind() == S_IFLNK {
                    return Err(Errno::ESTALE);
                }
                return Ok((found, false));
            }
            result => return Ok((result?, true)),
        }
    }
}

/// Looks the name up anew next time, unless something is mounted there.
fn forget_unless_fixed(dir: &Path, name: &[u8]) {
    let _changes = dir.dentry.changes.lock();
    if !dir.dentry.cached(name).is_some_and(|known| known.is_fixed()) {
        dir.dentry.forget(name);
    }
}

fn create(actor: &Actor, dir: &Path, name: &[u8], mode: u32) -> Result<Path> {
    let _changes = dir.dentry.changes.lock();
    if dir.dentry.is_gone() {
        return Err(Errno::ENOENT);
    }
    if walk::child_locked(dir, name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    access::check_change(&actor.creds, dir)?;
    let new = access::new_node(&actor.creds, &dir.inode, mode & 0o7777 & !actor.fs.umask(), false)?;
    let inode = dir.inode.create(name, NodeKind::Regular, new)?;
    let dentry = dir.dentry.insert(name, Some(inode.clone()));
    dir.notify_name(Mask::CREATE, name, false, 0);
    Ok(mount::enter(dir.with(dentry, inode)))
}

/// Opens a file that was found, after checking that the caller may open it.
fn finish(actor: &Actor, path: Path, flags: OpenFlags, created: bool) -> Result<Arc<File>> {
    let kind = path.inode.kind();
    let truncates = flags.contains(OpenFlags::TRUNC) && kind == S_IFREG && !created;
    match kind {
        S_IFLNK if !flags.contains(OpenFlags::DIRECTORY) => return Err(Errno::ELOOP),
        S_IFDIR
            if flags
                .intersects(OpenFlags::WRONLY | OpenFlags::RDWR | OpenFlags::CREAT | OpenFlags::TRUNC) =>
        {
            return Err(Errno::EISDIR);
        }
        S_IFCHR | S_IFBLK if access::forbids(&path, Limits::NO_DEV) => return Err(Errno::EACCES),
        S_IFDIR => {}
        _ if flags.contains(OpenFlags::DIRECTORY) => return Err(Errno::ENOTDIR),
        _ => {}
    }
    if !created {
        let mut want = Want::empty();
        let both = flags.is_mode_three();
        want.set(Want::READ, flags.readable() || both);
        want.set(Want::WRITE, flags.writable() || truncates || both);
        access::check(&actor.creds, &path, want)?;
    }
    if flags.contains(OpenFlags::NOATIME) && !access::is_owner(&actor.creds, &path.inode.stat()?) {
        return Err(Errno::EPERM);
    }
    if kind == S_IFIFO && flags.is_mode_three() {
        return Err(Errno::EINVAL);
    }
    let ops = path.inode.clone().open(flags - mode_three(flags))?;
    if flags.contains(OpenFlags::DIRECT) && !ops.is_direct() {
        return Err(Errno::EINVAL);
    }
    leases::make_way(&*path.inode, flags.writable(), !flags.contains(OpenFlags::NONBLOCK))?;
    let file = File::new(ops, flags, Some(path));
    file.check_mount()?;
    file.notify(Mask::OPEN);
    if truncates {
        truncate(&file)?;
        file.notify(Mask::MODIFY);
    }
    Ok(file)
}

/// The bits of access mode 3 if that is the mode: the file system opens it for reading, and the file allows nothing.
fn mode_three(flags: OpenFlags) -> OpenFlags {
    if flags.is_mode_three() { OpenFlags::WRONLY | OpenFlags::RDWR } else { OpenFlags::empty() }
}

/// `O_TRUNC`. A file that was opened for reading alone is emptied as well.
fn truncate(file: &File) -> Result<()> {
    match &file.path {
        Some(path) if !file.flags().writable() => while_writing(&*path.inode, || {
            path.inode.set_attr(&AttrChange { size: Some(0), ..AttrChange::default() })
        }),
        _ => file.ops.truncate(file, 0),
    }
}

/// Opens a place that the kernel itself has found, as the caller would (magic links, `/proc/PID/exe`).
pub fn open_found(cx: &CallerCtx<'_>, path: Path, flags: OpenFlags) -> Result<Arc<File>> {
    finish(&Actor::of(cx), path, flags, false)
}

/// Opens a program for `execve(2)`: a regular file the task may execute. `flags` as `execveat(2)`.
pub fn open_executable(cx: &CallerCtx<'_>, dirfd: i32, path: &[u8], flags: u32) -> Result<Arc<File>> {
    let actor = Actor::of(cx);
    for _ in 0..STALE_TRIES {
        let place = match walk::resolve_at(cx, &actor, dirfd, path, flags)? {
            Some(place) => place,
            None => {
                let file = cx.file(dirfd)?;
                match &file.path {
                    Some(place) => place.clone(),
                    // A memfd is run as it is.
                    None => return check_program(&actor, &file).map(|()| file.clone()),
                }
            }
        };
        match place.inode.kind() {
            S_IFLNK => return Err(Errno::ELOOP),
            S_IFREG => {}
            _ => return Err(Errno::EACCES),
        }
        access::check(&actor.creds, &place, Want::EXEC)?;
        match place.inode.clone().open(OpenFlags::empty()) {
            Err(Errno::ESTALE) => {}
            ops => {
                let ops = ops?;
                leases::make_way(&*place.inode, false, true)?;
                let file = File::of_program(ops, place)?;
                file.notify(Mask::OPEN);
                return Ok(file);
            }
        }
    }
    Err(Errno::ESTALE)
}

fn check_program(actor: &Actor, file: &File) -> Result<()> {
    let stat = file.ops.stat(file)?;
    if !stat.is_regular() {
        return Err(Errno::EACCES);
    }
    access::permitted(&actor.creds, &stat, Want::EXEC)
}

/// The operations of an `O_PATH` descriptor, which allows next to none.
struct PathOnly;

impl FileOps for PathOnly {
    fn stat(&self, file: &File) -> Result<Stat> {
        file.path.as_ref().ok_or(Errno::EBADF)?.inode.stat()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
