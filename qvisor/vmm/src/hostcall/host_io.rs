//! The host-file half of a sandbox: the state that all its calls share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::arguments::Handle;
use super::fd_name::FdName;
use super::file::{FileKind, FileTable, HostFile, MountTraits};
use super::io_threads::{EventSink, IoThreads};
use super::locks::{LockPlan, Locks};
use super::quota::Quota;
use super::stream_kind::Stream;
use super::watches::{WatchPlan, Watches};
use crate::activity::Activity;
use crate::broker::Broker;
use crate::errno::Errno;
use crate::lock::{Mutex, Rank};
use crate::process;
use crate::sys;

/// Descriptors that many programs do with, and the host's table of them takes 8 KiB for.
const DESCRIPTORS: i32 = 1024;

/// The handle of the terminal behind the streams: the first one that is set, wherever it is placed.
#[derive(Debug)]
pub(crate) struct Terminal(AtomicU64);

impl Default for Terminal {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Terminal {
    pub(super) fn get(&self) -> Option<Handle> {
        Handle::try_from(self.0.load(Ordering::Acquire)).ok()
    }

    fn set(&self, handle: Handle) {
        let _ = self.0.compare_exchange(u64::MAX, handle.into(), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The file has got another handle.
    pub(super) fn moved(&self, from: Handle, to: Handle) {
        let _ = self.0.compare_exchange(from.into(), to.into(), Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// See the module. [`HostIo::serve`] serves the calls from [`abi::hostcall::OPEN`] on.
pub struct HostIo {
    files: FileTable,
    io: IoThreads,
    /// `/proc/self/fd`, opened before the process gives up its view of the host. Descriptors are opened anew by their
    /// names there, and by nothing else: a link there leads to the open file itself, never along a path.
    proc_dir: OwnedFd,
    /// This process's page map. The jail closes the way to it.
    page_map: Result<OwnedFd, Errno>,
    /// `/proc` is out of reach, and the working directory is [`Self::proc_dir`].
    jailed: AtomicBool,
    /// The terminal behind the streams.
    pub(crate) terminal: Terminal,
    /// A stream whose other end is closed, for a sandbox that had another VMM.
    pub(super) lost_stream: OnceLock<OwnedFd>,
    /// The quota that bounds its views, if there is one.
    quota: OnceLock<Arc<Quota>>,
    /// Who connects to Unix sockets of the host, if the sandbox may.
    broker: OnceLock<Broker>,
    watches: Mutex<Watches>,
    locks: Locks,
}

impl HostIo {
    /// Prepares the process for host I/O: no creation mask, no `SIGPIPE`, as many open files as the hard limit allows.
    /// Call it in the process that will serve the sandbox, before it leaves the host's file systems. Events of
    /// [`abi::hostcall::POLL_ARM`] and [`abi::hostcall::SUBMIT`] go to `sink`, from threads of its own.
    pub fn new(sink: EventSink) -> Result<Self, Errno> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let proc = sys::openat(sys::working_directory(), c"/proc", flags, 0)?;
        Self::with_proc(sink, proc.as_fd())
    }

    /// Prepares the process for host I/O as [`HostIo::new`] does, with a `/proc` that shows at least this process.
    pub fn with_proc(sink: EventSink, proc: BorrowedFd<'_>) -> Result<Self, Errno> {
        let proc_dir = prepare(proc)?;
        let files = FileTable::new();
        sys::make_room_for_descriptors(proc_dir.as_fd(), DESCRIPTORS);
        Ok(Self::of(proc_dir, files, IoThreads::new(sink)?))
    }

    /// Prepares for a sandbox that had another VMM, whose handles ended at `first`: it opens all of them anew. Called before there is any
    /// handle, and outside of the jail.
    pub fn begin_above(&self, first: Handle) -> Result<(), Errno> {
        let (ours, _) =
            UnixStream::pair().map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
        let _ = self.lost_stream.set(ours.into());
        self.files.begin_above(first)
    }

    /// The objects of a sandbox that had another VMM.
    pub(super) fn of_former(
        files: FileTable,
        io: IoThreads,
        terminal: Option<Handle>,
        watches: Option<WatchPlan>,
        locks: Vec<LockPlan>,
    ) -> Result<Self, Errno> {
        let proc = sys::openat(sys::working_directory(), c"/proc", libc::O_PATH | libc::O_DIRECTORY, 0)?;
        let host = Self {
            watches: Mutex::new(Rank::Watches, watches.map(Watches::from).unwrap_or_default()),
            locks: locks.into(),
            ..Self::of(prepare(proc.as_fd())?, files, io)
        };
        terminal.inspect(|terminal| host.terminal.set(*terminal));
        Ok(host)
    }

    fn of(proc_dir: OwnedFd, files: FileTable, io: IoThreads) -> Self {
        // Whoever opens it with capabilities may read from it where on the host a page is.
        let page_map =
            process::without_capabilities(|| sys::openat(proc_dir.as_fd(), c"../pagemap", libc::O_RDONLY, 0));
        Self {
            files,
            io,
            proc_dir,
            page_map,
            jailed: AtomicBool::new(false),
            terminal: Terminal::default(),
            lost_stream: OnceLock::new(),
            quota: OnceLock::new(),
            broker: OnceLock::new(),
            watches: Mutex::new(Rank::Watches, Watches::default()),
            locks: Locks::default(),
        }
    }

    /// The `/proc` it was made with.
    pub fn proc_root(&self) -> Result<OwnedFd, Errno> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        sys::openat(self.proc_dir.as_fd(), c"../..", flags, 0)
    }

    /// The page map of this process ([`crate::memory::SandboxMemory::populated`]).
    pub(crate) fn page_map(&self) -> Result<std::fs::File, Errno> {
        let map = self.page_map.as_ref().map_err(|error| *error)?;
        Ok(map.try_clone()?.into())
    }

    /// The activity of one of this process's threads.
    pub(crate) fn thread_activity(&self, tid: i32) -> Option<Activity> {
        Activity::of(self.proc_dir.as_fd(), &format!("../task/{tid}"))
    }

    /// This process's memory in the form of `/proc/PID/smaps_rollup`; empty when the host does not show it.
    pub(crate) fn io_memory(&self) -> String {
        let mut text = String::new();
        let file = sys::openat(self.proc_dir.as_fd(), c"../smaps_rollup", libc::O_RDONLY, 0);
        if let Ok(file) = file {
            let _ = std::io::Read::read_to_string(&mut std::fs::File::from(file), &mut text);
        }
        text
    }

    /// Makes `/proc/self/fd` the working directory, since no path leads to it once the process is jailed.
    pub fn enter_jail(&self) -> Result<(), Errno> {
        sys::fchdir(self.proc_dir.as_fd())?;
        self.jailed.store(true, Ordering::Release);
        Ok(())
    }

    #[must_use]
    pub fn files(&self) -> &FileTable {
        &self.files
    }

    /// The quota that bounds its views, if there is one.
    #[must_use]
    pub fn quota(&self) -> Option<&Arc<Quota>> {
        self.quota.get()
    }

    /// Bounds its views; the first call counts.
    pub fn set_quota(&self, quota: Arc<Quota>) {
        let _ = self.quota.set(quota);
    }

    pub(crate) fn broker(&self) -> Option<&Broker> {
        self.broker.get()
    }

    /// Has Unix sockets of the host connected to; the first call counts.
    pub fn set_broker(&self, broker: Broker) {
        let _ = self.broker.set(broker);
    }

    /// Gives one of the sandbox's standard streams.
    pub fn adopt_stream(&self, fd: OwnedFd) -> Result<Handle, Errno> {
        let (handle, stream) = self.adopt_as_stream(fd, false)?;
        if stream.is_terminal() {
            self.terminal.set(handle);
        }
        Ok(handle)
    }

    /// Gives a standard stream of which nobody has the other end: nothing comes, and what is written goes nowhere.
    pub fn adopt_silence(&self) -> Result<Handle, Errno> {
        let (fd, stream) = Stream::silence(self.proc_dir.as_fd())?;
        let file = HostFile::new(fd, FileKind::Stream(stream), false, MountTraits::default())?;
        self.files.insert(file)
    }

    /// Gives a descriptor beside the standard streams, which the caller shares. None of them is the sandbox's terminal.
    pub fn adopt_further_stream(&self, fd: OwnedFd) -> Result<Handle, Errno> {
        self.adopt_as_stream(fd, false).map(|(handle, _)| handle)
    }

    /// Adds a stream of an exec'd process. A stream that does not wait was opened for the sandbox alone.
    pub(crate) fn adopt_own_stream(&self, fd: OwnedFd) -> Result<Handle, Errno> {
        self.adopt_as_stream(fd, true).map(|(handle, _)| handle)
    }

    fn adopt_as_stream(&self, fd: OwnedFd, is_own: bool) -> Result<(Handle, Stream), Errno> {
        let (fd, stream) = Stream::prepare(fd, self.proc_dir.as_fd(), is_own)?;
        let file = HostFile::new(fd, FileKind::Stream(stream), false, MountTraits::default())?;
        Ok((self.files.insert(file)?, stream))
    }

    /// Closes a handle that the kernel was not told of.
    pub(crate) fn disown(&self, handle: Handle) {
        let _ = self.close(handle);
    }

    /// Rows and columns of the terminal behind the streams.
    pub fn terminal_size(&self) -> Option<(u16, u16)> {
        let file = self.files.get(self.terminal.get()?).ok()?;
        Some(process::terminal_size(file.as_fd()))
    }

    pub(super) fn watches(&self) -> &Mutex<Watches> {
        &self.watches
    }

    pub(super) fn locks(&self) -> &Locks {
        &self.locks
    }

    pub(crate) fn io(&self) -> &IoThreads {
        &self.io
    }

    pub(crate) fn proc_dir(&self) -> BorrowedFd<'_> {
        self.proc_dir.as_fd()
    }

    /// A descriptor's name below [`Self::proc_dir`].
    pub(crate) fn fd_name(fd: BorrowedFd<'_>) -> FdName {
        FdName::new("", fd)
    }

    /// A path to a descriptor for calls that take no directory.
    pub(crate) fn fd_path(&self, fd: BorrowedFd<'_>) -> FdName {
        FdName::new(if self.jailed.load(Ordering::Acquire) { "" } else { "/proc/self/fd/" }, fd)
    }

    /// A directory that may be changed.
    pub(super) fn parent(&self, dir: Handle) -> Result<Arc<HostFile>, Errno> {
        let dir = self.files.get(dir)?;
        dir.check_writable()?;
        Ok(dir)
    }

    /// The handle of a file that a program has opened.
    pub(super) fn insert(&self, file: Result<HostFile, Errno>) -> Result<i64, Errno> {
        self.files.insert_for_program(file?).map(i64::from)
    }

    pub(super) fn close(&self, handle: Handle) -> Result<i64, Errno> {
        // While the number is still this file's.
        self.locks.closed(handle);
        let file = self.files.remove(handle)?;
        if file.is_stream() {
            self.watches.lock().closed(handle);
        }
        self.io.forget(handle, &file);
        Ok(0)
    }
}

/// Prepares the process, and opens what names its descriptors below its `/proc`.
fn prepare(proc: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    sys::clear_umask();
    sys::ignore_sigpipe();
    sys::openat(proc, c"self/fd", libc::O_PATH | libc::O_DIRECTORY, 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// The effective capabilities of this thread.
    fn effective() -> Option<String> {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix("CapEff:").map(str::to_owned))
    }

    #[test]
    fn the_page_map_does_not_tell_where_on_the_host_a_page_is() {
        let before = effective();
        let io = HostIo::new(Arc::new(|_| {})).unwrap();
        assert!(before.is_some() && effective() == before);
        let here = Box::new(std::hint::black_box(7_u64));
        let mut entry = [0; 8];
        let page = &raw const *here as u64 / abi::PAGE_SIZE;
        io.page_map().unwrap().read_exact_at(&mut entry, page * 8).unwrap();
        let entry = u64::from_le_bytes(entry);
        assert_eq!((entry >> 63, entry & ((1 << 55) - 1)), (1, 0), "present, and nowhere");
    }
}
