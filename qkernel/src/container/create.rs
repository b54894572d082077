//! How a container begins: its files, its first process, its program.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::limits::ContainerLimit;
use abi::report::{Report, WakeEvent};
use machine::errno::Errno;
use machine::host;
use machine::mm::AddressSpace;

use crate::container::launch::{EXIT_FAILURE, find_program, new_leader, reason, take_spec};
use crate::container::limits;
use crate::container::setup;
use crate::hibernate;
use crate::hibernate::idle;
use crate::signals::{SIGKILL, SIGRTMAX, Source};
use crate::spec::Spec;
use crate::task::container::{self, Container, ContainerId};
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::group_exit::{begin_group_exit, exited};
use crate::task::process::Process;
use crate::task::signal::send::{kill_process, send_to_foreground, send_to_process};
use crate::task::{exec, pause};
use crate::tty::console;

/// The program that the first process becomes.
struct FirstProgram {
    args: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    /// It begins when the VMM says so.
    hold: bool,
}

/// Makes another container, whose records have up to `len` bytes. If the sandbox sleeps, it wakes.
pub fn admit(id: ContainerId, len: i64) {
    idle::note_activity();
    machine::mm::copies::have_in_common();
    // They are taken in any case: the VMM keeps them until then.
    let spec = take_spec(len, |bytes| host::container_take(id, bytes));
    let spec = spec.map_err(|error| format!("its records cannot be taken: {}", reason(error)));
    let made = match container::find(id) {
        Some(_) => Err("there is a container of this id already".into()),
        None => spec.and_then(|spec| create(id, spec)),
    };
    if let Err(why) = made {
        let status = exited(EXIT_FAILURE.into());
        host::report(&Report::ContainerFailed { container: id, status, why: why.as_bytes() });
    }
    hibernate::wake_event(WakeEvent::Exec);
}

/// Makes a container and starts its first process. The error is a sentence.
pub fn create(id: ContainerId, mut spec: Spec) -> Result<Arc<Container>, String> {
    spec.say_whose(id.0, 0);
    let made = match spec.pid_space.map(ContainerId) {
        None => Container::new(id),
        Some(other) => Container::joining(id, other),
    };
    let container = made.map_err(|error| match error {
        Errno::ESRCH => "there is no such container to share process ids with",
        _ => "there are as many containers as may be",
    })?;
    let _charged = container.charge();
    set_ipc(&container, &spec)?;
    // Containers of a pod may have one host name.
    let shared = spec.hostname.is_empty().then(|| container::find(ContainerId::FIRST)).flatten();
    container.set_host_name(shared.map_or_else(|| spec.hostname.clone(), |first| first.host_name()));
    container.set_domain_name(spec.domainname.clone());
    if let Some(maps) = spec.id_maps.take() {
        container.id_maps.call_once(|| maps);
    }
    for (limit, value) in &spec.limits {
        container.limits.set(*limit, *value);
        if *limit == ContainerLimit::MemoryMax {
            container.memory().begin_with_limit(*value);
        }
        limits::apply_cpu(&container, *limit);
    }
    if id != ContainerId::FIRST {
        container.watch_end(Box::new(|id, status| {
            host::report(&Report::ContainerEnded { container: id, status });
        }));
    }
    let made = start(&container, &mut spec);
    if made.is_err() {
        container.give_up();
    }
    made.map(|()| container)
}

/// Gives it the IPC namespace that its records name, and that the settings that they name. Those of a namespace that others
/// have as well are changed for all of them, and stay if the container cannot be made after all.
fn set_ipc(container: &Container, spec: &Spec) -> Result<(), String> {
    if let Some(other) = spec.ipc_space {
        let other = container::find(ContainerId(other)).ok_or("there is no such container to share IPC with");
        container.share_ipc(&*other.inspect_err(|_| container.give_up())?);
    }
    for (name, value) in &spec.ipc_settings {
        let name = String::from_utf8_lossy(name);
        container.ipc().set(&name, value).map_err(|_| {
            container.give_up();
            format!("{name} cannot be {}", value.escape_ascii())
        })?;
    }
    Ok(())
}

fn start(container: &Arc<Container>, spec: &mut Spec) -> Result<(), String> {
    let made = setup::init(container, spec).map_err(|error| format!("cannot set up the sandbox: {error}"))?;
    let (context, files, console) = made;
    let program = FirstProgram {
        args: core::mem::take(&mut spec.args),
        env: core::mem::take(&mut spec.env),
        hold: spec.flags.hold,
    };
    let hold = program.hold;
    let main = Box::new(move |task: &Arc<Task>| run_first(task, program));
    let task = AddressSpace::new()
        .and_then(|aspace| new_leader(container, spec, Some(aspace), context, files, main))
        .map_err(|error| format!("the first process cannot be made: {error:?}"))?;
    become_first(container, &task.process, hold);
    if let Some(console) = console {
        console::become_containers(&console, container);
        console::give_to_session(&console, task.process.pid);
    }
    task.start();
    Ok(())
}

/// Makes a process the first one of its container; with `hold` it is process 1 of those that wait until they are to begin.
pub fn become_first(container: &Container, process: &Arc<Process>, hold: bool) {
    container.set_first(process);
    if container.has_own_pids() {
        process.is_protected.store(hold, Ordering::Relaxed);
    } else {
        // Nobody inside waits for it.
        process.on_end.call_once(|| Box::new(|_| {}));
    }
}

/// The first process before it is a program.
fn run_first(task: &Arc<Task>, program: FirstProgram) {
    let cx = Ctx::new(task);
    let container = cx.container();
    let name = program.args.first().cloned().unwrap_or_default();
    if program.hold {
        // A program that is missing is reported before anybody relies on the sandbox.
        if let Err(error) = find_program(&cx, program.args.clone(), program.env.clone()) {
            return cannot_run(task, &name, error);
        }
        host::report(&Report::ContainerReady { container: container.id });
        container.wait_for_start(&task.process);
        while pause::rest(task) {}
        if task.process.is_exiting() {
            return;
        }
    }
    let found = find_program(&cx, program.args, program.env);
    match found.and_then(|found| exec::execute(&cx, found)) {
        Ok(()) => host::report(&Report::ContainerRunning { container: container.id }),
        Err(error) => cannot_run(task, &name, error),
    }
}

fn cannot_run(task: &Arc<Task>, name: &[u8], error: Errno) {
    let why = format!("cannot run {}: {}", name.escape_ascii(), reason(error));
    let status = exec::failure_status(error);
    let id = task.process.container.id;
    if id == ContainerId::FIRST {
        host::log(0, &why);
        host::exit(status);
    }
    host::report(&Report::ContainerFailed { container: id, status, why: why.as_bytes() });
    begin_group_exit(&task.process, status);
}

/// A signal from outside: for the first process, for the console's foreground group (`flags` 1), or for every process
/// (`flags` 2).
pub fn signal(container: &Arc<Container>, number: i64, flags: u32) {
    let Some(number) = u32::try_from(number).ok().filter(|number| (1..=SIGRTMAX).contains(number)) else {
        return;
    };
    // As on Linux, one from outside that cannot be caught ends even process 1.
    let send = |process: &Arc<Process>, number| match number {
        SIGKILL => kill_process(process, SIGKILL),
        _ => send_to_process(process, number, Source::User { pid: 0, uid: 0 }),
    };
    match flags {
        1 => send_to_foreground(container, number),
        2 => container.processes().iter().for_each(|process| send(process, number)),
        _ => container.first_process().iter().for_each(|process| send(process, number)),
    }
}
