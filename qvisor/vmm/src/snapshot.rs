//! The memory of a sandbox that is asleep, as a file: what lies at a guest-physical address lies there in the file as well, and what is
//! not there holds nothing. What is in the home of pages is not in it.
#![deny(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use abi::layout::{PAGE_SIZE, WINDOW_PHYS_END};
use abi::word::to_usize;

use crate::image::Part;
use crate::memory::{self, SandboxMemory};

/// Bytes that are copied at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct Snapshot {
    file: OwnedFd,
    bytes: u64,
    vmms: u32,
}

impl Snapshot {
    /// Takes the memory, which nobody changes meanwhile. `pagemap` is this process's; `vmms`: how many its kernel
    /// has had, this one included.
    pub(crate) fn take(memory: &SandboxMemory, pagemap: &File, vmms: u32) -> io::Result<Self> {
        let file = File::from(memory::memory_file(c"dormouse-snapshot").map_err(io::Error::other)?);
        file.set_len(WINDOW_PHYS_END)?;
        let mut taken = 0;
        for range in memory.populated(pagemap)? {
            for (at, len) in pieces(range.start, range.end) {
                let bytes = memory.copy_in(at, len).ok_or(io::ErrorKind::InvalidData)?;
                file.write_all_at(&bytes, at)?;
                taken += len;
            }
        }
        Ok(Self { file: file.into(), bytes: taken, vmms })
    }

    /// The memory that a former VMM has taken of a kernel which has had so many VMMs.
    pub(crate) fn of_former(file: OwnedFd, bytes: u64, vmms: u32) -> Self {
        Self { file, bytes, vmms }
    }

    /// The file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes of memory that it holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many VMMs its kernel has had.
    #[must_use]
    pub fn vmms(&self) -> u32 {
        self.vmms
    }

    /// Puts it into another sandbox's memory, into which the same kernel has been loaded: what nobody may write to there is as it is.
    pub(crate) fn put(&self, memory: &SandboxMemory, image: &[Part]) -> io::Result<()> {
        let is_constant = |phys: u64| {
            let part = image.iter().rev().find(|part| (part.phys..part.phys + part.len).contains(&phys));
            part.is_some_and(|part| !part.writable)
        };
        let file = File::from(self.file.try_clone()?);
        let mut page = vec![0; to_usize(PAGE_SIZE)];
        for range in memory::data_of(&self.file, WINDOW_PHYS_END)? {
            for phys in (range.start..range.end).step_by(to_usize(PAGE_SIZE)) {
                if !is_constant(phys) {
                    file.read_exact_at(&mut page, phys)?;
                    memory.copy_out(phys, &page).ok_or(io::ErrorKind::InvalidData)?;
                }
            }
        }
        Ok(())
    }
}

/// The pieces of a range, as their places and lengths.
fn pieces(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    (start..end).step_by(to_usize(PIECE_BYTES)).map(move |at| (at, PIECE_BYTES.min(end - at)))
}
