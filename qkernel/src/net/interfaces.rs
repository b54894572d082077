//! `ioctl(2)` requests about interfaces (`netdevice(7)`), on sockets of any family. They change nothing.

use alloc::vec::Vec;

use crate::fs::caller::CallerCtx;
use crate::net::route;
use crate::net::route::{AF_INET, Address, Link};
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SIOCADDRT: u32 = 0x890b;
const SIOCDELRT: u32 = 0x890c;
const SIOCGIFNAME: u32 = 0x8910;
const SIOCGIFCONF: u32 = 0x8912;
const SIOCGIFFLAGS: u32 = 0x8913;
const SIOCGIFADDR: u32 = 0x8915;
const SIOCGIFDSTADDR: u32 = 0x8917;
const SIOCGIFBRDADDR: u32 = 0x8919;
const SIOCGIFNETMASK: u32 = 0x891b;
const SIOCGIFMETRIC: u32 = 0x891d;
const SIOCGIFMTU: u32 = 0x8921;
const SIOCGIFHWADDR: u32 = 0x8927;
const SIOCGIFINDEX: u32 = 0x8933;
const SIOCGIFBR: u32 = 0x8940;
const SIOCSIFBR: u32 = 0x8941;
const SIOCGIFTXQLEN: u32 = 0x8942;
const SIOCETHTOOL: u32 = 0x8946;
const SIOCGARP: u32 = 0x8954;
const SIOCGIFMAP: u32 = 0x8970;
const SIOCGIFVLAN: u32 = 0x8982;
const SIOCSIFVLAN: u32 = 0x8983;
const NAME_BYTES: usize = 16;

/// `struct ifreq`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct IfReq {
    name: [u8; NAME_BYTES],
    value: [u8; 24],
}
const _: () = assert!(size_of::<IfReq>() == 40);

/// `struct ifconf`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct IfConf {
    len: i32,
    pad: u32,
    at: UserAddr,
}

impl IfReq {
    fn new(name: &[u8], value: &[u8]) -> Self {
        let mut request = Self { name: [0; NAME_BYTES], value: [0; 24] };
        request.name.iter_mut().zip(name.iter().take(NAME_BYTES - 1)).for_each(|(to, from)| *to = *from);
        request.set(value);
        request
    }

    fn set(&mut self, value: &[u8]) {
        self.value.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
    }

    fn name(&self) -> &[u8] {
        self.name.split(|b| *b == 0).next().unwrap_or_default()
    }
}

/// `struct sockaddr_in` without a port.
fn sockaddr(address: &[u8]) -> Vec<u8> {
    let mut bytes = alloc::vec![AF_INET, 0, 0, 0];
    bytes.extend(address.iter().take(4));
    bytes.resize(16, 0);
    bytes
}

fn netmask(prefix: u8) -> [u8; 4] {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0).to_be_bytes()
}

/// Serves a request on a socket of this family; `ENOTTY` for one that isn't about interfaces.
pub fn ioctl(cx: &CallerCtx<'_>, family: u16, request: u32, arg: UserAddr) -> Result<u64> {
    match request {
        SIOCGIFCONF => list(cx, arg)?,
        SIOCGIFNAME => {
            let mut asked: IfReq = cx.user().read(arg)?;
            let index = u32::from_ne_bytes(*asked.value.first_chunk().ok_or(Errno::EINVAL)?);
            let links = route::links()?;
            let link = links.iter().find(|link| link.index == index).ok_or(Errno::ENODEV)?;
            asked.name = IfReq::new(&link.name, &[]).name;
            cx.user().write(arg, &asked)?;
        }
        SIOCGIFFLAGS | SIOCGIFMETRIC | SIOCGIFMTU | SIOCGIFHWADDR | SIOCGIFINDEX | SIOCGIFTXQLEN
        | SIOCGIFMAP => {
            let mut asked: IfReq = cx.user().read(arg)?;
            let value = of_link(request, &find(asked.name())?);
            asked.set(&value);
            cx.user().write(arg, &asked)?;
        }
        // Only IPv4 sockets know of addresses.
        SIOCGIFADDR | SIOCGIFDSTADDR | SIOCGIFBRDADDR | SIOCGIFNETMASK if family == u16::from(AF_INET) => {
            let mut asked: IfReq = cx.user().read(arg)?;
            let value = of_address(request, &address_of(asked.name())?);
            asked.set(&sockaddr(&value));
            cx.user().write(arg, &asked)?;
        }
        SIOCETHTOOL => return Err(Errno::EOPNOTSUPP),
        SIOCGARP => return Err(Errno::ENXIO),
        // Linux' answer where nothing knows of bridges or VLANs.
        SIOCGIFBR | SIOCGIFVLAN => return Err(Errno::ENOPKG),
        _ if is_change(request) => return Err(Errno::EPERM),
        _ => return Err(Errno::ENOTTY),
    }
    Ok(0)
}

/// Requests that set something: of interfaces, of routes, of the tables of neighbours, of bridges, bonds and VLANs.
fn is_change(request: u32) -> bool {
    matches!(
        request,
        SIOCSIFBR | SIOCSIFVLAN | 0x8990 | 0x8991 | 0x8992 | 0x8995 | 0x89a0..=0x89a3 | SIOCADDRT | SIOCDELRT | 0x8914 | 0x8916 | 0x8918 | 0x891a | 0x891c | 0x891e | 0x8922
            ..=0x8924 | 0x8930 | 0x8931 | 0x8932 | 0x8936 | 0x8937 | 0x8943 | 0x8953 | 0x8955 | 0x8971
    )
}

/// The interface of this name; an alias (`eth0:1`) is its interface's.
fn find(name: &[u8]) -> Result<Link> {
    let name = name.split(|b| *b == b':').next().unwrap_or_default();
    route::links()?.into_iter().find(|link| link.name == name).ok_or(Errno::ENODEV)
}

fn of_link(request: u32, link: &Link) -> Vec<u8> {
    match request {
        SIOCGIFFLAGS => link.flags.to_ne_bytes()[..2].to_vec(),
        SIOCGIFMTU => link.mtu.to_ne_bytes().to_vec(),
        SIOCGIFINDEX => link.index.to_ne_bytes().to_vec(),
        SIOCGIFTXQLEN => link.queue.to_ne_bytes().to_vec(),
        SIOCGIFMAP => link.map.to_vec(),
        SIOCGIFHWADDR => {
            let mut value = link.hardware.to_ne_bytes().to_vec();
            value.extend(link.address.iter().take(14));
            value.resize(16, 0);
            value
        }
        _ => alloc::vec![0; 4],
    }
}

/// The first address of an interface, or the one labelled so.
fn address_of(name: &[u8]) -> Result<Address> {
    let link = find(name)?;
    let mut all = route::addresses(AF_INET)?;
    all.retain(|address| address.index == link.index);
    let labelled = all.iter().position(|address| address.label == name);
    let at = labelled.or(if all.is_empty() { None } else { Some(0) }).ok_or(Errno::EADDRNOTAVAIL)?;
    Ok(all.swap_remove(at))
}

fn of_address(request: u32, address: &Address) -> Vec<u8> {
    match request {
        SIOCGIFADDR => address.local.clone(),
        SIOCGIFDSTADDR => address.peer.clone(),
        SIOCGIFBRDADDR => address.broadcast.clone(),
        _ => netmask(address.prefix).to_vec(),
    }
}

/// `SIOCGIFCONF`: names and addresses of the interfaces that have one, as many as fit.
fn list(cx: &CallerCtx<'_>, arg: UserAddr) -> Result<()> {
    let mut asked: IfConf = cx.user().read(arg)?;
    let links = route::links()?;
    let mut found = Vec::new();
    for address in route::addresses(AF_INET)? {
        let Some(link) = links.iter().find(|link| link.index == address.index) else { continue };
        let name = if address.label.is_empty() { &link.name } else { &address.label };
        found.push(IfReq::new(name, &sockaddr(&address.local)));
    }
    let size = size_of::<IfReq>();
    if !asked.at.is_null() {
        found.truncate(usize::try_from(asked.len).map_err(|_| Errno::EINVAL)? / size);
        for (at, entry) in found.iter().enumerate() {
            cx.user().write(asked.at.offset((at * size) as u64), entry)?;
        }
    }
    asked.len = i32::try_from(found.len() * size).unwrap_or(i32::MAX);
    cx.user().write(arg, &asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netmasks_have_their_bits_in_front() {
        assert_eq!(netmask(0), [0; 4]);
        assert_eq!(netmask(8), [255, 0, 0, 0]);
        assert_eq!(netmask(20), [255, 255, 240, 0]);
        assert_eq!(netmask(32), [255; 4]);
        assert_eq!(netmask(200), [255; 4]);
    }

    #[test]
    fn long_names_are_cut() {
        let request = IfReq::new(&[b'x'; 40], &[1; 40]);
        assert_eq!(request.name(), &[b'x'; 15]);
        assert_eq!(request.value, [1; 24]);
    }
}
