//! The snapshots that there are.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::store::Needed;
use serde::Serialize;
use vmm::checkpoint::{ImageFiles, PageKey};
use vmm::directory::Directory;
use vmm::mounts::Changes;
use vmm::process;

use super::bases::Held;
use super::below::Parent;
use super::error::{SnapshotError, Unfit};
use super::files::check;
use super::fit::{Host, check_numbers};
use super::key::Key;
use super::making::{self, Making};
use super::manifest::{FileDigest, Files, LENGTH_MAX, MANIFEST, Manifest};
use super::place::{INDEX, KERNEL, LAYER, ORPHANS, PAGES, Place, RECIPE, TABLE};
use super::prefetch::WorkingSet;
use super::sealing::ContentKey;
use super::sharing::Teller;
use super::working_set;
use super::working_set::{BadWorkingSet, Recording};
use super::{below, hold, layer, sharing};
use crate::settings::NodeConfig;
use crate::state::{Id, Root};

/// Files whose size is told.
const FILES: [&str; 9] = [
    KERNEL,
    PAGES,
    RECIPE,
    TABLE,
    ORPHANS,
    working_set::WORKING_SET,
    working_set::FILLS,
    working_set::TOGETHER,
    INDEX,
];

/// The directory of a user's snapshots, with the key by which they are known.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    /// A fleet's key, which counts in place of the host's own.
    fleet_key: Option<PathBuf>,
}

/// A snapshot that was checked: it is this host's, is whole, and can run here.
#[derive(Debug)]
pub struct Opened {
    pub place: Place,
    pub manifest: Manifest,
    /// To be read only.
    pub files: ImageFiles,
    /// The key by which the pages are sealed, if they are. All other files are in memory then, in the clear.
    pub(crate) page_key: Option<PageKey>,
    /// The changes to files with which what begins with it begins, by paths of the host's; and what keeps them there.
    pub changes: Vec<Changes>,
    _kept: Option<Directory>,
    /// Its pages in memory, if they are held there.
    pub(super) held: Option<Held>,
    pub(super) working_set: WorkingSet,
    /// The way to record one, if it is wanted.
    pub(super) recording: Option<Recording>,
    /// The pages that were seen to come into the page cache when it was recorded; empty: nobody has seen any.
    pub(super) fills: Vec<u32>,
    /// The file to share in place of the snapshot's own, of which nothing is cached: it is being recorded.
    pub(super) cold: Option<File>,
    /// Where it tells what it needs, which it is begun for.
    pub(super) recorded: Option<Arc<Teller>>,
    /// Where all of it is.
    pub(super) directory: Directory,
}

/// A snapshot in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub name: String,
    /// `None`: its manifest cannot be read, or its seal is not by this host's key.
    pub manifest: Option<Manifest>,
    /// Bytes on the disk, among them those of chunks that no other snapshot needs.
    pub disk_bytes: u64,
    /// Bytes on the disk of files, or chunks, that other snapshots have, or had, as well.
    pub below_bytes: u64,
    /// It is in the store of chunks.
    pub is_stored: bool,
}

impl Store {
    /// This user's snapshots, as a node's configuration says.
    pub fn of_user(node: &NodeConfig) -> Result<Self, SnapshotError> {
        Ok(Self::new(Root::default_snapshots()?, node.snapshot_key_file.clone()))
    }

    /// The snapshots in a directory; `fleet_key`: the file of the key by which they are known, if it is not the directory's own.
    #[must_use]
    pub fn new(root: PathBuf, fleet_key: Option<PathBuf>) -> Self {
        Self { root, fleet_key }
    }

    /// The directory of a place.
    fn path(&self, place: &Place) -> PathBuf {
        match place {
            Place::Named(name) => self.root.join(name.as_str()),
            Place::Directory(path) => path.clone(),
        }
    }

    pub(super) fn error(&self, source: io::Error) -> SnapshotError {
        SnapshotError::Store { path: self.root.clone(), source }
    }

    /// The directory of the store, which is made if it is missing.
    pub(super) fn directory(&self) -> Result<Directory, SnapshotError> {
        Directory::make(&self.root).map_err(|source| self.error(source))
    }

    pub(crate) fn key(&self) -> Result<Key, SnapshotError> {
        match &self.fleet_key {
            Some(path) => Key::of_file(path),
            None => Key::of_host(&self.directory()?),
        }
    }

    /// Begins a snapshot, on a parent if it is to have one; its place must be free. `key`: the file of the key that its content is sealed by.
    pub(crate) fn begin(
        &self,
        place: &Place,
        parent: Option<Parent>,
        key: Option<&Path>,
    ) -> Result<Making, SnapshotError> {
        if let Place::Named(_) = place {
            self.directory()?;
        }
        let failed = |source| SnapshotError::Make { place: place.clone(), what: "drawing its key", source };
        let draw = |path: &Path| {
            process::keep_memory();
            ContentKey::draw(&Key::of_file(path)?).map_err(failed)
        };
        Making::begin(place, &self.path(place), parent, key.map(draw).transpose()?)
    }

    /// The directory of a snapshot that is there. It is the caller's, and nobody else may write it.
    pub(super) fn found(&self, place: &Place) -> Result<Directory, SnapshotError> {
        let found = match place {
            Place::Named(name) => {
                Directory::open(&self.root).and_then(|root| root.directory(OsStr::new(name.as_str())))
            }
            Place::Directory(path) => Directory::open(path),
        };
        match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(SnapshotError::Unknown { place: place.clone() })
            }
            found => found.map_err(|error| Unfit::from(error).at(place)),
        }
    }

    /// The manifest of a snapshot, if it was sealed by this host's key.
    pub fn inspect(&self, place: &Place) -> Result<Manifest, SnapshotError> {
        let directory = self.found(place)?;
        let key = self.key()?;
        manifest_in(&directory, &key).map_err(|why| why.at(place))
    }

    /// The digest of the manifest of a snapshot, in words, if it was sealed by this host's key.
    pub fn digest(&self, place: &Place) -> Result<String, SnapshotError> {
        let manifest = self.inspect(place)?;
        let digest = manifest.digest().map_err(|why| why.at(place))?;
        Ok(digest.to_hex().to_string())
    }

    /// Opens a snapshot that another one is to be put on.
    pub(crate) fn parent(&self, place: &Place) -> Result<Parent, SnapshotError> {
        let directory = self.found(place)?;
        let key = self.key()?;
        let open = || {
            let manifest = manifest_in(&directory, &key)?;
            check_numbers(&manifest.head)?;
            Parent::open(place.clone(), directory, &manifest)
        };
        open().map_err(|why| why.at(place))
    }

    /// Opens a snapshot to run it. `key_file`: of the key that its content is sealed by.
    pub fn open(&self, place: &Place, key_file: Option<&Path>) -> Result<Opened, SnapshotError> {
        self.open_on(place, &Host::this(), key_file)
    }

    pub(super) fn open_on(
        &self,
        place: &Place,
        host: &Host,
        key_file: Option<&Path>,
    ) -> Result<Opened, SnapshotError> {
        let directory = self.found(place)?;
        let key = self.key()?;
        let open = || -> Result<(Manifest, ImageFiles, Option<PageKey>), Wrong> {
            let manifest = manifest_in(&directory, &key)?;
            // What cannot run is not read any further.
            host.check(&manifest)?;
            let content = content_key(key_file, &manifest)?;
            let files = self.files_in(&directory, &manifest)?;
            let files = match &content {
                Some(content) => content.open_files(&manifest.head, files)?,
                None => files,
            };
            Ok((manifest, files, content.map(|content| content.of_pages())))
        };
        let (manifest, files, page_key) = open().map_err(|why| why.at(place))?;
        let layer = manifest.files.layer.as_ref();
        let kept = layer.map(|_| hold::hold(&directory)).transpose();
        let kept = kept.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => SnapshotError::Unknown { place: place.clone() },
            _ => Unfit::from(error).at(place),
        })?;
        let path = std::fs::read_link(directory.path_by_descriptor());
        let changes = match layer {
            Some(layer) => path.and_then(|path| layer.changes(&path.join(LAYER))),
            None => Ok(Vec::new()),
        };
        let changes = changes.map_err(|error| Unfit::from(error).at(place))?;
        let of = working_set::Of::new(&manifest, &key).map_err(|why| why.at(place))?;
        let found = of.read(&directory);
        // Of one that is no use nobody needs to hear: the working set serves.
        let fills = of.read_file(&directory, working_set::FILLS).ok().flatten().unwrap_or_default();
        let again = directory.try_clone().map_err(|error| Unfit::from(error).at(place))?;
        let working_set = match found {
            Ok(Some(pages)) => WorkingSet::Recorded(pages),
            Ok(None) => WorkingSet::Missing(None),
            Err(why) => WorkingSet::Missing(Some(why)),
        };
        let recording = Recording::new(of, again);
        Ok(Opened {
            place: place.clone(),
            manifest,
            files,
            page_key,
            changes,
            _kept: kept,
            held: None,
            working_set,
            recording,
            fills,
            cold: None,
            recorded: None,
            directory,
        })
    }

    /// Checks all of a snapshot, page by page, wherever it can run. `key_file`: of the key that its content is sealed by.
    pub fn verify(&self, place: &Place, key_file: Option<&Path>) -> Result<Manifest, SnapshotError> {
        let directory = self.found(place)?;
        let key = self.key()?;
        let check = || -> Result<Manifest, Wrong> {
            let manifest = manifest_in(&directory, &key)?;
            let content = content_key(key_file, &manifest)?;
            let files = self.files_to_read(&directory, &manifest)?;
            verify_pages(files, &manifest, content.as_ref())?;
            verify_layer(&directory, &manifest)?;
            let of = working_set::Of::new(&manifest, &key)?;
            for name in [working_set::WORKING_SET, working_set::FILLS] {
                match of.read_file(&directory, name) {
                    // It is recorded anew.
                    Err(BadWorkingSet::Version) | Ok(_) => {}
                    Err(why) => return Err(Unfit::from(why).into()),
                }
            }
            Ok(manifest)
        };
        check().map_err(|why| why.at(place))
    }

    /// How many pages the recorded working set of a snapshot has; `None`: there is none that counts.
    pub fn working_set_pages(&self, place: &Place) -> Result<Option<usize>, SnapshotError> {
        let directory = self.found(place)?;
        let key = self.key()?;
        let manifest = manifest_in(&directory, &key).map_err(|why| why.at(place))?;
        let of = working_set::Of::new(&manifest, &key).map_err(|why| why.at(place))?;
        Ok(of.read(&directory).ok().flatten().map(|pages| pages.len()))
    }

    /// The snapshots of the store, by name.
    pub fn list(&self) -> Result<Vec<Listed>, SnapshotError> {
        let root = match Directory::open(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            root => root.map_err(|source| self.error(source))?,
        };
        let key = self.key()?;
        let names = root.names().map_err(|source| self.error(source))?;
        let ids = names.iter().filter_map(|name| Id::new(name.to_str()?).ok());
        let chunks = self.needed_chunks();
        let of = |name: Id| {
            let directory = root.directory(OsStr::new(name.as_str())).ok()?;
            let manifest = manifest_in(&directory, &key).ok();
            let files = FILES.iter().map(|name| disk_bytes(&directory, name));
            let shared = sharing::disk_bytes(&directory);
            let below: u64 = below::names().map(|name| disk_bytes(&directory, &name)).sum();
            let layer = manifest.as_ref().and_then(|manifest| manifest.files.layer.as_ref());
            let stored = chunks.get(&name);
            let Needed { unique_bytes, shared_bytes } = stored.copied().unwrap_or_default();
            let own = files.sum::<u64>() + shared + layer.map_or(0, |layer| layer.bytes);
            let (disk_bytes, below_bytes) = (own + unique_bytes, below + shared_bytes);
            let (name, is_stored) = (name.as_str().to_owned(), stored.is_some());
            Some(Listed { name, manifest, disk_bytes, below_bytes, is_stored })
        };
        let mut all: Vec<_> = ids.filter_map(of).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Removes what was to be removed while sandboxes used it, and is used no more.
    pub fn sweep(&self) {
        if let Ok(root) = Directory::open(&self.root) {
            making::remove_abandoned(root.as_fd(), None);
        }
    }

    /// Takes back a snapshot that was made a moment ago, if it is still that one and nobody uses it.
    pub(crate) fn take_back(&self, place: &Place, made: &Manifest) {
        if self.inspect(place).is_ok_and(|found| found == *made) {
            // What stays is a snapshot that nobody was told of.
            let _ = match place {
                Place::Named(name) => self.remove(name),
                Place::Directory(path) => take_back(path).map_err(|source| self.error(source)),
            };
        }
    }

    /// Removes a snapshot from the store. Sandboxes that run on it go on: they have its files open, and what they see files through goes
    /// with the last of them.
    pub fn remove(&self, name: &Id) -> Result<(), SnapshotError> {
        let place = Place::Named(name.clone());
        let failed = |source| SnapshotError::Remove { place: place.clone(), source };
        self.found(&place)?;
        let root = Directory::open(&self.root).map_err(failed)?;
        making::remove(&root, OsStr::new(name.as_str())).map_err(failed)
    }
}

fn take_back(path: &Path) -> io::Result<()> {
    let directory = Directory::open(path)?;
    match making::lock(&directory)? {
        Some(_lock) => making::empty(&directory),
        None => Ok(()),
    }
}

/// Bytes that a file takes up on the disk.
fn disk_bytes(directory: &Directory, name: &str) -> u64 {
    directory.file_to_read(name).map_or(0, |file| making::blocks_of(&file))
}

/// Why a snapshot, or a key for it, cannot be used.
enum Wrong {
    Snapshot(Unfit),
    Key(SnapshotError),
}

impl From<Unfit> for Wrong {
    fn from(why: Unfit) -> Self {
        Self::Snapshot(why)
    }
}

impl From<SnapshotError> for Wrong {
    fn from(error: SnapshotError) -> Self {
        Self::Key(error)
    }
}

impl Wrong {
    fn at(self, place: &Place) -> SnapshotError {
        match self {
            Self::Snapshot(why) => why.at(place),
            Self::Key(error) => error,
        }
    }
}

/// The key of a snapshot's content; `path`: the file of its user's.
fn content_key(path: Option<&Path>, manifest: &Manifest) -> Result<Option<ContentKey>, Wrong> {
    match (path, &manifest.files.sealed) {
        (None, None) => Ok(None),
        (Some(path), Some(by)) => {
            process::keep_memory();
            Ok(Some(ContentKey::find(&Key::of_file(path)?, by)?))
        }
        (None, Some(_)) => Err(Unfit::NeedsKey.into()),
        (Some(_), None) => Err(Unfit::NotSealed.into()),
    }
}

/// Checks the pages of a snapshot, each by its checksum. `content`: the key that they are sealed by, if they are.
pub(super) fn verify_pages(
    files: ImageFiles,
    manifest: &Manifest,
    content: Option<&ContentKey>,
) -> Result<(), Unfit> {
    let files = match content {
        Some(content) => content.open_files(&manifest.head, files)?,
        None => files,
    };
    let page_key = content.map(ContentKey::of_pages);
    Ok(files.verify_pages(&manifest.head, &manifest.files.packed(), page_key.as_ref()).map(drop)?)
}

/// Checks the changes to files that a snapshot has, if it has any.
pub(super) fn verify_layer(directory: &Directory, manifest: &Manifest) -> Result<(), Unfit> {
    let Some(layer) = &manifest.files.layer else { return Ok(()) };
    let copied = directory.directory(OsStr::new(LAYER))?;
    if layer::sum(&copied).map_err(Unfit::Layer)? == layer.digest {
        Ok(())
    } else {
        Err(Unfit::Changed(LAYER.into()))
    }
}

pub(super) fn manifest_in(directory: &Directory, key: &Key) -> Result<Manifest, Unfit> {
    let mut text = Vec::new();
    directory.file_to_read(MANIFEST)?.take(LENGTH_MAX + 1).read_to_end(&mut text)?;
    Manifest::parse(&text, key)
}

impl Store {
    /// The files of a snapshot whose pages are all going to be read, where nothing confines that.
    pub(super) fn files_to_read(
        &self,
        directory: &Directory,
        manifest: &Manifest,
    ) -> Result<ImageFiles, Unfit> {
        check_numbers(&manifest.head)?;
        let files = self.files_in(directory, manifest)?;
        let Files { packed, pages_bytes, below, .. } = &manifest.files;
        if let Some(packed) = packed {
            let said = FileDigest { bytes: *pages_bytes, digest: packed.digest.clone() };
            check(&files.pages, &said, PAGES)?;
        }
        below::check_packed(&files, below)?;
        Ok(files)
    }

    /// The files that a manifest describes, if they are as it says. Pages are looked at when they are read.
    pub(super) fn files_in(&self, directory: &Directory, manifest: &Manifest) -> Result<ImageFiles, Unfit> {
        let open = |name: &str| directory.file_to_read(name);
        let (kernel, pages) = self.kernel_and_pages(directory, manifest)?;
        let below = below::open(directory, &manifest.files.below)?;
        let files =
            ImageFiles { kernel, pages, table: open(TABLE)?, orphans: open(ORPHANS)?, below, together: None };
        check(&files.kernel, &manifest.files.kernel, KERNEL)?;
        check(&files.table, &manifest.files.table, TABLE)?;
        check(&files.orphans, &manifest.files.orphans, ORPHANS)?;
        if files.pages.metadata()?.len() != manifest.files.pages_bytes {
            return Err(Unfit::Changed(PAGES.into()));
        }
        Ok(files)
    }
}

impl Opened {
    /// Further descriptors of its files, for another process, with the pages that are shared or held in place of its own if they are; and
    /// whether they are shared.
    pub fn files(&self, template: Option<&File>) -> io::Result<(ImageFiles, bool)> {
        let mut files = self.files.try_clone()?;
        if let Some(held) = self.held_for(template) {
            (files.pages, files.table) = (held.pages.try_clone()?, held.table.try_clone()?);
            (files.below, files.together) = (Vec::new(), None);
        } else if let Some(template) = template {
            files.pages = template.try_clone()?;
        }
        Ok((files, template.is_some()))
    }

    /// The bundle that the snapshot's container was made from, or the further one of its pod with this name.
    pub fn bundle(&self, further: Option<&str>) -> Result<&Path, SnapshotError> {
        let container = &self.manifest.container;
        let bundle = match further {
            None => &container.bundle,
            Some(name) => &container.needs_further(name).map_err(|why| why.at(&self.place))?.container.bundle,
        };
        if bundle.as_os_str().is_empty() { Err(Unfit::NoBundle.at(&self.place)) } else { Ok(bundle) }
    }

    /// Whether it is of a pod that has a further container of this name.
    #[must_use]
    pub fn has_further(&self, name: &str) -> bool {
        self.manifest.container.needs_further(name).is_ok()
    }

    /// The digest of its manifest, in words.
    pub fn digest(&self) -> Result<String, SnapshotError> {
        let digest = self.manifest.digest().map_err(|why| why.at(&self.place))?;
        Ok(digest.to_hex().to_string())
    }
}
