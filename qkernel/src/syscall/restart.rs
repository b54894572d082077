//! `restart_syscall(2)`.

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::Errno;

/// `restart_syscall(2)`: goes on with an interrupted sleep.
pub(super) fn restart_syscall(cx: &Ctx<'_>) -> SyscallResult {
    use crate::task::signal::state::Restart;
    let restart = cx.task.restart.lock().take();
    match restart {
        Some(Restart::Sleep { clock, deadline_ns, remainder }) => {
            crate::syscall::nanosleep::sleep_on(cx, clock, deadline_ns, remainder)
        }
        Some(Restart::Futex { addr, value, deadline_ns, bitset, private }) => {
            crate::syscall::futex::wait_again(cx, addr, value, deadline_ns, bitset, private)
        }
        Some(Restart::Poll { fds, count, deadline_ns }) => {
            crate::syscall::poll::poll_until(cx, fds, count, deadline_ns)
        }
        None => Err(Errno::EINTR),
    }
}
