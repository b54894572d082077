//! Boot: from the VMM's first call to the first program.

use abi::boot::{self as ab, BootInfo};
use abi::layout::{RECORDS_MAX, RECORDS_PHYS};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::errno::{Errno, Result};
use crate::fs::{self, FileTable, FsContext};
use crate::mm::{AddressSpace, frames, heap};
use crate::platform::{self, UserContext};
use crate::sync::SpinLock;
use crate::syscall::{self, Ctx};
use crate::task::creds::Creds;
use crate::task::exec::{self, Program};
use crate::task::limits::{Limit, Limits, RLIM_COUNT};
use crate::task::process::{Node, Process, TREE};
use crate::task::signal::{self, SigHand, TaskSignals};
use crate::task::{Task, TaskParts, sched};
use crate::{arch, host, log, net, time};

static READY: AtomicBool = AtomicBool::new(false);

/// What the first process is and sees; see `abi::boot`'s tags.
#[derive(Default)]
pub struct Spec {
    pub args: Vec<Vec<u8>>,
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    pub hostname: Vec<u8>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Handle, flags, guest path.
    pub mounts: Vec<(u32, u32, Vec<u8>)>,
    /// Type, guest path.
    pub virtual_mounts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Descriptor, handle, flags.
    pub streams: Vec<(u32, u32, u32)>,
    pub rlimits: Vec<(u32, u64, u64)>,
    pub umask: Option<u32>,
    /// Rows and columns.
    pub winsize: Option<(u16, u16)>,
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?))
}
fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?))
}

impl Spec {
    /// Reads the records; unknown tags are left for later kernels.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut spec = Self::default();
        for record in ab::records(bytes) {
            if spec.take(record.tag, record.data).is_none() {
                crate::warn!("boot record {} is malformed", record.tag);
            }
        }
        spec
    }

    fn take(&mut self, tag: u32, data: &[u8]) -> Option<()> {
        match tag {
            ab::TAG_ARG => self.args.push(data.to_vec()),
            ab::TAG_ENV => self.env.push(data.to_vec()),
            ab::TAG_CWD => self.cwd = data.to_vec(),
            ab::TAG_HOSTNAME => self.hostname = data.to_vec(),
            ab::TAG_CREDS => {
                self.uid = u32_at(data, 0)?;
                self.gid = u32_at(data, 4)?;
                self.groups = (8..data.len()).step_by(4).filter_map(|at| u32_at(data, at)).collect();
            }
            ab::TAG_MOUNT => self.mounts.push((u32_at(data, 0)?, u32_at(data, 4)?, data.get(8..)?.to_vec())),
            ab::TAG_STREAM => self.streams.push((u32_at(data, 0)?, u32_at(data, 4)?, u32_at(data, 8)?)),
            ab::TAG_RLIMIT => self.rlimits.push((u32_at(data, 0)?, u64_at(data, 8)?, u64_at(data, 16)?)),
            ab::TAG_UMASK => self.umask = Some(u32_at(data, 0)?),
            ab::TAG_VIRTUAL_MOUNT => {
                let nul = data.iter().position(|byte| *byte == 0)?;
                self.virtual_mounts.push((data[..nul].to_vec(), data[nul + 1..].to_vec()));
            }
            ab::TAG_WINSIZE => {
                let word = u32_at(data, 0)?;
                self.winsize = Some((word as u16, (word >> 16) as u16));
            }
            _ => {}
        }
        Some(())
    }

    fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        for (resource, soft, hard) in &self.rlimits {
            if let Some(limit) =
                limits.0.get_mut(*resource as usize).filter(|_| (*resource as usize) < RLIM_COUNT)
            {
                *limit = Limit { soft: *soft, hard: *hard };
            }
        }
        limits
    }
}

/// Ends the sandbox because the kernel contradicts itself.
pub fn die(message: &str) -> ! {
    host::panic(message)
}

/// Where every CPU enters, on its boot stack.
///
/// # Safety
/// `boot` is the VMM's boot information; called once on each CPU.
#[allow(unsafe_code)]
pub unsafe fn enter(boot: *const BootInfo, cpu: u32) -> ! {
    // SAFETY: the caller vouches for the pointer; nobody writes to it any more.
    let boot = unsafe { &*boot };
    if cpu == 0 {
        start_first(boot);
    } else {
        while !READY.load(Ordering::Acquire) {
            if platform::is_ready() {
                platform::relax();
            }
            core::hint::spin_loop();
        }
        start_cpu(boot, cpu)
    }
}

fn start_cpu(boot: &BootInfo, cpu: u32) -> ! {
    if !platform::is_systrap() {
        arch::ring0::init_cpu(boot, cpu);
    }
    match idle_task() {
        Ok(idle) => sched::idle_loop(idle),
        Err(_) => die("no memory for an idle task"),
    }
}

fn start_first(boot: &BootInfo) -> ! {
    platform::init(boot);
    log::set_level(boot.log_level);
    // SAFETY: the VMM left this range of kernel memory free and zero-filled; this is the only call.
    #[allow(unsafe_code)]
    unsafe {
        heap::init(boot.heap_phys, boot.heap_end_phys);
    };
    if !platform::is_systrap() {
        arch::ring0::init_cpu(boot, 0);
    }
    if boot.version != abi::ABI_VERSION {
        die("the VMM speaks another version of the interface");
    }
    time::init(boot.tsc_hz);
    syscall::table::set_strace(boot.strace != 0);
    if frames::init(boot).is_err() {
        die("user memory cannot be set up");
    }
    let idle = match idle_task() {
        Ok(idle) => idle,
        Err(_) => die("no memory for an idle task"),
    };
    sched::adopt_idle(&idle);
    start_init(&read_spec(boot));
    READY.store(true, Ordering::Release);
    sched::idle_loop(idle)
}

#[allow(unsafe_code)]
fn read_spec(boot: &BootInfo) -> Spec {
    let len = boot.records_len.min(RECORDS_MAX) as usize;
    // SAFETY: the VMM wrote the records there before the kernel started.
    let bytes = unsafe { core::slice::from_raw_parts(platform::ptr::<u8>(RECORDS_PHYS), len) };
    let spec = Spec::parse(bytes);
    platform::release(RECORDS_PHYS, (len as u64).next_multiple_of(abi::PAGE_SIZE));
    spec
}

/// A task that stands for a CPU with nothing to do.
fn idle_task() -> Result<Arc<Task>> {
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
    }))
}

/// Makes process 1 and runs its program.
fn start_init(spec: &Spec) {
    fs::set_hostname(&spec.hostname);
    fs::proc::net::set_source(net::tables::write);
    let (context, files) = match fs::init(spec) {
        Ok(made) => made,
        Err(error) => fail(&format!("the root file system cannot be set up: {error:?}"), 125),
    };
    let task = match init_task(spec, context, files) {
        Ok(task) => task,
        Err(error) => fail(&format!("the first process cannot be made: {error:?}"), 125),
    };
    *INIT_PROGRAM.lock() = Some((spec.args.clone(), spec.env.clone()));
    sched::start(&task);
}

/// Arguments and environment.
type Strings = (Vec<Vec<u8>>, Vec<Vec<u8>>);

static INIT_PROGRAM: SpinLock<Option<Strings>> = SpinLock::new(None);

fn fail(message: &str, code: i32) -> ! {
    host::log(0, message);
    host::exit(crate::task::exit::exited(code))
}

fn init_task(spec: &Spec, fs: Arc<FsContext>, files: Arc<FileTable>) -> Result<Arc<Task>> {
    let pid = TREE.lock().new_id();
    let process = Process::new(pid, SigHand::new(), spec.limits());
    let creds = Creds::new(spec.uid, spec.gid, spec.groups.clone());
    let uid = creds.uid;
    let parts = TaskParts {
        process: process.clone(),
        aspace: Some(AddressSpace::new()?),
        files: Some(files),
        fs,
        creds: Arc::new(creds),
        signals: TaskSignals::default(),
        context: UserContext::new(),
        comm: *b"init\0\0\0\0\0\0\0\0\0\0\0\0",
    };
    let task = Task::new_in_kernel(pid, parts, run_init)?;
    process.tasks.lock().push(task.clone());
    let mut tree = TREE.lock();
    tree.tasks.insert(pid, Arc::downgrade(&task));
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
    fs::tty::console::give_to_session(pid);
    Ok(task)
}

/// What process 1 does before it is a program.
fn run_init(task: &Arc<Task>) {
    let Some((args, env)) = INIT_PROGRAM.lock().take() else { return };
    let cx = Ctx::new(task);
    if let Err(error) = exec_init(&cx, args.clone(), env) {
        let name = String::from_utf8_lossy(args.first().map_or(&b""[..], Vec::as_slice)).into_owned();
        let status = exec::failure_status(error);
        host::log(0, &format!("cannot run {name}: {}", reason(error)));
        host::exit(status);
    }
}

fn reason(error: Errno) -> String {
    let text = match error {
        Errno::ENOENT => "no such file in the sandbox's root file system",
        Errno::EACCES => "it is not executable",
        Errno::ENOEXEC => "it is not a program for x86-64 Linux, or it is damaged",
        Errno::EISDIR => "it is a directory",
        Errno::ENOMEM => "not enough memory; give the sandbox more with --memory",
        Errno(80) => "its interpreter is damaged",
        other => return format!("{other:?}"),
    };
    String::from(text)
}

/// Finds the program as `execvp(3)` does, and runs it.
fn exec_init(cx: &Ctx<'_>, args: Vec<Vec<u8>>, env: Vec<Vec<u8>>) -> Result<()> {
    let name = args.first().ok_or(Errno::EINVAL)?.clone();
    let candidates: Vec<Vec<u8>> = if name.contains(&b'/') {
        alloc::vec![name.clone()]
    } else {
        let path = env.iter().find_map(|entry| entry.strip_prefix(b"PATH="));
        let path = path.unwrap_or(b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let joined = |dir: &[u8]| [if dir.is_empty() { b"." } else { dir }, b"/", &name].concat();
        path.split(|byte| *byte == b':').map(joined).collect()
    };
    let mut last = Errno::ENOENT;
    for candidate in candidates {
        match fs::path::open_executable(cx, fs::path::AT_FDCWD, &candidate, 0) {
            Ok(file) => return exec::execute(cx, Program { file, name: candidate, args, env }),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A signal from outside: for the first process, or for the terminal's foreground group (`flags` 1).
pub fn host_signal(number: i64, flags: u32) {
    let Some(number) = u32::try_from(number).ok().filter(|number| (1..=signal::SIGRTMAX).contains(number))
    else {
        return;
    };
    let source = signal::Source::User { pid: 0, uid: 0 };
    if flags == 1 {
        signal::send_to_foreground(number);
        return;
    }
    if let Some(process) = crate::task::process::find_process(1) {
        signal::send_to_process(&process, number, source);
    }
}

/// Random bytes from the host, for layouts and stack canaries.
pub fn random(bytes: &mut [u8]) {
    host::random(bytes);
}
