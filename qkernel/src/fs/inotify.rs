//! Instances of `inotify(7)` as files, and the watches that programs ask for.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::creds::Creds;
use crate::fs::access::{self, Want};
use crate::fs::anon;
use crate::fs::caller::CallerCtx;
use crate::fs::dentry::{Dentry, Watched};
use crate::fs::file::{At, File, FileOps, OpenFlags, Whence};
use crate::fs::host_poll;
use crate::fs::inode::{Inode, S_IFDIR, Stat};
use crate::fs::notify::instance::{HEADER_BYTES, Instance, Queued};
use crate::fs::notify::limits::Limits;
use crate::fs::notify::{self, ByHost, Mask, Pin, Target, feed};
use crate::fs::path::Path;
use crate::fs::poll::PollTable;
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::mm::{IoBuf, UserAddr, account};
use machine::sched::wait::PollEvents;
use machine::sched::work;

const FIONREAD: u32 = 0x541b;
/// Longest name of a file, with its NUL and padded.
const NAME_MAX_BYTES: usize = 256;

/// An open instance.
pub struct InotifyFile {
    instance: Arc<Instance>,
    ino: u64,
}

impl Drop for InotifyFile {
    fn drop(&mut self) {
        self.instance.close();
    }
}

impl InotifyFile {
    /// A new instance. `EMFILE`: the user has as many as may be.
    pub fn open(limits: &Arc<Limits>, creds: &Creds, flags: OpenFlags) -> Result<Arc<File>> {
        anon::check_room()?;
        let instance = Instance::new(limits.take(creds.euid)?);
        Ok(File::new(Box::new(Self { instance, ino: anon::next_ino() }), flags, None))
    }

    /// `inotify_add_watch(2)` of what was found.
    pub fn add(&self, creds: &Creds, place: &Path, mask: Mask) -> Result<i32> {
        access::check(creds, place, Want::READ)?;
        let Path { dentry, inode, .. } = place;
        let stat = inode.stat()?;
        let target = Target {
            key: inode.lock_key(),
            tree: dentry.tree(),
            is_dir: stat.is_dir(),
            dev: stat.dev,
            ino: stat.ino,
            pin: pin(dentry, inode),
            by_host: inode.watched_by().and_then(Result::ok).map(by_host),
        };
        let key = target.key;
        let descriptor = notify::add(&self.instance, target, mask)?;
        // Its last name may have gone before it was watched.
        let is_nameless = || stat.is_dir() || inode.stat().is_ok_and(|stat| stat.nlink == 0);
        if dentry.is_gone() && inode.tells_its_end() && is_nameless() {
            notify::release(key);
        }
        Ok(descriptor)
    }

    /// `inotify_rm_watch(2)`.
    pub fn remove(&self, descriptor: i32) -> Result<()> {
        self.instance.remove(descriptor)
    }
}

/// How the host watches the node behind a handle.
fn by_host(node: Arc<Handle>) -> ByHost {
    ByHost { node, register: host_poll::register_handler, unregister: host_poll::unregister }
}

/// Makes the pin by which a watch keeps the name and the node that were found. A node that no name leads to again, and
/// that would end untold, is not kept, since its watch has nothing to tell. A weak reference keeps its address, so that
/// no other node is taken for it.
fn pin(dentry: &Arc<Dentry>, inode: &Arc<dyn Inode>) -> Pin {
    if inode.tells_its_end() || dentry.is_found_again() {
        return Pin { name: Some(Box::new(Watched::new(dentry))), node: Some(Box::new(inode.clone())) };
    }
    Pin { name: None, node: Some(Box::new(Arc::downgrade(inode))) }
}

/// `struct inotify_event`, and the name behind it; `None`: it is too long for a file's name.
fn record(event: &Queued, into: &mut [u8; HEADER_BYTES + NAME_MAX_BYTES]) -> Option<usize> {
    let padded = event.padded_name();
    let fields =
        [event.descriptor.cast_unsigned(), event.mask.bits(), event.cookie, u32::try_from(padded).ok()?];
    for (to, field) in into.chunks_exact_mut(4).zip(fields) {
        to.copy_from_slice(&field.to_ne_bytes());
    }
    into.get_mut(HEADER_BYTES..HEADER_BYTES + event.name.len())?.copy_from_slice(&event.name);
    into.get(..event.read_bytes()).map(<[u8]>::len)
}

impl FileOps for InotifyFile {
    fn can_be_spliced(&self) -> bool {
        false
    }

    fn read(&self, _file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        feed::take();
        let mut done = 0;
        loop {
            let event = match self.instance.take(buf.remaining()) {
                Ok(Some(event)) => event,
                Ok(None) if done == 0 => {
                    feed::wait_for(&self.instance);
                    return Err(Errno::EAGAIN);
                }
                Err(error) if done == 0 => return Err(error),
                _ => return Ok(done),
            };
            let mut bytes = [0; HEADER_BYTES + NAME_MAX_BYTES];
            if let Some(len) = record(&event, &mut bytes) {
                // As on Linux, an event is lost that the program has no memory for.
                buf.fill(&bytes[..len])?;
                done += len;
            }
        }
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if let Some(table) = table {
            table.add(&self.instance.filled);
        }
        feed::take();
        if !self.instance.is_empty() {
            return PollEvents::READABLE;
        }
        feed::wait_for(&self.instance);
        PollEvents::empty()
    }

    fn seek(&self, _file: &File, _offset: i64, _whence: Whence) -> Result<u64> {
        anon::seek()
    }

    fn ioctl(&self, cx: &CallerCtx<'_>, _file: &File, request: u32, arg: u64) -> Result<u64> {
        if request != FIONREAD {
            return Err(Errno::ENOTTY);
        }
        feed::take();
        let bytes = i32::try_from(self.instance.readable_bytes()).unwrap_or(i32::MAX);
        cx.user().write(UserAddr::new(arg), &bytes)?;
        Ok(0)
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        Ok(anon::stat(0o600, self.ino, (0, 0)))
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:inotify".to_vec()
    }

    fn fdinfo(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut after = 0;
        loop {
            let watches = self.instance.watches_behind(after);
            let Some(last) = watches.last() else { return text };
            after = last.descriptor;
            work::count(u32::try_from(watches.len()).unwrap_or(u32::MAX));
            for watch in &watches {
                let (dev, ino) = watch.node;
                let (descriptor, mask) = (watch.descriptor, watch.mask().bits());
                let line = format!(
                    "inotify wd:{descriptor:x} ino:{ino:x} sdev:{dev:x} mask:{mask:x} ignored_mask:0\n"
                );
                if account::reserve(&mut text, line.len()).is_err() {
                    return text;
                }
                text.extend_from_slice(line.as_bytes());
            }
        }
    }

    fn held_bytes(&self) -> u64 {
        self.instance.held_bytes() as u64
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Whether a watch may be made of what was found: `ENOTDIR`, if it is to be a directory.
pub fn check_kind(place: &Path, mask: Mask) -> Result<()> {
    let is_dir = place.inode.kind() == S_IFDIR;
    if mask.contains(Mask::ONLY_DIR) && !is_dir { Err(Errno::ENOTDIR) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::path::Nothing;
    use crate::fs::tmpfs;

    /// How often the node is kept while something that pins it is there.
    fn kept_by_pin(dentry: &Arc<Dentry>, inode: &Arc<dyn Inode>) -> usize {
        let before = Arc::strong_count(inode);
        let pin = pin(dentry, inode);
        let kept = Arc::strong_count(inode) - before;
        drop(pin);
        assert_eq!(Arc::strong_count(inode), before);
        kept
    }

    #[test]
    fn a_node_that_no_name_leads_to_is_kept_if_it_tells_its_end() {
        let root = Dentry::root(tmpfs::new(0o755));
        let tells: Arc<dyn Inode> = tmpfs::new(0o755);
        let silent: Arc<dyn Inode> = Arc::new(Nothing);
        assert_eq!(kept_by_pin(&Dentry::detached(&root, b"a", tells.clone()), &tells), 1);
        assert_eq!(kept_by_pin(&Dentry::detached(&root, b"b", silent.clone()), &silent), 0);
        let cached = root.insert(b"c", Some(silent.clone()));
        assert_eq!(kept_by_pin(&cached, &silent), 1);
        root.remove(&cached);
        assert_eq!(kept_by_pin(&cached, &silent), 0);
    }
}
