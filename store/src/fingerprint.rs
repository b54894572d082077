//! Fingerprints: by which chunks are looked for.

use std::fmt;

use crate::region::Region;

/// Bytes of a fingerprint: enough that hardly anything is compared in vain.
pub const FINGERPRINT_BYTES: usize = 8;

/// The first bytes of a keyed BLAKE3 of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; FINGERPRINT_BYTES]);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Fingerprint {
    /// That of a chunk which nobody looks for.
    pub const NONE: Self = Self([0; FINGERPRINT_BYTES]);

    /// The one that stands for a feature in an index.
    pub fn of_feature(feature: u32) -> Self {
        Self(u64::from(feature).to_le_bytes())
    }

    /// Its bits, as a number.
    pub fn front(&self) -> u64 {
        u64::from_le_bytes(self.0)
    }
}

/// Those whose snapshots may have chunks in common, by their secret.
#[derive(Clone)]
pub struct Domain {
    keys: [[u8; 32]; Region::ALL.len()],
    /// So many bits of a fingerprint count; all but in tests of what happens when they are alike.
    bits: u32,
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").finish_non_exhaustive()
    }
}

impl Domain {
    /// The domain with this secret.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> Self {
        let key = |region: Region| *blake3::keyed_hash(secret, region.name().as_bytes()).as_bytes();
        Self { keys: Region::ALL.map(key), bits: 64 }
    }

    /// Tells dblocks of domains apart; it is no secret.
    pub fn tag(&self) -> u32 {
        let hash = blake3::keyed_hash(&self.keys[0], b"tag");
        hash.as_bytes().first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    /// The key of a region's features.
    pub fn feature_key(&self, region: Region) -> u64 {
        let hash = blake3::keyed_hash(&self.keys[usize::from(region.number())], b"features");
        hash.as_bytes().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// The domain, with fingerprints that are alike for many chunks.
    #[cfg(test)]
    pub fn with_bits(self, bits: u32) -> Self {
        Self { bits, ..self }
    }

    /// The fingerprint of a chunk.
    pub fn fingerprint(&self, region: Region, chunk: &[u8]) -> Fingerprint {
        let hash = blake3::keyed_hash(&self.keys[usize::from(region.number())], chunk);
        let mut print = Fingerprint([0; FINGERPRINT_BYTES]);
        print.0.copy_from_slice(&hash.as_bytes()[..FINGERPRINT_BYTES]);
        if self.bits < 64 {
            print.0 = (print.front() & ((1 << self.bits) - 1)).to_le_bytes();
        }
        print
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_and_regions_have_fingerprints_of_their_own() {
        let (one, other) = (Domain::new(&[1; 32]), Domain::new(&[2; 32]));
        let print = one.fingerprint(Region::File, b"chunk");
        assert_eq!(print, Domain::new(&[1; 32]).fingerprint(Region::File, b"chunk"));
        assert_ne!(print, other.fingerprint(Region::File, b"chunk"));
        assert_ne!(print, one.fingerprint(Region::Kernel, b"chunk"));
        assert_ne!(print, one.fingerprint(Region::File, b"chunks"));
        assert!(!format!("{one:?}").contains("keys"));
        let few = one.with_bits(1);
        let prints: std::collections::HashSet<_> =
            (0..50_u8).map(|byte| few.fingerprint(Region::File, &[byte])).collect();
        assert_eq!(prints.len(), 2);
    }
}
