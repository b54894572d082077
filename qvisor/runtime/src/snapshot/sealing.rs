//! Snapshots whose content is sealed by a key of their user's: nothing of the sandbox's memory comes to the disk in the clear.
//!
//! Each file has a key of its own, derived from the user's and a number that was drawn for the snapshot. Pages are packed and sealed by
//! partitions ([`vmm::checkpoint::ImageFiles::pack`]). The other files are sealed as *streams*: a head, and then their data in records.
//!
//! | bytes | a stream |
//! |---|---|
//! | 8 | `DORMSEAL` |
//! | 8 | the length of the file that it is of |
//! | the rest | records |
//!
//! | bytes | a record |
//! |---|---|
//! | 8 | where in the file its data are: behind those of the one before |
//! | 4 | how many bytes, [`RECORD_BYTES`] at most; 0: this is the last record, and its place is the file's length |
//! | that many + 16 | the data, by AES-256 in Galois/Counter Mode; the number of the record is the nonce, and what comes before is authenticated |

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use vmm::checkpoint::{ImageFiles, ImageHead, ORPHANS_BYTES_MAX, PageKey, PageSums, wipe};
use vmm::process;

use super::digest::{end_of_data, next_data};
use super::error::Unfit;
use super::key::Key;
use super::manifest::SealedBy;

const KIND: &[u8; 8] = b"DORMSEAL";
/// Most bytes of a record's data.
const RECORD_BYTES: usize = 256 << 10;
const CONTEXT: &str = "dormouse 2026 snapshot content";
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = KIND.len() + 8;
const RECORD_HEAD_BYTES: usize = 12;

/// The key of a snapshot's content. It is never shown.
#[derive(Clone)]
pub(crate) struct ContentKey {
    key: [u8; 32],
    by: SealedBy,
}

impl Drop for ContentKey {
    fn drop(&mut self) {
        wipe(&mut self.key);
    }
}

impl std::fmt::Debug for ContentKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContentKey").field("by", &self.by).finish_non_exhaustive()
    }
}

impl ContentKey {
    /// One for a new snapshot.
    pub(super) fn draw(of: &Key) -> io::Result<Self> {
        let mut salt = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut salt)?;
        Ok(Self::with_salt(of, &blake3::Hash::from(salt)))
    }

    fn with_salt(of: &Key, salt: &blake3::Hash) -> Self {
        let key = *of.derive(CONTEXT, salt.as_bytes()).as_bytes();
        let check = blake3::keyed_hash(&key, b"check").to_hex().to_string();
        Self { key, by: SealedBy { salt: salt.to_hex().to_string(), check } }
    }

    /// That of a snapshot that is there.
    pub(super) fn find(of: &Key, by: &SealedBy) -> Result<Self, Unfit> {
        let salt = blake3::Hash::from_hex(&by.salt)
            .map_err(|_| Unfit::Damaged("it is sealed with no salt".into()))?;
        let found = Self::with_salt(of, &salt);
        if found.by == *by { Ok(found) } else { Err(Unfit::OtherKey) }
    }

    /// The words about it in a manifest.
    pub(super) fn by(&self) -> &SealedBy {
        &self.by
    }

    /// The key of a file.
    fn of_file(&self, name: &str) -> [u8; 32] {
        *blake3::keyed_hash(&self.key, name.as_bytes()).as_bytes()
    }

    /// The key of pages.
    pub(crate) fn of_pages(&self) -> PageKey {
        PageKey::new(self.of_file(super::place::PAGES))
    }

    /// Seals a file of `most` bytes of data at most as a stream, to one that is empty. `goes_on` is asked now and then. Whoever wrote the file
    /// may be hostile, and go on writing.
    pub(super) fn seal(
        &self,
        (name, most): (&str, u64),
        from: &File,
        to: &File,
        goes_on: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let mut left = most;
        let len = from.metadata()?.len();
        let mut stream = Stream::new(self.of_file(name), stream_head(len))?;
        let mut out = BufWriter::new(to);
        out.write_all(&stream.head)?;
        let mut at = 0;
        let mut data = Vec::with_capacity(RECORD_BYTES + TAG_BYTES);
        loop {
            let start = next_data(from, at)?.filter(|start| *start < len).unwrap_or(len);
            let end = if start < len { end_of_data(from, start, len) } else { len };
            let want = usize::try_from(end - start).unwrap_or(RECORD_BYTES).min(RECORD_BYTES);
            data.resize(want, 0);
            from.read_exact_at(&mut data, start)?;
            let head = record_head(start, want);
            stream.seal(&head, &mut data)?;
            out.write_all(&head)?;
            out.write_all(&data)?;
            if want == 0 {
                return out.flush();
            }
            at = start + want as u64;
            left =
                left.checked_sub(want as u64).ok_or_else(|| io::Error::other("it has more than it says"))?;
            if !goes_on() {
                return Err(io::Error::other("it is not wanted any more"));
            }
        }
    }

    /// Opens a stream of `most` bytes of data at most, to a file in memory.
    fn open(&self, (name, most): (&str, u64), from: &File) -> Result<File, Unfit> {
        let mut left = most;
        let broken = || Unfit::Changed(name.into());
        let to = in_memory()?;
        let mut input = BufReader::new(from);
        input.seek(SeekFrom::Start(0))?;
        let mut head = [0; HEAD_BYTES];
        input.read_exact(&mut head).map_err(|_| broken())?;
        let len = number_of(head.get(KIND.len()..).unwrap_or_default());
        if head != stream_head(len) {
            return Err(broken());
        }
        let mut stream = Stream::new(self.of_file(name), head)?;
        to.set_len(len)?;
        let mut behind = 0;
        let mut data = Vec::with_capacity(RECORD_BYTES + TAG_BYTES);
        let mut head = [0; RECORD_HEAD_BYTES];
        loop {
            input.read_exact(&mut head).map_err(|_| broken())?;
            let (at, count) = head.split_at(8);
            let (at, count) = (number_of(at), number_of(count));
            let is_good = at >= behind && count <= RECORD_BYTES as u64;
            if !is_good || at.checked_add(count).is_none_or(|end| end > len) {
                return Err(broken());
            }
            data.clear();
            let sealed = count + TAG_BYTES as u64;
            if input.by_ref().take(sealed).read_to_end(&mut data)? as u64 != sealed {
                return Err(broken());
            }
            let open = stream.open(&head, &mut data).ok_or_else(broken)?;
            if count == 0 {
                let is_end = at == len && input.fill_buf()?.is_empty();
                return if is_end { Ok(to) } else { Err(broken()) };
            }
            left = left.checked_sub(count).ok_or_else(broken)?;
            to.write_all_at(open, at)?;
            behind = at + count;
        }
    }

    /// The files of a snapshot in the clear, in memory, but for the pages, which are opened one by one.
    pub(super) fn open_files(&self, head: &ImageHead, files: ImageFiles) -> Result<ImageFiles, Unfit> {
        let kernel = self.open((super::place::KERNEL, kernel_most(head)), &files.kernel)?;
        let table = self.open((super::place::TABLE, table_most(head)), &files.table)?;
        let orphans = self.open((super::place::ORPHANS, ORPHANS_MOST), &files.orphans)?;
        Ok(ImageFiles { kernel, table, orphans, ..files })
    }
}

/// Most bytes of data in the file of the kernel's memory, of a head whose sizes were checked: a record is a whole number of pages.
pub(super) fn kernel_most(head: &ImageHead) -> u64 {
    head.taken_bytes.saturating_add(SLACK)
}

/// Most bytes of the table of pages, packed or not.
pub(super) fn table_most(head: &ImageHead) -> u64 {
    PageSums::bytes_max(head.pages_end())
}

/// Most bytes of the content of files without a name, each of which may end in a page of its own.
pub(super) const ORPHANS_MOST: u64 = ORPHANS_BYTES_MAX + SLACK;
const SLACK: u64 = 16 << 20;

/// A file in memory, which ends with its descriptors.
pub(super) fn in_memory() -> io::Result<File> {
    Ok(process::memory_file(c"snapshot")?.into())
}

fn stream_head(len: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    let bytes = KIND.iter().copied().chain(len.to_le_bytes());
    head.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    head
}

fn record_head(at: u64, len: usize) -> [u8; RECORD_HEAD_BYTES] {
    let mut head = [0; RECORD_HEAD_BYTES];
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let bytes = at.to_le_bytes().into_iter().chain(len.to_le_bytes());
    head.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    head
}

fn number_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The cipher of one stream.
struct Stream {
    key: LessSafeKey,
    head: [u8; HEAD_BYTES],
    /// The number of the next record.
    next: u64,
}

impl Stream {
    fn new(mut key: [u8; 32], head: [u8; HEAD_BYTES]) -> io::Result<Self> {
        let unbound = UnboundKey::new(&AES_256_GCM, &key);
        wipe(&mut key);
        let key = unbound.map_err(|_| io::Error::other("a key cannot be used"))?;
        Ok(Self { key: LessSafeKey::new(key), head, next: 0 })
    }

    /// The nonce of the next record, and what is authenticated with it.
    fn step(&mut self, head: &[u8; RECORD_HEAD_BYTES]) -> (Nonce, Aad<Vec<u8>>) {
        let mut nonce = [0; NONCE_LEN];
        nonce.iter_mut().zip(self.next.to_le_bytes()).for_each(|(to, from)| *to = from);
        self.next += 1;
        (Nonce::assume_unique_for_key(nonce), Aad::from([&self.head[..], head].concat()))
    }

    /// Seals a record's data in place, with the tag behind them.
    fn seal(&mut self, head: &[u8; RECORD_HEAD_BYTES], data: &mut Vec<u8>) -> io::Result<()> {
        let (nonce, aad) = self.step(head);
        let sealed = self.key.seal_in_place_append_tag(nonce, aad, data);
        sealed.map_err(|_| io::Error::other("a record cannot be sealed"))
    }

    /// Opens what was sealed so; `None`: it is not what was sealed.
    fn open<'d>(&mut self, head: &[u8; RECORD_HEAD_BYTES], data: &'d mut [u8]) -> Option<&'d [u8]> {
        let (nonce, aad) = self.step(head);
        self.key.open_in_place(nonce, aad, data).ok().map(|open| &*open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 3 * 8 + 3 * RECORD_BYTES as u64 + 3 * 4096;

    fn key(byte: u8) -> ContentKey {
        ContentKey::with_salt(&Key::of_bytes([byte; 32]), &blake3::hash(b"salt"))
    }

    fn bytes_of(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn a_sparse_file_comes_back_by_its_key_and_name_alone() {
        let from = in_memory().unwrap();
        from.set_len(40 << 20).unwrap();
        for at in [0, 3 << 20, (40 << 20) - 9] {
            from.write_all_at(b"a secret", at).unwrap();
        }
        from.write_all_at(&vec![5; 3 * RECORD_BYTES], 20 << 20).unwrap();
        let to = in_memory().unwrap();
        key(1).seal(("one", MOST), &from, &to, &|| true).unwrap();
        let sealed = bytes_of(&to);
        assert!(sealed.len() < 2 << 20 && !sealed.windows(8).any(|bytes| bytes == b"a secret"));
        assert!(bytes_of(&key(1).open(("one", MOST), &to).unwrap()) == bytes_of(&from));
        assert!(key(1).open(("other", MOST), &to).is_err() && key(2).open(("one", MOST), &to).is_err());
        let changed = in_memory().unwrap();
        for at in [0, 8, 9, 15, 16, 17, 24, 28, 40, sealed.len() / 2, sealed.len() - 1] {
            let mut bytes = sealed.clone();
            bytes[at] ^= 1;
            changed.write_all_at(&bytes, 0).unwrap();
            assert!(key(1).open(("one", MOST), &changed).is_err(), "byte {at}");
        }
        changed.write_all_at(&sealed, 0).unwrap();
        changed.set_len(sealed.len() as u64 - (RECORD_HEAD_BYTES + TAG_BYTES) as u64).unwrap();
        assert!(key(1).open(("one", MOST), &changed).is_err(), "without its last record");
        changed.write_all_at(&[sealed.clone(), vec![0]].concat(), 0).unwrap();
        assert!(key(1).open(("one", MOST), &changed).is_err(), "something follows");
        assert!(key(1).open(("one", 9000), &to).is_err());
        let more = in_memory().unwrap();
        assert!(key(1).seal(("one", 9000), &from, &more, &|| true).is_err());
        assert!(key(1).seal(("one", MOST), &from, &more, &|| false).is_err());
        let empty = in_memory().unwrap();
        let to = in_memory().unwrap();
        key(1).seal(("one", MOST), &empty, &to, &|| true).unwrap();
        assert!(bytes_of(&key(1).open(("one", MOST), &to).unwrap()).is_empty());
    }

    #[test]
    fn another_key_is_told() {
        let (mine, other) = (Key::of_bytes([1; 32]), Key::of_bytes([2; 32]));
        let drawn = ContentKey::draw(&mine).unwrap();
        assert!(ContentKey::find(&mine, drawn.by()).unwrap().key == drawn.key);
        assert!(matches!(ContentKey::find(&other, drawn.by()), Err(Unfit::OtherKey)));
        assert_ne!(ContentKey::draw(&mine).unwrap().by(), drawn.by());
        assert!(drawn.of_file(super::super::place::PAGES) != drawn.of_file("other"));
        assert!(!format!("{drawn:?}").contains(&blake3::Hash::from(drawn.key).to_hex().to_string()));
    }
}
