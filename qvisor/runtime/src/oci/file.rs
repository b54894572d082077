//! Reads the files that a bundle names.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::{BundleError, Result};

/// Largest configuration in bytes.
pub(super) const CONFIG_MAX: u64 = 16 << 20;

/// Reads a configuration.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let unusable = |source| BundleError::Bundle { path: path.to_owned(), source };
    let mut text = Vec::new();
    // Only regular files are read: a device may have no end, and a FIFO no writer.
    let file = open_without_waiting(path).map_err(unusable)?;
    if !file.metadata().map_err(unusable)?.is_file() {
        return Err(unusable(io::Error::other("it is no file")));
    }
    file.take(CONFIG_MAX).read_to_end(&mut text).map_err(unusable)?;
    Ok(text)
}

/// Opens a path without waiting: it may turn out to be a FIFO or a terminal.
pub(super) fn open_without_waiting(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}
