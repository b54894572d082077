//! The files of a group.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::any::Any;

use abi::hostcall::HostStatFs;

use crate::cgroupfs::table::{FILES, File as Entry};
use crate::cgroupfs::{DEV, WeakGroup, statfs};
use crate::creds::Creds;
use crate::fs::caller;
use crate::fs::changes::Seen;
use crate::fs::file::{At, File, FileOps, OpenFlags, Whence};
use crate::fs::inode::{AttrChange, Inode, S_IFREG, Stat};
use crate::fs::poll::PollTable;
use crate::pseudo::{Out, seek_plain};
use crate::task::groups::file_key;
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;
use machine::sync::{Mutex, Rank};

/// Most bytes that one write hands to a file.
const STORE_MAX_BYTES: usize = 4096;

pub(super) struct FileNode {
    group: WeakGroup,
    /// Its place in [`FILES`].
    number: usize,
}

impl FileNode {
    pub fn node(group: WeakGroup, number: usize) -> Arc<dyn Inode> {
        Arc::new(Self { group, number })
    }

    fn entry(&self) -> &'static Entry {
        &FILES[self.number]
    }

    fn text(&self) -> Result<Vec<u8>> {
        let group = self.group.upgrade()?;
        // The group may be gone, or may have lost the controller.
        let has = group.groups().facts(group.id)?.standing.has;
        let mut out = Out::default();
        self.entry().show(group.is_root(), has).ok_or(Errno::ENODEV)?(&group, &mut out)?;
        out.finish()
    }

    fn store(&self, bytes: &[u8], opener: &Creds) -> Result<()> {
        let group = self.group.upgrade()?;
        let has = group.groups().facts(group.id)?.standing.has;
        if !self.entry().is_shown(group.is_root(), has) {
            return Err(Errno::ENODEV);
        }
        let store = self.entry().store.ok_or(Errno::EINVAL)?;
        if group.is_root() && !self.entry().is_delegated {
            return Err(Errno::EPERM);
        }
        let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
        store(&group, text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\0'), opener)
    }
}

impl Inode for FileNode {
    fn stat(&self) -> Result<Stat> {
        let entry = self.entry();
        let (owner, made_ns) = self.group.groups.owner(self.group.id, entry.name, entry.mode)?;
        Ok(Stat {
            dev: DEV,
            ino: self.group.ino(self.number + 1),
            mode: S_IFREG | owner.mode,
            nlink: 1,
            uid: owner.uid,
            gid: owner.gid,
            blksize: 4096,
            atime_ns: made_ns,
            mtime_ns: made_ns,
            ctime_ns: made_ns,
            ..Stat::default()
        })
    }

    fn kind(&self) -> u32 {
        S_IFREG
    }

    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        // `O_TRUNC` does nothing to a text that is made anew each time.
        let entry = self.entry();
        self.group.groups.set_owner(self.group.id, entry.name, entry.mode, change)
    }

    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        let changes = self.entry().event.map(|event| self.group.groups.changes(self.group.id, event));
        let seen = changes.transpose()?.map(Seen::of);
        let opener = caller::current().creds();
        Ok(Box::new(GroupFile { node: self, opener, text: Mutex::new(Rank::Text, None), seen }))
    }

    fn lock_key(&self) -> usize {
        file_key(self.group.id, self.entry().name)
    }

    fn tells_its_end(&self) -> bool {
        true
    }

    fn statfs(&self) -> Result<HostStatFs> {
        Ok(statfs())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An open file. The text is made by a read at offset 0 and stays for the reads that follow.
struct GroupFile {
    node: Arc<FileNode>,
    /// Whose rights count for a write, whoever got the descriptor since.
    opener: Arc<Creds>,
    text: Mutex<Option<Vec<u8>>>,
    seen: Option<Seen>,
}

impl FileOps for GroupFile {
    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        let mut text = self.text.lock();
        let offset = at.from(*file.pos.lock());
        if text.is_none() || offset == 0 {
            *text = None;
            *text = Some(self.node.text()?);
        }
        let rest = text.as_deref().and_then(|text| text.get(usize::try_from(offset).ok()?..));
        let rest = rest.unwrap_or_default();
        let len = rest.len().min(buf.remaining());
        buf.fill(&rest[..len])?;
        if at.moves() {
            *file.pos.lock() = offset + len as u64;
        }
        Ok(len)
    }

    fn write(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        let len = buf.remaining();
        if len > STORE_MAX_BYTES {
            return Err(Errno::EINVAL);
        }
        let mut bytes = vec![0u8; len];
        buf.drain(&mut bytes)?;
        self.node.store(&bytes, &self.opener)?;
        if at.moves() {
            *file.pos.lock() += len as u64;
        }
        Ok(len)
    }

    fn is_polled(&self) -> bool {
        self.seen.is_some()
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        match &self.seen {
            Some(seen) => seen.poll(table),
            None => PollEvents::READABLE | PollEvents::WRITABLE,
        }
    }

    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        seek_plain(file, offset, whence)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn truncate(&self, file: &File, _size: u64) -> Result<()> {
        if file.flags().writable() { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        self.node.stat()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
