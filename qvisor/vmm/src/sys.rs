//! The system calls of host files, as safe functions. All `unsafe` of the file calls is here.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::errno::Errno;
use crate::guest_memory::{GuestBuffers, GuestSlice};

/// Makes a system call, again when a signal interrupts it. Arguments are widened to registers.
///
/// The callers in this file pass pointers that are valid for the accesses that the call makes.
macro_rules! sys_call {
    ($number:expr $(, $arg:expr)*) => {{
        loop {
            // SAFETY: descriptors are borrowed, strings are zero-terminated, and pointers come from live references or
            // from checked guest ranges of the length passed beside them; see each caller.
            let result = unsafe { libc::syscall($number $(, $arg)*) };
            if result >= 0 {
                break Ok(result);
            }
            let error = Errno::last();
            if error.0 != libc::EINTR {
                break Err(error);
            }
        }
    }};
}

pub(crate) use sys_call;

pub(crate) fn owned(result: i64) -> OwnedFd {
    // SAFETY: the system call just returned this descriptor, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(RawFd::try_from(result).unwrap_or(-1)) }
}

/// `openat(2)`, always close-on-exec.
pub fn openat(dir: BorrowedFd<'_>, name: &CStr, flags: i32, mode: u32) -> Result<OwnedFd, Errno> {
    sys_call!(libc::SYS_openat, dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, mode).map(owned)
}

/// Opens a directory that is in `dir` itself: not behind a link, a mount or an automount.
pub fn open_dir(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> Result<OwnedFd, Errno> {
    open_beneath(dir, name, flags | libc::O_DIRECTORY)
}

/// Opens a file that is in `dir` itself, as [`open_dir`] does; never waits for the other end of a pipe.
pub fn open_file(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> Result<OwnedFd, Errno> {
    open_beneath(dir, name, flags | libc::O_NONBLOCK | libc::O_NOCTTY)
}

fn open_beneath(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: `open_how` is plain integers.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = u64::from((flags | libc::O_NOFOLLOW | libc::O_CLOEXEC).cast_unsigned());
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_XDEV | libc::RESOLVE_NO_SYMLINKS;
    let (name, how, size) = (name.as_ptr(), &raw const how, size_of::<libc::open_how>());
    sys_call!(libc::SYS_openat2, dir.as_raw_fd(), name, how, size).map(owned)
}

/// Whether the mount that a file is in opens no devices (`nodev`).
pub fn has_no_devices(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(fstatfs(fd)?.f_flags & libc::ST_NODEV.cast_signed() != 0)
}

/// `statx(2)` with the basic fields and the birth time; an empty name is the descriptor itself.
pub fn statx(dir: BorrowedFd<'_>, name: &CStr) -> Result<libc::statx, Errno> {
    // SAFETY: `statx` is plain integers.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH;
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    sys_call!(libc::SYS_statx, dir.as_raw_fd(), name.as_ptr(), flags, mask, &raw mut out)?;
    Ok(out)
}

/// Either bit of `stx_mask` says that `stx_mnt_id` is filled in: `STATX_MNT_ID`, `STATX_MNT_ID_UNIQUE`.
pub const MOUNT_KNOWN: u32 = 0x1000 | 0x4000;

/// Kind, attributes and mount of the node that a descriptor is. From Linux 6.8 on no other mount ever has the same number.
pub fn statx_mount(fd: BorrowedFd<'_>) -> Result<libc::statx, Errno> {
    // SAFETY: `statx` is plain integers.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_TYPE | MOUNT_KNOWN);
    sys_call!(libc::SYS_statx, fd.as_raw_fd(), c"".as_ptr(), flags, mask, &raw mut out)?;
    Ok(out)
}

/// A vectored call at `offset` (-1: the stream position, for those with flags), with `RWF_*` flags if it takes any.
fn vectored(
    number: libc::c_long,
    fd: BorrowedFd<'_>,
    buffers: &GuestBuffers<'_>,
    offset: i64,
    flags: i32,
) -> Result<i64, Errno> {
    let pieces = buffers.iovecs();
    sys_call!(number, fd.as_raw_fd(), pieces.as_ptr(), pieces.len(), offset, 0_i64, flags)
}

/// `preadv(2)`.
pub fn preadv(fd: BorrowedFd<'_>, buffers: &GuestBuffers<'_>, offset: i64) -> Result<i64, Errno> {
    vectored(libc::SYS_preadv, fd, buffers, offset, 0)
}

/// `preadv2(2)` with `RWF_NOWAIT`: what is in the page cache.
pub fn preadv_cached(fd: BorrowedFd<'_>, buffers: &GuestBuffers<'_>, offset: i64) -> Result<i64, Errno> {
    vectored(libc::SYS_preadv2, fd, buffers, offset, libc::RWF_NOWAIT)
}

/// `pread(2)` into memory of the VMM's own.
pub fn pread(fd: BorrowedFd<'_>, to: &mut [u8], offset: i64) -> Result<i64, Errno> {
    sys_call!(libc::SYS_pread64, fd.as_raw_fd(), to.as_mut_ptr(), to.len(), offset)
}

/// `pwritev(2)`.
pub fn pwritev(fd: BorrowedFd<'_>, buffers: &GuestBuffers<'_>, offset: i64) -> Result<i64, Errno> {
    vectored(libc::SYS_pwritev, fd, buffers, offset, 0)
}

/// `readv(2)` at the stream position; with `RWF_NOWAIT` when asked, through `preadv2(2)`.
pub fn readv(fd: BorrowedFd<'_>, buffers: &GuestBuffers<'_>, nowait: bool) -> Result<i64, Errno> {
    if nowait {
        return vectored(libc::SYS_preadv2, fd, buffers, -1, libc::RWF_NOWAIT);
    }
    sys_call!(libc::SYS_readv, fd.as_raw_fd(), buffers.iovecs().as_ptr(), buffers.iovecs().len())
}

/// `writev(2)` at the stream position; with `RWF_NOWAIT` when asked, through `pwritev2(2)`.
pub fn writev(fd: BorrowedFd<'_>, buffers: &GuestBuffers<'_>, nowait: bool) -> Result<i64, Errno> {
    if nowait {
        return vectored(libc::SYS_pwritev2, fd, buffers, -1, libc::RWF_NOWAIT);
    }
    sys_call!(libc::SYS_writev, fd.as_raw_fd(), buffers.iovecs().as_ptr(), buffers.iovecs().len())
}

fn message(buffers: &GuestBuffers<'_>) -> libc::msghdr {
    // SAFETY: `msghdr` is plain integers and pointers; null and zero mean "none".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = buffers.iovecs().as_ptr().cast_mut();
    message.msg_iovlen = buffers.iovecs().len();
    message
}

/// `recvmsg(2)` that never waits.
pub fn receive(fd: BorrowedFd<'_>, buffers: &GuestBuffers<'_>) -> Result<i64, Errno> {
    let mut message = message(buffers);
    sys_call!(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT)
}

/// `sendmsg(2)` that neither waits nor raises a signal.
pub fn send(fd: BorrowedFd<'_>, buffers: &GuestBuffers<'_>) -> Result<i64, Errno> {
    let message = message(buffers);
    sys_call!(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

/// A socket for questions about the network (`rtnetlink(7)`); `strict` as `NETLINK_GET_STRICT_CHK`.
pub fn route_socket(strict: bool) -> Result<OwnedFd, Errno> {
    const STRICT: i32 = 12;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    let socket = sys_call!(libc::SYS_socket, libc::AF_NETLINK, kind, libc::NETLINK_ROUTE).map(owned)?;
    if strict {
        let (on, size) = (1_i32, size_of::<i32>());
        sys_call!(libc::SYS_setsockopt, socket.as_raw_fd(), libc::SOL_NETLINK, STRICT, &raw const on, size)?;
    }
    Ok(socket)
}

/// `send(2)`, never waiting.
pub fn send_bytes(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<i64, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    sys_call!(libc::SYS_sendto, fd.as_raw_fd(), bytes.as_ptr(), bytes.len(), flags, 0_usize, 0)
}

/// `recv(2)` of a datagram, never waiting; result: its whole length, which may be more than there was room for.
pub fn receive_bytes(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let (at, len) = (bytes.as_mut_ptr(), bytes.len());
    let got = sys_call!(libc::SYS_recvfrom, fd.as_raw_fd(), at, len, flags, 0_usize, 0_usize)?;
    Ok(usize::try_from(got).unwrap_or(0))
}

/// `poll(2)` of one descriptor without waiting; result: the events that hold.
pub fn poll_now(fd: BorrowedFd<'_>, events: i16) -> Result<i16, Errno> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    sys_call!(libc::SYS_poll, &raw mut entry, 1, 0)?;
    Ok(entry.revents)
}

/// `lseek(2)`.
pub fn lseek(fd: BorrowedFd<'_>, offset: i64, whence: i32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_lseek, fd.as_raw_fd(), offset, whence)
}

/// `getdents64(2)` into guest memory.
pub fn getdents(fd: BorrowedFd<'_>, out: GuestSlice<'_>) -> Result<i64, Errno> {
    sys_call!(libc::SYS_getdents64, fd.as_raw_fd(), out.as_ptr(), out.len())
}

/// `mkdirat(2)`.
pub fn mkdirat(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_mkdirat, dir.as_raw_fd(), name.as_ptr(), mode)
}

/// `unlinkat(2)`.
pub fn unlinkat(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_unlinkat, dir.as_raw_fd(), name.as_ptr(), flags)
}

/// `renameat2(2)`.
pub fn renameat(
    old_dir: BorrowedFd<'_>,
    old: &CStr,
    new_dir: BorrowedFd<'_>,
    new: &CStr,
    flags: u32,
) -> Result<i64, Errno> {
    let (old_dir, new_dir) = (old_dir.as_raw_fd(), new_dir.as_raw_fd());
    sys_call!(libc::SYS_renameat2, old_dir, old.as_ptr(), new_dir, new.as_ptr(), flags)
}

/// `linkat(2)` of the target of the link `old` (a name in `/proc/self/fd`).
pub fn linkat(proc_dir: BorrowedFd<'_>, old: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> Result<i64, Errno> {
    let (from, to) = (proc_dir.as_raw_fd(), dir.as_raw_fd());
    sys_call!(libc::SYS_linkat, from, old.as_ptr(), to, name.as_ptr(), libc::AT_SYMLINK_FOLLOW)
}

/// `symlinkat(2)`.
pub fn symlinkat(target: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> Result<i64, Errno> {
    sys_call!(libc::SYS_symlinkat, target.as_ptr(), dir.as_raw_fd(), name.as_ptr())
}

/// `readlinkat(2)` into guest memory; an empty name is the descriptor itself.
pub fn readlinkat(dir: BorrowedFd<'_>, name: &CStr, out: GuestSlice<'_>) -> Result<i64, Errno> {
    sys_call!(libc::SYS_readlinkat, dir.as_raw_fd(), name.as_ptr(), out.as_ptr(), out.len())
}

/// `mknodat(2)` of a node that is not a device.
pub fn mknodat(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_mknodat, dir.as_raw_fd(), name.as_ptr(), mode, 0)
}

/// `fchmod(2)`; not for `O_PATH` descriptors.
pub fn fchmod(fd: BorrowedFd<'_>, mode: u32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_fchmod, fd.as_raw_fd(), mode)
}

/// `fchmodat(2)`, following the last link.
pub fn fchmodat(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_fchmodat, dir.as_raw_fd(), name.as_ptr(), mode)
}

/// `fchownat(2)` of the descriptor itself; `u32::MAX` leaves an id as it is.
pub fn chown(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_fchownat, fd.as_raw_fd(), c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH)
}

/// `ftruncate(2)`.
pub fn ftruncate(fd: BorrowedFd<'_>, size: i64) -> Result<i64, Errno> {
    sys_call!(libc::SYS_ftruncate, fd.as_raw_fd(), size)
}

/// `utimensat(2)`: access and modification time.
pub fn utimensat(
    dir: BorrowedFd<'_>,
    name: &CStr,
    times: &[libc::timespec; 2],
    flags: i32,
) -> Result<i64, Errno> {
    sys_call!(libc::SYS_utimensat, dir.as_raw_fd(), name.as_ptr(), times.as_ptr(), flags)
}

/// `fallocate(2)`.
pub fn fallocate(fd: BorrowedFd<'_>, mode: i32, offset: i64, len: i64) -> Result<i64, Errno> {
    sys_call!(libc::SYS_fallocate, fd.as_raw_fd(), mode, offset, len)
}

/// `fsync(2)` or `fdatasync(2)`.
pub fn fsync(fd: BorrowedFd<'_>, data_only: bool) -> Result<i64, Errno> {
    sys_call!(if data_only { libc::SYS_fdatasync } else { libc::SYS_fsync }, fd.as_raw_fd())
}

/// `fstatfs(2)`.
pub fn fstatfs(fd: BorrowedFd<'_>) -> Result<libc::statfs64, Errno> {
    // SAFETY: `statfs` is plain integers.
    let mut out: libc::statfs64 = unsafe { std::mem::zeroed() };
    sys_call!(libc::SYS_fstatfs, fd.as_raw_fd(), &raw mut out)?;
    Ok(out)
}

/// How extended attributes of a descriptor are reached.
#[derive(Clone, Copy, Debug)]
pub enum XattrOf<'a> {
    /// Through the descriptor itself.
    Fd(BorrowedFd<'a>),
    /// Through a path (`O_PATH` descriptors: their link in `/proc/self/fd`).
    Path(&'a CStr),
}

/// `getxattr(2)` into guest memory; an empty range asks for the size.
pub fn getxattr(of: XattrOf<'_>, name: &CStr, out: GuestSlice<'_>) -> Result<i64, Errno> {
    let (name, value, len) = (name.as_ptr(), out.as_ptr(), out.len());
    match of {
        XattrOf::Fd(fd) => sys_call!(libc::SYS_fgetxattr, fd.as_raw_fd(), name, value, len),
        XattrOf::Path(path) => sys_call!(libc::SYS_getxattr, path.as_ptr(), name, value, len),
    }
}

/// `setxattr(2)` from guest memory.
pub fn setxattr(of: XattrOf<'_>, name: &CStr, value: GuestSlice<'_>, flags: i32) -> Result<i64, Errno> {
    let (name, value, len) = (name.as_ptr(), value.as_ptr(), value.len());
    match of {
        XattrOf::Fd(fd) => sys_call!(libc::SYS_fsetxattr, fd.as_raw_fd(), name, value, len, flags),
        XattrOf::Path(path) => sys_call!(libc::SYS_setxattr, path.as_ptr(), name, value, len, flags),
    }
}

/// `listxattr(2)` into guest memory; an empty range asks for the size.
pub fn listxattr(of: XattrOf<'_>, out: GuestSlice<'_>) -> Result<i64, Errno> {
    match of {
        XattrOf::Fd(fd) => sys_call!(libc::SYS_flistxattr, fd.as_raw_fd(), out.as_ptr(), out.len()),
        XattrOf::Path(path) => sys_call!(libc::SYS_listxattr, path.as_ptr(), out.as_ptr(), out.len()),
    }
}

/// `removexattr(2)`.
pub fn removexattr(of: XattrOf<'_>, name: &CStr) -> Result<i64, Errno> {
    match of {
        XattrOf::Fd(fd) => sys_call!(libc::SYS_fremovexattr, fd.as_raw_fd(), name.as_ptr()),
        XattrOf::Path(path) => sys_call!(libc::SYS_removexattr, path.as_ptr(), name.as_ptr()),
    }
}

/// `copy_file_range(2)` between two positions.
pub fn copy_file_range(
    from: BorrowedFd<'_>,
    mut from_at: i64,
    to: BorrowedFd<'_>,
    mut to_at: i64,
    len: usize,
) -> Result<i64, Errno> {
    let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
    sys_call!(libc::SYS_copy_file_range, from, &raw mut from_at, to, &raw mut to_at, len, 0)
}

/// Whether the descriptor is a terminal.
#[must_use]
pub fn is_tty(fd: BorrowedFd<'_>) -> bool {
    // Every terminal has a size, and asking for it is what a jailed VMM may do.
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    sys_call!(libc::SYS_ioctl, fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size).is_ok()
}

/// Whether a socket takes connections (`SO_ACCEPTCONN`).
pub fn is_listening(fd: BorrowedFd<'_>) -> bool {
    let mut on: libc::c_int = 0;
    let mut len: libc::socklen_t = 4;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
    sys_call!(libc::SYS_getsockopt, fd.as_raw_fd(), level, option, &raw mut on, &raw mut len).is_ok()
        && on != 0
}

/// `TIOCSWINSZ`.
pub fn set_winsize(fd: BorrowedFd<'_>, rows: u16, columns: u16) -> Result<i64, Errno> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    sys_call!(libc::SYS_ioctl, fd.as_raw_fd(), libc::TIOCSWINSZ, &raw const size)
}

/// `epoll_create1(2)`.
pub fn epoll_create() -> Result<OwnedFd, Errno> {
    sys_call!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC).map(owned)
}

/// `epoll_ctl(2)`.
pub fn epoll_ctl(
    epoll: BorrowedFd<'_>,
    operation: i32,
    fd: BorrowedFd<'_>,
    events: u32,
    data: u64,
) -> Result<i64, Errno> {
    let mut event = libc::epoll_event { events, u64: data };
    sys_call!(libc::SYS_epoll_ctl, epoll.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event)
}

/// `epoll_wait(2)` without a time limit; result: how many of `events` are filled.
pub fn epoll_wait(epoll: BorrowedFd<'_>, events: &mut [libc::epoll_event]) -> Result<usize, Errno> {
    let count = sys_call!(libc::SYS_epoll_wait, epoll.as_raw_fd(), events.as_mut_ptr(), events.len(), -1)?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// `epoll_wait(2)` that takes the events that have come.
pub fn epoll_now(epoll: BorrowedFd<'_>, events: &mut [libc::epoll_event]) -> Result<usize, Errno> {
    let count = sys_call!(libc::SYS_epoll_wait, epoll.as_raw_fd(), events.as_mut_ptr(), events.len(), 0)?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// `epoll_pwait2(2)`: at most so many nanoseconds (`None`: for ever). A signal ends it too.
pub fn epoll_wait_for(
    epoll: BorrowedFd<'_>,
    events: &mut [libc::epoll_event],
    timeout_ns: Option<u64>,
) -> Result<usize, Errno> {
    let timeout = timeout_ns.map(|ns| libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    });
    let limit = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let no_mask = std::ptr::null::<libc::sigset_t>();
    let (fd, at, len) = (epoll.as_raw_fd(), events.as_mut_ptr(), events.len());
    // SAFETY: the descriptor is borrowed, `events` and `timeout` are live, no mask is given.
    let count = unsafe { libc::syscall(libc::SYS_epoll_pwait2, fd, at, len, limit, no_mask, 0) };
    match usize::try_from(count).map_err(|_| Errno::last()) {
        Err(Errno(libc::ENOSYS)) => {}
        result => return result,
    }
    // Before Linux 5.11: whole milliseconds, never too short.
    let millis = timeout_ns.map_or(-1, |ns| i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX));
    let count = sys_call!(libc::SYS_epoll_wait, fd, events.as_mut_ptr(), len, millis)?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// `inotify_init1(2)`, non-blocking.
pub fn inotify() -> Result<OwnedFd, Errno> {
    sys_call!(libc::SYS_inotify_init1, libc::IN_CLOEXEC | libc::IN_NONBLOCK).map(owned)
}

/// `inotify_add_watch(2)`; result: the watch's descriptor.
pub fn inotify_add_watch(fd: BorrowedFd<'_>, path: &CStr, events: u32) -> Result<i32, Errno> {
    let descriptor = sys_call!(libc::SYS_inotify_add_watch, fd.as_raw_fd(), path.as_ptr(), events)?;
    i32::try_from(descriptor).map_err(|_| Errno(libc::EIO))
}

/// `inotify_rm_watch(2)`.
pub fn inotify_rm_watch(fd: BorrowedFd<'_>, descriptor: i32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_inotify_rm_watch, fd.as_raw_fd(), descriptor)
}

/// `eventfd2(2)`, non-blocking.
pub fn eventfd() -> Result<OwnedFd, Errno> {
    sys_call!(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).map(owned)
}

/// Adds one to an event counter.
pub fn eventfd_signal(fd: BorrowedFd<'_>) {
    let one = 1_u64;
    let _ = sys_call!(libc::SYS_write, fd.as_raw_fd(), &raw const one, 8);
}

/// Sets an event counter to 0.
pub fn eventfd_clear(fd: BorrowedFd<'_>) {
    let mut count = 0_u64;
    let _ = sys_call!(libc::SYS_read, fd.as_raw_fd(), &raw mut count, 8);
}

/// Has the host make its table of this process's descriptors large enough for so many. Where threads have the table in common, the
/// host waits for all processors each time it makes a larger one, some milliseconds.
pub fn make_room_for_descriptors(like: BorrowedFd<'_>, count: i32) {
    // A limit that is lower does no harm.
    let _ = sys_call!(libc::SYS_fcntl, like.as_raw_fd(), libc::F_DUPFD_CLOEXEC, count - 1).map(owned);
}

/// Blocks every signal on this thread but that of a forbidden system call.
pub fn block_signals() {
    // SAFETY: `set` is filled before it is used; blocking signals touches no memory of ours.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigdelset(&raw mut set, libc::SIGSYS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Clears the file-mode creation mask of the process: modes come from the guest, which applies its own.
pub fn clear_umask() {
    // SAFETY: `umask` cannot fail and touches no memory.
    unsafe { libc::umask(0) };
}

/// Makes writes to closed pipes fail with `EPIPE` only.
pub fn ignore_sigpipe() {
    // SAFETY: `SIG_IGN` runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// `fchdir(2)`.
pub fn fchdir(dir: BorrowedFd<'_>) -> Result<i64, Errno> {
    sys_call!(libc::SYS_fchdir, dir.as_raw_fd())
}

/// Stands for the working directory in calls that take a directory.
#[must_use]
pub fn working_directory() -> BorrowedFd<'static> {
    // SAFETY: `AT_FDCWD` is not a descriptor that could be closed; the calls it is passed to know it.
    unsafe { BorrowedFd::borrow_raw(libc::AT_FDCWD) }
}

/// `fcntl(F_GETFL)`.
pub fn status_flags(fd: BorrowedFd<'_>) -> Result<i32, Errno> {
    let flags = sys_call!(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_GETFL)?;
    Ok(i32::try_from(flags).unwrap_or(0))
}

/// A lock that `F_OFD_GETLK` found.
pub struct FoundLock {
    pub first: u64,
    pub last: u64,
    pub is_exclusive: bool,
    /// A process's, not an open file's.
    pub is_process: bool,
}

/// The bytes from `first` to `last` as `fcntl(2)` wants them. One that ends at the last byte of all has no end.
fn record(first: u64, last: u64, kind: i32) -> libc::flock64 {
    // SAFETY: `flock64` is plain integers.
    let mut lock: libc::flock64 = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap_or(i16::MAX);
    lock.l_start = first.cast_signed();
    lock.l_len = if last >= i64::MAX.cast_unsigned() { 0 } else { (last - first + 1).cast_signed() };
    lock
}

/// `fcntl(F_OFD_SETLK)`, which never waits.
pub fn lock_bytes(fd: BorrowedFd<'_>, first: u64, last: u64, kind: i32) -> Result<i64, Errno> {
    let lock = record(first, last, kind);
    sys_call!(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock)
}

/// `fcntl(F_OFD_GETLK)`.
pub fn lock_in_the_way(
    fd: BorrowedFd<'_>,
    first: u64,
    last: u64,
    kind: i32,
) -> Result<Option<FoundLock>, Errno> {
    let mut lock = record(first, last, kind);
    sys_call!(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock)?;
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let first = lock.l_start.max(0).cast_unsigned();
    let last = match lock.l_len {
        len @ 1.. => first.saturating_add(len.cast_unsigned() - 1),
        _ => i64::MAX.cast_unsigned(),
    };
    let is_exclusive = i32::from(lock.l_type) == libc::F_WRLCK;
    Ok(Some(FoundLock { first, last, is_exclusive, is_process: lock.l_pid != -1 }))
}

/// `flock(2)`; the caller says that it is not to wait.
pub fn lock_whole(fd: BorrowedFd<'_>, operation: i32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_flock, fd.as_raw_fd(), operation)
}

/// Copies through a buffer of ours; result: bytes of this step, at most the buffer's size.
pub fn copy_step(
    from: BorrowedFd<'_>,
    from_at: i64,
    to: BorrowedFd<'_>,
    to_at: i64,
    buffer: &mut [u8],
) -> Result<i64, Errno> {
    let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
    let got = sys_call!(libc::SYS_pread64, from, buffer.as_mut_ptr(), buffer.len(), from_at)?;
    if got == 0 {
        return Ok(0);
    }
    sys_call!(libc::SYS_pwrite64, to, buffer.as_ptr(), got, to_at)
}
