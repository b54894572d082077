//! What a VMM says of its sandbox for the next one, which it may have been taken over to say: any bytes are refused in words or open
//! what they name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmm::successor::play;

fuzz_target!(|input: &[u8]| play(input));
