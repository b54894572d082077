//! Requests of `ioctl(2)` that the VFS of Linux answers for files and directories.

use abi::word::low32;

use crate::creds::{CAP_FOWNER, CAP_SYS_RAWIO};
use crate::fs::file::{File, OpenFlags};
use crate::fs::inode::{S_IFDIR, S_IFLNK, S_IFREG};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const FIBMAP: u32 = 1;
const FIGETBSZ: u32 = 2;
const FIOQSIZE: u32 = 0x5460;
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;
const FIDEDUPERANGE: u32 = 0xc018_9436;
const FS_IOC_FIEMAP: u32 = 0xc020_660b;
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, FromBytes, Immutable, IntoBytes)]
struct FsAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copied_extent_size: u32,
    pad: [u8; 8],
}

/// `struct file_clone_range`.
type CloneRange = [u64; 4];

/// The answer; `None`: it is for the file to answer.
pub(super) fn ioctl(cx: &Ctx<'_>, file: &File, request: u32, arg: u64) -> Option<SyscallResult> {
    let arg_addr = UserAddr::new(arg);
    let result = match request {
        FIBMAP => block_map(cx, file),
        FIGETBSZ => block_size(cx, file, arg_addr),
        FIOQSIZE => disk_size(cx, file, arg_addr),
        FICLONE => clone(cx, arg, file),
        FICLONERANGE => {
            cx.user().read::<CloneRange>(arg_addr).and_then(|[source, ..]| clone(cx, source, file))
        }
        FIDEDUPERANGE => dedupe(cx, file, arg_addr),
        FS_IOC_FIEMAP => Err(Errno::EOPNOTSUPP),
        FS_IOC_GETFLAGS => check_kept(file).and_then(|()| cx.user().write(arg_addr, &0u32)),
        FS_IOC_SETFLAGS => set_flags(cx, file, arg_addr),
        FS_IOC_FSGETXATTR => {
            check_kept(file).and_then(|()| cx.user().write(arg_addr, &FsAttributes::default()))
        }
        FS_IOC_FSSETXATTR => set_attributes(cx, file, arg_addr),
        _ => return None,
    };
    Some(match result {
        Err(Errno::ENOTTY) => return None,
        result => result.map(|()| 0),
    })
}

/// Where a file's blocks lie is not told.
fn block_map(cx: &Ctx<'_>, file: &File) -> Result<()> {
    if file.ops.stat(file)?.kind() != S_IFREG {
        return Err(Errno::ENOTTY);
    }
    Err(if cx.task.creds.get().has(CAP_SYS_RAWIO) { Errno::EINVAL } else { Errno::EPERM })
}

fn block_size(cx: &Ctx<'_>, file: &File, to: UserAddr) -> Result<()> {
    let size = i32::try_from(file.ops.stat(file)?.blksize).map_err(|_| Errno::EINVAL)?;
    cx.user().write(to, &size)
}

/// The bytes that it takes where it is stored.
fn disk_size(cx: &Ctx<'_>, file: &File, to: UserAddr) -> Result<()> {
    let stat = file.ops.stat(file)?;
    if !matches!(stat.kind(), S_IFREG | S_IFDIR | S_IFLNK) {
        return Err(Errno::ENOTTY);
    }
    cx.user().write(to, &(stat.blocks.saturating_mul(512)))
}

/// No file system here has files that share blocks.
fn clone(cx: &Ctx<'_>, source: u64, target: &File) -> Result<()> {
    // A descriptor is an int, whatever lies in the bits above.
    let source = cx.file(low32(source).cast_signed())?;
    let (from, to) = (source.ops.stat(&source)?, target.ops.stat(target)?);
    if from.dev != to.dev {
        return Err(Errno::EXDEV);
    }
    if from.kind() == S_IFDIR || to.kind() == S_IFDIR {
        return Err(Errno::EISDIR);
    }
    if from.kind() != S_IFREG || to.kind() != S_IFREG {
        return Err(Errno::EINVAL);
    }
    let opened_for_it = source.flags().readable() && target.flags().writable();
    if !opened_for_it || target.flags().contains(OpenFlags::APPEND) {
        return Err(Errno::EBADF);
    }
    Err(Errno::EOPNOTSUPP)
}

fn dedupe(cx: &Ctx<'_>, file: &File, arg: UserAddr) -> Result<()> {
    // Offset and length, then the number of targets and what is reserved.
    let [_, _, count]: [u64; 3] = cx.user().read(arg)?;
    if count >> 16 != 0 || !file.flags().readable() {
        return Err(Errno::EINVAL);
    }
    match file.ops.stat(file)?.kind() {
        S_IFDIR => Err(Errno::EISDIR),
        S_IFREG => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

/// `ENOTTY` for what is no file or directory of a file system that could keep flags.
fn check_kept(file: &File) -> Result<()> {
    if file.ops.is_kept() { Ok(()) } else { Err(Errno::ENOTTY) }
}

/// Whether the caller might set flags.
fn check_owner(cx: &Ctx<'_>, file: &File) -> Result<()> {
    check_kept(file)?;
    if let Some(path) = &file.path {
        path.mount.check_writable()?;
    }
    let creds = cx.task.creds.get();
    let is_owner = file.ops.stat(file)?.uid == creds.fsuid || creds.has(CAP_FOWNER);
    if is_owner { Ok(()) } else { Err(Errno::EPERM) }
}

/// No flag (`chattr(1)`) would be followed, so none is taken, and none is ever set.
fn set_flags(cx: &Ctx<'_>, file: &File, from: UserAddr) -> Result<()> {
    check_kept(file)?;
    let flags: u32 = cx.user().read(from)?;
    check_owner(cx, file)?;
    if flags == 0 { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

fn set_attributes(cx: &Ctx<'_>, file: &File, from: UserAddr) -> Result<()> {
    check_kept(file)?;
    let wanted: FsAttributes = cx.user().read(from)?;
    check_owner(cx, file)?;
    // The number of extents and what pads are not looked at.
    let FsAttributes { flags, extent_size, project, copied_extent_size, .. } = wanted;
    let is_nothing = [flags, extent_size, project, copied_extent_size].iter().all(|value| *value == 0);
    if is_nothing { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}
