//! One of the VMMs: it runs the sandbox until it is told to leave it to the next one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use abi::boot::{MOUNT_READ_ONLY, Platform};
use abi::hostcall::{EVENT_HIBERNATE, EVENT_SNAPSHOT, EVENT_WAKE, Event};
use abi::layout::kernel_bytes;
use abi::mount::{FileSystem, Handles, HostKind};
use abi::report::Report;
use runtime::control::ExecLine;
use vmm::boot::{BootSpec, Mount, Stream};
use vmm::container_queue::ContainerQueue;
use vmm::exec_relay::ExecRelay;
use vmm::handover::HandOverError;
use vmm::hibernate::{Hibernation, SwapPlan};
use vmm::host_paths::HostPaths;
use vmm::hostcall::events::EventQueue;
use vmm::hostcall::host_io::HostIo;
use vmm::image::ImageFile;
use vmm::sandbox::{ReportSink, Sandbox, SandboxConfig, SandboxError, SleepSink};
use vmm::snapshot::Snapshot;
use vmm::successor::{Arrived, SizesMost};

use crate::{Options, entrant, program};

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
/// A process is to come in.
pub const EXEC: u8 = b'X';
/// A container is to begin beside the first.
pub const CREATE: u8 = b'C';
/// It is to be awake.
pub const WAKE: u8 = b'W';
/// It has ended by itself; its wait status follows.
pub const ENDED: u8 = b'e';

const MEMORY_BYTES: u64 = 256 << 20;
const CPUS: u32 = 2;
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
    execs: ExecRelay,
    containers: ContainerQueue,
    config: SandboxConfig,
    spec: BootSpec,
    former: Option<Snapshot>,
    events: Vec<Event>,
}

pub fn run(dir: &Path, options: &Options) -> ExitCode {
    match begin(dir, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("revive: {why}");
            ExitCode::FAILURE
        }
    }
}

fn begin(dir: &Path, options: &Options) -> Result<(), String> {
    // Out of the way of the sandbox's descriptors, which have higher numbers.
    // SAFETY: nobody else in this process uses its standard input.
    let socket = unsafe { UnixStream::from_raw_fd(libc::STDIN_FILENO) };
    let queue = Arc::new(EventQueue::new());
    let mut order = [0];
    (&socket).read_exact(&mut order).map_err(|error| error.to_string())?;
    let begin = match order[0] {
        BOOT => boot(dir, options, &queue),
        RESUME if options.afresh => resume_afresh(dir, &socket, options, &queue),
        RESUME => resume(&socket, &queue).map_err(|error| in_full(&error)),
        other => Err(format!("an unknown order: {other}")),
    };
    let mut begin = begin?;
    begin.config.kernel_file = ImageFile::of_the_kernel(&HostPaths::of_new_process()).map(Arc::new);
    serve(begin, (dir, options.afresh), socket, queue)
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
    let most =
        SizesMost { cpus: CPUS, memory_most_bytes: MEMORY_BYTES, kernel_bytes: kernel_bytes(MEMORY_BYTES) };
    let sink = Arc::new(move |event| sink.post(event));
    let arrived = Arrived::receive(&HostPaths::of_new_process(), socket, &most, sink, &|fd, unread| {
        Box::new(ExecLine::of_former(fd.into(), unread))
    })?;
    let config = arrived.configure(SandboxConfig::new(Platform::Systrap, 1, MEMORY_BYTES));
    let Arrived { host, home, execs, containers, snapshot, events, .. } = arrived;
    let spec = BootSpec { log_level: 1, ..BootSpec::default() };
    let config = SandboxConfig { hibernation: Arc::new(home), ..config };
    Ok(Beginning { host, execs, containers, config, spec, former: Some(snapshot), events })
}

/// Begins with the memory and the pages of a former one alone.
fn resume_afresh(
    dir: &Path,
    socket: &UnixStream,
    options: &Options,
    queue: &Arc<EventQueue>,
) -> Result<Beginning, String> {
    let Beginning { host: former, config, former: memory, .. } =
        resume(socket, queue).map_err(|error| in_full(&error))?;
    let handles = former.files().end();
    drop(former);
    let sink = Arc::clone(queue);
    let host = HostIo::new(Arc::new(move |event| sink.post(event))).map_err(|error| error.to_string())?;
    host.begin_above(handles).map_err(|error| error.to_string())?;
    let spec = describe(dir, options, &host)?;
    let (execs, containers) = (ExecRelay::default(), ContainerQueue::default());
    let orphans = File::open(dir.join("orphans")).map_err(|error| error.to_string())?;
    let former = memory.map(|memory| memory.without_files(orphans));
    Ok(Beginning { host, execs, containers, config, spec, former, events: Vec::new() })
}

fn boot(dir: &Path, options: &Options, queue: &Arc<EventQueue>) -> Result<Beginning, String> {
    let why = |error: &dyn std::fmt::Display| error.to_string();
    let plan = SwapPlan { dir: Some(dir.to_owned()), ..SwapPlan::default() };
    let home = Hibernation::open(&HostPaths::of_new_process(), plan).map_err(|error| why(&error))?;
    let sink = Arc::clone(queue);
    let host = HostIo::new(Arc::new(move |event| sink.post(event))).map_err(|error| why(&error))?;
    let spec = describe(dir, options, &host)?;
    let platform = if options.platform == "kvm" { Platform::Kvm } else { Platform::Systrap };
    let config = SandboxConfig::new(platform, CPUS, MEMORY_BYTES);
    let config = SandboxConfig { hibernation: Arc::new(home), ..config };
    let (execs, containers) = (ExecRelay::default(), ContainerQueue::default());
    Ok(Beginning { host, execs, containers, config, spec, former: None, events: Vec::new() })
}

/// Opens what the sandbox sees of the host, and describes it.
fn describe(dir: &Path, options: &Options, host: &HostIo) -> Result<BootSpec, String> {
    let why = |error: &dyn std::fmt::Display| error.to_string();
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
    let text = if options.server { program::SERVER } else { program::TEXT };
    let mount = |kind, path: &str| Mount::of_kernel(kind, path.into(), 0);
    let mount_of = |root, flags, path: &str, source: &str| Mount {
        source: source.into(),
        ..Mount::of_host(HostKind::Plain, Handles { root, lower: None }, path.into(), flags)
    };
    let words = ["/usr/bin/python3", "-c", text].into_iter().chain(options.afresh.then_some("afresh"));
    Ok(BootSpec {
        args: words.map(|word| word.as_bytes().to_vec()).collect(),
        env: vec![b"PATH=/usr/bin:/bin".to_vec()],
        cwd: b"/".to_vec(),
        mounts: vec![
            mount_of(root, MOUNT_READ_ONLY, "/", "root"),
            mount(FileSystem::Proc, "/proc"),
            mount(FileSystem::Tmpfs, "/tmp"),
            mount_of(data, 0, "/srv", "data"),
        ],
        streams: vec![input, output, errors],
        log_level: 1,
        ..BootSpec::default()
    })
}

fn serve(
    begin: Beginning,
    (dir, is_afresh): (&Path, bool),
    socket: UnixStream,
    queue: Arc<EventQueue>,
) -> Result<(), String> {
    let Beginning { host, execs, containers, mut config, spec, former, events } = begin;
    let (execs, containers) = (Arc::new(execs), Arc::new(containers));
    (config.execs, config.containers) = (Arc::clone(&execs), Arc::clone(&containers));
    let says = Arc::new(socket.try_clone().map_err(|error| error.to_string())?);
    let current: Arc<OnceLock<Weak<Sandbox>>> = Arc::default();
    let leaves = Arc::new(AtomicBool::new(false));
    (config.report, config.sleeps) = sinks((dir, is_afresh), &current, &leaves, says);
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
    let reads = socket.try_clone().map_err(|error| error.to_string())?;
    let threads = Threads::start(&sandbox, (dir, is_afresh), (&execs, containers), reads, leaves)
        .map_err(|error| error.to_string())?;
    // The thread that made a sandbox has to outlive it, so the kernel runs on another.
    let result = std::thread::scope(|scope| scope.spawn(|| loaded.run_without_jail()).join());
    match result.map_err(|_| "the VMM panicked")? {
        Err(SandboxError::Taken) => {
            threads.end();
            sandbox.hand_over(&socket).map_err(|error| in_full(&error))?;
            // What is left of it ends with the process.
            std::process::exit(0)
        }
        Ok(status) => {
            let mut word = vec![ENDED];
            word.extend(status.to_le_bytes());
            writes.write_all(&word).map_err(|error| error.to_string())
        }
        Err(error) => Err(in_full(&error)),
    }
}

/// Takes the kernel's answers to requests for its memory, and those to requests to sleep.
fn sinks(
    (dir, is_afresh): (&Path, bool),
    current: &Arc<OnceLock<Weak<Sandbox>>>,
    leaves: &Arc<AtomicBool>,
    says: Arc<UnixStream>,
) -> (ReportSink, SleepSink) {
    let refused = |request, why: &[u8]| {
        eprintln!("revive: request {request} was refused: {}", String::from_utf8_lossy(why));
        std::process::exit(1)
    };
    let (sandbox_of, is_leaving, tries) = (Arc::clone(current), Arc::clone(leaves), AtomicU32::new(0));
    let dir = dir.to_owned();
    let report: ReportSink = Arc::new(move |report| {
        if let Report::ContainerEnded { status, .. } = *report {
            let _ = entrant::tell_end(&dir, status);
        }
        if let Report::ContainerFailed { why, .. } = *report {
            eprintln!("revive: {}", String::from_utf8_lossy(why));
        }
        let Report::NotTaken { request, why } = *report else { return };
        let Some(sandbox) = sandbox_of.get().and_then(Weak::upgrade) else { return };
        if request.cast_signed() == UNASKED {
            // A kernel that calls though its VMM has not asked gets nothing.
            let _ = (&*says).write_all(&[ASLEEP]);
        } else if is_leaving.load(Ordering::SeqCst) && tries.load(Ordering::SeqCst) < TRIES {
            // Something has come that woke it: once more.
            leave(&sandbox, tries.fetch_add(1, Ordering::SeqCst) + 1, (&dir, is_afresh));
        } else {
            refused(request, why);
        }
    });
    let (sandbox_of, is_leaving) = (Arc::clone(current), Arc::clone(leaves));
    let sleeps: SleepSink = Arc::new(move |request, is_stored| {
        let Some(sandbox) = sandbox_of.get().and_then(Weak::upgrade) else { return };
        match (is_leaving.load(Ordering::SeqCst), is_stored) {
            (true, _) => {}
            (false, true) => post(&sandbox.events, EVENT_SNAPSHOT, UNASKED),
            (false, false) => refused(request, b"it cannot sleep"),
        }
    });
    (report, sleeps)
}

/// The threads that take the driver's orders, and those of the peers of processes that came in.
struct Threads {
    orders: JoinHandle<()>,
    passes: JoinHandle<()>,
    /// Open until they are to end.
    goes_on: UnixStream,
}

impl Threads {
    fn start(
        sandbox: &Arc<Sandbox>,
        (dir, is_afresh): (&Path, bool),
        (execs, containers): (&Arc<ExecRelay>, Arc<ContainerQueue>),
        reads: UnixStream,
        leaves: Arc<AtomicBool>,
    ) -> std::io::Result<Self> {
        let (of, dir, relay) = (Arc::downgrade(sandbox), dir.to_owned(), Arc::clone(execs));
        let orders =
            std::thread::spawn(move || obey(&of, (&dir, is_afresh), (&relay, &containers), &reads, &leaves));
        let (of, relay, (goes_on, end)) = (Arc::clone(sandbox), Arc::clone(execs), UnixStream::pair()?);
        let passes = std::thread::spawn(move || pass_on(&of, &relay, &end));
        Ok(Self { orders, passes, goes_on })
    }

    /// Waits until they have read their last order.
    fn end(self) {
        drop(self.goes_on);
        let _ = (self.orders.join(), self.passes.join());
    }
}

fn post(events: &EventQueue, kind: u32, value: i64) {
    events.post(Event { kind, value, ..Event::default() });
}

/// Has the sandbox sleep, and its memory taken right then.
fn leave(sandbox: &Sandbox, time: u32, (dir, is_afresh): (&Path, bool)) {
    post(&sandbox.events, EVENT_HIBERNATE, LEAVING + i64::from(time));
    if !is_afresh {
        return sandbox.ask_for_snapshot(ASKED);
    }
    match File::create(dir.join("orphans")) {
        Ok(orphans) => sandbox.ask_for_snapshot_alone(ASKED, orphans),
        Err(error) => or_end(Err(error.to_string())),
    }
}

fn or_end(outcome: Result<(), String>) {
    if let Err(why) = outcome {
        eprintln!("revive: {why}");
        std::process::exit(1);
    }
}

/// Passes on what the peers of processes that came in have to say, until the other end of `end` is closed.
fn pass_on(sandbox: &Sandbox, execs: &ExecRelay, end: &UnixStream) {
    let mut is_over = false;
    while !is_over {
        let mut fds = vec![end.as_raw_fd()];
        fds.extend(execs.descriptors());
        // Of one that has come in since it hears a little later.
        is_over = vmm::process::wait_any(&fds, 10).contains(&0);
        execs.orders().into_iter().for_each(|event| sandbox.events.post(event));
    }
}

/// Obeys the driver, until it is told to leave.
fn obey(
    sandbox: &Weak<Sandbox>,
    (dir, is_afresh): (&Path, bool),
    (execs, containers): (&ExecRelay, &ContainerQueue),
    mut socket: &UnixStream,
    leaves: &AtomicBool,
) {
    let mut order = [0];
    let mut requests = 100;
    while socket.read_exact(&mut order).is_ok() {
        let Some(sandbox) = sandbox.upgrade() else { return };
        requests += 1;
        match order[0] {
            SLEEP => post(&sandbox.events, EVENT_HIBERNATE, requests),
            WAKE => post(&sandbox.events, EVENT_WAKE, requests),
            EXEC => or_end(entrant::come_in(dir, execs, &sandbox.events)),
            CREATE => or_end(entrant::make_container(dir, containers, &sandbox.events)),
            LEAVE => {
                leaves.store(true, Ordering::SeqCst);
                leave(&sandbox, 0, (dir, is_afresh));
                return;
            }
            _ => {}
        }
    }
    // The driver is gone.
    std::process::exit(1);
}
