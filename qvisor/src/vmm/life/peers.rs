//! Who is connected to the control socket and has not said yet what it wants. None can hold up the others.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use crate::control::{self, Answer, LINE_MAX, Order, PATIENCE};
use crate::process;

/// Most of them; a new one then takes the place of whoever has taken longest.
const PEERS_MAX: usize = 32;

#[derive(Debug)]
struct Peer {
    stream: UnixStream,
    line: Vec<u8>,
    deadline: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Peers(Vec<Peer>);

impl Peers {
    /// Takes one in, unless it is a stranger.
    pub(super) fn add(&mut self, stream: UnixStream) {
        let Ok(user) = process::peer_user(&stream) else { return };
        // The host's root is nobody we know once the VMM is in a user namespace of its own. Whoever else is outside of
        // it cannot come here: the socket's directory is closed to all but its owner.
        if user != 0 && user != process::started_by() && user != process::OVERFLOW_USER {
            refuse(&stream, "permission denied".into());
            return;
        }
        if self.0.len() >= PEERS_MAX {
            self.0.remove(0);
        }
        self.0.push(Peer { stream, line: Vec::new(), deadline: Instant::now() + PATIENCE });
    }

    /// Whom to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.0.iter().map(|peer| peer.stream.as_raw_fd())
    }

    /// Until when.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.first().map(|peer| peer.deadline)
    }

    /// Takes what they have said. Whoever has said an order, or nothing in time, is none of them any more.
    pub(super) fn orders(&mut self) -> Vec<(UnixStream, Order)> {
        let now = Instant::now();
        let mut orders = Vec::new();
        for mut peer in std::mem::take(&mut self.0) {
            match peer.read() {
                Ok(Some(order)) => orders.push((peer.stream, order)),
                Ok(None) if peer.deadline > now => self.0.push(peer),
                Ok(None) => {}
                Err(error) => refuse(&peer.stream, error.to_string()),
            }
        }
        orders
    }
}

impl Peer {
    /// Its order, once that has come whole.
    fn read(&mut self) -> io::Result<Option<Order>> {
        let most = usize::try_from(LINE_MAX).unwrap_or(usize::MAX);
        let mut bytes = [0; 512];
        while let Some(got) = process::receive_now(&self.stream, &mut bytes) {
            self.line.extend(bytes.iter().take(got));
            let end = self.line.iter().position(|byte| *byte == b'\n');
            if end.is_some() || got == 0 || self.line.len() >= most {
                return control::parse(self.line.get(..end.unwrap_or(self.line.len())).unwrap_or_default())
                    .map(Some);
            }
        }
        Ok(None)
    }
}

pub(super) fn refuse(stream: &UnixStream, error: String) {
    control::send_now(stream, &Answer { error: Some(error), ..Answer::default() });
}
