//! Sequences of system calls on the kernel without a VMM: it never panics or hangs, and nothing is left of them.
#![no_main]

#[path = "../arena.rs"]
mod arena;

use std::cell::Cell;

use libfuzzer_sys::fuzz_target;

thread_local! {
    static BOOTED: Cell<bool> = const { Cell::new(false) };
}

fuzz_target!(|sequence: &[u8]| {
    if !BOOTED.replace(true) {
        arena::boot();
    }
    let run = match sequence.len() % 8 {
        3 => qkernel::harness::run_in_joined,
        7 => qkernel::harness::run_in_two,
        _ => qkernel::harness::run,
    };
    run(sequence, None);
});
