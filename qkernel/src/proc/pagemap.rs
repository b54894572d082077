//! `/proc/PID/pagemap` and `/proc/PID/map_files`: what is behind a process's addresses.

use abi::word::to_usize;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::file::{At, File, FileOps, OpenFlags, Whence};
use crate::fs::inode::{Inode, LinkTarget, S_IFLNK, S_IFREG, Stat};
use crate::proc::identity::PROC;
use crate::proc::maps::{own_root, seen_from};
use crate::proc::subject::{Part, Subject, Which};
use crate::pseudo::file::seek_plain;
use crate::pseudo::{Context, Dynamic, Entry, InodeNumbers, Item, Node};
use machine::errno::{Errno, Result};
use machine::mm::report::Mapping;
use machine::mm::vma::VmaFlags;
use machine::mm::{AddressSpace, IoBuf, MemoryObject, PAGE, Prot};
use machine::sched::work;

/// Bytes of an entry of `pagemap`.
const WORD: u64 = 8;
/// Entries that are made at once.
const PIECE: usize = 512;
/// Most bytes of one read, whose caller the kernel does not interrupt.
const READ_MAX_BYTES: usize = 16 << 20;

/// Opens the table of a process's pages; the table's guard has let the caller in.
pub fn open(subject: &Subject, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
    let aspace = subject.aspace().map_or_else(|_| Weak::new(), |aspace| Arc::downgrade(&aspace));
    // Once more, for the memory that this is.
    subject.guard()?;
    let now = subject.aspace().map_or_else(|_| Weak::new(), |aspace| Arc::downgrade(&aspace));
    if !Weak::ptr_eq(&now, &aspace) {
        return Err(Errno::EACCES);
    }
    Ok(Box::new(PageMap { aspace, owner: subject.owner() }))
}

/// One word a page. Which frame it is nobody is told.
struct PageMap {
    aspace: Weak<AddressSpace>,
    owner: (u32, u32),
}

impl FileOps for PageMap {
    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        let Some(aspace) = self.aspace.upgrade() else { return Ok(0) };
        let start = at.from(*file.pos.lock());
        if !start.is_multiple_of(WORD) || !(buf.remaining() as u64).is_multiple_of(WORD) {
            return Err(Errno::EINVAL);
        }
        let last = abi::layout::USER_MAX / PAGE;
        let mut page = (start / WORD).min(last);
        let mut done = 0;
        while !buf.is_empty() && page < last && done < READ_MAX_BYTES {
            let left = (buf.remaining() / to_usize(WORD)).min(to_usize(last - page)).min(PIECE);
            let mut words = [0u64; PIECE];
            aspace.page_map(page * PAGE, &mut words[..left]);
            let bytes: Vec<u8> = words[..left].iter().flat_map(|word| word.to_ne_bytes()).collect();
            match buf.fill(&bytes) {
                Ok(()) => done += bytes.len(),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            page += left as u64;
        }
        if at.moves() {
            *file.pos.lock() = start + done as u64;
        }
        Ok(done)
    }
    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        seek_plain(file, offset, whence)
    }
    fn is_seekable(&self) -> bool {
        true
    }
    fn stat(&self, _file: &File) -> Result<Stat> {
        let (uid, gid) = self.owner;
        let mode = S_IFREG | 0o400;
        Ok(Stat { dev: PROC.dev, ino: 3, mode, nlink: 1, uid, gid, blksize: 1024, ..Default::default() })
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `map_files/`: a link for each mapping of a file, by its addresses. It leads to the file by name.
pub struct MapFiles;

/// The addresses of a mapping.
#[derive(Clone, Copy)]
struct Addresses {
    start: u64,
    end: u64,
}

/// One mapping of a process.
type Mapped = Part<Addresses>;

static READ_ONLY: Entry<Mapped> = Entry::link("", target).mode(0o400).guarded();
static WRITABLE: Entry<Mapped> = Entry::link("", target).mode(0o600).guarded();

impl Addresses {
    fn of(self, subject: &Subject) -> Result<Mapping> {
        let found = mappings(subject, self.start, 1)?.pop().filter(has_file);
        let is_it = |mapping: &Mapping| (mapping.start, mapping.end) == (self.start, self.end);
        found.filter(is_it).ok_or(Errno::ENOENT)
    }
}

impl Which for Addresses {
    fn check(&self, subject: &Subject) -> Result<()> {
        self.of(subject).map(drop)
    }
}

/// See [`AddressSpace::mappings`](machine::mm::AddressSpace::mappings).
fn mappings(subject: &Subject, from: u64, most: usize) -> Result<Vec<Mapping>> {
    subject.aspace().map_err(|_| Errno::ENOENT)?.mappings(from, most, false)
}

/// Whether it is a mapping of a file.
fn has_file(mapping: &Mapping) -> bool {
    mapping.object.as_ref().is_some_and(|object| object.label().is_some())
}

fn target(mapped: &Mapped) -> Result<LinkTarget> {
    let mapping = mapped.which.of(&mapped.subject)?;
    let label = mapping.object.as_ref().and_then(MemoryObject::label).ok_or(Errno::ENOENT)?;
    Ok(LinkTarget::Text(seen_from(label, &own_root()).to_vec()))
}

/// A name `start-end`, in hexadecimal digits without zeros before them.
fn addresses(name: &[u8]) -> Option<(u64, u64)> {
    let (start, end) = core::str::from_utf8(name).ok()?.split_once('-')?;
    let parse = |text: &str| u64::from_str_radix(text, 16).ok().filter(|value| format!("{value:x}") == text);
    Some((parse(start)?, parse(end)?))
}

impl Dynamic<Subject> for MapFiles {
    fn find(&self, subject: &Subject, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
        subject.guard()?;
        let (start, end) = addresses(name).ok_or(Errno::ENOENT)?;
        let which = Addresses { start, end };
        let mapping = which.of(subject)?;
        let mapped = Mapped { subject: subject.clone(), which };
        let is_writable = mapping.flags.contains(VmaFlags::SHARED) && mapping.prot.contains(Prot::WRITE);
        Ok(Node::new(mapped, if is_writable { &WRITABLE } else { &READ_ONLY }, dir.child(name)))
    }

    fn list(&self, subject: &Subject, from: u64, add: &mut dyn FnMut(Item) -> bool) {
        if subject.guard().is_err() {
            return;
        }
        let mut from = from.saturating_mul(PAGE);
        loop {
            let found = mappings(subject, from, AT_ONCE).unwrap_or_default();
            work::count(16);
            for mapping in found.iter().filter(|mapping| mapping.start >= from && has_file(mapping)) {
                let name = format!("{:x}-{:x}", mapping.start, mapping.end).into_bytes();
                if !add(Item { key: mapping.start / PAGE, name, kind: S_IFLNK }) {
                    return;
                }
            }
            match found.last() {
                Some(last) if found.len() == AT_ONCE => from = last.end,
                _ => return,
            }
        }
    }
}

/// Most mappings that are asked for at once.
const AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_mappings_are_plain() {
        assert_eq!(addresses(b"7f00-a000"), Some((0x7f00, 0xa000)));
        for name in [&b"07f00-a000"[..], b"7F00-a000", b"7f00", b"-", b"7f00-a000-b000", b"+7f00-a000"] {
            assert_eq!(addresses(name), None);
        }
    }
}
