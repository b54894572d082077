//! Regions: the kinds of memory that snapshots have, and how each is cut into chunks.

/// Most and least bytes of a chunk.
pub const CHUNK_MAX: u32 = 4096;
pub const CHUNK_MIN: u32 = 64;

/// A kind of memory. Chunks are compared with others of their region alone ("SnapStore", section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Region {
    /// Copies of files' pages that programs run, and cannot write
    Executable,
    /// Other copies of files' pages
    File,
    /// Memory of programs' own
    Anonymous,
    /// Files in memory
    Memory,
    /// The kernel's
    Kernel,
    /// Differences of chunks from others, which memory is never of
    Difference,
}

impl Region {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Executable, Self::File, Self::Anonymous, Self::Memory, Self::Kernel, Self::Difference];

    /// Those that memory is of.
    pub const OF_MEMORY: [Self; 5] =
        [Self::Executable, Self::File, Self::Anonymous, Self::Memory, Self::Kernel];

    /// Its number, from 0.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The region with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Executable => "executable",
            Self::File => "file",
            Self::Anonymous => "anonymous",
            Self::Memory => "memory file",
            Self::Kernel => "kernel",
            Self::Difference => "difference",
        }
    }
}

/// How regions are cut, and with what their chunks are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunking {
    chunk_bytes: [u32; Region::ALL.len()],
    compares: [bool; Region::ALL.len()],
    nears: [bool; Region::ALL.len()],
}

impl Default for Chunking {
    fn default() -> Self {
        // What files have is equal, or another file's.
        let nears = Region::ALL.map(|region| !matches!(region, Region::Executable | Region::File));
        Self { chunk_bytes: [CHUNK_MAX; Region::ALL.len()], compares: [true; Region::ALL.len()], nears }
    }
}

impl Chunking {
    /// All regions in chunks of so many bytes, a power of two from 64 to 4096.
    #[must_use]
    pub fn uniform(bytes: u32) -> Option<Self> {
        Region::OF_MEMORY
            .into_iter()
            .try_fold(Self::default(), |chunking, region| chunking.with(region, bytes))
    }

    /// With chunks of so many bytes, a power of two from 64 to 4096, in a region.
    #[must_use]
    pub fn with(mut self, region: Region, bytes: u32) -> Option<Self> {
        let is_possible = bytes.is_power_of_two()
            && (CHUNK_MIN..=CHUNK_MAX).contains(&bytes)
            && region != Region::Difference;
        self.chunk_bytes[usize::from(region.number())] = bytes;
        is_possible.then_some(self)
    }

    /// With a region whose chunks are kept as they come, as the paper does with what is writable.
    #[must_use]
    pub fn without(mut self, region: Region) -> Self {
        self.compares[usize::from(region.number())] = false;
        self
    }

    /// With regions whose chunks are kept whole, if they are not equal to others.
    #[must_use]
    pub fn without_differences(self) -> Self {
        Self { nears: [false; Region::ALL.len()], ..self }
    }

    /// Whether a region's chunks are compared with those that are like them.
    #[must_use]
    pub fn nears(&self, region: Region) -> bool {
        self.compares(region) && self.nears[region as usize] && self.chunk_bytes(region) == CHUNK_MAX
    }

    /// Bytes of a chunk of a region.
    #[must_use]
    pub const fn chunk_bytes(&self, region: Region) -> u32 {
        self.chunk_bytes[region as usize]
    }

    /// Whether a region's chunks are compared with those that are there.
    #[must_use]
    pub const fn compares(&self, region: Region) -> bool {
        self.compares[region as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_have_numbers_and_sizes() {
        for region in Region::ALL {
            assert_eq!(Region::from_number(region.number()), Some(region));
        }
        assert_eq!(Region::from_number(6), None);
        let chunking = Chunking::uniform(64).unwrap().with(Region::Kernel, 1024).unwrap();
        assert_eq!((chunking.chunk_bytes(Region::File), chunking.chunk_bytes(Region::Kernel)), (64, 1024));
        assert!(chunking.compares(Region::File) && !chunking.without(Region::File).compares(Region::File));
        let nears = |chunking: Chunking, region| chunking.nears(region);
        assert!(nears(Chunking::default(), Region::Memory) && !nears(Chunking::default(), Region::File));
        assert!(!nears(chunking, Region::Memory), "they are pages");
        assert!(!nears(Chunking::default().without_differences(), Region::Memory));
        for bytes in [0, 32, 96, 8192] {
            assert!(Chunking::uniform(bytes).is_none(), "{bytes}");
        }
    }
}
