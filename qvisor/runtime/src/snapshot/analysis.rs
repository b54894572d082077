//! The content of snapshots, before it is stored: memory that nothing has touched, regions, and how much of each is there more than once
//! ("SnapStore", section 3).

use std::io;

use ::store::{CHUNK_SIZES, Estimate, Redundancy, Region};
use abi::PAGE_SIZE;
use vmm::checkpoint::{BadImage, PageSums};

use super::digest::each_part;
use super::error::{SnapshotError, Unfit};
use super::place::Place;
use super::store::{Store, manifest_in};
use super::stored::parts_by_region;
use crate::state::Id;

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
            let sums = PageSums::read(&files.table, manifest.head.pages_end()).map_err(BadImage::Pages)?;
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
                parts_by_region(sums.regions(), at, bytes)
                    .for_each(|(region, at, bytes)| add(region, at, bytes));
                Ok::<_, io::Error>(())
            })?;
            redundancy.begin_file();
            let page_bytes = manifest.head.pages.saturating_mul(PAGE_SIZE);
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
}
