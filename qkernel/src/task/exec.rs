//! `execve(2)`: programs, scripts and interpreters.

mod initial_stack;

use crate::task::signal::deliver::after_exec;
use abi::layout::USER_MAX;
use abi::word::to_usize;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::config::{ARG_MAX_BYTES, ARG_STRLEN_MAX};
use crate::creds::Creds;
use crate::fs::access;
use crate::fs::access::Want;
use crate::fs::file::File;
use crate::limits::RLIMIT_STACK;
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::elf::{HEADER_BYTES, Header, Image};
use crate::task::exec::initial_stack::{Facts, build_stack};
use crate::task::group_exit::end_vfork_wait;
use crate::task::process::ADDR_NO_RANDOMIZE;
use crate::task::{futex, set_id};
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::mm::map::{NewMapping, Placement};
use machine::mm::vma::VmaFlags;
use machine::mm::{Access, AddressSpace, MemoryObject, PAGE, Prot, UserAddr, page_up};
use machine::platform::FpuArea;
use machine::sched;

/// Interpreters of scripts that are scripts, at most.
const SCRIPT_DEPTH_MAX: usize = 5;
const STACK_TOP: u64 = USER_MAX - (1 << 30);
const PIE_BASE: u64 = 0x5555_5555_4000;

/// A program to run, with its arguments and environment.
pub struct Program {
    pub file: Arc<File>,
    /// The path as given, for `AT_EXECFN` and scripts.
    pub name: Vec<u8>,
    pub args: Vec<Vec<u8>>,
    pub env: Vec<Vec<u8>>,
    /// The name leads through a descriptor that is closed when the program begins.
    pub is_unnamed: bool,
}

/// Kernel memory of an argument while its program is loaded, beside its bytes, which the new stack holds once more.
const STRING_BYTES: usize = 64;

/// Reads a null-terminated array of string pointers.
pub fn read_strings(cx: &Ctx<'_>, addr: UserAddr, budget: &mut usize) -> Result<Vec<Vec<u8>>> {
    let mut strings = Vec::new();
    let mut at = addr;
    while !at.is_null() {
        let pointer: UserAddr = cx.user().read(at)?;
        if pointer.is_null() {
            break;
        }
        let string = cx.user().read_cstr(pointer, ARG_STRLEN_MAX, Errno::E2BIG)?;
        *budget = budget.checked_sub(string.len() + 1 + 8).ok_or(Errno::E2BIG)?;
        account::check(STRING_BYTES + string.len())?;
        account::reserve(&mut strings, 1)?;
        strings.push(string);
        at = at.checked_add(8).ok_or(Errno::EFAULT)?;
    }
    Ok(strings)
}

/// Bytes that arguments and environment may take.
pub fn argument_budget(cx: &Ctx<'_>) -> usize {
    let quarter = usize::try_from(cx.limit(RLIMIT_STACK) / 4).unwrap_or(usize::MAX);
    quarter.clamp(128 * 1024, ARG_MAX_BYTES)
}

/// Replaces the current task's program. On success its registers are the new program's.
pub fn execute(cx: &Ctx<'_>, program: Program) -> Result<()> {
    let loaded = load(cx, program)?;
    become_single_threaded(cx.task)?;
    // A thread that has ended since may have started a process that shares the task's place, or have given the task a
    // filter of its own (`SECCOMP_FILTER_FLAG_TSYNC`), which must not reach a program with more rights.
    if loaded.is_elevated && (set_id::shares_place(cx.task) || cx.task.confinement.no_new_privs()) {
        return Err(Errno::EAGAIN);
    }
    commit(cx, loaded)
}

/// A program in its own fresh address space, ready to take over.
struct Loaded {
    aspace: Arc<AddressSpace>,
    /// The addresses that the program touches first.
    touches: Vec<(u64, Access)>,
    file: Arc<File>,
    name: Vec<u8>,
    entry: u64,
    stack: u64,
    creds: Creds,
    secure: bool,
    is_elevated: bool,
    /// The caller may read the program, so others like the caller may look into the process.
    is_readable: bool,
}

fn load(cx: &Ctx<'_>, mut program: Program) -> Result<Loaded> {
    if program.args.is_empty() {
        // Programs count on a name, and would take the environment for arguments.
        program.args.push(Vec::new());
    }
    // What the next interpreter gets. The process keeps the name of the first script (`comm`, `AT_EXECFN`).
    let mut interpreted = program.name.clone();
    let mut head = vec![0u8; 256];
    for _ in 0..=SCRIPT_DEPTH_MAX {
        let got = program.file.read_at(0, &mut head)?;
        match script_interpreter(&head[..got])? {
            None => return load_binary(cx, program, &head[..got]),
            // The interpreter could not open the script by a descriptor that is closed for it.
            Some(_) if program.is_unnamed => return Err(Errno::ENOENT),
            Some((interpreter, argument)) => {
                let mut args = vec![interpreter.clone()];
                args.extend(argument);
                args.push(interpreted);
                args.extend(program.args.drain(..).skip(1));
                program.args = args;
                program.file =
                    crate::fs::open::open_executable(cx, crate::fs::walk::AT_FDCWD, &interpreter, 0)?;
                interpreted = interpreter;
                program.is_unnamed = false;
            }
        }
    }
    Err(Errno::ELOOP)
}

/// A script's interpreter and its optional argument.
type Interpreter = (Vec<u8>, Option<Vec<u8>>);

/// The interpreter that the file's first line names, when it begins with `#!`.
fn script_interpreter(head: &[u8]) -> Result<Option<Interpreter>> {
    let Some(line) = head.strip_prefix(b"#!") else { return Ok(None) };
    let end = line.iter().position(|byte| *byte == b'\n');
    let line = &line[..end.unwrap_or(line.len())];
    let line = trim_blanks(line);
    let split = line.iter().position(|byte| matches!(byte, b' ' | b'\t' | 0));
    let (interpreter, argument) = match split {
        Some(at) if line[at] == 0 => (&line[..at], &line[..0]),
        Some(at) => (&line[..at], trim_blanks(&line[at..])),
        // A name that may have been cut off is no name.
        None if end.is_none() && head.len() == 256 => return Err(Errno::ENOEXEC),
        None => (line, &line[..0]),
    };
    if interpreter.is_empty() {
        return Err(Errno::ENOEXEC);
    }
    Ok(Some((interpreter.to_vec(), (!argument.is_empty()).then(|| argument.to_vec()))))
}

/// Without blanks at the ends. A carriage return is none: it belongs to the name.
fn trim_blanks(line: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let begin = line.iter().position(is_text).unwrap_or(line.len());
    let end = line.iter().rposition(is_text).map_or(begin, |last| last + 1);
    &line[begin..end]
}

fn read_image(file: &File, head: &[u8]) -> Result<Image> {
    let header = Header::parse(head.get(..HEADER_BYTES).ok_or(Errno::ENOEXEC)?)?;
    let mut table = vec![0u8; header.program_header_bytes()];
    if file.read_at(header.program_headers_offset, &mut table)? != table.len() {
        return Err(Errno::ENOEXEC);
    }
    Image::parse(header, &table)
}

fn load_binary(cx: &Ctx<'_>, program: Program, head: &[u8]) -> Result<Loaded> {
    let image = read_image(&program.file, head)?;
    let interpreter = match image.interpreter {
        Some((offset, len)) => Some(open_interpreter(cx, &program.file, offset, len)?),
        None => None,
    };
    let set_id::AfterExec { creds, secure, is_elevated } = set_id::after_exec(cx.task, &program.file)?;
    let others = interpreter.iter().map(|(file, _)| file);
    let is_readable = core::iter::once(&program.file).chain(others).all(|file| is_readable(cx, file));
    let aspace = AddressSpace::new()?;
    // Whoever gains something by the program does not choose where it is.
    let is_fixed = cx.process().personality.load(Ordering::Relaxed) & ADDR_NO_RANDOMIZE != 0 && !is_elevated;
    let random = if is_fixed { RandomLayout::NONE } else { RandomLayout::new() };
    let mmap_top = STACK_TOP - random.mmap;
    let stack_limit = cx.limit(RLIMIT_STACK).min(1 << 30);
    aspace.set_bounds(0, mmap_top - stack_limit.max(128 << 20));

    let hint = if image.header.position_independent { Some(PIE_BASE + random.program) } else { None };
    let bias = map_image(&aspace, &program.file, &image, hint)?;
    let (base, entry) = match &interpreter {
        Some((file, image)) => {
            let base = map_image(&aspace, file, image, None)?;
            (base, base.wrapping_add(image.header.entry))
        }
        None => (0, bias.wrapping_add(image.header.entry)),
    };
    let brk = page_up(bias.wrapping_add(image.span().1)).ok_or(Errno::ENOEXEC)? + random.brk;
    aspace.set_bounds(brk, mmap_top - stack_limit.max(128 << 20));
    let vdso = machine::vdso::map(&aspace)?;
    let facts = Facts { image: &image, bias, base, vdso, creds: &creds, secure };
    let stack = build_stack(&aspace, &program, &facts, STACK_TOP - random.stack)?;
    let images = interpreter.iter().map(|(_, image)| (base, image)).chain([(bias, &image)]);
    let below = stack.saturating_sub(PAGE);
    let touches = [(entry, Access::Execute), (stack, Access::Write), (below, Access::Write)].into_iter();
    let touches = touches.chain((vdso != 0).then_some((vdso, Access::Read)));
    let of_images = images.flat_map(|(bias, image)| first_touches(image, bias)).take(TOUCHES_MAX);
    let touches = touches.chain(of_images).collect();
    Ok(Loaded {
        aspace,
        touches,
        file: program.file,
        name: program.name,
        entry,
        stack,
        creds,
        secure,
        is_elevated,
        is_readable,
    })
}

/// Zeros behind a program's data of so many bytes are all written soon; of more perhaps only the first.
const FEW_ZEROS: u64 = 8 * PAGE;
/// Touches of a program's images, at most.
const TOUCHES_MAX: usize = 64;
/// A touch of new memory brings so many bytes of it.
const TOUCH_BYTES: u64 = 4 * PAGE;

/// Returns the addresses of an image that are read or written as soon as it runs.
fn first_touches(image: &Image, bias: u64) -> impl Iterator<Item = (u64, Access)> {
    image.segments.iter().flat_map(move |segment| {
        let start = bias.wrapping_add(segment.vaddr);
        let is_data = segment.prot.contains(Prot::WRITE);
        let zeros = segment.memory_bytes.saturating_sub(segment.file_bytes);
        let zeros = match zeros {
            _ if !is_data => 0,
            ..=FEW_ZEROS => zeros,
            _ => 1,
        };
        // The beginning of data is bound to its place, and its end is where the zeros begin.
        let ends = is_data.then(|| segment.file_bytes.saturating_sub(1));
        let last = (zeros > 1).then(|| segment.memory_bytes - 1);
        let zeros = (0..zeros).step_by(to_usize(TOUCH_BYTES));
        let zeros = zeros.map(move |at| segment.file_bytes.wrapping_add(at));
        let access = if is_data { Access::Write } else { Access::Read };
        let touches = core::iter::once(0).chain(ends).chain(zeros).chain(last);
        touches.map(move |at| (start.wrapping_add(at), access))
    })
}

fn open_interpreter(cx: &Ctx<'_>, file: &File, offset: u64, len: u64) -> Result<(Arc<File>, Image)> {
    let len = usize::try_from(len).ok().filter(|len| (2..=4096).contains(len)).ok_or(Errno::ENOEXEC)?;
    let mut name = vec![0u8; len];
    if file.read_at(offset, &mut name)? != len || name.pop() != Some(0) {
        return Err(Errno::ENOEXEC);
    }
    let file = crate::fs::open::open_executable(cx, crate::fs::walk::AT_FDCWD, &name, 0)?;
    let mut head = [0u8; HEADER_BYTES];
    if file.read_at(0, &mut head)? != HEADER_BYTES {
        return Err(Errno::ENOEXEC);
    }
    // Linux says ELIBBAD here.
    let image = read_image(&file, &head).map_err(|_| Errno(80))?;
    Ok((file, image))
}

struct RandomLayout {
    program: u64,
    mmap: u64,
    stack: u64,
    brk: u64,
}

impl RandomLayout {
    const NONE: Self = Self { program: 0, mmap: 0, stack: 0, brk: 0 };

    fn new() -> Self {
        let mut bytes = [0u8; 32];
        machine::host::random(&mut bytes);
        let word = |i: usize| u64::from_le_bytes(core::array::from_fn(|k| bytes[i * 8 + k]));
        Self {
            program: (word(0) & 0xff_ffff) * PAGE,
            mmap: (word(1) & 0xff_ffff) * PAGE,
            stack: (word(2) & 0x3f_ffff) * 16 % (1 << 30),
            brk: (word(3) & 0x1fff) * PAGE,
        }
    }
}

/// Maps the segments; returns what to add to the image's addresses.
fn map_image(aspace: &Arc<AddressSpace>, file: &Arc<File>, image: &Image, base: Option<u64>) -> Result<u64> {
    let (start, end) = image.span();
    let bias = if image.header.position_independent {
        // Room for the whole image first, so that the segments keep their distances.
        let placement = Placement::Hint(base.unwrap_or(0));
        let reserved = aspace.map(mapping(placement, end - start, Prot::empty(), None, 0))?;
        // The program may ask for higher addresses than it gets.
        reserved.wrapping_sub(start)
    } else {
        0
    };
    for segment in &image.segments {
        let addr = bias.wrapping_add(segment.vaddr);
        let inside = addr % PAGE;
        if segment.file_bytes > 0 {
            let object = file.ops.mapping(file, false)?;
            if object.label().is_none()
                && let Some(path) = &file.path
            {
                object.set_label(&path.absolute());
            }
            let placement = Placement::Fixed(addr - inside);
            let len = segment.file_bytes + inside;
            aspace.map(mapping(placement, len, segment.prot, Some(object), segment.offset - inside))?;
        }
        let file_end = addr.wrapping_add(segment.file_bytes);
        let memory_end = page_up(addr.wrapping_add(segment.memory_bytes)).ok_or(Errno::ENOEXEC)?;
        let anonymous =
            if segment.file_bytes > 0 { page_up(file_end).ok_or(Errno::ENOEXEC)? } else { addr - inside };
        if memory_end > anonymous {
            let placement = Placement::Fixed(anonymous);
            aspace.map(mapping(placement, memory_end - anonymous, segment.prot, None, 0))?;
        }
        let tail = anonymous.saturating_sub(file_end);
        if segment.memory_bytes > segment.file_bytes && tail > 0 && segment.prot.contains(Prot::WRITE) {
            // A short file leaves no page to clear; it gets SIGBUS when it runs, as on Linux.
            let _ = aspace.zero_out(UserAddr::new(file_end), to_usize(tail));
        }
    }
    Ok(bias)
}

fn mapping(
    placement: Placement,
    len: u64,
    prot: Prot,
    object: Option<MemoryObject>,
    offset: u64,
) -> NewMapping {
    NewMapping { placement, len, prot, max_prot: Prot::all(), flags: VmaFlags::empty(), object, offset }
}

/// Ends the other threads of the process and makes the caller its leader.
fn become_single_threaded(task: &Arc<Task>) -> Result<()> {
    let process = &task.process;
    let others: Vec<Arc<Task>> = {
        let tasks = process.tasks.lock();
        if task.is_dying() {
            // Another thread was faster.
            return Err(Errno::EAGAIN);
        }
        let others = tasks.iter().filter(|other| !Arc::ptr_eq(other, task));
        others.inspect(|other| other.set_dying()).cloned().collect()
    };
    for other in &others {
        other.call_attention();
        end_vfork_wait(other);
    }
    // Some may be stopped, or paused.
    process.stop_wait.wake_all();
    drop(others);
    // A signal for the caller waits until the others are gone; only its own end ends this.
    process.stop_wait.wait_uninterruptible(|| process.tasks.lock().len() == 1 || process.is_exiting());
    if process.is_exiting() {
        return Err(Errno::EAGAIN);
    }
    let old = task.tid();
    if old != process.pid {
        let mut tree = task.process.container.pids.tree.lock();
        tree.rename_task(task, process.pid);
    }
    Ok(())
}

/// The point of no return: the task becomes the new program.
fn commit(cx: &Ctx<'_>, loaded: Loaded) -> Result<()> {
    let task = cx.task;
    let process = &task.process;
    // Descriptors shared with other processes (`CLONE_FILES`) are shared no more.
    // Otherwise the table, and the record locks it owns, stay.
    let files = cx.files().unshare()?;
    task.set_files(Some(files.clone()));
    // The end of a program says nothing to the parent of another. A child may end as soon as a descriptor is closed.
    process.exit_signal.store(crate::signals::SIGCHLD, Ordering::Relaxed);
    process.programs.fetch_add(1, Ordering::Relaxed);
    process.kept.begin_program();
    process.sighand.set(process.sighand.get().reset_for_exec());
    after_exec(task);
    futex::release_robust_list(task, cx.user());
    process.timers.lock().delete_posix();
    let is_dumpable = change_creds(task, &loaded);
    task.creds.set(Arc::new(loaded.creds));
    let former = process.exe.lock().replace(loaded.file);
    drop(former);
    set_comm(task, &loaded.name);
    task.clear_child_tid.store(0, Ordering::Relaxed);
    task.robust_list.store(0, Ordering::Relaxed);
    task.rseq.forget();
    task.keyrings.set_thread(None);
    let keyring = process.keyring.lock().take();
    drop(keyring);
    {
        let context = &mut *task.context();
        context.fpu_live = false;
        context.fpu = FpuArea::initial();
        context.run.regs =
            abi::run::UserRegs { rip: loaded.entry, rsp: loaded.stack, rflags: 0x202, ..Default::default() };
    }
    loaded.aspace.expect(loaded.touches);
    let old = task.replace_aspace(Some(loaded.aspace));
    // Who may look into the new program finds none of these in its table, and who sees one closed may look into it.
    let taken = files.take_for_exec();
    process.dumpable.store(u32::from(is_dumpable), Ordering::SeqCst);
    files.close_taken(taken);
    if let Some(old) = &old {
        task.process.has_held(old.resident_peak());
    }
    if let Some(parent) = task.vfork_parent.lock().take() {
        parent.complete();
    }
    old.into_iter().for_each(AddressSpace::release);
    sched::yield_now();
    Ok(())
}

/// Updates the state that depends on credentials, such as its parent-death signal. Result: whether others may inspect the process
/// once it has the new program's memory. Until then nobody may, since it has the new credentials and the former memory.
fn change_creds(task: &Task, loaded: &Loaded) -> bool {
    let new = &loaded.creds;
    if loaded.secure || loaded.is_elevated {
        task.process.personality.fetch_and(!ADDR_NO_RANDOMIZE, Ordering::Relaxed);
    }
    let stays = set_id::stays_dumpable(&task.creds.get(), new);
    let dumpable = stays && loaded.is_readable && (new.uid, new.gid) == (new.euid, new.egid);
    task.process.dumpable.store(0, Ordering::SeqCst);
    if loaded.secure || !stays {
        task.death_signal.store(0, Ordering::Relaxed);
    }
    dumpable
}

/// Whether the caller may read a program, and so the memory of a process that runs it.
fn is_readable(cx: &Ctx<'_>, program: &File) -> bool {
    let creds = cx.task.creds.get();
    program.ops.stat(program).is_ok_and(|stat| access::permitted(&creds, &stat, Want::READ).is_ok())
}

/// `comm` becomes the program's base name.
fn set_comm(task: &Task, name: &[u8]) {
    let base = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    let mut comm = [0u8; 16];
    let len = base.len().min(15);
    comm[..len].copy_from_slice(&base[..len]);
    *task.comm.lock() = comm;
}

/// The wait status of a process whose first program could not be run: as shells report it.
pub fn failure_status(error: Errno) -> i32 {
    crate::task::group_exit::exited(if error == Errno::ENOENT { 127 } else { 126 })
}
