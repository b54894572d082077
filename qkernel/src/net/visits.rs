//! Visitors that do not restart the idle time, such as the node with its probes. They are answered, and wake a sandbox that
//! sleeps; but it is as idle as before, and sleeps again as soon as they have gone.
//!
//! A socket's events do not tell who is there. So those of listening sockets, of new connections and of datagram sockets count for
//! nothing by themselves (`Readiness::count`), until a connection has been accepted or a datagram received from an address: that of
//! anybody else is noted here. Unless addresses are given nothing of this is done.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::address::{Address, AddressPrefix, of_v4};
use machine::host_fact::HostFact;
use machine::sync::{Rank, SpinLock};
use machine::time;

use crate::net::families::{AF_INET, AF_INET6};

static IGNORED: HostFact<Vec<AddressPrefix>> = HostFact::unknown();
/// There are some: every arrival looks here.
static ARE_TOLD_APART: AtomicBool = AtomicBool::new(false);
/// When somebody else came last.
static COUNTED_NS: AtomicU64 = AtomicU64::new(0);
static OPEN: SpinLock<Open> = SpinLock::new(Rank::Leaf, Open { sleeps: 0, connections: 0 });

/// Connections that were accepted from ignored addresses since the sandbox last slept.
struct Open {
    sleeps: u64,
    connections: u64,
}

/// An open connection from an ignored address.
pub struct Visit {
    /// How often the sandbox had slept when it was accepted.
    sleeps: u64,
}

/// Ignores visitors with these addresses.
pub fn ignore(addresses: Vec<AddressPrefix>) {
    IGNORED.set(addresses);
    ARE_TOLD_APART.store(true, Ordering::Relaxed);
}

/// Whether there are any to be ignored.
pub fn are_told_apart() -> bool {
    ARE_TOLD_APART.load(Ordering::Relaxed)
}

/// A connection from this address (`sockaddr` bytes) was accepted; `None`: it counts, and so does what comes over it.
pub fn accepted(address: &[u8]) -> Option<Visit> {
    if !is_ignored(address) {
        note();
        return None;
    }
    let mut open = OPEN.lock();
    open.connections += 1;
    Some(Visit { sleeps: open.sleeps })
}

/// A datagram from this address was received.
pub fn received(address: &[u8]) {
    if are_told_apart() && !is_ignored(address) {
        note();
    }
}

fn note() {
    if are_told_apart() {
        COUNTED_NS.store(time::monotonic_ns(), Ordering::Relaxed);
    }
}

/// When somebody came last who is not ignored, in nanoseconds of the monotonic clock; 0: nobody so far.
pub fn counted_ns() -> u64 {
    COUNTED_NS.load(Ordering::Relaxed)
}

/// The sandbox is about to hibernate: connections that are open stand for nobody who waits for an answer.
pub fn begin_sleep() {
    let mut open = OPEN.lock();
    open.sleeps += 1;
    open.connections = 0;
}

/// Whether a connection is open that was accepted from an ignored address since the sandbox last slept.
pub fn is_any_open() -> bool {
    OPEN.lock().connections > 0
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut open = OPEN.lock();
        if open.sleeps == self.sleeps {
            open.connections = open.connections.saturating_sub(1);
        }
    }
}

fn is_ignored(address: &[u8]) -> bool {
    let (Some(ignored), Some(address)) = (IGNORED.get(), internet(address)) else { return false };
    ignored.iter().any(|prefix| prefix.has(&address))
}

/// The internet address in `sockaddr` bytes.
pub fn internet(address: &[u8]) -> Option<Address> {
    let (family, rest) = address.split_first_chunk()?;
    match u16::from_ne_bytes(*family) {
        // Behind the port, and for IPv6 the flow.
        AF_INET => Some(of_v4(*rest.get(2..)?.first_chunk()?)),
        AF_INET6 => rest.get(6..)?.first_chunk().copied(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_whatever_the_host_says() {
        let mut v4 = [0; 16];
        v4[..8].copy_from_slice(&[2, 0, 0x1f, 0x90, 10, 88, 0, 1]);
        assert_eq!(internet(&v4), Some(of_v4([10, 88, 0, 1])));
        let mut v6 = [0; 28];
        (v6[0], v6[8], v6[23]) = (10, 0xfd, 9);
        assert_eq!(internet(&v6).map(|address| (address[0], address[15])), Some((0xfd, 9)));
        for bad in [&v4[..7], &v6[..23], &[1, 0, 0, 0], &[2], &[]] {
            assert_eq!(internet(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn visitors_are_told_apart_and_counted_while_they_are_open() {
        assert!(accepted(&[2, 0, 0, 0, 10, 0, 0, 1]).is_none() && counted_ns() == 0, "nothing is noted");
        ignore([AddressPrefix::v4([10, 0, 0, 0], 8).unwrap()].into());
        let (node, other) = ([2, 0, 0, 1, 10, 0, 0, 1], [2, 0, 0, 1, 11, 0, 0, 1]);
        let first = accepted(&node);
        assert!(first.is_some() && is_any_open());
        received(&node);
        assert_eq!(counted_ns(), 0);
        // One that is open from before a sleep does not count, and takes nothing away when it goes.
        begin_sleep();
        assert!(!is_any_open());
        let second = accepted(&node);
        drop(first);
        assert!(is_any_open());
        drop(second);
        assert!(!is_any_open());
        assert!(accepted(&other).is_none() && !is_any_open());
        assert!(accepted(&[]).is_none(), "who cannot be told is anybody");
    }
}
