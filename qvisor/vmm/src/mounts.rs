//! The file systems a sandbox sees: copy-on-write views of the host's, made as mounts that no path leads to.
//!
//! Every view is a *detached* mount (`fsmount(2)`, `open_tree(2)`): it exists as long as a descriptor to it does, so a
//! sandbox that dies, however it dies, leaves no mount behind. A view is an overlay: the host's directory below, a
//! fresh directory of the sandbox's above. Mounts below the root that are read-only on the host stay so and need no
//! layer; those the host's kernel makes up (`proc`, `sysfs`, …) are left to the sandbox's kernel.

mod lower;
mod overlay;
mod table;

use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use abi::boot::{MOUNT_READ_ONLY, MOUNT_SHARED, MOUNT_VOLUME};
use abi::mount::{HostKind, Mount};

use crate::directory::Directory;
use crate::host_paths::HostPaths;
use crate::jail::{IdMap, Propagation};

pub use overlay::{
    Beginning, Changes, Fill, LayerView, LowerDirectory, bytes_of_text, path_of, text_of, views_of,
};
use overlay::{FSCONFIG_CMD_CREATE, FSCONFIG_SET_STRING, Layers};
pub use table::{MountBelow, mounts_below};
use table::{Mounted, mount_id, mounted, worth_showing};

/// Directories that are the sandbox's kernel's own.
const VIRTUAL: &[&str] = &["/proc", "/sys", "/dev"];

/// Largest file that is copied when a directory cannot be overlaid.
const COPIED_MAX: u64 = 1 << 20;

const AT_RECURSIVE: i64 = 0x8000;
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;
const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;

/// Why a sandbox's file systems could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("cannot use root file system {path}: {source}; pass an existing directory with --rootfs")]
    Root { path: PathBuf, source: io::Error },
    #[error("cannot make the sandbox's layer in {path}: {source}; free some space or set DORMOUSE_LAYERS")]
    Layer { path: PathBuf, source: io::Error },
    #[error(
        "cannot make a copy-on-write view of {path}: {source}; the host needs overlayfs (5.11 or later for users other \
         than root), and a disk for layers (DORMOUSE_LAYERS)"
    )]
    Overlay { path: PathBuf, source: io::Error },
    #[error(
        "cannot show the changes to {} with which the sandbox begins: the host has no directory there that can be written over",
        path.display()
    )]
    Changes { path: PathBuf },
    #[error("cannot mount volume {path}: {source}; pass an existing file or directory with --volume")]
    Volume { path: PathBuf, source: io::Error },
    #[error("cannot mount {path}: {source}; correct the source of this mount in config.json")]
    Bind { path: PathBuf, source: io::Error },
    #[error(
        "cannot show {path} with mapped ids: {source}; pass --userns identity, or leave --userns out to let Dormouse choose"
    )]
    Unmapped { path: PathBuf, source: io::Error },
}

/// A volume of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub source: PathBuf,
    /// In the sandbox; absolute.
    pub target: PathBuf,
    pub read_only: bool,
}

/// A mount of a sandbox, with the host's files open that it shows.
pub type OpenMount = Mount<PathBuf, OpenTree>;

/// Files of the host's, as a detached mount or by their directory.
#[derive(Debug)]
pub struct OpenTree {
    pub fd: OwnedFd,
    /// Of an overlay: its lower directory, if the overlay shows what lies there by the same inode numbers.
    pub lower: Option<OwnedFd>,
}

impl From<OwnedFd> for OpenTree {
    fn from(fd: OwnedFd) -> Self {
        Self { fd, lower: None }
    }
}

/// A view of the host's files beside or below a copy-on-write view of its root, or that view.
fn view(files: OpenTree, path: PathBuf, flags: u32) -> OpenMount {
    let kind = if path == Path::new("/") { HostKind::Overlay } else { HostKind::Plain };
    OpenMount::of_host(kind, files, path, flags)
}

/// Opens a sandbox's own directory for its changes.
pub fn layer(_: &HostPaths, path: &Path) -> Result<Directory, MountError> {
    Directory::open(path).map_err(|source| MountError::Layer { path: path.to_owned(), source })
}

/// Makes the views of `root` and of the mounts below it, the root first, parents before children, with the sandbox's changes in
/// `layer`, which begins with those of `beginning`. Nothing of the `hidden` directories is shown. With an id mapping every view is shown through it, or none is; no path leads to
/// `layer` then.
pub fn copy_on_write(
    _: &HostPaths,
    root: &Path,
    hidden: &[PathBuf],
    layer: &Directory,
    beginning: Option<Beginning<'_>>,
    id_map: Option<IdMap<'_>>,
) -> Result<Vec<OpenMount>, MountError> {
    let unusable = |source| MountError::Root { path: root.to_owned(), source };
    let root = fs::canonicalize(root).map_err(unusable)?;
    let found = mounted();
    let mut composer = Composer {
        root: root.clone(),
        points: found.keys().cloned().collect(),
        layers: Layers::new(layer, beginning, id_map),
        views: Vec::new(),
    };
    composer.show(&root)?;
    let hidden: Vec<_> = hidden.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    for (path, mount) in worth_showing(found, &root) {
        let inside = composer.inside(&path);
        if hidden.iter().any(|hidden| path.starts_with(hidden)) {
            continue;
        }
        if !VIRTUAL.iter().any(|virtual_dir| inside.starts_with(virtual_dir)) {
            // A mount that cannot be shown (an odd file system, missing privileges) is left out: the directory below
            // shows.
            if let Err(error @ MountError::Unmapped { .. }) = composer.show_mount(&path, &mount) {
                return Err(error);
            }
        }
    }
    composer.layers.check_all_begun()?;
    composer.layers.write_views()?;
    composer.views.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(composer.views)
}

/// Makes the copy-on-write view of a directory, as a whole: what is mounted below it is not in it.
pub fn copy_on_write_root(
    host: &HostPaths,
    root: &Path,
    layer: &Directory,
    id_map: Option<IdMap<'_>>,
) -> Result<OpenTree, MountError> {
    let made = Layers::new(layer, None, id_map).overlay_of(root, Path::new("/"));
    match (made, id_map) {
        (Err(error @ MountError::Overlay { .. }), None) => match mounts_below(host, root).first() {
            // In a user namespace the host refuses it then.
            Some(below) => {
                let source =
                    io::Error::other(format!("{error}; {} is mounted below it", below.path.display()));
                Err(MountError::Overlay { path: root.to_owned(), source })
            }
            None => Err(error),
        },
        (made, _) => made.map(OpenTree::from),
    }
}

/// Collects the views of one sandbox.
struct Composer<'a> {
    root: PathBuf,
    /// Everything that is mounted anywhere.
    points: Vec<PathBuf>,
    layers: Layers<'a>,
    views: Vec<OpenMount>,
}

impl Composer<'_> {
    fn inside(&self, path: &Path) -> PathBuf {
        Path::new("/").join(path.strip_prefix(&self.root).unwrap_or(path))
    }

    fn push(&mut self, files: OpenTree, path: &Path, read_only: bool) {
        let path = self.inside(path);
        // A mount replaces what a directory listing showed in its place.
        self.views.retain(|view| view.path != path);
        self.views.push(view(files, path, if read_only { MOUNT_READ_ONLY | MOUNT_SHARED } else { 0 }));
    }

    fn push_overlay(&mut self, fd: OwnedFd, path: &Path) {
        // By the directory itself, one would come to what is mounted below it.
        let is_fresh = self.layers.is_fresh(&self.inside(path));
        let lower = is_fresh.then(|| clone_tree(path, true, self.layers.id_map).ok()).flatten();
        let lower =
            lower.filter(|lower| lower::is_shown_as_it_is(lower.as_fd(), fd.as_fd(), &self.layers.dir));
        self.push(OpenTree { fd, lower }, path, false);
    }

    fn show_mount(&mut self, path: &Path, mount: &Mounted) -> Result<(), MountError> {
        let is_dir = fs::metadata(path).is_ok_and(|metadata| metadata.is_dir());
        if is_dir && !mount.read_only {
            return self.show(path);
        }
        match (clone_tree(path, true, self.layers.id_map), self.layers.id_map) {
            (Ok(fd), _) => self.push(fd.into(), path, true),
            (Err(source), Some(_)) => return Err(MountError::Unmapped { path: path.to_owned(), source }),
            (Err(_), None) => open_path(path).into_iter().for_each(|fd| self.push(fd.into(), path, true)),
        }
        Ok(())
    }

    /// Shows a directory as an overlay, or piece by piece: in a user namespace the host's kernel refuses overlays over
    /// directories that hold mounts.
    fn show(&mut self, path: &Path) -> Result<(), MountError> {
        match self.layers.overlay_of(path, &self.inside(path)) {
            Ok(fd) => self.push_overlay(fd, path),
            Err(error @ MountError::Overlay { .. }) => {
                if !self.points.iter().any(|point| point != path && point.starts_with(path)) {
                    return Err(error);
                }
                self.show_pieces(path)?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A directory of the sandbox's own with the same entries: links and small files are copied, directories are shown
    /// as views of their own.
    fn show_pieces(&mut self, path: &Path) -> Result<(), MountError> {
        let failed = |source| MountError::Layer { path: path.to_owned(), source };
        let lower = open_directory(path).map_err(failed)?;
        let (copy, _) = self.layers.make(lower.as_fd()).map_err(failed)?;
        self.layers.note(&self.inside(path), &copy, false, &[]);
        self.push(open_directory(&copy).map_err(failed)?.into(), path, false);
        for entry in fs::read_dir(path).map_err(failed)?.flatten() {
            let (from, to) = (entry.path(), copy.join(entry.file_name()));
            let Ok(metadata) = fs::symlink_metadata(&from) else { continue };
            if metadata.is_dir() {
                let _ = fs::create_dir(&to);
                let inside = self.inside(&from);
                if !VIRTUAL.iter().any(|virtual_dir| inside == Path::new(virtual_dir)) {
                    // Without a view the directory stays empty.
                    let _ = self.show(&from);
                }
            } else if metadata.is_symlink() {
                let _ = fs::read_link(&from).and_then(|target| std::os::unix::fs::symlink(target, &to));
            } else if metadata.is_file() && metadata.len() <= COPIED_MAX {
                let _ = fs::copy(&from, &to);
            }
        }
        Ok(())
    }
}

/// Opens a volume: a copy of the mount it lies on, without the mounts below it, or the node itself where the host lets
/// us make no mounts. With an id mapping, files that the guest's root makes are the host's root's.
pub fn volume(_: &HostPaths, volume: &Volume, id_map: Option<IdMap<'_>>) -> Result<OpenMount, MountError> {
    let failed = |source| MountError::Volume { path: volume.source.clone(), source };
    let source = fs::canonicalize(&volume.source).map_err(failed)?;
    let fd = match (clone_tree(&source, volume.read_only, id_map), id_map) {
        (Err(source), Some(_)) => {
            return Err(MountError::Unmapped { path: volume.source.clone(), source });
        }
        (result, _) => result.or_else(|_| open_path(&source)).map_err(failed)?,
    };
    let read_only = if volume.read_only { MOUNT_READ_ONLY } else { 0 };
    Ok(view(fd.into(), volume.target.clone(), MOUNT_VOLUME | MOUNT_SHARED | read_only))
}

/// Opens one of [`mounts_below`], which is writable, while those below it, which cover what it has there, are read-only. Whoever may
/// write to the directory may have moved what is in it since: no link is followed, and it is the same mount or an error.
pub fn open_mount_below(
    _: &HostPaths,
    directory: &Path,
    mount: &MountBelow,
    id_map: Option<IdMap<'_>>,
) -> io::Result<OwnedFd> {
    const RESOLVE_NO_SYMLINKS: u64 = 4;
    const RESOLVE_BENEATH: u64 = 8;
    let directory = open_directory(directory)?;
    let resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH;
    let found = open_resolved(directory.as_fd(), &mount.path, libc::O_PATH, resolve)?;
    if mount_id(found.as_raw_fd(), c"") != Some(mount.id) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let tree = clone_at(found.as_raw_fd(), c"", true, true, id_map)?;
    set_attributes(tree.as_fd(), [0, MOUNT_ATTR_RDONLY, 0, 0], false)?;
    Ok(tree)
}

/// Opens a file or directory of the host for the sandbox to mount: a copy of the mount it lies on, with the mounts
/// below it if `recursive`, or the node itself where the host lets us make no mounts. With an id mapping it is shown
/// through that, or not at all ([`MountError::Unmapped`]).
pub fn open_tree(
    _: &HostPaths,
    path: &Path,
    read_only: bool,
    recursive: bool,
    id_map: Option<IdMap<'_>>,
) -> Result<OwnedFd, MountError> {
    match (clone_mounts(path, read_only, recursive, id_map), id_map) {
        (Err(source), Some(_)) => Err(MountError::Unmapped { path: path.to_owned(), source }),
        (result, _) => result
            .or_else(|_| open_path(path))
            .map_err(|source| MountError::Bind { path: path.to_owned(), source }),
    }
}

/// Opens the directory at `path` below `root`; links lead to places below it as well.
pub fn open_in_root(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    open_below(root, path, libc::O_PATH | libc::O_DIRECTORY)
}

/// Reads the regular file at `path` below `root`, up to 1 MiB of it.
pub fn read_in_root(root: BorrowedFd<'_>, path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    // A device or FIFO must neither hold us up nor become our terminal.
    let file = File::from(open_below(root, path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)?);
    let mut bytes = Vec::new();
    if file.metadata()?.is_file() {
        file.take(1 << 20).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

fn open_below(root: BorrowedFd<'_>, path: &Path, flags: i32) -> io::Result<OwnedFd> {
    const RESOLVE_IN_ROOT: u64 = 0x10;
    open_resolved(root, path, flags, RESOLVE_IN_ROOT)
}

fn open_resolved(root: BorrowedFd<'_>, path: &Path, flags: i32, resolve: u64) -> io::Result<OwnedFd> {
    let name = c_path(path)?;
    // struct open_how: flags, mode, resolve.
    let how = [u64::from((flags | libc::O_CLOEXEC).cast_unsigned()), 0, resolve];
    let size = i64::try_from(size_of_val(&how)).unwrap_or(0);
    let dir = i64::from(root.as_raw_fd());
    system_call([libc::SYS_openat2, dir, name.as_ptr() as i64, how.as_ptr() as i64, size, 0])
}

fn open_with(path: &Path, flags: i32) -> io::Result<OwnedFd> {
    Ok(File::options().read(true).custom_flags(libc::O_PATH | flags).open(path)?.into())
}

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    open_with(path, 0)
}

/// Names a directory.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    open_with(path, libc::O_DIRECTORY)
}

/// A detached copy of the mount at `path`, with `path` as its root, whose ids are mapped if asked for.
fn clone_tree(path: &Path, read_only: bool, id_map: Option<IdMap<'_>>) -> io::Result<OwnedFd> {
    clone_mounts(path, read_only, false, id_map)
}

/// [`clone_tree`], with the mounts below it if `recursive`.
fn clone_mounts(
    path: &Path,
    read_only: bool,
    recursive: bool,
    id_map: Option<IdMap<'_>>,
) -> io::Result<OwnedFd> {
    clone_at(libc::AT_FDCWD, &c_path(path)?, read_only, recursive, id_map)
}

/// [`clone_mounts`] of what a descriptor of a directory and a name lead to, or of the descriptor's own file without a name.
fn clone_at(
    dir: RawFd,
    name: &CStr,
    read_only: bool,
    recursive: bool,
    id_map: Option<IdMap<'_>>,
) -> io::Result<OwnedFd> {
    let below = if recursive { AT_RECURSIVE } else { 0 };
    let flags = i64::from(libc::O_CLOEXEC | libc::AT_EMPTY_PATH) | below | 1;
    let fd = system_call([libc::SYS_open_tree, i64::from(dir), name.as_ptr() as i64, flags, 0, 0])?;
    let only_read = if read_only { MOUNT_ATTR_RDONLY } else { 0 };
    let (mapped, namespace) = match id_map {
        Some(id_map) => (MOUNT_ATTR_IDMAP, u64::try_from(id_map.namespace.as_raw_fd()).unwrap_or(0)),
        None => (0, 0),
    };
    let attributes = [MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | only_read | mapped, 0, 0, namespace];
    set_attributes(fd.as_fd(), attributes, recursive)?;
    Ok(fd)
}

/// Says whether a detached mount, and those below it, show what the host mounts there later. What is mounted in them shows
/// nowhere else.
pub fn set_propagation(tree: BorrowedFd<'_>, propagation: Propagation) -> io::Result<()> {
    set_attributes(tree, [0, 0, propagation.flag(), 0], true)
}

/// Changes a detached mount, and those below it if `recursive`; `struct mount_attr`: set, clear, propagation, namespace.
fn set_attributes(tree: BorrowedFd<'_>, attributes: [u64; 4], recursive: bool) -> io::Result<()> {
    let flags = i64::from(libc::AT_EMPTY_PATH) | if recursive { AT_RECURSIVE } else { 0 };
    let (at, size) = (tree.as_raw_fd().into(), i64::try_from(size_of_val(&attributes)).unwrap_or(0));
    call([libc::SYS_mount_setattr, at, c"".as_ptr() as i64, flags, attributes.as_ptr() as i64, size])
        .map(drop)
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// A system call of this file: the number, then its arguments, pointers among them being valid for the call.
/// A file system in memory that no path leads to, for the caller alone.
pub fn in_memory(most_bytes: u64) -> io::Result<OwnedFd> {
    const FSMOUNT_CLOEXEC: i64 = 1;
    let context = system_call([libc::SYS_fsopen, c"tmpfs".as_ptr() as i64, 1, 0, 0, 0])?;
    let fd = i64::from(context.as_raw_fd());
    let size = CString::new(most_bytes.to_string())?;
    for (key, value) in [(c"mode", c"0700"), (c"size", size.as_c_str())] {
        let (key, value) = (key.as_ptr() as i64, value.as_ptr() as i64);
        call([libc::SYS_fsconfig, fd, i64::from(FSCONFIG_SET_STRING), key, value, 0])?;
    }
    call([libc::SYS_fsconfig, fd, i64::from(FSCONFIG_CMD_CREATE), 0, 0, 0])?;
    let attributes = (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV).cast_signed();
    system_call([libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, attributes, 0, 0])
}

fn call(args: [i64; 6]) -> io::Result<i64> {
    let [number, a, b, c, d, e] = args;
    // SAFETY: the callers pass live descriptors and pointers to live, zero-terminated or sized data.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn system_call(args: [i64; 6]) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(call(args)?).unwrap_or(-1);
    // SAFETY: the calls made this way return a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether an overlay can be made at all; for `dormouse doctor`.
#[must_use]
pub fn knows_overlay() -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.lines().any(|line| line.ends_with("\toverlay"))
}

/// The path as bytes, for boot records.
#[must_use]
pub fn bytes_of(path: &Path) -> Vec<u8> {
    OsStr::as_bytes(path.as_os_str()).to_vec()
}
