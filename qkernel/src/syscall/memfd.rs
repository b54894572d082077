//! `memfd_create(2)`.

use crate::fs::file::OpenFlags;
use crate::fs::memfd::{F_SEAL_EXEC, F_SEAL_SEAL, MemFile};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;

use machine::errno::Errno;
use machine::mm::UserAddr;

/// `memfd_create(2)`.
pub(super) fn memfd_create(cx: &Ctx<'_>, name: UserAddr, flags: u32) -> SyscallResult {
    const CLOEXEC: u32 = 1;
    const ALLOW_SEALING: u32 = 2;
    const NOEXEC_SEAL: u32 = 8;
    const EXEC: u32 = 0x10;
    const NAME_BYTES: usize = 249;
    let known = CLOEXEC | ALLOW_SEALING | NOEXEC_SEAL | EXEC;
    if flags & !known != 0 || flags & (NOEXEC_SEAL | EXEC) == NOEXEC_SEAL | EXEC {
        return Err(Errno::EINVAL);
    }
    let name = cx.user().read_cstr(name, NAME_BYTES + 1, Errno::EINVAL)?;
    let seals = match (flags & NOEXEC_SEAL != 0, flags & ALLOW_SEALING != 0) {
        (true, _) => F_SEAL_EXEC,
        (false, true) => 0,
        (false, false) => F_SEAL_SEAL,
    };
    let creds = cx.task.creds.get();
    let file = MemFile::open(&name, (creds.fsuid, creds.fsgid), seals, OpenFlags::LARGEFILE)?;
    cx.install(file, flags & CLOEXEC != 0)
}
