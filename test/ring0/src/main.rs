//! A kernel that tests ring 0 and the kvm platform from inside: every trap, every hostcall of the platform, and
//! attempts of hostile user code.
#![no_std]
#![no_main]

mod cases;
mod cpus;
mod host;
mod hostile;
mod memory;
#[path = "../../../qkernel/machine/src/arch/ring0/mod.rs"]
#[allow(dead_code, unused_imports)]
mod ring0;
mod timing;
mod user;

use abi::boot::BootInfo;
use abi::layout::RECORDS_PHYS;
use abi::records::{Record, decode};
use core::fmt;

/// A failed check: its name, and both numbers.
pub struct Failed {
    what: &'static str,
    got: u64,
    want: u64,
}

/// Outcome of one test.
pub type Outcome = Result<(), Failed>;

/// A test: its name and its function.
pub type Test = (&'static str, fn() -> Outcome);

/// Fails unless both numbers are the same.
pub fn same(what: &'static str, got: impl Into<u64>, want: impl Into<u64>) -> Outcome {
    let (got, want) = (got.into(), want.into());
    if got == want { Ok(()) } else { Err(Failed { what, got, want }) }
}

/// Fails unless the condition holds.
pub fn holds(what: &'static str, condition: bool) -> Outcome {
    same(what, u64::from(condition), 1u64)
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: got {:#x}, want {:#x}", self.what, self.got, self.want)
    }
}

/// The mode that the VMM asks for: a run of the tests, or one of the ways to die.
fn mode(boot: &BootInfo) -> u8 {
    let at = (boot.linear_base + RECORDS_PHYS) as *const u8;
    // SAFETY: the VMM put so many bytes there, in kernel memory, and nobody changes them.
    let bytes = unsafe { core::slice::from_raw_parts(at, abi::word::to_usize(boot.records_len)) };
    let argument = decode(bytes).find_map(|record| match record {
        Ok(Record::Arg(argument)) => Some(argument),
        _ => None,
    });
    argument.and_then(|argument| argument.first().copied()).unwrap_or(0)
}

/// Where each CPU begins.
///
/// # Safety
/// Entered by the VMM only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _start(boot: *const BootInfo, cpu: u32) -> ! {
    // SAFETY: the VMM hands over a valid boot information that nobody changes.
    let boot = unsafe { &*boot };
    if mode(boot) == b't' {
        // No descriptor tables yet: a triple fault.
        // SAFETY: it ends the machine, as asked.
        unsafe { core::arch::asm!("ud2") };
    }
    ring0::init_cpu(boot, cpu);
    if cpu != 0 {
        cpus::second(cpu);
    }
    memory::init(boot);
    match mode(boot) {
        0 => host::exit(run_all()),
        mode => die(mode),
    }
}

fn run_all() -> u32 {
    let mut failures = 0;
    for tests in [cases::TESTS, hostile::TESTS, cpus::TESTS, timing::TESTS] {
        for (name, test) in tests {
            match test() {
                Ok(()) => host::log(format_args!("ok      {name}")),
                Err(failed) => {
                    failures += 1;
                    host::log(format_args!("FAILED  {name}: {failed}"));
                }
            }
        }
    }
    failures
}

/// Ways in which a kernel can go wrong; each must end in one clear report.
fn die(mode: u8) -> ! {
    // SAFETY: each of these ends the machine, as asked.
    unsafe {
        match mode {
            b'u' => core::arch::asm!("ud2"),
            b'p' => core::arch::asm!("mov byte ptr [0x1234], 1"),
            b's' => core::arch::asm!("mov rsp, 0x4000", "push rax", "ud2"),
            b'w' => (die as fn(u8) -> ! as *mut u8).write_volatile(0),
            b'x' => core::arch::asm!("jmp {}", in(reg) &raw const mode),
            b'm' => (memory::linear(64 << 30) as *mut u8).write_volatile(0),
            b'f' => (memory::linear(abi::layout::WINDOW_PHYS + (1 << 20)) as *mut u8).write_volatile(0),
            b'g' => memory::overflow_stack(),
            b'o' => core::arch::asm!("out 0x80, al"),
            _ => {}
        }
    }
    host::exit(99);
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    host::log(format_args!("panic: {info}"));
    host::exit(98);
}
