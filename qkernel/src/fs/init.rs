//! The first tree: mounts, working directory and streams as the boot records say.

use abi::boot::{MOUNT_READ_ONLY, MOUNT_SHARED, STREAM_TTY};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::access::Actor;
use super::mount::{self, Mount};
use super::walk::{self, Resolve, Walker};
use super::{File, FileTable, FsContext, Inode, Path, devfs, hostfs, special, stream, tmpfs, tty};
use crate::boot::Spec;
use crate::config::NR_OPEN;
use crate::errno::{Errno, Result};
use crate::host::Handle;
use crate::task::creds::Creds;

/// One mount to be made.
struct Wanted<'a> {
    path: &'a [u8],
    root: Arc<dyn Inode>,
    kind: &'a [u8],
    read_only: bool,
}

/// Makes the root file system, the mounts and the standard streams from the boot records.
pub fn init(spec: &Spec) -> Result<(Arc<FsContext>, Arc<FileTable>)> {
    let (first, others) = spec.mounts.split_first().ok_or(Errno::ENODEV)?;
    let root = mount_root(first.0, first.1)?;
    let mut wanted: Vec<Wanted<'_>> = Vec::new();
    for (handle, flags, path) in others {
        let root = hostfs::root(Handle::from_raw(*handle), flags & MOUNT_SHARED != 0)?;
        wanted.push(Wanted { path, root, kind: b"host", read_only: flags & MOUNT_READ_ONLY != 0 });
    }
    for (kind, path) in &spec.virtual_mounts {
        let root = special::virtual_fs(kind).unwrap_or_else(|| tmpfs::new(0o755));
        wanted.push(Wanted { path, root, kind, read_only: kind == b"sysfs" });
    }
    // Parents before children, whichever list they are in.
    wanted.sort_by_key(|one| components(one.path).count());
    for one in wanted {
        let place = make_place(&root, one.path)?;
        Mount::of(one.root, one.kind, one.kind, one.read_only).attach(&place);
    }
    let context = FsContext::new(root.clone(), root.clone(), spec.umask.unwrap_or(0o022));
    match enter_cwd(&context, spec) {
        Ok(cwd) => context.set_cwd(cwd),
        Err(error) => crate::warn!("working directory {}: {error:?}; / instead", spec.cwd.escape_ascii()),
    }
    Ok((context, streams(spec)?))
}

fn mount_root(handle: u32, flags: u32) -> Result<Path> {
    let root = hostfs::root(Handle::from_raw(handle), flags & MOUNT_SHARED != 0)?;
    let mount = Mount::of(root, b"overlay", b"overlay", flags & MOUNT_READ_ONLY != 0);
    mount.become_root();
    Ok(mount.path())
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// The place to mount over at `path`, following links. Directories that aren't there are made up: they exist for the
/// sandbox alone.
fn make_place(root: &Path, path: &[u8]) -> Result<Path> {
    let actor = Actor {
        creds: Arc::new(Creds::new(0, 0, Vec::new())),
        fs: FsContext::new(root.clone(), root.clone(), 0),
    };
    let found = Walker::new(&actor, root.clone(), path, Resolve::empty())?.finish(true);
    if let Ok(found) = found {
        return Ok(found);
    }
    let mut at = root.clone();
    for name in components(path) {
        let next = Walker::new(&actor, at.clone(), name, Resolve::empty())?.finish(true);
        at = match next {
            Ok(next) => next,
            Err(Errno::ENOENT) => {
                let _changes = at.dentry.changes.lock();
                let inode = tmpfs::new(0o755);
                let dentry = at.dentry.insert(name, Some(inode.clone()));
                dentry.pin();
                at.with(dentry, inode)
            }
            Err(error) => return Err(error),
        };
    }
    Ok(at)
}

fn enter_cwd(context: &Arc<FsContext>, spec: &Spec) -> Result<Path> {
    if spec.cwd.is_empty() {
        return Ok(context.root());
    }
    let creds = Arc::new(Creds::new(0, 0, Vec::new()));
    let actor = Actor { creds, fs: context.clone() };
    let cwd = Walker::new(&actor, context.root(), &spec.cwd, Resolve::empty())?.finish(true)?;
    if cwd.inode.kind() == super::inode::S_IFDIR { Ok(cwd) } else { Err(Errno::ENOTDIR) }
}

/// The descriptors the first process starts with.
fn streams(spec: &Spec) -> Result<Arc<FileTable>> {
    devfs::set_terminal_opener(tty::open_device);
    let files = FileTable::new();
    let mut console: Option<Arc<File>> = None;
    for (fd, handle, flags) in &spec.streams {
        let handle = Arc::new(Handle::from_raw(*handle));
        if flags & STREAM_TTY != 0 && console.is_none() {
            console = special::console(handle.clone(), spec.winsize);
        }
        let file = match &console {
            Some(console) if flags & STREAM_TTY != 0 => console.clone(),
            _ => stream::open(handle, *fd)?,
        };
        let fd = i32::try_from(*fd).map_err(|_| Errno::EBADF)?;
        files.replace(fd, file, false, NR_OPEN)?;
    }
    Ok(files)
}

/// The mounts as lines of `/proc/PID/mounts`, seen from `root`.
pub fn mount_lines(root: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    for mount in mount::list() {
        let at = match mount.place() {
            Some((parent, dentry)) => {
                let inode = mount.root_inode.clone();
                Path { mount: parent, dentry, inode }.below(root)
            }
            None => Some(b"/".to_vec()),
        };
        let Some(at) = at else { continue };
        let mode = if mount.is_read_only() { "ro" } else { "rw" };
        let (source, kind) = (mount.source.escape_ascii(), mount.kind.escape_ascii());
        text.extend_from_slice(
            format!("{source} {} {kind} {mode},relatime 0 0\n", at.escape_ascii()).as_bytes(),
        );
    }
    text
}

/// [`walk::child`] for the kernel's own lookups of a path without links (`/etc/passwd`, …).
pub fn look_up(root: &Path, path: &[u8]) -> Result<Path> {
    let mut at = root.clone();
    for name in components(path) {
        at = walk::child(&at, name)?.ok_or(Errno::ENOENT)?;
    }
    Ok(at)
}
