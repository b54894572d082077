//! Terminals, and other streams whose readers would have to wait.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::calls::{check, signal_set};

/// Makes a terminal this session's, and the standard streams. Only for the leader of a session without one.
pub fn take_terminal(terminal: OwnedFd) -> io::Result<()> {
    own_terminal(&terminal)?;
    // SAFETY: integers only; the streams are this process's own business.
    unsafe {
        for fd in 0..3 {
            check(libc::dup2(terminal.as_raw_fd(), fd))?;
        }
    }
    Ok(())
}

/// Makes a terminal this session's. Only for the leader of a session without one.
pub fn own_terminal(terminal: &OwnedFd) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) }).map(drop)
}

/// Makes reads and writes of the file behind `fd` return at once, for all processes that share it.
pub fn do_not_wait(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: integers only.
    unsafe {
        let flags = check(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL))?;
        check(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)).map(drop)
    }
}

/// A pipe or terminal opened anew, without waiting and shared with nobody, if the host lets us; else a copy.
pub fn open_without_waiting(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    let copy = std::fs::File::from(fd.try_clone_to_owned()?);
    let is_stream =
        copy.metadata().is_ok_and(|data| data.file_type().is_fifo()) || Terminal::new(fd).is_some();
    if is_stream {
        // SAFETY: integers only.
        let access = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) } & libc::O_ACCMODE;
        let (reads, writes) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
        let mut options = std::fs::File::options();
        options.read(reads).write(writes).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        if let Ok(own) = options.open(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
            return Ok(own.into());
        }
    }
    Ok(copy.into())
}

/// A new pseudo-terminal in raw mode: its controlling side, and the side for programs.
pub fn open_terminal(rows: u16, columns: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let (mut controller, mut terminal) = (-1, -1);
    let mut size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let none = std::ptr::null_mut();
    // SAFETY: live integers and a live structure; the other arguments are left out.
    check(unsafe {
        libc::openpty(&raw mut controller, &raw mut terminal, none, none.cast(), &raw mut size)
    })?;
    // SAFETY: the call just returned these.
    let (controller, terminal) =
        unsafe { (OwnedFd::from_raw_fd(controller), OwnedFd::from_raw_fd(terminal)) };
    for fd in [&controller, &terminal] {
        // SAFETY: integers only.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) })?;
    }
    Terminal::new(terminal.as_fd()).iter().for_each(Terminal::set_raw);
    Ok((controller, terminal))
}

/// A terminal, and how it was found.
pub struct Terminal {
    fd: OwnedFd,
    found: libc::termios,
}

impl Terminal {
    /// Remembers the settings of the terminal behind `fd`; `None` when it is not one.
    #[must_use]
    pub fn new(fd: BorrowedFd<'_>) -> Option<Self> {
        // SAFETY: `termios` is plain integers.
        let mut found = unsafe { std::mem::zeroed() };
        // SAFETY: `found` is live for the call.
        check(unsafe { libc::tcgetattr(fd.as_raw_fd(), &raw mut found) }).ok()?;
        Some(Self { fd: fd.try_clone_to_owned().ok()?, found })
    }

    /// Hands every key through; the sandbox has its own line discipline.
    pub fn set_raw(&self) {
        let mut raw = self.found;
        // SAFETY: `raw` is a live, initialised structure.
        unsafe { libc::cfmakeraw(&raw mut raw) };
        self.apply(&raw);
    }

    /// Restores the settings that were found.
    pub fn restore(&self) {
        self.apply(&self.found);
    }

    fn apply(&self, settings: &libc::termios) {
        let blocked = signal_set(&[libc::SIGTTOU]);
        // SAFETY: all pointers are to live structures. A process in the background is not stopped by this.
        unsafe {
            let mut before = std::mem::zeroed();
            libc::sigprocmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before);
            libc::tcsetattr(self.fd.as_raw_fd(), libc::TCSADRAIN, settings);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        }
    }

    /// Rows and columns.
    #[must_use]
    pub fn size(&self) -> (u16, u16) {
        terminal_size(self.fd.as_fd())
    }
}

/// Rows and columns of a terminal; zeros for any other file.
#[must_use]
pub fn terminal_size(fd: BorrowedFd<'_>) -> (u16, u16) {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is live for the call.
    unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (size.ws_row, size.ws_col)
}
