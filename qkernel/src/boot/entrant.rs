//! Processes that come in from outside while the sandbox runs: what `dormouse exec` runs.
//!
//! An *entrant* leads a session of its own and has no parent inside: its parent's id is 0, nobody waits for it, and the
//! kernel itself buries it. Its children go to the first process when it ends. The VMM knows it by an id, is told once when
//! its program runs and once when it has ended, or once that it does not run.

use abi::boot::EXEC_RECORDS_MAX;
use abi::hostcall::{REPORT_EXEC_ENDED, REPORT_EXEC_FAILED, REPORT_EXEC_STARTED, STIRRED_BY_EXEC};
use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::{Spec, find_program, new_leader, reason};
use crate::fs::tty::{Tty, console};
use crate::fs::{self, FileTable, Terminal};
use crate::hibernate::{self, idle};
use crate::syscall::Ctx;
use crate::task::process::TREE;
use crate::task::signal::{self, Source};
use crate::task::{Process, Task, exec, exit, limits, oom};
use machine::errno::{Errno, Result};
use machine::host;
use machine::mm::AddressSpace;
use machine::sched::pause;
use machine::sync::SpinLock;

/// Exit code of failures that are not the program's.
const EXIT_FAILURE: u8 = 125;
/// What a small program takes of kernel memory.
const ENTRANT_BYTES: usize = 1 << 20;
/// As much of `/etc/passwd` is looked at.
const PASSWD_MAX: usize = 256 << 10;

struct Entrant {
    process: Weak<Process>,
    console: Option<Weak<Tty>>,
    /// What it becomes; taken by itself.
    spec: Option<Spec>,
    /// Its wait status, while its console has still something to show.
    status: Option<i32>,
}

static ENTRANTS: SpinLock<BTreeMap<u64, Entrant>> = SpinLock::new(BTreeMap::new());

/// Why an entrant does not come to run its program: an exit code, and the reason.
type Failure = (u8, Cow<'static, str>);

fn failed(what: &str, error: Errno) -> Failure {
    (EXIT_FAILURE, format!("{what}: {}", reason(error)).into())
}

/// Lets a process in, whose records have up to `len` bytes. `is_woken`: if the sandbox sleeps, somebody else wakes it.
pub fn admit(id: u64, len: i64, is_woken: bool) {
    idle::stirred();
    let room = if TREE.lock().tasks.len() >= limits::tasks_max() + limits::TASKS_RESERVE {
        Err(Errno::EAGAIN)
    } else {
        Ok(())
    };
    match room.and_then(|()| take_spec(id, len)).and_then(|spec| new_entrant(id, spec)) {
        Ok(task) => task.start(),
        // Nobody is there any more to be told.
        Err(Errno::ESRCH) => return,
        Err(error) => {
            let why = match error {
                Errno::EAGAIN => "it has as many tasks as it may have, or too little memory",
                _ => "too little memory; give the sandbox more",
            };
            host::report_exec(REPORT_EXEC_FAILED, id, EXIT_FAILURE.into(), why);
        }
    }
    if !is_woken {
        hibernate::stir(STIRRED_BY_EXEC);
    }
}

fn take_spec(id: u64, len: i64) -> Result<Spec> {
    let len = u64::try_from(len).ok().filter(|len| *len <= EXEC_RECORDS_MAX).ok_or(Errno::E2BIG)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize).map_err(|_| Errno::ENOMEM)?;
    bytes.resize(len as usize, 0);
    let got = host::exec_take(id, &mut bytes)?;
    Ok(Spec::parse(&bytes[..got]))
}

fn new_entrant(id: u64, spec: Spec) -> Result<Arc<Task>> {
    let context = fs::context_of(&spec).ok_or(Errno::ENOENT)?;
    let task = new_leader(&spec, None, context, FileTable::new(), enter)?;
    task.process.entrant.store(id, Ordering::Relaxed);
    task.thread.sched.allow_reserve();
    let (process, spec) = (Arc::downgrade(&task.process), Some(spec));
    let entrant = Entrant { process, console: None, spec, status: None };
    ENTRANTS.lock().insert(id, entrant);
    Ok(task)
}

/// Whether one has come in and not begun.
pub fn is_any_waiting() -> bool {
    ENTRANTS.lock().values().any(|entrant| entrant.spec.is_some())
}

/// What an entrant does before it is a program.
fn enter(task: &Arc<Task>) {
    // One that comes into a sleeping sandbox touches nothing until that is awake.
    while pause::rest() {}
    let id = task.process.entrant.load(Ordering::Relaxed);
    let Some(spec) = ENTRANTS.lock().get_mut(&id).and_then(|entrant| entrant.spec.take()) else { return };
    oom::make_room(task, ENTRANT_BYTES);
    match begin(task, id, spec) {
        Ok(()) => host::report_exec(REPORT_EXEC_STARTED, id, task.process.pid.into(), ""),
        // It was killed from inside before it came so far.
        Err(_) if task.process.is_exiting() => {
            host::report_exec(REPORT_EXEC_STARTED, id, task.process.pid.into(), "");
        }
        Err((code, why)) => {
            ENTRANTS.lock().remove(&id);
            exit::begin_group_exit(&task.process, exit::exited(code.into()));
            host::report_exec(REPORT_EXEC_FAILED, id, code.into(), &why);
        }
    }
}

fn begin(task: &Arc<Task>, id: u64, mut spec: Spec) -> core::result::Result<(), Failure> {
    let aspace = AddressSpace::new().map_err(|error| failed("it gets no memory", error))?;
    task.replace_aspace(Some(aspace));
    let streams = spec.take_streams();
    let (files, console) =
        fs::open_streams(streams, &spec).map_err(|error| failed("its streams cannot be opened", error))?;
    task.set_files(Some(files));
    if let Some(console) = console {
        console::give_to_session(&console, task.process.pid);
        if let Some(entrant) = ENTRANTS.lock().get_mut(&id) {
            entrant.console = Some(Arc::downgrade(&console));
        }
    }
    let context = task.fs.get();
    fs::enter_cwd_of(&context, &spec).map_err(|error| {
        let what = format!("its working directory {} cannot be entered", spec.cwd.escape_ascii());
        let why = if error == Errno::ENOENT { "no such directory".into() } else { reason(error) };
        (EXIT_FAILURE, format!("{what}: {why}").into())
    })?;
    let mut env = spec.env;
    if !env.iter().any(|pair| pair.starts_with(b"HOME=")) {
        let passwd = fs::read_start(&context, b"/etc/passwd", PASSWD_MAX).unwrap_or_default();
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

/// An entrant's process, and its console if that is still there.
fn find(id: u64) -> Option<(Arc<Process>, Option<Arc<Tty>>)> {
    let entrants = ENTRANTS.lock();
    let entrant = entrants.get(&id)?;
    Some((entrant.process.upgrade()?, entrant.console.as_ref().and_then(Weak::upgrade)))
}

/// A signal from outside: for the entrant, or for the foreground group of its terminal if it has one.
pub fn signal(id: u64, number: i64, to_foreground: bool) {
    let number = u32::try_from(number).ok().filter(|number| (1..=signal::SIGRTMAX).contains(number));
    let (Some(number), Some((process, console))) = (number, find(id)) else { return };
    match console.map_or(0, |console| console.foreground()) {
        group if group != 0 && to_foreground => signal::send_to_group(group, number, Source::Kernel),
        _ => signal::send_to_process(&process, number, Source::User { pid: 0, uid: 0 }),
    }
}

/// The host's side of an entrant's terminal has a new size.
pub fn resize(id: u64, size: i64) {
    if let Some((_, Some(console))) = find(id) {
        console::resized(&console, size);
    }
}

/// An entrant has ended. The host hears of it once all that it wrote to its terminal is there: whoever holds that is about
/// to let go of it.
pub fn ended(id: u64, status: i32) {
    // One whose program never ran has been reported.
    let Some(console) = ENTRANTS.lock().get_mut(&id).map(|entrant| {
        entrant.status = Some(status);
        entrant.console.as_ref().and_then(Weak::upgrade)
    }) else {
        return;
    };
    if console.is_none_or(|console| console::has_shown_all(&console)) {
        report_end(id);
    }
}

/// A console has shown all there was.
pub fn console_drained(tty: &Tty) {
    let is_its = |entrant: &Entrant| {
        let console = entrant.console.as_ref().map(Weak::as_ptr);
        entrant.status.is_some() && console.is_some_and(|console| core::ptr::eq(console, tty))
    };
    let found = ENTRANTS.lock().iter().find(|(_, entrant)| is_its(entrant)).map(|(id, _)| *id);
    if let Some(id) = found {
        report_end(id);
    }
}

/// Whoever comes first reports it.
fn report_end(id: u64) {
    let entrant = ENTRANTS.lock().remove(&id);
    if let Some(status) = entrant.and_then(|entrant| entrant.status) {
        host::report_exec(REPORT_EXEC_ENDED, id, status.cast_unsigned().into(), "");
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
