//! Filters of system calls: any program. What the check takes runs to a verdict, and what is always allowed is allowed.
//!
//! The first 68 bytes are a call (number, address, arguments), the rest are instructions.
#![no_main]

use abi::seccomp::{ALLOW, Instruction};
use libfuzzer_sys::fuzz_target;
use qkernel::seccomp::filter::NewFilter;
use qkernel::seccomp::program::Data;

fuzz_target!(|input: &[u8]| {
    let Some((call, code)) = input.split_first_chunk::<68>() else { return };
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| call[at + i]));
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| call[at + i]));
    let code = &code[..code.len() / 8 * 8];
    let code: Vec<Instruction> = Instruction::all(code).expect("whole instructions").collect();
    let Ok(filter) = NewFilter::new(code, false) else { return };
    let Ok(filter) = filter.onto(None) else { return };
    for number in [word(0), word(0) % 512] {
        let args = std::array::from_fn(|index| long(12 + 8 * index));
        let verdict = filter.verdict(&Data::new(number, long(4), &args));
        assert!(!filter.always_allows(number) || verdict.action() == ALLOW);
    }
});
