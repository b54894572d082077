//! Snapshots whose kernel and pages lie in the store of chunks ("SnapStore") in place of files of their own: a recipe says which chunks.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ::store::{
    Added, Chunking, Collected, Collector, Domain, Recipe, Region, Retrieved, Store as Chunks, StoreError,
    Verified, Writer, retrieve,
};
use rustix::fs::fsync;
use vmm::checkpoint::Style;
use vmm::directory::Directory;
use vmm::sealed_file::UnsealedFile;

use super::digest::each_part;
use super::error::{SnapshotError, Unfit};
use super::hold;
use super::manifest::Manifest;
use super::place::{FRESH_RECIPE, KERNEL, PAGES, Place, RECIPE};
use super::store::{Store, manifest_in};
use crate::state::Id;

/// The directory of the chunks, among the snapshots. No snapshot's name begins with a dot.
const CHUNKS: &str = ".chunks";
const CONTEXT: &str = "dormouse 2026 snapshot chunks";
/// The numbers of the files in a recipe, and the names of those in memory.
const FILES: [(u8, &str, &CStr); 2] = [(0, KERNEL, c"dormouse-kernel"), (1, PAGES, c"dormouse-pages")];
/// Most bytes of a recipe.
const RECIPE_MAX: u64 = 512 << 20;
/// Threads that retrieve ("SnapStore", section 4.6).
const THREADS: usize = 3;
/// How often a recipe is read anew whose chunks have moved meanwhile.
const TRIES: usize = 3;
/// Bytes that one collection moves at most.
const MOVED_MAX: u64 = 1 << 30;

/// A snapshot that was put into the store of chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutAway {
    /// The outcome of each region.
    pub added: [Added; Region::ALL.len()],
    /// Bytes of its recipe.
    pub recipe_bytes: u64,
    /// It was there already.
    pub was_there: bool,
}

/// Figures of the store of chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreFigures {
    /// Snapshots that are in it.
    pub snapshots: u64,
    /// Bytes of its files, and of the recipes.
    pub bytes: u64,
    /// Bytes of data that the snapshots would have in files of their own.
    pub snapshot_bytes: u64,
}

fn failed(error: StoreError) -> SnapshotError {
    SnapshotError::Chunks(error)
}

impl Store {
    fn chunks(&self) -> Result<Chunks, SnapshotError> {
        let path = self.directory()?.path().join(CHUNKS);
        Chunks::open(&path).map_err(failed)
    }

    /// Puts a snapshot into the store of chunks, whose place in the list it keeps. `domain`: with whose snapshots it may have chunks in common;
    /// chunks are packed by `style`.
    pub fn put_away(&self, name: &Id, domain: Option<&str>, style: Style) -> Result<PutAway, SnapshotError> {
        let place = Place::Named(name.clone());
        let directory = self.found(&place)?;
        let key = self.key()?;
        let held = hold::hold(&directory).map_err(|error| Unfit::from(error).at(&place))?;
        let check = || {
            let manifest = manifest_in(&held, &key)?;
            match (&manifest.files.sealed, &manifest.files.packed) {
                (Some(_), _) => Err(Unfit::StoredSealed),
                (None, Some(_)) => Err(Unfit::StoredPacked),
                (None, None) => Ok(manifest),
            }
        };
        let manifest = check().map_err(|why| why.at(&place))?;
        let unlink = || FILES.iter().try_for_each(|(_, name, _)| remove_if_there(&held, name));
        let domain = Domain::new(key.derive(CONTEXT, domain.unwrap_or_default().as_bytes()).as_bytes());
        let chunks = self.chunks()?;
        let mut writer = Writer::begin(&chunks, &domain, Chunking::default(), style).map_err(failed)?;
        // Nobody else puts it there now. One who was killed may not have come to the end.
        if read_recipe(&held).is_ok_and(|recipe| check_lengths(&recipe, &manifest).is_ok()) {
            unlink().map_err(|error| Unfit::from(error).at(&place))?;
            return Ok(PutAway { was_there: true, ..PutAway::default() });
        }
        let files = self.files_in(&held, &manifest).map_err(|why| why.at(&place))?;
        let mut lengths = Vec::new();
        for ((number, _, _), (file, region)) in
            FILES.into_iter().zip([(&files.kernel, Region::Kernel), (&files.pages, Region::Anonymous)])
        {
            let add = |at: u64, bytes: &[u8]| writer.add(number, region, at, bytes).map_err(Failed::Chunks);
            lengths.push((number, each_part(file, add).map_err(|why| why.at(&place))?));
        }
        // Nobody collects until the recipe is there.
        let written = writer.end(&lengths).map_err(failed)?;
        let recipe = written.recipe.encode();
        // Before anything goes: what cannot be read again is none.
        if Recipe::decode(&recipe).map_err(failed)? != written.recipe {
            return Err(failed(StoreError::Recipe { what: "it does not come back" }));
        }
        write_recipe(&held, &recipe)
            .and_then(|()| unlink())
            .map_err(|error| Unfit::from(error).at(&place))?;
        Ok(PutAway { added: written.added, recipe_bytes: recipe.len() as u64, was_there: false })
    }

    /// The kernel and the pages of a snapshot: its files, or what the store of chunks has of them, in memory.
    pub(super) fn kernel_and_pages(
        &self,
        directory: &Directory,
        manifest: &Manifest,
    ) -> Result<(File, File), Unfit> {
        let recipe = || {
            let recipe = read_recipe(directory)?;
            check_lengths(&recipe, manifest).map(|()| recipe)
        };
        for _ in 0..TRIES {
            match (directory.file_to_read(KERNEL), directory.file_to_read(PAGES)) {
                (Ok(kernel), Ok(pages)) => return Ok((kernel, pages)),
                (Err(error), _) | (_, Err(error))
                    if error.kind() != io::ErrorKind::NotFound || !directory.has(RECIPE) =>
                {
                    return Err(error.into());
                }
                _ => {}
            }
            match self.retrieve(&recipe()?) {
                // Its chunks have moved.
                Err(Unfit::Chunks(StoreError::Gone { .. })) => {}
                files => return files.map(|(files, _)| files),
            }
        }
        self.retrieve(&recipe()?).map(|(files, _)| files)
    }

    fn retrieve(&self, recipe: &Recipe) -> Result<((File, File), Retrieved), Unfit> {
        let file = |(number, _, name): (u8, &str, &CStr)| {
            let length = recipe
                .length(number)
                .ok_or(Unfit::Chunks(StoreError::Recipe { what: "a file is missing" }))?;
            let file = UnsealedFile::new(name)?;
            file.file().set_len(length)?;
            Ok::<_, Unfit>((file, length))
        };
        let [(kernel, kernel_bytes), (pages, pages_bytes)] = [file(FILES[0])?, file(FILES[1])?];
        let chunks = self.chunks().map_err(|error| match error {
            SnapshotError::Chunks(error) => Unfit::Chunks(error),
            error => Unfit::Damaged(error.to_string()),
        })?;
        let to = [(FILES[0].0, kernel.file()), (FILES[1].0, pages.file())];
        let retrieved = retrieve(&chunks, recipe, &to, THREADS).map_err(Unfit::Chunks)?;
        // The last chunk of a file may end behind it.
        kernel.file().set_len(kernel_bytes)?;
        pages.file().set_len(pages_bytes)?;
        Ok(((kernel.seal()?, pages.seal()?), retrieved))
    }

    /// Brings the kernel and the pages of a stored snapshot into memory, which is given back at once. Result: what was read, and the time from
    /// opening the recipe to the last chunk.
    pub fn measure_retrieval(&self, name: &Id) -> Result<(Retrieved, Duration), SnapshotError> {
        let place = Place::Named(name.clone());
        let directory = self.found(&place)?;
        let key = self.key()?;
        let measure = || {
            let manifest = manifest_in(&directory, &key)?;
            if !directory.has(RECIPE) {
                return Err(Unfit::NotStored);
            }
            let begin = Instant::now();
            let recipe = read_recipe(&directory)?;
            check_lengths(&recipe, &manifest)?;
            let (_files, retrieved) = self.retrieve(&recipe)?;
            Ok((retrieved, begin.elapsed()))
        };
        measure().map_err(|why| why.at(&place))
    }

    /// The snapshots that have recipes. Where it cannot be told whether there is one, that is an error: its chunks are not to go.
    fn recipes(&self) -> Result<Vec<(Id, Recipe)>, SnapshotError> {
        let root = self.directory()?;
        let mut all = Vec::new();
        for name in root.names().map_err(|source| self.error(source))? {
            let Some(id) = name.to_str().and_then(|name| Id::new(name).ok()) else { continue };
            match recipe_of(&root, &id) {
                Ok(Some(recipe)) => all.push((id, recipe)),
                Ok(None) => {}
                Err(why) => return Err(why.at(&Place::Named(id))),
            }
        }
        Ok(all)
    }

    /// Removes chunks that no snapshot needs, `grace` after that was found out first.
    pub fn collect_chunks(&self, grace: Duration) -> Result<Collected, SnapshotError> {
        let chunks = self.chunks()?;
        let mut collector = Collector::begin(&chunks).map_err(failed)?;
        let recipes = self.recipes()?;
        recipes.iter().for_each(|(_, recipe)| collector.mark(recipe));
        // First what makes room.
        collector.remove_dead(grace).map_err(failed)?;
        let moved = collector.move_out(MOVED_MAX);
        if let Ok(moved) = &moved {
            for (id, recipe) in &recipes {
                if let Some(relocated) = recipe.relocated(moved).map_err(failed)? {
                    self.replace_recipe(id, &relocated)?;
                }
            }
        }
        let collected = collector.end(grace).map_err(failed)?;
        moved.map_err(failed).map(|_| collected)
    }

    fn replace_recipe(&self, id: &Id, recipe: &Recipe) -> Result<(), SnapshotError> {
        let replace = || -> io::Result<()> {
            let directory = self.directory().map_err(io::Error::other)?.directory(OsStr::new(id.as_str()))?;
            let held = hold::hold(&directory)?;
            write_recipe(&held, &recipe.encode())
        };
        match replace() {
            // It was removed meanwhile, and needs none.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            replaced => replaced.map_err(|source| self.error(source)),
        }
    }

    /// Reads all chunks, and compares recipes with what there is.
    pub fn verify_chunks(&self) -> Result<Verified, SnapshotError> {
        let verify = || {
            let recipes: Vec<Recipe> = self.recipes()?.into_iter().map(|(_, recipe)| recipe).collect();
            self.chunks()?.verify(&recipes).map_err(failed)
        };
        match verify() {
            // Chunks may just have moved.
            Err(SnapshotError::Chunks(StoreError::Gone { .. })) => verify(),
            verified => verified,
        }
    }

    /// Figures of the store of chunks.
    pub fn chunk_figures(&self) -> Result<StoreFigures, SnapshotError> {
        let recipes = self.recipes()?;
        let bytes = self.chunks()?.bytes().map_err(failed)?;
        let mut figures = StoreFigures { bytes, ..StoreFigures::default() };
        for (_, recipe) in &recipes {
            figures.snapshots += 1;
            figures.bytes += recipe.encode().len() as u64;
            figures.snapshot_bytes += recipe.bytes();
        }
        Ok(figures)
    }
}

/// The recipe of a snapshot. `None`: it has none, or is no snapshot.
fn recipe_of(root: &Directory, id: &Id) -> Result<Option<Recipe>, Unfit> {
    let read = || read_recipe(&root.directory(OsStr::new(id.as_str()))?);
    match read() {
        Err(Unfit::Unreadable(error))
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        recipe => recipe.map(Some),
    }
}

/// Whether a recipe is of files as long as the manifest says, before memory is taken for them.
fn check_lengths(recipe: &Recipe, manifest: &Manifest) -> Result<(), Unfit> {
    for ((number, name, _), bytes) in
        FILES.iter().zip([manifest.files.kernel.bytes, manifest.files.pages_bytes])
    {
        if recipe.length(*number) != Some(bytes) {
            return Err(Unfit::Changed((*name).into()));
        }
    }
    Ok(())
}

fn remove_if_there(directory: &Directory, name: &str) -> io::Result<()> {
    match directory.remove_file(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Why a file could not be put away.
enum Failed {
    Chunks(StoreError),
    File(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl Failed {
    fn at(self, place: &Place) -> SnapshotError {
        match self {
            Self::Chunks(error) => failed(error),
            Self::File(error) => Unfit::from(error).at(place),
        }
    }
}

fn read_recipe(directory: &Directory) -> Result<Recipe, Unfit> {
    let mut bytes = Vec::new();
    directory.file_to_read(RECIPE)?.take(RECIPE_MAX).read_to_end(&mut bytes)?;
    Recipe::decode(&bytes).map_err(Unfit::Chunks)
}

/// Writes a recipe, which is on the disk as a whole or not at all.
fn write_recipe(directory: &Directory, bytes: &[u8]) -> io::Result<()> {
    let mut file = directory.make_file(FRESH_RECIPE)?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    directory.rename(FRESH_RECIPE, RECIPE)?;
    Ok(fsync(directory.as_fd())?)
}
