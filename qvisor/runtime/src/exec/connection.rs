//! The connection to a sandbox's control socket that stands for one exec'd process.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use vmm::exec_relay::ExecReport;
use vmm::process;

use crate::control::{self, Answer, Order};

/// A message of the VMM.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Report(ExecReport),
    /// The order is refused; why.
    Refused(String),
    /// The sandbox is gone.
    Gone,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
    /// Bytes received that were not read yet.
    text: Vec<u8>,
}

impl Connection {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self { socket, text: Vec::new() }
    }

    /// A connection taken over from another process, which left these bytes unread.
    pub(super) fn resumed(socket: UnixStream, unread: Vec<u8>) -> Self {
        Self { socket, text: unread }
    }

    /// The bytes received that were not read.
    pub(super) fn unread(&self) -> &[u8] {
        &self.text
    }

    /// Another descriptor of it.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.try_clone()?.into())
    }

    /// Asks for a process with these records and streams.
    pub(super) fn ask(&self, order: Order, records: &[u8], streams: &[BorrowedFd<'_>]) -> io::Result<()> {
        control::ask(&self.socket, order, records, streams)
    }

    /// The next message that has come; `None`: nothing more for now.
    pub(super) fn next(&mut self) -> Option<Said> {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                return Some(said(&line));
            }
            let mut bytes = [0; 512];
            match process::receive_now(&self.socket, &mut bytes)? {
                0 => return Some(Said::Gone),
                got => self.text.extend(bytes.iter().take(got)),
            }
        }
    }

    pub(super) fn signal(&self, signal: i32, foreground: bool) {
        control::send_now(&self.socket, &Order::Kill { signal, foreground, all: false });
    }

    pub(super) fn resize(&self, (rows, columns): (u16, u16)) {
        control::send_now(&self.socket, &Order::Winsize { rows, columns });
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn said(line: &[u8]) -> Said {
    if let Ok(report) = serde_json::from_slice(line) {
        return Said::Report(report);
    }
    match serde_json::from_slice(line) {
        Ok(Answer { error: Some(why), .. }) => Said::Refused(why),
        _ => Said::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_comes_line_by_line() {
        let (vmm, socket) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(socket);
        assert_eq!(connection.next(), None);
        control::send(&vmm, &ExecReport::Started { pid: 7 }).unwrap();
        control::send(&vmm, &ExecReport::Exited { status: 9 }).unwrap();
        assert_eq!(connection.next(), Some(Said::Report(ExecReport::Started { pid: 7 })));
        assert_eq!(connection.next(), Some(Said::Report(ExecReport::Exited { status: 9 })));
        control::send(&vmm, &Answer { error: Some("no".into()), ..Answer::default() }).unwrap();
        assert_eq!(connection.next(), Some(Said::Refused("no".into())));
        drop(vmm);
        assert_eq!(connection.next(), Some(Said::Gone));
    }
}
