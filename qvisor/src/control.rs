//! Orders to a running sandbox: JSON lines over its control socket, and over the channel of its front end.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hibernate::{Hibernated, Woken};
use crate::process;
use crate::state::Status;

/// Name of the socket in a sandbox's state directory.
pub const SOCKET: &str = "control.sock";
/// Longest order in bytes.
const LINE_MAX: u64 = 4096;
/// How long a peer may take to say what it wants, and an answer may take to come.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a container may take to start.
const START_PATIENCE: Duration = Duration::from_secs(70);
/// How long its memory may take to be written or read.
const HIBERNATE_PATIENCE: Duration = Duration::from_secs(330);

/// What a sandbox can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Order {
    /// A signal for the first process, for the terminal's foreground group, or for all processes. In a container
    /// `SIGSTOP` and `SIGCONT` pause and resume it.
    Kill {
        signal: i32,
        #[serde(default)]
        foreground: bool,
        #[serde(default)]
        all: bool,
    },
    /// The terminal has a new size.
    Winsize { rows: u16, columns: u16 },
    /// Its memory goes to its home. Answered once it is there.
    Hibernate,
    /// It comes back. Answered once the sandbox goes on.
    Wake {
        #[serde(default)]
        reap: Option<bool>,
    },
    /// How is it? And is it alive?
    State,
    /// The front end has done its part of a container's creation.
    Proceed,
    /// The container's first process begins. Answered once it does.
    Start,
    /// The front end goes, and the container stays.
    Release,
}

/// The answer to an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub error: Option<String>,
    #[serde(default)]
    pub status: Option<Status>,
    /// What a hibernation or a wake came to.
    #[serde(default)]
    pub figures: Option<Figures>,
}

/// What an order came to, in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Figures {
    Hibernated(Hibernated),
    Woken(Woken),
}

/// What the VMM tells its front end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "lowercase")]
pub enum Report {
    /// A container's namespaces and control groups are there, and this is its leash.
    Prepared { pid: i32 },
    /// A container waits for its start.
    Created,
    /// The VMM lives on without its front end.
    Released,
    /// The first process runs.
    Started,
    /// The sandbox ended with this wait status.
    Exited { status: i32 },
    /// It could not start, or broke; with the exit code that a shell would give.
    Failed { message: String, code: Option<u8> },
}

/// Writes one line; the other side may be gone.
pub fn send<T: Serialize>(mut stream: &UnixStream, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// What an order comes to.
pub trait Target {
    /// Carries it out.
    fn answer(&self, order: Order) -> Answer;
    /// The peer has got the answer.
    fn answered(&self);
}

/// One connection, one order: peers come one after the other, and none can hold up the sandbox itself.
pub fn serve_peer(peer: &UnixStream, target: &dyn Target) -> io::Result<()> {
    peer.set_read_timeout(Some(PATIENCE))?;
    peer.set_write_timeout(Some(PATIENCE))?;
    let user = process::peer_user(peer)?;
    // The host's root is nobody we know once the VMM is in a user namespace of its own. Whoever else is outside of it
    // cannot come here: the socket's directory is closed to all but its owner.
    if user != 0 && user != process::started_by() && user != process::OVERFLOW_USER {
        return send(peer, &Answer { error: Some("permission denied".into()), ..Answer::default() });
    }
    let answer = match read_order(&mut BufReader::new(peer.take(LINE_MAX))) {
        Ok(Some(order @ Order::Kill { signal: libc::SIGKILL, .. })) => {
            // Nobody is left to answer afterwards.
            send(peer, &Answer::default())?;
            target.answer(order)
        }
        Ok(Some(order)) => target.answer(order),
        Ok(None) => return Ok(()),
        Err(error) => Answer { error: Some(error.to_string()), ..Answer::default() },
    };
    let sent = send(peer, &answer);
    target.answered();
    sent
}

/// The next order; `None` at the end of the stream, an error when it is none.
pub fn read_order(from: &mut impl BufRead) -> io::Result<Option<Order>> {
    let mut line = Vec::new();
    if from.take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

/// The next order of a stream whose sender waits for an answer before it says more.
pub fn receive(stream: &UnixStream) -> io::Result<Option<Order>> {
    read_order(&mut BufReader::with_capacity(256, stream))
}

/// A path to `name` in `dir` that fits into a socket address however long `dir` is; `dir` must stay open meanwhile.
fn short_path(dir: &impl AsRawFd, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())
}

/// Makes a sandbox's control socket; only its user can connect.
pub fn listen(dir: &Path) -> io::Result<UnixListener> {
    let dir = crate::mounts::open_directory(dir)?;
    UnixListener::bind(short_path(&dir, SOCKET))
}

/// Gives an order to the sandbox whose state directory this is; an answer that says no is an error.
pub fn order(dir: &Path, order: Order) -> io::Result<Answer> {
    let dir = crate::mounts::open_directory(dir)?;
    let stream = UnixStream::connect(short_path(&dir, SOCKET))?;
    let patience = match order {
        Order::Start => START_PATIENCE,
        Order::Hibernate | Order::Wake { .. } => HIBERNATE_PATIENCE,
        _ => PATIENCE,
    };
    stream.set_read_timeout(Some(patience))?;
    send(&stream, &order)?;
    let mut line = Vec::new();
    BufReader::new((&stream).take(LINE_MAX)).read_until(b'\n', &mut line)?;
    let answer: Answer = serde_json::from_slice(&line)?;
    match answer.error {
        Some(error) => Err(io::Error::other(error)),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::hostcall::testing::TempDir;

    #[derive(Default)]
    struct Seen {
        orders: Mutex<Vec<Order>>,
        answered: Mutex<usize>,
    }

    impl Target for Seen {
        fn answer(&self, order: Order) -> Answer {
            self.orders.lock().unwrap().push(order);
            let refused = matches!(order, Order::Start).then(|| "no".to_owned());
            Answer { error: refused, status: Some(Status::Running), figures: None }
        }

        fn answered(&self) {
            *self.answered.lock().unwrap() += 1;
        }
    }

    #[test]
    fn orders_are_answered_and_garbage_is_survived() {
        let dir = TempDir::new();
        let listener = listen(dir.path()).unwrap();
        let seen = Seen::default();
        let kill = |signal| Order::Kill { signal, foreground: false, all: true };
        let garbage = ["\n", "{}\n", "x", "{\"op\":\"kill\",\"signal\":1e99}\n", "{\"op\":\"fly\"}\n"];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..4 + garbage.len() {
                    let (peer, _) = listener.accept().unwrap();
                    let _ = serve_peer(&peer, &seen);
                }
            });
            order(dir.path(), kill(15)).unwrap();
            assert_eq!(order(dir.path(), Order::State).unwrap().status, Some(Status::Running));
            assert_eq!(order(dir.path(), Order::Start).unwrap_err().to_string(), "no");
            for garbage in garbage {
                let stream = UnixStream::connect(dir.path().join(SOCKET)).unwrap();
                (&stream).write_all(garbage.as_bytes()).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            }
            order(dir.path(), kill(9)).unwrap();
        });
        assert_eq!(*seen.orders.lock().unwrap(), [kill(15), Order::State, Order::Start, kill(9)]);
        assert_eq!(*seen.answered.lock().unwrap(), 4 + garbage.len());
    }
}
