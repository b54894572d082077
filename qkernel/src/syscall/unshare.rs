//! `unshare(2)`.

use crate::syscall::context::SyscallResult;
use crate::task::clone::{CloneFlags, NAMESPACES, is_alone};
use crate::task::context::Ctx;
use machine::errno::Errno;

/// `CLONE_NEWTIME`, which is a signal's number to `clone(2)`.
const NEWTIME: u64 = 0x80;

/// `unshare(2)`: what the task shared with others, as `clone(2)` made it, becomes its own. `EPERM`: a namespace, of which there
/// are none inside a sandbox.
pub(super) fn unshare(cx: &Ctx<'_>, flags: u64) -> SyscallResult {
    let known = NAMESPACES
        | CloneFlags::THREAD
        | CloneFlags::SIGHAND
        | CloneFlags::VM
        | CloneFlags::FS
        | CloneFlags::FILES
        | CloneFlags::SYSVSEM;
    let asked = CloneFlags::from_bits_truncate(flags & !NEWTIME);
    if flags & !NEWTIME & !known.bits() != 0 {
        return Err(Errno::EINVAL);
    }
    let process_wide = CloneFlags::THREAD | CloneFlags::SIGHAND | CloneFlags::VM | CloneFlags::NEWUSER;
    if asked.intersects(process_wide) && !is_alone(cx.task) {
        return Err(Errno::EINVAL);
    }
    if asked.intersects(NAMESPACES) || flags & NEWTIME != 0 {
        return Err(Errno::EPERM);
    }
    // Handlers and memory that processes share (`vfork(2)` and its like) cannot be told apart here.
    if asked.intersects(CloneFlags::SIGHAND | CloneFlags::VM) && cx.aspace().is_shared() {
        return Err(Errno::EINVAL);
    }
    // The copy that may fail comes first.
    let files = asked.contains(CloneFlags::FILES).then(|| cx.files().unshare()).transpose()?;
    if asked.contains(CloneFlags::FS) {
        let fs = cx.task.fs.get();
        drop(cx.task.fs.set(fs.fork()));
    }
    if asked.contains(CloneFlags::SYSVSEM) {
        let undo = cx.task.sem_undo.lock().take();
        drop(undo);
    }
    if let Some(files) = files {
        drop(cx.task.set_files(Some(files)));
    }
    Ok(0)
}
