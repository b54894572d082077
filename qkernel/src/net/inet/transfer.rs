//! How bytes go between a program and the host's socket.

use alloc::sync::Arc;
use alloc::vec;

use crate::fs::host_poll::readiness::Direction;
use crate::net::families::MsgFlags;
use crate::net::inbox::{ReceiveHow, Received};
use crate::net::socket::{Destination, Outgoing, Socket};
use crate::net::visits;
use core::sync::atomic::Ordering;
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::mm::IoBuf;
use machine::socket as hs;

use super::unread::Unread;
use super::{BESIDE, InetSocket};

/// Most control data a receive makes room for.
const CONTROL_MAX: usize = abi::socket::CONTROL_MAX as usize;
/// Flags of a receive that are the host's business.
const HOST_RECEIVE: MsgFlags = MsgFlags::OOB.union(MsgFlags::TRUNC).union(MsgFlags::ERRQUEUE);

impl InetSocket {
    /// Sends as many bytes as there is room for. A stream takes fewer than it is offered only when it is full: programs
    /// that wait for edges rely on that.
    pub(super) fn send_all(&self, buf: &mut IoBuf<'_>, message: &Outgoing, flags: u32) -> Result<usize> {
        let address = match &message.to {
            Some(Destination::Address(address)) => &address[..],
            _ => &[],
        };
        let whole = !self.is_stream();
        let mut done = 0;
        loop {
            let before = self.readiness.moment();
            match hs::send(&self.handle, buf, whole, flags, address, &message.control) {
                Ok((sent, offered)) => {
                    done += sent;
                    self.talk.get().inspect(|talk| talk.sent());
                    let full = !whole && sent < offered;
                    self.readiness.done(before, Direction::Send, full);
                    if full || whole || buf.is_empty() {
                        return Ok(done);
                    }
                }
                Err(error) => {
                    self.noted(before, Direction::Send, error);
                    return self.stopped(done, error);
                }
            }
        }
    }

    /// Sends as many bytes of a host file as there is room for; 0 at its end.
    pub(super) fn send_file_all(&self, file: &Handle, offset: u64, len: usize) -> Result<usize> {
        let mut done = 0;
        while done < len {
            let before = self.readiness.moment();
            match hs::send_file(&self.handle, file, offset + done as u64, len - done) {
                Ok(0) => break,
                Ok(sent) => {
                    done += sent;
                    self.talk.get().inspect(|talk| talk.sent());
                    self.readiness.done(before, Direction::Send, false);
                }
                Err(error) => {
                    self.noted(before, Direction::Send, error);
                    return self.stopped(done, error);
                }
            }
        }
        Ok(done)
    }

    /// The result of a call that met an error after `done` bytes. The bytes count; the next call meets the error.
    fn stopped(&self, done: usize, error: Errno) -> Result<usize> {
        if done == 0 {
            return Err(error);
        }
        self.keep_error(error);
        Ok(done)
    }

    pub(super) fn take_late_error(&self) -> Option<Errno> {
        if self.late_error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let error = self.late_error.swap(0, Ordering::Relaxed);
        (error != 0).then_some(Errno(error.cast_signed()))
    }

    /// Receives of a stream what the host does not have any more, and then what it has.
    pub(super) fn receive_unread(&self, buf: &mut IoBuf<'_>, how: &ReceiveHow) -> Result<Received> {
        let mut unread = self.unread.lock();
        let bytes = match how.peek {
            true => Unread::look(&unread, buf)?,
            false => self.unread.take(&mut unread, buf, how.flags.contains(MsgFlags::TRUNC))?,
        };
        if bytes == 0 {
            // Somebody else was faster.
            return self.receive_all(buf, how);
        }
        if !how.peek {
            self.came(&[]);
        }
        let mut received = Received { bytes, full: bytes, ..Received::default() };
        received.from = how.name.then(|| Arc::from(&[][..]));
        // After a bad address some are left, which come before those that the host has.
        let is_all = self.unread.len() == if how.peek { bytes } else { 0 };
        if buf.is_empty() || !is_all {
            return Ok(received);
        }
        match self.receive_all(buf, how) {
            Ok(more) => {
                received.bytes += more.bytes;
                received.full += more.full;
                received.flags |= more.flags;
                received.control = more.control;
                Ok(received)
            }
            Err(error) => self.stopped(bytes, error).map(|_| received),
        }
    }

    /// Receives until the buffer is full or nothing is left, for the same reason; messages once.
    pub(super) fn receive_all(&self, buf: &mut IoBuf<'_>, how: &ReceiveHow) -> Result<Received> {
        let stream = self.is_stream();
        let beside = how.flags.intersects(BESIDE);
        let once = !stream || how.peek || beside;
        let names = how.name || !stream && visits::are_told_apart();
        let mut received = Received::default();
        loop {
            let (wanted, before) = (buf.remaining(), self.readiness.moment());
            let mut with = hs::Receive {
                flags: (how.flags & HOST_RECEIVE).bits() | if how.peek { MsgFlags::PEEK.bits() } else { 0 },
                address: vec![0; if names { abi::socket::ADDRESS_MAX as usize } else { 0 }],
                control: vec![0; how.control_room.min(CONTROL_MAX)],
                ..hs::Receive::default()
            };
            let got = match hs::receive(&self.handle, buf, !stream, &mut with) {
                Ok(got) => got,
                // The host says so after the end of reading as well, and its `poll` says that the end is there.
                Err(Errno::EAGAIN) if !beside && !self.reads_ended.load(Ordering::Acquire) => {
                    self.readiness.would_wait(before, Direction::Receive);
                    return self.stopped(received.bytes, Errno::EAGAIN).map(|_| received);
                }
                Err(error) => {
                    self.readiness.used(Direction::Receive);
                    return self.stopped(received.bytes, error).map(|_| received);
                }
            };
            if !stream {
                visits::received(&with.address);
            }
            if got > 0 && !how.peek {
                self.came(&with.address);
            }
            received.bytes += got;
            received.full += with.full;
            received.flags |= MsgFlags::from_bits_truncate(with.flags);
            if how.name {
                received.from = Some(with.address.as_slice().into());
            }
            received.control.append(&mut with.control);
            if !how.peek {
                let short = stream && !beside && got > 0 && got < with.offered;
                self.readiness.done(before, Direction::Receive, short);
            }
            if !stream {
                hs::check_fault(&with, wanted)?;
            }
            if once || got < with.offered || buf.is_empty() {
                return Ok(received);
            }
        }
    }
}
