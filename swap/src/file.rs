//! Files without a name: they vanish with the process, however it ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a file for pages could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a swap file in {dir}: {source}; pass a writable directory on a disk with --swap-dir")]
pub struct SwapFileError {
    dir: PathBuf,
    source: io::Error,
}

/// Makes an unnamed file in `dir` (mode 0600) that bypasses the page cache where the file system allows it.
pub fn open_unnamed(dir: &Path) -> Result<File, SwapFileError> {
    open(dir).map_err(|source| SwapFileError { dir: dir.to_owned(), source })
}

fn open(dir: &Path) -> io::Result<File> {
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for flags in [libc::O_TMPFILE | libc::O_DIRECT, libc::O_TMPFILE] {
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags | libc::O_CLOEXEC | libc::O_EXCL)
            .mode(0o600)
            .open(dir);
        match options {
            Ok(file) => return Ok(file),
            Err(error) => last = error,
        }
    }
    // File systems without unnamed files: one whose name goes at once.
    match last.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL) => named(dir),
        _ => Err(last),
    }
}

fn named(dir: &Path) -> io::Result<File> {
    for attempt in 0..100 {
        let path = dir.join(format!(".dormouse-swap-{}-{attempt}", std::process::id()));
        let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        match made {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
