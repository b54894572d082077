//! `memfd_create(2)`: files in memory without a name, and their seals.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;

use crate::fs::dentry::Dentry;
use crate::fs::file::position::limit_write;
use crate::fs::file::{At, File, FileOps, OpenFlags, Whence};
use crate::fs::inode::{AttrChange, S_IFREG, SetTime};
use crate::fs::inode::{Inode, Stat};
use crate::fs::mount::{Limits, Mount};
use crate::fs::opens::Opens;
use crate::fs::{anon, notify, tmpfs};
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, MemoryObject, PageStore};
use machine::sync::{Mutex, Once, Rank, SpinLock};
use machine::time;

pub const F_SEAL_SEAL: u32 = 1;
const F_SEAL_SHRINK: u32 = 2;
const F_SEAL_GROW: u32 = 4;
const F_SEAL_WRITE: u32 = 8;
const F_SEAL_FUTURE_WRITE: u32 = 0x10;
pub const F_SEAL_EXEC: u32 = 0x20;
const SEALS: u32 = 0x3f;
const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
/// Largest file.
const SIZE_MAX: u64 = i64::MAX as u64;

/// The file behind all its descriptions.
struct MemNode {
    ino: u64,
    meta: SpinLock<Meta>,
    store: Arc<PageStore>,
    opens: Opens,
    /// Held while content or size change, so that a seal counts for all that comes after it.
    seals: Mutex<u32>,
}

#[derive(Clone, Copy)]
struct Meta {
    mode: u32,
    uid: u32,
    gid: u32,
    atime_ns: i64,
    mtime_ns: i64,
    ctime_ns: i64,
}

/// The file system no path leads to, where these files are.
static ROOT: Once<Arc<Mount>> = Once::new();

impl MemNode {
    fn resize(&self, size: u64) -> Result<()> {
        let seals = self.seals.lock();
        let now = self.store.size();
        let forbidden = if size < now { F_SEAL_SHRINK } else { F_SEAL_GROW };
        if size != now && *seals & forbidden != 0 {
            return Err(Errno::EPERM);
        }
        if size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        self.store.truncate(size);
        self.changed();
        Ok(())
    }

    /// The content changed.
    fn changed(&self) {
        let now = time::realtime_ns().cast_signed();
        let mut meta = self.meta.lock();
        meta.mtime_ns = now;
        meta.ctime_ns = now;
    }
}

impl Drop for MemNode {
    fn drop(&mut self) {
        notify::gone(self.lock_key());
    }
}

impl Inode for MemNode {
    fn stat(&self) -> Result<Stat> {
        let meta = *self.meta.lock();
        Ok(Stat {
            size: self.store.size(),
            blocks: self.store.resident_bytes() / 512,
            nlink: 0,
            atime_ns: meta.atime_ns,
            mtime_ns: meta.mtime_ns,
            ctime_ns: meta.ctime_ns,
            ..anon::stat(S_IFREG | meta.mode, self.ino, (meta.uid, meta.gid))
        })
    }
    fn kind(&self) -> u32 {
        S_IFREG
    }
    fn accessed(&self, _strictly: bool) {
        self.meta.lock().atime_ns = time::realtime_ns().cast_signed();
    }
    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        if let Some(size) = change.size {
            self.resize(size)?;
        }
        let sealed = *self.seals.lock() & F_SEAL_EXEC != 0;
        let now = time::realtime_ns().cast_signed();
        let when = |time| if let SetTime::At(at) = time { at } else { now };
        let mut meta = self.meta.lock();
        if let Some(mode) = change.mode_for(meta.mode, meta.gid) {
            if sealed && (mode ^ meta.mode) & 0o111 != 0 {
                return Err(Errno::EPERM);
            }
            meta.mode = mode & 0o7777;
        }
        meta.uid = change.uid.unwrap_or(meta.uid);
        meta.gid = change.gid.unwrap_or(meta.gid);
        meta.atime_ns = change.atime.map_or(meta.atime_ns, when);
        meta.mtime_ns = change.mtime.map_or(meta.mtime_ns, when);
        meta.ctime_ns = now;
        Ok(())
    }
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        Ok(Box::new(MemFile::of(self, flags.writable())?))
    }
    fn writers(&self) -> Option<&Opens> {
        Some(&self.opens)
    }
    fn tells_its_end(&self) -> bool {
        true
    }
    fn statfs(&self) -> Result<abi::hostcall::HostStatFs> {
        ROOT.get().ok_or(Errno::ENOSYS)?.path().inode.statfs()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An open memory file.
pub struct MemFile {
    node: Arc<MemNode>,
    /// Whether it is counted as one that writes. The first description is not.
    writes: bool,
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.node.opens.remove(self.writes);
    }
}

impl MemFile {
    /// A new, empty file.
    pub fn open(name: &[u8], owner: (u32, u32), seals: u32, flags: OpenFlags) -> Result<Arc<File>> {
        anon::check_room()?;
        let now = time::realtime_ns().cast_signed();
        let mode = if seals & F_SEAL_EXEC != 0 { 0o666 } else { 0o777 };
        let meta = Meta { mode, uid: owner.0, gid: owner.1, atime_ns: now, mtime_ns: now, ctime_ns: now };
        let node = Arc::new(MemNode {
            ino: anon::next_ino(),
            meta: SpinLock::new(Rank::Leaf, meta),
            store: PageStore::new(0),
            opens: Opens::default(),
            seals: Mutex::new(Rank::Seals, seals),
        });
        let root =
            ROOT.call_once(|| Mount::of(tmpfs::new(0o755), b"tmpfs", b"memfd", Limits::empty())).path();
        let dentry = Dentry::unnamed(&root.dentry, &[b"memfd:", name].concat(), node.clone(), false);
        let path = root.with(dentry, node.clone());
        Ok(File::new(Box::new(Self::of(node, false)?), flags | OpenFlags::RDWR, Some(path)))
    }

    fn of(node: Arc<MemNode>, writes: bool) -> Result<Self> {
        node.opens.add(writes)?;
        Ok(Self { node, writes })
    }

    fn seal(&self, new: u32) -> Result<()> {
        if new & !SEALS != 0 {
            return Err(Errno::EINVAL);
        }
        let mut seals = self.node.seals.lock();
        if *seals & F_SEAL_SEAL != 0 {
            return Err(Errno::EPERM);
        }
        if new & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) != 0 {
            let beside_writers = new & F_SEAL_WRITE == 0 || *seals & F_SEAL_WRITE != 0;
            self.node.store.seal(beside_writers)?;
        }
        *seals |= new;
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &mut IoBuf<'_>) -> Result<usize> {
        let seals = self.node.seals.lock();
        if *seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) != 0 {
            return Err(Errno::EPERM);
        }
        if *seals & F_SEAL_GROW != 0 {
            let room = self.node.store.size().saturating_sub(offset);
            if room == 0 && !buf.is_empty() {
                return Err(Errno::EPERM);
            }
            buf.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        }
        if offset >= SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        limit_write(offset, buf)?;
        buf.truncate(usize::try_from(SIZE_MAX - offset).unwrap_or(usize::MAX));
        let done = self.node.store.write(offset, buf)?;
        self.node.changed();
        Ok(done)
    }
}

impl FileOps for MemFile {
    fn held_bytes(&self) -> u64 {
        self.node.store.resident_bytes()
    }

    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        if !at.moves() {
            return self.node.store.read(at.from(0), buf);
        }
        let mut pos = file.pos.lock();
        let got = self.node.store.read(*pos, buf)?;
        *pos += got as u64;
        Ok(got)
    }

    fn is_kept(&self) -> bool {
        true
    }

    fn can_append(&self) -> bool {
        true
    }

    fn write(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        let mut pos = file.pos.lock();
        let offset = if at.appends(file.flags()) { self.node.store.size() } else { at.from(*pos) };
        let done = self.write_at(offset, buf)?;
        if at.moves() && done > 0 {
            *pos = offset + done as u64;
        }
        Ok(done)
    }

    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        let mut pos = file.pos.lock();
        let size = self.node.store.size();
        let base = match whence {
            Whence::Set => 0,
            Whence::Current => *pos,
            Whence::End => size,
            Whence::Data | Whence::Hole => {
                let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                let found = self.node.store.seek(from, whence == Whence::Hole).ok_or(Errno::ENXIO)?;
                *pos = found;
                return Ok(found);
            }
        };
        let new = base.checked_add_signed(offset).filter(|new| *new <= SIZE_MAX).ok_or(Errno::EINVAL)?;
        *pos = new;
        Ok(new)
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn mapping(&self, _file: &File, _shared_write: bool) -> Result<MemoryObject> {
        Ok(MemoryObject::Store(self.node.store.clone()))
    }

    fn truncate(&self, _file: &File, size: u64) -> Result<()> {
        self.node.resize(size)
    }

    fn allocate(&self, _file: &File, mode: u32, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
        match mode {
            // Pages come when they are touched.
            FALLOC_KEEP_SIZE => Ok(()),
            0 if end <= self.node.store.size() => Ok(()),
            0 => self.node.resize(end),
            mode if mode == FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE => {
                let seals = self.node.seals.lock();
                if *seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) != 0 {
                    return Err(Errno::EPERM);
                }
                self.node.store.punch_hole(offset, end);
                Ok(())
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn sync(&self, _file: &File, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn seals(&self) -> Result<u32> {
        Ok(*self.node.seals.lock())
    }

    fn add_seals(&self, seals: u32) -> Result<()> {
        self.seal(seals)
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        self.node.stat()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
