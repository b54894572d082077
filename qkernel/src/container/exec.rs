//! Exec'd processes: what `dormouse exec` runs in a sandbox that runs already.
//!
//! An exec'd process leads a session of its own. Its parent's id is 0 and nobody waits for it: the kernel itself removes it
//! from the process tree when it ends, and its children go to the first process. The VMM knows it by an id. The kernel
//! reports once that its program runs and once that it has ended, or once that it could not be run.

use abi::report::{Report, WakeEvent};
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::container::launch::{EXIT_FAILURE, find_program, new_leader, reason, take_spec};
use crate::container::setup;
use crate::fs::file::FileTable;
use crate::hibernate;
use crate::hibernate::idle;
use crate::limits;
use crate::signals::Source;
use crate::spec::Spec;
use crate::task::container::{self, ContainerId};
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::process::Process;
use crate::task::signal;
use crate::task::terminal::Terminal;
use crate::task::{exec, oom, pause};
use crate::tty::{Tty, console};
use machine::errno::{Errno, Result};
use machine::host;
use machine::mm::AddressSpace;
use machine::recording;
use machine::sync::{Rank, SpinLock};

/// Kernel memory that a small program needs.
const PROGRAM_BYTES: usize = 1 << 20;
/// Most bytes of `/etc/passwd` that are searched for the user's home directory.
const PASSWD_MAX: usize = 256 << 10;

struct ExecProcess {
    process: Weak<Process>,
    console: Option<Weak<Tty>>,
    /// The program it becomes; taken by the process itself.
    spec: Option<Spec>,
    /// Its wait status, while its console has still something to show.
    status: Option<i32>,
}

static PROCESSES: SpinLock<BTreeMap<u64, ExecProcess>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

/// Why an exec'd process does not come to run its program: an exit code, and the reason.
type Failure = (u8, Cow<'static, str>);

fn failed(what: &str, error: Errno) -> Failure {
    (EXIT_FAILURE, format!("{what}: {}", reason(error)).into())
}

/// Lets a process in, whose records have up to `len` bytes. If the sandbox sleeps, it wakes.
pub fn admit(id: u64, len: i64) {
    idle::note_activity();
    let spec = take_spec(len, |bytes| host::exec_take(id, bytes));
    match spec.and_then(|spec| new_process(id, spec)) {
        Ok(task) => task.start(),
        // Nobody is there any more to be told.
        Err(Errno::ESRCH) => return,
        Err(error) => {
            let why = match error {
                Errno::EAGAIN => "it has as many tasks as it may have, or too little memory",
                Errno::EINVAL => "its records cannot be read",
                _ => "too little memory; give the sandbox more",
            };
            host::report(&Report::ExecFailed { exec: id, code: EXIT_FAILURE, why: why.as_bytes() });
        }
    }
    hibernate::wake_event(WakeEvent::Exec);
}

fn new_process(id: u64, spec: Spec) -> Result<Arc<Task>> {
    spec.say_whose(spec.container, id);
    let container = container::find(ContainerId(spec.container)).ok_or(Errno::ENOENT)?;
    let _charged = container.charge();
    if container.task_count() >= container.limits.tasks_max() + limits::TASKS_RESERVE {
        return Err(Errno::EAGAIN);
    }
    let context = setup::context_of(&container, &spec).ok_or(Errno::ENOENT)?;
    let task = new_leader(&container, &spec, None, context, FileTable::new(), Box::new(enter))?;
    task.process.on_end.call_once(|| Box::new(move |status| ended(id, status)));
    container.came_in(&task.process);
    task.thread.sched.allow_reserve();
    let (process, spec) = (Arc::downgrade(&task.process), Some(spec));
    let process = ExecProcess { process, console: None, spec, status: None };
    PROCESSES.lock().insert(id, process);
    Ok(task)
}

/// Whether one has come in and not begun, though its container is not paused.
pub fn is_any_waiting() -> bool {
    let waiting: Vec<Arc<Process>> = {
        let processes = PROCESSES.lock();
        let waiting = processes.values().filter(|process| process.spec.is_some());
        waiting.filter_map(|process| process.process.upgrade()).collect()
    };
    waiting.iter().any(|process| !process.container.rests(process))
}

/// The first work of an exec'd process: it becomes its program.
fn enter(task: &Arc<Task>) {
    // One that comes into a sleeping sandbox touches nothing until that is awake, nor in a container that is paused.
    while pause::rest(task) {}
    let Some(id) = id_of(&task.process) else { return };
    let Some(spec) = PROCESSES.lock().get_mut(&id).and_then(|process| process.spec.take()) else { return };
    oom::make_room(task, PROGRAM_BYTES);
    let started = Report::ExecStarted { exec: id, pid: task.process.pid };
    match begin(task, id, spec) {
        Ok(()) => host::report(&started),
        // It was killed from inside before it came so far.
        Err(_) if task.process.is_exiting() => host::report(&started),
        Err((code, why)) => {
            PROCESSES.lock().remove(&id);
            crate::task::group_exit::begin_group_exit(
                &task.process,
                crate::task::group_exit::exited(code.into()),
            );
            host::report(&Report::ExecFailed { exec: id, code, why: why.as_bytes() });
        }
    }
}

fn begin(task: &Arc<Task>, id: u64, mut spec: Spec) -> core::result::Result<(), Failure> {
    let aspace = AddressSpace::new().map_err(|error| failed("it gets no memory", error))?;
    task.replace_aspace(Some(aspace));
    let streams = spec.take_streams();
    let (files, console) = setup::open_streams(&task.process.container, streams, &spec)
        .map_err(|error| failed("its streams cannot be opened", error))?;
    task.set_files(Some(files));
    if let Some(console) = console {
        console::give_to_session(&console, task.process.pid);
        console.on_drained.call_once(|| Box::new(move || drained(id)));
        if let Some(process) = PROCESSES.lock().get_mut(&id) {
            process.console = Some(Arc::downgrade(&console));
        }
    }
    let context = task.fs.get();
    setup::enter_cwd_of(&context, &spec).map_err(|error| {
        let what = format!("its working directory {} cannot be entered", spec.cwd.escape_ascii());
        let why = if error == Errno::ENOENT { "no such directory".into() } else { reason(error) };
        (EXIT_FAILURE, format!("{what}: {why}").into())
    })?;
    let mut env = spec.env;
    if !env.iter().any(|pair| pair.starts_with(b"HOME=")) {
        let passwd = setup::read_start(&context, b"/etc/passwd", PASSWD_MAX).unwrap_or_default();
        env.push([b"HOME=", home_of(&passwd, spec.uid)].concat());
    }
    let cx = Ctx::new(task);
    let run = find_program(&cx, spec.args, env).and_then(|program| exec::execute(&cx, program));
    run.map_err(|error| {
        let code = (exec::failure_status(error) >> 8) & 0xff;
        (u8::try_from(code).unwrap_or(EXIT_FAILURE), reason(error))
    })
}

/// The home directory of a user, by the lines of a `passwd` file; `/` when it has none.
fn home_of(passwd: &[u8], uid: u32) -> &[u8] {
    let home = passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let found = core::str::from_utf8(fields.nth(2)?).ok()?.parse::<u32>().ok()?;
        fields.nth(2).filter(|home| found == uid && !home.is_empty() && !home.contains(&0))
    });
    home.unwrap_or(b"/")
}

/// An exec'd process's process, and its console if that is still there.
fn find(id: u64) -> Option<(Arc<Process>, Option<Arc<Tty>>)> {
    let entrants = PROCESSES.lock();
    let process = entrants.get(&id)?;
    Some((process.process.upgrade()?, process.console.as_ref().and_then(Weak::upgrade)))
}

/// A signal from outside: for the process, or for the foreground group of its terminal if it has one.
pub fn signal(id: u64, number: i64, to_foreground: bool) {
    let number = u32::try_from(number).ok().filter(|number| (1..=crate::signals::SIGRTMAX).contains(number));
    let (Some(number), Some((process, console))) = (number, find(id)) else { return };
    match console.map_or(0, |console| console.foreground()) {
        group if group != 0 && to_foreground => {
            signal::send_to_group(&process.container.pids, group, number, Source::Kernel);
        }
        _ => signal::send_to_process(&process, number, Source::User { pid: 0, uid: 0 }),
    }
}

/// The host's side of its terminal has a new size.
pub fn resize(id: u64, size: i64) {
    if let Some((_, Some(console))) = find(id) {
        console::resized(&console, size);
    }
}

/// An exec'd process has ended. The host hears of it once all that it wrote to its terminal is there: whoever holds that is about
/// to let go of it.
fn ended(id: u64, status: i32) {
    // One whose program never ran has been reported.
    let Some(console) = PROCESSES.lock().get_mut(&id).map(|process| {
        process.status = Some(status);
        process.console.as_ref().and_then(Weak::upgrade)
    }) else {
        return;
    };
    if console.is_none_or(|console| console::has_shown_all(&console)) {
        report_end(id);
    }
}

/// The console of an exec'd process has shown all there was.
fn drained(id: u64) {
    let has_ended = PROCESSES.lock().get(&id).is_some_and(|process| process.status.is_some());
    if has_ended {
        report_end(id);
    }
}

/// The id by which the VMM knows a process.
fn id_of(process: &Arc<Process>) -> Option<u64> {
    let processes = PROCESSES.lock();
    let is_it = |known: &ExecProcess| core::ptr::eq(known.process.as_ptr(), Arc::as_ptr(process));
    processes.iter().find(|(_, known)| is_it(known)).map(|(id, _)| *id)
}

/// The first caller reports it.
fn report_end(id: u64) {
    let process = PROCESSES.lock().remove(&id);
    if let Some(status) = process.and_then(|process| process.status) {
        recording::exec_ended();
        host::report(&Report::ExecEnded { exec: id, status });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_found_in_whatever_the_file_holds() {
        let passwd =
            b"root:x:0:0:root:/root:/bin/sh\nbad\nx:x:y:0::/bad:\nme:x:7:7::/home/me:\nno:x:8:8:::\n\xff:\xff:\xff";
        assert_eq!(home_of(passwd, 0), b"/root");
        assert_eq!(home_of(passwd, 7), b"/home/me");
        for (text, uid) in [(&passwd[..], 8), (passwd, 9), (b"", 0)] {
            assert_eq!(home_of(text, uid), b"/");
        }
    }
}
