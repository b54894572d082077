//! Mounts inside the sandbox.

use bitflags::bitflags;

use crate::creds::CAP_SYS_ADMIN;
use crate::fs::access::Actor;
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
        const REMOUNT = 32;
        const BIND = 4096;
        const MOVE = 8192;
        const UNBINDABLE = 1 << 17;
        const PRIVATE = 1 << 18;
        const SLAVE = 1 << 19;
        const SHARED = 1 << 20;
    }
}

impl MountFlags {
    fn limits(self) -> Limits {
        let mut limits = Limits::empty();
        limits.set(Limits::READ_ONLY, self.contains(Self::RDONLY));
        limits.set(Limits::NO_SUID, self.contains(Self::NOSUID));
        limits.set(Limits::NO_DEV, self.contains(Self::NODEV));
        limits.set(Limits::NO_EXEC, self.contains(Self::NOEXEC));
        limits
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
    if alloc::sync::Arc::ptr_eq(&path.dentry, &path.mount.root) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `mount(2)`: the kernel's own file systems, bind mounts, and remounts read-only or writable. All mounts are private
/// to the sandbox, so propagation has nothing to do.
pub(super) fn mount(
    cx: &Ctx<'_>,
    source: UserAddr,
    target: UserAddr,
    kind: UserAddr,
    flags: u64,
    _data: UserAddr,
) -> SyscallResult {
    let actor = Actor::of(cx);
    if !actor.creds.has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let flags = MountFlags::from_bits_truncate(flags);
    let place = find(cx, &actor, target, true)?;
    let propagation = MountFlags::UNBINDABLE | MountFlags::PRIVATE | MountFlags::SLAVE | MountFlags::SHARED;
    if flags.intersects(propagation) {
        return check_mount_root(&place).map(|()| 0);
    }
    if flags.contains(MountFlags::REMOUNT) {
        check_mount_root(&place)?;
        place.mount.set_limits(flags.limits());
        return Ok(0);
    }
    if flags.contains(MountFlags::MOVE) {
        return Err(Errno::EINVAL);
    }
    if flags.contains(MountFlags::BIND) {
        let from = find(cx, &actor, source, true)?;
        if (from.inode.kind() == S_IFDIR) != (place.inode.kind() == S_IFDIR) {
            return Err(Errno::ENOTDIR);
        }
        let Path { mount, dentry, inode } = from;
        Mount::new(dentry, inode, &mount.kind, &mount.source, mount.limits()).attach(&place);
        return Ok(0);
    }
    let kind = cx.user().read_cstr(kind, 4096, Errno::EINVAL)?;
    let root = crate::filesystems::virtual_fs(&kind, &cx.container().ipc()).ok_or(Errno::ENODEV)?;
    if place.inode.kind() != S_IFDIR {
        return Err(Errno::ENOTDIR);
    }
    let name = if source.is_null() { b"none".to_vec() } else { cx.user().read_path(source)? };
    Mount::of(root, &kind, &name, flags.limits()).attach(&place);
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
    check_mount_root(&place)?;
    if flags.contains(UmountFlags::EXPIRE) {
        return Err(Errno::EAGAIN);
    }
    place.mount.detach(flags.contains(UmountFlags::DETACH)).map(|()| 0)
}

/// `pivot_root(2)`: the sandbox's root is the VMM's choice.
pub(super) fn pivot_root(_cx: &Ctx<'_>, _new: UserAddr, _old: UserAddr) -> SyscallResult {
    Err(Errno::EPERM)
}
