//! Pulling: snapshots from a layout, or one from a tar file of such.

use std::io::BufReader;
use std::path::Path;

use super::super::error::{SnapshotError, Unfit};
use super::super::manifest::{LENGTH_MAX, MANIFEST, Manifest};
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

impl Store {
    /// Pulls snapshots from the layout in a directory, all of them if no names are given. Result: their names.
    pub fn pull(&self, from: &Path, names: &[Id], coming: Coming) -> Result<Vec<Id>, SnapshotError> {
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
        for (name, manifest) in &found {
            self.receive(&blobs, manifest, name, coming).map_err(|why| failed(name.as_str(), why))?;
        }
        Ok(found.into_iter().map(|(name, _)| name).collect())
    }

    /// Takes a snapshot from a tar file, by this name or the one that it has there. Result: its name.
    pub fn import(&self, from: &Path, name: Option<&Id>, coming: Coming) -> Result<Id, SnapshotError> {
        let import = || {
            let blobs = Blobs::archive(from)?;
            let found = blobs.snapshots()?;
            let [manifest] = &found[..] else { return Err(MoveError::NotOne(found.len())) };
            let own = manifest.name();
            let name = name.or(own.as_ref()).ok_or(MoveError::NoName)?;
            self.check_free(name)?;
            self.receive(&blobs, manifest, name, coming).map(|()| name.clone())
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
    ) -> Result<(), MoveError> {
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
        let (manifest, is_foreign) = match Manifest::parse(&text, &key) {
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
        let arriving = Arriving::begin(self, name)?;
        let small = arriving.take_files(&manifest, &mut files)?;
        arriving.take_chunks(&manifest, &small, (blobs, &parts))?;
        arriving.verify(self, &manifest)?;
        arriving.end(&manifest, &small, (&key, is_foreign))
    }
}

/// Whether the changes to files are in directories of the snapshot, as a manifest says that an enemy may have written.
fn check_layer(manifest: &Manifest) -> Result<(), MoveError> {
    let views = manifest.files.layer.iter().flat_map(|layer| &layer.views);
    let mut names = views.flat_map(|view| &view.directories);
    if names.all(|name| !name.contains('/') && !matches!(&**name, "" | "." | "..")) {
        Ok(())
    } else {
        Err(Unfit::Damaged("its changes to files lie elsewhere".into()).into())
    }
}
