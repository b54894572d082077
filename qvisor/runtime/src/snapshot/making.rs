//! A snapshot that is being made: its directory, and the files in it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use vmm::checkpoint::{BadImage, BelowFiles, ImageFiles, ImageHead, PageKey, Style};
use vmm::directory::Directory;

use super::below::{self, Parent};
use super::error::SnapshotError;
use super::fit::Host;
use super::hold::is_named;
use super::key::Key;
use super::layer::LayerFiles;
use super::manifest::{
    BelowPages, CpuFeatures, Described, FIRST_VERSION, FileDigest, Files, MANIFEST, Manifest, PackedBy,
    VERSION,
};
use super::place::{
    FRESH_INDEX, FRESH_RECIPE, INDEX, KERNEL, LAYER, MOVED, ORPHANS, PAGES, Place, RECIPE, TABLE,
};
use super::sealing::{self, ContentKey};
use super::sharing::{self, SHARED};
use super::{digest, working_set};
use crate::removal;
use crate::state::Id;
use crate::units::date;

/// Most bytes of a snapshot's name in the name of the directory in which it is made: what follows must fit as well.
const NAME_PART: usize = 200;
/// How often another name is tried.
const TRIES: usize = 64;
/// How often, and how far apart, a snapshot's lock is tried that is being removed.
const RECORDER_TRIES: u32 = 20;
const RECORDER_STEP: Duration = Duration::from_millis(5);
/// Digits of the part of a directory's name that was drawn.
const DIGITS: usize = 12;

/// The names of packed pages and their table until they are whole.
const FRESH_PAGES: &str = ".pages.img";
const FRESH_TABLE: &str = ".pages.table";

/// See the module. Dropped, nothing of it stays.
#[derive(Debug)]
pub struct Making {
    place: Place,
    /// The directory of the snapshot's place, and its name there.
    above: OwnedFd,
    name: OsString,
    /// The name in which it is made, if its place is still free.
    beside: Option<OsString>,
    directory: Directory,
    /// Held as long as its maker lives.
    _lock: File,
    files: ImageFiles,
    /// The snapshot whose pages it has, as far as they are the same.
    parent: Option<Parent>,
    below: Vec<BelowPages>,
    /// The codec that has packed the pages, if they are packed.
    codec: Option<Style>,
    /// The key that seals what comes to the disk; until then the files are in memory.
    key: Option<ContentKey>,
    is_done: bool,
}

/// The files that pages are being packed to.
#[derive(Debug)]
pub(crate) struct PackedFiles {
    pages: File,
    table: File,
}

impl PackedFiles {
    /// Bytes that are written so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        blocks_of(&self.pages)
    }
}

/// The files that a snapshot's content is being sealed to.
#[derive(Debug)]
pub(crate) struct SealedFiles(ImageFiles);

impl SealedFiles {
    /// Bytes that are written so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        blocks_of(&self.0.pages)
    }
}

/// The files of an image, each made by its name.
fn image_files(new: impl Fn(&str) -> io::Result<File>) -> io::Result<ImageFiles> {
    let [kernel, pages] = [new(KERNEL)?, new(PAGES)?];
    Ok(ImageFiles::alone(kernel, pages, new(TABLE)?, new(ORPHANS)?))
}

pub(super) type Step<T> = Result<T, (&'static str, io::Error)>;

impl Making {
    /// Begins a snapshot; what makers that were killed have left there goes.
    pub(super) fn begin(
        place: &Place,
        path: &Path,
        on: Option<Parent>,
        key: Option<ContentKey>,
    ) -> Result<Self, SnapshotError> {
        let failed = |(what, source)| SnapshotError::Make { place: place.clone(), what, source };
        let (above, name) = above_of(path).map_err(|error| failed(("finding its place", error)))?;
        let is_named = matches!(place, Place::Named(_));
        // In a directory that is no store there may be anything.
        remove_abandoned(above.as_fd(), (!is_named).then_some(&*name));
        let (beside, directory, lock) = match Directory::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = make_beside(above.as_fd(), &name);
                let (beside, directory, lock) = made.map_err(|e| failed(("making its directory", e)))?;
                (Some(beside), directory, lock)
            }
            Ok(_) if is_named => return Err(SnapshotError::Exists { place: place.clone() }),
            Ok(directory) => {
                let lock = take_empty(place, &directory)?;
                (None, directory, lock)
            }
            Err(error) => return Err(failed(("opening its directory", error))),
        };
        let files = || {
            on.iter().try_for_each(|on| on.link_to(&directory))?;
            let files = match &key {
                Some(_) => image_files(|_| sealing::in_memory()),
                None => image_files(|name| directory.new_file(name)),
            };
            files.map_err(|error| failed(("making its files", error)))
        };
        match files() {
            Ok(files) => Ok(Self {
                place: place.clone(),
                above,
                name,
                beside,
                directory,
                _lock: lock,
                files,
                parent: on,
                below: Vec::new(),
                codec: None,
                key,
                is_done: false,
            }),
            Err(error) => {
                discard(above.as_fd(), beside.as_deref(), &directory);
                Err(error)
            }
        }
    }

    /// The files to be written.
    #[must_use]
    pub fn files(&self) -> &ImageFiles {
        &self.files
    }

    /// The directory for the changes to files of a sandbox of `dormouse do`, which is made.
    pub(crate) fn make_layer(&self) -> Result<Directory, SnapshotError> {
        let made = self.directory.make_directory(OsStr::new(LAYER));
        made.map_err(|source| SnapshotError::Make {
            place: self.place.clone(),
            what: "making its layer",
            source,
        })
    }

    /// Bytes that its files take up so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        let ImageFiles { kernel, pages, table, orphans, .. } = &self.files;
        [kernel, pages, table, orphans].into_iter().map(blocks_of).sum()
    }

    fn failed(&self, what: &'static str, source: io::Error) -> SnapshotError {
        SnapshotError::Make { place: self.place.clone(), what, source }
    }

    /// The files of its parent, if it has one, that pages may be left to.
    pub(crate) fn parent(&self) -> &[BelowFiles] {
        self.parent.as_ref().map_or(&[], Parent::files)
    }

    /// Its pages are written, and some of them left to these of its parent's files.
    pub(crate) fn take_below(&mut self, places: &[usize]) -> Result<(), SnapshotError> {
        let what = "taking pages of its parent";
        let Some(parent) = &self.parent else {
            let is_none = places.is_empty();
            return if is_none { Ok(()) } else { Err(self.failed(what, io::ErrorKind::InvalidData.into())) };
        };
        let used = parent.used(places).unwrap_or_else(|| Err(io::ErrorKind::InvalidData.into()));
        let (said, files) = used.map_err(|error| self.failed(what, error))?;
        parent.unlink_from(&self.directory, places).map_err(|error| self.failed(what, error))?;
        (self.below, self.files.below) = (said, files);
        Ok(())
    }

    /// Files for packed pages.
    pub(crate) fn begin_packing(&self) -> Result<PackedFiles, SnapshotError> {
        let new =
            |name| self.directory.new_file(name).map_err(|error| self.failed("making its files", error));
        Ok(PackedFiles { pages: new(FRESH_PAGES)?, table: new(FRESH_TABLE)? })
    }

    /// Packs the pages, which are all written. Result: whether its own file has any.
    pub(crate) fn pack(
        &self,
        head: &ImageHead,
        style: Style,
        to: &PackedFiles,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool, SnapshotError> {
        // They are a VMM's words, and memory is taken here by them.
        Host::this().check_sizes(head).map_err(|why| why.at(&self.place))?;
        self.pack_by(head, (style, None), (&to.pages, &to.table), goes_on)
    }

    fn pack_by(
        &self,
        head: &ImageHead,
        how: (Style, Option<&PageKey>),
        to: (&File, &File),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool, SnapshotError> {
        self.files.pack(head, how, to, goes_on).map_err(|error| match error {
            BadImage::File(source) => self.failed("packing its pages", source),
            error => self.failed("packing its pages", io::Error::other(error)),
        })
    }

    /// Whether what comes to the disk is to be sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        self.key.is_some()
    }

    /// Files for what is to be sealed.
    pub(crate) fn begin_sealing(&self) -> Result<SealedFiles, SnapshotError> {
        let files = image_files(|name| self.directory.new_file(name));
        files.map(SealedFiles).map_err(|error| self.failed("making its files", error))
    }

    /// Seals all files, which are written, the pages packed. Result: whether there are any.
    pub(crate) fn seal(
        &self,
        head: &ImageHead,
        style: Style,
        SealedFiles(to): &SealedFiles,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool, SnapshotError> {
        let what = "sealing its content";
        let Some(key) = &self.key else { return Err(self.failed(what, io::ErrorKind::Unsupported.into())) };
        // They are a VMM's words, and memory is taken here by them.
        Host::this().check_sizes(head).map_err(|why| why.at(&self.place))?;
        let failed = |error| self.failed(what, error);
        let table = sealing::in_memory().map_err(failed)?;
        let has_pages = self.pack_by(head, (style, Some(&key.of_pages())), (&to.pages, &table), goes_on)?;
        let seal = |what, from, to| key.seal(what, from, to, goes_on).map_err(failed);
        seal((TABLE, sealing::table_most(head)), &table, &to.table)?;
        seal((KERNEL, sealing::kernel_most(head)), &self.files.kernel, &to.kernel)?;
        seal((ORPHANS, sealing::ORPHANS_MOST), &self.files.orphans, &to.orphans)?;
        Ok(has_pages)
    }

    /// Sealed files take the place of those in memory.
    pub(crate) fn take_sealed(&mut self, style: Option<Style>, SealedFiles(files): SealedFiles) {
        (self.files, self.codec) = (files, style);
    }

    /// There were none to be packed.
    pub(crate) fn leave_unpacked(&self) -> Result<(), SnapshotError> {
        let removed = [FRESH_PAGES, FRESH_TABLE].iter().try_for_each(|name| self.directory.remove_file(name));
        removed.map_err(|error| self.failed("removing its files", error))
    }

    /// Packed pages take the place of the others.
    pub(crate) fn take_packed(&mut self, style: Style, packed: PackedFiles) -> Result<(), SnapshotError> {
        let renamed = self
            .directory
            .rename(FRESH_PAGES, PAGES)
            .and_then(|()| self.directory.rename(FRESH_TABLE, TABLE));
        renamed.map_err(|error| self.failed("putting its packed pages in their place", error))?;
        (self.files.pages, self.files.table, self.codec) = (packed.pages, packed.table, Some(style));
        Ok(())
    }

    /// Brings all of it to the disk, and then to its place.
    pub(crate) fn commit(
        mut self,
        head: ImageHead,
        container: Described,
        layer: Option<LayerFiles>,
        key: &Key,
    ) -> Result<Manifest, SnapshotError> {
        let place = self.place.clone();
        let failed = |(what, source)| SnapshotError::Make { place: place.clone(), what, source };
        // They are a VMM's words, and nothing is sealed that whoever opens it could not bear.
        let host = Host::this();
        host.check_sizes(&head).map_err(|why| why.at(&place))?;
        let manifest = self.describe(head, container, layer, host.processor).map_err(failed)?;
        let text = manifest.sealed_by(key);
        let text = text.map_err(|why| SnapshotError::Unfit { place: place.clone(), why })?;
        write_manifest(&self.directory, &text).map_err(failed)?;
        if let Some(beside) = &self.beside {
            match rename_new(self.above.as_fd(), beside, &self.name) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {
                    return Err(SnapshotError::Exists { place });
                }
                renamed => renamed.map_err(|error| failed(("putting it in its place", error.into())))?,
            }
        }
        self.is_done = true;
        fs::fsync(&self.above).map_err(|error| failed(("bringing it to the disk", error.into())))?;
        Ok(manifest)
    }

    /// The manifest of what the files hold now, which is on the disk then.
    fn describe(
        &self,
        head: ImageHead,
        container: Described,
        layer: Option<LayerFiles>,
        processor: CpuFeatures,
    ) -> Step<Manifest> {
        let ImageFiles { kernel, pages, table, orphans, .. } = &self.files;
        let sync = |file: &File| file.sync_all().map_err(|error| ("bringing it to the disk", error));
        [kernel, pages, table, orphans].into_iter().try_for_each(sync)?;
        let describe = |file: &File| -> io::Result<FileDigest> {
            let digest = digest::of(file)?.to_hex().to_string();
            Ok(FileDigest { bytes: file.metadata()?.len(), digest })
        };
        let files = || -> io::Result<Files> {
            let pages_bytes = pages.metadata()?.len();
            let [kernel, table, orphans] = [describe(kernel)?, describe(table)?, describe(orphans)?];
            let packed = self.codec.map(|style| -> io::Result<PackedBy> {
                Ok(PackedBy { codec: style.to_string(), digest: describe(pages)?.digest })
            });
            let (below, packed) = (self.below.clone(), packed.transpose()?);
            let sealed = self.key.as_ref().map(|key| key.by().clone());
            Ok(Files { kernel, table, orphans, pages_bytes, packed, sealed, below, layer })
        };
        let files = files().map_err(|error| ("reading its files", error))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Manifest {
            version: if self.key.is_some() || !self.below.is_empty() { VERSION } else { FIRST_VERSION },
            created: date(now.as_secs()),
            created_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            head,
            container,
            processor,
            files,
        })
    }
}

/// Writes the manifest, by which a directory becomes a snapshot.
pub(super) fn write_manifest(directory: &Directory, text: &[u8]) -> Step<()> {
    let fresh = format!(".{MANIFEST}");
    let write = || -> io::Result<()> {
        let mut file = directory.new_file(&fresh)?;
        io::Write::write_all(&mut file, text)?;
        file.sync_all()?;
        fs::fsync(directory)?;
        directory.rename(&fresh, MANIFEST)?;
        Ok(fs::fsync(directory)?)
    };
    write().map_err(|error| ("writing its manifest", error))
}

impl Drop for Making {
    fn drop(&mut self) {
        if !self.is_done {
            discard(self.above.as_fd(), self.beside.as_deref(), &self.directory);
        }
    }
}

/// Bytes that a file takes up on the disk.
pub(super) fn blocks_of(file: &File) -> u64 {
    file.metadata().map_or(0, |found| found.blocks() * 512)
}

/// The directory above, whoever's it is, and the name in it.
pub(super) fn above_of(path: &Path) -> io::Result<(OwnedFd, OsString)> {
    let path = std::path::absolute(path)?;
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?.to_owned();
    let above = path.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((fs::open(above, flags, Mode::empty())?, name))
}

/// The beginning of the names in which a snapshot is made.
fn beginning_of(name: &OsStr) -> Vec<u8> {
    let bytes = name.as_encoded_bytes();
    [b".", bytes.get(..bytes.len().min(NAME_PART)).unwrap_or_default(), b"."].concat()
}

/// Makes a directory of a new name. Whoever removes what was left takes the lock first, and may be faster; then another one is
/// made.
pub(super) fn make_beside(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<(OsString, Directory, File)> {
    for _ in 0..TRIES {
        let drawn = Id::random();
        let beside = OsString::from_vec([&*beginning_of(name), drawn.as_str().as_bytes()].concat());
        match fs::mkdirat(parent, &beside, Mode::RWXU) {
            Err(Errno::EXIST) => continue,
            made => made?,
        }
        let Ok(directory) = open_in(parent, &beside) else { continue };
        if let Some(lock) = lock(&directory)?
            && is_named(parent, &beside, &directory)
        {
            return Ok((beside, directory, lock));
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// A directory of the caller's in one that may be somebody else's.
pub(super) fn open_in(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<Directory> {
    Directory::open(&PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name))
}

/// The lock of a directory; `None`: somebody else has it.
pub(super) fn lock(directory: &Directory) -> io::Result<Option<File>> {
    let lock = File::from(directory.as_fd().try_clone_to_owned()?);
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Takes a directory that is to become the snapshot, if it is empty but for what a maker has left that was killed.
fn take_empty(place: &Place, directory: &Directory) -> Result<File, SnapshotError> {
    let failed = |source| SnapshotError::Make { place: place.clone(), what: "opening its directory", source };
    let Some(lock) = lock(directory).map_err(failed)? else {
        return Err(SnapshotError::NotEmpty { place: place.clone() });
    };
    let is_ours = |name: &OsString| {
        OURS.iter().chain([&LAYER, &SHARED, &MOVED]).any(|ours| name.as_os_str() == *ours)
            || below::names().any(|ours| *name == *ours)
    };
    let names = directory.names().map_err(failed)?;
    if directory.has(MANIFEST) {
        return Err(SnapshotError::Exists { place: place.clone() });
    }
    if !names.iter().all(is_ours) {
        return Err(SnapshotError::NotEmpty { place: place.clone() });
    }
    empty(directory).map_err(failed)?;
    Ok(lock)
}

/// The files of a snapshot, the last to go first: without a manifest a directory is none.
const OURS: [&str; 18] = [
    MANIFEST,
    ".manifest.json",
    KERNEL,
    PAGES,
    TABLE,
    ORPHANS,
    FRESH_PAGES,
    FRESH_TABLE,
    working_set::FRESH,
    working_set::WORKING_SET,
    working_set::FILLS,
    working_set::BEGUN,
    working_set::TOGETHER,
    working_set::FRESH_TOGETHER,
    INDEX,
    FRESH_INDEX,
    RECIPE,
    FRESH_RECIPE,
];

/// Removes the files of a snapshot.
pub(super) fn empty(directory: &Directory) -> io::Result<()> {
    empty_but_directories(directory)?;
    [LAYER, MOVED].into_iter().try_for_each(|name| remove_tree(directory, name))?;
    // Last: what somebody has put there stays, and so does the directory.
    sharing::empty(directory)
}

/// Removes a directory of a snapshot with all that is in it, if it is there.
pub(super) fn remove_tree(directory: &Directory, name: &str) -> io::Result<()> {
    match directory.directory(OsStr::new(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        tree => {
            removal::empty(tree?.as_fd(), "").map_err(|left| left.source)?;
            directory.remove_directory(OsStr::new(name))
        }
    }
}

fn empty_but_directories(directory: &Directory) -> io::Result<()> {
    for name in OURS.into_iter().map(str::to_owned).chain(below::names()) {
        match directory.remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes what was made, and its directory if that was made for it. The lock is held.
pub(super) fn discard(parent: BorrowedFd<'_>, beside: Option<&OsStr>, directory: &Directory) {
    // What stays is removed by the next maker.
    let _ = empty(directory);
    if let Some(beside) = beside {
        let _ = fs::unlinkat(parent, beside, AtFlags::REMOVEDIR);
    }
}

/// Removes directories in which snapshots were made, or from which they were to be removed, and whose makers and users are gone. `of`: only
/// such of this name.
pub(super) fn remove_abandoned(parent: BorrowedFd<'_>, of: Option<&OsStr>) {
    let Ok(entries) = fs::Dir::read_from(parent) else { return };
    for entry in entries.flatten() {
        let name = OsStr::new(std::str::from_utf8(entry.file_name().to_bytes()).unwrap_or_default());
        if is_of_maker(name, of)
            && let Ok(directory) = open_in(parent, name)
            && let Ok(Some(_lock)) = lock(&directory)
            // Its maker may have given it its own name just before it let go.
            && is_named(parent, name, &directory)
        {
            discard(parent, Some(name), &directory);
        }
    }
}

/// Whether a name is one that [`make_beside`] gives; `of`: for a snapshot of this name.
pub(super) fn is_of_maker(name: &OsStr, of: Option<&OsStr>) -> bool {
    let name = name.as_encoded_bytes();
    let Some((start, drawn)) = name.split_at_checked(name.len().saturating_sub(DIGITS)) else { return false };
    let is_drawn = drawn.len() == DIGITS && drawn.iter().all(u8::is_ascii_hexdigit);
    let begins = match of {
        Some(of) => start == beginning_of(of),
        None => start.starts_with(b".") && start.ends_with(b".") && start.len() > 2,
    };
    is_drawn && begins
}

/// Renames an entry of a directory to a name that is free.
pub(super) fn rename_new(parent: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> rustix::io::Result<()> {
    match fs::renameat_with(parent, from, parent, to, RenameFlags::NOREPLACE) {
        // A file system that cannot refuse to replace: only an empty directory can be in the way there.
        Err(Errno::INVAL | Errno::NOSYS) => fs::renameat(parent, from, parent, to),
        renamed => renamed,
    }
}

/// Removes a snapshot of the store: first its name, then its files. Those that a sandbox sees its root through stay until it has ended
/// ([`remove_abandoned`]).
pub(super) fn remove(store: &Directory, name: &OsStr) -> io::Result<()> {
    let directory = store.directory(name)?;
    let mut held = lock(&directory)?;
    let drawn = Id::random();
    let hidden = OsString::from_vec([&*beginning_of(name), drawn.as_str().as_bytes()].concat());
    rename_new(store.as_fd(), name, &hidden)?;
    fs::fsync(store)?;
    // Whoever records its working set lets go soon; who sees files through it does not.
    for _ in 0..RECORDER_TRIES {
        if held.is_none() {
            thread::sleep(RECORDER_STEP);
            held = lock(&directory)?;
        }
    }
    if held.is_none() {
        // Who runs on them has them open.
        return empty_but_directories(&directory);
    }
    empty(&directory)?;
    store.remove_directory(&hidden)
}
