//! The line discipline between the keyboard and the program. It is pure; its owner does the locking and the waiting.

mod erase;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::signals::{SIGINT, SIGQUIT, SIGTSTP};
use crate::tty::discipline::erase::Erase;
use crate::tty::packets::{FLUSHREAD, FLUSHWRITE, Packets};
use crate::tty::termios::{
    Input, Local, Output, Termios, VEOF, VEOL, VEOL2, VERASE, VINTR, VKILL, VLNEXT, VMIN, VQUIT, VREPRINT,
    VSTART, VSTOP, VSUSP, VTIME, VWERASE, WinSize,
};
use machine::errno::{Errno, Result};

/// Bytes typed and not read.
const INPUT_MAX: usize = 4095;
/// Most bytes of a controller that wait for room.
const BEHIND_MAX: usize = 16 * 1024;
/// Bytes for the other side at which programs have to wait.
const OUTPUT_MAX: usize = 16 * 1024;
/// Bytes for the other side at which echo is dropped, since no program waits for its room.
const ECHO_MAX: usize = 24 * 1024;
const TAB: usize = 8;

/// The state of one terminal.
pub struct Discipline {
    pub termios: Termios,
    /// A mask of the settings that cannot be changed (`TIOCSLCKTRMIOS`).
    pub locked: Termios,
    pub size: WinSize,
    /// The events that its controller hears of in packet mode.
    pub packets: Packets,
    /// Bytes that can be read; in canonical mode the bytes of the lines in `lines`.
    input: VecDeque<u8>,
    /// Lengths of the complete lines in `input`. A line may be empty: the end of the file.
    lines: VecDeque<usize>,
    /// The line being typed.
    editing: Vec<u8>,
    /// Bytes for the other side: programs' output, and echo.
    output: VecDeque<u8>,
    column: usize,
    /// Column at which the line being typed began.
    line_start: usize,
    stopped: bool,
    literal_next: bool,
    /// Characters that are taken back are being shown (`ECHOPRT`).
    erasing: bool,
    /// Bytes from the controller that wait for room in front of everything else.
    behind: VecDeque<u8>,
    /// When a read with `VTIME` gives up.
    pub read_deadline_ns: Option<u64>,
}

impl Default for Discipline {
    fn default() -> Self {
        Self {
            termios: Termios::standard(),
            locked: Termios::NOTHING,
            size: WinSize::default(),
            packets: Packets::default(),
            input: VecDeque::new(),
            lines: VecDeque::new(),
            editing: Vec::new(),
            output: VecDeque::new(),
            column: 0,
            line_start: 0,
            stopped: false,
            literal_next: false,
            erasing: false,
            behind: VecDeque::new(),
            read_deadline_ns: None,
        }
    }
}

impl Discipline {
    fn canonical(&self) -> bool {
        self.termios.local(Local::ICANON)
    }

    // ---- from the keyboard ----

    /// Bytes that may be received now.
    pub fn room(&self) -> usize {
        let left = INPUT_MAX.saturating_sub(self.input.len() + self.editing.len());
        // A line that became too long can still be erased and ended; further bytes are dropped.
        if left == 0 && self.canonical() && self.lines.is_empty() { 1 } else { left }
    }

    /// Bytes that may be left to wait.
    pub fn room_behind(&self) -> usize {
        BEHIND_MAX.saturating_sub(self.behind.len())
    }

    /// Whether bytes wait, so that others have to wait behind them.
    pub fn has_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Leaves bytes to wait until there is room; how many.
    pub fn leave_behind(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room_behind());
        if self.behind.try_reserve(count).is_err() {
            return 0;
        }
        self.behind.extend(&bytes[..count]);
        count
    }

    /// Takes the next byte that waited, when there is room for it.
    pub fn next_behind(&mut self) -> Option<u8> {
        if self.room() > 0 { self.behind.pop_front() } else { None }
    }

    /// Drops the bytes that wait (`TCIFLUSH`).
    pub fn drop_behind(&mut self) {
        self.behind = VecDeque::new();
    }

    /// Takes one byte from the keyboard; returns a signal for the foreground group.
    pub fn receive(&mut self, byte: u8) -> Option<u32> {
        let mut byte = byte;
        if self.termios.input(Input::ISTRIP) {
            byte &= 0x7f;
        }
        if self.termios.input(Input::IUCLC) && self.termios.local(Local::IEXTEN) {
            byte = byte.to_ascii_lowercase();
        }
        if core::mem::take(&mut self.literal_next) {
            self.add(byte);
            return None;
        }
        if self.flow_control(byte) {
            return None;
        }
        if let Some(signal) = self.signal_of(byte) {
            if !self.termios.local(Local::NOFLSH) {
                // What was written is on the other side, as it is on Linux but for the moment in which it goes there.
                self.flush_input();
                self.packets.flushed(FLUSHREAD | FLUSHWRITE);
            }
            self.echo(byte);
            return Some(signal);
        }
        match byte {
            b'\r' if self.termios.input(Input::IGNCR) => return None,
            b'\r' if self.termios.input(Input::ICRNL) => byte = b'\n',
            b'\n' if self.termios.input(Input::INLCR) => byte = b'\r',
            _ => {}
        }
        if self.canonical() {
            self.edit(byte);
        } else {
            self.add(byte);
        }
        None
    }

    fn flow_control(&mut self, byte: u8) -> bool {
        if !self.termios.input(Input::IXON) {
            return false;
        }
        if self.termios.is(VSTOP, byte) {
            self.set_stopped(true);
            return true;
        }
        if self.termios.is(VSTART, byte) {
            self.set_stopped(false);
            return true;
        }
        if self.termios.input(Input::IXANY) {
            self.set_stopped(false);
        }
        false
    }

    fn signal_of(&self, byte: u8) -> Option<u32> {
        if !self.termios.local(Local::ISIG) {
            return None;
        }
        let signals = [(VINTR, SIGINT), (VQUIT, SIGQUIT), (VSUSP, SIGTSTP)];
        signals.iter().find(|(index, _)| self.termios.is(*index, byte)).map(|(_, signal)| *signal)
    }

    /// A byte of canonical input.
    fn edit(&mut self, byte: u8) {
        let extended = self.termios.local(Local::IEXTEN);
        if self.termios.is(VERASE, byte) {
            self.erase(Erase::Char);
        } else if self.termios.is(VKILL, byte) {
            self.kill(byte);
        } else if extended && self.termios.is(VWERASE, byte) {
            self.erase(Erase::Word);
        } else if extended && self.termios.is(VLNEXT, byte) {
            self.literal_next = true;
            self.finish_erasing();
            if self.termios.local(Local::ECHO | Local::ECHOCTL) {
                self.put_echo(b"^\x08");
            }
        } else if extended && self.termios.local(Local::ECHO) && self.termios.is(VREPRINT, byte) {
            self.finish_erasing();
            self.echo(byte);
            self.put_echo(b"\n");
            let line = self.editing.clone();
            line.iter().for_each(|byte| self.echo(*byte));
        } else if self.termios.is(VEOF, byte) {
            self.commit();
        } else if byte == b'\n' || self.termios.is(VEOL, byte) || self.termios.is(VEOL2, byte) {
            let echo_newline = byte == b'\n' && self.termios.local(Local::ECHONL);
            if self.termios.local(Local::ECHO) || echo_newline {
                if byte == b'\n' { self.put_echo(b"\n") } else { self.echo(byte) }
            }
            // There is always room for the end of a line.
            self.editing.push(byte);
            self.commit();
        } else {
            self.add(byte);
        }
    }

    /// An ordinary byte.
    fn add(&mut self, byte: u8) {
        if self.input.len() + self.editing.len() >= INPUT_MAX {
            if self.termios.input(Input::IMAXBEL) {
                self.put_echo(b"\x07");
            }
            return;
        }
        if self.canonical() && self.editing.is_empty() {
            self.line_start = self.column;
        }
        // Marks of errors begin with this byte, so it is doubled where it is none.
        let is_doubled = byte == 0xff && self.termios.input(Input::PARMRK);
        let bytes = core::iter::repeat_n(byte, if is_doubled { 2 } else { 1 });
        if self.canonical() {
            self.editing.extend(bytes);
        } else {
            self.input.extend(bytes);
        }
        if self.termios.local(Local::ECHO) {
            self.finish_erasing();
            if byte == b'\n' { self.put_echo(b"\n") } else { self.echo(byte) }
        }
    }

    /// The line being typed becomes one that can be read.
    fn commit(&mut self) {
        if self.lines.len() < INPUT_MAX {
            self.lines.push_back(self.editing.len());
            self.input.extend(self.editing.drain(..));
        }
        self.editing.clear();
    }

    /// Shows a byte as it was typed; control characters as `^X`.
    fn echo(&mut self, byte: u8) {
        if !self.termios.local(Local::ECHO) {
            return;
        }
        if self.termios.local(Local::ECHOCTL) && byte.is_ascii_control() && byte != b'\t' && byte != b'\n' {
            self.put_echo(&[b'^', byte ^ 0x40]);
        } else {
            self.put_echo(&[byte]);
        }
    }

    fn put_echo(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.output.len() + TAB < ECHO_MAX {
                self.put_output(*byte);
            }
        }
    }

    // ---- to the program ----

    /// Whether a read would find something; `for_poll`: as `poll(2)` sees it.
    pub fn readable(&self) -> bool {
        if self.canonical() {
            return !self.lines.is_empty();
        }
        let min = usize::from(self.termios.cc[VMIN]);
        let wanted = if self.termios.cc[VTIME] == 0 && min > 0 { min } else { 1 };
        self.input.len() >= wanted.min(INPUT_MAX)
    }

    /// How long a read waits for its first byte, in nanoseconds; `None`: as long as it takes.
    pub fn read_timeout_ns(&self) -> Option<u64> {
        let time = u64::from(self.termios.cc[VTIME]);
        (!self.canonical() && self.termios.cc[VMIN] == 0 && time > 0).then_some(time * 100_000_000)
    }

    /// Takes up to `max` bytes, a line at most; nothing at the end of the file. `EAGAIN` when a read has to wait, which one that
    /// does not (`waits`) need not for what is there.
    pub fn read(&mut self, max: usize, now_ns: u64, waits: bool) -> Result<Vec<u8>> {
        if self.canonical() {
            let len = *self.lines.front().ok_or(Errno::EAGAIN)?;
            let count = len.min(max);
            let bytes = self.input.drain(..count.min(self.input.len())).collect();
            if count == len {
                self.lines.pop_front();
            } else if let Some(first) = self.lines.front_mut() {
                *first -= count;
            }
            return Ok(bytes);
        }
        let (min, time) = (usize::from(self.termios.cc[VMIN]), self.termios.cc[VTIME]);
        let enough = if time == 0 && waits { min.min(max) } else { min.min(1) };
        let timed_out = self.read_deadline_ns.is_some_and(|deadline| now_ns >= deadline);
        let polls = min == 0 && time == 0;
        if self.input.len() < enough.max(1) && !polls && !(timed_out && min == 0) {
            return Err(Errno::EAGAIN);
        }
        self.read_deadline_ns = None;
        Ok(self.input.drain(..max.min(self.input.len())).collect())
    }

    /// Bytes that can be read (`FIONREAD`).
    pub fn readable_bytes(&self) -> usize {
        if self.canonical() { self.lines.iter().sum() } else { self.input.len() }
    }

    // ---- from the program ----

    /// Whether a program should write.
    pub fn writable(&self) -> bool {
        !self.stopped && self.output.len() < OUTPUT_MAX / 2
    }

    /// Takes bytes that a program writes; returns how many of them, perhaps none.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() && !self.stopped && self.output.len() < OUTPUT_MAX {
            self.put_output(bytes[done]);
            done += 1;
        }
        done
    }

    /// Puts a byte out, processed.
    fn put_output(&mut self, byte: u8) {
        if !self.termios.output(Output::OPOST) {
            self.output.push_back(byte);
            return;
        }
        match byte {
            b'\n' => {
                if self.termios.output(Output::ONLCR) {
                    self.output.push_back(b'\r');
                    self.column = 0;
                } else if self.termios.output(Output::ONLRET) {
                    self.column = 0;
                }
                self.output.push_back(b'\n');
            }
            b'\r' if self.termios.output(Output::ONOCR) && self.column == 0 => {}
            b'\r' if self.termios.output(Output::OCRNL) => {
                self.output.push_back(b'\n');
                if self.termios.output(Output::ONLRET) {
                    self.column = 0;
                }
            }
            b'\r' => {
                self.column = 0;
                self.output.push_back(byte);
            }
            b'\t' => {
                let spaces = TAB - self.column % TAB;
                self.column += spaces;
                if self.termios.output(Output::XTABS) {
                    self.output.extend(core::iter::repeat_n(b' ', spaces));
                } else {
                    self.output.push_back(byte);
                }
            }
            0x08 => {
                self.column = self.column.saturating_sub(1);
                self.output.push_back(byte);
            }
            _ => {
                let upper = self.termios.output(Output::OLCUC);
                let byte = if upper { byte.to_ascii_uppercase() } else { byte };
                let moves = !byte.is_ascii_control() && !self.is_continuation(byte);
                self.column += usize::from(moves);
                self.output.push_back(byte);
            }
        }
    }

    // ---- to the screen ----

    /// Bytes for the screen.
    pub fn output_len(&self) -> usize {
        self.output.len()
    }

    /// Copies bytes for the screen into `to`, leaving them.
    pub fn peek_output(&self, to: &mut [u8]) -> usize {
        let count = to.len().min(self.output.len());
        to.iter_mut().zip(&self.output).for_each(|(to, byte)| *to = *byte);
        count
    }

    /// The first `count` bytes have been shown.
    pub fn consume_output(&mut self, count: usize) {
        self.output.drain(..count.min(self.output.len()));
        if self.output.is_empty() {
            self.output.shrink_to(512);
        }
    }

    // ---- settings ----

    /// Replaces the settings that are not locked; typed bytes stay readable.
    pub fn set_termios(&mut self, new: Termios) {
        let was = self.canonical();
        let old = self.termios;
        self.termios = new.keeping(&old, &self.locked);
        self.packets.settings(&old, &self.termios);
        match (was, self.canonical()) {
            (true, false) => {
                self.input.extend(self.editing.drain(..));
                self.lines.clear();
            }
            (false, true) if !self.input.is_empty() => self.lines.push_back(self.input.len()),
            _ => {}
        }
        if !self.termios.input(Input::IXON) {
            self.set_stopped(false);
        }
    }

    /// `TCOOFF`, `TCOON`.
    pub fn set_stopped(&mut self, stopped: bool) {
        if stopped != self.stopped {
            self.stopped = stopped;
            self.packets.stopped(stopped);
        }
    }

    /// Has the other side stop or go on, as far as there is a key for it (`TCIOFF`, `TCION`).
    pub fn send_flow(&mut self, stops: bool) {
        let key = self.termios.cc[if stops { VSTOP } else { VSTART }];
        if key != 0 && self.output.len() < ECHO_MAX {
            self.output.push_back(key);
        }
    }

    /// Drops the typed bytes that were not read.
    pub fn flush_input(&mut self) {
        self.input.clear();
        self.lines.clear();
        self.editing.clear();
    }

    /// Drops the output that was not shown.
    pub fn flush_output(&mut self) {
        self.output.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(tty: &mut Discipline, bytes: &[u8]) -> Vec<u32> {
        bytes.iter().filter_map(|byte| tty.receive(*byte)).collect()
    }

    fn shown(tty: &mut Discipline) -> Vec<u8> {
        let mut bytes = alloc::vec![0; tty.output_len()];
        let count = tty.peek_output(&mut bytes);
        tty.consume_output(count);
        bytes
    }

    #[test]
    fn a_byte_that_marks_begin_with_is_doubled() {
        let mut tty = Discipline::default();
        typed(&mut tty, b"\xff\n");
        assert_eq!(tty.read(10, 0, true).as_deref(), Ok(&b"\xff\n"[..]));
        let mut marking = tty.termios;
        marking.iflag |= Input::PARMRK.bits();
        tty.set_termios(marking);
        shown(&mut tty);
        typed(&mut tty, b"\xff\n");
        assert_eq!(tty.read(10, 0, true).as_deref(), Ok(&b"\xff\xff\n"[..]));
        assert_eq!(shown(&mut tty), b"\xff\r\n");
    }

    #[test]
    fn lines_are_edited_and_echoed() {
        let mut tty = Discipline::default();
        typed(&mut tty, b"helx\x7flo");
        assert!(!tty.readable());
        typed(&mut tty, b"\r");
        assert_eq!(tty.read(100, 0, true).as_deref(), Ok(&b"hello\n"[..]));
        assert_eq!(shown(&mut tty), b"helx\x08 \x08lo\r\n");
        typed(&mut tty, b"gone\x15kept\n");
        assert_eq!(tty.read(2, 0, true).as_deref(), Ok(&b"ke"[..]));
        assert_eq!(tty.read(100, 0, true).as_deref(), Ok(&b"pt\n"[..]));
        typed(&mut tty, b"two words\x17one\n\x04");
        assert_eq!(tty.read(100, 0, true).as_deref(), Ok(&b"two one\n"[..]));
        assert_eq!(tty.read(100, 0, true).as_deref(), Ok(&b""[..]));
        assert_eq!(tty.read(100, 0, true), Err(Errno::EAGAIN));
        typed(&mut tty, b"\x16\x03\n");
        assert_eq!(tty.read(100, 0, true).as_deref(), Ok(&b"\x03\n"[..]));
    }

    #[test]
    fn wide_characters_are_erased_whole() {
        let mut tty = Discipline::default();
        tty.termios.iflag |= Input::IUTF8.bits();
        typed(&mut tty, "aé\x7fb\n".as_bytes());
        assert_eq!(tty.read(100, 0, true).as_deref(), Ok(&b"ab\n"[..]));
        // A byte that begins no character stays, and ends no loop that erases a line.
        typed(&mut tty, b"\xa9\x7f\x15\x17x\x7f\n");
        assert_eq!(tty.read(100, 0, true).as_deref(), Ok(&b"\xa9\n"[..]));
        typed(&mut tty, "ab éé\x17\n".as_bytes());
        assert_eq!(tty.read(100, 0, true).as_deref(), Ok(&b"ab \n"[..]));
    }

    #[test]
    fn paper_shows_what_was_erased_once_more() {
        let mut tty = Discipline::default();
        tty.termios.lflag |= Local::ECHOPRT.bits();
        typed(&mut tty, b"abc\x7f\x7fd\x15");
        assert_eq!(shown(&mut tty), b"abc\\cb/d\\da/");
    }

    #[test]
    fn signals_flush_what_was_typed() {
        let mut tty = Discipline::default();
        assert_eq!(typed(&mut tty, b"abc\x03\x1a\x1c"), [SIGINT, SIGTSTP, SIGQUIT]);
        typed(&mut tty, b"d\n");
        assert_eq!(tty.read(100, 0, true).as_deref(), Ok(&b"d\n"[..]));
        assert_eq!(shown(&mut tty), b"abc^C^Z^\\d\r\n");
    }

    #[test]
    fn output_is_processed_unless_raw() {
        let mut tty = Discipline::default();
        assert_eq!(tty.write(b"a\nb"), 3);
        assert_eq!(shown(&mut tty), b"a\r\nb");
        let mut raw = tty.termios;
        (raw.iflag, raw.oflag, raw.lflag) = (0, 0, 0);
        tty.set_termios(raw);
        typed(&mut tty, b"\x03x");
        assert_eq!(tty.read(100, 0, true).as_deref(), Ok(&b"\x03x"[..]));
        assert_eq!((tty.write(b"\n"), shown(&mut tty)), (1, b"\n".to_vec()));
    }

    #[test]
    fn raw_reads_wait_as_min_and_time_say() {
        let mut tty = Discipline::default();
        tty.termios.lflag = 0;
        tty.termios.cc[VMIN] = 3;
        typed(&mut tty, b"ab");
        assert_eq!(tty.read(10, 0, true), Err(Errno::EAGAIN));
        assert_eq!(tty.read(2, 0, true).as_deref(), Ok(&b"ab"[..]));
        typed(&mut tty, b"cd");
        assert_eq!(tty.read(10, 0, false).as_deref(), Ok(&b"cd"[..]));
        assert_eq!(tty.read(10, 0, false), Err(Errno::EAGAIN));
        tty.termios.cc[VMIN] = 0;
        assert_eq!(tty.read(2, 0, true).as_deref(), Ok(&b""[..]));
        tty.termios.cc[VTIME] = 1;
        tty.read_deadline_ns = Some(50);
        assert_eq!(tty.read(2, 49, true), Err(Errno::EAGAIN));
        assert_eq!(tty.read(2, 50, true).as_deref(), Ok(&b""[..]));
    }

    #[test]
    fn nothing_grows_without_bound() {
        let mut tty = Discipline::default();
        for _ in 0..10_000 {
            typed(&mut tty, b"x");
        }
        assert_eq!(tty.room(), 1);
        typed(&mut tty, b"\n");
        assert_eq!((tty.room(), tty.readable_bytes()), (0, INPUT_MAX + 1));
        assert!(tty.output_len() <= ECHO_MAX);
        for _ in 0..10_000 {
            typed(&mut tty, b"\x04");
        }
        assert!(tty.lines.len() <= INPUT_MAX);
        let wrote = tty.write(&[b'\n'; 20_000]);
        assert!(wrote <= OUTPUT_MAX && tty.output_len() <= ECHO_MAX + 2);
        tty.termios.iflag |= Input::IXON.bits();
        typed(&mut tty, b"\x13");
        assert_eq!(tty.write(b"a"), 0);
    }
}
