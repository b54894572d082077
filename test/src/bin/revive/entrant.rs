//! A process that comes in by `exec`, and outlives VMMs: its connection is its peer's, who asked for it. And a second container, whose end a
//! VMM tells that did not make it.

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use abi::boot::{MOUNT_READ_ONLY, MOUNT_VOLUME};
use abi::hostcall::{EVENT_CREATE, EVENT_EXEC, Event};
use abi::mount::{FileSystem, Handles, HostKind};
use runtime::control::{self, ExecLine, Order};
use vmm::boot::{BootSpec, Mount, Stream};
use vmm::container_queue::ContainerQueue;
use vmm::exec_relay::{ExecRelay, ExecReport};
use vmm::hostcall::events::EventQueue;
use vmm::request::Request;

use crate::driver::{Outcome, PATIENCE, line_of, why};

/// It answers each line of its input, and tells of each signal.
const PROGRAM: &str = r#"
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"signal\n"))
for line in sys.stdin: os.write(1, b"did " + line.encode())
os._exit(7)
"#;
const STATUS: i32 = 7 << 8;
const SOCKET: &str = "exec";
const INPUT: &str = "exec-in";
const OUTPUT: &str = "exec-out";
const SECOND_INPUT: &str = "second-in";
const SECOND_OUTPUT: &str = "second-out";

/// The asker's side.
pub struct Entrant {
    peer: BufReader<UnixStream>,
    to_it: Option<File>,
    from_it: BufReader<File>,
    /// Signals of which it has not told yet.
    signals: u32,
}

/// Makes the files that an [`Entrant`] needs, in the directory that the driver shares with its VMMs.
pub fn prepare(dir: &Path) -> Outcome<UnixListener> {
    for name in [INPUT, OUTPUT, SECOND_INPUT, SECOND_OUTPUT] {
        make_fifo(&dir.join(name))?;
    }
    UnixListener::bind(dir.join(SOCKET)).map_err(why)
}

pub fn make_fifo(path: &Path) -> Outcome<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(why)?;
    // SAFETY: a path that is live.
    match unsafe { libc::mkfifo(path.as_ptr(), 0o600) } {
        0 => Ok(()),
        _ => Err(why(std::io::Error::last_os_error())),
    }
}

impl Entrant {
    /// Waits for the process that a VMM was told to have come in.
    pub fn accept(dir: &Path, listener: &UnixListener) -> Outcome<Self> {
        let (peer, _) = listener.accept().map_err(why)?;
        peer.set_read_timeout(Some(PATIENCE)).map_err(why)?;
        let open = |name| File::options().read(true).write(true).open(dir.join(name)).map_err(why);
        let (to_it, from_it) = (Some(open(INPUT)?), BufReader::new(open(OUTPUT)?));
        let mut entrant = Self { peer: BufReader::new(peer), to_it, from_it, signals: 0 };
        match entrant.report()? {
            ExecReport::Started { .. } => Ok(entrant),
            other => Err(format!("the process did not begin: {other:?}")),
        }
    }

    fn report(&mut self) -> Outcome<ExecReport> {
        let mut line = String::new();
        self.peer.read_line(&mut line).map_err(|error| format!("the peer hears nothing: {error}"))?;
        serde_json::from_str(&line).map_err(|error| format!("{line:?} is no report: {error}"))
    }

    /// Has it do something, and looks whether it told of each signal once.
    pub fn turn(&mut self, word: &str) -> Outcome<()> {
        let to_it = self.to_it.as_mut().ok_or("it has been told to end")?;
        to_it.write_all(format!("{word}\n").as_bytes()).map_err(why)?;
        let (mut told, mut done) = (0, false);
        while !done || told < self.signals {
            match line_of(&mut self.from_it)?.as_str() {
                "signal" => told += 1,
                line if line == format!("did {word}") && !done => done = true,
                line => return Err(format!("the process that came in said {line:?} for {word:?}")),
            }
        }
        if told != self.signals {
            return Err(format!("{told} signals came instead of {}", self.signals));
        }
        self.signals = 0;
        Ok(())
    }

    /// Its peer sends a signal, at whatever moment; at most one between two turns, since two may become one.
    pub fn signal(&mut self) -> Outcome<()> {
        if self.signals > 0 {
            return Ok(());
        }
        self.signals += 1;
        let order = Order::Kill { signal: libc::SIGUSR1, foreground: false, all: false };
        control::send(self.peer.get_ref(), &order).map_err(why)
    }

    /// It is to end once it has read everything.
    pub fn close(&mut self) {
        self.to_it = None;
    }

    pub fn is_to_end(&self) -> bool {
        self.to_it.is_none()
    }

    /// Its peer hears of its end.
    pub fn end(mut self) -> Outcome<()> {
        match self.report()? {
            ExecReport::Exited { status: STATUS } => Ok(()),
            other => Err(format!("the end of the process that came in: {other:?}")),
        }
    }
}

/// A second container, from its first to its last line.
pub struct SecondContainer {
    to_it: Option<File>,
    from_it: BufReader<File>,
}

impl SecondContainer {
    /// The one that a VMM was told to make.
    pub fn meet(dir: &Path) -> Outcome<Self> {
        let open = |name| File::options().read(true).write(true).open(dir.join(name)).map_err(why);
        Ok(Self { to_it: Some(open(SECOND_INPUT)?), from_it: BufReader::new(open(SECOND_OUTPUT)?) })
    }

    pub fn turn(&mut self, word: &str) -> Outcome<()> {
        let to_it = self.to_it.as_mut().ok_or("it has been told to end")?;
        to_it.write_all(format!("{word}\n").as_bytes()).map_err(why)?;
        self.hear(&format!("did {word}"))
    }

    fn hear(&mut self, wanted: &str) -> Outcome<()> {
        match line_of(&mut self.from_it)? {
            line if line == wanted => Ok(()),
            line => Err(format!("the second container said {line:?} instead of {wanted:?}")),
        }
    }

    /// It is to end once it has read everything.
    pub fn close(&mut self) {
        self.to_it = None;
    }

    pub fn is_to_end(&self) -> bool {
        self.to_it.is_none()
    }

    /// A VMM tells its end.
    pub fn end(mut self) -> Outcome<()> {
        self.hear(&format!("ended {STATUS}"))
    }
}

/// The VMM's side: has a container come in, with the host's root and a volume.
pub fn make_container(dir: &Path, containers: &ContainerQueue, events: &EventQueue) -> Outcome<()> {
    let view = |path: &Path| {
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path).map_err(why)
    };
    let mount_of = |root, flags, path: &str| {
        Mount::of_host(HostKind::Plain, Handles { root, lower: None }, path.into(), flags)
    };
    let mounts = vec![
        mount_of(3, MOUNT_READ_ONLY, "/"),
        Mount::of_kernel(FileSystem::Proc, "/proc".into(), 0),
        Mount::of_kernel(FileSystem::Tmpfs, "/tmp".into(), 0),
        mount_of(4, MOUNT_VOLUME, "/srv"),
    ];
    let spec = BootSpec { mounts, ..program() };
    let mut files = streams(dir, SECOND_INPUT, SECOND_OUTPUT)?;
    files.extend([view(Path::new("/"))?, view(&dir.join("data"))?]);
    let files = files.into_iter().map(Into::into).collect();
    let (id, len) = containers.add(Request::for_container(spec.container_records(), files)?)?;
    events.post(Event { kind: EVENT_CREATE, flags: 0, token: id.0, value: len });
    Ok(())
}

/// The VMM's side: the second container's end.
pub fn tell_end(dir: &Path, status: i32) -> Outcome<()> {
    let mut to_it = File::options().write(true).open(dir.join(SECOND_OUTPUT)).map_err(why)?;
    to_it.write_all(format!("ended {status}\n").as_bytes()).map_err(why)
}

fn program() -> BootSpec {
    let stream = |at: u32| Stream { fd: at, handle: at, flags: 0 };
    BootSpec {
        args: ["/usr/bin/python3", "-c", PROGRAM].map(|word| word.as_bytes().to_vec()).to_vec(),
        env: vec![b"PATH=/usr/bin:/bin".to_vec()],
        cwd: b"/".to_vec(),
        streams: (0..3).map(stream).collect(),
        ..BootSpec::default()
    }
}

fn streams(dir: &Path, input: &str, output: &str) -> Outcome<Vec<File>> {
    let writes = |path: PathBuf| File::options().append(true).create(true).open(path).map_err(why);
    Ok(vec![
        File::open(dir.join(input)).map_err(why)?,
        writes(dir.join(output))?,
        writes(dir.join("errors"))?,
    ])
}

/// The VMM's side: has a process come in, whose peer waits at the socket.
pub fn come_in(dir: &Path, execs: &ExecRelay, events: &EventQueue) -> Outcome<()> {
    let peer = UnixStream::connect(dir.join(SOCKET)).map_err(why)?;
    let files = streams(dir, INPUT, OUTPUT)?.into_iter().map(Into::into).collect();
    let request = Request::for_process(program().process_records(), files)?;
    let (id, len) = execs.add(Box::new(ExecLine::new(peer)), request).ok_or("there is no room")?;
    events.post(Event { kind: EVENT_EXEC, flags: 0, token: id, value: len });
    Ok(())
}
