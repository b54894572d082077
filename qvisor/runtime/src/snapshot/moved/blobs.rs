//! Where blobs are read from: an OCI image layout, or one in a tar file. Neither is believed: blobs are found by their digests alone, no link
//! is followed, and each is compared with its digest.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use rustix::fs::{self, CWD, FileType, Mode, OFlags};
use vmm::directory::Directory;

use super::super::tar::{Kind, Reader};
use super::artefact::{Descriptor, Digest, INDEX_MAX, Index, MANIFEST_MAX, Parts};
use super::error::MoveError;
use crate::state::Id;

pub(super) const LAYOUT: &str = "oci-layout";
pub(super) const INDEX: &str = "index.json";
pub(super) const BLOBS: &str = "blobs";
pub(super) const ALGORITHM: &str = "sha256";
/// Most bytes of the file that says what a layout is, and most entries of a tar file.
const LAYOUT_MAX: u64 = 4096;
const MEMBERS_MAX: usize = 1 << 18;
const AT_ONCE: usize = 1 << 20;

/// Opens a regular file in a directory. Nothing else is opened: for some devices that alone has effects.
fn open_regular(directory: &OwnedFd, name: &str) -> io::Result<File> {
    let looked = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let looked = fs::openat(directory, name, looked, Mode::empty())?;
    if !FileType::from_raw_mode(fs::fstat(&looked)?.st_mode).is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let path = format!("/proc/self/fd/{}", looked.as_raw_fd());
    Ok(fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Whether a name in a tar file is one of those that a layout has.
fn is_known(name: &str) -> bool {
    let digest = || name.strip_prefix(BLOBS)?.strip_prefix('/')?.strip_prefix(ALGORITHM)?.strip_prefix('/');
    name == LAYOUT || name == INDEX || digest().is_some_and(Digest::is_hex)
}

/// Bytes of a file, from a place on.
#[derive(Debug)]
pub(super) struct Blob {
    file: File,
    at: u64,
    pub bytes: u64,
}

/// Reads a blob from its beginning on.
pub(super) struct BlobReader<'b> {
    blob: &'b Blob,
    done: u64,
}

impl Read for BlobReader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.blob.bytes - self.done).unwrap_or(usize::MAX);
        let most = to.len().min(left);
        let got = self.blob.file.read_at(to.get_mut(..most).unwrap_or_default(), self.blob.at + self.done)?;
        self.done += got as u64;
        Ok(got)
    }
}

impl Blob {
    fn whole(file: File) -> io::Result<Self> {
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        Ok(Self { file, at: 0, bytes: found.len() })
    }

    pub fn reader(&self) -> BlobReader<'_> {
        BlobReader { blob: self, done: 0 }
    }

    fn read(&self, of: &'static str, most: u64) -> Result<Vec<u8>, MoveError> {
        if self.bytes > most {
            return Err(MoveError::TooLarge { of, most });
        }
        let mut bytes = Vec::new();
        self.reader().read_to_end(&mut bytes).map_err(MoveError::io("reading it"))?;
        Ok(bytes)
    }

    /// The digest of its bytes.
    pub fn digest(&self) -> io::Result<Digest> {
        let (mut context, mut room) = (Context::new(&SHA256), vec![0; AT_ONCE]);
        let mut reader = self.reader();
        loop {
            match reader.read(&mut room)? {
                0 => return Ok(Digest::end(context)),
                got => context.update(room.get(..got).unwrap_or_default()),
            }
        }
    }
}

/// The digest of a file, and its length.
pub(super) fn digest_of(file: File) -> io::Result<(Digest, u64)> {
    let blob = Blob::whole(file)?;
    Ok((blob.digest()?, blob.bytes))
}

/// See the module.
#[derive(Debug)]
pub(super) enum Blobs {
    /// The directory, and that of its blobs.
    Layout(OwnedFd, OwnedFd),
    /// A file, and where in it the members are that count, and their lengths.
    Archive(File, BTreeMap<String, (u64, u64)>),
}

impl Blobs {
    /// Those of a layout in a directory.
    pub fn layout(path: &Path) -> Result<Self, MoveError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = fs::open(path, flags, Mode::empty());
        Self::in_top(top.map_err(|error| MoveError::NoLayout(error.to_string()))?)
    }

    /// Those of a layout in a directory that is open.
    pub fn of(directory: &Directory) -> Result<Self, MoveError> {
        Self::in_top(directory.as_fd().try_clone_to_owned().map_err(MoveError::io("opening it"))?)
    }

    fn in_top(top: OwnedFd) -> Result<Self, MoveError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || -> io::Result<Self> {
            let inner = |above: &OwnedFd, name| fs::openat(above, name, flags, Mode::empty());
            let blobs = inner(&inner(&top, BLOBS)?, ALGORITHM)?;
            Ok(Self::Layout(top, blobs))
        };
        let blobs = open().map_err(|error| MoveError::NoLayout(error.to_string()))?;
        blobs.check()
    }

    /// Those of a tar file.
    pub fn archive(path: &Path) -> Result<Self, MoveError> {
        let no = |error: io::Error| MoveError::NoLayout(error.to_string());
        let file = File::open(path).and_then(Blob::whole).map_err(no)?;
        let mut members = BTreeMap::new();
        let mut reader = Reader::new(io::BufReader::new(file.reader()));
        while let Some(head) = reader.next().map_err(no)? {
            let name = String::from_utf8(head.path).unwrap_or_default();
            let name = name.strip_prefix("./").unwrap_or(&name);
            match head.kind {
                Kind::File if is_known(name) => {
                    members.insert(name.to_owned(), (reader.at(), head.bytes));
                }
                Kind::File | Kind::Directory => {}
                _ => return Err(MoveError::NoLayout("it has links or devices".into())),
            }
            if members.len() > MEMBERS_MAX {
                return Err(MoveError::NoLayout(format!("it has more than {MEMBERS_MAX} files")));
            }
        }
        Self::Archive(file.file, members).check()
    }

    fn check(self) -> Result<Self, MoveError> {
        let text = self.member(LAYOUT).map_err(|error| MoveError::NoLayout(error.to_string()))?;
        let said = serde_json::from_slice(&text.read(LAYOUT, LAYOUT_MAX)?).ok();
        let version = said.as_ref().and_then(|said: &serde_json::Value| said.get("imageLayoutVersion"));
        match version.and_then(serde_json::Value::as_str) {
            Some(version) if version.starts_with("1.") => Ok(self),
            _ => Err(MoveError::NoLayout("it is not of version 1".into())),
        }
    }

    /// A file of the layout beside the blobs.
    fn member(&self, name: &str) -> io::Result<Blob> {
        match self {
            Self::Layout(top, _) => Blob::whole(open_regular(top, name)?),
            Self::Archive(file, members) => part(file, members, name),
        }
    }

    pub fn index(&self) -> Result<Index, MoveError> {
        let index = self.member(INDEX).map_err(|error| MoveError::NoLayout(error.to_string()))?;
        Index::parse(&index.read(INDEX, INDEX_MAX)?)
    }

    /// A blob that is as long as is said of it.
    pub fn blob(&self, of: &Descriptor) -> Result<Blob, MoveError> {
        let hex = of.digest.hex();
        let blob = match self {
            Self::Layout(_, blobs) => open_regular(blobs, hex).and_then(Blob::whole),
            Self::Archive(file, members) => part(file, members, &format!("{BLOBS}/{ALGORITHM}/{hex}")),
        };
        let blob = blob.map_err(|source| MoveError::Blob { digest: hex.into(), source })?;
        if blob.bytes != of.size {
            return Err(MoveError::Length { digest: hex.into(), has: blob.bytes, said: of.size });
        }
        Ok(blob)
    }

    /// A blob that was compared with its digest.
    pub fn checked(&self, of: &Descriptor) -> Result<Blob, MoveError> {
        let (blob, hex) = (self.blob(of)?, of.digest.hex());
        match blob.digest() {
            Ok(digest) if digest == of.digest => Ok(blob),
            Ok(_) => Err(MoveError::Changed { digest: hex.into() }),
            Err(source) => Err(MoveError::Blob { digest: hex.into(), source }),
        }
    }

    /// The bytes of a blob, which are those of its digest.
    pub fn bytes(&self, of: &Descriptor, what: &'static str, most: u64) -> Result<Vec<u8>, MoveError> {
        if of.size > most {
            return Err(MoveError::TooLarge { of: what, most });
        }
        let bytes = self.blob(of)?.read(what, most)?;
        if Digest::of(&bytes) == of.digest {
            Ok(bytes)
        } else {
            Err(MoveError::Changed { digest: of.digest.hex().into() })
        }
    }

    /// A path at which a dblock that was compared with its digest can be read as long as this lives. `room`: for those that have none yet.
    pub fn path(&self, of: &Descriptor, room: &Directory) -> Result<PathBuf, MoveError> {
        let blob = self.checked(of)?;
        match self {
            Self::Layout(_, blobs) => {
                Ok(format!("/proc/self/fd/{}/{}", blobs.as_raw_fd(), of.digest.hex()).into())
            }
            Self::Archive(..) => {
                let copy = || -> io::Result<PathBuf> {
                    // Two numbers may be of one digest.
                    if !room.has(of.digest.hex()) {
                        io::copy(&mut blob.reader(), &mut room.new_file(of.digest.hex())?)?;
                    }
                    Ok(room.path_by_descriptor().join(of.digest.hex()))
                };
                copy().map_err(MoveError::io("copying a blob"))
            }
        }
    }

    /// The manifests of the snapshots that it has. Each is read once, by however many names it is there.
    pub fn snapshots(&self) -> Result<Vec<Descriptor>, MoveError> {
        let (mut known, mut found) = (BTreeMap::new(), Vec::new());
        for manifest in self.index()?.manifests() {
            let is_ours = match known.get(&manifest.digest) {
                Some(is_ours) => *is_ours,
                None => self.parts(&manifest)?.is_some(),
            };
            known.insert(manifest.digest.clone(), is_ours);
            found.extend(Some(manifest).filter(|_| is_ours));
        }
        Ok(found)
    }

    /// The blobs that a manifest names. `None`: it is of something else.
    pub fn parts(&self, manifest: &Descriptor) -> Result<Option<Parts>, MoveError> {
        Parts::parse(&self.bytes(manifest, "manifest", MANIFEST_MAX)?)
    }

    /// The manifest of this name.
    pub fn named(&self, name: &Id) -> Result<Descriptor, MoveError> {
        let manifest = self.index()?.manifests().find(|found| found.name().as_ref() == Some(name));
        manifest.ok_or(MoveError::NoSnapshot)
    }
}

fn part(file: &File, members: &BTreeMap<String, (u64, u64)>, name: &str) -> io::Result<Blob> {
    let (at, bytes) = *members.get(name).ok_or(io::ErrorKind::NotFound)?;
    Ok(Blob { file: file.try_clone()?, at, bytes })
}
