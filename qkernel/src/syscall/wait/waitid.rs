//! `waitid(2)`.

use crate::syscall::context::SyscallResult;
use crate::syscall::wait::{
    WALL, WCLONE, WCONTINUED, WEXITED, WNOHANG, WNOTHREAD, WNOWAIT, WUNTRACED, Waited, Who, wait,
};
use crate::task::context::Ctx;
use crate::task::exit::cld_code;
use crate::task::tree::Report;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// Checks the `pid_t` that `waitid(2)` is given to wait for, of which nothing that it can stand for is negative:
/// `EINVAL`. Kind 0, all children, does not look at it.
fn id_argument(kind: u32, id: i32) -> Result<u32> {
    if kind == 0 { Ok(0) } else { u32::try_from(id).map_err(|_| Errno::EINVAL) }
}

/// The process of a pidfd. A wait by one that does not block gives up instead of waiting.
fn by_descriptor(cx: &Ctx<'_>, id: u32, options: &mut u32, gives_up: &mut bool) -> Result<Who> {
    let file = cx.file(id.cast_signed())?;
    let process = crate::syscall::pidfd::pid_process(cx, &file)
        .map_err(|error| if error == Errno::ESRCH { Errno::ECHILD } else { error })?;
    *gives_up = file.is_nonblocking() && *options & WNOHANG == 0;
    if *gives_up {
        *options |= WNOHANG;
    }
    Ok(Who::Pid(process.pid))
}

/// `waitid(2)`.
pub(in crate::syscall) fn waitid(
    cx: &Ctx<'_>,
    kind: u32,
    id: i32,
    info: UserAddr,
    options: u32,
    usage: UserAddr,
) -> SyscallResult {
    let known = WNOHANG | WNOWAIT | WEXITED | WUNTRACED | WCONTINUED | WNOTHREAD | WALL | WCLONE;
    if options & !known != 0 || options & (WEXITED | WUNTRACED | WCONTINUED) == 0 {
        return Err(Errno::EINVAL);
    }
    let id = id_argument(kind, id)?;
    let (mut options, mut gives_up) = (options, false);
    let who = match kind {
        0 => Who::Any,
        1 if id != 0 => Who::Pid(id),
        2 if id == 0 => {
            Who::Group(cx.pids().tree.lock().nodes.get(&cx.process().pid).map_or(0, |node| node.group))
        }
        2 => Who::Group(id),
        3 => by_descriptor(cx, id, &mut options, &mut gives_up)?,
        _ => return Err(Errno::EINVAL),
    };
    let child = wait(cx, who, options)?;
    if child.is_none() && gives_up {
        return Err(Errno::EAGAIN);
    }
    if !info.is_null() {
        cx.user().write(info, &child_info(child.as_ref()))?;
    }
    if let (Some(child), true) = (&child, !usage.is_null()) {
        cx.user().write(usage, &child.used.rusage())?;
    }
    Ok(0)
}

/// `siginfo_t` of a waited-for child; all zero when there was none.
fn child_info(child: Option<&Waited>) -> [u32; 32] {
    const CLD_STOPPED: i32 = 5;
    const CLD_CONTINUED: i32 = 6;
    let mut info = [0u32; 32];
    if let Some(child) = child {
        let (code, status) = match child.report {
            Some(Report::Stopped(signal)) => (CLD_STOPPED, signal.cast_signed()),
            Some(Report::Continued) => (CLD_CONTINUED, crate::signals::SIGCONT.cast_signed()),
            None => cld_code(child.status),
        };
        info[0] = crate::signals::SIGCHLD;
        info[2] = code.cast_unsigned();
        info[4] = child.pid;
        info[5] = child.uid;
        info[6] = status.cast_unsigned();
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_process_group_or_descriptor_is_negative() {
        assert_eq!(id_argument(0, -1), Ok(0));
        for kind in 1..=3 {
            assert_eq!(id_argument(kind, 7), Ok(7));
            assert_eq!(id_argument(kind, -1), Err(Errno::EINVAL));
            assert_eq!(id_argument(kind, i32::MIN), Err(Errno::EINVAL));
        }
    }
}
