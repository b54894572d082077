//! Packet mode of a pseudo-terminal (`TIOCPKT`): each read of the controller begins with a byte that says whether bytes of
//! the program follow, or what happened to the terminal.

use crate::tty::termios::{Input, Local, Termios, VSTART, VSTOP};

/// In front of bytes of the program.
pub const DATA: u8 = 0;
pub const FLUSHREAD: u8 = 1;
pub const FLUSHWRITE: u8 = 2;
const STOP: u8 = 4;
const START: u8 = 8;
const NOSTOP: u8 = 16;
const DOSTOP: u8 = 32;
/// Settings changed while the controller edits the lines itself (`EXTPROC`).
const IOCTL: u8 = 64;

/// Whether packet mode is on, and what happened that the controller has not read yet.
#[derive(Default)]
pub struct Packets {
    on: bool,
    status: u8,
}

impl Packets {
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Switches packet mode; what happened before it was on is not told.
    pub fn switch(&mut self, on: bool) {
        if on && !self.on {
            self.status = 0;
        }
        self.on = on;
    }

    /// Returns the bits of the events that have happened, if packet mode is on and any did.
    pub fn status(&self) -> Option<u8> {
        Some(self.status).filter(|status| self.on && *status != 0)
    }

    /// Returns what [`Self::status`] does, and counts the events as read.
    pub fn take_status(&mut self) -> Option<u8> {
        let status = self.status();
        if status.is_some() {
            self.status = 0;
        }
        status
    }

    /// Something happened, which undoes `opposite`.
    fn replace(&mut self, opposite: u8, event: u8) {
        if self.on {
            self.status = self.status & !opposite | event;
        }
    }

    /// Bytes were dropped: `FLUSHREAD` those that the program had not read, `FLUSHWRITE` those of its own.
    pub fn flushed(&mut self, event: u8) {
        self.replace(0, event);
    }

    /// The output stopped or went on.
    pub fn stopped(&mut self, stopped: bool) {
        if stopped { self.replace(START, STOP) } else { self.replace(STOP, START) }
    }

    /// The settings changed. What is told is whether the usual keys stop the output.
    pub fn settings(&mut self, old: &Termios, new: &Termios) {
        let stops = |settings: &Termios| {
            settings.input(Input::IXON) && settings.cc[VSTOP] == 0x13 && settings.cc[VSTART] == 0x11
        };
        match (stops(old), stops(new)) {
            (false, true) => self.replace(NOSTOP, DOSTOP),
            (true, false) => self.replace(DOSTOP, NOSTOP),
            _ => {}
        }
        if old.local(Local::EXTPROC) || new.local(Local::EXTPROC) {
            self.replace(0, IOCTL);
        }
    }
}
