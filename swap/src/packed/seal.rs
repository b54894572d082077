//! Sealing of partitions: AES-256 in Galois/Counter Mode (NIST SP 800-38D) with a key that never leaves this process, so that what
//! is left of a file after its end is noise, or with one that is given for one file.

use std::sync::atomic::{AtomicU64, Ordering};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// A key that is given. It is never shown, and wiped when it goes.
#[derive(Clone)]
pub struct PageKey([u8; 32]);

impl PageKey {
    /// The key that these bytes are.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Debug for PageKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageKey").finish_non_exhaustive()
    }
}

impl Drop for PageKey {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Overwrites bytes of a key, though nobody reads them afterwards: processes that are forked later have them no more.
pub fn wipe(bytes: &mut [u8]) {
    std::hint::black_box(&mut *bytes).fill(0);
    std::hint::black_box(&*bytes);
}

/// Bytes that a seal adds to a partition.
pub const TAG_BYTES: usize = 16;

/// A home's key. Each partition that is ever sealed has a nonce of its own: the number of its set, which no other has, and
/// its number in the set.
pub struct Key {
    key: LessSafeKey,
    sets: AtomicU64,
}

impl Key {
    /// A new one; `None`: the host has no randomness to give.
    pub fn new() -> Option<Self> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let key = Self::of_bytes(&bytes);
        // Only the cipher keeps it.
        wipe(&mut bytes);
        key
    }

    /// One that is given, by which nothing else is ever sealed than the sets of one file.
    pub fn of(key: &PageKey) -> Option<Self> {
        Self::of_bytes(&key.0)
    }

    fn of_bytes(bytes: &[u8; 32]) -> Option<Self> {
        let key = UnboundKey::new(&AES_256_GCM, bytes).ok()?;
        Some(Self { key: LessSafeKey::new(key), sets: AtomicU64::new(0) })
    }

    /// A number for a set.
    pub fn next_set(&self) -> u64 {
        self.sets.fetch_add(1, Ordering::Relaxed)
    }

    /// Seals the partition's bytes in place and appends the tag.
    pub fn seal(&self, set: u64, partition: u32, bytes: &mut Vec<u8>) {
        // It fails for bytes beyond 64 GiB alone.
        let sealed = self.key.seal_in_place_append_tag(nonce(set, partition), Aad::empty(), bytes);
        assert!(sealed.is_ok(), "a partition is short");
    }

    /// Opens what was sealed so, in place; `None`: it is not what was sealed.
    pub fn open<'a>(&self, set: u64, partition: u32, bytes: &'a mut [u8]) -> Option<&'a [u8]> {
        self.key.open_in_place(nonce(set, partition), Aad::empty(), bytes).ok().map(|open| &*open)
    }
}

fn nonce(set: u64, partition: u32) -> Nonce {
    let mut bytes = [0; 12];
    let (of_set, of_partition) = bytes.split_at_mut(8);
    of_set.copy_from_slice(&set.to_le_bytes());
    of_partition.copy_from_slice(&partition.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sealed_there_opens() {
        let (key, other) = (Key::new().unwrap(), Key::new().unwrap());
        let mut sealed = b"a page".to_vec();
        key.seal(7, 3, &mut sealed);
        assert_eq!(sealed.len(), 6 + TAG_BYTES);
        let open = |key: &Key, set, partition, bytes: &[u8]| {
            key.open(set, partition, &mut bytes.to_vec()).map(<[u8]>::to_vec)
        };
        assert_eq!(open(&key, 7, 3, &sealed), Some(b"a page".to_vec()));
        assert!(open(&key, 7, 4, &sealed).is_none() && open(&key, 8, 3, &sealed).is_none());
        assert!(open(&other, 7, 3, &sealed).is_none() && open(&key, 7, 3, &[]).is_none());
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&key, 7, 3, &changed).is_none(), "bit {bit}");
        }
        assert_ne!(key.next_set(), key.next_set());
    }
}
