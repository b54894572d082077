//! Host files: opening, and changes to directories.
//!
//! The guest walks; the VMM opens one component at a time, never following a link. A component is a single name, so
//! `O_NOFOLLOW` alone keeps a walk below its directory. Mount points below a mount that the guest was given are crossed
//! as any directory is; the mounts there are chosen when the mounts are made (they are copied without the mounts below
//! them), not here.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use abi::hostcall::READDIR_END;

use super::arguments::{Handle, Name};
use super::decode::Request;
use super::file::{FileKind, HostFile, MountTraits, kind_of, open_node};
use super::host_io::HostIo;
use super::quota::Need;
use crate::errno::Errno;
use crate::guest_memory::GuestSlice;
use crate::sys;

/// How often an open that may create a file is tried while others create and remove it.
const CREATE_TRIES: u32 = 16;
/// Most bytes one `COPY_RANGE` copies; the rest is for the next call.
const COPY_MAX: u64 = 16 << 20;
/// Most bytes of a directory's record.
const RECORD_MAX: usize = 19 + 256 + 5;

impl HostIo {
    pub(super) fn carry_out_node(&self, request: Request<'_>) -> Result<i64, Errno> {
        match request {
            Request::Open { dir, name: Some(name), flags, mode } => self.open(dir, &name, flags, mode),
            Request::Open { dir, name: None, flags, .. } => self.reopen_handle(dir, flags),
            Request::Close { handle } => self.close(handle),
            Request::ReadDir { dir, out, position } => self.read_dir(dir, out, position),
            Request::MkDir { dir, name, mode } => {
                self.make(&*self.parent(dir)?, name.as_c_str(), |dir, name| sys::mkdirat(dir, name, mode))
            }
            Request::MkNod { dir, name, mode } => {
                self.make(&*self.parent(dir)?, name.as_c_str(), |dir, name| sys::mknodat(dir, name, mode))
            }
            Request::Unlink { dir, name, flags } => self.unlink(&*self.parent(dir)?, name.as_c_str(), flags),
            Request::SymLink { dir, name, target } => {
                self.make(&*self.parent(dir)?, name.as_c_str(), |dir, name| {
                    sys::symlinkat(target.as_c_str(), dir, name)
                })
            }
            Request::Rename { old_dir, old, new_dir, new, flags } => {
                let (from, to) = (self.parent(old_dir)?, self.parent(new_dir)?);
                self.rename((&from, old.as_c_str()), (&to, new.as_c_str()), flags)
            }
            Request::Link { node, dir, name } => self.link(node, dir, &name),
            Request::TmpFile { dir, flags, mode } => self.tmp_file(dir, flags, mode),
            Request::CopyRange { from, from_at, to, to_at, len } => {
                self.copy_range(from, from_at, to, to_at, len)
            }
            Request::Seek { handle, offset, whence } => {
                sys::lseek(self.files().get(handle)?.as_fd(), offset, whence)
            }
            Request::Fallocate { handle, mode, offset, len } => {
                self.fallocate(&*self.files().get(handle)?, mode, offset, len)
            }
            Request::Fsync { handle, data_only } => sys::fsync(self.files().get(handle)?.as_fd(), data_only),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    fn open(&self, dir: Handle, name: &Name, flags: i32, mode: u32) -> Result<i64, Errno> {
        let dir = self.files().get(dir)?;
        let name = name.as_c_str();
        if flags & libc::O_PATH != 0 {
            let must_be_dir = flags & libc::O_DIRECTORY;
            let fd = open_node(dir.as_fd(), name, must_be_dir)?;
            let kind = if must_be_dir != 0 { FileKind::Directory } else { kind_of(fd.as_fd())? };
            return self.insert(HostFile::new(fd, kind, true, dir.mount().clone()));
        }
        if flags & libc::O_CREAT == 0 {
            return self.open_existing(&dir, name, flags);
        }
        if flags & libc::O_DIRECTORY != 0 {
            return Err(Errno(libc::EINVAL));
        }
        for _ in 0..CREATE_TRIES {
            if flags & libc::O_EXCL == 0 {
                match self.open_existing(&dir, name, flags) {
                    Err(Errno(libc::ENOENT)) => {}
                    result => return result,
                }
            }
            dir.check_writable()?;
            let create = || {
                let fd = sys::openat(dir.as_fd(), name, flags | libc::O_EXCL | libc::O_NOFOLLOW, mode)?;
                HostFile::made(fd, &dir)
            };
            match self.changing(dir.quota(), &[dir.as_fd()], Need::node(), create) {
                Err(Errno(libc::EEXIST)) if flags & libc::O_EXCL == 0 => {}
                result => return self.insert(result),
            }
        }
        Err(Errno(libc::EBUSY))
    }

    fn open_existing(&self, dir: &HostFile, name: &CStr, flags: i32) -> Result<i64, Errno> {
        // The host looks at the type before it opens a directory. After any failure the careful way below is tried.
        if flags & (libc::O_DIRECTORY | libc::O_ACCMODE | libc::O_TRUNC) == libc::O_DIRECTORY
            && let Ok(fd) = sys::open_dir(dir.as_fd(), name, flags)
        {
            return self.insert(HostFile::new(fd, FileKind::Directory, false, dir.mount().clone()));
        }
        // Where the host opens no devices, opening a regular file by its name is harmless, and so is finding a pipe or
        // a socket there instead: it is given back at once.
        if dir.mount().no_devices
            && flags & libc::O_DIRECTORY == 0
            && !((dir.mount().read_only || dir.quota().is_some()) && opens_for_writing(flags))
            && let Ok(fd) = sys::open_file(dir.as_fd(), name, flags & !(libc::O_CREAT | libc::O_EXCL))
            && kind_of(fd.as_fd())? == FileKind::Regular
        {
            return self.insert(HostFile::new(fd, FileKind::Regular, false, dir.mount().clone()));
        }
        let node = open_node(dir.as_fd(), name, 0)?;
        let kind = kind_of(node.as_fd())?;
        self.reopen(node.as_fd(), kind, flags, dir.mount())
    }

    fn reopen_handle(&self, handle: Handle, flags: i32) -> Result<i64, Errno> {
        let file = self.files().get(handle)?;
        // A file in a volume comes back to hold its locks.
        let is_in_volume = file.mount().is_volume && file.kind() == FileKind::Regular;
        let only_names = flags & libc::O_PATH != 0 && file.kind() == FileKind::Regular;
        if !file.is_path_only() && !is_in_volume && !only_names {
            // A stream must not come back with more access than it was handed over with.
            return Err(Errno(libc::EBADF));
        }
        if flags & libc::O_PATH != 0 {
            let fd = file.as_fd().try_clone_to_owned()?;
            return self.insert(HostFile::new(fd, file.kind(), true, file.mount().clone()));
        }
        self.reopen(file.as_fd(), file.kind(), flags, file.mount())
    }

    /// Opens a node whose type is known to be harmless.
    fn reopen(
        &self,
        node: BorrowedFd<'_>,
        kind: FileKind,
        flags: i32,
        mount: &MountTraits,
    ) -> Result<i64, Errno> {
        let changes =
            flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_TRUNC | libc::O_CREAT) != 0;
        match kind {
            FileKind::Link => return Err(Errno(libc::ELOOP)),
            FileKind::Directory if changes => return Err(Errno(libc::EISDIR)),
            FileKind::Regular if flags & libc::O_DIRECTORY != 0 => return Err(Errno(libc::ENOTDIR)),
            FileKind::Directory | FileKind::Regular => {}
            FileKind::Node | FileKind::Stream(_) | FileKind::Socket(_) => return Err(Errno(libc::ENXIO)),
        }
        if mount.read_only && opens_for_writing(flags) {
            return Err(Errno(libc::EROFS));
        }
        let flags = flags & !(libc::O_CREAT | libc::O_EXCL) | libc::O_NOCTTY;
        let quota = mount.quota.as_ref().filter(|_| opens_for_writing(flags));
        let need = Need { truncates: flags & libc::O_TRUNC != 0, ..Need::default() };
        let open = || {
            let fd = sys::openat(self.proc_dir(), Self::fd_name(node).as_c_str(), flags, 0)?;
            HostFile::new(fd, kind, false, mount.clone())
        };
        self.insert(self.changing(quota, &[node], need, open))
    }

    fn read_dir(&self, dir: Handle, out: GuestSlice<'_>, position: i64) -> Result<i64, Errno> {
        let dir = self.files().get(dir)?;
        if dir.kind() != FileKind::Directory {
            return Err(Errno(libc::ENOTDIR));
        }
        let _held = dir.lock_position();
        sys::lseek(dir.as_fd(), position, libc::SEEK_SET)?;
        let mut got = sys::getdents(dir.as_fd(), out)?;
        let mut more = got;
        // Most directories fit, and what is asked for once more says so: the guest need not ask.
        while more > 0 {
            let rest = out.from(usize::try_from(got).unwrap_or(usize::MAX));
            if rest.len() < RECORD_MAX {
                return Ok(got);
            }
            match sys::getdents(dir.as_fd(), rest) {
                Ok(bytes) => more = bytes,
                Err(_) => return Ok(got),
            }
            got += more;
        }
        Ok(got | READDIR_END.cast_signed())
    }

    fn link(&self, node: Handle, dir: Handle, name: &Name) -> Result<i64, Errno> {
        let (node, dir) = (self.files().get(node)?, self.parent(dir)?);
        if matches!(node.kind(), FileKind::Stream(_) | FileKind::Socket(_)) {
            return Err(Errno(libc::EXDEV));
        }
        node.check_writable().map_err(|_| Errno(libc::EXDEV))?;
        let link = || {
            let path = Self::fd_name(node.as_fd());
            sys::linkat(self.proc_dir(), path.as_c_str(), dir.as_fd(), name.as_c_str())
        };
        self.changing(dir.quota(), &[node.as_fd(), dir.as_fd()], Need::name(), link)
    }

    fn tmp_file(&self, dir: Handle, flags: i32, mode: u32) -> Result<i64, Errno> {
        let dir = self.parent(dir)?;
        let create = || {
            let fd = sys::openat(dir.as_fd(), c".", flags | libc::O_TMPFILE, mode)?;
            HostFile::made(fd, &dir)
        };
        // The host may bring the directory into the layer, or make a file of its own there: both are nodes.
        self.insert(self.changing(dir.quota(), &[dir.as_fd()], Need::node(), create))
    }

    fn copy_range(&self, from: Handle, from_at: i64, to: Handle, to_at: i64, len: u64) -> Result<i64, Errno> {
        let (from, to) = (self.files().get(from)?, self.files().get(to)?);
        let at = u64::try_from(to_at).unwrap_or(0);
        self.writing(&to, at, len.min(COPY_MAX), |len| copy_between(&from, from_at, &to, to_at, len))
    }
}

fn copy_between(from: &HostFile, from_at: i64, to: &HostFile, to_at: i64, len: u64) -> Result<i64, Errno> {
    let len = usize::try_from(len).unwrap_or(0);
    match sys::copy_file_range(from.as_fd(), from_at, to.as_fd(), to_at, len) {
        Err(Errno(libc::EXDEV | libc::ENOSYS | libc::EOPNOTSUPP)) => {}
        result => return result,
    }
    let mut buffer = vec![0_u8; len.min(1 << 17)];
    let mut done = 0_i64;
    while let left @ 1.. = len - usize::try_from(done).unwrap_or(len) {
        let most = left.min(buffer.len());
        let step =
            sys::copy_step(from.as_fd(), from_at + done, to.as_fd(), to_at + done, &mut buffer[..most]);
        match step {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

fn opens_for_writing(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}
