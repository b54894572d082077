//! OCI image layouts that snapshots are pushed to. Their content lies in dblocks of a store that belongs to the layout, under a key that
//! everybody has, so that what several hosts push to one place is there once. A blob is a dblock by another name. The store is a help: it is made
//! anew from the blobs where it is missing, as in a copy of the layout.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ::store::{Domain, Store as Chunks};
use ring::digest::{Context, SHA256};
use rustix::fs;
use vmm::directory::Directory;

use super::super::making;
use super::artefact::{Descriptor, Digest, INDEX_MAX, Index};
use super::blobs::{ALGORITHM, BLOBS, Blobs, INDEX, LAYOUT, digest_of};
use super::error::MoveError;
use crate::state::Id;

const VERSION: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
/// The store's directory.
const STORE: &str = ".dormouse";
/// The beginning of the names of blobs that are being written.
const FRESH: &str = ".new-";
const CONTEXT: &str = "dormouse 2026 snapshot transport";

/// The domain of all that travels.
pub(super) fn domain() -> Domain {
    Domain::new(blake3::Hasher::new_derive_key(CONTEXT).finalize().as_bytes())
}

/// A layout that somebody writes to, and nobody else meanwhile. All of it is reached by the directory's descriptor: whoever the directories
/// above belong to may put others in their places at any moment.
pub(super) struct Layout {
    directory: Directory,
    blobs: Directory,
    pub chunks: Chunks,
    pub index: Index,
    _lock: File,
    /// Bytes of blobs that it did not have.
    pub added_bytes: u64,
}

impl Layout {
    /// The layout in a directory, which is made if it is missing.
    pub fn open(path: &Path) -> Result<Self, MoveError> {
        let failed = MoveError::io("opening it");
        Self::of(Directory::make(&std::path::absolute(path).map_err(&failed)?).map_err(failed)?)
    }

    /// The layout in a directory, which is empty if it is none yet.
    pub fn of(directory: Directory) -> Result<Self, MoveError> {
        let failed = MoveError::io("opening it");
        let lock = making::lock(&directory).map_err(&failed)?.ok_or(MoveError::Busy)?;
        if !directory.has(LAYOUT) {
            let names = directory.names().map_err(&failed)?;
            if names.iter().any(|name| !name.as_encoded_bytes().starts_with(b".")) {
                return Err(MoveError::NoLayout("it has other files, and no oci-layout".into()));
            }
            directory.write(LAYOUT, VERSION).map_err(&failed)?;
        }
        let made = |above: &Directory, name| match above.make_directory(OsStr::new(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => above.directory(OsStr::new(name)),
            made => made,
        };
        let blobs = made(&directory, BLOBS).and_then(|blobs| made(&blobs, ALGORITHM)).map_err(&failed)?;
        let index = if directory.has(INDEX) {
            let mut bytes = Vec::new();
            let file = directory.file_to_read(INDEX).map_err(&failed)?;
            file.take(INDEX_MAX + 1).read_to_end(&mut bytes).map_err(&failed)?;
            Index::parse(&bytes)?
        } else {
            Index::new()
        };
        made(&directory, STORE).map_err(&failed)?;
        let chunks = Chunks::of_strangers(&directory.path_by_descriptor().join(STORE))?;
        let layout = Self { directory, blobs, chunks, index, _lock: lock, added_bytes: 0 };
        layout.sweep().map_err(&failed)?;
        layout.make_anew()?;
        Ok(layout)
    }

    /// Removes what writers left that were killed.
    fn sweep(&self) -> io::Result<()> {
        for name in self.blobs.names()? {
            if let Some(name) = name.to_str().filter(|name| name.starts_with(FRESH)) {
                self.blobs.remove_file(name)?;
            }
        }
        Ok(())
    }

    /// Gives the store the dblocks that it lacks and that are blobs. Of two of one number the first is taken; what is in them is compared before
    /// anything else is left to it, so none is believed.
    fn make_anew(&self) -> Result<(), MoveError> {
        if !self.directory.has(INDEX) {
            return Ok(());
        }
        let (blobs, place, mut known) = (self.blobs()?, self.blobs.path_by_descriptor(), BTreeSet::new());
        let manifests = self.index.manifests().filter(|manifest| known.insert(manifest.digest.clone()));
        // One that cannot be read is not what is pushed now.
        let parts = manifests.filter_map(|manifest| blobs.parts(&manifest).ok().flatten());
        let dblocks = parts.flat_map(|parts| parts.dblocks).filter(|(_, dblock)| blobs.blob(dblock).is_ok());
        Ok(self.chunks.adopt(dblocks.map(|(number, dblock)| (number, place.join(dblock.digest.hex()))))?)
    }

    /// Its blobs, to be read.
    pub fn blobs(&self) -> Result<Blobs, MoveError> {
        Blobs::of(&self.directory)
    }

    /// The bytes of one of the files beside the blobs.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.directory.read(name)
    }

    /// Whether a name is free, or a snapshot's: then it is this one's from now on, as tags of images are.
    pub fn check_free(&self, name: &Id) -> Result<(), MoveError> {
        let blobs = self.blobs()?;
        let is_snapshot = |manifest: &Descriptor| matches!(blobs.parts(manifest), Ok(Some(_)));
        if self.index.is_ours(name, is_snapshot) { Ok(()) } else { Err(MoveError::OtherOfName) }
    }

    /// Makes a dblock of the store a blob.
    pub fn add_dblock(&mut self, number: u32) -> Result<(Digest, u64), MoveError> {
        let failed = MoveError::io("adding a dblock");
        let file = self.chunks.file(number).map_err(&failed)?;
        let (digest, bytes) = file.try_clone().and_then(digest_of).map_err(&failed)?;
        let found = self.blobs.file_to_read(digest.hex()).ok();
        let is_there = || -> io::Result<bool> {
            let Some(found) = found else { return Ok(false) };
            let [a, b] = [found.metadata()?, file.metadata()?];
            Ok((a.dev(), a.ino()) == (b.dev(), b.ino()) || digest_of(found)?.0 == digest)
        };
        if is_there().map_err(&failed)? {
            return Ok((digest, bytes));
        }
        let fresh = format!("{FRESH}{number:08x}");
        let add = || -> io::Result<()> {
            let to = self.blobs.path_by_descriptor().join(&fresh);
            if std::fs::hard_link(self.chunks.path(number), &to).is_err() {
                let mut copy = self.blobs.new_file(&fresh)?;
                io::copy(&mut self.chunks.file(number)?, &mut copy)?;
                copy.sync_all()?;
            }
            self.blobs.rename(&fresh, digest.hex())
        };
        add().map_err(failed)?;
        self.added_bytes += bytes;
        Ok((digest, bytes))
    }

    /// Adds a blob that `write` writes.
    pub fn add<T>(
        &mut self,
        write: impl FnOnce(Hashing) -> Result<(T, Hashing), MoveError>,
    ) -> Result<(T, Digest, u64), MoveError> {
        let failed = MoveError::io("writing a blob");
        let fresh = format!("{FRESH}files");
        let file = self.blobs.new_file(&fresh).map_err(&failed)?;
        let (written, hashing) = write(Hashing::new(file))?;
        let (digest, bytes) = hashing.end().map_err(&failed)?;
        let is_new = !self.blobs.has(digest.hex());
        self.blobs.rename(&fresh, digest.hex()).map_err(&failed)?;
        self.added_bytes += if is_new { bytes } else { 0 };
        Ok((written, digest, bytes))
    }

    /// Adds a blob of these bytes.
    pub fn add_bytes(&mut self, bytes: &[u8]) -> Result<(Digest, u64), MoveError> {
        let (_, digest, size) = self.add(|mut to| {
            to.write_all(bytes).map_err(MoveError::io("writing a blob"))?;
            Ok(((), to))
        })?;
        Ok((digest, size))
    }

    /// Names a snapshot whose blobs are all there. Result: whether it was there by this name.
    pub fn put(&mut self, name: &Id, manifest: (Digest, u64)) -> Result<bool, MoveError> {
        let failed = MoveError::io("writing its index.json");
        let was_there = self.index.put(name, manifest).map_err(|error| failed(io::Error::other(error)))?;
        let fresh = format!(".{INDEX}");
        let write = || -> io::Result<()> {
            fs::fsync(self.blobs.as_fd())?;
            // It may have other names.
            match self.directory.remove_file(&fresh) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = self.directory.new_file(&fresh)?;
            file.write_all(&self.index.encode())?;
            file.sync_all()?;
            self.directory.rename(&fresh, INDEX)?;
            Ok(fs::fsync(self.directory.as_fd())?)
        };
        write().map_err(failed)?;
        Ok(was_there)
    }
}

/// Writes a file, and digests it meanwhile.
pub(super) struct Hashing {
    to: BufWriter<File>,
    context: Context,
    bytes: u64,
}

impl Hashing {
    fn new(file: File) -> Self {
        Self { to: BufWriter::with_capacity(1 << 20, file), context: Context::new(&SHA256), bytes: 0 }
    }

    fn end(mut self) -> io::Result<(Digest, u64)> {
        self.to.flush()?;
        self.to.get_ref().sync_all()?;
        Ok((Digest::end(self.context), self.bytes))
    }
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.context.update(bytes.get(..count).unwrap_or_default());
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
