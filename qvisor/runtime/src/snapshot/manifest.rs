//! The manifest of a snapshot, and the seal on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use abi::mount::{FileSystem, HostKind, Kind};
use abi::report::WRITTEN_MAX_BYTES;
use abi::word::to_usize;
use serde::{Deserialize, Serialize};
use vmm::checkpoint::{ImageHead, WrittenFile};
use vmm::mounts::{self, Volume};
use vmm::net::Network;

use super::error::Unfit;
use super::key::Key;
use super::layer::LayerFiles;
use crate::oci::{self, MountPlan};

pub(super) use super::hold::MANIFEST;
/// The version of the format, and that of snapshots which are not sealed and have no pages in files of others.
pub(super) const VERSION: u32 = 2;
pub(super) const FIRST_VERSION: u32 = 1;
/// Longest manifest in bytes.
pub(super) const LENGTH_MAX: u64 = 1 << 20;

/// The file: a manifest and its seal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    snapshot: Manifest,
    /// BLAKE3 of the rest with a key, in hexadecimal digits.
    seal: String,
}

/// All that is said of a snapshot. Files, processor and head are looked at before it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub version: u32,
    /// When it was made, for people, and in nanoseconds since 1970.
    pub created: String,
    pub created_ns: u64,
    pub head: ImageHead,
    pub container: Described,
    pub processor: CpuFeatures,
    pub files: Files,
}

/// The container that a snapshot was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Described {
    pub id: String,
    pub bundle: PathBuf,
    pub annotations: BTreeMap<String, String>,
    pub hostname: String,
    /// Its process drives a terminal.
    pub terminal: bool,
    pub mounts: Vec<MountPoint>,
    /// Files of volumes and of the bundle's root, which are not in the snapshot, that programs had open for writing or mapped shared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub written: Vec<String>,
    /// It is a sandbox of `dormouse do`; then the bundle is its root file system, and it has no mounts by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<DescribedCommand>,
    /// It is the first container of a pod, which has these further ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Vec<FurtherDescribed>>,
}

/// A further container of a pod that a snapshot was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FurtherDescribed {
    /// By which the pod's kernel knows it.
    pub number: u64,
    pub container: Described,
}

impl Described {
    /// The name by which a pod's container is found: that of its annotation, or its ID.
    #[must_use]
    pub fn name(&self) -> &str {
        oci::container_name(&self.annotations).unwrap_or(&self.id)
    }

    /// Takes down the files that it and the further containers of its pod may have been writing to.
    pub(crate) fn take_written(&mut self, files: &[WrittenFile]) {
        // The sandbox says so, and may say anything.
        let mut room = to_usize(WRITTEN_MAX_BYTES);
        let fits = |file: &&WrittenFile| {
            room = room.saturating_sub(file.path.len());
            file.is_printable() && room > 0
        };
        let files: Vec<&WrittenFile> = files.iter().filter(fits).collect();
        let of = |number: u64| {
            let own = files.iter().filter(|file| file.container == number);
            own.map(|file| file.path.clone()).collect()
        };
        self.written = of(0);
        for further in self.pod.iter_mut().flatten() {
            further.container.written = of(further.number);
        }
    }

    /// The pod's further container of this name; or which there are.
    pub fn needs_further(&self, name: &str) -> Result<&FurtherDescribed, Unfit> {
        let Some(pod) = &self.pod else { return Err(Unfit::NoFurther { name: name.into() }) };
        pod.iter().find(|further| further.container.name() == name).ok_or_else(|| {
            let names: Vec<&str> = pod.iter().map(|further| further.container.name()).collect();
            let has = match &names[..] {
                [] => "it has none".into(),
                names => format!("it has {}", names.join(", ")),
            };
            Unfit::NoContainer { name: name.into(), has }
        })
    }
}

/// The parts of a sandbox of `dormouse do` that its kernel does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescribedCommand {
    /// Source, place in the sandbox, and whether it is read-only.
    pub volumes: Vec<(PathBuf, PathBuf, bool)>,
    pub network: NetworkKind,
    pub pids: u32,
    pub host_uds: bool,
    /// The records of its first process ([`mounts::text_of`]): processes that come in begin with them.
    pub process: String,
}

/// The network of a sandbox of `dormouse do`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkKind {
    Host,
    None,
}

impl From<NetworkKind> for Network {
    fn from(kind: NetworkKind) -> Self {
        match kind {
            NetworkKind::Host => Self::Host,
            NetworkKind::None => Self::None,
        }
    }
}

impl DescribedCommand {
    /// The volumes.
    #[must_use]
    pub fn volumes(&self) -> Vec<Volume> {
        let volume = |(source, target, read_only): &(PathBuf, PathBuf, bool)| Volume {
            source: source.clone(),
            target: target.clone(),
            read_only: *read_only,
        };
        self.volumes.iter().map(volume).collect()
    }

    /// The records, if the text is one of such.
    #[must_use]
    pub fn records(&self) -> Option<Vec<u8>> {
        mounts::bytes_of_text(&self.process)
    }
}

/// A mount of the container's bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountPoint {
    /// In the container.
    pub path: String,
    pub kind: String,
}

/// The processor that the programs have seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuFeatures {
    /// The words that Linux has for its features.
    pub flags: Vec<String>,
    pub xsave_bytes: u32,
    pub xsave_mask: u64,
}

/// The files beside the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    pub kernel: FileDigest,
    pub table: FileDigest,
    pub orphans: FileDigest,
    /// The table has digests of its pages, each for itself.
    pub pages_bytes: u64,
    /// The pages are packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<PackedBy>,
    /// All of these are sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<SealedBy>,
    /// Pages that other snapshots have, in the order of the table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<BelowPages>,
    /// The changes to files of a sandbox of `dormouse do`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerFiles>,
}

impl Files {
    /// Whether the pages in each of the files that have some are packed, its own first.
    pub(super) fn packed(&self) -> Vec<bool> {
        let below = self.below.iter().map(|pages| &pages.packed);
        [&self.packed].into_iter().chain(below).map(Option::is_some).collect()
    }
}

/// How pages are packed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedBy {
    /// The codec, for people.
    pub codec: String,
    /// The digest of the file, for those who unpack it where nothing confines them.
    pub digest: String,
}

/// Files of one of the snapshots that have some of its pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BelowPages {
    /// The number in their names: their place among the files of its parent.
    pub number: usize,
    pub table: FileDigest,
    pub pages_bytes: u64,
    /// The pages are packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<PackedBy>,
}

/// The part of a manifest that says by which key a snapshot is sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedBy {
    /// A number that was drawn for this snapshot, in hexadecimal digits.
    pub(super) salt: String,
    /// Tells another key.
    pub(super) check: String,
}

/// A file's length, and its digest: BLAKE3 of its pages that are not all zeros.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    pub bytes: u64,
    pub digest: String,
}

impl MountPoint {
    /// The mounts of a bundle, the root not among them: every bundle has one.
    #[must_use]
    pub fn of(plans: &[MountPlan]) -> Vec<Self> {
        plans.iter().map(|plan| Self::new(&plan.path, &plan.kind)).collect()
    }

    fn new<F>(path: &Path, kind: &Kind<F>) -> Self {
        let kind = match kind {
            Kind::Host(HostKind::Root, _) => "root",
            Kind::Host(HostKind::Overlay, _) => "overlay",
            Kind::Host(HostKind::Bind | HostKind::Plain, _) => "bind",
            Kind::Own(kind, _) => own_kind(*kind),
        };
        Self { path: path.to_string_lossy().into_owned(), kind: kind.into() }
    }
}

fn own_kind(kind: FileSystem) -> &'static str {
    match kind {
        FileSystem::Proc => "proc",
        FileSystem::Sysfs => "sysfs",
        FileSystem::Tmpfs => "tmpfs",
        FileSystem::Devices | FileSystem::DevicesInTmpfs => "devices",
        FileSystem::Terminals => "devpts",
        FileSystem::Queues => "mqueue",
        FileSystem::ControlGroups => "cgroup",
    }
}

impl Manifest {
    /// The platform that the snapshot was made on.
    #[must_use]
    pub fn platform(&self) -> &'static str {
        if self.head.is_kvm { "kvm" } else { "systrap" }
    }

    /// The bytes that the seal covers: what is parsed gives them again, however the file was laid out.
    fn canonical(&self) -> Result<Vec<u8>, Unfit> {
        serde_json::to_vec(self).map_err(|error| Unfit::Damaged(error.to_string()))
    }

    /// Its digest, by which what is sealed later belongs to it.
    pub(super) fn digest(&self) -> Result<blake3::Hash, Unfit> {
        Ok(blake3::hash(&self.canonical()?))
    }

    /// The text of the file.
    pub(super) fn sealed_by(&self, key: &Key) -> Result<Vec<u8>, Unfit> {
        let seal = key.seal(&self.canonical()?).to_hex().to_string();
        let sealed = Sealed { snapshot: self.clone(), seal };
        let text = serde_json::to_vec_pretty(&sealed).map_err(|error| Unfit::Damaged(error.to_string()))?;
        let is_longer = text.len() as u64 >= LENGTH_MAX;
        if is_longer { Err(Unfit::Damaged("it would be longer than 1 MiB".into())) } else { Ok(text) }
    }

    /// The manifest that a text is, if it was sealed by this key.
    pub(super) fn parse(text: &[u8], key: &Key) -> Result<Self, Unfit> {
        Self::parse_if(text, Some(key))
    }

    /// The manifest that a text is, whoever has sealed it: nothing of it counts yet.
    pub(super) fn parse_foreign(text: &[u8]) -> Result<Self, Unfit> {
        Self::parse_if(text, None)
    }

    fn parse_if(text: &[u8], key: Option<&Key>) -> Result<Self, Unfit> {
        if text.len() as u64 > LENGTH_MAX {
            return Err(Unfit::Damaged("it is longer than 1 MiB".into()));
        }
        let damaged = |error: serde_json::Error| Unfit::Damaged(error.to_string());
        // Another version has other members.
        let any: serde_json::Value = serde_json::from_slice(text).map_err(damaged)?;
        match any.pointer("/snapshot/version").and_then(serde_json::Value::as_u64) {
            Some(version) if !(FIRST_VERSION.into()..=VERSION.into()).contains(&version) => {
                return Err(Unfit::Version(version));
            }
            Some(_) => {}
            None => return Err(Unfit::Damaged("it says no version".into())),
        }
        let Sealed { snapshot, seal } = serde_json::from_slice(text).map_err(damaged)?;
        let seal = blake3::Hash::from_hex(seal).map_err(|_| Unfit::Sealed)?;
        let is_by = |key: &Key| -> Result<bool, Unfit> {
            // Compared in a time that tells nothing.
            Ok(key.seal(&snapshot.canonical()?) == seal)
        };
        match key {
            Some(key) if !is_by(key)? => Err(Unfit::Sealed),
            _ => Ok(snapshot),
        }
    }
}
