//! Trials: snapshots are stored, and retrieved, in ways that are to be compared, in a store that goes afterwards.

use std::path::Path;
use std::time::{Duration, Instant};

use ::store::{
    Added, Chunking, Domain, Recipe, Region, Retrieved, Store as Chunks, Writer, retrieve, retrieve_in_order,
};
use vmm::checkpoint::Style;
use vmm::sealed_file::UnsealedFile;

use super::error::{SnapshotError, Unfit};
use super::place::Place;
use super::store::{Store, manifest_in};
use super::stored::{self, FILES, THREADS};
use crate::state::Id;

/// A way to store and retrieve.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// How regions are cut, and compared.
    pub chunking: Chunking,
    /// Whether regions are told apart.
    pub has_regions: bool,
    /// By which chunks are packed.
    pub style: Style,
    /// Bytes of a dblock that are kept once more, if a snapshot needs less of it.
    pub sparse_bytes: u32,
    /// How many dblocks' fingerprints are kept in memory while storing.
    pub kept: usize,
    /// Retrieve in the order of the recipe, and keep in memory where the chunks of so many dblocks are.
    pub in_order: Option<usize>,
}

/// The outcome for a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    /// Of each region.
    pub added: [Added; Region::ALL.len()],
    /// Bytes of its recipe.
    pub recipe_bytes: u64,
    /// Bytes of the index in memory then.
    pub index_bytes: u64,
    /// The time of storing it.
    pub storing: Duration,
    /// The time of retrieving it, and what was read.
    pub retrieving: Duration,
    /// See above.
    pub retrieved: Retrieved,
}

impl Store {
    /// Stores snapshots one after the other in a store in a directory, which is made and goes, and retrieves them in the opposite order, once
    /// the host has forgotten what it had cached of it. Result: the outcomes, and the bytes of the store.
    pub fn try_storing(
        &self,
        names: &[Id],
        trial: &Trial,
        directory: &Path,
    ) -> Result<(Vec<Tried>, u64), SnapshotError> {
        std::fs::create_dir(directory).map_err(|source| self.error(source))?;
        let tried = self.try_in(names, trial, directory);
        let removed = std::fs::remove_dir_all(directory).map_err(|source| self.error(source));
        tried.and_then(|tried| removed.map(|()| tried))
    }

    fn try_in(
        &self,
        names: &[Id],
        trial: &Trial,
        directory: &Path,
    ) -> Result<(Vec<Tried>, u64), SnapshotError> {
        let chunks = Chunks::open(directory).map_err(SnapshotError::Chunks)?;
        let mut stored = Vec::new();
        for name in names {
            stored.push(self.try_one(name, trial, &chunks)?);
        }
        let bytes = chunks.bytes().map_err(SnapshotError::Chunks)?;
        chunks.forget_cached().map_err(SnapshotError::Chunks)?;
        for (recipe, tried) in stored.iter_mut().rev() {
            let start = Instant::now();
            tried.retrieved = self.try_retrieving(recipe, trial, &chunks)?;
            tried.retrieving = start.elapsed();
        }
        Ok((stored.into_iter().map(|(_, tried)| tried).collect(), bytes))
    }

    fn try_one(&self, name: &Id, trial: &Trial, chunks: &Chunks) -> Result<(Recipe, Tried), SnapshotError> {
        let place = Place::Named(name.clone());
        let (directory, key) = (self.found(&place)?, self.key()?);
        let files = || {
            let manifest = manifest_in(&directory, &key)?;
            if manifest.files.sealed.is_some() {
                return Err(Unfit::StoredSealed);
            }
            Ok((self.files_in(&directory, &manifest)?, manifest))
        };
        let (files, manifest) = files().map_err(|why| why.at(&place))?;
        let start = Instant::now();
        // Nobody else has it.
        let domain = Domain::new(&[0; 32]);
        let writer = Writer::begin(chunks, &domain, trial.chunking, trial.style);
        let mut writer =
            writer.map_err(SnapshotError::Chunks)?.keeping(trial.kept).gathering(trial.sparse_bytes);
        let lengths = stored::add_files(&mut writer, &files, &manifest, trial.has_regions)
            .map_err(|why| why.at(&place))?;
        let index_bytes = writer.index_bytes();
        let written = writer.end(&lengths).map_err(SnapshotError::Chunks)?;
        let tried = Tried {
            added: written.added,
            recipe_bytes: written.recipe.encode().len() as u64,
            index_bytes,
            storing: start.elapsed(),
            retrieving: Duration::ZERO,
            retrieved: Retrieved::default(),
        };
        Ok((written.recipe.clone(), tried))
    }

    fn try_retrieving(
        &self,
        recipe: &Recipe,
        trial: &Trial,
        chunks: &Chunks,
    ) -> Result<Retrieved, SnapshotError> {
        let file = |(number, _, name)| {
            let file = UnsealedFile::new(name)?;
            file.file().set_len(recipe.length(number).unwrap_or(0))?;
            Ok(file)
        };
        let files = FILES.map(file).into_iter().collect::<Result<Vec<_>, std::io::Error>>();
        let files = files.map_err(|source| self.error(source))?;
        let to: Vec<_> =
            FILES.iter().zip(&files).map(|((number, ..), file)| (*number, file.file())).collect();
        let done = match trial.in_order {
            None => retrieve(chunks, recipe, &to, THREADS),
            Some(kept) => retrieve_in_order(chunks, recipe, &to, kept),
        };
        done.map_err(SnapshotError::Chunks)
    }
}
