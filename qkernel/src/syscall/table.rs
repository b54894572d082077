//! The system-call table. Each line: number, handler in its family's file, arguments with their types.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::syscall::context::{FromArg, SyscallResult};
use crate::syscall::unknown::unknown;
use crate::syscall::{
    attr, creds, descriptor, dir, event, futex, jobs, limits, lock, memory, message, mount, names, open,
    poll, prctl, process, rw, sched, signal, socket, splice, stat, system, time, timer, transfer, watch,
    xattr,
};
use crate::task::context::Ctx;
use crate::task::core::Task;

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
    ($($number:literal => $family:ident :: $name:ident ( $($arg:ident : $type:ty),* );)*) => {
        /// Performs a call.
        pub(super) fn call(cx: &Ctx<'_>, number: u64, args: [u64; 6]) -> SyscallResult {
            match number {
                $($number => {
                    #[allow(unused_mut, unused_variables)]
                    let mut rest = args.into_iter();
                    $(let $arg = <$type as FromArg>::from_arg(rest.next().unwrap_or(0));)*
                    $family::$name(cx $(, $arg)*)
                })*
                _ => unknown(number),
            }
        }

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
    9 => memory::mmap(addr: u64, len: u64, prot: u32, flags: u64, fd: i32, offset: u64);
    10 => memory::mprotect(addr: u64, len: u64, prot: u64);
    11 => memory::munmap(addr: u64, len: u64);
    12 => memory::brk(addr: u64);
    25 => memory::mremap(old: u64, old_len: u64, new_len: u64, flags: u64, new: u64);
    26 => memory::msync(addr: u64, len: u64, flags: u32);
    27 => memory::mincore(addr: u64, len: u64, vec: u64);
    28 => memory::madvise(addr: u64, len: u64, advice: u32);
    149 => memory::mlock(addr: u64, len: u64);
    150 => memory::munlock(addr: u64, len: u64);
    151 => memory::mlockall(flags: u32);
    152 => memory::munlockall();
    325 => memory::mlock2(addr: u64, len: u64, flags: u32);

    // processes and threads
    39 => process::getpid();
    56 => process::clone(flags: u64, stack: u64, parent_tid: u64, child_tid: u64, tls: u64);
    57 => process::fork();
    58 => process::vfork();
    59 => process::execve(path: u64, argv: u64, envp: u64);
    60 => process::exit(status: i32);
    61 => process::wait4(pid: i32, status: u64, options: u32, usage: u64);
    110 => process::getppid();
    158 => process::arch_prctl(code: u32, addr: u64);
    186 => process::gettid();
    218 => process::set_tid_address(addr: u64);
    231 => process::exit_group(status: i32);
    247 => process::waitid(kind: u32, id: i32, info: u64, options: u32, usage: u64);
    322 => process::execveat(dirfd: i32, path: u64, argv: u64, envp: u64, flags: u32);
    435 => process::clone3(args: u64, size: u64);

    // signals
    13 => signal::rt_sigaction(signal: u32, new: u64, old: u64, size: u64);
    14 => signal::rt_sigprocmask(how: u32, new: u64, old: u64, size: u64);
    15 => signal::rt_sigreturn();
    34 => signal::pause();
    62 => signal::kill(pid: i32, signal: u32);
    109 => jobs::setpgid(pid: i32, group: i32);
    111 => jobs::getpgrp();
    112 => jobs::setsid();
    121 => jobs::getpgid(pid: i32);
    124 => jobs::getsid(pid: i32);
    127 => signal::rt_sigpending(set: u64, size: u64);
    128 => signal::rt_sigtimedwait(set: u64, info: u64, timeout: u64, size: u64);
    129 => signal::rt_sigqueueinfo(pid: i32, signal: u32, info: u64);
    130 => signal::rt_sigsuspend(mask: u64, size: u64);
    131 => signal::sigaltstack(new: u64, old: u64);
    200 => signal::tkill(tid: i32, signal: u32);
    219 => signal::restart_syscall();
    234 => signal::tgkill(tgid: i32, tid: i32, signal: u32);
    297 => signal::rt_tgsigqueueinfo(tgid: i32, tid: i32, signal: u32, info: u64);

    // futexes
    202 => futex::futex(addr: u64, op: u32, value: u32, timeout: u64, second: u64, third: u32);
    273 => futex::set_robust_list(head: u64, size: u64);
    274 => futex::get_robust_list(tid: i32, head: u64, size: u64);

    // time
    35 => time::nanosleep(from: u64, remainder: u64);
    36 => time::getitimer(timer: u32, to: u64);
    37 => time::alarm(seconds: u32);
    38 => time::setitimer(timer: u32, new: u64, old: u64);
    96 => time::gettimeofday(to: u64, zone: u64);
    159 => limits::adjtimex(buf: u64);
    164 => time::settimeofday();
    201 => time::time(to: u64);
    222 => timer::timer_create(clock: i32, event: u64, id: u64);
    223 => timer::timer_settime(id: u32, flags: u32, new: u64, old: u64);
    224 => timer::timer_gettime(id: u32, to: u64);
    225 => timer::timer_getoverrun(id: u32);
    226 => timer::timer_delete(id: u32);
    227 => time::clock_settime(clock: i32, from: u64);
    228 => time::clock_gettime(clock: i32, to: u64);
    229 => time::clock_getres(clock: i32, to: u64);
    230 => time::clock_nanosleep(clock: i32, flags: u32, from: u64, remainder: u64);
    305 => limits::clock_adjtime(clock: i32, buf: u64);

    // credentials
    102 => creds::getuid();
    104 => creds::getgid();
    105 => creds::setuid(id: u32);
    106 => creds::setgid(id: u32);
    107 => creds::geteuid();
    108 => creds::getegid();
    113 => creds::setreuid(real: u32, effective: u32);
    114 => creds::setregid(real: u32, effective: u32);
    115 => creds::getgroups(size: i32, to: u64);
    116 => creds::setgroups(size: u32, from: u64);
    117 => creds::setresuid(real: u32, effective: u32, saved: u32);
    118 => creds::getresuid(real: u64, effective: u64, saved: u64);
    119 => creds::setresgid(real: u32, effective: u32, saved: u32);
    120 => creds::getresgid(real: u64, effective: u64, saved: u64);
    122 => creds::setfsuid(id: u32);
    123 => creds::setfsgid(id: u32);
    125 => creds::capget(header: u64, data: u64);
    126 => creds::capset(header: u64, data: u64);
    157 => prctl::prctl(option: u32, a: u64, b: u64, c: u64, d: u64);

    // limits and scheduling
    24 => sched::sched_yield();
    97 => limits::getrlimit(resource: u32, to: u64);
    98 => limits::getrusage(who: i32, to: u64);
    100 => limits::times(to: u64);
    140 => sched::getpriority(which: u32, who: u32);
    141 => sched::setpriority(which: u32, who: u32, nice: i32);
    142 => sched::sched_setparam(tid: i32, param: u64);
    143 => sched::sched_getparam(tid: i32, param: u64);
    144 => sched::sched_setscheduler(tid: i32, policy: u32, param: u64);
    145 => sched::sched_getscheduler(tid: i32);
    146 => sched::sched_get_priority_max(policy: u32);
    147 => sched::sched_get_priority_min(policy: u32);
    148 => sched::sched_rr_get_interval(tid: i32, to: u64);
    160 => limits::setrlimit(resource: u32, from: u64);
    203 => sched::sched_setaffinity(tid: i32, size: u32, mask: u64);
    204 => sched::sched_getaffinity(tid: i32, size: u32, mask: u64);
    251 => sched::ioprio_set(which: u32, who: u32, priority: u32);
    252 => sched::ioprio_get(which: u32, who: u32);
    314 => sched::sched_setattr(tid: i32, attr: u64, flags: u32);
    315 => sched::sched_getattr(tid: i32, attr: u64, size: u32, flags: u32);
    302 => limits::prlimit64(pid: i32, resource: u32, new: u64, old: u64);

    // system information
    63 => system::uname(to: u64);
    99 => system::sysinfo(to: u64);
    103 => system::syslog(kind: i32, buf: u64, len: i32);
    135 => system::personality(persona: u32);
    170 => system::sethostname(name: u64, len: i32);
    171 => system::setdomainname(name: u64, len: i32);
    309 => system::getcpu(cpu: u64, node: u64);
    318 => system::getrandom(buf: u64, len: usize, flags: u32);
    324 => system::membarrier(command: i32, flags: u32, cpu: i32);
    334 => system::rseq();
    // pipes and events
    7 => poll::poll(fds: u64, count: u32, timeout_ms: i32);
    22 => event::pipe(ends: u64);
    23 => poll::select(count: i32, read: u64, write: u64, except: u64, timeout: u64);
    213 => event::epoll_create(size: i32);
    232 => event::epoll_wait(set: i32, events: u64, max: i32, timeout_ms: i32);
    233 => event::epoll_ctl(set: i32, operation: u32, fd: i32, event: u64);
    270 => poll::pselect6(count: i32, read: u64, write: u64, except: u64, timeout: u64, mask: u64);
    271 => poll::ppoll(fds: u64, count: u32, timeout: u64, mask: u64, mask_size: u64);
    281 => event::epoll_pwait(set: i32, events: u64, max: i32, timeout_ms: i32, mask: u64, mask_size: u64);
    284 => event::eventfd(initial: u32);
    290 => event::eventfd2(initial: u32, flags: u32);
    291 => event::epoll_create1(flags: u32);
    293 => event::pipe2(ends: u64, flags: u32);
    441 => event::epoll_pwait2(set: i32, events: u64, max: i32, timeout: u64, mask: u64, mask_size: u64);
    275 => splice::splice(input: i32, input_offset: u64, output: i32, output_offset: u64, len: usize, flags: u32);
    276 => splice::tee(input: i32, output: i32, len: usize, flags: u32);
    278 => splice::vmsplice(fd: i32, iov: u64, count: u64, flags: u32);
    282 => watch::signalfd(fd: i32, mask: u64, size: u64);
    283 => watch::timerfd_create(clock: i32, flags: u32);
    286 => watch::timerfd_settime(fd: i32, flags: u32, new: u64, old: u64);
    287 => watch::timerfd_gettime(fd: i32, to: u64);
    289 => watch::signalfd4(fd: i32, mask: u64, size: u64, flags: u32);
    319 => watch::memfd_create(name: u64, flags: u32);
    424 => watch::pidfd_send_signal(pidfd: i32, number: u32, info: u64, flags: u32);
    434 => watch::pidfd_open(pid: i32, flags: u32);
    438 => watch::pidfd_getfd(pidfd: i32, fd: i32, flags: u32);

    // sockets
    41 => socket::socket(family: u32, kind: u32, protocol: u32);
    42 => socket::connect(fd: i32, addr: u64, len: u32);
    43 => socket::accept(fd: i32, addr: u64, len: u64);
    44 => message::sendto(fd: i32, buf: u64, len: usize, flags: u32, to: u64, to_len: u32);
    45 => message::recvfrom(fd: i32, buf: u64, len: usize, flags: u32, from: u64, from_len: u64);
    46 => message::sendmsg(fd: i32, header: u64, flags: u32);
    47 => message::recvmsg(fd: i32, header: u64, flags: u32);
    48 => socket::shutdown(fd: i32, how: u32);
    49 => socket::bind(fd: i32, addr: u64, len: u32);
    50 => socket::listen(fd: i32, backlog: i32);
    51 => socket::getsockname(fd: i32, addr: u64, len: u64);
    52 => socket::getpeername(fd: i32, addr: u64, len: u64);
    53 => socket::socketpair(family: u32, kind: u32, protocol: u32, ends: u64);
    54 => socket::setsockopt(fd: i32, level: u32, name: u32, value: u64, len: i32);
    55 => socket::getsockopt(fd: i32, level: u32, name: u32, value: u64, len: u64);
    288 => socket::accept4(fd: i32, addr: u64, len: u64, flags: u32);
    299 => message::recvmmsg(fd: i32, headers: u64, count: u32, flags: u32, timeout: u64);
    307 => message::sendmmsg(fd: i32, headers: u64, count: u32, flags: u32);

    // files
    0 => rw::read(fd: i32, addr: u64, len: usize);
    1 => rw::write(fd: i32, addr: u64, len: usize);
    2 => open::open(path: u64, flags: u32, mode: u32);
    3 => open::close(fd: i32);
    4 => stat::stat(path: u64, buf: u64);
    5 => stat::fstat(fd: i32, buf: u64);
    6 => stat::lstat(path: u64, buf: u64);
    8 => rw::lseek(fd: i32, offset: i64, whence: u32);
    16 => descriptor::ioctl(fd: i32, request: u32, arg: u64);
    17 => rw::pread64(fd: i32, addr: u64, len: usize, at: i64);
    18 => rw::pwrite64(fd: i32, addr: u64, len: usize, at: i64);
    19 => rw::readv(fd: i32, iov: u64, count: u64);
    20 => rw::writev(fd: i32, iov: u64, count: u64);
    21 => stat::access(path: u64, mode: u32);
    32 => descriptor::dup(fd: i32);
    33 => descriptor::dup2(old: i32, new: i32);
    72 => descriptor::fcntl(fd: i32, command: u32, arg: u64);
    73 => lock::flock(fd: i32, operation: u32);
    78 => dir::getdents(fd: i32, buf: u64, len: u32);
    79 => dir::getcwd(buf: u64, size: u64);
    80 => dir::chdir(path: u64);
    81 => dir::fchdir(fd: i32);
    82 => names::rename(old: u64, new: u64);
    83 => names::mkdir(path: u64, mode: u32);
    84 => names::rmdir(path: u64);
    85 => open::creat(path: u64, mode: u32);
    86 => names::link(old: u64, new: u64);
    87 => names::unlink(path: u64);
    88 => names::symlink(target: u64, path: u64);
    89 => stat::readlink(path: u64, buf: u64, len: i32);
    133 => names::mknod(path: u64, mode: u32, device: u64);
    137 => stat::statfs(path: u64, buf: u64);
    138 => stat::fstatfs(fd: i32, buf: u64);
    161 => dir::chroot(path: u64);
    217 => dir::getdents64(fd: i32, buf: u64, len: u32);
    257 => open::openat(dirfd: i32, path: u64, flags: u32, mode: u32);
    258 => names::mkdirat(dirfd: i32, path: u64, mode: u32);
    259 => names::mknodat(dirfd: i32, path: u64, mode: u32, device: u64);
    262 => stat::newfstatat(dirfd: i32, path: u64, buf: u64, flags: u32);
    263 => names::unlinkat(dirfd: i32, path: u64, flags: u32);
    264 => names::renameat(old_dirfd: i32, old: u64, new_dirfd: i32, new: u64);
    265 => names::linkat(old_dirfd: i32, old: u64, new_dirfd: i32, new: u64, flags: u32);
    266 => names::symlinkat(target: u64, dirfd: i32, path: u64);
    267 => stat::readlinkat(dirfd: i32, path: u64, buf: u64, len: i32);
    269 => stat::faccessat(dirfd: i32, path: u64, mode: u32);
    292 => descriptor::dup3(old: i32, new: i32, flags: u32);
    295 => rw::preadv(fd: i32, iov: u64, count: u64, at: i64);
    296 => rw::pwritev(fd: i32, iov: u64, count: u64, at: i64);
    316 => names::renameat2(old_dirfd: i32, old: u64, new_dirfd: i32, new: u64, flags: u32);
    327 => rw::preadv2(fd: i32, iov: u64, count: u64, at: i64, high: u64, flags: u32);
    328 => rw::pwritev2(fd: i32, iov: u64, count: u64, at: i64, high: u64, flags: u32);
    332 => stat::statx(dirfd: i32, path: u64, flags: u32, mask: u32, buf: u64);
    436 => open::close_range(first: u32, last: u32, flags: u32);
    437 => open::openat2(dirfd: i32, path: u64, how: u64, size: u64);
    439 => stat::faccessat2(dirfd: i32, path: u64, mode: u32, flags: u32);
    40 => transfer::sendfile(out: i32, input: i32, offset: u64, count: usize);
    74 => transfer::fsync(fd: i32);
    75 => transfer::fdatasync(fd: i32);
    76 => attr::truncate(path: u64, len: i64);
    77 => attr::ftruncate(fd: i32, len: i64);
    90 => attr::chmod(path: u64, mode: u32);
    91 => attr::fchmod(fd: i32, mode: u32);
    92 => attr::chown(path: u64, uid: u32, gid: u32);
    93 => attr::fchown(fd: i32, uid: u32, gid: u32);
    94 => attr::lchown(path: u64, uid: u32, gid: u32);
    95 => attr::umask(mask: u32);
    132 => attr::utime(path: u64, times: u64);
    155 => mount::pivot_root(new: u64, old: u64);
    162 => transfer::sync();
    165 => mount::mount(source: u64, target: u64, kind: u64, flags: u64, data: u64);
    166 => mount::umount2(target: u64, flags: u32);
    187 => transfer::readahead(fd: i32, offset: i64, count: usize);
    188 => xattr::setxattr(path: u64, name: u64, value: u64, size: usize, flags: u32);
    189 => xattr::lsetxattr(path: u64, name: u64, value: u64, size: usize, flags: u32);
    190 => xattr::fsetxattr(fd: i32, name: u64, value: u64, size: usize, flags: u32);
    191 => xattr::getxattr(path: u64, name: u64, value: u64, size: usize);
    192 => xattr::lgetxattr(path: u64, name: u64, value: u64, size: usize);
    193 => xattr::fgetxattr(fd: i32, name: u64, value: u64, size: usize);
    194 => xattr::listxattr(path: u64, names: u64, size: usize);
    195 => xattr::llistxattr(path: u64, names: u64, size: usize);
    196 => xattr::flistxattr(fd: i32, names: u64, size: usize);
    197 => xattr::removexattr(path: u64, name: u64);
    198 => xattr::lremovexattr(path: u64, name: u64);
    199 => xattr::fremovexattr(fd: i32, name: u64);
    221 => transfer::fadvise64(fd: i32, offset: i64, len: i64, advice: u32);
    235 => attr::utimes(path: u64, times: u64);
    260 => attr::fchownat(dirfd: i32, path: u64, uid: u32, gid: u32, flags: u32);
    261 => attr::futimesat(dirfd: i32, path: u64, times: u64);
    268 => attr::fchmodat(dirfd: i32, path: u64, mode: u32);
    277 => transfer::sync_file_range(fd: i32, offset: i64, len: i64, flags: u32);
    280 => attr::utimensat(dirfd: i32, path: u64, times: u64, flags: u32);
    285 => transfer::fallocate(fd: i32, mode: u32, offset: i64, len: i64);
    306 => transfer::syncfs(fd: i32);
    326 => transfer::copy_file_range(input: i32, input_offset: u64, out: i32, out_offset: u64, len: usize, flags: u32);
    452 => attr::fchmodat2(dirfd: i32, path: u64, mode: u32, flags: u32);
}
