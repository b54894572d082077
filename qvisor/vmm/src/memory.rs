//! Guest-physical memory as the VMM holds it: kernel memory, user memory, the file window and the template in one reservation.
//!
//! The kernel's *linear map* is this reservation: guest-physical `p` is at `base + p`. Every address the guest
//! hands over is turned into a host pointer by [`SandboxMemory::host_ptr`], and nowhere else.

mod populated;
mod template;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use abi::boot::Platform;
use abi::hostcall::Segment;
use abi::layout::{
    KERNEL_IMAGE_PHYS, KERNEL_PHYS_MAX, LINEAR_BASE_SYSTRAP, PAGE_SIZE, TEMPLATE_PHYS_MAX, USER_PHYS,
    USER_PHYS_MAX, WINDOW_CHUNK, WINDOW_CHUNKS, WINDOW_PHYS, WINDOW_PHYS_END,
};
use abi::word::to_usize;

pub(crate) use self::populated::add_range;
use self::template::Template;
use crate::lock::{Mutex, Rank};
use crate::recoverable_copy;

/// User memory comes in blocks of this many bytes.
pub const USER_BLOCK: u64 = 4 << 20;

/// Why guest memory could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("kernel memory of {0} bytes is not a multiple of the page size within bounds")]
    KernelSize(u64),
    #[error("user memory of {0} bytes is not a multiple of 4 MiB within bounds")]
    UserSize(u64),
    #[error("the pages of its snapshot are in a file that is open for writing")]
    Writable,
    #[error("cannot {what}")]
    Host { what: &'static str, source: io::Error },
}

fn failed(what: &'static str) -> MemoryError {
    MemoryError::Host { what, source: io::Error::last_os_error() }
}

/// A chunk of a host file in the file window.
#[derive(Clone, Debug)]
pub struct WindowChunk {
    pub file: Arc<OwnedFd>,
    /// The offset of the chunk in the file, in bytes.
    pub offset: u64,
    pub writable: bool,
}

/// All memory of one sandbox.
#[derive(Debug)]
pub struct SandboxMemory {
    base: *mut u8,
    kernel_len: u64,
    user_len: u64,
    /// The file behind user memory (systrap), which stubs map; private memory on kvm.
    user_file: Option<OwnedFd>,
    /// The chunks of the file window that are mapped.
    window: Mutex<BTreeMap<u64, WindowChunk>>,
    template: Option<Template>,
}

// SAFETY: the reservation belongs to this object until it is dropped, and every access is by raw copies.
unsafe impl Send for SandboxMemory {}
// SAFETY: as above.
unsafe impl Sync for SandboxMemory {}

impl SandboxMemory {
    /// Reserves the linear map and backs `kernel_bytes` of kernel memory and `user_bytes` of user memory, none of it
    /// populated yet. On systrap the linear map is at its fixed address, so a process has one sandbox at a time.
    pub fn new(platform: Platform, kernel_bytes: u64, user_bytes: u64) -> Result<Self, MemoryError> {
        if !(KERNEL_IMAGE_PHYS..=KERNEL_PHYS_MAX).contains(&kernel_bytes)
            || !kernel_bytes.is_multiple_of(PAGE_SIZE)
        {
            return Err(MemoryError::KernelSize(kernel_bytes));
        }
        if user_bytes == 0 || !user_bytes.is_multiple_of(USER_BLOCK) || user_bytes > USER_PHYS_MAX - USER_PHYS
        {
            return Err(MemoryError::UserSize(user_bytes));
        }
        let (place, fixed) = match platform {
            Platform::Systrap => (LINEAR_BASE_SYSTRAP as *mut libc::c_void, libc::MAP_FIXED_NOREPLACE),
            Platform::Kvm => (large_page_place()?, 0),
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
        // SAFETY: a new mapping that replaces nothing.
        let base = unsafe { libc::mmap(place, to_usize(TEMPLATE_PHYS_MAX), libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(failed("reserve the linear map"));
        }
        let mut memory = Self {
            base: base.cast(),
            kernel_len: kernel_bytes,
            user_len: user_bytes,
            user_file: None,
            window: Mutex::new(Rank::Window, BTreeMap::new()),
            template: None,
        };
        if fixed != 0 && !ptr::eq(base, place) {
            return Err(failed("place the linear map"));
        }
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        memory.map(0, kernel_bytes, private, None, 0, true).map_err(|_| failed("map kernel memory"))?;
        if platform == Platform::Systrap {
            let file = sealed_file(user_bytes)?;
            memory
                .map(USER_PHYS, user_bytes, libc::MAP_SHARED, Some(file.as_fd()), 0, true)
                .map_err(|_| failed("map user memory"))?;
            memory.user_file = Some(file);
        } else {
            memory
                .map(USER_PHYS, user_bytes, private, None, 0, true)
                .map_err(|_| failed("map user memory"))?;
        }
        Ok(memory)
    }

    /// Replaces the mapping of `len` bytes at `phys`, which the caller has checked to lie in the reservation.
    fn map(
        &self,
        phys: u64,
        len: u64,
        flags: i32,
        fd: Option<BorrowedFd<'_>>,
        offset: u64,
        writable: bool,
    ) -> Result<(), i32> {
        let prot = if flags & libc::MAP_NORESERVE != 0 && !writable {
            libc::PROT_NONE
        } else if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
        let offset = i64::try_from(offset).map_err(|_| libc::EINVAL)?;
        // SAFETY: the range lies in this object's reservation, where nobody holds references.
        let at =
            unsafe { libc::mmap(self.at(phys), to_usize(len), prot, flags | libc::MAP_FIXED, fd, offset) };
        if at == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
    }

    fn at(&self, phys: u64) -> *mut libc::c_void {
        debug_assert!(phys <= TEMPLATE_PHYS_MAX);
        self.base.wrapping_add(to_usize(phys)).cast()
    }

    /// Host address of guest-physical 0.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes of kernel memory, which begins at guest-physical 0.
    #[must_use]
    pub fn kernel_bytes(&self) -> u64 {
        self.kernel_len
    }

    /// Bytes of user memory, which begins at `USER_PHYS`.
    #[must_use]
    pub fn user_bytes(&self) -> u64 {
        self.user_len
    }

    /// Frees the page tables by which the host finds user memory; they come back as it is touched.
    pub fn trim(&self) {
        if let Some(file) = &self.user_file {
            // The same mapping once more, without the page tables of the old one. Should it fail, they stay.
            let _ = self.map(USER_PHYS, self.user_len, libc::MAP_SHARED, Some(file.as_fd()), 0, true);
        }
    }

    /// The file behind user memory; `None` on kvm.
    #[must_use]
    pub fn user_file(&self) -> Option<BorrowedFd<'_>> {
        self.user_file.as_ref().map(AsFd::as_fd)
    }

    /// Host address of `len` bytes of kernel or user memory, or `None` if any of them is not memory of one region.
    ///
    /// The memory stays readable and writable as long as `self` lives. The guest shares it, so nobody may make a
    /// reference to its bytes; copies and system calls only.
    #[must_use]
    pub fn host_ptr(&self, phys: u64, len: u64) -> Option<*mut u8> {
        let end = phys.checked_add(len)?;
        let in_kernel = end <= self.kernel_len;
        let in_user = phys >= USER_PHYS && end <= USER_PHYS + self.user_len;
        (in_kernel || in_user).then(|| self.at(phys).cast())
    }

    /// Like [`Self::host_ptr`] for kernel memory alone, by linear address (systrap's kernel passes those).
    #[must_use]
    pub fn kernel_ptr(&self, linear: u64, len: u64) -> Option<*mut u8> {
        let phys = linear.checked_sub(self.base as u64)?;
        (phys.checked_add(len)? <= self.kernel_len).then(|| self.at(phys).cast())
    }

    /// Copies a value out; `None` if it does not lie in guest memory.
    #[must_use]
    pub fn read<T: Plain>(&self, phys: u64) -> Option<T> {
        let at = self.host_ptr(phys, size_of::<T>() as u64)?;
        // SAFETY: (1) the range was checked; (2) `T: Plain` takes every bit pattern; (3) alignment is not assumed.
        Some(unsafe { ptr::read_unaligned(at.cast::<T>()) })
    }

    /// Copies a value in; `None` if its place does not lie in guest memory.
    pub fn write<T: Plain>(&self, phys: u64, value: &T) -> Option<()> {
        let at = self.host_ptr(phys, size_of::<T>() as u64)?;
        // SAFETY: (1) the range was checked; (2) `T: Plain` has no padding; (3) alignment is not assumed.
        unsafe { ptr::write_unaligned(at.cast::<T>(), *value) };
        Some(())
    }

    /// Copies bytes out.
    #[must_use]
    pub fn copy_in(&self, phys: u64, len: u64) -> Option<Vec<u8>> {
        let at = self.host_ptr(phys, len)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(to_usize(len)).ok()?;
        bytes.resize(to_usize(len), 0);
        // SAFETY: the range was checked, and `bytes` is as long.
        unsafe { ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()) };
        Some(bytes)
    }

    /// Copies bytes into guest memory.
    pub fn copy_out(&self, phys: u64, bytes: &[u8]) -> Option<()> {
        let at = self.host_ptr(phys, bytes.len() as u64)?;
        // SAFETY: the range was checked.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        Some(())
    }

    /// Gives whole pages back to the host; they read as zeros afterwards. The error is an errno.
    pub fn release(&self, phys: u64, len: u64) -> Result<(), i32> {
        if !(phys | len).is_multiple_of(PAGE_SIZE) {
            return Err(libc::EINVAL);
        }
        let at = self.host_ptr(phys, len).ok_or(libc::EFAULT)?;
        if len == 0 {
            return Ok(());
        }
        let result = match &self.user_file {
            Some(file) if phys >= USER_PHYS => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let offset = i64::try_from(phys - USER_PHYS).map_err(|_| libc::EINVAL)?;
                let len = i64::try_from(len).map_err(|_| libc::EINVAL)?;
                // SAFETY: changes the content of guest memory only.
                unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }
            }
            // SAFETY: the range was checked, and is private anonymous memory.
            _ => unsafe { libc::madvise(at.cast(), to_usize(len), libc::MADV_DONTNEED) },
        };
        if result < 0 { Err(errno()) } else { Ok(()) }
    }

    /// Maps a chunk of `file` at `offset` into the file window and keeps a duplicate of the descriptor.
    /// A chunk that is mapped already is replaced. The error is an errno.
    pub fn window_map(
        &self,
        chunk: u64,
        file: BorrowedFd<'_>,
        offset: u64,
        writable: bool,
    ) -> Result<(), i32> {
        if chunk >= WINDOW_CHUNKS || !offset.is_multiple_of(WINDOW_CHUNK) {
            return Err(libc::EINVAL);
        }
        let file = file.try_clone_to_owned().map_err(|e| e.raw_os_error().unwrap_or(libc::EBADF))?;
        let mut window = self.window.lock();
        let phys = WINDOW_PHYS + chunk * WINDOW_CHUNK;
        self.map(phys, WINDOW_CHUNK, libc::MAP_SHARED, Some(file.as_fd()), offset, writable)?;
        window.insert(chunk, WindowChunk { file: Arc::new(file), offset, writable });
        Ok(())
    }

    /// Unmaps a chunk of the file window; one that is not mapped stays so. The error is an errno.
    pub fn window_unmap(&self, chunk: u64) -> Result<(), i32> {
        if chunk >= WINDOW_CHUNKS {
            return Err(libc::EINVAL);
        }
        let mut window = self.window.lock();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.map(WINDOW_PHYS + chunk * WINDOW_CHUNK, WINDOW_CHUNK, flags, None, 0, false)?;
        window.remove(&chunk);
        Ok(())
    }

    /// How many chunks of the file window are mapped.
    #[must_use]
    pub fn window_chunks(&self) -> u64 {
        self.window.lock().len() as u64
    }

    /// The chunk that `len` bytes at `phys` lie in, with the file offset of `phys`; `None` unless all of them lie in
    /// one mapped chunk.
    #[must_use]
    pub fn window_chunk(&self, phys: u64, len: u64) -> Option<(WindowChunk, u64)> {
        let at = phys.checked_sub(WINDOW_PHYS)?;
        let inside = at % WINDOW_CHUNK;
        if inside.checked_add(len)? > WINDOW_CHUNK {
            return None;
        }
        let window = self.window.lock();
        let chunk = window.get(&(at / WINDOW_CHUNK))?.clone();
        let offset = chunk.offset + inside;
        Some((chunk, offset))
    }

    /// The file behind the byte at `phys` of the file window, and the byte's offset in it.
    #[must_use]
    pub fn window_fd(&self, phys: u64) -> Option<(Arc<OwnedFd>, u64)> {
        self.window_chunk(phys, 1).map(|(chunk, offset)| (chunk.file, offset))
    }

    /// Copies within guest memory; either side may lie in the file window, and the source in the template. `EFAULT` if a mapped file ends too early
    /// or may not be written; part of the bytes may have been copied then.
    pub fn window_copy(&self, dst: u64, src: u64, len: u64) -> Result<(), i32> {
        let to = self.any_ptr(dst, len).ok_or(libc::EFAULT)?;
        let from = match self.template_offset(src, len) {
            Some(_) => self.at(src).cast(),
            None => self.any_ptr(src, len).ok_or(libc::EFAULT)?,
        };
        // SAFETY: both ranges lie in the reservation; what is not readable or writable there ends the copy early.
        let left = unsafe { recoverable_copy::copy_recoverable(to, from, to_usize(len)) };
        if left == 0 { Ok(()) } else { Err(libc::EFAULT) }
    }

    fn any_ptr(&self, phys: u64, len: u64) -> Option<*mut u8> {
        let in_window = phys >= WINDOW_PHYS && phys.checked_add(len)? <= WINDOW_PHYS_END;
        if in_window { Some(self.at(phys).cast()) } else { self.host_ptr(phys, len) }
    }

    /// Puts a private view of `file` in the place of whole pages of kernel memory, which hold nothing yet.
    pub fn map_kernel_image(
        &self,
        phys: u64,
        len: u64,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), MemoryError> {
        self.host_ptr(phys, len).ok_or(MemoryError::KernelSize(phys + len))?;
        self.map(phys, len, libc::MAP_PRIVATE, Some(file), offset, true)
            .map_err(|_| failed("map the kernel image"))
    }

    /// Gives pages of such a view back to the host, which reads them anew when they are used. None of them was ever written.
    pub fn give_back_image(&self, phys: u64, len: u64) {
        let Some(at) = self.host_ptr(phys, len) else { return };
        // SAFETY: a private mapping of a file, never written, reads the same from the file.
        unsafe { libc::madvise(at.cast(), to_usize(len), libc::MADV_DONTNEED) };
    }

    /// Sets the protection of whole pages of kernel memory.
    pub fn protect_kernel(&self, phys: u64, len: u64, write: bool, execute: bool) -> Result<(), MemoryError> {
        let at = self.host_ptr(phys, len).ok_or(MemoryError::KernelSize(phys + len))?;
        let mut prot = libc::PROT_READ;
        if write {
            prot |= libc::PROT_WRITE;
        }
        if execute {
            prot |= libc::PROT_EXEC;
        }
        // SAFETY: (1) the range is the kernel image's, in this object's reservation; (2) the VMM has no code there.
        if unsafe { libc::mprotect(at.cast(), to_usize(len), prot) } < 0 {
            return Err(failed("protect the kernel image"));
        }
        Ok(())
    }
}

impl Drop for SandboxMemory {
    fn drop(&mut self) {
        // SAFETY: the reservation is this object's, and every pointer into it was lent for its life only.
        unsafe { libc::munmap(self.base.cast(), to_usize(TEMPLATE_PHYS_MAX)) };
    }
}

/// A type that may be copied to and from guest memory byte by byte.
///
/// # Safety
/// Made of integers only, without padding: every bit pattern is a value, every byte is initialised.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($kind:ty),* $(,)?) => { $(
        // SAFETY: integers only; sizes pinned in `abi` leave no room for padding.
        unsafe impl Plain for $kind {}
    )* };
}
plain!(u8, u16, u32, u64, i32, i64, [u64; 4], Segment);
plain!(abi::HostCall, abi::boot::BootInfo, abi::hostcall::Event, abi::run::MapOp, abi::run::RunState);
plain!(
    abi::hostcall::HostClocks,
    abi::hostcall::SwapOut,
    abi::hostcall::HibernateReport,
    abi::stats::KernelFigures
);
plain!(abi::hostcall::HostStat, abi::hostcall::HostStatFs, abi::hostcall::SetAttr);

/// A free place for the reservation that begins at a multiple of 2 MiB, so that host and guest can share large pages.
/// It is a wish: should another thread take it first, the reservation goes elsewhere and only large pages are lost.
fn large_page_place() -> Result<*mut libc::c_void, MemoryError> {
    const LARGE_PAGE: usize = 2 << 20;
    let len = to_usize(TEMPLATE_PHYS_MAX) + LARGE_PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping that replaces nothing, and goes again.
    unsafe {
        let found = libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0);
        if found == libc::MAP_FAILED {
            return Err(failed("reserve the linear map"));
        }
        libc::munmap(found, len);
        Ok((found as usize).next_multiple_of(LARGE_PAGE) as *mut libc::c_void)
    }
}

/// A memory file that cannot change its size, with executable pages allowed.
fn sealed_file(len: u64) -> Result<OwnedFd, MemoryError> {
    let file = memory_file(c"dormouse-user")?;
    let size = i64::try_from(len).map_err(|_| MemoryError::UserSize(len))?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: both calls act on the new file only.
    let result = unsafe {
        if libc::ftruncate(file.as_raw_fd(), size) < 0 {
            return Err(failed("size user memory"));
        }
        libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals)
    };
    if result < 0 { Err(failed("seal user memory")) } else { Ok(file) }
}

/// A memory file that may hold code, where the host knows the difference.
pub(crate) fn memory_file(name: &std::ffi::CStr) -> Result<OwnedFd, MemoryError> {
    const MFD_EXEC: u32 = 0x10;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    for extra in [MFD_EXEC, 0] {
        // SAFETY: makes a descriptor; the name is a C string.
        let fd: RawFd = unsafe { libc::memfd_create(name.as_ptr(), flags | extra) };
        if fd >= 0 {
            // SAFETY: the descriptor is new and nobody else's.
            return Ok(unsafe { File::from_raw_fd(fd) }.into());
        }
    }
    Err(failed("make a memory file"))
}

/// The ranges of a file of `len` bytes that hold something.
pub(crate) fn data_of(file: &OwnedFd, len: u64) -> io::Result<Vec<Range<u64>>> {
    data_within(file, 0..len)
}

/// Those parts of a range of a file that hold something.
pub(crate) fn data_within(file: &OwnedFd, within: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut at = within.start;
    let seek = |from: u64, whence: i32| {
        let from = libc::off_t::try_from(from).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: moves the position of a descriptor, which nobody uses.
        let place = unsafe { libc::lseek(file.as_raw_fd(), from, whence) };
        u64::try_from(place).map_err(|_| io::Error::last_os_error())
    };
    while at < within.end {
        let start = match seek(at, libc::SEEK_DATA) {
            // The end of what it holds may be far behind.
            Ok(start) if start >= within.end => break,
            Ok(start) => start,
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => break,
            Err(error) => return Err(error),
        };
        at = seek(start, libc::SEEK_HOLE)?.min(within.end);
        if start < at {
            found.push(start..at);
        }
    }
    Ok(found)
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// How many frames of user memory a sandbox has whose limit may become so high.
pub(crate) fn frames_of(memory_most_bytes: u64) -> u32 {
    u32::try_from(user_bytes(memory_most_bytes) / abi::PAGE_SIZE).unwrap_or(u32::MAX)
}

/// User memory for a limit: whole blocks, with slack for frames that cannot be used (a control page in each block on
/// kvm) and for blocks that are partly free.
pub(crate) fn user_bytes(limit: u64) -> u64 {
    let slack = limit / 64 + 4 * USER_BLOCK;
    let most = abi::layout::USER_PHYS_MAX - abi::layout::USER_PHYS;
    limit.saturating_add(slack).min(most - USER_BLOCK).next_multiple_of(USER_BLOCK)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const KERNEL: u64 = 16 << 20;

    fn memory() -> SandboxMemory {
        SandboxMemory::new(Platform::Kvm, KERNEL, USER_BLOCK).unwrap()
    }

    #[test]
    fn addresses_are_checked() {
        let memory = memory();
        assert!(memory.host_ptr(0, KERNEL).is_some());
        assert!(memory.host_ptr(1, KERNEL).is_none());
        assert!(memory.host_ptr(KERNEL - 8, 16).is_none());
        assert!(memory.host_ptr(USER_PHYS - 8, 16).is_none());
        assert!(memory.host_ptr(USER_PHYS, USER_BLOCK).is_some());
        assert!(memory.host_ptr(USER_PHYS + USER_BLOCK - 1, 2).is_none());
        assert!(memory.host_ptr(u64::MAX - 4, 16).is_none());
        assert!(memory.host_ptr(WINDOW_PHYS, 1).is_none());
    }

    #[test]
    fn released_pages_read_as_zeros() {
        let memory = memory();
        for phys in [0x3000, USER_PHYS] {
            memory.write(phys, &7_u64).unwrap();
            memory.release(phys, PAGE_SIZE).unwrap();
            assert_eq!(memory.read::<u64>(phys), Some(0));
        }
        assert_eq!(memory.release(1, PAGE_SIZE), Err(libc::EINVAL));
    }

    #[test]
    fn a_copy_past_the_end_of_a_mapped_file_fails() {
        crate::fault_signals::install().unwrap();
        let memory = memory();
        let mut file = File::from(memory_file(c"test").unwrap());
        file.write_all(&[5; 100]).unwrap();
        memory.window_map(3, file.as_fd(), 0, true).unwrap();
        let window = WINDOW_PHYS + 3 * WINDOW_CHUNK;
        memory.window_copy(0x2000, window, 100).unwrap();
        assert_eq!(memory.copy_in(0x2000, 100).unwrap(), [5; 100]);
        assert_eq!(memory.window_copy(0x2000, window + PAGE_SIZE - 8, 16), Err(libc::EFAULT));
        memory.window_copy(window, 0x2001, 8).unwrap();
        assert_eq!(memory.window_fd(window + 40).unwrap().1, 40);
        memory.window_unmap(3).unwrap();
        assert_eq!(memory.window_copy(0x2000, window, 1), Err(libc::EFAULT));
        assert!(memory.window_fd(window).is_none());
    }
}
