//! Sockets: the code that all families share, and the families.

pub mod ancillary;
pub mod families;
pub mod filter;
pub mod host_tables;
pub mod inbox;
pub mod inet;
pub mod interfaces;
pub mod netlink;
pub mod options;
pub mod passing;
pub mod registry;
pub mod route;
pub mod settings;
pub mod talks;
pub mod unix;
pub mod unix_host;
pub mod unix_names;
pub mod visits;

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bitflags::bitflags;
use core::any::Any;

use crate::fs::anon;
use crate::fs::caller;
use crate::fs::caller::CallerCtx;
use crate::fs::file::{At, File, FileOps, OpenFlags};
use crate::fs::inode::S_IFSOCK;
use crate::fs::inode::{AttrChange, Stat};
use crate::fs::pipe::raise_sigpipe;
use crate::fs::poll::PollTable;
use crate::fs::sigio;
use crate::net::ancillary::{PeerCreds, SenderCreds};
pub use crate::net::families::{AF_INET, AF_INET6};
use crate::net::filter::Filter;
use crate::net::inbox::{ReceiveHow, Received};
use crate::net::options::Options;
use crate::net::passing::Rights;
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::mm::{IoBuf, UserAddr};
use machine::sched;
use machine::sched::wait::PollEvents;
use machine::time;

pub const AF_UNSPEC: u16 = 0;
pub const AF_UNIX: u16 = 1;
pub const AF_NETLINK: u16 = 16;
const AF_PACKET: u16 = 17;
pub const SOCK_STREAM: u32 = 1;
pub const SOCK_DGRAM: u32 = 2;
pub const SOCK_RAW: u32 = 3;
pub const SOCK_SEQPACKET: u32 = 5;
pub const SOL_SOCKET: u32 = 1;

bitflags! {
    /// `MSG_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MsgFlags: u32 {
        const OOB = 0x1;
        const PEEK = 0x2;
        const DONTROUTE = 0x4;
        const CTRUNC = 0x8;
        const TRUNC = 0x20;
        const DONTWAIT = 0x40;
        const EOR = 0x80;
        const WAITALL = 0x100;
        const CONFIRM = 0x800;
        const ERRQUEUE = 0x2000;
        const NOSIGNAL = 0x4000;
        const MORE = 0x8000;
        const WAITFORONE = 0x1_0000;
        const ZEROCOPY = 0x400_0000;
        const FASTOPEN = 0x2000_0000;
        const CMSG_CLOEXEC = 0x4000_0000;
    }
}

impl Default for MsgFlags {
    fn default() -> Self {
        Self::empty()
    }
}

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
    Unix(Arc<unix::UnixSocket>),
    /// A Unix socket of the host.
    Host(unix_host::HostTarget),
    /// The bytes of a `sockaddr`; the host looks at them.
    Address(Arc<[u8]>),
}

/// An open socket of some family. As with [`FileOps`], each call is one attempt: `EAGAIN` where it would wait.
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

/// Makes an unconnected socket.
pub fn new_socket(family: u32, kind: u32, protocol: u32) -> Result<Arc<dyn Socket>> {
    anon::check_room()?;
    match u16::try_from(family) {
        Ok(AF_UNIX) => Ok(unix::UnixSocket::new(kind, protocol)?),
        Ok(AF_NETLINK) => Ok(netlink::NetlinkSocket::new(kind, protocol)?),
        Ok(family @ (AF_INET | AF_INET6)) => Ok(inet::InetSocket::new(family, kind, protocol)?),
        Ok(AF_PACKET) => Err(Errno::EPERM),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

/// Two sockets connected to each other.
pub fn new_pair(family: u32, kind: u32, protocol: u32, creds: &PeerCreds) -> Result<[Arc<dyn Socket>; 2]> {
    anon::check_room()?;
    match u16::try_from(family) {
        Ok(AF_UNIX) => {
            let [a, b] = unix::pair(kind, protocol, creds)?;
            Ok([a, b])
        }
        Ok(AF_INET | AF_INET6) => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

/// A socket as an open file.
pub struct SocketFile {
    pub socket: Arc<dyn Socket>,
    pub options: Options,
    ino: u64,
    attrs: anon::Attrs,
}

impl SocketFile {
    /// A description of `socket` that belongs to the caller.
    pub fn open(cx: &CallerCtx<'_>, socket: Arc<dyn Socket>, flags: OpenFlags) -> Arc<File> {
        let creds = cx.caller.creds();
        let ops = Self {
            socket,
            options: Options::new(),
            ino: anon::next_ino(),
            attrs: anon::Attrs::new(0o777, (creds.fsuid, creds.fsgid)),
        };
        registry::add(ops.ino, creds.fsuid, &ops.socket);
        File::new(Box::new(ops), flags | OpenFlags::RDWR, None)
    }

    /// The socket behind a file; `ENOTSOCK`.
    pub fn of(file: &File) -> Result<&Self> {
        file.as_ops::<Self>().ok_or(Errno::ENOTSOCK)
    }
}

impl SocketFile {
    /// The name of its protocol, as Linux has it in the attribute `system.sockprotoname`.
    pub fn protocol_name(&self) -> &'static [u8] {
        match (self.socket.family(), self.socket.kind()) {
            (AF_UNIX, SOCK_STREAM) => b"UNIX-STREAM",
            (AF_UNIX, _) => b"UNIX",
            (AF_NETLINK, _) => b"NETLINK",
            (family, _) => inet::protocol_name(family, self.socket.protocol()),
        }
    }

    /// One attempt to receive; `how` says all but where a look begins.
    pub fn receive(&self, buf: &mut IoBuf<'_>, mut how: ReceiveHow) -> Result<Received> {
        let kept = !self.socket.has_host_options();
        if kept && how.peek {
            how.skip = self.options.peek_offset();
        }
        how.urgent_inline = kept && self.options.takes_urgent_inline();
        let received = self.socket.receive(buf, how)?;
        if kept {
            let taken = if self.socket.is_stream() { received.bytes } else { received.full };
            self.options.move_peek_offset(if how.peek { Ok(received.bytes) } else { Err(taken) });
        }
        Ok(received)
    }

    /// Shuts down sending, and waits until the peer has everything, at most until `deadline_ns` or a signal.
    fn linger(&self, deadline_ns: u64) {
        const SHUT_WR: u32 = 1;
        /// The socket is looked at this often: no event says that a peer has acknowledged.
        const LOOK_NS: u64 = 1_000_000;
        let sent = || self.socket.queued().map_or(0, |(_, sent)| sent);
        if !self.socket.has_host_options() || sent() == 0 || self.socket.shutdown(SHUT_WR).is_err() {
            return;
        }
        let mut pause = LOOK_NS;
        while sent() != 0 && time::monotonic_ns() < deadline_ns {
            let until = deadline_ns.min(time::monotonic_ns() + pause);
            if sched::sleep_until(sched::Sleep::Interruptible, Some(until), || None::<()>).is_err() {
                return;
            }
            pause = (pause * 2).min(32 * LOOK_NS);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        registry::remove(self.ino);
        self.socket.closed();
    }
}

impl FileOps for SocketFile {
    fn is_from_outside(&self) -> bool {
        true
    }

    fn held_bytes(&self) -> u64 {
        self.socket.held_bytes()
    }

    fn read(&self, file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let how = ReceiveHow {
            split_senders: self.options.wants_creds(),
            wait: !file.is_nonblocking(),
            ..ReceiveHow::default()
        };
        self.receive(buf, how).map(|received| received.bytes)
    }

    fn write(&self, file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        let wait = !file.is_nonblocking();
        let mut message =
            Outgoing { creds: SenderCreds::real(&*caller::current()), wait, ..Outgoing::default() };
        let result = self.socket.send(buf, &mut message, &self.options);
        if result == Err(Errno::EPIPE) && self.socket.is_stream() {
            raise_sigpipe();
        }
        result
    }

    fn deadline_ns(&self, events: PollEvents) -> Option<u64> {
        self.options.deadline_ns(events.intersects(PollEvents::READABLE))
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        self.socket.poll(table, &self.options, PollEvents::all())
    }

    fn poll_for(&self, _file: &File, table: Option<&mut PollTable>, wanted: PollEvents) -> PollEvents {
        self.socket.poll(table, &self.options, wanted)
    }

    fn ioctl(&self, cx: &CallerCtx<'_>, _file: &File, request: u32, arg: u64) -> Result<u64> {
        match self.socket.ioctl(cx, request, arg) {
            Err(Errno::ENOTTY) => {}
            result => return result,
        }
        const SIOCINQ: u32 = 0x541b;
        const SIOCOUTQ: u32 = 0x5411;
        let (input, output) = match request {
            SIOCINQ | SIOCOUTQ => self.socket.queued()?,
            _ => return interfaces::ioctl(cx, self.socket.family(), request, UserAddr::new(arg)),
        };
        let bytes = if request == SIOCINQ { input } else { output };
        cx.user().write(UserAddr::new(arg), &i32::try_from(bytes).unwrap_or(i32::MAX))?;
        Ok(0)
    }

    fn signals(&self) -> Option<sigio::Kind> {
        Some(if self.socket.has_host_options() { sigio::Kind::Network } else { sigio::Kind::Local })
    }

    fn after_close(&self, file: &File) -> Option<fn()> {
        passing::after_close(file)
    }

    fn last_close(&self) {
        if let Some(linger) = self.options.linger_ns() {
            self.linger(time::monotonic_ns().saturating_add(linger));
        }
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        Ok(self.attrs.stat(S_IFSOCK, self.ino))
    }

    fn set_attr(&self, change: &AttrChange) -> Result<()> {
        self.attrs.change(change);
        Ok(())
    }

    fn fdinfo(&self) -> Vec<u8> {
        let files = self.socket.waiting_files();
        files.map_or_else(Vec::new, |files| format!("scm_fds: {files}\n").into_bytes())
    }

    fn describe(&self) -> Vec<u8> {
        format!("socket:[{}]", self.ino).into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
