//! The hostcall decoder on arbitrary calls over arbitrary guest memory: it never panics, whatever the kernel says.
#![no_main]

use std::cell::UnsafeCell;

use abi::HostCall;
use abi::hostcall::OPEN;
use abi::socket::SOCK_SEND_FILE;
use libfuzzer_sys::fuzz_target;
use vmm::hostcall::decode::decode;
use vmm::guest_memory::GuestMemory;

const BYTES: usize = 64 << 10;

/// Guest memory of 64 KiB at address 0.
struct Memory(UnsafeCell<Box<[u8; BYTES]>>);

// SAFETY: the fuzzer runs one thread.
unsafe impl Sync for Memory {}

// SAFETY: the memory lives as long as the value, any bytes are valid, and nobody makes references to it.
unsafe impl GuestMemory for Memory {
    fn slice(&self, phys: u64, len: u64) -> Option<*mut u8> {
        let end = phys.checked_add(len).filter(|end| *end <= BYTES as u64)?;
        let _ = end;
        // SAFETY: the offset is within the allocation.
        Some(unsafe { (*self.0.get()).as_mut_ptr().add(usize::try_from(phys).ok()?) })
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((head, content)) = input.split_at_checked(50) else { return };
    let memory = Memory(UnsafeCell::new(Box::new([0; BYTES])));
    let len = content.len().min(BYTES);
    // SAFETY: nobody else refers to the memory yet.
    unsafe { (&mut *memory.0.get())[..len].copy_from_slice(&content[..len]) };
    let number = OPEN + u32::from(u16::from_le_bytes([head[0], head[1]])) % (SOCK_SEND_FILE - OPEN + 2);
    let args = core::array::from_fn(|i| {
        let word: [u8; 8] = head[2 + i * 8..10 + i * 8].try_into().expect("eight bytes");
        u64::from_le_bytes(word)
    });
    let call = HostCall { number, pad: 0, args, result: 0 };
    let _ = decode(&call, &memory);
    // The same with small arguments, which get past the first checks.
    let call = HostCall { args: args.map(|arg| arg & 0xfff), ..call };
    let _ = decode(&call, &memory);
});
