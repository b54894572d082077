//! Snapshots whose kernel and pages lie in the store of chunks ("SnapStore") in place of files of their own: a recipe says which chunks.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ::store::{
    Added, Chunking, Collected, Collector, Domain, Needed, Recipe, Region, Retrieved, Store as Chunks,
    StoreError, Usage, Verified, Writer, retrieve,
};
use abi::PAGE_SIZE;
use rustix::fs::fsync;
use vmm::checkpoint::{BadImage, ImageFiles, PageRegion, PageSums, Regions, Style};
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
pub(super) const FILES: [(u8, &str, &CStr); 2] =
    [(0, KERNEL, c"dormouse-kernel"), (1, PAGES, c"dormouse-pages")];
/// Most bytes of a recipe.
pub(super) const RECIPE_MAX: u64 = 512 << 20;
/// Bytes of a snapshot's chunks beside those that its head tells of: what is said of them, and ends of chunks.
const SPARE_BYTES: u64 = 1 << 20;
/// Threads that retrieve ("SnapStore", section 4.6).
pub(super) const THREADS: usize = 3;
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
        let lengths = add_files(&mut writer, &files, &manifest, true).map_err(|why| why.at(&place))?;
        // Nobody collects until the recipe is there.
        let written = writer.end(&lengths).map_err(failed)?;
        check_lengths(&written.recipe, &manifest).map_err(|why| why.at(&place))?;
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
        let [kernel, pages] = [UnsealedFile::new(FILES[0].2)?, UnsealedFile::new(FILES[1].2)?];
        let chunks = self.chunks().map_err(|error| match error {
            SnapshotError::Chunks(error) => Unfit::Chunks(error),
            error => Unfit::Damaged(error.to_string()),
        })?;
        let retrieved = bring(&chunks, recipe, kernel.file(), pages.file())?;
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

    /// Bytes of chunks that each snapshot in their store needs, as far as that can be told.
    pub(super) fn needed_chunks(&self) -> HashMap<Id, Needed> {
        let Ok(root) = self.directory() else { return HashMap::new() };
        let names = root.names().unwrap_or_default();
        let ids = names.iter().filter_map(|name| Id::new(name.to_str()?).ok());
        // One that is damaged is stored all the same, and needs nothing that could be found.
        let recipe = |id: Id| match recipe_of(&root, &id) {
            Ok(recipe) => recipe.map(|recipe| (id, Some(recipe))),
            Err(_) => Some((id, None)),
        };
        let recipes: Vec<(Id, Option<Recipe>)> = ids.filter_map(recipe).collect();
        let chunks = if recipes.is_empty() { None } else { self.chunks().ok() };
        let mut usage = chunks.as_ref().and_then(|chunks| Usage::new(chunks).ok());
        for recipe in recipes.iter().filter_map(|(_, recipe)| recipe.as_ref()) {
            usage.iter_mut().for_each(|usage| usage.add(recipe));
        }
        let mut of = |recipe: &Recipe| Some(usage.as_mut()?.of(recipe));
        let needed = |(id, recipe): (Id, Option<Recipe>)| {
            (id, recipe.and_then(|recipe| of(&recipe)).unwrap_or_default())
        };
        recipes.into_iter().map(needed).collect()
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
        let mut replaced = Ok(());
        if let Ok(moved) = &moved {
            for (id, recipe) in &recipes {
                let relocated = recipe.relocated(moved).map_err(failed);
                let done = relocated
                    .and_then(|recipe| recipe.map_or(Ok(()), |recipe| self.replace_recipe(id, &recipe)));
                if done.is_err() {
                    collector.keep(recipe);
                    replaced = done;
                }
            }
        }
        let collected = collector.end(grace).map_err(failed)?;
        moved.map_err(failed)?;
        replaced.map(|()| collected)
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

/// Adds the kernel and the pages of a snapshot, by the regions that its table tells, or all as programs' own. Result: the lengths of both.
pub(super) fn add_files(
    writer: &mut Writer<'_>,
    files: &ImageFiles,
    manifest: &Manifest,
    has_regions: bool,
) -> Result<[(u8, u64); 2], Failed> {
    // Nobody knows them of what is packed or sealed.
    let is_plain = manifest.files.sealed.is_none() && manifest.files.packed.is_none();
    let sums = if has_regions && is_plain {
        let sums = PageSums::read(&files.table, manifest.head.pages_end());
        sums.map_err(|error| Failed::Unfit(BadImage::Pages(error).into()))?
    } else {
        PageSums::default()
    };
    let regions = sums.regions();
    let [(kernel, _, _), (pages, _, _)] = FILES;
    let kernel_bytes = each_part(&files.kernel, |at, bytes| {
        writer.add(kernel, Region::Kernel, at, bytes).map_err(Failed::Chunks)
    })?;
    let pages_bytes = each_part(&files.pages, |at, bytes| {
        let mut parts = parts_by_region(regions, at, bytes);
        parts.try_for_each(|(region, at, bytes)| writer.add(pages, region, at, bytes)).map_err(Failed::Chunks)
    })?;
    Ok([(kernel, kernel_bytes), (pages, pages_bytes)])
}

/// The region of a page.
fn region_of(regions: &Regions, page: u32) -> Region {
    match regions.of(page) {
        PageRegion::Executable => Region::Executable,
        PageRegion::File => Region::File,
        PageRegion::Memory => Region::Memory,
        PageRegion::Own => Region::Anonymous,
    }
}

/// Bytes of a file of pages, which begin with a page, in parts of one region each.
pub(super) fn parts_by_region<'b>(
    regions: &Regions,
    at: u64,
    bytes: &'b [u8],
) -> impl Iterator<Item = (Region, u64, &'b [u8])> {
    let of = |at: u64| region_of(regions, u32::try_from(at / PAGE_SIZE).unwrap_or(u32::MAX));
    let (mut at, mut rest) = (at, bytes);
    std::iter::from_fn(move || {
        let region = (!rest.is_empty()).then(|| of(at))?;
        let pages = (1..).take_while(|number| number * PAGE_SIZE < rest.len() as u64);
        let end = pages.map(|number| number * PAGE_SIZE).find(|behind| of(at + behind) != region);
        let len = end.map_or(rest.len(), |end| usize::try_from(end).unwrap_or(rest.len()));
        let (part, behind) = rest.split_at(len);
        let start = at;
        (at, rest) = (at + len as u64, behind);
        Some((region, start, part))
    })
}

/// Brings the kernel and the pages of a snapshot to two files, which are empty.
pub(super) fn bring(
    chunks: &Chunks,
    recipe: &Recipe,
    kernel: &File,
    pages: &File,
) -> Result<Retrieved, Unfit> {
    let missing = || Unfit::Chunks(StoreError::Recipe { what: "a file is missing" });
    let length = |number| recipe.length(number).ok_or_else(missing);
    let to = [(FILES[0].0, kernel), (FILES[1].0, pages)];
    to.into_iter().try_for_each(|(number, file)| Ok::<_, Unfit>(file.set_len(length(number)?)?))?;
    let retrieved = retrieve(chunks, recipe, &to, THREADS).map_err(Unfit::Chunks)?;
    // The last chunk of a file may end behind it.
    to.into_iter().try_for_each(|(number, file)| Ok::<_, Unfit>(file.set_len(length(number)?)?))?;
    Ok(retrieved)
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

/// Whether a recipe is of files as long as the manifest says, and has no more chunks than they may need, before room is taken for them.
pub(super) fn check_lengths(recipe: &Recipe, manifest: &Manifest) -> Result<(), Unfit> {
    let (files, head) = (&manifest.files, &manifest.head);
    let lengths = [files.kernel.bytes, files.pages_bytes];
    for ((number, name, _), bytes) in FILES.iter().zip(lengths) {
        if recipe.length(*number) != Some(bytes) {
            return Err(Unfit::Changed((*name).into()));
        }
    }
    let needed = head.pages.saturating_mul(PAGE_SIZE).saturating_add(head.taken_bytes);
    let most = if files.sealed.is_none() && files.packed.is_none() {
        needed
    } else {
        // What seals pages, or says how they are packed, takes less than a quarter more.
        needed.saturating_add(needed / 4).min(lengths[0].saturating_add(lengths[1]))
    };
    if recipe.bytes() > most.saturating_add(SPARE_BYTES) {
        Err(Unfit::Changed(RECIPE.into()))
    } else {
        Ok(())
    }
}

fn remove_if_there(directory: &Directory, name: &str) -> io::Result<()> {
    match directory.remove_file(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Why a file could not be put away.
pub(super) enum Failed {
    Unfit(Unfit),
    Chunks(StoreError),
    File(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl Failed {
    pub(super) fn at(self, place: &Place) -> SnapshotError {
        match self {
            Self::Unfit(why) => why.at(place),
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

#[cfg(test)]
mod tests {
    use vmm::checkpoint::Bits;

    use super::*;

    #[test]
    fn a_part_is_cut_where_regions_change() {
        let mut regions = Regions::default();
        regions.set(PageRegion::File, Bits::from_words(vec![0b1_1100]));
        regions.set(PageRegion::Executable, Bits::from_words(vec![0b1_0000]));
        regions.set(PageRegion::Memory, Bits::from_words(vec![!0xff, (1 << 44) - 1]));
        let cut = |first: u64, count: usize| -> Vec<(Region, u64, usize)> {
            let bytes = vec![0; count * 4096];
            let parts = parts_by_region(&regions, first * PAGE_SIZE, &bytes);
            parts.map(|(region, at, bytes)| (region, at / PAGE_SIZE, bytes.len() / 4096)).collect()
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
