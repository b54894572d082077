//! `ioctl_tty(2)`.

use abi::word::low32;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::creds::CAP_SYS_ADMIN;
use crate::fs::caller::{self, CallerCtx};
use crate::fs::file::OpenFlags;
use crate::signals::SIGTTOU;
use crate::tty::packets::{FLUSHREAD, FLUSHWRITE};
use crate::tty::termios::{CLOCAL, Termios, Termios2, WinSize};
use crate::tty::{Side, Tty, jobs, pts};
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::sched::wait::PollEvents;

const TCGETS: u32 = 0x5401;
/// `TCSETSW` lies between: output is never waited for, as it is where it goes at once.
const TCSETS: u32 = 0x5402;
const TCSETSF: u32 = 0x5404;
const TCGETA: u32 = 0x5405;
const TCSETA: u32 = 0x5406;
const TCSETAF: u32 = 0x5408;
const TCSBRK: u32 = 0x5409;
const TCXONC: u32 = 0x540a;
const TCFLSH: u32 = 0x540b;
const TIOCEXCL: u32 = 0x540c;
const TIOCNXCL: u32 = 0x540d;
const TIOCSCTTY: u32 = 0x540e;
const TIOCGPGRP: u32 = 0x540f;
const TIOCSPGRP: u32 = 0x5410;
const TIOCOUTQ: u32 = 0x5411;
const TIOCSTI: u32 = 0x5412;
const TIOCGWINSZ: u32 = 0x5413;
const TIOCSWINSZ: u32 = 0x5414;
const TIOCGSOFTCAR: u32 = 0x5419;
const TIOCSSOFTCAR: u32 = 0x541a;
const FIONREAD: u32 = 0x541b;
const TIOCPKT: u32 = 0x5420;
const TIOCNOTTY: u32 = 0x5422;
const TIOCSETD: u32 = 0x5423;
const TIOCGETD: u32 = 0x5424;
const TCSBRKP: u32 = 0x5425;
const TIOCGSID: u32 = 0x5429;
const TCGETS2: u32 = 0x802c_542a;
const TCSETS2: u32 = 0x402c_542b;
const TCSETSF2: u32 = 0x402c_542d;
const TIOCGPTN: u32 = 0x8004_5430;
const TIOCSPTLCK: u32 = 0x4004_5431;
const TIOCSIG: u32 = 0x4004_5436;
const TIOCGPKT: u32 = 0x8004_5438;
const TIOCGPTLCK: u32 = 0x8004_5439;
const TIOCGEXCL: u32 = 0x8004_5440;
const TIOCGPTPEER: u32 = 0x5441;
const TIOCGLCKTRMIOS: u32 = 0x5456;
const TIOCSLCKTRMIOS: u32 = 0x5457;
/// Speed that goes with the standard settings.
const SPEED: u32 = 38_400;

/// Performs a request on an end of a terminal.
pub fn ioctl(cx: &CallerCtx<'_>, tty: &Arc<Tty>, side: Side, request: u32, arg: u64) -> Result<u64> {
    let at = UserAddr::new(arg);
    if tty.is_hung_up() {
        return Err(Errno::EIO);
    }
    match request {
        TCGETS | TCGETS2 | TCGETA | TCSETS..=TCSETSF | TCSETA..=TCSETAF | TCSETS2..=TCSETSF2 => {
            settings(cx, tty, request, at)
        }
        TIOCGLCKTRMIOS | TIOCSLCKTRMIOS => locked_settings(cx, tty, request, at),
        TIOCGSOFTCAR | TIOCSSOFTCAR => soft_carrier(cx, tty, request, at),
        TIOCGPGRP | TIOCSPGRP | TIOCGSID | TIOCSCTTY | TIOCNOTTY => job_control(cx, tty, side, request, arg),
        TIOCGPTN | TIOCSPTLCK | TIOCGPTLCK | TIOCGPTPEER | TIOCSIG | TIOCPKT | TIOCGPKT
            if side == Side::Controller =>
        {
            controller(cx, tty, request, arg)
        }
        TCSBRK | TCSBRKP | TCXONC | TCFLSH => flow(tty, side, request, arg),
        TIOCGWINSZ => {
            let size = tty.line.lock().size;
            cx.user().write(at, &size).map(|()| 0)
        }
        TIOCSWINSZ => {
            let size: WinSize = cx.user().read(at)?;
            tty.set_size(size);
            Ok(0)
        }
        FIONREAD | TIOCOUTQ => {
            let line = tty.line.lock();
            let (input, output) = (line.readable_bytes(), line.output_len());
            drop(line);
            let of_input = (request == FIONREAD) == (side == Side::Program);
            let bytes = if of_input { input } else { output };
            cx.user().write(at, &i32::try_from(bytes).unwrap_or(i32::MAX)).map(|()| 0)
        }
        // As on a Linux that lets nobody else type.
        TIOCSTI if !caller::current().creds().has(CAP_SYS_ADMIN) => Err(Errno::EIO),
        TIOCSTI => {
            let byte: u8 = cx.user().read(at)?;
            tty.receive(&[byte]);
            Ok(0)
        }
        TIOCEXCL | TIOCNXCL => {
            tty.exclusive.store(request == TIOCEXCL, Ordering::Relaxed);
            Ok(0)
        }
        TIOCGEXCL => cx.user().write(at, &i32::from(tty.exclusive.load(Ordering::Relaxed))).map(|()| 0),
        TIOCGETD => cx.user().write(at, &0i32).map(|()| 0),
        TIOCSETD => {
            let number: i32 = cx.user().read(at)?;
            if number == 0 { Ok(0) } else { Err(Errno::EINVAL) }
        }
        _ => Err(Errno::ENOTTY),
    }
}

fn settings(cx: &CallerCtx<'_>, tty: &Tty, request: u32, at: UserAddr) -> Result<u64> {
    let now = tty.line.lock().termios;
    let new: Termios = match request {
        TCGETS => return cx.user().write(at, &now).map(|()| 0),
        TCGETA => return cx.user().write(at, &now.old()).map(|()| 0),
        TCGETS2 => {
            return cx.user().write(at, &Termios2 { termios: now, ispeed: SPEED, ospeed: SPEED }).map(|()| 0);
        }
        TCSETS..=TCSETSF => cx.user().read(at)?,
        TCSETA..=TCSETAF => now.with_old(&cx.user().read(at)?),
        _ => cx.user().read::<Termios2>(at)?.termios,
    };
    jobs::check_background(tty, SIGTTOU)?;
    {
        let mut line = tty.line.lock();
        if matches!(request, TCSETSF | TCSETAF | TCSETSF2) {
            line.flush_input();
            line.packets.flushed(FLUSHREAD);
        }
        line.set_termios(new);
    }
    tty.wait.wake(PollEvents::READABLE | PollEvents::WRITABLE);
    tty.input_changed();
    tty.output_changed();
    Ok(0)
}

fn locked_settings(cx: &CallerCtx<'_>, tty: &Tty, request: u32, at: UserAddr) -> Result<u64> {
    if request == TIOCGLCKTRMIOS {
        let locked = tty.line.lock().locked;
        return cx.user().write(at, &locked).map(|()| 0);
    }
    if !caller::current().creds().has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let locked: Termios = cx.user().read(at)?;
    tty.line.lock().locked = locked;
    Ok(0)
}

/// Whether the terminal is used without a carrier: `CLOCAL`, by a name of its own.
fn soft_carrier(cx: &CallerCtx<'_>, tty: &Tty, request: u32, at: UserAddr) -> Result<u64> {
    if request == TIOCGSOFTCAR {
        let is_local = tty.line.lock().termios.cflag & CLOCAL != 0;
        return cx.user().write(at, &i32::from(is_local)).map(|()| 0);
    }
    let wanted: i32 = cx.user().read(at)?;
    jobs::check_background(tty, SIGTTOU)?;
    let mut line = tty.line.lock();
    let mut new = line.termios;
    new.cflag = if wanted == 0 { new.cflag & !CLOCAL } else { new.cflag | CLOCAL };
    line.set_termios(new);
    Ok(0)
}

fn job_control(cx: &CallerCtx<'_>, tty: &Arc<Tty>, side: Side, request: u32, arg: u64) -> Result<u64> {
    let at = UserAddr::new(arg);
    match request {
        TIOCGPGRP => {
            if side == Side::Program {
                jobs::own_session(tty)?;
            }
            let group = tty.foreground.load(Ordering::Acquire);
            cx.user().write(at, &group)?;
        }
        TIOCSPGRP => {
            let group: i32 = cx.user().read(at)?;
            jobs::set_foreground(tty, group)?;
        }
        TIOCGSID => {
            if side == Side::Program {
                jobs::own_session(tty)?;
            }
            let session = jobs::session_of(tty).ok_or(Errno::ENOTTY)?;
            cx.user().write(at, &session)?;
        }
        TIOCSCTTY if side == Side::Controller => return Err(Errno::EIO),
        TIOCSCTTY => jobs::take_as_controlling(tty, arg == 1, false)?,
        _ => jobs::give_up(tty)?,
    }
    Ok(0)
}

fn controller(cx: &CallerCtx<'_>, tty: &Arc<Tty>, request: u32, arg: u64) -> Result<u64> {
    let at = UserAddr::new(arg);
    match request {
        TIOCGPTN => cx.user().write(at, &tty.number)?,
        TIOCSPTLCK => {
            let locked: i32 = cx.user().read(at)?;
            tty.locked.store(locked != 0, Ordering::Relaxed);
        }
        TIOCGPTLCK => cx.user().write(at, &i32::from(tty.locked.load(Ordering::Relaxed)))?,
        TIOCPKT => {
            let on: i32 = cx.user().read(at)?;
            tty.line.lock().packets.switch(on != 0);
        }
        TIOCGPKT => {
            let on = tty.line.lock().packets.is_on();
            cx.user().write(at, &i32::from(on))?;
        }
        TIOCGPTPEER => {
            let flags = OpenFlags::from_bits_truncate(low32(arg));
            return cx.install(pts::open_peer(tty, flags)?, flags.contains(OpenFlags::CLOEXEC));
        }
        _ => {
            let signal = u32::try_from(arg).map_err(|_| Errno::EINVAL)?;
            if !matches!(signal, crate::signals::SIGINT | crate::signals::SIGQUIT | crate::signals::SIGTSTP) {
                return Err(Errno::EINVAL);
            }
            tty.signal_foreground(signal);
        }
    }
    Ok(0)
}

fn flow(tty: &Tty, side: Side, request: u32, arg: u64) -> Result<u64> {
    const TCOOFF: u64 = 0;
    const TCOON: u64 = 1;
    const TCIOFF: u64 = 2;
    const TCION: u64 = 3;
    jobs::check_background(tty, SIGTTOU)?;
    match (request, arg) {
        (TCXONC, TCOOFF | TCOON) => tty.line.lock().set_stopped(arg == TCOOFF),
        (TCXONC, TCIOFF | TCION) if side == Side::Program => tty.line.lock().send_flow(arg == TCIOFF),
        (TCXONC, TCIOFF | TCION) | (TCSBRK | TCSBRKP, _) => return Ok(0),
        (TCFLSH, 0..=2) => {
            // The input of one side is the output of the other.
            let controller = u64::from(side == Side::Controller);
            let mut line = tty.line.lock();
            let mut told = 0;
            if arg == 2 || arg == controller {
                line.flush_input();
                line.drop_behind();
                told |= FLUSHREAD;
            }
            if arg == 2 || arg != controller {
                // What the program has written is on the other side already.
                if side == Side::Controller {
                    line.flush_output();
                }
                told |= FLUSHWRITE;
            }
            // The controller is not told what it did itself.
            if side == Side::Program {
                line.packets.flushed(told);
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    tty.wait.wake(PollEvents::WRITABLE);
    tty.input_changed();
    tty.output_changed();
    Ok(0)
}
