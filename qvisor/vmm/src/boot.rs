//! The information that the kernel gets at boot: [`BootInfo`] and the records of the first process.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use abi::address::AddressPrefix;
use abi::boot::{BootInfo, Platform};
use abi::layout::{BOOT_INFO_PHYS, RECORDS_MAX, RECORDS_PHYS, USER_PHYS};
use abi::mount::Handles;
use abi::records::{
    self, Limit, NetTable, PortMap, ProcessFlags, Record, RecordError, RecordUntil, Seccomp, Setting,
    Winsize, decode,
};
pub use abi::records::{Capabilities, Rlimit, Stream};
use abi::seccomp::Instruction;
use abi::word::low32;

use crate::cpu::{self, XsaveLayout};
use crate::hibernate::Timers;
use crate::ids::{Extent, IdMaps};
use crate::limits::ContainerLimits;
use crate::memory::SandboxMemory;
use crate::process;

/// Why the boot information could not be written.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error("arguments, environment and mounts take {0} bytes, more than {RECORDS_MAX}")]
    TooLong(usize),
    #[error("the host gives no random bytes")]
    Random(#[source] std::io::Error),
    #[error("the boot information does not fit in kernel memory")]
    Memory,
}

/// User and groups of the first process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Creds {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// A filter of system calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Calls that the filter does not allow are logged.
    pub logs: bool,
    pub program: Vec<Instruction>,
}

/// A mount with the host's files as the kernel knows them.
pub type Mount = abi::mount::Mount<PathBuf, Handles>;

/// The first process and its view of the sandbox.
#[derive(Clone, Debug, Default)]
pub struct BootSpec {
    pub args: Vec<Vec<u8>>,
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    pub hostname: Vec<u8>,
    pub domainname: Vec<u8>,
    pub creds: Creds,
    /// `None`: as the user has them.
    pub capabilities: Option<Capabilities>,
    pub no_new_privs: bool,
    /// The filter of its system calls.
    pub seccomp: Option<Filter>,
    /// In the order they are made, the root first.
    pub mounts: Vec<Mount>,
    pub streams: Vec<Stream>,
    pub rlimits: Vec<Rlimit>,
    pub umask: u32,
    /// Of the first process and those it makes: how likely they are ended when memory is short.
    pub oom_score_adj: Option<i32>,
    /// The container's ids on the host; none: all, as they are.
    pub id_maps: Option<IdMaps>,
    /// Settings of the network namespace, by their names below `/proc/sys`.
    pub sysctls: Vec<(String, Vec<u8>)>,
    /// The host's tables of the sockets in that namespace, by name, where others' sockets are in it as well.
    pub net_tables: Vec<(&'static str, u32)>,
    /// Paths whose content is hidden.
    pub masked: Vec<Vec<u8>>,
    /// Paths that are read-only.
    pub read_only: Vec<Vec<u8>>,
    /// Limits of the container.
    pub limits: ContainerLimits,
    /// The container whose pid space a further one joins; none: it has its own.
    pub pid_space: Option<u64>,
    /// The container whose System V objects and message queues a further one shares; none: it has its own.
    pub ipc_space: Option<u64>,
    /// Settings of its IPC namespace, by their names below `/proc/sys`.
    pub ipc_settings: Vec<(String, String)>,
    /// The kernel reports when nothing has come from outside for so long.
    pub idle_timeout: Option<Duration>,
    /// Who comes from these addresses counts as nobody for that.
    pub idle_ignores: Vec<AddressPrefix>,
    /// The effect that deadlines of programs have on the sandbox while it hibernates.
    pub timers: Timers,
    /// For how long beyond that time something may keep it awake of which nobody knows whether it ends.
    pub awake_at_most: Duration,
    /// It sleeps though a task waits, with a time-out, for the answer to what it asked somebody outside.
    pub outbound_sleeps: bool,
    /// Of a sandbox that opens its files anew: they may have changed since its memory was taken.
    pub accepts_changed: bool,
    /// Ports that its sockets had and get instead.
    pub ports: Vec<(u16, u16)>,
    /// Of a sandbox that begins with an image: pages that come back first.
    pub working_set: Vec<u32>,
    /// It tells which pages its programs touch first, until then.
    pub records_working_set: Option<RecordUntil>,
    /// The first process waits until it is told to begin.
    pub hold: bool,
    /// The working directory is made if it is missing.
    pub make_cwd: bool,
    /// Rows and columns of the terminal behind the streams.
    pub winsize: Option<(u16, u16)>,
    /// Log every system call.
    pub strace: bool,
    /// Private mappings of files show the host's page cache, which sandboxes share.
    pub share_files: bool,
    /// The system calls of programs stay as they are; else those that are used often are patched (systrap).
    pub plain_calls: bool,
    /// Least important level that reaches the host: 0 error, 1 warning, 2 information, 3 debug.
    pub log_level: u32,
}

impl BootSpec {
    /// The records on the wire.
    #[must_use]
    pub fn records(&self) -> Vec<u8> {
        let mut out = self.container_records();
        let mut put = |record: Record<'_>| record.encode(&mut out);
        if let Some(flags) = cpu::host_flags() {
            put(Record::CpuFlags(flags));
        }
        for (name, value) in &self.sysctls {
            put(Record::Sysctl(Setting { name: name.as_bytes(), value }));
        }
        for (name, handle) in &self.net_tables {
            put(Record::NetTable(NetTable { handle: *handle, name }));
        }
        if let Some(timeout) = self.idle_timeout {
            put(Record::IdleTimeout(nanoseconds(timeout)));
            put(Record::AwakeAtMost(nanoseconds(self.awake_at_most)));
            if self.outbound_sleeps {
                put(Record::OutboundSleep(true));
            }
            if !self.idle_ignores.is_empty() {
                put(Record::IdleIgnores(self.idle_ignores[..].into()));
            }
        }
        if self.accepts_changed {
            put(Record::AcceptChanged(true));
        }
        for (old, new) in &self.ports {
            put(Record::PortMap(PortMap { old: (*old).into(), new: (*new).into() }));
        }
        if !self.working_set.is_empty() {
            put(Record::WorkingSet(self.working_set[..].into()));
        }
        if let Some(until) = self.records_working_set {
            put(Record::RecordWorkingSet(until.number()));
        }
        if let Some(timers) = self.timers.record() {
            put(Record::Timers(timers));
        }
        out
    }

    /// The records about a container, without those about the sandbox.
    #[must_use]
    pub fn container_records(&self) -> Vec<u8> {
        let mut out = self.process_records();
        let mut put = |record: Record<'_>| record.encode(&mut out);
        put(Record::Hostname(&self.hostname));
        put(Record::Domainname(&self.domainname));
        for mount in &self.mounts {
            put(Record::Mount(mount.map_words(|word| word.as_os_str().as_bytes())));
        }
        if let Some(maps) = &self.id_maps {
            let words = |extent: &Extent| [extent.inside, extent.host, extent.count];
            let [users, groups] =
                [&maps.users, &maps.groups].map(|ids| ids.iter().map(words).collect::<Vec<_>>());
            put(Record::IdMaps(records::IdMaps { users: users[..].into(), groups: groups[..].into() }));
        }
        self.masked.iter().for_each(|path| put(Record::Masked(path)));
        self.read_only.iter().for_each(|path| put(Record::ReadOnly(path)));
        for (limit, value) in self.limits.each() {
            put(Record::Limit(Limit { limit, value }));
        }
        self.pid_space.iter().for_each(|container| put(Record::PidSpace(*container)));
        self.ipc_space.iter().for_each(|container| put(Record::IpcSpace(*container)));
        for (name, value) in &self.ipc_settings {
            put(Record::IpcSetting(Setting { name: name.as_bytes(), value: value.as_bytes() }));
        }
        out
    }

    /// The records about the process alone.
    #[must_use]
    pub fn process_records(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |record: Record<'_>| record.encode(&mut out);
        self.args.iter().for_each(|arg| put(Record::Arg(arg)));
        self.env.iter().for_each(|var| put(Record::Env(var)));
        put(Record::Cwd(&self.cwd));
        let Creds { uid, gid, groups } = &self.creds;
        put(Record::Creds(records::Creds { uid: *uid, gid: *gid, groups: groups[..].into() }));
        self.capabilities.iter().for_each(|sets| put(Record::Capabilities(*sets)));
        let (hold, make_cwd, no_new_privs) = (self.hold, self.make_cwd, self.no_new_privs);
        put(Record::Flags(ProcessFlags { hold, make_cwd, no_new_privs }));
        self.streams.iter().for_each(|stream| put(Record::Stream(*stream)));
        self.rlimits.iter().for_each(|limit| put(Record::Rlimit(*limit)));
        if let Some(Filter { logs, program }) = &self.seccomp {
            put(Record::Seccomp(Seccomp { logs: *logs, program: program[..].into() }));
        }
        put(Record::Umask(self.umask));
        self.oom_score_adj.iter().for_each(|score| put(Record::OomScoreAdj(*score)));
        if let Some((rows, columns)) = self.winsize {
            put(Record::Winsize(Winsize { rows, columns }));
        }
        out
    }

    /// A process from its records; those of anything else are malformed.
    pub fn of_process(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut spec = Self::default();
        for record in decode(bytes) {
            let record = record?;
            spec.take(record).ok_or(RecordError::Malformed { number: record.number() })?;
        }
        Ok(spec)
    }

    /// Takes a record about a process; `None`: it is about something else.
    fn take(&mut self, record: Record<'_>) -> Option<()> {
        match record {
            Record::Arg(arg) => self.args.push(arg.to_vec()),
            Record::Env(var) => self.env.push(var.to_vec()),
            Record::Cwd(path) => self.cwd = path.to_vec(),
            Record::Creds(records::Creds { uid, gid, groups }) => {
                self.creds = Creds { uid, gid, groups: groups.iter().collect() };
            }
            Record::Capabilities(sets) => self.capabilities = Some(sets),
            Record::Flags(ProcessFlags { hold, make_cwd, no_new_privs }) => {
                (self.hold, self.make_cwd, self.no_new_privs) = (hold, make_cwd, no_new_privs);
            }
            Record::Stream(stream) => self.streams.push(stream),
            Record::Rlimit(limit) => self.rlimits.push(limit),
            Record::Seccomp(Seccomp { logs, program }) => {
                self.seccomp = Some(Filter { logs, program: program.iter().collect() });
            }
            Record::Umask(mask) => self.umask = mask,
            Record::OomScoreAdj(score) => self.oom_score_adj = Some(score),
            Record::Winsize(Winsize { rows, columns }) => self.winsize = Some((rows, columns)),
            _ => return None,
        }
        Some(())
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The part of the boot information that is not about the first process.
#[derive(Clone, Copy, Debug)]
pub struct MachineSpec {
    pub platform: Platform,
    pub linear_base: u64,
    pub hostcall_entry: u64,
    pub heap_phys: u64,
    pub user_frames_limit: u64,
    /// Most handles of the programs.
    pub handles_max: u32,
    pub cpus: u32,
    pub tsc_hz: u64,
    pub xsave: XsaveLayout,
    /// How many VMMs this kernel has had before.
    pub former_vmms: u32,
    /// Nothing is lost of what the former one was asked to tell.
    pub keeps_news: bool,
}

/// Writes the boot information and the records into kernel memory.
pub fn write(memory: &SandboxMemory, spec: &BootSpec, machine: &MachineSpec) -> Result<(), BootError> {
    let records = spec.records();
    if records.len() as u64 > RECORDS_MAX {
        return Err(BootError::TooLong(records.len()));
    }
    let mut random_seed = [0; 32];
    cpu::random(&mut random_seed).map_err(BootError::Random)?;
    let info = BootInfo {
        version: abi::ABI_VERSION,
        platform: machine.platform as u32,
        linear_base: machine.linear_base,
        heap_phys: machine.heap_phys,
        heap_end_phys: memory.kernel_bytes(),
        user_end_phys: USER_PHYS + memory.user_bytes(),
        user_frames_limit: machine.user_frames_limit,
        records_len: records.len() as u64,
        hostcall_entry: machine.hostcall_entry,
        xsave_size: machine.xsave.size,
        cpus: machine.cpus,
        xsave_mask: machine.xsave.mask,
        tsc_hz: machine.tsc_hz,
        random_seed,
        strace: u32::from(spec.strace),
        log_level: spec.log_level,
        share_files: u32::from(spec.share_files),
        handles_max: machine.handles_max,
        patch_calls: u32::from(!spec.plain_calls && cpu::has_fsgsbase()),
        host_memory_mib: process::host_memory_mib(),
        former_vmms: machine.former_vmms,
        keeps_news: machine.keeps_news.into(),
        template_frames: low32(memory.template().map_or(0, |(_, len)| len / abi::PAGE_SIZE)),
        pad: 0,
    };
    memory.copy_out(RECORDS_PHYS, &records).ok_or(BootError::Memory)?;
    memory.write(BOOT_INFO_PHYS, &info).ok_or(BootError::Memory)
}

/// Measures the TSC against the monotonic clock, from when it is made until it is asked.
#[derive(Clone, Copy, Debug)]
pub struct TscMeter {
    tsc: u64,
    clock: Duration,
}

impl TscMeter {
    #[must_use]
    pub fn start() -> Self {
        let (tsc, clock) = cpu::tsc_and_clock();
        Self { tsc, clock }
    }

    /// The TSC's frequency in Hz: as the processor reports it, or else as measured since the start.
    #[must_use]
    pub fn hz(&self) -> u64 {
        const SHORTEST: Duration = Duration::from_micros(500);
        if let Some(hz) = cpu::nominal_tsc_hz() {
            return hz;
        }
        loop {
            let (tsc, clock) = cpu::tsc_and_clock();
            let elapsed = clock.saturating_sub(self.clock);
            if elapsed >= SHORTEST {
                let cycles = u128::from(tsc.wrapping_sub(self.tsc));
                return u64::try_from(cycles * 1_000_000_000 / elapsed.as_nanos()).unwrap_or(u64::MAX);
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use abi::limits::ContainerLimit;
    use abi::mount::{FileSystem, HostKind};
    use abi::records::Scope;

    use super::*;

    /// A specification with something of each kind.
    fn whole() -> BootSpec {
        let extent = Extent { inside: 0, host: 1000, count: 1 };
        BootSpec {
            args: vec![b"sh".to_vec(), b"-c".to_vec()],
            env: vec![b"A=\xff".to_vec()],
            cwd: b"/tmp".to_vec(),
            hostname: b"h".to_vec(),
            domainname: b"d".to_vec(),
            creds: Creds { uid: 1, gid: 2, groups: vec![3] },
            capabilities: Some(Capabilities { bounding: 3, ambient: 1, ..Capabilities::default() }),
            no_new_privs: true,
            seccomp: Some(Filter { logs: true, program: vec![Instruction::plain(6, 0x7fff_0000)] }),
            mounts: vec![
                Mount::of_host(HostKind::Overlay, Handles { root: 7, lower: Some(8) }, "/".into(), 1),
                Mount::of_kernel(FileSystem::Proc, "/proc".into(), 0),
            ],
            streams: vec![Stream { fd: 0, handle: 7, flags: 1 }],
            rlimits: vec![Rlimit { resource: 7, soft: 10, hard: u64::MAX }],
            umask: 0o27,
            oom_score_adj: Some(-3),
            id_maps: Some(IdMaps { users: vec![extent], groups: Vec::new() }),
            sysctls: vec![("net/core/somaxconn".into(), b"4096".to_vec())],
            net_tables: vec![("udp", 9)],
            masked: vec![b"/m".to_vec()],
            read_only: vec![b"/r".to_vec()],
            limits: ContainerLimits { tasks_max: Some(5), ..ContainerLimits::default() },
            pid_space: Some(9),
            ipc_space: Some(0),
            ipc_settings: vec![("kernel/sem".into(), "1 2 3 4".into())],
            idle_timeout: Some(Duration::from_secs(1)),
            idle_ignores: vec![AddressPrefix::v4([10, 0, 0, 0], 8).unwrap()],
            timers: Timers::Wake(Timers::AHEAD),
            outbound_sleeps: true,
            accepts_changed: true,
            ports: vec![(80, 8080)],
            working_set: vec![3, 9],
            records_working_set: Some(RecordUntil::Time),
            hold: true,
            winsize: Some((24, 300)),
            ..BootSpec::default()
        }
    }

    /// The records, each of which is whole.
    fn all(bytes: &[u8]) -> Vec<Record<'_>> {
        decode(bytes).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn records_carry_the_specification() {
        let bytes = whole().records();
        let found = all(&bytes);
        let mounts = whole().mounts;
        let mounts =
            mounts.iter().map(|mount| Record::Mount(mount.map_words(|word| word.as_os_str().as_bytes())));
        let are_mounts = found.iter().copied().filter(|record| matches!(record, Record::Mount(_)));
        assert!(are_mounts.eq(mounts));
        let (second, extents) = (1_000_000_000, [[0, 1000, 1]]);
        for expected in [
            Record::Arg(b"sh"),
            Record::Arg(b"-c"),
            Record::Hostname(b"h"),
            Record::Domainname(b"d"),
            Record::IdMaps(records::IdMaps { users: extents[..].into(), groups: [][..].into() }),
            Record::Sysctl(Setting { name: b"net/core/somaxconn", value: b"4096" }),
            Record::NetTable(NetTable { handle: 9, name: "udp" }),
            Record::Masked(b"/m"),
            Record::ReadOnly(b"/r"),
            Record::Limit(Limit { limit: ContainerLimit::TasksMax, value: 5 }),
            Record::PidSpace(9),
            Record::IpcSpace(0),
            Record::IpcSetting(Setting { name: b"kernel/sem", value: b"1 2 3 4" }),
            Record::IdleTimeout(second),
            Record::AwakeAtMost(0),
            Record::IdleIgnores(whole().idle_ignores[..].into()),
            Record::Timers(records::Timers { ahead_ns: 30 * second, grid_ns: 0 }),
            Record::OutboundSleep(true),
            Record::AcceptChanged(true),
            Record::PortMap(PortMap { old: 80, new: 8080 }),
            Record::WorkingSet([3, 9][..].into()),
            Record::RecordWorkingSet(RecordUntil::Time.number()),
        ] {
            assert_eq!(found.iter().filter(|record| **record == expected).count(), 1, "{expected:?}");
        }
        let plain = BootSpec::default().records();
        assert!(all(&plain).iter().all(|record| !matches!(record, Record::PidSpace(_) | Record::Timers(_))));
    }

    #[test]
    fn records_are_about_whom_they_are_asked_for() {
        let (process, container) = (whole().process_records(), whole().container_records());
        assert!(all(&process).iter().all(|record| record.scope() == Scope::Process));
        assert!(all(&container).iter().all(|record| record.scope() <= Scope::Container));
    }

    #[test]
    fn a_process_comes_back_from_its_records() {
        let spec = whole();
        let bytes = spec.process_records();
        let back = BootSpec::of_process(&bytes).unwrap();
        assert_eq!(back.process_records(), bytes);
        assert_eq!((back.args, back.env, back.cwd), (spec.args.clone(), spec.env.clone(), spec.cwd.clone()));
        assert_eq!((back.creds, back.capabilities), (spec.creds.clone(), spec.capabilities));
        assert_eq!((back.seccomp, back.streams), (spec.seccomp.clone(), spec.streams.clone()));
        assert_eq!((back.rlimits, back.umask), (spec.rlimits.clone(), spec.umask));
        assert_eq!((back.oom_score_adj, back.winsize), (spec.oom_score_adj, spec.winsize));
        assert_eq!((back.hold, back.make_cwd, back.no_new_privs), (true, false, true));
        assert_eq!(BootSpec::of_process(&bytes[..bytes.len() - 1]).unwrap_err(), RecordError::CutOff);
        let error = BootSpec::of_process(&spec.records()).unwrap_err();
        assert_eq!(error, RecordError::Malformed { number: 4 });
    }
}
