//! The VMM process of one sandbox: takes what it needs from the host, gives up the rest, runs the kernel.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi::boot::{MOUNT_READ_ONLY, MOUNT_SHARED, Platform, STREAM_TTY};
use abi::hostcall::{EVENT_SIGNAL, Event};

use crate::boot::{BootSpec, Mount, Stream, VirtualMount};
use crate::control::{self, Report};
use crate::hostcall::events::EventQueue;
use crate::hostcall::files::HostIo;
use crate::hostcall::sys::{self, Errno};
use crate::jail::{self, JailError};
use crate::mounts::{self, MountError, View, Volume};
use crate::net::{self, NetError, Network};
use crate::process;
use crate::sandbox::{Sandbox, SandboxConfig, SandboxError};

/// Signals that are the front end's business; the VMM shares its process group, so it ignores them.
const IGNORED: &[i32] = &[
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGWINCH,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
];
/// Directories that the kernel mounts its own file systems on.
const VIRTUAL_MOUNTS: &[(&str, &str)] = &[
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/dev/shm"),
];

/// What a sandbox is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The directory that becomes `/`; absolute.
    pub root: PathBuf,
    /// Where its changes go.
    pub layer: PathBuf,
    pub volumes: Vec<Volume>,
    pub network: Network,
    /// Directories of the host's that hold sandboxes; the sandbox sees empty ones.
    pub hidden: Vec<PathBuf>,
    pub platform: Platform,
    pub memory_bytes: u64,
    pub cpus: u32,
    /// Without mounts and streams, which the VMM fills in.
    pub boot: BootSpec,
    /// The streams are a terminal that the sandbox drives.
    pub terminal: bool,
}

/// Why a sandbox could not start, or broke.
#[derive(Debug, thiserror::Error)]
pub enum VmmError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Network(#[from] NetError),
    #[error(transparent)]
    Jail(#[from] JailError),
    #[error("cannot prepare host files: {0}; is /proc mounted?")]
    HostIo(Errno),
    #[error("cannot hand over stream {fd}: {source}; redirect it to a file, a pipe or a terminal")]
    Stream { fd: i32, source: Errno },
    #[error("cannot start a thread: {0}; raise the limit of processes")]
    Thread(io::Error),
    #[error("cannot run the sandbox: {}", chain(.0))]
    Sandbox(#[from] SandboxError),
    #[error("cannot prepare the sandbox: {0}")]
    Prepare(io::Error),
}

struct Target {
    events: Arc<EventQueue>,
    channel: UnixStream,
}

impl control::Target for Target {
    fn post(&self, event: Event) {
        self.events.post(event);
    }

    fn end(&self, status: i32) {
        finish(&self.channel, &Report::Exited { status });
    }
}

/// Reports how it went, and ends the process with all its threads.
fn finish(channel: &UnixStream, report: &Report) -> ! {
    let _ = control::send(channel, report);
    process::exit_now(0)
}

/// The VMM process, from its fork to its end. `parent` is the front end.
pub fn main(plan: &Plan, channel: UnixStream, listener: UnixListener, parent: i32) -> ! {
    process::set_name(c"dormouse-vmm");
    if !process::die_with_parent(parent) {
        process::exit_now(1);
    }
    process::ignore_signals(IGNORED);
    process::unblock_signals();
    // SAFETY: this process was just forked; what the front end's values own is not used here any more, and they are
    // never dropped, since this function does not return.
    let Ok([channel, listener]) = (unsafe { process::keep_only([channel.into(), listener.into()]) }) else {
        process::exit_now(1)
    };
    let (channel, listener) = (UnixStream::from(channel), UnixListener::from(listener));
    let report = match run(plan, &channel, listener) {
        Ok(status) => Report::Exited { status },
        Err(error) => Report::Failed { message: error.to_string() },
    };
    finish(&channel, &report)
}

fn run(plan: &Plan, channel: &UnixStream, listener: UnixListener) -> Result<i32, VmmError> {
    let events = Arc::new(EventQueue::new());
    let sink = Arc::clone(&events);
    mounts::enter_namespaces()?;
    net::enter(&plan.network)?;
    let io = HostIo::new(Arc::new(move |event| sink.post(event))).map_err(VmmError::HostIo)?;
    let boot = prepare(plan, &io)?;
    // Children of ours that share the mount namespace leave the host with us, if that is where they are.
    std::env::set_current_dir("/").map_err(VmmError::Prepare)?;
    if cfg!(debug_assertions) && std::env::var_os("DORMOUSE_FAKE_KERNEL").is_some() {
        leave(&io, &events, channel, listener)?;
        return Ok(stand_in(&boot, &events));
    }
    let mut config = SandboxConfig::new(plan.platform, plan.cpus, plan.memory_bytes);
    let newline = if plan.terminal { "\r\n" } else { "\n" };
    config.log = Arc::new(move |level, text| log(level, text, newline));
    let sandbox = Sandbox::new(config, io, Arc::clone(&events))?;
    leave(&sandbox.files, &events, channel, listener)?;
    let status = sandbox.run(&boot);
    // The process ends now, and with it all this is made of; taking it apart piece by piece would only cost time.
    std::mem::forget(sandbox);
    Ok(status?.cast_signed())
}

/// Gives up the host, starts to take orders, and says so.
fn leave(
    io: &HostIo,
    events: &Arc<EventQueue>,
    channel: &UnixStream,
    listener: UnixListener,
) -> Result<(), VmmError> {
    jail::leave_host()?;
    io.enter_jail().map_err(VmmError::HostIo)?;
    let target =
        Target { events: Arc::clone(events), channel: channel.try_clone().map_err(VmmError::Thread)? };
    let orders = channel.try_clone().map_err(VmmError::Thread)?;
    let thread = std::thread::Builder::new().name("dormouse-ctl".into()).stack_size(128 << 10);
    let serve = move || {
        sys::block_signals();
        control::serve(&orders, &listener, &target);
        // The front end is gone, and with it the reason to run.
        process::exit_now(1)
    };
    thread.spawn(serve).map_err(VmmError::Thread)?;
    let _ = control::send(channel, &Report::Started);
    Ok(())
}

/// Writes a line of the kernel's; standard error may be closed, or a terminal that is in raw mode.
fn log(level: u32, text: &str, newline: &str) {
    let prefix = if level == 0 { "dormouse: " } else { "" };
    let _ = io::stderr()
        .write_all(format!("{prefix}{}{newline}", text.trim_end().replace('\n', newline)).as_bytes());
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Opens what the sandbox may use of the host, and writes down what the kernel is told.
fn prepare(plan: &Plan, io: &HostIo) -> Result<BootSpec, VmmError> {
    let mut boot = plan.boot.clone();
    boot.streams = streams(plan, io)?;
    let mut views = mounts::copy_on_write(&plan.root, &plan.layer)?;
    for volume in &plan.volumes {
        let view = mounts::volume(volume)?;
        let is_dir = is_directory(view.fd.as_fd());
        make_target(&views, &view.path, is_dir);
        views.retain(|other| other.path != view.path);
        views.push(view);
    }
    views.sort_by(|a, b| a.path.cmp(&b.path));
    let mut virtual_mounts: Vec<(&str, &Path)> =
        VIRTUAL_MOUNTS.iter().map(|(kind, path)| (*kind, Path::new(*path))).collect();
    let hidden = plan.hidden.iter().filter_map(|path| path.strip_prefix(&plan.root).ok());
    let hidden: Vec<PathBuf> = hidden.map(|path| Path::new("/").join(path)).collect();
    virtual_mounts.extend(hidden.iter().map(|path| ("tmpfs", path.as_path())));
    for (kind, path) in virtual_mounts {
        make_target(&views, path, true);
        boot.virtual_mounts.push(VirtualMount { kind: kind.into(), path: mounts::bytes_of(path) });
    }
    for view in views {
        let flags = u32::from(view.read_only) * MOUNT_READ_ONLY + u32::from(view.shared) * MOUNT_SHARED;
        let path = mounts::bytes_of(&view.path);
        let files = io.files();
        let adopted =
            if view.read_only { files.adopt_read_only_mount(view.fd) } else { files.adopt_mount(view.fd) };
        boot.mounts.push(Mount { handle: adopted.map_err(VmmError::HostIo)?, flags, path });
    }
    Ok(boot)
}

fn streams(plan: &Plan, io: &HostIo) -> Result<Vec<Stream>, VmmError> {
    let mut streams = Vec::new();
    for fd in 0..3 {
        let failed = |source| VmmError::Stream { fd, source };
        // SAFETY: descriptors 0 to 2 stay open as long as the process lives (the runtime opens them if need be).
        let stream = unsafe { BorrowedFd::borrow_raw(fd) };
        let copy = stream.try_clone_to_owned().map_err(|error| failed(error.into()))?;
        let is_tty = sys::is_tty(stream);
        let handle = io.adopt_stream(copy).map_err(failed)?;
        let flags = if plan.terminal && is_tty { STREAM_TTY } else { 0 };
        streams.push(Stream { fd: fd.cast_unsigned(), handle, flags });
    }
    Ok(streams)
}

fn is_directory(fd: BorrowedFd<'_>) -> bool {
    sys::statx(fd, c"").is_ok_and(|status| u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFDIR)
}

/// Makes the directories (or the file) that something is mounted on, in the view that holds them. Best effort: a link
/// on the way, or a read-only view, is left for the kernel to find.
fn make_target(views: &[View], path: &Path, directory: bool) {
    let holders = views.iter().filter(|view| path.starts_with(&view.path) && path != view.path);
    let Some(view) = holders.max_by_key(|view| view.path.as_os_str().len()) else { return };
    let Ok(inside) = path.strip_prefix(&view.path) else { return };
    let mut at: Option<OwnedFd> = None;
    let mut names = inside.components().peekable();
    while let Some(name) = names.next() {
        let Ok(name) = std::ffi::CString::new(name.as_os_str().as_encoded_bytes()) else { return };
        let dir = at.as_ref().map_or(view.fd.as_fd(), AsFd::as_fd);
        if names.peek().is_none() && !directory {
            let _ = sys::mknodat(dir, &name, libc::S_IFREG | 0o644);
            return;
        }
        let _ = sys::mkdirat(dir, &name, 0o755);
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_DIRECTORY;
        match sys::openat(dir, &name, flags, 0) {
            Ok(next) => at = Some(next),
            Err(_) => return,
        }
    }
}

/// For tests of the command itself: stands in for the kernel, and ends with the first signal it is sent.
fn stand_in(boot: &BootSpec, events: &EventQueue) -> i32 {
    let _ = writeln!(io::stdout(), "{} mounts", boot.mounts.len());
    loop {
        let signal = events.take(16).into_iter().find(|event| event.kind == EVENT_SIGNAL);
        if let Some(event) = signal {
            return i32::try_from(event.value).unwrap_or(0);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
