//! Open host directories.
//!
//! A directory of an overlay in which the sandbox has changed nothing is listed in the lower directory ([`super::lower`]): to open it
//! through the overlay would cost the host more than the listing. A listing goes on where it began, whatever is changed meanwhile, and
//! the next one from the beginning chooses anew; so does the host's overlay itself.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::file::position::seek_in_dir;
use crate::fs::file::{At, DirEntry, File, FileOps, OpenFlags, Whence};
use crate::fs::hostfs::HostInode;
use crate::fs::inode::Stat;
use machine::errno::{Errno, Result};
use machine::file;
use machine::host;
use machine::host::Handle;
use machine::mm::IoBuf;
use machine::sync::{Rank, SpinLock};

/// Bytes of directory records asked for at once.
const READDIR_BYTES: usize = 32 * 1024;

/// A buffer for records that nobody uses: there are as many listings as directories.
static SPARE: SpinLock<Vec<u8>> = SpinLock::new(Rank::Leaf, Vec::new());

fn take_buffer() -> Vec<u8> {
    let spare = core::mem::take(&mut *SPARE.lock());
    if spare.is_empty() { vec![0; READDIR_BYTES] } else { spare }
}

fn give_buffer(buffer: Vec<u8>) {
    let old = core::mem::replace(&mut *SPARE.lock(), buffer);
    drop(old);
}

/// Gives the buffer back.
pub(super) fn forget_buffer() {
    give_buffer(Vec::new());
}

/// The directory that a listing reads: the lower one, or the one that the overlay shows.
#[derive(Clone)]
enum Source {
    /// The lower directory.
    Below(Arc<Handle>),
    Shown(Arc<Handle>),
}

impl Source {
    fn handle(&self) -> &Arc<Handle> {
        match self {
            Self::Below(handle) | Self::Shown(handle) => handle,
        }
    }
}

struct Stream {
    source: Source,
    /// The end of the directory was seen there. It is told once without asking the host.
    end: Option<u64>,
}

/// An open host directory.
pub struct HostDir {
    inode: Arc<HostInode>,
    stream: SpinLock<Stream>,
}

impl HostDir {
    /// Opens the directory.
    pub fn open(inode: Arc<HostInode>) -> Result<Self> {
        let source = match inode.listing_below() {
            Some(below) => Source::Below(below),
            None => Source::Shown(inode.open_content(OpenFlags::empty())?),
        };
        Ok(Self { inode, stream: SpinLock::new(Rank::Leaf, Stream { source, end: None }) })
    }

    fn source(&self) -> Source {
        self.stream.lock().source.clone()
    }

    /// The directory as it is shown, opened now if it was not before.
    fn shown(&self) -> Result<Arc<Handle>> {
        match self.source() {
            Source::Shown(handle) => Ok(handle),
            Source::Below(_) => self.inode.open_content(OpenFlags::empty()),
        }
    }

    /// Returns the directory that a listing from `position` on reads. Only one from the beginning chooses anew.
    fn choose(&self, position: u64) -> Result<Source> {
        let now = self.source();
        if position != 0 {
            return Ok(now);
        }
        Ok(match (self.inode.listing_below(), now) {
            (Some(below), _) => Source::Below(below),
            (None, Source::Shown(handle)) => Source::Shown(handle),
            (None, Source::Below(_)) => Source::Shown(self.inode.open_content(OpenFlags::empty())?),
        })
    }

    /// Records from `position` on, and whether they are the last.
    fn ask(&self, buffer: &mut [u8], position: u64) -> Result<(usize, bool)> {
        let mut source = self.choose(position)?;
        let mut got = host::readdir(source.handle(), buffer, position)?;
        // Names may have changed while it was listed.
        if position == 0 && matches!(source, Source::Below(_)) && self.inode.listing_below().is_none() {
            source = Source::Shown(self.shown()?);
            got = host::readdir(source.handle(), buffer, position)?;
        }
        let old = core::mem::replace(&mut self.stream.lock().source, source);
        drop(old);
        Ok(got)
    }

    fn list(
        &self,
        buffer: &mut [u8],
        position: &mut u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let (got, at_end) = self.ask(buffer, *position)?;
        for entry in records(&buffer[..got]) {
            if !sink(&entry) {
                return Ok(());
            }
            self.inode.listed(*position, entry.next, entry.name);
            *position = entry.next;
        }
        self.stream.lock().end = (at_end && got > 0).then_some(*position);
        Ok(())
    }
}

impl FileOps for HostDir {
    fn is_kept(&self) -> bool {
        true
    }

    fn read(&self, _file: &File, _buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn write(&self, _file: &File, _buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        seek_in_dir(file, offset, whence)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn read_dir(&self, file: &File, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let mut position = file.pos.lock();
        if self.stream.lock().end.take() == Some(*position) {
            return Ok(());
        }
        let mut buffer = take_buffer();
        let result = self.list(&mut buffer, &mut position, sink);
        give_buffer(buffer);
        result
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        let stat = match self.source() {
            Source::Shown(handle) => self.inode.host_stat(Some(&handle)),
            Source::Below(_) => self.inode.host_stat(None),
        };
        stat.map(|stat| self.inode.shown(&stat))
    }

    fn allocate(&self, _file: &File, _mode: u32, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::EISDIR)
    }

    fn sync(&self, _file: &File, data_only: bool) -> Result<()> {
        // What nobody has changed is on the disk.
        if self.inode.listing_below().is_some() {
            return Ok(());
        }
        file::sync(&*self.shown()?, data_only)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The `linux_dirent64` records of a buffer; a malformed one ends the sequence.
fn records(bytes: &[u8]) -> impl Iterator<Item = DirEntry<'_>> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let ino = u64::from_le_bytes(rest.get(..8)?.try_into().ok()?);
        let next = u64::from_le_bytes(rest.get(8..16)?.try_into().ok()?);
        let len = usize::from(u16::from_le_bytes(rest.get(16..18)?.try_into().ok()?));
        let kind = *rest.get(18)?;
        let text = rest.get(19..len)?;
        let name = &text[..text.iter().position(|byte| *byte == 0)?];
        rest = &rest[len..];
        Some(DirEntry { name, ino, next, kind })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_records_are_read_and_a_cut_one_ends_them() {
        let mut bytes = vec![];
        for (ino, name) in [(5u64, b"a\0\0\0\0"), (6, b"bcd\0\0")] {
            bytes.extend_from_slice(&ino.to_le_bytes());
            bytes.extend_from_slice(&(ino * 10).to_le_bytes());
            bytes.extend_from_slice(&24u16.to_le_bytes());
            bytes.push(8);
            bytes.extend_from_slice(name);
        }
        let all: Vec<_> = records(&bytes).map(|entry| (entry.name.to_vec(), entry.ino, entry.next)).collect();
        assert_eq!(all, [(b"a".to_vec(), 5, 50), (b"bcd".to_vec(), 6, 60)]);
        assert_eq!(records(&bytes[..40]).count(), 1);
    }
}
