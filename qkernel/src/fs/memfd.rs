//! `memfd_create(2)`: files in memory without a name, and their seals.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use super::inode::S_IFREG;
use super::{At, File, FileOps, OpenFlags, Stat, Whence, anon};
use crate::errno::{Errno, Result};
use crate::mm::{IoBuf, MemoryObject, PageStore};
use crate::sync::Mutex;

pub const F_SEAL_SEAL: u32 = 1;
const F_SEAL_SHRINK: u32 = 2;
const F_SEAL_GROW: u32 = 4;
const F_SEAL_WRITE: u32 = 8;
const F_SEAL_FUTURE_WRITE: u32 = 0x10;
pub const F_SEAL_EXEC: u32 = 0x20;
const SEALS: u32 = 0x3f;
const F_ADD_SEALS: u32 = 1033;
const F_GET_SEALS: u32 = 1034;
const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
/// Largest file.
const SIZE_MAX: u64 = i64::MAX as u64;

/// The file behind all its descriptions.
struct MemNode {
    name: Vec<u8>,
    ino: u64,
    owner: (u32, u32),
    mode: u32,
    store: Arc<PageStore>,
    /// Held while content or size change, so that a seal counts for all that comes after it.
    seals: Mutex<u32>,
}

/// An open memory file.
pub struct MemFile(Arc<MemNode>);

impl MemFile {
    /// A new, empty file.
    pub fn open(name: &[u8], owner: (u32, u32), seals: u32, flags: OpenFlags) -> Result<Arc<File>> {
        anon::check_room()?;
        let node = MemNode {
            name: name.to_vec(),
            ino: anon::next_ino(),
            owner,
            mode: if seals & F_SEAL_EXEC != 0 { 0o666 } else { 0o777 },
            store: PageStore::new(0),
            seals: Mutex::new(seals),
        };
        Ok(File::new(Box::new(Self(Arc::new(node))), flags | OpenFlags::RDWR, None))
    }

    fn resize(&self, size: u64) -> Result<()> {
        let seals = self.0.seals.lock();
        let now = self.0.store.size();
        let forbidden = if size < now { F_SEAL_SHRINK } else { F_SEAL_GROW };
        if size != now && *seals & forbidden != 0 {
            return Err(Errno::EPERM);
        }
        if size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        self.0.store.truncate(size);
        Ok(())
    }

    fn add_seals(&self, file: &File, new: u64) -> Result<u64> {
        let new = u32::try_from(new).ok().filter(|new| new & !SEALS == 0).ok_or(Errno::EINVAL)?;
        if !file.flags().writable() {
            return Err(Errno::EPERM);
        }
        let mut seals = self.0.seals.lock();
        if *seals & F_SEAL_SEAL != 0 {
            return Err(Errno::EPERM);
        }
        if new & F_SEAL_WRITE != 0 && *seals & F_SEAL_WRITE == 0 && self.0.store.is_mapped_writable() {
            return Err(Errno::EBUSY);
        }
        *seals |= new;
        Ok(0)
    }

    fn write_at(&self, offset: u64, buf: &mut IoBuf<'_>) -> Result<usize> {
        let seals = self.0.seals.lock();
        if *seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) != 0 {
            return Err(Errno::EPERM);
        }
        if *seals & F_SEAL_GROW != 0 {
            let room = self.0.store.size().saturating_sub(offset);
            if room == 0 && !buf.is_empty() {
                return Err(Errno::EPERM);
            }
            buf.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        }
        if offset >= SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        buf.truncate(usize::try_from(SIZE_MAX - offset).unwrap_or(usize::MAX));
        self.0.store.write(offset, buf)
    }
}

impl FileOps for MemFile {
    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        match at {
            At::Offset(offset) => self.0.store.read(offset, buf),
            At::Position => {
                let mut pos = file.pos.lock();
                let got = self.0.store.read(*pos, buf)?;
                *pos += got as u64;
                Ok(got)
            }
        }
    }

    fn write(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        let mut pos = file.pos.lock();
        let offset = match at {
            _ if file.flags().contains(OpenFlags::APPEND) => self.0.store.size(),
            At::Offset(offset) => offset,
            At::Position => *pos,
        };
        let done = self.write_at(offset, buf)?;
        if at == At::Position {
            *pos = offset + done as u64;
        }
        Ok(done)
    }

    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        let mut pos = file.pos.lock();
        let size = self.0.store.size();
        let base = match whence {
            Whence::Set => 0,
            Whence::Current => *pos,
            Whence::End => size,
            Whence::Data | Whence::Hole => {
                let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                let found = self.0.store.seek(from, whence == Whence::Hole).ok_or(Errno::ENXIO)?;
                *pos = found;
                return Ok(found);
            }
        };
        let new = base.checked_add_signed(offset).filter(|new| *new <= SIZE_MAX).ok_or(Errno::EINVAL)?;
        *pos = new;
        Ok(new)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn mapping(&self, _file: &File, shared_write: bool) -> Result<MemoryObject> {
        if shared_write && *self.0.seals.lock() & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) != 0 {
            return Err(Errno::EPERM);
        }
        Ok(MemoryObject::Store(self.0.store.clone()))
    }

    fn truncate(&self, _file: &File, size: u64) -> Result<()> {
        self.resize(size)
    }

    fn allocate(&self, _file: &File, mode: u32, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
        match mode {
            // Pages come when they are touched.
            FALLOC_KEEP_SIZE => Ok(()),
            0 if end <= self.0.store.size() => Ok(()),
            0 => self.resize(end),
            mode if mode == FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE => {
                let seals = self.0.seals.lock();
                if *seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) != 0 {
                    return Err(Errno::EPERM);
                }
                self.0.store.punch_hole(offset, end);
                Ok(())
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn sync(&self, _file: &File, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn fcntl(&self, file: &File, command: u32, arg: u64) -> Result<u64> {
        match command {
            F_ADD_SEALS => self.add_seals(file, arg),
            F_GET_SEALS => Ok(u64::from(*self.0.seals.lock())),
            _ => Err(Errno::EINVAL),
        }
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        let stat = anon::stat(S_IFREG | self.0.mode, self.0.ino, self.0.owner);
        let blocks = self.0.store.resident_bytes() / 512;
        Ok(Stat { nlink: 0, size: self.0.store.size(), blocks, ..stat })
    }

    fn describe(&self) -> Vec<u8> {
        [&b"/memfd:"[..], &self.0.name, b" (deleted)"].concat()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
