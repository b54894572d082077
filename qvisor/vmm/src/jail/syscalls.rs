//! The system calls of a VMM that runs a kernel: one line a call, with its conditions and the reason. Everything else
//! ends the process.
//!
//! Conditions see registers only, never memory behind a pointer; so a call is listed only if it is harmless with any
//! string and any buffer. Paths are bounded elsewhere: the root is empty (`super::root::leave_host`), directories are
//! mounts of their own that nobody walks out of, and Landlock knows which may be opened (`super::landlock`). Process
//! ids are bounded by owners (`super::users`) and by Landlock's scope; `docs/security.md` names the processes that
//! remain in reach.

use abi::boot::Platform;
use abi::word::low32;

use crate::hostcall::decode::FALLOCATE_MODES;

use self::When::{Always, Any, Every, Masked, OneOf, OwnProcess, SocketOption, Zero};

/// When a call passes, by its arguments.
#[derive(Clone, Copy, Debug)]
pub enum When {
    Always,
    /// The argument's low half is one of these.
    OneOf(u8, &'static [u32]),
    /// The argument's low half, cut to the first number's bits, is one of these.
    Masked(u8, u32, &'static [u32]),
    /// The whole argument is zero.
    Zero(u8),
    /// The argument is the process's own number, which is known when the filter is made.
    OwnProcess(u8),
    /// Arguments 1 and 2 are level and name of a socket option that a sandbox may read, or (true) set.
    SocketOption(bool),
    /// All of these hold.
    Every(&'static [When]),
    /// One of these holds.
    Any(&'static [When]),
}

/// One line of the list.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub number: i64,
    pub name: &'static str,
    pub when: When,
    /// The only platform that needs it.
    pub platform: Option<Platform>,
    pub why: &'static str,
}

const fn rule(number: i64, name: &'static str, when: When, why: &'static str) -> Rule {
    Rule { number, name, when, platform: None, why }
}

const fn on(platform: Platform, number: i64, name: &'static str, when: When, why: &'static str) -> Rule {
    Rule { number, name, when, platform: Some(platform), why }
}

const NO_EXEC: When = Masked(2, libc::PROT_EXEC as u32, &[0]);
/// `clone` as the C library starts a thread; a VMM makes no process by it.
const THREAD: When = OneOf(0, &[0x003d_0f00]);
/// No owner of signals (`F_SETOWN`), no lease, no seals.
const FCNTL: When = OneOf(
    1,
    &[libc::F_DUPFD_CLOEXEC as u32, libc::F_GETFL as u32, libc::F_SETFL as u32, libc::F_GETFD as u32],
);
/// The modes that the guest may ask for, and those that give memory back.
const SPACE: When = Masked(1, !FALLOCATE_MODES.cast_unsigned(), &[0]);
/// Nodes that are no devices.
const NODE: When = Masked(2, libc::S_IFMT, &[libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK]);
/// Neither a whiteout, which is a device, nor a flag that the host learns later.
const RENAME: When = Masked(4, !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE), &[0]);
/// The target of a link of `/proc/self/fd`.
const LINK: When = OneOf(4, &[libc::AT_SYMLINK_FOLLOW as u32]);
/// A descriptor's node itself.
const NODE_ITSELF: When = OneOf(4, &[libc::AT_EMPTY_PATH as u32]);
const KIND: u32 = !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).cast_unsigned();
/// TCP, UDP, ICMP datagrams, and the kernel's tables of addresses and routes. No Unix sockets: their names would lead to
/// the host's services. No protocol but these: each further one is code of the host's that nothing needs.
const SOCKET: When = Any(&[
    Every(&[
        OneOf(0, &[libc::AF_INET as u32, libc::AF_INET6 as u32]),
        Masked(1, KIND, &[libc::SOCK_STREAM as u32]),
        OneOf(2, &[0, libc::IPPROTO_TCP as u32]),
    ]),
    Every(&[
        OneOf(0, &[libc::AF_INET as u32, libc::AF_INET6 as u32]),
        Masked(1, KIND, &[libc::SOCK_DGRAM as u32]),
        OneOf(2, &[0, libc::IPPROTO_UDP as u32, libc::IPPROTO_ICMP as u32, libc::IPPROTO_ICMPV6 as u32]),
    ]),
    Every(&[
        OneOf(0, &[libc::AF_NETLINK as u32]),
        Masked(1, KIND, &[libc::SOCK_RAW as u32]),
        OneOf(2, &[libc::NETLINK_ROUTE as u32]),
    ]),
]);
/// The options that the guest may read, and the credentials of a peer at the control socket.
const GET_OPTION: When = Any(&[
    SocketOption(false),
    Every(&[OneOf(1, &[libc::SOL_SOCKET as u32]), OneOf(2, &[libc::SO_PEERCRED as u32])]),
]);
/// The options that the guest may set, the time-outs of the control socket's peers, and NETLINK_GET_STRICT_CHK.
const SET_OPTION: When = Any(&[
    SocketOption(true),
    Every(&[
        OneOf(1, &[libc::SOL_SOCKET as u32]),
        OneOf(2, &[libc::SO_RCVTIMEO as u32, libc::SO_SNDTIMEO as u32]),
    ]),
    Every(&[OneOf(1, &[libc::SOL_NETLINK as u32]), OneOf(2, &[12])]),
]);
/// Gives pages back (MADV_DONTNEED), asks for large ones (MADV_HUGEPAGE), and the C library's guard pages
/// (MADV_GUARD_INSTALL and _REMOVE).
const ADVICE: When = OneOf(
    2,
    &[libc::MADV_DONTNEED as u32, libc::MADV_HUGEPAGE as u32, libc::MADV_NOHUGEPAGE as u32, 102, 103],
);
/// Waiting and waking, on words of our own and on those shared with stubs (FUTEX_WAIT, _WAKE, _WAIT_BITSET; _PRIVATE;
/// _CLOCK_REALTIME, with which the C library joins threads).
const FUTEX: When = Masked(
    1,
    !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME).cast_unsigned(),
    &[libc::FUTEX_WAIT as u32, libc::FUTEX_WAKE as u32, libc::FUTEX_WAIT_BITSET as u32],
);
/// The host's clocks, our own processor time, and (CPUCLOCK_SCHED with a process's id in the upper bits) a stub's. The
/// filter cannot tell whose id it is; the answer is how long that process has run.
const CLOCK: When = Any(&[
    OneOf(
        0,
        &[
            libc::CLOCK_REALTIME as u32,
            libc::CLOCK_MONOTONIC as u32,
            libc::CLOCK_PROCESS_CPUTIME_ID as u32,
            libc::CLOCK_THREAD_CPUTIME_ID as u32,
            libc::CLOCK_BOOTTIME as u32,
        ],
    ),
    Masked(0, 0x8000_0007, &[0x8000_0002]),
]);
/// Without waiting.
const WATCHES: When = OneOf(0, &[(libc::IN_CLOEXEC | libc::IN_NONBLOCK) as u32]);
/// The caller's own thread, and only downwards.
const IDLE: When = Every(&[Zero(0), OneOf(1, &[libc::SCHED_IDLE as u32])]);
/// Without waiting.
const WHOLE_LOCK: When = OneOf(
    1,
    &[(libc::LOCK_EX | libc::LOCK_NB) as u32, (libc::LOCK_SH | libc::LOCK_NB) as u32, libc::LOCK_UN as u32],
);
/// Locks of open files (`F_OFD_SETLK`, `F_OFD_GETLK`), without waiting (`F_OFD_SETLKW`), and none of the process's own.
const RECORD_LOCK: When = OneOf(1, &[libc::F_OFD_SETLK as u32, libc::F_OFD_GETLK as u32]);
const SLEEP: When = OneOf(0, &[libc::CLOCK_REALTIME as u32, libc::CLOCK_MONOTONIC as u32]);
const DEADLINE: When = OneOf(0, &[libc::CLOCK_MONOTONIC as u32]);
const TERMINAL: When = OneOf(1, &[low32(libc::TIOCGWINSZ), low32(libc::TIOCSWINSZ)]);
/// Which memory of the process holds anything (PAGEMAP_SCAN), by its own page map.
const PAGES: When = OneOf(1, &[0xc060_6610]);
/// The bytes in a socket's queues, in and out, and whether reading stands at urgent data: SIOCINQ, SIOCOUTQ,
/// SIOCOUTQNSD, SIOCATMARK.
const QUEUES: When = OneOf(1, &[low32(libc::FIONREAD), low32(libc::TIOCOUTQ), 0x894b, 0x8905]);
/// Every request of a machine and its processors that begins after the jail is entered, in the order of their numbers.
const KVM_IOCTL: When = OneOf(
    1,
    &[
        0xae41,      // KVM_CREATE_VCPU
        0xae80,      // KVM_RUN
        0x8090_ae81, // KVM_GET_REGS
        0x4090_ae82, // KVM_SET_REGS
        0x8138_ae83, // KVM_GET_SREGS
        0x4138_ae84, // KVM_SET_SREGS
        0x4004_ae86, // KVM_INTERRUPT
        0x4008_ae89, // KVM_SET_MSRS
        0xc008_ae88, // KVM_GET_MSRS
        0x4008_ae90, // KVM_SET_CPUID2
        0x8040_ae9f, // KVM_GET_VCPU_EVENTS
        0x4040_aea0, // KVM_SET_VCPU_EVENTS
        0xaea2,      // KVM_SET_TSC_KHZ
        0xaea3,      // KVM_GET_TSC_KHZ
        0x8188_aea6, // KVM_GET_XCRS
        0x4188_aea7, // KVM_SET_XCRS
        0xae03,      // KVM_CHECK_EXTENSION
        0xaece,      // KVM_GET_STATS_FD
        0x4018_aee1, // KVM_SET_DEVICE_ATTR
        0x4018_aee2, // KVM_GET_DEVICE_ATTR
        0x4018_aee3, // KVM_HAS_DEVICE_ATTR
    ],
);
/// Interrupts a vCPU's stub, by the one signal that it handles for that; a stub without a descriptor is ended. Also
/// asks a thread of the VMM where it is.
const INTERRUPT: When = Any(&[
    OneOf(2, &[libc::SIGUSR1 as u32, libc::SIGKILL as u32]),
    Every(&[OwnProcess(0), OneOf(2, &[libc::SIGTRAP as u32])]),
]);
/// A vCPU's thread is told to leave the guest (SIGRTMIN + 2), or to say where it is.
const KICK: When = Every(&[OwnProcess(0), OneOf(2, &[36, libc::SIGTRAP as u32])]);
/// Stubs are ended, and the leash of a container is continued; no sender can be forged.
const END_OR_CONTINUE: When =
    Every(&[OneOf(1, &[libc::SIGKILL as u32, libc::SIGCONT as u32]), Zero(2), Zero(3)]);
/// The leash, which is a child, by its number. Of others the host's kernel tells nothing.
const CHILD: When = OneOf(0, &[libc::P_PID]);
/// A stub, which is a child, whichever signal its end sends.
const ANY_CHILD: When = OneOf(2, &[libc::__WALL as u32]);
/// Pages of a snapshot that are about to be read; no page is dropped from the host's cache.
const WANTED_SOON: When = OneOf(3, &[libc::POSIX_FADV_WILLNEED as u32]);
const SET_NAME: When = OneOf(0, &[libc::PR_SET_NAME as u32]);
const SET_GS: When = OneOf(0, &[0x1001]);

use Platform::{Kvm, Systrap};

/// The list.
#[rustfmt::skip]
pub const RULES: &[Rule] = &[
    // Files. Names are single components, looked up below directories that the sandbox was given.
    rule(libc::SYS_openat, "openat", Always, "opens or creates one component below a directory"),
    rule(libc::SYS_openat2, "openat2", Always, "opens a directory that is there itself, not behind a link"),
    rule(libc::SYS_close, "close", Always, "handles the guest closes"),
    rule(libc::SYS_fcntl, "fcntl", FCNTL, "copies descriptors and reads their flags"),
    rule(libc::SYS_statx, "statx", Always, "attributes"),
    rule(libc::SYS_fstatfs, "fstatfs", Always, "attributes of file systems"),
    rule(libc::SYS_getdents64, "getdents64", Always, "lists directories"),
    rule(libc::SYS_lseek, "lseek", Always, "positions of directories; SEEK_DATA and SEEK_HOLE"),
    rule(libc::SYS_preadv, "preadv", Always, "reads files"),
    rule(libc::SYS_pwritev, "pwritev", Always, "writes files"),
    rule(libc::SYS_pread64, "pread64", Always, "copies between files that the host cannot copy between"),
    rule(libc::SYS_pwrite64, "pwrite64", Always, "as above"),
    rule(libc::SYS_fadvise64, "fadvise64", WANTED_SOON, "reads the pages of a snapshot ahead"),
    rule(libc::SYS_copy_file_range, "copy_file_range", Always, "copies between files"),
    rule(libc::SYS_ftruncate, "ftruncate", Always, "sizes"),
    rule(libc::SYS_fallocate, "fallocate", SPACE, "space for files; gives memory of the sandbox back"),
    rule(libc::SYS_fsync, "fsync", Always, "what the guest wants on the disk"),
    rule(libc::SYS_fdatasync, "fdatasync", Always, "as above"),
    rule(libc::SYS_mkdirat, "mkdirat", Always, "directories"),
    rule(libc::SYS_mknodat, "mknodat", NODE, "pipes and sockets by name; device nodes stay virtual"),
    rule(libc::SYS_unlinkat, "unlinkat", Always, "removes names"),
    rule(libc::SYS_renameat2, "renameat2", RENAME, "renames"),
    rule(libc::SYS_linkat, "linkat", LINK, "further names of a node, by its descriptor"),
    rule(libc::SYS_symlinkat, "symlinkat", Always, "links, which the guest's kernel follows and we never do"),
    rule(libc::SYS_readlinkat, "readlinkat", Always, "where links lead"),
    rule(libc::SYS_fchmod, "fchmod", Always, "modes of open files"),
    rule(libc::SYS_fchmodat, "fchmodat", Always, "modes of nodes, by their descriptor"),
    rule(libc::SYS_fchownat, "fchownat", NODE_ITSELF, "owners"),
    rule(libc::SYS_utimensat, "utimensat", Always, "times"),
    rule(libc::SYS_fcntl, "fcntl", RECORD_LOCK, "locks of files in volumes, which others see"),
    rule(libc::SYS_flock, "flock", WHOLE_LOCK, "as above; sleeping sandboxes' pages are packed one after the other's"),
    rule(libc::SYS_inotify_init1, "inotify_init1", WATCHES, "what others change in volumes"),
    rule(libc::SYS_inotify_add_watch, "inotify_add_watch", Always, "as above, by a descriptor's name in /proc"),
    rule(libc::SYS_inotify_rm_watch, "inotify_rm_watch", Always, "as above"),
    rule(libc::SYS_fgetxattr, "fgetxattr", Always, "extended attributes of open files"),
    rule(libc::SYS_fsetxattr, "fsetxattr", Always, "as above"),
    rule(libc::SYS_flistxattr, "flistxattr", Always, "as above"),
    rule(libc::SYS_fremovexattr, "fremovexattr", Always, "as above"),
    rule(libc::SYS_getxattr, "getxattr", Always, "extended attributes of nodes, by their descriptor's name in /proc"),
    rule(libc::SYS_setxattr, "setxattr", Always, "as above"),
    rule(libc::SYS_listxattr, "listxattr", Always, "as above"),
    rule(libc::SYS_removexattr, "removexattr", Always, "as above"),

    // Streams, events, the control socket, the log.
    rule(libc::SYS_read, "read", Always, "event counters; orders"),
    rule(libc::SYS_write, "write", Always, "event counters; the log; reports to the front end"),
    rule(libc::SYS_readv, "readv", Always, "standard input"),
    rule(libc::SYS_writev, "writev", Always, "standard output"),
    rule(libc::SYS_preadv2, "preadv2", Always, "reads without waiting, streams of strangers and files"),
    rule(libc::SYS_pwritev2, "pwritev2", Always, "writes them without waiting"),
    rule(libc::SYS_poll, "poll", Always, "whether something can be read"),
    rule(libc::SYS_ioctl, "ioctl", TERMINAL, "a terminal's size"),
    rule(libc::SYS_epoll_ctl, "epoll_ctl", Always, "what the I/O thread waits for"),
    rule(libc::SYS_epoll_wait, "epoll_wait", Always, "waits for it"),
    rule(libc::SYS_epoll_pwait2, "epoll_pwait2", Always, "an idle vCPU waits for it, and for its deadline"),
    rule(libc::SYS_recvfrom, "recvfrom", Always, "orders; what the host says of its routes"),
    rule(libc::SYS_sendto, "sendto", Always, "answers; questions to the host's kernel"),

    // Sockets of the sandbox, in its network namespace.
    rule(libc::SYS_socket, "socket", SOCKET, "sockets of the guest"),
    rule(libc::SYS_bind, "bind", Always, "as above"),
    rule(libc::SYS_connect, "connect", Always, "as above"),
    rule(libc::SYS_listen, "listen", Always, "as above"),
    rule(libc::SYS_accept4, "accept4", Always, "as above; who connects to the control socket"),
    rule(libc::SYS_getsockname, "getsockname", Always, "as above"),
    rule(libc::SYS_getpeername, "getpeername", Always, "as above"),
    rule(libc::SYS_shutdown, "shutdown", Always, "as above"),
    rule(libc::SYS_getsockopt, "getsockopt", GET_OPTION, "as above; who asks at the control socket"),
    rule(libc::SYS_setsockopt, "setsockopt", SET_OPTION, "as above; how long a peer may take there"),
    rule(libc::SYS_ioctl, "ioctl", QUEUES, "what a socket holds"),
    rule(libc::SYS_sendmsg, "sendmsg", Always, "data of sockets; files for stubs to map"),
    rule(libc::SYS_recvmsg, "recvmsg", Always, "data of sockets"),
    rule(libc::SYS_sendfile, "sendfile", Always, "host files that are sent over sockets"),

    // Memory. Nothing becomes executable any more.
    rule(libc::SYS_mmap, "mmap", NO_EXEC, "the file window; stacks and heaps of our own threads"),
    rule(libc::SYS_munmap, "munmap", Always, "as above"),
    rule(libc::SYS_mprotect, "mprotect", NO_EXEC, "guard pages and growing heaps of our own threads"),
    rule(libc::SYS_mremap, "mremap", Always, "large blocks of the heap that grow"),
    rule(libc::SYS_brk, "brk", Always, "the heap"),
    rule(libc::SYS_madvise, "madvise", ADVICE, "gives memory back"),
    rule(libc::SYS_ioctl, "ioctl", PAGES, "what of the sandbox's memory goes to an image"),

    // Threads of our own, and time.
    rule(libc::SYS_clone, "clone", THREAD, "vCPUs, and I/O threads when they are first needed"),
    rule(libc::SYS_clone3, "clone3", Always, "answered ENOSYS by a filter beside this one, since its flags cannot be seen"),
    rule(libc::SYS_set_robust_list, "set_robust_list", Always, "the C library's, for a new thread"),
    rule(libc::SYS_rseq, "rseq", Always, "as above"),
    rule(libc::SYS_sigaltstack, "sigaltstack", Always, "stacks for faults"),
    rule(libc::SYS_rt_sigprocmask, "rt_sigprocmask", Always, "vCPUs take faults only"),
    rule(libc::SYS_rt_sigaction, "rt_sigaction", Always, "a fault of the VMM's own ends it"),
    rule(libc::SYS_rt_sigreturn, "rt_sigreturn", Always, "after a fault that was expected"),
    rule(libc::SYS_prctl, "prctl", SET_NAME, "names of threads"),
    rule(libc::SYS_sched_getaffinity, "sched_getaffinity", Always, "how many processors; of anyone but the caller it is answered ENOSYS, as clone3"),
    rule(libc::SYS_sched_setscheduler, "sched_setscheduler", IDLE, "a sleeping sandbox's pages are packed in idle time"),
    rule(libc::SYS_sched_yield, "sched_yield", Always, "lets another thread run"),
    rule(libc::SYS_futex, "futex", FUTEX, "locks; taking turns with stubs"),
    rule(libc::SYS_clock_gettime, "clock_gettime", CLOCK, "processor time of the sandbox"),
    rule(libc::SYS_clock_nanosleep, "clock_nanosleep", SLEEP, "waits for a stub that is made"),
    rule(libc::SYS_getrandom, "getrandom", Always, "random bytes for the guest"),
    rule(libc::SYS_gettid, "gettid", Always, "whom to interrupt"),
    rule(libc::SYS_getpid, "getpid", Always, "as above"),
    rule(libc::SYS_exit, "exit", Always, "a thread ends"),
    rule(libc::SYS_exit_group, "exit_group", Always, "the sandbox ends"),
    rule(libc::SYS_restart_syscall, "restart_syscall", Always, "the host's kernel, after a stop"),

    // Children of ours: stubs, which the zygote makes, and the leash of a container.
    rule(libc::SYS_pidfd_send_signal, "pidfd_send_signal", END_OR_CONTINUE, "ends a stub; continues the leash"),
    rule(libc::SYS_waitid, "waitid", CHILD, "sees the leash stopped, continued and killed"),
    on(Systrap, libc::SYS_tgkill, "tgkill", INTERRUPT, "interrupts application code"),
    on(Systrap, libc::SYS_pidfd_open, "pidfd_open", Zero(1), "names a new stub for good"),
    on(Systrap, libc::SYS_wait4, "wait4", ANY_CHILD, "buries it"),
    on(Systrap, libc::SYS_sched_setaffinity, "sched_setaffinity", Always, "binds a stub to its vCPU's core; stubs have no numbers yet when this is installed"),
    on(Systrap, libc::SYS_arch_prctl, "arch_prctl", SET_GS, "the kernel's own base, on a new vCPU"),

    // The machine, which was made before the jail.
    on(Kvm, libc::SYS_ioctl, "ioctl", KVM_IOCTL, "vCPUs: made, set up, run"),
    on(Kvm, libc::SYS_tgkill, "tgkill", KICK, "makes a vCPU leave the guest"),
    on(Kvm, libc::SYS_timer_create, "timer_create", DEADLINE, "a vCPU's deadline"),
    on(Kvm, libc::SYS_timer_settime, "timer_settime", Always, "as above"),
    on(Kvm, libc::SYS_timer_delete, "timer_delete", Always, "as above"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_reason_and_nothing_is_listed_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for rule in RULES {
            assert!(!rule.why.is_empty() && !rule.name.is_empty());
            assert!(
                seen.insert((rule.number, rule.why, rule.platform.map(|one| one as u32))),
                "{}",
                rule.name
            );
        }
    }

    #[test]
    fn what_would_undo_the_jail_is_not_listed() {
        let forbidden = [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_ptrace,
            libc::SYS_kill,
            libc::SYS_tkill,
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_chroot,
            libc::SYS_setns,
            libc::SYS_unshare,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_fsopen,
            libc::SYS_bpf,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_kexec_load,
            libc::SYS_reboot,
            libc::SYS_keyctl,
            libc::SYS_perf_event_open,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_userfaultfd,
            libc::SYS_io_uring_setup,
            libc::SYS_open_by_handle_at,
            libc::SYS_setuid,
            libc::SYS_setresuid,
            libc::SYS_setfsuid,
            libc::SYS_capset,
            libc::SYS_seccomp,
            libc::SYS_pidfd_getfd,
            libc::SYS_socketpair,
        ];
        for rule in RULES {
            assert!(!forbidden.contains(&rule.number), "{}", rule.name);
        }
    }
}
