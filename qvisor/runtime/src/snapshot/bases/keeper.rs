//! The process that has a base: it gives descriptors of its files to whoever of its user connects, and waits for nobody.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use vmm::{descriptor_passing, footprint, process};

use super::{FILES, Held, HeldOf, milliseconds};
use crate::snapshot::socket::DigestSocket;

/// Orders to a keeper: to give its files, and to end.
pub(super) const TAKE: u8 = b't';
pub(super) const RELEASE: u8 = b'r';
/// The first letter of what it says to whoever has begun it: that it is ready, or why not.
const READY: u8 = b'+';
const FAILED: u8 = b'-';
/// How long whoever connects may take to say what it wants.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most that may take that time at once. Others wait in the socket's queue.
const PEERS_MAX: usize = 16;

/// A keeper that was forked, and has no files yet. Without them it ends with this.
pub(super) struct Keeper {
    channel: UnixStream,
}

impl Keeper {
    /// Forks one that listens at this socket once it has the files, and holds the lock from the beginning. This process has one thread.
    pub(super) fn fork(socket: DigestSocket, lock: File, of: &HeldOf) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let answer = serde_json::to_vec(of)?;
        if process::fork()?.is_none() {
            drop(ours);
            process::leave_session();
            process::close_streams();
            process::set_name(c"dormouse-base");
            // Its working directory would keep a file system mounted.
            let _ = std::env::set_current_dir("/");
            match take_files(&theirs) {
                Some(files) => keep(&Keeping { socket, _lock: lock, answer, files }, theirs),
                None => process::exit_now(1),
            }
        }
        Ok(Self { channel: ours })
    }

    /// Gives it the files, and waits until it can be asked for them.
    pub(super) fn begin(mut self, held: &Held) -> io::Result<()> {
        let files = [held.pages.as_fd(), held.table.as_fd(), held.index.as_fd()];
        descriptor_passing::send(self.channel.as_fd(), &files, &[READY], 0)?;
        let mut said = Vec::new();
        self.channel.read_to_end(&mut said)?;
        match said.split_first() {
            Some((&READY, _)) => Ok(()),
            Some((&FAILED, why)) => Err(io::Error::other(String::from_utf8_lossy(why).into_owned())),
            _ => Err(io::Error::other("its keeper ended before it was ready")),
        }
    }
}

/// The files from whoever has forked this process; `None`: it has ended without any.
fn take_files(channel: &UnixStream) -> Option<[OwnedFd; FILES]> {
    let _ = process::wait_readable([channel.as_raw_fd()], -1);
    let (mut byte, mut files) = ([0], Vec::new());
    descriptor_passing::receive_now(channel, &mut byte, &mut files)?;
    files.try_into().ok()
}

/// All that a keeper has.
pub(super) struct Keeping {
    socket: DigestSocket,
    _lock: File,
    answer: Vec<u8>,
    files: [OwnedFd; FILES],
}

#[cfg(test)]
impl Keeping {
    pub(super) fn new(socket: DigestSocket, lock: File, of: &HeldOf, held: &Held) -> io::Result<Self> {
        let [pages, table, index] = [&held.pages, &held.table, &held.index].map(|file| file.try_clone());
        let files = [pages?, table?, index?].map(OwnedFd::from);
        Ok(Self { socket, _lock: lock, answer: serde_json::to_vec(of)?, files })
    }
}

/// Answers whoever connects, for ever.
fn keep(keeping: &Keeping, mut starter: UnixStream) -> ! {
    let listener = match keeping.socket.listen() {
        Ok(listener) => listener,
        Err(error) => {
            let _ = starter.write_all(format!("{}{error}", char::from(FAILED)).as_bytes());
            process::exit_now(1)
        }
    };
    let is_heard = starter.write_all(&[READY]).is_ok();
    drop(starter);
    if !is_heard {
        // Whoever wanted it has been killed.
        keeping.socket.remove();
        process::exit_now(1);
    }
    let mut peers = Peers::default();
    loop {
        if peers.0.is_empty() {
            // It may wait for days.
            footprint::trim();
        }
        peers.serve(keeping, &listener, -1);
    }
}

/// Those who have connected and not said yet what they want, each with the time until which it may.
#[derive(Default)]
pub(super) struct Peers(Vec<(UnixStream, Instant)>);

impl Peers {
    /// Waits for news, so long if nobody is waited for (-1: for ever), and sees to all that have any.
    pub(super) fn serve(&mut self, keeping: &Keeping, listener: &UnixListener, idle_ms: i32) {
        let now = Instant::now();
        let next = self.0.iter().map(|(_, until)| until.saturating_duration_since(now)).min();
        let timeout_ms = next.map_or(idle_ms, |left| milliseconds(left).saturating_add(1));
        let accepting = if self.0.len() < PEERS_MAX { listener.as_raw_fd() } else { -1 };
        let fds: Vec<_> = self.0.iter().map(|(peer, _)| peer.as_raw_fd()).chain([accepting]).collect();
        let news = process::wait_any(&fds, timeout_ms);
        let has_news = |fd: i32| news.iter().any(|at| fds.get(*at) == Some(&fd));
        let is_accepted = has_news(accepting);
        self.0.retain(|(peer, until)| {
            if has_news(peer.as_raw_fd()) {
                obey(keeping, peer);
                return false;
            }
            Instant::now() < *until
        });
        if is_accepted && let Ok((peer, _)) = listener.accept() {
            let is_own = process::peer_user(&peer).is_ok_and(|user| user == process::effective_user());
            if is_own {
                self.0.push((peer, Instant::now() + PATIENCE));
            }
        }
    }
}

/// Carries out the order of a peer that has said something, or hung up.
fn obey(keeping: &Keeping, peer: &UnixStream) {
    let mut order = [0];
    if process::receive_now(peer, &mut order) != Some(1) {
        return;
    }
    match order {
        [TAKE] => {
            let files = keeping.files.each_ref().map(AsFd::as_fd);
            // One that takes nothing gets nothing.
            let _ = descriptor_passing::send(peer.as_fd(), &files, &keeping.answer, libc::MSG_DONTWAIT);
        }
        [RELEASE] => {
            keeping.socket.remove();
            process::exit_now(0);
        }
        _ => {}
    }
}
