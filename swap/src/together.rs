//! Pages of a base that lie one after the other in another file as well, as in the working set file of REAP (ASPLOS 2021, section 5.1): first
//! the pages, then their numbers, which ascend, and how many there are.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::page::{PAGE_BYTES, Page, PageBytes, PageId, offset_of};
use crate::pool;

/// Most pages that are read at once: 1 MiB.
const RUN_PAGES: usize = 256;

/// See the module.
pub(crate) struct Together {
    file: File,
    ids: Vec<PageId>,
}

/// Most pages that may lie together.
const TOGETHER_MAX: usize = 1 << 20;

impl Together {
    pub(crate) fn open(file: File) -> io::Result<Self> {
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| damaged())?;
        let word = size_of::<PageId>();
        let count = len.checked_sub(word).ok_or_else(damaged)? / (PAGE_BYTES + word);
        if count > TOGETHER_MAX || count * (PAGE_BYTES + word) + word != len {
            return Err(damaged());
        }
        let mut words = vec![0; (count + 1) * word];
        file.read_exact_at(&mut words, (count * PAGE_BYTES) as u64)?;
        let mut ids: Vec<PageId> =
            words.as_chunks().0.iter().map(|bytes| PageId::from_le_bytes(*bytes)).collect();
        let is_whole = ids.pop().is_some_and(|said| said as usize == count) && ids.is_sorted_by(|a, b| a < b);
        if is_whole { Ok(Self { file, ids }) } else { Err(damaged()) }
    }

    /// Where it has a page.
    fn place(&self, id: PageId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    /// Brings those of the pages, whose numbers ascend, that lie here; the others stay, and so does what is not right. Result: bytes read.
    pub(crate) fn fetch(
        &self,
        pages: &mut Vec<Page>,
        is_right: impl Fn(PageId, &PageBytes) -> bool + Sync,
    ) -> u64 {
        let (mut placed, mut others) = (Vec::new(), Vec::new());
        for page in pages.drain(..) {
            match self.place(page.id) {
                Some(place) => placed.push((place, page)),
                None => others.push(page),
            }
        }
        let follows = |(a, _): &(usize, Page), (b, _): &(usize, Page)| a + 1 == *b;
        let runs: Vec<_> = placed.chunk_by(follows).flat_map(|run| run.chunks(RUN_PAGES)).collect();
        let came = pool::map(&runs, |run| {
            let Some((first, _)) = run.first() else { return true };
            let mut room = vec![[0; PAGE_BYTES]; run.len()];
            let read = self.file.read_exact_at(room.as_flattened_mut(), (first * PAGE_BYTES) as u64);
            let mut both = run.iter().zip(&room);
            let came = read.is_ok() && both.all(|((_, page), content)| is_right(page.id, content));
            if came {
                run.iter().zip(&room).for_each(|((_, page), content)| page.copy_in(content));
            }
            came
        });
        let lost: Vec<bool> = runs.iter().zip(came).flat_map(|(run, came)| vec![!came; run.len()]).collect();
        let read_bytes = lost.iter().filter(|lost| !**lost).count() * PAGE_BYTES;
        others.extend(placed.into_iter().zip(lost).filter(|(_, lost)| *lost).map(|((_, page), _)| page));
        others.sort_unstable_by_key(|page| page.id);
        *pages = others;
        read_bytes as u64
    }
}

/// Writes pages of a base's file together, for [`FileBase::with_together`]. Their numbers ascend.
pub fn write_together(pages: &File, ids: &[PageId], to: &File) -> io::Result<()> {
    let mut content = [0; PAGE_BYTES];
    for (at, id) in ids.iter().enumerate() {
        pages.read_exact_at(&mut content, offset_of(*id))?;
        to.write_all_at(&content, (at * PAGE_BYTES) as u64)?;
    }
    let count = PageId::try_from(ids.len()).map_err(io::Error::other)?;
    let words: Vec<u8> = ids.iter().chain([&count]).flat_map(|word| word.to_le_bytes()).collect();
    to.write_all_at(&words, (ids.len() * PAGE_BYTES) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounce::Bounces;

    fn file(pages: &[u8]) -> File {
        let file = tempfile();
        for (at, byte) in pages.iter().enumerate() {
            file.write_all_at(&[*byte; PAGE_BYTES], (at * PAGE_BYTES) as u64).unwrap();
        }
        file
    }

    fn tempfile() -> File {
        let dir = testdir::TempDir::new();
        let path = dir.path().join("file");
        File::options().read(true).write(true).create_new(true).open(path).unwrap()
    }

    #[test]
    fn pages_come_from_where_they_lie_together_and_others_stay() {
        let (pages, together) = (file(&[0, 1, 2, 3, 4, 5, 6, 7]), tempfile());
        write_together(&pages, &[1, 3, 4, 7], &together).unwrap();
        let opened = Together::open(together).unwrap();
        let mut room = Bounces::new(5).take().unwrap();
        let mut wanted = room.pages(&[1, 2, 3, 4, 7]);
        // The fourth is not as it was written, and with it comes none of its run.
        let read_bytes = opened.fetch(&mut wanted, |id, content| id != 7 && u32::from(content[0]) == id);
        assert_eq!(read_bytes, 0);
        assert_eq!(wanted.iter().map(|page| page.id).collect::<Vec<_>>(), [1, 2, 3, 4, 7]);
        let mut wanted = room.pages(&[1, 2, 3, 4]);
        let read_bytes = opened.fetch(&mut wanted, |id, content| u32::from(content[0]) == id);
        assert_eq!((read_bytes, wanted.len(), wanted[0].id), (3 * PAGE_BYTES as u64, 1, 2));
        let bytes: Vec<u8> = room.places().iter().map(|place| place[0]).collect();
        assert_eq!([bytes[0], bytes[2], bytes[3]], [1, 3, 4]);
    }

    #[test]
    fn a_file_that_is_none_is_refused() {
        let good = tempfile();
        write_together(&file(&[0, 1, 2]), &[0, 2], &good).unwrap();
        let len = good.metadata().unwrap().len();
        for cut in [0, 1, 4096, 4100, len - 1] {
            let cut_off = tempfile();
            let mut bytes = vec![0; usize::try_from(cut).unwrap()];
            good.read_exact_at(&mut bytes, 0).unwrap();
            cut_off.write_all_at(&bytes, 0).unwrap();
            assert!(Together::open(cut_off).is_err(), "{cut} bytes of {len}");
        }
        for (at, word) in [(len - 4, 3_u32), (len - 8, 0), (len - 12, 2)] {
            let mut before = [0; 4];
            good.read_exact_at(&mut before, at).unwrap();
            good.write_all_at(&word.to_le_bytes(), at).unwrap();
            assert!(Together::open(good.try_clone().unwrap()).is_err(), "{word} at {at}");
            good.write_all_at(&before, at).unwrap();
        }
        assert!(Together::open(good).is_ok());
    }
}
