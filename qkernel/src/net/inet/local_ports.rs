//! The ports that sockets get which name none, where programs have said what these are (`ip_local_port_range`). The host's network
//! has a range of its own, which it would choose from; so the port is chosen here, as Linux does it: by trying.

use alloc::vec::Vec;

use crate::net::settings;
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::sched;
use machine::socket as hs;

const SOL_SOCKET: u32 = 1;
const SO_REUSEADDR: u32 = 2;
const SO_REUSEPORT: u32 = 15;
/// Bytes of `struct sockaddr_in` and `sockaddr_in6`.
const IPV4_BYTES: usize = 16;
const IPV6_BYTES: usize = 28;
/// The place of a port in either.
const PORT: core::ops::Range<usize> = 2..4;

/// The port of an address, in which it may be missing.
pub(super) fn port_of(address: &[u8]) -> u16 {
    address.get(PORT).and_then(<[u8]>::first_chunk).map_or(0, |port| u16::from_be_bytes(*port))
}

/// All ports of a range, each once, from an arbitrary one on.
fn all_from(low: u16, high: u16, start: u32) -> impl Iterator<Item = u16> {
    let count = u32::from(high.saturating_sub(low)) + 1;
    (0..count).map(move |step| {
        let offset = (u64::from(start) + u64::from(step)) % u64::from(count);
        low.saturating_add(u16::try_from(offset).unwrap_or(0))
    })
}

/// A socket that may want a port.
pub(super) struct Unbound<'a> {
    pub handle: &'a Handle,
    pub family: u16,
    /// Its addresses are those of IPv4, not IPv6.
    pub is_ipv4: bool,
    /// Its protocol has ports.
    pub has_ports: bool,
}

impl Unbound<'_> {
    /// Binds to an address; where it has no port, to one of the range.
    pub(super) fn bind_to(&self, address: &[u8]) -> Result<()> {
        match settings::local_ports().filter(|_| self.has_ports && port_of(address) == 0) {
            Some(range) if address.len() >= IPV4_BYTES => self.bind_to_any_of(address, range),
            _ => hs::bind(self.handle, address),
        }
    }

    /// Gives a socket that has no port, and is about to be used, one of the range.
    pub(super) fn bind(&self) -> Result<()> {
        let Some(range) = settings::local_ports().filter(|_| self.has_ports) else { return Ok(()) };
        if port_of(&hs::name(self.handle, false)?) != 0 {
            return Ok(());
        }
        let mut address = alloc::vec![0; if self.is_ipv4 { IPV4_BYTES } else { IPV6_BYTES }];
        address[..2].copy_from_slice(&self.family.to_ne_bytes());
        self.bind_to_any_of(&address, range)
    }

    /// Nobody shares a port by chance: meanwhile the socket is none that would share one.
    fn bind_to_any_of(&self, address: &[u8], range: (u16, u16)) -> Result<()> {
        let mut shares: Vec<(u32, Vec<u8>)> = Vec::new();
        for name in [SO_REUSEADDR, SO_REUSEPORT] {
            let value = hs::option(self.handle, SOL_SOCKET, name, size_of::<i32>())?;
            if value.iter().any(|byte| *byte != 0) {
                hs::set_option(self.handle, SOL_SOCKET, name, &0_i32.to_ne_bytes())?;
                shares.push((name, value));
            }
        }
        let result = self.try_ports(address, range);
        for (name, value) in shares {
            hs::set_option(self.handle, SOL_SOCKET, name, &value)?;
        }
        result
    }

    fn try_ports(&self, address: &[u8], (low, high): (u16, u16)) -> Result<()> {
        let mut start = [0; 4];
        machine::random::fill(&mut start);
        let mut address = address.to_vec();
        for port in all_from(low, high, u32::from_ne_bytes(start)) {
            address[PORT].copy_from_slice(&port.to_be_bytes());
            match hs::bind(self.handle, &address) {
                Err(Errno::EADDRINUSE) => sched::go_on()?,
                result => return result,
            }
        }
        Err(Errno::EADDRINUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_of_a_range_is_tried_once() {
        let mut ports: Vec<u16> = all_from(65_533, 65_535, u32::MAX).collect();
        assert_eq!(ports.len(), 3);
        ports.sort_unstable();
        assert_eq!(ports, [65_533, 65_534, 65_535]);
        assert_eq!(all_from(7, 7, 12).collect::<Vec<_>>(), [7]);
        assert_eq!(all_from(1, u16::MAX, 5).count(), 65_535);
        assert_eq!((port_of(&[2, 0, 0x12, 0x34]), port_of(&[2, 0])), (0x1234, 0));
    }
}
