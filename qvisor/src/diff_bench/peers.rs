//! Other ways to make a memory small, each of which packs all of it as one: to bring a page back, all of it has to come.

use codec::Whole;
use swap::{PagesInMemory, Spread};

/// Measurements of a way.
pub struct Peer {
    pub name: &'static str,
    /// Bytes of all pages.
    pub bytes: usize,
    /// Time to pack them.
    pub pack: Spread,
    /// Time to unpack them, before the first page is there.
    pub unpack: Spread,
}

/// Measures all but xdelta3. Those whose names begin with "+" pack what is left of pages as differences once more. Error: why, in words.
pub fn measure(
    base: &PagesInMemory,
    data: &PagesInMemory,
    diff: &[u8],
    rounds: usize,
) -> Result<Vec<Peer>, String> {
    let ways = [
        ("+ lz4", Whole::Lz4, diff),
        ("+ zstd", Whole::Zstd, diff),
        ("lz4", Whole::Lz4, data.bytes()),
        ("zstd", Whole::Zstd, data.bytes()),
        ("zstd on the base", Whole::ZstdOn(base.bytes()), data.bytes()),
    ];
    ways.into_iter().map(|(name, whole, memory)| one(name, whole, memory, rounds)).collect()
}

fn one(name: &'static str, whole: Whole, memory: &[u8], rounds: usize) -> Result<Peer, String> {
    let (mut pack, mut unpack, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut back = vec![0; memory.len()];
    for _ in 0..rounds {
        let (packed, time) = Spread::processor(|| whole.pack(memory));
        let packed = packed.map_err(|error| format!("{name} cannot pack: {error}"))?;
        pack.push(time);
        back.fill(0xa5);
        let (unpacked, time) = Spread::processor(|| whole.unpack(&packed, &mut back));
        unpacked.map_err(|error| format!("{name} cannot unpack: {error}"))?;
        unpack.push(time);
        if back != memory {
            return Err(format!("{name} brings other pages back"));
        }
        bytes = packed.len();
    }
    Ok(Peer { name, bytes, pack: Spread::of(pack), unpack: Spread::of(unpack) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_is_measured() {
        let page = |id: u32| std::array::from_fn(|at| u8::try_from((at * (id as usize + 3)) % 251).unwrap());
        let pages: PagesInMemory = (0..20).map(|id| (id, page(id))).collect();
        let peers = measure(&pages, &pages, &[3; 900], 2).unwrap();
        let names: Vec<_> = peers.iter().map(|peer| peer.name).collect();
        assert_eq!(names, ["+ lz4", "+ zstd", "lz4", "zstd", "zstd on the base"]);
        assert!(peers.iter().all(|peer| peer.bytes > 0 && peer.bytes < pages.bytes().len()));
        assert!(peers[4].bytes < peers[3].bytes);
    }
}
