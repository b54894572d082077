//! Pushing: snapshots to a layout, or one to a tar file of such.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;

use ::store::{Chunking, Recipe, Writer as ChunkWriter};
use rustix::fs;
use rustix::io::Errno;
use vmm::checkpoint::{ImageFiles, Style};
use vmm::directory::Directory;

use super::super::error::{SnapshotError, Unfit};
use super::super::layer;
use super::super::making;
use super::super::manifest::{MANIFEST, Manifest};
use super::super::place::{LAYER, ORPHANS, Place, RECIPE, TABLE};
use super::super::store::{Store, manifest_in};
use super::super::stored::{self, Failed};
use super::super::tar::{Head, Kind, Writer};
use super::super::{hold, working_set};
use super::artefact::{Descriptor, MANIFEST_MAX, Parts, config};
use super::blobs::{ALGORITHM, BLOBS, INDEX, LAYOUT};
use super::error::MoveError;
use super::layout::{Hashing, Layout, domain};
use crate::removal;
use crate::state::Id;

/// The tar file while it is written, and the layout that it is made of, beside each other.
const ARCHIVE: &str = "archive";
const BESIDE: &str = "layout";

/// A snapshot that was pushed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pushed {
    /// Bytes of data that it has.
    pub bytes: u64,
    /// Bytes of blobs that were not there.
    pub added_bytes: u64,
    /// It was there already, by this name.
    pub was_there: bool,
}

/// A snapshot that is there, and is not removed meanwhile.
struct Ready {
    directory: Directory,
    manifest: Manifest,
    /// The manifest's file.
    text: Vec<u8>,
    files: ImageFiles,
}

impl Store {
    /// Pushes a snapshot to the layout in a directory, which is made if it is missing; chunks are packed by `style`.
    pub fn push(&self, name: &Id, to: &Path, style: Style) -> Result<Pushed, SnapshotError> {
        let push = || {
            let ready = self.ready(name)?;
            let mut layout = Layout::open(to)?;
            ready.write(&mut layout, name, style)
        };
        push().map_err(|why| why.at(|| format!("push {} to {}", name.as_str(), to.display())))
    }

    /// Writes a snapshot to a new tar file, which is a layout that has it alone. The same snapshot gives the same file.
    pub fn export(&self, name: &Id, to: &Path, style: Style) -> Result<Pushed, SnapshotError> {
        let export = || {
            let ready = self.ready(name)?;
            let (above, file) = making::above_of(to).map_err(MoveError::io("finding its place"))?;
            if fs::statat(&above, &file, fs::AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return Err(MoveError::FileExists);
            }
            sweep(&above, &file);
            let made = making::make_beside(above.as_fd(), &file);
            let (beside, directory, _lock) = made.map_err(MoveError::io("making a directory beside it"))?;
            let exported = ready.export(&directory, name, style).and_then(|pushed| {
                match move_new(&directory, &above, &file) {
                    Err(Errno::EXIST) => Err(MoveError::FileExists),
                    moved => moved.map(|()| pushed).map_err(|error| MoveError::Io {
                        what: "putting it in its place",
                        source: error.into(),
                    }),
                }
            });
            // What stays is removed by the next one of this name.
            let _ = removal::empty(directory.as_fd(), "");
            let _ = fs::unlinkat(&above, &beside, fs::AtFlags::REMOVEDIR);
            exported.and_then(|pushed| {
                fs::fsync(&above).map_err(|error| MoveError::Io {
                    what: "bringing it to the disk",
                    source: error.into(),
                })?;
                Ok(pushed)
            })
        };
        export().map_err(|why| why.at(|| format!("export {} to {}", name.as_str(), to.display())))
    }

    fn ready(&self, name: &Id) -> Result<Ready, MoveError> {
        let place = Place::Named(name.clone());
        let directory = self.found(&place)?;
        let key = self.key()?;
        let ready = || -> Result<Ready, MoveError> {
            let directory = hold::hold(&directory).map_err(Unfit::from)?;
            let manifest = manifest_in(&directory, &key)?;
            if !manifest.files.below.is_empty() {
                return Err(MoveError::Below);
            }
            let files = self.files_in(&directory, &manifest)?;
            Ok(Ready { text: manifest.sealed_by(&key)?, directory, manifest, files })
        };
        ready()
    }
}

/// Gives the tar file its name, which is free.
fn move_new(from: &Directory, above: impl AsFd, name: &OsStr) -> rustix::io::Result<()> {
    match fs::renameat_with(from, ARCHIVE, &above, name, fs::RenameFlags::NOREPLACE) {
        // A file system that cannot refuse to replace, as NFS: a link never replaces.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::linkat(from, ARCHIVE, &above, name, fs::AtFlags::empty())?;
            fs::unlinkat(from, ARCHIVE, fs::AtFlags::empty())
        }
        moved => moved,
    }
}

/// Whether a directory has nothing but what an export makes there: whoever owns the one above it may have given another directory its name.
fn is_of_export(directory: &Directory) -> bool {
    directory.names().is_ok_and(|names| names.iter().all(|name| *name == *ARCHIVE || *name == *BESIDE))
}

/// Removes what exports to a file of this name left that were killed.
fn sweep(above: impl AsFd, name: &OsStr) {
    let Ok(entries) = fs::Dir::read_from(&above) else { return };
    for entry in entries.flatten() {
        let found = OsStr::new(std::str::from_utf8(entry.file_name().to_bytes()).unwrap_or_default());
        if making::is_of_maker(found, Some(name))
            && let Ok(directory) = making::open_in(above.as_fd(), found)
            && let Ok(Some(_lock)) = making::lock(&directory)
            && hold::is_named(&above, found, &directory)
            && is_of_export(&directory)
            && removal::empty(directory.as_fd(), "").is_ok()
        {
            let _ = fs::unlinkat(&above, found, fs::AtFlags::REMOVEDIR);
        }
    }
}

impl Ready {
    fn write(&self, layout: &mut Layout, name: &Id, style: Style) -> Result<Pushed, MoveError> {
        layout.check_free(name)?;
        let chunks = layout.chunks.clone();
        let mut writer = ChunkWriter::begin(&chunks, &domain(), Chunking::default(), style)?;
        let lengths = stored::add_files(&mut writer, &self.files, &self.manifest, true);
        let lengths = lengths.map_err(|why| match why {
            Failed::Unfit(why) => why.into(),
            Failed::Chunks(error) => error.into(),
            Failed::File(source) => MoveError::Io { what: "reading it", source },
        })?;
        let written = writer.end(&lengths)?;
        let mut parts = Parts {
            config: Descriptor::of_config(b""),
            files: Descriptor::of_config(b""),
            dblocks: std::collections::BTreeMap::new(),
        };
        for number in written.recipe.dblocks() {
            let dblock = layout.add_dblock(number)?;
            parts.dblocks.insert(number, Descriptor::of_dblock(number, dblock));
        }
        let (listed, digest, bytes) = layout.add(|to| self.write_files(&written.recipe, to))?;
        parts.files = Descriptor::of_files((digest, bytes));
        let config = config(&listed);
        parts.config = Descriptor::of_config(&config);
        layout.add_bytes(&config)?;
        let manifest = parts
            .manifest(&self.manifest)
            .map_err(|error| MoveError::Damaged { of: "manifest", why: error.to_string() })?;
        if manifest.len() as u64 > MANIFEST_MAX {
            return Err(MoveError::TooLarge { of: "manifest", most: MANIFEST_MAX });
        }
        let manifest = layout.add_bytes(&manifest)?;
        let was_there = layout.put(name, manifest)?;
        Ok(Pushed { bytes: written.recipe.bytes(), added_bytes: layout.added_bytes, was_there })
    }

    /// Writes the small files, the manifest first. Result: their names and lengths.
    fn write_files(&self, recipe: &Recipe, to: Hashing) -> Result<(Vec<(String, u64)>, Hashing), MoveError> {
        let failed = MoveError::io("writing its small files");
        let (mut tar, mut listed) = (Writer::new(to), Vec::new());
        for (name, bytes) in [(MANIFEST, &self.text), (RECIPE, &recipe.encode())] {
            tar.entry(Head::of_file(name), bytes).map_err(&failed)?;
            listed.push((name.to_owned(), bytes.len() as u64));
        }
        let sets = [working_set::WORKING_SET, working_set::FILLS]
            .map(|name| (name, self.directory.file_to_read(name).ok()));
        let files = [(TABLE, &self.files.table), (ORPHANS, &self.files.orphans)];
        let sets = sets.iter().filter_map(|(name, file)| Some((*name, file.as_ref()?)));
        for (name, file) in files.into_iter().chain(sets) {
            tar.file(Head::of_file(name), file).map_err(&failed)?;
            listed.push((name.to_owned(), file.metadata().map_err(&failed)?.len()));
        }
        if let Some(files) = &self.manifest.files.layer {
            let copied = self.directory.directory(OsStr::new(LAYER)).map_err(&failed)?;
            layer::pack(&copied, LAYER, &mut tar)?;
            listed.push((LAYER.to_owned(), files.bytes));
        }
        Ok((listed, tar.end().map_err(failed)?))
    }

    /// Makes a layout in a directory, and a tar file of it.
    fn export(&self, directory: &Directory, name: &Id, style: Style) -> Result<Pushed, MoveError> {
        let beside = directory.make_directory(OsStr::new(BESIDE));
        let mut layout = Layout::of(beside.map_err(MoveError::io("making a directory beside it"))?)?;
        let mut pushed = self.write(&mut layout, name, style)?;
        let file = directory.new_file(ARCHIVE).map_err(MoveError::io("making it"))?;
        write_archive(&layout, name, &file)?;
        pushed.added_bytes = file.metadata().map_err(MoveError::io("looking at it"))?.len();
        Ok(pushed)
    }
}

/// Writes the files of a layout that has one snapshot, in an order of their own.
fn write_archive(layout: &Layout, name: &Id, to: &File) -> Result<(), MoveError> {
    let failed = MoveError::io("writing it");
    let blobs = layout.blobs()?;
    let parts = blobs.parts(&blobs.named(name)?)?.ok_or(MoveError::NoSnapshot)?;
    let mut tar = Writer::new(BufWriter::with_capacity(1 << 20, to));
    for file in [LAYOUT, INDEX] {
        let bytes = layout.read(file).map_err(&failed)?;
        tar.entry(Head::of_file(file), &bytes).map_err(&failed)?;
    }
    for directory in [BLOBS.to_owned(), format!("{BLOBS}/{ALGORITHM}")] {
        tar.head(&Head { kind: Kind::Directory, mode: 0o700, ..Head::of_file(&directory) })
            .map_err(&failed)?;
    }
    let all = layout.index.manifests().chain([parts.config, parts.files]).chain(parts.dblocks.into_values());
    for of in all {
        let blob = blobs.blob(&of)?;
        let head =
            Head { bytes: of.size, ..Head::of_file(&format!("{BLOBS}/{ALGORITHM}/{}", of.digest.hex())) };
        tar.entry_from(&head, blob.reader()).map_err(&failed)?;
    }
    let mut written = tar.end().map_err(&failed)?;
    written.flush().and_then(|()| to.sync_all()).map_err(failed)
}
