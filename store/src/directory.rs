//! The store's directory: `dblocks/`, an index of them, and a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codec::Style;
use rustix::fs::{Advice, FlockOperation, OFlags, fadvise, flock};
use rustix::process::geteuid;

use crate::dblock::{CHUNKS_MAX, Dblock, Filling, Footer};
use crate::difference::FEATURES;
use crate::error::StoreError;
use crate::fingerprint::Fingerprint;
use crate::index::{ID_END, Index, Place};
use crate::recipe::Recipe;
use crate::region::{CHUNK_MAX, Region};

const DBLOCKS: &str = "dblocks";
const INDEX: &str = "index";
const LOCK: &str = "lock";
/// Behind the name of a dblock, of a file that says since when no recipe needs it.
const DEAD: &str = ".dead";
/// The first number that no dblock from elsewhere is taken with: from there on to [`ID_END`] numbers are left for those of later writers.
const ADOPTED_END: u32 = ID_END / 2;

/// Most bytes of an index of so many dblocks.
fn index_max(dblocks: u64) -> u64 {
    // Before it is filled to four fifths it grows by a quarter. A chunk has a fingerprint, and may have features.
    let words = dblocks.saturating_mul((CHUNKS_MAX * (1 + FEATURES)) as u64).saturating_mul(2).max(1 << 11);
    words.saturating_mul(8)
}

/// Opens a file, if it is one: no link is followed, and no FIFO waited for.
fn open_file(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = options.custom_flags(flags.cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// Makes a file for the caller alone in place of whatever has its name: what a link there leads to is not written.
fn make_file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    open_with(path, OpenOptions::new().write(true).create_new(true).mode(0o600))
}

/// Opens the lock, which is made if it is missing. A number is written to it, so it has no other names.
fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let lock = open_with(path, options.create(true).truncate(false).read(true).write(true).mode(0o600))?;
    if lock.metadata()?.nlink() == 1 { Ok(lock) } else { Err(io::Error::other("it has other names")) }
}

/// Whether a directory is the caller's own, and nobody else may write it.
fn check_directory(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() {
        return Err(io::Error::other("it is no directory"));
    }
    if found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is not yours, or others may write it"));
    }
    Ok(())
}

/// A store. Others may have it open as well.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    /// Where the dblocks lie, if it is of such alone.
    files: Option<Arc<BTreeMap<u32, PathBuf>>>,
    /// Its dblocks may be strangers'.
    is_of_strangers: bool,
}

/// The outcome of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Dblocks that were read.
    pub dblocks: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Bytes of their files.
    pub bytes: u64,
}

impl Store {
    /// The store in a directory, which is made if it is missing; for its user alone.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        let store = Self { root: root.into(), files: None, is_of_strangers: false };
        let made = || -> io::Result<()> {
            if !store.dblocks().is_dir() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(store.dblocks())?;
                // Their names are on the disk before anything is that needs them.
                File::open(root)?.sync_all()?;
                root.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())?;
            }
            [root, &store.dblocks()].into_iter().try_for_each(check_directory)
        };
        made().map_err(StoreError::io("use the store's directory"))?;
        Ok(store)
    }

    /// The store in a directory whose dblocks strangers may have written: they are not unpacked by C code, and no index of theirs is read.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn of_strangers(root: &Path) -> Result<Self, StoreError> {
        Ok(Self { is_of_strangers: true, ..Self::open(root)? })
    }

    /// A store of strangers' dblocks that lie elsewhere, each by its number. It is read alone: there is no writer.
    #[must_use]
    pub fn of_files(files: BTreeMap<u32, PathBuf>) -> Self {
        Self { root: PathBuf::new(), files: Some(files.into()), is_of_strangers: true }
    }

    /// Takes dblocks from elsewhere, by links if that can be, but for those of numbers that it has, or that are so high that too few would be left.
    /// Whoever reads them looks at what is in them.
    ///
    /// # Errors
    /// There is a writer. They cannot be read or written.
    pub fn adopt(&self, dblocks: impl IntoIterator<Item = (u32, PathBuf)>) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        self.sweep()?;
        let adopt = |(id, from): (u32, PathBuf)| match fs::hard_link(&from, self.path(id)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(_) => {
                let new = self.path(id).with_extension("new");
                io::copy(&mut open_file(&from)?, &mut make_file(&new)?)?;
                fs::rename(&new, self.path(id))
            }
            linked => linked,
        };
        let mut usable = dblocks.into_iter().filter(|(id, _)| (1..ADOPTED_END).contains(id));
        usable.try_for_each(adopt).map_err(StoreError::io("take a dblock from elsewhere"))
    }

    /// Opens a dblock's file to read it.
    ///
    /// # Errors
    /// It is not there, or no regular file.
    pub fn file(&self, id: u32) -> io::Result<File> {
        open_file(&self.path(id))
    }

    fn dblocks(&self) -> PathBuf {
        self.root.join(DBLOCKS)
    }

    /// Where a dblock is, if it is there.
    #[must_use]
    pub fn path(&self, id: u32) -> PathBuf {
        if let Some(files) = &self.files {
            return files.get(&id).cloned().unwrap_or_default();
        }
        self.dblocks().join(format!("{id:08x}"))
    }

    fn dead_path(&self, id: u32) -> PathBuf {
        self.dblocks().join(format!("{id:08x}{DEAD}"))
    }

    /// Takes the right to write, which goes with the file.
    pub(crate) fn lock(&self) -> Result<File, StoreError> {
        let failed = StoreError::io("lock the store");
        if self.files.is_some() {
            return Err(failed(io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        let lock = open_lock(&self.root.join(LOCK)).map_err(&failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => Err(StoreError::Busy),
            locked => locked.map(|()| lock).map_err(io::Error::from).map_err(failed),
        }
    }

    /// The number of the next dblock: none is used again, since a reader may have a recipe of before.
    pub(crate) fn next_id(&self, all: &BTreeSet<u32>, lock: &File) -> u32 {
        let mut bytes = [0; 4];
        let noted = match lock.read_exact_at(&mut bytes, 0) {
            // Nothing is removed from a store of strangers' dblocks, so nothing is noted there.
            Ok(()) if !self.is_of_strangers => u32::from_le_bytes(bytes),
            _ => 0,
        };
        all.last().map_or(1, |last| last + 1).max(noted)
    }

    /// Notes the number of the next dblock, before any is removed.
    pub(crate) fn note_next(&self, next: u32, lock: &File) -> Result<(), StoreError> {
        let noted = lock.write_all_at(&next.to_le_bytes(), 0).and_then(|()| lock.sync_all());
        noted.map_err(StoreError::io("note the number of the next dblock"))
    }

    /// The numbers of all dblocks, and of those that no recipe was found to need.
    pub(crate) fn ids(&self) -> Result<(BTreeSet<u32>, BTreeSet<u32>), StoreError> {
        let failed = StoreError::io("list the store's dblocks");
        let (mut all, mut dead) = (BTreeSet::new(), BTreeSet::new());
        for entry in fs::read_dir(self.dblocks()).map_err(&failed)? {
            let name = entry.map_err(&failed)?.file_name();
            let Some(name) = name.to_str() else { continue };
            let (name, set) = match name.strip_suffix(DEAD) {
                Some(name) => (name, &mut dead),
                None => (name, &mut all),
            };
            let id = u32::from_str_radix(name, 16).ok().filter(|id| (1..ID_END).contains(id));
            set.extend(id.filter(|id| name == format!("{id:08x}")));
        }
        dead.retain(|id| all.contains(id));
        Ok((all, dead))
    }

    /// Has the host forget what it has cached of dblocks.
    ///
    /// # Errors
    /// One cannot be written to the disk before.
    pub fn forget_cached(&self) -> Result<(), StoreError> {
        for id in self.ids()?.0 {
            let file = open_file(&self.path(id)).map_err(StoreError::io("open a dblock"))?;
            let forget = || -> io::Result<()> {
                file.sync_data()?;
                Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
            };
            forget().map_err(StoreError::io("forget a dblock"))?;
        }
        Ok(())
    }

    /// Bytes of all that is there.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn bytes(&self) -> Result<u64, StoreError> {
        let failed = StoreError::io("list the store's files");
        let of = |path: &Path| -> io::Result<u64> {
            fs::read_dir(path)?
                .map(|entry| {
                    entry?.metadata().map(|metadata| if metadata.is_file() { metadata.len() } else { 0 })
                })
                .sum()
        };
        of(&self.root).and_then(|bytes| Ok(bytes + of(&self.dblocks())?)).map_err(failed)
    }

    /// A dblock.
    pub(crate) fn dblock(&self, id: u32) -> Result<Dblock, StoreError> {
        match open_file(&self.path(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StoreError::Gone { id }),
            file => {
                let file = file.map_err(StoreError::io("open a dblock"))?;
                let footer = Footer::read(id, &file)?;
                self.check_style(id, footer.style)?;
                Ok(Dblock { id, file, footer })
            }
        }
    }

    /// Whether a dblock is packed by what is unpacked here: strangers' bytes get to no decoder that is written in C.
    fn check_style(&self, id: u32, style: Style) -> Result<(), StoreError> {
        match style {
            Style::None | Style::Lz4 => Ok(()),
            _ if !self.is_of_strangers => Ok(()),
            codec => Err(StoreError::Codec { id, codec }),
        }
    }

    /// Writes a dblock, which is there as a whole from then on.
    pub(crate) fn write(&self, filling: &Filling) -> Result<(), StoreError> {
        self.check_style(filling.id, filling.footer().style)?;
        let failed = StoreError::io("write a dblock");
        let path = self.path(filling.id);
        let new = path.with_extension("new");
        let written =
            make_file(&new).and_then(|file| filling.write(&file)).and_then(|()| fs::rename(&new, &path));
        if written.is_err() {
            // The error is what counts.
            let _ = fs::remove_file(&new);
        }
        written.map_err(failed)
    }

    /// Has the names of dblocks on the disk.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        File::open(self.dblocks())
            .and_then(|dir| dir.sync_all())
            .map_err(StoreError::io("write the store's directory"))
    }

    /// The index of these dblocks, as it was written or made anew. A damaged dblock has no chunks that could be found.
    pub(crate) fn index(&self, of: &BTreeSet<u32>) -> Index {
        if self.is_of_strangers {
            return self.index_anew(of);
        }
        let written = open_file(&self.root.join(INDEX)).ok().and_then(|file| {
            let len = file.metadata().ok()?.len();
            if len > index_max(of.len() as u64) {
                return None;
            }
            let mut bytes = vec![0; usize::try_from(len).ok()?];
            file.read_exact_at(&mut bytes, 0).ok()?;
            Index::decode(&bytes, of)
        });
        written.unwrap_or_else(|| self.index_anew(of))
    }

    fn index_anew(&self, of: &BTreeSet<u32>) -> Index {
        let mut index = Index::default();
        for dblock in of.iter().filter_map(|id| self.dblock(*id).ok()) {
            let places = (0..=u16::MAX).map(|slot| Place { id: dblock.id, slot });
            // Chunks that were not to be compared have none.
            let known = places.clone().zip(&dblock.footer.entries);
            for (place, entry) in known.filter(|(_, entry)| entry.print != Fingerprint::NONE) {
                index.insert(&entry.print, place);
            }
            for (place, features) in places.zip(&dblock.footer.features) {
                index.insert_features(features, place);
            }
        }
        index
    }

    /// Writes the index of these dblocks. It is a help: without it the next one is made anew.
    pub(crate) fn write_index(&self, index: &Index, of: &BTreeSet<u32>) -> Result<(), StoreError> {
        if self.is_of_strangers {
            return Ok(());
        }
        let new = self.root.join("index.new");
        let written = make_file(&new).and_then(|mut file| file.write_all(&index.encode(of)));
        written
            .and_then(|()| fs::rename(&new, self.root.join(INDEX)))
            .map_err(StoreError::io("write the store's index"))
    }

    /// Says of a dblock that no recipe needs it any more, or that one does.
    pub(crate) fn set_dead(&self, id: u32, is_dead: bool) -> Result<(), StoreError> {
        let path = self.dead_path(id);
        let done = if is_dead { make_file(&path).map(drop) } else { fs::remove_file(&path) };
        match done {
            Err(error) if !is_dead && error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(StoreError::io("mark a dblock")),
        }
    }

    /// For how long no recipe needs a dblock.
    pub(crate) fn dead_for(&self, id: u32) -> std::time::Duration {
        let since = fs::metadata(self.dead_path(id)).and_then(|metadata| metadata.modified());
        since.ok().and_then(|since| since.elapsed().ok()).unwrap_or_default()
    }

    /// Removes a dblock.
    pub(crate) fn remove(&self, id: u32) -> Result<(), StoreError> {
        fs::remove_file(self.path(id)).map_err(StoreError::io("remove a dblock"))?;
        self.set_dead(id, false)
    }

    /// Removes what makers left that were killed. Only who has the lock may.
    pub(crate) fn sweep(&self) -> Result<(), StoreError> {
        let failed = StoreError::io("list the store's dblocks");
        for entry in fs::read_dir(self.dblocks()).map_err(&failed)? {
            let path = entry.map_err(&failed)?.path();
            if path.extension().is_some_and(|extension| extension == "new") {
                fs::remove_file(&path).map_err(StoreError::io("remove what a writer left"))?;
            }
        }
        Ok(())
    }

    /// Reads all dblocks, and compares each chunk with its checksum, and the recipes with what there is.
    ///
    /// # Errors
    /// The first thing that is damaged, or missing.
    pub fn verify<'r>(&self, recipes: impl IntoIterator<Item = &'r Recipe>) -> Result<Verified, StoreError> {
        let mut verified = Verified::default();
        let mut counts = std::collections::HashMap::new();
        for id in self.ids()?.0 {
            let dblock = self.dblock(id)?;
            let mut room = [0; CHUNK_MAX as usize];
            for slot in (0..=u16::MAX).take(dblock.footer.entries.len()) {
                match dblock.footer.region {
                    Region::Difference => drop(dblock.record(slot)?),
                    _ => drop(dblock.chunk(slot, &mut room)?),
                }
            }
            counts.insert(id, (dblock.footer.entries.len(), dblock.footer.region, dblock.footer.chunk_bytes));
            verified.dblocks += 1;
            verified.chunks += dblock.footer.entries.len() as u64;
            verified.bytes += dblock.file.metadata().map_err(StoreError::io("read a dblock"))?.len();
        }
        for recipe in recipes {
            for run in recipe.all_runs() {
                let (count, region, bytes) =
                    counts.get(&run.first.id).ok_or(StoreError::Gone { id: run.first.id })?;
                let end = usize::from(run.first.slot) + usize::from(run.count);
                if end > *count || *region != run.region || *bytes != recipe.chunk_bytes(run.region) {
                    return Err(StoreError::Recipe { what: "its chunks are not where it says" });
                }
            }
        }
        Ok(verified)
    }
}
