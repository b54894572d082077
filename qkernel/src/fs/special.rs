//! Where other subsystems hook into the VFS: special files, the kernel's own file systems, the terminal.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::inode::NewNode;
use super::pipe::{self, FifoSlot};
use super::{FileOps, Inode, OpenFlags, devfs, pseudo, tmpfs, tty};
use crate::boot::MountSpec;
use machine::errno::{Errno, Result};

/// Opens a FIFO. Its pipe lives in the inode's [`super::inode::Attachment`].
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

/// The root of a file system the kernel makes itself. Types nobody provides become an empty tmpfs.
pub fn virtual_fs(kind: &[u8]) -> Option<Arc<dyn Inode>> {
    match kind {
        b"tmpfs" | b"ramfs" | b"shm" => Some(tmpfs::new(0o1777)),
        b"devpts" => Some(tty::pts::devpts_root()),
        b"mqueue" => Some(tmpfs::new(0o1777)),
        b"devtmpfs" => {
            let root = tmpfs::new(0o755);
            devfs::populate(&root).is_ok().then_some(root)
        }
        _ => pseudo::virtual_root(kind),
    }
}

/// [`virtual_fs`] with the options that a boot record gives: `size`, `mode`, `uid` and `gid` of a tmpfs, `mode` and
/// `gid` of terminals. Sizes are in bytes.
pub fn virtual_fs_with(spec: &MountSpec) -> Option<Arc<dyn Inode>> {
    let number = |name, radix| spec.number(name, radix);
    let id = |name| number(name, 10).and_then(|id| u32::try_from(id).ok());
    let mode = |otherwise| {
        number(b"mode", 8).and_then(|mode| u32::try_from(mode & 0o7777).ok()).unwrap_or(otherwise)
    };
    let node = |otherwise| NewNode {
        mode: mode(otherwise),
        uid: id(b"uid").unwrap_or(0),
        gid: id(b"gid").unwrap_or(0),
    };
    match &*spec.kind {
        b"tmpfs" => Some(tmpfs::with_size(node(0o1777), number(b"size", 10))),
        b"devtmpfs" => {
            let root = tmpfs::with_size(node(0o755), number(b"size", 10));
            devfs::populate(&root).is_ok().then_some(root)
        }
        b"devpts" => {
            tty::pts::set_defaults(mode(0o620), id(b"gid"));
            Some(tty::pts::devpts_root())
        }
        kind => virtual_fs(kind),
    }
}
