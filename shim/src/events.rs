//! Events for containerd: in their order, and again if it is away for a while, as when it is restarted.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::shim::events::ForwardRequest;
use containerd_shim_protos::ttrpc::{Request, Response};

use crate::log;
use crate::thread;
use crate::time;
use crate::ttrpc::frame::{Frame, Inbox, REQUEST};

const SERVICE: &str = "containerd.services.events.ttrpc.v1.Events";
/// How long containerd may take to accept an event.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an event is tried again.
const AWAY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);
/// Events that wait at most; then the oldest go.
const WAITING_MAX: usize = 1024;

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    Create,
    Start,
    ExecAdded,
    ExecStarted,
    Exit,
    Oom,
    Paused,
    Resumed,
    Delete,
}

impl Topic {
    /// The topic, and the type of the message.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Create => ("/tasks/create", "TaskCreate"),
            Self::Start => ("/tasks/start", "TaskStart"),
            Self::ExecAdded => ("/tasks/exec-added", "TaskExecAdded"),
            Self::ExecStarted => ("/tasks/exec-started", "TaskExecStarted"),
            Self::Exit => ("/tasks/exit", "TaskExit"),
            Self::Oom => ("/tasks/oom", "TaskOOM"),
            Self::Paused => ("/tasks/paused", "TaskPaused"),
            Self::Resumed => ("/tasks/resumed", "TaskResumed"),
            Self::Delete => ("/tasks/delete", "TaskDelete"),
        }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<(Instant, Vec<u8>)>,
    /// A thread sends them.
    is_sending: bool,
    connection: Option<UnixStream>,
    stream: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Publisher {
    address: String,
    namespace: String,
    waiting: Arc<Mutex<Waiting>>,
}

impl Publisher {
    /// `address`: of containerd's ttrpc socket.
    #[must_use]
    pub fn new(address: &str, namespace: &str) -> Self {
        let address = address.strip_prefix("unix://").unwrap_or(address).to_owned();
        Self { address, namespace: namespace.to_owned(), waiting: Arc::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an event; does not wait for it.
    pub fn publish<M: Message>(&self, topic: Topic, event: &M) {
        let (topic, kind) = topic.names();
        let Ok(value) = event.write_to_bytes() else { return };
        let any = Any { type_url: format!("containerd.events.{kind}"), value, ..Any::default() };
        let mut envelope = Envelope::new();
        envelope.timestamp = MessageField::some(time::now());
        envelope.namespace.clone_from(&self.namespace);
        topic.clone_into(&mut envelope.topic);
        envelope.event = MessageField::some(any);
        let mut forward = ForwardRequest::new();
        forward.envelope = MessageField::some(envelope);
        let Ok(payload) = forward.write_to_bytes() else { return };
        let mut waiting = self.waiting();
        if waiting.events.len() >= WAITING_MAX {
            waiting.events.pop_front();
        }
        waiting.events.push_back((Instant::now(), payload));
        if !waiting.is_sending {
            let publisher = self.clone();
            waiting.is_sending = thread::start("events", move || publisher.send_all());
        }
    }

    /// Waits until the events are sent, or for a moment.
    pub fn flush(&self) {
        let start = Instant::now();
        while self.waiting().is_sending && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn send_all(&self) {
        loop {
            let mut waiting = self.waiting();
            let Some((since, payload)) = waiting.events.front().cloned() else {
                waiting.is_sending = false;
                return;
            };
            let connection = waiting.connection.take();
            waiting.stream = waiting.stream.wrapping_add(2) | 1;
            let stream = waiting.stream;
            drop(waiting);
            let was_connected = connection.is_some();
            match self.send(connection, stream, payload) {
                Ok(connection) => {
                    let mut waiting = self.waiting();
                    waiting.connection = Some(connection);
                    waiting.events.pop_front();
                }
                // The connection of a containerd that has gone.
                Err(_) if was_connected => {}
                Err(error) if since.elapsed() > AWAY => {
                    log::note(format_args!(
                        "cannot send an event to {}: {error}; it is dropped",
                        self.address
                    ));
                    self.waiting().events.pop_front();
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Sends one, and waits for the answer, whatever that is.
    fn send(&self, connection: Option<UnixStream>, stream: u32, payload: Vec<u8>) -> io::Result<UnixStream> {
        let mut connection = connection.map_or_else(|| UnixStream::connect(&self.address), Ok)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        let mut request = Request::new();
        SERVICE.clone_into(&mut request.service);
        "Forward".clone_into(&mut request.method);
        request.payload = payload;
        let body = request.write_to_bytes().map_err(io::Error::other)?;
        let frame = Frame { stream, kind: REQUEST, body };
        connection.write_all(&frame.encode().ok_or(io::ErrorKind::InvalidData)?)?;
        let (mut inbox, mut bytes) = (Inbox::default(), [0; 512]);
        loop {
            while let Some(frame) = inbox.next().map_err(|_| io::ErrorKind::InvalidData)? {
                if frame.stream == stream {
                    report(&frame.body);
                    return Ok(connection);
                }
            }
            match connection.read(&mut bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => inbox.extend(bytes.get(..got).unwrap_or_default()),
            }
        }
    }
}

/// An event that containerd refuses is not sent again.
fn report(answer: &[u8]) {
    let response = Response::parse_from_bytes(answer).unwrap_or_default();
    let status = response.status.unwrap_or_default();
    if status.code.value() != 0 {
        log::note(format_args!("containerd refuses an event: {}", status.message));
    }
}
