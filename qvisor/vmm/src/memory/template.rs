//! The template: a snapshot's pages, as sandboxes share them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use abi::layout::{PAGE_SIZE, TEMPLATE_PHYS, TEMPLATE_PHYS_MAX};
use rustix::fs::{AtFlags, StatxFlags};

use super::{MemoryError, SandboxMemory, failed};

/// The pages of a snapshot that the sandbox shares with others: page `n` at offset `n` × 4096.
#[derive(Debug)]
pub(super) struct Template {
    /// Open for reading only, so that no mapping of it can be made writable.
    file: Arc<OwnedFd>,
    /// Whole pages, as far as the guest has frames for them.
    len: u64,
}

impl SandboxMemory {
    /// With the pages of a snapshot as its template. The file must be open for reading only. Of the frames that are too many for the
    /// template's region, it has no pages.
    pub fn with_template(mut self, file: Arc<OwnedFd>) -> Result<Self, MemoryError> {
        // SAFETY: asks for flags.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        if flags < 0 || flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(MemoryError::Writable);
        }
        let found = rustix::fs::fstat(&*file)
            .map_err(|error| MemoryError::Host { what: "look at the template", source: error.into() })?;
        let all = u64::try_from(found.st_size).unwrap_or(0);
        let len = all.min(self.user_len).min(TEMPLATE_PHYS_MAX - TEMPLATE_PHYS) / PAGE_SIZE * PAGE_SIZE;
        if len > 0 {
            self.map(TEMPLATE_PHYS, len, libc::MAP_SHARED, Some(file.as_fd()), 0, false)
                .map_err(|_| failed("map the template"))?;
            self.template = Some(Template { file, len });
        }
        Ok(self)
    }

    /// The file of the template and its bytes, if there is one.
    #[must_use]
    pub fn template(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.template.as_ref().map(|template| (template.file.as_fd(), template.len))
    }

    /// The first page of the template that its file does not have any more, if there is one.
    #[must_use]
    pub fn template_lost(&self) -> Option<u64> {
        let (file, len) = self.template()?;
        let now = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::SIZE).ok()?.stx_size;
        (now < len).then_some(now / PAGE_SIZE)
    }

    /// The offset in the template of so many bytes at `phys`; `None` unless all of them lie in it.
    #[must_use]
    pub fn template_offset(&self, phys: u64, len: u64) -> Option<u64> {
        let at = phys.checked_sub(TEMPLATE_PHYS)?;
        let end = at.checked_add(len)?;
        self.template.as_ref().filter(|template| end <= template.len).map(|_| at)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use abi::boot::Platform;
    use abi::layout::{PAGE_BYTES, USER_PHYS, WINDOW_PHYS_END};

    use super::*;
    use crate::memory::USER_BLOCK;

    const PAGES: u64 = 5;

    fn file(dir: &testdir::TempDir) -> File {
        let file = File::create_new(dir.path().join("pages")).unwrap();
        for (page, byte) in (0..PAGES).zip(1_u8..) {
            file.write_all_at(&[byte; PAGE_BYTES], page * PAGE_SIZE).unwrap();
        }
        file
    }

    fn memory() -> SandboxMemory {
        SandboxMemory::new(Platform::Kvm, 16 << 20, USER_BLOCK).unwrap()
    }

    #[test]
    fn a_template_that_may_be_written_is_refused() {
        let dir = testdir::TempDir::new();
        let written = Arc::new(file(&dir).into());
        assert!(matches!(memory().with_template(written), Err(MemoryError::Writable)));
        // A shared mapping of what is open for reading only cannot be made writable.
        let file = File::open(dir.path().join("pages")).unwrap();
        let memory = memory().with_template(Arc::new(file.into())).unwrap();
        let (at, prot) = (memory.at(TEMPLATE_PHYS), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: asks for a right that is to be refused.
        assert_eq!(unsafe { libc::mprotect(at, PAGE_BYTES, prot) }, -1);
    }

    #[test]
    fn it_is_copied_from_and_never_to_and_what_is_cut_off_is_an_error() {
        let dir = testdir::TempDir::new();
        crate::fault_signals::install().unwrap();
        let whole = file(&dir);
        let file = File::open(dir.path().join("pages")).unwrap();
        let memory = memory().with_template(Arc::new(file.into())).unwrap();
        let page = |number: u64| TEMPLATE_PHYS + number * PAGE_SIZE;
        memory.window_copy(USER_PHYS, page(2), PAGE_SIZE).unwrap();
        assert_eq!(memory.copy_in(USER_PHYS, 2).unwrap(), [3, 3]);
        assert_eq!(memory.window_copy(page(2), USER_PHYS, 8), Err(libc::EFAULT));
        for (phys, len) in
            [(page(PAGES), 1), (page(PAGES) - 1, 2), (WINDOW_PHYS_END - 8, 16), (page(0), u64::MAX)]
        {
            assert_eq!(memory.window_copy(USER_PHYS, phys, len), Err(libc::EFAULT), "{phys:#x}");
            assert_eq!(memory.template_offset(phys, len), None);
        }
        assert_eq!((memory.host_ptr(page(0), 1), memory.template_lost()), (None, None));
        whole.set_len(2 * PAGE_SIZE + 100).unwrap();
        assert_eq!(memory.template_lost(), Some(2));
        assert_eq!(memory.window_copy(USER_PHYS, page(3), 8), Err(libc::EFAULT));
    }
}
