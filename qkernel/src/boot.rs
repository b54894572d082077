//! Boot: from the VMM's first call to the first program.

mod events;

use abi::boot::BootInfo;
use abi::hostcall::{REPORT_READY, REPORT_RUNNING};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::creds::Creds;
use crate::exec_process;
use crate::fs;
use crate::fs::caller;
use crate::fs::file::FileTable;
use crate::fs::path::FsContext;
use crate::hibernate;
use crate::hibernate::idle;
use crate::launch::{find_program, new_leader, reason};
use crate::limits;
use crate::limits::{Limits, RLIMIT_STACK};
use crate::proc;
use crate::setup;
use crate::spec::Spec;
use crate::syscall;
use crate::task;
use crate::task::context::Ctx;
use crate::task::core::{Task, TaskParts};
use crate::task::exec;
use crate::task::process::Process;
use crate::task::signal;
use crate::task::signal::action::SigHand;
use crate::task::signal::state::TaskSignals;
use crate::task::tree::TREE;
use crate::task::uts;
use crate::tty;
use machine::boot::Kernel;
use machine::errno::{Errno, Result};
use machine::host;
use machine::mm::{AddressSpace, stats, working_set};
use machine::platform::UserContext;
use machine::sched;
use machine::sched::Runnable;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};
use machine::thread;
use machine::upcall::Upcalls;

/// The VMM lets the first process begin.
static STARTED: AtomicBool = AtomicBool::new(false);
static START: WaitQueue = WaitQueue::new();

/// What the lower half needs of this one.
pub static KERNEL: Kernel = Kernel {
    upcalls: Upcalls {
        host_event: events::handle,
        stack_limit: || task::current().process.limits.lock().soft(RLIMIT_STACK),
        shrink_caches: fs::dentry::shrink,
    },
    first_cpu,
    other_cpu: || run_idle(new_idle()),
};

fn first_cpu(boot: &BootInfo, records: Vec<u8>) -> ! {
    caller::register(|| task::current());
    syscall::table::set_strace(boot.strace != 0);
    machine::mm::copies::share_files(boot.share_files != 0);
    let idle = new_idle();
    sched::adopt_idle(&(idle.clone() as Runnable));
    let spec = Spec::parse(&records);
    // This function does not return.
    drop(records);
    start_init(spec);
    machine::boot::release_others();
    run_idle(idle)
}

fn new_idle() -> Arc<Task> {
    match idle_task() {
        Ok(idle) => idle,
        Err(_) => host::die("no memory for an idle task"),
    }
}

/// The life of a CPU that has nothing to do. Runs on the boot stack.
fn run_idle(idle: Arc<Task>) -> ! {
    sched::adopt_idle(&(idle as Runnable));
    loop {
        thread::handle_pending();
        if sched::run_others() {
            continue;
        }
        working_set::help();
        idle::rest();
        idle::look();
        if hibernate::attempt(exec_process::is_any_waiting) {
            continue;
        }
        sched::wait_for_work(|| {
            stats::refresh();
            hibernate::look_again_ns()
        });
    }
}

/// A task that stands for a CPU with nothing to do.
pub(crate) fn idle_task() -> Result<Arc<Task>> {
    let process = Process::new(0, SigHand::new(), Limits::default());
    Ok(Task::idle(TaskParts {
        process,
        aspace: None,
        files: None,
        fs: FsContext::none(),
        creds: Arc::new(Creds::new(0, 0, Vec::new())),
        signals: TaskSignals::default(),
        context: UserContext::new(),
        comm: *b"idle\0\0\0\0\0\0\0\0\0\0\0\0",
        main: || {},
    }))
}

/// Makes process 1 and runs its program.
fn start_init(mut spec: Spec) {
    uts::set_hostname(&spec.hostname);
    proc::sys::set_domain_name(&spec.domainname);
    limits::set_tasks_max(spec.tasks_max);
    if let Some(flags) = spec.cpu_flags.take() {
        proc::cpuinfo::set_host_flags(flags);
    }
    idle::set_timeout(spec.idle_timeout_ns);
    let (context, files) = match setup::init(&mut spec) {
        Ok(made) => made,
        Err(error) => fail(&format!("cannot set up the sandbox: {error}"), 125),
    };
    let task = match init_task(&spec, context, files) {
        Ok(task) => task,
        Err(error) => fail(&format!("the first process cannot be made: {error:?}"), 125),
    };
    let hold = spec.hold();
    *INIT_PROGRAM.lock() = Some(InitProgram { args: spec.args, env: spec.env, hold });
    task.start();
}

/// What process 1 becomes.
struct InitProgram {
    args: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    /// Not before the VMM says so.
    hold: bool,
}

static INIT_PROGRAM: SpinLock<Option<InitProgram>> = SpinLock::new(Rank::Leaf, None);

fn fail(message: &str, code: i32) -> ! {
    host::log(0, message);
    host::exit(crate::task::group_exit::exited(code))
}

fn init_task(spec: &Spec, fs: Arc<FsContext>, files: Arc<FileTable>) -> Result<Arc<Task>> {
    let task = new_leader(spec, Some(AddressSpace::new()?), fs, files, run_init)?;
    task.process.is_protected.store(spec.hold(), Ordering::Relaxed);
    if let Some(console) = tty::console::get() {
        tty::console::give_to_session(console, task.process.pid);
    }
    Ok(task)
}

/// What process 1 does before it is a program.
fn run_init(task: &Arc<Task>) {
    let Some(program) = INIT_PROGRAM.lock().take() else { return };
    let cx = Ctx::new(task);
    let name = program.args.first().cloned().unwrap_or_default();
    if program.hold {
        // What is wrong already is said before anybody relies on the sandbox.
        if let Err(error) = find_program(&cx, program.args.clone(), program.env.clone()) {
            give_up(&name, error);
        }
        host::report(REPORT_READY, 0);
        START.wait_uninterruptible(|| STARTED.load(Ordering::SeqCst));
    }
    let found = find_program(&cx, program.args, program.env);
    let run = found.and_then(|found| exec::execute(&cx, found));
    match run {
        Ok(()) => host::report(REPORT_RUNNING, 0),
        Err(error) => give_up(&name, error),
    }
}

/// The VMM lets the first process begin.
pub fn begin_init() {
    STARTED.store(true, Ordering::SeqCst);
    idle::note_activity();
    START.wake_all();
}

fn give_up(name: &[u8], error: Errno) -> ! {
    host::log(0, &format!("cannot run {}: {}", name.escape_ascii(), reason(error)));
    host::exit(exec::failure_status(error))
}

/// A signal from outside: for the first process, for the terminal's foreground group (`flags` 1), or for every process
/// (`flags` 2).
pub fn host_signal(number: i64, flags: u32) {
    let Some(number) =
        u32::try_from(number).ok().filter(|number| (1..=crate::signals::SIGRTMAX).contains(number))
    else {
        return;
    };
    let source = crate::signals::Source::User { pid: 0, uid: 0 };
    if flags == 1 {
        signal::send_to_foreground(number);
        return;
    }
    if flags == 2 {
        let all: Vec<Arc<Process>> = TREE.lock().nodes.values().map(|node| node.process.clone()).collect();
        all.iter().for_each(|process| signal::send_to_process(process, number, source));
        return;
    }
    if let Some(process) = crate::task::tree::find_process(1) {
        signal::send_to_process(&process, number, source);
    }
}
