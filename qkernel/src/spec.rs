//! The VMM's description of a container's first process, or of an exec'd process, read from its records.

use abi::address::AddressPrefix;
use abi::boot as ab;
use abi::hostcall::NO_HANDLE;
use abi::limits::ContainerLimit;
use abi::seccomp::Instruction;
use abi::word::{low16, to_usize};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::creds::{CAP_ALL, Creds};
use crate::limits::{Limit, Limits, RLIM_COUNT, RLIMIT_NOFILE};
use crate::seccomp::filter::{Filter, NewFilter};
use machine::errno::{Errno, Result};
use machine::host::Handle;

/// The description of the process and of its surroundings; see `abi::boot`'s tags.
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
    pub rlimits: Vec<(u32, u64, u64)>,
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
    /// Deadlines wake it while it hibernates: those set so many nanoseconds before (0: none), at multiples of so many (0: on time).
    pub timers: [u64; 2],
    /// For how long beyond that something may keep it awake of which nobody knows whether it ends.
    pub awake_at_most_ns: u64,
    /// It sleeps though a task waits, with a time-out, for the answer to what it asked.
    pub outbound_sleeps: bool,
    /// Words: the features of the processor that the host's kernel lists.
    pub cpu_flags: Option<String>,
    /// Settings of the host's network namespace, by name.
    pub sysctls: Vec<(Vec<u8>, Vec<u8>)>,
    /// The host's tables of the sockets in the network, by name.
    pub net_tables: Vec<(Vec<u8>, Handle)>,
    capabilities: Option<[u64; 5]>,
    seccomp: Option<Vec<u8>>,
    flags: u32,
}

/// A stream of the host's; it is closed with whoever drops it last.
pub struct StreamSpec {
    pub fd: u32,
    pub handle: Arc<Handle>,
    pub flags: u32,
}

/// A mount to be made.
#[derive(Default)]
pub struct MountSpec {
    /// The host's file or directory; `None`: the kernel's own file system.
    pub handle: Option<Handle>,
    pub flags: u32,
    pub path: Vec<u8>,
    pub kind: Vec<u8>,
    pub source: Vec<u8>,
    pub options: Vec<u8>,
    /// The lower directory of an overlay ([`ab::TAG_MOUNT_LOWER`]).
    pub lower: Option<Handle>,
}

/// Ids of the container: first inside, first outside, count.
pub struct IdMaps {
    pub users: Vec<[u32; 3]>,
    pub groups: Vec<[u32; 3]>,
}

impl IdMaps {
    fn parse(data: &[u8]) -> Option<Self> {
        let triple = |at: usize| Some([u32_at(data, at)?, u32_at(data, at + 4)?, u32_at(data, at + 8)?]);
        let mut users: Vec<_> = (4..data.len()).step_by(12).map(triple).collect::<Option<_>>()?;
        let count = to_usize(u32_at(data, 0)?.into()).min(users.len());
        let groups = users.split_off(count);
        Some(Self { users, groups })
    }
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?))
}

impl MountSpec {
    fn parse(data: &[u8]) -> Option<Self> {
        let mut strings = data.get(8..)?.split(|byte| *byte == 0).map(<[u8]>::to_vec);
        let mut next = || strings.next().unwrap_or_default();
        let (path, kind, source, options) = (next(), next(), next(), next());
        let (handle, flags) = (u32_at(data, 0)?, u32_at(data, 4)?);
        let handle = (handle != NO_HANDLE).then(|| Handle::from_raw(handle));
        Some(Self { handle, flags, path, kind, source, options, lower: None })
    }

    /// An option's value: `Some(b"")` for one without, `None` when it is not there. The last one counts.
    pub fn option(&self, name: &[u8]) -> Option<&[u8]> {
        self.options.split(|byte| *byte == b',').rev().find_map(|option| match option.strip_prefix(name)? {
            [] => Some(&b""[..]),
            [b'=', value @ ..] => Some(value),
            _ => None,
        })
    }

    /// An option that is a number.
    pub fn number(&self, name: &[u8], radix: u32) -> Option<u64> {
        u64::from_str_radix(core::str::from_utf8(self.option(name)?).ok()?, radix).ok()
    }
}

impl Spec {
    /// Reads the records; unknown tags are left for later kernels.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut spec = Self::default();
        for record in ab::records(bytes) {
            if spec.take(record.tag, record.data).is_none() {
                machine::warn!("boot record {} is malformed", record.tag);
            }
        }
        spec
    }

    /// Takes a record that says what the container's first process is, and what it finds. `None`: the record is malformed.
    fn take(&mut self, tag: u32, data: &[u8]) -> Option<()> {
        match tag {
            ab::TAG_ARG => self.args.push(data.to_vec()),
            ab::TAG_ENV => self.env.push(data.to_vec()),
            ab::TAG_CWD => self.cwd = data.to_vec(),
            ab::TAG_HOSTNAME => self.hostname = data.to_vec(),
            ab::TAG_DOMAINNAME => self.domainname = data.to_vec(),
            ab::TAG_CREDS => {
                self.uid = u32_at(data, 0)?;
                self.gid = u32_at(data, 4)?;
                self.groups = (8..data.len()).step_by(4).filter_map(|at| u32_at(data, at)).collect();
            }
            ab::TAG_CAPABILITIES => {
                let mut sets = [0; 5];
                for (at, set) in sets.iter_mut().enumerate() {
                    *set = u64_at(data, 8 * at)? & CAP_ALL;
                }
                self.capabilities = Some(sets);
            }
            ab::TAG_SECCOMP => self.seccomp = Some(data.to_vec()),
            ab::TAG_MOUNT => self.mounts.push(MountSpec::parse(data)?),
            ab::TAG_MOUNT_LOWER => {
                self.mounts.last_mut()?.lower = Some(Handle::from_raw(u32_at(data, 0)?));
            }
            ab::TAG_MASKED => self.masked.push(data.to_vec()),
            ab::TAG_READ_ONLY => self.read_only.push(data.to_vec()),
            ab::TAG_STREAM => {
                let (fd, handle, flags) = (u32_at(data, 0)?, u32_at(data, 4)?, u32_at(data, 8)?);
                self.streams.push(StreamSpec { fd, handle: Arc::new(Handle::from_raw(handle)), flags });
            }
            ab::TAG_RLIMIT => self.rlimits.push((u32_at(data, 0)?, u64_at(data, 8)?, u64_at(data, 16)?)),
            ab::TAG_UMASK => self.umask = Some(u32_at(data, 0)?),
            ab::TAG_OOM_SCORE_ADJ => self.oom_score_adj = Some(u32_at(data, 0)?.cast_signed()),
            ab::TAG_ID_MAPS => self.id_maps = Some(IdMaps::parse(data)?),
            ab::TAG_WINSIZE => {
                let word = u64::from(u32_at(data, 0)?);
                self.winsize = Some((low16(word), low16(word >> 16)));
            }
            _ => return self.take_setting(tag, data),
        }
        Some(())
    }

    /// Takes a record of the container's spaces, limits and settings, or of the sandbox's.
    fn take_setting(&mut self, tag: u32, data: &[u8]) -> Option<()> {
        match tag {
            ab::TAG_CONTAINER => self.container = u64_at(data, 0)?,
            ab::TAG_PID_SPACE => self.pid_space = Some(u64_at(data, 0)?),
            ab::TAG_IPC_SPACE => self.ipc_space = Some(u64_at(data, 0)?),
            ab::TAG_IPC_SETTING => {
                let end = data.iter().position(|byte| *byte == 0)?;
                self.ipc_settings.push((data[..end].to_vec(), data[end + 1..].to_vec()));
            }
            ab::TAG_LIMIT => {
                let limit = ContainerLimit::from_number(u32_at(data, 0)?)?;
                self.limits.push((limit, u64_at(data, 8)?));
            }
            ab::TAG_IDLE_TIMEOUT => self.idle_timeout_ns = u64_at(data, 0)?,
            ab::TAG_AWAKE_AT_MOST => self.awake_at_most_ns = u64_at(data, 0)?,
            ab::TAG_OUTBOUND_SLEEP => self.outbound_sleeps = u32_at(data, 0)? != 0,
            ab::TAG_IDLE_IGNORES => {
                let prefixes = data.chunks(size_of::<AddressPrefix>()).map(AddressPrefix::from_bytes);
                self.idle_ignores = prefixes.collect::<Option<_>>()?;
            }
            ab::TAG_TIMERS => self.timers = [u64_at(data, 0)?, u64_at(data, 8)?],
            ab::TAG_CPU_FLAGS => self.cpu_flags = Some(core::str::from_utf8(data).ok()?.into()),
            ab::TAG_SYSCTL => {
                let end = data.iter().position(|byte| *byte == 0)?;
                self.sysctls.push((data[..end].to_vec(), data[end + 1..].to_vec()));
            }
            ab::TAG_NET_TABLE => {
                let handle = Handle::from_raw(u32_at(data, 0)?);
                self.net_tables.push((data.get(4..)?.to_vec(), handle));
            }
            ab::TAG_FLAGS => self.flags = u32_at(data, 0)?,
            _ => {}
        }
        Some(())
    }

    /// Its streams, for whoever opens them.
    pub fn take_streams(&mut self) -> Vec<StreamSpec> {
        core::mem::take(&mut self.streams)
    }

    /// Whether the first process waits until it is told to begin.
    pub fn hold(&self) -> bool {
        self.flags & ab::BOOT_HOLD != 0
    }

    /// Whether a working directory that is missing is made.
    pub fn makes_cwd(&self) -> bool {
        self.flags & ab::BOOT_MAKE_CWD != 0
    }

    /// The first process's credentials. Its capabilities once its program runs follow by the rules of `execve(2)`.
    pub fn creds(&self) -> Creds {
        let mut creds = Creds::new(self.uid, self.gid, self.groups.clone());
        if let Some([bounding, effective, permitted, inheritable, ambient]) = self.capabilities {
            (creds.bounding, creds.effective) = (bounding, effective & permitted);
            (creds.permitted, creds.inheritable) = (permitted, inheritable);
            creds.ambient = ambient & permitted & inheritable;
        }
        creds
    }

    /// Whether it begins with `PR_SET_NO_NEW_PRIVS`.
    pub fn no_new_privs(&self) -> bool {
        self.flags & ab::BOOT_NO_NEW_PRIVS != 0
    }

    /// Its filter of system calls. A damaged record is an error: without its filter no process begins.
    pub fn seccomp(&self) -> Result<Option<Arc<Filter>>> {
        let Some(record) = &self.seccomp else { return Ok(None) };
        let (flags, code) = record.split_at_checked(4).ok_or(Errno::EINVAL)?;
        let logs = u32_at(flags, 0).ok_or(Errno::EINVAL)? & ab::SECCOMP_LOG != 0;
        let code = Instruction::all(code).ok_or(Errno::EINVAL)?.collect();
        NewFilter::new(code, logs)?.onto(None).map(Some)
    }

    /// Its resource limits.
    pub fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        for (resource, soft, hard) in &self.rlimits {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_options_are_found_by_their_whole_name() {
        let data = b"\x01\0\0\0\x02\0\0\0/tmp\0tmpfs\0none\0size=4096,mode=700,mode=0755,noatime";
        let mut mount = MountSpec::parse(data).unwrap();
        // There is no host to give it back to.
        let handle = core::mem::ManuallyDrop::new(mount.handle.take());
        assert_eq!(handle.as_ref().map(Handle::raw), Some(1));
        assert_eq!((mount.flags, &*mount.path), (2, &b"/tmp"[..]));
        assert_eq!((&*mount.kind, &*mount.source), (&b"tmpfs"[..], &b"none"[..]));
        assert_eq!(mount.number(b"size", 10), Some(4096));
        assert_eq!(mount.number(b"mode", 8), Some(0o755));
        assert_eq!(mount.option(b"noatime"), Some(&b""[..]));
        assert_eq!(mount.option(b"mod"), None);
    }

    #[test]
    fn process_ids_are_shared_with_nobody_unless_a_record_says_so() {
        let mut spec = Spec::default();
        assert_eq!(spec.pid_space, None);
        assert!(spec.take(ab::TAG_PID_SPACE, &[0; 7]).is_none());
        assert_eq!(spec.pid_space, None);
        spec.take(ab::TAG_PID_SPACE, &7_u64.to_le_bytes()).unwrap();
        assert_eq!(spec.pid_space, Some(7));
    }

    #[test]
    fn a_damaged_filter_is_no_filter_at_all_but_an_error() {
        let mut spec = Spec::default();
        assert!(matches!(spec.seccomp(), Ok(None)));
        let refuses = [&0u32.to_le_bytes()[..], &Instruction::plain(0x06, 0x5_0001).to_bytes()].concat();
        spec.take(ab::TAG_SECCOMP, &refuses).unwrap();
        assert_eq!(spec.seccomp().unwrap().map(|filter| filter.count()), Some(1));
        for bad in [&refuses[..0], &refuses[..4], &refuses[..11], &[0; 12]] {
            spec.take(ab::TAG_SECCOMP, bad).unwrap();
            assert_eq!(spec.seccomp().err(), Some(Errno::EINVAL), "{bad:?}");
        }
    }

    #[test]
    fn capabilities_never_exceed_what_was_given() {
        let mut spec = Spec::default();
        let sets: Vec<u8> = [7_u64, 3, 1, 1, 3].iter().flat_map(|set| set.to_le_bytes()).collect();
        spec.take(ab::TAG_CAPABILITIES, &sets).unwrap();
        let creds = spec.creds();
        assert_eq!((creds.bounding, creds.effective, creds.permitted), (7, 1, 1));
        assert_eq!((creds.inheritable, creds.ambient), (1, 1));
        assert!(spec.take(ab::TAG_CAPABILITIES, &sets[..8]).is_none());
    }
}
