//! `statx(2)`.

use abi::word::{low16, low32};

use crate::fs::walk::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};
use crate::syscall::context::SyscallResult;
use crate::syscall::stat::{AT_NO_AUTOMOUNT, AT_STATX_SYNC_TYPE, Mounted, split, stat_path};
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const STATX_RESERVED: u32 = 0x8000_0000;
/// All fields that `stat(2)` has.
const STATX_BASIC_STATS: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;
const STATX_MNT_ID: u32 = 0x1000;
const STATX_DIOALIGN: u32 = 0x2000;
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
/// From here on numbers of mounts are those that no mount ever has again.
const UNIQUE_MOUNTS: u64 = 1 << 31;
const STATX_ATTR_MOUNT_ROOT: u64 = 0x2000;

/// `struct statx_timestamp`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct StatxTime {
    sec: i64,
    nsec: u32,
    pad: u32,
}

/// `struct statx`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct RawStatx {
    mask: u32,
    blksize: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    pad: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    /// Access, birth, change, modification.
    times: [StatxTime; 4],
    rdev: [u32; 2],
    dev: [u32; 2],
    mnt_id: u64,
    /// The numbers that addresses, and offsets and lengths, are multiples of with `O_DIRECT`, in bytes.
    direct_align: [u32; 2],
    unused: [u64; 12],
}
const _: () = assert!(size_of::<RawStatx>() == 256);

fn statx_time(ns: i64) -> StatxTime {
    let [sec, nsec] = split(ns);
    StatxTime { sec, nsec: u32::try_from(nsec).unwrap_or(0), pad: 0 }
}

/// Major and minor of a device number in the form of `stat(2)`.
fn device_parts(dev: u64) -> [u32; 2] {
    let major = ((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff);
    let minor = (dev & 0xff) | ((dev >> 12) & !0xff);
    [low32(major), low32(minor)]
}

/// A mount's number, in one of two forms, and the bit of the form.
fn mount_number(mount: &Mounted, mask: u32) -> (u64, u32) {
    // All numbers here are unique, so one is made from the other.
    match mask & STATX_MNT_ID_UNIQUE {
        0 => (mount.id, STATX_MNT_ID),
        _ => (mount.id + UNIQUE_MOUNTS, STATX_MNT_ID_UNIQUE),
    }
}

/// `statx(2)`: fills in more fields than were asked for, as it may.
pub(in crate::syscall) fn statx(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    flags: u32,
    mask: u32,
    buf: UserAddr,
) -> SyscallResult {
    let known = AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_SYNC_TYPE;
    if flags & !known != 0 || mask & STATX_RESERVED != 0 || flags & AT_STATX_SYNC_TYPE == AT_STATX_SYNC_TYPE {
        return Err(Errno::EINVAL);
    }
    let (stat, mount) = stat_path(cx, dirfd, path, flags)?;
    let has = |is_known, bit| if is_known { bit } else { 0 };
    let times = [stat.atime_ns, stat.btime_ns, stat.ctime_ns, stat.mtime_ns];
    let (mnt_id, id_bit) = mount.as_ref().map_or((0, 0), |mount| mount_number(mount, mask));
    let direct_align = mount.as_ref().map_or(0, |mount| mount.direct_align);
    let tells_align = mask & STATX_DIOALIGN != 0 && direct_align != 0;
    let optional = has(stat.btime_ns != 0, STATX_BTIME) | has(tells_align, STATX_DIOALIGN);
    let raw = RawStatx {
        mask: STATX_BASIC_STATS | optional | id_bit,
        blksize: stat.blksize,
        attributes: mount.as_ref().filter(|mount| mount.is_root).map_or(0, |_| STATX_ATTR_MOUNT_ROOT),
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        mode: low16(stat.mode.into()),
        pad: 0,
        ino: stat.ino,
        size: stat.size,
        blocks: stat.blocks,
        attributes_mask: STATX_ATTR_MOUNT_ROOT,
        times: times.map(statx_time),
        rdev: device_parts(stat.rdev),
        dev: device_parts(stat.dev),
        mnt_id,
        direct_align: [if tells_align { direct_align } else { 0 }; 2],
        unused: [0; 12],
    };
    cx.user().write(buf, &raw)?;
    Ok(0)
}
