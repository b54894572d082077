//! Paths and the file-system context of a task.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fs::dentry::Dentry;
use crate::fs::inode::{Inode, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG};
use crate::fs::mount;
use crate::fs::mount::{Limits, Mount};
use crate::fs::notify::{self, Event, Mask};
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::sched::work;
use machine::sync::{Rank, SpinLock};

/// Longest text that is made of a path. Directories may be nested more deeply in memory than any text needs to tell.
const TEXT_MAX_BYTES: usize = 1 << 20;

/// A place in the tree that exists: a directory entry in a mount, and the inode it refers to.
#[derive(Clone)]
pub struct Path {
    pub mount: Arc<Mount>,
    pub dentry: Arc<Dentry>,
    pub inode: Arc<dyn Inode>,
}

impl Path {
    /// Whether it is the root of its mount.
    pub fn is_mount_root(&self) -> bool {
        Arc::ptr_eq(&self.dentry, &self.mount.root)
    }

    /// Whether both are the same place.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.dentry, &other.dentry) && Arc::ptr_eq(&self.mount, &other.mount)
    }

    /// Returns the path of an entry below this one in the same mount.
    pub fn with(&self, dentry: Arc<Dentry>, inode: Arc<dyn Inode>) -> Self {
        Self { mount: self.mount.clone(), dentry, inode }
    }

    /// The node was read, which moves its time of access if the mount keeps it.
    pub fn accessed(&self) {
        let (kind, limits) = (self.inode.kind(), self.mount.limits());
        // Devices keep no such time.
        let is_kept = matches!(kind, S_IFREG | S_IFDIR | S_IFLNK | S_IFIFO);
        let without = Limits::READ_ONLY | Limits::NO_ATIME;
        if is_kept
            && !limits.intersects(without)
            && !(kind == S_IFDIR && limits.contains(Limits::NO_DIR_ATIME))
        {
            self.inode.accessed(limits.contains(Limits::STRICT_ATIME));
        }
    }

    /// Tells those of an event who watch the node, or the directory that it is in.
    #[inline]
    pub fn notify(&self, event: Mask) {
        if notify::is_wanted(event) {
            self.tell(event);
        }
    }

    #[cold]
    fn tell(&self, event: Mask) {
        let dir = self.dentry.parent().and_then(|parent| parent.inode());
        let dir_key = dir.and_then(|dir| dir.watch_key());
        if let Some(key) = dir_key.filter(|key| notify::is_watched(*key, event)) {
            let name = self.dentry.name();
            let (mask, is_unlinked) = (self.marked(event), self.dentry.is_gone());
            let by_host = self.is_told_by_host(event);
            notify::tell(key, &Event { mask, cookie: 0, name: &name, is_unlinked, by_host });
        }
        self.notify_self(event);
    }

    /// Tells those of an event who watch the node itself.
    pub fn notify_self(&self, event: Mask) {
        if notify::is_wanted(event)
            && let Some(key) = self.inode.watch_key()
        {
            let by_host = self.is_told_by_host(event);
            notify::tell(key, &Event { by_host, ..Event::own(self.marked(event)) });
        }
    }

    /// Tells those who watch this directory of an event of the name, which is or was a directory's if `is_dir`.
    pub fn notify_name(&self, event: Mask, name: &[u8], is_dir: bool, cookie: u32) {
        if notify::is_wanted(event)
            && let Some(key) = self.inode.watch_key()
        {
            let mask = mark(event, is_dir);
            notify::tell(key, &Event { mask, cookie, name, is_unlinked: false, by_host: true });
        }
    }

    /// Whether the host knows of such an event of the node, if it is the host's: what pipes, devices and the reading of
    /// directories do, it does not.
    fn is_told_by_host(&self, event: Mask) -> bool {
        !event.intersects(Mask::OF_OPEN_FILES) || self.inode.kind() == S_IFREG
    }

    fn marked(&self, event: Mask) -> Mask {
        mark(event, self.inode.kind() == S_IFDIR)
    }

    /// The absolute path as seen from the mount tree's root, with ` (deleted)` behind a removed name. Open files that
    /// are nowhere in the tree are shown by their kind (`pipe:[12]`).
    pub fn absolute(&self) -> Vec<u8> {
        if let Some(text) = self.inode.shown_as() {
            return text;
        }
        let (mut text, _) = self.text(None);
        self.mark_deleted(&mut text);
        text
    }

    /// The path as links and tables of `/proc` show it to a reader whose root directory is `root`: from there, or, for
    /// a place elsewhere, from the tree's root, as by `d_path` of Linux. With ` (deleted)` behind a removed name.
    pub fn seen_from(&self, root: &Path) -> Vec<u8> {
        match self.below(root) {
            Some(mut text) if self.inode.shown_as().is_none() => {
                self.mark_deleted(&mut text);
                text
            }
            _ => self.absolute(),
        }
    }

    fn mark_deleted(&self, text: &mut Vec<u8>) {
        if self.dentry.is_gone() {
            text.extend_from_slice(b" (deleted)");
        }
    }

    /// Whether it is `root`, or lies below it.
    pub fn is_below(&self, root: &Path) -> bool {
        self.ascend(Some(root), |_| true)
    }

    /// The absolute path as seen from `root`; `None` when it isn't below it, or longer than [`TEXT_MAX_BYTES`].
    pub fn below(&self, root: &Path) -> Option<Vec<u8>> {
        let (text, reached) = self.text(Some(root));
        reached.then_some(text)
    }

    /// The path in its own file system.
    pub fn inside(&self) -> Vec<u8> {
        let mut text = BackToFront::default();
        let mut at = self.dentry.clone();
        while let Some(parent) = at.parent() {
            work::count(1);
            if !text.push(&at.name()) {
                break;
            }
            at = parent;
        }
        text.turned()
    }

    /// The path from `root`, or from the root of the tree, and whether that was reached. Of what is too long the end is told.
    fn text(&self, root: Option<&Path>) -> (Vec<u8>, bool) {
        let mut text = BackToFront::default();
        let reached = self.ascend(root, |dentry| text.push(&dentry.name()));
        (text.turned(), reached)
    }

    /// Calls `step` for each name on the way up to `root`, or to the root of the tree, as long as it answers true. Whether that was
    /// reached.
    fn ascend(&self, root: Option<&Path>, mut step: impl FnMut(&Dentry) -> bool) -> bool {
        let mut at = self.clone();
        loop {
            work::count(1);
            if root.is_some_and(|root| root.same(&at)) {
                return true;
            }
            let Some(place) = mount::leave(at) else { return root.is_none() };
            if root.is_some_and(|root| root.same(&place)) {
                return true;
            }
            let Some(parent) = place.dentry.parent() else { return root.is_none() };
            if !step(&place.dentry) {
                return false;
            }
            at = Path { mount: place.mount, dentry: parent, inode: place.inode };
        }
    }
}

/// The text of a path, made from its last name on.
#[derive(Default)]
struct BackToFront(Vec<u8>);

impl BackToFront {
    /// Puts a name before the others; false: there is no room.
    fn push(&mut self, name: &[u8]) -> bool {
        let fits = self.0.len() + name.len() < TEXT_MAX_BYTES;
        if !fits || account::reserve(&mut self.0, name.len() + 1).is_err() {
            return false;
        }
        self.0.extend(name.iter().rev());
        self.0.push(b'/');
        true
    }

    fn turned(mut self) -> Vec<u8> {
        if self.0.is_empty() {
            self.0.push(b'/');
        }
        self.0.reverse();
        self.0
    }
}

/// The event as one of such a node.
fn mark(event: Mask, is_dir: bool) -> Mask {
    if is_dir { event | Mask::IS_DIR } else { event }
}

/// Root, working directory and umask; shared by `CLONE_FS`.
pub struct FsContext {
    pub root: SpinLock<Path>,
    pub cwd: SpinLock<Path>,
    pub umask: AtomicU32,
}

impl FsContext {
    /// A context at the tree's root.
    pub fn new(root: Path, cwd: Path, umask: u32) -> Arc<Self> {
        Arc::new(Self {
            root: SpinLock::new(Rank::Leaf, root),
            cwd: SpinLock::new(Rank::Leaf, cwd),
            umask: AtomicU32::new(umask & 0o777),
        })
    }

    /// For tasks that never name a file.
    pub fn none() -> Arc<Self> {
        let nothing = Mount::of(Arc::new(Nothing), b"none", b"none", Limits::READ_ONLY).path();
        Self::new(nothing.clone(), nothing, 0)
    }

    /// A copy for a new process.
    pub fn fork(&self) -> Arc<Self> {
        Self::new(self.root(), self.cwd(), self.umask())
    }

    /// The root directory.
    pub fn root(&self) -> Path {
        self.root.lock().clone()
    }

    /// The working directory.
    pub fn cwd(&self) -> Path {
        self.cwd.lock().clone()
    }

    /// Permission bits that new files don't get.
    pub fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    /// Changes the working directory.
    pub fn set_cwd(&self, path: Path) {
        let old = core::mem::replace(&mut *self.cwd.lock(), path);
        drop(old);
    }

    /// Changes the root directory.
    pub fn set_root(&self, path: Path) {
        let old = core::mem::replace(&mut *self.root.lock(), path);
        drop(old);
    }
}

/// An inode without anything.
pub(super) struct Nothing;

impl Inode for Nothing {
    fn stat(&self) -> Result<crate::fs::inode::Stat> {
        Err(Errno::ENOENT)
    }
    fn kind(&self) -> u32 {
        crate::fs::inode::S_IFDIR
    }
    fn open(
        self: Arc<Self>,
        _flags: crate::fs::file::OpenFlags,
    ) -> Result<alloc::boxed::Box<dyn crate::fs::file::FileOps>> {
        Err(Errno::ENOENT)
    }
    fn statfs(&self) -> Result<abi::hostcall::HostStatFs> {
        Err(Errno::ENOENT)
    }
    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
