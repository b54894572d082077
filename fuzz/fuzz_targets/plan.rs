//! The plan of a sandbox for the next VMM, which the former one may have been taken over to write: any bytes are refused in words or open
//! what they name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmm::successor::play;

fuzz_target!(|input: &[u8]| play(input));
