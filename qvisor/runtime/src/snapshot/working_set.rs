//! The recorded working set of a snapshot: the pages that the programs of its first restore touched first. Later restores bring them at
//! once. It is a file beside the manifest with a seal of its own, since it comes to be after the manifest was sealed. The seal covers the
//! manifest's digest too: the working set of another snapshot is none.
//!
//! Its pages are what a VMM says that may have been taken over. Whoever reads them takes them for a wish: a page that is not in the
//! snapshot, or was brought before, is passed over, and all others are checked as any that is read.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock, PoisonError};

use abi::report::WRITTEN;
use blake3::Hash;
use rustix::fs::{self, Access, AtFlags};
use vmm::directory::Directory;
use vmm::{footprint, process};

use super::error::Unfit;
use super::hold::{self, is_named};
use super::key::Key;
use super::manifest::{MANIFEST, Manifest};

/// The file, and its name while it is written.
pub(super) const WORKING_SET: &str = "ws";
pub(super) const FRESH: &str = ".ws";
/// The file of the pages whose fills of the page cache were seen meanwhile, of the same form.
pub(super) const FILLS: &str = "ws.bpf";

const KIND: &[u8; 8] = b"DORMWSET";
const VERSION: u32 = 2;
/// Bytes before the first page's number, of a number, and of the seal.
const HEAD_BYTES: usize = 16;
const NUMBER_BYTES: usize = 4;
const SEAL_BYTES: usize = blake3::OUT_LEN;
/// The file in which the pages of the working set lie together, if it is asked for.
pub(super) const TOGETHER: &str = "ws.reap";
pub(super) const FRESH_TOGETHER: &str = ".ws.reap";
/// Its length tells how many sandboxes have begun with the snapshot since one was recorded.
pub(super) const BEGUN: &str = ".begun";
/// So many begin by a working set before one is recorded once more.
const UNRECORDED: u64 = 15;
/// It has strayed if more of the pages that it touched were not in the set than this, and than so large a part of them.
const STRAY_PAGES: usize = 16;
const STRAY_PART: usize = 10;
/// Most pages.
pub(super) const PAGES_MAX: usize = abi::report::WORKING_SET_MAX_PAGES;
pub(super) const LENGTH_MAX: usize = HEAD_BYTES + PAGES_MAX * NUMBER_BYTES + SEAL_BYTES;

/// The number of a page, without [`WRITTEN`].
pub(super) const fn number(page: u32) -> u32 {
    page & !WRITTEN
}

/// Why a working set is not used.
#[derive(Debug, thiserror::Error)]
pub enum BadWorkingSet {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("its seal is not by this host's key, or is of another snapshot")]
    Sealed,
    #[error("it is of a version that this dormouse does not know")]
    Version,
    #[error("it has pages that cannot be")]
    Pages,
}

/// The snapshot that a working set is of, and the key by which it is known.
#[derive(Clone)]
pub(super) struct Of {
    key: Key,
    /// The manifest's digest.
    manifest: Hash,
    /// Pages have numbers below this.
    end: u32,
}

impl Of {
    pub(super) fn new(manifest: &Manifest, key: &Key) -> Result<Self, Unfit> {
        Ok(Self { key: key.clone(), manifest: manifest.digest()?, end: manifest.head.pages_end() })
    }

    fn seal(&self, body: &[u8]) -> Hash {
        self.key.seal(&[body, self.manifest.as_bytes()].concat())
    }

    /// The file of these pages, whose numbers ascend but for [`WRITTEN`].
    fn encode(&self, pages: &[u32]) -> Vec<u8> {
        let count = u32::try_from(pages.len()).unwrap_or(u32::MAX);
        let mut bytes = [&KIND[..], &VERSION.to_le_bytes(), &count.to_le_bytes()].concat();
        bytes.extend(pages.iter().flat_map(|page| page.to_le_bytes()));
        let seal = self.seal(&bytes);
        bytes.extend_from_slice(seal.as_bytes());
        bytes
    }

    /// The pages of a file. Nothing of it is looked at before its seal.
    fn parse(&self, bytes: &[u8]) -> Result<Vec<u32>, BadWorkingSet> {
        let (body, seal) = bytes.split_last_chunk::<SEAL_BYTES>().ok_or(BadWorkingSet::Sealed)?;
        // Compared in a time that tells nothing.
        if self.seal(body) != Hash::from_bytes(*seal) {
            return Err(BadWorkingSet::Sealed);
        }
        self.pages_of(body)
    }

    /// A file that came from another host, as it is here. `is_trusted`: whoever sealed it.
    pub(super) fn moved(&self, bytes: &[u8], is_trusted: bool) -> Result<Vec<u8>, BadWorkingSet> {
        let pages = match bytes.split_last_chunk::<SEAL_BYTES>() {
            Some((body, _)) if is_trusted => self.pages_of(body)?,
            _ => self.parse(bytes)?,
        };
        Ok(self.encode(&pages))
    }

    fn pages_of(&self, body: &[u8]) -> Result<Vec<u32>, BadWorkingSet> {
        let (kind, rest) = body.split_first_chunk().ok_or(BadWorkingSet::Version)?;
        let (version, rest) = rest.split_first_chunk().ok_or(BadWorkingSet::Version)?;
        if (kind, u32::from_le_bytes(*version)) != (KIND, VERSION) {
            return Err(BadWorkingSet::Version);
        }
        let (count, rest) = rest.split_first_chunk().ok_or(BadWorkingSet::Pages)?;
        let (numbers, left) = rest.as_chunks::<NUMBER_BYTES>();
        let pages: Vec<u32> = numbers.iter().map(|number| u32::from_le_bytes(*number)).collect();
        let is_whole = left.is_empty() && usize::try_from(u32::from_le_bytes(*count)) == Ok(pages.len());
        if is_whole && pages.len() <= PAGES_MAX && self.can_be(&pages) {
            Ok(pages)
        } else {
            Err(BadWorkingSet::Pages)
        }
    }

    /// Whether these numbers ascend and are those of pages.
    fn can_be(&self, pages: &[u32]) -> bool {
        pages.is_sorted_by(|a, b| number(*a) < number(*b))
            && pages.last().is_none_or(|last| number(*last) < self.end)
    }

    /// The pages in what a VMM has said, which may be anything.
    pub(super) fn told(&self, bytes: &[u8]) -> Vec<u32> {
        let numbers = bytes.as_chunks::<NUMBER_BYTES>().0.iter().take(PAGES_MAX);
        let mut pages: Vec<u32> = numbers.map(|number| u32::from_le_bytes(*number)).collect();
        pages.sort_unstable_by_key(|page| number(*page));
        pages.dedup_by_key(|page| number(*page));
        pages.retain(|page| number(*page) < self.end);
        pages
    }

    /// Reads the working set of the snapshot in a directory; `None`: it has none.
    pub(super) fn read(&self, directory: &Directory) -> Result<Option<Vec<u32>>, BadWorkingSet> {
        self.read_file(directory, WORKING_SET)
    }

    /// Reads a file of pages of the snapshot in a directory; `None`: it is not there.
    pub(super) fn read_file(
        &self,
        directory: &Directory,
        name: &str,
    ) -> Result<Option<Vec<u32>>, BadWorkingSet> {
        let file = match directory.file_to_read(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::with_capacity(LENGTH_MAX + 1);
        file.take(LENGTH_MAX as u64 + 1).read_to_end(&mut bytes)?;
        self.parse(&bytes).map(Some)
    }

    /// Adds pages to a file of such of the snapshot in a directory, unless that is being removed, or somebody else writes one. What is there
    /// and not this snapshot's goes.
    pub(super) fn add(&self, directory: &Directory, name: &str, pages: &[u32]) -> io::Result<()> {
        // One that was removed is not held either: whoever sweeps could not take what is left of it.
        if !directory.has(MANIFEST) {
            return Ok(());
        }
        let _held = match hold::hold(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            held => held?,
        };
        // A writer that was killed has left it, and its lock is free.
        let mut file = directory.make_file(FRESH)?;
        if file.try_lock().is_err() || !is_named(directory, FRESH, &file) {
            return Ok(());
        }
        file.set_len(0)?;
        let before = self.read_file(directory, name).ok().flatten().unwrap_or_default();
        let pages = merged(&before, pages);
        let written = file.write_all(&self.encode(&pages)).and_then(|()| file.sync_all());
        let renamed = written.and_then(|()| directory.rename(FRESH, name));
        if renamed.is_err() {
            let _ = directory.remove_file(FRESH);
        }
        renamed
    }
}

impl Of {
    /// Adds the pages that a sandbox has touched which began with the snapshot in a directory, unless nearly all of them are known. It may say
    /// anything: the set at most doubles, and no page leaves it.
    fn take_strayed(&self, directory: &Directory, pages: &[u32]) -> io::Result<()> {
        let mut pages = pages.to_vec();
        if let Ok(Some(known)) = self.read(directory) {
            let touched = pages.len();
            let is_new = |page: &u32| known.binary_search_by_key(&number(*page), |one| number(*one)).is_err();
            pages.retain(is_new);
            if pages.len() <= STRAY_PAGES.max(touched / STRAY_PART) {
                return Ok(());
            }
            pages.truncate(known.len().max(STRAY_PAGES).min(PAGES_MAX.saturating_sub(known.len())));
        }
        self.add(directory, WORKING_SET, &pages)?;
        if directory.has(FILLS) {
            let pages: Vec<u32> = pages.iter().map(|page| number(*page)).collect();
            self.add(directory, FILLS, &pages)?;
        }
        Ok(())
    }
}

/// The pages of both lists, by number, [`WRITTEN`] where one says so; of too many the last are left out.
fn merged(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut all: Vec<u32> = [a, b].concat();
    // Of two of one number that which was written comes first, and stays.
    all.sort_unstable_by_key(|page| (number(*page), number(*page) == *page));
    all.dedup_by_key(|page| number(*page));
    all.truncate(PAGES_MAX);
    all
}

/// A snapshot whose working set is to be recorded.
pub struct Recording {
    /// With the key, which goes once the process has it: the sandbox, which is forked later, does not get it.
    of: Mutex<Option<Of>>,
    directory: Directory,
    is_due: OnceLock<bool>,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Recording {
    /// Of the snapshot in a directory, if files can be made there.
    pub(super) fn new(of: Of, directory: Directory) -> Option<Self> {
        let may_write = fs::accessat(&directory, ".", Access::WRITE_OK, AtFlags::EACCESS).is_ok();
        may_write.then(|| Self { of: Mutex::new(Some(of)), directory, is_due: OnceLock::new() })
    }

    /// Whether a sandbox that begins by a working set is to be recorded once more, since it may stray from that. Each that asks counts.
    pub(super) fn is_due(&self) -> bool {
        *self.is_due.get_or_init(|| is_due(&self.directory))
    }

    /// Starts a process that writes what it is told through the socket that is returned, and ends with that: whoever began the sandbox
    /// may be gone by then, and the sandbox does not have the key. It is nobody's child here, and has no descriptors but its own.
    pub(crate) fn start(&self) -> io::Result<OwnedFd> {
        let (told, teller) = UnixStream::pair()?;
        let directory = self.directory.try_clone()?;
        let of = self.of.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(of) = of else { return Err(io::ErrorKind::NotFound.into()) };
        if let Some(between) = process::fork()? {
            process::reap(between);
            return Ok(teller.into());
        }
        if !matches!(process::fork(), Ok(None)) {
            process::exit_now(0);
        }
        process::set_name(c"dormouse-record");
        process::leave_session();
        let _ = serve(&of, directory, told);
        process::exit_now(0)
    }
}

/// Counts sandboxes that begin; whether this one is to be recorded. Of two at once either may be.
fn is_due(directory: &Directory) -> bool {
    let count = || -> io::Result<bool> {
        let mut file = directory.make_file(BEGUN)?;
        let begun = file.seek(SeekFrom::End(0))?;
        if begun < UNRECORDED {
            file.write_all(b".")?;
            return Ok(false);
        }
        file.set_len(0)?;
        Ok(true)
    };
    count().unwrap_or(false)
}

/// Waits for the pages, and writes them. Without them there is nothing to write, and a failure concerns nobody: the next restore
/// tries again.
#[allow(unsafe_code)]
fn serve(of: &Of, directory: Directory, told: UnixStream) -> io::Result<()> {
    let (directory, path) = directory.into_parts();
    // SAFETY: this process was just forked; what its parent's values own is not used here any more, and they are never dropped,
    // since it ends here.
    let [directory, told] = unsafe { process::keep_only([directory, told.into()]) }?;
    process::close_streams();
    std::env::set_current_dir("/")?;
    footprint::trim();
    let mut bytes = Vec::new();
    let most = (PAGES_MAX * NUMBER_BYTES) as u64;
    UnixStream::from(told).take(most).read_to_end(&mut bytes)?;
    let pages = of.told(&bytes);
    if pages.is_empty() {
        return Ok(());
    }
    let directory = Directory::of_parts(directory, path);
    of.take_strayed(&directory, &pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use testdir::TempDir;

    fn of(key: u8, manifest: &[u8]) -> Of {
        Of { key: Key::of_bytes([key; 32]), manifest: blake3::hash(manifest), end: 1000 }
    }

    #[test]
    fn what_was_written_is_read() {
        let temp = TempDir::new();
        let directory = Directory::open(temp.path()).unwrap();
        let of = of(1, b"a");
        assert!(of.read(&directory).unwrap().is_none());
        // There is no snapshot.
        of.add(&directory, WORKING_SET, &[1]).unwrap();
        assert!(of.read(&directory).unwrap().is_none());
        File::create_new(temp.path().join(MANIFEST)).unwrap();
        for (pages, all) in [
            (&[3, 4 | WRITTEN, 999][..], &[3, 4 | WRITTEN, 999][..]),
            (&[3 | WRITTEN, 4, 7], &[3 | WRITTEN, 4 | WRITTEN, 7, 999]),
        ] {
            File::create(temp.path().join(FRESH)).unwrap();
            of.add(&directory, WORKING_SET, pages).unwrap();
            assert_eq!(of.read(&directory).unwrap().unwrap(), all);
        }
        assert!(!directory.has(FRESH));
        // Sandboxes that see files through it hold it, and another writer is at work.
        let _clone = hold::hold(&directory).unwrap();
        of.add(&directory, WORKING_SET, &[8]).unwrap();
        let all = [3 | WRITTEN, 4 | WRITTEN, 7, 8, 999];
        assert_eq!(of.read(&directory).unwrap().unwrap(), all);
        let other = directory.make_file(FRESH).unwrap();
        other.lock().unwrap();
        of.add(&directory, WORKING_SET, &[9]).unwrap();
        assert_eq!(of.read(&directory).unwrap().unwrap(), all);
    }

    #[test]
    fn one_that_strays_is_added_and_one_that_does_not_is_not() {
        let temp = TempDir::new();
        let directory = Directory::open(temp.path()).unwrap();
        let of = of(1, b"a");
        File::create_new(temp.path().join(MANIFEST)).unwrap();
        let known: Vec<u32> = (0..300).collect();
        of.take_strayed(&directory, &known).unwrap();
        assert_eq!(of.read(&directory).unwrap().unwrap(), known);
        let with = |end: u32| [1 | WRITTEN, 2].into_iter().chain(100..end).collect::<Vec<u32>>();
        of.take_strayed(&directory, &with(300 + 20)).unwrap();
        assert_eq!(of.read(&directory).unwrap().unwrap(), known, "a tenth is no reason");
        of.add(&directory, FILLS, &[7]).unwrap();
        of.take_strayed(&directory, &with(300 + 60)).unwrap();
        let all = of.read(&directory).unwrap().unwrap();
        assert_eq!((all.len(), all[1], all[359]), (360, 1, 359));
        let fills = of.read_file(&directory, FILLS).unwrap().unwrap();
        assert_eq!((fills.len(), fills[0], fills[1]), (61, 7, 300));
        // One that says it has touched everything.
        of.add(&directory, WORKING_SET, &[999]).unwrap();
        of.take_strayed(&directory, &(0..999).collect::<Vec<u32>>()).unwrap();
        let all = of.read(&directory).unwrap().unwrap();
        assert!(all.len() == 2 * 361 && all.contains(&999), "{} pages", all.len());
    }

    #[test]
    fn only_this_keys_and_this_snapshots_is_taken() {
        let good = of(1, b"a").encode(&[3, 4]);
        assert_eq!(of(1, b"a").parse(&good).unwrap(), [3, 4]);
        for other in [of(2, b"a"), of(1, b"b")] {
            assert!(matches!(other.parse(&good), Err(BadWorkingSet::Sealed)));
        }
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(matches!(of(1, b"a").parse(&bytes), Err(BadWorkingSet::Sealed)), "byte {at}");
            assert!(matches!(of(1, b"a").parse(&good[..at]), Err(BadWorkingSet::Sealed)), "{at} bytes");
        }
    }

    #[test]
    fn sealed_nonsense_is_refused() {
        let of = of(1, b"a");
        let sealed = |body: &[u8]| [body, of.seal(body).as_bytes()].concat();
        let body = |count: u32, pages: &[u32]| {
            let head = [&KIND[..], &VERSION.to_le_bytes(), &count.to_le_bytes()].concat();
            [head, pages.iter().flat_map(|page| page.to_le_bytes()).collect()].concat()
        };
        assert_eq!(of.parse(&sealed(&body(2, &[3, 4]))).unwrap(), [3, 4]);
        let bad = [
            body(1, &[3, 4]),
            body(2, &[4, 3]),
            body(2, &[3, 3 | WRITTEN]),
            body(2, &[3, 3]),
            body(1, &[1000]),
            body(3, &[3, 4]),
        ];
        for body in &bad {
            assert!(matches!(of.parse(&sealed(body)), Err(BadWorkingSet::Pages)));
        }
        let mut longer = body(1, &[3]);
        longer.push(0);
        assert!(matches!(of.parse(&sealed(&longer)), Err(BadWorkingSet::Pages)));
        for body in [&b""[..], b"DORMWSET", b"DORMWSET\x01\0\0\0\0\0\0\0", b"DORMPAGE\x01\0\0\0\0\0\0\0"] {
            assert!(matches!(of.parse(&sealed(body)), Err(BadWorkingSet::Version)));
        }
    }

    #[test]
    fn a_vmm_may_say_anything() {
        let of = of(1, b"a");
        let bytes = |pages: &[u32]| pages.iter().flat_map(|page| page.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(of.told(&bytes(&[9, 3 | WRITTEN, 9, 1000, u32::MAX])), [3 | WRITTEN, 9]);
        assert_eq!(of.told(&[1, 2, 3]), [0; 0]);
        let many: Vec<u32> = (0..2 * u32::try_from(PAGES_MAX).unwrap()).collect();
        assert!(of.told(&bytes(&many)).len() <= PAGES_MAX);
    }
}
