//! `/proc/PID/fd` and `/proc/PID/fdinfo`.

use abi::hostcall::HostStatFs;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::caller::CallerCtx;
use crate::fs::file::{At, Descriptor, File, FileOps, FileTable, OpenFlags, Whence};
use crate::fs::inode::Stat;
use crate::fs::inode::{Inode, LinkTarget, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use crate::fs::mount::{Limits, Mount};
use crate::fs::path::Path;
use crate::fs::pipe::PipeEnd;
use crate::fs::poll::PollTable;
use crate::net::SocketFile;
use crate::proc::locks;
use crate::proc::subject::{Part, Subject, Which};
use crate::pseudo::{Dynamic, Entry, InodeNumbers, Item, Node, Out, parse_id};
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, MemoryObject};
use machine::sched::wait::PollEvents;

/// A descriptor's number.
#[derive(Clone, Copy)]
struct Fd(i32);

/// One descriptor of a process.
type Open = Part<Fd>;

impl Fd {
    fn of(self, subject: &Subject) -> Result<Descriptor> {
        let files = subject.task().map_err(|_| Errno::ENOENT)?.files().ok_or(Errno::ENOENT)?;
        files.descriptor(self.0).map_err(|_| Errno::ENOENT)
    }
}

impl Which for Fd {
    fn check(&self, subject: &Subject) -> Result<()> {
        self.of(subject).map(drop)
    }
}

/// Calls `add` for the descriptors from `from` on.
fn list(subject: &Subject, from: u64, kind: u32, add: &mut dyn FnMut(Item) -> bool) {
    let Some(files) = subject.task().ok().and_then(|task| task.files()) else { return };
    let open: Vec<i32> = files.list().into_iter().map(|(fd, _)| fd).collect();
    for fd in open {
        let key = i64::from(fd).unsigned_abs();
        if key >= from && !add(Item { key, name: format!("{fd}").into_bytes(), kind }) {
            return;
        }
    }
}

fn find(subject: &Subject, name: &[u8]) -> Result<(Open, Descriptor)> {
    let fd = parse_id(name).and_then(|fd| i32::try_from(fd).ok()).ok_or(Errno::ENOENT)?;
    let descriptor = Fd(fd).of(subject)?;
    Ok((Open { subject: subject.clone(), which: Fd(fd) }, descriptor))
}

/// `fd/`: a link to each open file. Its permission bits tell how the file is open.
pub struct Descriptors;

static READ: Entry<Open> = Entry::link("", target).mode(0o500).guarded();
static WRITE: Entry<Open> = Entry::link("", target).mode(0o300).guarded();
static BOTH: Entry<Open> = Entry::link("", target).mode(0o700).guarded();
static NEITHER: Entry<Open> = Entry::link("", target).mode(0).guarded();

impl Dynamic<Subject> for Descriptors {
    fn find(&self, subject: &Subject, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let (open, descriptor) = find(subject, name)?;
        let flags = descriptor.file.flags();
        let entry = match (flags.readable(), flags.writable()) {
            (true, true) => &BOTH,
            (true, false) => &READ,
            (false, true) => &WRITE,
            (false, false) => &NEITHER,
        };
        Ok(Node::new(open, entry, dir.child(name)))
    }

    fn list(&self, subject: &Subject, from: u64, add: &mut dyn FnMut(Item) -> bool) {
        list(subject, from, S_IFLNK, add);
    }

    fn size(&self, subject: &Subject) -> u64 {
        let files = subject.task().ok().and_then(|task| task.files());
        files.map_or(0, |files| files.list().len() as u64)
    }
}

fn target(open: &Open) -> Result<LinkTarget> {
    Ok(LinkTarget::Direct(path_of(&open.which.of(&open.subject)?.file)))
}

/// `fdinfo/`: position, flags, and lines of the file's own.
pub struct DescriptorFacts;

static FACTS: Entry<Open> = Entry::text("", facts).guarded();

impl Dynamic<Subject> for DescriptorFacts {
    fn find(&self, subject: &Subject, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let (open, _) = find(subject, name)?;
        Ok(Node::new(open, &FACTS, dir.child(name)))
    }

    fn list(&self, subject: &Subject, from: u64, add: &mut dyn FnMut(Item) -> bool) {
        list(subject, from, S_IFREG, add);
    }
}

fn facts(open: &Open, out: &mut Out) -> Result<()> {
    let Descriptor { file, close_on_exec } = open.which.of(&open.subject)?;
    let mut flags = file.flags();
    flags.set(OpenFlags::CLOEXEC, close_on_exec);
    let pos = if file.ops.is_seekable() { *file.pos.lock() } else { 0 };
    let ino = file.ops.stat(&file).map_or(0, |stat| stat.ino);
    let mount = file.path.as_ref().map_or(0, |path| path.mount.id);
    writeln!(out, "pos:\t{pos}\nflags:\t0{:o}\nmnt_id:\t{mount}\nino:\t{ino}", flags.bits());
    if let Some(files) = open.subject.task().ok().and_then(|task| task.files()) {
        locks::of_descriptor(&files, &file, out)?;
    }
    out.push(&file.ops.fdinfo());
    Ok(())
}

/// The path of an open file. A file without a path (a pipe, a socket) gets a place of its own, whose inode opens the
/// same object again.
pub fn path_of(file: &Arc<File>) -> Path {
    match &file.path {
        Some(path) => path.clone(),
        None => Mount::of(unnamed(file), b"anon", b"none", Limits::empty()).path(),
    }
}

fn unnamed_statfs() -> HostStatFs {
    HostStatFs { kind: 0x0904_1934, bsize: 4096, namelen: 255, frsize: 4096, ..Default::default() }
}

/// The one attribute that a socket has.
const SOCKET_PROTOCOL: &[u8] = b"system.sockprotoname";

/// The inode of an open file that has no name: `/proc/self/fd/1` when that is a pipe.
pub struct Unnamed {
    file: Arc<File>,
}

/// The inode of an open socket. It does not keep the socket open, as on Linux: a file that leads to a place may be sent through the
/// socket itself, and nobody would ever close either.
struct UnnamedSocket {
    file: Weak<File>,
    /// Once it is closed: what it was shown as, its protocol, and its attributes when this was made.
    shown: Vec<u8>,
    protocol: &'static [u8],
    stat: Stat,
}

impl Inode for UnnamedSocket {
    fn stat(&self) -> Result<Stat> {
        self.file.upgrade().map_or(Ok(self.stat), |file| file.ops.stat(&file))
    }
    fn kind(&self) -> u32 {
        S_IFSOCK
    }
    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        Err(Errno::ENXIO)
    }
    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if name == SOCKET_PROTOCOL { Ok([self.protocol, &[0]].concat()) } else { Err(Errno::EOPNOTSUPP) }
    }
    fn list_xattr(&self) -> Result<Vec<u8>> {
        Ok([SOCKET_PROTOCOL, &[0]].concat())
    }
    fn statfs(&self) -> Result<HostStatFs> {
        Ok(unnamed_statfs())
    }
    fn shown_as(&self) -> Option<Vec<u8>> {
        Some(self.shown.clone())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn unnamed(file: &Arc<File>) -> Arc<dyn Inode> {
    match (file.as_ops::<SocketFile>(), file.ops.stat(file)) {
        (Some(socket), Ok(stat)) => Arc::new(UnnamedSocket {
            file: Arc::downgrade(file),
            shown: file.ops.describe(),
            protocol: socket.protocol_name(),
            stat,
        }),
        _ => Arc::new(Unnamed { file: file.clone() }),
    }
}

impl Inode for Unnamed {
    fn stat(&self) -> Result<Stat> {
        self.file.ops.stat(&self.file)
    }
    fn kind(&self) -> u32 {
        self.stat().map_or(S_IFREG, |stat| stat.mode & S_IFMT)
    }
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        if let Some(end) = self.file.as_ops::<PipeEnd>() {
            return end.reopen(flags);
        }
        Ok(Box::new(Again { file: self.file.clone() }))
    }
    fn statfs(&self) -> Result<HostStatFs> {
        Ok(unnamed_statfs())
    }
    fn shown_as(&self) -> Option<Vec<u8>> {
        Some(self.file.ops.describe())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Another description of an object that is open already: its own flags and position, the same operations.
struct Again {
    file: Arc<File>,
}

impl FileOps for Again {
    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        self.file.ops.read(file, buf, at)
    }
    fn write(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        self.file.ops.write(file, buf, at)
    }
    fn poll(&self, file: &File, table: Option<&mut PollTable>) -> PollEvents {
        self.file.ops.poll(file, table)
    }
    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        self.file.ops.seek(file, offset, whence)
    }
    fn is_seekable(&self) -> bool {
        self.file.ops.is_seekable()
    }
    fn ioctl(&self, cx: &CallerCtx<'_>, file: &File, request: u32, arg: u64) -> Result<u64> {
        self.file.ops.ioctl(cx, file, request, arg)
    }
    fn mapping(&self, file: &File, shared_write: bool) -> Result<MemoryObject> {
        self.file.ops.mapping(file, shared_write)
    }
    fn stat(&self, file: &File) -> Result<Stat> {
        self.file.ops.stat(file)
    }
    fn truncate(&self, file: &File, size: u64) -> Result<()> {
        self.file.ops.truncate(file, size)
    }
    fn allocate(&self, file: &File, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.file.ops.allocate(file, mode, offset, len)
    }
    fn sync(&self, file: &File, data_only: bool) -> Result<()> {
        self.file.ops.sync(file, data_only)
    }
    fn flags_changed(&self, file: &File, flags: OpenFlags) -> Result<()> {
        self.file.ops.flags_changed(file, flags)
    }
    fn deadline_ns(&self, events: PollEvents) -> Option<u64> {
        self.file.ops.deadline_ns(events)
    }
    fn pipe_size(&self) -> Result<u64> {
        self.file.ops.pipe_size()
    }
    fn set_pipe_size(&self, bytes: u64, privileged: bool) -> Result<u64> {
        self.file.ops.set_pipe_size(bytes, privileged)
    }
    fn seals(&self) -> Result<u32> {
        self.file.ops.seals()
    }
    fn add_seals(&self, seals: u32) -> Result<()> {
        self.file.ops.add_seals(seals)
    }
    fn describe(&self) -> Vec<u8> {
        self.file.ops.describe()
    }
    fn fdinfo(&self) -> Vec<u8> {
        self.file.ops.fdinfo()
    }
    fn flush(&self, file: &File, owner: &FileTable) {
        self.file.ops.flush(file, owner);
    }
    fn as_any(&self) -> &dyn Any {
        self.file.ops.as_any()
    }
}
