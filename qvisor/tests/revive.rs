//! A sandbox that is asleep goes on in another one's memory, with other vCPUs and other stubs: here in one process, one sandbox after the
//! other, which share what they hold of the host.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use abi::boot::{MOUNT_READ_ONLY, Platform};
use abi::hostcall::{
    EVENT_HIBERNATE, EVENT_SNAPSHOT, EVENT_WAKE, Event, REPORT_ASLEEP, REPORT_NOT_TAKEN, REPORT_STAYED_WARM,
};
use testdir::TempDir;
use vmm::boot::{BootSpec, Mount, Stream};
use vmm::hibernate::{Hibernation, SwapPlan};
use vmm::host_paths::HostPaths;
use vmm::hostcall::events::EventQueue;
use vmm::hostcall::host_io::HostIo;
use vmm::sandbox::{Sandbox, SandboxConfig, SandboxError};
use vmm::snapshot::Snapshot;

/// A process has one sandbox at a time: the linear map is at a fixed address.
static ONE: Mutex<()> = Mutex::new(());
const CPUS: u32 = 2;
/// Requests for the memory: of nobody, and of the VMM.
const UNASKED: i64 = 1;
const ASKED: i64 = 2;

/// The queue of the sandbox that runs.
type Queue = Arc<Mutex<Arc<EventQueue>>>;

/// A sandbox and what its successors take over.
struct World {
    _home_files: TempDir,
    home: Arc<Hibernation>,
    queue: Queue,
    io: Option<HostIo>,
    snapshot: Option<Snapshot>,
    vmms: u32,
    to_it: File,
    from_it: BufReader<File>,
    spec: BootSpec,
}

fn post(queue: &Queue, kind: u32, value: i64) {
    let event = Event { kind, value, ..Event::default() };
    queue.lock().unwrap_or_else(PoisonError::into_inner).clone().post(event);
}

impl World {
    /// A program with pipes for its input and output.
    fn new(words: &[&str]) -> Self {
        let files = TempDir::new();
        let plan = SwapPlan { dir: Some(files.path().to_owned()), ..SwapPlan::default() };
        let home = Arc::new(Hibernation::open(&HostPaths::of_new_process(), &plan).expect("a home"));
        let queue: Queue = Arc::new(Mutex::new(Arc::new(EventQueue::new())));
        let sink = Arc::clone(&queue);
        let io = HostIo::new(Arc::new(move |event| {
            sink.lock().unwrap_or_else(PoisonError::into_inner).clone().post(event);
        }));
        let io = io.expect("host I/O");
        let root =
            std::fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open("/");
        let root = io.files().adopt_mount(root.expect("a root").into()).expect("a mount");
        let (input, to_it) = std::io::pipe().expect("a pipe");
        let (from_it, output) = std::io::pipe().expect("a pipe");
        let stream = |fd: u32, end: OwnedFd| {
            let handle = io.adopt_stream(end).expect("a stream");
            Stream { fd, handle, flags: 0 }
        };
        let streams = vec![stream(0, input.into()), stream(1, output.into())];
        let mount = |kind: &str, path: &str| Mount::of_kernel(kind, path.into(), 0);
        let root = Mount {
            handle: root,
            flags: MOUNT_READ_ONLY,
            path: b"/".to_vec(),
            kind: "host".into(),
            source: "root".into(),
            ..Mount::default()
        };
        let spec = BootSpec {
            args: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
            env: vec![b"PATH=/usr/bin:/bin".to_vec()],
            cwd: b"/".to_vec(),
            mounts: vec![root, mount("proc", "/proc"), mount("tmpfs", "/tmp")],
            streams,
            log_level: 1,
            ..BootSpec::default()
        };
        let (to_it, from_it) = (File::from(OwnedFd::from(to_it)), File::from(OwnedFd::from(from_it)));
        Self {
            _home_files: files,
            home,
            queue,
            io: Some(io),
            snapshot: None,
            vmms: 0,
            to_it,
            from_it: BufReader::new(from_it),
            spec,
        }
    }

    /// Runs the sandbox until its memory is taken or it ends, while `meanwhile` speaks to it; then, if `is_taken`, it is put to sleep and
    /// taken. Result: its wait status.
    fn run(&mut self, is_taken: bool, meanwhile: impl FnOnce(&mut dyn FnMut(&str) -> String)) -> Option<u32> {
        let mut config = SandboxConfig::new(Platform::Systrap, CPUS, 256 << 20);
        config.hibernation = Arc::clone(&self.home);
        let reports = Arc::clone(&self.queue);
        let current: Arc<OnceLock<Weak<Sandbox>>> = Arc::default();
        let asleep = Arc::clone(&current);
        let refused = Arc::new(AtomicBool::new(false));
        let refuses = Arc::clone(&refused);
        // A kernel that calls though its VMM has not asked gets nothing.
        config.report = Arc::new(move |what, of| match (what, of) {
            (REPORT_ASLEEP, _) => post(&reports, EVENT_SNAPSHOT, UNASKED),
            (REPORT_NOT_TAKEN, of) if of.cast_signed() == UNASKED => {
                refuses.store(true, Ordering::SeqCst);
                let sandbox = asleep.get().and_then(Weak::upgrade).expect("it runs");
                sandbox.ask_for_snapshot(ASKED);
            }
            (REPORT_NOT_TAKEN | REPORT_STAYED_WARM, _) => panic!("request {of} was refused: {what}"),
            _ => {}
        });
        let events = Arc::new(EventQueue::new());
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&events);
        let sandbox = Sandbox::new(config, self.io.take().expect("host objects"), events).expect("a sandbox");
        current.set(Arc::downgrade(&sandbox)).expect("set once");
        let running = Arc::clone(&sandbox);
        let former = self.snapshot.take();
        assert_eq!(former.as_ref().map_or(0, Snapshot::vmms), self.vmms);
        let facts = BootSpec { log_level: 1, ..BootSpec::default() };
        let spec = if former.is_some() { facts } else { self.spec.clone() };
        if former.is_some() {
            post(&self.queue, EVENT_WAKE, 1);
        }
        // The thread that made a sandbox has to outlive it, so the kernel runs on another.
        let result = std::thread::scope(|scope| {
            let runs = scope.spawn(move || running.run_without_jail(&spec, former.as_ref()));
            let (to_it, from_it) = (&mut self.to_it, &mut self.from_it);
            meanwhile(&mut |line| {
                writeln!(to_it, "{line}").expect("it reads");
                let mut answer = String::new();
                from_it.read_line(&mut answer).expect("it answers");
                answer.trim_end().to_owned()
            });
            if is_taken {
                post(&self.queue, EVENT_HIBERNATE, 100);
            }
            runs.join().expect("it ends")
        });
        self.vmms += 1;
        match result {
            Ok(status) => Some(status),
            Err(SandboxError::Taken) => {
                assert!(refused.load(Ordering::SeqCst), "taken, though nobody had asked");
                self.snapshot = sandbox.snapshot();
                self.io = Some(host_of(sandbox));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The sandbox's host objects, once no thread that posts an event holds it any more.
fn host_of(mut sandbox: Arc<Sandbox>) -> HostIo {
    let start = Instant::now();
    while Arc::strong_count(&sandbox) > 1 && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(1));
        sandbox = Arc::clone(&sandbox);
    }
    sandbox.into_host().expect("nobody holds it")
}

/// Files, forks and a shell's own memory.
#[test]
fn a_shell_goes_on_under_other_vmms() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let script = "n=0; f=$(mktemp); while read -r line; do n=$((n + 1)); echo $line >>$f; \
                  echo $n $(tail -n 1 $f) $(wc -l <$f); done; exit 7";
    let mut world = World::new(&["/bin/bash", "-c", script]);
    for round in 1..=5 {
        let status = world.run(true, |say| {
            assert_eq!(say(&format!("line{round}")), format!("{round} line{round} {round}"));
        });
        assert_eq!(status, None);
        let taken = world.snapshot.as_ref().expect("memory").bytes();
        assert!((100 << 10..64 << 20).contains(&taken), "{taken} bytes");
    }
    world.to_it = File::open("/dev/null").expect("no more input");
    let status = world.run(false, |_| {});
    assert_eq!(status, Some(7 << 8));
}

/// Threads, time, bytes that lie in pipes and sockets, shared memory, and a child that was there before.
const MANY_THINGS: &str = r#"
import hashlib, mmap, os, socket, sys, threading, time
data = os.urandom(4 << 20)
digest = hashlib.sha256(data).digest()
r, w = os.pipe()
os.write(w, bytes(range(250)) * 200)
ours, theirs = socket.socketpair()
shared = mmap.mmap(-1, 1 << 16)
if os.fork() == 0:
    while byte := theirs.recv(1):
        shared[ord(byte)] += 1
        theirs.send(b"done")
    os._exit(0)
ticks = 0
def tick():
    global ticks
    while True:
        time.sleep(0.01)
        ticks += 1
threading.Thread(target=tick, daemon=True).start()
asked = threading.Semaphore(0)
answered = threading.Semaphore(0)
def answer():
    while asked.acquire():
        answered.release()
threading.Thread(target=answer, daemon=True).start()
for rounds, line in enumerate(sys.stdin, 1):
    # The answer of the last round has waited in the socket meanwhile.
    wrong = [] if rounds == 1 or ours.recv(4) == b"done" else ["socket"]
    before, began = ticks, time.monotonic()
    time.sleep(0.1)
    if ticks <= before or not 0.1 <= time.monotonic() - began < 60: wrong.append("time")
    if hashlib.sha256(data).digest() != digest: wrong.append("memory")
    if os.read(r, 250) != bytes(range(250)): wrong.append("pipe")
    asked.release()
    if not answered.acquire(timeout=60): wrong.append("futex")
    ours.send(b"x")
    while shared[ord("x")] != rounds: time.sleep(0.001)
    print("wrong: " + " ".join(wrong) if wrong else f"right {line.strip()}", flush=True)
"#;

#[test]
fn many_things_go_on_under_other_vmms() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new(&["/usr/bin/python3", "-c", MANY_THINGS]);
    for round in 1..=20 {
        let status = world.run(true, |say| {
            assert_eq!(say(&round.to_string()), format!("right {round}"));
        });
        assert_eq!(status, None);
    }
    world.to_it = File::open("/dev/null").expect("no more input");
    assert_eq!(world.run(false, |_| {}), Some(0));
}
