//! The table of an image's pages, which a stranger may have written: any bytes are refused in words, or a table whose pages can be.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| swap::play_page_sums(input));
