//! Processes, signals and the terminal: the system calls of the front end, as safe functions.

mod calls;
mod descriptors;
mod host;
mod sockets;
mod terminal;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use calls::{check, signal_set};
pub use descriptors::{Access, access, keep_all, keep_only, keep_some, raise_open_files, take_inherited};
pub use host::{
    available_memory, host_memory, host_memory_mib, host_name, host_name_of, namespace_kind, set_host_name,
};
pub use sockets::{has_hung_up, peer_user, receive_now, send_now, wait_any, wait_readable};
pub use terminal::{
    Terminal, do_not_wait, open_terminal, open_without_waiting, own_terminal, take_terminal, terminal_size,
};

/// How a user namespace shows users that it does not have, unless the host's administrator chose another number.
pub const OVERFLOW_USER: u32 = 65534;

/// A wait status as `wait4` gives it, turned into the exit code a shell would show.
#[must_use]
pub fn exit_code(status: i32) -> u8 {
    let code =
        if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) };
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// From now on a panic of any thread ends the process, as it does in builds that do not unwind.
pub fn panics_abort() {
    if cfg!(panic = "unwind") {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            tell(info);
            std::process::abort();
        }));
    }
}

/// Copies this process; the child gets `None`, the parent the child's id. Only before any thread is started.
pub fn fork() -> io::Result<Option<i32>> {
    // SAFETY: no other thread runs yet (the callers fork before they start any), so the child may go on as usual.
    let pid = check(unsafe { libc::fork() })?;
    Ok((pid != 0).then_some(pid))
}

/// Names the process as `ps` shows it.
pub fn set_name(name: &CStr) {
    // SAFETY: the name is zero-terminated; the call copies it.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Makes this process the leader of a process group of its own, in its session.
pub fn lead_group() {
    // SAFETY: integers only. A process that leads a session cannot, and does not need to.
    unsafe { libc::setpgid(0, 0) };
}

/// Asks for SIGKILL when the parent ends; false when it has already.
#[must_use]
pub fn die_with_parent(parent: i32) -> bool {
    // SAFETY: both calls take and give integers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 && libc::getppid() == parent }
}

/// Asks to be continued when the parent ends, should this process be stopped then; false when it has already ended.
#[must_use]
pub fn go_on_without_parent(parent: i32) -> bool {
    // SAFETY: both calls take and give integers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT) == 0 && libc::getppid() == parent }
}

#[must_use]
pub fn id() -> i32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether a number that the host shows stands for one user: in a user namespace, all users that it does not have are
/// shown as the same one.
#[must_use]
pub fn is_one_user(user: u32) -> bool {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let overflow = || read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(OVERFLOW_USER);
    if user != OVERFLOW_USER && user != overflow() {
        return true;
    }
    let map = read("/proc/self/uid_map");
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[must_use]
pub fn effective_group() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::getegid() }
}

/// Supplementary groups of this process.
#[must_use]
pub fn groups() -> Vec<u32> {
    let mut groups = vec![0; 256];
    // SAFETY: the array has room for 256 ids.
    let count = unsafe { libc::getgroups(256, groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).unwrap_or(0));
    groups
}

/// The file-mode creation mask. Only before any thread is started.
#[must_use]
pub fn umask() -> u32 {
    // SAFETY: the calls take and give integers only; no thread creates files meanwhile.
    unsafe {
        let mask = libc::umask(0o77);
        libc::umask(mask);
        mask
    }
}

/// Soft and hard limit of each resource.
#[must_use]
pub fn limits() -> Vec<(u32, u64, u64)> {
    let limit = |resource: u32| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is live for the call.
        let result = unsafe { libc::getrlimit(resource, &raw mut limit) };
        (result == 0).then_some((resource, limit.rlim_cur, limit.rlim_max))
    };
    (0..=libc::RLIMIT_RTTIME).filter_map(limit).collect()
}

/// Most processes and threads of this process's owner, in its user namespace, from here on.
pub fn limit_processes(most: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is live for both calls.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limit);
        limit.rlim_max = limit.rlim_max.min(most);
        limit.rlim_cur = limit.rlim_max;
        if libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// While it exists, files are made and looked for with this id instead of root's.
#[derive(Debug)]
pub struct FileIds;

impl FileIds {
    /// For the calling thread, which is root.
    #[must_use]
    pub fn take_on(user: u32, group: u32) -> Self {
        Self::set(user, group);
        Self
    }

    fn set(user: u32, group: u32) {
        // SAFETY: integers only; the calls answer the former id.
        unsafe {
            libc::syscall(libc::SYS_setfsgid, group);
            libc::syscall(libc::SYS_setfsuid, user);
        }
    }
}

impl Drop for FileIds {
    fn drop(&mut self) {
        Self::set(0, 0);
    }
}

/// A new session: signals of the terminal and of the process group do not come here any more.
pub fn leave_session() {
    // SAFETY: takes nothing; fails only for group leaders, which a fresh child is not.
    unsafe { libc::setsid() };
}

/// Ends the process without any clean-up of the runtime.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process; buffers of ours are unused or flushed.
    unsafe { libc::_exit(code) }
}

/// A descriptor that stands for a process.
pub fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = check(RawFd::try_from(fd).unwrap_or(-1))?;
    // SAFETY: the call just returned this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal to the process behind `pidfd`; an ended one is no error.
pub fn signal(pidfd: BorrowedFd<'_>, signal: i32) {
    // SAFETY: a null siginfo is allowed.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<u8>(), 0)
    };
}

/// Children of children that lose their parent become children of this process, not of pid 1.
pub fn adopt_orphans() {
    // SAFETY: takes integers only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Reaps every child that has ended; gives each with its status to `seen`.
pub fn reap_ended(mut seen: impl FnMut(i32, i32)) {
    let mut status = 0;
    // SAFETY: `status` is live for the call.
    while let pid @ 1.. = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
        seen(pid, status);
    }
}

/// Reaps a child if it has ended; result: its status.
#[must_use]
pub fn reap_now(pid: i32) -> Option<i32> {
    let mut status = 0;
    // No number below stands for one child.
    // SAFETY: `status` is live for the call.
    let is_reaped = pid > 0 && unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid;
    is_reaped.then_some(status)
}

/// A child that has ended, and still waits to be reaped; of several always the same one.
#[must_use]
pub fn ended_child() -> Option<i32> {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `siginfo_t` is plain data, and live for the call, which sets the pid.
    let (result, pid) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (libc::waitid(libc::P_ALL, 0, &raw mut info, options), info.si_pid())
    };
    (result == 0 && pid > 0).then_some(pid)
}

/// Waits until a child has ended, and reaps it. One that is not there, or was reaped, is no error.
pub fn reap(pid: i32) {
    // SAFETY: a null status is allowed.
    while unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// Kills the process that a descriptor stands for.
pub fn kill(pidfd: BorrowedFd<'_>) {
    signal(pidfd, libc::SIGKILL);
}

/// Closes all descriptors but the standard streams, for a process that others outlive which it forks: they would keep them open.
///
/// # Safety
/// This process has not opened any descriptor of its own that is still open.
pub unsafe fn close_inherited() {
    // SAFETY: integers only; nobody uses the descriptors, as the caller promises.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

/// Kills every child, and waits until none is left.
pub fn end_children() {
    let this = id();
    let children = std::fs::read_to_string(format!("/proc/{this}/task/{this}/children")).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()) {
        // SAFETY: integers only; a child that is not reaped yet keeps its number.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
    // SAFETY: a null status is allowed.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) } > 0 {}
}

/// Stops this process as `SIGSTOP` does; returns when it is continued.
pub fn stop_self() {
    // SAFETY: integers only.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}

/// A change of a child's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEvent {
    Stopped,
    Continued,
    /// It stays to be reaped by the process that inherits it.
    Ended,
}

/// `waitid` for one child; result: `si_code`, 0 when there is nothing to tell.
fn wait_id(pid: i32, options: i32) -> Option<i32> {
    let id = libc::id_t::try_from(pid).ok()?;
    loop {
        // SAFETY: `siginfo_t` is plain data, and live for the call.
        let (result, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::waitid(libc::P_PID, id, &raw mut info, options), info)
        };
        match result {
            0 => return Some(info.si_code),
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
}

fn child_event(code: i32) -> Option<ChildEvent> {
    match code {
        0 => None,
        libc::CLD_STOPPED => Some(ChildEvent::Stopped),
        libc::CLD_CONTINUED => Some(ChildEvent::Continued),
        _ => Some(ChildEvent::Ended),
    }
}

/// Waits until a child stops, goes on or ends. The change stays to be taken by [`take_child_news`]; `None` when there
/// is no such child.
#[must_use]
pub fn wait_child(pid: i32) -> Option<ChildEvent> {
    let states = libc::WSTOPPED | libc::WCONTINUED | libc::WEXITED;
    child_event(wait_id(pid, states | libc::WNOWAIT)?)
}

/// Whether a child has stopped or gone on since this was last asked, and which of them was the last.
#[must_use]
pub fn take_child_news(pid: i32) -> Option<ChildEvent> {
    child_event(wait_id(pid, libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG)?)
}

/// Takes back [`die_with_parent`] and [`go_on_without_parent`].
pub fn survive_parent() {
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
}

/// Sets the signal's default action.
pub fn default_signal(signal: i32) {
    // SAFETY: `SIG_DFL` runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Ends this process so that its parent sees this wait status, but for a core dump.
pub fn end_as(status: i32) -> ! {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let set = signal_set(&[signal]);
        // SAFETY: live structures and integers; the signal's own action ends the process.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            libc::kill(libc::getpid(), signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
        exit_now(128 + signal);
    }
    exit_now(libc::WEXITSTATUS(status))
}

/// Enters the network namespace of another process. Only while this process has a single thread.
pub fn enter_network_of(pid: i32) -> io::Result<()> {
    let namespace = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
    // SAFETY: integers only.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Enters the network, uts and ipc namespaces of another process. Only while this process has a single thread.
pub fn enter_namespaces_of(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let all = libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;
    // SAFETY: a live descriptor.
    check(unsafe { libc::setns(pidfd.as_raw_fd(), all) }).map(drop)
}

/// This process's memory is in no core dump.
pub fn keep_memory() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live structure.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
}

/// The thread runs only when nobody else wants to.
pub fn be_idle() {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are this function's own. Where it is refused the thread is one like others.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) };
}

/// The thread has the disk only when nobody else wants it, as far as the disk's scheduler knows the difference (ioprio_set(2)).
pub fn leave_disk_to_others() {
    const WHO_PROCESS: libc::c_long = 1;
    const CLASS_IDLE: libc::c_long = 3 << 13;
    // SAFETY: integers only.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, CLASS_IDLE) };
}

/// No program that it executes has more privileges, and nobody looks into its memory.
pub fn gain_nothing() {
    // SAFETY: integers only.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
}

/// Gives up every capability for good.
pub fn drop_privileges() {
    keep_capabilities(0);
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
}

/// Effective, permitted and inheritable capabilities of a thread: the low words, then the high ones.
type CapabilitySets = [u32; 6];

/// The header of version 3, for the calling thread.
const CAPABILITIES: [u32; 2] = [0x2008_0522, 0];

fn capabilities() -> CapabilitySets {
    let (mut header, mut sets) = (CAPABILITIES, [0; 6]);
    // SAFETY: live structures of the sizes that this version has.
    unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    sets
}

fn set_capabilities(sets: CapabilitySets) {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_capset, CAPABILITIES.as_ptr(), sets.as_ptr()) };
}

/// Gives up every capability but those of `kept`, bit by number, as far as this thread has them.
pub fn keep_capabilities(kept: u32) {
    let kept = capabilities()[1] & kept;
    set_capabilities([kept, kept, 0, 0, 0, 0]);
}

/// Calls `body` while no capability of this thread is effective. They are again afterwards.
pub(crate) fn without_capabilities<R>(body: impl FnOnce() -> R) -> R {
    let before = capabilities();
    let [_, low, low_inherited, _, high, high_inherited] = before;
    set_capabilities([0, low, low_inherited, 0, high, high_inherited]);
    let result = body();
    set_capabilities(before);
    result
}

/// Lets the processes of `user` signal this one, which keeps the user that it works as. A process without the right to
/// it changes nothing.
pub fn be_signalled_by(user: u32) {
    const KEEP: u32 = u32::MAX;
    // SAFETY: integers only; the caller has one thread.
    unsafe { libc::syscall(libc::SYS_setresuid, KEEP, KEEP, user) };
}

/// Puts the null device in place of the standard streams, or closes them.
pub fn close_streams() {
    // SAFETY: a zero-terminated path, and integers; nobody uses the streams any more.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for fd in 0..3 {
            if null >= 0 {
                libc::dup2(null, fd)
            } else {
                libc::close(fd)
            };
        }
        if null > 2 {
            libc::close(null);
        }
    }
}

/// A file in memory.
pub fn memory_file(name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the name is zero-terminated.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the call just returned this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Shows these words in lists of processes instead of the command line that this process was started with, as far as there is
/// room. Should that fail, the old ones stay. One page of memory is this process's own from then on.
pub fn set_title(words: &[Vec<u8>]) {
    let place = || {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(45);
        Some((fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?))
    };
    let Some((start, end)) = place() else { return };
    let room = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
    let mut title = words.join(&0);
    // The last byte stays 0, or the host reads on.
    title.resize(room, 0);
    if let Some(last) = title.last_mut() {
        *last = 0;
        let memory = File::options().write(true).open("/proc/self/mem");
        let _ = memory.and_then(|memory| memory.write_all_at(&title, start));
    }
}

/// When a process started, in ticks since the host did: with its number, that is one process for good.
#[must_use]
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Ignores the signals; children inherit that, across `exec` too.
pub fn ignore_signals(signals: &[i32]) {
    for signal in signals {
        // SAFETY: `SIG_IGN` runs no code of ours.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Lets every signal through again.
pub fn unblock_signals() {
    let none = signal_set(&[]);
    // SAFETY: `none` is live for the call.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
}

/// Signals that are read instead of interrupting.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

/// A signal that came.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    pub signal: i32,
    /// Sent by the host's kernel (a key of the terminal), not by a process.
    pub from_kernel: bool,
}

impl SignalFd {
    /// Blocks the signals and collects them.
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        let set = signal_set(signals);
        // SAFETY: `set` is live for both calls; the descriptor is new.
        unsafe {
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// The next signal, if one came.
    #[must_use]
    pub fn next(&self) -> Option<Arrived> {
        // SAFETY: `signalfd_siginfo` is plain integers, and the read is bounded by its size.
        let (read, info) = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            (libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size), info)
        };
        let signal = i32::try_from(info.ssi_signo).ok()?;
        (read > 0).then_some(Arrived { signal, from_kernel: info.ssi_code == libc::SI_KERNEL })
    }

    #[must_use]
    pub fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
