//! Options of internet sockets: those that are kept here or refused, and those of the host's socket.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::net::families::{AF_INET, SOL_SOCKET};
use crate::net::{route, settings};
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::objects::{OptionEffect, SetOption, VALUE_MAX};
use machine::socket as hs;

use super::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPPROTO_UDP, IPV6_2292PKTINFO, IPV6_PKTINFO, InetSocket};

const IP_UNICAST_IF: u32 = 50;
const IPV6_UNICAST_IF: u32 = 76;
const TCP_CONGESTION: u32 = 13;
const TCP_ULP: u32 = 31;
const SO_DEBUG: u32 = 1;
const SO_SNDBUFFORCE: u32 = 32;
const SO_RCVBUFFORCE: u32 = 33;
const SO_BINDTODEVICE: u32 = 25;
const SO_BINDTOIFINDEX: u32 = 62;
const SO_ZEROCOPY: u32 = 60;
const IP_ADD_MEMBERSHIP: u32 = 35;
const IP_DROP_MEMBERSHIP: u32 = 36;
const IP_UNBLOCK_SOURCE: u32 = 37;
const IP_BLOCK_SOURCE: u32 = 38;
const IP_ADD_SOURCE_MEMBERSHIP: u32 = 39;
const IP_DROP_SOURCE_MEMBERSHIP: u32 = 40;
const IPV6_ADD_MEMBERSHIP: u32 = 20;
const IPV6_DROP_MEMBERSHIP: u32 = 21;
const MCAST_JOIN_GROUP: u32 = 42;
const MCAST_BLOCK_SOURCE: u32 = 43;
const MCAST_UNBLOCK_SOURCE: u32 = 44;
const MCAST_LEAVE_GROUP: u32 = 45;
const MCAST_JOIN_SOURCE_GROUP: u32 = 46;
const MCAST_LEAVE_SOURCE_GROUP: u32 = 47;

/// Options that hold beside what was set before, each with the one that ends it (`ip(7)`, `ipv6(7)`): memberships and blocked sources. Both
/// families have the same numbers for those that begin with `MCAST_`.
const MEMBERSHIPS: &[(u32, u32, u32)] = &[
    (IPPROTO_IP, IP_ADD_MEMBERSHIP, IP_DROP_MEMBERSHIP),
    (IPPROTO_IP, IP_BLOCK_SOURCE, IP_UNBLOCK_SOURCE),
    (IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, IP_DROP_SOURCE_MEMBERSHIP),
    (IPPROTO_IP, MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP),
    (IPPROTO_IP, MCAST_BLOCK_SOURCE, MCAST_UNBLOCK_SOURCE),
    (IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, MCAST_LEAVE_SOURCE_GROUP),
    (IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, IPV6_DROP_MEMBERSHIP),
    (IPPROTO_IPV6, MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP),
    (IPPROTO_IPV6, MCAST_BLOCK_SOURCE, MCAST_UNBLOCK_SOURCE),
    (IPPROTO_IPV6, MCAST_JOIN_SOURCE_GROUP, MCAST_LEAVE_SOURCE_GROUP),
];

/// The effect of an option on those that were set before.
fn effect(level: u32, name: u32) -> OptionEffect {
    let own = MEMBERSHIPS.iter().filter(|(of, ..)| *of == level);
    let mut effects = own.filter_map(|(_, begins, ends)| match name {
        _ if name == *begins => Some(OptionEffect::Adds),
        _ if name == *ends => Some(OptionEffect::Ends(*begins)),
        _ => None,
    });
    effects.next().unwrap_or(OptionEffect::Replaces)
}

impl InetSocket {
    /// Reads an option, as `getsockopt(2)` does.
    pub(super) fn get_option(&self, level: u32, name: u32, room: usize) -> Result<Vec<u8>> {
        if self.family == AF_INET && !self.knows(level) {
            return Err(Errno::EOPNOTSUPP);
        }
        if (level, name) == (SOL_SOCKET, SO_ZEROCOPY) {
            return Ok(u32::from(self.zero_copy.lock().is_on()).to_ne_bytes().to_vec());
        }
        if self.is_upper_layer(level, name) {
            return Ok(Vec::new());
        }
        if self.knows(level)
            && let Some(kept) = self.unicast_interface(level, name)
        {
            return Ok(kept.load(Ordering::Relaxed).to_ne_bytes().to_vec());
        }
        hs::option(&self.handle, level, name, room)
    }

    /// Changes an option, as `setsockopt(2)` does.
    pub(super) fn change_option(&self, level: u32, name: u32, value: &[u8]) -> Result<()> {
        if level == SOL_SOCKET {
            match name {
                SO_SNDBUFFORCE | SO_RCVBUFFORCE => return Err(Errno::EPERM),
                // A device leads around the routes.
                SO_BINDTODEVICE | SO_BINDTOIFINDEX if !settings::devices_may_be_chosen() => {
                    return Err(Errno::EPERM);
                }
                SO_ZEROCOPY if !matches!(self.protocol, IPPROTO_TCP | IPPROTO_UDP) => {
                    return Err(Errno::EOPNOTSUPP);
                }
                SO_ZEROCOPY => return self.zero_copy.lock().set(value),
                SO_DEBUG => {
                    return if value.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(Errno::EACCES) };
                }
                _ => {}
            }
        }
        let is_transport = level == self.protocol && matches!(level, IPPROTO_TCP | IPPROTO_UDP);
        let is_name = matches!(name, TCP_CONGESTION | TCP_ULP);
        if is_transport && (value.is_empty() || (value.len() < 4 && !is_name)) {
            return Err(Errno::EINVAL);
        }
        if self.is_upper_layer(level, name) {
            return Err(Errno::ENOENT);
        }
        if !self.knows(level) {
            return Err(Errno::ENOPROTOOPT);
        }
        if let Some(kept) = self.unicast_interface(level, name) {
            let index: [u8; 4] = *value.first_chunk().ok_or(Errno::EINVAL)?;
            let number = u32::from_be_bytes(index);
            if number != 0 && !route::links()?.iter().any(|link| link.index == number) {
                return Err(Errno::EADDRNOTAVAIL);
            }
            kept.store(u32::from_ne_bytes(index), Ordering::Relaxed);
            return Ok(());
        }
        let mut value = Cow::Borrowed(value);
        if level == IPPROTO_IPV6
            && matches!(name, IPV6_PKTINFO | IPV6_2292PKTINFO)
            && !settings::devices_may_be_chosen()
            && let Some(index) = value.to_mut().get_mut(16..)
        {
            // As in messages ([`leave_to_routes`](crate::syscall::message)).
            index.fill(0);
        }
        hs::set_option(&self.handle, level, name, &value)?;
        let has_room = account::check(VALUE_MAX).is_ok();
        let option = if has_room { SetOption::new(level, name, &value) } else { None };
        self.handle.note_option(option, effect(level, name));
        // The rule for readability may have changed (urgent data in line, least amounts).
        self.readiness.touched();
        Ok(())
    }

    /// Where it keeps the interface that an option names for what goes to one receiver; `None`: the host does.
    fn unicast_interface(&self, level: u32, name: u32) -> Option<&AtomicU32> {
        match (level, name) {
            _ if settings::devices_may_be_chosen() => None,
            (IPPROTO_IP, IP_UNICAST_IF) => Some(&self.unicast_interfaces[0]),
            (IPPROTO_IPV6, IPV6_UNICAST_IF) => Some(&self.unicast_interfaces[1]),
            _ => None,
        }
    }

    /// Whether an option names the layer above TCP (`tls`), of which none is offered.
    fn is_upper_layer(&self, level: u32, name: u32) -> bool {
        self.protocol == IPPROTO_TCP && (level, name) == (IPPROTO_TCP, TCP_ULP)
    }

    /// Whether options of a level may be the socket's.
    fn knows(&self, level: u32) -> bool {
        let is_ip = level == IPPROTO_IP || (level == IPPROTO_IPV6 && self.family != AF_INET);
        is_ip || level == SOL_SOCKET || level == self.protocol
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_add_up_and_end_what_they_began() {
        for (level, name, wanted) in [
            (IPPROTO_IP, IP_ADD_MEMBERSHIP, OptionEffect::Adds),
            (IPPROTO_IP, IP_DROP_SOURCE_MEMBERSHIP, OptionEffect::Ends(IP_ADD_SOURCE_MEMBERSHIP)),
            (IPPROTO_IP, IP_UNBLOCK_SOURCE, OptionEffect::Ends(IP_BLOCK_SOURCE)),
            (IPPROTO_IPV6, MCAST_LEAVE_GROUP, OptionEffect::Ends(MCAST_JOIN_GROUP)),
            (IPPROTO_IPV6, IPV6_DROP_MEMBERSHIP, OptionEffect::Ends(IPV6_ADD_MEMBERSHIP)),
            (IPPROTO_IPV6, IP_ADD_MEMBERSHIP, OptionEffect::Replaces),
            (SOL_SOCKET, MCAST_JOIN_GROUP, OptionEffect::Replaces),
            (IPPROTO_TCP, 1, OptionEffect::Replaces),
        ] {
            assert_eq!(effect(level, name), wanted, "{level} {name}");
        }
        let all = |level| {
            (0..64).filter(|name| effect(level, *name) != OptionEffect::Replaces).collect::<Vec<u32>>()
        };
        assert_eq!(all(IPPROTO_IP), [35, 36, 37, 38, 39, 40, 42, 43, 44, 45, 46, 47]);
        assert_eq!(all(IPPROTO_IPV6), [20, 21, 42, 43, 44, 45, 46, 47]);
    }
}
