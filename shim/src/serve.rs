//! The shim as a server: one thread reads containerd's connections, and reaps children.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
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
use crate::socket::Claim;
use crate::ttrpc::frame::{Inbox, REQUEST, TooLong};
use crate::ttrpc::line::{Line, Reply};

/// How long a shim without containers waits for a connection or a request. containerd may have ended between the shim's start
/// and its first request; and one that was started again meanwhile stays connected to a shim whose container did not come about.
const IDLE: Duration = Duration::from_secs(15);

/// A connection of containerd's.
struct Client {
    line: Arc<Line>,
    inbox: Inbox,
    /// It was told of that the container it was made for needs the shim no more.
    is_done: bool,
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
    // By the socket itself: nothing that `start` does later decides whether it is removed at the end.
    let socket = own_name(&listener);
    footprint::trim();
    let mut server = Server {
        service,
        listener,
        signals,
        wakes,
        clients: BTreeMap::new(),
        watches: Vec::new(),
        announced: 0,
        needed: Instant::now(),
    };
    loop {
        server.serve_until_idle();
        if server.ends(socket.as_deref()) {
            break;
        }
    }
    server.service.around.publisher.flush();
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

/// The path by which the socket is found.
fn own_name(listener: &UnixListener) -> Option<PathBuf> {
    Some(listener.local_addr().ok()?.as_pathname()?.to_owned())
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

/// The shim's sockets, signals and watches, which one thread looks after.
struct Server {
    service: Arc<Service>,
    listener: UnixListener,
    signals: SignalFd,
    wakes: PipeReader,
    clients: BTreeMap<i32, Client>,
    watches: Vec<(String, OomWatch)>,
    /// Connections that are to come: somebody has found the shim and wants it to stay ([`Claim::listen`]).
    announced: usize,
    /// When the shim was last needed: it had a container, or somebody connected or said something.
    needed: Instant,
}

impl Server {
    /// Serves until containerd says that it needs the shim no more, or has not for some time.
    fn serve_until_idle(&mut self) {
        while !self.is_over() {
            let is_empty = self.service.is_empty();
            if !is_empty {
                self.needed = Instant::now();
            }
            let left = is_empty.then(|| IDLE.saturating_sub(self.needed.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return;
            }
            let timeout =
                left.map_or(-1, |left| i32::try_from(left.as_millis()).unwrap_or(i32::MAX).saturating_add(1));
            self.serve_once(timeout);
        }
    }

    /// Whether nobody needs the shim: each connection has seen its container's end.
    fn is_over(&self) -> bool {
        self.announced == 0 && self.clients.values().all(|client| client.is_done) && self.service.is_over()
    }

    fn serve_once(&mut self, timeout_ms: i32) {
        let fixed = [self.listener.as_raw_fd(), self.signals.as_raw_fd(), self.wakes.as_raw_fd()];
        let watched = self.watches.iter().map(|(_, watch)| watch.as_raw_fd());
        let descriptors: Vec<i32> =
            fixed.into_iter().chain(self.clients.keys().copied()).chain(watched).collect();
        let ready: Vec<i32> = process::wait_any(&descriptors, timeout_ms)
            .into_iter()
            .filter_map(|at| descriptors.get(at).copied())
            .collect();
        let is_ready = |fd: i32| ready.contains(&fd);
        if is_ready(self.wakes.as_raw_fd()) {
            while self.wakes.read(&mut [0; 16]).is_ok_and(|got| got > 0) {}
            self.watches.extend(self.service.new_watches());
        }
        if is_ready(self.signals.as_raw_fd()) {
            while self.signals.next().is_some() {}
            let ended = self.service.around.reaper.reap();
            // Word of memory that ran out was there before the end that came of it, and is told before it.
            self.look_for_oom(|_| true);
            self.service.tell_ends(ended);
        } else {
            self.look_for_oom(is_ready);
        }
        if is_ready(self.listener.as_raw_fd()) {
            self.accept();
        }
        let ready: Vec<i32> = self.clients.keys().copied().filter(|fd| is_ready(*fd)).collect();
        for fd in ready {
            self.needed = Instant::now();
            if let Some(client) = self.clients.remove(&fd) {
                self.read(client);
            }
        }
    }

    /// Serves what has come over a connection.
    fn read(&mut self, mut client: Client) -> Connection {
        let state = client.read(&self.service);
        match state {
            Connection::Open => drop(self.clients.insert(client.line.as_raw_fd(), client)),
            Connection::Announces => self.announced += 1,
            Connection::Over => {}
        }
        state
    }

    fn look_for_oom(&mut self, is_ready: impl Fn(RawFd) -> bool) {
        self.watches.retain_mut(|(id, watch)| match is_ready(watch.as_raw_fd()).then(|| watch.look()) {
            None | Some(Some(false)) => true,
            Some(Some(true)) => {
                self.service.tell_oom(id);
                true
            }
            Some(None) => false,
        });
    }

    /// Takes connections; result: whether one of them, or one to come, needs the shim.
    fn accept(&mut self) -> bool {
        let mut is_needed = false;
        while let Ok((stream, _)) = self.listener.accept() {
            self.needed = Instant::now();
            let Ok(line) = Line::new(stream) else { continue };
            let client = Client { line: Arc::new(line), inbox: Inbox::default(), is_done: false };
            // A connection comes after its announcement, which has been read by then.
            is_needed |= match self.read(client) {
                Connection::Open => {
                    self.announced = self.announced.saturating_sub(1);
                    true
                }
                Connection::Announces => true,
                // `delete` only looks whether the shim is there.
                Connection::Over => false,
            };
        }
        is_needed
    }

    /// Removes the socket, unless somebody has found the shim by it meanwhile; then it goes on.
    fn ends(&mut self, socket: Option<&Path>) -> bool {
        let Some(claim) = socket.and_then(|socket| Claim::new(socket).ok()) else { return true };
        if self.accept() {
            return false;
        }
        claim.remove();
        true
    }
}

/// The state of a connection after its bytes were read.
#[derive(Clone, Copy)]
enum Connection {
    Open,
    /// It is over, with the beginning of a request: another one is to come.
    Announces,
    Over,
}

impl Client {
    /// Serves what has come, to the end of the connection if that has come.
    fn read(&mut self, service: &Arc<Service>) -> Connection {
        let mut bytes = [0; 4096];
        loop {
            match self.line.receive(&mut bytes) {
                None => return Connection::Open,
                Some(0) if self.inbox.is_empty() => return Connection::Over,
                Some(0) => return Connection::Announces,
                Some(got) => self.inbox.extend(bytes.get(..got).unwrap_or_default()),
            }
            if self.serve(service).is_err() {
                return Connection::Over;
            }
        }
    }

    /// Serves the requests that are whole.
    fn serve(&mut self, service: &Arc<Service>) -> std::result::Result<(), TooLong> {
        while let Some(frame) = self.inbox.next()? {
            if frame.kind != REQUEST {
                continue;
            }
            let reply = Reply::new(Arc::clone(&self.line), frame.stream);
            match Request::parse_from_bytes(&frame.body) {
                Ok(request) => self.is_done = service.serve(&request, reply),
                Err(error) => {
                    let why = format!("cannot read the request: {error}");
                    reply.answer::<Empty>(Err(Failure::new(Code::INVALID_ARGUMENT, why)));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::ttrpc::frame::Frame;

    fn server(listener: UnixListener) -> Server {
        listener.set_nonblocking(true).unwrap();
        let (wakes, wake) = io::pipe().unwrap();
        let around = Surroundings {
            namespace: "test".into(),
            reaper: Reaper::default(),
            publisher: Publisher::new("/nowhere", "test"),
        };
        Server {
            service: Arc::new(Service::new(around, wake)),
            listener,
            signals: SignalFd::new(&[]).unwrap(),
            wakes,
            clients: BTreeMap::new(),
            watches: Vec::new(),
            announced: 0,
            needed: Instant::now(),
        }
    }

    /// Is the shim over, after something has happened to its socket?
    fn ends_after(happens: impl Fn(&Path)) -> bool {
        let dir = testdir::TempDir::new();
        let socket = dir.path().join("socket");
        let mut server = server(Claim::new(&socket).unwrap().listen().unwrap().unwrap());
        happens(&socket);
        let ends = server.ends(Some(&socket));
        assert_eq!(socket.exists(), !ends);
        ends
    }

    #[test]
    fn a_shim_goes_on_for_who_needs_it_and_ends_although_somebody_has_looked_for_it() {
        assert!(ends_after(|_| ()));
        assert!(ends_after(|socket| assert!(Claim::new(socket).unwrap().is_served())));
        assert!(!ends_after(|socket| assert!(Claim::new(socket).unwrap().listen().unwrap().is_none())));
        assert!(!ends_after(|socket| std::mem::forget(UnixStream::connect(socket).unwrap())));
        assert!(!ends_after(|socket| UnixStream::connect(socket).unwrap().write_all(&[0, 0]).unwrap()));
    }

    /// A server with connections, which it has taken.
    fn served(count: usize) -> (testdir::TempDir, Server, Vec<UnixStream>) {
        let dir = testdir::TempDir::new();
        let socket = dir.path().join("socket");
        let mut server = server(Claim::new(&socket).unwrap().listen().unwrap().unwrap());
        let clients = (0..count).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        assert!(count == 0 || server.accept());
        (dir, server, clients)
    }

    fn shut_down(server: &mut Server, mut client: &UnixStream) {
        let mut request = Request::new();
        (request.service, request.method) = ("containerd.task.v2.Task".into(), "Shutdown".into());
        let body = request.write_to_bytes().unwrap();
        client.write_all(&Frame { stream: 1, kind: REQUEST, body }.encode().unwrap()).unwrap();
        server.serve_once(0);
        assert!(client.read(&mut [0; 64]).unwrap() > 0, "it is answered");
    }

    #[test]
    fn a_shim_stays_until_each_connection_has_seen_its_end() {
        let (_dir, mut server, mut clients) = served(3);
        shut_down(&mut server, &clients[0]);
        assert!(!server.is_over(), "a container may come by the others");
        shut_down(&mut server, &clients[2]);
        assert!(!server.is_over());
        drop(clients.remove(1));
        server.serve_once(0);
        assert!(server.is_over());
    }

    #[test]
    fn a_shim_knows_its_socket_without_the_bundle() {
        let dir = testdir::TempDir::new();
        let socket = dir.path().join("socket");
        let listener = Claim::new(&socket).unwrap().listen().unwrap().unwrap();
        assert_eq!(own_name(&listener), Some(socket.clone()));
        let mut server = server(listener);
        assert!(server.ends(own_name(&server.listener).as_deref()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_shim_stays_until_each_request_is_answered() {
        let (_dir, mut server, clients) = served(1);
        let request = server.service.begin();
        shut_down(&mut server, &clients[0]);
        assert!(!server.is_over());
        drop(request);
        assert!(server.is_over());
    }

    #[test]
    fn a_shim_stays_for_a_connection_that_is_to_come() {
        let (dir, mut server, clients) = served(1);
        let socket = dir.path().join("socket");
        assert!(Claim::new(&socket).unwrap().listen().unwrap().is_none());
        server.serve_once(0);
        shut_down(&mut server, &clients[0]);
        assert!(!server.is_over());
        assert!(Claim::new(&socket).unwrap().is_served());
        server.serve_once(0);
        assert!(!server.is_over(), "who only looks is not the one");
        let client = UnixStream::connect(&socket).unwrap();
        server.serve_once(0);
        shut_down(&mut server, &client);
        assert!(server.is_over());
    }
}
