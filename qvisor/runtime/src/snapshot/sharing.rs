//! The file of a snapshot's pages that sandboxes map which begin with it, so that they have the pages in common which they do not write.
//!
//! Who shares can learn from the time that a page takes whether another one has used it lately. So nobody shares unasked, and with
//! [`Sharing::Domain`] the pages of each domain are in a file of its own: a copy, which takes no room where the file system has reflinks.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{self, Access, Advice, AtFlags, Mode, OFlags};
use vmm::checkpoint::{self, PageSums};
use vmm::directory::Directory;

use super::error::{SnapshotError, Unfit};
use super::hold;
use super::layer::copy_data;
use super::manifest::Manifest;
use super::prefetch::WorkingSet;
use super::store::{Opened, Store};
use super::working_set::{self, PAGES_MAX};
use crate::settings::Sharing;
use crate::state::Id;

/// So many of a manifest's digest are in the names of files of domains.
const DIGEST_LETTERS: usize = 16;

/// The directory of the domains' files, in that of the snapshot.
pub(super) const SHARED: &str = ".shared";

impl Store {
    /// The pages of a snapshot, to be mapped by what begins with it; `None`: they are not shared. A file that is open for reading only.
    pub fn template(&self, opened: &Opened, sharing: &Sharing) -> Result<Option<File>, SnapshotError> {
        let unfit = |why: Unfit| SnapshotError::Unfit { place: opened.place.clone(), why };
        if let Some(cold) = &opened.cold {
            return cold.try_clone().map(Some).map_err(|error| unfit(Unfit::Unreadable(error)));
        }
        let domain = match sharing {
            Sharing::None => return Ok(None),
            Sharing::Snapshot => None,
            Sharing::Domain(name) => Some(name),
        };
        let unreadable = |error: io::Error| unfit(Unfit::Unreadable(error));
        if let (None, Some(held)) = (domain, &opened.held) {
            return held.pages.try_clone().map(Some).map_err(unreadable);
        }
        let files = &opened.manifest.files;
        if opened.files.together.is_some() {
            return Err(unfit(Unfit::NotShared(
                "they are brought from a file of their own; leave --prefetch reap out",
            )));
        }
        if files.sealed.is_some() {
            return Err(unfit(Unfit::NotShared("its content is sealed")));
        }
        if files.packed.is_some() {
            return Err(unfit(Unfit::NotShared("its pages are packed; make it without --codec")));
        }
        if !files.below.is_empty() {
            return Err(unfit(Unfit::NotShared(
                "other snapshots have some of its pages; make it without --parent",
            )));
        }
        // Programs are shown pages of it that they execute.
        let mounted = fs::fstatvfs(&opened.files.pages).map_err(|error| unreadable(error.into()))?;
        if mounted.f_flag.contains(fs::StatVfsMountFlags::NOEXEC) {
            return Err(unfit(Unfit::NotShared(
                "it is on a file system that is mounted noexec; keep it on another one",
            )));
        }
        match domain {
            None => opened.files.pages.try_clone().map(Some).map_err(unreadable),
            Some(domain) => {
                let digest = opened.digest()?;
                let of = (domain, digest.get(..DIGEST_LETTERS).unwrap_or_default());
                let file = of_domain(&opened.directory, &opened.files.pages, of, files.pages_bytes);
                file.map(Some).map_err(|source| SnapshotError::Share { place: opened.place.clone(), source })
            }
        }
    }
}

/// A snapshot whose working set is being recorded, once more if it has one. It has no key: sandboxes that are forked get this memory.
#[derive(Debug)]
pub struct Recorder {
    directory: Directory,
    manifest: Manifest,
    /// Of the snapshot's pages, as it was when it was checked.
    table: File,
    /// The pages, if they lie there as they are.
    pages: Option<File>,
    teller: Arc<Teller>,
}

/// A recording that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// How many pages the working set has now.
    pub touched: usize,
    /// How many pages there are by now that were seen to come into the page cache.
    pub filled: usize,
    /// Pages that were seen to come this time and that nobody has in the snapshot.
    pub freed: usize,
}

/// Where the sandbox that is recorded tells what it needed.
pub(super) type Teller = Mutex<Option<UnixStream>>;

/// For how long a sandbox that has ended is listened to.
const TOLD_PATIENCE: Duration = Duration::from_secs(5);

impl Store {
    /// Makes ready to record what a sandbox that begins with `opened` needs. Where its pages can be shared it has them from a copy of which
    /// nothing is cached, and which goes with it; `warn` is told why if not.
    pub fn record(&self, opened: &mut Opened, warn: fn(&str)) -> Result<Recorder, SnapshotError> {
        let unfit = |why: Unfit| SnapshotError::Unfit { place: opened.place.clone(), why };
        let directory = opened.directory.try_clone().map_err(|error| unfit(error.into()))?;
        if fs::accessat(&directory, ".", Access::WRITE_OK, AtFlags::EACCESS).is_err() {
            return Err(unfit(Unfit::ReadOnly));
        }
        let bytes = opened.manifest.files.pages_bytes;
        let cold = match self.template(opened, &Sharing::Snapshot) {
            Ok(pages) => pages
                .map(|pages| cold_copy(&directory, &pages, bytes))
                .transpose()
                .map_err(|error| format!("its pages cannot be copied: {error}")),
            Err(SnapshotError::Unfit { why: Unfit::NotShared(why), .. }) => Err(why.to_owned()),
            Err(error) => Err(error.to_string()),
        };
        opened.cold = cold.unwrap_or_else(|why| {
            warn(&format!("fills of the page cache are not seen, and the kernel's own list serves: {why}"));
            None
        });
        let teller = Arc::<Teller>::default();
        (opened.working_set, opened.recording) = (WorkingSet::Missing(None), None);
        (opened.fills, opened.recorded) = (Vec::new(), Some(Arc::clone(&teller)));
        let table = opened.files.table.try_clone().map_err(|error| unfit(error.into()))?;
        let files = &opened.manifest.files;
        let is_plain = files.sealed.is_none() && files.packed.is_none() && files.below.is_empty();
        let pages = is_plain.then(|| opened.files.pages.try_clone()).transpose();
        let pages = pages.map_err(|error| unfit(error.into()))?;
        Ok(Recorder { directory, manifest: opened.manifest.clone(), table, pages, teller })
    }

    /// Writes down what the sandbox that was recorded has told, which has ended, and the pages that were seen to come into the page cache, in
    /// this order. `None`: it has told of none.
    pub fn keep_recorded(&self, recorder: &Recorder, fills: Option<&[u32]>) -> io::Result<Option<Recorded>> {
        let of = working_set::Of::new(&recorder.manifest, &self.key().map_err(io::Error::other)?);
        let of = of.map_err(io::Error::other)?;
        let told = of.told(&recorder.told()?);
        if told.is_empty() {
            return Ok(None);
        }
        of.add(&recorder.directory, working_set::WORKING_SET, &told)?;
        let mut freed = 0;
        if let Some(fills) = fills {
            let end = recorder.manifest.head.pages_end();
            let sums = PageSums::read(&recorder.table, end).map_err(io::Error::other)?;
            freed = fills.iter().filter(|page| !sums.present().has(**page)).count();
            let mut pages: Vec<u32> = fills.iter().copied().filter(|page| *page < end).collect();
            pages.truncate(PAGES_MAX);
            pages.sort_unstable();
            of.add(&recorder.directory, working_set::FILLS, &pages)?;
        }
        let count =
            |name| of.read_file(&recorder.directory, name).ok().flatten().map_or(0, |pages| pages.len());
        let (touched, filled) = (count(working_set::WORKING_SET), count(working_set::FILLS));
        Ok(Some(Recorded { touched, filled, freed }))
    }
}

impl Recorder {
    /// Writes the pages of the working set to a file in which they lie together.
    pub fn write_together(&self, store: &Store) -> io::Result<()> {
        let other = |why: &'static str| io::Error::new(io::ErrorKind::Unsupported, why);
        let pages = self
            .pages
            .as_ref()
            .ok_or_else(|| other("its pages are packed, sealed or partly another snapshot's"))?;
        let of = working_set::Of::new(&self.manifest, &store.key().map_err(io::Error::other)?);
        let known = of.map_err(io::Error::other)?.read(&self.directory).map_err(io::Error::other)?;
        let sums = PageSums::read(&self.table, self.manifest.head.pages_end()).map_err(io::Error::other)?;
        let known = known.unwrap_or_default().into_iter().map(working_set::number);
        let ids: Vec<u32> = known.filter(|page| sums.present().has(*page)).collect();
        let fresh = self.directory.make_file(working_set::FRESH_TOGETHER)?;
        fresh.set_len(0)?;
        checkpoint::write_together(pages, &ids, &fresh)?;
        fresh.sync_all()?;
        self.directory.rename(working_set::FRESH_TOGETHER, working_set::TOGETHER)
    }

    /// Returns what the sandbox has told, which may be anything.
    fn told(&self) -> io::Result<Vec<u8>> {
        let stream = self.teller.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(stream) = stream else { return Ok(Vec::new()) };
        stream.set_read_timeout(Some(TOLD_PATIENCE))?;
        let mut bytes = Vec::new();
        stream.take((PAGES_MAX * size_of::<u32>()) as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Where the snapshot is.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }
}

impl Opened {
    /// The file that is shared in place of the snapshot's own, if it is one of which nothing is cached.
    #[must_use]
    pub fn cold(&self) -> Option<&File> {
        self.cold.as_ref()
    }
}

/// A copy of a file without a name, of which nothing is cached, and nothing is read but what is asked for. It is open for reading only.
fn cold_copy(directory: &Directory, pages: &File, bytes: u64) -> io::Result<File> {
    let made = unnamed(directory)?;
    copy(pages, &made, bytes)?;
    made.sync_data()?;
    let file = File::open(path_of(&made))?;
    fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    fs::fadvise(&file, 0, None, Advice::Random)?;
    Ok(file)
}

/// The file of a domain, which is made if it is not there. Its name tells of which snapshot it is: there may have been another one here.
fn of_domain(
    directory: &Directory,
    pages: &File,
    (domain, digest): (&Id, &str),
    bytes: u64,
) -> io::Result<File> {
    // Nobody removes the snapshot meanwhile but by its name.
    let _held = hold::hold(directory)?;
    let shared = match directory.make_directory(OsStr::new(SHARED)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            directory.directory(OsStr::new(SHARED))?
        }
        made => made?,
    };
    let name = format!("{}.{digest}.img", domain.as_str());
    let found = || match shared.file_to_read(&name) {
        Ok(file) if file.metadata()?.len() == bytes => Ok(Some(file)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(None),
    };
    if let Some(file) = found()? {
        return Ok(file);
    }
    // One after the other makes one.
    let turn = File::from(shared.directory(OsStr::new("."))?.into_parts().0);
    turn.lock()?;
    if let Some(file) = found()? {
        return Ok(file);
    }
    let made = unnamed(&shared)?;
    copy(pages, &made, bytes)?;
    made.sync_data()?;
    let _ = shared.remove_file(&name);
    fs::linkat(fs::CWD, path_of(&made), &shared, &name, AtFlags::SYMLINK_FOLLOW)?;
    shared.file_to_read(&name)
}

/// A file without a name in a directory.
fn unnamed(directory: &Directory) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR)?))
}

fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Removes the files of all domains, and no others.
pub(super) fn empty(directory: &Directory) -> io::Result<()> {
    let shared = match directory.directory(OsStr::new(SHARED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        shared => shared?,
    };
    for name in shared.names()?.iter().filter_map(|name| name.to_str()).filter(|name| name.ends_with(".img"))
    {
        shared.remove_file(name)?;
    }
    directory.remove_directory(OsStr::new(SHARED))
}

/// Copies a file with holes.
fn copy(from: &File, to: &File, bytes: u64) -> io::Result<()> {
    to.set_len(bytes)?;
    if fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    copy_data(from, to, bytes)?;
    if from.metadata()?.len() < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Bytes of the disk that the files of all domains take up.
pub(super) fn disk_bytes(directory: &Directory) -> u64 {
    let Ok(shared) = directory.directory(OsStr::new(SHARED)) else { return 0 };
    let names = shared.names().unwrap_or_default();
    names
        .iter()
        .filter_map(|name| shared.file_to_read(name.to_str()?).ok())
        .map(|file| super::making::blocks_of(&file))
        .sum()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::super::place::PAGES;
    use super::*;

    #[test]
    fn each_domain_has_a_file_of_its_own_with_the_same_holes() {
        let dir = testdir::TempDir::new();
        let directory = Directory::open(dir.path()).unwrap();
        let mut file = directory.new_file(PAGES).unwrap();
        file.write_all(&[7; 4096]).unwrap();
        file.write_at(&[9; 4096], 4 << 20).unwrap();
        let bytes = file.metadata().unwrap().len();
        let pages = directory.file_to_read(PAGES).unwrap();
        File::create_new(dir.path().join(super::hold::MANIFEST)).unwrap();
        let of =
            |domain: &str| of_domain(&directory, &pages, (&Id::new(domain).unwrap(), "00"), bytes).unwrap();
        let (a, again, b) = (of("a"), of("a"), of("b"));
        let inode = |file: &File| file.metadata().unwrap().ino();
        assert_eq!(inode(&a), inode(&again));
        assert!(inode(&a) != inode(&b) && inode(&a) != inode(&pages));
        assert!(a.metadata().unwrap().blocks() < 4096, "its holes are holes");
        let mut page = [0; 4096];
        for (at, byte) in [(0, 7), (1 << 20, 0), (4 << 20, 9)] {
            b.read_exact_at(&mut page, at).unwrap();
            assert_eq!(page, [byte; 4096]);
        }
        assert!((&a).write(&[0]).is_err(), "it is open for reading only");
        assert!(disk_bytes(&directory) >= 4 * 4096);
        // Of another snapshot that was here.
        let id = Id::new("a").unwrap();
        assert_ne!(inode(&of_domain(&directory, &pages, (&id, "01"), bytes).unwrap()), inode(&a));
        std::fs::write(dir.path().join(SHARED).join("other"), []).unwrap();
        assert!(
            empty(&directory).is_err() && dir.path().join(SHARED).join("other").exists(),
            "what is nobody's stays"
        );
        std::fs::remove_file(dir.path().join(SHARED).join("other")).unwrap();
        empty(&directory).unwrap();
        empty(&directory).unwrap();
        assert!(!directory.has(SHARED));
    }
}
