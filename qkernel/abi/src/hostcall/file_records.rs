//! Records of hostcalls about host files: their attributes, changes of those, locks, and file systems.

/// Attributes of a host file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStat {
    /// The number of the host's device.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
    /// Kind and permissions (`S_IF*`).
    pub mode: u32,
    /// Names on the host.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device that a device node stands for.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes that it takes.
    pub blocks: u64,
    /// Bytes of a good transfer.
    pub blksize: u32,
    /// `STATX_ATTR_*`.
    pub attributes: u32,
    /// The time of access, in nanoseconds since the epoch.
    pub atime_ns: i64,
    /// The time of modification, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// The time of the last change, in nanoseconds since the epoch.
    pub ctime_ns: i64,
    /// The time at which the file was made, in nanoseconds since the epoch.
    pub btime_ns: i64,
}
pin_layout!(
    HostStat, 96,
    dev: 0, ino: 8, mode: 16, nlink: 20, uid: 24, gid: 28, rdev: 32, size: 40, blocks: 48, blksize: 56,
    attributes: 60, atime_ns: 64, mtime_ns: 72, ctime_ns: 80, btime_ns: 88,
);

/// A lock that others hold: the answer of [`super::LOCK_QUERY`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostLock {
    /// The first byte that is locked.
    pub first: u64,
    /// The last byte that is locked; [`super::LOCK_END`]: all behind the first.
    pub last: u64,
    /// [`super::LOCK_SHARED`] or [`super::LOCK_EXCLUSIVE`].
    pub kind: u64,
    /// 1: a process's, of which the sandbox knows nothing more; 0: an open file's.
    pub is_process: u64,
}
pin_layout!(HostLock, 32, first: 0, last: 8, kind: 16, is_process: 24);

/// The answer of [`super::STATFS`]: the fields of `statfs(2)`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStatFs {
    /// `f_type`.
    pub kind: u64,
    /// `f_bsize`: bytes of a good transfer.
    pub bsize: u64,
    /// `f_blocks`: blocks in all, of `frsize` bytes.
    pub blocks: u64,
    /// `f_bfree`: free blocks.
    pub bfree: u64,
    /// `f_bavail`: free blocks for those without privileges.
    pub bavail: u64,
    /// `f_files`: inodes in all.
    pub files: u64,
    /// `f_ffree`: free inodes.
    pub ffree: u64,
    /// `f_namelen`: most bytes of a name.
    pub namelen: u64,
    /// `f_frsize`: bytes of a block.
    pub frsize: u64,
    /// `f_flags`: the mount's options (`ST_*`).
    pub flags: u64,
}
pin_layout!(
    HostStatFs, 80,
    kind: 0, bsize: 8, blocks: 16, bfree: 24, bavail: 32, files: 40, ffree: 48, namelen: 56, frsize: 64,
    flags: 72,
);

/// Attribute changes; `valid` says which fields count.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The fields that count: [`SET_MODE`] ….
    pub valid: u32,
    /// The new permissions.
    pub mode: u32,
    /// The new owner.
    pub uid: u32,
    /// The new group.
    pub gid: u32,
    /// The new size in bytes.
    pub size: u64,
    /// The new time of access, in nanoseconds since the epoch.
    pub atime_ns: i64,
    /// The new time of modification, in nanoseconds since the epoch.
    pub mtime_ns: i64,
}
pin_layout!(SetAttr, 40, valid: 0, mode: 4, uid: 8, gid: 12, size: 16, atime_ns: 24, mtime_ns: 32);

/// `SetAttr::valid` bit: the mode changes.
pub const SET_MODE: u32 = 1;
/// `SetAttr::valid` bit: the owner changes.
pub const SET_UID: u32 = 2;
/// `SetAttr::valid` bit: the group changes.
pub const SET_GID: u32 = 4;
/// `SetAttr::valid` bit: the size changes.
pub const SET_SIZE: u32 = 8;
/// `SetAttr::valid` bit: the time of access becomes `atime_ns`.
pub const SET_ATIME: u32 = 16;
/// `SetAttr::valid` bit: the time of modification becomes `mtime_ns`.
pub const SET_MTIME: u32 = 32;
/// `SetAttr::valid` bit: the time of access becomes the host's time.
pub const SET_ATIME_NOW: u32 = 64;
/// `SetAttr::valid` bit: the time of modification becomes the host's time.
pub const SET_MTIME_NOW: u32 = 128;
