//! `reboot(2)`: process 1 ends, and with it all that share its process ids, as in a pid namespace of Linux.

use crate::creds::CAP_SYS_BOOT;
use crate::signals::{SIGHUP, SIGINT};
use crate::syscall::context::SyscallResult;
use crate::task::container::FIRST_PID;
use crate::task::context::Ctx;
use crate::task::group_exit::{begin_group_exit, exited};
use machine::errno::Errno;

const MAGIC: u32 = 0xfee1_dead;
const SECOND: [u32; 4] = [672_274_793, 85_072_278, 369_367_448, 537_993_216];
const RESTART: u32 = 0x0123_4567;
const RESTART2: u32 = 0xa1b2_c3d4;
const HALT: u32 = 0xcdef_0123;
const POWER_OFF: u32 = 0x4321_fedc;

/// `reboot(2)`. The end of process 1 tells by its signal whether the container is to begin again.
pub(super) fn reboot(cx: &Ctx<'_>, magic: u32, second: u32, command: u32) -> SyscallResult {
    if !cx.task.creds.get().has(CAP_SYS_BOOT) {
        return Err(Errno::EPERM);
    }
    if magic != MAGIC || !SECOND.contains(&second) {
        return Err(Errno::EINVAL);
    }
    let signal = match command {
        RESTART | RESTART2 => SIGHUP,
        HALT | POWER_OFF => SIGINT,
        _ => return Err(Errno::EINVAL),
    };
    let first = cx.container().pids.find_process(FIRST_PID).ok_or(Errno::ESRCH)?;
    begin_group_exit(&first, signal.cast_signed());
    // The caller does not come back. If it is process 1, the first status counts.
    begin_group_exit(&cx.task.process, exited(0));
    Ok(0)
}
