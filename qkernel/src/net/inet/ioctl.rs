//! `ioctl(2)` of internet sockets: queues and the urgent mark. Requests about interfaces are in
//! [`crate::net::interfaces`].

use crate::fs::caller::CallerCtx;
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::mm::UserAddr;
use machine::socket as hs;

pub(super) const SIOCINQ: u32 = 0x541b;
pub(super) const SIOCOUTQ: u32 = 0x5411;
pub(super) const SIOCATMARK: u32 = 0x8905;
const SIOCOUTQNSD: u32 = 0x894b;

/// Answers a request; `ENOTTY` for those that are not the family's. `unread`: bytes before those that the host has.
pub fn ioctl(cx: &CallerCtx<'_>, socket: &Handle, unread: usize, request: u32, arg: u64) -> Result<u64> {
    match request {
        SIOCINQ | SIOCOUTQ | SIOCATMARK | SIOCOUTQNSD => {
            let number = match (hs::query(socket, request)?, request) {
                (number, SIOCINQ) => number.saturating_add(u32::try_from(unread).unwrap_or(u32::MAX)),
                // The mark comes behind them.
                (_, SIOCATMARK) if unread > 0 => 0,
                (number, _) => number,
            };
            cx.user().write(UserAddr::new(arg), &i32::try_from(number).unwrap_or(i32::MAX))?;
            Ok(0)
        }
        _ => Err(Errno::ENOTTY),
    }
}
