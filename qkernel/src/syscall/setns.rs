//! `setns(2)`.

use crate::creds::{CAP_SYS_ADMIN, CAP_SYS_CHROOT, Inspection};
use crate::fs::file::File;
use crate::proc::ns::{self, Kind, Namespace};
use crate::syscall::context::SyscallResult;
use crate::syscall::pidfd::pid_process;
use crate::task::clone::is_alone;
use crate::task::context::Ctx;
use crate::task::inspect;
use machine::errno::{Errno, Result};

/// `setns(2)`: the task enters the namespace of a descriptor, or those of a process that `kinds` names. It can only be where it is
/// already; `EPERM`: it is another container's.
pub(super) fn setns(cx: &Ctx<'_>, fd: i32, kinds: u32) -> SyscallResult {
    let file = cx.file(fd)?;
    match ns::of_file(&file) {
        Some(namespace) if kinds != 0 && kinds != namespace.kind.flag() => return Err(Errno::EINVAL),
        Some(namespace) => enter(cx, &[namespace])?,
        None => enter(cx, &of_process(cx, &file, kinds)?)?,
    }
    Ok(0)
}

/// The namespaces of these kinds of the process that is open as `file`.
fn of_process(cx: &Ctx<'_>, file: &File, kinds: u32) -> Result<alloc::vec::Vec<Namespace>> {
    let known = Kind::ALL.iter().fold(0, |known, kind| known | kind.flag());
    let process = match pid_process(cx, file) {
        Err(Errno::EBADF) => return Err(Errno::EINVAL),
        _ if kinds == 0 || kinds & !known != 0 => return Err(Errno::EINVAL),
        found => found?,
    };
    let task = process.any_task().ok_or(Errno::ESRCH)?;
    inspect::check(cx.task, &task, Inspection::Files)?;
    let asked = Kind::ALL.iter().filter(|kind| kinds & kind.flag() != 0);
    Ok(asked.map(|kind| Namespace::of(&process.container, *kind)).collect())
}

/// All of them, or none.
fn enter(cx: &Ctx<'_>, namespaces: &[Namespace]) -> Result<()> {
    namespaces.iter().try_for_each(|namespace| may_enter(cx, *namespace))?;
    let root = cx.process().container.root.get();
    if let Some(root) = root.filter(|_| namespaces.iter().any(|entered| entered.kind == Kind::Mount)) {
        let fs = cx.task.fs.get();
        fs.set_root(root.clone());
        fs.set_cwd(root.clone());
    }
    Ok(())
}

fn may_enter(cx: &Ctx<'_>, namespace: Namespace) -> Result<()> {
    let creds = cx.task.creds.get();
    if namespace.kind == Kind::User && namespace.is_own() {
        return Err(Errno::EINVAL);
    }
    let chroots = namespace.kind != Kind::Mount || creds.has(CAP_SYS_CHROOT);
    if !chroots || !creds.has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    match namespace.kind {
        // Threads have their root directory in common.
        Kind::Mount if !is_alone(cx.task) => Err(Errno::EINVAL),
        Kind::Time if !is_alone(cx.task) => Err(Errno::EUSERS),
        _ if namespace.is_own() => Ok(()),
        _ => Err(Errno::EPERM),
    }
}
