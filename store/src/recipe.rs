//! Recipes: which chunks make up the files of a snapshot.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::bytes::{begin, open, seal};
use crate::dblock::{DATA_MAX, Record};
use crate::error::StoreError;
use crate::index::{ID_END, Place};
use crate::region::{CHUNK_MAX, CHUNK_MIN, Region};

pub const KIND: &[u8; 8] = b"DORMRCPE";
pub const VERSION: u32 = 2;
/// Most files of a snapshot, and most bytes of one.
const FILES_MAX: u8 = 16;
const FILE_MAX: u64 = 1 << 44;
/// Most runs, and bytes of one.
const RUNS_MAX: usize = 1 << 24;
pub const RUN_BYTES: usize = 1 + 1 + 8 + 4 + 2 + 2;

/// Chunks that follow each other, in the file and in their dblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub file: u8,
    pub region: Region,
    /// Bytes in the file before the first of them.
    pub at: u64,
    pub first: Place,
    pub count: u16,
}

/// See the module. Between its chunks the files have zeros.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Recipe {
    /// Bytes of each file, by its number.
    lengths: BTreeMap<u8, u64>,
    chunk_bytes: [u32; Region::ALL.len()],
    /// By file and place in it.
    runs: Vec<Run>,
    /// Differences, which make what the runs have at their places what the file has.
    patches: Vec<Run>,
}

/// Chunks that lie elsewhere by now.
#[derive(Clone, Debug, Default)]
pub struct Relocations(pub(crate) HashMap<u32, HashMap<u16, Place>>);

impl Relocations {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Relocations {
    /// A record, which says where its base lies by now.
    pub(crate) fn of_record(&self, bytes: &[u8]) -> Vec<u8> {
        let Some(record) = Record::read(bytes) else { return bytes.to_vec() };
        let to = self.0.get(&record.base.id).and_then(|slots| slots.get(&record.base.slot));
        let mut out = Vec::with_capacity(bytes.len());
        record.with_base(to.copied().unwrap_or(record.base)).put(&mut out);
        out
    }
}

impl Recipe {
    pub(crate) fn new(chunk_bytes: [u32; Region::ALL.len()]) -> Self {
        Self { lengths: BTreeMap::new(), chunk_bytes, runs: Vec::new(), patches: Vec::new() }
    }

    /// Bytes of a file. `None`: the snapshot has none of this number.
    #[must_use]
    pub fn length(&self, file: u8) -> Option<u64> {
        self.lengths.get(&file).copied()
    }

    /// The numbers of the files.
    pub fn files(&self) -> impl Iterator<Item = u8> {
        self.lengths.keys().copied()
    }

    /// The numbers of the dblocks that it needs.
    #[must_use]
    pub fn dblocks(&self) -> BTreeSet<u32> {
        self.all_runs().map(|run| run.first.id).collect()
    }

    /// Bytes of all its chunks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count) * u64::from(self.chunk_bytes(run.region))).sum()
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn patches(&self) -> &[Run] {
        &self.patches
    }

    pub(crate) fn all_runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().chain(&self.patches)
    }

    /// Bytes of a chunk of a region.
    pub(crate) fn chunk_bytes(&self, region: Region) -> u32 {
        self.chunk_bytes[usize::from(region.number())]
    }

    /// Adds a chunk behind all others of its file.
    pub(crate) fn push(&mut self, file: u8, region: Region, at: u64, place: Place) {
        self.push_run(Run { file, region, at, first: place, count: 1 });
    }

    fn push_run(&mut self, run: Run) {
        let bytes = u64::from(self.chunk_bytes(run.region));
        let runs = if run.region == Region::Difference { &mut self.patches } else { &mut self.runs };
        if let Some(last) = runs.last_mut()
            && (last.file, last.region, last.first.id) == (run.file, run.region, run.first.id)
            && last.at + bytes * u64::from(last.count) == run.at
            && u32::from(last.first.slot) + u32::from(last.count) == u32::from(run.first.slot)
            && let Some(count) = last.count.checked_add(run.count)
        {
            last.count = count;
            return;
        }
        runs.push(run);
    }

    /// Whether it can be read once it was written.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let is_possible = self.runs.len() + self.patches.len() <= RUNS_MAX
            && self.lengths.iter().all(|(file, bytes)| *file < FILES_MAX && *bytes <= FILE_MAX);
        if is_possible {
            Ok(())
        } else {
            Err(StoreError::Recipe { what: "it has more pieces than a recipe may have" })
        }
    }

    /// Says how long a file is.
    pub(crate) fn set_length(&mut self, file: u8, bytes: u64) {
        self.lengths.insert(file, bytes);
    }

    /// Puts the runs in order: they may have been added file by file and region by region.
    pub(crate) fn sort(&mut self) {
        [&mut self.runs, &mut self.patches]
            .into_iter()
            .for_each(|runs| runs.sort_by_key(|run| (run.file, run.at)));
    }

    /// The recipe of the same files, whose chunks lie elsewhere. `None`: it has none of those.
    ///
    /// # Errors
    /// It would have more pieces than a recipe may have.
    pub fn relocated(&self, moved: &Relocations) -> Result<Option<Self>, StoreError> {
        if !self.all_runs().any(|run| moved.0.contains_key(&run.first.id)) {
            return Ok(None);
        }
        let (lengths, chunk_bytes) = (self.lengths.clone(), self.chunk_bytes);
        let mut recipe = Self { lengths, chunk_bytes, runs: Vec::new(), patches: Vec::new() };
        for run in self.all_runs() {
            let Some(moved) = moved.0.get(&run.first.id) else {
                recipe.push_run(*run);
                continue;
            };
            let bytes = u64::from(self.chunk_bytes(run.region));
            for number in 0..run.count {
                let place = Place { slot: run.first.slot.saturating_add(number), ..run.first };
                let place = moved.get(&place.slot).copied().unwrap_or(place);
                recipe.push(run.file, run.region, run.at + bytes * u64::from(number), place);
            }
            recipe.check()?;
        }
        Ok(Some(recipe))
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = begin(KIND, VERSION);
        self.chunk_bytes.iter().for_each(|bytes| out.extend_from_slice(&bytes.to_le_bytes()));
        out.push(u8::try_from(self.lengths.len()).unwrap_or(u8::MAX));
        for (file, bytes) in &self.lengths {
            out.push(*file);
            out.extend_from_slice(&bytes.to_le_bytes());
        }
        for run in self.all_runs() {
            out.extend_from_slice(&[run.file, run.region.number()]);
            out.extend_from_slice(&run.at.to_le_bytes());
            out.extend_from_slice(&run.first.id.to_le_bytes());
            out.extend_from_slice(&run.first.slot.to_le_bytes());
            out.extend_from_slice(&run.count.to_le_bytes());
        }
        seal(&mut out);
        out
    }

    /// Reads a recipe, which anybody may have written.
    ///
    /// # Errors
    /// It is damaged, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let bad = |what| StoreError::Recipe { what };
        let mut from = open(bytes, KIND, VERSION).map_err(|why| why.of("recipe", VERSION, bad))?;
        let short = bad("it is too short");
        let mut recipe = Self::default();
        for bytes in &mut recipe.chunk_bytes {
            *bytes = from.u32().filter(|bytes| bytes.is_power_of_two()).ok_or(bad("its chunks cannot be"))?;
            if !(CHUNK_MIN..=CHUNK_MAX).contains(bytes) {
                return Err(bad("its chunks cannot be"));
            }
        }
        let Some(files) = from.u8() else { return Err(short) };
        for _ in 0..files {
            let (Some(file), Some(length)) = (from.u8(), from.u64()) else { return Err(short) };
            let is_new = recipe.lengths.last_key_value().is_none_or(|(last, _)| *last < file);
            if !is_new || file >= FILES_MAX || length > FILE_MAX {
                return Err(bad("its files cannot be"));
            }
            recipe.lengths.insert(file, length);
        }
        if !from.len().is_multiple_of(RUN_BYTES) || from.len() / RUN_BYTES > RUNS_MAX {
            return Err(bad("it has another length than it says"));
        }
        while from.len() > 0 {
            let mut run = || {
                let (file, region) = (from.u8()?, Region::from_number(from.u8()?)?);
                let at = from.u64()?;
                let first = Place { id: from.u32()?, slot: from.u16()? };
                Some(Run { file, region, at, first, count: from.u16()? })
            };
            let run = run().filter(|run| recipe.can_follow(run)).ok_or(bad("its chunks cannot be"))?;
            let runs = if run.region == Region::Difference { &mut recipe.patches } else { &mut recipe.runs };
            runs.push(run);
        }
        Ok(recipe)
    }

    /// Whether a run may come behind those that there are.
    fn can_follow(&self, run: &Run) -> bool {
        let Some(length) = self.length(run.file) else { return false };
        let bytes = |run: &Run| u64::from(self.chunk_bytes(run.region)) * u64::from(run.count);
        let (runs, others) = match run.region {
            Region::Difference => (&self.patches, &[][..]),
            _ => (&self.runs, &self.patches[..]),
        };
        let is_behind = others.is_empty()
            && runs.last().is_none_or(|last| {
                (last.file, last.at + bytes(last)) <= (run.file, run.at) || last.file < run.file
            });
        // The last chunk of a file may end behind it.
        let room = length.next_multiple_of(CHUNK_MAX.into());
        is_behind
            && run.count > 0
            && run.at.checked_add(bytes(run)).is_some_and(|end| end <= room)
            && (1..ID_END).contains(&run.first.id)
            && run.first.slot.checked_add(run.count - 1).is_some()
            && bytes(run) <= (DATA_MAX * 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(id: u32, slot: u16) -> Place {
        Place { id, slot }
    }

    fn recipe() -> Recipe {
        let mut recipe = Recipe::new([4096, 4096, 4096, 4096, 512, 4096]);
        (0..10).for_each(|number| recipe.push(0, Region::File, u64::from(number) * 4096, place(7, number)));
        recipe.push(0, Region::File, 81_920, place(7, 10));
        recipe.push(0, Region::File, 86_016, place(7, 2));
        recipe.push(1, Region::Kernel, 512, place(9, 1));
        recipe.set_length(0, 90_112);
        recipe.set_length(1, 1000);
        recipe
    }

    #[test]
    fn chunks_that_follow_each_other_are_one_run() {
        let recipe = recipe();
        let counts: Vec<u16> = recipe.runs().iter().map(|run| run.count).collect();
        assert_eq!(counts, [10, 1, 1, 1]);
        assert_eq!(Recipe::decode(&recipe.encode()).unwrap(), recipe);
        assert_eq!((recipe.bytes(), recipe.dblocks()), (12 * 4096 + 512, [7, 9].into()));
        assert_eq!((recipe.length(1), recipe.length(2)), (Some(1000), None));
    }

    #[test]
    fn chunks_that_were_moved_are_found_where_they_are() {
        let recipe = recipe();
        let moved = Relocations([(7, [(2, place(11, 0)), (3, place(11, 1))].into())].into());
        let after = recipe.relocated(&moved).unwrap().unwrap();
        let counts: Vec<(u32, u16)> = after.runs().iter().map(|run| (run.first.id, run.count)).collect();
        assert_eq!(counts, [(7, 2), (11, 2), (7, 6), (7, 1), (11, 1), (9, 1)]);
        assert_eq!(Recipe::decode(&after.encode()).unwrap(), after);
        assert!(recipe.relocated(&Relocations::default()).unwrap().is_none());
    }

    #[test]
    fn bad_recipes_are_refused() {
        let good = recipe();
        let refused = |change: &dyn Fn(&mut Recipe)| {
            let mut bad = good.clone();
            change(&mut bad);
            Recipe::decode(&bad.encode()).unwrap_err().to_string()
        };
        assert!(refused(&|bad| bad.runs[1].at = 4096).contains("chunks"));
        assert!(refused(&|bad| bad.runs[3].at = 4096).contains("chunks"));
        assert!(refused(&|bad| bad.runs[3].file = 2).contains("chunks"));
        assert!(refused(&|bad| bad.runs[0].count = 0).contains("chunks"));
        assert!(refused(&|bad| bad.runs[0].first.id = 0).contains("chunks"));
        assert!(refused(&|bad| bad.runs[0].first.slot = 65_530).contains("chunks"));
        assert!(refused(&|bad| bad.chunk_bytes[1] = 100).contains("chunks"));
        assert!(refused(&|bad| bad.set_length(0, 1 << 50)).contains("files"));
        let bytes = good.encode();
        assert!(Recipe::decode(&bytes[..bytes.len() - 20]).unwrap_err().to_string().contains("checksum"));
        let mut later = bytes.clone();
        later[8] = 9;
        assert!(Recipe::decode(&later).unwrap_err().to_string().contains("version 9"));
    }

    proptest! {
        #[test]
        fn anything_is_read_without_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Recipe::decode(&bytes);
            let mut sealed = begin(KIND, VERSION);
            sealed.append(&mut bytes);
            seal(&mut sealed);
            if let Ok(recipe) = Recipe::decode(&sealed) {
                prop_assert_eq!(recipe.encode(), sealed);
            }
        }
    }
}
