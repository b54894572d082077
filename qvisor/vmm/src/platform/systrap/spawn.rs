//! The host calls behind stub processes: the control file, the zygote's start, waiting and reaping.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Instant;

use crate::descriptor_passing;
use crate::errno::HostError;
use crate::memory::memory_file;
use crate::platform::machine::PlatformError;

/// The stub program.
static STUB: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stub.elf"));

/// A file of one part for each stub process, mapped into the VMM. Sparse.
pub struct Control {
    file: OwnedFd,
    base: *mut u8,
    len: u64,
}

// SAFETY: plain shared memory until the value is dropped; users make raw copies and atomics of it.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

impl Control {
    pub fn new(name: &CStr, len: u64) -> Result<Self, PlatformError> {
        let file = memory_file(name)?;
        let size = i64::try_from(len).map_err(|_| PlatformError::Stub)?;
        let bytes = usize::try_from(len).map_err(|_| PlatformError::Stub)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: sizes and maps a file that is this value's alone.
        let base = unsafe {
            if libc::ftruncate(file.as_raw_fd(), size) < 0 {
                return Err(HostError::last("size the stubs' areas").into());
            }
            libc::fcntl(
                file.as_raw_fd(),
                libc::F_ADD_SEALS,
                libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL,
            );
            libc::mmap(ptr::null_mut(), bytes, prot, flags, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(HostError::last("map the stubs' areas").into());
        }
        Ok(Self { file, base: base.cast(), len })
    }

    /// The address of offset `at`, which must lie in the file.
    pub fn at(&self, at: u64) -> *mut u8 {
        assert!(at < self.len, "slots are counted");
        self.base.wrapping_add(usize::try_from(at).unwrap_or(0))
    }

    /// Fills a range with zeros, and keeps its memory for what comes next.
    pub fn clear(&self, at: u64, len: u64) {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "slots are counted");
        // SAFETY: in bounds, as just checked; the range's process is gone, and no other has it yet.
        unsafe { ptr::write_bytes(self.at(at), 0, usize::try_from(len).unwrap_or(0)) };
    }

    /// Gives the memory of a range back.
    pub fn punch(&self, at: u64, len: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (at, len) = (i64::try_from(at).unwrap_or(0), i64::try_from(len).unwrap_or(0));
        // SAFETY: the range's process is gone.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, at, len) };
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { libc::munmap(self.base.cast(), usize::try_from(self.len).unwrap_or(0)) };
    }
}

/// One vCPU's ends of its socket and its pipe to mapper threads.
pub struct Ends {
    /// Files to map.
    pub socket: OwnedFd,
    /// Answers.
    pub answers: OwnedFd,
}

fn pair(what: &'static str, make: impl FnOnce(*mut i32) -> i32) -> Result<[OwnedFd; 2], PlatformError> {
    let mut pair = [-1; 2];
    if make(pair.as_mut_ptr()) < 0 {
        return Err(HostError::last(what).into());
    }
    Ok([owned(pair[0], what)?, owned(pair[1], what)?])
}

/// Starts the zygote with its descriptors: user memory, the areas, the threads' ids, the template, a socket and a pipe for each
/// vCPU, the orders. The result is its pid, its pidfd and the other ends.
pub fn zygote(
    (user, template): (BorrowedFd<'_>, Option<BorrowedFd<'_>>),
    control: &Control,
    orders: &Control,
    ids: &OwnedFd,
    cpus: u32,
) -> Result<(i32, OwnedFd, Vec<Ends>), PlatformError> {
    let program = memory_file(c"dormouse-stub")?;
    // SAFETY: writes the program into the new file.
    let written = unsafe { libc::write(program.as_raw_fd(), STUB.as_ptr().cast(), STUB.len()) };
    if usize::try_from(written) != Ok(STUB.len()) {
        return Err(HostError::last("write the stub program").into());
    }
    let mut ours = Vec::new();
    let (mut theirs, mut pipes) = (Vec::new(), Vec::new());
    for _ in 0..cpus {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: writes two descriptors into the array.
        let [socket, far] =
            pair("make a stub socket", |to| unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, to) })?;
        // SAFETY: as above.
        let [answers, near] =
            pair("make a stub's pipe", |to| unsafe { libc::pipe2(to, libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
        ours.push(Ends { socket, answers });
        theirs.push(far);
        pipes.push(near);
    }
    theirs.extend(pipes);
    let mut descriptors: Vec<i32> = vec![user.as_raw_fd(), control.file.as_raw_fd(), ids.as_raw_fd()];
    descriptors.push(template.map_or(NONE, |template| template.as_raw_fd()));
    descriptors.extend(theirs.iter().map(AsRawFd::as_raw_fd));
    descriptors.push(orders.file.as_raw_fd());
    // Above every number in use on either side, so that placing one descriptor never closes another.
    let highest = descriptors.iter().copied().max().unwrap_or(0).max(program.as_raw_fd());
    let spare = highest.max(i32::try_from(descriptors.len()).unwrap_or(i32::MAX)) + 1;
    // SAFETY: the child calls only async-signal-safe functions (`become_stub`).
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        become_stub(&descriptors, program.as_raw_fd(), spare);
    }
    if pid < 0 {
        return Err(HostError::last("fork the zygote").into());
    }
    let pidfd = pidfd(pid)?;
    Ok((pid, pidfd, ours))
}

/// Stands for a descriptor that there is not.
const NONE: i32 = -1;

/// Child side: puts the descriptors in place and runs the stub program. Allocates nothing.
fn become_stub(descriptors: &[i32], program: i32, spare: i32) -> ! {
    const EMPTY: &CStr = c"";
    let no_strings = [ptr::null::<libc::c_char>()];
    let count = i32::try_from(descriptors.len()).unwrap_or(0);
    // SAFETY: system calls of a child that has its own descriptor table and one thread.
    unsafe {
        for (i, fd) in (0..).zip(descriptors) {
            libc::dup2(*fd, spare + i);
        }
        libc::dup3(program, spare + count, libc::O_CLOEXEC);
        for (i, fd) in (0..).zip(descriptors) {
            if *fd == NONE {
                libc::close(i);
            } else {
                libc::dup2(spare + i, i);
            }
        }
        libc::dup3(spare + count, count, libc::O_CLOEXEC);
        libc::syscall(libc::SYS_close_range, count + 1, u32::MAX, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The stub's addresses must be free in the new image.
        libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        let strings = no_strings.as_ptr();
        libc::syscall(libc::SYS_execveat, count, EMPTY.as_ptr(), strings, strings, libc::AT_EMPTY_PATH);
        libc::_exit(127)
    }
}

/// A descriptor that names a child for good.
pub fn pidfd(pid: i32) -> Result<OwnedFd, PlatformError> {
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    owned(i32::try_from(fd).unwrap_or(-1), "watch a stub")
}

/// Kills a child that has not been reaped.
pub fn kill(pid: i32) {
    // SAFETY: a child's pid is its own until it is reaped.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, pid, libc::SIGKILL) };
}

/// Waits for the end of a child; the result is the processor time it used, in nanoseconds.
pub fn reap(pid: i32) -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: writes into `usage` only.
        let result = unsafe { libc::wait4(pid, ptr::null_mut(), libc::__WALL, usage.as_mut_ptr()) };
        if result >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break;
        }
    }
    // SAFETY: zeros, or what the call wrote.
    let usage = unsafe { usage.assume_init() };
    let ns = |t: libc::timeval| u64::try_from(t.tv_sec * 1_000_000_000 + t.tv_usec * 1000).unwrap_or(0);
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// Whether a child has ended; it stays to be reaped.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure of this function's own.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Waits for the end of a child, which stays to be reaped or was. All its memory is unmapped then: a process counts as
/// ended once its last thread has let go of it.
pub fn wait_end(pidfd: &OwnedFd) {
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure of this function's own.
    while unsafe { libc::poll(&raw mut poll, 1, -1) } != 1 {}
}

/// Blocks every signal for the calling thread but those that a fault raises: the handler of another signal must not run
/// on a kernel stack.
pub fn block_signals() {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the set before it is used; changes the calling thread's mask only.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS] {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), ptr::null_mut());
    }
}

/// An epoll descriptor, and an event descriptor to wake it.
pub fn epoll_and_event() -> Result<(OwnedFd, OwnedFd), PlatformError> {
    // SAFETY: both calls make descriptors.
    let (epoll, event) = unsafe {
        (libc::epoll_create1(libc::EPOLL_CLOEXEC), libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))
    };
    Ok((owned(epoll, "make an epoll descriptor")?, owned(event, "make an event descriptor")?))
}

/// Lets `epoll` report `fd` as `token`.
pub fn watch(epoll: &OwnedFd, fd: &OwnedFd, token: u64) -> Result<(), PlatformError> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
    // SAFETY: the structure is this function's own.
    let result =
        unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) };
    if result < 0 { Err(HostError::last("watch a stub").into()) } else { Ok(()) }
}

/// Takes `fd` out of `epoll`.
pub fn unwatch(epoll: &OwnedFd, fd: &OwnedFd) {
    // SAFETY: no memory is involved.
    unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), ptr::null_mut()) };
}

/// Waits for events, at most until then; their tokens.
pub fn wait_events(epoll: &OwnedFd, until: Option<Instant>) -> Vec<u64> {
    const MOST: libc::c_int = 64;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST as usize];
    // A whole millisecond more, so that the time has come.
    let left = until.map(|until| until.saturating_duration_since(Instant::now()).as_millis() + 1);
    let timeout_ms = left.map_or(-1, |left| i32::try_from(left).unwrap_or(i32::MAX));
    // SAFETY: writes at most `MOST` structures.
    let count = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), MOST, timeout_ms) };
    events.iter().take(usize::try_from(count).unwrap_or(0)).map(|event| event.u64).collect()
}

/// Raises an event descriptor.
pub fn signal(event: &OwnedFd) {
    let one = 1_u64;
    // SAFETY: reads eight bytes of this function's own.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Lowers it.
pub fn drain(event: &OwnedFd) {
    let mut value = 0_u64;
    // SAFETY: writes eight bytes of this function's own.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut value).cast(), 8) };
}

/// Sends `fd` to the mapper that will read from the other end of `socket`. The error is an errno.
pub fn send_descriptor(socket: &OwnedFd, fd: &OwnedFd) -> Result<(), i32> {
    descriptor_passing::send(socket.as_fd(), &[fd.as_fd()], &[0], libc::MSG_DONTWAIT)
        .map(drop)
        .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

/// Reads one answer of a mapper; `None` if there is none within the time.
pub fn read_answer(pipe: &OwnedFd, timeout_ms: i32) -> Option<u64> {
    let mut answer = 0_u64;
    for timeout_ms in [timeout_ms, 0] {
        // SAFETY: writes eight bytes of this function's own.
        if unsafe { libc::read(pipe.as_raw_fd(), (&raw mut answer).cast(), 8) } == 8 {
            return Some(answer);
        }
        let mut poll = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure of this function's own.
        if timeout_ms == 0 || unsafe { libc::poll(&raw mut poll, 1, timeout_ms) } != 1 {
            return None;
        }
    }
    None
}

/// Makes an owned descriptor of a call's result.
fn owned(fd: i32, what: &'static str) -> Result<OwnedFd, PlatformError> {
    if fd < 0 {
        return Err(HostError::last(what).into());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
