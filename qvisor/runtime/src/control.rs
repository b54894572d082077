//! Orders to a running sandbox: JSON lines over its control socket, and over the channel of its front end.

mod imaging;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use abi::limits::NO_LIMIT;
use abi::report::UsageFigures;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use vmm::checkpoint::{FileId, ImageTaken};
use vmm::directory::Directory;
use vmm::exec_relay::{ExecOrder, ExecPeer, ExecReport, Received};
use vmm::hibernate::stats::Stats;

use crate::reasons::Reasons;
use vmm::hibernate::{Hibernated, HomeState, Moved, Packed, Reap, Woken};
use vmm::jail::PROOF_USER;
use vmm::limits::ContainerLimits;
use vmm::{descriptor_passing, process};

pub use self::imaging::{Imaged, ImagingError, checkpoint};
use crate::status::{SandboxState, Status};

/// Name of the socket in a sandbox's state directory.
pub const SOCKET: &str = "control.sock";
/// The `type` of a line of events that tells of a process which was killed for lack of memory.
pub const OOM: &str = "oom";
/// Sent before an order to carry credentials; it changes nothing of the order.
const GREETING: &[u8] = b" ";
/// The word by which whoever asked for a checkpoint says that its files are safe.
pub(crate) const KEPT: &[u8] = b"kept\n";
/// Longest order in bytes.
pub(crate) const LINE_MAX: u64 = 4096;
/// Longest answer in bytes.
const ANSWER_MAX: u64 = 1 << 20;
/// How long a peer may take to accept a connection or to send its order, and an answer may take to come as a whole.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to find out whether anybody listens.
const DEAF_PATIENCE: Duration = Duration::from_millis(50);
/// How long a container may take to start.
const START_PATIENCE: Duration = Duration::from_secs(70);
/// How long its memory may take to be written or read.
const HIBERNATE_PATIENCE: Duration = Duration::from_secs(330);

/// The orders that a sandbox takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Order {
    /// A signal for the first process, for the terminal's foreground group, or for all processes. `SIGSTOP` hibernates a
    /// sandbox, or pauses it where that cannot be, and `SIGCONT` makes it go on.
    Kill {
        signal: i32,
        #[serde(default)]
        foreground: bool,
        #[serde(default)]
        all: bool,
    },
    /// The terminal has a new size.
    Winsize { rows: u16, columns: u16 },
    /// The sandbox's memory goes to its home. Answered once it is there.
    Hibernate,
    /// The sandbox's memory comes back. Answered once the sandbox goes on.
    Wake {
        #[serde(default)]
        reap: Option<Reap>,
    },
    /// Asks for the sandbox's state; the answer shows that the VMM is alive.
    State,
    /// Asks for figures of its memory, and for the number of its hibernations.
    Stats,
    /// Asks what keeps it awake, and what woke it last.
    Why,
    /// Pages go to memory or to the disk from now on, and those of a sleeper move there; `None`: nothing changes. Answered by where they are.
    Home { in_memory: Option<bool> },
    /// Asks for the processes in it. Wakes nobody.
    Processes,
    /// Asks what a container uses, as the sandbox's kernel counts it. Wakes nobody.
    Usage,
    /// Nothing of the sandbox runs until [`Order::Resume`]; its memory goes to its home if it was started so. Answered once it
    /// rests.
    Pause,
    /// The end of a pause. Answered once the sandbox goes on.
    Resume,
    /// Limits change. Answered once the kernel holds to that of memory, or refuses it.
    Update { limits: ContainerLimits },
    /// Asks for a line for each transition from now on, instead of an answer.
    Events {
        /// Only for processes that are killed for lack of memory.
        #[serde(default)]
        oom_only: bool,
    },
    /// The sandbox is written to four files that come with the line, which are empty: its kernel's memory, its pages, the table of these,
    /// and the content of files without a name. Answered
    /// once they are written. Then the sandbox ends as if it were killed, or (`leave_running`) is as it was before. Refused
    /// while there are connections, if `refuses_connections`. With `leave_running` and `copies_files` an empty answer comes before,
    /// upon which the asker has the time to copy the sandbox's files; it says [`KEPT`] once it has, and the sandbox may go on.
    /// Pages that another image has are left to it: `parent` names the files of its pages, and the tables of those come behind the four.
    Checkpoint {
        #[serde(default)]
        leave_running: bool,
        #[serde(default)]
        refuses_connections: bool,
        #[serde(default)]
        copies_files: bool,
        /// The files are in memory, and the asker seals what comes to the disk.
        #[serde(default)]
        seals: bool,
        #[serde(default)]
        parent: Vec<FileId>,
    },
    /// The front end has done its part of a container's creation.
    Proceed,
    /// The container's first process begins. Answered once it does.
    Start,
    /// A container that began with a snapshot, and was not started, is to rest once it is: only what comes in by exec runs, until
    /// [`Self::GoOn`].
    RestAtStart,
    /// The container goes on that rested at its start.
    GoOn,
    /// The front end goes, and the container stays.
    Release,
    /// Another container begins in this sandbox, a pod's: `len` bytes of records follow the line. With it come the listener
    /// of the container's own control socket, its streams, and its views of the host's files. The connection stays open for
    /// the container's life: [`Report`]s come back, and orders go to the container. When it is closed the container ends.
    Create {
        len: u32,
        /// It goes on in a sandbox that begins with a snapshot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restores: Option<Restores>,
    },
    /// A further process runs: `len` bytes of records follow the line, and its streams come with it. Answered by
    /// [`ExecReport`]s; `Kill` and `Winsize` on the same connection are for that process.
    Exec {
        len: u32,
        /// Even in a sandbox that is paused, once that goes on.
        #[serde(default)]
        paused: bool,
        /// A hook of a container that has not been started.
        #[serde(default)]
        hook: bool,
        /// Nobody would see more of it than its exit code and output: where [`vmm::hibernate::ExecProbe`] says so, a sandbox that
        /// is hibernated answers for it.
        #[serde(default)]
        probe: bool,
    },
}

/// The answer to an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub error: Option<String>,
    #[serde(default)]
    pub status: Option<Status>,
    /// Figures of a hibernation or a wake.
    #[serde(default)]
    pub figures: Option<Figures>,
    #[serde(default)]
    pub sandbox_state: Option<SandboxState>,
    /// Why its last hibernation failed.
    #[serde(default)]
    pub hibernate_error: Option<String>,
    #[serde(default)]
    pub stats: Option<Box<Stats>>,
    /// The reasons why the sandbox is awake, and the last wake event.
    #[serde(default)]
    pub reasons: Option<Box<Reasons>>,
}

/// The figures of an order that was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Figures {
    Hibernated(Hibernated),
    Woken(Woken),
    Packed(Packed),
    Moved(Moved),
    Home(HomeState),
    Usage(ContainerUsage),
    Checkpoint(Box<ImageTaken>),
    /// Lines as [`abi::report::Report::Processes`] has them.
    Processes(String),
}

/// Memory and processor time of a container, as the sandbox's kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerUsage {
    /// That counts for its limit and is in memory; of its programs, and of the kernel for it.
    pub memory_bytes: u64,
    pub frames_bytes: u64,
    pub kernel_bytes: u64,
    /// Of its programs' memory, on disk.
    pub hibernated_bytes: u64,
    /// `None`: it has none of its own.
    pub limit_bytes: Option<u64>,
    pub peak_bytes: u64,
    /// How often there was no memory, and how many of its processes were killed for that.
    pub out_of_memory: u64,
    pub oom_kills: u64,
    pub tasks: u64,
    /// Processor time.
    pub user_ns: u64,
    pub system_ns: u64,
    /// Periods of the limit in which it had something to do, those in which it had to wait, and for how long.
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_ns: u64,
}

impl From<UsageFigures> for ContainerUsage {
    fn from(figures: UsageFigures) -> Self {
        Self {
            memory_bytes: figures.memory_bytes,
            frames_bytes: figures.frames_bytes,
            kernel_bytes: figures.kernel_bytes,
            hibernated_bytes: 0,
            limit_bytes: Some(figures.limit_bytes).filter(|limit| *limit != NO_LIMIT),
            peak_bytes: figures.peak_bytes,
            out_of_memory: figures.out_of_memory,
            oom_kills: figures.oom_kills,
            tasks: figures.tasks,
            user_ns: figures.user_ns,
            system_ns: figures.system_ns,
            periods: figures.periods,
            throttled_periods: figures.throttled_periods,
            throttled_ns: figures.throttled_ns,
        }
    }
}

/// A further container of a pod that begins with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restores {
    /// By which the kernel knows it.
    pub number: u64,
    /// If the pod has gone on, which had it or has had it, it begins as any other does.
    pub or_begins: bool,
}

/// Messages of the VMM to its front end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "lowercase")]
pub enum Report {
    /// A container's namespaces and control groups are there, and this is its leash.
    Prepared { pid: i32 },
    /// A container waits for its start. In a pod its kernel knows it by this number.
    Created {
        #[serde(default)]
        number: u64,
    },
    /// The VMM lives on without its front end.
    Released,
    /// The first process runs.
    Started,
    /// The sandbox ended with this wait status.
    Exited { status: i32 },
    /// The leash of a pod's further container is to be stopped, or to go on: somebody has asked for that at the control socket.
    Leash { stops: bool },
    /// It could not start, or broke; with the exit code that a shell would give.
    Failed { message: String, code: Option<u8> },
}

/// Writes one line; the other side may be gone.
pub fn send<T: Serialize>(mut stream: &UnixStream, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Writes one line at once, or not at all; false: the other side is gone, or does not read.
pub fn send_now<T: Serialize>(stream: &UnixStream, value: &T) -> bool {
    let Ok(mut line) = serde_json::to_vec(value) else { return false };
    line.push(b'\n');
    process::send_now(stream, &line)
}

/// The next order; `None` at the end of the stream, an error when it is none.
pub fn read_order(from: &mut impl BufRead) -> io::Result<Option<Order>> {
    let mut line = Vec::new();
    if from.take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    parse(&line).map(Some)
}

/// The order that a line is.
pub fn parse(line: &[u8]) -> io::Result<Order> {
    Ok(serde_json::from_slice(line)?)
}

/// The next order of a stream whose sender waits for an answer before it says more.
pub fn receive(stream: &UnixStream) -> io::Result<Option<Order>> {
    read_order(&mut BufReader::with_capacity(256, stream))
}

/// Makes a sandbox's control socket. Only its user can connect, and each peer's credentials come with what it sends. Who
/// accepts waits for nobody: a peer may be gone again.
pub fn listen(sandbox: &Directory) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(sandbox.path_by_descriptor().join(SOCKET))?;
    listener.set_nonblocking(true)?;
    descriptor_passing::ask_for_senders(listener.as_fd())?;
    Ok(listener)
}

/// Connects to the sandbox whose directory this is. The listener must have the caller's credentials: nobody else is
/// told anything.
pub fn connect(sandbox: &Directory) -> io::Result<UnixStream> {
    connect_until(sandbox, Instant::now() + PATIENCE)
}

/// Whether nobody listens at its socket any more.
pub(crate) fn is_deaf(sandbox: &Directory) -> bool {
    let connected = connect_until(sandbox, Instant::now() + DEAF_PATIENCE);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects to a Unix socket that this user listens to, and nobody else. The path is short enough for an address.
pub fn dial(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // unix(7): where the queue of those who want to be accepted is full, connecting waits as sending does.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left_until(deadline)?))?;
    rustix::io::retry_on_intr(|| net::connect(&socket, &address)).map_err(in_time)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, None)?;
    let stream = UnixStream::from(socket);
    let (user, listener) = (process::effective_user(), process::peer_user(&stream)?);
    if listener != user || !process::is_one_user(user) {
        let why = format!("its control socket is user {listener}'s, not user {user}'s");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(stream)
}

fn connect_until(sandbox: &Directory, deadline: Instant) -> io::Result<UnixStream> {
    // This path leads to the directory that was checked.
    let stream = dial(&sandbox.path_by_descriptor().join(SOCKET), deadline)?;
    if process::effective_user() == 0 {
        // A VMM whose ids are mapped cannot recognise the host's root. It recognises an id that root alone can claim;
        // on a host where root cannot claim it, ids cannot be mapped either.
        let _ = descriptor_passing::send_as(stream.as_fd(), PROOF_USER, GREETING);
    }
    Ok(stream)
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// Its VMM cannot be reached, or does not answer in time.
    #[error(transparent)]
    Connection(io::Error),
    #[error("it ended meanwhile")]
    Ended,
    /// Nobody listens at its socket any more.
    #[error("it ended meanwhile")]
    Gone,
    /// Its VMM says why.
    #[error("{0}")]
    Refused(String),
}

impl From<io::Error> for OrderError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // unix(7): who is not accepted in time waits, and is not refused.
            io::ErrorKind::ConnectionRefused => Self::Gone,
            _ => Self::Connection(error),
        }
    }
}

/// Sends an order that has records and descriptors.
pub fn ask(
    socket: &UnixStream,
    order: Order,
    records: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut line = serde_json::to_vec(&order)?;
    line.push(b'\n');
    let sent = descriptor_passing::send(socket.as_fd(), descriptors, &line, 0)?;
    // A peer that stops reading sends its reason as an answer, which is what counts then.
    let rest = [line.get(sent..).unwrap_or_default(), records].concat();
    let _ = (&mut &*socket).write_all(&rest);
    Ok(())
}

/// Asks the sandbox whose directory this is for its events; they come as lines until its end.
pub fn events(sandbox: &Directory, oom_only: bool) -> io::Result<UnixStream> {
    let stream = connect(sandbox)?;
    send(&stream, &Order::Events { oom_only })?;
    Ok(stream)
}

/// The line that comes until the deadline, all of it; or what came before the end of the stream.
fn read_answer(mut stream: &UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut line, mut part) = (Vec::new(), [0; 4096]);
    let most = usize::try_from(ANSWER_MAX).unwrap_or(usize::MAX);
    while line.last() != Some(&b'\n') && line.len() < most {
        stream.set_read_timeout(Some(left_until(deadline)?))?;
        match stream.read(&mut part).map_err(in_time) {
            Ok(0) => break,
            Ok(len) => line.extend_from_slice(part.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

/// How long is left; an error if nothing is.
fn left_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it does not answer")
}

/// The error of a socket with a time-out, which says that it would have to wait.
fn in_time(error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    if error.kind() == io::ErrorKind::WouldBlock { late() } else { error }
}

/// Gives an order to the sandbox whose directory this is; an answer that says no is an error.
pub fn order(sandbox: &Directory, order: Order) -> Result<Answer, OrderError> {
    let patience = match order {
        Order::Start => START_PATIENCE,
        Order::Hibernate | Order::Wake { .. } | Order::Pause | Order::Resume => HIBERNATE_PATIENCE,
        _ => PATIENCE,
    };
    let stream = connect(sandbox)?;
    answered(&stream, order, Instant::now() + patience)
}

/// Gives an order as [`order`] does, and waits until the deadline and no longer.
pub fn order_until(sandbox: &Directory, order: Order, deadline: Instant) -> Result<Answer, OrderError> {
    answered(&connect_until(sandbox, deadline)?, order, deadline)
}

fn answered(stream: &UnixStream, order: Order, deadline: Instant) -> Result<Answer, OrderError> {
    send(stream, &order)?;
    answer(stream, deadline)
}

/// The answer to an order that was given.
fn answer(stream: &UnixStream, deadline: Instant) -> Result<Answer, OrderError> {
    let line = read_answer(stream, deadline)?;
    if line.is_empty() {
        return Err(OrderError::Ended);
    }
    let answer: Answer = serde_json::from_slice(&line).map_err(io::Error::from)?;
    match answer.error {
        Some(why) => Err(OrderError::Refused(why)),
        None => Ok(answer),
    }
}

/// How often one connection is read from at a time.
const READS_MAX: usize = 8;

/// A connection over which values come as lines of JSON, without waiting for them.
#[derive(Debug)]
pub struct Lines {
    stream: UnixStream,
    /// Bytes received that are no whole line yet.
    text: Vec<u8>,
}

impl Lines {
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, text: Vec::new() }
    }

    /// The connection itself.
    #[must_use]
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Takes the lines that have come, or as many as are good at a time; and whether the other side is gone, or sends what
    /// is no line.
    pub fn receive(&mut self) -> (Vec<Vec<u8>>, bool) {
        let most = usize::try_from(LINE_MAX).unwrap_or(usize::MAX);
        let (mut bytes, mut lines) = ([0; 512], Vec::new());
        // Bytes beyond this are read the next time.
        for _ in 0..READS_MAX {
            let Some(got) = process::receive_now(&self.stream, &mut bytes) else { break };
            self.text.extend(bytes.iter().take(got));
            while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                lines.push(self.text.drain(..=end).collect());
            }
            if got == 0 || self.text.len() > most {
                return (lines, true);
            }
        }
        (lines, false)
    }
}

impl AsRawFd for Lines {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// A connection whose [`Order::Exec`] was taken: orders for the process come as lines, and reports go back.
#[derive(Debug)]
pub struct ExecLine(Lines);

impl ExecLine {
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        Self(Lines::new(stream))
    }

    /// The connection of a former VMM, which has read so much that is no whole line.
    #[must_use]
    pub fn of_former(stream: UnixStream, unread: Vec<u8>) -> Self {
        Self(Lines { stream, text: unread })
    }
}

impl ExecPeer for ExecLine {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.stream().as_fd()
    }

    fn report(&self, report: &ExecReport) {
        send_now(self.0.stream(), report);
    }

    fn refuse(&self, why: String) {
        refuse(self.0.stream(), why);
    }

    fn unread(&self) -> &[u8] {
        &self.0.text
    }

    fn receive(&mut self) -> Received {
        let (lines, is_over) = self.0.receive();
        let orders = lines.iter().filter_map(|line| parse(line).ok().and_then(exec_order)).collect();
        Received { orders, is_over }
    }
}

/// The order as the exec relay takes it; `None`: it is not about a process.
fn exec_order(order: Order) -> Option<ExecOrder> {
    match order {
        Order::Kill { signal, foreground, .. } => Some(ExecOrder::Signal { number: signal, foreground }),
        Order::Winsize { rows, columns } => Some(ExecOrder::Resize { rows, columns }),
        _ => None,
    }
}

/// Answers that an order is not carried out, and why; the other side may be gone.
pub fn refuse(stream: &UnixStream, why: String) {
    send_now(stream, &Answer { error: Some(why), ..Answer::default() });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_for_a_process_come_line_by_line() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let mut line = ExecLine::new(theirs);
        assert_eq!(line.receive(), Received::default());
        send(&ours, &Order::Kill { signal: 15, foreground: true, all: false }).unwrap();
        send(&ours, &Order::State).unwrap();
        (&ours).write_all(b"no order\n{\"op\":\"winsize\",").unwrap();
        let signal = ExecOrder::Signal { number: 15, foreground: true };
        assert_eq!(line.receive(), Received { orders: vec![signal], is_over: false });
        (&ours).write_all(b"\"rows\":2,\"columns\":3}\n").unwrap();
        let resize = ExecOrder::Resize { rows: 2, columns: 3 };
        assert_eq!(line.receive(), Received { orders: vec![resize], is_over: false });
        drop(ours);
        assert_eq!(line.receive(), Received { orders: Vec::new(), is_over: true });
    }

    #[test]
    fn a_line_without_an_end_is_the_end() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let mut line = ExecLine::new(theirs);
        (&ours).write_all(&[b'x'; 6000]).unwrap();
        while !line.receive().is_over {}
        assert!(line.0.text.len() <= 6000);
    }
}
