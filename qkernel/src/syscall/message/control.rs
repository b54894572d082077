//! Control data that messages are sent with (`cmsg(3)`).

use abi::word::to_usize;
use alloc::vec::Vec;

use crate::creds::{CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN};
use crate::fs::caller::PidOf;
use crate::limits::RLIMIT_NOFILE;
use crate::net::ancillary::{FILES_MAX, SenderCreds, Ucred};
use crate::net::inet::{IPPROTO_IP, IPPROTO_IPV6, IPV6_2292PKTINFO, IPV6_PKTINFO};
use crate::net::options::{SO_MARK, may_steer};
use crate::net::passing::Rights;
use crate::net::settings;
use crate::net::{AF_INET, AF_INET6, AF_UNIX, Destination, Outgoing, SOL_SOCKET};
use crate::syscall::message::{CMSG_BYTES, CmsgHdr, MsgHdr, SCM_CREDENTIALS, SCM_RIGHTS};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use zerocopy::{FromBytes, IntoBytes};

/// Most bytes of control data a message is sent with.
const CONTROL_MAX: u64 = 16 * 1024;

const IP_PKTINFO: u32 = 8;

/// Reads the control data of a message to be sent.
pub(super) fn read_control(cx: &Ctx<'_>, header: &MsgHdr, family: u16, message: &mut Outgoing) -> Result<()> {
    if header.control.is_null() || header.control_len == 0 {
        return Ok(());
    }
    if header.control_len > CONTROL_MAX {
        return Err(Errno::ENOBUFS);
    }
    let control: Vec<u8> = cx.user().read_array(header.control, to_usize(header.control_len))?;
    if family != AF_UNIX {
        return network_control(cx, &control, message);
    }
    let mut files = Vec::new();
    for (level, kind, data) in Cmsgs(&control) {
        let (level, kind, data) = (level, kind, data?);
        match (level, kind) {
            (SOL_SOCKET, SCM_RIGHTS) => {
                for fd in data.chunks_exact(4) {
                    let fd = i32::from_ne_bytes(fd.try_into().map_err(|_| Errno::EINVAL)?);
                    files.push(cx.file(fd)?);
                }
                if files.len() > FILES_MAX {
                    return Err(Errno::EINVAL);
                }
            }
            (SOL_SOCKET, SCM_CREDENTIALS) => {
                message.creds = checked_creds(cx, data)?;
                message.claims = true;
            }
            (SOL_SOCKET, _) => return Err(Errno::EINVAL),
            _ => {}
        }
    }
    if !files.is_empty() {
        let (passing, uid) = (&cx.container().passing, cx.task.creds.get().uid);
        message.rights = Some(Rights::new(files, passing, uid, cx.limit(RLIMIT_NOFILE))?);
    }
    Ok(())
}

/// Control messages for the network: all but those that only have a meaning between processes.
fn network_control(cx: &Ctx<'_>, control: &[u8], message: &mut Outgoing) -> Result<()> {
    for (level, kind, data) in Cmsgs(control) {
        let data = data?;
        if level == SOL_SOCKET && matches!(kind, SCM_RIGHTS | SCM_CREDENTIALS) {
            continue;
        }
        if (level, kind) == (SOL_SOCKET, SO_MARK) {
            if data.len() != 4 {
                return Err(Errno::EINVAL);
            }
            if !may_steer(&cx.task.creds.get()) {
                return Err(Errno::EPERM);
            }
            continue;
        }
        let header = CmsgHdr { len: (CMSG_BYTES + data.len()) as u64, level, kind };
        message.control.extend_from_slice(header.as_bytes());
        message.control.extend_from_slice(data);
        message.control.resize(message.control.len().next_multiple_of(8), 0);
    }
    Ok(())
}

/// Leaves it to the routes through which interface a message goes, unless devices may be chosen. What goes to many at once goes
/// through the interface that its sender names. Numbers of interfaces that do not exist go unnoticed.
pub(super) fn leave_to_routes(message: &mut Outgoing) {
    if settings::devices_may_be_chosen() {
        return;
    }
    let to = match &message.to {
        Some(Destination::Address(address)) => &address[..],
        _ => &[],
    };
    let family = to.first_chunk().map_or(0, |bytes| u16::from_ne_bytes(*bytes));
    let is_multicast = match family {
        AF_INET => to.get(4).is_some_and(|first| first >> 4 == 0xe),
        AF_INET6 => to.get(8) == Some(&0xff),
        _ => false,
    };
    if is_multicast {
        return;
    }
    let mut at = 0;
    while let Ok((header, _)) = CmsgHdr::read_from_prefix(message.control.get(at..).unwrap_or_default()) {
        let index = match (header.level, header.kind) {
            (IPPROTO_IP, IP_PKTINFO) => 0,
            (IPPROTO_IPV6, IPV6_PKTINFO | IPV6_2292PKTINFO) => 16,
            _ => usize::MAX,
        };
        let len = to_usize(header.len);
        let data = message.control.get_mut(at + CMSG_BYTES..at.saturating_add(len));
        if let Some(index) = data.and_then(|data| data.get_mut(index..)) {
            index.iter_mut().take(4).for_each(|byte| *byte = 0);
        }
        at = at.saturating_add(len.max(CMSG_BYTES)).next_multiple_of(8);
    }
}

/// Credentials a sender claims to have: its own ids, or any if it has the capabilities.
fn checked_creds(cx: &Ctx<'_>, data: &[u8]) -> Result<SenderCreds> {
    let data: [u8; 12] = data.try_into().map_err(|_| Errno::EINVAL)?;
    let word = |at: usize| u32::from_ne_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
    let claimed = Ucred { pid: word(0), uid: word(4), gid: word(8) };
    let creds = cx.task.creds.get();
    let uid = [creds.uid, creds.euid, creds.suid].contains(&claimed.uid) || creds.has(CAP_SETUID);
    let gid = [creds.gid, creds.egid, creds.sgid].contains(&claimed.gid) || creds.has(CAP_SETGID);
    let pid = claimed.pid == cx.process().pid || creds.has(CAP_SYS_ADMIN);
    if !(uid && gid && pid) {
        return Err(Errno::EPERM);
    }
    let serial = if claimed.pid == cx.process().pid {
        cx.process().serial
    } else {
        cx.pids().find_process(claimed.pid).ok_or(Errno::ESRCH)?.serial
    };
    if claimed.uid == u32::MAX || claimed.gid == u32::MAX {
        return Err(Errno::EINVAL);
    }
    let process = PidOf::named_by(cx.caller, claimed.pid);
    Ok(SenderCreds { process, serial, uid: claimed.uid, gid: claimed.gid })
}

/// The control messages in a buffer: level, kind and data; `EINVAL` for one that isn't whole.
struct Cmsgs<'a>(&'a [u8]);

impl<'a> Iterator for Cmsgs<'a> {
    type Item = (u32, u32, Result<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, _) = self.0.split_first_chunk::<CMSG_BYTES>()?;
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let len = usize::try_from(u64::from(word(0)) | u64::from(word(4)) << 32).unwrap_or(usize::MAX);
        let data = self.0.get(CMSG_BYTES..len).ok_or(Errno::EINVAL);
        let next = len.checked_next_multiple_of(8).unwrap_or(usize::MAX);
        self.0 = if data.is_ok() { self.0.get(next..).unwrap_or_default() } else { &[] };
        Some((word(8), word(12), data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_are_walked_and_checked() {
        let mut control = Vec::new();
        control.extend_from_slice(CmsgHdr { len: 20, level: 1, kind: 1 }.as_bytes());
        control.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0]);
        control.extend_from_slice(CmsgHdr { len: 16, level: 1, kind: 2 }.as_bytes());
        let list: Vec<_> = Cmsgs(&control).collect();
        assert_eq!(list, [(1, 1, Ok(&[5u8, 0, 0, 0][..])), (1, 2, Ok(&[][..]))]);
        for bad in [0u64, 15, 1000, u64::MAX] {
            let header = CmsgHdr { len: bad, level: 1, kind: 1 };
            let list: Vec<_> = Cmsgs(header.as_bytes()).collect();
            assert_eq!(list, [(1, 1, Err(Errno::EINVAL))]);
        }
    }
}
