//! Files that can never change, as memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use rustix::fs::{SealFlags, fcntl_get_seals};

/// A file with these can never change.
pub const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// The content of a file of memory that is sealed: nobody can write it, cut it off or make it longer.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: nobody can write the memory.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `None`: the file may change.
    pub fn of_sealed(file: &File) -> io::Result<Option<Self>> {
        // Files of most file systems know of no seals.
        if !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS)) {
            return Ok(None);
        }
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(Some(Self { at: NonNull::dangling(), len }));
        }
        // SAFETY: a fresh mapping, wherever there is room, of what exists as long as the mapping.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(NonNull::new(at.cast()).map(|at| Self { at, len }))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is this value's own, so long, and what it shows is sealed.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    /// Nothing is looked at for a while: it counts to this process's memory only as far as it is.
    pub fn rest(&self) {
        if self.len > 0 {
            // SAFETY: a shared mapping: what is dropped is found again in the file.
            unsafe { libc::madvise(self.at.as_ptr().cast(), self.len, libc::MADV_DONTNEED) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping is this value's own, and nobody uses it any more.
            unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sealed;

    #[test]
    fn only_what_is_sealed_is_mapped() {
        let dir = testdir::TempDir::new();
        let path = dir.path().join("file");
        std::fs::write(&path, b"abc").unwrap();
        assert!(Mapping::of_sealed(&File::open(&path).unwrap()).unwrap().is_none());
        assert!(Mapping::of_sealed(&sealed(b"")).unwrap().unwrap().bytes().is_empty());
        let mapping = Mapping::of_sealed(&sealed(&[7; 5000])).unwrap().unwrap();
        mapping.rest();
        assert_eq!(mapping.bytes(), [7; 5000]);
    }
}
