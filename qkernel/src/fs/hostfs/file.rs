//! Open host files.

use abi::hostcall::HostStat;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::file::position::{append_position, limit_write, seek_in_file};
use crate::fs::file::{At, File, FileOps, OpenFlags, Way, Whence};
use crate::fs::hostfs::attr::read_sized;
use crate::fs::hostfs::{HostInode, with_room};
use crate::fs::inode::Stat;
use crate::fs::inode::{AttrChange, Inode, S_IFREG};
use machine::errno::{Errno, Result};
use machine::file;
use machine::host;
use machine::host::Handle;
use machine::mm::copies::{self, Copies, Likeness, Version};
use machine::mm::window::{HostFileMap, MappedFile};
use machine::mm::{IoBuf, MemoryObject};

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Bytes of a disk's block, of which reads and writes with `O_DIRECT` are made.
pub const DIRECT_ALIGN: u32 = 512;

/// An open host file.
pub struct HostFile {
    inode: Arc<HostInode>,
    handle: Arc<Handle>,
    writes: bool,
}

impl Drop for HostFile {
    fn drop(&mut self) {
        let common = self.inode.common();
        common.opens.remove(self.writes);
        common.locks.closed(self.inode.lock_key(), &common.opens);
    }
}

impl HostFile {
    /// The file behind an open handle, open for writing if `writes`: `ETXTBSY`, if it is a program that runs.
    pub fn new(inode: Arc<HostInode>, handle: Arc<Handle>, writes: bool) -> Result<Self> {
        inode.common().opens.add(writes)?;
        Ok(Self { inode, handle, writes })
    }

    /// The VMM's handle, for calls between two host files.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Has the host write to the file, from `offset` on, by a call that returns the number of bytes.
    pub fn write_alone<T: Copy + TryInto<u64>>(
        &self,
        offset: u64,
        write: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _io = self.inode.common().io.lock();
        self.write_by(offset, write)
    }

    /// Has the host write to the file as [`Self::write_alone`] does, for a caller that holds `io`.
    fn write_by<T: Copy + TryInto<u64>>(&self, offset: u64, write: impl FnOnce() -> Result<T>) -> Result<T> {
        let set_id = self.inode.set_id(&self.handle);
        let moved = write()?;
        let bytes = moved.try_into().unwrap_or(0);
        self.inode.wrote(offset, bytes);
        self.inode.maps_written();
        if bytes > 0 {
            self.inode.content_changed(set_id, &self.handle);
        }
        Ok(moved)
    }

    fn check_regular(&self) -> Result<()> {
        if self.inode.kind == S_IFREG { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn write_at(&self, offset: u64, buf: &mut IoBuf<'_>) -> Result<usize> {
        limit_write(offset, buf)?;
        self.write_by(offset, || file::write(&self.handle, offset, buf))
    }
}

impl HostInode {
    /// The content was written: private mappings see it in the pages that they have not read yet.
    fn maps_written(&self) {
        self.maps().iter().filter(|map| !map.is_writable()).for_each(|map| map.changed());
    }

    /// The mappings of the content in all views.
    fn maps(&self) -> Vec<Arc<HostFileMap>> {
        self.common.get().map_or_else(Vec::new, |common| common.all_maps())
    }

    /// Whether a shared mapping may change the content.
    pub(super) fn is_mapped_writable(&self) -> bool {
        self.kind == S_IFREG && self.maps().iter().any(|map| map.is_writable())
    }

    /// The file was cut (or grown) to `size` bytes.
    pub(super) fn maps_truncated(&self, size: u64) {
        self.maps().iter().for_each(|map| map.truncated(size));
    }

    /// Opens the file, which is open as `file`, or the directory once more.
    pub(super) fn open_again(&self, file: &File, writes: bool) -> Result<Handle> {
        if let Some(opened) = file.as_ops::<HostFile>() {
            // By the very file that is open: its name may be another's by now, or nobody's.
            let flags = if writes { OpenFlags::RDWR } else { OpenFlags::empty() };
            return with_room(|| {
                host::open(opened.handle(), b"", flags.bits(), 0, self.origin(flags.bits()))
            });
        }
        let flags = OpenFlags::DIRECTORY.bits();
        self.with_own_handle(|node| with_room(|| host::open(node, b"", flags, 0, self.origin(flags))))
    }

    fn map(self: &Arc<Self>, handle: &Arc<Handle>, writable: bool) -> Arc<HostFileMap> {
        let common = self.common();
        let known = common.map_of(&self.me, writable);
        // Nobody can set the time of the last change.
        let asks = self.fs.shared || known.is_none();
        let stat = asks.then(|| host::stat_handle(handle).ok()).flatten();
        let map = known.unwrap_or_else(|| {
            // They would not see what others write through mappings.
            let copied = copies::are_wanted() && !writable;
            let settled = stat.as_ref().and_then(Version::settled);
            let kept = || settled.as_ref().and_then(copies::revive);
            let file = MappedFile { handle: handle.clone(), node: self.clone() };
            let copies = copied.then(|| kept().unwrap_or_else(|| Copies::new(likeness(stat))));
            let map = Arc::new(HostFileMap::new(file, writable, copies, settled, common.clone()));
            common.add_map(&self.me, &map);
            map
        });
        if let Some(stat) = stat {
            map.is_of(stat.ctime_ns.cast_unsigned());
        }
        map
    }
}

/// Returns the attributes that copies of other files must share to be in common with this one's; `None`: none are.
fn likeness(stat: Option<HostStat>) -> Option<Likeness> {
    stat.as_ref().filter(|_| copies::are_in_common()).map(Likeness::of)
}

impl FileOps for HostFile {
    fn check_direct(&self, file: &File, at: At, bytes: usize, way: Way) -> Result<()> {
        let appends = way == Way::Write && at.appends(file.flags());
        let offset = match at {
            _ if appends => self.inode.size(&self.handle)?,
            at if at.moves() => *file.pos.lock(),
            at => at.from(0),
        };
        let is_whole = (offset | bytes as u64).is_multiple_of(u64::from(DIRECT_ALIGN));
        if is_whole || bytes == 0 {
            return Ok(());
        }
        // Behind the end there is nothing to read.
        let reads_nothing = way == Way::Read && offset >= self.inode.size(&self.handle)?;
        if reads_nothing { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        self.check_regular()?;
        if !at.moves() {
            return file::read(&self.handle, at.from(0), buf);
        }
        let mut position = file.pos.lock();
        let moved = file::read(&self.handle, *position, buf)?;
        *position += moved as u64;
        Ok(moved)
    }

    fn capabilities(&self) -> Result<Vec<u8>> {
        read_sized(|buffer| host::getxattr(&self.handle, b"security.capability", buffer))
    }

    fn write(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        self.check_regular()?;
        append_position(
            file,
            at,
            &self.inode.common().io,
            || self.inode.size(&self.handle),
            |offset| self.write_at(offset, buf),
        )
    }

    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        match whence {
            Whence::Data | Whence::Hole => {
                let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                let kind = if whence == Whence::Data { SEEK_DATA } else { SEEK_HOLE };
                let mut position = file.pos.lock();
                *position = host::seek(&self.handle, from, kind)?;
                Ok(*position)
            }
            _ => seek_in_file(file, offset, whence, || self.stat(file).map(|stat| stat.size)),
        }
    }

    fn is_kept(&self) -> bool {
        self.inode.kind == S_IFREG
    }

    fn can_append(&self) -> bool {
        self.inode.kind == S_IFREG
    }

    fn is_direct(&self) -> bool {
        self.inode.kind == S_IFREG
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn mapping(&self, _file: &File, shared_write: bool) -> Result<MemoryObject> {
        if self.inode.kind != S_IFREG {
            return Err(Errno::ENODEV);
        }
        Ok(MemoryObject::Host(self.inode.map(&self.handle, shared_write)))
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        self.inode.host_stat(Some(&self.handle)).map(|stat| self.inode.shown(&stat))
    }

    fn truncate(&self, _file: &File, size: u64) -> Result<()> {
        self.check_regular().map_err(|_| Errno::EINVAL)?;
        let _io = self.inode.common().io.lock();
        let set_id = self.inode.set_id(&self.handle);
        if size == 0 && !self.inode.fs.shared && self.inode.size(&self.handle)? == 0 {
            self.inode.content_changed(set_id, &self.handle);
            return Ok(());
        }
        let change = AttrChange { size: Some(size), ..AttrChange::default() };
        self.inode.change(&change, Some(&self.handle))?;
        self.inode.content_changed(set_id, &self.handle);
        Ok(())
    }

    fn allocate(&self, _file: &File, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.check_regular()?;
        let _io = self.inode.common().io.lock();
        let set_id = self.inode.set_id(&self.handle);
        let result = host::fallocate(&self.handle, mode, offset, len);
        self.inode.invalidate();
        self.inode.maps_written();
        if result.is_ok() {
            self.inode.content_changed(set_id, &self.handle);
        }
        result
    }

    fn sync(&self, _file: &File, data_only: bool) -> Result<()> {
        file::sync(&self.handle, data_only)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
