//! The records by which the VMM tells the kernel of a process, of a container and of the sandbox: their schema, the one encoder and the
//! one decoder.
//!
//! On the wire: number (u32, little endian), length (u32, little endian), fields; no alignment. Fields follow each other in the order
//! in which they are declared here, integers little endian; a list, and a text that is no [`Setting`]'s name, are the last field of
//! theirs. The VMM gets such records from who asks for a process or a container, and the kernel from the VMM.

mod process;
#[cfg(test)]
mod tests;
mod wire;

use core::fmt;

use crate::address::AddressPrefix;
use crate::boot::{MOUNT_FLAGS, NET_TABLES};
use crate::limits::ContainerLimit;
use crate::mount::{Handles, Kind, Mount, Settings};
pub use process::{Capabilities, Creds, ProcessFlags, Rlimit, Seccomp, Stream, Winsize};
use wire::{Field, Put, Reader, write_word};
pub use wire::{Item, List};

/// Declares a struct whose fields are fields of a record, in this order, and what must hold of them.
macro_rules! fields {
    ($(#[$doc:meta])* $vis:vis struct $name:ident $(<$life:lifetime>)? {
        $($(#[$field_doc:meta])* $field_vis:vis $field:ident: $type:ty,)+
    } $(if |$it:ident| $check:expr)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis struct $name $(<$life>)? {
            $($(#[$field_doc])* $field_vis $field: $type,)+
        }

        impl<'a> $crate::records::wire::Field<'a> for $name $(<$life>)? {
            fn read(from: &mut $crate::records::wire::Reader<'a>) -> Option<Self> {
                let read = Self { $($field: $crate::records::wire::Field::read(from)?,)+ };
                $(let $it = &read; if !$check { return None; })?
                Some(read)
            }

            fn write(&self, put: &mut $crate::records::wire::Put<'_>) {
                $($crate::records::wire::Field::write(&self.$field, put);)+
            }
        }
    };
}
pub(crate) use fields;

/// Declares the records by whom they are about, each with its number on the wire, its name and its fields.
macro_rules! records {
    ($($scope:ident: $($(#[$doc:meta])* $number:literal => $name:ident($type:ty),)+)+) => {
        /// A record.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Record<'a> {
            $($($(#[$doc])* $name($type),)+)+
        }

        /// The numbers of all records.
        pub const NUMBERS: &[u32] = &[$($($number,)+)+];

        impl<'a> Record<'a> {
            /// The record's number on the wire.
            #[must_use]
            pub const fn number(&self) -> u32 {
                match self {
                    $($(Self::$name(_) => $number,)+)+
                }
            }

            /// Whom the record is about.
            #[must_use]
            pub const fn scope(&self) -> Scope {
                match self {
                    $($(Self::$name(_) => Scope::$scope,)+)+
                }
            }

            fn read(number: u32, bytes: &'a [u8]) -> Result<Self, RecordError> {
                let mut from = Reader::new(bytes);
                let record = match number {
                    $($($number => Field::read(&mut from).map(Self::$name),)+)+
                    _ => return Err(RecordError::Unknown { number }),
                };
                record.filter(|_| from.is_at_end()).ok_or(RecordError::Malformed { number })
            }

            fn write(&self, put: &mut Put<'_>) {
                match self {
                    $($(Self::$name(fields) => fields.write(put),)+)+
                }
            }
        }
    };
}

/// Whom a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A process: the first of a container, or one that comes in from outside.
    Process,
    /// A container, by who asks for it.
    Container,
    /// The sandbox, or what its VMM alone may say of a process or a container.
    Sandbox,
}

records! {
    Process:
    /// One argument of the first process, in order; the first names the program (looked up in `PATH`).
    1 => Arg(&'a [u8]),
    /// One `NAME=value` of its environment.
    2 => Env(&'a [u8]),
    /// Its working directory.
    3 => Cwd(&'a [u8]),
    /// Its user and groups.
    5 => Creds(Creds<'a>),
    /// A descriptor that it begins with.
    7 => Stream(Stream),
    /// A limit of its resources.
    8 => Rlimit(Rlimit),
    /// Its file-mode creation mask.
    9 => Umask(u32),
    /// Its terminal's size; present when streams are a terminal the kernel drives (raw on the host).
    11 => Winsize(Winsize),
    /// Its capability sets. Without this record they follow from its user.
    13 => Capabilities(Capabilities),
    /// How it begins.
    17 => Flags(ProcessFlags),
    /// The filter of its system calls.
    21 => Seccomp(Seccomp<'a>),
    /// Its `oom_score_adj`.
    23 => OomScoreAdj(i32),

    Container:
    /// The host name.
    4 => Hostname(&'a [u8]),
    /// A mount. They are made in order; the root (`/`) is first.
    34 => Mount(Mount<&'a [u8], Handles>),
    /// The NIS domain name.
    12 => Domainname(&'a [u8]),
    /// A path whose content is hidden, if it exists: an empty read-only directory, or a file that reads as empty.
    14 => Masked(&'a [u8]),
    /// A path that is read-only, if it exists, with what lies below it.
    15 => ReadOnly(&'a [u8]),
    /// A limit of the container.
    16 => Limit(Limit),
    /// The ids of the container on the host, for `uid_map` and `gid_map` of `/proc`.
    24 => IdMaps(IdMaps<'a>),
    /// The id of the container whose pid space another one joins: the processes of both see each other, as in one pid namespace of
    /// Linux. Without this record a container has a pid space of its own.
    25 => PidSpace(u64),
    /// The id of a container whose System V objects and message queues the container shares.
    28 => IpcSpace(u64),
    /// A setting of the container's IPC namespace ([`crate::sysctl::IPC`]).
    29 => IpcSetting(Setting<'a>),

    Sandbox:
    /// After how many nanoseconds without anything from outside the kernel reports
    /// [`crate::report::Report::IdleTimeout`].
    18 => IdleTimeout(u64),
    /// The processor's features that the host's kernel knows and lets programs use: the words of `flags` in its
    /// `/proc/cpuinfo`. Without this record all that the processor tells of count.
    19 => CpuFlags(&'a str),
    /// Of an exec'd process: the id of the container it runs in; the first one if there is no such record.
    20 => Container(u64),
    /// A setting of the host's network namespace ([`crate::sysctl::NET`]).
    22 => Sysctl(Setting<'a>),
    /// Addresses from which connections and datagrams count as nothing from outside.
    26 => IdleIgnores(List<'a, AddressPrefix>),
    /// Deadlines of programs wake the sandbox while it hibernates ([`crate::report::WakeEvent::Timer`]). Without this record none does.
    30 => Timers(Timers),
    /// The host's table of the sockets in the sandbox's network, which others are in as well.
    31 => NetTable(NetTable),
    /// For how many nanoseconds beyond [`Record::IdleTimeout`] something may keep the sandbox awake of which nobody knows whether it ends.
    32 => AwakeAtMost(u64),
    /// Whether the sandbox sleeps though a task waits, with a time-out, for the answer to what it asked somebody outside.
    33 => OutboundSleep(bool),
    /// Of a sandbox that has had another VMM and opens its files anew: they may have changed since.
    37 => AcceptChanged(bool),
    /// Its sockets that were bound to a port are bound to another one.
    38 => PortMap(PortMap),
    /// Of a sandbox that begins with an image: the numbers of frames that come back first when it wakes.
    39 => WorkingSet(List<'a, u32>),
    /// Of one that reports the frames that its programs touch first ([`crate::report::Report::WorkingSet`]): until when, a [`RecordUntil`]
    /// as its number.
    40 => RecordWorkingSet(u32),
}

/// Until when touches are recorded; in any case until the sandbox hibernates or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordUntil {
    /// For a few seconds
    Time,
    /// For a few seconds, or until the first exec'd process has ended
    Exec,
    /// Until it hibernates
    Sleep,
}

impl RecordUntil {
    /// Its number, from 0.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The one of this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Time, Self::Exec, Self::Sleep].into_iter().find(|until| until.number() == number)
    }
}

fields! {
    /// A port of sockets that are made again.
    pub struct PortMap {
        /// The port that they had.
        pub old: u32,
        /// The port that they get.
        pub new: u32,
    } if |map| map.old != 0 && map.new != 0 && map.old <= 0xffff && map.new <= 0xffff
}

fields! {
    /// Deadlines that wake the sandbox.
    pub struct Timers {
        /// Those that were set so many nanoseconds before.
        pub ahead_ns: u64,
        /// They wake it at multiples of so many nanoseconds of the monotonic clock; 0: on time.
        pub grid_ns: u64,
    }
}

fields! {
    /// A mount's fields on the wire, before its path, a NUL and its source.
    struct MountHead {
        root: Option<u32>,
        lower: Option<u32>,
        flags: u32,
        kind: u32,
        size_bytes: Option<u64>,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    } if |head| head.flags & !MOUNT_FLAGS == 0 && (head.root.is_some() || head.lower.is_none())
}

impl<'a> Field<'a> for Mount<&'a [u8], Handles> {
    fn read(from: &mut Reader<'a>) -> Option<Self> {
        let MountHead { root, lower, flags, kind, size_bytes, mode, uid, gid } = Field::read(from)?;
        let handles = root.map(|root| Handles { root, lower });
        let kind = Kind::from_number(kind, handles, Settings { size_bytes, mode, uid, gid })?;
        Some(Self { path: from.word()?, source: from.rest(), kind, flags })
    }

    fn write(&self, put: &mut Put<'_>) {
        let settings = match self.kind {
            Kind::Host(..) => Settings::default(),
            Kind::Own(_, settings) => settings,
        };
        let Settings { size_bytes, mode, uid, gid } = settings;
        let (root, lower) =
            (self.files().map(|files| files.root), self.files().and_then(|files| files.lower));
        MountHead { root, lower, flags: self.flags, kind: self.kind.number(), size_bytes, mode, uid, gid }
            .write(put);
        write_word(self.path, put);
        self.source.write(put);
    }
}

/// The value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<'a> {
    /// The setting's name below `/proc/sys`; on the wire a NUL follows it.
    pub name: &'a [u8],
    /// Its text.
    pub value: &'a [u8],
}

impl<'a> Field<'a> for Setting<'a> {
    fn read(from: &mut Reader<'a>) -> Option<Self> {
        Some(Self { name: from.word()?, value: from.rest() })
    }

    fn write(&self, put: &mut Put<'_>) {
        write_word(self.name, put);
        self.value.write(put);
    }
}

/// A limit of a container. On the wire its number has 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit.
    pub limit: ContainerLimit,
    /// Its value; [`crate::limits::NO_LIMIT`]: there is none.
    pub value: u64,
}

impl Field<'_> for Limit {
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self { limit: ContainerLimit::from_number(from.padded()?)?, value: Field::read(from)? })
    }

    fn write(&self, put: &mut Put<'_>) {
        u64::from(self.limit.number()).write(put);
        self.value.write(put);
    }
}

/// Ids as triples: first inside, first outside, count. On the wire the number of those of users (u32) comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMaps<'a> {
    /// Those of users.
    pub users: List<'a, [u32; 3]>,
    /// Those of groups.
    pub groups: List<'a, [u32; 3]>,
}

impl<'a> Field<'a> for IdMaps<'a> {
    fn read(from: &mut Reader<'a>) -> Option<Self> {
        let users = usize::try_from(u32::read(from)?).ok()?.checked_mul(<[u32; 3]>::BYTES)?;
        let (users, groups) = from.rest().split_at_checked(users)?;
        Some(Self { users: List::read_all(users)?, groups: List::read_all(groups)? })
    }

    fn write(&self, put: &mut Put<'_>) {
        u32::try_from(self.users.len()).unwrap_or(u32::MAX).write(put);
        self.users.write(put);
        self.groups.write(put);
    }
}

/// A table of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetTable {
    /// The handle of the open table.
    pub handle: u32,
    /// One of [`NET_TABLES`].
    pub name: &'static str,
}

impl Field<'_> for NetTable {
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let (handle, name) = (u32::read(from)?, from.rest());
        let name = NET_TABLES.into_iter().find(|known| known.as_bytes() == name)?;
        Some(Self { handle, name })
    }

    fn write(&self, put: &mut Put<'_>) {
        self.handle.write(put);
        self.name.write(put);
    }
}

/// Why bytes are no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The last record is not whole.
    CutOff,
    /// There is no record of this number.
    Unknown {
        /// The number.
        number: u32,
    },
    /// The fields of a record are not those of its kind.
    Malformed {
        /// The record's number.
        number: u32,
    },
}

/// The end of a sentence that names the records.
impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutOff => f.write_str("their end is cut off"),
            Self::Unknown { number } => write!(f, "number {number} is unknown"),
            Self::Malformed { number } => write!(f, "number {number} is malformed"),
        }
    }
}

impl Record<'_> {
    /// Appends the record to `out`.
    pub fn encode(&self, out: &mut impl Extend<u8>) {
        let mut len = 0;
        self.write(&mut |piece| len += piece.len());
        let mut put = |piece: &[u8]| out.extend(piece.iter().copied());
        put(&self.number().to_le_bytes());
        // Records of so many bytes are for nobody: what reads them has a bound of less.
        put(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        self.write(&mut put);
    }
}

/// The records in `bytes`. One that is unknown or malformed is an error in its place; nothing follows [`RecordError::CutOff`].
pub fn decode(bytes: &[u8]) -> impl Iterator<Item = Result<Record<'_>, RecordError>> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((number, bytes, tail)) = split(rest) else {
            rest = &[];
            return Some(Err(RecordError::CutOff));
        };
        rest = tail;
        Some(Record::read(number, bytes))
    })
}

/// The number and the fields of the first record, and what follows it.
fn split(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (number, bytes) = bytes.split_first_chunk()?;
    let (len, bytes) = bytes.split_first_chunk()?;
    let (fields, rest) = bytes.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)?;
    Some((u32::from_le_bytes(*number), fields, rest))
}
