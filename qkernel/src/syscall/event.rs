//! Pipes, and descriptors that tell of events: `pipe(2)`, `eventfd(2)`.

use abi::word::low32;
use alloc::sync::Arc;

use crate::fs::eventfd::EventFile;
use crate::fs::file::{File, OpenFlags};
use crate::fs::pipe;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// `O_*` flags out of `flags`; `EINVAL` for any that aren't `allowed`.
pub fn only(flags: u32, allowed: OpenFlags) -> Result<OpenFlags> {
    OpenFlags::from_bits(flags).filter(|flags| allowed.contains(*flags)).ok_or(Errno::EINVAL)
}

/// The flags that most of these calls take.
pub const COMMON: OpenFlags = OpenFlags::NONBLOCK.union(OpenFlags::CLOEXEC);

/// Gives a file a descriptor, close-on-exec as the flags say.
pub fn install(cx: &Ctx<'_>, file: Arc<File>, flags: OpenFlags) -> SyscallResult {
    cx.install(file, flags.contains(OpenFlags::CLOEXEC))
}

/// Installs two files and writes their descriptors to user memory; neither stays when something fails.
pub fn install_pair(
    cx: &Ctx<'_>,
    pair: (Arc<File>, Arc<File>),
    close_on_exec: bool,
    addr: UserAddr,
) -> SyscallResult {
    let first = low32(cx.install(pair.0, close_on_exec)?).cast_signed();
    let second = match cx.install(pair.1, close_on_exec) {
        Ok(second) => low32(second).cast_signed(),
        Err(error) => {
            let _ = cx.files().close(first);
            return Err(error);
        }
    };
    if let Err(error) = cx.user().write(addr, &[first, second]) {
        let _ = cx.files().close(first);
        let _ = cx.files().close(second);
        return Err(error);
    }
    Ok(0)
}

/// `pipe(2)`.
pub(super) fn pipe(cx: &Ctx<'_>, ends: UserAddr) -> SyscallResult {
    pipe2(cx, ends, 0)
}

/// `pipe2(2)`.
pub(super) fn pipe2(cx: &Ctx<'_>, ends: UserAddr, flags: u32) -> SyscallResult {
    let flags = only(flags, COMMON | OpenFlags::DIRECT)?;
    let creds = cx.task.creds.get();
    let pair = pipe::new_pipe((creds.fsuid, creds.fsgid), flags)?;
    install_pair(cx, pair, flags.contains(OpenFlags::CLOEXEC), ends)
}

/// `eventfd(2)`.
pub(super) fn eventfd(cx: &Ctx<'_>, initial: u32) -> SyscallResult {
    eventfd2(cx, initial, 0)
}

/// `eventfd2(2)`.
pub(super) fn eventfd2(cx: &Ctx<'_>, initial: u32, flags: u32) -> SyscallResult {
    const SEMAPHORE: u32 = 1;
    let semaphore = flags & SEMAPHORE != 0;
    let flags = only(flags & !SEMAPHORE, COMMON)?;
    let file = EventFile::open(u64::from(initial), semaphore, flags)?;
    install(cx, file, flags)
}
