//! Terminals: pseudo-terminals, and the console on the sandbox's streams. Both are a line discipline between a program's
//! side and another: the holder of the pseudo-terminal's controller, or the host.

pub mod console;
pub mod discipline;
mod ioctl;
mod jobs;
mod packets;
pub mod pts;
pub mod termios;

pub use jobs::controlling_terminal;

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::creds::CAP_SYS_ADMIN;
use crate::fs::caller::{self, CallerCtx};
use crate::fs::devfs;
use crate::fs::file::{At, File, FileOps, OpenFlags};
use crate::fs::inode::Stat;
use crate::fs::poll::PollTable;
use crate::fs::sigio;
use crate::signals::{SIGTTIN, SIGTTOU, SIGWINCH, Source};
use crate::task::container::{self, Container, ContainerId};
use crate::task::pid_space::PidSpace;
use crate::task::signal;
use crate::task::terminal::Terminal;
use crate::tty::console::Console;
use crate::tty::discipline::Discipline;
use crate::tty::termios::{Local, WinSize};
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, account};
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;
use machine::sync::{Once, Rank, SpinLock};
use machine::time;

/// Bytes moved between user memory and the discipline at a time.
const CHUNK_BYTES: usize = 512;
/// Major number of the program's sides.
const PTS_MAJOR: u64 = 136;

/// A terminal.
pub struct Tty {
    me: Weak<Tty>,
    /// The ids that its numbers of process groups and sessions are.
    pids: Weak<PidSpace>,
    /// The container's console: it stays when nobody has it open.
    is_container_console: AtomicBool,
    /// Its name in the `/dev/pts` of its container.
    pub number: u32,
    container: ContainerId,
    line: SpinLock<Discipline>,
    /// The program's side waits here, the controller's side there.
    wait: Arc<WaitQueue>,
    controller_wait: Arc<WaitQueue>,
    foreground: AtomicU32,
    /// Open files of the program's side, and whether there were any.
    opens: AtomicUsize,
    was_opened: AtomicBool,
    /// The other side is gone.
    hung_up: AtomicBool,
    /// `TIOCSPTLCK`.
    locked: AtomicBool,
    /// `TIOCEXCL`.
    exclusive: AtomicBool,
    meta: SpinLock<pts::Meta>,
    /// The host's side, of the console.
    host: Option<Console>,
    /// Called each time the console has shown all its output.
    pub on_drained: Once<Box<dyn Fn() + Send + Sync>>,
}

/// The side of the terminal that a file is an end of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Program,
    Controller,
}

impl Tty {
    fn new(
        container: &Arc<Container>,
        number: u32,
        meta: pts::Meta,
        locked: bool,
        host: Option<Console>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            pids: Arc::downgrade(&container.pids),
            is_container_console: AtomicBool::new(false),
            number,
            container: container.id,
            line: SpinLock::new(Rank::Terminal, Discipline::default()),
            wait: Arc::new(WaitQueue::new()),
            controller_wait: Arc::new(WaitQueue::new()),
            foreground: AtomicU32::new(0),
            opens: AtomicUsize::new(0),
            was_opened: AtomicBool::new(false),
            hung_up: AtomicBool::new(false),
            locked: AtomicBool::new(locked),
            exclusive: AtomicBool::new(false),
            meta: SpinLock::new(Rank::Leaf, meta),
            host,
            on_drained: Once::new(),
        })
    }

    /// Sends a signal to its foreground group, if there is one.
    fn signal_foreground(&self, signal: u32) {
        let group = self.foreground.load(Ordering::Acquire);
        self.signal_group(group, signal);
    }

    fn signal_group(&self, group: u32, signal: u32) {
        if let Some(pids) = self.pids.upgrade().filter(|_| group != 0) {
            signal::send_to_group(&pids, group, signal, Source::Kernel);
        }
    }

    fn is_hung_up(&self) -> bool {
        self.hung_up.load(Ordering::Acquire)
    }

    fn rdev(&self) -> u64 {
        devfs::device(PTS_MAJOR, u64::from(self.number))
    }

    /// Takes bytes from the keyboard, as many as there is room for.
    fn receive(&self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let mut signal = None;
            {
                let mut line = self.line.lock();
                while done < bytes.len() && signal.is_none() && line.room() > 0 {
                    signal = line.receive(bytes[done]);
                    done += 1;
                }
            }
            // The signal is sent without the lock, and before the bytes typed after it are handled.
            let Some(signal) = signal else { break };
            self.signal_foreground(signal);
        }
        if done > 0 {
            self.wait.wake(PollEvents::READABLE | PollEvents::WRITABLE);
            self.output_changed();
        }
        done
    }

    /// Takes bytes of the controller. Those that there is no room for are kept until there is, in bounds.
    fn receive_or_keep(&self, bytes: &[u8]) -> usize {
        self.take_behind();
        let waits = self.line.lock().has_behind();
        let done = if waits { 0 } else { self.receive(bytes) };
        done + self.line.lock().leave_behind(&bytes[done..])
    }

    /// Takes the bytes that were kept, as many as there is room for now.
    fn take_behind(&self) {
        let mut any = false;
        loop {
            let mut signal = None;
            {
                let mut line = self.line.lock();
                while signal.is_none()
                    && let Some(byte) = line.next_behind()
                {
                    signal = line.receive(byte);
                    any = true;
                }
            }
            let Some(signal) = signal else { break };
            self.signal_foreground(signal);
        }
        if any {
            self.wait.wake(PollEvents::READABLE | PollEvents::WRITABLE);
            self.output_changed();
        }
    }

    /// There may be something for the screen.
    fn output_changed(&self) {
        match &self.host {
            Some(console) => console.flush(self),
            None => self.controller_wait.wake(PollEvents::READABLE | PollEvents::PRI),
        }
    }

    /// There may be room for the keyboard.
    fn input_changed(&self) {
        match &self.host {
            Some(console) => console.pump(self),
            None => {
                self.take_behind();
                self.controller_wait.wake(PollEvents::WRITABLE);
            }
        }
    }

    /// Changes the window size; the foreground group hears of it.
    pub fn set_size(&self, size: WinSize) {
        let old = core::mem::replace(&mut self.line.lock().size, size);
        if old != size {
            self.signal_foreground(SIGWINCH);
        }
    }

    /// The other side is gone for good.
    fn hang_up(self: &Arc<Self>) {
        if self.hung_up.swap(true, Ordering::AcqRel) {
            return;
        }
        jobs::hang_up(self);
        self.wait.wake_all();
        self.controller_wait.wake_all();
    }
}

impl Terminal for Tty {
    fn resize(&self, rows: u16, columns: u16) {
        self.set_size(WinSize { rows, columns, ..WinSize::default() });
    }
    fn foreground(&self) -> u32 {
        self.foreground.load(Ordering::Acquire)
    }
    fn set_foreground(&self, group: u32) {
        self.foreground.store(group, Ordering::Release);
    }
    fn left(&self) {
        if self.host.is_some() {
            console::left(self);
        }
    }
    fn container_ended(&self) {
        console::abandoned(self);
    }
    fn device(&self) -> u64 {
        self.rdev()
    }
    fn open(&self, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
        let me = self.me.upgrade().ok_or(Errno::EIO)?;
        Ok(Box::new(TtyFile::program(&me, flags)?))
    }
}

impl sigio::Look for Tty {
    /// The events that hold for a program.
    fn events(&self) -> PollEvents {
        if self.is_hung_up() {
            return PollEvents::READABLE | PollEvents::WRITABLE | PollEvents::ERR | PollEvents::HUP;
        }
        let line = self.line.lock();
        let mut events = PollEvents::empty();
        events.set(PollEvents::READABLE, line.readable());
        events.set(PollEvents::WRITABLE, line.writable());
        events
    }

    fn group(&self, pid_space: u64) -> u32 {
        let is_known = self.pids.upgrade().is_some_and(|pids| pids.number == pid_space);
        if is_known { self.foreground.load(Ordering::Acquire) } else { 0 }
    }
}

/// An open end of a terminal.
pub struct TtyFile {
    pub tty: Arc<Tty>,
    side: Side,
}

impl TtyFile {
    /// Opens the program's side. The leader of a session without a terminal gets it as its own, unless `flags` say not
    /// to.
    fn program(tty: &Arc<Tty>, flags: OpenFlags) -> Result<Self> {
        if tty.locked.load(Ordering::Relaxed) || tty.is_hung_up() {
            return Err(Errno::EIO);
        }
        let is_refused = tty.exclusive.load(Ordering::Relaxed) && tty.opens.load(Ordering::Relaxed) > 0;
        if is_refused && !caller::current().creds().has(CAP_SYS_ADMIN) {
            return Err(Errno::EBUSY);
        }
        tty.opens.fetch_add(1, Ordering::AcqRel);
        tty.was_opened.store(true, Ordering::Release);
        if !flags.contains(OpenFlags::NOCTTY) && flags.readable() {
            let _ = jobs::take_as_controlling(tty, false, true);
        }
        Ok(Self { tty: tty.clone(), side: Side::Program })
    }

    fn controller(tty: &Arc<Tty>) -> Self {
        Self { tty: tty.clone(), side: Side::Controller }
    }

    fn read_program(&self, file: &File, buf: &mut IoBuf<'_>) -> Result<usize> {
        let tty = &self.tty;
        if tty.is_hung_up() {
            return Ok(0);
        }
        jobs::check_background(tty, SIGTTIN)?;
        let max = buf.remaining().min(4096);
        let bytes = tty.line.lock().read(max, time::monotonic_ns(), !file.is_nonblocking())?;
        buf.fill(&bytes)?;
        tty.input_changed();
        Ok(bytes.len())
    }

    fn write_program(&self, buf: &mut IoBuf<'_>) -> Result<usize> {
        let tty = &self.tty;
        if tty.is_hung_up() {
            return Err(Errno::EIO);
        }
        if tty.line.lock().termios.local(Local::TOSTOP) {
            jobs::check_background(tty, SIGTTOU)?;
        }
        account::check(buf.remaining().min(CHUNK_BYTES))?;
        let done = in_chunks(buf, |bytes| tty.line.lock().write(bytes))?;
        tty.output_changed();
        if done == 0 && tty.host.is_some() {
            // The host may just have taken the output that was in the way.
            return in_chunks(buf, |bytes| tty.line.lock().write(bytes)).and_then(some);
        }
        some(done)
    }

    fn read_controller(&self, buf: &mut IoBuf<'_>) -> Result<usize> {
        let tty = &self.tty;
        let begin = buf.mark();
        let (status, has_lead) = {
            let mut line = tty.line.lock();
            (line.packets.take_status(), line.packets.is_on() && line.output_len() > 0)
        };
        if let Some(status) = status {
            return buf.fill(&[status]).map(|()| 1);
        }
        if has_lead {
            buf.fill(&[packets::DATA])?;
        }
        let is_full = buf.is_empty();
        let mut chunk = [0u8; CHUNK_BYTES];
        let mut done = 0;
        while !buf.is_empty() {
            let max = buf.remaining().min(CHUNK_BYTES);
            let got = {
                let mut line = tty.line.lock();
                let got = line.peek_output(&mut chunk[..max]);
                line.consume_output(got);
                got
            };
            if got == 0 {
                break;
            }
            buf.fill(&chunk[..got])?;
            done += got;
        }
        if done > 0 || is_full {
            tty.wait.wake(PollEvents::WRITABLE);
            return Ok(done + usize::from(has_lead));
        }
        buf.rewind(begin);
        if tty.was_opened.load(Ordering::Acquire) && tty.opens.load(Ordering::Acquire) == 0 {
            return Err(Errno::EIO);
        }
        Err(Errno::EAGAIN)
    }

    fn write_controller(&self, buf: &mut IoBuf<'_>) -> Result<usize> {
        account::check(buf.remaining().min(CHUNK_BYTES))?;
        in_chunks(buf, |bytes| self.tty.receive_or_keep(bytes)).and_then(some)
    }

    fn poll_program(&self) -> PollEvents {
        sigio::Look::events(&*self.tty)
    }

    fn poll_controller(&self) -> PollEvents {
        let line = self.tty.line.lock();
        let mut events = PollEvents::empty();
        let happened = line.packets.status().is_some();
        events.set(PollEvents::READABLE, happened || line.output_len() > 0);
        events.set(PollEvents::PRI, happened);
        events.set(PollEvents::WRITABLE, line.room_behind() > 0);
        let left = self.tty.was_opened.load(Ordering::Acquire) && self.tty.opens.load(Ordering::Acquire) == 0;
        events.set(PollEvents::HUP, left);
        events
    }
}

/// A count that isn't zero, or `EAGAIN`.
fn some(done: usize) -> Result<usize> {
    if done == 0 { Err(Errno::EAGAIN) } else { Ok(done) }
}

/// Hands the buffer to `take` in pieces until it takes less than it is offered.
fn in_chunks(buf: &mut IoBuf<'_>, mut take: impl FnMut(&[u8]) -> usize) -> Result<usize> {
    let mut chunk = [0u8; CHUNK_BYTES];
    let mut done = 0;
    while !buf.is_empty() {
        let len = buf.remaining().min(CHUNK_BYTES);
        let start = buf.mark();
        match buf.drain(&mut chunk[..len]) {
            Ok(()) => {}
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
        let taken = take(&chunk[..len]).min(len);
        done += taken;
        if taken < len {
            buf.rewind(start);
            let _ = buf.drain(&mut chunk[..taken]);
            break;
        }
    }
    Ok(done)
}

impl Drop for TtyFile {
    fn drop(&mut self) {
        match self.side {
            Side::Program => {
                if self.tty.opens.fetch_sub(1, Ordering::AcqRel) == 1 {
                    self.tty.exclusive.store(false, Ordering::Relaxed);
                    self.tty.controller_wait.wake(PollEvents::READABLE | PollEvents::HUP);
                    Terminal::left(&*self.tty);
                }
            }
            Side::Controller => {
                pts::release(&self.tty);
                self.tty.hang_up();
            }
        }
    }
}

impl FileOps for TtyFile {
    fn is_from_outside(&self) -> bool {
        true
    }

    fn read(&self, file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        match self.side {
            Side::Program => self.read_program(file, buf),
            Side::Controller => self.read_controller(buf),
        }
    }

    fn write(&self, _file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        match self.side {
            Side::Program => self.write_program(buf),
            Side::Controller => self.write_controller(buf),
        }
    }

    fn deadline_ns(&self, events: PollEvents) -> Option<u64> {
        if self.side == Side::Controller || !events.intersects(PollEvents::READABLE) {
            return None;
        }
        let mut line = self.tty.line.lock();
        let deadline = line.read_timeout_ns().map(|timeout| time::monotonic_ns().saturating_add(timeout));
        line.read_deadline_ns = deadline;
        deadline
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if let Some(table) = table {
            table.add(if self.side == Side::Program { &self.tty.wait } else { &self.tty.controller_wait });
        }
        match self.side {
            Side::Program => self.poll_program(),
            Side::Controller => self.poll_controller(),
        }
    }

    fn signals(&self) -> Option<sigio::Kind> {
        let ours = self.side == Side::Program;
        ours.then(|| sigio::Kind::Terminal(self.tty.clone()))
    }

    fn ioctl(&self, cx: &CallerCtx<'_>, _file: &File, request: u32, arg: u64) -> Result<u64> {
        ioctl::ioctl(cx, &self.tty, self.side, request, arg)
    }

    fn stat(&self, file: &File) -> Result<Stat> {
        match &file.path {
            Some(path) => path.inode.stat(),
            None => Ok(pts::stat(&self.tty)),
        }
    }

    fn describe(&self) -> Vec<u8> {
        match self.side {
            Side::Program => format!("/dev/pts/{}", self.tty.number).into_bytes(),
            Side::Controller => b"/dev/ptmx".to_vec(),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Opens a terminal by its device number: `/dev/tty`, the console, `/dev/ptmx`, a pseudo-terminal.
pub fn open_device(rdev: u64, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
    match rdev {
        devfs::TTY => controlling_terminal()?.open(flags | OpenFlags::NOCTTY),
        devfs::CONSOLE => {
            container::current().console.get().ok_or(Errno::ENXIO)?.open(flags | OpenFlags::NOCTTY)
        }
        devfs::PTMX => pts::open_controller(),
        _ => pts::find_device(rdev).ok_or(Errno::ENXIO)?.open(flags),
    }
}
