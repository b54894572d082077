//! The file systems that the kernel makes itself, by their type.

use abi::mount::{FileSystem, Settings};
use alloc::sync::Arc;

use crate::fs::inode::Inode;
use crate::fs::{devfs, tmpfs};
use crate::ipc::mqueue;
use crate::task::container::Container;
use crate::{cgroupfs, proc, sysfs, tty};
use machine::errno::{Errno, Result};
use machine::mm::PAGE;

/// The root of a file system without settings; queues and control groups are the container's.
fn plain(kind: FileSystem, container: &Arc<Container>) -> Result<Arc<dyn Inode>> {
    match kind {
        FileSystem::Tmpfs => Ok(tmpfs::new(0o1777)),
        FileSystem::Terminals => Ok(tty::pts::devpts_root()),
        FileSystem::Queues => Ok(mqueue::dir::root(&container.ipc())),
        FileSystem::Devices | FileSystem::DevicesInTmpfs => devices(tmpfs::new(0o755)),
        FileSystem::Proc => Ok(proc::root()),
        FileSystem::Sysfs => Ok(sysfs::root()),
        FileSystem::ControlGroups => Ok(cgroupfs::root(container)),
    }
}

fn devices(root: Arc<dyn Inode>) -> Result<Arc<dyn Inode>> {
    devfs::populate(&root).map_err(|_| Errno::ENODEV)?;
    Ok(root)
}

/// The file system of a type's name, as `mount(2)` takes it.
fn by_name(name: &[u8]) -> Option<FileSystem> {
    match name {
        b"tmpfs" | b"ramfs" | b"shm" => Some(FileSystem::Tmpfs),
        b"devpts" => Some(FileSystem::Terminals),
        b"mqueue" => Some(FileSystem::Queues),
        b"devtmpfs" => Some(FileSystem::Devices),
        b"proc" => Some(FileSystem::Proc),
        b"sysfs" => Some(FileSystem::Sysfs),
        b"cgroup" | b"cgroup2" => Some(FileSystem::ControlGroups),
        _ => None,
    }
}

/// The root of a file system that a program mounts, with the options of `mount(2)`. `ENODEV`: nobody makes this type.
pub fn mounted_fs(kind: &[u8], options: &[u8], container: &Arc<Container>) -> Result<Arc<dyn Inode>> {
    match kind {
        b"tmpfs" => tmpfs::mounted(options),
        kind => plain(by_name(kind).ok_or(Errno::ENODEV)?, container),
    }
}

/// The root of a file system with the settings that the VMM gives.
pub fn with_settings(
    kind: FileSystem,
    settings: &Settings,
    container: &Arc<Container>,
) -> Result<Arc<dyn Inode>> {
    let mode = settings.mode.map(|mode| mode & 0o7777);
    let options = || tmpfs::Options {
        pages: settings.size_bytes.map(|bytes| bytes.div_ceil(PAGE)).filter(|pages| *pages != 0),
        mode,
        uid: settings.uid,
        gid: settings.gid,
        ..tmpfs::Options::default()
    };
    match kind {
        FileSystem::Tmpfs => Ok(tmpfs::with_options(options(), 0o1777)),
        FileSystem::Devices | FileSystem::DevicesInTmpfs => devices(tmpfs::with_options(options(), 0o755)),
        FileSystem::Terminals => {
            tty::pts::set_defaults(mode.unwrap_or(0o620), settings.gid);
            Ok(tty::pts::devpts_root())
        }
        kind => plain(kind, container),
    }
}
