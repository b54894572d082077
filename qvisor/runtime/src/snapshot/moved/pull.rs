//! Pulling: snapshots from a layout, or one from a tar file of such.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use super::super::error::{SnapshotError, Unfit};
use super::super::manifest::{Described, LENGTH_MAX, MANIFEST, Manifest};
use super::super::place::Place;
use super::super::store::Store;
use super::super::tar::{Kind, Reader};
use super::arriving::Arriving;
use super::artefact::{CONFIG_MAX, Descriptor, check_config};
use super::blobs::Blobs;
use super::error::MoveError;
use crate::state::Id;

/// How snapshots come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coming {
    /// Those that another host has sealed, too: they are sealed by this one's key then.
    pub is_trusted: bool,
    /// They are put into the store of chunks afterwards: such as cannot be are refused.
    pub is_stored: bool,
}

/// A snapshot that has come.
#[derive(Clone, Debug)]
pub struct Came {
    pub name: Id,
    /// Files and directories of this host that programs in it will see, if it is known by trust alone, and whether they can change them.
    pub host_paths: Vec<(PathBuf, bool)>,
}

impl Store {
    /// Pulls snapshots from the layout in a directory, all of them if no names are given.
    pub fn pull(&self, from: &Path, names: &[Id], coming: Coming) -> Result<Vec<Came>, SnapshotError> {
        let failed = |name: &str, why: MoveError| why.at(|| format!("pull {name} from {}", from.display()));
        let all = if names.is_empty() { "snapshots" } else { "a snapshot" };
        let blobs = Blobs::layout(from).map_err(|why| failed(all, why))?;
        let found: Vec<(Id, Descriptor)> = if names.is_empty() {
            let found = blobs.snapshots().map_err(|why| failed(all, why))?;
            found.into_iter().filter_map(|manifest| Some((manifest.name()?, manifest))).collect()
        } else {
            let find = |name: &Id| {
                let manifest = blobs.named(name).map_err(|why| failed(name.as_str(), why))?;
                Ok((name.clone(), manifest))
            };
            names.iter().map(find).collect::<Result<_, SnapshotError>>()?
        };
        // Before any comes.
        found.iter().try_for_each(|(name, _)| self.check_free(name))?;
        let receive = |(name, manifest): (Id, Descriptor)| {
            let came = self.receive(&blobs, &manifest, &name, coming);
            came.map_err(|why| failed(name.as_str(), why))
        };
        found.into_iter().map(receive).collect()
    }

    /// Takes a snapshot from a tar file, by this name or the one that it has there.
    pub fn import(&self, from: &Path, name: Option<&Id>, coming: Coming) -> Result<Came, SnapshotError> {
        let import = || {
            let blobs = Blobs::archive(from)?;
            let found = blobs.snapshots()?;
            let [manifest] = &found[..] else { return Err(MoveError::NotOne(found.len())) };
            let own = manifest.name();
            let name = name.or(own.as_ref()).ok_or(MoveError::NoName)?;
            self.check_free(name)?;
            self.receive(&blobs, manifest, name, coming)
        };
        import().map_err(|why| why.at(|| format!("import {}", from.display())))
    }

    fn check_free(&self, name: &Id) -> Result<(), SnapshotError> {
        let is_taken = self.directory()?.has(name.as_str());
        if is_taken { Err(SnapshotError::Exists { place: Place::Named(name.clone()) }) } else { Ok(()) }
    }

    fn receive(
        &self,
        blobs: &Blobs,
        manifest: &Descriptor,
        name: &Id,
        coming: Coming,
    ) -> Result<Came, MoveError> {
        let parts = blobs.parts(manifest)?.ok_or(MoveError::NoSnapshot)?;
        check_config(&blobs.bytes(&parts.config, "configuration", CONFIG_MAX)?)?;
        let files = blobs.checked(&parts.files)?;
        let mut files = Reader::new(BufReader::new(files.reader()));
        let failed = MoveError::io("reading its small files");
        let head = files.next().map_err(&failed)?;
        if head.is_none_or(|head| head.path != MANIFEST.as_bytes() || head.kind != Kind::File) {
            return Err(MoveError::Lacks("a manifest of the snapshot's"));
        }
        let text = files.all(LENGTH_MAX).map_err(&failed)?;
        let key = self.key()?;
        let (mut manifest, is_foreign) = match Manifest::parse(&text, &key) {
            Err(Unfit::Sealed) if coming.is_trusted => (Manifest::parse_foreign(&text)?, true),
            Err(Unfit::Sealed) => return Err(MoveError::Sealed),
            manifest => (manifest?, false),
        };
        let says = &manifest.files;
        match () {
            () if !says.below.is_empty() => return Err(MoveError::Below),
            () if coming.is_stored && says.sealed.is_some() => return Err(Unfit::StoredSealed.into()),
            () if coming.is_stored && says.packed.is_some() => return Err(Unfit::StoredPacked.into()),
            () => check_layer(&manifest)?,
        }
        let host_paths = if is_foreign { foreign_paths(&mut manifest.container) } else { Vec::new() };
        let arriving = Arriving::begin(self, name)?;
        let small = arriving.take_files(&manifest, &mut files)?;
        arriving.take_chunks(&manifest, &small, (blobs, &parts))?;
        arriving.verify(self, &manifest)?;
        arriving.end(&manifest, &small, (&key, is_foreign))?;
        Ok(Came { name: name.clone(), host_paths })
    }
}

/// The paths of this host in the words of a stranger about a container: those that it keeps, since they are seen by whoever begins with it. Its
/// bundles, which would say what runs and what is mounted, are of another host, and go.
fn foreign_paths(container: &mut Described) -> Vec<(PathBuf, bool)> {
    if let Some(command) = &container.command {
        let volumes = command.volumes.iter().map(|(source, _, read_only)| (source.clone(), !read_only));
        return [(container.bundle.clone(), false)].into_iter().chain(volumes).collect();
    }
    container.bundle = PathBuf::new();
    container.pod.iter_mut().flatten().for_each(|further| further.container.bundle = PathBuf::new());
    Vec::new()
}

/// Whether the changes to files are in directories of the snapshot, as a manifest says that an enemy may have written.
fn check_layer(manifest: &Manifest) -> Result<(), MoveError> {
    if manifest.files.layer.is_some() && manifest.container.command.is_none() {
        let why = "it has changes to files, and is of no sandbox of dormouse do";
        return Err(Unfit::Damaged(why.into()).into());
    }
    let views = manifest.files.layer.iter().flat_map(|layer| &layer.views);
    let mut names = views.flat_map(|view| &view.directories);
    if names.all(|name| !name.contains('/') && !matches!(&**name, "" | "." | "..")) {
        Ok(())
    } else {
        Err(Unfit::Damaged("its changes to files lie elsewhere".into()).into())
    }
}
