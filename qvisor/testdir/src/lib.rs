//! Directories for unit tests that go away with the test.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory that goes away with the value.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes one below the host's directory for temporary files.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("dormouse-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path).expect("there is a place for temporary files");
        Self(path)
    }

    /// The directory's path, which is valid as long as the value lives.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Default for TempDir {
    fn default() -> Self {
        Self::new()
    }
}
