//! Files: the VFS, its file systems, and everything that has a descriptor.

pub mod access;
pub mod anon;
pub mod attr;
pub mod block;
pub mod caches;
pub mod caller;
pub mod changes;
pub mod dentry;
pub mod devfs;
pub mod epoll;
pub mod eventfd;
pub mod file;
pub mod generation;
pub mod host_poll;
pub mod hostfs;
pub mod inode;
pub mod inotify;
pub mod leases;
pub mod locks;
pub mod memfd;
pub mod mount;
pub mod names;
pub mod notify;
pub mod open;
pub mod opens;
pub mod pages;
pub mod path;
pub mod pid_of;
pub mod pipe;
pub mod poll;

pub mod sigio;
pub mod special;
pub mod stream;
pub mod timerfd;
pub mod tmpfs;
pub mod walk;

#[cfg(test)]
mod tests;

pub use file::{At, Descriptor, DirEntry, File, FileOps, FileTable, OpenFlags, Whence};
pub use inode::{Inode, Stat};
pub use path::{FsContext, Path};
