//! Random bytes: ChaCha20 (RFC 8439) keyed from the host, so that programs that ask often don't leave the sandbox.
//!
//! Each request takes a key of its own and moves the generator's key forward at once ("fast key erasure"), so that
//! what was handed out can't be computed from the state that is left. The key is renewed from the host after
//! [`RESEED_BYTES`] or [`RESEED_NS`], and by [`reseed`] when the sandbox's memory may have been copied.

use crate::rank::Rank;
use crate::spin::SpinLock;
use crate::time;

/// Bytes after which the host is asked again.
const RESEED_BYTES: u64 = 1 << 20;
/// Time after which the host is asked again.
const RESEED_NS: u64 = 60 * time::NSEC;
const BLOCK: usize = 64;

struct Generator {
    key: [u8; 32],
    /// Bytes left until the key is renewed; 0 before the first.
    left: u64,
    seeded_ns: u64,
}

static GENERATOR: SpinLock<Generator> =
    SpinLock::new(Rank::Random, Generator { key: [0; 32], left: 0, seeded_ns: 0 });

/// Fills `bytes`.
pub fn fill(bytes: &mut [u8]) {
    let mut stream = Stream::new(take_key(bytes.len() as u64));
    for chunk in bytes.chunks_mut(BLOCK) {
        chunk.copy_from_slice(&stream.block()[..chunk.len()]);
    }
}

/// Makes the next request ask the host for a new key.
pub fn reseed() {
    GENERATOR.lock().left = 0;
}

/// A key for one request.
fn take_key(bytes: u64) -> [u8; 32] {
    let now = time::monotonic_ns();
    let mut generator = GENERATOR.lock();
    if generator.left == 0 || now.wrapping_sub(generator.seeded_ns) > RESEED_NS {
        // The host's bytes are mixed into the old key, so that neither alone decides.
        let mut fresh = [0u8; 32];
        crate::host::random(&mut fresh);
        generator.key.iter_mut().zip(fresh).for_each(|(key, fresh)| *key ^= fresh);
        generator.left = RESEED_BYTES;
        generator.seeded_ns = now;
    }
    generator.left = generator.left.saturating_sub(bytes.max(1));
    let block = Stream::new(generator.key).block();
    let (next, mine) = block.split_at(32);
    generator.key.copy_from_slice(next);
    let mut key = [0u8; 32];
    key.copy_from_slice(mine);
    key
}

/// The key stream of one key, block by block. Used once, so its nonce is zero.
struct Stream {
    key: [u8; 32],
    counter: u64,
}

impl Stream {
    fn new(key: [u8; 32]) -> Self {
        Self { key, counter: 0 }
    }

    fn block(&mut self) -> [u8; BLOCK] {
        let counter = self.counter.to_le_bytes();
        self.counter += 1;
        let mut tail = [0u8; 16];
        tail[..8].copy_from_slice(&counter);
        chacha20_block(&self.key, &tail)
    }
}

/// One block of ChaCha20; `tail` is the last row of its state: counter and nonce.
fn chacha20_block(key: &[u8; 32], tail: &[u8; 16]) -> [u8; BLOCK] {
    let mut state = [0u32; 16];
    for (word, bytes) in
        state.iter_mut().zip(b"expand 32-byte k".chunks(4).chain(key.chunks(4)).chain(tail.chunks(4)))
    {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    let mut mixed = state;
    for _ in 0..10 {
        for (a, b, c, d) in [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)] {
            quarter_round(&mut mixed, a, b, c, d);
        }
        for (a, b, c, d) in [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)] {
            quarter_round(&mut mixed, a, b, c, d);
        }
    }
    let mut out = [0u8; BLOCK];
    for (bytes, (mixed, start)) in out.chunks_mut(4).zip(mixed.iter().zip(state)) {
        bytes.copy_from_slice(&mixed.wrapping_add(start).to_le_bytes());
    }
    out
}

fn quarter_round(s: &mut [u32; 16], a: usize, b: usize, c: usize, d: usize) {
    for (x, y, z, turn) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        s[x] = s[x].wrapping_add(s[y]);
        s[z] = (s[z] ^ s[x]).rotate_left(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_of_rfc_8439_section_2_3_2() {
        let key = core::array::from_fn(|i| u8::try_from(i).unwrap());
        let tail = [1, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0x4a, 0, 0, 0, 0];
        let block = chacha20_block(&key, &tail);
        assert_eq!(block[..8], [0x10, 0xf1, 0xe7, 0xe4, 0xd1, 0x3b, 0x59, 0x15]);
        assert_eq!(block[56..], [0xcb, 0xd0, 0x83, 0xe8, 0xa2, 0x50, 0x3c, 0x4e]);
    }

    #[test]
    fn a_stream_does_not_repeat() {
        let mut stream = Stream::new([7; 32]);
        assert_ne!(stream.block(), stream.block());
    }
}
