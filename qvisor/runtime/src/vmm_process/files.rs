//! The host's files that the sandbox may use, opened before the VMM gives up the host, and the mounts that the kernel
//! gets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use abi::boot::{MOUNT_READ_ONLY, MOUNT_SHARED, MOUNT_VOLUME, STREAM_TTY};
use abi::hostcall::NO_HANDLE;
use vmm::boot::{BootSpec, Mount, Stream};
use vmm::broker;
use vmm::directory::Directory;
use vmm::errno::Errno;
use vmm::exec_relay::VIEWS_MAX;
use vmm::host_paths::HostPaths;
use vmm::hostcall::host_io::HostIo;
use vmm::ids::IdMaps;
use vmm::jail::landlock::Use;
use vmm::jail::{self, IdMap, Propagation, UserNamespace, Users};
use vmm::mounts::{self, MountBelow, MountError, View, Volume};
use vmm::process;
use vmm::sys;

use super::error::VmmError;
use super::plan::{Plan, Tree};
use crate::oci::{Accounts, ContainerSpec, MountPlan, Source};
use crate::preserved::{self, Preserved, PreservedFd};
use crate::stderr_log::{self, LOG_DEBUG};

/// Directories that the kernel mounts its own file systems on.
const VIRTUAL_MOUNTS: &[(&str, &str)] = &[
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/dev/shm"),
    ("mqueue", "/dev/mqueue"),
];

/// Where programs look for their control group. The directory is sysfs's.
const CGROUP_MOUNT: &[u8] = b"/sys/fs/cgroup";

/// Descriptors and mounts that the VMM needs beside the boot records.
pub(super) struct Opened {
    /// The trees that show mounts which the host makes later.
    pub(super) following: Vec<OwnedFd>,
    /// The mounts that the volumes are.
    pub(super) volumes: Vec<u64>,
}

/// Opens the sandbox's files, and fills in their boot records. Ids are mapped unless a file system cannot show them so.
pub(super) fn open(
    host: &HostPaths,
    plan: &Plan,
    boot: &mut BootSpec,
    preserved: Preserved,
    io: &HostIo,
    users: &mut Users,
) -> Result<Opened, VmmError> {
    boot.streams = streams(plan, preserved, io)?;
    let tree = match &plan.tree {
        Tree::CopyOnWrite { root, layer, volumes, hidden } => {
            let layer = mounts::layer(host, layer)?;
            open_mapped(plan, users, |users| copy_on_write(host, root, &layer, volumes, hidden, users))?
        }
        Tree::Bundle(bundle) => {
            open_mapped(plan, users, |users| bundle_tree(host, &bundle.container, users))?
        }
    };
    if let (Tree::Bundle(_), Some(Piece::Host(root, ..))) = (&plan.tree, tree.first()) {
        add_home(boot, &Accounts::read(&root.fd));
    }
    let following = following(plan, &tree)?;
    let is_named = |view: &View| match &plan.tree {
        Tree::CopyOnWrite { .. } => true,
        // A mount below a volume is none that was asked for by name.
        Tree::Bundle(bundle) => bundle.container.mounts.iter().any(|mount| mount.path == view.path),
    };
    let volumes = tree.iter().filter_map(|piece| match piece {
        Piece::Host(view, ..) if view.is_volume && is_named(view) => broker::mount_of_root(view.fd.as_fd()),
        _ => None,
    });
    let volumes = volumes.collect();
    boot.mounts = tree.into_iter().map(|piece| piece.adopt(io)).collect::<Result<_, _>>()?;
    Ok(Opened { following, volumes })
}

/// Opens the sandbox's files; without mapped ids if a file system cannot show them so, and nobody has asked for that.
fn open_mapped(
    plan: &Plan,
    users: &mut Users,
    open: impl Fn(&Users) -> Result<Vec<Piece>, MountError>,
) -> Result<Vec<Piece>, VmmError> {
    match open(users) {
        Err(error @ MountError::Unmapped { .. }) if plan.userns == UserNamespace::Auto => {
            if plan.boot.log_level >= LOG_DEBUG {
                stderr_log::write(LOG_DEBUG, &format!("ids are not mapped: {error}"), "\n");
            }
            users.fall_back()?;
            Ok(open(users)?)
        }
        result => Ok(result?),
    }
}

/// The host's files that the VMM may open once it is jailed, for Landlock: the views, the files of its `/proc` about
/// itself and its stubs, and what is shown to a pod later.
pub(super) fn given(io: &HostIo, boot: &BootSpec, is_pod: bool) -> Result<Vec<(OwnedFd, Use)>, Errno> {
    let mut given = vec![(io.proc_root()?, Use::ReadFiles)];
    if is_pod {
        let place = Path::new(std::ffi::OsStr::from_bytes(jail::POD_PLACE.to_bytes()));
        given.push((mounts::open_directory(place).map_err(Errno::from)?, Use::Change));
    }
    for mount in boot.mounts.iter().filter(|mount| mount.handle != NO_HANDLE) {
        let view = io.files().get(mount.handle)?;
        let what_for = if view.check_writable().is_ok() { Use::Change } else { Use::Read };
        given.push((view.as_fd().try_clone_to_owned()?, what_for));
        if let Some(lower) = mount.lower {
            given.push((io.files().get(lower)?.as_fd().try_clone_to_owned()?, Use::List));
        }
    }
    Ok(given)
}

/// A part of the tree, in the order in which the kernel mounts them.
pub(crate) enum Piece {
    /// A view of the host's files; how the kernel shows its type, and flags.
    Host(View, &'static str, u32),
    /// A file system of the kernel's own.
    Kernel(Mount),
}

impl Piece {
    fn path(&self) -> &Path {
        match self {
            Self::Host(view, ..) => &view.path,
            Self::Kernel(mount) => Path::new(std::ffi::OsStr::from_bytes(&mount.path)),
        }
    }

    /// Hands it over to the kernel.
    fn adopt(self, io: &HostIo) -> Result<Mount, VmmError> {
        match self {
            Self::Host(view, kind, flags) => adopt(io, view, kind, flags),
            Self::Kernel(mount) => Ok(mount),
        }
    }
}

/// How the kernel mounts a view that it has by this handle.
pub(crate) fn mount_of(view: &View, handle: u32, kind: &str, flags: u32) -> Mount {
    let bit = |set: bool, bit: u32| if set { bit } else { 0 };
    let flags = flags
        | bit(view.read_only, MOUNT_READ_ONLY)
        | bit(view.shared, MOUNT_SHARED)
        | bit(view.is_volume, MOUNT_VOLUME);
    let path = mounts::bytes_of(&view.path);
    Mount { handle, flags, path, kind: kind.into(), source: kind.into(), options: String::new(), lower: None }
}

/// Hands a view over to the kernel.
fn adopt(io: &HostIo, view: View, kind: &str, flags: u32) -> Result<Mount, VmmError> {
    let mount = mount_of(&view, NO_HANDLE, kind, flags);
    let files = io.files();
    let lower = view.lower.map(|fd| files.adopt_read_only_mount(fd)).transpose().map_err(VmmError::HostIo)?;
    let handle = match io.quota() {
        _ if view.is_volume => files.adopt_volume(view.fd, view.read_only),
        _ if view.read_only => files.adopt_read_only_mount(view.fd),
        // Changes to a view that others share are not charged to the sandbox's layer.
        Some(quota) if !view.shared => files.adopt_counted_mount(view.fd, quota),
        _ => files.adopt_mount(view.fd),
    };
    Ok(Mount { handle: handle.map_err(VmmError::HostIo)?, lower, ..mount })
}

/// A view of the host, with the kernel's own file systems in their usual places.
fn copy_on_write(
    host: &HostPaths,
    root: &Path,
    layer: &Directory,
    volumes: &[Volume],
    hidden: &[PathBuf],
    users: &Users,
) -> Result<Vec<Piece>, MountError> {
    let (id_map, owner) = (users.id_map(), users.file_owner());
    let mut views = mounts::copy_on_write(host, root, layer, id_map)?;
    for volume in volumes {
        let view = mounts::volume(host, volume, id_map)?;
        let is_dir = is_directory(view.fd.as_fd());
        make_target(&views, &view.path, is_dir, owner);
        views.retain(|other| other.path != view.path);
        views.push(view);
    }
    let mut pieces = Vec::new();
    for (kind, path) in VIRTUAL_MOUNTS {
        make_target(&views, Path::new(path), true, owner);
        let flags = if *kind == "sysfs" { MOUNT_READ_ONLY } else { 0 };
        pieces.push(Piece::Kernel(Mount::of_kernel(kind, path.as_bytes().to_vec(), flags)));
    }
    let cgroup = Mount::of_kernel("cgroup2", CGROUP_MOUNT.to_vec(), MOUNT_READ_ONLY);
    pieces.push(Piece::Kernel(cgroup));
    let mut covers = Vec::new();
    for path in hidden.iter().filter_map(|path| path.strip_prefix(root).ok()) {
        let path = Path::new("/").join(path);
        make_target(&views, &path, true, owner);
        covers.push(Piece::Kernel(Mount::of_kernel("tmpfs", mounts::bytes_of(&path), 0)));
    }
    for view in views {
        let kind = if view.path == Path::new("/") { "overlay" } else { "host" };
        pieces.push(Piece::Host(view, kind, 0));
    }
    pieces.append(&mut covers);
    // Parents before children, the root first; a volume covers the kernel's own file system there.
    pieces.sort_by_key(|piece| piece.path().components().count());
    Ok(pieces)
}

/// The root file system of a bundle itself, and the mounts in their order.
pub(crate) fn bundle_tree(
    host: &HostPaths,
    container: &ContainerSpec,
    users: &Users,
) -> Result<Vec<Piece>, MountError> {
    let (id_map, owner) = (users.id_map(), users.file_owner());
    let read_only = container.root_read_only;
    let fd = mounts::open_tree(host, &container.root, read_only, true, id_map)?;
    let root = View { fd, path: "/".into(), read_only, shared: true, is_volume: false, lower: None };
    let mut pieces = vec![Piece::Host(root, "dormouse", 0)];
    let of_host = container.mounts.iter().filter(|plan| matches!(plan.source, Source::Host { .. })).count();
    // Mounts below read-only ones that may be shown as mounts of their own.
    let mut more = VIEWS_MAX.saturating_sub(1 + of_host);
    for plan in &container.mounts {
        // What is mounted last of those that lie deepest has the place. In a file system of the kernel's own the kernel
        // makes it.
        let above =
            pieces.iter().filter(|piece| plan.path.starts_with(piece.path()) && plan.path != piece.path());
        let above = above.max_by_key(|piece| piece.path().as_os_str().len());
        let views = above.and_then(|piece| match piece {
            Piece::Host(view, ..) => Some(view),
            Piece::Kernel(_) => None,
        });
        match &plan.source {
            Source::Host { path, recursive } => {
                let read_only = plan.flags & MOUNT_READ_ONLY != 0;
                let own_map = own_map(host, plan, users)?;
                let map = own_map.as_ref().map(|namespace| IdMap { namespace: namespace.as_fd() });
                let fd = mounts::open_tree(host, path, read_only, *recursive, map.or(id_map))?;
                make_target(views, &plan.path, is_directory(fd.as_fd()), owner);
                let view = view_of_mount(fd, plan.path.clone(), read_only);
                pieces.push(Piece::Host(view, "bind", plan.flags));
                let below = writable_below(host, plan);
                if below.len() <= more {
                    more -= below.len();
                    let flags = plan.flags & !MOUNT_READ_ONLY;
                    for mount in below {
                        // One that has gone, or cannot be copied, stays what it is in the view above: read-only.
                        let Ok(fd) = mounts::open_mount_below(host, path, &mount, map.or(id_map)) else {
                            continue;
                        };
                        let view = view_of_mount(fd, plan.path.join(&mount.path), false);
                        pieces.push(Piece::Host(view, "bind", flags));
                    }
                }
            }
            Source::Virtual { kind, name, options } => {
                make_target(views, &plan.path, true, owner);
                let mut mount = Mount::of_kernel(kind, mounts::bytes_of(&plan.path), plan.flags);
                (mount.source, mount.options) = (name.clone(), options.clone());
                pieces.push(Piece::Kernel(mount));
            }
        }
    }
    Ok(pieces)
}

/// The view of a mount of the host's files that a bundle asks for.
fn view_of_mount(fd: OwnedFd, path: PathBuf, read_only: bool) -> View {
    View { fd, path, read_only, shared: true, is_volume: true, lower: None }
}

/// The mounts below a read-only one that are not read-only themselves: as with runc, `ro` counts for the mount alone and `rro` for
/// those below as well. Where there are too many, or where mounts come and go with the host's, all below is read-only.
fn writable_below(host: &HostPaths, plan: &MountPlan) -> Vec<MountBelow> {
    let Source::Host { path, recursive: true } = &plan.source else { return Vec::new() };
    if plan.flags & MOUNT_READ_ONLY == 0 || plan.read_only_below || plan.follows_host {
        return Vec::new();
    }
    let mut below = mounts::mounts_below(host, path);
    below.retain(|mount| !mount.read_only);
    below
}

/// The directories among the mounts that are to show mounts which the host makes later.
fn following(plan: &Plan, tree: &[Piece]) -> Result<Vec<OwnedFd>, VmmError> {
    let Tree::Bundle(bundle) = &plan.tree else { return Ok(Vec::new()) };
    let trees = tree.iter().filter_map(|piece| match piece {
        Piece::Host(view, ..) if propagation_of(view, &bundle.container) == Propagation::Slave => {
            Some(view.fd.try_clone().map_err(VmmError::Prepare))
        }
        _ => None,
    });
    trees.collect()
}

/// Whether a container's view shows mounts that the host makes below its source later.
pub(crate) fn propagation_of(view: &View, container: &ContainerSpec) -> Propagation {
    let found = container.mounts.iter().rev().find(|mount| mount.path == view.path);
    let follows = found.is_some_and(|mount| mount.follows_host) && is_directory(view.fd.as_fd());
    if follows { Propagation::Slave } else { Propagation::Private }
}

/// The user namespace of a mount whose ids the bundle maps.
fn own_map(host: &HostPaths, plan: &MountPlan, users: &Users) -> Result<Option<OwnedFd>, MountError> {
    let make = |maps: &IdMaps| jail::namespace_of_mounts(host, maps, users.base());
    let made = plan.id_maps.as_ref().map(make).transpose();
    made.map_err(|source| MountError::Bind { path: plan.path.clone(), source })
}

/// Programs expect `HOME`.
pub(crate) fn add_home(boot: &mut BootSpec, accounts: &Accounts) {
    if !boot.env.iter().any(|pair| pair.starts_with(b"HOME=")) {
        boot.env.push([b"HOME=", accounts.home_of(boot.creds.uid)].concat());
    }
}

#[allow(unsafe_code)]
fn streams(plan: &Plan, preserved: Preserved, io: &HostIo) -> Result<Vec<Stream>, VmmError> {
    let mut streams = Vec::new();
    for fd in 0..3 {
        let failed = |source| VmmError::Stream { fd, source };
        // SAFETY: descriptors 0 to 2 stay open as long as the process lives (the runtime opens them if need be).
        let stream = unsafe { BorrowedFd::borrow_raw(fd) };
        let copy = stream.try_clone_to_owned().map_err(|error| failed(error.into()))?;
        let is_tty = sys::is_tty(stream);
        let handle = io.adopt_stream(copy).map_err(failed)?;
        let flags = if plan.terminal && is_tty { STREAM_TTY } else { 0 };
        streams.push(Stream { fd: fd.cast_unsigned(), handle, flags });
    }
    for (fd, PreservedFd { fd: file, flags }) in (preserved::FIRST..).zip(preserved.0) {
        let failed = |source| VmmError::Stream { fd: fd.cast_signed(), source };
        streams.push(Stream { fd, handle: io.adopt_further_stream(file).map_err(failed)?, flags });
    }
    Ok(streams)
}

fn is_directory(fd: BorrowedFd<'_>) -> bool {
    sys::statx(fd, c"").is_ok_and(|status| u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFDIR)
}

/// Makes the directories (or the file) that a mount needs as its mount point, in the view that holds them. Best effort:
/// a read-only view is left for the kernel to find. Links are followed inside the view, never out of it.
fn make_target<'a>(
    views: impl IntoIterator<Item = &'a View>,
    path: &Path,
    directory: bool,
    owner: Option<(u32, u32)>,
) {
    // The new files belong to the guest's root.
    let _ids = owner.map(|(user, group)| process::FileIds::take_on(user, group));
    let holders = views.into_iter().filter(|view| path.starts_with(&view.path) && path != view.path);
    let Some(view) = holders.max_by_key(|view| view.path.as_os_str().len()) else { return };
    let Ok(inside) = path.strip_prefix(&view.path) else { return };
    let mut at: Option<OwnedFd> = None;
    let mut done = PathBuf::new();
    let mut names = inside.components().peekable();
    while let Some(name) = names.next() {
        let Ok(c_name) = std::ffi::CString::new(name.as_os_str().as_encoded_bytes()) else { return };
        let dir = at.as_ref().map_or(view.fd.as_fd(), AsFd::as_fd);
        if names.peek().is_none() && !directory {
            let _ = sys::mknodat(dir, &c_name, libc::S_IFREG | 0o644);
            return;
        }
        let _ = sys::mkdirat(dir, &c_name, 0o755);
        done.push(name);
        match mounts::open_in_root(view.fd.as_fd(), &done) {
            Ok(next) => at = Some(next),
            Err(_) => return,
        }
    }
}
