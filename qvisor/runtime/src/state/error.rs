//! Why a sandbox could not be registered or found.

use std::io;
use std::path::PathBuf;

use crate::words;

/// Why a sandbox could not be registered or found.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(
        "cannot use {id:?} as a sandbox's ID: only letters, digits, '_', '.' and '-' are allowed, 1 to 255 of them"
    )]
    BadId { id: String },
    #[error("cannot start sandbox {id}: {}; choose another ID, or end that one", words::EXISTS)]
    InUse { id: String },
    #[error("cannot find sandbox {id}: {}; see dormouse list", words::DOES_NOT_EXIST)]
    Unknown { id: String },
    #[error(
        "cannot use directory {path}: {source}; correct it or free some space, or choose another one by --root (state) or \
         DORMOUSE_LAYERS (layers)"
    )]
    Root { path: PathBuf, source: io::Error },
    #[error("cannot choose a directory for {what}: {missing}; set {remedy}")]
    NoPlace { what: &'static str, missing: &'static str, remedy: &'static str },
    #[error("cannot remove {path}, whose sandbox has ended: {why}; the next start tries again")]
    Left { path: PathBuf, why: String },
}
