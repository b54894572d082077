//! From a copied [`HostCall`] to a typed request: the one place where the guest's numbers are checked.

use abi::hostcall::{self as nr, HostCall, HostLock, HostStat, HostStatFs, NAME_MAX_BYTES, SetAttr};
use abi::socket;
use abi::word::low32;

use super::arguments::{Handle, Name, Names, Text, component, handle};
use super::sockets;
use super::sockets::request::{SocketKind, SocketRequest};
use crate::errno::Errno;
use crate::guest_memory::{GuestBox, GuestBuffers, GuestMemory, GuestSlice};

/// Longest component in bytes, as in Linux.
pub const COMPONENT_MAX: usize = 255;
/// Longest value of an extended attribute, and longest list of their names.
pub const XATTR_SIZE_MAX: u64 = 65536;
/// Most bytes one [`Request::ReadDir`] fills.
pub const READDIR_MAX: u64 = 1 << 20;

/// Open flags that reach the host.
const OPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_DIRECTORY
    | libc::O_PATH
    | libc::O_NOATIME
    | libc::O_DSYNC
    | libc::O_SYNC;
/// Open flags that are accepted and dropped: the VMM always sets them, or they mean nothing on a host file.
const OPEN_DROPPED: i32 = libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | 0o100_000;
const POLL_EVENTS: u32 = (libc::POLLIN | libc::POLLPRI | libc::POLLOUT | libc::POLLRDHUP) as u32
    | (libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLWRNORM | libc::POLLWRBAND) as u32
    | (libc::POLLERR | libc::POLLHUP) as u32;
pub const FALLOCATE_MODES: i32 = libc::FALLOC_FL_KEEP_SIZE
    | libc::FALLOC_FL_PUNCH_HOLE
    | libc::FALLOC_FL_COLLAPSE_RANGE
    | libc::FALLOC_FL_ZERO_RANGE
    | libc::FALLOC_FL_INSERT_RANGE
    | libc::FALLOC_FL_UNSHARE_RANGE;
const SETATTR_BITS: u32 = nr::SET_MODE
    | nr::SET_UID
    | nr::SET_GID
    | nr::SET_SIZE
    | nr::SET_ATIME
    | nr::SET_MTIME
    | nr::SET_ATIME_NOW
    | nr::SET_MTIME_NOW;

/// The position at which a transfer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    /// At this position; not negative.
    At(i64),
    /// At the stream's own position, without waiting.
    Stream,
}

/// The kind of a lock, by what it keeps others from: nothing, writing, or anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    None,
    Shared,
    Exclusive,
}

/// A host-file call whose arguments have been checked.
#[derive(Debug)]
pub enum Request<'m> {
    Open { dir: Handle, name: Option<Name>, flags: i32, mode: u32 },
    Close { handle: Handle },
    Stat { handle: Handle, name: Option<Name>, out: GuestBox<'m, HostStat> },
    StatList { dir: Handle, names: Names, out: GuestSlice<'m> },
    Read { handle: Handle, buffers: GuestBuffers<'m>, offset: Offset, cached: bool },
    Write { handle: Handle, buffers: GuestBuffers<'m>, offset: Offset },
    ReadDir { dir: Handle, out: GuestSlice<'m>, position: i64 },
    MkDir { dir: Handle, name: Name, mode: u32 },
    Unlink { dir: Handle, name: Name, flags: i32 },
    Rename { old_dir: Handle, old: Name, new_dir: Handle, new: Box<Name>, flags: u32 },
    Link { node: Handle, dir: Handle, name: Name },
    SymLink { dir: Handle, name: Name, target: Box<Text<4096>> },
    ReadLink { handle: Handle, name: Option<Name>, out: GuestSlice<'m> },
    MkNod { dir: Handle, name: Name, mode: u32 },
    SetAttr { handle: Handle, name: Option<Name>, change: SetAttr },
    Fallocate { handle: Handle, mode: i32, offset: i64, len: i64 },
    Fsync { handle: Handle, data_only: bool },
    StatFs { handle: Handle, out: GuestBox<'m, HostStatFs> },
    GetXattr { handle: Handle, name: Name, out: GuestSlice<'m> },
    SetXattr { handle: Handle, name: Name, value: GuestSlice<'m>, flags: i32 },
    ListXattr { handle: Handle, out: GuestSlice<'m> },
    RemoveXattr { handle: Handle, name: Name },
    Seek { handle: Handle, offset: i64, whence: i32 },
    TmpFile { dir: Handle, flags: i32, mode: u32 },
    CopyRange { from: Handle, from_at: i64, to: Handle, to_at: i64, len: u64 },
    PollArm { handle: Handle, events: u32, token: u64 },
    PollNow { handle: Handle, events: u32 },
    SubmitFsync { handle: Handle, data_only: bool, token: u64 },
    SubmitWarm { handle: Handle, offset: i64, len: u64, token: u64 },
    TtyWinsize { rows: u16, columns: u16 },
    WatchOpen,
    WatchAdd { stream: Handle, node: Handle, events: u32 },
    WatchRemove { stream: Handle, descriptor: i32 },
    LockBytes { handle: Handle, first: u64, last: u64, kind: LockKind },
    LockQuery { handle: Handle, first: u64, last: u64, kind: LockKind, out: GuestBox<'m, HostLock> },
    LockWhole { handle: Handle, kind: LockKind },
    Place { from: Handle, to: Handle },
    Placed,
    LostStream,
    LostConnection { kind: SocketKind, token: u64 },
    Socket(SocketRequest<'m>),
}

/// Whether [`decode`] knows the number.
#[must_use]
pub fn is_file_call(number: u32) -> bool {
    matches!(
        number,
        nr::OPEN..=nr::WATCH_REMOVE | nr::LOCK_BYTES..=nr::LOST | socket::SOCKET..=socket::SOCK_QUERY | socket::SOCK_SEND_FILE | socket::SOCK_CONNECT_NODE
    )
}

/// Checks a copied call. Never touches host files; names, segments and attributes are copied out of `memory` once.
pub fn decode<'m, M: GuestMemory + ?Sized>(call: &HostCall, memory: &'m M) -> Result<Request<'m>, Errno> {
    let args = Args { args: &call.args, memory };
    match call.number {
        nr::OPEN | nr::CLOSE | nr::STAT | nr::READLINK | nr::SETATTR | nr::TMPFILE => args.nodes(call.number),
        nr::READ..=nr::READDIR | nr::FALLOCATE | nr::FSYNC | nr::SEEK | nr::COPY_RANGE => {
            args.contents(call.number)
        }
        nr::MKDIR..=nr::SYMLINK | nr::MKNOD => args.names(call.number),
        nr::STATFS..=nr::REMOVEXATTR => args.attributes(call.number),
        nr::STAT_LIST => args.stat_list(),
        nr::WATCH_OPEN..=nr::WATCH_REMOVE => args.watches(call.number),
        nr::POLL_ARM..=nr::TTY_WINSIZE => args.streams(call.number),
        nr::LOCK_BYTES..=nr::LOCK_WHOLE => args.locks(call.number),
        nr::PLACE => Ok(Request::Place { from: args.handle(0)?, to: args.handle(1)? }),
        nr::PLACED => Ok(Request::Placed),
        nr::LOST => args.lost(),
        socket::SOCKET..=socket::SOCK_QUERY | socket::SOCK_SEND_FILE | socket::SOCK_CONNECT_NODE => {
            sockets::decode::decode(call, memory).map(Request::Socket)
        }
        _ => Err(Errno(libc::ENOSYS)),
    }
}

struct Args<'a, 'm, M: GuestMemory + ?Sized> {
    args: &'a [u64; 6],
    memory: &'m M,
}

impl<'m, M: GuestMemory + ?Sized> Args<'_, 'm, M> {
    fn nodes(&self, number: u32) -> Result<Request<'m>, Errno> {
        Ok(match number {
            nr::OPEN => {
                let (name, flags) = (self.optional_name(1)?, self.open_flags(3)?);
                if name.is_none() && flags & (libc::O_CREAT | libc::O_EXCL) != 0 {
                    return Err(Errno(libc::EINVAL));
                }
                Request::Open { dir: self.handle(0)?, name, flags, mode: self.mode(4)? }
            }
            nr::CLOSE => Request::Close { handle: self.handle(0)? },
            nr::STAT => {
                let out = GuestBox::new(self.memory, self.args[3])?;
                Request::Stat { handle: self.handle(0)?, name: self.optional_name(1)?, out }
            }
            nr::READLINK => {
                let out = self.slice(3, self.args[4].min(NAME_MAX_BYTES))?;
                Request::ReadLink { handle: self.handle(0)?, name: self.optional_name(1)?, out }
            }
            nr::SETATTR => {
                let change = GuestBox::<SetAttr>::new(self.memory, self.args[3])?.read();
                Request::SetAttr {
                    handle: self.handle(0)?,
                    name: self.optional_name(1)?,
                    change: checked(change)?,
                }
            }
            nr::TMPFILE => {
                let flags = self.open_flags(1)?;
                let refused = libc::O_CREAT | libc::O_TRUNC | libc::O_PATH;
                if flags & refused != 0 || flags & libc::O_ACCMODE == libc::O_RDONLY {
                    return Err(Errno(libc::EINVAL));
                }
                Request::TmpFile {
                    dir: self.handle(0)?,
                    flags: flags & !libc::O_DIRECTORY,
                    mode: self.mode(2)?,
                }
            }
            _ => return Err(Errno(libc::ENOSYS)),
        })
    }

    fn stat_list(&self) -> Result<Request<'m>, Errno> {
        let count = self.args[4];
        if count == 0 || count > nr::STAT_LIST_MAX {
            return Err(Errno(libc::EINVAL));
        }
        let names = self.slice_bounded(1, count * (COMPONENT_MAX as u64 + 1))?.copy_in();
        let out = self.slice(3, count * size_of::<HostStat>() as u64)?;
        Ok(Request::StatList { dir: self.handle(0)?, names: Names::new(names, count)?, out })
    }

    fn contents(&self, number: u32) -> Result<Request<'m>, Errno> {
        let handle = self.handle(0)?;
        Ok(match number {
            nr::READ => Request::Read {
                handle,
                buffers: self.buffers(1)?,
                offset: self.stream_offset(3)?,
                cached: self.args[4] != 0,
            },
            nr::WRITE => Request::Write { handle, buffers: self.buffers(1)?, offset: self.stream_offset(3)? },
            nr::READDIR => {
                let out = self.slice(1, self.args[2].min(READDIR_MAX))?;
                Request::ReadDir { dir: handle, out, position: self.offset(3)? }
            }
            nr::FALLOCATE => {
                let (mode, offset, len) = (self.flags(1, FALLOCATE_MODES)?, self.offset(2)?, self.offset(3)?);
                if len == 0 {
                    return Err(Errno(libc::EINVAL));
                }
                offset.checked_add(len).ok_or(Errno(libc::EFBIG))?;
                Request::Fallocate { handle, mode, offset, len }
            }
            nr::FSYNC => Request::Fsync { handle, data_only: self.args[1] != 0 },
            nr::SEEK => {
                let whence = match i32::try_from(self.args[2]) {
                    Ok(whence @ (libc::SEEK_DATA | libc::SEEK_HOLE)) => whence,
                    _ => return Err(Errno(libc::EINVAL)),
                };
                Request::Seek { handle, offset: self.offset(1)?, whence }
            }
            nr::COPY_RANGE => {
                let (from_at, to_at, len) = (self.offset(1)?, self.offset(3)?, self.args[4]);
                Request::CopyRange { from: handle, from_at, to: self.handle(2)?, to_at, len }
            }
            _ => return Err(Errno(libc::ENOSYS)),
        })
    }

    fn names(&self, number: u32) -> Result<Request<'m>, Errno> {
        let dir = self.handle(0)?;
        Ok(match number {
            nr::MKDIR => Request::MkDir { dir, name: self.name(1)?, mode: self.mode(3)? },
            nr::UNLINK => {
                Request::Unlink { dir, name: self.name(1)?, flags: self.flags(3, libc::AT_REMOVEDIR)? }
            }
            nr::RENAME => {
                let (old_len, new_len) = (self.args[2] >> 32, self.args[2] & 0xffff_ffff);
                let (old, new) = (self.required(1, old_len)?, self.required(4, new_len)?);
                let known = u64::from(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE);
                let flags = self.args[5];
                if flags & !known != 0 || flags == known {
                    return Err(Errno(libc::EINVAL));
                }
                let flags = u32::try_from(flags).map_err(|_| Errno(libc::EINVAL))?;
                Request::Rename { old_dir: dir, old, new_dir: self.handle(3)?, new: Box::new(new), flags }
            }
            nr::LINK => Request::Link { node: dir, dir: self.handle(1)?, name: self.name(2)? },
            nr::SYMLINK => {
                let target = self.slice_bounded(3, NAME_MAX_BYTES)?.copy_in();
                if target.is_empty() {
                    return Err(Errno(libc::ENOENT));
                }
                Request::SymLink { dir, name: self.name(1)?, target: Box::new(Text::new(&target)?) }
            }
            nr::MKNOD => {
                let kind = match u32::try_from(self.args[4]) {
                    Ok(kind @ (libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFREG)) => kind,
                    _ => return Err(Errno(libc::EPERM)),
                };
                Request::MkNod { dir, name: self.name(1)?, mode: kind | self.mode(3)? }
            }
            _ => return Err(Errno(libc::ENOSYS)),
        })
    }

    fn attributes(&self, number: u32) -> Result<Request<'m>, Errno> {
        let handle = self.handle(0)?;
        Ok(match number {
            nr::STATFS => Request::StatFs { handle, out: GuestBox::new(self.memory, self.args[1])? },
            nr::GETXATTR => {
                let out = self.slice(3, self.args[4].min(XATTR_SIZE_MAX))?;
                Request::GetXattr { handle, name: self.xattr_name(1)?, out }
            }
            nr::SETXATTR => {
                if self.args[4] > XATTR_SIZE_MAX {
                    return Err(Errno(libc::E2BIG));
                }
                let (name, flags) =
                    (self.xattr_name(1)?, self.flags(5, libc::XATTR_CREATE | libc::XATTR_REPLACE)?);
                Request::SetXattr { handle, name, value: self.slice(3, self.args[4])?, flags }
            }
            nr::LISTXATTR => {
                Request::ListXattr { handle, out: self.slice(1, self.args[2].min(XATTR_SIZE_MAX))? }
            }
            nr::REMOVEXATTR => Request::RemoveXattr { handle, name: self.xattr_name(1)? },
            _ => return Err(Errno(libc::ENOSYS)),
        })
    }

    fn streams(&self, number: u32) -> Result<Request<'m>, Errno> {
        Ok(match number {
            nr::POLL_ARM => {
                Request::PollArm { handle: self.handle(0)?, events: self.events(1)?, token: self.args[2] }
            }
            nr::POLL_NOW => Request::PollNow { handle: self.handle(0)?, events: self.events(1)? },
            nr::SUBMIT if self.args[0] == nr::ASYNC_FSYNC => Request::SubmitFsync {
                handle: self.handle(1)?,
                data_only: self.args[2] != 0,
                token: self.args[4],
            },
            nr::SUBMIT if self.args[0] == nr::ASYNC_WARM => Request::SubmitWarm {
                handle: self.handle(1)?,
                offset: self.offset(2)?,
                len: self.args[3].min(nr::WARM_MAX_BYTES),
                token: self.args[4],
            },
            nr::TTY_WINSIZE => {
                let side = |at: usize| u16::try_from(self.args[at]).map_err(|_| Errno(libc::EINVAL));
                Request::TtyWinsize { rows: side(0)?, columns: side(1)? }
            }
            _ => return Err(Errno(libc::EINVAL)),
        })
    }

    fn watches(&self, number: u32) -> Result<Request<'m>, Errno> {
        Ok(match number {
            nr::WATCH_OPEN => Request::WatchOpen,
            nr::WATCH_ADD => {
                let events = self.args[2];
                if events & !(nr::WATCH_EVENTS | nr::WATCH_EXCL_UNLINK) != 0 || events & nr::WATCH_EVENTS == 0
                {
                    return Err(Errno(libc::EINVAL));
                }
                Request::WatchAdd { stream: self.handle(0)?, node: self.handle(1)?, events: low32(events) }
            }
            _ => {
                let descriptor = i32::try_from(self.args[1]).map_err(|_| Errno(libc::EINVAL))?;
                Request::WatchRemove { stream: self.handle(0)?, descriptor }
            }
        })
    }

    fn locks(&self, number: u32) -> Result<Request<'m>, Errno> {
        let handle = self.handle(0)?;
        if number == nr::LOCK_WHOLE {
            return Ok(Request::LockWhole { handle, kind: self.lock_kind(1)? });
        }
        let (first, last, kind) = (self.args[1], self.args[2], self.lock_kind(3)?);
        if first > last || last > nr::LOCK_END {
            return Err(Errno(libc::EINVAL));
        }
        if number == nr::LOCK_BYTES {
            return Ok(Request::LockBytes { handle, first, last, kind });
        }
        if kind == LockKind::None {
            return Err(Errno(libc::EINVAL));
        }
        Ok(Request::LockQuery { handle, first, last, kind, out: GuestBox::new(self.memory, self.args[4])? })
    }

    fn lost(&self) -> Result<Request<'m>, Errno> {
        let number = |at: usize| i32::try_from(self.args[at]).map_err(|_| Errno(libc::EINVAL));
        let (family, kind, token) = (number(0)?, number(1)?, self.args[2]);
        match (family, kind) {
            (0, _) => Ok(Request::LostStream),
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM)
            | (libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_SEQPACKET) => {
                Ok(Request::LostConnection { kind: SocketKind { family, kind, protocol: 0 }, token })
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    fn lock_kind(&self, at: usize) -> Result<LockKind, Errno> {
        match self.args[at] {
            nr::LOCK_NONE => Ok(LockKind::None),
            nr::LOCK_SHARED => Ok(LockKind::Shared),
            nr::LOCK_EXCLUSIVE => Ok(LockKind::Exclusive),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    fn handle(&self, at: usize) -> Result<Handle, Errno> {
        handle(self.args[at])
    }

    fn slice(&self, at: usize, len: u64) -> Result<GuestSlice<'m>, Errno> {
        GuestSlice::new(self.memory, self.args[at], len)
    }

    /// The bytes whose address and length are arguments `at` and `at + 1`; too long is an error.
    fn slice_bounded(&self, at: usize, most: u64) -> Result<GuestSlice<'m>, Errno> {
        if self.args[at + 1] > most {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        self.slice(at, self.args[at + 1])
    }

    fn required(&self, at: usize, len: u64) -> Result<Name, Errno> {
        match len {
            0 => Err(Errno(libc::ENOENT)),
            1..=255 => component(&self.slice(at, len)?.copy_in()),
            _ => Err(Errno(libc::ENAMETOOLONG)),
        }
    }

    fn name(&self, at: usize) -> Result<Name, Errno> {
        self.required(at, self.args[at + 1])
    }

    fn optional_name(&self, at: usize) -> Result<Option<Name>, Errno> {
        if self.args[at + 1] == 0 { Ok(None) } else { self.name(at).map(Some) }
    }

    fn xattr_name(&self, at: usize) -> Result<Name, Errno> {
        match self.args[at + 1] {
            0 | 256.. => Err(Errno(libc::ERANGE)),
            len => Text::new(&self.slice(at, len)?.copy_in()),
        }
    }

    fn buffers(&self, at: usize) -> Result<GuestBuffers<'m>, Errno> {
        GuestBuffers::new(self.memory, self.args[at], self.args[at + 1])
    }

    fn offset(&self, at: usize) -> Result<i64, Errno> {
        i64::try_from(self.args[at]).map_err(|_| Errno(libc::EINVAL))
    }

    fn stream_offset(&self, at: usize) -> Result<Offset, Errno> {
        if self.args[at] == u64::MAX { Ok(Offset::Stream) } else { self.offset(at).map(Offset::At) }
    }

    fn flags(&self, at: usize, known: i32) -> Result<i32, Errno> {
        match i32::try_from(self.args[at]) {
            Ok(flags) if flags & !known == 0 => Ok(flags),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    fn open_flags(&self, at: usize) -> Result<i32, Errno> {
        let flags = self.flags(at, OPEN_FLAGS | OPEN_DROPPED)? & !OPEN_DROPPED;
        if flags & libc::O_ACCMODE == libc::O_ACCMODE {
            return Err(Errno(libc::EINVAL));
        }
        Ok(flags)
    }

    fn mode(&self, at: usize) -> Result<u32, Errno> {
        match u32::try_from(self.args[at]) {
            Ok(mode) if mode & !0o7777 == 0 => Ok(mode),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    fn events(&self, at: usize) -> Result<u32, Errno> {
        match u32::try_from(self.args[at]) {
            Ok(events) if events & !POLL_EVENTS == 0 => Ok(events),
            _ => Err(Errno(libc::EINVAL)),
        }
    }
}

fn checked(change: SetAttr) -> Result<SetAttr, Errno> {
    let valid = change.valid;
    let both = |a, b| valid & a != 0 && valid & b != 0;
    let unknown = valid & !SETATTR_BITS != 0;
    if unknown || both(nr::SET_ATIME, nr::SET_ATIME_NOW) || both(nr::SET_MTIME, nr::SET_MTIME_NOW) {
        return Err(Errno(libc::EINVAL));
    }
    if valid & nr::SET_MODE != 0 && change.mode & !0o7777 != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if valid & nr::SET_SIZE != 0 && i64::try_from(change.size).is_err() {
        return Err(Errno(libc::EINVAL));
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hostcall::testing::TestMemory;

    fn call(number: u32, args: [u64; 6]) -> HostCall {
        HostCall { number, args, ..HostCall::default() }
    }

    fn open_named(name: &[u8]) -> Result<Name, Errno> {
        let memory = TestMemory::new();
        let phys = memory.put(name);
        match decode(&call(nr::OPEN, [0, phys, name.len() as u64, 0, 0, 0]), &memory)? {
            Request::Open { name: Some(name), .. } => Ok(name),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_are_single_components() {
        assert_eq!(open_named(b"file").unwrap().as_bytes(), b"file");
        assert_eq!(open_named(b"...").unwrap().as_bytes(), b"...");
        for bad in [&b"."[..], b"..", b"a/b", b"/", b"a\0b"] {
            assert_eq!(open_named(bad), Err(Errno(libc::EINVAL)), "{bad:?}");
        }
        assert!(open_named(&[b'x'; 255]).is_ok());
        assert_eq!(open_named(&[b'x'; 256]), Err(Errno(libc::ENAMETOOLONG)));
    }

    #[test]
    fn huge_numbers_are_refused() {
        let memory = TestMemory::new();
        let at = memory.base();
        let code = |number, args| decode(&call(number, args), &memory).unwrap_err();
        assert_eq!(code(nr::CLOSE, [u64::MAX, 0, 0, 0, 0, 0]), Errno(libc::EBADF));
        assert_eq!(code(nr::CLOSE, [1 << 32, 0, 0, 0, 0, 0]), Errno(libc::EBADF));
        assert_eq!(code(nr::OPEN, [0, at, u64::MAX, 0, 0, 0]), Errno(libc::ENAMETOOLONG));
        assert_eq!(code(nr::OPEN, [0, u64::MAX - 2, 5, 0, 0, 0]), Errno(libc::EFAULT));
        assert_eq!(code(nr::OPEN, [0, at, 1, 1 << 40, 0, 0]), Errno(libc::EINVAL));
        assert_eq!(code(nr::OPEN, [0, at, 0, libc::O_CREAT as u64, 0, 0]), Errno(libc::EINVAL));
        assert_eq!(code(nr::READ, [0, at, u64::MAX, 0, 0, 0]), Errno(libc::EINVAL));
        assert_eq!(code(nr::READ, [0, at, 0, u64::MAX - 1, 0, 0]), Errno(libc::EINVAL));
        assert_eq!(code(nr::FALLOCATE, [0, 0, 1, i64::MAX as u64, 0, 0]), Errno(libc::EFBIG));
        assert_eq!(code(nr::SETXATTR, [0, at, 1, at, u64::MAX, 0]), Errno(libc::E2BIG));
        assert_eq!(code(nr::MKNOD, [0, at, 1, 0, u64::from(libc::S_IFBLK), 0]), Errno(libc::EPERM));
        assert_eq!(code(nr::RENAME, [0, at, u64::MAX, 0, at, 0]), Errno(libc::ENAMETOOLONG));
        assert_eq!(code(9999, [0; 6]), Errno(libc::ENOSYS));
    }

    proptest! {
        /// Whatever the guest passes, decoding ends, and a request it accepts keeps the promises of its types.
        #[test]
        fn any_call_decodes_or_is_refused(
            number in nr::OPEN - 2..nr::LOST + 3,
            wild in any::<[u64; 6]>(),
            near in prop::array::uniform6(0_u64..0x2000),
            mask in any::<u8>(),
            noise in prop::collection::vec(any::<u8>(), 4096),
        ) {
            let memory = TestMemory::new();
            memory.put(&noise);
            let mut args = wild;
            for (i, arg) in args.iter_mut().enumerate() {
                if mask & (1 << i) != 0 {
                    *arg = if i % 2 == 1 { memory.base() + (2 << 20) + near[i] } else { near[i] % 300 };
                }
            }
            let result = decode(&call(number, args), &memory);
            prop_assert_eq!(is_file_call(number) || result.is_err(), true);
            match result {
                Ok(Request::Open { name: Some(name), flags, mode, .. }) => {
                    prop_assert!(!name.as_bytes().contains(&b'/') && !name.as_bytes().is_empty());
                    prop_assert_eq!(name.as_c_str().to_bytes(), name.as_bytes());
                    prop_assert!(flags & !OPEN_FLAGS == 0 && mode <= 0o7777);
                }
                Ok(Request::StatList { names, out, .. }) => {
                    prop_assert_eq!(names.each().count() * size_of::<HostStat>(), out.len());
                    prop_assert!(names.each().all(|name| component(name.to_bytes()).is_ok()));
                }
                Ok(Request::LockBytes { first, last, .. } | Request::LockQuery { first, last, .. }) => {
                    prop_assert!(first <= last && i64::try_from(last).is_ok());
                }
                Ok(Request::Read { buffers, offset, .. }) => {
                    prop_assert!(buffers.total() as u64 <= crate::guest_memory::TRANSFER_MAX);
                    prop_assert!(!matches!(offset, Offset::At(..0)));
                }
                _ => {}
            }
        }
    }
}
