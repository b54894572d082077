//! Exceptions of the kernel itself: a clear report, never a silent triple fault.

use abi::HostCall;
use abi::hostcall::PANIC;
use abi::layout::LINEAR_BASE_KVM;
use core::fmt::{self, Write};

/// The registers that the entry code pushed.
#[repr(C)]
pub struct KernelFrame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbp: u64,
    rbx: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rax: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// A line of text in place, cut at its end.
struct Text {
    bytes: [u8; 768],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let space = self.bytes.len() - self.len;
        let part = &s.as_bytes()[..s.len().min(space)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

fn name(vector: u64) -> &'static str {
    match vector {
        0 => "division error",
        3 => "breakpoint",
        6 => "invalid opcode",
        8 => "double fault (a kernel stack overflowed?)",
        12 => "stack fault",
        13 => "general protection fault",
        14 => "page fault",
        18 => "machine check",
        _ => "exception",
    }
}

/// Tells the VMM, which ends the sandbox. GS base may be the user's and is not used.
pub extern "sysv64" fn kernel_exception(frame: &KernelFrame) -> ! {
    let mut text = Text { bytes: [0; 768], len: 0 };
    let vector = frame.vector & 0xff;
    let _ = write!(
        text,
        "{} in the kernel: vector {vector} error {:#x} rip {:#x} cr2 {:#x} rflags {:#x} rsp {:#x} cs {:#x} ss {:#x} ",
        name(vector),
        frame.error,
        frame.rip,
        super::read_cr2(),
        frame.rflags,
        frame.rsp,
        frame.cs,
        frame.ss,
    );
    let _ = write!(
        text,
        "rax {:#x} rbx {:#x} rcx {:#x} rdx {:#x} rsi {:#x} rdi {:#x} rbp {:#x} r8 {:#x} r9 {:#x} r10 {:#x} \
         r11 {:#x} r12 {:#x} r13 {:#x} r14 {:#x} r15 {:#x}",
        frame.rax,
        frame.rbx,
        frame.rcx,
        frame.rdx,
        frame.rsi,
        frame.rdi,
        frame.rbp,
        frame.r8,
        frame.r9,
        frame.r10,
        frame.r11,
        frame.r12,
        frame.r13,
        frame.r14,
        frame.r15,
    );
    loop {
        let phys = (text.bytes.as_ptr() as u64).wrapping_sub(LINEAR_BASE_KVM);
        let mut call =
            HostCall { number: PANIC, args: [phys, text.len as u64, 0, 0, 0, 0], ..HostCall::default() };
        super::hostcall(&mut call);
    }
}
