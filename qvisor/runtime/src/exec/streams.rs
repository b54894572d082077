//! The streams of a process: this command's own, or a terminal whose other side goes to the console socket.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use abi::boot::STREAM_TTY;
use vmm::boot::Stream;
use vmm::descriptor_passing;
use vmm::process::{self, Terminal};

use super::options::{ExecError, ExecOptions};
use crate::preserved::{Preserved, PreservedFd};

/// See the module.
#[derive(Debug)]
pub(super) struct Streams {
    /// With the flags of its record. They are numbered by their places.
    list: Vec<(OwnedFd, u32)>,
    is_console: bool,
}

impl Streams {
    /// The standard streams, and what the caller hands in beside them.
    pub(super) fn open(options: &ExecOptions, preserved: Preserved) -> Result<Self, ExecError> {
        let mut streams = Self::standard(options)?;
        let further = open_further(&preserved);
        streams.list.extend(further.map_err(|source| options.system("copying its descriptors", source))?);
        Ok(streams)
    }

    fn standard(options: &ExecOptions) -> Result<Self, ExecError> {
        let failed = |source| options.system("copying its streams", source);
        if let Some(path) = &options.console_socket {
            let terminal = open_console(options, path)?;
            let copy = || Ok((terminal.try_clone()?, STREAM_TTY));
            let list = [copy(), copy(), copy()].into_iter().collect::<io::Result<_>>().map_err(failed)?;
            return Ok(Self { list, is_console: true });
        }
        let mut list = open_standard(options.terminal).map_err(failed)?;
        if let Some(input) = list.first_mut().filter(|_| options.no_input) {
            *input = (File::open("/dev/null").map_err(failed)?.into(), 0);
        }
        if options.terminal && list.first().is_none_or(|(_, flags)| flags & STREAM_TTY == 0) {
            let why = "standard input is none; leave out --tty, or pass --detach and --console-socket";
            return Err(ExecError::Terminal { id: options.id(), why: why.into() });
        }
        Ok(Self { list, is_console: false })
    }

    /// The records of the streams in the request; each stream is named by its place.
    pub(super) fn records(&self) -> Vec<Stream> {
        records(&self.list)
    }

    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.list.iter().map(|(fd, _)| fd.as_fd()).collect()
    }

    /// The command's own terminal, if the sandbox is to drive that.
    pub(super) fn terminal(&self) -> Option<Terminal> {
        let is_own = |flags: &u32| flags & STREAM_TTY != 0 && !self.is_console;
        let (fd, _) = self.list.iter().find(|(_, flags)| is_own(flags))?;
        Terminal::new(fd.as_fd())
    }

    /// Rows and columns of that terminal.
    pub(super) fn size(&self) -> Option<(u16, u16)> {
        self.terminal().map(|terminal| terminal.size())
    }

    /// The terminal that a leash is to have.
    pub(super) fn console(&self) -> Option<BorrowedFd<'_>> {
        self.list.first().filter(|_| self.is_console).map(|(fd, _)| fd.as_fd())
    }
}

/// This process's own standard streams, opened so that nobody waits in them, with the flags of their records.
pub(crate) fn open_standard(has_terminal: bool) -> io::Result<Vec<(OwnedFd, u32)>> {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let open = |fd: BorrowedFd<'_>| {
        let is_terminal = has_terminal && Terminal::new(fd).is_some();
        Ok((process::open_without_waiting(fd)?, if is_terminal { STREAM_TTY } else { 0 }))
    };
    [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()].into_iter().map(open).collect()
}

/// The further descriptors that the caller hands in, opened so that nobody waits in them, with the flags of their
/// records.
pub(crate) fn open_further(preserved: &Preserved) -> io::Result<Vec<(OwnedFd, u32)>> {
    let open = |one: &PreservedFd| Ok((process::open_without_waiting(one.fd.as_fd())?, one.flags));
    preserved.0.iter().map(open).collect()
}

/// The records of streams, each of which is named by its place.
pub(crate) fn records(streams: &[(OwnedFd, u32)]) -> Vec<Stream> {
    let record = |(at, (_, flags)): (u32, &(OwnedFd, u32))| Stream { fd: at, handle: at, flags: *flags };
    (0..).zip(streams).map(record).collect()
}

/// Opens a terminal whose other side goes to the console socket.
fn open_console(options: &ExecOptions, path: &Path) -> Result<OwnedFd, ExecError> {
    let failed = |error: io::Error| ExecError::Terminal {
        id: options.id(),
        why: format!("console socket {}: {error}; pass one that is listened to", path.display()),
    };
    let (rows, columns) = options.process.winsize.unwrap_or((0, 0));
    let (controller, terminal) = process::open_terminal(rows, columns).map_err(failed)?;
    process::do_not_wait(terminal.as_fd()).map_err(failed)?;
    let socket = descriptor_passing::connect_to_own(path).map_err(failed)?;
    descriptor_passing::send(socket.as_fd(), &[controller.as_fd()], b"/dev/ptmx", 0).map_err(failed)?;
    Ok(terminal)
}
