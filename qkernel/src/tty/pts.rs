//! Pseudo-terminals and their file system, `devpts`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fs::anon;
use crate::fs::devfs;
use crate::fs::file::{DirEntry, File, FileOps, OpenFlags};
use crate::fs::inode::{AttrChange, CachePolicy, S_IFCHR, S_IFDIR, SetTime};
use crate::fs::inode::{Inode, Stat};
use crate::pseudo::InodeNumbers;
use crate::pseudo::file::{DirFile, Listing};
use crate::task;
use crate::task::container::{self, Container, ContainerId};
use crate::task::terminal::Terminal;
use crate::tty::{PTS_MAJOR, Tty, TtyFile};
use machine::errno::{Errno, Result};
use machine::sync::{Rank, SpinLock};
use machine::time;

/// Most pseudo-terminals of a container (`kernel.pty.max`).
const PTYS_MAX: u32 = 4096;
/// `st_dev` of the file system.
const DEV: u64 = 0x18;
/// `DEVPTS_SUPER_MAGIC`.
const MAGIC: u64 = 0x1cd1;
const ROOT_INO: u64 = 1;
const PTMX_INO: u64 = 2;
/// Inode number of `/dev/pts/0`.
const FIRST_INO: u64 = 3;
/// Group `tty`.
const TTY_GROUP: u32 = 5;

/// Owner and times of a terminal's node.
#[derive(Clone, Copy)]
pub struct Meta {
    mode: u32,
    uid: u32,
    gid: u32,
    atime_ns: i64,
    mtime_ns: i64,
    ctime_ns: i64,
}

/// Permission bits and group of new terminals, as the file system was mounted with.
static DEFAULT_MODE: AtomicU32 = AtomicU32::new(0o620);
static DEFAULT_GROUP: AtomicU32 = AtomicU32::new(TTY_GROUP);

/// The mount options `mode` and `gid`.
pub fn set_defaults(mode: u32, group: Option<u32>) {
    DEFAULT_MODE.store(mode & 0o777, Ordering::Relaxed);
    DEFAULT_GROUP.store(group.unwrap_or(TTY_GROUP), Ordering::Relaxed);
}

impl Meta {
    /// A new node's, owned by `uid`.
    pub fn new(uid: u32) -> Self {
        let now = time::realtime_ns().cast_signed();
        let (mode, gid) = (DEFAULT_MODE.load(Ordering::Relaxed), DEFAULT_GROUP.load(Ordering::Relaxed));
        Self { mode, uid, gid, atime_ns: now, mtime_ns: now, ctime_ns: now }
    }

    fn change(&mut self, change: &AttrChange) {
        let now = time::realtime_ns().cast_signed();
        let when = |time| if let SetTime::At(at) = time { at } else { now };
        self.mode = change.mode.map_or(self.mode, |mode| mode & 0o7777);
        self.uid = change.uid.unwrap_or(self.uid);
        self.gid = change.gid.unwrap_or(self.gid);
        self.atime_ns = change.atime.map_or(self.atime_ns, when);
        self.mtime_ns = change.mtime.map_or(self.mtime_ns, when);
        self.ctime_ns = now;
    }
}

/// By the container whose they are. No other container has a name for one.
static TTYS: SpinLock<BTreeMap<(ContainerId, u32), Arc<Tty>>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

/// The terminal with a number, in the container of the task that asks.
fn find(number: u32) -> Option<Arc<Tty>> {
    let container = container::current().id;
    TTYS.lock().get(&(container, number)).cloned()
}

/// The terminal with a device number.
pub fn find_device(rdev: u64) -> Option<Arc<Tty>> {
    let minor = (rdev & 0xff) | ((rdev >> 12) & !0xff);
    let number = u32::try_from(minor).ok()?;
    (devfs::major(rdev) == PTS_MAJOR).then(|| find(number))?
}

/// Gives a terminal of a container its number; `ENOSPC`.
pub fn register(container: &Container, make: impl FnOnce(u32) -> Arc<Tty>) -> Result<Arc<Tty>> {
    let mut ttys = TTYS.lock();
    let is_free = |number: &u32| !ttys.contains_key(&(container.id, *number));
    let number = (0..PTYS_MAX).find(is_free).ok_or(Errno::ENOSPC)?;
    let tty = make(number);
    ttys.insert((container.id, number), tty.clone());
    Ok(tty)
}

/// The name goes.
pub fn release(tty: &Arc<Tty>) {
    let released = {
        let mut ttys = TTYS.lock();
        let key = (tty.container, tty.number);
        let own = ttys.get(&key).is_some_and(|present| Arc::ptr_eq(present, tty));
        if own { ttys.remove(&key) } else { None }
    };
    drop(released);
}

/// Opens `/dev/ptmx`: makes a new pseudo-terminal.
pub fn open_controller() -> Result<Box<dyn FileOps>> {
    anon::check_room()?;
    let task = task::current();
    let container = task.process.container.clone();
    let meta = Meta::new(task.creds.get().fsuid);
    let tty = register(&container, |number| Tty::new(&container, number, meta, true, None))?;
    Ok(Box::new(TtyFile::controller(&tty)))
}

/// `TIOCGPTPEER`: opens the program's side.
pub fn open_peer(tty: &Arc<Tty>, flags: OpenFlags) -> Result<Arc<File>> {
    Ok(File::new(tty.open(flags)?, flags, None))
}

/// Attributes of a terminal's node.
pub fn stat(tty: &Tty) -> Stat {
    let meta = *tty.meta.lock();
    node(FIRST_INO + u64::from(tty.number), S_IFCHR | meta.mode, tty.rdev(), &meta)
}

fn node(ino: u64, mode: u32, rdev: u64, meta: &Meta) -> Stat {
    Stat {
        dev: DEV,
        ino,
        mode,
        nlink: if mode & S_IFDIR == S_IFDIR { 2 } else { 1 },
        uid: meta.uid,
        gid: meta.gid,
        rdev,
        blksize: 1024,
        atime_ns: meta.atime_ns,
        mtime_ns: meta.mtime_ns,
        ctime_ns: meta.ctime_ns,
        btime_ns: 0,
        ..Stat::default()
    }
}

/// The root of `devpts`.
pub fn devpts_root() -> Arc<dyn Inode> {
    Arc::new(Root { meta: Meta { mode: 0o755, gid: 0, ..Meta::new(0) } })
}

struct Root {
    meta: Meta,
}

impl Inode for Root {
    fn stat(&self) -> Result<Stat> {
        Ok(node(ROOT_INO, S_IFDIR | self.meta.mode, 0, &self.meta))
    }
    fn kind(&self) -> u32 {
        S_IFDIR
    }
    fn cache_policy(&self) -> CachePolicy {
        CachePolicy::Never
    }
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if name == b"ptmx" {
            return Ok(Arc::new(Multiplexer { meta: Meta { mode: 0o666, gid: 0, ..self.meta } }));
        }
        let text = core::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let number: u32 = text.parse().map_err(|_| Errno::ENOENT)?;
        // Only the plain spelling is a name.
        if format!("{number}").as_bytes() != name {
            return Err(Errno::ENOENT);
        }
        find(number).map(|tty| Arc::new(Node { tty }) as Arc<dyn Inode>).ok_or(Errno::ENOENT)
    }
    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        Ok(Box::new(DirFile::new(self)))
    }
    fn statfs(&self) -> Result<abi::hostcall::HostStatFs> {
        Ok(statfs())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn statfs() -> abi::hostcall::HostStatFs {
    abi::hostcall::HostStatFs { kind: MAGIC, bsize: 4096, namelen: 255, frsize: 4096, ..Default::default() }
}

impl Listing for Root {
    fn numbers(&self) -> InodeNumbers {
        InodeNumbers { ino: ROOT_INO, parent: ROOT_INO }
    }

    fn entries(&self, from: u64, add: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        const DT_CHR: u8 = 2;
        // Positions: 2 is `ptmx`, terminal N is at N + 3, as its inode number.
        if from <= PTMX_INO && !add(&DirEntry { name: b"ptmx", ino: PTMX_INO, next: FIRST_INO, kind: DT_CHR })
        {
            return Ok(());
        }
        let first = u32::try_from(from.saturating_sub(FIRST_INO)).unwrap_or(u32::MAX);
        let container = container::current().id;
        let numbers = (container, first)..=(container, u32::MAX);
        let numbers: alloc::vec::Vec<u32> =
            TTYS.lock().range(numbers).map(|((_, number), _)| *number).collect();
        for number in numbers {
            let (name, ino) = (format!("{number}"), FIRST_INO + u64::from(number));
            if !add(&DirEntry { name: name.as_bytes(), ino, next: ino + 1, kind: DT_CHR }) {
                break;
            }
        }
        Ok(())
    }
}

/// `/dev/pts/ptmx`.
struct Multiplexer {
    meta: Meta,
}

impl Inode for Multiplexer {
    fn stat(&self) -> Result<Stat> {
        Ok(node(PTMX_INO, S_IFCHR | self.meta.mode, devfs::PTMX, &self.meta))
    }
    fn kind(&self) -> u32 {
        S_IFCHR
    }
    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        open_controller()
    }
    fn statfs(&self) -> Result<abi::hostcall::HostStatFs> {
        Ok(statfs())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `/dev/pts/N`.
struct Node {
    tty: Arc<Tty>,
}

impl Inode for Node {
    fn stat(&self) -> Result<Stat> {
        Ok(stat(&self.tty))
    }
    fn kind(&self) -> u32 {
        S_IFCHR
    }
    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        if change.size.is_none() {
            self.tty.meta.lock().change(change);
        }
        Ok(())
    }
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        self.tty.open(flags)
    }
    fn statfs(&self) -> Result<abi::hostcall::HostStatFs> {
        Ok(statfs())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
