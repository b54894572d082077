//! Taking back what was typed: the last character, word or line.

use crate::tty::discipline::{Discipline, TAB};
use crate::tty::termios::{Input, Local, VERASE};

/// The part of the line being typed that is taken back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Erase {
    /// `VERASE`.
    Char,
    /// `VWERASE`.
    Word,
    /// `VKILL`.
    Line,
}

/// Whether the byte belongs to a word, by Linux's table, which is that of Latin-1 whatever the terminal's characters are.
fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || byte == b'_'
        || matches!(byte, 0xc0..=0xff if byte != 0xd7 && byte != 0xf7)
}

impl Discipline {
    /// Whether the byte goes on with a character that another one began (`IUTF8`).
    pub(super) fn is_continuation(&self, byte: u8) -> bool {
        byte & 0xc0 == 0x80 && self.termios.input(Input::IUTF8)
    }

    /// Where the last character of the line being typed begins. Bytes that only go on with one are none.
    fn last_char(&self) -> Option<usize> {
        self.editing.iter().rposition(|byte| !self.is_continuation(*byte))
    }

    /// Takes back what was typed, and its echo.
    pub(super) fn erase(&mut self, what: Erase) {
        if self.editing.is_empty() {
            return;
        }
        let mut had_word = false;
        while let Some(at) = self.last_char() {
            let is_of_word = is_of_word(self.editing[at]);
            if what == Erase::Word && had_word && !is_of_word {
                break;
            }
            had_word |= is_of_word;
            let gone = self.editing.split_off(at);
            if self.termios.local(Local::ECHO) {
                self.show_erased(&gone, what);
            }
            if what == Erase::Char {
                break;
            }
        }
        if self.editing.is_empty() {
            self.finish_erasing();
        }
    }

    /// Takes the whole line back (`VKILL`).
    pub(super) fn kill(&mut self, byte: u8) {
        if self.editing.is_empty() {
            return;
        }
        if self.termios.local(Local::ECHO | Local::ECHOE | Local::ECHOK | Local::ECHOKE) {
            self.erase(Erase::Line);
            return;
        }
        self.editing.clear();
        self.finish_erasing();
        self.echo(byte);
        if self.termios.local(Local::ECHO | Local::ECHOK) {
            self.put_echo(b"\n");
        }
    }

    /// Ends the display of erased characters with a slash, if one is under way (`ECHOPRT`).
    pub(super) fn finish_erasing(&mut self) {
        if self.termios.local(Local::ECHO) && core::mem::take(&mut self.erasing) {
            self.put_echo(b"/");
        }
    }

    /// Shows that a character is gone: on paper by printing it once more, on a screen by wiping it.
    fn show_erased(&mut self, gone: &[u8], what: Erase) {
        let Some((&first, rest)) = gone.split_first() else { return };
        if self.termios.local(Local::ECHOPRT) {
            if !core::mem::replace(&mut self.erasing, true) {
                self.put_echo(b"\\");
            }
            self.echo(first);
            let column = self.column;
            self.put_echo(rest);
            self.column = column;
        } else if what == Erase::Char && !self.termios.local(Local::ECHOE) {
            let erase = self.termios.cc[VERASE];
            self.echo(erase);
        } else if first == b'\t' {
            // What the tab skipped is blank already.
            for _ in 0..self.tab_columns() {
                self.put_echo(b"\x08");
            }
        } else {
            let shows_control = usize::from(self.termios.local(Local::ECHOCTL));
            let columns = if first.is_ascii_control() { 2 * shows_control } else { 1 };
            for _ in 0..columns {
                self.put_echo(b"\x08 \x08");
            }
        }
    }

    /// The columns of a tab behind the line being typed.
    fn tab_columns(&self) -> usize {
        let shows_control = usize::from(self.termios.local(Local::ECHOCTL));
        let tab = self.editing.iter().rposition(|byte| *byte == b'\t');
        let start = if tab.is_some() { 0 } else { self.line_start };
        let behind = self.editing.get(tab.map_or(0, |tab| tab + 1)..).unwrap_or_default();
        let columns = behind.iter().map(|byte| match *byte {
            byte if byte.is_ascii_control() => 2 * shows_control,
            byte => usize::from(!self.is_continuation(byte)),
        });
        TAB - (start + columns.sum::<usize>()) % TAB
    }
}
