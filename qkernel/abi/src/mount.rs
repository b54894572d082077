//! A mount, in one form from where it is asked for to the kernel that makes it.

use core::convert::Infallible;

/// A mount. `T` holds its words, `H` the host's files that it shows, where it shows any: how they are named, open, or known to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mount<T, H> {
    /// The path in the sandbox.
    pub path: T,
    /// The source, as programs see it.
    pub source: T,
    /// The files or the file system that it shows.
    pub kind: Kind<H>,
    /// [`crate::boot::MOUNT_READ_ONLY`] ….
    pub flags: u32,
}

/// The files or the file system that a mount shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<H> {
    /// The host's files.
    Host(HostKind, H),
    /// A file system that the kernel makes itself.
    Own(FileSystem, Settings),
}

/// By what type programs see files of the host's.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// The root of a bundle.
    Root = 1,
    /// A copy-on-write view of the host's root.
    Overlay = 2,
    /// A mount of a bundle.
    Bind = 3,
    /// A volume, or a mount of the host's, beside such a view.
    Plain = 4,
}

/// A file system that the kernel makes itself.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// `/proc`.
    Proc = 16,
    /// `/sys`.
    Sysfs = 17,
    /// Files in memory.
    Tmpfs = 18,
    /// Files in memory, the devices among them.
    Devices = 19,
    /// Those, as a `tmpfs`, which the `/dev` of a bundle is elsewhere.
    DevicesInTmpfs = 20,
    /// Pseudo-terminals.
    Terminals = 21,
    /// Message queues.
    Queues = 22,
    /// Control groups.
    ControlGroups = 23,
}

/// Settings of a file system in memory, or of that of terminals; `None`: as it has them by itself. Others have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Most bytes of its files; 0: no bound.
    pub size_bytes: Option<u64>,
    /// Mode of its root; of terminals, of each of them.
    pub mode: Option<u32>,
    /// Owner of its root.
    pub uid: Option<u32>,
    /// Group of its root; of terminals, of each of them.
    pub gid: Option<u32>,
}

/// The host's files of a mount as the VMM knows them and the kernel names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handles {
    /// The handle of the file or directory.
    pub root: u32,
    /// The handle of the lower directory of an overlay, read-only. Where the sandbox has changed nothing, the overlay shows what lies
    /// there, by the same inode numbers and with all else the same but the device number.
    pub lower: Option<u32>,
}

impl HostKind {
    const ALL: [Self; 4] = [Self::Root, Self::Overlay, Self::Bind, Self::Plain];

    /// The type's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Root => "dormouse",
            Self::Overlay => "overlay",
            Self::Bind => "bind",
            Self::Plain => "host",
        }
    }
}

impl FileSystem {
    const ALL: [Self; 8] = [
        Self::Proc,
        Self::Sysfs,
        Self::Tmpfs,
        Self::Devices,
        Self::DevicesInTmpfs,
        Self::Terminals,
        Self::Queues,
        Self::ControlGroups,
    ];

    /// The name of its type, as programs see it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proc => "proc",
            Self::Sysfs => "sysfs",
            Self::Tmpfs | Self::DevicesInTmpfs => "tmpfs",
            Self::Devices => "devtmpfs",
            Self::Terminals => "devpts",
            Self::Queues => "mqueue",
            Self::ControlGroups => "cgroup2",
        }
    }
}

impl<H> Kind<H> {
    /// The kind of this number, which shows the host's files if there are any; `None`: there is no such kind.
    pub(crate) fn from_number(number: u32, files: Option<H>, settings: Settings) -> Option<Self> {
        let host = HostKind::ALL.into_iter().find(|kind| *kind as u32 == number);
        let own = FileSystem::ALL.into_iter().find(|kind| *kind as u32 == number);
        match (host, own, files) {
            (Some(kind), None, Some(files)) if settings == Settings::default() => {
                Some(Self::Host(kind, files))
            }
            (None, Some(kind), None) => Some(Self::Own(kind, settings)),
            _ => None,
        }
    }

    /// Its number in a record.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Host(kind, _) => *kind as u32,
            Self::Own(kind, _) => *kind as u32,
        }
    }

    /// The name of the type that programs see.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Host(kind, _) => kind.name(),
            Self::Own(kind, _) => kind.name(),
        }
    }
}

impl<T, H> Mount<T, H> {
    /// A mount of the host's files.
    pub fn of_host(kind: HostKind, files: H, path: T, flags: u32) -> Self
    where
        T: From<&'static str>,
    {
        Self { path, source: kind.name().into(), kind: Kind::Host(kind, files), flags }
    }

    /// A mount of a file system that the kernel makes, without settings.
    pub fn of_kernel(kind: FileSystem, path: T, flags: u32) -> Self
    where
        T: From<&'static str>,
    {
        Self { path, source: kind.name().into(), kind: Kind::Own(kind, Settings::default()), flags }
    }

    /// The host's files that it shows.
    pub fn files(&self) -> Option<&H> {
        match &self.kind {
            Kind::Host(_, files) => Some(files),
            Kind::Own(..) => None,
        }
    }

    /// Whether it has a flag.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// The mount with the host's files in another form.
    pub fn map_files<K>(self, map: impl FnOnce(H) -> K) -> Mount<T, K> {
        let Ok(mount) = self.try_map_files(|files| Ok::<K, Infallible>(map(files)));
        mount
    }

    /// [`Self::map_files`], which may fail.
    pub fn try_map_files<K, E>(self, map: impl FnOnce(H) -> Result<K, E>) -> Result<Mount<T, K>, E> {
        let kind = match self.kind {
            Kind::Host(kind, files) => Kind::Host(kind, map(files)?),
            Kind::Own(kind, settings) => Kind::Own(kind, settings),
        };
        Ok(Mount { path: self.path, source: self.source, kind, flags: self.flags })
    }
}

impl<T, H: Copy> Mount<T, H> {
    /// The mount with its words in another form.
    pub fn map_words<'a, U>(&'a self, map: impl Fn(&'a T) -> U) -> Mount<U, H> {
        Mount { path: map(&self.path), source: map(&self.source), kind: self.kind, flags: self.flags }
    }
}
