//! Orders to a running sandbox: JSON lines over its control socket, and over the channel of its front end.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use abi::hostcall::{EVENT_SIGNAL, EVENT_WINSIZE, Event};
use serde::{Deserialize, Serialize};

use crate::process;

/// Name of the socket in a sandbox's state directory.
pub const SOCKET: &str = "control.sock";
/// Longest order in bytes.
const LINE_MAX: u64 = 4096;
/// How long a peer may take to say what it wants, and an answer may take to come.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a sandbox can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Order {
    /// A signal for the first process, or for the terminal's foreground group.
    Kill {
        signal: i32,
        #[serde(default)]
        foreground: bool,
    },
    /// The terminal has a new size.
    Winsize { rows: u16, columns: u16 },
    /// Is it alive?
    State,
}

/// The answer to an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub error: Option<String>,
}

/// What the VMM tells its front end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "lowercase")]
pub enum Report {
    /// The first process runs.
    Started,
    /// The sandbox ended with this wait status.
    Exited { status: i32 },
    /// It could not start, or broke.
    Failed { message: String },
}

/// Writes one line; the other side may be gone.
pub fn send<T: Serialize>(mut stream: &UnixStream, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// What an order comes to.
pub trait Target: Send + Sync {
    /// Hands an event to the kernel; must not wait.
    fn post(&self, event: Event);
    /// Ends the sandbox at once with this wait status.
    fn end(&self, status: i32);
}

fn obey(order: Order, target: &dyn Target) -> Result<(), String> {
    match order {
        Order::Kill { signal: libc::SIGKILL, .. } => target.end(libc::SIGKILL),
        Order::Kill { signal, foreground } if (1..=crate::signals::SIGNAL_MAX).contains(&signal) => {
            let (flags, value) = (u32::from(foreground), i64::from(signal));
            target.post(Event { kind: EVENT_SIGNAL, flags, token: 0, value });
        }
        Order::Kill { signal, .. } => return Err(format!("{signal} is not a signal")),
        Order::Winsize { rows, columns } => {
            let value = i64::from(rows) << 16 | i64::from(columns);
            target.post(Event { kind: EVENT_WINSIZE, flags: 0, token: 0, value });
        }
        Order::State => {}
    }
    Ok(())
}

/// Serves the channel and the socket until the channel ends (the front end is gone).
pub fn serve(channel: &UnixStream, listener: &UnixListener, target: &dyn Target) {
    let mut orders = BufReader::new(channel);
    loop {
        let [from_front, from_socket] =
            process::wait_readable([channel.as_raw_fd(), listener.as_raw_fd()], -1);
        if from_front {
            // The front end writes whole lines, so one that began will end.
            loop {
                match read_order(&mut orders) {
                    Ok(Some(order)) => drop(obey(order, target)),
                    Ok(None) => return,
                    Err(_) => {}
                }
                if orders.buffer().is_empty() {
                    break;
                }
            }
        }
        if from_socket && let Ok((peer, _)) = listener.accept() {
            let _ = serve_peer(&peer, target);
        }
    }
}

/// One connection, one order: peers come one after the other, and none can hold up the sandbox itself.
fn serve_peer(peer: &UnixStream, target: &dyn Target) -> io::Result<()> {
    peer.set_read_timeout(Some(PATIENCE))?;
    peer.set_write_timeout(Some(PATIENCE))?;
    let user = process::peer_user(peer)?;
    // The host's root is nobody we know once the VMM is in a user namespace of its own. Whoever else is outside of it
    // cannot come here: the socket's directory is closed to all but its owner.
    if user != 0 && user != process::started_by() && user != process::OVERFLOW_USER {
        return send(peer, &Answer { error: Some("permission denied".into()) });
    }
    let result = match read_order(&mut BufReader::new(peer.take(LINE_MAX))) {
        Ok(Some(order @ Order::Kill { signal: libc::SIGKILL, .. })) => {
            // Nobody is left to answer afterwards.
            send(peer, &Answer { error: None })?;
            return obey(order, target).map_err(io::Error::other);
        }
        Ok(Some(order)) => obey(order, target),
        Ok(None) => return Ok(()),
        Err(error) => Err(error.to_string()),
    };
    send(peer, &Answer { error: result.err() })
}

fn read_order(from: &mut impl BufRead) -> io::Result<Option<Order>> {
    let mut line = Vec::new();
    if from.take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
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

/// Gives an order to the sandbox whose state directory this is.
pub fn order(dir: &Path, order: Order) -> io::Result<()> {
    let dir = crate::mounts::open_directory(dir)?;
    let stream = UnixStream::connect(short_path(&dir, SOCKET))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    send(&stream, &order)?;
    let mut line = Vec::new();
    BufReader::new((&stream).take(LINE_MAX)).read_until(b'\n', &mut line)?;
    let answer: Answer = serde_json::from_slice(&line)?;
    answer.error.map_or(Ok(()), |error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::hostcall::testing::TempDir;

    #[derive(Default)]
    struct Seen {
        events: Mutex<Vec<Event>>,
        ended: Mutex<Option<i32>>,
    }

    impl Target for Seen {
        fn post(&self, event: Event) {
            self.events.lock().unwrap().push(event);
        }

        fn end(&self, status: i32) {
            *self.ended.lock().unwrap() = Some(status);
        }
    }

    #[test]
    fn orders_become_events() {
        let dir = TempDir::new();
        let listener = listen(dir.path()).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let seen = Seen::default();
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&theirs, &listener, &seen));
            order(dir.path(), Order::Kill { signal: 15, foreground: false }).unwrap();
            order(dir.path(), Order::State).unwrap();
            assert!(order(dir.path(), Order::Kill { signal: 99, foreground: false }).is_err());
            for garbage in ["\n", "{}\n", "x", "{\"op\":\"kill\",\"signal\":1e99}\n"] {
                let stream = UnixStream::connect(dir.path().join(SOCKET)).unwrap();
                (&stream).write_all(garbage.as_bytes()).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            }
            order(dir.path(), Order::Kill { signal: 9, foreground: false }).unwrap();
            send(&ours, &Order::Winsize { rows: 24, columns: 80 }).unwrap();
            send(&ours, &Order::Kill { signal: 2, foreground: true }).unwrap();
            ours.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let events = seen.events.lock().unwrap();
        let signal = |value, flags| Event { kind: EVENT_SIGNAL, flags, token: 0, value };
        assert_eq!(events[0], signal(15, 0));
        assert_eq!(events[1], Event { kind: EVENT_WINSIZE, flags: 0, token: 0, value: 24 << 16 | 80 });
        assert_eq!((events[2], events.len()), (signal(2, 1), 3));
        assert_eq!(*seen.ended.lock().unwrap(), Some(libc::SIGKILL));
    }
}
