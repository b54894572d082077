//! `/proc/PID/mem`: a process's memory as a file.

use abi::word::to_usize;
use alloc::boxed::Box;
use alloc::sync::Weak;
use core::any::Any;

use crate::fs::file::{At, File, FileOps, OpenFlags, Whence};
use crate::fs::inode::S_IFREG;
use crate::fs::inode::Stat;
use crate::proc::identity::PROC;
use crate::proc::subject::Subject;
use crate::pseudo::Context;
use machine::errno::{Errno, Result};
use machine::mm::{AddressSpace, IoBuf, PAGE_BYTES, UserAddr};

/// Opens the memory of a process; the table's guard has let the caller in.
pub fn open(subject: &Subject, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
    let aspace = subject.aspace().map_or_else(|_| Weak::new(), |aspace| alloc::sync::Arc::downgrade(&aspace));
    // Once more: the memory may be of a program that it has begun to run since, or of the one before.
    subject.guard()?;
    let now = subject.aspace().map_or_else(|_| Weak::new(), |aspace| alloc::sync::Arc::downgrade(&aspace));
    if !Weak::ptr_eq(&now, &aspace) {
        return Err(Errno::EACCES);
    }
    let (uid, gid) = subject.owner();
    Ok(Box::new(MemFile { aspace, uid, gid }))
}

/// Keeps no memory alive: once the process has given it up, there is nothing to read.
struct MemFile {
    aspace: Weak<AddressSpace>,
    uid: u32,
    gid: u32,
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

impl MemFile {
    /// Moves bytes page by page through a kernel buffer, since the target may be the same address space.
    fn transfer(&self, file: &File, buf: &mut IoBuf<'_>, at: At, way: Way) -> Result<usize> {
        let Some(aspace) = self.aspace.upgrade() else { return Ok(0) };
        let start = at.from(*file.pos.lock());
        let mut page = alloc::vec![0u8; PAGE_BYTES];
        let mut done = 0usize;
        while !buf.is_empty() {
            let addr = UserAddr::new(start.wrapping_add(done as u64));
            let part = to_usize(addr.left_in_page()).min(buf.remaining());
            let bytes = &mut page[..part];
            let moved = match way {
                Way::Out => {
                    aspace.copy_in_forced(addr, bytes).map_err(|_| Errno::EIO).and_then(|()| buf.fill(bytes))
                }
                Way::In => buf
                    .drain(bytes)
                    .and_then(|()| aspace.copy_out_forced(addr, bytes).map_err(|_| Errno::EIO)),
            };
            match moved {
                Ok(()) => done += part,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if at.moves() {
            *file.pos.lock() = start.wrapping_add(done as u64);
        }
        Ok(done)
    }
}

impl FileOps for MemFile {
    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        self.transfer(file, buf, at, Way::Out)
    }
    fn write(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        self.transfer(file, buf, at, Way::In)
    }
    /// Positions are addresses, so any number will do.
    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        let mut pos = file.pos.lock();
        let base = match whence {
            Whence::Set => 0,
            Whence::Current => *pos,
            _ => return Err(Errno::EINVAL),
        };
        *pos = base.wrapping_add_signed(offset);
        Ok(*pos)
    }
    fn is_seekable(&self) -> bool {
        true
    }
    fn stat(&self, _file: &File) -> Result<Stat> {
        let (uid, gid) = (self.uid, self.gid);
        Ok(Stat {
            dev: PROC.dev,
            ino: 2,
            mode: S_IFREG | 0o600,
            nlink: 1,
            uid,
            gid,
            blksize: 1024,
            ..Default::default()
        })
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
