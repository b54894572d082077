//! The content of snapshots, before it is stored: memory that nothing has touched, regions, and how much of each is there more than once
//! ("SnapStore", section 3).

use std::io;

use ::store::{CHUNK_SIZES, Estimate, Redundancy, Region};
use abi::PAGE_SIZE;
use vmm::checkpoint::ImageFiles;

use super::digest::each_part;
use super::error::{SnapshotError, Unfit};
use super::manifest::Manifest;
use super::place::Place;
use super::store::{Store, manifest_in};
use crate::state::Id;

/// Pages of one region that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionRun {
    /// Number of the first page.
    pub first: u64,
    /// How many pages.
    pub count: u64,
    pub region: Region,
}

impl RegionRun {
    /// Bytes of the file of pages behind the last one.
    const fn end_bytes(&self) -> u64 {
        (self.first + self.count) * PAGE_SIZE
    }
}

/// The memory of one snapshot.
#[derive(Clone, Debug)]
pub struct Analysed {
    pub name: String,
    /// Bytes of memory that the sandbox may have.
    pub memory_bytes: u64,
    /// Of them those of no page.
    pub untouched_bytes: u64,
    /// Bytes of pages that are not in its file of pages: of zeros, or in a parent's file.
    pub elsewhere_bytes: u64,
    /// Bytes of data of each region, by its number. The kernel's are beside the memory that the sandbox may have.
    pub region_bytes: [u64; Region::ALL.len()],
}

/// The content of several snapshots.
#[derive(Clone, Debug)]
pub struct Analysis {
    pub snapshots: Vec<Analysed>,
    /// Snapshots that cannot be analysed, with the reason in words.
    pub left_out: Vec<String>,
    /// The outcome of each region by [`CHUNK_SIZES`].
    pub estimates: [[Estimate; CHUNK_SIZES.len()]; Region::ALL.len()],
}

impl Store {
    /// Analyses snapshots, plain or in the store of chunks, in this order. Without names: all that there are, by name, without those that cannot
    /// be analysed.
    pub fn analyse(&self, names: &[Id]) -> Result<Analysis, SnapshotError> {
        let (mut snapshots, mut left_out) = (Vec::new(), Vec::new());
        let mut redundancy = Redundancy::default();
        let listed: Vec<Id> = match names {
            [] => self.list()?.iter().filter_map(|listed| Id::new(&listed.name).ok()).collect(),
            names => names.to_vec(),
        };
        for (number, name) in listed.iter().enumerate() {
            if listed[..number].contains(name) {
                let why = format!("{} is named twice", name.as_str());
                return Err(SnapshotError::NothingToAnalyse { why });
            }
            match self.analyse_one(name, &mut redundancy) {
                Ok(one) => snapshots.push(one),
                Err(error) if names.is_empty() => left_out.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        if snapshots.is_empty() {
            let why = match left_out.pop() {
                None => "there are none".into(),
                Some(why) => format!("none can be, the last since: {why}"),
            };
            return Err(SnapshotError::NothingToAnalyse { why });
        }
        let estimates = Region::ALL.map(|region| redundancy.estimates(region));
        Ok(Analysis { snapshots, left_out, estimates })
    }

    fn analyse_one(&self, name: &Id, redundancy: &mut Redundancy) -> Result<Analysed, SnapshotError> {
        let place = Place::Named(name.clone());
        let directory = self.found(&place)?;
        let key = self.key()?;
        let mut analyse = || {
            let manifest = manifest_in(&directory, &key)?;
            match (&manifest.files.sealed, &manifest.files.packed) {
                (Some(_), _) => return Err(Unfit::AnalysedSealed),
                (None, Some(_)) => return Err(Unfit::AnalysedPacked),
                (None, None) => {}
            }
            let files = self.files_in(&directory, &manifest)?;
            let runs = self.regions(&files, &manifest);
            let mut region_bytes = [0; Region::ALL.len()];
            let mut add = |region: Region, at: u64, bytes: &[u8]| {
                region_bytes[usize::from(region.number())] += bytes.len() as u64;
                redundancy.add(region, at, bytes);
            };
            each_part(&files.kernel, |at, bytes| {
                add(Region::Kernel, at, bytes);
                Ok::<_, io::Error>(())
            })?;
            each_part(&files.pages, |at, bytes| {
                split(&runs, at, bytes, &mut add);
                Ok::<_, io::Error>(())
            })?;
            redundancy.begin_file();
            let page_bytes = manifest.head.pages * PAGE_SIZE;
            let own = region_bytes.iter().sum::<u64>() - region_bytes[usize::from(Region::Kernel.number())];
            Ok(Analysed {
                name: name.as_str().to_owned(),
                memory_bytes: manifest.head.memory_bytes,
                untouched_bytes: manifest.head.memory_bytes.saturating_sub(page_bytes),
                elsewhere_bytes: page_bytes.saturating_sub(own),
                region_bytes,
            })
        };
        analyse().map_err(|why| why.at(&place))
    }

    /// The regions of a snapshot's pages, in ascending order. Pages of no run are anonymous.
    #[expect(clippy::unused_self, reason = "a snapshot's table does not tell them apart yet")]
    fn regions(&self, _files: &ImageFiles, manifest: &Manifest) -> Vec<RegionRun> {
        let count = manifest.files.pages_bytes / PAGE_SIZE;
        vec![RegionRun { first: 0, count, region: Region::Anonymous }]
    }
}

/// Cuts a part of the file of pages where regions change.
fn split(runs: &[RegionRun], at: u64, bytes: &[u8], add: &mut impl FnMut(Region, u64, &[u8])) {
    let (mut at, mut bytes) = (at, bytes);
    let mut left = &runs[runs.partition_point(|run| run.end_bytes() <= at)..];
    while !bytes.is_empty() {
        let (region, end) = match left.first() {
            None => (Region::Anonymous, u64::MAX),
            Some(run) if run.first * PAGE_SIZE > at => (Region::Anonymous, run.first * PAGE_SIZE),
            Some(run) => {
                left = &left[1..];
                (run.region, run.end_bytes())
            }
        };
        let len = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX).min(bytes.len());
        let (now, later) = bytes.split_at(len);
        if !now.is_empty() {
            add(region, at, now);
        }
        at += len as u64;
        bytes = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_cut_where_regions_change() {
        let run = |first, count, region| RegionRun { first, count, region };
        let runs = [run(2, 2, Region::File), run(4, 1, Region::Executable), run(8, 100, Region::Memory)];
        let cut = |first: u64, count: usize| {
            let (mut found, bytes) = (Vec::new(), vec![0; count * 4096]);
            split(&runs, first * PAGE_SIZE, &bytes, &mut |region, at, bytes| {
                found.push((region, at / PAGE_SIZE, bytes.len() / 4096));
            });
            found
        };
        assert_eq!(
            cut(0, 10),
            [
                (Region::Anonymous, 0, 2),
                (Region::File, 2, 2),
                (Region::Executable, 4, 1),
                (Region::Anonymous, 5, 3),
                (Region::Memory, 8, 2)
            ]
        );
        assert_eq!(cut(3, 1), [(Region::File, 3, 1)]);
        assert_eq!(cut(107, 3), [(Region::Memory, 107, 1), (Region::Anonymous, 108, 2)]);
    }
}
