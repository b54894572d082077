//! Connections to the control socket whose order is not complete yet. None can hold up the others.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use abi::boot::EXEC_RECORDS_MAX;
use vmm::exec_relay::STREAMS_MAX;
use vmm::jail::PROOF_USER_INSIDE;
use vmm::request::VIEWS_MAX;
use vmm::{descriptor_passing, process};

use super::containers::ContainerId;
use crate::control::{self, LINE_MAX, Order, PATIENCE, refuse};

const DENIED: &str = "permission denied";
/// Most of them; a new one then takes the place of whoever has taken longest.
const PEERS_MAX: usize = 32;
/// Most descriptors that an order has: a container's listener, streams and views.
const DESCRIPTORS_MAX: usize = 1 + STREAMS_MAX + VIEWS_MAX;

#[derive(Debug)]
struct Peer {
    stream: UnixStream,
    /// The container whose socket it came to.
    of: ContainerId,
    /// It is who may give orders.
    is_known: bool,
    /// The bytes it has sent, but for the order.
    said: Attached,
    /// The order, once it is known, and how many bytes belong to it.
    order: Option<(Order, usize)>,
    deadline: Instant,
}

/// The attachments of an order.
#[derive(Debug, Default)]
pub(super) struct Attached {
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Somebody has said what it wants.
#[derive(Debug)]
pub(super) struct Asked {
    pub peer: UnixStream,
    /// The container whose socket it came to.
    pub of: ContainerId,
    pub order: Order,
    pub attached: Attached,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Peers {
    list: Vec<Peer>,
    /// The VMM's ids are mapped: the host's root is shown to it as a user that its namespace does not have.
    ids_are_mapped: bool,
}

impl Peers {
    pub(super) fn new(ids_are_mapped: bool) -> Self {
        Self { list: Vec::new(), ids_are_mapped }
    }

    /// Takes one in that came to the socket of a container, unless it is a stranger.
    ///
    /// Orders come from whoever has started the sandbox. That is user 0 here, be it the host's root or an unprivileged
    /// caller in a user namespace of their own. Where ids are mapped the host's root is shown as the overflow user, as
    /// everybody else is, and so has to prove who it is by what it sends.
    pub(super) fn add(&mut self, stream: UnixStream, of: ContainerId) {
        let Ok(user) = process::peer_user(&stream) else { return };
        let is_known = user == 0 && !self.ids_are_mapped;
        if !is_known && !self.ids_are_mapped {
            refuse(&stream, DENIED.into());
            return;
        }
        if self.list.len() >= PEERS_MAX {
            self.list.remove(0);
        }
        let (said, deadline) = (Attached::default(), Instant::now() + PATIENCE);
        self.list.push(Peer { stream, of, is_known, said, order: None, deadline });
    }

    /// The descriptors to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.list.iter().map(|peer| peer.stream.as_raw_fd())
    }

    /// Until when.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.list.first().map(|peer| peer.deadline)
    }

    /// Takes what they have said. Whoever has said an order, or nothing in time, is none of them any more.
    pub(super) fn orders(&mut self) -> Vec<Asked> {
        let now = Instant::now();
        let mut orders = Vec::new();
        for mut peer in std::mem::take(&mut self.list) {
            match peer.read() {
                Ok(Some(order)) => {
                    let Peer { stream, of, said, .. } = peer;
                    orders.push(Asked { peer: stream, of, order, attached: said });
                }
                Ok(None) if peer.deadline > now => self.list.push(peer),
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
        let mut bytes = [0; 4096];
        let said = &mut self.said;
        while let Some(received) =
            descriptor_passing::receive_now(&self.stream, &mut bytes, &mut said.descriptors)
        {
            let got = received.len;
            // It is proved before anything it says is looked at.
            self.is_known |= received.sender == Some(PROOF_USER_INSIDE);
            if !self.is_known {
                return Err(io::Error::other(DENIED));
            }
            said.body.extend(bytes.iter().take(got));
            // More than any order has is nobody's.
            said.descriptors.truncate(DESCRIPTORS_MAX);
            if self.order.is_none() {
                self.order = order_of(&mut said.body, got == 0)?;
            }
            match self.order.take_if(|(_, len)| said.body.len() >= *len) {
                Some((order, len)) => {
                    said.body.truncate(len);
                    return Ok(Some(order));
                }
                _ if got == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Takes the order from the front of what was said, with the number of bytes that belong to it.
fn order_of(said: &mut Vec<u8>, is_over: bool) -> io::Result<Option<(Order, usize)>> {
    let most = usize::try_from(LINE_MAX).unwrap_or(usize::MAX);
    let end = said.iter().take(most).position(|byte| *byte == b'\n');
    if end.is_none() && !is_over && said.len() < most {
        return Ok(None);
    }
    let order = control::parse(said.get(..end.unwrap_or(said.len())).unwrap_or_default())?;
    said.drain(..end.map_or(said.len(), |end| end + 1));
    match order {
        Order::Exec { len, .. } | Order::Create { len, .. } if u64::from(len) > EXEC_RECORDS_MAX => {
            let why = format!("arguments and environment take {len} bytes, more than {EXEC_RECORDS_MAX}");
            Err(io::Error::other(why))
        }
        Order::Exec { len, .. } | Order::Create { len, .. } => {
            Ok(Some((order, usize::try_from(len).unwrap_or(usize::MAX))))
        }
        _ => Ok(Some((order, 0))),
    }
}
