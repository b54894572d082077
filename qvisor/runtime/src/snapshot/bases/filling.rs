//! The files of a base, as they are written from those of a snapshot.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{self, Advice};
use vmm::checkpoint::{self, ImageFiles};
use vmm::directory::Directory;
use vmm::sealed_file::UnsealedFile;

use super::super::error::{SnapshotError, Unfit};
use super::super::place::{FRESH_INDEX, INDEX, Place};
use super::super::store::{Store, manifest_in};

/// Bytes of the sum before an index, and most of both.
const SUM_BYTES: usize = blake3::OUT_LEN;
const INDEX_BYTES_MAX: u64 = 4 << 30;

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
            let files = self.files_to_read(&directory, &manifest)?;
            let (pages, table) =
                (UnsealedFile::new(c"dormouse-base")?, UnsealedFile::new(c"dormouse-base-table")?);
            files.write_plain(&manifest.head, pages.file(), table.file())?;
            forget(&files);
            let (pages, table) = (pages.seal()?, table.seal()?);
            let of = (&pages, &table, manifest.head.pages_end());
            let index = build_index(&directory, digest, of)?;
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

/// The index of a base's pages, in a sealed memory file. It is kept in the snapshot's directory as well, where that can be written. One that
/// is of another snapshot, or damaged, is made anew. It only hints: nothing that it says is believed.
fn build_index(directory: &Directory, digest: &str, of: (&File, &File, u32)) -> io::Result<File> {
    let index = UnsealedFile::new(c"dormouse-base-index")?;
    let bytes = match kept_index(directory, digest) {
        Some(bytes) => bytes,
        None => {
            let made = make_index(of)?;
            if !made.is_empty() {
                // Without it the next one is made anew.
                let _ = keep_index(directory, digest, &made);
            }
            made
        }
    };
    index.file().write_all_at(&bytes, 0)?;
    index.seal()
}

/// Makes the index of these pages, by their table; they have numbers below `end`.
fn make_index((pages, table, end): (&File, &File, u32)) -> io::Result<Vec<u8>> {
    checkpoint::index_pages(pages.try_clone()?, table, end).map_err(io::Error::other)
}

/// The sum of the index of the snapshot with this digest.
fn sum_of(digest: &str, index: &[u8]) -> [u8; SUM_BYTES] {
    *blake3::Hasher::new().update(digest.as_bytes()).update(index).finalize().as_bytes()
}

/// The index in the snapshot's directory; `None`: there is none of the snapshot with this digest that is whole.
fn kept_index(directory: &Directory, digest: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    directory.file_to_read(INDEX).ok()?.take(INDEX_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let (sum, index) = bytes.split_first_chunk::<SUM_BYTES>()?;
    (*sum == sum_of(digest, index)).then(|| index.to_vec())
}

fn keep_index(directory: &Directory, digest: &str, index: &[u8]) -> io::Result<()> {
    let mut file = directory.make_file(FRESH_INDEX)?;
    file.set_len(0)?;
    let written = file.write_all(&sum_of(digest, index)).and_then(|()| file.write_all(index));
    written.and_then(|()| directory.rename(FRESH_INDEX, INDEX))
}

#[cfg(test)]
mod tests {
    use testdir::TempDir;

    use super::*;

    #[test]
    fn an_index_is_kept_for_one_snapshot_and_as_it_was_written() {
        let temp = TempDir::new();
        let directory = Directory::open(temp.path()).unwrap();
        assert_eq!(kept_index(&directory, "00"), None);
        keep_index(&directory, "00", b"an index").unwrap();
        assert_eq!(kept_index(&directory, "00").as_deref(), Some(&b"an index"[..]));
        assert_eq!(kept_index(&directory, "01"), None, "it is another snapshot's");
        let path = temp.path().join(INDEX);
        for damage in [0, SUM_BYTES + 3] {
            keep_index(&directory, "00", b"an index").unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[damage] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(kept_index(&directory, "00"), None, "byte {damage} was changed");
            std::fs::write(&path, &bytes[..damage]).unwrap();
            assert_eq!(kept_index(&directory, "00"), None, "it was cut off at byte {damage}");
        }
        keep_index(&directory, "00", b"").unwrap();
        assert_eq!(kept_index(&directory, "00").as_deref(), Some(&b""[..]));
    }
}
