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
    let before = *file.pos.lock();
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
    file.accessed();
    if out.is_empty() && short {
        return Err(Errno::ENOMEM);
    }
    if out.is_empty() && cut {
        return Err(Errno::EINVAL);
    }
    if cx.user().write_bytes(buf, &out).is_ok() {
        return Ok(out.len() as u64);
    }
    let (given, next) = give_some(cx, buf, &out, before);
    *file.pos.lock() = next;
    if given == 0 { Err(Errno::EFAULT) } else { Ok(given as u64) }
}

/// Gives the caller the entries that fit before its buffer ends in memory that is not there: their bytes, and the
/// position behind them.
fn give_some(cx: &Ctx<'_>, buf: UserAddr, records: &[u8], before: u64) -> (usize, u64) {
    let (mut at, mut next) = (0, before);
    while let Some((header, _)) = records.get(at..).and_then(|rest| rest.split_at_checked(18)) {
        let len = usize::from(u16::from_le_bytes([header[16], header[17]]));
        let Some(record) = records.get(at..at + len) else { break };
        if len == 0
            || cx.user().write_bytes(UserAddr::new(buf.get().wrapping_add(at as u64)), record).is_err()
        {
            break;
        }
        next = u64::from_le_bytes(core::array::from_fn(|i| header[8 + i]));
        at += len;
    }
    (at, next)
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
