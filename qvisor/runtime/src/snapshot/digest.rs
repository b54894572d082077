//! Digests of sparse files.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

use abi::PAGE_SIZE;
use blake3::{Hash, Hasher};
use rustix::fs::{self, Advice, SeekFrom};
use rustix::io::Errno;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;
/// Bytes that the host reads before they are asked for.
const READ_AHEAD: u64 = 32 << 20;
const _: () = assert!(PAGE as u64 == PAGE_SIZE && CHUNK.is_multiple_of(PAGE));

/// The digest of a file's content: of its pages that are not all zeros, each with its number, and of its length. A copy with other
/// holes has the same one, and holes take no time.
pub(super) fn of(file: &File) -> io::Result<Hash> {
    let mut hasher = Hasher::new();
    // Several pages at a time: many blocks of them are digested at once.
    let mut input = Vec::with_capacity(CHUNK + CHUNK / PAGE * size_of::<u64>());
    let len = each_part(file, |start, bytes| {
        for (number, page) in (start / PAGE_SIZE..).zip(bytes.chunks(PAGE)) {
            if page.iter().any(|byte| *byte != 0) {
                input.extend_from_slice(&number.to_le_bytes());
                input.extend_from_slice(page);
            }
        }
        hasher.update(&input);
        input.clear();
        Ok::<_, io::Error>(())
    })?;
    Ok(hasher.update(&len.to_le_bytes()).finalize())
}

/// Reads the data of a sparse file, part by part, each from a page on. Result: the file's length.
pub(super) fn each_part<E: From<io::Error>>(
    file: &File,
    mut part: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<u64, E> {
    let len = file.metadata()?.len();
    read_ahead(file, len)?;
    let (mut buffer, mut at) = (vec![0_u8; CHUNK], 0);
    while let Some(data) = next_data(file, at)?.filter(|data| *data < len) {
        // On a page of the file, wherever the host's data begin.
        let start = data - data % PAGE_SIZE;
        let end = end_of_data(file, data, len).next_multiple_of(PAGE_SIZE).min(len);
        let want = usize::try_from(end - start).unwrap_or(CHUNK).min(CHUNK);
        let bytes = buffer.get_mut(..want).unwrap_or_default();
        file.read_exact_at(bytes, start)?;
        part(start, bytes)?;
        at = start + want as u64;
    }
    Ok(len)
}

/// Has the host read the data of a file of `len` bytes, up to a bound: where they lie apart, the disk is waited for once and not for each
/// piece.
fn read_ahead(file: &File, len: u64) -> io::Result<()> {
    let (mut at, mut left) = (0, READ_AHEAD);
    while let Some(data) = next_data(file, at)?.filter(|data| *data < len && left > 0) {
        at = end_of_data(file, data, len);
        let bytes = (at - data).min(left);
        left -= bytes;
        // A host that does not reads them when they are asked for.
        let _ = fs::fadvise(file, data, NonZeroU64::new(bytes), Advice::WillNeed);
    }
    Ok(())
}

/// Where the data end that begin at `data`, in a file of `len` bytes.
pub(super) fn end_of_data(file: &File, data: u64, len: u64) -> u64 {
    // Without an answer what follows is read, too.
    fs::seek(file, SeekFrom::Hole(data)).ok().filter(|hole| *hole > data).map_or(len, |hole| hole.min(len))
}

/// The next byte from `at` on that the file has room on the disk for; `None`: nothing but a hole follows.
pub(super) fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
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
