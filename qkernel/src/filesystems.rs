//! The file systems that the kernel makes itself, by their type.

use alloc::sync::Arc;

use crate::fs::inode::{Inode, NewNode};
use crate::fs::{devfs, tmpfs};
use crate::ipc::{IpcNamespace, mqueue};
use crate::spec::MountSpec;
use crate::{proc, sysfs, tty};

/// The root of a file system the kernel makes itself; queues are those of `ipc`. Types nobody provides become an empty tmpfs.
pub fn virtual_fs(kind: &[u8], ipc: &Arc<IpcNamespace>) -> Option<Arc<dyn Inode>> {
    match kind {
        b"tmpfs" | b"ramfs" | b"shm" => Some(tmpfs::new(0o1777)),
        b"devpts" => Some(tty::pts::devpts_root()),
        b"mqueue" => Some(mqueue::dir::root(ipc)),
        b"devtmpfs" => {
            let root = tmpfs::new(0o755);
            devfs::populate(&root).is_ok().then_some(root)
        }
        b"proc" => Some(proc::root()),
        b"sysfs" => Some(sysfs::root()),
        b"cgroup" | b"cgroup2" => Some(sysfs::cgroup::root()),
        _ => None,
    }
}

/// [`virtual_fs`] with the options that a boot record gives: `size`, `mode`, `uid` and `gid` of a tmpfs, `mode` and
/// `gid` of terminals. Sizes are in bytes.
pub fn virtual_fs_with(spec: &MountSpec, ipc: &Arc<IpcNamespace>) -> Option<Arc<dyn Inode>> {
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
        kind => virtual_fs(kind, ipc),
    }
}
