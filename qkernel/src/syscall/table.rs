//! The system-call table. Each line: number, handler in its family's file, arguments with their types. Behind them may stand the call's
//! [`Properties`], and for a call on what belongs to the host alone the error for callers without the capability ([`Refusal`]).

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::creds::{
    CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_BOOT, CAP_SYS_MODULE, CAP_SYS_PACCT, CAP_SYS_RAWIO,
    CAP_SYS_TTY_CONFIG,
};
use crate::syscall::attr::utime;
use crate::syscall::context::{FromArg, SyscallResult};
use crate::syscall::creds::{capabilities, groups, setuid};
use crate::syscall::memory::{madvise, mlock, mmap, numa, pkeys, process_vm};
use crate::syscall::message::{receive, recvmsg, send};
use crate::syscall::names::{link, rename};
use crate::syscall::poll::select;
use crate::syscall::properties::{Properties, PropertyTable};
use crate::syscall::refused::Refusal;
use crate::syscall::rw::vectored;
use crate::syscall::sched::{affinity, ioprio, priority, sched_attr, scheduler};
use crate::syscall::signal::{kill, sigqueue, suspend};
use crate::syscall::socket::{connect, sockname, sockopt};
use crate::syscall::splice::tee;
use crate::syscall::stat::statx;
use crate::syscall::transfer::{advice, copy_file_range, fallocate, sendfile};
use crate::syscall::unknown::unknown;
use crate::syscall::wait::waitid;
use crate::syscall::xattr::{getxattr, setxattr};
use crate::syscall::{
    access, adjtimex, attr, cachestat, clone, creds, dir, dup, epoll, event, exec, fcntl, futex, futex2,
    getdents, inotify, ioctl, itimer, jobs, kcmp, keys, limits, lock, membarrier, memfd, memory, mount,
    mqueue, msg, names, nanosleep, old, open, pidfd, poll, prctl, process, readlink, reboot, refused,
    restart, robust, rseq, rw, sched, seccomp, sem, setns, shm, signal, signalfd, socket, splice, stat,
    statfs, sync, system, time, timer, timerfd, truncate, uname, unshare, usage, wait,
};
use crate::task::context::Ctx;
use crate::task::core::Task;
use machine::errno::Errno;
use machine::mm::UserAddr;

static STRACE: AtomicBool = AtomicBool::new(false);

/// Turns logging of every call on or off.
pub fn set_strace(on: bool) {
    STRACE.store(on, Ordering::Relaxed);
}

/// Whether every call is logged.
pub fn strace() -> bool {
    STRACE.load(Ordering::Relaxed)
}

macro_rules! syscalls {
    ($(
        $number:literal => $family:ident :: $name:ident ( $($arg:ident : $type:ty),* )
            $([ $($property:ident),+ ])? $(without $($capability:ident)or+ : $error:ident)?;
    )*) => {
        /// Performs a call.
        pub(super) fn call(cx: &Ctx<'_>, number: u64, args: [u64; 6]) -> SyscallResult {
            match number {
                $($number => {
                    #[allow(unused_mut, unused_variables)]
                    let mut rest = args.into_iter();
                    $(let $arg = <$type as FromArg>::from_arg(rest.next().unwrap_or(0));)*
                    $family::$name(
                        cx $(, $arg)*
                        $(, &Refusal { number: $number, capabilities: &[$($capability),+], error: Errno::$error })?
                    )
                })*
                _ => unknown(number),
            }
        }

        /// The properties of every call.
        pub(super) const PROPERTIES: &PropertyTable =
            &PropertyTable::new()$($(.with($number, Properties::empty()$(.union(Properties::$property))+))?)*;

        /// Number, name and family of every implemented call.
        pub const IMPLEMENTED: &[(u64, &str, &str)] = &[$(($number, stringify!($name), stringify!($family))),*];

        /// Number of every implemented call, and its arguments' names and types.
        #[cfg(feature = "harness")]
        pub const ARGUMENTS: &[(u64, &[(&str, &str)])] =
            &[$(($number, &[$((stringify!($arg), stringify!($type))),*])),*];

        fn describe(number: u64, args: &[u64; 6]) -> String {
            match number {
                $($number => {
                    #[allow(unused_mut)]
                    let mut text = String::from(stringify!($name));
                    text.push('(');
                    #[allow(unused_mut, unused_variables)]
                    let mut rest = args.iter();
                    $(text.push_str(&format!("{}={:#x} ", stringify!($arg), rest.next().unwrap_or(&0)));)*
                    text.push(')');
                    text
                })*
                _ => format!("syscall_{number}({args:x?})"),
            }
        }
    };
}

/// Logs one call, as `--strace` asks.
pub(super) fn trace(task: &Arc<Task>, number: u64, args: &[u64; 6], result: &SyscallResult) {
    let line = match result {
        Ok(value) => format!("[{}] {} = {value:#x}", task.tid(), describe(number, args)),
        Err(error) => format!("[{}] {} = {error:?}", task.tid(), describe(number, args)),
    };
    machine::host::log(0, &line);
}

syscalls! {
    // memory
    9 => mmap::mmap(addr: UserAddr, len: u64, prot: u32, flags: u64, fd: i32, offset: u64);
    10 => memory::mprotect(addr: UserAddr, len: u64, prot: u64);
    11 => memory::munmap(addr: UserAddr, len: u64) [GIVES_BACK];
    12 => memory::brk(addr: UserAddr);
    25 => memory::mremap(old: UserAddr, old_len: u64, new_len: u64, flags: u64, new: UserAddr);
    26 => madvise::msync(addr: UserAddr, len: u64, flags: u32);
    27 => madvise::mincore(addr: UserAddr, len: u64, vec: UserAddr);
    28 => madvise::madvise(addr: UserAddr, len: u64, advice: u32) [GIVES_BACK];
    216 => mmap::remap_file_pages(addr: UserAddr, len: u64, prot: u64, page: u64, flags: u64);
    237 => numa::mbind(addr: UserAddr, len: u64, mode: u32, nodes: UserAddr, max_node: u64, flags: u32);
    238 => numa::set_mempolicy(mode: u32, nodes: UserAddr, max_node: u64);
    239 => numa::get_mempolicy(mode: UserAddr, nodes: UserAddr, max_node: u64, addr: UserAddr, flags: u64);
    256 => numa::migrate_pages(pid: i32, max_node: u64, old: UserAddr, new: UserAddr);
    279 => numa::move_pages(pid: i32, count: u64, pages: UserAddr, nodes: UserAddr, status: UserAddr, flags: u32);
    310 => process_vm::process_vm_readv(pid: i32, local: UserAddr, local_count: u64, remote: UserAddr, remote_count: u64, flags: u64);
    311 => process_vm::process_vm_writev(pid: i32, local: UserAddr, local_count: u64, remote: UserAddr, remote_count: u64, flags: u64);
    440 => madvise::process_madvise(pidfd: i32, iov: UserAddr, count: u64, advice: u32, flags: u32);
    450 => numa::set_mempolicy_home_node(addr: UserAddr, len: u64, node: u64, flags: u64);
    329 => pkeys::pkey_mprotect(addr: UserAddr, len: u64, prot: u64, key: i32);
    330 => pkeys::pkey_alloc(flags: u64, rights: u64);
    331 => pkeys::pkey_free(key: i32);
    448 => pidfd::process_mrelease(pidfd: i32, flags: u32);
    462 => memory::mseal(addr: UserAddr, len: u64, flags: u64);
    149 => mlock::mlock(addr: UserAddr, len: u64);
    150 => mlock::munlock(addr: UserAddr, len: u64);
    151 => mlock::mlockall(flags: u32);
    152 => mlock::munlockall();
    325 => mlock::mlock2(addr: UserAddr, len: u64, flags: u32);

    // processes and threads
    39 => process::getpid() [GIVES_BACK];
    56 => clone::clone(flags: u64, stack: UserAddr, parent_tid: UserAddr, child_tid: UserAddr, tls: u64);
    57 => clone::fork();
    58 => clone::vfork();
    59 => exec::execve(path: UserAddr, argv: UserAddr, envp: UserAddr) [RUNS_PROGRAM];
    60 => process::exit(status: i32) [GIVES_BACK, STRICT];
    61 => wait::wait4(pid: i32, status: UserAddr, options: u32, usage: UserAddr) [GIVES_BACK];
    110 => process::getppid();
    158 => process::arch_prctl(code: u32, addr: UserAddr);
    186 => process::gettid() [GIVES_BACK];
    218 => process::set_tid_address(addr: UserAddr);
    169 => reboot::reboot(magic: u32, second: u32, command: u32);
    231 => process::exit_group(status: i32) [GIVES_BACK];
    247 => waitid::waitid(kind: u32, id: i32, info: UserAddr, options: u32, usage: UserAddr) [GIVES_BACK];
    322 => exec::execveat(dirfd: i32, path: UserAddr, argv: UserAddr, envp: UserAddr, flags: u32) [RUNS_PROGRAM];
    435 => clone::clone3(args: UserAddr, size: u64);

    // signals
    13 => signal::rt_sigaction(signal: u32, new: UserAddr, old: UserAddr, size: u64) [GIVES_BACK];
    14 => signal::rt_sigprocmask(how: u32, new: UserAddr, old: UserAddr, size: u64) [GIVES_BACK];
    15 => signal::rt_sigreturn() [GIVES_BACK, STRICT];
    34 => suspend::pause() [GIVES_BACK];
    62 => kill::kill(pid: i32, signal: u32) [GIVES_BACK];
    109 => jobs::setpgid(pid: i32, group: i32);
    111 => jobs::getpgrp();
    112 => jobs::setsid();
    121 => jobs::getpgid(pid: i32);
    124 => jobs::getsid(pid: i32);
    127 => signal::rt_sigpending(set: UserAddr, size: u64);
    128 => suspend::rt_sigtimedwait(set: UserAddr, info: UserAddr, timeout: UserAddr, size: u64);
    129 => sigqueue::rt_sigqueueinfo(pid: i32, signal: u32, info: UserAddr);
    130 => suspend::rt_sigsuspend(mask: UserAddr, size: u64);
    131 => signal::sigaltstack(new: UserAddr, old: UserAddr);
    200 => kill::tkill(tid: i32, signal: u32) [GIVES_BACK];
    219 => restart::restart_syscall() [RESUMES];
    234 => kill::tgkill(tgid: i32, tid: i32, signal: u32) [GIVES_BACK];
    297 => sigqueue::rt_tgsigqueueinfo(tgid: i32, tid: i32, signal: u32, info: UserAddr);

    // futexes
    202 => futex::futex(addr: UserAddr, op: u32, value: u32, timeout: u64, second: UserAddr, third: u32) [GIVES_BACK];
    449 => futex2::futex_waitv(waits: UserAddr, count: u32, flags: u32, timeout: UserAddr, clock: i32) [GIVES_BACK];
    454 => futex2::futex_wake(addr: UserAddr, mask: u64, count: u32, flags: u32) [GIVES_BACK];
    455 => futex2::futex_wait(addr: UserAddr, value: u64, mask: u64, flags: u32, timeout: UserAddr, clock: i32) [GIVES_BACK];
    456 => futex2::futex_requeue(waits: UserAddr, flags: u32, wakes: u32, moves: u32);
    273 => robust::set_robust_list(head: UserAddr, size: u64);
    274 => robust::get_robust_list(tid: i32, head: UserAddr, size: UserAddr);

    // time
    35 => nanosleep::nanosleep(from: UserAddr, remainder: UserAddr) [GIVES_BACK];
    36 => itimer::getitimer(timer: u32, to: UserAddr);
    37 => itimer::alarm(seconds: u32);
    38 => itimer::setitimer(timer: u32, new: UserAddr, old: UserAddr);
    96 => time::gettimeofday(to: UserAddr, zone: UserAddr);
    159 => adjtimex::adjtimex(buf: UserAddr);
    164 => time::settimeofday();
    201 => time::time(to: UserAddr);
    222 => timer::timer_create(clock: i32, event: UserAddr, id: UserAddr);
    223 => timer::timer_settime(id: u32, flags: u32, new: UserAddr, old: UserAddr);
    224 => timer::timer_gettime(id: u32, to: UserAddr);
    225 => timer::timer_getoverrun(id: u32);
    226 => timer::timer_delete(id: u32);
    227 => time::clock_settime(clock: i32, from: UserAddr);
    228 => time::clock_gettime(clock: i32, to: UserAddr);
    229 => time::clock_getres(clock: i32, to: UserAddr);
    230 => nanosleep::clock_nanosleep(clock: i32, flags: u32, from: UserAddr, remainder: UserAddr) [GIVES_BACK];
    305 => adjtimex::clock_adjtime(clock: i32, buf: UserAddr);

    // credentials
    102 => creds::getuid();
    104 => creds::getgid();
    105 => setuid::setuid(id: u32);
    106 => setuid::setgid(id: u32);
    107 => creds::geteuid();
    108 => creds::getegid();
    113 => setuid::setreuid(real: u32, effective: u32);
    114 => setuid::setregid(real: u32, effective: u32);
    115 => groups::getgroups(size: i32, to: UserAddr);
    116 => groups::setgroups(size: u32, from: UserAddr);
    117 => setuid::setresuid(real: u32, effective: u32, saved: u32);
    118 => creds::getresuid(real: UserAddr, effective: UserAddr, saved: UserAddr);
    119 => setuid::setresgid(real: u32, effective: u32, saved: u32);
    120 => creds::getresgid(real: UserAddr, effective: UserAddr, saved: UserAddr);
    122 => setuid::setfsuid(id: u32);
    123 => setuid::setfsgid(id: u32);
    125 => capabilities::capget(header: UserAddr, data: UserAddr);
    126 => capabilities::capset(header: UserAddr, data: UserAddr);
    157 => prctl::prctl(option: u32, a: u64, b: u64, c: u64, d: u64);
    272 => unshare::unshare(flags: u64);
    308 => setns::setns(fd: i32, kinds: u32);
    312 => kcmp::kcmp(one: i32, other: i32, kind: u32, a: u64, b: u64);
    317 => seccomp::seccomp(operation: u32, flags: u32, arg: UserAddr);

    // keys
    248 => keys::add_key(kind: UserAddr, description: UserAddr, payload: UserAddr, len: u64, ring: i32);
    249 => keys::request_key(kind: UserAddr, description: UserAddr, callout: UserAddr, ring: i32);
    250 => keys::keyctl(operation: u32, a: u64, b: u64, c: u64, d: u64);

    // limits and scheduling
    24 => sched::sched_yield() [GIVES_BACK];
    97 => limits::getrlimit(resource: u32, to: UserAddr);
    98 => usage::getrusage(who: i32, to: UserAddr);
    100 => usage::times(to: UserAddr);
    140 => priority::getpriority(which: u32, who: u32);
    141 => priority::setpriority(which: u32, who: u32, nice: i32);
    142 => scheduler::sched_setparam(tid: i32, param: UserAddr);
    143 => scheduler::sched_getparam(tid: i32, param: UserAddr);
    144 => scheduler::sched_setscheduler(tid: i32, policy: u32, param: UserAddr);
    145 => scheduler::sched_getscheduler(tid: i32);
    146 => scheduler::sched_get_priority_max(policy: u32);
    147 => scheduler::sched_get_priority_min(policy: u32);
    148 => scheduler::sched_rr_get_interval(tid: i32, to: UserAddr);
    160 => limits::setrlimit(resource: u32, from: UserAddr);
    203 => affinity::sched_setaffinity(tid: i32, size: u32, mask: UserAddr);
    204 => affinity::sched_getaffinity(tid: i32, size: u32, mask: UserAddr);
    251 => ioprio::ioprio_set(which: u32, who: u32, priority: u32);
    252 => ioprio::ioprio_get(which: u32, who: u32);
    314 => sched_attr::sched_setattr(tid: i32, attr: UserAddr, flags: u32);
    315 => sched_attr::sched_getattr(tid: i32, attr: UserAddr, size: u32, flags: u32);
    302 => limits::prlimit64(pid: i32, resource: u32, new: UserAddr, old: UserAddr);

    // system information
    63 => uname::uname(to: UserAddr);
    139 => old::sysfs(option: u32, a: u64, to: UserAddr);
    154 => old::modify_ldt(function: u32, to: UserAddr, bytes: u64);
    99 => system::sysinfo(to: UserAddr);
    103 => system::syslog(kind: i32, buf: UserAddr, len: i32);
    135 => system::personality(persona: u32);
    170 => uname::sethostname(name: UserAddr, len: i32);
    171 => uname::setdomainname(name: UserAddr, len: i32);
    309 => system::getcpu(cpu: UserAddr, node: UserAddr);
    318 => system::getrandom(buf: UserAddr, len: usize, flags: u32);
    324 => membarrier::membarrier(command: i32, flags: u32, cpu: i32);
    334 => rseq::rseq(addr: UserAddr, len: u32, flags: u32, signature: u32);
    // pipes and events
    7 => poll::poll(fds: UserAddr, count: u32, timeout_ms: i32) [GIVES_BACK];
    22 => event::pipe(ends: UserAddr);
    23 => select::select(count: i32, read: UserAddr, write: UserAddr, except: UserAddr, timeout: UserAddr);
    213 => epoll::epoll_create(size: i32);
    232 => epoll::epoll_wait(set: i32, events: UserAddr, max: i32, timeout_ms: i32) [GIVES_BACK];
    233 => epoll::epoll_ctl(set: i32, operation: u32, fd: i32, event: UserAddr);
    270 => select::pselect6(count: i32, read: UserAddr, write: UserAddr, except: UserAddr, timeout: UserAddr, mask: UserAddr);
    271 => poll::ppoll(fds: UserAddr, count: u32, timeout: UserAddr, mask: UserAddr, mask_size: u64);
    281 => epoll::epoll_pwait(set: i32, events: UserAddr, max: i32, timeout_ms: i32, mask: UserAddr, mask_size: u64);
    284 => event::eventfd(initial: u32);
    290 => event::eventfd2(initial: u32, flags: u32);
    291 => epoll::epoll_create1(flags: u32);
    293 => event::pipe2(ends: UserAddr, flags: u32);
    441 => epoll::epoll_pwait2(set: i32, events: UserAddr, max: i32, timeout: UserAddr, mask: UserAddr, mask_size: u64);
    253 => inotify::inotify_init();
    254 => inotify::inotify_add_watch(fd: i32, path: UserAddr, mask: u32);
    255 => inotify::inotify_rm_watch(fd: i32, descriptor: i32);
    294 => inotify::inotify_init1(flags: u32);
    275 => splice::splice(input: i32, input_offset: UserAddr, output: i32, output_offset: UserAddr, len: usize, flags: u32);
    276 => tee::tee(input: i32, output: i32, len: usize, flags: u32);
    278 => tee::vmsplice(fd: i32, iov: UserAddr, count: u64, flags: u32);
    282 => signalfd::signalfd(fd: i32, mask: UserAddr, size: u64);
    283 => timerfd::timerfd_create(clock: i32, flags: u32);
    286 => timerfd::timerfd_settime(fd: i32, flags: u32, new: UserAddr, old: UserAddr);
    287 => timerfd::timerfd_gettime(fd: i32, to: UserAddr);
    289 => signalfd::signalfd4(fd: i32, mask: UserAddr, size: u64, flags: u32);
    319 => memfd::memfd_create(name: UserAddr, flags: u32);
    424 => pidfd::pidfd_send_signal(pidfd: i32, number: u32, info: UserAddr, flags: u32);
    434 => pidfd::pidfd_open(pid: i32, flags: u32);
    438 => pidfd::pidfd_getfd(pidfd: i32, fd: i32, flags: u32);

    // sockets
    41 => socket::socket(family: u32, kind: u32, protocol: u32);
    42 => connect::connect(fd: i32, addr: UserAddr, len: u32);
    43 => connect::accept(fd: i32, addr: UserAddr, len: UserAddr);
    44 => send::sendto(fd: i32, buf: UserAddr, len: usize, flags: u32, to: UserAddr, to_len: u32);
    45 => receive::recvfrom(fd: i32, buf: UserAddr, len: usize, flags: u32, from: UserAddr, from_len: UserAddr);
    46 => send::sendmsg(fd: i32, header: UserAddr, flags: u32);
    47 => recvmsg::recvmsg(fd: i32, header: UserAddr, flags: u32);
    48 => connect::shutdown(fd: i32, how: u32);
    49 => connect::bind(fd: i32, addr: UserAddr, len: u32);
    50 => connect::listen(fd: i32, backlog: i32);
    51 => sockname::getsockname(fd: i32, addr: UserAddr, len: UserAddr);
    52 => sockname::getpeername(fd: i32, addr: UserAddr, len: UserAddr);
    53 => socket::socketpair(family: u32, kind: u32, protocol: u32, ends: UserAddr);
    54 => sockopt::setsockopt(fd: i32, level: u32, name: u32, value: UserAddr, len: i32);
    55 => sockopt::getsockopt(fd: i32, level: u32, name: u32, value: UserAddr, len: UserAddr);
    288 => connect::accept4(fd: i32, addr: UserAddr, len: UserAddr, flags: u32);
    299 => recvmsg::recvmmsg(fd: i32, headers: UserAddr, count: u32, flags: u32, timeout: UserAddr);
    307 => send::sendmmsg(fd: i32, headers: UserAddr, count: u32, flags: u32);

    // messages, semaphores and shared memory of System V
    29 => shm::shmget(key: i32, size: u64, flags: u32);
    30 => shm::shmat(id: i32, addr: UserAddr, flags: u32);
    31 => shm::shmctl(id: i32, command: i32, buf: UserAddr) [GIVES_BACK];
    64 => sem::semget(key: i32, size: i32, flags: u32);
    65 => sem::semop(id: i32, ops: UserAddr, count: u32) [GIVES_BACK];
    66 => sem::semctl(id: i32, number: i32, command: i32, arg: u64) [GIVES_BACK];
    67 => shm::shmdt(addr: UserAddr) [GIVES_BACK];
    68 => msg::msgget(key: i32, flags: u32);
    69 => msg::msgsnd(id: i32, from: UserAddr, size: u64, flags: u32);
    70 => msg::msgrcv(id: i32, to: UserAddr, size: u64, kind: i64, flags: u32) [GIVES_BACK];
    71 => msg::msgctl(id: i32, command: i32, buf: UserAddr) [GIVES_BACK];
    220 => sem::semtimedop(id: i32, ops: UserAddr, count: u32, timeout: UserAddr) [GIVES_BACK];

    // message queues of POSIX
    240 => mqueue::mq_open(name: UserAddr, flags: u32, mode: u32, attr: UserAddr);
    241 => mqueue::mq_unlink(name: UserAddr) [GIVES_BACK];
    242 => mqueue::mq_timedsend(fd: i32, from: UserAddr, len: usize, priority: u32, timeout: UserAddr);
    243 => mqueue::mq_timedreceive(fd: i32, to: UserAddr, len: usize, priority: UserAddr, timeout: UserAddr) [GIVES_BACK];
    244 => mqueue::mq_notify(fd: i32, event: UserAddr);
    245 => mqueue::mq_getsetattr(fd: i32, new: UserAddr, old: UserAddr);

    // files
    0 => rw::read(fd: i32, addr: UserAddr, len: usize) [GIVES_BACK, STRICT];
    1 => rw::write(fd: i32, addr: UserAddr, len: usize) [GIVES_BACK, STRICT];
    2 => open::open(path: UserAddr, flags: u32, mode: u32);
    3 => open::close(fd: i32) [GIVES_BACK];
    4 => stat::stat(path: UserAddr, buf: UserAddr);
    5 => stat::fstat(fd: i32, buf: UserAddr);
    6 => stat::lstat(path: UserAddr, buf: UserAddr);
    8 => rw::lseek(fd: i32, offset: i64, whence: u32);
    16 => ioctl::ioctl(fd: i32, request: u32, arg: u64);
    17 => rw::pread64(fd: i32, addr: UserAddr, len: usize, at: i64);
    18 => rw::pwrite64(fd: i32, addr: UserAddr, len: usize, at: i64);
    19 => vectored::readv(fd: i32, iov: UserAddr, count: u64);
    20 => vectored::writev(fd: i32, iov: UserAddr, count: u64);
    21 => access::access(path: UserAddr, mode: u32);
    32 => dup::dup(fd: i32);
    33 => dup::dup2(old: i32, new: i32);
    72 => fcntl::fcntl(fd: i32, command: u32, arg: u64);
    73 => lock::flock(fd: i32, operation: u32);
    78 => getdents::getdents(fd: i32, buf: UserAddr, len: u32);
    79 => dir::getcwd(buf: UserAddr, size: u64);
    80 => dir::chdir(path: UserAddr);
    81 => dir::fchdir(fd: i32);
    82 => rename::rename(old: UserAddr, new: UserAddr);
    83 => names::mkdir(path: UserAddr, mode: u32);
    84 => names::rmdir(path: UserAddr) [GIVES_BACK];
    85 => open::creat(path: UserAddr, mode: u32);
    86 => link::link(old: UserAddr, new: UserAddr);
    87 => names::unlink(path: UserAddr) [GIVES_BACK];
    88 => link::symlink(target: UserAddr, path: UserAddr);
    89 => readlink::readlink(path: UserAddr, buf: UserAddr, len: i32);
    133 => names::mknod(path: UserAddr, mode: u32, device: u64);
    137 => statfs::statfs(path: UserAddr, buf: UserAddr);
    138 => statfs::fstatfs(fd: i32, buf: UserAddr);
    161 => dir::chroot(path: UserAddr);
    217 => getdents::getdents64(fd: i32, buf: UserAddr, len: u32);
    257 => open::openat(dirfd: i32, path: UserAddr, flags: u32, mode: u32);
    258 => names::mkdirat(dirfd: i32, path: UserAddr, mode: u32);
    259 => names::mknodat(dirfd: i32, path: UserAddr, mode: u32, device: u64);
    262 => stat::newfstatat(dirfd: i32, path: UserAddr, buf: UserAddr, flags: u32);
    263 => names::unlinkat(dirfd: i32, path: UserAddr, flags: u32) [GIVES_BACK];
    264 => rename::renameat(old_dirfd: i32, old: UserAddr, new_dirfd: i32, new: UserAddr);
    265 => link::linkat(old_dirfd: i32, old: UserAddr, new_dirfd: i32, new: UserAddr, flags: u32);
    266 => link::symlinkat(target: UserAddr, dirfd: i32, path: UserAddr);
    267 => readlink::readlinkat(dirfd: i32, path: UserAddr, buf: UserAddr, len: i32);
    269 => access::faccessat(dirfd: i32, path: UserAddr, mode: u32);
    292 => dup::dup3(old: i32, new: i32, flags: u32);
    295 => vectored::preadv(fd: i32, iov: UserAddr, count: u64, at: i64);
    296 => vectored::pwritev(fd: i32, iov: UserAddr, count: u64, at: i64);
    316 => rename::renameat2(old_dirfd: i32, old: UserAddr, new_dirfd: i32, new: UserAddr, flags: u32);
    327 => vectored::preadv2(fd: i32, iov: UserAddr, count: u64, at: i64, high: u64, flags: u32);
    328 => vectored::pwritev2(fd: i32, iov: UserAddr, count: u64, at: i64, high: u64, flags: u32);
    332 => statx::statx(dirfd: i32, path: UserAddr, flags: u32, mask: u32, buf: UserAddr);
    436 => open::close_range(first: u32, last: u32, flags: u32) [GIVES_BACK];
    437 => open::openat2(dirfd: i32, path: UserAddr, how: UserAddr, size: u64);
    439 => access::faccessat2(dirfd: i32, path: UserAddr, mode: u32, flags: u32);
    40 => sendfile::sendfile(out: i32, input: i32, offset: UserAddr, count: usize);
    74 => sync::fsync(fd: i32);
    75 => sync::fdatasync(fd: i32);
    76 => truncate::truncate(path: UserAddr, len: i64);
    77 => truncate::ftruncate(fd: i32, len: i64) [GIVES_BACK];
    90 => attr::chmod(path: UserAddr, mode: u32);
    91 => attr::fchmod(fd: i32, mode: u32);
    92 => attr::chown(path: UserAddr, uid: u32, gid: u32);
    93 => attr::fchown(fd: i32, uid: u32, gid: u32);
    94 => attr::lchown(path: UserAddr, uid: u32, gid: u32);
    95 => attr::umask(mask: u32);
    132 => utime::utime(path: UserAddr, times: UserAddr);
    155 => mount::pivot_root(new: UserAddr, old: UserAddr);
    162 => sync::sync();
    165 => mount::mount(source: UserAddr, target: UserAddr, kind: UserAddr, flags: u64, data: UserAddr);
    166 => mount::umount2(target: UserAddr, flags: u32);
    187 => advice::readahead(fd: i32, offset: i64, count: usize);
    188 => setxattr::setxattr(path: UserAddr, name: UserAddr, value: UserAddr, size: usize, flags: u32);
    189 => setxattr::lsetxattr(path: UserAddr, name: UserAddr, value: UserAddr, size: usize, flags: u32);
    190 => setxattr::fsetxattr(fd: i32, name: UserAddr, value: UserAddr, size: usize, flags: u32);
    191 => getxattr::getxattr(path: UserAddr, name: UserAddr, value: UserAddr, size: usize);
    192 => getxattr::lgetxattr(path: UserAddr, name: UserAddr, value: UserAddr, size: usize);
    193 => getxattr::fgetxattr(fd: i32, name: UserAddr, value: UserAddr, size: usize);
    194 => getxattr::listxattr(path: UserAddr, names: UserAddr, size: usize);
    195 => getxattr::llistxattr(path: UserAddr, names: UserAddr, size: usize);
    196 => getxattr::flistxattr(fd: i32, names: UserAddr, size: usize);
    197 => setxattr::removexattr(path: UserAddr, name: UserAddr);
    198 => setxattr::lremovexattr(path: UserAddr, name: UserAddr);
    199 => setxattr::fremovexattr(fd: i32, name: UserAddr);
    221 => advice::fadvise64(fd: i32, offset: i64, len: i64, advice: u32);
    235 => utime::utimes(path: UserAddr, times: UserAddr);
    260 => attr::fchownat(dirfd: i32, path: UserAddr, uid: u32, gid: u32, flags: u32);
    261 => utime::futimesat(dirfd: i32, path: UserAddr, times: UserAddr);
    268 => attr::fchmodat(dirfd: i32, path: UserAddr, mode: u32);
    277 => sync::sync_file_range(fd: i32, offset: i64, len: i64, flags: u32);
    280 => utime::utimensat(dirfd: i32, path: UserAddr, times: UserAddr, flags: u32);
    285 => fallocate::fallocate(fd: i32, mode: u32, offset: i64, len: i64);
    306 => sync::syncfs(fd: i32);
    326 => copy_file_range::copy_file_range(input: i32, input_offset: UserAddr, out: i32, out_offset: UserAddr, len: usize, flags: u32);
    451 => cachestat::cachestat(fd: i32, range: UserAddr, to: UserAddr, flags: u32);
    452 => attr::fchmodat2(dirfd: i32, path: UserAddr, mode: u32, flags: u32);

    // only refused, as without the capability or the support
    153 => refused::vhangup() without CAP_SYS_TTY_CONFIG: EPERM;
    163 => refused::acct() without CAP_SYS_PACCT: EPERM;
    167 => refused::swapon(path: UserAddr, flags: u32) without CAP_SYS_ADMIN: EPERM;
    168 => refused::swapoff() without CAP_SYS_ADMIN: EPERM;
    172 => refused::iopl(level: u32) without CAP_SYS_RAWIO: EPERM;
    173 => refused::ioperm(from: u64, count: u64, on: i32) without CAP_SYS_RAWIO: EPERM;
    175 => refused::init_module() without CAP_SYS_MODULE: EPERM;
    176 => refused::delete_module() without CAP_SYS_MODULE: EPERM;
    179 => refused::quotactl(command: u32) without CAP_SYS_ADMIN: EPERM;
    246 => refused::kexec_load() without CAP_SYS_BOOT: EPERM;
    298 => refused::perf_event_open() without CAP_PERFMON or CAP_SYS_ADMIN: EACCES;
    303 => refused::name_to_handle_at(dirfd: i32, path: UserAddr, handle: UserAddr, mount: UserAddr, flags: u32);
    304 => refused::open_by_handle_at(mount: i32, handle: UserAddr);
    313 => refused::finit_module() without CAP_SYS_MODULE: EPERM;
    320 => refused::kexec_file_load() without CAP_SYS_BOOT: EPERM;
    321 => refused::bpf() without CAP_BPF or CAP_SYS_ADMIN: EPERM;
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// The names of the calls with a property.
    fn names(property: Properties) -> Vec<&'static str> {
        IMPLEMENTED
            .iter()
            .filter(|call| PROPERTIES.of(call.0).contains(property))
            .map(|call| call.1)
            .collect()
    }

    #[test]
    fn strict_mode_allows_what_seccomp_2_says() {
        let mut strict = names(Properties::STRICT);
        strict.sort_unstable();
        assert_eq!(strict, ["exit", "read", "rt_sigreturn", "write"]);
    }

    #[test]
    fn calls_that_handle_other_calls_are_known_by_their_properties() {
        assert_eq!(names(Properties::RUNS_PROGRAM), ["execve", "execveat"]);
        assert_eq!(names(Properties::RESUMES), ["restart_syscall"]);
        // Without these a program that is out of memory could not end, or give any back.
        let giving_back = names(Properties::GIVES_BACK);
        assert!(
            ["munmap", "close", "exit_group", "rt_sigreturn"].iter().all(|name| giving_back.contains(name))
        );
    }
}
