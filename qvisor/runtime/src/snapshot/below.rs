//! Pages of a snapshot that others have: their files, which have names in its directory as well, so that no snapshot depends on
//! another one's being there.

use std::fs::File;
use std::io;

use vmm::checkpoint::{BELOW_MAX, BelowFiles, FileId, ImageFiles};
use vmm::directory::Directory;

use super::error::{SnapshotError, Unfit};
use super::files::check;
use super::manifest::{BelowPages, FileDigest, Manifest};
use super::place::{PAGES, Place, RECIPE, TABLE};

impl BelowPages {
    /// The names of the files of this number: of pages, and of their table.
    fn names(number: usize) -> [String; 2] {
        [format!("below.{number}.img"), format!("below.{number}.table")]
    }

    /// Opens its files, if they are as it says. Pages are looked at when they are read.
    fn open(&self, directory: &Directory) -> Result<BelowFiles, Unfit> {
        let [pages, table] = Self::names(self.number);
        let files =
            BelowFiles { pages: directory.file_to_read(&pages)?, table: directory.file_to_read(&table)? };
        check(&files.table, &self.table, &table)?;
        if files.pages.metadata()?.len() != self.pages_bytes {
            return Err(Unfit::Changed(pages));
        }
        Ok(files)
    }
}

/// All names that such files can have. A parent has its own, and those below it.
pub(super) fn names() -> impl Iterator<Item = String> {
    (0..=BELOW_MAX).flat_map(BelowPages::names)
}

/// Opens the files that have pages of a snapshot beside its own.
pub(super) fn open(directory: &Directory, below: &[BelowPages]) -> Result<Vec<BelowFiles>, Unfit> {
    if below.len() > BELOW_MAX {
        return Err(Unfit::Damaged("it has pages in too many files".into()));
    }
    below.iter().map(|pages| pages.open(directory)).collect()
}

/// Compares pages that are packed with the digest of their file, before anybody unpacks them outside a jail.
pub(super) fn check_packed(files: &ImageFiles, below: &[BelowPages]) -> Result<(), Unfit> {
    files.below.iter().zip(below).try_for_each(|(files, said)| {
        let Some(packed) = &said.packed else { return Ok(()) };
        let digest = FileDigest { bytes: said.pages_bytes, digest: packed.digest.clone() };
        let [name, _] = BelowPages::names(said.number);
        check(&files.pages, &digest, &name)
    })
}

/// The snapshot that a new one is put on.
#[derive(Debug)]
pub(crate) struct Parent {
    place: Place,
    directory: Directory,
    /// Its own files, and those of the snapshots that have pages of it, with their names in its directory.
    files: Vec<BelowFiles>,
    described: Vec<(BelowPages, [String; 2])>,
}

impl Parent {
    /// The snapshot in this place and directory, whose manifest was found to be this host's.
    pub(super) fn open(place: Place, directory: Directory, manifest: &Manifest) -> Result<Self, Unfit> {
        let of = &manifest.files;
        if of.sealed.is_some() {
            return Err(Unfit::SealedParent);
        }
        if directory.has(RECIPE) && !directory.has(PAGES) {
            return Err(Unfit::StoredParent);
        }
        let table = directory.file_to_read(TABLE)?;
        check(&table, &of.table, TABLE)?;
        let own = BelowFiles { pages: directory.file_to_read(PAGES)?, table };
        let said = BelowPages {
            number: 0,
            table: of.table.clone(),
            pages_bytes: of.pages_bytes,
            packed: of.packed.clone(),
        };
        let below = open(&directory, &of.below)?;
        let files = [own].into_iter().chain(below).collect();
        let others =
            of.below.iter().zip(1..).map(|(said, number)| {
                (BelowPages { number, ..said.clone() }, BelowPages::names(said.number))
            });
        let own = (said, [PAGES, TABLE].map(str::to_owned));
        Ok(Self { place, directory, files, described: [own].into_iter().chain(others).collect() })
    }

    /// The files of its pages, its own first.
    pub(crate) fn files(&self) -> &[BelowFiles] {
        &self.files
    }

    /// Gives its files names in the directory of a new snapshot.
    pub(super) fn link_to(&self, new: &Directory) -> Result<(), SnapshotError> {
        let failed = |source: io::Error| {
            let place = self.place.clone();
            if source.raw_os_error() == Some(libc::EXDEV) {
                SnapshotError::ParentElsewhere { place }
            } else {
                SnapshotError::Parent { place, source }
            }
        };
        for ((said, names), files) in self.described.iter().zip(&self.files) {
            let to = BelowPages::names(said.number);
            for ((from, to), file) in names.iter().zip(&to).zip([&files.pages, &files.table]) {
                self.link(new, from, to, file).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn link(&self, new: &Directory, from: &str, to: &str, file: &File) -> io::Result<()> {
        self.directory.link(from, new, to)?;
        // It might have been removed, and another one made in its place.
        if FileId::of(new.file_to_read(to)?)? == FileId::of(file)? {
            return Ok(());
        }
        Err(io::Error::other("it was changed meanwhile"))
    }

    /// Takes those of its files that a VMM has left pages to, by their places. `None`: a VMM that was taken over names others.
    pub(super) fn used(&self, places: &[usize]) -> Option<io::Result<(Vec<BelowPages>, Vec<BelowFiles>)>> {
        let is_once = |(at, place): (usize, &usize)| !places.iter().take(at).any(|before| before == place);
        if places.len() > BELOW_MAX || !places.iter().enumerate().all(is_once) {
            return None;
        }
        let said = places.iter().map(|place| Some(self.described.get(*place)?.0.clone()));
        let said = said.collect::<Option<Vec<_>>>()?;
        let files = places.iter().filter_map(|place| self.files.get(*place));
        let files = files.map(BelowFiles::try_clone).collect::<io::Result<Vec<_>>>();
        Some(files.map(|files| (said, files)))
    }

    /// Removes the names of those of its files in a new snapshot's directory that it does not use.
    pub(super) fn unlink_from(&self, new: &Directory, used: &[usize]) -> io::Result<()> {
        let unused =
            self.described.iter().map(|(said, _)| said.number).filter(|number| !used.contains(number));
        unused.flat_map(BelowPages::names).try_for_each(|name| new.remove_file(&name))
    }
}
