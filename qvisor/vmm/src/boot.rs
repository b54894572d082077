//! The information that the kernel gets at boot: [`BootInfo`] and the records of the first process.

use std::time::Duration;

use abi::address::AddressPrefix;
use abi::boot::{
    BOOT_HOLD, BOOT_MAKE_CWD, BOOT_NO_NEW_PRIVS, BootInfo, Platform, SECCOMP_LOG, TAG_ARG, TAG_AWAKE_AT_MOST,
    TAG_CAPABILITIES, TAG_CPU_FLAGS, TAG_CREDS, TAG_CWD, TAG_DOMAINNAME, TAG_ENV, TAG_FLAGS, TAG_HOSTNAME,
    TAG_ID_MAPS, TAG_IDLE_IGNORES, TAG_IDLE_TIMEOUT, TAG_IPC_SETTING, TAG_IPC_SPACE, TAG_LIMIT, TAG_MASKED,
    TAG_MOUNT, TAG_MOUNT_LOWER, TAG_NET_TABLE, TAG_OOM_SCORE_ADJ, TAG_OUTBOUND_SLEEP, TAG_PID_SPACE,
    TAG_READ_ONLY, TAG_RLIMIT, TAG_SECCOMP, TAG_STREAM, TAG_SYSCTL, TAG_TIMERS, TAG_UMASK, TAG_WINSIZE,
};
use abi::hostcall::NO_HANDLE;
use abi::layout::{BOOT_INFO_PHYS, RECORDS_MAX, RECORDS_PHYS, USER_PHYS};
use abi::seccomp::Instruction;

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

/// The capability sets of `capabilities(7)`, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub bounding: u64,
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub ambient: u64,
}

/// A filter of system calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Calls that the filter does not allow are logged.
    pub logs: bool,
    pub program: Vec<Instruction>,
}

/// A mount in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// A host directory or file; `NO_HANDLE`: a file system the kernel makes itself.
    pub handle: u32,
    /// `MOUNT_READ_ONLY` …
    pub flags: u32,
    pub path: Vec<u8>,
    /// `proc`, `tmpfs`, …; of a host mount as `/proc/PID/mounts` shows it.
    pub kind: String,
    pub source: String,
    /// `size=4096,mode=755` and the like.
    pub options: String,
    /// The lower directory of an overlay, for what the sandbox has not changed.
    pub lower: Option<u32>,
}

impl Mount {
    /// A file system the kernel makes itself.
    #[must_use]
    pub fn of_kernel(kind: &str, path: Vec<u8>, flags: u32) -> Self {
        Self {
            handle: NO_HANDLE,
            flags,
            path,
            kind: kind.into(),
            source: kind.into(),
            options: String::new(),
            lower: None,
        }
    }
}

/// A descriptor the first process begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    pub fd: u32,
    pub handle: u32,
    /// `STREAM_TTY` …
    pub flags: u32,
}

/// A resource limit of the first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

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
        let mut put = |tag, parts: &[&[u8]]| put(&mut out, tag, parts);
        if let Some(flags) = cpu::host_flags() {
            put(TAG_CPU_FLAGS, &[flags.as_bytes()]);
        }
        self.sysctls.iter().for_each(|(name, value)| put(TAG_SYSCTL, &[name.as_bytes(), &[0], value]));
        for (name, handle) in &self.net_tables {
            put(TAG_NET_TABLE, &[&handle.to_le_bytes(), name.as_bytes()]);
        }
        if let Some(timeout) = self.idle_timeout {
            let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            put(TAG_IDLE_TIMEOUT, &[&timeout_ns.to_le_bytes()]);
            let most_ns = u64::try_from(self.awake_at_most.as_nanos()).unwrap_or(u64::MAX);
            put(TAG_AWAKE_AT_MOST, &[&most_ns.to_le_bytes()]);
            if self.outbound_sleeps {
                put(TAG_OUTBOUND_SLEEP, &[&1_u32.to_le_bytes()]);
            }
            let ignored: Vec<u8> = self.idle_ignores.iter().flat_map(AddressPrefix::to_bytes).collect();
            if !ignored.is_empty() {
                put(TAG_IDLE_IGNORES, &[&ignored]);
            }
        }
        if let Some(record) = self.timers.record() {
            put(TAG_TIMERS, &[&record]);
        }
        out
    }

    /// The records about a container, without those about the sandbox.
    #[must_use]
    pub fn container_records(&self) -> Vec<u8> {
        let mut out = self.process_records();
        let mut put = |tag, parts: &[&[u8]]| put(&mut out, tag, parts);
        put(TAG_HOSTNAME, &[&self.hostname]);
        put(TAG_DOMAINNAME, &[&self.domainname]);
        for mount in &self.mounts {
            let (handle, flags) = (mount.handle.to_le_bytes(), mount.flags.to_le_bytes());
            let strings =
                [&mount.path, mount.kind.as_bytes(), mount.source.as_bytes(), mount.options.as_bytes()];
            put(TAG_MOUNT, &[&handle, &flags, &strings.join(&0)]);
            mount.lower.iter().for_each(|lower| put(TAG_MOUNT_LOWER, &[&lower.to_le_bytes()]));
        }
        if let Some(IdMaps { users, groups }) = &self.id_maps {
            let count = u32::try_from(users.len()).unwrap_or(u32::MAX);
            let words = |extent: &Extent| [extent.inside, extent.host, extent.count];
            let extents = users.iter().chain(groups).flat_map(words);
            let words: Vec<u8> = [count].into_iter().chain(extents).flat_map(u32::to_le_bytes).collect();
            put(TAG_ID_MAPS, &[&words]);
        }
        self.masked.iter().for_each(|path| put(TAG_MASKED, &[path]));
        self.read_only.iter().for_each(|path| put(TAG_READ_ONLY, &[path]));
        for (limit, value) in self.limits.each() {
            put(TAG_LIMIT, &[&u64::from(limit.number()).to_le_bytes(), &value.to_le_bytes()]);
        }
        if let Some(container) = self.pid_space {
            put(TAG_PID_SPACE, &[&container.to_le_bytes()]);
        }
        if let Some(container) = self.ipc_space {
            put(TAG_IPC_SPACE, &[&container.to_le_bytes()]);
        }
        for (name, value) in &self.ipc_settings {
            put(TAG_IPC_SETTING, &[name.as_bytes(), &[0], value.as_bytes()]);
        }
        out
    }

    /// The records about the process alone.
    #[must_use]
    pub fn process_records(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |tag, parts: &[&[u8]]| put(&mut out, tag, parts);
        self.args.iter().for_each(|arg| put(TAG_ARG, &[arg]));
        self.env.iter().for_each(|var| put(TAG_ENV, &[var]));
        put(TAG_CWD, &[&self.cwd]);
        let ids = [self.creds.uid, self.creds.gid];
        let ids: Vec<u8> = ids.iter().chain(&self.creds.groups).flat_map(|id| id.to_le_bytes()).collect();
        put(TAG_CREDS, &[&ids]);
        if let Some(sets) = self.capabilities {
            let sets = [sets.bounding, sets.effective, sets.permitted, sets.inheritable, sets.ambient];
            put(TAG_CAPABILITIES, &[&sets.map(u64::to_le_bytes).concat()]);
        }
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let flags = flag(self.hold, BOOT_HOLD)
            | flag(self.make_cwd, BOOT_MAKE_CWD)
            | flag(self.no_new_privs, BOOT_NO_NEW_PRIVS);
        put(TAG_FLAGS, &[&flags.to_le_bytes()]);
        for stream in &self.streams {
            let words = [stream.fd, stream.handle, stream.flags].map(u32::to_le_bytes);
            put(TAG_STREAM, &[&words.concat()]);
        }
        for limit in &self.rlimits {
            let head = u64::from(limit.resource).to_le_bytes();
            put(TAG_RLIMIT, &[&head, &limit.soft.to_le_bytes(), &limit.hard.to_le_bytes()]);
        }
        if let Some(filter) = &self.seccomp {
            let program: Vec<u8> =
                filter.program.iter().flat_map(|instruction| instruction.to_bytes()).collect();
            put(TAG_SECCOMP, &[&flag(filter.logs, SECCOMP_LOG).to_le_bytes(), &program]);
        }
        put(TAG_UMASK, &[&self.umask.to_le_bytes()]);
        if let Some(score) = self.oom_score_adj {
            put(TAG_OOM_SCORE_ADJ, &[&score.to_le_bytes()]);
        }
        if let Some((rows, columns)) = self.winsize {
            put(TAG_WINSIZE, &[&rows.to_le_bytes(), &columns.to_le_bytes()]);
        }
        out
    }

    /// A process from its records; `None` when they are not whole.
    #[must_use]
    pub fn of_process(bytes: &[u8]) -> Option<Self> {
        let mut spec = Self::default();
        let mut len = 0;
        for record in abi::boot::records(bytes) {
            len += 8 + record.data.len();
            spec.take(record.tag, record.data)?;
        }
        (len == bytes.len()).then_some(spec)
    }

    fn take(&mut self, tag: u32, data: &[u8]) -> Option<()> {
        let mut longs =
            data.chunks_exact(8).filter_map(|long| Some(u64::from_le_bytes(*long.first_chunk()?)));
        let mut words =
            data.chunks_exact(4).filter_map(|word| Some(u32::from_le_bytes(*word.first_chunk()?)));
        match tag {
            TAG_ARG => self.args.push(data.to_vec()),
            TAG_ENV => self.env.push(data.to_vec()),
            TAG_CWD => self.cwd = data.to_vec(),
            TAG_CREDS => {
                self.creds = Creds { uid: words.next()?, gid: words.next()?, groups: words.collect() };
            }
            TAG_CAPABILITIES => {
                let mut set = || longs.next();
                let (bounding, effective, permitted) = (set()?, set()?, set()?);
                let (inheritable, ambient) = (set()?, set()?);
                self.capabilities =
                    Some(Capabilities { bounding, effective, permitted, inheritable, ambient });
            }
            TAG_FLAGS => {
                let flags = words.next()?;
                self.hold = flags & BOOT_HOLD != 0;
                self.make_cwd = flags & BOOT_MAKE_CWD != 0;
                self.no_new_privs = flags & BOOT_NO_NEW_PRIVS != 0;
            }
            TAG_STREAM => {
                let (fd, handle, flags) = (words.next()?, words.next()?, words.next()?);
                self.streams.push(Stream { fd, handle, flags });
            }
            TAG_RLIMIT => {
                let resource = u32::try_from(longs.next()?).ok()?;
                self.rlimits.push(Rlimit { resource, soft: longs.next()?, hard: longs.next()? });
            }
            TAG_SECCOMP => {
                let (flags, program) = data.split_at_checked(4)?;
                let logs = u32::from_le_bytes(*flags.first_chunk()?) & SECCOMP_LOG != 0;
                self.seccomp = Some(Filter { logs, program: Instruction::all(program)?.collect() });
            }
            TAG_UMASK => self.umask = words.next()?,
            TAG_OOM_SCORE_ADJ => self.oom_score_adj = Some(words.next()?.cast_signed()),
            TAG_WINSIZE => {
                let both = words.next()?;
                self.winsize = Some(((both & 0xffff) as u16, (both >> 16) as u16));
            }
            _ => return None,
        }
        Some(())
    }
}

/// Appends a record.
pub(crate) fn put(out: &mut Vec<u8>, tag: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend(tag.to_le_bytes());
    out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    parts.iter().for_each(|part| out.extend(*part));
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
    use abi::boot::records;

    use super::*;

    #[test]
    fn records_carry_the_specification() {
        let spec = BootSpec {
            args: vec![b"sh".to_vec(), b"-c".to_vec()],
            creds: Creds { uid: 1, gid: 2, groups: vec![3] },
            mounts: vec![
                Mount { handle: 7, flags: 1, path: b"/".to_vec(), ..Mount::default() },
                Mount::of_kernel("proc", b"/proc".to_vec(), 0),
            ],
            capabilities: Some(Capabilities { bounding: 3, ..Capabilities::default() }),
            hold: true,
            pid_space: Some(9),
            ipc_space: Some(0),
            ipc_settings: vec![("kernel/sem".into(), "1 2 3 4".into())],
            rlimits: vec![Rlimit { resource: 7, soft: 10, hard: 20 }],
            winsize: Some((24, 80)),
            ..BootSpec::default()
        };
        let bytes = spec.records();
        let find =
            |tag| records(&bytes).filter(|r| r.tag == tag).map(|r| r.data.to_vec()).collect::<Vec<_>>();
        assert_eq!(find(TAG_ARG), [b"sh".to_vec(), b"-c".to_vec()]);
        assert_eq!(find(TAG_CREDS), [[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]]);
        assert_eq!(find(TAG_MOUNT)[0], b"\x07\0\0\0\x01\0\0\0/\0\0\0");
        assert_eq!(find(TAG_MOUNT)[1], b"\xff\xff\xff\xff\0\0\0\0/proc\0proc\0proc\0");
        assert_eq!((find(TAG_CAPABILITIES)[0].len(), find(TAG_FLAGS)), (40, vec![vec![1, 0, 0, 0]]));
        assert_eq!(find(TAG_RLIMIT)[0].len(), 24);
        assert_eq!(find(TAG_PID_SPACE), [[9, 0, 0, 0, 0, 0, 0, 0]]);
        assert!(records(&BootSpec::default().records()).all(|record| record.tag != TAG_PID_SPACE));
        assert_eq!(
            (find(TAG_IPC_SPACE), find(TAG_IPC_SETTING)),
            (vec![vec![0; 8]], vec![b"kernel/sem\x001 2 3 4".to_vec()])
        );
        assert_eq!(find(TAG_WINSIZE), [[24, 0, 80, 0]]);
    }

    #[test]
    fn a_process_comes_back_from_its_records() {
        let spec = BootSpec {
            args: vec![b"sh".to_vec()],
            env: vec![b"A=\xff".to_vec()],
            cwd: b"/tmp".to_vec(),
            creds: Creds { uid: 1, gid: 2, groups: vec![3, 4] },
            capabilities: Some(Capabilities { bounding: 3, ambient: 1, ..Capabilities::default() }),
            no_new_privs: true,
            streams: vec![Stream { fd: 0, handle: 7, flags: 1 }],
            rlimits: vec![Rlimit { resource: 7, soft: 10, hard: u64::MAX }],
            umask: 0o27,
            seccomp: Some(Filter { logs: true, program: vec![Instruction::plain(6, 0x7fff_0000)] }),
            winsize: Some((24, 300)),
            ..BootSpec::default()
        };
        let bytes = spec.process_records();
        let back = BootSpec::of_process(&bytes).unwrap();
        assert_eq!(format!("{back:?}"), format!("{spec:?}"));
        assert!(BootSpec::of_process(&bytes[..bytes.len() - 1]).is_none());
        assert!(BootSpec::of_process(&spec.records()).is_none());
    }
}
