//! Files in memory.

mod dir;
mod file;
mod options;

use abi::hostcall::HostStatFs;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::fs::file::{FileOps, OpenFlags};
use crate::fs::inode::Stat;
use crate::fs::inode::{
    Attachment, AttrChange, Inode, LinkTarget, NewNode, NodeKind, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO,
    S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, S_ISGID, SetTime, is_access_due,
};
use crate::fs::notify;
use crate::fs::opens::Opens;
use crate::fs::special;
use crate::fs::tmpfs::dir::Entries;
use crate::fs::tmpfs::options::NODE_SPACE;
pub use crate::fs::tmpfs::options::{Options, UNLIMITED};
use machine::errno::{Errno, Result};
use machine::mm::account::Charge;
use machine::mm::{PAGE, PageStore, Quota, frames};
use machine::sync::{Mutex, Rank, SpinLock};
use machine::time;

/// `TMPFS_MAGIC`.
const MAGIC: u64 = 0x0102_1994;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
/// Bytes of kernel memory an extended attribute takes beside its value.
const XATTR_BYTES: usize = 256;
/// Most bytes of all extended attributes of a node but those of users, which count as the file system's space.
const XATTRS_MAX_BYTES: usize = 64 * 1024;
/// Bytes that an attribute of a user counts for, beside its name and value.
const XATTR_SPACE: u64 = 40;

static NEXT_DEVICE: AtomicU64 = AtomicU64::new(1);

struct TmpFs {
    dev: u64,
    next_ino: AtomicU64,
    /// Pages its files may have in all.
    pages: Arc<Quota>,
    /// Bytes that its nodes may count for, by [`NODE_SPACE`] each.
    nodes: Arc<Quota>,
    /// Pages, and nodes, that there are by default; [`UNLIMITED`]: as memory allows, which is shown instead.
    default: u64,
    /// The options that tables of mounts show.
    options: SpinLock<Options>,
}

impl TmpFs {
    fn new(dev: u64, options: Options, default: u64) -> Arc<Self> {
        Arc::new(Self {
            dev,
            next_ino: AtomicU64::new(1),
            pages: Quota::new(options.pages.unwrap_or(default)),
            nodes: Quota::new(options.nodes.unwrap_or(default).saturating_mul(NODE_SPACE)),
            default,
            options: SpinLock::new(Rank::Leaf, options),
        })
    }

    fn new_store(&self) -> Arc<PageStore> {
        PageStore::with_quota(0, Some(self.pages.clone()))
    }

    /// Changes the options; `EINVAL`: what is used does not fit any more, or an option stays as it is.
    fn remount(&self, change: &Options) -> Result<()> {
        let mut options = self.options.lock();
        let new = options.changed_by(change)?;
        let (pages, nodes) = (self.pages.room(), self.nodes.room());
        let most_nodes = change.nodes.map_or(nodes.0, |nodes| nodes.saturating_mul(NODE_SPACE));
        if nodes.0 - nodes.1 > most_nodes {
            return Err(Errno::EINVAL);
        }
        self.pages.set_most(change.pages.unwrap_or(pages.0))?;
        self.nodes.set_most(most_nodes)?;
        let old = core::mem::replace(&mut *options, new);
        drop(options);
        drop(old);
        Ok(())
    }
}

/// The attributes of a node that can change.
struct Meta {
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    atime_ns: i64,
    mtime_ns: i64,
    ctime_ns: i64,
}

enum Content {
    Dir(SpinLock<Entries>),
    File(Arc<PageStore>),
    Link(Box<[u8]>),
    /// FIFOs, sockets and devices (with their number).
    Node(u64),
}

/// An extended attribute's value, and the charges for its memory and its place in the file system.
struct Xattr {
    value: Box<[u8]>,
    space: u64,
    _charge: Charge,
}

type Xattrs = BTreeMap<Box<[u8]>, Xattr>;

/// A node of a tmpfs.
pub struct TmpInode {
    me: Weak<TmpInode>,
    fs: Arc<TmpFs>,
    ino: u64,
    kind: u32,
    born_ns: i64,
    meta: SpinLock<Meta>,
    content: Content,
    xattrs: SpinLock<Xattrs>,
    io: Mutex<()>,
    attachment: Attachment,
    opens: Opens,
    _charge: Charge,
}

/// Bytes of kernel memory a node takes, with its entry in the cache of names.
const NODE_BYTES: usize = 1536;

/// An empty file system; `mode`: the permission bits of its root.
pub fn new(mode: u32) -> Arc<dyn Inode> {
    root(NewNode { mode, uid: 0, gid: 0 }, Options::default(), UNLIMITED)
}

/// An empty file system with these options. Its root has the permission bits `mode`, unless they say another.
pub fn with_options(options: Options, mode: u32) -> Arc<dyn Inode> {
    root(root_of(&options, mode), options, UNLIMITED)
}

/// An empty file system for a program that mounts it: it has room for half of the memory, if the options say nothing
/// else.
pub fn mounted(text: &[u8]) -> Result<Arc<dyn Inode>> {
    let memory = frames::limit_bytes() / PAGE;
    let options = Options::parse(text, memory)?;
    Ok(root(root_of(&options, 0o1777), options, memory / 2))
}

fn root_of(options: &Options, mode: u32) -> NewNode {
    NewNode {
        mode: options.mode.unwrap_or(mode),
        uid: options.uid.unwrap_or(0),
        gid: options.gid.unwrap_or(0),
    }
}

fn root(root: NewNode, options: Options, default: u64) -> Arc<dyn Inode> {
    // Device numbers of file systems without a device have the major 0.
    let minor = NEXT_DEVICE.fetch_add(1, Ordering::Relaxed);
    let dev = (minor & 0xff) | (minor & !0xff) << 12;
    let content = Content::Dir(SpinLock::new(Rank::Leaf, Entries::new(None)));
    first(&TmpFs::new(dev, options, default), S_IFDIR, content, root)
}

/// The first node of a file system.
fn first(fs: &Arc<TmpFs>, kind: u32, content: Content, new: NewNode) -> Arc<dyn Inode> {
    // There is room for one, since 0 would be any number.
    let _ = fs.nodes.take(NODE_SPACE);
    TmpInode::new(fs, kind, content, new, Charge::default())
}

/// A device node that is in no directory.
pub fn device_node(rdev: u64, mode: u32) -> Arc<dyn Inode> {
    let fs = TmpFs::new(0, Options::default(), UNLIMITED);
    first(&fs, S_IFCHR, Content::Node(rdev), NewNode { mode, uid: 0, gid: 0 })
}

/// An empty file that is in no directory, for others to be mounted on.
pub fn placeholder() -> Arc<dyn Inode> {
    let fs = TmpFs::new(0, Options::default(), UNLIMITED);
    let new = NewNode { mode: 0o644, uid: 0, gid: 0 };
    first(&fs, S_IFREG, Content::File(PageStore::new(0)), new)
}

fn now_ns() -> i64 {
    time::realtime_ns().cast_signed()
}

impl TmpInode {
    fn new(fs: &Arc<TmpFs>, kind: u32, content: Content, new: NewNode, charge: Charge) -> Arc<Self> {
        let now = now_ns();
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            fs: fs.clone(),
            ino: fs.next_ino.fetch_add(1, Ordering::Relaxed),
            kind,
            born_ns: now,
            meta: SpinLock::new(
                Rank::Leaf,
                Meta {
                    mode: new.mode & 0o7777,
                    uid: new.uid,
                    gid: new.gid,
                    nlink: if kind == S_IFDIR { 2 } else { 1 },
                    atime_ns: now,
                    mtime_ns: now,
                    ctime_ns: now,
                },
            ),
            content,
            xattrs: SpinLock::new(Rank::Leaf, BTreeMap::new()),
            io: Mutex::new(Rank::Inode, ()),
            attachment: Attachment::new(Rank::Leaf, None),
            opens: Opens::default(),
            _charge: charge,
        })
    }

    /// A further node, if there is room for it: `ENOSPC`.
    fn make(&self, kind: u32, content: Content, new: NewNode, charge: Charge) -> Result<Arc<Self>> {
        self.fs.nodes.take(NODE_SPACE)?;
        Ok(Self::new(&self.fs, kind, content, new, charge))
    }

    /// The content changed.
    fn modified(&self) {
        let now = now_ns();
        let mut meta = self.meta.lock();
        (meta.mtime_ns, meta.ctime_ns) = (now, now);
    }

    /// A file has a name more; `ENOSPC`. The first is the node's own, each other takes space of its own.
    fn gain_name(&self) -> Result<()> {
        let mut meta = self.meta.lock();
        if meta.nlink > 0 {
            self.fs.nodes.take(NODE_SPACE)?;
        }
        meta.nlink = meta.nlink.saturating_add(1);
        meta.ctime_ns = now_ns();
        Ok(())
    }

    /// The reverse.
    fn lose_name(&self) {
        let mut meta = self.meta.lock();
        if meta.nlink > 1 {
            self.fs.nodes.give_back(NODE_SPACE);
        }
        meta.nlink = meta.nlink.saturating_sub(1);
        meta.ctime_ns = now_ns();
    }

    fn add_links(&self, change: i32) {
        let mut meta = self.meta.lock();
        meta.nlink = meta.nlink.saturating_add_signed(change);
        meta.ctime_ns = now_ns();
    }

    fn size(&self) -> u64 {
        match &self.content {
            Content::Dir(entries) => entries.lock().size(),
            Content::File(store) => store.size(),
            Content::Link(target) => target.len() as u64,
            Content::Node(_) => 0,
        }
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let Content::File(store) = &self.content else {
            return Err(if self.kind == S_IFDIR { Errno::EISDIR } else { Errno::EINVAL });
        };
        if size > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        let _io = self.io.lock();
        store.truncate(size);
        self.modified();
        self.lose_capabilities();
        Ok(())
    }

    /// Removes the capabilities that the file gave to its program: they go when its content or its owner changes.
    fn lose_capabilities(&self) {
        let gone = self.xattrs.lock().remove(&b"security.capability"[..]);
        drop(gone);
    }
}

impl Drop for TmpInode {
    /// A tree is taken down without recursion: it may be deeper than the stack.
    fn drop(&mut self) {
        notify::gone(self.lock_key());
        let space: u64 = self.xattrs.lock().values().map(|xattr| xattr.space).sum();
        self.fs.nodes.give_back(NODE_SPACE + space);
        let Content::Dir(entries) = &self.content else { return };
        let mut left = entries.lock().take_all();
        while let Some(node) = left.pop() {
            if let Some(node) = Arc::into_inner(node)
                && let Content::Dir(entries) = &node.content
            {
                left.append(&mut entries.lock().take_all());
            }
        }
    }
}

fn tmp_inode(inode: &Arc<dyn Inode>) -> Result<&TmpInode> {
    inode.as_any().downcast_ref::<TmpInode>().ok_or(Errno::EXDEV)
}

/// Bytes that an attribute takes of the space for nodes. Those that the system sets are free.
fn xattr_space(name: &[u8], value: &[u8]) -> u64 {
    if name.starts_with(b"user.") { XATTR_SPACE + (name.len() + value.len()) as u64 } else { 0 }
}

fn set_time(to: &mut i64, change: Option<SetTime>, now: i64) {
    match change {
        Some(SetTime::Now) => *to = now,
        Some(SetTime::At(ns)) => *to = ns,
        None => {}
    }
}

impl Inode for TmpInode {
    fn stat(&self) -> Result<Stat> {
        let size = self.size();
        let blocks = match &self.content {
            Content::File(store) => store.resident_bytes() / 512,
            _ => 0,
        };
        let rdev = if let Content::Node(rdev) = self.content { rdev } else { 0 };
        let meta = self.meta.lock();
        Ok(Stat {
            dev: self.fs.dev,
            ino: self.ino,
            mode: self.kind | meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev,
            size,
            blksize: 4096,
            blocks,
            atime_ns: meta.atime_ns,
            mtime_ns: meta.mtime_ns,
            ctime_ns: meta.ctime_ns,
            btime_ns: self.born_ns,
        })
    }
    fn kind(&self) -> u32 {
        self.kind
    }
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        Ok(self.find(name)?)
    }
    fn create(&self, name: &[u8], kind: NodeKind, new: NewNode) -> Result<Arc<dyn Inode>> {
        let charge = Charge::lasting(NODE_BYTES)?;
        let (kind, content) = match kind {
            NodeKind::Regular => (S_IFREG, Content::File(self.fs.new_store())),
            NodeKind::Fifo => (S_IFIFO, Content::Node(0)),
            NodeKind::Socket => (S_IFSOCK, Content::Node(0)),
            NodeKind::CharDevice(rdev) => (S_IFCHR, Content::Node(rdev)),
            NodeKind::BlockDevice(rdev) => (S_IFBLK, Content::Node(rdev)),
        };
        Ok(self.add(name, self.make(kind, content, new, charge)?)?)
    }
    fn mkdir(&self, name: &[u8], new: NewNode) -> Result<Arc<dyn Inode>> {
        let charge = Charge::lasting(NODE_BYTES)?;
        let content = Content::Dir(SpinLock::new(Rank::Leaf, Entries::new(Some(self.me.clone()))));
        let dir = self.add(name, self.make(S_IFDIR, content, new, charge)?)?;
        self.add_links(1);
        Ok(dir)
    }
    fn symlink(&self, name: &[u8], target: &[u8], new: NewNode) -> Result<Arc<dyn Inode>> {
        let charge = Charge::lasting(NODE_BYTES + target.len())?;
        let content = Content::Link(target.into());
        Ok(self.add(name, self.make(S_IFLNK, content, new, charge)?)?)
    }
    fn link(&self, name: &[u8], node: &Arc<dyn Inode>) -> Result<()> {
        let node = tmp_inode(node)?;
        let node = node.me.upgrade().ok_or(Errno::ENOENT)?;
        if !Arc::ptr_eq(&node.fs, &self.fs) {
            return Err(Errno::EXDEV);
        }
        node.gain_name()?;
        self.add(name, node.clone()).map(drop).inspect_err(|_| node.lose_name())
    }
    fn unlink(&self, name: &[u8]) -> Result<()> {
        self.remove(name, false)
    }
    fn rmdir(&self, name: &[u8]) -> Result<()> {
        self.remove(name, true)
    }
    fn rename(&self, old: &[u8], new_dir: &Arc<dyn Inode>, new: &[u8], flags: u32) -> Result<()> {
        let new_dir = tmp_inode(new_dir)?;
        if !Arc::ptr_eq(&new_dir.fs, &self.fs) {
            return Err(Errno::EXDEV);
        }
        self.move_entry(old, new_dir, new, flags)
    }
    fn tmpfile(&self, new: NewNode) -> Result<Arc<dyn Inode>> {
        let charge = Charge::lasting(NODE_BYTES)?;
        let file = self.make(S_IFREG, Content::File(self.fs.new_store()), new, charge)?;
        file.meta.lock().nlink = 0;
        Ok(file)
    }
    fn tells_its_end(&self) -> bool {
        true
    }
    fn attachment(&self) -> Option<&Attachment> {
        Some(&self.attachment)
    }
    fn opens(&self) -> Option<&Opens> {
        Some(&self.opens)
    }
    fn readlink(&self) -> Result<LinkTarget> {
        match &self.content {
            Content::Link(target) => Ok(LinkTarget::Text(target.to_vec())),
            _ => Err(Errno::EINVAL),
        }
    }
    fn accessed(&self, strictly: bool) {
        let now = now_ns();
        let mut meta = self.meta.lock();
        if strictly || is_access_due(meta.atime_ns, meta.mtime_ns, meta.ctime_ns, now) {
            meta.atime_ns = now;
        }
    }
    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        if self.kind == S_IFLNK && change.mode.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        if let Some(size) = change.size {
            self.set_size(size)?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            self.lose_capabilities();
        }
        let now = now_ns();
        let mut meta = self.meta.lock();
        let mode = change.mode_for(meta.mode | self.kind, meta.gid);
        if change.uid.is_some() || change.gid.is_some() {
            meta.uid = change.uid.unwrap_or(meta.uid);
            meta.gid = change.gid.unwrap_or(meta.gid);
            if self.kind != S_IFDIR {
                let group_runs = meta.mode & 0o010 != 0;
                meta.mode &= !(0o4000 | if group_runs { S_ISGID } else { 0 });
            }
        }
        if let Some(mode) = mode {
            meta.mode = mode & !S_IFMT;
        }
        set_time(&mut meta.atime_ns, change.atime, now);
        set_time(&mut meta.mtime_ns, change.mtime, now);
        meta.ctime_ns = now;
        Ok(())
    }
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        match self.kind {
            S_IFREG | S_IFDIR => Ok(Box::new(file::TmpFile::new(self, flags.writable())?)),
            S_IFIFO => special::open_fifo(&(self as Arc<dyn Inode>), flags),
            S_IFCHR | S_IFBLK => {
                let rdev = if let Content::Node(rdev) = self.content { rdev } else { 0 };
                let is_block = self.kind == S_IFBLK;
                special::open_device(&(self as Arc<dyn Inode>), rdev, is_block, flags)
            }
            S_IFLNK => Err(Errno::ELOOP),
            _ => Err(Errno::ENXIO),
        }
    }
    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if name.starts_with(b"system.") {
            return Err(Errno::EOPNOTSUPP);
        }
        self.xattrs.lock().get(name).map(|xattr| xattr.value.to_vec()).ok_or(Errno::ENODATA)
    }
    fn set_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        if name.starts_with(b"system.") {
            return Err(Errno::EOPNOTSUPP);
        }
        let bytes = name.len() + value.len();
        let space = xattr_space(name, value);
        let mut xattrs = self.xattrs.lock();
        match (xattrs.contains_key(name), flags) {
            (true, XATTR_CREATE) => return Err(Errno::EEXIST),
            (false, XATTR_REPLACE) => return Err(Errno::ENODATA),
            _ => {}
        }
        // Those that take no space of the file system are bounded together, the names of all by what a list of them can be.
        let unbounded = xattrs.iter().filter(|(_, other)| space == 0 && other.space == 0);
        let used: usize = unbounded.map(|(name, other)| name.len() + other.value.len()).sum();
        let names: usize = xattrs.keys().filter(|other| ***other != *name).map(|other| other.len() + 1).sum();
        if space == 0 && used + bytes > XATTRS_MAX_BYTES || names + name.len() + 1 > XATTRS_MAX_BYTES {
            return Err(Errno::ENOSPC);
        }
        let charge = Charge::lasting(XATTR_BYTES + bytes)?;
        self.fs.nodes.take(space)?;
        let old = xattrs.insert(name.into(), Xattr { value: value.into(), space, _charge: charge });
        drop(xattrs);
        self.fs.nodes.give_back(old.map_or(0, |old| old.space));
        self.meta.lock().ctime_ns = now_ns();
        Ok(())
    }
    fn list_xattr(&self) -> Result<Vec<u8>> {
        let mut list = Vec::new();
        for name in self.xattrs.lock().keys() {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }
    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let gone = self.xattrs.lock().remove(name).ok_or(Errno::ENODATA)?;
        self.fs.nodes.give_back(gone.space);
        self.meta.lock().ctime_ns = now_ns();
        Ok(())
    }
    fn statfs(&self) -> Result<HostStatFs> {
        let memory = (frames::limit_bytes() / PAGE, frames::available() as u64);
        let room = |quota: &Quota, unit: u64| match quota.room() {
            (most, _) if most >= UNLIMITED / unit && self.fs.default == UNLIMITED => memory,
            (UNLIMITED, _) => (0, 0),
            (most, left) => (most / unit, left / unit),
        };
        let (blocks, bfree) = room(&self.fs.pages, 1);
        let (files, ffree) = room(&self.fs.nodes, NODE_SPACE);
        let bfree = bfree.min(memory.1);
        Ok(HostStatFs {
            kind: MAGIC,
            bsize: PAGE,
            blocks,
            bfree,
            bavail: bfree,
            files,
            ffree,
            namelen: 255,
            frsize: PAGE,
            flags: 0,
        })
    }
    fn fs_options(&self) -> Vec<u8> {
        self.fs.options.lock().shown(self.fs.default)
    }
    fn remount(&self, options: &[u8]) -> Result<()> {
        self.fs.remount(&Options::parse(options, frames::limit_bytes() / PAGE)?)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
