//! Processes that nobody forks: how their records are taken, how one is made, and how its program is found.

use abi::boot::EXEC_RECORDS_MAX;
use abi::word::to_usize;
use alloc::borrow::Cow;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use machine::errno::{Errno, Result};
use machine::mm::AddressSpace;
use machine::platform::UserContext;

use crate::fs::file::FileTable;
use crate::fs::path::FsContext;
use crate::run::run_task;
use crate::spec::{Spec, SpecError};
use crate::task::container::Container;
use crate::task::context::Ctx;
use crate::task::core::{Start, Task, TaskParts};
use crate::task::exec::Program;
use crate::task::process::Process;
use crate::task::signal::action::SigHand;
use crate::task::signal::state::TaskSignals;
use crate::task::tree::Node;

/// Exit code of failures that are not the program's.
pub const EXIT_FAILURE: u8 = 125;

/// Takes the records, of up to `len` bytes, that `take` has the host write.
pub fn take_spec(len: i64, take: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Spec> {
    let len = u64::try_from(len).ok().filter(|len| *len <= EXEC_RECORDS_MAX).ok_or(Errno::E2BIG)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(to_usize(len)).map_err(|_| Errno::ENOMEM)?;
    bytes.resize(to_usize(len), 0);
    let got = take(&mut bytes)?;
    Spec::parse(&bytes[..got]).map_err(|error| match error {
        SpecError::Record(_) => Errno::EINVAL,
        SpecError::Kept(error) => error,
    })
}

/// A process that nobody has forked: the leader of its own session.
pub fn new_leader(
    container: &Arc<Container>,
    spec: &Spec,
    aspace: Option<Arc<AddressSpace>>,
    context: Arc<FsContext>,
    files: Arc<FileTable>,
    start: Start,
) -> Result<Arc<Task>> {
    let filter = spec.seccomp()?;
    let pid = container.pids.tree.lock().new_id();
    let process = Process::new(container.clone(), pid, SigHand::new(), spec.limits());
    if let Some(score) = spec.oom_score_adj {
        process.oom_score_adj.store(score.clamp(-1000, 1000), Ordering::Relaxed);
    }
    let creds = spec.creds();
    let uid = creds.uid;
    let parts = TaskParts {
        process: process.clone(),
        aspace,
        files: Some(files),
        fs: context,
        creds: Arc::new(creds),
        signals: TaskSignals::default(),
        context: UserContext::new(),
        comm: *b"init\0\0\0\0\0\0\0\0\0\0\0\0",
        main: run_task,
    };
    let task = Task::new_in_kernel(pid, parts, start)?;
    if spec.flags.no_new_privs {
        task.confinement.set_no_new_privs();
    }
    task.confinement.begin_with(filter);
    let first = container.first_process();
    let mut tree = container.pids.tree.lock();
    if !tree.admits(container) {
        return Err(Errno::ESRCH);
    }
    if let Some(first) = &first {
        container.groups.come_in(&process.member, &first.member);
    }
    // They hold each other from here until the task ends.
    process.tasks.lock().push(task.clone());
    tree.add_task(&task);
    let node = Node {
        process,
        children: Vec::new(),
        group: pid,
        session: pid,
        exit_status: None,
        report: None,
        uid,
    };
    tree.nodes.insert(pid, node);
    drop(tree);
    container.groups.tell();
    Ok(task)
}

/// Explains an error to the user who started the program.
pub fn reason(error: Errno) -> Cow<'static, str> {
    Cow::Borrowed(match error {
        Errno::ENOENT => "no such file or directory in the sandbox's root file system",
        Errno::EACCES => "permission denied, it is not executable",
        Errno::ENOTDIR => "a part of its path is not a directory",
        Errno::ENOEXEC => "it is not a program for x86-64 Linux, or it is damaged",
        Errno::EISDIR => "it is a directory",
        Errno::ENOMEM => "not enough memory; give the sandbox more with --memory",
        Errno(80) => "its interpreter is damaged",
        other => return Cow::Owned(format!("{other:?}")),
    })
}

/// Finds the program as `execvp(3)` does.
pub fn find_program(cx: &Ctx<'_>, args: Vec<Vec<u8>>, env: Vec<Vec<u8>>) -> Result<Program> {
    let name = args.first().ok_or(Errno::EINVAL)?.clone();
    let candidates: Vec<Vec<u8>> = if name.contains(&b'/') {
        alloc::vec![name]
    } else {
        let path = env.iter().find_map(|entry| entry.strip_prefix(b"PATH="));
        let path = path.unwrap_or(b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let joined = |dir: &[u8]| [if dir.is_empty() { b"." } else { dir }, b"/", &name].concat();
        path.split(|byte| *byte == b':').map(joined).collect()
    };
    let mut last = Errno::ENOENT;
    for candidate in candidates {
        match crate::fs::open::open_executable(cx, crate::fs::walk::AT_FDCWD, &candidate, 0) {
            Ok(file) => return Ok(Program { file, name: candidate, args, env, is_unnamed: false }),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}
