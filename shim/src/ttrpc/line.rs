//! A connection, and the answers that go over it.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::ttrpc::{Code, Response};
use vmm::process;

use super::frame::{Frame, RESPONSE};
use crate::failure::{Failure, Result};

/// How long the other side may leave an answer unread.
const PATIENCE: Duration = Duration::from_secs(10);

/// One side of a connection that others answer over.
#[derive(Debug)]
pub struct Line {
    stream: UnixStream,
    /// Held while a frame is written.
    writing: Mutex<()>,
}

impl Line {
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, writing: Mutex::new(()) })
    }

    #[must_use]
    pub fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Bytes that have come; `Some(0)`: the other side is gone, `None`: nothing has come.
    pub fn receive(&self, bytes: &mut [u8]) -> Option<usize> {
        process::receive_now(&self.stream, bytes)
    }

    fn send(&self, frame: &Frame) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_sent = frame.encode().is_some_and(|bytes| (&self.stream).write_all(&bytes).is_ok());
        if !is_sent {
            // Half a frame may have gone out, so nothing may follow it.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

/// Where the answer to a request goes. One that is dropped says that there is none.
#[derive(Debug)]
pub struct Reply {
    line: Arc<Line>,
    stream: u32,
    is_answered: bool,
}

impl Reply {
    #[must_use]
    pub fn new(line: Arc<Line>, stream: u32) -> Self {
        Self { line, stream, is_answered: false }
    }

    pub fn answer<M: Message>(self, result: Result<M>) {
        let encoded = result.and_then(|message| message.write_to_bytes().map_err(Failure::other));
        self.send(encoded);
    }

    fn send(mut self, result: Result<Vec<u8>>) {
        self.is_answered = true;
        self.write(result);
    }

    fn write(&self, result: Result<Vec<u8>>) {
        let mut response = Response::new();
        match result {
            Ok(payload) => {
                response.payload = payload;
                response.set_status(Failure::new(Code::OK, "").status());
            }
            Err(failure) => response.set_status(failure.status()),
        }
        let body = response.write_to_bytes().unwrap_or_default();
        self.line.send(&Frame { stream: self.stream, kind: RESPONSE, body });
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_answered {
            self.write(Err(Failure::new(Code::INTERNAL, "the request was dropped")));
        }
    }
}
