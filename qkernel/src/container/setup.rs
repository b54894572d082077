//! The first tree: mounts, working directory and streams as the boot records say; and what a process that comes in later
//! finds of it.

use abi::boot::{MOUNT_SHARED, MOUNT_VOLUME, STREAM_TTY};
use abi::mount::Kind;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::config::NR_OPEN;
use crate::creds::Creds;
use crate::filesystems;
use crate::fs::access::Actor;
use crate::fs::devfs;
use crate::fs::file::{File, FileTable, OpenFlags};
use crate::fs::inode::{NodeKind, S_IFDIR, S_IFREG};
use crate::fs::mount::{self, Limits, Mount};
use crate::fs::path::{FsContext, Path};
use crate::fs::walk::{Resolve, Walker};
use crate::fs::{hostfs, names, stream, tmpfs};
use crate::spec::{HostFiles, MountSpec, Spec, StreamSpec};
use crate::task::container::Container;
use crate::tty;
use crate::tty::Tty;
use machine::errno::{Errno, Result};

/// Root and working directory of a first process, its descriptors, and the console if its streams are on one.
pub type Made = (Arc<FsContext>, Arc<FileTable>, Option<Arc<Tty>>);

/// Makes the root file system, the mounts and the standard streams from the boot records. The error is the end of a
/// sentence.
pub fn init(container: &Arc<Container>, spec: &mut Spec) -> core::result::Result<Made, String> {
    let mut mounts = core::mem::take(&mut spec.mounts).into_iter();
    let first = mounts.next().ok_or("there is no root file system")?;
    let root =
        mount_root(first, container).map_err(|error| format!("the root cannot be mounted: {error:?}"))?;
    // With which all its mounts go, should one fail.
    container.root.call_once(|| root.clone());
    let actor = kernel_actor(&root);
    for mount in mounts {
        let path = mount.path.clone();
        attach(&actor, &root, mount, container)
            .map_err(|error| format!("mount {}: {error:?}", path.escape_ascii()))?;
    }
    mount::list().iter().for_each(|mount| hostfs::begin_lower(&mount.root_inode));
    for path in &spec.read_only {
        make_read_only(&actor, &root, path)
            .map_err(|error| format!("read-only path {}: {error:?}", path.escape_ascii()))?;
    }
    for path in &spec.masked {
        mask(&actor, &root, path)
            .map_err(|error| format!("masked path {}: {error:?}", path.escape_ascii()))?;
    }
    let context = FsContext::new(root.clone(), root.clone(), spec.umask.unwrap_or(0o022));
    match enter_cwd(&actor, &root, spec) {
        Ok(cwd) => context.set_cwd(cwd),
        Err(error) if spec.flags.make_cwd => {
            return Err(format!("working directory {}: {error:?}", spec.cwd.escape_ascii()));
        }
        Err(error) => machine::warn!("working directory {}: {error:?}; / instead", spec.cwd.escape_ascii()),
    }
    devfs::set_terminal_opener(tty::open_device);
    let (files, console) = open_streams(container, spec.take_streams(), spec)
        .map_err(|error| format!("the standard streams cannot be opened: {error:?}"))?;
    Ok((context, files, console))
}

/// The root and working directory of an exec'd process: the container's root, with its creation mask.
pub fn context_of(container: &Container, spec: &Spec) -> Option<Arc<FsContext>> {
    let root = container.root.get()?;
    Some(FsContext::new(root.clone(), root.clone(), spec.umask.unwrap_or(0o022)))
}

/// Enters the working directory of a process that comes in.
pub fn enter_cwd_of(context: &FsContext, spec: &Spec) -> Result<()> {
    let root = context.root();
    context.set_cwd(enter_cwd(&kernel_actor(&root), &root, spec)?);
    Ok(())
}

/// Reads a file's beginning, up to `most` bytes, as the kernel itself.
pub fn read_start(context: &FsContext, path: &[u8], most: usize) -> Result<Vec<u8>> {
    let root = context.root();
    let found = find(&kernel_actor(&root), &root, path)?;
    if found.inode.kind() != S_IFREG {
        return Err(Errno::EINVAL);
    }
    let file = File::new(found.inode.clone().open(OpenFlags::empty())?, OpenFlags::empty(), Some(found));
    let mut bytes = alloc::vec![0; most];
    let mut len = 0;
    while len < most {
        match file.read_at(len as u64, &mut bytes[len..])? {
            0 => break,
            got => len += got,
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// The kernel itself, as it looks at the tree.
fn kernel_actor(root: &Path) -> Actor {
    Actor { creds: Arc::new(Creds::new(0, 0, Vec::new())), fs: FsContext::new(root.clone(), root.clone(), 0) }
}

fn new_mount(spec: MountSpec, container: &Arc<Container>) -> Result<Arc<Mount>> {
    let limits = Limits::from_bits_truncate(spec.flags);
    let (shared, is_volume) = (spec.has(MOUNT_SHARED), spec.has(MOUNT_VOLUME));
    let shown_as = spec.kind.name();
    let inode = match spec.kind {
        Kind::Host(_, HostFiles { root, lower }) => {
            let is_read_only = limits.contains(Limits::READ_ONLY);
            hostfs::root(root, hostfs::MountKind { shared, is_volume, is_read_only }, lower)?
        }
        Kind::Own(kind, settings) => filesystems::with_settings(kind, &settings, container)?,
    };
    Ok(Mount::of(inode, shown_as.as_bytes(), &spec.source, limits))
}

fn mount_root(spec: MountSpec, container: &Arc<Container>) -> Result<Path> {
    let mount = new_mount(spec, container)?;
    mount.become_root();
    Ok(mount.path())
}

fn attach(actor: &Actor, root: &Path, mut spec: MountSpec, container: &Arc<Container>) -> Result<()> {
    let path = core::mem::take(&mut spec.path);
    let mount = new_mount(spec, container)?;
    let is_directory = mount.root_inode.kind() == S_IFDIR;
    let place = make_place(actor, root, &path, is_directory)?;
    if is_directory != (place.inode.kind() == S_IFDIR) {
        return Err(Errno::ENOTDIR);
    }
    mount.attach(&place);
    Ok(())
}

/// [`attach`] by the kernel itself, of a file system of its own.
#[cfg(feature = "harness")]
pub fn attach_own(root: &Path, spec: MountSpec) -> Result<()> {
    attach(&kernel_actor(root), root, spec, &Container::kernel())
}

fn find(actor: &Actor, root: &Path, path: &[u8]) -> Result<Path> {
    Walker::new(actor, root.clone(), path, Resolve::empty())?.finish(true)
}

/// [`find`], where nothing to be found is no error.
fn find_if_there(actor: &Actor, root: &Path, path: &[u8]) -> Result<Option<Path>> {
    match find(actor, root, path) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        found => found.map(Some),
    }
}

/// Mounts what is at `path` over itself, read-only.
fn make_read_only(actor: &Actor, root: &Path, path: &[u8]) -> Result<()> {
    let Some(place) = find_if_there(actor, root, path)? else { return Ok(()) };
    let mount = place.mount.clone();
    let limits = mount.limits() | Limits::READ_ONLY;
    Mount::new(place.dentry.clone(), place.inode.clone(), &mount.kind, &mount.source, limits).attach(&place);
    Ok(())
}

/// Hides what is at `path`: a directory is empty, a file is the null device.
fn mask(actor: &Actor, root: &Path, path: &[u8]) -> Result<()> {
    let Some(place) = find_if_there(actor, root, path)? else { return Ok(()) };
    let (inode, kind): (_, &[u8]) = if place.inode.kind() == S_IFDIR {
        (tmpfs::new(0o755), b"tmpfs")
    } else {
        (tmpfs::device_node(devfs::NULL, 0o666), b"devtmpfs")
    };
    let limits = if place.inode.kind() == S_IFDIR { Limits::READ_ONLY } else { Limits::empty() };
    Mount::of(inode, kind, kind, limits).attach(&place);
    Ok(())
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// The place to mount over at `path`, following links. What isn't there is made up: it exists for the sandbox alone.
fn make_place(actor: &Actor, root: &Path, path: &[u8], directory: bool) -> Result<Path> {
    if let Ok(found) = find(actor, root, path) {
        return Ok(found);
    }
    let mut at = root.clone();
    let mut names = components(path).peekable();
    while let Some(name) = names.next() {
        let is_last = names.peek().is_none();
        let next = Walker::new(actor, at.clone(), name, Resolve::empty())?.finish(true);
        at = match next {
            Ok(next) => next,
            Err(Errno::ENOENT) => {
                let directory = directory || !is_last;
                match make_in(actor, &at, name, directory) {
                    Some(made) => made,
                    None => pretend(&at, name, directory),
                }
            }
            Err(error) => return Err(error),
        };
    }
    Ok(at)
}

/// Makes the place in a file system of the kernel's own. The host's were asked by the VMM already.
fn make_in(actor: &Actor, at: &Path, name: &[u8], directory: bool) -> Option<Path> {
    if hostfs::is_host(&at.inode) {
        return None;
    }
    if directory {
        names::mkdir(actor, at.clone(), name, 0o755).ok()?;
    } else {
        names::mknod(actor, at.clone(), name, NodeKind::Regular, 0o644).ok()?;
    }
    Walker::new(actor, at.clone(), name, Resolve::empty()).ok()?.finish(true).ok()
}

/// A place that only the cache of names knows.
fn pretend(at: &Path, name: &[u8], directory: bool) -> Path {
    let _changes = at.dentry.changes.lock();
    let inode = if directory { tmpfs::new(0o755) } else { tmpfs::placeholder() };
    let dentry = at.dentry.insert(name, Some(inode.clone()));
    dentry.pin();
    at.with(dentry, inode)
}

fn enter_cwd(actor: &Actor, root: &Path, spec: &Spec) -> Result<Path> {
    if spec.cwd.is_empty() {
        return Ok(root.clone());
    }
    let mut cwd = find(actor, root, &spec.cwd);
    if matches!(cwd, Err(Errno::ENOENT)) && spec.flags.make_cwd {
        let mut path = Vec::new();
        for name in components(&spec.cwd) {
            path.push(b'/');
            path.extend_from_slice(name);
            match names::mkdir(actor, root.clone(), &path, 0o755) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error),
            }
        }
        cwd = find(actor, root, &spec.cwd);
    }
    let cwd = cwd?;
    if cwd.inode.kind() == S_IFDIR { Ok(cwd) } else { Err(Errno::ENOTDIR) }
}

/// The descriptors that a process from outside starts with, and its console, if it has one.
pub fn open_streams(
    container: &Arc<Container>,
    streams: Vec<StreamSpec>,
    spec: &Spec,
) -> Result<(Arc<FileTable>, Option<Arc<Tty>>)> {
    let files = FileTable::new();
    let mut console: Option<(Arc<Tty>, Arc<File>)> = None;
    for StreamSpec { fd, handle, flags } in streams {
        if flags & STREAM_TTY != 0 && console.is_none() {
            // Without one they are plain streams.
            console = tty::console::open(container, handle.clone(), spec.winsize, spec.uid).ok();
        }
        let file = match &console {
            Some((_, console)) if flags & STREAM_TTY != 0 => console.clone(),
            _ => stream::open(handle, fd, flags)?,
        };
        let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
        files.replace(fd, file, false, NR_OPEN)?;
    }
    Ok((files, console.map(|(tty, _)| tty)))
}
