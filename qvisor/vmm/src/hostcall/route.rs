//! Questions about the network of the sandbox's namespace: interfaces, addresses, routes, neighbours (`rtnetlink(7)`).
//!
//! Only questions: a request is one message of a listed kind with listed attributes, so the guest can neither change
//! anything nor look into another namespace. Each is asked through a socket of its own, whose answer is complete when
//! the request has been sent; nothing is waited for.

use std::os::fd::{AsFd, OwnedFd};

use abi::hostcall::HostCall;
use abi::socket::{ROUTE_REPLY_MAX, ROUTE_REQUEST_MAX};

use crate::errno::Errno;
use crate::guest_memory::{GuestMemory, GuestSlice};
use crate::sys;

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `struct rtgenmsg`, aligned.
const RTGENMSG_BYTES: usize = 4;
/// Room for one datagram of a reply; the host fills no larger ones.
const DATAGRAM_MAX: usize = 64 << 10;
/// Flags of a request that the host sees: `NLM_F_REQUEST`, `_ACK`, `_ROOT`, `_MATCH`. (`_ECHO` means nothing to
/// questions, and `_ATOMIC` is a privilege.)
const FLAGS: u16 = 0x1 | 0x4 | 0x100 | 0x200;
const NLM_F_REQUEST: u16 = 0x1;
const ATTRIBUTE_KIND: u16 = 0x3fff;
/// `NLM_F_ROOT` and `_MATCH`: all there are, not one.
const DUMP: u16 = 0x300;
const RTA_UID: u16 = 25;

/// A kind of question.
struct Question {
    kind: u16,
    /// Bytes between the message's header and the attributes.
    fixed: usize,
    attributes: &'static [u16],
}

/// The questions that may be asked. No attribute names another namespace (`IFLA_TARGET_NETNSID`, `IFLA_NET_NS_PID`,
/// ...).
const QUESTIONS: &[Question] = &[
    // Links by name (IFLA_IFNAME, IFLA_ALT_IFNAME), by master or kind, with a mask of what to tell (IFLA_EXT_MASK).
    Question {
        kind: libc::RTM_GETLINK,
        fixed: 16,
        attributes: &[libc::IFLA_IFNAME, 53, libc::IFLA_MASTER, libc::IFLA_LINKINFO, 29],
    },
    Question { kind: libc::RTM_GETADDR, fixed: 8, attributes: &[] },
    // RTA_DST, RTA_SRC, RTA_IIF, RTA_OIF, RTA_TABLE, RTA_MARK, RTA_IP_PROTO, RTA_SPORT, RTA_DPORT.
    Question { kind: libc::RTM_GETROUTE, fixed: 12, attributes: &[1, 2, 3, 4, 15, 16, 27, 28, 29] },
    // NDA_DST, NDA_IFINDEX, NDA_MASTER.
    Question { kind: libc::RTM_GETNEIGH, fixed: 12, attributes: &[1, 8, 9] },
    Question { kind: libc::RTM_GETRULE, fixed: 12, attributes: &[] },
    // RTM_GETNETCONF with NETCONFA_IFINDEX.
    Question { kind: 82, fixed: 4, attributes: &[1] },
];

/// `ROUTE_QUERY`: asks the host, and writes its answer to guest memory.
pub fn query<M: GuestMemory + ?Sized>(call: &HostCall, memory: &M) -> i64 {
    let [request, len, reply, room, strict, _] = call.args;
    let answer = || {
        if len > ROUTE_REQUEST_MAX || room > ROUTE_REPLY_MAX {
            return Err(Errno(libc::EINVAL));
        }
        let message = checked(&GuestSlice::new(memory, request, len)?.copy_in())?;
        let reply = GuestSlice::new(memory, reply, room)?;
        let answer = ask(&message, strict != 0, reply.len())?;
        reply.write(&answer);
        Ok(i64::try_from(answer.len()).unwrap_or(0))
    };
    answer().unwrap_or_else(Errno::as_result)
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The message as it is sent: one question, flags and attributes checked.
fn checked(request: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut message = request.to_vec();
    let len = request.first_chunk().map(|len| u32::from_ne_bytes(*len));
    let kind = word(request, 4).ok_or(Errno(libc::EINVAL))?;
    let flags = word(request, 6).ok_or(Errno(libc::EINVAL))?;
    if len.and_then(|len| usize::try_from(len).ok()) != Some(request.len()) || flags & NLM_F_REQUEST == 0 {
        return Err(Errno(libc::EINVAL));
    }
    let question = QUESTIONS.iter().find(|question| question.kind == kind).ok_or(Errno(libc::EPERM))?;
    let body = request.get(HEADER_BYTES..).ok_or(Errno(libc::EINVAL))?;
    // Old programs ask with nothing but the address family (`struct rtgenmsg`), which attributes may follow.
    let attributes = body.get(question.fixed..).or(body.get(RTGENMSG_BYTES..)).unwrap_or_default();
    check_attributes(attributes, question.attributes)?;
    message[6..8].copy_from_slice(&(flags & FLAGS).to_ne_bytes());
    if kind == libc::RTM_GETROUTE && flags & DUMP == 0 && is_internet(body) && !has(attributes, RTA_UID) {
        name_root(&mut message);
    }
    Ok(message)
}

/// Addresses of IPv4 or IPv6, with a whole `struct rtmsg`.
fn is_internet(body: &[u8]) -> bool {
    body.len() >= 12 && [libc::AF_INET, libc::AF_INET6].contains(&i32::from(body[0]))
}

fn has(mut attributes: &[u8], wanted: u16) -> bool {
    while let (Some(len), Some(kind)) = (word(attributes, 0), word(attributes, 2)) {
        if kind & ATTRIBUTE_KIND == wanted {
            return true;
        }
        attributes = attributes.get(usize::from(len.max(4)).next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

/// Asks for the route of the guest's root. Otherwise it would be that of the VMM's owner, an id which means nothing to
/// the guest.
fn name_root(message: &mut Vec<u8>) {
    message.resize(message.len().next_multiple_of(4), 0);
    message.extend_from_slice(&8_u16.to_ne_bytes());
    message.extend_from_slice(&RTA_UID.to_ne_bytes());
    message.extend_from_slice(&[0; 4]);
    let len = u32::try_from(message.len()).unwrap_or(0);
    message[..4].copy_from_slice(&len.to_ne_bytes());
}

fn check_attributes(mut rest: &[u8], known: &[u16]) -> Result<(), Errno> {
    while !rest.is_empty() {
        let (Some(len), Some(kind)) = (word(rest, 0), word(rest, 2)) else { return Err(Errno(libc::EINVAL)) };
        let len = usize::from(len);
        if len < 4 || len > rest.len() {
            return Err(Errno(libc::EINVAL));
        }
        if !known.contains(&(kind & ATTRIBUTE_KIND)) {
            return Err(Errno(libc::EPERM));
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

fn ask(message: &[u8], strict: bool, room: usize) -> Result<Vec<u8>, Errno> {
    let socket: OwnedFd = sys::route_socket(strict)?;
    sys::send_bytes(socket.as_fd(), message)?;
    let mut answer = Vec::new();
    let mut datagram = vec![0_u8; DATAGRAM_MAX];
    loop {
        match sys::receive_bytes(socket.as_fd(), &mut datagram) {
            // A datagram that was cut has its whole length.
            Ok(len) => match datagram.get(..len) {
                Some(part) if answer.len() + len <= room => answer.extend_from_slice(part),
                _ => return Err(Errno(libc::EMSGSIZE)),
            },
            // The answer is complete.
            Err(Errno(libc::EAGAIN)) => return Ok(answer),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hostcall::testing::TestMemory;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(HEADER_BYTES + body.len()).unwrap();
        [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[7, 0, 0, 0, 0, 0, 0, 0], body]
            .concat()
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn served(request: &[u8], room: u64) -> (i64, Vec<u8>) {
        let memory = TestMemory::new();
        let (at, reply) = (memory.put(request), memory.room(64 << 10));
        let call = HostCall { args: [at, request.len() as u64, reply, room, 0, 0], ..HostCall::default() };
        let result = query(&call, &memory);
        (result, memory.get(reply, usize::try_from(result).unwrap_or(0)))
    }

    #[test]
    fn the_loopback_interface_is_found() {
        let (result, answer) = served(&message(libc::RTM_GETLINK, 0x301, &[0; 16]), 64 << 10);
        assert!(result > 0, "{result}");
        assert!(answer.windows(3).any(|bytes| bytes == b"lo\0"), "{answer:?}");
        assert_eq!(served(&message(libc::RTM_GETLINK, 0x301, &[0; 16]), 16).0, -i64::from(libc::EMSGSIZE));
    }

    #[test]
    fn nothing_but_questions_goes_out() {
        let refused = |bytes: &[u8]| checked(bytes).err();
        for kind in [libc::RTM_NEWLINK, libc::RTM_DELADDR, libc::RTM_NEWROUTE, libc::RTM_SETLINK, 88, 90, 0] {
            assert_eq!(refused(&message(kind, 0x5, &[0; 16])), Some(Errno(libc::EPERM)), "{kind}");
        }
        // Another namespace, by its number or a process in it.
        for kind in [46, 19, 28, 46 | 0x8000] {
            let body = [vec![0; 16], attribute(kind, &[1, 0, 0, 0])].concat();
            assert_eq!(refused(&message(libc::RTM_GETLINK, 0x1, &body)), Some(Errno(libc::EPERM)), "{kind}");
        }
        // Behind an attribute that is allowed, and a second message behind the first.
        let body = [vec![0; 16], attribute(29, &[1, 0, 0, 0]), attribute(46, &[0; 4])].concat();
        assert_eq!(refused(&message(libc::RTM_GETLINK, 0x301, &body)), Some(Errno(libc::EPERM)));
        let two =
            [message(libc::RTM_GETADDR, 0x301, &[0; 8]), message(libc::RTM_NEWADDR, 1, &[0; 8])].concat();
        assert_eq!(refused(&two), Some(Errno(libc::EINVAL)));
        // Where old programs put them.
        let body = [vec![0; 4], attribute(46, &[1, 0, 0, 0])].concat();
        assert_eq!(refused(&message(libc::RTM_GETLINK, 0x301, &body)), Some(Errno(libc::EPERM)));
        let sent = checked(&message(libc::RTM_GETADDR, 0xffff, &[0; 8])).unwrap();
        assert_eq!(word(&sent, 6), Some(FLAGS));
    }

    proptest! {
        /// A request that is sent has its true length, a listed kind, and listed attributes, one after another.
        #[test]
        fn any_request_is_refused_or_harmless(
            kind in 0_u16..120, body in prop::collection::vec(any::<u8>(), 0..80), len in 0_u32..120, honest: bool,
        ) {
            let mut bytes = message(kind, 0x301, &body);
            if !honest {
                bytes.truncate(len as usize);
                bytes.iter_mut().zip(len.to_ne_bytes()).for_each(|(to, from)| *to = from);
            }
            if let Ok(sent) = checked(&bytes) {
                prop_assert_eq!(sent.len(), bytes.len());
                prop_assert_eq!(u32::from_ne_bytes(*sent.first_chunk().unwrap()) as usize, sent.len());
                prop_assert!(QUESTIONS.iter().any(|question| question.kind == kind));
            }
        }
    }
}
