//! Attributes of host files: status, changes, extended attributes, links' targets.

use std::os::fd::{AsFd, BorrowedFd};

use abi::hostcall::{self as nr, HostStat, HostStatFs, SetAttr};
use abi::word::low32;

use super::arguments::{Handle, Name, Names};
use super::decode::Request;
use super::file::{FileKind, open_node};
use super::host_io::HostIo;
use super::quota::{self, Need};
use crate::errno::Errno;
use crate::guest_memory::GuestSlice;
use crate::sys::{self, XattrOf};

impl HostIo {
    pub(super) fn carry_out_attribute(&self, request: Request<'_>) -> Result<i64, Errno> {
        match request {
            Request::Stat { handle, name, out } => {
                let file = self.files().get(handle)?;
                let status = sys::statx(file.as_fd(), name.as_ref().map_or(c"", Name::as_c_str))?;
                out.write(&host_stat(&status));
                Ok(0)
            }
            Request::StatList { dir, names, out } => self.stat_list(dir, &names, out),
            Request::ReadLink { handle, name, out } => {
                if out.is_empty() {
                    return Err(Errno(libc::EINVAL));
                }
                let file = self.files().get(handle)?;
                sys::readlinkat(file.as_fd(), name.as_ref().map_or(c"", Name::as_c_str), out)
            }
            Request::SetAttr { handle, name, change } => self.set_attributes(handle, name.as_ref(), &change),
            Request::StatFs { handle, out } => {
                let file = self.files().get(handle)?;
                let mut status = host_statfs(&sys::fstatfs(file.as_fd())?);
                if let Some(quota) = file.quota() {
                    let space = quota.space(status.frsize.max(1), status.bavail, status.ffree);
                    (status.blocks, status.bfree, status.bavail) = (space.blocks, space.free, space.free);
                    (status.files, status.ffree) = (space.files, space.files_free);
                }
                out.write(&status);
                Ok(0)
            }
            Request::GetXattr { handle, name, out } => {
                self.with_xattrs(handle, |of| sys::getxattr(of, name.as_c_str(), out))
            }
            Request::ListXattr { handle, out } => self.with_xattrs(handle, |of| sys::listxattr(of, out)),
            Request::SetXattr { handle, name, value, flags } => {
                self.check_xattr_change(handle, &name)?;
                let file = self.files().get(handle)?;
                let bytes = value.len() as u64 + quota::BLOCK;
                let need = Need { bytes, by_blocks: true, ..Need::default() };
                self.changing(file.quota(), &[file.as_fd()], need, || {
                    self.with_xattrs(handle, |of| sys::setxattr(of, name.as_c_str(), value, flags))
                })
            }
            Request::RemoveXattr { handle, name } => {
                self.check_xattr_change(handle, &name)?;
                let file = self.files().get(handle)?;
                self.changing(file.quota(), &[file.as_fd()], Need::default(), || {
                    self.with_xattrs(handle, |of| sys::removexattr(of, name.as_c_str()))
                })
            }
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    fn stat_list(&self, dir: Handle, names: &Names, out: GuestSlice<'_>) -> Result<i64, Errno> {
        let dir = self.files().get(dir)?;
        let stat = |name| {
            sys::statx(dir.as_fd(), name).map_or_else(|_| HostStat::default(), |seen| host_stat(&seen))
        };
        let stats: Vec<HostStat> = names.each().map(stat).collect();
        out.write_all_of(&stats);
        Ok(0)
    }

    fn with_xattrs(
        &self,
        handle: Handle,
        operation: impl Fn(XattrOf<'_>) -> Result<i64, Errno>,
    ) -> Result<i64, Errno> {
        let file = self.files().get(handle)?;
        if !file.is_path_only() {
            return operation(XattrOf::Fd(file.as_fd()));
        }
        // On a link the path would lead to the link itself, which takes only a few attributes; no harm is done.
        operation(XattrOf::Path(self.fd_path(file.as_fd()).as_c_str()))
    }

    /// Attributes by which the host's security modules and overlays would be steered are not the guest's to change.
    fn check_xattr_change(&self, handle: Handle, name: &Name) -> Result<(), Errno> {
        let file = self.files().get(handle)?;
        file.check_writable()?;
        let name = name.as_bytes();
        let security = name.starts_with(b"security.") && name != b"security.capability";
        if security
            || name.starts_with(b"trusted.")
            || matches!(file.kind(), FileKind::Stream(_) | FileKind::Socket(_))
        {
            return Err(Errno(libc::EPERM));
        }
        Ok(())
    }

    fn set_attributes(&self, handle: Handle, name: Option<&Name>, change: &SetAttr) -> Result<i64, Errno> {
        let file = self.files().get(handle)?;
        file.check_writable()?;
        if matches!(file.kind(), FileKind::Stream(_) | FileKind::Socket(_))
            && change.valid & !nr::SET_SIZE != 0
        {
            return Err(Errno(libc::EPERM));
        }
        let node = name.map(|name| open_node(file.as_fd(), name.as_c_str(), 0)).transpose()?;
        let (fd, path_only) = match &node {
            Some(node) => (node.as_fd(), true),
            None => (file.as_fd(), file.is_path_only()),
        };
        let resizes = change.valid & nr::SET_SIZE != 0;
        let need = Need { size: resizes.then_some(change.size), ..Need::default() };
        self.changing(file.quota(), &[fd], need, || self.change_attributes(fd, path_only, change))
    }

    fn change_attributes(&self, fd: BorrowedFd<'_>, path_only: bool, change: &SetAttr) -> Result<i64, Errno> {
        // The owner first: changing it clears set-id bits that the mode may set again.
        if change.valid & (nr::SET_UID | nr::SET_GID) != 0 {
            let id = |bit, id| if change.valid & bit != 0 { id } else { u32::MAX };
            sys::chown(fd, id(nr::SET_UID, change.uid), id(nr::SET_GID, change.gid))?;
        }
        if change.valid & nr::SET_MODE != 0 {
            self.set_mode(fd, path_only, change.mode)?;
        }
        if change.valid & nr::SET_SIZE != 0 {
            let size = i64::try_from(change.size).map_err(|_| Errno(libc::EINVAL))?;
            self.set_size(fd, path_only, size)?;
        }
        if let Some(times) = times(change) {
            self.set_times(fd, &times)?;
        }
        Ok(0)
    }

    fn set_mode(&self, fd: BorrowedFd<'_>, path_only: bool, mode: u32) -> Result<i64, Errno> {
        if !path_only {
            return sys::fchmod(fd, mode);
        }
        if is_kind(fd, libc::S_IFLNK)? {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        sys::fchmodat(self.proc_dir(), Self::fd_name(fd).as_c_str(), mode)
    }

    fn set_size(&self, fd: BorrowedFd<'_>, path_only: bool, size: i64) -> Result<i64, Errno> {
        if !path_only {
            return sys::ftruncate(fd, size);
        }
        if is_kind(fd, libc::S_IFDIR)? {
            return Err(Errno(libc::EISDIR));
        }
        if !is_kind(fd, libc::S_IFREG)? {
            return Err(Errno(libc::EINVAL));
        }
        let flags = libc::O_WRONLY | libc::O_NOCTTY;
        let open = sys::openat(self.proc_dir(), Self::fd_name(fd).as_c_str(), flags, 0)?;
        sys::ftruncate(open.as_fd(), size)
    }

    fn set_times(&self, fd: BorrowedFd<'_>, times: &[libc::timespec; 2]) -> Result<i64, Errno> {
        match sys::utimensat(fd, c"", times, libc::AT_EMPTY_PATH) {
            // Kernels before 5.8 do not know the flag here.
            Err(Errno(libc::EINVAL)) => {
                sys::utimensat(self.proc_dir(), Self::fd_name(fd).as_c_str(), times, 0)
            }
            result => result,
        }
    }
}

fn is_kind(fd: BorrowedFd<'_>, kind: u32) -> Result<bool, Errno> {
    Ok(u32::from(sys::statx(fd, c"")?.stx_mode) & libc::S_IFMT == kind)
}

/// The times to set, or `None` when neither is.
fn times(change: &SetAttr) -> Option<[libc::timespec; 2]> {
    let one = |set, now, ns: i64| {
        if change.valid & now != 0 {
            libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW }
        } else if change.valid & set != 0 {
            libc::timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) }
        } else {
            libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT }
        }
    };
    let all = nr::SET_ATIME | nr::SET_ATIME_NOW | nr::SET_MTIME | nr::SET_MTIME_NOW;
    (change.valid & all != 0).then(|| {
        [
            one(nr::SET_ATIME, nr::SET_ATIME_NOW, change.atime_ns),
            one(nr::SET_MTIME, nr::SET_MTIME_NOW, change.mtime_ns),
        ]
    })
}

fn host_stat(status: &libc::statx) -> HostStat {
    let ns = |time: &libc::statx_timestamp| {
        time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec))
    };
    HostStat {
        dev: libc::makedev(status.stx_dev_major, status.stx_dev_minor),
        ino: status.stx_ino,
        mode: u32::from(status.stx_mode),
        nlink: status.stx_nlink,
        uid: status.stx_uid,
        gid: status.stx_gid,
        rdev: libc::makedev(status.stx_rdev_major, status.stx_rdev_minor),
        size: status.stx_size,
        blocks: status.stx_blocks,
        blksize: status.stx_blksize,
        attributes: low32(status.stx_attributes),
        atime_ns: ns(&status.stx_atime),
        mtime_ns: ns(&status.stx_mtime),
        ctime_ns: ns(&status.stx_ctime),
        btime_ns: ns(&status.stx_btime),
    }
}

fn host_statfs(status: &libc::statfs64) -> HostStatFs {
    HostStatFs {
        kind: status.f_type.cast_unsigned(),
        bsize: status.f_bsize.cast_unsigned(),
        blocks: status.f_blocks,
        bfree: status.f_bfree,
        bavail: status.f_bavail,
        files: status.f_files,
        ffree: status.f_ffree,
        namelen: status.f_namelen.cast_unsigned(),
        frsize: status.f_frsize.cast_unsigned(),
        flags: status.f_flags.cast_unsigned(),
    }
}
