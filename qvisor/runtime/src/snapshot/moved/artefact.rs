//! The JSON of OCI image layouts, as far as snapshots need it. What is read may have been written by an enemy: numbers and names are looked
//! at before they are used.

use std::collections::BTreeMap;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::manifest::Manifest;
use super::error::MoveError;
use crate::state::Id;

pub(super) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const ARTEFACT_TYPE: &str = "application/vnd.dormouse.snapshot.v1";
const CONFIG_TYPE: &str = "application/vnd.dormouse.snapshot.config.v1+json";
const FILES_TYPE: &str = "application/vnd.dormouse.snapshot.files.v1.tar";
const DBLOCK_TYPE: &str = "application/vnd.dormouse.snapshot.dblock.v1";
pub(super) const NAME: &str = "org.opencontainers.image.ref.name";
const CREATED: &str = "org.opencontainers.image.created";
/// A dblock's number, on its layer.
const NUMBER: &str = "dev.dormouse.dblock";
/// Annotations of a container that say what it is, and those of a checkpoint that do.
const KNOWN: [(&str, &str); 3] = [
    ("io.kubernetes.cri.image-name", "org.criu.checkpoint.rootfsImageName"),
    ("io.kubernetes.cri.sandbox-name", "org.criu.checkpoint.pod.name"),
    ("io.kubernetes.cri.sandbox-namespace", "org.criu.checkpoint.pod.namespace"),
];
const KIND: &str = "dormouse snapshot";
const VERSION: u64 = 1;
/// Most bytes of JSON files, of snapshots in an index, and bytes of a dblock. A manifest has room for some 18,000 dblocks, of 4 MiB each.
pub(super) const INDEX_MAX: u64 = 4 << 20;
pub(super) const MANIFEST_MAX: u64 = 4 << 20;
pub(super) const CONFIG_MAX: u64 = 1 << 20;
const ENTRIES_MAX: usize = 10_000;
const DBLOCK_MAX: u64 = 8 << 20;
/// Most bytes of the small files and the changes to files: a limit of numbers alone, since no more is read than there is.
const FILES_MAX: u64 = 1 << 44;
/// Hexadecimal digits of a digest.
const DIGITS: usize = 64;

/// The digest of a blob, by which it is found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Digest(String);

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let hex = text.strip_prefix("sha256:").ok_or("a digest is none by sha256")?;
        if Self::is_hex(hex) {
            Ok(Self(hex.to_owned()))
        } else {
            Err("a digest has not 64 hexadecimal digits".into())
        }
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        format!("sha256:{}", digest.0)
    }
}

impl Digest {
    /// That of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut context = Context::new(&SHA256);
        context.update(bytes);
        Self::end(context)
    }

    pub fn end(context: Context) -> Self {
        Self(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether a name is the digits of a digest.
    pub fn is_hex(name: &str) -> bool {
        name.len() == DIGITS && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }

    /// Its hexadecimal digits: a plain name of a file.
    pub fn hex(&self) -> &str {
        &self.0
    }
}

/// A blob as others refer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let (artifact_type, annotations) = (None, BTreeMap::new());
        Self { media_type: media_type.into(), digest, size, artifact_type, annotations }
    }

    /// That of a snapshot's configuration.
    pub fn of_config(bytes: &[u8]) -> Self {
        Self::new(CONFIG_TYPE, Digest::of(bytes), bytes.len() as u64)
    }

    /// That of a snapshot's small files.
    pub fn of_files((digest, size): (Digest, u64)) -> Self {
        Self::new(FILES_TYPE, digest, size)
    }

    /// That of a dblock.
    pub fn of_dblock(number: u32, (digest, size): (Digest, u64)) -> Self {
        let annotations = [(NUMBER.to_owned(), number.to_string())].into();
        Self { annotations, ..Self::new(DBLOCK_TYPE, digest, size) }
    }

    /// The name that an index gives it.
    pub fn name(&self) -> Option<Id> {
        self.annotations.get(NAME).and_then(|name| Id::new(name).ok())
    }
}

/// The manifest of a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OciManifest {
    schema_version: u32,
    media_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    config: Descriptor,
    layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

/// The blobs of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub config: Descriptor,
    pub files: Descriptor,
    /// By number.
    pub dblocks: BTreeMap<u32, Descriptor>,
}

impl Parts {
    /// The manifest of a snapshot with these.
    pub fn manifest(&self, of: &Manifest) -> Result<Vec<u8>, serde_json::Error> {
        let container = &of.container;
        let mut annotations: BTreeMap<String, String> = [
            (CREATED, of.created.as_str()),
            ("org.criu.checkpoint.container.name", container.name()),
            ("org.criu.checkpoint.engine.name", "dormouse"),
            ("org.criu.checkpoint.engine.version", env!("CARGO_PKG_VERSION")),
            ("org.criu.checkpoint.host.arch", "amd64"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for (theirs, ours) in KNOWN {
            if let Some(value) = container.annotations.get(theirs) {
                annotations.insert(ours.into(), value.clone());
            }
        }
        serde_json::to_vec(&OciManifest {
            schema_version: 2,
            media_type: MANIFEST_TYPE.into(),
            artifact_type: Some(ARTEFACT_TYPE.into()),
            config: self.config.clone(),
            layers: [&self.files].into_iter().chain(self.dblocks.values()).cloned().collect(),
            annotations,
        })
    }

    /// The blobs of a manifest. `None`: it is of something else.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, MoveError> {
        let damaged = |why: String| MoveError::Damaged { of: "manifest", why };
        let any: Value = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if any.pointer("/config/mediaType").and_then(Value::as_str) != Some(CONFIG_TYPE) {
            return Ok(None);
        }
        let manifest: OciManifest =
            serde_json::from_value(any).map_err(|error| damaged(error.to_string()))?;
        let mut layers = manifest.layers.into_iter();
        let files = layers.next().filter(|files| files.media_type == FILES_TYPE && files.size <= FILES_MAX);
        let files = files.ok_or_else(|| damaged("its first layer is not that of small files".into()))?;
        let mut dblocks = BTreeMap::new();
        for layer in layers {
            let number = layer.annotations.get(NUMBER).and_then(|number| number.parse().ok());
            let is_dblock = layer.media_type == DBLOCK_TYPE && layer.size <= DBLOCK_MAX;
            let number = number.filter(|number| is_dblock && *number > 0 && !dblocks.contains_key(number));
            let number: u32 = number.ok_or_else(|| damaged("it has a layer that is no dblock".into()))?;
            dblocks.insert(number, layer);
        }
        Ok(Some(Self { config: manifest.config, files, dblocks }))
    }
}

/// The configuration of a snapshot with files of these names and lengths.
pub(super) fn config(files: &[(String, u64)]) -> Vec<u8> {
    let files: Vec<Value> =
        files.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect();
    json!({ "kind": KIND, "version": VERSION, "dormouse": env!("CARGO_PKG_VERSION"), "files": files })
        .to_string()
        .into_bytes()
}

/// Whether a configuration is of a snapshot that can be read.
pub(super) fn check_config(bytes: &[u8]) -> Result<(), MoveError> {
    let damaged = |why: String| MoveError::Damaged { of: "configuration", why };
    let config: Value = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if config.get("kind").and_then(Value::as_str) != Some(KIND) {
        return Err(damaged("it is of something else".into()));
    }
    match config.get("version").and_then(Value::as_u64) {
        Some(VERSION) => Ok(()),
        Some(found) => Err(MoveError::Version { found, known: VERSION }),
        None => Err(damaged("it says no version".into())),
    }
}

/// An index: those of its entries that can be snapshots' count here, and all others stay.
#[derive(Clone, Debug)]
pub(super) struct Index(Vec<Value>);

impl Index {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, MoveError> {
        let damaged = |why: String| MoveError::Damaged { of: "index.json", why };
        let index: Value = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        let entries = index.get("manifests").and_then(Value::as_array).cloned();
        let entries = entries.ok_or_else(|| damaged("it has no list of manifests".into()))?;
        if entries.len() > ENTRIES_MAX {
            return Err(damaged(format!("it has more than {ENTRIES_MAX} entries")));
        }
        Ok(Self(entries))
    }

    pub fn encode(&self) -> Vec<u8> {
        let media_type = "application/vnd.oci.image.index.v1+json";
        json!({ "schemaVersion": 2, "mediaType": media_type, "manifests": self.0 }).to_string().into_bytes()
    }

    /// Its manifests.
    pub fn manifests(&self) -> impl Iterator<Item = Descriptor> {
        let of = |entry: &Value| serde_json::from_value::<Descriptor>(entry.clone()).ok();
        self.0.iter().filter_map(of).filter(|found| found.media_type == MANIFEST_TYPE)
    }

    /// Whether all that has this name are snapshots. `is_snapshot`: whether a manifest says so; some tools leave it out of the index.
    pub fn is_ours(&self, name: &Id, is_snapshot: impl Fn(&Descriptor) -> bool) -> bool {
        let mut named = self.0.iter().filter(|found| is_named(found, name));
        named.all(|found| match found.get("artifactType") {
            Some(kind) => kind.as_str() == Some(ARTEFACT_TYPE),
            None => serde_json::from_value(found.clone()).is_ok_and(|of| is_snapshot(&of)),
        })
    }

    /// Names a manifest, and nothing else by that name any more. Result: whether it was so already.
    pub fn put(&mut self, name: &Id, manifest: (Digest, u64)) -> Result<bool, serde_json::Error> {
        let (digest, size) = manifest;
        let mut entry = Descriptor::new(MANIFEST_TYPE, digest, size);
        entry.artifact_type = Some(ARTEFACT_TYPE.into());
        entry.annotations = [(NAME.to_owned(), name.as_str().to_owned())].into();
        let was_there = self.manifests().any(|found| found == entry);
        self.0.retain(|found| !is_named(found, name));
        self.0.push(serde_json::to_value(entry)?);
        Ok(was_there)
    }
}

fn is_named(entry: &Value, name: &Id) -> bool {
    let named = entry.get("annotations").and_then(|all| all.get(NAME)).and_then(Value::as_str);
    named == Some(name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(byte: u8) -> Digest {
        Digest::of(&[byte])
    }

    fn parts() -> Parts {
        let dblock = |number, byte| (number, Descriptor::of_dblock(number, (digest(byte), 100)));
        Parts {
            config: Descriptor::of_config(b"{}"),
            files: Descriptor::of_files((digest(1), 10)),
            dblocks: [dblock(7, 2), dblock(9, 3)].into(),
        }
    }

    fn layers(parts: &Parts) -> Value {
        let layers: Vec<&Descriptor> = [&parts.files].into_iter().chain(parts.dblocks.values()).collect();
        json!({ "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": parts.config, "layers": layers })
    }

    #[test]
    fn digests_are_plain_names() {
        let good = String::from(digest(1));
        assert_eq!(Digest::try_from(good.clone()), Ok(digest(1)));
        let dots = format!("sha256:{}", "../".repeat(21) + "x");
        for bad in [&good[7..], &good[..70], &good.to_uppercase(), &dots, "sha512:00", &(good.clone() + "0")]
        {
            assert!(Digest::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn manifests_are_looked_at() {
        let good = layers(&parts());
        let parse = |value: &Value| Parts::parse(value.to_string().as_bytes());
        assert_eq!(parse(&good).unwrap().unwrap(), parts());
        let other = json!({ "config": { "mediaType": "application/vnd.oci.image.config.v1+json" } });
        assert!(parse(&other).unwrap().is_none());
        let refused = |pointer: &str, value: Value| {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).unwrap() = value;
            parse(&bad).unwrap_err().to_string()
        };
        let number = format!("/layers/1/annotations/{NUMBER}");
        assert!(refused("/layers/0/digest", json!("sha256:../../x")).contains("hexadecimal"));
        assert!(refused("/layers/0/size", json!(-1)).contains("manifest"));
        assert!(refused("/layers/0/mediaType", json!(DBLOCK_TYPE)).contains("first layer"));
        assert!(refused("/layers", json!([])).contains("first layer"));
        assert!(refused(&number, json!("0")).contains("no dblock"));
        assert!(refused(&number, json!("9")).contains("no dblock"));
        assert!(refused(&number, json!("../1")).contains("no dblock"));
        assert!(refused("/layers/2/size", json!(DBLOCK_MAX + 1)).contains("no dblock"));
        assert!(Parts::parse(b"[[[[").is_err() && Parts::parse(&b"[".repeat(1 << 16)).is_err());
    }

    #[test]
    fn an_index_keeps_what_is_not_ours_and_names_each_once() {
        let other = json!({ "mediaType": "x/y", "digest": "sha512:no", "extra": [1] });
        let text = json!({ "schemaVersion": 2, "manifests": [other.clone(), 7] }).to_string();
        let mut index = Index::parse(text.as_bytes()).unwrap();
        let name = Id::new("web").unwrap();
        assert!(!index.put(&name, (digest(1), 5)).unwrap());
        assert!(index.put(&name, (digest(1), 5)).unwrap());
        assert!(!index.put(&name, (digest(2), 5)).unwrap() && index.is_ours(&name, |_| false));
        let mut image = json!({ "mediaType": MANIFEST_TYPE, "annotations": { NAME: "image" } });
        let of_image = Id::new("image").unwrap();
        index.0.push(image.clone());
        assert!(!index.is_ours(&of_image, |_| true), "it has no digest");
        index.0.pop();
        image["digest"] = json!(digest(3));
        image["size"] = json!(7);
        index.0.push(image);
        assert!(index.is_ours(&of_image, |of| of.size == 7) && !index.is_ours(&of_image, |_| false));
        index.0.pop();
        let index = Index::parse(&index.encode()).unwrap();
        assert_eq!(index.0.len(), 3);
        assert_eq!(index.0[0], other);
        let digests: Vec<Digest> = index.manifests().map(|found| found.digest).collect();
        assert_eq!(digests, [digest(2)]);
        let many = json!({ "manifests": vec![0; ENTRIES_MAX + 1] }).to_string();
        assert!(Index::parse(many.as_bytes()).is_err() && Index::parse(b"{}").is_err());
    }

    #[test]
    fn a_configuration_says_what_it_is_of() {
        assert!(check_config(&config(&[("manifest.json".into(), 7)])).is_ok());
        let later = json!({ "kind": KIND, "version": 2 }).to_string();
        assert!(check_config(later.as_bytes()).unwrap_err().to_string().contains("version 2"));
        for bad in ["{}", "[]", "", r#"{"kind":"dormouse snapshot"}"#] {
            assert!(check_config(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
