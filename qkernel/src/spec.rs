//! The VMM's description of a container's first process, or of an exec'd process, read from its records.

use abi::address::AddressPrefix;
use abi::limits::ContainerLimit;
use abi::mount::{Handles, Kind, Mount};
use abi::records::{
    self, Capabilities, ProcessFlags, Record, RecordError, RecordUntil, Rlimit, Setting, Timers, decode,
};
use abi::seccomp::Instruction;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::creds::{CAP_ALL, Creds};
use crate::limits::{Limit, Limits, RLIM_COUNT, RLIMIT_NOFILE};
use crate::seccomp::filter::{Filter, NewFilter};
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::objects::{Given, Origin};

/// The description of the process and of its surroundings; see [`abi::records`].
#[derive(Default)]
pub struct Spec {
    pub args: Vec<Vec<u8>>,
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    pub hostname: Vec<u8>,
    pub domainname: Vec<u8>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// In the order they are made, the root first.
    pub mounts: Vec<MountSpec>,
    pub masked: Vec<Vec<u8>>,
    pub read_only: Vec<Vec<u8>>,
    streams: Vec<StreamSpec>,
    rlimits: Vec<Rlimit>,
    pub umask: Option<u32>,
    pub oom_score_adj: Option<i32>,
    pub id_maps: Option<IdMaps>,
    /// Rows and columns.
    pub winsize: Option<(u16, u16)>,
    /// Limits of the container, with their values.
    pub limits: Vec<(ContainerLimit, u64)>,
    /// The container of an exec'd process.
    pub container: u64,
    /// The container whose process ids a container shares.
    pub pid_space: Option<u64>,
    /// The container whose System V objects and message queues a container shares.
    pub ipc_space: Option<u64>,
    /// Settings of its own IPC namespace, by name.
    pub ipc_settings: Vec<(Vec<u8>, Vec<u8>)>,
    /// Nanoseconds; 0: it does not hibernate by itself.
    pub idle_timeout_ns: u64,
    /// Who comes from these addresses counts as nobody for that.
    pub idle_ignores: Vec<AddressPrefix>,
    /// Deadlines that wake it while it hibernates; `None`: none does.
    pub timers: Option<Timers>,
    /// For how long beyond that something may keep it awake of which nobody knows whether it ends.
    pub awake_at_most_ns: u64,
    /// It sleeps though a task waits, with a time-out, for the answer to what it asked.
    pub outbound_sleeps: bool,
    /// Files that are opened anew may have changed since.
    pub accepts_changed: bool,
    /// Ports of sockets that are made again: those that they had, and get.
    pub ports: Vec<(u16, u16)>,
    /// Frames of the image that come back first; whoever recorded them may say anything.
    pub working_set: Vec<u32>,
    /// It reports the frames that its programs touch first, until then; `None`: it does not.
    pub records_working_set: Option<RecordUntil>,
    /// Words: the features of the processor that the host's kernel lists.
    pub cpu_flags: Option<String>,
    /// Settings of the host's network namespace, by name.
    pub sysctls: Vec<(Vec<u8>, Vec<u8>)>,
    /// The host's tables of the sockets in the network, by name.
    pub net_tables: Vec<(&'static str, Handle)>,
    capabilities: Option<Capabilities>,
    /// Whether it logs, and its program.
    seccomp: Option<(bool, Vec<Instruction>)>,
    /// How the process begins.
    pub flags: ProcessFlags,
}

/// Why there is no description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// A record is not as it should be.
    Record(RecordError),
    /// The file that a record names cannot be kept.
    Kept(Errno),
}

impl From<RecordError> for SpecError {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl From<Errno> for SpecError {
    fn from(error: Errno) -> Self {
        Self::Kept(error)
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(error) => error.fmt(f),
            Self::Kept(Errno(number)) => write!(f, "error {number}"),
        }
    }
}

/// A stream of the host's; it is closed with whoever drops it last.
pub struct StreamSpec {
    pub fd: u32,
    pub handle: Arc<Handle>,
    pub flags: u32,
}

/// A mount to be made.
pub type MountSpec = Mount<Vec<u8>, HostFiles>;

/// The host's files that a mount shows.
pub struct HostFiles {
    pub root: Handle,
    /// The lower directory of an overlay.
    pub lower: Option<Handle>,
}

/// Ids of the container: first inside, first outside, count.
pub struct IdMaps {
    pub users: Vec<[u32; 3]>,
    pub groups: Vec<[u32; 3]>,
}

impl Spec {
    /// Reads the records. An error is that of the first one which is unknown or malformed; handles in the others are given back.
    pub fn parse(bytes: &[u8]) -> core::result::Result<Self, SpecError> {
        let mut spec = Self::default();
        let mut first_error = None;
        for record in decode(bytes) {
            let taken = record.map_err(SpecError::from).and_then(|record| Ok(spec.take(record)?));
            first_error = first_error.or(taken.err());
        }
        first_error.map_or(Ok(spec), Err)
    }

    /// Says of its files whose they are: those of the container with this number, or of the process that has come into it.
    pub fn say_whose(&self, of: u64, entrant: u64) {
        for (at, mount) in (0..).zip(&self.mounts) {
            let Kind::Host(_, HostFiles { root, lower }) = &mount.kind else { continue };
            for (handle, is_lower) in [(Some(root), false), (lower.as_ref(), true)] {
                let root = Given::Mount { container: of, path: mount.path[..].into(), at, is_lower };
                handle.iter().for_each(|handle| handle.comes_from(Origin::Given(root.clone())));
            }
        }
        for stream in &self.streams {
            stream.handle.comes_from(Origin::Given(Given::Stream { container: of, entrant, fd: stream.fd }));
        }
    }

    /// Takes a record that says what the container's first process is.
    fn take(&mut self, record: Record<'_>) -> Result<()> {
        match record {
            Record::Arg(arg) => self.args.push(arg.to_vec()),
            Record::Env(var) => self.env.push(var.to_vec()),
            Record::Cwd(path) => self.cwd = path.to_vec(),
            Record::Creds(creds) => {
                (self.uid, self.gid, self.groups) = (creds.uid, creds.gid, creds.groups.iter().collect());
            }
            Record::Capabilities(sets) => self.capabilities = Some(sets),
            Record::Seccomp(filter) => self.seccomp = Some((filter.logs, filter.program.iter().collect())),
            Record::Stream(records::Stream { fd, handle, flags }) => {
                let handle = Handle::given(handle, Given::Stream { container: 0, entrant: 0, fd })?;
                self.streams.push(StreamSpec { fd, handle: Arc::new(handle), flags });
            }
            Record::Rlimit(limit) => self.rlimits.push(limit),
            Record::Umask(mask) => self.umask = Some(mask),
            Record::OomScoreAdj(score) => self.oom_score_adj = Some(score),
            Record::Winsize(size) => self.winsize = Some((size.rows, size.columns)),
            Record::Flags(flags) => self.flags = flags,
            _ => return self.take_surroundings(record),
        }
        Ok(())
    }

    /// Takes a record of what the process finds in its container, or of the sandbox.
    fn take_surroundings(&mut self, record: Record<'_>) -> Result<()> {
        match record {
            Record::Hostname(name) => self.hostname = name.to_vec(),
            Record::Domainname(name) => self.domainname = name.to_vec(),
            Record::Mount(mount) => self.mounts.push(owned_mount(mount)?),
            Record::Masked(path) => self.masked.push(path.to_vec()),
            Record::ReadOnly(path) => self.read_only.push(path.to_vec()),
            Record::IdMaps(records::IdMaps { users, groups }) => {
                self.id_maps =
                    Some(IdMaps { users: users.iter().collect(), groups: groups.iter().collect() });
            }
            Record::Container(id) => self.container = id,
            Record::PidSpace(id) => self.pid_space = Some(id),
            Record::IpcSpace(id) => self.ipc_space = Some(id),
            Record::IpcSetting(setting) => self.ipc_settings.push(owned(setting)),
            Record::Limit(records::Limit { limit, value }) => self.limits.push((limit, value)),
            Record::IdleTimeout(ns) => self.idle_timeout_ns = ns,
            Record::AwakeAtMost(ns) => self.awake_at_most_ns = ns,
            Record::OutboundSleep(sleeps) => self.outbound_sleeps = sleeps,
            Record::AcceptChanged(accepts) => self.accepts_changed = accepts,
            Record::PortMap(map) => {
                let ports = (u16::try_from(map.old), u16::try_from(map.new));
                if let (Ok(old), Ok(new)) = ports {
                    self.ports.push((old, new));
                }
            }
            Record::WorkingSet(frames) => self.working_set = frames.iter().collect(),
            Record::RecordWorkingSet(until) => self.records_working_set = RecordUntil::from_number(until),
            Record::IdleIgnores(prefixes) => self.idle_ignores = prefixes.iter().collect(),
            Record::Timers(timers) => self.timers = Some(timers),
            Record::CpuFlags(flags) => self.cpu_flags = Some(flags.into()),
            Record::Sysctl(setting) => self.sysctls.push(owned(setting)),
            Record::NetTable(table) => {
                let given = Given::Text { name: table.name.as_bytes().into() };
                self.net_tables.push((table.name, Handle::given(table.handle, given)?));
            }
            Record::Arg(_)
            | Record::Env(_)
            | Record::Cwd(_)
            | Record::Creds(_)
            | Record::Capabilities(_)
            | Record::Seccomp(_)
            | Record::Stream(_)
            | Record::Rlimit(_)
            | Record::Umask(_)
            | Record::OomScoreAdj(_)
            | Record::Winsize(_)
            | Record::Flags(_) => {}
        }
        Ok(())
    }

    /// The files of its mounts and streams, for a container that is there already.
    pub fn take_files(&mut self) -> Vec<Handle> {
        let of_mounts = core::mem::take(&mut self.mounts).into_iter().flat_map(|mount| match mount.kind {
            Kind::Host(_, HostFiles { root, lower }) => [Some(root), lower],
            Kind::Own(..) => [None, None],
        });
        let of_streams = self.take_streams().into_iter().map(|stream| Arc::into_inner(stream.handle));
        of_mounts.chain(of_streams).flatten().collect()
    }

    /// Its streams, for whoever opens them.
    pub fn take_streams(&mut self) -> Vec<StreamSpec> {
        core::mem::take(&mut self.streams)
    }

    /// The first process's credentials. Its capabilities once its program runs follow by the rules of `execve(2)`.
    pub fn creds(&self) -> Creds {
        let mut creds = Creds::new(self.uid, self.gid, self.groups.clone());
        if let Some(sets) = self.capabilities {
            let permitted = sets.permitted & CAP_ALL;
            (creds.bounding, creds.effective) = (sets.bounding & CAP_ALL, sets.effective & permitted);
            (creds.permitted, creds.inheritable) = (permitted, sets.inheritable & CAP_ALL);
            creds.ambient = sets.ambient & permitted & sets.inheritable;
        }
        creds
    }

    /// Its filter of system calls. A bad one is an error: without its filter no process begins.
    pub fn seccomp(&self) -> Result<Option<Arc<Filter>>> {
        let Some((logs, program)) = &self.seccomp else { return Ok(None) };
        NewFilter::new(program.clone(), *logs)?.onto(None).map(Some)
    }

    /// Its resource limits.
    pub fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        for Rlimit { resource, soft, hard } in &self.rlimits {
            if let Some(limit) =
                limits.0.get_mut(*resource as usize).filter(|_| (*resource as usize) < RLIM_COUNT)
            {
                *limit = Limit { soft: *soft, hard: *hard };
            }
        }
        // A process meets its own limit before the sandbox's.
        let files = &mut limits.0[RLIMIT_NOFILE];
        let most = machine::handles::most_for_one();
        *files = Limit { soft: files.soft.min(most), hard: files.hard.min(most) };
        limits
    }
}

fn owned_mount(mount: Mount<&[u8], Handles>) -> Result<MountSpec> {
    // Of the first container's until its number is known.
    let given = |handle, is_lower| {
        let path = mount.path.into();
        Handle::given(handle, Given::Mount { container: 0, path, at: 0, is_lower })
    };
    let files = |Handles { root, lower }| {
        let (root, lower) = (given(root, false), lower.map(|lower| given(lower, true)));
        Ok(HostFiles { root: root?, lower: lower.transpose()? })
    };
    mount.map_words(|word| word.to_vec()).try_map_files(files)
}

fn owned(setting: Setting<'_>) -> (Vec<u8>, Vec<u8>) {
    (setting.name.to_vec(), setting.value.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::mount::{FileSystem, Settings};
    use abi::records::Seccomp;

    fn spec(records: &[Record<'_>]) -> core::result::Result<Spec, SpecError> {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.encode(&mut bytes));
        Spec::parse(&bytes)
    }

    #[test]
    fn mounts_are_made_in_the_order_of_their_records() {
        let kind = Kind::Own(FileSystem::Tmpfs, Settings { mode: Some(0o755), ..Settings::default() });
        let first = Mount { path: &b"/"[..], source: &b"none"[..], kind, flags: 2 };
        let second = Mount { path: &b"/tmp"[..], ..first };
        let spec = spec(&[Record::Mount(first), Record::Mount(second)]).unwrap();
        let found = spec.mounts.iter().map(|mount| (&*mount.path, &*mount.source, mount.flags));
        assert_eq!(found.collect::<Vec<_>>(), [(&b"/"[..], &b"none"[..], 2), (b"/tmp", b"none", 2)]);
        assert!(spec.mounts.iter().all(|mount| mount.files().is_none()));
        assert!(
            matches!(spec.mounts[0].kind, Kind::Own(FileSystem::Tmpfs, settings) if settings.mode == Some(0o755))
        );
    }

    #[test]
    fn process_ids_are_shared_with_nobody_unless_a_record_says_so() {
        assert_eq!(spec(&[]).unwrap().pid_space, None);
        assert_eq!(spec(&[Record::PidSpace(7)]).unwrap().pid_space, Some(7));
    }

    #[test]
    fn one_bad_record_is_an_error_wherever_it_is() {
        let mut bytes = Vec::new();
        Record::Arg(b"sh").encode(&mut bytes);
        Record::Umask(0o22).encode(&mut bytes);
        assert_eq!(Spec::parse(&bytes).unwrap().args, [b"sh"]);
        assert_eq!(Spec::parse(&bytes[..bytes.len() - 1]).err(), Some(RecordError::CutOff.into()));
        let at = bytes.len() - 12;
        bytes[at] = 99;
        Record::Env(b"A=1").encode(&mut bytes);
        assert_eq!(Spec::parse(&bytes).err(), Some(RecordError::Unknown { number: 99 }.into()));
    }

    #[test]
    fn a_bad_filter_is_no_filter_at_all_but_an_error() {
        let refuses = [Instruction::plain(0x06, 0x5_0001)];
        let with = |program: &[Instruction]| {
            spec(&[Record::Seccomp(Seccomp { logs: false, program: program.into() })]).unwrap().seccomp()
        };
        assert!(matches!(spec(&[]).unwrap().seccomp(), Ok(None)));
        assert_eq!(with(&refuses).unwrap().map(|filter| filter.count()), Some(1));
        for bad in [&[][..], &[Instruction::default()]] {
            assert_eq!(with(bad).err(), Some(Errno::EINVAL), "{bad:?}");
        }
    }

    #[test]
    fn capabilities_never_exceed_what_was_given() {
        let sets = Capabilities { bounding: 7, effective: 3, permitted: 1, inheritable: 1, ambient: 3 };
        let creds = spec(&[Record::Capabilities(sets)]).unwrap().creds();
        assert_eq!((creds.bounding, creds.effective, creds.permitted), (7, 1, 1));
        assert_eq!((creds.inheritable, creds.ambient), (1, 1));
        let all = Capabilities { bounding: u64::MAX, ..sets };
        assert_eq!(spec(&[Record::Capabilities(all)]).unwrap().creds().bounding, CAP_ALL);
    }
}
