//! `/proc/PID/ns`: the namespaces of a process, and the files that stand for them (`namespaces(7)`).

use abi::hostcall::HostStatFs;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::caller::CallerCtx;
use crate::fs::file::{File, FileOps, OpenFlags};
use crate::fs::inode::{Inode, LinkTarget, S_IFREG, Stat};
use crate::fs::mount::{Limits, Mount};
use crate::fs::path::Path;
use crate::fs::poll::PollTable;
use crate::proc::subject::Subject;
use crate::pseudo::Entry;
use crate::task::container;
use crate::task::container::{Container, ContainerId};
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::sched::wait::PollEvents;

/// `st_dev` of the files, and `f_type` of their file system.
const DEV: u64 = 0x4;
const MAGIC: u64 = 0x6e73_6673;
/// Numbers of namespaces that are not the first ones begin here.
const FURTHER: u32 = 0xf000_0000;
/// Kinds of namespaces, rounded up.
const KINDS: u64 = 16;

const GET_OWNER_SPACE: u32 = 0xb701;
const GET_PARENT: u32 = 0xb702;
const GET_KIND: u32 = 0xb703;
const GET_OWNER: u32 = 0xb704;

/// A kind of namespaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Cgroup,
    Ipc,
    Mount,
    Net,
    Pid,
    Time,
    User,
    Uts,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Cgroup, Self::Ipc, Self::Mount, Self::Net, Self::Pid, Self::Time, Self::User, Self::Uts];

    /// `CLONE_NEW*`.
    pub const fn flag(self) -> u32 {
        match self {
            Self::Time => 0x80,
            Self::Mount => 0x2_0000,
            Self::Cgroup => 0x200_0000,
            Self::Uts => 0x400_0000,
            Self::Ipc => 0x800_0000,
            Self::User => 0x1000_0000,
            Self::Pid => 0x2000_0000,
            Self::Net => 0x4000_0000,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Ipc => "ipc",
            Self::Mount => "mnt",
            Self::Net => "net",
            Self::Pid => "pid",
            Self::Time => "time",
            Self::User => "user",
            Self::Uts => "uts",
        }
    }

    /// The number of the first namespace of the kind, the same as on every Linux.
    const fn first(self) -> u32 {
        match self {
            Self::Mount => 0xefff_fff8,
            Self::Net => 0xefff_fff9,
            Self::Time => 0xefff_fffa,
            Self::Cgroup => 0xefff_fffb,
            Self::Pid => 0xefff_fffc,
            Self::User => 0xefff_fffd,
            Self::Uts => 0xefff_fffe,
            Self::Ipc => 0xefff_ffff,
        }
    }
}

/// A namespace. Those of two processes are the same if these are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespace {
    pub kind: Kind,
    /// The inode number.
    ino: u32,
}

impl Namespace {
    /// That of a container's processes.
    pub fn of(container: &Container, kind: Kind) -> Self {
        let further = match kind {
            Kind::Mount | Kind::Uts | Kind::Cgroup => container.id.0,
            Kind::Pid => unless_first(container, container.pids.number, |of| of.pids.clone()),
            Kind::Ipc => unless_first(container, container.id.0, Container::ipc),
            Kind::Net | Kind::Time | Kind::User => 0,
        };
        let number = (further * KINDS + u64::from(kind.first() & 7)) & u64::from(!FURTHER);
        let ino = if further == 0 { kind.first() } else { FURTHER | u32::try_from(number).unwrap_or(0) };
        Self { kind, ino }
    }

    /// Whether the current task is in it.
    pub fn is_own(&self) -> bool {
        *self == Self::of(&container::current(), self.kind)
    }

    fn text(&self) -> Vec<u8> {
        format!("{}:[{}]", self.kind.name(), self.ino).into_bytes()
    }

    fn stat(&self) -> Stat {
        Stat {
            dev: DEV,
            ino: u64::from(self.ino),
            mode: S_IFREG | 0o444,
            nlink: 1,
            blksize: 4096,
            ..Stat::default()
        }
    }

    fn path(self) -> Path {
        Mount::of(Arc::new(Node(self)), b"nsfs", b"nsfs", Limits::empty()).path()
    }
}

/// The number of what a container may have in common with the sandbox's first one, which is `own` where it has not.
fn unless_first<T>(container: &Container, own: u64, part: impl Fn(&Container) -> Arc<T>) -> u64 {
    let first = container::find(ContainerId::FIRST);
    let is_firsts = first.is_some_and(|first| Arc::ptr_eq(&part(&first), &part(container)));
    if is_firsts { 0 } else { own }
}

/// The namespace, open as a file.
pub fn open(namespace: Namespace) -> Result<Arc<File>> {
    let path = namespace.path();
    let ops = path.inode.clone().open(OpenFlags::empty())?;
    Ok(File::new(ops, OpenFlags::empty(), Some(path)))
}

/// The namespace that is open as a file.
pub fn of_file(file: &File) -> Option<Namespace> {
    file.as_ops::<Open>().map(|open| open.0)
}

const fn link(name: &'static str, target: fn(&Subject) -> Result<LinkTarget>) -> Entry<Subject> {
    Entry::link(name, target).guarded()
}

/// `ns/`.
pub static TABLE: &[Entry<Subject>] = &[
    link("cgroup", |subject| target(subject, Kind::Cgroup)),
    link("ipc", |subject| target(subject, Kind::Ipc)),
    link("mnt", |subject| target(subject, Kind::Mount)),
    link("net", |subject| target(subject, Kind::Net)),
    link("pid", |subject| target(subject, Kind::Pid)),
    link("pid_for_children", |subject| target(subject, Kind::Pid)),
    link("time", |subject| target(subject, Kind::Time)),
    link("time_for_children", |subject| target(subject, Kind::Time)),
    link("user", |subject| target(subject, Kind::User)),
    link("uts", |subject| target(subject, Kind::Uts)),
];

fn target(subject: &Subject, kind: Kind) -> Result<LinkTarget> {
    Ok(LinkTarget::Direct(Namespace::of(&subject.process.container, kind).path()))
}

/// The file that stands for a namespace.
struct Node(Namespace);

impl Inode for Node {
    fn stat(&self) -> Result<Stat> {
        Ok(self.0.stat())
    }
    fn kind(&self) -> u32 {
        S_IFREG
    }
    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        Ok(Box::new(Open(self.0)))
    }
    fn statfs(&self) -> Result<HostStatFs> {
        Ok(HostStatFs { kind: MAGIC, bsize: 4096, namelen: 255, frsize: 4096, ..Default::default() })
    }
    fn shown_as(&self) -> Option<Vec<u8>> {
        Some(self.0.text())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An open namespace.
struct Open(Namespace);

impl Open {
    /// Another namespace as a descriptor.
    fn install(cx: &CallerCtx<'_>, other: Namespace) -> Result<u64> {
        cx.install(open(other)?, true)
    }
}

impl FileOps for Open {
    fn poll(&self, _file: &File, _table: Option<&mut PollTable>) -> PollEvents {
        PollEvents::READABLE | PollEvents::WRITABLE
    }

    /// `ioctl_nsfs(2)`. No namespace is within another that somebody inside could see.
    fn ioctl(&self, cx: &CallerCtx<'_>, _file: &File, request: u32, arg: u64) -> Result<u64> {
        let kind = self.0.kind;
        match request {
            GET_KIND => Ok(u64::from(kind.flag())),
            GET_OWNER_SPACE if kind == Kind::User => Err(Errno::EPERM),
            GET_OWNER_SPACE => Self::install(cx, Namespace::of(&container::current(), Kind::User)),
            GET_PARENT if matches!(kind, Kind::Pid | Kind::User) => Err(Errno::EPERM),
            GET_PARENT => Err(Errno::EINVAL),
            GET_OWNER if kind == Kind::User => {
                cx.user().write(UserAddr::new(arg), &0_u32)?;
                Ok(0)
            }
            GET_OWNER => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTTY),
        }
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        Ok(self.0.stat())
    }

    fn describe(&self) -> Vec<u8> {
        self.0.text()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
