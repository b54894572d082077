//! The memory side of reads and writes: user buffers (vectored) or kernel buffers.

use abi::hostcall::{SEGMENTS_MAX, Segment};
use abi::word::to_usize;
use alloc::vec;
use alloc::vec::Vec;

use super::addr::UserAddr;
use super::aspace::{AddressSpace, Space};
use super::away::{Away, Stop};
use super::page::{Access, PAGE_BYTES};
use super::pagetable::Region;
use super::physical::frames::Frame;
use crate::arch;
use crate::errno::{Errno, Result};
use crate::platform;
use crate::sched::work;

/// Most bytes of a message that has to go in one call.
const MESSAGE_MAX: usize = 128 * 1024;
/// Bytes that are written to a pipe as a whole (pipe(7)).
const PIPE_BUF: usize = 4096;
/// Most bytes that are copied to be written to the host at a time.
const BOUNCE_MAX: usize = 64 * 1024;
/// Bytes to move that are a unit of work.
const BYTES_A_UNIT: usize = 512;

enum Memory<'a> {
    User { aspace: &'a AddressSpace, pieces: Vec<(UserAddr, usize)>, piece: usize },
    Kernel(&'a mut [u8]),
    Constant(&'a [u8]),
}

/// A buffer that is filled (by reads) or drained (by writes) from its front; it remembers how far it has come.
pub struct IoBuf<'a> {
    memory: Memory<'a>,
    /// Bytes used of the current user piece, or of the kernel buffer.
    used: usize,
    remaining: usize,
    total: usize,
}

/// How far a buffer had come; see [`IoBuf::mark`].
#[derive(Clone, Copy)]
pub struct Mark {
    used: usize,
    remaining: usize,
    total: usize,
    piece: usize,
}

impl<'a> IoBuf<'a> {
    /// One user buffer.
    pub fn user(aspace: &'a AddressSpace, addr: UserAddr, len: usize) -> Self {
        Self::user_pieces(aspace, vec![(addr, len)])
    }

    /// Several user buffers, filled in order.
    pub fn user_pieces(aspace: &'a AddressSpace, pieces: Vec<(UserAddr, usize)>) -> Self {
        let total = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.1));
        Self { memory: Memory::User { aspace, pieces, piece: 0 }, used: 0, remaining: total, total }
    }

    /// A kernel buffer to be filled or drained. It must lie in kernel memory (heap, stack or image), as all do.
    pub fn kernel(bytes: &'a mut [u8]) -> Self {
        let total = bytes.len();
        Self { memory: Memory::Kernel(bytes), used: 0, remaining: total, total }
    }

    /// A kernel buffer that is only drained.
    pub fn constant(bytes: &'a [u8]) -> Self {
        let total = bytes.len();
        Self { memory: Memory::Constant(bytes), used: 0, remaining: total, total }
    }

    /// Bytes not used yet.
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    /// Bytes used so far.
    pub fn done(&self) -> usize {
        self.total - self.remaining
    }

    pub fn is_empty(&self) -> bool {
        self.remaining == 0
    }

    /// Limits what is left to `max` bytes.
    pub fn truncate(&mut self, max: usize) {
        let cut = self.remaining.saturating_sub(max);
        self.remaining -= cut;
        self.total -= cut;
    }

    /// The buffer's present position, for [`Self::rewind`].
    pub fn mark(&self) -> Mark {
        let piece = if let Memory::User { piece, .. } = &self.memory { *piece } else { 0 };
        Mark { used: self.used, remaining: self.remaining, total: self.total, piece }
    }

    /// Goes back to a mark of this buffer, so that an attempt can be made again.
    pub fn rewind(&mut self, mark: Mark) {
        if let Memory::User { piece, .. } = &mut self.memory {
            *piece = mark.piece;
        }
        (self.used, self.remaining, self.total) = (mark.used, mark.remaining, mark.total);
    }

    /// Copies `from` into the buffer; all of it must fit. (The side of reads.)
    pub fn fill(&mut self, from: &[u8]) -> Result<()> {
        // SAFETY: the slice is readable.
        unsafe { self.fill_from(from.as_ptr(), from.len()) }
    }

    /// Fills the buffer as [`Self::fill`] does, but from memory that programs may change meanwhile: it is copied, and
    /// never referred to.
    ///
    /// # Safety
    /// `from` is in reach of the kernel, and readable for `len` bytes.
    unsafe fn fill_from(&mut self, mut from: *const u8, len: usize) -> Result<()> {
        if len > self.remaining {
            return Err(Errno::EFAULT);
        }
        let mut left = len;
        while left > 0 {
            let part = left.min(self.front_len());
            match &mut self.memory {
                Memory::User { aspace, pieces, piece } => {
                    let addr = pieces[*piece].0.offset(self.used as u64);
                    // SAFETY: the caller's promise; `part` bytes are left of it.
                    unsafe { aspace.copy_from(addr, from, part)? };
                }
                Memory::Kernel(bytes) => {
                    let to = &mut bytes[self.used..self.used + part];
                    // SAFETY: as above; the kernel's memory is no program's.
                    unsafe { arch::copy_bytes(to.as_mut_ptr(), from, part) };
                }
                Memory::Constant(_) => return Err(Errno::EFAULT),
            }
            self.advance(part);
            left -= part;
            from = from.wrapping_add(part);
            self.count(part)?;
        }
        Ok(())
    }

    /// Copies out of the buffer; `to` must not be longer than what is left. (The side of writes.)
    pub fn drain(&mut self, to: &mut [u8]) -> Result<()> {
        // SAFETY: the slice is writable.
        unsafe { self.drain_to(to.as_mut_ptr(), to.len()) }
    }

    /// Drains the buffer as [`Self::drain`] does, but to memory that programs may see.
    ///
    /// # Safety
    /// `to` is in reach of the kernel, and writable for `len` bytes.
    unsafe fn drain_to(&mut self, mut to: *mut u8, len: usize) -> Result<()> {
        if len > self.remaining {
            return Err(Errno::EFAULT);
        }
        let mut left = len;
        while left > 0 {
            let part = left.min(self.front_len());
            let bytes: &[u8] = match &self.memory {
                Memory::User { aspace, pieces, piece } => {
                    let addr = pieces[*piece].0.offset(self.used as u64);
                    // SAFETY: the caller's promise; `part` bytes are left of it.
                    unsafe { aspace.copy_to(addr, to, part)? };
                    &[]
                }
                Memory::Kernel(bytes) => &bytes[self.used..self.used + part],
                Memory::Constant(bytes) => &bytes[self.used..self.used + part],
            };
            // SAFETY: as above; the kernel's memory is no program's.
            unsafe { arch::copy_bytes(to, bytes.as_ptr(), bytes.len()) };
            self.advance(part);
            left -= part;
            to = to.wrapping_add(part);
            self.count(part)?;
        }
        Ok(())
    }

    /// Fills the next `len` bytes with zeros.
    pub fn fill_zeros(&mut self, len: usize) -> Result<()> {
        static ZEROS: [u8; 4096] = [0; 4096];
        let mut left = len;
        while left > 0 {
            let part = left.min(ZEROS.len());
            self.fill(&ZEROS[..part])?;
            left -= part;
        }
        Ok(())
    }

    /// Fills from a frame the caller holds a reference to.
    pub fn fill_from_frame(&mut self, frame: Frame, inside: usize, len: usize) -> Result<()> {
        if inside + len > PAGE_BYTES {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the range lies in a frame of user memory that stays allocated; the linear map covers it.
        unsafe { self.fill_from(platform::ptr::<u8>(frame.addr() + inside as u64), len) }
    }

    /// Drains into a frame the caller holds a reference to.
    pub fn drain_to_frame(&mut self, frame: Frame, inside: usize, len: usize) -> Result<()> {
        if inside + len > PAGE_BYTES {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as in `fill_from_frame`.
        unsafe { self.drain_to(platform::ptr::<u8>(frame.addr() + inside as u64), len) }
    }

    /// So many bytes were moved, which is work if it was for a program, and not worth finishing if its task is to end: `EINTR`.
    fn count(&self, len: usize) -> Result<()> {
        let is_user = matches!(self.memory, Memory::User { .. });
        let units = u32::try_from(len / BYTES_A_UNIT).unwrap_or(u32::MAX);
        if is_user { work::count_or_end(units) } else { Ok(()) }
    }

    /// Lets the host fill (`write_memory`) or drain the buffer without a copy: calls `call` with pieces of
    /// guest-physical memory, as many as fit in one call, and advances by the bytes it says it moved. Ends when the
    /// buffer is used up, or `call` moves less than it was offered. Pages of mapped host files go through a copy.
    pub fn with_segments(
        &mut self,
        write_memory: bool,
        mut call: impl FnMut(&[Segment], usize) -> Result<usize>,
    ) -> Result<usize> {
        let mut done = 0;
        while self.remaining > 0 {
            if done > 0 && self.count(MESSAGE_MAX).is_err() {
                break;
            }
            let (offered, moved) = match self.one_batch(write_memory, done, &mut call) {
                Ok(result) => result,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            };
            done += moved;
            if moved < offered {
                break;
            }
        }
        Ok(done)
    }

    /// Lets the host fill or drain the buffer in exactly one call, all pieces together. `call` is given the segments and
    /// their length, and returns the bytes it moved and its result. Unless `whole`, fewer bytes may be offered than are
    /// left. Nothing is offered to an empty buffer. A buffer that is bad from some point on: reads are offered what is
    /// before, whole writes fail.
    pub fn with_message<R>(
        &mut self,
        write_memory: bool,
        whole: bool,
        mut call: impl FnMut(&[Segment], usize) -> Result<(usize, R)>,
    ) -> Result<R> {
        let (moved, result) = match &self.memory {
            _ if self.remaining == 0 => call(&[], 0)?,
            Memory::User { aspace, pieces, piece } => {
                let most = if write_memory || !whole { MESSAGE_MAX } else { usize::MAX };
                let wanted = self.remaining.min(most);
                let found = aspace.with_pieces(
                    &pieces[*piece..],
                    self.used,
                    wanted,
                    write_memory,
                    whole,
                    &mut call,
                )?;
                match found {
                    Some(result) => result,
                    None => return self.bounce_message(write_memory, whole, call),
                }
            }
            Memory::Kernel(bytes) => {
                let phys = platform::phys_of(bytes[self.used..].as_ptr());
                call(&[Segment { phys, len: self.remaining as u64 }], self.remaining)?
            }
            Memory::Constant(bytes) => {
                let phys = platform::phys_of(bytes[self.used..].as_ptr());
                call(&[Segment { phys, len: self.remaining as u64 }], self.remaining)?
            }
        };
        self.skip(moved);
        Ok(result)
    }

    /// [`Self::with_message`] through kernel memory: mapped host files, and more pieces than one call takes.
    fn bounce_message<R>(
        &mut self,
        write_memory: bool,
        whole: bool,
        mut call: impl FnMut(&[Segment], usize) -> Result<(usize, R)>,
    ) -> Result<R> {
        if whole && !write_memory && self.remaining > MESSAGE_MAX {
            return Err(Errno::EMSGSIZE);
        }
        let most = match (whole, write_memory) {
            (true, _) => MESSAGE_MAX,
            (false, true) => PAGE_BYTES,
            (false, false) => BOUNCE_MAX,
        };
        let mut len = self.remaining.min(most);
        let mut bytes = vec![0u8; len];
        let start = self.mark();
        if !write_memory {
            if let Err(error) = self.drain(&mut bytes) {
                // What is before the place that cannot be read goes.
                if whole || len <= PAGE_BYTES {
                    return Err(error);
                }
                self.rewind(start);
                len = PAGE_BYTES;
                bytes.truncate(len);
                self.drain(&mut bytes)?;
            }
            self.rewind(start);
        }
        let (moved, result) =
            call(&[Segment { phys: platform::phys_of(bytes.as_ptr()), len: len as u64 }], len)?;
        if write_memory {
            self.fill(&bytes[..moved.min(len)])?;
        } else {
            self.skip(moved.min(len));
        }
        Ok(result)
    }

    /// Advances over any number of pieces.
    pub fn skip(&mut self, len: usize) {
        let mut left = len.min(self.remaining);
        while left > 0 {
            let part = self.front_len().min(left);
            self.advance(part);
            left -= part;
        }
    }

    /// One call of [`Self::with_segments`]; returns the bytes offered and moved.
    fn one_batch(
        &mut self,
        write_memory: bool,
        done: usize,
        call: &mut impl FnMut(&[Segment], usize) -> Result<usize>,
    ) -> Result<(usize, usize)> {
        let front = self.front_len();
        let (offered, moved) = match &mut self.memory {
            Memory::User { aspace, pieces, piece } => {
                let addr = pieces[*piece].0.offset(self.used as u64);
                aspace.with_user_segments(addr, front, write_memory, |segments, len| {
                    Ok((len, call(segments, done)?))
                })?
            }
            Memory::Kernel(bytes) => {
                let phys = platform::phys_of(bytes[self.used..].as_ptr());
                (front, call(&[Segment { phys, len: front as u64 }], done)?)
            }
            Memory::Constant(bytes) => {
                let phys = platform::phys_of(bytes[self.used..].as_ptr());
                (front, call(&[Segment { phys, len: front as u64 }], done)?)
            }
        };
        self.advance(moved.min(offered));
        Ok((offered, moved))
    }

    /// Bytes up to the end of the current piece, skipping empty pieces.
    fn front_len(&mut self) -> usize {
        if let Memory::User { pieces, piece, .. } = &mut self.memory {
            while *piece < pieces.len() && pieces[*piece].1 <= self.used {
                *piece += 1;
                self.used = 0;
            }
            let left = pieces.get(*piece).map_or(0, |piece| piece.1 - self.used);
            return left.min(self.remaining);
        }
        self.remaining
    }

    fn advance(&mut self, len: usize) {
        self.used += len;
        self.remaining -= len;
    }
}

/// Physical pieces of user memory.
#[derive(Default)]
struct SegmentList {
    segments: Vec<Segment>,
    total: usize,
    /// They go in one call, whatever shows them.
    is_whole: bool,
}

/// Why no more pieces can be listed.
enum Obstacle {
    Fault,
    /// A page of a mapped host file or of the template, or too many pieces.
    Copy,
    /// A page's content.
    Away(Away),
}

impl SegmentList {
    fn add(
        &mut self,
        space: &mut Space,
        addr: UserAddr,
        len: usize,
        write_memory: bool,
    ) -> core::result::Result<(), Obstacle> {
        let access = if write_memory { Access::Write } else { Access::Read };
        let mut done = 0usize;
        while done < len {
            let at = addr.offset(done as u64);
            if !at.is_user() {
                return Err(Obstacle::Fault);
            }
            let part = to_usize(at.left_in_page()).min(len - done);
            let mut phys = match space.reach(at, access) {
                Ok(phys) => phys,
                Err(Stop::Away(away)) => return Err(Obstacle::Away(away)),
                Err(_) => return Err(Obstacle::Fault),
            };
            match Region::of(phys) {
                Region::Frame(_) => {}
                // It cannot be copied in parts.
                Region::Template(_) if self.is_whole => {
                    phys = match space.bring_frame(at) {
                        Ok(phys) => phys,
                        Err(Stop::Away(away)) => return Err(Obstacle::Away(away)),
                        // There is no memory for it.
                        Err(Stop::Failed(_)) => return Err(Obstacle::Copy),
                        Err(Stop::Fault(_)) => return Err(Obstacle::Fault),
                    };
                }
                Region::Window(_) | Region::Template(_) => return Err(Obstacle::Copy),
            }
            let full = self.segments.len() as u64 == SEGMENTS_MAX;
            match self.segments.last_mut() {
                Some(last) if last.phys + last.len == phys => last.len += part as u64,
                _ if full => return Err(Obstacle::Copy),
                _ => self.segments.push(Segment { phys, len: part as u64 }),
            }
            done += part;
            self.total += part;
        }
        Ok(())
    }

    /// Lists ranges, at most `wanted` bytes after the first `used`.
    fn add_pieces(
        &mut self,
        space: &mut Space,
        pieces: &[(UserAddr, usize)],
        used: usize,
        wanted: usize,
        write_memory: bool,
    ) -> core::result::Result<(), Obstacle> {
        let mut skip = used;
        for &(addr, len) in pieces {
            let (addr, part) = (addr.offset(skip as u64), len.saturating_sub(skip));
            skip = 0;
            self.add(space, addr, part.min(wanted - self.total), write_memory)?;
            if self.total == wanted {
                break;
            }
        }
        Ok(())
    }
}

impl AddressSpace {
    /// Calls `f` with the physical pieces of the front of a user range, and their total length. The address space is
    /// locked meanwhile, so the pages stay. A page of a mapped host file is bounced through kernel memory.
    fn with_user_segments(
        &self,
        addr: UserAddr,
        len: usize,
        write_memory: bool,
        f: impl FnOnce(&[Segment], usize) -> Result<(usize, usize)>,
    ) -> Result<(usize, usize)> {
        let mut f = Some(f);
        let called = self.attempt(|space| {
            // A pipe takes so much as a whole.
            let is_whole = !write_memory && len <= PIPE_BUF;
            let mut list = SegmentList { is_whole, ..SegmentList::default() };
            if let Err(Obstacle::Away(away)) = list.add(space, addr, len, write_memory) {
                return Err(Stop::Away(away));
            }
            // The mirror may not lag behind while the host writes; the commit order is the same either way.
            let f = if list.total > 0 { f.take() } else { None };
            Ok(f.map(|f| f(&list.segments, list.total)))
        })?;
        match (called, f) {
            (Some(result), _) => result,
            (None, Some(f)) => self.bounce(addr, len.min(BOUNCE_MAX), write_memory, f),
            (None, None) => Err(Errno::EFAULT),
        }
    }

    /// Calls `f` with the physical pieces of the front of user ranges, at most `wanted` bytes after the first `used`.
    /// `None`: they have to be copied.
    fn with_pieces<R>(
        &self,
        pieces: &[(UserAddr, usize)],
        used: usize,
        wanted: usize,
        write_memory: bool,
        whole: bool,
        f: impl FnOnce(&[Segment], usize) -> Result<(usize, R)>,
    ) -> Result<Option<(usize, R)>> {
        let mut f = Some(f);
        self.attempt(|space| {
            let mut list = SegmentList { is_whole: whole && !write_memory, ..SegmentList::default() };
            let usable = match list.add_pieces(space, pieces, used, wanted, write_memory) {
                Ok(()) => true,
                Err(Obstacle::Away(away)) => return Err(Stop::Away(away)),
                Err(Obstacle::Fault) if list.total == 0 || (whole && !write_memory) => {
                    return Ok(Err(Errno::EFAULT));
                }
                Err(Obstacle::Fault) => true,
                Err(Obstacle::Copy) => !whole && list.total > 0,
            };
            // The mirror may not lag behind while the host writes; the commit order is the same either way.
            let f = if usable { f.take() } else { None };
            Ok(f.map(|f| f(&list.segments, list.total)).transpose())
        })?
    }

    fn bounce(
        &self,
        addr: UserAddr,
        len: usize,
        write_memory: bool,
        f: impl FnOnce(&[Segment], usize) -> Result<(usize, usize)>,
    ) -> Result<(usize, usize)> {
        let access = if write_memory { Access::Write } else { Access::Read };
        let least = len.min(to_usize(addr.left_in_page()));
        // Touch the target first: nothing may be consumed for a bad address.
        let reached = |len| self.walk(addr, len, access, |_, _, _| Ok(()));
        let mut len = if !write_memory && len > least && reached(len).is_ok() { len } else { least };
        if len == least {
            reached(len)?;
        }
        let mut page = vec![0u8; len];
        if !write_memory {
            if len > least && self.copy_in(addr, &mut page).is_err() {
                // A mapped file is shorter by now: what is before its end is written.
                len = least;
                page.truncate(len);
            }
            if len == least {
                self.copy_in(addr, &mut page)?;
            }
        }
        let segment = Segment { phys: platform::phys_of(page.as_ptr()), len: len as u64 };
        let (offered, moved) = f(&[segment], len)?;
        if write_memory {
            self.copy_out(addr, &page[..moved.min(len)])?;
        }
        Ok((offered, moved))
    }
}
