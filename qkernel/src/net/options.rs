//! Options of level `SOL_SOCKET` that all families keep alike.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::fs::caller;
use crate::net::Socket;
use crate::net::ancillary::{SenderCreds, Ucred};
use machine::errno::{Errno, Result};
use machine::time;
use zerocopy::IntoBytes;

const SO_DEBUG: u32 = 1;
const SO_REUSEADDR: u32 = 2;
const SO_TYPE: u32 = 3;
const SO_ERROR: u32 = 4;
const SO_DONTROUTE: u32 = 5;
const SO_BROADCAST: u32 = 6;
const SO_SNDBUF: u32 = 7;
const SO_RCVBUF: u32 = 8;
const SO_KEEPALIVE: u32 = 9;
const SO_OOBINLINE: u32 = 10;
const SO_PRIORITY: u32 = 12;
const SO_LINGER: u32 = 13;
const SO_REUSEPORT: u32 = 15;
const SO_PASSCRED: u32 = 16;
const SO_PEERCRED: u32 = 17;
const SO_RCVLOWAT: u32 = 18;
const SO_SNDLOWAT: u32 = 19;
const SO_RCVTIMEO: u32 = 20;
const SO_SNDTIMEO: u32 = 21;
const SO_TIMESTAMP: u32 = 29;
const SO_ACCEPTCONN: u32 = 30;
const SO_SNDBUFFORCE: u32 = 32;
const SO_RCVBUFFORCE: u32 = 33;
const SO_PROTOCOL: u32 = 38;
const SO_DOMAIN: u32 = 39;
const SO_RCVTIMEO_NEW: u32 = 66;
const SO_SNDTIMEO_NEW: u32 = 67;

/// `net.core.wmem_default` and `wmem_max`.
const BUFFER_DEFAULT: usize = 212_992;
const BUFFER_LEAST: usize = 4608;
/// `SO_RCVTIMEO` of zero: for ever.
const FOR_EVER: u64 = u64::MAX;
const MICRO: i64 = 1_000_000;

/// The options that `setsockopt(2)` sets.
pub struct Options {
    /// Receive and send timeouts in nanoseconds.
    timeouts: [AtomicU64; 2],
    send_buffer: AtomicUsize,
    receive_buffer: AtomicUsize,
    pass_creds: AtomicBool,
    linger: AtomicU64,
    priority: AtomicU32,
    /// Switches that are kept and reported, by option number.
    switches: AtomicU64,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether the kernel keeps the option of sockets that have the host's.
fn is_kept(name: u32) -> bool {
    matches!(
        name,
        SO_TYPE
            | SO_DOMAIN
            | SO_PROTOCOL
            | SO_ERROR
            | SO_ACCEPTCONN
            | SO_PASSCRED
            | SO_PEERCRED
            | SO_LINGER
            | SO_RCVTIMEO
            | SO_RCVTIMEO_NEW
            | SO_SNDTIMEO
            | SO_SNDTIMEO_NEW
    )
}

fn is_switch(name: u32) -> bool {
    matches!(
        name,
        SO_DEBUG
            | SO_REUSEADDR
            | SO_DONTROUTE
            | SO_BROADCAST
            | SO_KEEPALIVE
            | SO_OOBINLINE
            | SO_REUSEPORT
            | SO_TIMESTAMP
    )
}

impl Options {
    /// A new socket's.
    pub fn new() -> Self {
        Self {
            timeouts: [const { AtomicU64::new(FOR_EVER) }; 2],
            send_buffer: AtomicUsize::new(BUFFER_DEFAULT),
            receive_buffer: AtomicUsize::new(BUFFER_DEFAULT),
            pass_creds: AtomicBool::new(false),
            linger: AtomicU64::new(0),
            priority: AtomicU32::new(0),
            switches: AtomicU64::new(0),
        }
    }

    /// `SO_PASSCRED`.
    pub fn passes_creds(&self) -> bool {
        self.pass_creds.load(Ordering::Relaxed)
    }

    /// Bytes that may be on their way.
    pub fn send_buffer(&self) -> usize {
        self.send_buffer.load(Ordering::Relaxed)
    }

    /// When a wait that begins now ends (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
    pub fn deadline_ns(&self, receive: bool) -> Option<u64> {
        let timeout = self.timeouts[usize::from(!receive)].load(Ordering::Relaxed);
        (timeout != FOR_EVER).then(|| time::monotonic_ns().saturating_add(timeout))
    }

    /// `getsockopt(2)` of level `SOL_SOCKET`, for a caller with `room` bytes.
    pub fn get(&self, socket: &dyn Socket, name: u32, room: usize) -> Result<Vec<u8>> {
        if socket.has_host_options() && !is_kept(name) {
            return socket.option(crate::net::SOL_SOCKET, name, room);
        }
        let number = match name {
            SO_TYPE => socket.kind(),
            SO_DOMAIN => u32::from(socket.family()),
            SO_PROTOCOL => socket.protocol(),
            SO_ERROR => socket.take_error().map_or(0, |error| error.0.unsigned_abs()),
            SO_ACCEPTCONN => u32::from(socket.is_listening()),
            SO_PASSCRED => u32::from(self.passes_creds()),
            SO_SNDBUF => u32::try_from(self.send_buffer()).unwrap_or(u32::MAX),
            SO_RCVBUF => u32::try_from(self.receive_buffer.load(Ordering::Relaxed)).unwrap_or(u32::MAX),
            SO_PRIORITY => self.priority.load(Ordering::Relaxed),
            SO_RCVLOWAT | SO_SNDLOWAT => 1,
            SO_PEERCRED => {
                let seen = |creds: SenderCreds| creds.seen_by(&*caller::current());
                return Ok(socket.peer_creds().map_or(Ucred::NOBODY, seen).as_bytes().to_vec());
            }
            SO_LINGER => return Ok(self.linger.load(Ordering::Relaxed).to_ne_bytes().to_vec()),
            SO_RCVTIMEO | SO_RCVTIMEO_NEW => return Ok(self.timeout(0)),
            SO_SNDTIMEO | SO_SNDTIMEO_NEW => return Ok(self.timeout(1)),
            _ if is_switch(name) => u32::from(self.switches.load(Ordering::Relaxed) & (1 << name) != 0),
            _ => return socket.option(crate::net::SOL_SOCKET, name, room),
        };
        Ok(number.to_ne_bytes().to_vec())
    }

    fn timeout(&self, which: usize) -> Vec<u8> {
        let timeout = self.timeouts[which].load(Ordering::Relaxed);
        let micros = if timeout == FOR_EVER { 0 } else { (timeout / 1000).cast_signed() };
        [micros / MICRO, micros % MICRO].as_bytes().to_vec()
    }

    /// `setsockopt(2)` of level `SOL_SOCKET`.
    pub fn set(&self, socket: &dyn Socket, name: u32, value: &[u8]) -> Result<()> {
        match name {
            SO_RCVTIMEO | SO_RCVTIMEO_NEW => return self.set_timeout(0, value),
            SO_SNDTIMEO | SO_SNDTIMEO_NEW => return self.set_timeout(1, value),
            SO_LINGER => return self.set_linger(socket, value),
            SO_TYPE | SO_DOMAIN | SO_PROTOCOL | SO_ERROR | SO_ACCEPTCONN | SO_PEERCRED => {
                return Err(Errno::ENOPROTOOPT);
            }
            _ => {}
        }
        if socket.has_host_options() {
            // The network tells of no credentials.
            return if is_kept(name) {
                Ok(())
            } else {
                socket.set_option(crate::net::SOL_SOCKET, name, value)
            };
        }
        let number = i32::from_ne_bytes(*value.first_chunk().ok_or(Errno::EINVAL)?);
        match name {
            SO_SNDBUF | SO_SNDBUFFORCE => self.send_buffer.store(buffer_size(number), Ordering::Relaxed),
            SO_RCVBUF | SO_RCVBUFFORCE => self.receive_buffer.store(buffer_size(number), Ordering::Relaxed),
            SO_PASSCRED => self.pass_creds.store(number != 0, Ordering::Relaxed),
            SO_PRIORITY => self.priority.store(number.cast_unsigned(), Ordering::Relaxed),
            SO_RCVLOWAT => {}
            _ if is_switch(name) => {
                if number != 0 {
                    self.switches.fetch_or(1 << name, Ordering::Relaxed);
                } else {
                    self.switches.fetch_and(!(1 << name), Ordering::Relaxed);
                }
            }
            _ => return socket.set_option(crate::net::SOL_SOCKET, name, value),
        }
        Ok(())
    }

    /// `SO_LINGER`. The host is told only to reset connections: it must not make anybody wait. Waiting is done by
    /// [`Self::linger_ns`].
    fn set_linger(&self, socket: &dyn Socket, value: &[u8]) -> Result<()> {
        let linger: [u8; 8] = *value.first_chunk().ok_or(Errno::EINVAL)?;
        if socket.has_host_options() {
            let resets = linger[..4] != [0; 4] && linger[4..] == [0; 4];
            let host = [i32::from(resets), 0];
            socket.set_option(crate::net::SOL_SOCKET, SO_LINGER, host.as_bytes())?;
        }
        self.linger.store(u64::from_ne_bytes(linger), Ordering::Relaxed);
        Ok(())
    }

    /// How long closing waits until all sent bytes have arrived; `None`: not at all.
    pub fn linger_ns(&self) -> Option<u64> {
        let linger = self.linger.load(Ordering::Relaxed);
        let (on, seconds) = (linger & u64::from(u32::MAX) != 0, linger >> 32);
        (on && seconds != 0).then(|| seconds.saturating_mul(time::NSEC))
    }

    /// Takes over the options that a connection has from the socket that accepted it.
    pub fn inherit(&self, listener: &Self) {
        let copy =
            |to: &AtomicU64, from: &AtomicU64| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        copy(&self.linger, &listener.linger);
        for (to, from) in self.timeouts.iter().zip(&listener.timeouts) {
            copy(to, from);
        }
    }

    fn set_timeout(&self, which: usize, value: &[u8]) -> Result<()> {
        let seconds = i64::from_ne_bytes(*value.first_chunk().ok_or(Errno::EINVAL)?);
        let micros = i64::from_ne_bytes(*value.get(8..).and_then(<[u8]>::first_chunk).ok_or(Errno::EINVAL)?);
        if !(0..MICRO).contains(&micros) {
            return Err(Errno::EDOM);
        }
        let timeout = match u64::try_from(seconds) {
            Ok(0) if micros == 0 => FOR_EVER,
            Ok(seconds) => seconds.saturating_mul(time::NSEC).saturating_add(micros.cast_unsigned() * 1000),
            // A negative time is over at once.
            Err(_) => 0,
        };
        self.timeouts[which].store(timeout, Ordering::Relaxed);
        Ok(())
    }
}

/// Twice the size that was asked for, as Linux accounts its own overhead.
fn buffer_size(asked: i32) -> usize {
    let asked = usize::try_from(asked).unwrap_or(usize::MAX).min(BUFFER_DEFAULT);
    (asked * 2).max(BUFFER_LEAST)
}
