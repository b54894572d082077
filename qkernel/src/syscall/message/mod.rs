//! Messages: what `send(2)`, `recv(2)` and their relatives share.

mod control;
mod control_writer;
pub(super) mod receive;
pub(super) mod recvmsg;
pub(super) mod send;

use abi::word::to_usize;
use alloc::vec::Vec;

use crate::config::RW_MAX_BYTES;
use crate::net::MsgFlags;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SCM_RIGHTS: u32 = 1;
const SCM_CREDENTIALS: u32 = 2;
const SCM_PIDFD: u32 = 4;
/// Most pieces of a vectored call (`UIO_MAXIOV`).
const PIECES_MAX: u64 = 1024;
/// Most messages of one `sendmmsg(2)` or `recvmmsg(2)`.
const MESSAGES_MAX: u32 = 1024;

/// `struct msghdr`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct MsgHdr {
    name: UserAddr,
    name_len: u32,
    pad: u32,
    iov: UserAddr,
    iov_len: u64,
    control: UserAddr,
    control_len: u64,
    flags: u32,
    pad2: u32,
}
const NAME_LEN_AT: u64 = 8;
const CONTROL_LEN_AT: u64 = 40;
const FLAGS_AT: u64 = 48;
/// Bytes of a `struct mmsghdr`, whose length follows the header.
const MMSG_BYTES: u64 = 64;
const MMSG_LEN_AT: u64 = 56;

/// `struct cmsghdr`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct CmsgHdr {
    len: u64,
    level: u32,
    kind: u32,
}
const CMSG_BYTES: usize = size_of::<CmsgHdr>();

/// Reads the pieces of a vectored call.
pub fn read_pieces(cx: &Ctx<'_>, iov: UserAddr, count: u64) -> Result<Vec<(UserAddr, usize)>> {
    if count > PIECES_MAX {
        return Err(Errno::EMSGSIZE);
    }
    let raw: Vec<[u64; 2]> = cx.user().read_array(iov, to_usize(count))?;
    let mut left = RW_MAX_BYTES;
    let mut pieces = Vec::with_capacity(raw.len());
    for [addr, len] in raw {
        let len =
            usize::try_from(len).ok().filter(|len| isize::try_from(*len).is_ok()).ok_or(Errno::EINVAL)?;
        let len = len.min(left);
        left -= len;
        pieces.push((UserAddr::new(addr), len));
    }
    Ok(pieces)
}

fn flags_of(flags: u32) -> MsgFlags {
    // Bits without a meaning here are ignored, as on Linux.
    MsgFlags::from_bits_truncate(flags)
}
