//! The kernel's side of the interface, in its smallest form.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering::*};

use abi::HostCall;
use abi::boot::BootInfo;
use abi::hostcall::*;
use abi::layout::*;
use abi::records::{Record, decode};
use abi::run::*;

static HOSTCALL: AtomicU64 = AtomicU64::new(0);
pub static BASE: AtomicU64 = AtomicU64::new(0);
static NEXT_USER: AtomicU64 = AtomicU64::new(USER_PHYS);
static NEXT_KERNEL: AtomicU64 = AtomicU64::new(0);

pub fn init(boot: &BootInfo) {
    BASE.store(boot.linear_base, Relaxed);
    NEXT_KERNEL.store(boot.heap_phys.next_multiple_of(4096), Relaxed);
    HOSTCALL.store(boot.hostcall_entry, SeqCst);
}

pub fn wait_for_init() {
    while HOSTCALL.load(SeqCst) == 0 {
        core::hint::spin_loop();
    }
}

/// The first argument.
pub fn argument(boot: &BootInfo) -> &'static str {
    let at = (boot.linear_base + RECORDS_PHYS) as *const u8;
    let bytes = unsafe { core::slice::from_raw_parts(at, boot.records_len as usize) };
    let first = decode(bytes).find_map(|record| match record {
        Ok(Record::Arg(argument)) => core::str::from_utf8(argument).ok(),
        _ => None,
    });
    first.unwrap_or("")
}

pub fn call(number: u32, args: &[u64]) -> i64 {
    let mut call = HostCall { number, ..HostCall::default() };
    call.args[..args.len()].copy_from_slice(args);
    let entry: extern "C" fn(*mut HostCall) = unsafe { core::mem::transmute(HOSTCALL.load(Relaxed)) };
    entry(&raw mut call);
    unsafe { (&raw const call).read_volatile().result }
}

pub fn phys(at: *const u8) -> u64 {
    at as u64 - BASE.load(Relaxed)
}

/// A fresh frame of user memory: its physical address.
pub fn user_frames(count: u64) -> u64 {
    NEXT_USER.fetch_add(count * PAGE_SIZE, Relaxed)
}

/// Zeroed pages of kernel memory: their linear address.
pub fn kernel_pages(count: u64) -> u64 {
    BASE.load(Relaxed) + NEXT_KERNEL.fetch_add(count * PAGE_SIZE, Relaxed)
}

/// Where the kernel reaches a physical address.
pub fn linear<T>(phys: u64) -> *mut T {
    (BASE.load(Relaxed) + phys) as *mut T
}

pub struct Line([u8; 400], usize);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.1 < self.0.len() {
                self.0[self.1] = byte;
                self.1 += 1;
            }
        }
        Ok(())
    }
}

pub fn send(number: u32, args: fmt::Arguments<'_>) {
    let mut line = Line([0; 400], 0);
    let _ = line.write_fmt(args);
    call(number, &[phys(line.0.as_ptr()), line.1 as u64, 2]);
}

#[macro_export]
macro_rules! log {
    ($($arg:tt)*) => { $crate::host::send(abi::hostcall::LOG, format_args!($($arg)*)) };
}

/// Fails the case unless both are equal.
#[macro_export]
macro_rules! check_eq {
    ($left:expr, $right:expr) => {{
        let (left, right) = ($left, $right);
        if left != right {
            panic!("{}: {:x?} is not {:x?}", stringify!($left), left, right);
        }
    }};
}

pub fn exit(status: u64) -> ! {
    call(EXIT, &[status]);
    unreachable!()
}

pub fn now() -> u64 {
    let mut times = [0_u64; 4];
    let at = (&raw mut times).cast::<u8>();
    check_eq!(call(CLOCK, &[phys(at)]), 0);
    unsafe { (&raw const times).read_volatile()[0] }
}

pub fn header() -> &'static CpuHeader {
    let at: u64;
    unsafe { core::arch::asm!("mov {}, gs:[0]", out(reg) at) };
    unsafe { &*(at as *const CpuHeader) }
}

pub fn map(addr: u64, phys: u64, pages: u64, prot: u32) -> MapOp {
    MapOp { kind: MAP_OP_MAP, prot, addr, len: pages * PAGE_SIZE, phys }
}

/// An address space and one thread of it.
pub struct Task {
    pub id: u64,
    pub run: RunState,
    /// Of the operations that were to be carried out before the last run, or 0.
    pub ops_errno: u64,
}

impl Task {
    /// A thread that begins at `program`, in a new address space that has the code page at `CODE`.
    pub fn new(program: u64) -> Self {
        let id = call(AS_CREATE, &[]);
        if id <= 0 {
            panic!("AS_CREATE: {id}");
        }
        let mut task = Self::thread(id as u64, program);
        check_eq!(task.sync(&[map(CODE, code_frame(), 1, PROT_READ | PROT_EXEC)]), 0);
        task.run.fpu_load = initial_fpu();
        task
    }

    /// Another thread of an address space.
    pub fn thread(id: u64, program: u64) -> Self {
        let mut run = RunState::default();
        run.regs.rip = CODE + program;
        run.fpu_load = initial_fpu();
        Self { id, run, ops_errno: 0 }
    }

    pub fn sync(&self, ops: &[MapOp]) -> i64 {
        call(AS_SYNC, &[self.id, ops.as_ptr() as u64, ops.len() as u64])
    }

    /// Runs until a trap, with operations first.
    pub fn run_with(&mut self, ops: &[MapOp]) -> TrapInfo {
        let synced = if ops.is_empty() { 0 } else { self.sync(ops) };
        self.ops_errno = synced.unsigned_abs();
        if synced != 0 {
            let kind = if synced == -3 { TRAP_LOST } else { TRAP_INTERRUPT };
            self.run.trap = TrapInfo { kind, ..TrapInfo::default() };
            return self.run.trap;
        }
        let result = call(AS_RUN, &[self.id, (&raw mut self.run) as u64]);
        check_eq!(result, 0);
        let run = unsafe { (&raw const self.run).read_volatile() };
        self.run = run;
        self.run.fpu_load = 0;
        self.run.trap
    }

    pub fn run(&mut self) -> TrapInfo {
        loop {
            let trap = self.run_with(&[]);
            // An interrupt may be late; only a pending one is looked at.
            if trap.kind != TRAP_INTERRUPT || header().pending.load(SeqCst) != 0 {
                return trap;
            }
        }
    }

    /// Runs until a trap of this kind; other than interrupts is a failure.
    pub fn expect(&mut self, kind: u32) -> TrapInfo {
        let mut trap = self.run();
        while trap.kind == TRAP_INTERRUPT && kind != TRAP_INTERRUPT {
            header().pending.store(0, SeqCst);
            trap = self.run();
        }
        if trap.kind != kind {
            panic!("trap {:?} instead of kind {kind}, rip {:#x}", trap, self.run.regs.rip);
        }
        trap
    }

    pub fn expect_call(&mut self, number: u64) {
        self.expect(TRAP_SYSCALL);
        check_eq!(self.run.regs.rax, number);
    }

    pub fn destroy(self) {
        check_eq!(call(AS_DESTROY, &[self.id]), 0);
    }
}

/// Where the code page is in every address space.
pub const CODE: u64 = 0x40_0000;

fn code_frame() -> u64 {
    static FRAME: AtomicU64 = AtomicU64::new(0);
    let known = FRAME.load(SeqCst);
    if known != 0 {
        return known;
    }
    let frame = user_frames(1);
    let (code, len) = crate::user::code();
    unsafe { core::ptr::copy_nonoverlapping(code, linear(frame), len) };
    FRAME.store(frame, SeqCst);
    frame
}

/// An XSAVE image of the initial state.
pub fn initial_fpu() -> u64 {
    static IMAGE: AtomicU64 = AtomicU64::new(0);
    let known = IMAGE.load(SeqCst);
    if known != 0 {
        return known;
    }
    let image = kernel_pages(4);
    unsafe {
        (image as *mut u16).write(0x37f);
        ((image + 24) as *mut u32).write(0x1f80);
    }
    IMAGE.store(image, SeqCst);
    image
}
