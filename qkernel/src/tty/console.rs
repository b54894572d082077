//! Consoles: terminals on streams of the sandbox whose host's side is raw. The first process's console stays; the
//! console of an exec'd process goes with its last user.
//!
//! Typed bytes are taken from the host as soon as they are there, whether or not a program reads: control characters
//! are signals. Output that the host doesn't take at once stays in the discipline until it does.

use abi::word::low16;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use crate::fs::file::{File, OpenFlags};
use crate::fs::host_poll;
use crate::task::container::Container;
use crate::task::terminal::Terminal;
use crate::task::tree::SessionTerminal;
use crate::tty::pts;
use crate::tty::pts::Meta;
use crate::tty::termios::WinSize;
use crate::tty::{Tty, TtyFile, jobs};
use machine::errno::{Errno, Result};
use machine::file;
use machine::host;
use machine::host::Handle;
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;
use machine::sched::wait::Wake;
use machine::sync::{Once, Rank, SpinLock};

/// The offset that means "at the stream's own position" in `READ` and `WRITE`.
const STREAM: u64 = u64::MAX;
/// Bytes exchanged with the host at a time.
const CHUNK_BYTES: usize = 512;

/// The host's side of a terminal.
pub struct Console {
    handle: Arc<Handle>,
    /// Held from reading typed bytes until the discipline has them, so that they stay in order.
    typing: SpinLock<()>,
    /// Held while bytes go to the host, for the same reason.
    showing: SpinLock<()>,
    /// The events that the host was asked to report.
    armed: SpinLock<PollEvents>,
    token: u64,
    /// Held for the registration, which is weak.
    _listener: Arc<Listener>,
}

/// Hears from the host.
struct Listener {
    tty: Once<Weak<Tty>>,
}

impl Wake for Listener {
    fn wake(&self, _events: PollEvents) {
        if let Some(tty) = self.tty.get().and_then(Weak::upgrade)
            && let Some(console) = &tty.host
        {
            // The host reports an event once; both directions are looked at, and asked for anew.
            *console.armed.lock() = PollEvents::empty();
            console.pump(&tty);
            console.flush(&tty);
        }
    }
}

impl Console {
    /// Takes typed bytes from the host, as many as the discipline has room for.
    pub fn pump(&self, tty: &Tty) {
        loop {
            let mut chunk = [0u8; CHUNK_BYTES];
            let typing = self.typing.lock();
            let room = tty.line.lock().room().min(CHUNK_BYTES);
            if room == 0 || tty.is_hung_up() {
                // The next reader calls this again.
                return;
            }
            match file::read(&self.handle, STREAM, &mut IoBuf::kernel(&mut chunk[..room])) {
                Ok(got) if got > 0 => {
                    tty.receive(&chunk[..got]);
                }
                Err(Errno::EAGAIN) => {
                    self.arm(PollEvents::IN);
                    return;
                }
                _ => {
                    drop(typing);
                    self.lost(tty);
                    return;
                }
            }
        }
    }

    /// Writes output to the host, as much as the host takes.
    pub fn flush(&self, tty: &Tty) {
        let (mut freed, mut is_empty) = (false, false);
        {
            let mut chunk = [0u8; CHUNK_BYTES];
            let _showing = self.showing.lock();
            loop {
                let len = tty.line.lock().peek_output(&mut chunk);
                if len == 0 {
                    is_empty = true;
                    break;
                }
                match file::write(&self.handle, STREAM, &mut IoBuf::kernel(&mut chunk[..len])) {
                    Ok(done) if done > 0 => {
                        tty.line.lock().consume_output(done);
                        freed = true;
                    }
                    Ok(_) | Err(Errno::EAGAIN) => {
                        self.arm(PollEvents::OUT);
                        break;
                    }
                    // The host's side is gone: nobody sees the output any more.
                    Err(_) => {
                        tty.line.lock().flush_output();
                        (freed, is_empty) = (true, true);
                        break;
                    }
                }
            }
        }
        if freed {
            tty.wait.wake(PollEvents::WRITABLE);
        }
        if freed && is_empty {
            release(tty);
            if let Some(tell) = tty.on_drained.get() {
                tell();
            }
        }
    }

    /// Asks the host to report `events`, besides those it was asked for before.
    fn arm(&self, events: PollEvents) {
        let mut armed = self.armed.lock();
        if !armed.contains(events) {
            *armed |= events;
            let _ = host::poll_arm(&self.handle, armed.bits(), self.token);
        }
    }

    /// The terminal on the host is gone.
    fn lost(&self, tty: &Tty) {
        if let Some(tty) = tty.me.upgrade() {
            tty.hang_up();
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        host_poll::unregister(self.token);
    }
}

/// Makes a console on a terminal of the host, which belongs to user `uid`; returns it with its open file.
pub fn open(
    container: &Arc<Container>,
    handle: Arc<Handle>,
    size: Option<(u16, u16)>,
    uid: u32,
) -> Result<(Arc<Tty>, Arc<File>)> {
    let listener = Arc::new(Listener { tty: Once::new() });
    let handler: Arc<dyn Wake> = listener.clone();
    let token = host_poll::register_handler(&handler);
    let host = Console {
        handle,
        typing: SpinLock::new(Rank::ConsoleInput, ()),
        showing: SpinLock::new(Rank::ConsoleOutput, ()),
        armed: SpinLock::new(Rank::Leaf, PollEvents::empty()),
        token,
        _listener: listener.clone(),
    };
    let tty =
        pts::register(container, |number| Tty::new(container, number, Meta::new(uid), false, Some(host)))?;
    listener.tty.call_once(|| Arc::downgrade(&tty));
    let (rows, columns) = size.unwrap_or((24, 80));
    tty.line.lock().size = WinSize { rows, columns, ..WinSize::default() };
    let flags = OpenFlags::RDWR | OpenFlags::NOCTTY;
    let ops = TtyFile::program(&tty, flags)?;
    tty.input_changed();
    let file = File::new(Box::new(ops), flags, None);
    Ok((tty, file))
}

/// Makes it the container's own, which is `/dev/console`.
pub fn become_containers(tty: &Arc<Tty>, container: &Container) {
    tty.is_container_console.store(true, Ordering::Release);
    let terminal: Arc<dyn Terminal> = tty.clone();
    container.console.call_once(|| terminal);
}

/// Makes the console the terminal of the session that `pid` leads.
pub fn give_to_session(tty: &Arc<Tty>, pid: u32) {
    let terminal: Arc<dyn Terminal> = tty.clone();
    if let Some(pids) = tty.pids.upgrade() {
        pids.tree.lock().terminals.insert(pid, SessionTerminal { terminal });
        tty.set_foreground(pid);
    }
}

/// The host's terminal has a new size: rows << 16 | columns.
pub fn resized(tty: &Tty, size: i64) {
    let size = size.cast_unsigned();
    let (rows, columns) = (low16(size >> 16), low16(size));
    tty.set_size(WinSize { rows, columns, ..WinSize::default() });
}

/// Whether the host has taken all that was written to it.
pub fn has_shown_all(tty: &Tty) -> bool {
    tty.line.lock().output_len() == 0 || tty.is_hung_up()
}

/// The last program has closed it, or its session is gone.
pub fn left(tty: &Tty) {
    if let Some(console) = &tty.host {
        console.flush(tty);
    }
    release(tty);
}

/// Its container has ended: nothing keeps it any longer than it takes to show the rest.
pub fn abandoned(tty: &Tty) {
    tty.is_container_console.store(false, Ordering::Release);
    left(tty);
}

/// Frees a console that no process has any more and that has shown everything; not the first process's.
fn release(tty: &Tty) {
    let stays = tty.is_container_console.load(Ordering::Acquire);
    let is_used = || tty.opens.load(Ordering::Acquire) > 0 || jobs::session_of(tty).is_some();
    if stays || is_used() || !has_shown_all(tty) {
        return;
    }
    if let Some(tty) = tty.me.upgrade() {
        pts::release(&tty);
    }
}
