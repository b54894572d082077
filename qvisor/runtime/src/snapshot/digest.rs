//! Digests of sparse files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use abi::PAGE_SIZE;
use blake3::{Hash, Hasher};
use rustix::fs::{self, SeekFrom};
use rustix::io::Errno;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;
const _: () = assert!(PAGE as u64 == PAGE_SIZE && CHUNK.is_multiple_of(PAGE));

/// The digest of a file's content: of its pages that are not all zeros, each with its number, and of its length. A copy with other
/// holes has the same one, and holes take no time.
pub(super) fn of(file: &File) -> io::Result<Hash> {
    let len = file.metadata()?.len();
    let (mut hasher, mut buffer, mut at) = (Hasher::new(), vec![0_u8; CHUNK], 0);
    while let Some(data) = next_data(file, at)?.filter(|data| *data < len) {
        // On a page of the file, wherever the host's data begin.
        let start = data - data % PAGE_SIZE;
        let want = usize::try_from(len - start).unwrap_or(CHUNK).min(CHUNK);
        let bytes = buffer.get_mut(..want).unwrap_or_default();
        file.read_exact_at(bytes, start)?;
        for (number, page) in (start / PAGE_SIZE..).zip(bytes.chunks(PAGE)) {
            if page.iter().any(|byte| *byte != 0) {
                hasher.update(&number.to_le_bytes()).update(page);
            }
        }
        at = start + want as u64;
    }
    Ok(hasher.update(&len.to_le_bytes()).finalize())
}

/// The next byte from `at` on that the file has room on the disk for; `None`: nothing but a hole follows.
fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        // A file system that does not tell.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testdir::TempDir;

    #[test]
    fn holes_count_as_the_zeros_that_they_are() {
        let temp = TempDir::new();
        let make = |name: &str| File::create_new(temp.path().join(name)).unwrap();
        let open = |name: &str| File::open(temp.path().join(name)).unwrap();
        let mut whole = vec![0_u8; 5 * CHUNK + 7];
        for at in [3, 2 * CHUNK - 1, 2 * CHUNK, 5 * CHUNK + 6] {
            whole[at] = 1;
            make(&format!("whole-{at}")).write_all_at(&whole, 0).unwrap();
            let sparse = make(&format!("sparse-{at}"));
            sparse.set_len(whole.len() as u64).unwrap();
            let set = whole.iter().enumerate().filter(|(_, byte)| **byte != 0);
            set.for_each(|(at, byte)| sparse.write_all_at(&[*byte], at as u64).unwrap());
            assert_eq!(
                of(&open(&format!("whole-{at}"))).unwrap(),
                of(&open(&format!("sparse-{at}"))).unwrap()
            );
        }
        let all: Vec<_> =
            [3, 2 * CHUNK - 1, 2 * CHUNK].map(|at| of(&open(&format!("whole-{at}"))).unwrap()).into();
        assert!(all[0] != all[1] && all[1] != all[2]);
        let (empty, zeros) = (make("empty"), make("zeros"));
        zeros.set_len(9).unwrap();
        assert_ne!(of(&open("empty")).unwrap(), of(&open("zeros")).unwrap());
        drop(empty);
    }
}
