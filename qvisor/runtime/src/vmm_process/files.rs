//! The host's files that the sandbox may use, opened before the VMM gives up the host, and the mounts that the kernel
//! gets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use abi::boot::{MOUNT_READ_ONLY, MOUNT_SHARED, MOUNT_VOLUME, STREAM_TTY};
use abi::mount::{FileSystem, Handles, HostKind, Kind};
use vmm::boot::{BootSpec, Mount, Stream};
use vmm::broker;
use vmm::directory::Directory;
use vmm::errno::Errno;
use vmm::host_paths::HostPaths;
use vmm::hostcall::host_io::HostIo;
use vmm::ids::IdMaps;
use vmm::jail::landlock::Use;
use vmm::jail::{self, IdMap, Propagation, UserNamespace, Users};
use vmm::mounts::{self, Beginning, MountBelow, MountError, OpenMount, OpenTree, Volume};
use vmm::process;
use vmm::request::VIEWS_MAX;
use vmm::sys;

use super::error::VmmError;
use super::plan::{Plan, Tree};
use crate::oci::{Accounts, ContainerSpec, HostSource, MountPlan};
use crate::preserved::{self, Preserved, PreservedFd};
use crate::snapshot;
use crate::stderr_log::{self, LOG_DEBUG};

/// Directories that the kernel mounts its own file systems on.
const VIRTUAL_MOUNTS: &[(FileSystem, &str)] = &[
    (FileSystem::Proc, "/proc"),
    (FileSystem::Sysfs, "/sys"),
    (FileSystem::Devices, "/dev"),
    (FileSystem::Terminals, "/dev/pts"),
    (FileSystem::Tmpfs, "/dev/shm"),
    (FileSystem::Queues, "/dev/mqueue"),
];

/// Where programs look for their control group. The directory is sysfs's.
const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

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
        Tree::CopyOnWrite { root, layer, volumes, hidden, below, .. } => {
            let layer = mounts::layer(host, layer)?;
            let show = |users: &Users| {
                let base = users.base();
                let fill = |from: &Path, to: &Directory, name: &str| snapshot::fill(from, to, name, base);
                let beginning = Beginning { changes: below, fill: &fill };
                let beginning = (!below.is_empty()).then_some(beginning);
                let views = mounts::copy_on_write(host, root, hidden, &layer, beginning, users.id_map())?;
                copy_on_write(host, views, root, volumes, hidden, users)
            };
            open_mapped(plan, users, show)?
        }
        Tree::Bundle(bundle) => {
            let layer = bundle.clone.as_ref().map(|clone| mounts::layer(host, &clone.layer)).transpose()?;
            open_mapped(plan, users, |users| bundle_tree(host, &bundle.container, layer.as_ref(), users))?
        }
    };
    if let (Tree::Bundle(_), Some(root)) = (&plan.tree, tree.first().and_then(OpenMount::files)) {
        add_home(boot, &Accounts::read(&root.fd));
    }
    let following = following(plan, &tree)?;
    let is_named = |path: &Path| match &plan.tree {
        Tree::CopyOnWrite { .. } => true,
        // A mount below a volume is none that was asked for by name.
        Tree::Bundle(bundle) => bundle.container.mounts.iter().any(|mount| mount.path == path),
    };
    let volumes = tree.iter().filter(|mount| mount.has(MOUNT_VOLUME) && is_named(&mount.path));
    let volumes = volumes.filter_map(|mount| broker::mount_of_root(mount.files()?.fd.as_fd()));
    let volumes = volumes.collect();
    boot.mounts = tree.into_iter().map(|mount| adopt(io, mount)).collect::<Result<_, _>>()?;
    Ok(Opened { following, volumes })
}

/// Opens the sandbox's files; without mapped ids if a file system cannot show them so, and nobody has asked for that.
fn open_mapped(
    plan: &Plan,
    users: &mut Users,
    open: impl Fn(&Users) -> Result<Vec<OpenMount>, MountError>,
) -> Result<Vec<OpenMount>, VmmError> {
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
    for files in boot.mounts.iter().filter_map(Mount::files) {
        let view = io.files().get(files.root)?;
        let what_for = if view.check_writable().is_ok() { Use::Change } else { Use::Read };
        given.push((view.as_fd().try_clone_to_owned()?, what_for));
        if let Some(lower) = files.lower {
            given.push((io.files().get(lower)?.as_fd().try_clone_to_owned()?, Use::List));
        }
    }
    Ok(given)
}

/// Hands a mount over to the kernel.
fn adopt(io: &HostIo, mount: OpenMount) -> Result<Mount, VmmError> {
    let (read_only, shared) = (mount.has(MOUNT_READ_ONLY), mount.has(MOUNT_SHARED));
    let is_volume = mount.has(MOUNT_VOLUME);
    let hand_over = |OpenTree { fd, lower }| {
        let files = io.files();
        let lower = lower.map(|fd| files.adopt_read_only_mount(fd)).transpose()?;
        let root = match io.quota() {
            _ if is_volume => files.adopt_volume(fd, read_only),
            _ if read_only => files.adopt_read_only_mount(fd),
            // Changes to a view that others share are not charged to the sandbox's layer.
            Some(quota) if !shared => files.adopt_counted_mount(fd, quota),
            _ => files.adopt_mount(fd),
        };
        Ok(Handles { root: root?, lower })
    };
    mount.try_map_files(hand_over).map_err(VmmError::HostIo)
}

/// Views of the host, with volumes, and the kernel's own file systems in their usual places.
fn copy_on_write(
    host: &HostPaths,
    mut views: Vec<OpenMount>,
    root: &Path,
    volumes: &[Volume],
    hidden: &[PathBuf],
    users: &Users,
) -> Result<Vec<OpenMount>, MountError> {
    let (id_map, owner) = (users.id_map(), users.file_owner());
    for volume in volumes {
        let view = mounts::volume(host, volume, id_map)?;
        make_target(&views, &view.path, is_directory(&view), owner);
        views.retain(|other| other.path != view.path);
        views.push(view);
    }
    let mut tree = Vec::new();
    for (kind, path) in VIRTUAL_MOUNTS {
        make_target(&views, Path::new(path), true, owner);
        let flags = if *kind == FileSystem::Sysfs { MOUNT_READ_ONLY } else { 0 };
        tree.push(OpenMount::of_kernel(*kind, path.into(), flags));
    }
    tree.push(OpenMount::of_kernel(FileSystem::ControlGroups, CGROUP_MOUNT.into(), MOUNT_READ_ONLY));
    let mut covers = Vec::new();
    for path in hidden.iter().filter_map(|path| path.strip_prefix(root).ok()) {
        let path = Path::new("/").join(path);
        make_target(&views, &path, true, owner);
        covers.push(OpenMount::of_kernel(FileSystem::Tmpfs, path, 0));
    }
    tree.append(&mut views);
    tree.append(&mut covers);
    // Parents before children, the root first; a volume covers the kernel's own file system there.
    tree.sort_by_key(|mount| mount.path.components().count());
    Ok(tree)
}

/// The root file system of a bundle itself, and the mounts in their order. With a layer a root that may be written is seen through a
/// copy-on-write view.
pub(crate) fn bundle_tree(
    host: &HostPaths,
    container: &ContainerSpec,
    layer: Option<&Directory>,
    users: &Users,
) -> Result<Vec<OpenMount>, MountError> {
    let (id_map, owner) = (users.id_map(), users.file_owner());
    let read_only = container.root_read_only;
    let (files, flags) = match layer {
        Some(layer) if !read_only => (mounts::copy_on_write_root(host, &container.root, layer, id_map)?, 0),
        _ => {
            let fd = mounts::open_tree(host, &container.root, read_only, true, id_map)?;
            (fd.into(), if read_only { MOUNT_SHARED | MOUNT_READ_ONLY } else { MOUNT_SHARED })
        }
    };
    let mut tree = vec![OpenMount::of_host(HostKind::Root, files, "/".into(), flags)];
    let of_host = container.mounts.iter().filter_map(MountPlan::files).count();
    // Mounts below read-only ones that may be shown as mounts of their own.
    let mut more = VIEWS_MAX.saturating_sub(1 + of_host);
    for plan in &container.mounts {
        // What is mounted last of those that lie deepest has the place. In a file system of the kernel's own the kernel
        // makes it.
        let above = tree.iter().filter(|mount| plan.path.starts_with(&mount.path) && plan.path != mount.path);
        let above = above.max_by_key(|mount| mount.path.as_os_str().len());
        match &plan.kind {
            Kind::Host(_, source) => {
                let own_map = own_map(host, plan, users)?;
                let map = own_map.as_ref().map(|namespace| IdMap { namespace: namespace.as_fd() });
                let map = map.or(id_map);
                let read_only = plan.has(MOUNT_READ_ONLY);
                let fd = mounts::open_tree(host, &source.path, read_only, source.recursive, map)?;
                let mount = plan.clone().map_files(|_| OpenTree::from(fd));
                make_target(above, &mount.path, is_directory(&mount), owner);
                tree.push(mount);
                let below = writable_below(host, plan, source);
                if below.len() <= more {
                    more -= below.len();
                    tree.extend(below.iter().filter_map(|below| show_below(host, plan, source, below, map)));
                }
            }
            Kind::Own(kind, settings) => {
                make_target(above, &plan.path, true, owner);
                let (path, source) = (plan.path.clone(), plan.source.clone());
                tree.push(OpenMount { path, source, kind: Kind::Own(*kind, *settings), flags: plan.flags });
            }
        }
    }
    Ok(tree)
}

/// The mounts below a read-only one that are not read-only themselves: as with runc, `ro` counts for the mount alone and `rro` for
/// those below as well. Where there are too many, or where mounts come and go with the host's, all below is read-only.
fn writable_below(host: &HostPaths, plan: &MountPlan, source: &HostSource) -> Vec<MountBelow> {
    let is_kept = source.read_only_below || source.follows_host;
    if !source.recursive || !plan.has(MOUNT_READ_ONLY) || is_kept {
        return Vec::new();
    }
    let mut below = mounts::mounts_below(host, &source.path);
    below.retain(|mount| !mount.read_only);
    below
}

/// One of those as a mount of its own. One that has gone, or cannot be copied, stays what it is in the view above: read-only.
fn show_below(
    host: &HostPaths,
    plan: &MountPlan,
    source: &HostSource,
    below: &MountBelow,
    id_map: Option<IdMap<'_>>,
) -> Option<OpenMount> {
    let fd = mounts::open_mount_below(host, &source.path, below, id_map).ok()?;
    let flags = plan.flags & !MOUNT_READ_ONLY;
    Some(OpenMount::of_host(HostKind::Bind, fd.into(), plan.path.join(&below.path), flags))
}

/// The directories among the mounts that are to show mounts which the host makes later.
fn following(plan: &Plan, tree: &[OpenMount]) -> Result<Vec<OwnedFd>, VmmError> {
    let Tree::Bundle(bundle) = &plan.tree else { return Ok(Vec::new()) };
    let follows = |mount: &&OpenMount| propagation_of(mount, &bundle.container) == Propagation::Slave;
    let trees = tree.iter().filter(follows).filter_map(OpenMount::files);
    trees.map(|files| files.fd.try_clone().map_err(VmmError::Prepare)).collect()
}

/// Whether a container's view shows mounts that the host makes below its source later.
pub(crate) fn propagation_of(mount: &OpenMount, container: &ContainerSpec) -> Propagation {
    let found = container.mounts.iter().rev().find(|plan| plan.path == mount.path);
    let follows = found.and_then(MountPlan::files).is_some_and(|source| source.follows_host);
    if follows && is_directory(mount) { Propagation::Slave } else { Propagation::Private }
}

/// The user namespace of a mount whose ids the bundle maps.
fn own_map(host: &HostPaths, plan: &MountPlan, users: &Users) -> Result<Option<OwnedFd>, MountError> {
    let make = |maps: &IdMaps| jail::namespace_of_mounts(host, maps, users.base());
    let made = plan.files().and_then(|source| source.id_maps.as_ref()).map(make).transpose();
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
        let handle = if plan.is_silent() {
            io.adopt_silence()
        } else {
            let copy = stream.try_clone_to_owned().map_err(|error| failed(error.into()))?;
            io.adopt_stream(copy)
        };
        let is_tty = sys::is_tty(stream);
        let handle = handle.map_err(failed)?;
        let flags = if plan.terminal && is_tty { STREAM_TTY } else { 0 };
        streams.push(Stream { fd: fd.cast_unsigned(), handle, flags });
    }
    for (fd, PreservedFd { fd: file, flags }) in (preserved::FIRST..).zip(preserved.0) {
        let failed = |source| VmmError::Stream { fd: fd.cast_signed(), source };
        streams.push(Stream { fd, handle: io.adopt_further_stream(file).map_err(failed)?, flags });
    }
    Ok(streams)
}

/// Whether a mount shows a directory of the host's.
fn is_directory(mount: &OpenMount) -> bool {
    let status = mount.files().and_then(|files| sys::statx(files.fd.as_fd(), c"").ok());
    status.is_some_and(|status| u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFDIR)
}

/// Makes the directories (or the file) that a mount needs as its mount point, in the view that holds them. Best effort:
/// a read-only view is left for the kernel to find. Links are followed inside the view, never out of it.
fn make_target<'a>(
    mounts: impl IntoIterator<Item = &'a OpenMount>,
    path: &Path,
    directory: bool,
    owner: Option<(u32, u32)>,
) {
    // The new files belong to the guest's root.
    let _ids = owner.map(|(user, group)| process::FileIds::take_on(user, group));
    let holders = mounts.into_iter().filter(|mount| path.starts_with(&mount.path) && path != mount.path);
    let Some(holder) = holders.max_by_key(|mount| mount.path.as_os_str().len()) else { return };
    let (Some(view), Ok(inside)) = (holder.files(), path.strip_prefix(&holder.path)) else { return };
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
