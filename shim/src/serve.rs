//! The shim as a server: one thread reads containerd's connections, and reaps children.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::ttrpc::{Code, Request};
use containerd_shim_protos::types::empty::Empty;
use vmm::footprint;
use vmm::process::{self, SignalFd};

use crate::cgroup::oom::OomWatch;
use crate::container::Surroundings;
use crate::events::Publisher;
use crate::failure::Failure;
use crate::flags::Flags;
use crate::reaper::Reaper;
use crate::service::Service;
use crate::start::ADDRESS;
use crate::ttrpc::frame::{Inbox, REQUEST};
use crate::ttrpc::line::{Line, Reply};

/// How long a shim without containers waits for somebody to connect. containerd may have ended between the shim's start
/// and its first request.
const IDLE: Duration = Duration::from_secs(15);

/// A connection of containerd's.
struct Client {
    line: Arc<Line>,
    inbox: Inbox,
}

/// Serves until containerd says that it needs the shim no more.
pub fn run(flags: &Flags) -> Result<(), String> {
    let failed = |what: &'static str| move |error: io::Error| format!("cannot {what}: {error}");
    footprint::keep_heap_small();
    // Before there is any other thread, so that all of them leave the signals to this one.
    let signals =
        SignalFd::new(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT]).map_err(failed("collect signals"))?;
    process::adopt_orphans();
    let listener = listener().map_err(failed("use standard input as the listening socket"))?;
    log_to_containerd().map_err(failed("open the log"))?;

    let address = std::env::var("TTRPC_ADDRESS").unwrap_or_else(|_| format!("{}.ttrpc", flags.address));
    let around = Surroundings {
        namespace: flags.namespace.clone(),
        reaper: Reaper::default(),
        publisher: Publisher::new(&address, &flags.namespace),
    };
    let (wakes, wake) = io::pipe().map_err(failed("make a pipe"))?;
    process::do_not_wait(wakes.as_fd()).map_err(failed("set up a pipe"))?;
    let service = Arc::new(Service::new(around, wake));
    let socket = std::fs::read_to_string(ADDRESS).unwrap_or_default();
    footprint::trim();
    poll(&service, &listener, &signals, &wakes);
    service.around.publisher.flush();
    if let Some(path) = socket.strip_prefix("unix://") {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// The socket comes as standard input.
fn listener() -> io::Result<UnixListener> {
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(listener)
}

/// containerd reads what is written to a FIFO of the bundle.
fn log_to_containerd() -> io::Result<()> {
    let log = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open("log");
    match log {
        Ok(log) => Ok(rustix::stdio::dup2_stderr(&log)?),
        // Nobody reads it.
        Err(error)
            if error.raw_os_error() == Some(libc::ENXIO) || error.kind() == io::ErrorKind::NotFound =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn poll(service: &Arc<Service>, listener: &UnixListener, signals: &SignalFd, wakes: &PipeReader) {
    let mut clients: BTreeMap<i32, Client> = BTreeMap::new();
    let mut watches: Vec<(String, OomWatch)> = Vec::new();
    // Since when nobody needs the shim.
    let mut idle: Option<Instant> = None;
    while !service.is_over() {
        let is_idle = clients.is_empty() && service.is_empty();
        idle = is_idle.then(|| idle.unwrap_or_else(Instant::now));
        let left = idle.map(|since| IDLE.saturating_sub(since.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return;
        }
        let timeout =
            left.map_or(-1, |left| i32::try_from(left.as_millis()).unwrap_or(i32::MAX).saturating_add(1));
        let fixed = [listener.as_raw_fd(), signals.as_raw_fd(), wakes.as_raw_fd()];
        let more = clients.keys().copied().chain(watches.iter().map(|(_, watch)| watch.as_raw_fd()));
        let descriptors: Vec<i32> = fixed.into_iter().chain(more).collect();
        let ready: Vec<i32> = process::wait_any(&descriptors, timeout)
            .into_iter()
            .filter_map(|at| descriptors.get(at).copied())
            .collect();
        let is_ready = |fd: i32| ready.contains(&fd);
        if is_ready(signals.as_raw_fd()) {
            while signals.next().is_some() {}
            service.reap();
        }
        if is_ready(listener.as_raw_fd()) {
            while let Ok((stream, _)) = listener.accept() {
                if let Ok(line) = Line::new(stream) {
                    let client = Client { line: Arc::new(line), inbox: Inbox::default() };
                    clients.insert(client.line.as_raw_fd(), client);
                }
            }
        }
        if is_ready(wakes.as_raw_fd()) {
            while (&*wakes).read(&mut [0; 16]).is_ok_and(|got| got > 0) {}
            watches.extend(service.new_watches());
        }
        watches.retain_mut(|(id, watch)| match is_ready(watch.as_raw_fd()).then(|| watch.look()) {
            None | Some(Some(false)) => true,
            Some(Some(true)) => {
                service.tell_oom(id);
                true
            }
            Some(None) => false,
        });
        clients.retain(|fd, client| !is_ready(*fd) || client.read(service));
    }
}

impl Client {
    /// Serves what has come; false: the connection is over.
    fn read(&mut self, service: &Arc<Service>) -> bool {
        let mut bytes = [0; 4096];
        match self.line.receive(&mut bytes) {
            None => return true,
            Some(0) => return false,
            Some(got) => self.inbox.extend(bytes.get(..got).unwrap_or_default()),
        }
        loop {
            match self.inbox.next() {
                Ok(None) => return true,
                Err(_) => return false,
                Ok(Some(frame)) if frame.kind != REQUEST => {}
                Ok(Some(frame)) => {
                    let reply = Reply::new(Arc::clone(&self.line), frame.stream);
                    match Request::parse_from_bytes(&frame.body) {
                        Ok(request) => service.serve(&request, reply),
                        Err(error) => {
                            let why = format!("cannot read the request: {error}");
                            reply.answer::<Empty>(Err(Failure::new(Code::INVALID_ARGUMENT, why)));
                        }
                    }
                }
            }
        }
    }
}
