//! Recipes, dblocks and differences of the store of chunks, which strangers may have written: any bytes are refused in words, or come back.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| store::play(input));
