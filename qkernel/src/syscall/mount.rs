//! Mounts inside the sandbox.

use alloc::sync::Arc;
use alloc::vec::Vec;
use bitflags::bitflags;

use crate::creds::CAP_SYS_ADMIN;
use crate::fs::access::Actor;
use crate::fs::dentry::Dentry;
use crate::fs::inode::S_IFDIR;
use crate::fs::mount::{Limits, Mount};
use crate::fs::path::Path;
use crate::fs::walk;
use crate::fs::walk::AT_FDCWD;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

bitflags! {
    /// `MS_*` that matter here.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct MountFlags: u64 {
        const RDONLY = 1;
        const NOSUID = 2;
        const NODEV = 4;
        const NOEXEC = 8;
        const SYNCHRONOUS = 16;
        const REMOUNT = 32;
        const DIRSYNC = 128;
        const NOSYMFOLLOW = 256;
        const NOATIME = 1024;
        const NODIRATIME = 2048;
        const BIND = 4096;
        const MOVE = 8192;
        const REC = 1 << 14;
        const SILENT = 1 << 15;
        const UNBINDABLE = 1 << 17;
        const PRIVATE = 1 << 18;
        const SLAVE = 1 << 19;
        const SHARED = 1 << 20;
        const RELATIME = 1 << 21;
        const STRICTATIME = 1 << 24;
        const LAZYTIME = 1 << 25;
    }
}

impl MountFlags {
    const PROPAGATION: Self = Self::UNBINDABLE.union(Self::PRIVATE).union(Self::SLAVE).union(Self::SHARED);

    /// Returns the operations that a mount with these flags does not allow. `before`: those of a mount that is there,
    /// which keeps its rule for times of access where the flags say nothing of them.
    fn limits(self, before: Option<Limits>) -> Limits {
        let mut limits = Limits::empty();
        for (flag, limit) in [
            (Self::RDONLY, Limits::READ_ONLY),
            (Self::NOSUID, Limits::NO_SUID),
            (Self::NODEV, Limits::NO_DEV),
            (Self::NOEXEC, Limits::NO_EXEC),
            (Self::SYNCHRONOUS, Limits::SYNC),
            (Self::DIRSYNC, Limits::DIR_SYNC),
            (Self::NOSYMFOLLOW, Limits::NO_SYM_FOLLOW),
            (Self::NOATIME, Limits::NO_ATIME),
            (Self::NODIRATIME, Limits::NO_DIR_ATIME),
            (Self::LAZYTIME, Limits::LAZY_TIME),
        ] {
            limits.set(limit, self.contains(flag));
        }
        if self.contains(Self::STRICTATIME) {
            limits = (limits - Limits::NO_ATIME) | Limits::STRICT_ATIME;
        }
        match before {
            Some(before)
                if !self
                    .intersects(Self::RELATIME | Self::STRICTATIME | Self::NOATIME | Self::NODIRATIME) =>
            {
                limits | (before & Limits::ATIME)
            }
            _ => limits,
        }
    }
}

bitflags! {
    /// Flags of `umount2(2)`.
    struct UmountFlags: u32 {
        const FORCE = 1;
        const DETACH = 2;
        const EXPIRE = 4;
        const NOFOLLOW = 8;
    }
}

fn find(cx: &Ctx<'_>, actor: &Actor, path: UserAddr, follow: bool) -> Result<Path> {
    let name = cx.user().read_path(path)?;
    walk::resolve(cx, actor, AT_FDCWD, &name, follow)
}

/// Whether the path is the root of a mount.
fn check_mount_root(path: &Path) -> Result<()> {
    if path.is_mount_root() { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Whether both are directories, or neither is.
fn are_alike(one: &Path, other: &Path) -> bool {
    (one.inode.kind() == S_IFDIR) == (other.inode.kind() == S_IFDIR)
}

/// `mount(2)`: the kernel's own file systems, bind mounts, moves, and remounts. All mounts are private to the sandbox, so
/// propagation has nothing to do.
pub(super) fn mount(
    cx: &Ctx<'_>,
    source: UserAddr,
    target: UserAddr,
    kind: UserAddr,
    flags: u64,
    data: UserAddr,
) -> SyscallResult {
    let actor = Actor::of(cx);
    if !actor.creds.has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let all_flags = flags;
    let flags = MountFlags::from_bits_truncate(flags);
    let options = read_options(cx, data)?;
    let place = find(cx, &actor, target, true)?;
    check_own(cx, &place)?;
    if flags.contains(MountFlags::REMOUNT) {
        return remount(&place, flags, &options);
    }
    if flags.contains(MountFlags::BIND) {
        let from = find(cx, &actor, source, true)?;
        check_own(cx, &from)?;
        if !are_alike(&from, &place) {
            return Err(Errno::ENOTDIR);
        }
        return Mount::bind(&from, &place, flags.contains(MountFlags::REC), &own_root(cx)?).map(|()| 0);
    }
    if flags.intersects(MountFlags::PROPAGATION) {
        check_mount_root(&place)?;
        let kind = all_flags & !(MountFlags::REC | MountFlags::SILENT).bits();
        let is_one = MountFlags::PROPAGATION.bits() & kind == kind && kind.is_power_of_two();
        return if is_one { Ok(0) } else { Err(Errno::EINVAL) };
    }
    if flags.contains(MountFlags::MOVE) {
        let from = find(cx, &actor, source, true)?;
        check_own(cx, &from)?;
        check_mount_root(&from)?;
        if !are_alike(&from, &place) {
            return Err(Errno::EINVAL);
        }
        return from.mount.move_to(&place, &own_root(cx)?).map(|()| 0);
    }
    let kind = cx.user().read_cstr(kind, 4096, Errno::EINVAL)?;
    let name = if source.is_null() { b"none".to_vec() } else { cx.user().read_path(source)? };
    let root = crate::filesystems::mounted_fs(&kind, &options, cx.container())?;
    if place.inode.kind() != S_IFDIR {
        return Err(Errno::ENOTDIR);
    }
    let words = if &*kind == b"tmpfs" { words_of(&options) } else { Limits::empty() };
    let limits = flags.limits(None) | words;
    let mount = Mount::made(Dentry::root(root.clone()), root, &kind, &name, limits)?;
    mount.mount_over(&place, &own_root(cx)?).map(|()| 0)
}

/// `EINVAL` for what is mounted in the tree of another container, to which `/proc/PID/root` leads, or nowhere any more.
fn check_own(cx: &Ctx<'_>, place: &Path) -> Result<()> {
    if place.mount.shares_tree(&own_root(cx)?) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// The root of the container's mounts, whatever the process has made its own root.
fn own_root(cx: &Ctx<'_>) -> Result<Arc<Mount>> {
    cx.container().root.get().map(|root| root.mount.clone()).ok_or(Errno::EINVAL)
}

/// The options of a file system, up to a page of them.
fn read_options(cx: &Ctx<'_>, data: UserAddr) -> Result<Vec<u8>> {
    const OPTIONS_MAX: usize = 4096;
    if data.is_null() { Ok(Vec::new()) } else { cx.user().read_cstr(data, OPTIONS_MAX, Errno::EINVAL) }
}

/// Those options of every file system that a mount can be told by flags as well; the later one counts.
fn words_of(options: &[u8]) -> Limits {
    let mut limits = Limits::empty();
    for option in options.split(|byte| *byte == b',') {
        match option.split(|byte| *byte == b'=').next().unwrap_or_default() {
            b"ro" => limits |= Limits::READ_ONLY,
            b"rw" => limits -= Limits::READ_ONLY,
            b"sync" => limits |= Limits::SYNC,
            b"async" => limits -= Limits::SYNC,
            b"dirsync" => limits |= Limits::DIR_SYNC,
            b"lazytime" => limits |= Limits::LAZY_TIME,
            b"nolazytime" => limits -= Limits::LAZY_TIME,
            _ => {}
        }
    }
    limits
}

/// `MS_REMOUNT`: with `MS_BIND` of the mount alone, else of its file system as well.
fn remount(place: &Path, flags: MountFlags, options: &[u8]) -> SyscallResult {
    check_mount_root(place)?;
    let before = place.mount.limits();
    let limits = flags.limits(Some(before));
    if flags.contains(MountFlags::BIND) {
        let limits = (limits - Limits::OF_FILE_SYSTEM) | (before & Limits::OF_FILE_SYSTEM);
        return place.mount.change_limits(limits).map(|()| 0);
    }
    // Before what cannot be undone.
    place.mount.change_limits(limits | (words_of(options) & Limits::READ_ONLY))?;
    if let Err(error) = place.inode.remount(options) {
        place.mount.set_limits(before);
        return Err(error);
    }
    Ok(0)
}

/// `umount2(2)`.
pub(super) fn umount2(cx: &Ctx<'_>, target: UserAddr, flags: u32) -> SyscallResult {
    let flags = UmountFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
    let actor = Actor::of(cx);
    if !actor.creds.has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let place = find(cx, &actor, target, !flags.contains(UmountFlags::NOFOLLOW))?;
    check_own(cx, &place)?;
    check_mount_root(&place)?;
    if flags.contains(UmountFlags::EXPIRE) {
        let is_own_root = Arc::ptr_eq(&actor.fs.root().mount, &place.mount);
        if is_own_root || flags.intersects(UmountFlags::FORCE | UmountFlags::DETACH) {
            return Err(Errno::EINVAL);
        }
        return place.mount.expire().map(|()| 0);
    }
    place.mount.detach(flags.contains(UmountFlags::DETACH)).map(|()| 0)
}

/// `pivot_root(2)`: the sandbox's root is the VMM's choice, so there is no other.
pub(super) fn pivot_root(cx: &Ctx<'_>, new: UserAddr, old: UserAddr) -> SyscallResult {
    let actor = Actor::of(cx);
    if !actor.creds.has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let root = actor.fs.root().mount;
    let places = [find(cx, &actor, new, true)?, find(cx, &actor, old, true)?];
    if places.iter().any(|place| place.inode.kind() != S_IFDIR) {
        return Err(Errno::ENOTDIR);
    }
    if places.iter().any(|place| Arc::ptr_eq(&place.mount, &root)) {
        return Err(Errno::EBUSY);
    }
    check_mount_root(&places[0])?;
    Err(Errno::EPERM)
}
