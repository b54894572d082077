//! Changes of views whose size a quota bounds.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::file::{FileKind, HostFile, open_node};
use super::host_io::HostIo;
use super::quota::{self, Claim, Need, Quota};
use crate::errno::Errno;
use crate::sys;

impl HostIo {
    /// Carries out a change of `nodes`, for which there must be room; without a quota there is.
    pub(super) fn changing<T>(
        &self,
        quota: Option<&Arc<Quota>>,
        nodes: &[BorrowedFd<'_>],
        need: Need,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Some(quota) = quota else { return change() };
        let mut claim = self.claim(quota, nodes, need)?;
        let result = change();
        claim.succeeded = result.is_ok();
        result
    }

    fn claim<'a>(&self, quota: &'a Quota, nodes: &[BorrowedFd<'a>], need: Need) -> Result<Claim<'a>, Errno> {
        match quota.claim(nodes, need) {
            Err(Errno(libc::ENOSPC)) => {
                self.measure_all();
                quota.claim(nodes, need)
            }
            result => result,
        }
    }

    /// Measures the writes for which space was only reserved so far.
    pub(crate) fn measure_all(&self) {
        for file in self.files().pending() {
            file.held().iter().for_each(|held| held.measure(file.as_fd()));
        }
    }

    /// Makes a node that is not opened.
    pub(super) fn make(
        &self,
        dir: &HostFile,
        name: &CStr,
        make: impl FnOnce(BorrowedFd<'_>, &CStr) -> Result<i64, Errno>,
    ) -> Result<i64, Errno> {
        self.changing(dir.quota(), &[dir.as_fd()], Need::node(), || {
            let result = make(dir.as_fd(), name)?;
            if let Some(quota) = dir.quota()
                && let Ok(node) = open_node(dir.as_fd(), name, 0)
            {
                quota.made(node.as_fd());
            }
            Ok(result)
        })
    }

    pub(super) fn unlink(&self, dir: &HostFile, name: &CStr, flags: i32) -> Result<i64, Errno> {
        let Some(quota) = dir.quota() else { return sys::unlinkat(dir.as_fd(), name, flags) };
        let node = open_node(dir.as_fd(), name, 0)?;
        let unlink = || sys::unlinkat(dir.as_fd(), name, flags);
        let result = self.changing(Some(quota), &[dir.as_fd()], Need::name(), unlink)?;
        quota.removed(node.as_fd());
        Ok(result)
    }

    pub(super) fn rename(
        &self,
        (from, old): (&HostFile, &CStr),
        (to, new): (&HostFile, &CStr),
        flags: u32,
    ) -> Result<i64, Errno> {
        let rename = || sys::renameat(from.as_fd(), old, to.as_fd(), new, flags);
        // Between views, and between counted and uncounted files, nothing is renamed.
        let (Some(quota), Some(_)) = (from.quota(), to.quota()) else { return rename() };
        let node = open_node(from.as_fd(), old, 0)?;
        let other = open_node(to.as_fd(), new, 0).ok();
        let exchanged = other.as_ref().filter(|_| flags & libc::RENAME_EXCHANGE != 0);
        let mut nodes = vec![from.as_fd(), to.as_fd(), node.as_fd()];
        nodes.extend(exchanged.map(AsFd::as_fd));
        let result = self.changing(Some(quota), &nodes, Need::name(), rename)?;
        if let (Some(replaced), None) = (&other, exchanged) {
            quota.removed(replaced.as_fd());
        }
        Ok(result)
    }

    pub(super) fn fallocate(&self, file: &HostFile, mode: i32, offset: i64, len: i64) -> Result<i64, Errno> {
        let change = || sys::fallocate(file.as_fd(), mode, offset, len);
        let Some(quota) = file.quota() else { return change() };
        if mode & libc::FALLOC_FL_INSERT_RANGE != 0 {
            // The change makes holes where blocks were. Stores through windows would fill them, and nothing was
            // reserved for those.
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let gives_back = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_COLLAPSE_RANGE) != 0;
        // Other modes replace blocks that are there, and may take new ones for them.
        let only_fills = mode & !libc::FALLOC_FL_KEEP_SIZE == 0;
        let (start, bytes) = (offset.cast_unsigned(), len.cast_unsigned());
        let need = if gives_back || only_fills && quota.is_allocated(file.as_fd(), start, bytes) {
            Need::default()
        } else {
            let size = Some(start.saturating_add(bytes));
            Need { bytes: bytes.saturating_add(2 * quota::BLOCK), size, ..Need::default() }
        };
        // Without KEEP_SIZE the file becomes as long as its blocks reach; modes that give blocks back leave none behind
        // the end.
        let need = Need { by_blocks: mode & libc::FALLOC_FL_KEEP_SIZE != 0 && !gives_back, ..need };
        self.changing(Some(quota), &[file.as_fd()], need, change)
    }

    /// Writes up to `len` bytes at `offset` of a file, as far as there is room.
    pub(super) fn writing(
        &self,
        file: &HostFile,
        offset: u64,
        len: u64,
        write: impl FnOnce(u64) -> Result<i64, Errno>,
    ) -> Result<i64, Errno> {
        let Some(held) = file.held().filter(|_| file.kind() == FileKind::Regular && len > 0) else {
            return write(len);
        };
        let mut room = held.reserve(file.as_fd(), offset, len);
        if !matches!(room, Ok((fits, _)) if fits == len) {
            room.iter().for_each(|(_, bytes)| held.wrote(file.as_fd(), *bytes, false));
            self.measure_all();
            room = if file.quota().is_some_and(|quota| quota.is_allocated(file.as_fd(), offset, len)) {
                Ok((len, 0))
            } else {
                held.reserve(file.as_fd(), offset, len)
            };
        }
        let (len, bytes) = room?;
        let result = write(len);
        held.wrote(file.as_fd(), bytes, result.is_err() || bytes == 0);
        result
    }
}
