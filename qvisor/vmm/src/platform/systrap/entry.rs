//! The border between host code and the kernel: entering it, its hostcalls, leaving it, and its faults.
//!
//! The kernel runs on its own stacks, with GS base at its CPU's header; the host's libc uses FS only. A hostcall
//! switches to the host stack whose pointer is in the header.

use std::arch::naked_asm;
use std::cell::Cell;
use std::mem::offset_of;
use std::ptr;

use abi::HostCall;
use abi::layout::{BOOT_INFO_PHYS, CPU_AREA_PHYS, CPU_AREA_SIZE, KERNEL_IMAGE_PHYS};
use abi::run::CpuHeader;

use super::spawn::block_signals;
use crate::errno::HostError;
use crate::fault_signals::{self, Fault, SignalStack};
use crate::platform::machine::{PlatformError, Reply, Upcalls};

const HOST_SP: usize = offset_of!(CpuHeader, host_sp);
const ARCH_SET_GS: i32 = 0x1001;

/// The sandbox and the vCPU that the calling thread runs.
#[derive(Clone, Copy)]
struct Current {
    sandbox: *const dyn Upcalls,
    cpu: u32,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    /// The host stack while the kernel runs: the same as in the header, but out of the kernel's reach.
    static STACK: Cell<u64> = const { Cell::new(0) };
    static FAULT: Cell<Option<Report>> = const { Cell::new(None) };
}

/// A fault of the kernel.
#[derive(Clone, Copy)]
struct Report {
    signal: i32,
    address: u64,
    error: u64,
    registers: [u64; 17],
}

const REGISTERS: [(&str, i32); 17] = [
    ("rip", libc::REG_RIP),
    ("rsp", libc::REG_RSP),
    ("rflags", libc::REG_EFL),
    ("rax", libc::REG_RAX),
    ("rbx", libc::REG_RBX),
    ("rcx", libc::REG_RCX),
    ("rdx", libc::REG_RDX),
    ("rsi", libc::REG_RSI),
    ("rdi", libc::REG_RDI),
    ("rbp", libc::REG_RBP),
    ("r8", libc::REG_R8),
    ("r9", libc::REG_R9),
    ("r10", libc::REG_R10),
    ("r11", libc::REG_R11),
    ("r12", libc::REG_R12),
    ("r13", libc::REG_R13),
    ("r14", libc::REG_R14),
];

/// Runs the kernel on the calling thread until the sandbox ends.
pub fn run(sandbox: &(dyn Upcalls + 'static), cpu: u32, entry: u64) -> Result<(), PlatformError> {
    let header = sandbox.cpus().header(cpu).ok_or(PlatformError::Stub)?;
    block_signals();
    let _stack = SignalStack::install()?;
    // SAFETY: the kernel finds its header by GS; host code does not use GS.
    if unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, header) } < 0 {
        return Err(HostError::last("set the kernel's GS base").into());
    }
    CURRENT.set(Some(Current { sandbox, cpu }));
    fault_signals::set_hook(Some(on_kernel_fault));
    let base = sandbox.memory().base() as u64;
    let stack = base + CPU_AREA_PHYS + u64::from(cpu + 1) * CPU_AREA_SIZE;
    // SAFETY: the image was loaded and relocated, the header and the boot information were written.
    unsafe { enter(entry, base + BOOT_INFO_PHYS, cpu, stack, header, STACK.with(Cell::as_ptr)) };
    fault_signals::set_hook(None);
    CURRENT.set(None);
    Ok(())
}

/// The address the kernel calls for a hostcall.
pub fn hostcall_address() -> u64 {
    hostcall_entry as *const () as u64
}

/// Calls the kernel's entry point on its stack. Returns when [`leave`] is called with the host stack
/// pointer it stores.
#[unsafe(naked)]
unsafe extern "C" fn enter(
    entry: u64,
    boot: u64,
    cpu: u32,
    stack: u64,
    header: *mut CpuHeader,
    host_stack: *mut u64,
) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov [r8 + {host_sp}], rsp",
        "mov [r9], rsp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov esi, edx",
        "mov rsp, rcx",
        "xor ebp, ebp",
        "call rax",
        "ud2",
        host_sp = const HOST_SP,
    )
}

/// Returns from [`enter`], whatever is on the stacks.
#[unsafe(naked)]
unsafe extern "C" fn leave(host_sp: u64) -> ! {
    naked_asm!(
        "mov rsp, rdi",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// `BootInfo::hostcall_entry`: called on the kernel's stack, handles the call on the host's.
#[unsafe(naked)]
unsafe extern "C" fn hostcall_entry(call: *mut HostCall) {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "mov rsp, gs:[{host_sp}]",
        "cld",
        "call {serve}",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
        host_sp = const HOST_SP,
        serve = sym serve,
    )
}

/// The host side of a hostcall. Owns nothing when it calls [`leave`].
unsafe extern "C" fn serve(call: *mut HostCall) {
    let Some(current) = CURRENT.get() else { std::process::abort() };
    // SAFETY: `run` keeps the sandbox alive while the kernel runs.
    let sandbox = unsafe { &*current.sandbox };
    let linear = call as u64;
    let Some(at) = sandbox.memory().kernel_ptr(linear, size_of::<HostCall>() as u64) else {
        sandbox.kernel_failed(format!("hostcall at {linear:#x}, outside kernel memory"));
        leave_now()
    };
    let at = at.cast::<HostCall>();
    // SAFETY: checked to lie in kernel memory; integers only.
    let copy = unsafe { ptr::read_unaligned(at) };
    match sandbox.hostcall(current.cpu, &copy) {
        // SAFETY: as above.
        Reply::Result(result) => unsafe { (&raw mut (*at).result).write_unaligned(result) },
        Reply::Leave => leave_now(),
    }
}

fn leave_now() -> ! {
    // SAFETY: `enter` stored this stack pointer, and its frame is still there.
    unsafe { leave(STACK.get()) }
}

/// Lets a fault in kernel code, or on a kernel stack, end the sandbox with a message.
fn on_kernel_fault(fault: &Fault) -> bool {
    let Some(current) = CURRENT.get() else { return false };
    // SAFETY: `run` keeps the sandbox alive.
    let memory = unsafe { (*current.sandbox).memory() };
    let in_kernel = |address| memory.kernel_ptr(address, 1).is_some();
    if !in_kernel(fault.register(libc::REG_RIP)) && !in_kernel(fault.register(libc::REG_RSP)) {
        return false;
    }
    let registers = REGISTERS.map(|(_, register)| fault.register(register));
    let error = fault.register(libc::REG_ERR);
    FAULT.set(Some(Report { signal: fault.signal, address: fault.address, error, registers }));
    // As if called: the stack pointer is 8 below a multiple of 16.
    fault.set_register(libc::REG_RSP, STACK.get() - 8);
    fault.set_register(libc::REG_RIP, report_fault as *const () as u64);
    true
}

/// The place where a faulting kernel goes on, on the host stack and outside the signal handler.
extern "C" fn report_fault() -> ! {
    let Some(current) = CURRENT.get() else { std::process::abort() };
    if let Some(report) = FAULT.take() {
        // SAFETY: `run` keeps the sandbox alive.
        let sandbox = unsafe { &*current.sandbox };
        let text = describe(&report, sandbox.memory().base() as u64 + KERNEL_IMAGE_PHYS, current.cpu);
        sandbox.kernel_failed(text);
    }
    leave_now()
}

fn describe(report: &Report, image: u64, cpu: u32) -> String {
    let [rip, ..] = report.registers;
    let kind = match report.signal {
        libc::SIGSEGV => "access violation",
        libc::SIGBUS => "bus error",
        libc::SIGILL => "invalid instruction",
        libc::SIGFPE => "arithmetic error",
        _ => "trap",
    };
    let mut text = format!(
        "kernel fault at image{:+#x} on vCPU {cpu}: {kind}, address {:#x}, error {:#x};",
        rip.wrapping_sub(image).cast_signed(),
        report.address,
        report.error
    );
    for ((name, _), value) in REGISTERS.iter().zip(report.registers) {
        text.push_str(&format!(" {name}={value:#x}"));
    }
    text
}
