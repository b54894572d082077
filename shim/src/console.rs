//! The terminal of a process: its controlling side comes over the console socket, and what goes through it is copied
//! from and to FIFOs, or to whatever keeps the log.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::termios::Winsize;
use vmm::{descriptor_passing, process};

use crate::streams::{Held, Input};
use crate::thread;

/// How long the terminal may take to come; the program that sends it has ended by then.
const PATIENCE_MS: i32 = 10_000;
/// How long what is left of a process's output may take to be read.
const DRAIN: Duration = Duration::from_secs(10);
const BUFFER: usize = 4096;

/// A socket that waits for a terminal. Its path may be longer than a socket's address can be, so it is reached by a
/// descriptor of its directory.
#[derive(Debug)]
pub struct ConsoleSocket {
    listener: UnixListener,
    path: PathBuf,
    directory: File,
    name: String,
}

/// A terminal whose contents are copied.
#[derive(Debug)]
pub struct Console {
    controller: File,
    /// Nothing comes of it but its end.
    drained: Mutex<Receiver<()>>,
}

impl ConsoleSocket {
    /// `name`: a file that the directory has not.
    pub fn new(directory: &Path, name: &str) -> io::Result<Self> {
        let path = directory.join(name);
        let directory = File::open(directory)?;
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))?;
        Ok(Self { listener, path, directory, name: name.to_owned() })
    }

    /// How other processes reach it, as long as the shim lives.
    #[must_use]
    pub fn address(&self) -> PathBuf {
        format!("/proc/{}/fd/{}/{}", process::id(), self.directory.as_raw_fd(), self.name).into()
    }

    /// The controlling side that was sent.
    pub fn receive(&self) -> io::Result<OwnedFd> {
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        if !process::wait_readable([self.listener.as_raw_fd()], PATIENCE_MS)[0] {
            return Err(late());
        }
        let (stream, _) = self.listener.accept()?;
        if !process::wait_readable([stream.as_raw_fd()], PATIENCE_MS)[0] {
            return Err(late());
        }
        let mut descriptors = Vec::new();
        descriptor_passing::receive_now(&stream, &mut [0; 4096], &mut descriptors).ok_or_else(late)?;
        descriptors.pop().ok_or_else(|| io::Error::other("no descriptor came"))
    }
}

impl Drop for ConsoleSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Console {
    /// Copies until the terminal's other side is closed everywhere.
    pub fn start(
        controller: OwnedFd,
        input: Option<Input>,
        stdout: Option<OwnedFd>,
        held: &mut Held,
    ) -> io::Result<Self> {
        let controller = File::from(controller);
        let (drain, drained) = channel();
        let (end, ends) = io::pipe()?;
        if let Some(input) = input {
            held.copy(input, Some((controller.try_clone()?, end)))?;
        }
        let (mut from, to) = (controller.try_clone()?, stdout.map(File::from));
        let is_begun = thread::start("output", move || {
            show(&mut from, to);
            drop((ends, drain));
        });
        if !is_begun {
            return Err(io::Error::other("no thread can be started"));
        }
        Ok(Self { controller, drained: Mutex::new(drained) })
    }

    pub fn resize(&self, rows: u16, columns: u16) -> io::Result<()> {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(rustix::termios::tcsetwinsize(&self.controller, size)?)
    }

    /// Waits until everything that was written has been passed on; false: somebody does not read.
    pub fn drain(&self) -> bool {
        let drained = self.drained.lock().unwrap_or_else(PoisonError::into_inner);
        drained.recv_timeout(DRAIN) != Err(RecvTimeoutError::Timeout)
    }
}

/// Copies from the terminal. What nobody takes is dropped, so that the process is not held up for ever.
fn show(from: &mut File, mut to: Option<File>) {
    let mut buffer = [0; BUFFER];
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        if let Some(file) = &mut to
            && file.write_all(buffer.get(..got).unwrap_or_default()).is_err()
        {
            to = None;
        }
    }
}
