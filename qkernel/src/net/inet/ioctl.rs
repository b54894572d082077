//! `ioctl(2)` of internet sockets: queues, the urgent mark, and questions about interfaces.

use alloc::vec;

use crate::errno::{Errno, Result};
use crate::host::{Handle, socket as hs};
use crate::mm::user::pod;
use crate::net::{AF_INET, SOCK_DGRAM};
use crate::syscall::Ctx;

const SIOCINQ: u32 = 0x541b;
const SIOCOUTQ: u32 = 0x5411;
const SIOCATMARK: u32 = 0x8905;
const SIOCOUTQNSD: u32 = 0x894b;
const SIOCGIFCONF: u32 = 0x8912;
const INTERFACE_BYTES: usize = abi::socket::INTERFACE_BYTES as usize;
const INTERFACES_MAX: usize = abi::socket::INTERFACES_MAX as usize;

/// `struct ifconf`.
#[repr(C)]
#[derive(Clone, Copy)]
struct InterfaceList {
    bytes: i32,
    pad: u32,
    at: u64,
}
pod!(InterfaceList);

/// Answers a request; `ENOTTY` for those that are not known, `EPERM` for those that would change an interface.
pub fn ioctl(cx: &Ctx<'_>, socket: &Handle, request: u32, arg: u64) -> Result<u64> {
    match request {
        SIOCINQ | SIOCOUTQ | SIOCATMARK | SIOCOUTQNSD => {
            let number = hs::query(socket, request)?;
            cx.user().write(arg, &i32::try_from(number).unwrap_or(i32::MAX))?;
            Ok(0)
        }
        SIOCGIFCONF => interfaces(cx, socket, arg),
        _ if is_about_interfaces(request) => {
            let mut data: [u8; INTERFACE_BYTES] = cx.user().read(arg)?;
            match hs::interface(socket, request, &mut data) {
                Err(Errno::ENOTTY) => Err(Errno::EPERM),
                result => {
                    result?;
                    cx.user().write_bytes(arg, &data)?;
                    Ok(0)
                }
            }
        }
        _ => Err(Errno::ENOTTY),
    }
}

/// `SIOCGIF*`, and those that set what these read.
fn is_about_interfaces(request: u32) -> bool {
    matches!(request, 0x8910..=0x8927 | 0x8933 | 0x8942 | 0x8970)
}

/// The same questions asked through a socket of another family.
pub fn interface_ioctl(cx: &Ctx<'_>, request: u32, arg: u64) -> Result<u64> {
    if !is_about_interfaces(request) {
        return Err(Errno::ENOTTY);
    }
    let socket = super::InetSocket::new(AF_INET, SOCK_DGRAM, 0)?;
    ioctl(cx, &socket.handle, request, arg)
}

/// All interfaces with an address; without a buffer, the room they need.
fn interfaces(cx: &Ctx<'_>, socket: &Handle, arg: u64) -> Result<u64> {
    let mut list: InterfaceList = cx.user().read(arg)?;
    let room = usize::try_from(list.bytes).map_err(|_| Errno::EINVAL)?;
    let mut data = vec![0u8; if list.at == 0 { INTERFACES_MAX } else { room.min(INTERFACES_MAX) }];
    let filled = hs::interface(socket, SIOCGIFCONF, &mut data)?;
    if list.at != 0 {
        cx.user().write_bytes(list.at, &data[..filled])?;
    }
    list.bytes = i32::try_from(filled).unwrap_or(i32::MAX);
    cx.user().write(arg, &list)?;
    Ok(0)
}
