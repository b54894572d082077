//! The file systems that the kernel makes itself, by their type.

use alloc::sync::Arc;

use crate::fs::inode::Inode;
use crate::fs::{devfs, tmpfs};
use crate::ipc::mqueue;
use crate::spec::MountSpec;
use crate::task::container::Container;
use crate::{cgroupfs, proc, sysfs, tty};
use machine::errno::{Errno, Result};
use machine::mm::PAGE;

/// The root of a file system the kernel makes itself; queues and control groups are the container's. `None`: nobody makes this
/// type.
fn virtual_fs(kind: &[u8], container: &Arc<Container>) -> Option<Arc<dyn Inode>> {
    match kind {
        b"tmpfs" | b"ramfs" | b"shm" => Some(tmpfs::new(0o1777)),
        b"devpts" => Some(tty::pts::devpts_root()),
        b"mqueue" => Some(mqueue::dir::root(&container.ipc())),
        b"devtmpfs" => device_fs(tmpfs::new(0o755)),
        b"proc" => Some(proc::root()),
        b"sysfs" => Some(sysfs::root()),
        b"cgroup" | b"cgroup2" => Some(cgroupfs::root(container)),
        _ => None,
    }
}

fn device_fs(root: Arc<dyn Inode>) -> Option<Arc<dyn Inode>> {
    devfs::populate(&root).is_ok().then_some(root)
}

/// The root of a file system that a program mounts, with the options of `mount(2)`. `ENODEV`: nobody makes this type.
pub fn mounted_fs(kind: &[u8], options: &[u8], container: &Arc<Container>) -> Result<Arc<dyn Inode>> {
    match kind {
        b"tmpfs" => tmpfs::mounted(options),
        kind => virtual_fs(kind, container).ok_or(Errno::ENODEV),
    }
}

/// [`virtual_fs`] with the options that a boot record gives: `size`, `mode`, `uid` and `gid` of a tmpfs, `mode` and
/// `gid` of terminals. Sizes are in bytes.
pub fn virtual_fs_with(spec: &MountSpec, container: &Arc<Container>) -> Option<Arc<dyn Inode>> {
    let number = |name, radix| spec.number(name, radix);
    let id = |name| number(name, 10).and_then(|id| u32::try_from(id).ok());
    let mode = || number(b"mode", 8).and_then(|mode| u32::try_from(mode & 0o7777).ok());
    let options = || tmpfs::Options {
        pages: number(b"size", 10).map(|bytes| bytes.div_ceil(PAGE)).filter(|pages| *pages != 0),
        mode: mode(),
        uid: id(b"uid"),
        gid: id(b"gid"),
        ..tmpfs::Options::default()
    };
    match &*spec.kind {
        b"tmpfs" => Some(tmpfs::with_options(options(), 0o1777)),
        b"devtmpfs" => device_fs(tmpfs::with_options(options(), 0o755)),
        b"devpts" => {
            tty::pts::set_defaults(mode().unwrap_or(0o620), id(b"gid"));
            Some(tty::pts::devpts_root())
        }
        kind => virtual_fs(kind, container),
    }
}
