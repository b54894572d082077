//! One of the VMMs: it runs the sandbox until it is told to leave it to the next one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use abi::boot::{MOUNT_READ_ONLY, Platform};
use abi::hostcall::{
    EVENT_HIBERNATE, EVENT_SNAPSHOT, EVENT_WAKE, Event, REPORT_HIBERNATED, REPORT_NOT_HIBERNATED,
    REPORT_NOT_TAKEN,
};
use vmm::boot::{BootSpec, Mount, Stream};
use vmm::handover::HandOverError;
use vmm::hibernate::{Hibernation, SwapPlan};
use vmm::host_paths::HostPaths;
use vmm::hostcall::events::EventQueue;
use vmm::hostcall::host_io::HostIo;
use vmm::sandbox::{Sandbox, SandboxConfig, SandboxError};
use vmm::snapshot::Snapshot;
use vmm::successor::Arrived;

use crate::program;

/// Bytes of the driver's, and the answers.
pub const BOOT: u8 = b'B';
pub const RESUME: u8 = b'R';
/// It is about to run; it may.
pub const READY: u8 = b'r';
pub const GO: u8 = b'G';
/// The sandbox is to sleep, and does; it is to leave.
pub const SLEEP: u8 = b'S';
pub const ASLEEP: u8 = b's';
pub const LEAVE: u8 = b'L';
/// It is to be awake.
pub const WAKE: u8 = b'W';
/// It has ended by itself; its wait status follows.
pub const ENDED: u8 = b'e';

const MEMORY_BYTES: u64 = 256 << 20;
/// Requests for the memory: of nobody, and of the driver.
const UNASKED: i64 = 1;
const ASKED: i64 = 2;
/// The request for the last sleep; it and those after it come after all others.
const LEAVING: i64 = 1 << 40;
/// How often a sandbox that is woken again is told to sleep.
const TRIES: u32 = 1000;

/// All that a VMM begins with.
struct Beginning {
    host: HostIo,
    home: Arc<Hibernation>,
    config: SandboxConfig,
    spec: BootSpec,
    former: Option<Snapshot>,
    events: Vec<Event>,
}

pub fn run(dir: &Path, platform: &str) -> ExitCode {
    match begin(dir, platform) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("revive: {why}");
            ExitCode::FAILURE
        }
    }
}

fn begin(dir: &Path, platform: &str) -> Result<(), String> {
    // Out of the way of the sandbox's descriptors, which have higher numbers.
    // SAFETY: nobody else in this process uses its standard input.
    let socket = unsafe { UnixStream::from_raw_fd(libc::STDIN_FILENO) };
    let queue = Arc::new(EventQueue::new());
    let mut order = [0];
    (&socket).read_exact(&mut order).map_err(|error| error.to_string())?;
    let begin = match order[0] {
        BOOT => boot(dir, platform, &queue),
        RESUME => resume(&socket, &queue).map_err(|error| in_full(&error)),
        other => Err(format!("an unknown order: {other}")),
    };
    serve(begin?, socket, queue)
}

/// An error with its sources.
pub fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn resume(socket: &UnixStream, queue: &Arc<EventQueue>) -> Result<Beginning, HandOverError> {
    let sink = Arc::clone(queue);
    let arrived =
        Arrived::receive(&HostPaths::of_new_process(), socket, Arc::new(move |event| sink.post(event)))?;
    let config = arrived.configure(SandboxConfig::new(Platform::Systrap, 1, MEMORY_BYTES));
    let Arrived { host, home, snapshot, events, .. } = arrived;
    let spec = BootSpec { log_level: 1, ..BootSpec::default() };
    Ok(Beginning { host, home: Arc::new(home), config, spec, former: Some(snapshot), events })
}

fn boot(dir: &Path, platform: &str, queue: &Arc<EventQueue>) -> Result<Beginning, String> {
    let why = |error: &dyn std::fmt::Display| error.to_string();
    let plan = SwapPlan { dir: Some(dir.to_owned()), ..SwapPlan::default() };
    let home = Hibernation::open(&HostPaths::of_new_process(), &plan).map_err(|error| why(&error))?;
    let sink = Arc::clone(queue);
    let host = HostIo::new(Arc::new(move |event| sink.post(event))).map_err(|error| why(&error))?;
    let open = |path: &Path| {
        let mut options = std::fs::OpenOptions::new();
        options
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(path)
            .map_err(|error| why(&error))
    };
    let root = host.files().adopt_mount(open(Path::new("/"))?.into()).map_err(|error| why(&error))?;
    let data =
        host.files().adopt_volume(open(&dir.join("data"))?.into(), false).map_err(|error| why(&error))?;
    let stream = |fd: u32, end: std::io::Result<File>| {
        let handle =
            host.adopt_stream(end.map_err(|error| why(&error))?.into()).map_err(|error| why(&error))?;
        Ok::<_, String>(Stream { fd, handle, flags: 0 })
    };
    let input = stream(0, File::open(dir.join("in")))?;
    let output = stream(1, File::options().write(true).open(dir.join("out")))?;
    let errors = stream(2, File::options().append(true).create(true).open(dir.join("errors")))?;
    let mount = |kind: &str, path: &str| Mount::of_kernel(kind, path.into(), 0);
    let mount_of = |handle, flags, path: &[u8], source: &str| Mount {
        handle,
        flags,
        path: path.to_vec(),
        kind: "host".into(),
        source: source.into(),
        ..Mount::default()
    };
    let spec = BootSpec {
        args: ["/usr/bin/python3", "-c", program::TEXT].map(|word| word.as_bytes().to_vec()).to_vec(),
        env: vec![b"PATH=/usr/bin:/bin".to_vec()],
        cwd: b"/".to_vec(),
        mounts: vec![
            mount_of(root, MOUNT_READ_ONLY, b"/", "root"),
            mount("proc", "/proc"),
            mount("tmpfs", "/tmp"),
            mount_of(data, 0, b"/srv", "data"),
        ],
        streams: vec![input, output, errors],
        log_level: 1,
        ..BootSpec::default()
    };
    let platform = if platform == "kvm" { Platform::Kvm } else { Platform::Systrap };
    let config = SandboxConfig::new(platform, 2, MEMORY_BYTES);
    Ok(Beginning { host, home: Arc::new(home), config, spec, former: None, events: Vec::new() })
}

fn serve(begin: Beginning, socket: UnixStream, queue: Arc<EventQueue>) -> Result<(), String> {
    let Beginning { host, home, mut config, spec, former, events } = begin;
    config.hibernation = home;
    let says = Arc::new(socket.try_clone().map_err(|error| error.to_string())?);
    let current: Arc<OnceLock<Weak<Sandbox>>> = Arc::default();
    let (sandbox_of, tells) = (Arc::clone(&current), Arc::clone(&says));
    let leaves = Arc::new(AtomicBool::new(false));
    let (is_leaving, tries) = (Arc::clone(&leaves), AtomicU32::new(0));
    config.report = Arc::new(move |what, of| {
        let Some(sandbox) = sandbox_of.get().and_then(Weak::upgrade) else { return };
        let is_leaving = is_leaving.load(Ordering::SeqCst);
        match what {
            // A kernel that calls though its VMM has not asked gets nothing.
            REPORT_HIBERNATED if !is_leaving => post(&sandbox.events, EVENT_SNAPSHOT, UNASKED),
            REPORT_NOT_TAKEN if of.cast_signed() == UNASKED => drop((&*tells).write_all(&[ASLEEP])),
            // Something has come that woke it: once more.
            REPORT_NOT_TAKEN if is_leaving && tries.load(Ordering::SeqCst) < TRIES => {
                leave(&sandbox, tries.fetch_add(1, Ordering::SeqCst) + 1);
            }
            REPORT_NOT_TAKEN | REPORT_NOT_HIBERNATED if !is_leaving || what == REPORT_NOT_TAKEN => {
                eprintln!("revive: request {of} was refused ({what})");
                std::process::exit(1)
            }
            _ => {}
        }
    });
    let sandbox = Sandbox::new(config, host, queue).map_err(|error| in_full(&error))?;
    events.into_iter().for_each(|event| sandbox.events.post(event));
    let _ = current.set(Arc::downgrade(&sandbox));
    let loaded = sandbox.load(&spec, former.as_ref()).map_err(|error| in_full(&error))?;
    drop(former);
    let mut word = [0];
    let (mut reads, mut writes) = (&socket, &socket);
    writes
        .write_all(&[READY])
        .and_then(|()| reads.read_exact(&mut word))
        .map_err(|error| error.to_string())?;
    if word[0] == WAKE {
        post(&sandbox.events, EVENT_WAKE, 1);
    }
    let orders = std::thread::spawn({
        let (sandbox, reads) =
            (Arc::downgrade(&sandbox), socket.try_clone().map_err(|error| error.to_string())?);
        move || obey(&sandbox, &reads, &leaves)
    });
    // The thread that made a sandbox has to outlive it, so the kernel runs on another.
    let result = std::thread::scope(|scope| scope.spawn(|| loaded.run_without_jail()).join());
    match result.map_err(|_| "the VMM panicked")? {
        Err(SandboxError::Taken) => {
            // It has read its last order.
            let _ = orders.join();
            sandbox.hand_over(&socket).map_err(|error| in_full(&error))
        }
        Ok(status) => {
            let mut word = vec![ENDED];
            word.extend(status.to_le_bytes());
            writes.write_all(&word).map_err(|error| error.to_string())
        }
        Err(error) => Err(in_full(&error)),
    }
}

fn post(events: &EventQueue, kind: u32, value: i64) {
    events.post(Event { kind, value, ..Event::default() });
}

/// Has the sandbox sleep, and its memory taken right then.
fn leave(sandbox: &Sandbox, time: u32) {
    post(&sandbox.events, EVENT_HIBERNATE, LEAVING + i64::from(time));
    sandbox.ask_for_snapshot(ASKED);
}

/// Obeys the driver, until it is told to leave.
fn obey(sandbox: &Weak<Sandbox>, mut socket: &UnixStream, leaves: &AtomicBool) {
    let mut order = [0];
    let mut requests = 100;
    while socket.read_exact(&mut order).is_ok() {
        let Some(sandbox) = sandbox.upgrade() else { return };
        requests += 1;
        match order[0] {
            SLEEP => post(&sandbox.events, EVENT_HIBERNATE, requests),
            WAKE => post(&sandbox.events, EVENT_WAKE, requests),
            LEAVE => {
                leaves.store(true, Ordering::SeqCst);
                leave(&sandbox, 0);
                return;
            }
            _ => {}
        }
    }
    // The driver is gone.
    std::process::exit(1);
}
