//! Options of level `SOL_SOCKET` that all families keep alike.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::creds::{CAP_NET_ADMIN, CAP_NET_RAW, Creds};
use crate::fs::caller;
use crate::net::ancillary::{PeerCreds, Ucred};
use crate::net::families::SOL_SOCKET;
use crate::net::filter::Filter;
use crate::net::socket::Socket;
use machine::errno::{Errno, Result};
use machine::mm::UserMemory;
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
const SO_NO_CHECK: u32 = 11;
const SO_PRIORITY: u32 = 12;
const SO_LINGER: u32 = 13;
const SO_BSDCOMPAT: u32 = 14;
const SO_REUSEPORT: u32 = 15;
const SO_PASSCRED: u32 = 16;
const SO_PEERCRED: u32 = 17;
const SO_RCVLOWAT: u32 = 18;
const SO_SNDLOWAT: u32 = 19;
const SO_RCVTIMEO: u32 = 20;
const SO_SNDTIMEO: u32 = 21;
const SO_BINDTODEVICE: u32 = 25;
const SO_ATTACH_FILTER: u32 = 26;
const SO_DETACH_FILTER: u32 = 27;
const SO_TIMESTAMP: u32 = 29;
const SO_ACCEPTCONN: u32 = 30;
const SO_SNDBUFFORCE: u32 = 32;
const SO_RCVBUFFORCE: u32 = 33;
const SO_PASSSEC: u32 = 34;
const SO_TIMESTAMPNS: u32 = 35;
pub const SO_MARK: u32 = 36;
const SO_PROTOCOL: u32 = 38;
const SO_DOMAIN: u32 = 39;
const SO_RXQ_OVFL: u32 = 40;
const SO_PEEK_OFF: u32 = 42;
const SO_WIFI_STATUS: u32 = 41;
const SO_NOFCS: u32 = 43;
const SO_LOCK_FILTER: u32 = 44;
const SO_SELECT_ERR_QUEUE: u32 = 45;
const SO_BUSY_POLL: u32 = 46;
const SO_MAX_PACING_RATE: u32 = 47;
const SO_BPF_EXTENSIONS: u32 = 48;
const SO_INCOMING_CPU: u32 = 49;
const SO_ATTACH_BPF: u32 = 50;
const SO_INCOMING_NAPI_ID: u32 = 56;
const SO_COOKIE: u32 = 57;
pub const SO_PEERGROUPS: u32 = 59;
const SO_ZEROCOPY: u32 = 60;
const SO_TIMESTAMP_NEW: u32 = 63;
const SO_TIMESTAMPNS_NEW: u32 = 64;
const SO_RCVTIMEO_NEW: u32 = 66;
const SO_SNDTIMEO_NEW: u32 = 67;
const SO_PREFER_BUSY_POLL: u32 = 69;
const SO_BUF_LOCK: u32 = 72;
const SO_TXREHASH: u32 = 74;
const SO_RCVMARK: u32 = 75;
const SO_PASSPIDFD: u32 = 76;
pub const SO_PEERPIDFD: u32 = 77;
const SO_RCVPRIORITY: u32 = 82;

/// `net.core.wmem_default` and `wmem_max`.
const BUFFER_DEFAULT: usize = 212_992;
/// Most that a privileged program may ask for beyond that.
const BUFFER_FORCED_MAX: usize = 16 << 20;
const SEND_BUFFER_LEAST: usize = 4608;
const RECEIVE_BUFFER_LEAST: usize = 2304;
/// Bits of `SO_BUF_LOCK`.
const SEND_FIXED: u32 = 1;
const RECEIVE_FIXED: u32 = 2;
/// `SO_RCVTIMEO` of zero: for ever.
const FOR_EVER: u64 = u64::MAX;
const MICRO: i64 = 1_000_000;
/// The unit in which timeouts are counted, in nanoseconds (`HZ` of 250).
const TICK_NS: u64 = 4_000_000;
/// Highest `SO_PRIORITY` that asks for no privilege.
const PRIORITY_FREE: i32 = 6;
/// Facts that filters can ask for (`SKF_AD_MAX`).
const BPF_FACTS: u32 = 64;

/// The options that ask for the time of a message; control messages have the same numbers.
const STAMPS: [u32; 4] = [SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW];

/// The options that `setsockopt(2)` sets.
pub struct Options {
    /// Receive and send timeouts in nanoseconds.
    timeouts: [AtomicU64; 2],
    send_buffer: AtomicUsize,
    receive_buffer: AtomicUsize,
    pass_creds: AtomicBool,
    pass_pidfd: AtomicBool,
    linger: AtomicU64,
    priority: AtomicU32,
    mark: AtomicU32,
    busy_poll: AtomicU32,
    least_received: AtomicU32,
    /// `SO_BUF_LOCK`: which buffers' sizes were chosen, and so would not be changed by themselves, as none here is.
    fixed_buffers: AtomicU32,
    /// `SO_MAX_PACING_RATE` and `SO_INCOMING_CPU`: kept, and nothing else.
    pacing_rate: AtomicU64,
    incoming_cpu: AtomicI32,
    /// Where the next look begins; -1: at the first byte, always.
    peek_offset: AtomicI32,
    has_filter: AtomicBool,
    filter_locked: AtomicBool,
    /// Switches that are kept and reported, by option number, in two words.
    switches: [AtomicU64; 2],
    cookie: u64,
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
            | SO_PASSPIDFD
            | SO_PEERCRED
            | SO_PEERPIDFD
            | SO_LINGER
            | SO_RCVTIMEO
            | SO_RCVTIMEO_NEW
            | SO_SNDTIMEO
            | SO_SNDTIMEO_NEW
            | SO_LOCK_FILTER
            | SO_BUSY_POLL
            | SO_BPF_EXTENSIONS
            | SO_BSDCOMPAT
            | SO_WIFI_STATUS
            | SO_NOFCS
            | SO_PREFER_BUSY_POLL
            | SO_RCVMARK
            | SO_RCVPRIORITY
            | SO_MARK
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
            | SO_NO_CHECK
            | SO_TIMESTAMP
            | SO_PASSSEC
            | SO_TIMESTAMPNS
            | SO_RXQ_OVFL
            | SO_WIFI_STATUS
            | SO_NOFCS
            | SO_PREFER_BUSY_POLL
            | SO_RCVMARK
            | SO_RCVPRIORITY
            | SO_SELECT_ERR_QUEUE
            | SO_TIMESTAMP_NEW
            | SO_TIMESTAMPNS_NEW
    )
}

/// Options that cannot be set.
fn is_fixed(name: u32) -> bool {
    matches!(
        name,
        SO_TYPE
            | SO_DOMAIN
            | SO_PROTOCOL
            | SO_ERROR
            | SO_ACCEPTCONN
            | SO_PEERCRED
            | SO_SNDLOWAT
            | SO_BPF_EXTENSIONS
            | SO_INCOMING_NAPI_ID
            | SO_COOKIE
            | SO_PEERGROUPS
            | SO_PEERPIDFD
    )
}

/// An `int` of an option's value; `EINVAL` where that is shorter.
fn int(value: &[u8]) -> Result<i32> {
    value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}

/// Whether the caller may change how packets go through the network.
pub fn may_steer(creds: &Creds) -> bool {
    creds.has(CAP_NET_ADMIN) || creds.has(CAP_NET_RAW)
}

impl Options {
    /// A new socket's.
    pub fn new() -> Self {
        static NEXT_COOKIE: AtomicU64 = AtomicU64::new(1);
        Self {
            timeouts: [const { AtomicU64::new(FOR_EVER) }; 2],
            send_buffer: AtomicUsize::new(BUFFER_DEFAULT),
            receive_buffer: AtomicUsize::new(BUFFER_DEFAULT),
            pass_creds: AtomicBool::new(false),
            pass_pidfd: AtomicBool::new(false),
            linger: AtomicU64::new(0),
            priority: AtomicU32::new(0),
            mark: AtomicU32::new(0),
            busy_poll: AtomicU32::new(0),
            least_received: AtomicU32::new(1),
            fixed_buffers: AtomicU32::new(0),
            pacing_rate: AtomicU64::new(u64::MAX),
            incoming_cpu: AtomicI32::new(-1),
            peek_offset: AtomicI32::new(-1),
            has_filter: AtomicBool::new(false),
            filter_locked: AtomicBool::new(false),
            switches: [const { AtomicU64::new(0) }; 2],
            cookie: NEXT_COOKIE.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// `SO_PASSCRED`.
    pub fn passes_creds(&self) -> bool {
        self.pass_creds.load(Ordering::Relaxed)
    }

    /// `SO_PASSPIDFD`.
    pub fn passes_pidfd(&self) -> bool {
        self.pass_pidfd.load(Ordering::Relaxed)
    }

    /// `SO_OOBINLINE`.
    pub fn takes_urgent_inline(&self) -> bool {
        self.is_on(SO_OOBINLINE)
    }

    /// Whether a message has to say who sent it.
    pub fn wants_creds(&self) -> bool {
        self.passes_creds() || self.passes_pidfd()
    }

    /// Bytes that may be on their way.
    pub fn send_buffer(&self) -> usize {
        self.send_buffer.load(Ordering::Relaxed)
    }

    /// Bytes that a receive of a stream waits for (`SO_RCVLOWAT`).
    pub fn least_received(&self) -> usize {
        self.least_received.load(Ordering::Relaxed) as usize
    }

    /// Where a look begins (`SO_PEEK_OFF`); `None`: at the first byte, and it moves nothing.
    pub fn peek_offset(&self) -> Option<usize> {
        usize::try_from(self.peek_offset.load(Ordering::Relaxed)).ok()
    }

    /// Moves that place: on by bytes that were looked at (`Ok`), back by bytes that were taken (`Err`).
    pub fn move_peek_offset(&self, by: core::result::Result<usize, usize>) {
        let moved = |at: i32| {
            let number = |by: usize| i32::try_from(by).unwrap_or(i32::MAX);
            (at >= 0).then(|| match by {
                Ok(on) => at.saturating_add(number(on)),
                Err(back) => at.saturating_sub(number(back)).max(0),
            })
        };
        let _ = self.peek_offset.fetch_update(Ordering::Relaxed, Ordering::Relaxed, moved);
    }

    /// When a wait that begins now ends (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
    pub fn deadline_ns(&self, receive: bool) -> Option<u64> {
        let timeout = self.timeouts[usize::from(!receive)].load(Ordering::Relaxed);
        (timeout != FOR_EVER).then(|| time::monotonic_ns().saturating_add(timeout))
    }

    /// `getsockopt(2)` of level `SOL_SOCKET`, for a caller with `room` bytes.
    pub fn get(&self, socket: &dyn Socket, name: u32, room: usize) -> Result<Vec<u8>> {
        if socket.has_host_options() && !is_kept(name) {
            return socket.option(SOL_SOCKET, name, room);
        }
        let number = match name {
            SO_TYPE => socket.kind(),
            SO_DOMAIN => u32::from(socket.family()),
            SO_PROTOCOL => socket.protocol(),
            SO_ERROR => socket.take_error().map_or(0, |error| error.0.unsigned_abs()),
            SO_ACCEPTCONN => u32::from(socket.is_listening()),
            SO_PASSCRED => u32::from(self.passes_creds()),
            SO_PASSPIDFD => u32::from(self.passes_pidfd()),
            SO_SNDBUF => u32::try_from(self.send_buffer()).unwrap_or(u32::MAX),
            SO_RCVBUF => u32::try_from(self.receive_buffer.load(Ordering::Relaxed)).unwrap_or(u32::MAX),
            SO_PRIORITY => self.priority.load(Ordering::Relaxed),
            SO_MARK => self.mark.load(Ordering::Relaxed),
            SO_RCVLOWAT => self.least_received.load(Ordering::Relaxed),
            SO_BUF_LOCK => self.fixed_buffers.load(Ordering::Relaxed),
            // Only packets of TCP go other ways than before when none arrives.
            SO_TXREHASH => return Err(Errno::EOPNOTSUPP),
            SO_SNDLOWAT => 1,
            SO_PEEK_OFF => self.peek_offset.load(Ordering::Relaxed).cast_unsigned(),
            SO_LOCK_FILTER => u32::from(self.filter_locked.load(Ordering::Relaxed)),
            SO_BUSY_POLL => self.busy_poll.load(Ordering::Relaxed),
            SO_ZEROCOPY | SO_REUSEPORT | SO_BSDCOMPAT | SO_INCOMING_NAPI_ID => 0,
            SO_INCOMING_CPU => self.incoming_cpu.load(Ordering::Relaxed).cast_unsigned(),
            SO_MAX_PACING_RATE => return Ok(self.pacing_rate(room)),
            SO_BINDTODEVICE => return Ok(Vec::new()),
            SO_BPF_EXTENSIONS => BPF_FACTS,
            SO_COOKIE if room < size_of::<u64>() => return Err(Errno::EINVAL),
            SO_COOKIE => return Ok(self.cookie.to_ne_bytes().to_vec()),
            SO_PEERCRED => {
                let seen = |peer: PeerCreds| peer.creds.seen_by(&*caller::current());
                return Ok(socket.peer_creds().map_or(Ucred::NOBODY, seen).as_bytes().to_vec());
            }
            SO_PEERGROUPS => {
                let peer = socket.peer_creds().ok_or(Errno::ENODATA)?;
                return Ok(peer.groups.iter().flat_map(|group| group.to_ne_bytes()).collect());
            }
            SO_LINGER => return Ok(self.linger.load(Ordering::Relaxed).to_ne_bytes().to_vec()),
            SO_RCVTIMEO | SO_RCVTIMEO_NEW => return Ok(self.timeout(0)),
            SO_SNDTIMEO | SO_SNDTIMEO_NEW => return Ok(self.timeout(1)),
            _ if is_switch(name) => u32::from(self.is_on(name)),
            _ => return socket.option(SOL_SOCKET, name, room),
        };
        Ok(number.to_ne_bytes().to_vec())
    }

    /// The rate, as a long or, where there is no room for that, as an int.
    fn pacing_rate(&self, room: usize) -> Vec<u8> {
        let rate = self.pacing_rate.load(Ordering::Relaxed);
        if room >= size_of::<u64>() {
            rate.to_ne_bytes().to_vec()
        } else {
            u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes().to_vec()
        }
    }

    fn timeout(&self, which: usize) -> Vec<u8> {
        let timeout = self.timeouts[which].load(Ordering::Relaxed);
        let micros = if timeout == FOR_EVER { 0 } else { (timeout / 1000).cast_signed() };
        [micros / MICRO, micros % MICRO].as_bytes().to_vec()
    }

    fn is_on(&self, switch: u32) -> bool {
        self.switches[switch as usize / 64].load(Ordering::Relaxed) & (1 << (switch % 64)) != 0
    }

    /// The control message that tells when a message came, as `struct timeval` or `struct timespec`, if that is wanted.
    pub fn stamp(&self, now_ns: u64) -> Option<(u32, [u64; 2])> {
        let kind = STAMPS.into_iter().find(|kind| self.is_on(*kind))?;
        let unit = if matches!(kind, SO_TIMESTAMP | SO_TIMESTAMP_NEW) { 1000 } else { 1 };
        Some((kind, [now_ns / time::NSEC, now_ns % time::NSEC / unit]))
    }

    fn switch(&self, switch: u32, on: bool) {
        let (word, bit) = (&self.switches[switch as usize / 64], 1 << (switch % 64));
        if on {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// `setsockopt(2)` of level `SOL_SOCKET`.
    pub fn set(&self, socket: &dyn Socket, name: u32, value: &[u8]) -> Result<()> {
        if name != SO_BINDTODEVICE {
            int(value)?;
        }
        match name {
            _ if is_fixed(name) => return Err(Errno::ENOPROTOOPT),
            SO_RCVTIMEO | SO_RCVTIMEO_NEW => return self.set_timeout(0, value),
            SO_SNDTIMEO | SO_SNDTIMEO_NEW => return self.set_timeout(1, value),
            SO_LINGER => return self.set_linger(socket, value),
            SO_ATTACH_FILTER | SO_ATTACH_BPF | SO_DETACH_FILTER | SO_LOCK_FILTER => {
                return self.change_filter(socket, name, value);
            }
            _ => {}
        }
        if socket.has_host_options() {
            return match name {
                SO_BUSY_POLL => self.set_busy_poll(int(value)?),
                SO_MARK => self.set_mark(int(value)?),
                SO_PASSCRED | SO_PASSPIDFD | SO_BSDCOMPAT => Ok(()),
                _ if is_switch(name) && is_kept(name) => {
                    self.switch(name, int(value)? != 0);
                    Ok(())
                }
                // The network tells of no credentials.
                _ if is_kept(name) => Ok(()),
                _ => socket.set_option(SOL_SOCKET, name, value),
            };
        }
        self.set_kept(socket, name, value)
    }

    /// Sets an option of a socket that is the kernel's own.
    fn set_kept(&self, socket: &dyn Socket, name: u32, value: &[u8]) -> Result<()> {
        let number = int(value)?;
        let creds = caller::current().creds();
        match name {
            SO_SNDBUF => self.fix_buffer(SEND_FIXED, buffer_size(number, SEND_BUFFER_LEAST)),
            SO_RCVBUF => self.fix_buffer(RECEIVE_FIXED, buffer_size(number, RECEIVE_BUFFER_LEAST)),
            SO_SNDBUFFORCE | SO_RCVBUFFORCE if !creds.has(CAP_NET_ADMIN) => return Err(Errno::EPERM),
            SO_SNDBUFFORCE => self.fix_buffer(SEND_FIXED, forced_size(number, SEND_BUFFER_LEAST)),
            SO_RCVBUFFORCE => self.fix_buffer(RECEIVE_FIXED, forced_size(number, RECEIVE_BUFFER_LEAST)),
            SO_BUF_LOCK => {
                let fixed = u32::try_from(number).ok().filter(|fixed| *fixed <= SEND_FIXED | RECEIVE_FIXED);
                self.fixed_buffers.store(fixed.ok_or(Errno::EINVAL)?, Ordering::Relaxed);
            }
            SO_TXREHASH => return Err(Errno::EOPNOTSUPP),
            SO_PASSCRED | SO_PASSPIDFD => {
                let which = if name == SO_PASSCRED { &self.pass_creds } else { &self.pass_pidfd };
                which.store(number != 0, Ordering::Relaxed);
                socket.set_wants_creds(self.wants_creds());
            }
            SO_PRIORITY if !(0..=PRIORITY_FREE).contains(&number) && !may_steer(&creds) => {
                return Err(Errno::EPERM);
            }
            SO_PRIORITY => self.priority.store(number.cast_unsigned(), Ordering::Relaxed),
            SO_MARK => return self.set_mark(number),
            SO_RCVLOWAT => {
                let least = u32::try_from(number).unwrap_or(i32::MAX.cast_unsigned()).max(1);
                self.least_received.store(least, Ordering::Relaxed);
            }
            SO_PEEK_OFF => self.peek_offset.store(number, Ordering::Relaxed),
            SO_BUSY_POLL => return self.set_busy_poll(number),
            SO_INCOMING_CPU => self.incoming_cpu.store(number, Ordering::Relaxed),
            SO_MAX_PACING_RATE => {
                let long = value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
                let short = if number == -1 { u64::MAX } else { u64::from(number.cast_unsigned()) };
                self.pacing_rate.store(long.unwrap_or(short), Ordering::Relaxed);
            }
            SO_BSDCOMPAT => {}
            SO_REUSEPORT if number == 0 => {}
            SO_REUSEPORT | SO_ZEROCOPY => return Err(Errno::EOPNOTSUPP),
            SO_DEBUG if number != 0 && !creds.has(CAP_NET_ADMIN) => return Err(Errno::EACCES),
            _ if is_switch(name) => {
                // Of the ways to tell the time there is one at a time.
                if STAMPS.contains(&name) {
                    STAMPS.iter().for_each(|other| self.switch(*other, false));
                }
                self.switch(name, number != 0);
            }
            _ => return socket.set_option(SOL_SOCKET, name, value),
        }
        Ok(())
    }

    /// A buffer gets a size that a program has chosen.
    fn fix_buffer(&self, which: u32, bytes: usize) {
        let buffer = if which == SEND_FIXED { &self.send_buffer } else { &self.receive_buffer };
        buffer.store(bytes, Ordering::Relaxed);
        self.fixed_buffers.fetch_or(which, Ordering::Relaxed);
    }

    /// `SO_ATTACH_FILTER` and what belongs to it.
    fn change_filter(&self, socket: &dyn Socket, name: u32, value: &[u8]) -> Result<()> {
        let locked = self.filter_locked.load(Ordering::Relaxed);
        match name {
            SO_LOCK_FILTER if locked && int(value)? == 0 => return Err(Errno::EPERM),
            SO_LOCK_FILTER => self.filter_locked.store(int(value)? != 0, Ordering::Relaxed),
            // Programs of the extended kind come from `bpf(2)`, which is not there.
            SO_ATTACH_BPF if locked => return Err(Errno::EPERM),
            SO_ATTACH_BPF => {
                let files = caller::current().files().ok_or(Errno::EBADF)?;
                return files.get(int(value)?).and(Err(Errno::EINVAL));
            }
            SO_DETACH_FILTER if locked => return Err(Errno::EPERM),
            SO_DETACH_FILTER if !self.has_filter.load(Ordering::Relaxed) => return Err(Errno::ENOENT),
            SO_DETACH_FILTER => {
                socket.set_filter(None)?;
                self.has_filter.store(false, Ordering::Relaxed);
            }
            _ => {
                let aspace = caller::current().aspace().ok_or(Errno::EFAULT)?;
                let filter = Filter::read(&UserMemory::new(aspace), value)?;
                if locked {
                    return Err(Errno::EPERM);
                }
                socket.set_filter(Some(Arc::new(filter)))?;
                self.has_filter.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// `SO_MARK`: kept. Only filters and routes of the sandbox's own would look at it, and there are none.
    fn set_mark(&self, mark: i32) -> Result<()> {
        if !may_steer(&caller::current().creds()) {
            return Err(Errno::EPERM);
        }
        self.mark.store(mark.cast_unsigned(), Ordering::Relaxed);
        Ok(())
    }

    /// `SO_BUSY_POLL`: kept, though nobody here polls for longer.
    fn set_busy_poll(&self, micros: i32) -> Result<()> {
        self.busy_poll.store(u32::try_from(micros).map_err(|_| Errno::EINVAL)?, Ordering::Relaxed);
        Ok(())
    }

    /// `SO_LINGER`. The host is told only to reset connections: it must not make anybody wait. Waiting is done by
    /// [`Self::linger_ns`].
    fn set_linger(&self, socket: &dyn Socket, value: &[u8]) -> Result<()> {
        let linger: [u8; 8] = *value.first_chunk().ok_or(Errno::EINVAL)?;
        if socket.has_host_options() {
            let resets = linger[..4] != [0; 4] && linger[4..] == [0; 4];
            let host = [i32::from(resets), 0];
            socket.set_option(SOL_SOCKET, SO_LINGER, host.as_bytes())?;
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
        self.mark.store(listener.mark.load(Ordering::Relaxed), Ordering::Relaxed);
        self.pass_creds.store(listener.passes_creds(), Ordering::Relaxed);
        self.pass_pidfd.store(listener.passes_pidfd(), Ordering::Relaxed);
    }

    fn set_timeout(&self, which: usize, value: &[u8]) -> Result<()> {
        let seconds = i64::from_ne_bytes(*value.first_chunk().ok_or(Errno::EINVAL)?);
        let micros = i64::from_ne_bytes(*value.get(8..).and_then(<[u8]>::first_chunk).ok_or(Errno::EINVAL)?);
        if !(0..MICRO).contains(&micros) {
            return Err(Errno::EDOM);
        }
        let timeout = match u64::try_from(seconds) {
            Ok(0) if micros == 0 => FOR_EVER,
            Ok(seconds) => {
                // In ticks of Linux's clock, rounded up.
                let part = (micros.cast_unsigned() * 1000).next_multiple_of(TICK_NS);
                seconds.saturating_mul(time::NSEC).saturating_add(part)
            }
            // A negative time is over at once.
            Err(_) => 0,
        };
        self.timeouts[which].store(timeout, Ordering::Relaxed);
        Ok(())
    }
}

/// Twice the size that was asked for, as Linux accounts its own overhead.
fn buffer_size(asked: i32, least: usize) -> usize {
    let asked = usize::try_from(asked).unwrap_or(usize::MAX).min(BUFFER_DEFAULT);
    (asked * 2).max(least)
}

/// Twice the size that was asked for, without the limit that unprivileged programs have to keep to.
fn forced_size(asked: i32, least: usize) -> usize {
    (usize::try_from(asked).unwrap_or(0).min(BUFFER_FORCED_MAX) * 2).max(least)
}
