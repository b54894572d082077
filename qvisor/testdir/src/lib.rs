//! Directories for tests that go away with the test, and ports for servers.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::fs::DirBuilder;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A TCP port that nobody listens at now. It is below those that the host gives to clients: one that tries again and again until somebody
/// listens would at some time be given the port itself, be connected to itself, and wait for its own answer.
///
/// # Panics
/// When none of those tried is free.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u64 = 12_000;
    const COUNT: u64 = 20_000;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut ports = std::iter::repeat_with(|| {
        let mixed = (u64::from(std::process::id()) << 20) + NEXT.fetch_add(1, Ordering::Relaxed);
        u16::try_from(FIRST + (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % COUNT).unwrap_or(u16::MAX)
    });
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.by_ref().take(1000).find(is_free).expect("a port is free")
}

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
