//! The file of a snapshot's pages that sandboxes map which begin with it, so that they have the pages in common which they do not write.
//!
//! Who shares can learn from the time that a page takes whether another one has used it lately. So nobody shares unasked, and with
//! [`Sharing::Domain`] the pages of each domain are in a file of its own: a copy, which takes no room where the file system has reflinks.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{self, Advice, AtFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use vmm::directory::Directory;

use super::store::{Opened, Store, WorkingSet};
use super::working_set::{self, Recording};
use super::{SnapshotError, Unfit};
use crate::settings::Sharing;
use crate::state::Id;

/// The directory of the domains' files, in that of the snapshot.
pub(super) const SHARED: &str = "shared";

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
        let files = &opened.manifest.files;
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
        let unreadable = |error: io::Error| unfit(Unfit::Unreadable(error));
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
                let directory = self.found(&opened.place)?;
                let file = of_domain(&directory, &opened.files.pages, domain, files.pages_bytes);
                file.map(Some).map_err(|source| SnapshotError::Share { place: opened.place.clone(), source })
            }
        }
    }
}

/// A snapshot whose working set is being recorded, once more if it has one.
#[derive(Debug)]
pub struct Recorder {
    directory: Directory,
    before: Option<u64>,
}

/// For how long the process that writes a working set is waited for.
const WRITTEN_PATIENCE: Duration = Duration::from_secs(10);
const WRITTEN_STEP: Duration = Duration::from_millis(10);

impl Store {
    /// Makes ready to record what a sandbox that begins with `opened` needs. Where its pages can be shared it has them from a copy of which
    /// nothing is cached, and which goes with it.
    pub fn record(&self, opened: &mut Opened) -> Result<Recorder, SnapshotError> {
        let unfit = |why: Unfit| SnapshotError::Unfit { place: opened.place.clone(), why };
        let directory = self.found(&opened.place)?;
        let of = working_set::Of::new(&opened.manifest, &self.key()?).map_err(unfit)?;
        let again = directory.try_clone().map_err(|error| unfit(error.into()))?;
        // It goes with that: the sandbox, which is forked later, does not get the key.
        let recording = Recording::new(of, again);
        if recording.is_none() {
            return Err(unfit(Unfit::ReadOnly));
        }
        let pages = self.template(opened, &Sharing::Snapshot).ok().flatten();
        let cold =
            pages.map(|pages| cold_copy(&directory, &pages, opened.manifest.files.pages_bytes)).transpose();
        opened.cold = cold.map_err(|source| SnapshotError::Share { place: opened.place.clone(), source })?;
        opened.working_set = WorkingSet::Missing(None, recording);
        let before = inode_of(&directory);
        Ok(Recorder { directory, before })
    }
}

impl Recorder {
    /// Waits until the working set has been written; whether it was.
    #[must_use]
    pub fn wait(&self) -> bool {
        let until = Instant::now() + WRITTEN_PATIENCE;
        while inode_of(&self.directory) == self.before {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(WRITTEN_STEP);
        }
        true
    }
}

impl Opened {
    /// The file that is shared in place of the snapshot's own, if it is one of which nothing is cached.
    #[must_use]
    pub fn cold(&self) -> Option<&File> {
        self.cold.as_ref()
    }
}

/// Which file the working set is in now.
fn inode_of(directory: &Directory) -> Option<u64> {
    fs::statat(directory, working_set::WORKING_SET, AtFlags::SYMLINK_NOFOLLOW).ok().map(|found| found.st_ino)
}

/// A copy of a file without a name, of which nothing is cached, and nothing is read but what is asked for. It is open for reading only.
fn cold_copy(directory: &Directory, pages: &File, bytes: u64) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let made = File::from(fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR)?);
    copy(pages, &made, bytes)?;
    made.sync_data()?;
    let path = format!("/proc/self/fd/{}", made.as_raw_fd());
    let file = File::open(path)?;
    fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    fs::fadvise(&file, 0, None, Advice::Random)?;
    Ok(file)
}

/// The file of a domain, which is made if it is not there.
fn of_domain(directory: &Directory, pages: &File, domain: &Id, bytes: u64) -> io::Result<File> {
    let shared = match directory.make_directory(OsStr::new(SHARED)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            directory.directory(OsStr::new(SHARED))?
        }
        made => made?,
    };
    let name = format!("{}.img", domain.as_str());
    for _ in 0..2 {
        match shared.file_to_read(&name) {
            // Another length is that of another snapshot, which was in this directory.
            Ok(file) if file.metadata()?.len() == bytes => return Ok(file),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => make(&shared, pages, &name, bytes)?,
        }
    }
    shared.file_to_read(&name)
}

/// Makes the file of a domain, as a whole or not at all. Where two make it at once, either will do.
fn make(shared: &Directory, pages: &File, name: &str, bytes: u64) -> io::Result<()> {
    let fresh = format!(".{}", Id::random().as_str());
    let file = shared.new_file(&fresh)?;
    let made =
        copy(pages, &file, bytes).and_then(|()| file.sync_data()).and_then(|()| shared.rename(&fresh, name));
    if made.is_err() {
        let _ = shared.remove_file(&fresh);
    }
    made
}

/// Copies a file with holes.
fn copy(from: &File, to: &File, bytes: u64) -> io::Result<()> {
    to.set_len(bytes)?;
    if fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let mut at = 0;
    loop {
        let start = match fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = fs::seek(from, SeekFrom::Hole(start))?.min(bytes);
        let (mut at_from, mut at_to) = (start, start);
        while at_from < end {
            let most = usize::try_from(end - at_from).unwrap_or(usize::MAX).min(1 << 30);
            if fs::copy_file_range(from.as_fd(), Some(&mut at_from), to.as_fd(), Some(&mut at_to), most)? == 0
            {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
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
        let of = |domain: &str| of_domain(&directory, &pages, &Id::new(domain).unwrap(), bytes).unwrap();
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
        file.set_len(bytes + 4096).unwrap();
        assert_ne!(
            inode(&of_domain(&directory, &pages, &Id::new("a").unwrap(), bytes + 4096).unwrap()),
            inode(&a)
        );
    }
}
