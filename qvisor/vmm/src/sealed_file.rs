//! Memory files that nobody can change any more, whoever has a descriptor of one.
#![deny(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::{self, Mode, SealFlags};

use crate::memory::memory_file;

/// Its size and its content stay, and so do the seals.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// A memory file that is being written.
#[derive(Debug)]
pub struct UnsealedFile(File);

impl UnsealedFile {
    /// An empty one. Its pages may hold code.
    pub fn new(name: &CStr) -> io::Result<Self> {
        let file = File::from(memory_file(name).map_err(io::Error::other)?);
        // Whoever opens it anew by another's descriptor needs a right to it.
        fs::fchmod(&file, Mode::RUSR)?;
        Ok(Self(file))
    }

    /// The file, to be written.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Seals it. Result: the file, open for reading only.
    pub fn seal(self) -> io::Result<File> {
        fs::fcntl_add_seals(&self.0, SEALS)?;
        File::open(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Whether nobody can change the file any more.
#[must_use]
pub fn is_sealed(file: &File) -> bool {
    fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_sealed_file_stays_as_it_is() {
        let made = UnsealedFile::new(c"test").unwrap();
        made.file().write_all_at(b"content", 4096).unwrap();
        assert!(!is_sealed(made.file()));
        let writable = made.file().try_clone().unwrap();
        let file = made.seal().unwrap();
        assert!(is_sealed(&file) && !is_sealed(&File::open("/proc/self/exe").unwrap()));
        assert!(file.write_all_at(b"x", 0).is_err(), "it is open for reading only");
        assert!(writable.write_all_at(b"x", 0).is_err() && writable.set_len(0).is_err());
        let mut found = [0; 7];
        file.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(&found, b"content");
    }
}
