//! Coders of a whole memory as one stream: the peers of those that can unpack a page by itself.

use std::io::{self, Read, Write};

use zstd::stream::{read, write};

use crate::error::Corrupt;

/// The level of zstd that its own command takes if it is told none.
const LEVEL: i32 = 3;
/// A base and what is put on it together may be so long, as a power of two, for zstd to find all of the base.
const WINDOW_LOG_MAX: u32 = 30;

/// A way to pack a whole memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole<'b> {
    /// zstd, level 3
    Zstd,
    /// zstd, level 3, with another memory that both sides have: `zstd --patch-from`
    ZstdOn(&'b [u8]),
    /// LZ4
    Lz4,
}

impl Whole<'_> {
    /// Packs a memory.
    ///
    /// # Errors
    /// The library refuses it, or there is no memory.
    pub fn pack(self, memory: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Zstd => zstd::bulk::compress(memory, LEVEL),
            Self::Lz4 => Ok(lz4_flex::block::compress(memory)),
            Self::ZstdOn(base) => {
                let mut encoder = write::Encoder::with_ref_prefix(Vec::new(), LEVEL, base)?;
                let both = base.len() + memory.len();
                encoder.window_log(both.next_power_of_two().ilog2().clamp(20, WINDOW_LOG_MAX))?;
                encoder.long_distance_matching(true)?;
                encoder.set_pledged_src_size(Some(memory.len() as u64))?;
                encoder.write_all(memory)?;
                encoder.finish()
            }
        }
    }

    /// Unpacks it to where there is as much room as it had bytes.
    ///
    /// # Errors
    /// It is another one.
    pub fn unpack(self, packed: &[u8], memory: &mut [u8]) -> Result<(), Corrupt> {
        let wrong = Corrupt("a packed memory cannot be read");
        let len = match self {
            Self::Zstd => zstd::bulk::decompress_to_buffer(packed, memory).map_err(|_| wrong)?,
            Self::Lz4 => lz4_flex::block::decompress_into(packed, memory).map_err(|_| wrong)?,
            Self::ZstdOn(base) => {
                let mut decoder = read::Decoder::with_ref_prefix(packed, base).map_err(|_| wrong)?;
                decoder.window_log_max(WINDOW_LOG_MAX).map_err(|_| wrong)?;
                decoder.read_exact(memory).map_err(|_| wrong)?;
                memory.len()
            }
        };
        if len == memory.len() { Ok(()) } else { Err(wrong) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_comes_back_and_is_small_beside_one_that_is_like_it() {
        let mut seed = 7_u32;
        let mut byte = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        let base: Vec<u8> = (0..300_000).map(|_| byte()).collect();
        let mut memory = base.clone();
        memory[70_000..70_100].fill(9);
        let mut sizes = Vec::new();
        for whole in [Whole::Zstd, Whole::Lz4, Whole::ZstdOn(&base)] {
            let packed = whole.pack(&memory).unwrap();
            let mut back = vec![0; memory.len()];
            whole.unpack(&packed, &mut back).unwrap();
            assert!(back == memory, "{whole:?}");
            assert!(whole.unpack(&packed[..packed.len() / 2], &mut back).is_err());
            sizes.push(packed.len());
        }
        assert!(sizes[0] > 250_000 && sizes[1] > 250_000 && sizes[2] < 2000, "{sizes:?}");
        assert!(Whole::Zstd.unpack(&Whole::Zstd.pack(&memory).unwrap(), &mut vec![0; 300_001]).is_err());
    }
}
