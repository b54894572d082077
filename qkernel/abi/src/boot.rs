//! The boot information for the kernel.

/// The platform the kernel runs on.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// Guest ring 0 under KVM.
    Kvm = 1,
    /// Inside the VMM process; applications in stub processes.
    Systrap = 2,
}

/// Written by the VMM at [`crate::layout::BOOT_INFO_PHYS`] before any CPU enters the kernel.
///
/// The entry point is `extern "C" fn(boot: *const BootInfo, cpu: u32) -> !`, called once on each vCPU with the
/// stack at the end of the CPU's area, GS base at the CPU's header, interrupts off.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BootInfo {
    /// [`crate::ABI_VERSION`].
    pub version: u32,
    /// A [`Platform`] as its number.
    pub platform: u32,
    /// The linear map's base address.
    pub linear_base: u64,
    /// First byte of kernel memory that is free (behind the image): the beginning of the heap.
    pub heap_phys: u64,
    /// The end of kernel memory, and of the heap.
    pub heap_end_phys: u64,
    /// End of user memory (it starts at `USER_PHYS`); a multiple of 4 MiB. Includes slack for control pages.
    pub user_end_phys: u64,
    /// Most user frames the sandbox may have in use: its memory limit.
    pub user_frames_limit: u64,
    /// Bytes of [`Record`]s at `RECORDS_PHYS`.
    pub records_len: u64,
    /// Address of the hostcall entry (systrap): `extern "C" fn(*mut HostCall)`, called on the kernel's stack; it
    /// switches to the host stack itself. 0 on kvm, where a hostcall is `out HOSTCALL_PORT, eax` with the
    /// call's guest-physical address in `eax`.
    pub hostcall_entry: u64,
    /// Size in bytes of an XSAVE image (standard format) of the user state.
    pub xsave_size: u32,
    /// CPUs that the sandbox has.
    pub cpus: u32,
    /// The component mask of an XSAVE image of the user state.
    pub xsave_mask: u64,
    /// First estimate of the TSC's frequency in Hz.
    pub tsc_hz: u64,
    /// 32 random bytes from the host.
    pub random_seed: [u8; 32],
    /// Non-zero: log every syscall (`--strace`).
    pub strace: u32,
    /// Minimum log level that reaches the host: 0 error, 1 warn, 2 info, 3 debug.
    pub log_level: u32,
    /// Non-zero: private mappings show the host's page cache, which sandboxes share.
    pub share_files: u32,
    /// Most handles that programs may have at a time. The VMM refuses more, but for those it has a request come with.
    pub handles_max: u32,
    /// Non-zero: call sites that are used often are patched (systrap).
    pub patch_calls: u32,
    /// The host's memory, which is what one mapping may promise at most (`vm.overcommit_memory`).
    pub host_memory_mib: u32,
    /// How many VMMs this kernel has had before; 0: it has not run yet. Otherwise its memory is as it left it, and it is asleep.
    pub former_vmms: u32,
    /// Non-zero: this VMM tells what the former one was asked to tell, and nothing of that is lost.
    pub keeps_news: u32,
}
pin_layout!(
    BootInfo, 152,
    version: 0, platform: 4, linear_base: 8, heap_phys: 16, heap_end_phys: 24, user_end_phys: 32,
    user_frames_limit: 40, records_len: 48, hostcall_entry: 56, xsave_size: 64, cpus: 68, xsave_mask: 72,
    tsc_hz: 80, random_seed: 88, strace: 120, log_level: 124, share_files: 128, handles_max: 132,
    patch_calls: 136, host_memory_mib: 140, former_vmms: 144, keeps_news: 148,
);

/// The tables of `/proc/net` that the host's kernel may have for the sandbox's network.
pub const NET_TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];

/// Most bytes of records of a process that comes in from outside ([`crate::hostcall::EVENT_EXEC`]), its streams included.
pub const EXEC_RECORDS_MAX: u64 = 1 << 20;

/// The first process and its surroundings, as a sequence of tagged byte strings. An exec'd process has those of a
/// process alone: no mounts, names or limits of the sandbox.
///
/// On the wire: tag (u32, little endian), length (u32, little endian), bytes; no alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The kind of record: `TAG_*`.
    pub tag: u32,
    /// The record's bytes.
    pub data: &'a [u8],
}

/// One argument of the first process, in order; the first names the program (looked up in `PATH`).
pub const TAG_ARG: u32 = 1;
/// One `NAME=value` of its environment.
pub const TAG_ENV: u32 = 2;
/// Its working directory.
pub const TAG_CWD: u32 = 3;
/// The host name.
pub const TAG_HOSTNAME: u32 = 4;
/// User id, group id (u32 each), then supplementary groups (u32 each).
pub const TAG_CREDS: u32 = 5;
/// A mount: handle (u32; [`crate::hostcall::NO_HANDLE`]: a file system the kernel makes itself), flags (u32,
/// [`MOUNT_READ_ONLY`] …), then guest path, type (`host`, `proc`, `tmpfs`, …), source and options (`size=4096,mode=755`)
/// with a NUL between each. Made in order; the root (`/`) is first.
pub const TAG_MOUNT: u32 = 6;
/// Follows the record of a mount of an overlay: the handle (u32) of its lower directory, read-only. Where the sandbox has changed
/// nothing, the overlay shows what lies there, by the same inode numbers and with all else the same but the device number.
pub const TAG_MOUNT_LOWER: u32 = 27;
/// A stream: guest descriptor number (u32), handle (u32), flags (u32, [`STREAM_TTY`] …).
pub const TAG_STREAM: u32 = 7;
/// Resource limit: resource (u32), pad (u32), soft (u64), hard (u64).
pub const TAG_RLIMIT: u32 = 8;
/// The file-mode creation mask (u32).
pub const TAG_UMASK: u32 = 9;
/// Its `oom_score_adj` (i32).
pub const TAG_OOM_SCORE_ADJ: u32 = 23;
/// The ids of the container on the host, for `uid_map` and `gid_map` of `/proc`: triples of u32 (first inside, first outside,
/// count). The first word says how many triples are of users; the others are of groups.
pub const TAG_ID_MAPS: u32 = 24;
/// Terminal size: rows (u16), columns (u16); present when streams are a terminal the kernel drives (raw on the host).
pub const TAG_WINSIZE: u32 = 11;
/// The NIS domain name.
pub const TAG_DOMAINNAME: u32 = 12;
/// Capability sets of the first process, u64 each: bounding, effective, permitted, inheritable, ambient. Without this
/// record they follow from its user.
pub const TAG_CAPABILITIES: u32 = 13;
/// A path whose content is hidden, if it exists: an empty read-only directory, or a file that reads as empty.
pub const TAG_MASKED: u32 = 14;
/// A path that is read-only, if it exists, with what lies below it.
pub const TAG_READ_ONLY: u32 = 15;
/// Flags (u32): [`BOOT_HOLD`] ….
pub const TAG_FLAGS: u32 = 17;

/// After how many nanoseconds (u64) without anything from outside the kernel reports
/// [`crate::hostcall::REPORT_IDLE_TIMEOUT`].
pub const TAG_IDLE_TIMEOUT: u32 = 18;
/// Addresses from which connections and datagrams count as nothing from outside: [`crate::address::AddressPrefix`]es, 20 bytes each.
pub const TAG_IDLE_IGNORES: u32 = 26;

/// Deadlines of programs wake the sandbox while it hibernates ([`crate::hostcall::WAKE_EVENT_TIMER`]): those that were set so many
/// nanoseconds (u64) before, at multiples of so many nanoseconds of the monotonic clock (u64; 0: on time). Without this record none
/// does.
pub const TAG_TIMERS: u32 = 30;
/// For how many nanoseconds (u64) beyond that time something may keep it awake of which nobody knows whether it ends.
pub const TAG_AWAKE_AT_MOST: u32 = 32;
/// The sandbox sleeps though a task waits, with a time-out, for the answer to what it asked somebody outside (u32, not 0).
pub const TAG_OUTBOUND_SLEEP: u32 = 33;

/// The processor's features that the host's kernel knows and lets programs use: the words of `flags` in its
/// `/proc/cpuinfo`. Without this record all that the processor tells of count.
pub const TAG_CPU_FLAGS: u32 = 19;

/// `TAG_FLAGS`: the first process is prepared, reported ([`crate::hostcall::REPORT_READY`]), and begins when
/// [`crate::hostcall::EVENT_START`] comes. Signals that it does not handle do nothing to it.
pub const BOOT_HOLD: u32 = 1;
/// `TAG_FLAGS`: the working directory is made if it does not exist; one that cannot be entered ends the sandbox.
pub const BOOT_MAKE_CWD: u32 = 2;
/// `TAG_FLAGS`: the first process begins with `PR_SET_NO_NEW_PRIVS`.
pub const BOOT_NO_NEW_PRIVS: u32 = 4;

/// `TAG_MOUNT` flag: writes answer `EROFS`.
pub const MOUNT_READ_ONLY: u32 = 1;
/// Of an exec'd process: the id of the container it runs in (`u64`); the first one if there is no such record.
pub const TAG_CONTAINER: u32 = 20;
/// The id (`u64`) of the container whose pid space another one joins: the processes of both see each other, as in one pid
/// namespace of Linux. Without this record a container has a pid space of its own.
pub const TAG_PID_SPACE: u32 = 25;
/// A container whose System V objects and message queues the container shares: its number, 8 bytes.
pub const TAG_IPC_SPACE: u32 = 28;
/// A setting of the container's IPC namespace: its name below `/proc/sys`, NUL, its value.
pub const TAG_IPC_SETTING: u32 = 29;
/// A limit of the container: its number ([`crate::limits::ContainerLimit`], u32), pad (u32), value (u64).
pub const TAG_LIMIT: u32 = 16;
/// The filter of the system calls of a process: flags (u32, [`SECCOMP_LOG`]), then [`crate::seccomp::Instruction`]s.
pub const TAG_SECCOMP: u32 = 21;
/// A setting of the host's network namespace ([`crate::sysctl::NET`]): its name, a NUL, and its text.
pub const TAG_SYSCTL: u32 = 22;
/// The host's table of the sockets in the sandbox's network, which others are in as well: handle (u32), and its name, one of
/// [`NET_TABLES`].
pub const TAG_NET_TABLE: u32 = 31;
/// `TAG_SECCOMP` flag: what the filter does not allow is logged.
pub const SECCOMP_LOG: u32 = 1;
/// `TAG_MOUNT` flag: the host may change files under it, so cached names must be revalidated.
pub const MOUNT_SHARED: u32 = 2;
/// `TAG_MOUNT` flag: programs do not run with their set-user-id and set-group-id bits.
pub const MOUNT_NO_SUID: u32 = 4;
/// `TAG_MOUNT` flag: device nodes are not opened.
pub const MOUNT_NO_DEV: u32 = 8;
/// `TAG_MOUNT` flag: nothing there is executed, nor mapped for it.
pub const MOUNT_NO_EXEC: u32 = 16;
/// `TAG_MOUNT` flag: a volume, whose files the host watches for those who watch them, and locks for those who lock them.
pub const MOUNT_VOLUME: u32 = 32;

/// `TAG_STREAM` flag: the host side is a terminal in raw mode; the kernel runs the line discipline.
pub const STREAM_TTY: u32 = 1;
/// `TAG_STREAM` flag: it can be read. Without this one and the next the descriptor's number says what it is for.
pub const STREAM_READABLE: u32 = 2;
/// `TAG_STREAM` flag: it can be written.
pub const STREAM_WRITABLE: u32 = 4;

/// Reads the records of `bytes`; a malformed tail ends the sequence.
pub fn records(bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let (head, tail) = rest.split_at_checked(8)?;
        let tag = u32::from_le_bytes(head[..4].try_into().ok()?);
        let len = u32::from_le_bytes(head[4..].try_into().ok()?) as usize;
        let (data, tail) = tail.split_at_checked(len)?;
        rest = tail;
        Some(Record { tag, data })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_record_ends_the_sequence() {
        let bytes = [1, 0, 0, 0, 2, 0, 0, 0, b'h', b'i', 2, 0, 0, 0, 9, 0, 0, 0, b'x'];
        let mut found = records(&bytes);
        assert_eq!(found.next(), Some(Record { tag: TAG_ARG, data: b"hi" }));
        assert_eq!(found.next(), None);
    }
}
