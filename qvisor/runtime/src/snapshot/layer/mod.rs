//! The changes to the files of a sandbox of `dormouse do`, as a part of its snapshot: a copy of each upper directory of its views. What
//! begins with the snapshot sees them as lower directories, so they are never written again.

mod attributes;
mod copy;
mod packed;
mod sum;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs;
use serde::{Deserialize, Serialize};
use vmm::directory::Directory;
use vmm::mounts::{self, Changes, LayerView, LowerDirectory};

use self::attributes::Ids;
use self::copy::Copier;
pub(super) use self::copy::copy_data;
pub(super) use self::packed::{Unpacker, pack};
pub(super) use self::sum::sum;
use super::hold::hold;

/// How long a view of a sandbox that stands still may be copied.
const PATIENCE: Duration = Duration::from_secs(120);
/// The most snapshots that one may be built on, one on the other.
const GENERATIONS: usize = 32;

/// The changes to a sandbox's files in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerFiles {
    pub views: Vec<ViewFiles>,
    pub files: u64,
    pub bytes: u64,
    /// BLAKE3 of all their names, attributes and content.
    pub digest: String,
}

/// The changes to one of the sandbox's views.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewFiles {
    /// In the sandbox ([`mounts::path_of`]).
    pub path: String,
    /// Names in the layer's directory, the last changes first.
    pub directories: Vec<String>,
}

/// Why a layer could not be copied: an entry, and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct LayerError {
    /// From the layer on.
    pub path: PathBuf,
    pub source: io::Error,
}

impl LayerError {
    fn new(path: &Path, source: impl Into<io::Error>) -> Self {
        Self { path: path.to_owned(), source: source.into() }
    }
}

/// The layer of a sandbox that is to be copied.
#[derive(Debug)]
pub struct Layer {
    directory: Directory,
    views: Vec<LayerView>,
    /// They hold the snapshots on which it is built against being removed.
    _held: Vec<Directory>,
    /// So much was added to ids to show them to the guest.
    base: u32,
}

/// A copy under way. The upper directories, which change as the sandbox runs, are copied first.
#[derive(Debug, Default)]
pub struct Copied {
    views: Vec<ViewFiles>,
    pub files: u64,
    pub bytes: u64,
    /// How long the sandbox's own changes took, in microseconds.
    pub pause_us: u64,
}

impl Layer {
    /// The layer in a directory. `base`: what was added to ids to show them to the guest. `front`: the process that sees the snapshots on which
    /// it is built, if no other may.
    pub fn open(path: &Path, base: u32, front: Option<i32>) -> io::Result<Self> {
        let directory = Directory::open(path)?;
        let mut views = mounts::views_of(&directory)?;
        let apart = front.map(|front| format!("/proc/{front}/root"));
        for below in views.iter_mut().flat_map(|view| &mut view.below).filter(|below| !below.is_there()) {
            let Some(apart) = &apart else { break };
            // What is found there is known by its device and inode.
            below.path = Path::new(apart).join(below.path.strip_prefix("/").unwrap_or(&below.path));
        }
        if let Some(view) = views.iter().find(|view| !view.is_overlay) {
            let why = format!(
                "{} is shown piece by piece, since the host has mounts below it; give the sandbox a root of its own with --rootfs",
                mounts::path_of(&view.path).unwrap_or_default().display()
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let below = || views.iter().flat_map(|view| &view.below);
        // In the directory of a snapshot they are two below.
        let snapshots = below().filter_map(|below| below.path.ancestors().nth(2));
        let held: io::Result<Vec<_>> =
            snapshots.map(|path| Directory::open(path).and_then(|snapshot| hold(&snapshot))).collect();
        let held = held.ok().filter(|_| below().all(LowerDirectory::is_there));
        let held =
            held.ok_or_else(|| io::Error::other("the snapshot that it began with was removed meanwhile"))?;
        if views.iter().any(|view| view.below.len() >= GENERATIONS) {
            let why = format!("it is built on {GENERATIONS} other snapshots already");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(Self { directory, views, _held: held, base })
    }

    /// Copies the sandbox's own changes into an empty directory, while nothing of it runs.
    pub fn copy_own(&self, to: &Directory) -> Result<Copied, LayerError> {
        let (start, mut copied) = (Instant::now(), Copied::default());
        for (number, view) in self.views.iter().enumerate() {
            let (from, name) = (self.directory.path_by_descriptor().join(&view.upper), number.to_string());
            self.copy_one(&from, to, &name, Ids::Without(self.base), &mut copied)?;
            copied.views.push(ViewFiles { path: view.path.clone(), directories: vec![name] });
        }
        copied.pause_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(copied)
    }

    /// Copies the changes with which the sandbox began, which nobody changes any more.
    pub fn copy_below(&self, to: &Directory, copied: &mut Copied) -> Result<(), LayerError> {
        for (number, view) in self.views.iter().enumerate() {
            for (generation, directory) in view.below.iter().enumerate() {
                let name = format!("{number}.{}", generation + 1);
                self.copy_one(&directory.path, to, &name, Ids::AsTheyAre, copied)?;
                copied.views.get_mut(number).into_iter().for_each(|view| view.directories.push(name.clone()));
            }
        }
        Ok(())
    }

    fn copy_one(
        &self,
        from: &Path,
        to: &Directory,
        name: &str,
        ids: Ids,
        copied: &mut Copied,
    ) -> Result<(), LayerError> {
        let copier = Copier::new(ids);
        let mut copier = match ids {
            Ids::Without(_) => copier.until(Instant::now() + PATIENCE),
            _ => copier,
        };
        let result = copier.copy(from, to, name);
        copied.files = copied.files.saturating_add(copier.files);
        copied.bytes = copied.bytes.saturating_add(copier.bytes);
        result
    }
}

/// Copies a directory of a snapshot's layer as a new one in a sandbox's own, which shows ids with `base` added to them.
pub(crate) fn fill(from: &Path, to: &Directory, name: &str, base: u32) -> io::Result<()> {
    if to.has(name) {
        // Another name is tried.
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Copier::new(Ids::With(base)).copy(from, to, name).map_err(io::Error::other)
}

impl Copied {
    /// Brings the copy in this directory to the disk, and describes it.
    pub fn finish(self, directory: &Directory) -> Result<LayerFiles, LayerError> {
        let digest = sum(directory)?;
        fs::syncfs(directory).map_err(|error| LayerError::new(directory.path(), error))?;
        let Self { views, files, bytes, .. } = self;
        Ok(LayerFiles { views, files, bytes, digest })
    }
}

impl LayerFiles {
    /// The changes of a layer in this directory.
    pub fn changes(&self, directory: &Path) -> io::Result<Vec<Changes>> {
        let of = |view: &ViewFiles| -> io::Result<Changes> {
            let path = mounts::path_of(&view.path).ok_or(io::ErrorKind::InvalidData)?;
            let find = |name: &String| LowerDirectory::find(&directory.join(name));
            Ok(Changes { path, directories: view.directories.iter().map(find).collect::<Result<_, _>>()? })
        };
        self.views.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests;
