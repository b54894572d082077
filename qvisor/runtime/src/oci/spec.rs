//! The configuration that `dormouse spec` writes.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Name of a bundle's configuration.
pub const CONFIG: &str = "config.json";
/// A shell on a read-only root file system in `rootfs`.
pub const DEFAULT: &str = include_str!("default.json");

/// Why no configuration could be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}; pass a directory without one as --bundle")]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// Writes a default configuration into `dir`; one that is there stays.
pub fn write(dir: &Path) -> Result<(), WriteError> {
    let path = dir.join(CONFIG);
    let written = File::create_new(&path).and_then(|mut file| file.write_all(DEFAULT.as_bytes()));
    written.map_err(|source| WriteError { path, source })
}
