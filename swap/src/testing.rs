//! Files that fail on demand, and pages, for tests.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::aligned::AlignedPage;
use crate::disk::SwapHome;
use crate::io::{Device, Piece};
use crate::page::{PAGE_BYTES, Page, PageId};

/// A file in memory that fails when told to.
#[derive(Default)]
pub struct Faulty {
    pub bytes: Mutex<Vec<u8>>,
    /// Calls that still succeed.
    pub calls_left: AtomicU64,
    pub errno: i32,
    /// Every call moves at most so many bytes.
    pub at_most: usize,
}

impl Faulty {
    pub fn good() -> Arc<Self> {
        Arc::new(Self { calls_left: AtomicU64::new(u64::MAX), at_most: usize::MAX, ..Self::default() })
    }

    fn allowed(&self) -> io::Result<()> {
        let left = self.calls_left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(io::Error::from_raw_os_error(self.errno));
        }
        self.calls_left.store(left - 1, Ordering::Relaxed);
        Ok(())
    }
}

pub struct Handle(pub Arc<Faulty>);

impl Device for Handle {
    fn write(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize> {
        self.0.allowed()?;
        let mut bytes = self.0.bytes.lock().unwrap();
        let mut at = usize::try_from(offset).unwrap();
        let mut left = self.0.at_most;
        for piece in pieces {
            let len = piece.len().min(left);
            if bytes.len() < at + len {
                bytes.resize(at + len, 0);
            }
            piece.copy_out(&mut bytes[at..at + len]);
            (at, left) = (at + len, left - len);
        }
        Ok(at - usize::try_from(offset).unwrap())
    }

    fn read(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize> {
        self.0.allowed()?;
        let bytes = self.0.bytes.lock().unwrap();
        let start = usize::try_from(offset).unwrap().min(bytes.len());
        let (mut at, mut left) = (start, self.0.at_most);
        for piece in pieces {
            let len = piece.len().min(bytes.len() - at).min(left);
            piece.copy_in(&bytes[at..at + len]);
            (at, left) = (at + len, left - len);
        }
        Ok(at - start)
    }

    fn discard(&self, offset: u64, len: u64) {
        let mut bytes = self.0.bytes.lock().unwrap();
        let at = |offset: u64| usize::try_from(offset).unwrap().min(bytes.len());
        let range = at(offset)..at(offset + len);
        bytes[range].fill(0);
    }

    fn lengthen(&self, _len: u64) {}

    fn file_len(&self) -> io::Result<u64> {
        Ok(self.0.bytes.lock().unwrap().len() as u64)
    }
}

/// Pages of a sandbox.
#[derive(Clone)]
pub struct Memory(pub Vec<Box<AlignedPage>>);

impl Memory {
    pub fn new(pages: usize) -> Self {
        Self((0..pages).map(|_| Box::new(AlignedPage([0; PAGE_BYTES]))).collect())
    }

    pub fn page(&mut self, id: PageId) -> Page {
        let addr = NonNull::from(&mut self.0[id as usize].0).cast();
        // SAFETY: the page lives as long as the test uses it, which looks at it only while the home doesn't.
        unsafe { Page::new(id, addr) }
    }

    pub fn set(&mut self, id: PageId, seed: u64) {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for word in self.0[id as usize].0.as_chunks_mut::<8>().0 {
            // Seeds below 4 make pages of one word.
            if seed >= 4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            }
            *word = state.to_ne_bytes();
        }
    }

    /// Makes a page that packs well, and unlike all others.
    pub fn set_text(&mut self, id: PageId, seed: u64) {
        let mut state = seed | 1;
        let words = ["the ", "dormouse ", "sleeps ", "in ", "a ", "hollow ", "tree, ", "and "];
        let mut text = format!("{seed} ").into_bytes();
        while text.len() < PAGE_BYTES {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.extend_from_slice(words[(state >> 61) as usize].as_bytes());
        }
        self.0[id as usize].0.copy_from_slice(&text[..PAGE_BYTES]);
    }

    pub fn pages(&mut self, ids: impl IntoIterator<Item = PageId>) -> Vec<Page> {
        ids.into_iter().map(|id| self.page(id)).collect()
    }

    pub fn wipe(&mut self, id: PageId) {
        self.0[id as usize].0.fill(0);
    }
}

pub fn home(swap: &Arc<Faulty>, reap: &Arc<Faulty>) -> SwapHome {
    SwapHome::new(Box::new(Handle(swap.clone())), Box::new(Handle(reap.clone())), u64::MAX)
}

/// A sealed file of memory with this content.
pub fn sealed(content: &[u8]) -> std::fs::File {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};
    use std::io::Write as _;
    let file = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = std::fs::File::from(file);
    file.write_all(content).unwrap();
    fcntl_add_seals(&file, crate::mapping::SEALS).unwrap();
    file
}
