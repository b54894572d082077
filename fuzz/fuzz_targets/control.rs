//! A sandbox's control socket: any bytes from any peers, and the kernel's answers in any order. It never panics, keeps no
//! more than it has room for, and goes on when it is told to.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runtime::supervisor::fuzz::play;

fuzz_target!(|input: &[u8]| play(input));
