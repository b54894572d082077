//! Socket calls whose arguments have been checked.

use abi::socket::Message;
use serde::{Deserialize, Serialize};

use super::super::arguments::Handle;
use crate::broker::Ids;
use crate::guest_memory::{GuestBox, GuestBuffers, GuestSlice};

/// Family, type and protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketKind {
    pub family: i32,
    pub kind: i32,
    pub protocol: i32,
}

/// A socket call whose arguments have been checked.
#[derive(Debug)]
pub enum SocketRequest<'m> {
    Create { kind: SocketKind, token: u64 },
    Bind { handle: Handle, address: Vec<u8> },
    Connect { handle: Handle, address: Vec<u8> },
    Listen { handle: Handle, backlog: i32 },
    Accept { handle: Handle, address: GuestSlice<'m>, token: u64 },
    Name { handle: Handle, peer: bool, address: GuestSlice<'m> },
    Shutdown { handle: Handle, how: i32 },
    GetOption { handle: Handle, level: i32, name: i32, value: GuestSlice<'m> },
    SetOption { handle: Handle, level: i32, name: i32, value: Vec<u8> },
    Send(SendRequest<'m>),
    Receive(Box<ReceiveRequest<'m>>),
    SendFile { handle: Handle, file: Handle, offset: i64, len: usize },
    Query { handle: Handle, request: u64 },
    ConnectNode { node: Handle, kind: i32, token: u64, ids: Ids },
}

/// A message to send.
#[derive(Debug)]
pub struct SendRequest<'m> {
    pub handle: Handle,
    pub buffers: GuestBuffers<'m>,
    /// Copied out; empty: to the peer.
    pub address: Vec<u8>,
    /// Copied out, every message in it listed.
    pub control: Vec<u8>,
    pub flags: i32,
}

/// Room for a message.
#[derive(Debug)]
pub struct ReceiveRequest<'m> {
    pub handle: Handle,
    pub buffers: GuestBuffers<'m>,
    pub address: GuestSlice<'m>,
    pub control: GuestSlice<'m>,
    pub flags: i32,
    /// The structure as it was read, and the place that lengths and flags are written to.
    pub message: Message,
    pub out: GuestBox<'m, Message>,
}
