//! `ioctl(2)` of internet sockets: queues and the urgent mark. Requests about interfaces are in
//! [`crate::net::interfaces`].

use crate::fs::caller::CallerCtx;
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::mm::UserAddr;
use machine::socket as hs;

const SIOCINQ: u32 = 0x541b;
const SIOCOUTQ: u32 = 0x5411;
const SIOCATMARK: u32 = 0x8905;
const SIOCOUTQNSD: u32 = 0x894b;

/// Answers a request; `ENOTTY` for those that are not the family's.
pub fn ioctl(cx: &CallerCtx<'_>, socket: &Handle, request: u32, arg: u64) -> Result<u64> {
    match request {
        SIOCINQ | SIOCOUTQ | SIOCATMARK | SIOCOUTQNSD => {
            let number = hs::query(socket, request)?;
            cx.user().write(UserAddr::new(arg), &i32::try_from(number).unwrap_or(i32::MAX))?;
            Ok(0)
        }
        _ => Err(Errno::ENOTTY),
    }
}
