//! Moving data between files, and telling the system about it: `sendfile(2)`, `copy_file_range(2)`, `fallocate(2)`,
//! `fsync(2)`, advice.

use alloc::sync::Arc;
use alloc::vec;

use crate::config::RW_MAX_BYTES;
use crate::fs::file::limit_write;
use crate::fs::file::{At, File, OpenFlags, Whence};
use crate::fs::hostfs::file::HostFile;
use crate::fs::inode::{S_IFDIR, S_IFIFO, S_IFREG, S_IFSOCK};
use crate::fs::stream::HostStream;
use crate::net::SocketFile;
use crate::syscall::context::SyscallResult;
use crate::syscall::rw::written;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::host;
use machine::mm::{IoBuf, UserAddr};
use machine::sched::wait::PollEvents;

/// Bytes of the kernel buffer that copies go through.
const BUFFER_BYTES: usize = 64 * 1024;

fn readable(cx: &Ctx<'_>, fd: i32) -> Result<Arc<File>> {
    cx.file(fd).and_then(|file| if file.flags().readable() { Ok(file) } else { Err(Errno::EBADF) })
}

fn writable(cx: &Ctx<'_>, fd: i32) -> Result<Arc<File>> {
    cx.file(fd).and_then(|file| if file.flags().writable() { Ok(file) } else { Err(Errno::EBADF) })
}

/// Whether the file's position is the host's, which the kernel doesn't know: programs then read and write instead.
fn is_stream(file: &File) -> bool {
    file.as_ops::<HostStream>().is_some()
}

/// A file position that a call takes from, and leaves at, a user address; or the description's own.
struct Cursor<'a> {
    file: &'a File,
    addr: UserAddr,
    at: u64,
}

impl<'a> Cursor<'a> {
    fn new(cx: &Ctx<'_>, file: &'a File, addr: UserAddr) -> Result<Self> {
        let at = match cx.user().read_opt::<i64>(addr)? {
            Some(at) => u64::try_from(at).map_err(|_| Errno::EINVAL)?,
            None => file.ops.seek(file, 0, Whence::Current)?,
        };
        Ok(Self { file, addr, at })
    }

    fn finish(self, cx: &Ctx<'_>) -> Result<()> {
        if self.addr.is_null() {
            return self.file.ops.seek(self.file, self.at.cast_signed(), Whence::Set).map(drop);
        }
        cx.user().write(self.addr, &self.at)
    }
}

/// Copies through kernel memory, until `len` bytes, the end of `from`, or an obstacle.
fn copy(
    from: &mut Cursor<'_>,
    len: usize,
    mut write: impl FnMut(&mut IoBuf<'_>) -> Result<usize>,
) -> Result<usize> {
    let mut buffer = vec![0u8; len.min(BUFFER_BYTES)];
    let mut done = 0;
    while done < len {
        let want = (len - done).min(buffer.len());
        let read = from.file.read(&mut IoBuf::kernel(&mut buffer[..want]), At::Offset(from.at));
        let got = match read {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        };
        let moved = match write(&mut IoBuf::constant(&buffer[..got])) {
            Ok(moved) => moved,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        };
        from.at += moved as u64;
        done += moved;
        if moved < got {
            break;
        }
    }
    Ok(done)
}

/// `sendfile(2)`.
pub(super) fn sendfile(cx: &Ctx<'_>, out: i32, input: i32, offset: UserAddr, count: usize) -> SyscallResult {
    let source = readable(cx, input)?;
    let target = writable(cx, out)?;
    if !source.ops.is_seekable() || source.ops.stat(&source)?.kind() == S_IFDIR {
        return Err(if !offset.is_null() && !source.ops.is_seekable() {
            Errno::ESPIPE
        } else {
            Errno::EINVAL
        });
    }
    if target.flags().contains(OpenFlags::APPEND) || is_stream(&source) {
        return Err(Errno::EINVAL);
    }
    let mut from = Cursor::new(cx, &source, offset)?;
    let count = count.min(RW_MAX_BYTES);
    let moved = match send_on_host(&mut from, &target, count) {
        Some(moved) => moved,
        None => copy(&mut from, count, |buf| target.write(buf, At::Position)),
    };
    from.finish(cx)?;
    written(cx, moved)
}

/// Lets the host send one of its files over one of its sockets; `None` when the files are of another kind.
fn send_on_host(from: &mut Cursor<'_>, target: &File, count: usize) -> Option<Result<usize>> {
    let (source, socket) = (from.file.as_ops::<HostFile>()?, &SocketFile::of(target).ok()?.socket);
    let wait = !target.is_nonblocking();
    let mut done = 0;
    while done < count {
        let mut usable = true;
        let sent = target.blocking(PollEvents::WRITABLE, || {
            socket.send_file(source.handle(), from.at, count - done, wait).unwrap_or_else(|| {
                usable = false;
                Ok(0)
            })
        });
        match sent {
            _ if !usable => return None,
            Ok(0) => break,
            Ok(sent) => {
                done += sent;
                from.at += sent as u64;
            }
            Err(error) if done == 0 => return Some(Err(error)),
            Err(error) => {
                socket.keep_error(error);
                break;
            }
        }
        if !wait {
            break;
        }
    }
    Some(Ok(done))
}

fn check_regular(file: &File) -> Result<u64> {
    let stat = file.ops.stat(file)?;
    match stat.kind() {
        S_IFREG => Ok(stat.size),
        S_IFDIR => Err(Errno::EISDIR),
        _ => Err(Errno::EINVAL),
    }
}

/// `copy_file_range(2)`.
pub(super) fn copy_file_range(
    cx: &Ctx<'_>,
    input: i32,
    input_offset: UserAddr,
    out: i32,
    out_offset: UserAddr,
    len: usize,
    flags: u32,
) -> SyscallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (source, target) = (readable(cx, input)?, writable(cx, out)?);
    if is_stream(&source) || is_stream(&target) {
        return Err(Errno::EINVAL);
    }
    let size = check_regular(&source)?;
    check_regular(&target)?;
    if target.flags().contains(OpenFlags::APPEND) {
        return Err(Errno::EBADF);
    }
    let mut from = Cursor::new(cx, &source, input_offset)?;
    let mut to = Cursor::new(cx, &target, out_offset)?;
    let len = len.min(RW_MAX_BYTES).min(usize::try_from(size.saturating_sub(from.at)).unwrap_or(usize::MAX));
    let same = match (&source.path, &target.path) {
        (Some(a), Some(b)) => core::ptr::addr_eq(Arc::as_ptr(&a.inode), Arc::as_ptr(&b.inode)),
        _ => false,
    };
    if same && from.at < to.at.saturating_add(len as u64) && to.at < from.at.saturating_add(len as u64) {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let moved = match copy_on_host(&from, &to, len) {
        Some(moved) => {
            from.at += moved as u64;
            moved
        }
        None => {
            let mut at = to.at;
            copy(&mut from, len, |buf| {
                let moved = target.write(buf, At::Offset(at))?;
                at += moved as u64;
                Ok(moved)
            })?
        }
    };
    to.at += moved as u64;
    from.finish(cx)?;
    to.finish(cx)?;
    Ok(moved as u64)
}

/// Lets the host copy between two of its files; `None` when the files are of another kind, or the host can't.
fn copy_on_host(from: &Cursor<'_>, to: &Cursor<'_>, len: usize) -> Option<usize> {
    let (source, target) = (from.file.as_ops::<HostFile>()?, to.file.as_ops::<HostFile>()?);
    limit_write(to.at, &mut IoBuf::constant(&[0])).ok()?;
    let copy = || host::copy_range(source.handle(), from.at, target.handle(), to.at, len as u64);
    let moved = target.write_alone(to.at, copy).ok()?;
    (moved > 0).then_some(moved)
}

/// `fallocate(2)`.
pub(super) fn fallocate(cx: &Ctx<'_>, fd: i32, mode: u32, offset: i64, len: i64) -> SyscallResult {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    const KNOWN: u32 = 0x7b;
    let (Ok(offset), Ok(len)) = (u64::try_from(offset), u64::try_from(len)) else {
        return Err(Errno::EINVAL);
    };
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    if mode & !KNOWN != 0 || mode & (PUNCH_HOLE | KEEP_SIZE) == PUNCH_HOLE {
        return Err(Errno::EOPNOTSUPP);
    }
    let file = writable(cx, fd)?;
    match file.ops.stat(&file)?.kind() {
        S_IFREG => {}
        S_IFDIR => return Err(Errno::EISDIR),
        S_IFIFO => return Err(Errno::ESPIPE),
        _ => return Err(Errno::ENODEV),
    }
    let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::EFBIG)?;
    if mode & KEEP_SIZE == 0 && end > cx.limit(crate::limits::RLIMIT_FSIZE) {
        return Err(Errno::EFBIG);
    }
    file.ops.allocate(&file, mode, offset, len).map(|()| 0)
}

fn sync_file(cx: &Ctx<'_>, fd: i32, data_only: bool) -> SyscallResult {
    let file = cx.file(fd)?;
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    file.ops.sync(&file, data_only).map(|()| 0)
}

/// `fsync(2)`.
pub(super) fn fsync(cx: &Ctx<'_>, fd: i32) -> SyscallResult {
    sync_file(cx, fd, false)
}

/// `fdatasync(2)`.
pub(super) fn fdatasync(cx: &Ctx<'_>, fd: i32) -> SyscallResult {
    sync_file(cx, fd, true)
}

/// `sync(2)`: nothing is kept back from the host, whose disks are the host's business.
pub(super) fn sync(_cx: &Ctx<'_>) -> SyscallResult {
    Ok(0)
}

/// `syncfs(2)`: see [`sync`].
pub(super) fn syncfs(cx: &Ctx<'_>, fd: i32) -> SyscallResult {
    cx.file(fd).map(|_| 0)
}

/// `sync_file_range(2)`: as much as `fdatasync(2)`.
pub(super) fn sync_file_range(cx: &Ctx<'_>, fd: i32, offset: i64, len: i64, flags: u32) -> SyscallResult {
    if flags & !7 != 0 || offset < 0 || len < 0 {
        return Err(Errno::EINVAL);
    }
    sync_file(cx, fd, true).map_err(|error| if error == Errno::EINVAL { Errno::ESPIPE } else { error })
}

/// `fadvise64(2)`: the host reads ahead by itself.
pub(super) fn fadvise64(cx: &Ctx<'_>, fd: i32, _offset: i64, len: i64, advice: u32) -> SyscallResult {
    let file = cx.file(fd)?;
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    if matches!(file.ops.stat(&file)?.kind(), S_IFIFO) {
        return Err(Errno::ESPIPE);
    }
    if len < 0 || advice > 5 { Err(Errno::EINVAL) } else { Ok(0) }
}

/// `readahead(2)`.
pub(super) fn readahead(cx: &Ctx<'_>, fd: i32, _offset: i64, _count: usize) -> SyscallResult {
    let file = readable(cx, fd)?;
    match file.ops.stat(&file)?.kind() {
        S_IFREG => Ok(0),
        S_IFSOCK | S_IFIFO => Err(Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
}
