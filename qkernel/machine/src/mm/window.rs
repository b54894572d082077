//! The file window: host files seen through chunks of guest-physical space, and so through the host's page cache.

use abi::hostcall as hc;
use abi::layout::{WINDOW_CHUNK, WINDOW_CHUNKS, WINDOW_PHYS};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::copies::{self, Copies, Version};
use super::mappers::Mappers;
use super::page::{PAGE, page_up};
use crate::errno::{Errno, Result};
use crate::host::{self, Handle};
use crate::objects::Node;
use crate::platform;
use crate::rank::Rank;
use crate::spin::{Once, SpinLock};

struct Chunks {
    /// Chunks given back.
    free: Vec<u64>,
    /// Chunks from here on were never used.
    fresh: u64,
}

static CHUNKS: SpinLock<Chunks> = SpinLock::new(Rank::Window, Chunks { free: Vec::new(), fresh: 0 });

fn take_chunk() -> Option<u64> {
    let mut chunks = CHUNKS.lock();
    if let Some(chunk) = chunks.free.pop() {
        return Some(chunk);
    }
    (chunks.fresh < WINDOW_CHUNKS).then(|| {
        chunks.fresh += 1;
        chunks.fresh - 1
    })
}

/// Whether no chunk of the window shows a file.
pub fn is_empty() -> bool {
    let chunks = CHUNKS.lock();
    chunks.free.len() as u64 == chunks.fresh
}

/// The file of a mapping: the handle that it is read by, and the node, which is in use as long as it is mapped.
pub struct MappedFile {
    /// Open for reading, and for writing where mappings may write.
    pub handle: Arc<Handle>,
    /// The node.
    pub node: Arc<dyn Node>,
}

/// A host file that is mapped: its chunks stay in the window while any mapping holds this.
pub struct HostFileMap {
    /// The file's own: its address stands for the file in the keys of futexes.
    file: Arc<dyn Any + Send + Sync>,
    mapped: MappedFile,
    writable: bool,
    /// The file's size when last asked, in bytes.
    size: AtomicU64,
    chunks: SpinLock<BTreeMap<u64, u64>>,
    mappers: Mappers,
    /// The pages that private mappings show: copies.
    copies: Option<Copies>,
    /// It is not what it was at first.
    has_changed: AtomicBool,
    /// Set while copies would not see what others write.
    uncopied: AtomicBool,
    /// Of the content that is copied; 0: unknown.
    version: AtomicU64,
    /// The file's version at first, if copies of it may be kept.
    settled: Option<Version>,
    /// Path for `/proc/PID/maps`.
    pub(super) label: Once<Box<[u8]>>,
}

impl HostFileMap {
    /// Maps a file, for writing as well if `writable`. With `copies` private mappings show those of its pages, which are kept after the
    /// last mapping if the file is of a settled version. `file` is one object for all maps of a file.
    pub fn new(
        mapped: MappedFile,
        writable: bool,
        copies: Option<Copies>,
        settled: Option<Version>,
        file: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            file,
            mapped,
            writable,
            size: AtomicU64::new(0),
            chunks: SpinLock::new(Rank::FileChunks, BTreeMap::new()),
            mappers: Mappers::new(),
            copies,
            has_changed: AtomicBool::new(false),
            uncopied: AtomicBool::new(false),
            version: AtomicU64::new(0),
            settled,
            label: Once::new(),
        }
    }

    /// Device and inode number of the file; zeros when the host can't say.
    pub fn identity(&self) -> (u64, u64) {
        host::stat_handle(&self.mapped.handle).map_or((0, 0), |stat| (stat.dev, stat.ino))
    }

    /// The address of the object that all maps of the file have in common.
    pub(super) fn file_key(&self) -> usize {
        Arc::as_ptr(&self.file).cast::<u8>() as usize
    }

    /// The address spaces that map it.
    pub fn mappers(&self) -> &Mappers {
        &self.mappers
    }

    /// The copies that private mappings show; `None`: they use the window, as shared ones do.
    pub fn copies(&self) -> Option<&Copies> {
        self.copies.as_ref().filter(|_| !self.uncopied.load(Ordering::Relaxed))
    }

    /// From now on shared mappings may change the file.
    pub fn stop_copying(&self) {
        self.uncopied.store(true, Ordering::Relaxed);
        self.changed();
    }

    /// The file's content has changed.
    pub fn changed(&self) {
        self.has_changed.store(true, Ordering::Relaxed);
        if let Some(copies) = &self.copies {
            copies.forget();
        }
    }

    /// The file's content is of this version. If it was of another, others have changed it.
    pub fn is_of(&self, version: u64) {
        if ![0, version].contains(&self.version.swap(version, Ordering::Relaxed)) {
            // Asked for again.
            self.size.store(0, Ordering::Relaxed);
            self.changed();
        }
    }

    /// Lets go of copies that nobody maps.
    pub fn trim(&self) {
        if let Some(copies) = &self.copies {
            copies.trim();
        }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.mapped.handle
    }

    /// The file was cut to `size` bytes: pages behind go, private copies included.
    pub fn truncated(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
        self.changed();
        self.mappers.unmap((&raw const *self).cast(), size.div_ceil(PAGE), u64::MAX);
    }

    /// Whether shared mappings may write.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Writes the file's dirty pages to its disk.
    pub fn sync(&self) -> Result<()> {
        host::fsync(&self.mapped.handle, true)
    }

    /// Makes a hole in the file, which keeps its size.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        const KEEP_SIZE: u32 = 1;
        const PUNCH_HOLE: u32 = 2;
        host::fallocate(&self.mapped.handle, KEEP_SIZE | PUNCH_HOLE, offset, len)
    }

    /// The guest-physical address of the page at `offset` (page aligned), and how many bytes from there are
    /// contiguous and inside the file. `None`: the file has no such page.
    pub fn page(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let size = match self.size_for(offset) {
            Ok(size) => size,
            Err(Errno::EIO) => return Ok(None),
            Err(error) => return Err(error),
        };
        let index = offset / WINDOW_CHUNK;
        let inside = offset % WINDOW_CHUNK;
        let chunk = self.chunk(index)?;
        let left = (WINDOW_CHUNK - inside).min(page_up(size - offset).unwrap_or(PAGE));
        Ok(Some((WINDOW_PHYS + chunk * WINDOW_CHUNK + inside, left)))
    }

    /// The file's size, which is behind `offset`; `EIO` if it is not.
    pub(super) fn size_for(&self, offset: u64) -> Result<u64> {
        let mut size = self.size.load(Ordering::Relaxed);
        if offset >= size {
            size = host::stat_handle(&self.mapped.handle)?.size;
            self.size.store(size, Ordering::Relaxed);
        }
        if offset < size { Ok(size) } else { Err(Errno::EIO) }
    }

    fn chunk(&self, index: u64) -> Result<u64> {
        if let Some(chunk) = self.chunks.lock().get(&index) {
            return Ok(*chunk);
        }
        // Not `ENOMEM`: nobody's end would give one back that is sure to help.
        let chunk = take_chunk().ok_or(Errno::ENFILE)?;
        let args = [
            chunk,
            u64::from(self.mapped.handle.raw()),
            index * WINDOW_CHUNK,
            u64::from(self.writable),
            0,
            0,
        ];
        if let Err(error) = platform::call(hc::WINDOW_MAP, args) {
            CHUNKS.lock().free.push(chunk);
            return Err(error);
        }
        let raced = {
            let mut chunks = self.chunks.lock();
            match chunks.get(&index) {
                Some(other) => Some(*other),
                None => {
                    chunks.insert(index, chunk);
                    None
                }
            }
        };
        match raced {
            Some(other) => {
                release_chunk(chunk);
                Ok(other)
            }
            None => Ok(chunk),
        }
    }
}

fn release_chunk(chunk: u64) {
    let _ = platform::call(hc::WINDOW_UNMAP, [chunk, 0, 0, 0, 0, 0]);
    CHUNKS.lock().free.push(chunk);
}

impl Drop for HostFileMap {
    fn drop(&mut self) {
        for chunk in core::mem::take(&mut *self.chunks.lock()).into_values() {
            release_chunk(chunk);
        }
        if let (Some(version), Some(copies)) = (self.settled, self.copies.take())
            && !*self.has_changed.get_mut()
        {
            copies::keep(version, copies);
        }
    }
}

impl HostFileMap {
    /// Unmaps its chunks, which faults bring back; result: how many. No entry may show them any more, and nothing runs.
    pub fn drop_chunks(&self) -> usize {
        let chunks = core::mem::take(&mut *self.chunks.lock());
        let count = chunks.len();
        chunks.into_values().for_each(release_chunk);
        count
    }
}

/// Copies between guest-physical ranges of which either may be in the window; `EFAULT` when a mapped file is shorter.
pub fn copy(to_phys: u64, from_phys: u64, bytes: usize) -> Result<()> {
    platform::call(hc::WINDOW_COPY, [to_phys, from_phys, bytes as u64, 0, 0, 0]).map(drop)
}
