//! A host of a test's or a fuzzer's own: this process answers the hostcalls, and says what "user code" does.
//!
//! The kernel runs as on systrap with one CPU, in an arena of ordinary memory.

use abi::HostCall;
use abi::boot::{BootInfo, Platform};
use abi::hostcall::{self as hc, HibernateReport, HostClocks, SwapOut};
use abi::layout::{CPU_AREA_PHYS, KERNEL_IMAGE_PHYS, USER_PHYS};
use abi::report::{self, Report};
use abi::run::{CpuHeader, RunState};
use abi::word::{low8, to_usize};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::platform;
use crate::rank::Rank;
use crate::spin::{Once, SpinLock};
use crate::upcall::{self, Upcalls};

/// Bytes of kernel memory: the reserve that system calls leave alone, and some.
const KERNEL_BYTES: u64 = 512 << 20;
/// Bytes of user memory.
const USER_BYTES: u64 = 64 << 20;
/// Bytes of address space that the caller gives to [`boot`].
pub const ARENA_BYTES: u64 = USER_PHYS + USER_BYTES;
/// Handles that programs may have.
pub const HANDLES: u32 = 1024;
/// Sockets that the host has, see [`set_sockets`].
static SOCKETS_LEFT: AtomicU64 = AtomicU64::new(0);
const ENOSYS: i64 = 38;
const EIO: i64 = 5;
/// Mapping operations are the stub's affair; here memory is reached by the kernel alone.
const DONE: i64 = 0;

static HOST: Once<Host> = Once::new();
static NEXT_STUB: AtomicU64 = AtomicU64::new(1);
/// Between the numbers of one VMM's stubs and the next one's.
const STUBS_OF_A_VMM: u64 = 1 << 20;
/// The host's clock, in nanoseconds: a little later at each look.
static CLOCK_NS: AtomicU64 = AtomicU64::new(1 << 30);
const LOOK_NS: u64 = 1000;

/// Puts the host's clock forward.
pub fn pass_time(ns: u64) {
    CLOCK_NS.fetch_add(ns, Ordering::Relaxed);
}

/// The functions of the host's side.
pub struct Host {
    /// Runs user code of the current task.
    pub run_user: fn(&mut RunState),
    /// Prints a line of the kernel's log.
    pub log: fn(&str),
    /// Hears how far the sandbox has got.
    pub report: fn(Report<'_>),
    /// Hears how a hibernation came out: `HIBERNATE_DONE` ….
    pub hibernated: fn(u64),
}

/// Starts the lower half on the calling thread, which becomes its only CPU.
///
/// # Safety
/// Called once. `arena` are [`ARENA_BYTES`] bytes of zeros, aligned to 4 MiB, that are the kernel's from now on.
/// `set_gs` sets the thread's GS base for good.
pub unsafe fn boot(arena: *mut u8, set_gs: impl FnOnce(u64), host: Host, upcalls: &'static Upcalls) {
    HOST.call_once(|| host);
    let base = arena as u64;
    let header = CpuHeader {
        this: base + CPU_AREA_PHYS,
        current: 0.into(),
        trap_sp: 0,
        scratch: 0,
        host_sp: 0,
        pending: 0.into(),
        cpu: 0,
        deadline_ns: u64::MAX.into(),
        in_user: 0.into(),
        alarm_ns: u64::MAX.into(),
        user_entries: 0.into(),
    };
    // SAFETY: the arena is the caller's gift, and covers the CPU's area.
    unsafe { arena.add(to_usize(CPU_AREA_PHYS)).cast::<CpuHeader>().write(header) };
    set_gs(base + CPU_AREA_PHYS);
    let info = boot_info(base, 0);
    // SAFETY: the heap's range is zero-filled memory of the arena that nobody else uses; this is the only call.
    unsafe { crate::boot::init(&info) };
    upcall::register(upcalls);
}

/// Another VMM takes over a kernel that is asleep, on the thread that called [`boot`], which is its only CPU again: its stubs' numbers
/// begin elsewhere, and its clock is behind. Result: what it says.
///
/// # Panics
///
/// When some task runs or is about to.
#[must_use]
pub fn replace_vmm() -> BootInfo {
    assert!(crate::sched::is_at_rest(), "a task runs");
    NEXT_STUB.fetch_add(STUBS_OF_A_VMM, Ordering::Relaxed);
    CLOCK_NS.fetch_sub(CLOCK_NS.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
    let info = BootInfo { keeps_news: 1, ..boot_info(platform::linear(0), platform::vmms()) };
    // SAFETY: the one CPU, whose thread this is, runs no task; memory is as it is.
    unsafe { crate::boot::revive(&info) };
    info
}

fn boot_info(base: u64, former_vmms: u32) -> BootInfo {
    BootInfo {
        version: abi::ABI_VERSION,
        platform: Platform::Systrap as u32,
        linear_base: base,
        heap_phys: KERNEL_IMAGE_PHYS,
        heap_end_phys: KERNEL_BYTES,
        user_end_phys: USER_PHYS + USER_BYTES,
        user_frames_limit: USER_BYTES / 4096,
        records_len: 0,
        hostcall_entry: enter as *const () as u64,
        xsave_size: 832,
        cpus: 1,
        xsave_mask: 7,
        // So fast that time stands still between two looks at the host's clock: what runs does not depend on it.
        tsc_hz: u64::MAX,
        random_seed: [0; 32],
        strace: 0,
        log_level: 0,
        share_files: 0,
        patch_calls: 0,
        host_memory_mib: 0,
        handles_max: HANDLES,
        former_vmms,
        keeps_news: 0,
        template_frames: 0,
        pad: 0,
    }
}

/// The kernel passes addresses relative to its linear map; here its stack and constants lie outside of it.
fn at<T>(phys: u64) -> *mut T {
    platform::linear(0).wrapping_add(phys) as *mut T
}

fn text(phys: u64, len: u64) -> &'static str {
    // SAFETY: the kernel passes a string that it holds until the call returns.
    let bytes = unsafe { core::slice::from_raw_parts(at::<u8>(phys), to_usize(len)) };
    core::str::from_utf8(bytes).unwrap_or("?")
}

/// Passes a report on to the host's side.
fn hear(words: &[u64; 6]) {
    let place = report::payload(words);
    let payload: &[u8] = match place.len {
        0 => &[],
        // SAFETY: the kernel passes bytes that it holds until the call returns.
        len => unsafe { core::slice::from_raw_parts(at(place.phys), to_usize(len)) },
    };
    let report = Report::parse(words, payload).expect("words of a report");
    HOST.get().into_iter().for_each(|host| (host.report)(report));
}

/// The hostcall entry.
extern "sysv64" fn enter(call: *mut HostCall) {
    // SAFETY: the kernel passes a call of its own.
    let call = unsafe { &mut *call };
    call.result = answer(call.number, &call.args);
}

/// The pages of user memory that are stored, by their frames' numbers.
static STORED: SpinLock<BTreeMap<u32, Box<[u8; PAGE]>>> = SpinLock::new(Rank::Heap, BTreeMap::new());
const PAGE: usize = 4096;

fn page(frame: u32) -> *mut [u8; PAGE] {
    at(USER_PHYS + u64::from(frame) * PAGE as u64)
}

/// `SWAP_OUT`.
fn store(request: &SwapOut) {
    // SAFETY: the kernel passes lists that it holds until the call returns.
    let list = |phys, count| unsafe { core::slice::from_raw_parts(at::<u32>(phys), to_usize(count)) };
    let kept: &[u64] =
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts(at(request.kept), to_usize(request.kept_words)) };
    let is_kept =
        |frame: u32| kept.get(frame as usize / 64).is_some_and(|word| word >> (frame % 64) & 1 != 0);
    let mut stored = STORED.lock();
    stored.retain(|frame, _| is_kept(*frame));
    let lists = [list(request.working, request.working_count), list(request.rest, request.rest_count)];
    for frame in lists.concat() {
        // SAFETY: a frame of user memory that nobody writes to now.
        stored.insert(frame, Box::new(unsafe { *page(frame) }));
    }
}

/// `SWAP_IN`: all that is asked for comes.
fn bring_back(frames: &[u32]) -> i64 {
    let stored = STORED.lock();
    for frame in frames {
        let Some(content) = stored.get(frame) else { return -EIO };
        // SAFETY: a frame of user memory whose content the kernel waits for.
        unsafe { page(*frame).write(**content) };
    }
    DONE
}

/// So many sockets can be made from now on. They do nothing. With none left, the host knows of no sockets.
pub fn set_sockets(count: u64) {
    SOCKETS_LEFT.store(count, Ordering::Relaxed);
}

/// `SOCKET`: a number that no other one has.
fn socket() -> i64 {
    let take = SOCKETS_LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    take.map_or(-ENOSYS, u64::cast_signed)
}

/// `CLOCK`: each look at it takes a little time.
fn clocks() -> HostClocks {
    let now = CLOCK_NS.fetch_add(LOOK_NS, Ordering::Relaxed);
    HostClocks { monotonic_ns: now, realtime_ns: now + (1 << 60), boottime_ns: now }
}

/// `AS_RUN`: the test's host runs user code.
fn run_user(stub: u64, state: &mut RunState) -> i64 {
    assert!(NEXT_STUB.load(Ordering::Relaxed) - stub < STUBS_OF_A_VMM, "a stub of a former VMM");
    if let Some(host) = HOST.get() {
        (host.run_user)(state);
    }
    DONE
}

fn answer(number: u32, args: &[u64; 6]) -> i64 {
    match number {
        hc::LOG => {
            if let Some(host) = HOST.get() {
                (host.log)(text(args[0], args[1]));
            }
            DONE
        }
        hc::PANIC => panic!("the kernel gives up: {}", text(args[0], args[1])),
        hc::EXIT => panic!("the kernel ends the sandbox: {:#x}", args[0]),
        hc::CLOCK => {
            // SAFETY: the kernel passes the place for them.
            unsafe { at::<HostClocks>(args[0]).write(clocks()) };
            DONE
        }
        hc::RANDOM => {
            for i in 0..args[1] {
                // SAFETY: the kernel passes a buffer of this length.
                unsafe { at::<u8>(args[0]).add(to_usize(i)).write(low8(i)) };
            }
            DONE
        }
        hc::RELEASE => {
            // SAFETY: the kernel releases whole pages that it does not use.
            unsafe { at::<u8>(args[0]).write_bytes(0, to_usize(args[1])) };
            DONE
        }
        hc::AS_CREATE => NEXT_STUB.fetch_add(1, Ordering::Relaxed).cast_signed(),
        // SAFETY: the kernel passes the state of the task that it runs, and lends it for the call.
        hc::AS_RUN => run_user(args[0], unsafe { &mut *(args[1] as *mut RunState) }),
        hc::AS_DESTROY | hc::AS_SYNC | hc::AS_SAVE_FPU | hc::KICK | hc::YIELD | hc::SET_DEADLINE => DONE,
        hc::HIBERNATED => {
            // SAFETY: the kernel passes the report, and holds it until the call returns.
            let report = unsafe { &*at::<HibernateReport>(args[0]) };
            if let Some(host) = HOST.get() {
                (host.hibernated)(report.outcome);
            }
            DONE
        }
        hc::SWAP_OUT => {
            // SAFETY: as above.
            store(unsafe { &*at::<SwapOut>(args[0]) });
            DONE
        }
        hc::SWAP_IN => {
            // SAFETY: as above.
            bring_back(unsafe { core::slice::from_raw_parts(at(args[0]), to_usize(args[1])) })
        }
        hc::REPORT => {
            hear(args);
            DONE
        }
        hc::EVENTS | hc::IDLE | hc::CLOSE | hc::STATS | hc::CPU_TIME => DONE,
        abi::socket::SOCKET => socket(),
        // No files of the host's.
        _ => -ENOSYS,
    }
}
