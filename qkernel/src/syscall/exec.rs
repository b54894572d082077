//! Running programs: `execve(2)`, `execveat(2)`.

use crate::fs::walk::AT_FDCWD;
use crate::syscall::context::{KEEP_REGISTERS, SyscallResult};
use crate::task::context::Ctx;
use crate::task::exec;
use crate::task::exec::Program;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// `execve(2)`.
pub(super) fn execve(cx: &Ctx<'_>, path: UserAddr, argv: UserAddr, envp: UserAddr) -> SyscallResult {
    execveat(cx, AT_FDCWD, path, argv, envp, 0)
}

/// `execveat(2)`.
pub(super) fn execveat(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    argv: UserAddr,
    envp: UserAddr,
    flags: u32,
) -> SyscallResult {
    const ALLOWED: u32 = crate::fs::walk::AT_EMPTY_PATH | crate::fs::walk::AT_SYMLINK_NOFOLLOW;
    if flags & !ALLOWED != 0 {
        return Err(Errno::EINVAL);
    }
    let name = cx.user().read_path(path)?;
    let file = crate::fs::open::open_executable(cx, dirfd, &name, flags)?;
    let mut budget = exec::argument_budget(cx);
    let mut args = exec::read_strings(cx, argv, &mut budget)?;
    let env = exec::read_strings(cx, envp, &mut budget)?;
    if args.is_empty() {
        args.push(alloc::vec::Vec::new());
    }
    let by_descriptor = name.is_empty() || (dirfd != AT_FDCWD && name[0] != b'/');
    let is_unnamed = by_descriptor && cx.files().descriptor(dirfd).is_ok_and(|from| from.close_on_exec);
    let name = if by_descriptor { fd_name(dirfd, &name) } else { name };
    exec::execute(cx, Program { file, name, args, env, is_unnamed })?;
    Err(Errno(KEEP_REGISTERS))
}

/// The file name that a script run by descriptor gets as its argument.
fn fd_name(dirfd: i32, name: &[u8]) -> alloc::vec::Vec<u8> {
    let mut path = alloc::format!("/dev/fd/{dirfd}").into_bytes();
    if !name.is_empty() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    path
}
