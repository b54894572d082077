//! Open files and directories of a tmpfs.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::access;
use crate::fs::caller;
use crate::fs::file::position::{append_position, limit_write, seek_in_dir, seek_in_file};
use crate::fs::file::{At, DirEntry, File, FileOps, Whence};
use crate::fs::inode::Stat;
use crate::fs::inode::{Inode, S_IFDIR, S_IFREG};
use crate::fs::tmpfs::{Content, TmpInode};
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, MemoryObject, PAGE, PageStore, frames};

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// An open file or directory.
pub struct TmpFile {
    inode: Arc<TmpInode>,
    writes: bool,
}

impl Drop for TmpFile {
    fn drop(&mut self) {
        self.inode.opens.remove(self.writes);
    }
}

impl TmpFile {
    /// Open for writing if `writes`: `ETXTBSY`, if it is a program that runs.
    pub fn new(inode: Arc<TmpInode>, writes: bool) -> Result<Self> {
        inode.opens.add(writes)?;
        Ok(Self { inode, writes })
    }

    fn store(&self) -> Result<&Arc<PageStore>> {
        match &self.inode.content {
            Content::File(store) => Ok(store),
            Content::Dir(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The current task has changed the content.
    fn changed(&self) {
        self.inode.modified();
        self.inode.lose_capabilities();
        let mut meta = self.inode.meta.lock();
        if meta.mode & access::SET_ID != 0 {
            meta.mode = access::mode_after_write(&caller::current().creds(), meta.mode, meta.gid);
        }
    }
}

impl FileOps for TmpFile {
    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        let store = self.store()?;
        if !at.moves() {
            return store.read(at.from(0), buf);
        }
        let mut position = file.pos.lock();
        let moved = store.read(*position, buf)?;
        *position += moved as u64;
        Ok(moved)
    }

    fn capabilities(&self) -> Result<Vec<u8>> {
        self.inode.get_xattr(b"security.capability")
    }

    fn write(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        let store = self.store()?;
        let write = |offset| {
            limit_write(offset, buf)?;
            if !buf.is_empty() {
                // Whatever of it gets in.
                self.changed();
            }
            let moved = store.write(offset, buf)?;
            if moved > 0 {
                self.changed();
            }
            Ok(moved)
        };
        append_position(file, at, &self.inode.io, || Ok(store.size()), write)
    }

    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        if self.inode.kind == S_IFDIR {
            return seek_in_dir(file, offset, whence);
        }
        let store = self.store()?;
        match whence {
            Whence::Data | Whence::Hole => {
                let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                let mut position = file.pos.lock();
                *position = store.seek(from, whence == Whence::Hole).ok_or(Errno::ENXIO)?;
                Ok(*position)
            }
            _ => seek_in_file(file, offset, whence, || Ok(store.size())),
        }
    }

    fn is_kept(&self) -> bool {
        matches!(self.inode.kind, S_IFREG | S_IFDIR)
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

    fn read_dir(&self, file: &File, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.inode.list(file, sink)
    }

    fn mapping(&self, _file: &File, _shared_write: bool) -> Result<MemoryObject> {
        Ok(MemoryObject::Store(self.store().map_err(|_| Errno::ENODEV)?.clone()))
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        self.inode.stat()
    }

    fn truncate(&self, _file: &File, size: u64) -> Result<()> {
        self.inode.set_size(size)?;
        self.changed();
        Ok(())
    }

    fn allocate(&self, _file: &File, mode: u32, offset: u64, len: u64) -> Result<()> {
        let store = self.store()?;
        let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::EFBIG)?;
        let _io = self.inode.io.lock();
        match mode {
            0 | KEEP_SIZE => {
                let pages = offset / PAGE..end.div_ceil(PAGE);
                let room = self.inode.fs.pages.room().1.min(frames::available() as u64);
                if store.holes(&pages) > room {
                    return Err(Errno::ENOSPC);
                }
                for index in pages {
                    store.frame(index).map_err(|_| Errno::ENOSPC)?;
                }
                if mode == 0 && end > store.size() {
                    store.truncate(end);
                }
            }
            _ if mode == PUNCH_HOLE | KEEP_SIZE => store.punch_hole(offset, end),
            _ if mode & !KEEP_SIZE == ZERO_RANGE => {
                store.punch_hole(offset, end);
                if mode & KEEP_SIZE == 0 && end > store.size() {
                    store.truncate(end);
                }
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        self.changed();
        Ok(())
    }

    fn sync(&self, _file: &File, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
