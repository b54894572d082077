//! The network of the sandbox: the host's answers to `rtnetlink(7)` questions, and their content.

use abi::word::to_usize;
use alloc::vec;
use alloc::vec::Vec;

use machine::errno::{Errno, Result};
use machine::host;

/// `struct nlmsghdr`.
pub const HEADER_BYTES: usize = 16;
pub const NLM_F_REQUEST: u16 = 0x1;
/// `NLM_F_DUMP`: everything there is.
const NLM_F_DUMP: u16 = 0x300;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
pub const AF_INET: u8 = 2;
pub const AF_INET6: u8 = 10;
/// First room for a reply; most networks fit.
const REPLY_BYTES: usize = 32 << 10;
const REPLY_MAX: usize = to_usize(abi::socket::ROUTE_REPLY_MAX);

/// Asks the host one question; result: the messages of its answer. See [`abi::socket::ROUTE_QUERY`].
pub fn ask(request: &[u8], strict: bool) -> Result<Vec<u8>> {
    if cfg!(test) {
        return Err(Errno::ENOSYS);
    }
    let mut room = REPLY_BYTES;
    loop {
        let mut reply = vec![0; room];
        match host::route_query(request, &mut reply, strict) {
            Err(Errno::EMSGSIZE) if room < REPLY_MAX => room = REPLY_MAX.min(room * 8),
            Err(Errno::EMSGSIZE) => return Err(Errno::ENOBUFS),
            Err(error) => return Err(error),
            Ok(len) => {
                reply.truncate(len);
                return Ok(reply);
            }
        }
    }
}

/// Everything of one kind, of one address family or (0) of all; `fixed`: bytes before the attributes.
fn dump(kind: u16, family: u8, fixed: usize) -> Result<Vec<u8>> {
    let mut request = vec![0; HEADER_BYTES + fixed];
    let len = u32::try_from(request.len()).map_err(|_| Errno::EINVAL)?;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request[HEADER_BYTES] = family;
    ask(&request, false)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// The messages in a buffer, each with its header. Ends at the first one that isn't whole.
pub struct Messages<'a>(pub &'a [u8]);

/// One message.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    /// Header and body.
    pub whole: &'a [u8],
}

impl<'a> Message<'a> {
    /// The part of the message after the header.
    fn body(&self) -> &'a [u8] {
        self.whole.get(HEADER_BYTES..).unwrap_or_default()
    }

    /// Where a route's user id is in the message.
    pub fn route_uid_at(&self) -> Option<usize> {
        const FIXED: usize = 12;
        const UID: u16 = 25;
        if self.kind != RTM_NEWROUTE {
            return None;
        }
        let mut attributes = self.attributes(FIXED);
        loop {
            let before = attributes.0.len();
            let (kind, value) = attributes.next()?;
            if kind == UID && value.len() == 4 {
                return Some(self.whole.len() - before + 4);
            }
        }
    }

    fn attributes(&self, fixed: usize) -> Attributes<'a> {
        Attributes(self.body().get(fixed..).unwrap_or_default())
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::try_from(u32_at(self.0, 0)).ok()?;
        let whole = self.0.get(..len).filter(|whole| whole.len() >= HEADER_BYTES)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind: u16_at(whole, 4), flags: u16_at(whole, 6), whole })
    }
}

/// The attributes of a message: kind and value.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16_at(self.0, 0));
        let value = self.0.get(4..len)?;
        let kind = u16_at(self.0, 2) & 0x3fff;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// A string attribute without its final zero.
fn text(value: &[u8]) -> Vec<u8> {
    value.split(|b| *b == 0).next().unwrap_or_default().to_vec()
}

/// An interface.
#[derive(Default)]
pub struct Link {
    pub index: u32,
    /// `ARPHRD_*`.
    pub hardware: u16,
    /// `IFF_*`.
    pub flags: u32,
    pub name: Vec<u8>,
    pub mtu: u32,
    pub queue: u32,
    pub address: Vec<u8>,
    pub broadcast: Vec<u8>,
    /// `IF_OPER_*`.
    pub state: u8,
    /// The interface it is made of.
    pub below: Option<u32>,
    /// How many users ask the interface to take every frame, and every frame to a group. A bridge asks without setting
    /// flags, so only these numbers tell.
    pub promiscuity: u32,
    pub all_multicast: u32,
    /// `struct rtnl_link_stats64`.
    pub stats: [u64; 24],
    /// `struct rtnl_link_ifmap` as far as `struct ifmap` has it.
    pub map: [u8; 24],
}

impl Link {
    /// The flags that the device has, as `sysfs` shows them: without those that Linux works out when it is asked, and
    /// with those in force, whoever set them.
    pub fn device_flags(&self) -> u32 {
        const RUNNING: u32 = 0x40;
        const PROMISC: u32 = 0x100;
        const ALLMULTI: u32 = 0x200;
        const LOWER_UP: u32 = 0x1_0000;
        const DORMANT: u32 = 0x2_0000;
        let in_force = |count, flag| if count > 0 { flag } else { 0 };
        (self.flags & !(RUNNING | LOWER_UP | DORMANT))
            | in_force(self.promiscuity, PROMISC)
            | in_force(self.all_multicast, ALLMULTI)
    }

    /// A loopback interface.
    pub fn loopback() -> Self {
        let name = b"lo".to_vec();
        let address = vec![0; 6];
        let broadcast = vec![0; 6];
        let link = Self { index: 1, hardware: 772, flags: 0x1_0049, name, mtu: 65536, ..Self::default() };
        Self { queue: 1000, address, broadcast, ..link }
    }
}

/// The interfaces.
pub fn links() -> Result<Vec<Link>> {
    const FIXED: usize = 16;
    let answer = dump(RTM_GETLINK, 0, FIXED)?;
    let new = Messages(&answer).filter(|message| message.kind == RTM_NEWLINK);
    Ok(new.map(|message| link(&message, FIXED)).collect())
}

fn link(message: &Message<'_>, fixed: usize) -> Link {
    const ADDRESS: u16 = 1;
    const BROADCAST: u16 = 2;
    const NAME: u16 = 3;
    const BELOW: u16 = 5;
    const STATE: u16 = 16;
    const MTU: u16 = 4;
    const QUEUE: u16 = 13;
    const MAP: u16 = 14;
    const STATS: u16 = 23;
    const PROMISCUITY: u16 = 30;
    const ALL_MULTICAST: u16 = 61;
    let body = message.body();
    let mut link =
        Link { hardware: u16_at(body, 2), index: u32_at(body, 4), flags: u32_at(body, 8), ..Link::default() };
    for (kind, value) in message.attributes(fixed) {
        match kind {
            ADDRESS => link.address = value.to_vec(),
            BROADCAST => link.broadcast = value.to_vec(),
            BELOW => link.below = Some(u32_at(value, 0)),
            STATE => link.state = value.first().copied().unwrap_or(0),
            NAME => link.name = text(value),
            MTU => link.mtu = u32_at(value, 0),
            QUEUE => link.queue = u32_at(value, 0),
            PROMISCUITY => link.promiscuity = u32_at(value, 0),
            ALL_MULTICAST => link.all_multicast = u32_at(value, 0),
            MAP => link.map.iter_mut().zip(value).for_each(|(to, from)| *to = *from),
            STATS => {
                link.stats.iter_mut().enumerate().for_each(|(at, count)| *count = u64_at(value, at * 8));
            }
            _ => {}
        }
    }
    link
}

/// An address of an interface.
#[derive(Default)]
pub struct Address {
    pub index: u32,
    pub family: u8,
    pub prefix: u8,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    pub flags: u8,
    /// In network order.
    pub local: Vec<u8>,
    /// The other end of a point-to-point link, else the same.
    pub peer: Vec<u8>,
    pub broadcast: Vec<u8>,
    /// The interface's name, or an alias of it (IPv4).
    pub label: Vec<u8>,
}

/// The addresses of a family.
pub fn addresses(family: u8) -> Result<Vec<Address>> {
    const FIXED: usize = 8;
    const PEER: u16 = 1;
    const LOCAL: u16 = 2;
    const LABEL: u16 = 3;
    const BROADCAST: u16 = 4;
    let answer = dump(RTM_GETADDR, family, FIXED)?;
    let new = Messages(&answer).filter(|message| message.kind == RTM_NEWADDR);
    let read = new.map(|message| {
        let body = message.body();
        let byte = |at: usize| body.get(at).copied().unwrap_or(0);
        let mut address = Address {
            family: byte(0),
            prefix: byte(1),
            flags: byte(2),
            scope: byte(3),
            index: u32_at(body, 4),
            ..Address::default()
        };
        for (kind, value) in message.attributes(FIXED) {
            match kind {
                PEER => address.peer = value.to_vec(),
                LOCAL => address.local = value.to_vec(),
                LABEL => address.label = text(value),
                BROADCAST => address.broadcast = value.to_vec(),
                _ => {}
            }
        }
        if address.local.is_empty() {
            address.local.clone_from(&address.peer);
        }
        address
    });
    Ok(read.filter(|address| address.family == family).collect())
}

/// A route of the main table.
#[derive(Default)]
pub struct Route {
    pub prefix: u8,
    /// `RTN_*`.
    pub kind: u8,
    pub to: Vec<u8>,
    pub gateway: Vec<u8>,
    /// Interface it leads through; 0: none.
    pub index: u32,
    pub metric: u32,
}

/// The routes of a family's main table.
pub fn routes(family: u8) -> Result<Vec<Route>> {
    const FIXED: usize = 12;
    const TO: u16 = 1;
    const INDEX: u16 = 4;
    const GATEWAY: u16 = 5;
    const METRIC: u16 = 6;
    const MAIN: u8 = 254;
    let answer = dump(RTM_GETROUTE, family, FIXED)?;
    let new = Messages(&answer).filter(|message| message.kind == RTM_NEWROUTE);
    let main = new.filter(|message| message.body().get(4) == Some(&MAIN));
    let read = main.map(|message| {
        let byte = |at: usize| message.body().get(at).copied().unwrap_or(0);
        let mut route = Route { prefix: byte(1), kind: byte(7), ..Route::default() };
        for (kind, value) in message.attributes(FIXED) {
            match kind {
                TO => route.to = value.to_vec(),
                INDEX => route.index = u32_at(value, 0),
                GATEWAY => route.gateway = value.to_vec(),
                METRIC => route.metric = u32_at(value, 0),
                _ => {}
            }
        }
        route
    });
    Ok(read.collect())
}

/// A neighbour's address and the hardware address that answers for it.
#[derive(Default)]
pub struct Neighbour {
    pub index: u32,
    /// `NUD_*`.
    pub state: u16,
    pub address: Vec<u8>,
    pub hardware: Vec<u8>,
}

/// The neighbours of a family.
pub fn neighbours(family: u8) -> Result<Vec<Neighbour>> {
    const FIXED: usize = 12;
    const ADDRESS: u16 = 1;
    const HARDWARE: u16 = 2;
    let answer = dump(RTM_GETNEIGH, family, FIXED)?;
    let new = Messages(&answer).filter(|message| message.kind == RTM_NEWNEIGH);
    let read = new.map(|message| {
        let body = message.body();
        let mut neighbour =
            Neighbour { index: u32_at(body, 4), state: u16_at(body, 8), ..Neighbour::default() };
        for (kind, value) in message.attributes(FIXED) {
            match kind {
                ADDRESS => neighbour.address = value.to_vec(),
                HARDWARE => neighbour.hardware = value.to_vec(),
                _ => {}
            }
        }
        neighbour
    });
    Ok(read.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes =
            [&(4 + u16::try_from(value.len()).unwrap()).to_ne_bytes()[..], &kind.to_ne_bytes(), value]
                .concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(HEADER_BYTES + body.len()).unwrap();
        [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
    }

    #[test]
    fn a_link_is_read() {
        let head = [&[0, 0, 4, 3][..], &7_u32.to_ne_bytes(), &0x49_u32.to_ne_bytes(), &[0; 4]].concat();
        let stats: Vec<u8> = (0..24_u64).flat_map(u64::to_ne_bytes).collect();
        let body =
            [head, attribute(3, b"lo\0"), attribute(4, &65536_u32.to_ne_bytes()), attribute(23, &stats)]
                .concat();
        let bytes = message(RTM_NEWLINK, &body);
        let link = link(&Messages(&bytes).next().unwrap(), 16);
        assert_eq!((link.index, link.flags, link.mtu, link.hardware), (7, 0x49, 65536, 0x304));
        assert_eq!(link.name, b"lo");
        assert_eq!(link.stats[3], 3);
    }

    #[test]
    fn the_flags_of_a_device_are_those_in_force() {
        let head = [&[0, 0, 1, 0][..], &7_u32.to_ne_bytes(), &0x1_1043_u32.to_ne_bytes(), &[0; 4]].concat();
        let flags = |counts: &[(u16, u32)]| {
            let counts = counts.iter().map(|(kind, count)| attribute(*kind, &count.to_ne_bytes()));
            let body: Vec<u8> = [head.clone()].into_iter().chain(counts).flatten().collect();
            let bytes = message(RTM_NEWLINK, &body);
            link(&Messages(&bytes).next().unwrap(), 16).device_flags()
        };
        assert_eq!(flags(&[]), 0x1003);
        assert_eq!(flags(&[(30, 0), (61, 0)]), 0x1003);
        // A port of a bridge.
        assert_eq!(flags(&[(30, 1), (61, 1)]), 0x1303);
    }

    #[test]
    fn a_route_s_user_is_found() {
        let body = [vec![0; 12], attribute(1, &[127, 0, 0, 1]), attribute(25, &[7; 4])].concat();
        let bytes = message(RTM_NEWROUTE, &body);
        let at = Messages(&bytes).next().unwrap().route_uid_at().unwrap();
        assert_eq!(bytes[at..at + 4], [7; 4]);
        let other = message(RTM_NEWLINK, &body);
        assert!(Messages(&other).next().unwrap().route_uid_at().is_none());
    }

    #[test]
    fn what_is_cut_or_lies_ends_the_list() {
        let good = message(RTM_NEWLINK, &[0; 16]);
        assert_eq!(Messages(&[good.clone(), good.clone()].concat()).count(), 2);
        assert_eq!(Messages(&[&good[..], &good[..20]].concat()).count(), 1);
        for len in [0_u32, 15, u32::MAX] {
            let mut bad = good.clone();
            bad[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Messages(&bad).count(), 0, "{len}");
        }
        assert_eq!(Attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(Attributes(&[9, 0, 1, 0, 1]).count(), 0);
        assert_eq!(Attributes(&attribute(1, &[])).count(), 1);
    }
}
