//! From a copied call to a typed request.

use abi::hostcall::HostCall;
use abi::socket::{self as nr, ADDRESS_MAX, CONTROL_MAX, Message, OPTION_MAX};

use super::super::arguments::{Handle, handle};
use super::allow;
use super::request::{ReceiveRequest, SendRequest, SocketRequest};
use crate::broker::{Ids, is_connected_for_good};
use crate::errno::Errno;
use crate::guest_memory::{GuestBox, GuestBuffers, GuestMemory, GuestSlice, TRANSFER_MAX};
use crate::net::devices_may_be_chosen;

/// Checks a copied call; addresses, options and control data are copied out of `memory` once.
pub fn decode<'m, M: GuestMemory + ?Sized>(
    call: &HostCall,
    memory: &'m M,
) -> Result<SocketRequest<'m>, Errno> {
    let args = Args { args: &call.args, memory };
    match call.number {
        nr::SOCKET => {
            let kind = allow::kind(args.number(0)?, args.number(1)?, args.number(2)?)?;
            return Ok(SocketRequest::Create { kind, token: call.args[3] });
        }
        nr::SOCK_SEND => return args.send().map(SocketRequest::Send),
        nr::SOCK_RECEIVE => return args.receive().map(Box::new).map(SocketRequest::Receive),
        nr::SOCK_GET_OPTION | nr::SOCK_SET_OPTION => return args.option(call.number),
        nr::SOCK_QUERY => return args.query(),
        nr::SOCK_SEND_FILE => return args.send_file(),
        nr::SOCK_CONNECT_NODE => return args.connect_node(),
        _ => {}
    }
    let handle = args.handle()?;
    Ok(match call.number {
        nr::SOCK_BIND => SocketRequest::Bind { handle, address: args.address()? },
        nr::SOCK_CONNECT => SocketRequest::Connect { handle, address: args.address()? },
        nr::SOCK_LISTEN => {
            let backlog = i32::try_from(call.args[1]).unwrap_or(i32::MAX);
            SocketRequest::Listen { handle, backlog }
        }
        nr::SOCK_ACCEPT => {
            let address = args.room(1, ADDRESS_MAX)?;
            SocketRequest::Accept { handle, address, token: call.args[3] }
        }
        nr::SOCK_NAME => {
            SocketRequest::Name { handle, peer: call.args[1] != 0, address: args.room(2, ADDRESS_MAX)? }
        }
        nr::SOCK_SHUTDOWN => match args.number(1)? {
            how @ libc::SHUT_RD..=libc::SHUT_RDWR => SocketRequest::Shutdown { handle, how },
            _ => return Err(Errno(libc::EINVAL)),
        },
        _ => return Err(Errno(libc::ENOSYS)),
    })
}

struct Args<'a, 'm, M: GuestMemory + ?Sized> {
    args: &'a [u64; 6],
    memory: &'m M,
}

impl<'m, M: GuestMemory + ?Sized> Args<'_, 'm, M> {
    fn handle(&self) -> Result<Handle, Errno> {
        handle(self.args[0])
    }

    fn number(&self, at: usize) -> Result<i32, Errno> {
        i32::try_from(self.args[at]).map_err(|_| Errno(libc::EINVAL))
    }

    /// The bytes whose address and length are arguments `at` and `at + 1`, copied; too long is an error.
    fn bytes(&self, at: usize, most: u32) -> Result<Vec<u8>, Errno> {
        if self.args[at + 1] > u64::from(most) {
            return Err(Errno(libc::EINVAL));
        }
        GuestSlice::new(self.memory, self.args[at], self.args[at + 1]).map(|slice| slice.copy_in())
    }

    fn address(&self) -> Result<Vec<u8>, Errno> {
        self.bytes(1, ADDRESS_MAX)
    }

    /// Room for an answer, cut to `most` bytes.
    fn room(&self, at: usize, most: u32) -> Result<GuestSlice<'m>, Errno> {
        GuestSlice::new(self.memory, self.args[at], self.args[at + 1].min(u64::from(most)))
    }

    fn option(&self, number: u32) -> Result<SocketRequest<'m>, Errno> {
        let (handle, level, name) = (self.handle()?, self.number(1)?, self.number(2)?);
        if number == nr::SOCK_GET_OPTION {
            allow::check_get(level, name)?;
            return Ok(SocketRequest::GetOption { handle, level, name, value: self.room(3, OPTION_MAX)? });
        }
        let value = self.bytes(3, OPTION_MAX)?;
        allow::check_set(level, name, &value, devices_may_be_chosen())?;
        Ok(SocketRequest::SetOption { handle, level, name, value })
    }

    fn query(&self) -> Result<SocketRequest<'m>, Errno> {
        let (handle, request) = (self.handle()?, self.args[1]);
        match request {
            allow::SIOCINQ | allow::SIOCOUTQ | allow::SIOCATMARK | allow::SIOCOUTQNSD => {
                Ok(SocketRequest::Query { handle, request })
            }
            _ => Err(Errno(libc::ENOTTY)),
        }
    }

    fn send_file(&self) -> Result<SocketRequest<'m>, Errno> {
        let (handle, file) = (self.handle()?, handle(self.args[1])?);
        let offset = i64::try_from(self.args[2]).map_err(|_| Errno(libc::EINVAL))?;
        let len = usize::try_from(self.args[3].min(TRANSFER_MAX)).unwrap_or(0);
        Ok(SocketRequest::SendFile { handle, file, offset, len })
    }

    fn connect_node(&self) -> Result<SocketRequest<'m>, Errno> {
        let invalid = Errno(libc::EINVAL);
        let (node, kind, token) = (self.handle()?, self.number(1)?, self.args[2]);
        if !is_connected_for_good(kind) {
            return Err(invalid);
        }
        let count = self.args[4];
        if !(2..=2 + nr::GROUPS_MAX).contains(&count) {
            return Err(invalid);
        }
        let bytes = GuestSlice::new(self.memory, self.args[3], 4 * count)?.copy_in();
        let mut ids = bytes.as_chunks().0.iter().map(|chunk| u32::from_ne_bytes(*chunk));
        let (user, group) = (ids.next().ok_or(invalid)?, ids.next().ok_or(invalid)?);
        Ok(SocketRequest::ConnectNode { node, kind, token, ids: Ids { user, group, groups: ids.collect() } })
    }

    /// The message behind argument 1, read once, and its buffers.
    fn message(&self) -> Result<(GuestBox<'m, Message>, Message, GuestBuffers<'m>), Errno> {
        let out = GuestBox::<Message>::new(self.memory, self.args[1])?;
        let message = out.read();
        if message.name_len > ADDRESS_MAX || message.control_len > CONTROL_MAX {
            return Err(Errno(libc::EINVAL));
        }
        let buffers = GuestBuffers::new(self.memory, message.segments_phys, u64::from(message.segments))?;
        Ok((out, message, buffers))
    }

    fn send(&self) -> Result<SendRequest<'m>, Errno> {
        let handle = self.handle()?;
        let (_, message, buffers) = self.message()?;
        let flags = message.flags.cast_signed();
        if flags & !allow::SEND_FLAGS != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let part =
            |phys, len: u32| GuestSlice::new(self.memory, phys, u64::from(len)).map(|slice| slice.copy_in());
        let address = part(message.name_phys, message.name_len)?;
        let control = part(message.control_phys, message.control_len)?;
        allow::check_control(&control, &address, devices_may_be_chosen())?;
        Ok(SendRequest { handle, buffers, address, control, flags })
    }

    fn receive(&self) -> Result<ReceiveRequest<'m>, Errno> {
        let handle = self.handle()?;
        let (out, message, buffers) = self.message()?;
        let flags = message.flags.cast_signed();
        if flags & !allow::RECEIVE_FLAGS != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let address = GuestSlice::new(self.memory, message.name_phys, u64::from(message.name_len))?;
        let control = GuestSlice::new(self.memory, message.control_phys, u64::from(message.control_len))?;
        Ok(ReceiveRequest { handle, buffers, address, control, flags, message, out })
    }
}
