//! `/dev`: the names of a `devtmpfs`, and the character devices behind them.
//!
//! As on Linux the file system is a tmpfs that begins with some names in it; [`populate`] makes them. Device nodes,
//! there or on any other file system, are opened by [`open_device`].

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use core::any::Any;

use crate::fs::file::{At, File, FileOps, OpenFlags, Whence};
use crate::fs::generation::Generation;
use crate::fs::inode::{Inode, NewNode, NodeKind, S_IFCHR, Stat};
use crate::fs::poll::PollTable;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, MemoryObject, PageStore, UserAddr};
use machine::sched;
use machine::sched::wait::PollEvents;
use machine::sync::Once;

/// A device number.
pub const fn device(major: u64, minor: u64) -> u64 {
    ((major & 0xfff) << 8) | ((major & !0xfff) << 32) | (minor & 0xff) | ((minor & !0xff) << 12)
}

/// The major part of a device number.
pub const fn major(rdev: u64) -> u64 {
    ((rdev >> 8) & 0xfff) | ((rdev >> 32) & !0xfff)
}

const MEMORY: u64 = 1;
const MISC: u64 = 10;
const TTY_MAJOR: u64 = 4;
const TTY_AUX: u64 = 5;
const PTY_FIRST: u64 = 136;
const PTY_LAST: u64 = 143;

/// The number of a sandbox among its clones.
const GENERATION: u64 = device(MISC, 120);
/// The null device.
pub const NULL: u64 = device(MEMORY, 3);
/// The controlling terminal, whichever it is.
pub const TTY: u64 = device(TTY_AUX, 0);
/// The terminal of the sandbox's streams.
pub const CONSOLE: u64 = device(TTY_AUX, 1);
/// The multiplexer of pseudo-terminals.
pub const PTMX: u64 = device(TTY_AUX, 2);

/// Name, permission bits, number.
static DEVICES: &[(&str, u32, u64)] = &[
    ("console", 0o620, CONSOLE),
    ("full", 0o666, device(MEMORY, 7)),
    ("kmsg", 0o644, device(MEMORY, 11)),
    ("null", 0o666, NULL),
    ("random", 0o666, device(MEMORY, 8)),
    ("sysgenid", 0o444, GENERATION),
    ("tty", 0o666, TTY),
    ("urandom", 0o666, device(MEMORY, 9)),
    ("zero", 0o666, device(MEMORY, 5)),
];

static LINKS: &[(&str, &str)] = &[
    ("core", "/proc/kcore"),
    ("fd", "/proc/self/fd"),
    ("ptmx", "pts/ptmx"),
    ("stderr", "/proc/self/fd/2"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
];

/// Directories, mostly for others to be mounted on.
static DIRECTORIES: &[(&str, u32)] = &[("mqueue", 0o1777), ("pts", 0o755), ("shm", 0o1777)];

/// Makes the names of `/dev` in `root`, an empty tmpfs.
pub fn populate(root: &Arc<dyn Inode>) -> Result<()> {
    let new = |mode| NewNode { mode, uid: 0, gid: 0 };
    for (name, mode, rdev) in DEVICES {
        root.create(name.as_bytes(), NodeKind::CharDevice(*rdev), new(*mode))?;
    }
    for (name, target) in LINKS {
        root.symlink(name.as_bytes(), target.as_bytes(), new(0o777))?;
    }
    for (name, mode) in DIRECTORIES {
        root.mkdir(name.as_bytes(), new(*mode))?;
    }
    Ok(())
}

/// Opens a terminal device: `/dev/tty`, the console, `/dev/ptmx`, a pseudo-terminal.
pub type TerminalOpener = fn(rdev: u64, flags: OpenFlags) -> Result<Box<dyn FileOps>>;

static TERMINALS: Once<TerminalOpener> = Once::new();

/// Names the function that opens terminals. Called once, by their driver.
pub fn set_terminal_opener(open: TerminalOpener) {
    TERMINALS.call_once(|| open);
}

/// Whether it is a device with nothing to wait for, which `epoll(7)` does not take.
pub fn is_always_ready(rdev: u64) -> bool {
    major(rdev) == MEMORY && matches!(rdev & 0xff, 3 | 5 | 7 | 9)
}

/// Opens the character device with this number; `ENXIO` when there is none.
pub fn open_device(rdev: u64, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
    match major(rdev) {
        TTY_MAJOR | TTY_AUX | PTY_FIRST..=PTY_LAST => match TERMINALS.get() {
            Some(open) => open(rdev, flags),
            None => Err(Errno::ENXIO),
        },
        MEMORY => {
            let kind = match rdev & 0xff {
                3 => Memory::Null,
                5 => Memory::Zero,
                7 => Memory::Full,
                8 | 9 => Memory::Random,
                11 => return Err(Errno::EPERM),
                _ => return Err(Errno::ENXIO),
            };
            Ok(Box::new(MemoryDevice { kind, rdev }))
        }
        _ if rdev == GENERATION => Ok(Box::new(Generation::open(rdev))),
        _ => Err(Errno::ENXIO),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Null,
    Zero,
    Full,
    Random,
}

/// A device of major 1, opened.
struct MemoryDevice {
    kind: Memory,
    rdev: u64,
}

/// Bytes between looks at signals.
const CHUNK_BYTES: usize = 64 << 10;
/// Random bytes made at a time.
const RANDOM_BYTES: usize = 4096;

/// Fills the buffer piece by piece, ending early when a signal waits.
fn fill(buf: &mut IoBuf<'_>, mut piece: impl FnMut(&mut IoBuf<'_>) -> Result<()>) -> Result<usize> {
    let before = buf.done();
    let mut since_look = 0;
    while !buf.is_empty() {
        let at = buf.done();
        match piece(buf) {
            Ok(()) => since_look += buf.done() - at,
            Err(error) if at == before => return Err(error),
            Err(_) => break,
        }
        if since_look >= CHUNK_BYTES {
            since_look = 0;
            if sched::is_interrupted(&sched::current()) {
                break;
            }
            sched::let_others_go_on();
        }
    }
    Ok(buf.done() - before)
}

/// Fills the buffer with zeros.
fn fill_zeros(buf: &mut IoBuf<'_>) -> Result<usize> {
    fill(buf, |buf| buf.fill_zeros(buf.remaining().min(CHUNK_BYTES)))
}

/// Fills the buffer with random bytes.
pub fn fill_random(buf: &mut IoBuf<'_>) -> Result<usize> {
    let mut bytes = vec![0u8; buf.remaining().min(RANDOM_BYTES)];
    fill(buf, |buf| {
        let len = buf.remaining().min(RANDOM_BYTES);
        machine::random::fill(&mut bytes[..len]);
        buf.fill(&bytes[..len])
    })
}

impl FileOps for MemoryDevice {
    fn read(&self, _file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        match self.kind {
            Memory::Null => Ok(0),
            Memory::Zero | Memory::Full => fill_zeros(buf),
            Memory::Random => fill_random(buf),
        }
    }

    fn write(&self, _file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        if self.kind == Memory::Full {
            return Err(Errno::ENOSPC);
        }
        // As on Linux, programs may write to the random devices; here the bytes change nothing.
        let len = buf.remaining();
        buf.truncate(0);
        Ok(len)
    }

    fn poll(&self, _file: &File, _table: Option<&mut PollTable>) -> PollEvents {
        PollEvents::READABLE | PollEvents::WRITABLE
    }

    fn seek(&self, file: &File, _offset: i64, _whence: Whence) -> Result<u64> {
        *file.pos.lock() = 0;
        Ok(0)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn can_be_spliced(&self) -> bool {
        self.kind != Memory::Null
    }

    fn takes_splices(&self) -> bool {
        self.kind != Memory::Full
    }

    fn ioctl(
        &self,
        cx: &crate::fs::caller::CallerCtx<'_>,
        _file: &File,
        request: u32,
        arg: u64,
    ) -> Result<u64> {
        const RNDGETENTCNT: u32 = 0x8004_5200;
        match (self.kind, request) {
            (Memory::Random, RNDGETENTCNT) => cx.user().write(UserAddr::new(arg), &256u32).map(|()| 0),
            _ => Err(Errno::ENOTTY),
        }
    }

    fn mapping(&self, _file: &File, _shared_write: bool) -> Result<MemoryObject> {
        match self.kind {
            // Zeros of the mapping's own: every mapping gets a store, as large as any mapping can be.
            Memory::Zero => Ok(MemoryObject::Store(PageStore::new(abi::layout::USER_MAX))),
            _ => Err(Errno::ENODEV),
        }
    }

    fn stat(&self, file: &File) -> Result<Stat> {
        match &file.path {
            Some(path) => path.inode.stat(),
            None => Ok(Stat { mode: S_IFCHR | 0o666, nlink: 1, rdev: self.rdev, ..Default::default() }),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(minor: u64) -> Arc<File> {
        File::new(open_device(device(1, minor), OpenFlags::RDWR).unwrap(), OpenFlags::RDWR, None)
    }

    #[test]
    fn the_memory_devices_do_as_they_are_called() {
        let mut bytes = [7u8; 300];
        let null = open(3);
        assert_eq!(null.ops.read(&null, &mut IoBuf::kernel(&mut bytes), At::Position), Ok(0));
        let mut buf = IoBuf::constant(b"gone");
        assert_eq!(null.ops.write(&null, &mut buf, At::Position), Ok(4));
        assert!(buf.is_empty());
        let zero = open(5);
        assert_eq!(zero.ops.read(&zero, &mut IoBuf::kernel(&mut bytes), At::Position), Ok(300));
        assert_eq!(bytes, [0; 300]);
        let full = open(7);
        assert_eq!(full.ops.write(&full, &mut IoBuf::constant(b"x"), At::Position), Err(Errno::ENOSPC));
        assert_eq!(open_device(device(1, 11), OpenFlags::empty()).err(), Some(Errno::EPERM));
        assert_eq!(open_device(device(8, 0), OpenFlags::empty()).err(), Some(Errno::ENXIO));
        assert_eq!(open_device(TTY, OpenFlags::empty()).err(), Some(Errno::ENXIO));
    }

    #[test]
    fn device_numbers_are_those_of_the_c_library() {
        assert_eq!(device(1, 3), 0x103);
        assert_eq!(device(136, 300), 0x10_882c);
        assert_eq!(major(device(0x1234, 0)), 0x1234);
    }
}
