//! Hostcalls.

use abi::HostCall;
use abi::hostcall as hc;
use abi::layout::LINEAR_BASE_KVM;
use core::fmt::{self, Write};

use crate::ring0;

pub fn call(number: u32, args: [u64; 6]) -> i64 {
    let mut call = HostCall { number, args, ..HostCall::default() };
    ring0::hostcall(&mut call);
    call.result
}

struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for &byte in s.as_bytes().iter().take(self.bytes.len() - self.len) {
            self.bytes[self.len] = byte;
            self.len += 1;
        }
        Ok(())
    }
}

pub fn log(text: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 256], len: 0 };
    let _ = line.write_fmt(text);
    let phys = (line.bytes.as_ptr() as u64).wrapping_sub(LINEAR_BASE_KVM);
    call(hc::LOG, [phys, line.len as u64, 2, 0, 0, 0]);
}

pub fn exit(status: u32) -> ! {
    loop {
        call(hc::EXIT, [u64::from(status), 0, 0, 0, 0, 0]);
    }
}

pub fn monotonic_ns() -> u64 {
    let clocks = [0u64; 4];
    let phys = (clocks.as_ptr() as u64).wrapping_sub(LINEAR_BASE_KVM);
    call(hc::CLOCK, [phys, 0, 0, 0, 0, 0]);
    // SAFETY: a plain read; the host has written the array.
    unsafe { (&raw const clocks).cast::<u64>().read_volatile() }
}

pub fn kick(cpu: u64) {
    call(hc::KICK, [cpu, 0, 0, 0, 0, 0]);
}

pub fn idle() {
    call(hc::IDLE, [0; 6]);
}

/// Asks for an interrupt `ns` from now.
pub fn deadline_in(ns: u64) {
    let at = monotonic_ns() + ns;
    crate::cpus::header().deadline_ns.store(at, core::sync::atomic::Ordering::SeqCst);
    call(hc::SET_DEADLINE, [at, 0, 0, 0, 0, 0]);
}

pub fn no_deadline() {
    crate::cpus::header().deadline_ns.store(u64::MAX, core::sync::atomic::Ordering::SeqCst);
}
