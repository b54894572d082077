//! A snapshot that comes from another host: its directory, which is a snapshot once all of it was checked.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use ::store::{Recipe, Store as Chunks};
use rustix::fs;
use rustix::io::Errno;
use vmm::directory::Directory;

use super::super::error::{SnapshotError, Unfit};
use super::super::fit::Host;
use super::super::key::Key;
use super::super::layer::Unpacker;
use super::super::manifest::Manifest;
use super::super::place::{KERNEL, LAYER, MOVED, ORPHANS, PAGES, Place, RECIPE, TABLE};
use super::super::store::Store;
use super::super::stored::{self, RECIPE_MAX};
use super::super::tar::{Head, Kind, Reader};
use super::super::working_set::{self, BadWorkingSet};
use super::super::{making, store};
use super::artefact::Parts;
use super::blobs::Blobs;
use super::error::MoveError;
use crate::state::Id;

/// See the module. Dropped, nothing of it stays.
pub(super) struct Arriving {
    place: Place,
    name: OsString,
    root: Directory,
    /// The name in which it is made.
    beside: OsString,
    directory: Directory,
    /// Held as long as its maker lives.
    _lock: File,
    is_done: bool,
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if !self.is_done {
            making::discard(self.root.as_fd(), Some(&self.beside), &self.directory);
        }
    }
}

/// The small files that are no files of the directory yet.
#[derive(Default)]
pub(super) struct Small {
    recipe: Option<Recipe>,
    sets: BTreeMap<&'static str, Vec<u8>>,
}

impl Arriving {
    /// Begins one of the store, whose name must be free; what makers that were killed have left there goes.
    pub fn begin(store: &Store, name: &Id) -> Result<Self, MoveError> {
        let (place, root) = (Place::Named(name.clone()), store.directory()?);
        making::remove_abandoned(root.as_fd(), None);
        if root.has(name.as_str()) {
            return Err(SnapshotError::Exists { place }.into());
        }
        let name = OsString::from(name.as_str());
        let made = making::make_beside(root.as_fd(), &name);
        let (beside, directory, lock) = made.map_err(MoveError::io("making its directory"))?;
        Ok(Self { place, name, root, beside, directory, _lock: lock, is_done: false })
    }

    /// Takes the small files behind the manifest, each of which is as long as that says.
    pub fn take_files<R: Read>(&self, manifest: &Manifest, from: &mut Reader<R>) -> Result<Small, MoveError> {
        let failed = MoveError::io("taking its small files");
        let (mut small, mut layer) = (Small::default(), None);
        while let Some(head) = from.next().map_err(&failed)? {
            let name = std::str::from_utf8(&head.path).unwrap_or_default();
            let file = |name: &str, most: u64, from: &mut Reader<R>| {
                from.file(&head, &self.directory.new_file(name)?, most)
            };
            let mut set = |name, from: &mut Reader<R>| {
                let bytes = from.all(working_set::LENGTH_MAX as u64)?;
                small.sets.insert(name, bytes);
                Ok(())
            };
            let taken = match name {
                _ if head.path.starts_with(b"layer/") => match &mut layer {
                    Some(unpacker) => Unpacker::take(unpacker, head, from),
                    None => Err(unknown(&head)),
                },
                LAYER if manifest.files.layer.is_some() && layer.is_none() => {
                    Unpacker::begin(&self.directory, LAYER, head).map(|begun| layer = Some(begun))
                }
                _ if head.kind != Kind::File => Err(unknown(&head)),
                TABLE => file(TABLE, manifest.files.table.bytes, from),
                ORPHANS => file(ORPHANS, manifest.files.orphans.bytes, from),
                working_set::WORKING_SET => set(working_set::WORKING_SET, from),
                working_set::FILLS => set(working_set::FILLS, from),
                RECIPE => {
                    small.recipe = Some(Recipe::decode(&from.all(RECIPE_MAX).map_err(&failed)?)?);
                    Ok(())
                }
                _ => Err(unknown(&head)),
            };
            taken.map_err(&failed)?;
        }
        layer.map_or(Ok(()), Unpacker::end).map_err(failed)?;
        Ok(small)
    }

    /// Brings the kernel's memory and the pages, from dblocks that were compared with their digests.
    pub fn take_chunks(
        &self,
        manifest: &Manifest,
        small: &Small,
        (blobs, parts): (&Blobs, &Parts),
    ) -> Result<(), MoveError> {
        let recipe = small.recipe.as_ref().ok_or(MoveError::Lacks("a recipe"))?;
        // Before room is taken for it.
        Host::this().check_sizes(&manifest.head)?;
        stored::check_lengths(recipe, manifest)?;
        let failed = MoveError::io("taking its chunks");
        let room = self.directory.make_directory(OsStr::new(MOVED)).map_err(&failed)?;
        let mut paths: BTreeMap<u32, PathBuf> = BTreeMap::new();
        for number in recipe.dblocks() {
            let dblock = parts.dblocks.get(&number);
            let dblock = dblock.ok_or(MoveError::Lacks("a dblock that its recipe needs"))?;
            paths.insert(number, blobs.path(dblock, &room)?);
        }
        let new = |name| self.directory.new_file(name).map_err(&failed);
        let brought = stored::bring(&Chunks::of_files(paths), recipe, &new(KERNEL)?, &new(PAGES)?);
        brought.map_err(|why| match why {
            // They are in no store of this host's.
            Unfit::Chunks(error) => MoveError::Chunks(error),
            why => why.into(),
        })?;
        making::remove_tree(&self.directory, MOVED).map_err(&failed)
    }

    /// Compares all that has come with the manifest: pages by their checksums, or as a file, if they are sealed by a key that is not here.
    pub fn verify(&self, store: &Store, manifest: &Manifest) -> Result<(), MoveError> {
        let files = store.files_to_read(&self.directory, manifest)?;
        let says = &manifest.files;
        if says.sealed.is_none() {
            store::verify_pages(files, manifest, None)?;
        } else if says.packed.is_none() && says.pages_bytes > 0 {
            return Err(Unfit::Changed(PAGES.into()).into());
        }
        Ok(store::verify_layer(&self.directory, manifest)?)
    }

    /// Makes it a snapshot that is known by this key. `is_trusted`: whoever sealed its working set.
    pub fn end(
        mut self,
        manifest: &Manifest,
        small: &Small,
        (key, is_trusted): (&Key, bool),
    ) -> Result<(), MoveError> {
        let failed = MoveError::io("bringing it to the disk");
        let of = working_set::Of::new(manifest, key)?;
        for (name, bytes) in &small.sets {
            match of.moved(bytes, is_trusted) {
                // It is recorded anew.
                Err(BadWorkingSet::Version) => {}
                bytes => {
                    let bytes = bytes.map_err(Unfit::from)?;
                    let file = self.directory.new_file(name);
                    file.and_then(|mut file| file.write_all(&bytes)).map_err(&failed)?;
                }
            }
        }
        fs::syncfs(&self.directory).map_err(io::Error::from).map_err(&failed)?;
        let text = manifest.sealed_by(key)?;
        let written = making::write_manifest(&self.directory, &text);
        written.map_err(|(what, source)| MoveError::Io { what, source })?;
        match making::rename_new(self.root.as_fd(), &self.beside, &self.name) {
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {
                return Err(SnapshotError::Exists { place: self.place.clone() }.into());
            }
            renamed => renamed.map_err(io::Error::from).map_err(&failed)?,
        }
        self.is_done = true;
        fs::fsync(self.root.as_fd()).map_err(io::Error::from).map_err(failed)
    }
}

fn unknown(head: &Head) -> io::Error {
    let name = String::from_utf8_lossy(&head.path).escape_debug().take(80).collect::<String>();
    io::Error::new(io::ErrorKind::InvalidData, format!("no snapshot has a file {name}"))
}
