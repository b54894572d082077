//! A command on a terminal that a test holds.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Instant;

use super::sleeper::PATIENCE;

/// The terminal of a command, on this side.
pub struct OnTerminal {
    pub front: Child,
    keyboard: File,
    screen: OwnedFd,
    seen: String,
}

impl OnTerminal {
    /// Runs a command with the other side for its streams and its controlling terminal.
    pub fn start(mut command: Command) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let size = libc::winsize { ws_row: 33, ws_col: 99, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: both numbers and the size are live; the other arguments are left out.
        let result = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const size,
            )
        };
        assert_eq!(result, 0);
        // SAFETY: the call just returned these.
        let (keyboard, screen) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let copy = || screen.try_clone().unwrap();
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: only system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            })
        };
        Self { front: command.spawn().unwrap(), keyboard, screen, seen: String::new() }
    }

    pub fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until this was shown, and takes it with all before it.
    pub fn shows(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.seen.find(text) {
                return self.seen.drain(..at + text.len()).collect();
            }
            assert!(start.elapsed() < PATIENCE, "no {text:?} in {:?}", self.seen);
            let mut poll = libc::pollfd { fd: self.keyboard.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one live structure.
            if unsafe { libc::poll(&raw mut poll, 1, 100) } == 1 {
                let mut bytes = [0; 1024];
                let got = self.keyboard.read(&mut bytes).unwrap();
                self.seen += &String::from_utf8_lossy(&bytes[..got]);
            }
        }
    }

    pub fn is_cooked(&self) -> bool {
        // SAFETY: `termios` is plain integers, and live for the call.
        unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(self.screen.as_raw_fd(), &raw mut settings), 0);
            settings.c_lflag & libc::ICANON != 0
        }
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the size is live.
        assert_eq!(unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
    }
}
