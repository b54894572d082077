//! User memory: reached only through this fallible object, by a page-table walk and the linear map.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use super::addr::UserAddr;
use super::aspace::{AddressSpace, Space};
use super::away::Stop;
use super::page::{Access, page_down};
use super::pagetable::Region;
use super::physical::account;
use super::window;
use crate::arch;
use crate::config::PATH_MAX;
use crate::errno::{Errno, Result};
use crate::platform;
use abi::word::to_usize;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How a page is got at: its physical address for an access, or why not.
pub(super) type Reach = fn(&mut Space, UserAddr, Access) -> core::result::Result<u64, Stop>;

/// Types that are plain bytes: any bit pattern is a value, and there is no padding.
pub trait Pod: Copy + FromBytes + IntoBytes + Immutable + 'static {}
impl<T: Copy + FromBytes + IntoBytes + Immutable + 'static> Pod for T {}

/// A process's memory as system calls see it. A bad address is `EFAULT`, decided at the copy.
#[derive(Clone)]
pub struct UserMemory {
    aspace: Arc<AddressSpace>,
}

impl UserMemory {
    /// The memory of an address space.
    pub fn new(aspace: Arc<AddressSpace>) -> Self {
        Self { aspace }
    }

    /// The address space.
    pub fn aspace(&self) -> &Arc<AddressSpace> {
        &self.aspace
    }

    /// Reads a value.
    pub fn read<T: Pod>(&self, addr: UserAddr) -> Result<T> {
        let mut value = T::new_zeroed();
        self.aspace.copy_in(addr, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Reads a value unless the address is null.
    pub fn read_opt<T: Pod>(&self, addr: UserAddr) -> Result<Option<T>> {
        if addr.is_null() { Ok(None) } else { self.read(addr).map(Some) }
    }

    /// Writes a value.
    pub fn write<T: Pod>(&self, addr: UserAddr, value: &T) -> Result<()> {
        self.aspace.copy_out(addr, value.as_bytes())
    }

    /// Writes a value unless the address is null.
    pub fn write_opt<T: Pod>(&self, addr: UserAddr, value: &T) -> Result<()> {
        if addr.is_null() { Ok(()) } else { self.write(addr, value) }
    }

    /// Fills `to`.
    pub fn read_bytes(&self, addr: UserAddr, to: &mut [u8]) -> Result<()> {
        self.aspace.copy_in(addr, to)
    }

    /// Writes all of `from`.
    pub fn write_bytes(&self, addr: UserAddr, from: &[u8]) -> Result<()> {
        self.aspace.copy_out(addr, from)
    }

    /// Reads `count` values; the caller has bounded `count`.
    pub fn read_array<T: Pod>(&self, addr: UserAddr, count: usize) -> Result<Vec<T>> {
        let mut values = account::filled(T::new_zeroed(), count)?;
        self.aspace.copy_in(addr, values.as_mut_bytes())?;
        Ok(values)
    }

    /// Reads a string up to its NUL (not included); `too_long` when there is none in `max` bytes.
    pub fn read_cstr(&self, addr: UserAddr, max: usize, too_long: Errno) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut at = addr;
        while out.len() < max {
            let chunk = at.left_in_page().min((max - out.len()) as u64).min(256) as usize;
            let mut buf = [0u8; 256];
            self.aspace.copy_in(at, &mut buf[..chunk])?;
            if let Some(end) = buf[..chunk].iter().position(|byte| *byte == 0) {
                out.extend_from_slice(&buf[..end]);
                return Ok(out);
            }
            out.extend_from_slice(&buf[..chunk]);
            at = at.offset(chunk as u64);
        }
        Err(too_long)
    }

    /// Reads a path.
    pub fn read_path(&self, addr: UserAddr) -> Result<Vec<u8>> {
        self.read_cstr(addr, PATH_MAX, Errno::ENAMETOOLONG)
    }

    /// The word at `addr` as an atomic, for futexes: `f` gets a reference into the frame, which stays mapped meanwhile.
    pub fn with_atomic<R>(&self, addr: UserAddr, write: bool, f: impl FnOnce(&AtomicU32) -> R) -> Result<R> {
        if !addr.is_aligned(4) {
            return Err(Errno::EINVAL);
        }
        let access = if write { Access::Write } else { Access::Read };
        self.aspace.with_page(addr, access, |phys| {
            match Region::of(phys) {
                // SAFETY: the address is aligned, inside one frame of user memory, which stays mapped under the lock.
                Region::Frame(_) => Ok(f(unsafe { &*platform::ptr::<AtomicU32>(phys) })),
                Region::Window(phys) | Region::Template(phys) => with_window_word(phys, f),
            }
        })
    }
}

/// Calls `f` with a copy of a word of a mapped host file, and writes it back if it changed: fault-free only through the host.
fn with_window_word<R>(phys: u64, f: impl FnOnce(&AtomicU32) -> R) -> Result<R> {
    let mut word = 0u32;
    window::copy(platform::phys_of(&raw const word), phys, 4)?;
    let atomic = AtomicU32::new(word);
    let result = f(&atomic);
    let after = atomic.load(Ordering::SeqCst);
    if after != word {
        word = after;
        window::copy(phys, platform::phys_of(&raw const word), 4)?;
    }
    Ok(result)
}

impl AddressSpace {
    /// Copies from user memory; `EFAULT` where the mapping doesn't permit it.
    pub fn copy_in(&self, addr: UserAddr, to: &mut [u8]) -> Result<()> {
        // SAFETY: the slice is writable, and not a program's.
        unsafe { self.copy_to(addr, to.as_mut_ptr(), to.len()) }
    }

    /// Copies from user memory as [`Self::copy_in`] does, but to memory that programs may see.
    ///
    /// # Safety
    /// `base` is in reach of the kernel, and writable for `len` bytes.
    pub(super) unsafe fn copy_to(&self, addr: UserAddr, base: *mut u8, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_to_by(addr, base, len, Space::reach) }
    }

    /// Copies as [`Self::copy_to`] does, and gets at pages by `reach`.
    ///
    /// # Safety
    /// As for [`Self::copy_to`].
    pub(super) unsafe fn copy_to_by(
        &self,
        addr: UserAddr,
        base: *mut u8,
        len: usize,
        reach: Reach,
    ) -> Result<()> {
        self.walk_by(addr, len, Access::Read, reach, |phys, done, len| {
            // SAFETY: `done + len` never exceeds the length.
            let to = unsafe { base.add(done) };
            match Region::of(phys) {
                Region::Frame(_) => {
                    // SAFETY: `len` bytes of a user frame through the linear map; kernel memory doesn't overlap user frames.
                    unsafe { arch::copy_bytes(to, platform::ptr::<u8>(phys), len) };
                    Ok(())
                }
                Region::Window(phys) | Region::Template(phys) => {
                    window::copy(platform::phys_of(to), phys, len)
                }
            }
        })
    }

    /// Copies to user memory.
    pub fn copy_out(&self, addr: UserAddr, from: &[u8]) -> Result<()> {
        // SAFETY: the slice is readable, and not a program's.
        unsafe { self.copy_from(addr, from.as_ptr(), from.len()) }
    }

    /// Copies to user memory as [`Self::copy_out`] does, but from memory that programs may change meanwhile.
    ///
    /// # Safety
    /// `base` is in reach of the kernel, and readable for `len` bytes.
    pub(super) unsafe fn copy_from(&self, addr: UserAddr, base: *const u8, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_from_by(addr, base, len, Space::reach) }
    }

    /// Copies as [`Self::copy_from`] does, and gets at pages by `reach`.
    ///
    /// # Safety
    /// As for [`Self::copy_from`].
    pub(super) unsafe fn copy_from_by(
        &self,
        addr: UserAddr,
        base: *const u8,
        len: usize,
        reach: Reach,
    ) -> Result<()> {
        self.walk_by(addr, len, Access::Write, reach, |phys, done, len| {
            // SAFETY: `done + len` never exceeds the length.
            let from = unsafe { base.add(done) };
            match Region::of(phys) {
                Region::Frame(_) => {
                    // SAFETY: as in `copy_in`.
                    unsafe { arch::copy_bytes(platform::ptr::<u8>(phys), from, len) };
                    Ok(())
                }
                Region::Window(phys) => window::copy(phys, platform::phys_of(from), len),
                // What may be written is a frame.
                Region::Template(_) => Err(Errno::EFAULT),
            }
        })
    }

    /// Fills user memory with zeros.
    pub fn zero_out(&self, addr: UserAddr, len: usize) -> Result<()> {
        static ZEROS: [u8; 4096] = [0; 4096];
        let mut done = 0;
        while done < len {
            let part = (len - done).min(ZEROS.len());
            self.copy_out(addr.offset(done as u64), &ZEROS[..part])?;
            done += part;
        }
        Ok(())
    }

    /// Calls `f(phys, done, len)` for each piece of a user range, bringing pages in.
    pub(super) fn walk(
        &self,
        addr: UserAddr,
        len: usize,
        access: Access,
        f: impl FnMut(u64, usize, usize) -> Result<()>,
    ) -> Result<()> {
        self.walk_by(addr, len, access, Space::reach, f)
    }

    fn walk_by(
        &self,
        addr: UserAddr,
        len: usize,
        access: Access,
        reach: Reach,
        mut f: impl FnMut(u64, usize, usize) -> Result<()>,
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        if !addr.has_room(len as u64) {
            return Err(Errno::EFAULT);
        }
        let mut done = 0;
        // A fault while the kernel copies is EFAULT even when memory ran out, as the copy itself can't be restarted.
        self.attempt(|space| {
            while done < len {
                let at = addr.offset(done as u64);
                let part = to_usize(at.left_in_page()).min(len - done);
                let phys = reach(space, at, access)?;
                if let Err(error) = f(phys, done, part) {
                    return match Region::of(phys) {
                        Region::Template(_) => Err(space.lose_template(page_down(at.get()))),
                        Region::Frame(_) | Region::Window(_) => Ok(Err(error)),
                    };
                }
                done += part;
            }
            Ok(Ok(()))
        })?
    }

    /// Calls `f` with the physical address of `addr`, whose page stays put meanwhile.
    pub(super) fn with_page<R>(
        &self,
        addr: UserAddr,
        access: Access,
        f: impl FnOnce(u64) -> Result<R>,
    ) -> Result<R> {
        if !addr.is_user() {
            return Err(Errno::EFAULT);
        }
        let mut f = Some(f);
        self.attempt(|space| {
            let phys = space.reach(addr, access)?;
            if let Region::Template(shown) = Region::of(phys) {
                // It fails here if it does, where it can be had otherwise.
                let mut byte = 0_u8;
                if window::copy(platform::phys_of(&raw mut byte), shown, 1).is_err() {
                    return Err(space.lose_template(page_down(addr.get())));
                }
            }
            Ok(f.take().map_or(Err(Errno::EFAULT), |f| f(phys)))
        })?
    }
}

impl Space {
    /// The physical address of `addr` with the access permitted, bringing the page in.
    pub(super) fn reach(&mut self, addr: UserAddr, access: Access) -> core::result::Result<u64, Stop> {
        use super::pagetable::Entry;
        let addr = addr.get();
        let page = page_down(addr);
        let entry = self.table.get(page);
        if entry.has(Entry::PATCHED) {
            self.leave_alone(page);
        }
        let entry = self.table.get(page);
        let direct = entry.has(Entry::PRESENT) && (access == Access::Read || entry.has(Entry::WRITABLE));
        let entry = if direct {
            entry
        } else {
            self.fault(addr, access)?;
            self.count_fault();
            self.table.get(page)
        };
        Ok(entry.phys() + (addr - page))
    }
}
