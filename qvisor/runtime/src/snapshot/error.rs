//! Why a snapshot could not be made, found or used.

use std::io;
use std::path::PathBuf;

use ::store::StoreError;
use vmm::checkpoint::BadImage;

use super::layer::LayerError;
use super::place::Place;
use super::working_set::BadWorkingSet;
use crate::control::OrderError;
use crate::state::StateError;

/// Why a snapshot could not be made, found or used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(
        "cannot use {name:?} as a snapshot's name: only letters, digits, '_', '.' and '-' are allowed, 1 to 255 of them"
    )]
    BadName { name: String },
    #[error(
        "cannot use the snapshots in {path}: {source}; correct it, or choose another directory by DORMOUSE_SNAPSHOTS"
    )]
    Store { path: PathBuf, source: io::Error },
    #[error("cannot use the key of snapshots {path}: {why}; correct it")]
    Key { path: PathBuf, why: String },
    #[error(
        "cannot make snapshot {place}: {what} failed: {source}; free some space, or choose another place by --image-path"
    )]
    Make { place: Place, what: &'static str, source: io::Error },
    #[error(
        "cannot make a place for a snapshot in memory: {0}; run it as root, or use checkpoint and do --from"
    )]
    InMemory(io::Error),
    #[error("cannot make snapshot {place}: there is one already; remove it first, or choose another place")]
    Exists { place: Place },
    #[error("cannot make snapshot {place}: the directory is not empty; name one that is, or is not there")]
    NotEmpty { place: Place },
    #[error("cannot put a snapshot on {place}: it is on another file system; choose a place on the same one")]
    ParentElsewhere { place: Place },
    #[error("cannot put a snapshot on {place}: {source}")]
    Parent { place: Place, source: io::Error },
    #[error("cannot use the store of snapshots' chunks: {0}; see dormouse store verify")]
    Chunks(StoreError),
    #[error("cannot analyse snapshots: {why}; see dormouse snapshot list")]
    NothingToAnalyse { why: String },
    #[error("cannot make a snapshot of sandbox {id}: {why}")]
    Sandbox { id: String, why: String },
    #[error("cannot make a snapshot of sandbox {id}: {source}")]
    Order { id: String, source: OrderError },
    #[error("cannot make a snapshot of sandbox {id}: its changes to files cannot be copied: {source}")]
    Layer { id: String, source: LayerError },
    #[error("cannot find snapshot {place}: there is none; see dormouse snapshot list")]
    Unknown { place: Place },
    #[error("cannot use snapshot {place}: {why}", why = printable(why))]
    Unfit { place: Place, why: Unfit },
    #[error(
        "cannot share the pages of snapshot {place}: {source}; free some space, or share by --share snapshot"
    )]
    Share { place: Place, source: io::Error },
    #[error("cannot hold snapshot {place} in memory: {source}")]
    Hold { place: Place, source: io::Error },
    #[error("cannot use what is held of snapshot {place}: {source}")]
    Held { place: Place, source: io::Error },
    #[error("cannot {what}: {why}")]
    Move { what: String, why: Box<dyn std::error::Error + Send + Sync> },
    #[error("cannot remove snapshot {place}: {source}")]
    Remove { place: Place, source: io::Error },
}

/// Words as a terminal may have them: those of strangers may have control characters, which become escapes.
pub fn printable(words: impl std::fmt::Display) -> String {
    let (words, mut out) = (words.to_string(), String::new());
    for letter in words.chars() {
        if letter.is_control() { out.extend(letter.escape_default()) } else { out.push(letter) }
    }
    out
}

/// Why a snapshot that is there cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("its manifest is damaged: {0}")]
    Damaged(String),
    #[error("it has version {0} of the format, and this dormouse knows version {known}", known = super::manifest::VERSION)]
    Version(u64),
    #[error("it was made by another host, or changed: its seal is not by this host's key")]
    Sealed,
    #[error("its content is sealed; pass the key by --key-file")]
    NeedsKey,
    #[error("its content is sealed by another key")]
    OtherKey,
    #[error("its content is not sealed; leave --key-file out")]
    NotSealed,
    #[error("its content is sealed, and no other snapshot can be put on that")]
    SealedParent,
    #[error(
        "its pages lie in the store of chunks, and no other snapshot can be put on that; leave --parent out, and store both"
    )]
    StoredParent,
    #[error("its content is sealed, and would be stored in the clear; leave --encrypt off out")]
    InTheClear,
    #[error("its pages cannot be shared: {0} (leave --share out)")]
    NotShared(&'static str),
    #[error("its working set cannot be recorded: nothing can be written to its directory")]
    ReadOnly,
    #[error(
        "nobody has seen its pages come into the page cache; use dormouse snapshot record, as a user who may load eBPF programs"
    )]
    NoFills,
    #[error("its working set does not lie together in a file; use dormouse snapshot record --together")]
    NotTogether,
    #[error(
        "its pages are held in memory, and none has to be read ahead from a file; leave --prefetch reap out"
    )]
    HeldTogether,
    #[error(
        "its content is sealed, and would lie in memory in the clear; only those made without --key-file can be held"
    )]
    HeldSealed,
    #[error(
        "it is not held in memory, as what is kept in memory needs; run dormouse snapshot hold, or use --home disk"
    )]
    NotHeld,
    #[error(
        "its content is sealed, and no two of such are alike; only those made without --key-file can be stored"
    )]
    StoredSealed,
    #[error(
        "its pages are packed, and hardly two of such are alike; only those made without --codec can be stored, which packs them"
    )]
    StoredPacked,
    #[error(
        "its content is sealed, and no two of such are alike; only those made without --key-file can be analysed"
    )]
    AnalysedSealed,
    #[error(
        "its pages are packed, and hardly two of such are alike; only those made without --codec can be analysed"
    )]
    AnalysedPacked,
    #[error("it is not in the store of chunks; put it there by dormouse snapshot store")]
    NotStored,
    #[error("it does not come back from the store of chunks: {0}; see dormouse store verify")]
    Chunks(StoreError),
    #[error("its file {0} was changed or damaged")]
    Changed(String),
    #[error("the changes to files that it has cannot be read: {0}")]
    Layer(LayerError),
    #[error("it is a sandbox of dormouse do; begin with it by dormouse do --from")]
    OfCommand,
    #[error("its bundle is on another host; pass one of this host's to dormouse restore by --bundle")]
    NoBundle,
    #[error("it is a pod; begin with it by dormouse restore, or by an annotation")]
    OfPod,
    #[error(
        "it is a pod, and the bundle is not the first container's of one (annotation io.kubernetes.cri.container-type, and pods \
         set to shared)"
    )]
    NeedsPod,
    #[error("it is no pod, and the bundle's container begins one; set pods to separate")]
    NoPod,
    #[error("it is a pod that has no further container {name}; {has}")]
    NoContainer { name: String, has: String },
    #[error("it is no pod, so it has no further container {name}")]
    NoFurther { name: String },
    #[error("its pages are not as they were: {0}")]
    Pages(#[from] BadImage),
    #[error("its working set is not the one that was recorded: {0}")]
    WorkingSet(#[from] BadWorkingSet),
    #[error("it belongs to another build of dormouse, whose kernel differs; use that build")]
    Build,
    #[error("it was made on platform {made}, and {why}")]
    Platform { made: &'static str, why: String },
    #[error("it was made on a processor with {0}, which this host's lacks")]
    Processor(String),
    #[error(
        "it was made on a processor whose registers are saved in another layout (XSAVE {made}, here {here})"
    )]
    Registers { made: String, here: String },
    #[error("it needs {what}, and {why}")]
    Size { what: String, why: String },
    #[error("the snapshot was made with a mount at {path}, which the bundle lacks")]
    NoMount { path: String },
    #[error(
        "the snapshot was made with a mount of kind {made} at {path}, and the bundle has one of kind {has}"
    )]
    OtherMount { path: String, made: String, has: String },
    #[error("the snapshot was made {made} a terminal, and the bundle's process has {has}; set process.terminal to {wanted}", has = if *wanted { "none" } else { "one" }, made = if *wanted { "with" } else { "without" })]
    Terminal { wanted: bool },
}
