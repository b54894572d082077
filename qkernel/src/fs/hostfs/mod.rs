//! Files of the host: inodes over the VMM's handles.
//!
//! A directory gets an `O_PATH` handle when something below it is asked for. Other nodes are reached by their
//! directory's handle and their name, and get an `O_PATH` handle of their own only when the name goes while they are
//! used. Nodes are known by device and inode number, so that hard links and repeated lookups share one inode. What
//! belongs to the file itself, such as its locks, is shared by the inodes of all views (`common`).

mod attr;
mod common;
mod dir;
pub mod file;
mod identity;
mod inode;
mod kept;
mod listing;
mod lower;
pub mod moved;
mod open_dir;
mod origin;
pub mod written;

use abi::hostcall::HostStat;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use hashbrown::HashMap;

use crate::fs::dentry;
use crate::fs::file::OpenFlags;
use crate::fs::hostfs::attr::Attr;
use crate::fs::hostfs::common::{Common, FileId};
use crate::fs::hostfs::identity::Identity;
use crate::fs::hostfs::kept::Kept;
use crate::fs::hostfs::listing::{Habit, Listing};
use crate::fs::hostfs::lower::{Lower, LowerSide};
use crate::fs::inode::{Inode, S_IFDIR, S_IFMT, S_IFREG, S_IFSOCK};
pub use attr::to_stat;
pub use file::HostFile;
pub use kept::close_kept;
pub use lower::begin as begin_lower;
use machine::errno::{Errno, Result};
use machine::host;
use machine::host::Handle;
use machine::mm::account;
use machine::sync::{Once, Rank, SpinLock};

const O_PATH: u32 = OpenFlags::PATH.bits();
const O_DIRECTORY: u32 = OpenFlags::DIRECTORY.bits();

/// A mounted tree of the host.
pub struct HostFs {
    /// Others may change files under it.
    shared: bool,
    is_volume: bool,
    is_read_only: bool,
    /// Of an overlay: where the nodes lie that the sandbox has not changed.
    lower: Option<LowerSide>,
    nodes: SpinLock<HashMap<(u64, u64), Weak<HostInode>>>,
    root: SpinLock<Weak<HostInode>>,
    habit: Habit,
}

/// The name that a node is reached by: its directory and its name there.
enum NodeName {
    Known {
        dir: Arc<HostInode>,
        name: Box<[u8]>,
    },
    /// No name that is known; only a handle leads to it.
    Unknown,
}

impl NodeName {
    /// Whether it is this one.
    fn is(&self, dir: &Arc<dyn Inode>, name: &[u8]) -> bool {
        let Ok(dir) = host_inode(dir) else { return false };
        matches!(self, Self::Known { dir: at, name: known } if core::ptr::eq(Arc::as_ptr(at), dir) && **known == *name)
    }
}

/// A node of the host.
pub struct HostInode {
    me: Weak<HostInode>,
    fs: Arc<HostFs>,
    identity: Identity,
    kind: u32,
    name: SpinLock<NodeName>,
    /// The name that it was last linked to, beside that one; it takes its place when that one is removed.
    other_name: SpinLock<NodeName>,
    /// An `O_PATH` handle of the node itself (or, of an unnamed file, the one it was made with).
    node: SpinLock<Option<Arc<Handle>>>,
    /// Its name is being removed, so that this handle is the last way to it.
    loses_name: AtomicBool,
    /// The handle a new file was made with, until it is opened.
    fresh: SpinLock<Option<Arc<Handle>>>,
    kept: SpinLock<Kept>,
    unnamed_file: bool,
    attr: SpinLock<Attr>,
    link: Once<Vec<u8>>,
    lower: Lower,
    /// Of a directory: what comes ahead of the questions.
    listing: SpinLock<Listing>,
    /// The state that other views' inodes of the file share with this one, once somebody has asked for it.
    common: Once<Arc<Common>>,
}

/// The kind of a mount of the host: who else may change its files, and whether the sandbox may.
#[derive(Clone, Copy, Debug)]
pub struct MountKind {
    /// Others may change files under it.
    pub shared: bool,
    /// The host watches them for programs that do, and locks them.
    pub is_volume: bool,
    /// Nothing is changed by it, whatever the kernel's own mount says later.
    pub is_read_only: bool,
}

/// The root of a mount of the node behind `handle`. `lower`: the lower directory, if it is an overlay.
pub fn root(handle: Handle, kind: MountKind, lower: Option<Handle>) -> Result<Arc<HostInode>> {
    let MountKind { shared, is_volume, is_read_only } = kind;
    let stat = host::stat_handle(&handle)?;
    let lower = lower.filter(|_| !shared);
    let side = lower.as_ref().map(|lower| HostInode::lower_side(&stat, lower)).transpose()?;
    let fs = Arc::new(HostFs {
        shared,
        is_volume,
        is_read_only,
        lower: side,
        nodes: SpinLock::new(Rank::Leaf, HashMap::new()),
        root: SpinLock::new(Rank::Leaf, Weak::new()),
        habit: Habit::default(),
    });
    let lower = lower.map_or_else(Lower::unknown, Lower::open);
    let root = HostInode::new(&fs, NodeName::Unknown, Some(Arc::new(handle)), false, &stat, lower);
    fs.nodes.lock().insert(root.id(), Arc::downgrade(&root));
    *fs.root.lock() = Arc::downgrade(&root);
    mounted(&fs);
    Ok(root)
}

/// The trees that are mounted somewhere.
static TREES: SpinLock<Vec<Weak<HostFs>>> = SpinLock::new(Rank::Leaf, Vec::new());

/// A tree has been mounted.
fn mounted(tree: &Arc<HostFs>) {
    let mut trees = TREES.lock();
    trees.retain(|tree| tree.strong_count() != 0);
    trees.push(Arc::downgrade(tree));
}

/// Gives back what is kept of listings.
pub fn forget_listings() {
    listing::forget_all();
    open_dir::forget_buffer();
}

/// Whether the node is a host file.
pub fn is_host(inode: &Arc<dyn Inode>) -> bool {
    inode.as_any().is::<HostInode>()
}

/// Runs a call that takes a new host handle, making room when there are none left.
fn with_room<R>(mut call: impl FnMut() -> Result<R>) -> Result<R> {
    match call() {
        Err(Errno::ENFILE | Errno::EMFILE) => {
            dentry::shrink();
            call()
        }
        result => result,
    }
}

impl HostFs {
    /// The inode of the node that is called `name` in `dir` on the host.
    fn node(self: &Arc<Self>, dir: &HostInode, name: &[u8], stat: &HostStat) -> Result<Arc<HostInode>> {
        let dir = dir.me.upgrade().ok_or(Errno::ESTALE)?;
        let known = self.nodes.lock().get(&(stat.dev, stat.ino)).and_then(Weak::upgrade);
        if let Some(known) = known
            && known.kind == stat.mode & S_IFMT
            && known.identity.born_ns() == stat.btime_ns
            && !known.common.get().is_some_and(|common| common.is_gone())
        {
            known.found_at(dir, name, self.shared);
            // Where the sandbox alone changes files, the cached attributes are newer than an answer that raced with a
            // change.
            if self.shared {
                known.attr.lock().store(stat, None);
            }
            return Ok(known);
        }
        Ok(self.insert(dir, name, stat))
    }

    /// The inode of a node that was just made. A node that had its number before is another one.
    fn new_node(self: &Arc<Self>, dir: &HostInode, name: &[u8], stat: &HostStat) -> Result<Arc<HostInode>> {
        if stat.mode & S_IFMT != S_IFSOCK {
            return self.node(dir, name, stat);
        }
        let node = self.insert(dir.me.upgrade().ok_or(Errno::ESTALE)?, name, stat);
        let common = Common::of_new(node.file_id());
        node.common.call_once(|| common);
        Ok(node)
    }

    fn insert(self: &Arc<Self>, dir: Arc<HostInode>, name: &[u8], stat: &HostStat) -> Arc<HostInode> {
        let name = NodeName::Known { dir, name: name.into() };
        let node = HostInode::new(self, name, None, false, stat, Lower::unknown());
        let replaced = self.nodes.lock().insert(node.id(), Arc::downgrade(&node));
        drop(replaced);
        node
    }

    /// The inode of a new unnamed file.
    fn unnamed(self: &Arc<Self>, handle: Handle) -> Result<Arc<HostInode>> {
        let stat = host::stat_handle(&handle)?;
        let node =
            HostInode::new(self, NodeName::Unknown, Some(Arc::new(handle)), true, &stat, Lower::unknown());
        node.node_handle().inspect(|made| made.comes_from(node.origin(OpenFlags::RDWR.bits())));
        self.nodes.lock().insert(node.id(), Arc::downgrade(&node));
        Ok(node)
    }
}

impl HostInode {
    fn new(
        fs: &Arc<HostFs>,
        name: NodeName,
        node: Option<Arc<Handle>>,
        unnamed_file: bool,
        stat: &HostStat,
        lower: Lower,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            fs: fs.clone(),
            identity: Identity::of(stat),
            kind: stat.mode & S_IFMT,
            name: SpinLock::new(Rank::Leaf, name),
            other_name: SpinLock::new(Rank::Leaf, NodeName::Unknown),
            node: SpinLock::new(Rank::Leaf, node),
            loses_name: AtomicBool::new(false),
            fresh: SpinLock::new(Rank::Leaf, None),
            kept: SpinLock::new(Rank::Leaf, Kept::default()),
            unnamed_file,
            attr: SpinLock::new(Rank::Leaf, Attr::new(stat)),
            link: Once::new(),
            lower,
            listing: SpinLock::new(Rank::Leaf, Listing::default()),
            common: Once::new(),
        })
    }

    /// Device and number on the host.
    fn id(&self) -> (u64, u64) {
        self.identity.id()
    }

    fn file_id(&self) -> FileId {
        let (dev, ino) = self.id();
        FileId { dev, ino, born_ns: self.identity.born_ns(), kind: self.kind }
    }

    /// Returns the state that the inodes of this file share.
    fn common(&self) -> &Arc<Common> {
        if let Some(common) = self.common.get() {
            return common;
        }
        let common = Common::of(self.file_id());
        self.common.call_once(|| common)
    }

    /// Whether the file has no name any more; its number may then soon be another's.
    fn is_nameless(&self) -> bool {
        let stat = self.node_handle().map(|node| host::stat_handle(&node));
        stat.is_some_and(|stat| stat.is_ok_and(|stat| stat.nlink == 0))
    }

    /// A lookup found the node under this name.
    fn found_at(&self, dir: Arc<HostInode>, name: &[u8], always: bool) {
        let old = {
            let mut current = self.name.lock();
            let same = matches!(&*current, NodeName::Known { dir: at, name: known } if Arc::ptr_eq(at, &dir) && **known == *name);
            if same || (!always && matches!(&*current, NodeName::Known { .. })) {
                return;
            }
            core::mem::replace(&mut *current, NodeName::Known { dir, name: name.into() })
        };
        drop(old);
    }

    /// Its name, or the other one, has been removed.
    fn unlinked(&self, dir: &Arc<dyn Inode>, name: &[u8]) {
        let gone = if self.is_at(dir, name) {
            let mut other = core::mem::replace(&mut *self.other_name.lock(), NodeName::Unknown);
            if other.is(dir, name) {
                other = NodeName::Unknown;
            }
            if matches!(other, NodeName::Known { .. }) {
                // It has another one.
                self.loses_name.store(false, Ordering::SeqCst);
            }
            core::mem::replace(&mut *self.name.lock(), other)
        } else {
            let mut other = self.other_name.lock();
            if !other.is(dir, name) {
                return;
            }
            core::mem::replace(&mut *other, NodeName::Unknown)
        };
        drop(gone);
    }

    fn set_other_name(&self, new: NodeName) {
        let old = core::mem::replace(&mut *self.other_name.lock(), new);
        drop(old);
    }

    fn set_name(&self, new: NodeName) {
        let old = core::mem::replace(&mut *self.name.lock(), new);
        drop(old);
    }

    fn node_handle(&self) -> Option<Arc<Handle>> {
        self.node.lock().clone()
    }

    fn named(&self) -> Result<(Arc<HostInode>, Box<[u8]>)> {
        match &*self.name.lock() {
            NodeName::Known { dir, name } => Ok((dir.clone(), name.clone())),
            NodeName::Unknown => Err(Errno::ENOENT),
        }
    }

    /// Calls `f` with a way to the node: a handle and a name below it, or a handle alone.
    fn reach<R>(&self, f: impl FnOnce(&Handle, &[u8]) -> Result<R>) -> Result<R> {
        if let Some(node) = self.node_handle() {
            return f(&node, b"");
        }
        let (dir, name) = self.named()?;
        let dir = dir.handle()?;
        f(&dir, &name)
    }

    /// The node's own handle, opened and kept if there is none yet.
    fn handle(&self) -> Result<Arc<Handle>> {
        if let Some(node) = self.node_handle() {
            return Ok(node);
        }
        let (mut dir, name) = self.named()?;
        // Directories above may have given theirs up: from the nearest one that has its own, without recursion.
        let mut without = Vec::new();
        let mut at = loop {
            if let Some(handle) = dir.node_handle() {
                break handle;
            }
            let (above, name) = dir.named()?;
            account::reserve(&mut without, 1)?;
            without.push((core::mem::replace(&mut dir, above), name));
        };
        while let Some((dir, name)) = without.pop() {
            at = dir.keep_opened(&at, &name)?;
        }
        self.keep_opened(&at, &name)
    }

    /// Opens the node by its name in the directory behind `dir`, and keeps the handle unless another came first.
    fn keep_opened(&self, dir: &Handle, name: &[u8]) -> Result<Arc<Handle>> {
        let opened = Arc::new(self.open_path_in(dir, name)?);
        let mut node = self.node.lock();
        Ok(node.get_or_insert(opened).clone())
    }

    /// A handle by which a socket is connected to.
    pub fn socket_handle(&self) -> Result<Arc<Handle>> {
        self.handle()
    }

    /// An `O_PATH` handle of the node, opened by its name and checked to be this node.
    fn open_path(&self) -> Result<Handle> {
        let (dir, name) = self.named()?;
        let dir = dir.handle()?;
        self.open_path_in(&dir, &name)
    }

    fn open_path_in(&self, dir: &Handle, name: &[u8]) -> Result<Handle> {
        let flags = if self.kind == S_IFDIR { O_PATH | O_DIRECTORY } else { O_PATH };
        let handle = with_room(|| host::open(dir, name, flags, 0, self.origin(flags)))?;
        self.check_same(&handle)?;
        Ok(handle)
    }

    /// Whether the host still calls this node by the name it was opened by; `ESTALE`.
    fn check_same(&self, opened: &Handle) -> Result<()> {
        if !self.fs.shared {
            return Ok(());
        }
        let stat = host::stat_handle(opened)?;
        if (stat.dev, stat.ino) != self.id() {
            return Err(Errno::ESTALE);
        }
        self.attr.lock().store(&stat, None);
        Ok(())
    }

    /// Calls `f` with a handle of the node itself, which is closed afterwards unless it was there before.
    fn with_own_handle<R>(&self, f: impl FnOnce(&Handle) -> Result<R>) -> Result<R> {
        match self.node_handle() {
            Some(node) => f(&node),
            None if self.kind == S_IFDIR => f(&*self.handle()?),
            None => f(&self.open_path()?),
        }
    }

    fn open_content(&self, flags: OpenFlags) -> Result<Arc<Handle>> {
        if self.unnamed_file {
            // The only handle there will ever be; it was opened for both.
            return self.node_handle().ok_or(Errno::ENOENT);
        }
        if self.kind == S_IFREG
            && let Some(fresh) = self.fresh.lock().take()
            && !flags.intersects(OpenFlags::DSYNC | OpenFlags::SYNC_BIT)
        {
            return Ok(fresh);
        }
        let missed = match self.kept(flags) {
            Ok(handle) => return Ok(handle),
            Err(missed) => missed,
        };
        let known = OpenFlags::WRONLY | OpenFlags::RDWR | OpenFlags::DSYNC | OpenFlags::SYNC_BIT;
        let mut bits = (flags & known).bits();
        if flags.writable() {
            self.leave_lower_above();
        }
        if self.kind == S_IFDIR {
            bits = O_DIRECTORY;
        }
        let handle = with_room(|| self.reach(|at, name| host::open(at, name, bits, 0, self.origin(bits))))?;
        self.check_same(&handle)?;
        let handle = Arc::new(handle);
        match missed {
            Some(missed) => self.keep(&handle, &missed),
            None if flags.writable() => self.changed(),
            None => {}
        }
        Ok(handle)
    }
}

/// Asking for the attributes of names in a directory.
impl HostInode {
    fn stat_name(&self, name: &[u8]) -> Result<HostStat> {
        match self.stat_below(name) {
            Some(found) => found,
            None => host::stat(&*self.handle()?, name),
        }
    }

    /// The attributes of the node of this name, those of the next ones with them if it looks as if they were asked for soon.
    fn stat_with_next(&self, name: &[u8]) -> Option<HostStat> {
        let ahead = self.ask_ahead(name)?;
        let stats = match self.stat_list_below(&ahead.names, ahead.count) {
            Some(stats) => stats,
            None => host::stat_list(&*self.handle().ok()?, &ahead.names, ahead.count).ok()?,
        };
        self.keep_ahead(&ahead, &stats);
        stats.first().copied().filter(|stat| stat.mode != 0)
    }
}

impl Drop for HostInode {
    fn drop(&mut self) {
        let mut next = core::mem::replace(&mut *self.name.lock(), NodeName::Unknown);
        // In this order: see `listing`.
        if let NodeName::Known { dir, .. } = &next {
            dir.forget_ahead();
        }
        {
            let mut nodes = self.fs.nodes.lock();
            if nodes.get(&self.id()).is_some_and(|node| core::ptr::eq(node.as_ptr(), self)) {
                nodes.remove(&self.id());
            }
        }
        // Directories that only this node kept go one by one: a path may be deeper than the stack.
        while let NodeName::Known { dir, .. } = next {
            let Some(dir) = Arc::into_inner(dir) else { break };
            next = core::mem::replace(&mut *dir.name.lock(), NodeName::Unknown);
        }
    }
}

fn host_inode(inode: &Arc<dyn Inode>) -> Result<&HostInode> {
    inode.as_any().downcast_ref::<HostInode>().ok_or(Errno::EXDEV)
}
