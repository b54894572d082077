//! Special files: FIFOs and devices.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::fs::file::{FileOps, OpenFlags};
use crate::fs::inode::Inode;
use crate::fs::pipe;
use crate::fs::pipe::FifoSlot;

use crate::fs::devfs;
use machine::errno::{Errno, Result};

/// Opens a FIFO. Its pipe lives in the inode's [`crate::fs::inode::Attachment`].
pub fn open_fifo(inode: &Arc<dyn Inode>, flags: OpenFlags) -> Result<Box<dyn FileOps>> {
    let attachment = inode.attachment().ok_or(Errno::ENXIO)?;
    let slot = {
        let mut held = attachment.lock();
        let object = held.get_or_insert_with(|| Arc::new(FifoSlot::new())).clone();
        object.downcast::<FifoSlot>().map_err(|_| Errno::ENXIO)?
    };
    pipe::fifo_open(&slot, flags)
}

/// Opens a device node (`is_block`: a block device) of a file system that has no devices of its own.
pub fn open_device(
    _inode: &Arc<dyn Inode>,
    rdev: u64,
    is_block: bool,
    flags: OpenFlags,
) -> Result<Box<dyn FileOps>> {
    if is_block { Err(Errno::ENXIO) } else { devfs::open_device(rdev, flags) }
}
