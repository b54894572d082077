//! Where other subsystems hook into the VFS: special files, the kernel's own file systems, the terminal.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::{File, FileOps, Inode, OpenFlags, pipe, tmpfs};
use crate::errno::{Errno, Result};
use crate::host::Handle;

/// Opens a FIFO. Its pipe lives in the inode's [`super::inode::Attachment`].
pub fn open_fifo(inode: &Arc<dyn Inode>, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
    pipe::open_attached(inode.attachment().ok_or(Errno::ENXIO)?, flags)
}

/// Opens a device node (`is_block`: a block device) of a file system that has no devices of its own.
pub fn open_device(
    _inode: &Arc<dyn Inode>,
    _rdev: u64,
    _is_block: bool,
    _flags: OpenFlags,
) -> Result<Box<dyn FileOps>> {
    Err(Errno::ENXIO)
}

/// The root of a file system the kernel makes itself. Types nobody provides become an empty tmpfs.
pub fn virtual_fs(kind: &[u8]) -> Option<Arc<dyn Inode>> {
    match kind {
        b"tmpfs" | b"ramfs" | b"shm" => Some(tmpfs::new(0o1777)),
        b"proc" => Some(super::proc::root()),
        b"mqueue" => Some(tmpfs::new(0o1777)),
        _ => None,
    }
}

/// The console on streams that are a raw terminal of the host; `None` treats them as plain streams.
pub fn console(_stream: Arc<Handle>) -> Option<Arc<File>> {
    None
}
