//! A socket of any family.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::caller::CallerCtx;
use crate::fs::poll::PollTable;
use crate::net::ancillary::{PeerCreds, SenderCreds};
use crate::net::families::{MsgFlags, SOCK_STREAM};
use crate::net::filter::Filter;
use crate::net::inbox::{ReceiveHow, Received};
use crate::net::options::Options;
use crate::net::passing::{Carrier, Rights};
use crate::net::unix::UnixSocket;
use crate::net::unix_host::HostTarget;
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;

/// A message to send besides its bytes.
#[derive(Default)]
pub struct Outgoing {
    /// Where to; `None`: to the peer.
    pub to: Option<Destination>,
    pub creds: SenderCreds,
    /// The program has said itself whose the message is (`SCM_CREDENTIALS`).
    pub claims: bool,
    /// Taken with the first bytes that go.
    pub rights: Option<Rights>,
    pub flags: MsgFlags,
    /// Control messages for the network, as `struct cmsghdr`s.
    pub control: Vec<u8>,
    /// The caller waits when it must, so that an attempt without a chance need not be made.
    pub wait: bool,
}

/// A destination, found once for all attempts.
#[derive(Clone)]
pub enum Destination {
    Unix(Arc<UnixSocket>),
    /// A Unix socket of the host.
    Host(HostTarget),
    /// The bytes of a `sockaddr`; the host looks at them.
    Address(Arc<[u8]>),
}

/// An open socket of some family. As with files, each call is one attempt: `EAGAIN` where it would wait.
pub trait Socket: Send + Sync + Any {
    /// `AF_*`.
    fn family(&self) -> u16;
    /// `SOCK_*`.
    fn kind(&self) -> u32;
    fn protocol(&self) -> u32 {
        0
    }
    /// Bytes that wait for a reader.
    fn held_bytes(&self) -> u64 {
        0
    }
    /// The socket for whoever looks for those that only messages hold; `None`: it carries no files.
    fn carrier(&self) -> Option<&dyn Carrier> {
        None
    }
    /// Files in messages that wait for a reader; `None`: none can be sent.
    fn waiting_files(&self) -> Option<usize> {
        None
    }
    fn bind(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<()>;
    /// Gives it a name of the kernel's choice, unless it has one.
    fn autobind(&self) -> Result<()> {
        Ok(())
    }
    /// Its file wants to know who sends to it, or no longer.
    fn set_wants_creds(&self, _wants: bool) {}
    /// Whether it has bytes that are urgent (`MSG_OOB`) in this kernel.
    fn has_urgent_bytes(&self) -> bool {
        false
    }
    /// Replaces the filter of what it receives.
    fn set_filter(&self, _filter: Option<Arc<Filter>>) -> Result<()> {
        Err(Errno::ENOPROTOOPT)
    }
    /// A message was sent with `MSG_ZEROCOPY`.
    fn sent_zerocopy(&self) {}
    fn listen(&self, cx: &CallerCtx<'_>, backlog: usize) -> Result<()>;
    /// `wait`: the caller waits when it must.
    fn accept(&self, wait: bool) -> Result<Arc<dyn Socket>>;
    /// Finds and checks an address for [`Self::connect`].
    fn resolve(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<Destination>;
    /// Finds the address of a message to be sent; `None` where it doesn't matter.
    fn destination(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<Option<Destination>>;
    /// Connects; `None` dissolves a connection (`AF_UNSPEC`). `wait`: the caller waits for `EAGAIN` to pass, and calls
    /// again until the connection stands.
    fn connect(&self, to: Option<&Destination>, creds: PeerCreds, wait: bool) -> Result<()>;
    /// The address it is bound to, as `sockaddr` bytes.
    fn local_name(&self) -> Result<Vec<u8>>;
    fn peer_name(&self) -> Result<Vec<u8>>;
    fn send(&self, buf: &mut IoBuf<'_>, message: &mut Outgoing, options: &Options) -> Result<usize>;
    fn receive(&self, buf: &mut IoBuf<'_>, how: ReceiveHow) -> Result<Received>;
    /// One attempt to send of a host file without a copy through the kernel; `None` where that can't be. `wait`: the
    /// caller waits when it must.
    fn send_file(&self, _file: &Handle, _offset: u64, _len: usize, _wait: bool) -> Option<Result<usize>> {
        None
    }
    /// `SHUT_RD` 0, `SHUT_WR` 1, `SHUT_RDWR` 2.
    fn shutdown(&self, how: u32) -> Result<()>;
    /// The events that hold; events that are not `wanted` may be left out, errors never.
    fn poll(&self, table: Option<&mut PollTable>, options: &Options, wanted: PollEvents) -> PollEvents;
    /// The pending error, which is forgotten (`SO_ERROR`).
    fn take_error(&self) -> Option<Errno> {
        None
    }
    fn is_listening(&self) -> bool {
        false
    }
    /// The credentials of the peer (`SO_PEERCRED`), if it has one.
    fn peer_creds(&self) -> Option<PeerCreds> {
        None
    }
    /// Bytes that can be read (`SIOCINQ`) and that the peer hasn't read (`SIOCOUTQ`).
    fn queued(&self) -> Result<(usize, usize)>;
    /// Options of level `SOL_SOCKET` are the host's as well.
    fn has_host_options(&self) -> bool {
        false
    }
    /// Options of the family, for a caller with `room` bytes; `ENOPROTOOPT`.
    fn option(&self, _level: u32, _name: u32, _room: usize) -> Result<Vec<u8>> {
        Err(Errno::ENOPROTOOPT)
    }
    fn set_option(&self, _level: u32, _name: u32, _value: &[u8]) -> Result<()> {
        Err(Errno::ENOPROTOOPT)
    }
    /// A call that returns the number of bytes it moved met this error after them; the next call has to report it.
    fn keep_error(&self, _error: Errno) {}
    /// Requests of the family.
    fn ioctl(&self, _cx: &CallerCtx<'_>, _request: u32, _arg: u64) -> Result<u64> {
        Err(Errno::ENOTTY)
    }
    /// Its file is closed.
    fn closed(&self);
    /// Whether reads return bytes of several messages.
    fn is_stream(&self) -> bool {
        self.kind() == SOCK_STREAM
    }
    fn as_any(&self) -> &dyn Any;
}
