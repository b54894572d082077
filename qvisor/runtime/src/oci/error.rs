//! Why a bundle cannot be run.

use std::io;
use std::path::PathBuf;

/// Why a bundle cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("cannot use bundle {path}: {source}; pass a directory with a config.json as --bundle")]
    Bundle { path: PathBuf, source: io::Error },
    #[error(
        "cannot read {path}: {source}; see the OCI runtime specification, or write a new one with dormouse spec"
    )]
    Syntax { path: PathBuf, source: serde_json::Error },
    #[error("cannot run this bundle: {what} is missing in config.json; add it")]
    Missing { what: &'static str },
    #[error("cannot run this bundle: {what} in config.json is {value:?}, {why}; correct it")]
    Invalid { what: String, value: String, why: String },
    #[error(
        "cannot run this bundle: config.json asks for {what}, which Dormouse does not do{why}; leave it out"
    )]
    Refused { what: String, why: String },
    #[error("cannot use process file {path}: {why}; correct it")]
    Process { path: PathBuf, why: String },
    #[error("cannot use root file system {path}: {source}; correct root.path in config.json")]
    Root { path: PathBuf, source: io::Error },
    #[error("cannot mount {path}: {source}; correct the source of this mount in config.json")]
    Source { path: PathBuf, source: io::Error },
    #[error("cannot join {what} namespace {path}: {why}; correct its path in config.json")]
    Namespace { what: &'static str, path: PathBuf, why: String },
}

impl BundleError {
    pub(super) fn refused(what: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), why: String::new() }
    }

    pub(super) fn refused_because(what: impl Into<String>, why: &str) -> Self {
        Self::Refused { what: what.into(), why: format!(" ({why})") }
    }

    pub(super) fn invalid(what: impl Into<String>, value: impl ToString, why: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), value: value.to_string(), why: why.into() }
    }
}

/// The result of most checks.
pub(super) type Result<T> = std::result::Result<T, BundleError>;
