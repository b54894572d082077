//! A socket as an open file.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::anon;
use crate::fs::caller;
use crate::fs::caller::CallerCtx;
use crate::fs::file::{At, File, FileOps, OpenFlags};
use crate::fs::inode::{AttrChange, S_IFSOCK, Stat};
use crate::fs::pipe::raise_sigpipe;
use crate::fs::poll::PollTable;
use crate::fs::sigio;
use crate::net::ancillary::SenderCreds;
use crate::net::families::{AF_NETLINK, AF_UNIX, SOCK_STREAM};
use crate::net::inbox::{ReceiveHow, Received};
use crate::net::options::Options;
use crate::net::passing::Carrier;
use crate::net::socket::{Outgoing, Socket};
use crate::net::{inet, interfaces, passing, registry};
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, UserAddr};
use machine::sched;
use machine::sched::wait::PollEvents;
use machine::time;

/// A socket as an open file.
pub struct SocketFile {
    pub socket: Arc<dyn Socket>,
    pub options: Options,
    ino: u64,
    attrs: anon::Attrs,
}

/// The socket behind a file, for the collector, if it carries files.
fn carrier_of(file: &File) -> Option<&dyn Carrier> {
    file.as_ops::<SocketFile>()?.socket.carrier()
}

impl SocketFile {
    /// A description of `socket` that belongs to the caller.
    pub fn open(cx: &CallerCtx<'_>, socket: Arc<dyn Socket>, flags: OpenFlags) -> Arc<File> {
        passing::register(carrier_of);
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
