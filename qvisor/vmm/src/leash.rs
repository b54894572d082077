//! The leash: a tiny child of the VMM that stands for the container on the host.
//!
//! Its pid is the one in `state` and in the pid file. It lies in the container's network namespace and control groups,
//! holds no capability and no descriptor but a socket to the VMM and the FIFO of its companions, and does four things:
//!
//! - Signals that are sent to it go on to the container's first process.
//! - When it is stopped or continued, the VMM sees it and pauses or resumes the container ([`Leash::watch`]).
//! - When the VMM dies, it dies, as soon as its [`companions`](crate::companions) have; when it is killed, the VMM ends the
//!   sandbox.
//! - At the container's end the VMM sends it the wait status. The VMM ends first, so that the leash becomes a child of
//!   the subreaper above, which learns the container's status from the leash's exit.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::companions::Companions;
use crate::footprint;
use crate::jail::own_id;
use crate::lock::{Mutex, Rank};
use crate::process::{self, ChildEvent, SignalFd};

/// VMM to leash: the container ended; a wait status follows.
const END: u8 = b'E';
/// VMM to leash: stop yourself.
const STOP: u8 = b'S';
/// Leash to VMM: a signal came; its number follows.
const SIGNAL: u8 = b'F';
/// Leash to VMM: the terminal has a new size.
const RESIZED: u8 = b'W';

/// How long the leash may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A message: its kind, and a number.
type Message = [u8; 5];

fn message(kind: u8, value: i32) -> Message {
    let [a, b, c, d] = value.to_le_bytes();
    [kind, a, b, c, d]
}

fn value_of([_, a, b, c, d]: Message) -> i32 {
    i32::from_le_bytes([a, b, c, d])
}

/// News from the leash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// For the container's first process.
    Signal(i32),
    /// The terminal has a new size.
    Resized,
    /// It is gone.
    Gone,
}

/// The VMM's end of it.
#[derive(Debug)]
pub struct Leash {
    pid: i32,
    pidfd: OwnedFd,
    socket: UnixStream,
    /// Held while messages are written.
    writing: Mutex<()>,
    companions: Option<Companions>,
}

impl Leash {
    /// Forks it; `title`: the words that lists of the host's processes show; `leads_group`: it leads a process group of its
    /// own; `companions`: who is to end before it. Only before any thread is started; the caller's namespaces and control
    /// groups become the leash's.
    pub fn start(title: &[Vec<u8>], leads_group: bool, companions: Option<Companions>) -> io::Result<Self> {
        let seen = companions.as_ref().map(Companions::descriptor).transpose()?;
        let (ours, theirs) = UnixStream::pair()?;
        // A signal that comes before the leash looks is not lost.
        process::default_signal(libc::SIGCHLD);
        let vmm = process::id();
        let Some(pid) = process::fork()? else {
            drop(ours);
            process::set_title(title);
            if leads_group {
                process::lead_group();
            }
            live(theirs, vmm, seen)
        };
        let (pidfd, writing) = (process::pidfd(pid)?, Mutex::new(Rank::Leash, ()));
        Ok(Self { pid, pidfd, socket: ours, writing, companions })
    }

    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Readable when there is [`Leash::news`].
    #[must_use]
    pub fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// The next thing it tells; waits for it.
    #[must_use]
    pub fn news(&self) -> Option<News> {
        let mut message: Message = [0; 5];
        match (&self.socket).read_exact(&mut message) {
            Ok(()) => match message[0] {
                SIGNAL => Some(News::Signal(value_of(message))),
                RESIZED => Some(News::Resized),
                _ => None,
            },
            Err(_) => Some(News::Gone),
        }
    }

    fn send(&self, kind: u8, value: i32) -> io::Result<()> {
        let _writing = self.writing.lock();
        (&self.socket).write_all(&message(kind, value))
    }

    /// Stops it, as `kill -STOP` does.
    pub fn stop(&self) {
        // By itself: the VMM may have given up the right to stop it.
        let _ = self.send(STOP, 0);
    }

    /// Continues it; being of the same session is all that takes.
    pub fn resume(&self) {
        process::signal(self.pidfd.as_fd(), libc::SIGCONT);
    }

    /// Waits for its companions, as it does itself unless it was killed: then the caller's end is what is seen.
    pub fn outlive_companions(&self) {
        self.companions.iter().for_each(Companions::outlive);
    }

    /// Tells how the container ended, and waits until it is understood. The VMM ends at once afterwards.
    pub fn end(&self, status: i32) {
        self.resume();
        if self.send(END, status).is_err() {
            return;
        }
        let start = Instant::now();
        let _ = self.socket.set_read_timeout(Some(Duration::from_millis(50)));
        let mut message: Message = [0; 5];
        while start.elapsed() < PATIENCE {
            match (&self.socket).read(&mut message) {
                // It has said its last.
                Ok(0) => return,
                Ok(_) => {}
                // The leash may have been stopped again.
                Err(_) => self.resume(),
            }
        }
    }

    /// Takes the news of its having been stopped or continued, the last of several; does not wait.
    #[must_use]
    pub fn look(&self) -> Option<ChildEvent> {
        process::take_child_news(self.pid)
    }

    /// Calls `seen` whenever there may be news of it, and at last when it was killed; for a thread of its own. `seen`
    /// takes the news by [`Self::look`].
    pub fn watch(&self, mut seen: impl FnMut(ChildEvent)) {
        loop {
            let Some(event) = process::wait_child(self.pid) else { return };
            seen(event);
            if event == ChildEvent::Ended {
                return;
            }
        }
    }
}

/// The main function of the leash.
fn live(socket: UnixStream, vmm: i32, companions: Option<OwnedFd>) -> ! {
    process::set_name(c"dormouse-leash");
    // SAFETY: this process was just forked, and uses nothing of its parent's but these.
    let kept = unsafe { process::keep_some([Some(socket.into()), companions]) };
    let Ok([Some(socket), companions]) = kept else { process::exit_now(1) };
    let (socket, companions) = (UnixStream::from(socket), companions.map(Companions::inherited));
    process::close_streams();
    let all: Vec<i32> = (1..=crate::signals::SIGNAL_MAX).filter(|signal| !unforwarded(*signal)).collect();
    let Ok(signals) = SignalFd::new(&all) else { process::exit_now(1) };
    process::default_signal(libc::SIGCONT);
    // The VMM's end closes the socket, and continues this process if it is stopped and the VMM's user id at that time may
    // signal it.
    process::be_signalled_by(own_id(vmm));
    process::drop_privileges();
    if !process::go_on_without_parent(vmm) {
        process::exit_now(1);
    }
    footprint::trim();
    loop {
        let [from_vmm, signalled] = process::wait_readable([socket.as_raw_fd(), signals.as_raw_fd()], -1);
        while signalled && let Some(arrived) = signals.next() {
            let (kind, value) = match arrived.signal {
                libc::SIGWINCH if arrived.from_kernel => (RESIZED, 0),
                // The terminal hangs up: the sandbox's kernel sees that by itself.
                _ if arrived.from_kernel => continue,
                signal => (SIGNAL, signal),
            };
            let _ = (&socket).write_all(&message(kind, value));
        }
        if from_vmm {
            obey(&socket, companions.as_ref());
        }
    }
}

/// Signals that act on the leash as on any process.
fn unforwarded(signal: i32) -> bool {
    matches!(signal, libc::SIGKILL | libc::SIGSTOP | libc::SIGCONT)
}

fn obey(mut socket: &UnixStream, companions: Option<&Companions>) {
    let mut order: Message = [0; 5];
    if socket.read_exact(&mut order).is_err() {
        // The VMM is on its way out without a word.
        companions.into_iter().for_each(Companions::outlive_killed);
        process::end_as(libc::SIGKILL);
    }
    match order[0] {
        STOP => process::stop_self(),
        END => {
            process::survive_parent();
            // This tells the VMM that it may go; then until it has gone, and with it what companions wait for.
            let _ = socket.shutdown(Shutdown::Write);
            let _ = socket.read_to_end(&mut Vec::new());
            companions.into_iter().for_each(Companions::outlive);
            process::end_as(value_of(order))
        }
        _ => {}
    }
}
