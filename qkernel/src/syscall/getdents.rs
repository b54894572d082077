//! Listing directories: `getdents(2)`.

use alloc::vec::Vec;

use crate::config::RW_MAX_BYTES;
use crate::fs::file::DirEntry;
use crate::fs::inode::S_IFDIR;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::{UserAddr, account};

/// Most bytes gathered in the kernel by one listing.
const LISTING_MAX: usize = 256 * 1024;

fn list(
    cx: &Ctx<'_>,
    fd: i32,
    buf: UserAddr,
    len: u32,
    put: fn(&mut Vec<u8>, &DirEntry<'_>),
) -> SyscallResult {
    let file = cx.file(fd)?;
    let (Some(path), true) = (&file.path, file.flags().readable()) else {
        return Err(if file.flags().readable() { Errno::ENOTDIR } else { Errno::EBADF });
    };
    if path.inode.kind() != S_IFDIR {
        return Err(Errno::ENOTDIR);
    }
    if path.dentry.is_gone() {
        return Err(Errno::ENOENT);
    }
    let room = (len as usize).min(LISTING_MAX).min(RW_MAX_BYTES);
    let mut out: Vec<u8> = account::vec(room.min(32 * 1024))?;
    let (mut cut, mut short) = (false, false);
    let mut record = Vec::new();
    file.ops.read_dir(&file, &mut |entry| {
        record.clear();
        put(&mut record, entry);
        if out.len() + record.len() > room {
            cut = true;
            return false;
        }
        short = account::reserve(&mut out, record.len()).is_err();
        if !short {
            out.extend_from_slice(&record);
        }
        !short
    })?;
    if out.is_empty() && short {
        return Err(Errno::ENOMEM);
    }
    if out.is_empty() && cut {
        return Err(Errno::EINVAL);
    }
    cx.user().write_bytes(buf, &out)?;
    Ok(out.len() as u64)
}

/// `d_reclen`. A name has at most 255 bytes.
fn record_len(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// A `linux_dirent64`.
fn put_new(out: &mut Vec<u8>, entry: &DirEntry<'_>) {
    let len = (19 + entry.name.len() + 1).next_multiple_of(8);
    out.extend_from_slice(&entry.ino.to_le_bytes());
    out.extend_from_slice(&entry.next.to_le_bytes());
    out.extend_from_slice(&record_len(len).to_le_bytes());
    out.push(entry.kind);
    out.extend_from_slice(entry.name);
    out.resize(len, 0);
}

/// A `linux_dirent`: the type is the last byte.
fn put_old(out: &mut Vec<u8>, entry: &DirEntry<'_>) {
    let len = (18 + entry.name.len() + 2).next_multiple_of(8);
    out.extend_from_slice(&entry.ino.to_le_bytes());
    out.extend_from_slice(&entry.next.to_le_bytes());
    out.extend_from_slice(&record_len(len).to_le_bytes());
    out.extend_from_slice(entry.name);
    out.resize(len - 1, 0);
    out.push(entry.kind);
}

/// `getdents64(2)`.
pub(super) fn getdents64(cx: &Ctx<'_>, fd: i32, buf: UserAddr, len: u32) -> SyscallResult {
    list(cx, fd, buf, len, put_new)
}

/// `getdents(2)`.
pub(super) fn getdents(cx: &Ctx<'_>, fd: i32, buf: UserAddr, len: u32) -> SyscallResult {
    list(cx, fd, buf, len, put_old)
}
