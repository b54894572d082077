//! What the sandbox may use of the host's files, opened before the VMM gives up the host, and the mounts the kernel is
//! told.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use abi::boot::{MOUNT_READ_ONLY, MOUNT_SHARED, STREAM_TTY};

use super::{Plan, Tree, VmmError};
use crate::boot::{BootSpec, Mount, Stream};
use crate::hostcall::files::HostIo;
use crate::hostcall::sys;
use crate::mounts::{self, View, Volume};
use crate::oci::{Container, Source};

/// Directories that the kernel mounts its own file systems on.
const VIRTUAL_MOUNTS: &[(&str, &str)] = &[
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/dev/shm"),
];

/// Opens everything, and writes down what the kernel is told.
pub(super) fn prepare(plan: &Plan, io: &HostIo) -> Result<BootSpec, VmmError> {
    let mut boot = plan.boot.clone();
    boot.streams = streams(plan, io)?;
    boot.mounts = match &plan.tree {
        Tree::CopyOnWrite { root, layer, volumes, hidden } => {
            copy_on_write(io, root, layer, volumes, hidden)?
        }
        Tree::Bundle(bundle) => bundle_mounts(io, &bundle.container, &mut boot)?,
    };
    Ok(boot)
}

/// Hands a view over to the kernel.
fn adopt(io: &HostIo, view: View, kind: &str, flags: u32) -> Result<Mount, VmmError> {
    let bit = |set: bool, bit: u32| if set { bit } else { 0 };
    let flags = flags | bit(view.read_only, MOUNT_READ_ONLY) | bit(view.shared, MOUNT_SHARED);
    let files = io.files();
    let handle =
        if view.read_only { files.adopt_read_only_mount(view.fd) } else { files.adopt_mount(view.fd) };
    let path = mounts::bytes_of(&view.path);
    let handle = handle.map_err(VmmError::HostIo)?;
    Ok(Mount { handle, flags, path, kind: kind.into(), source: kind.into(), options: String::new() })
}

/// A view of the host, with the kernel's own file systems in their usual places.
fn copy_on_write(
    io: &HostIo,
    root: &Path,
    layer: &Path,
    volumes: &[Volume],
    hidden: &[PathBuf],
) -> Result<Vec<Mount>, VmmError> {
    let mut views = mounts::copy_on_write(root, layer)?;
    for volume in volumes {
        let view = mounts::volume(volume)?;
        let is_dir = is_directory(view.fd.as_fd());
        make_target(&views, &view.path, is_dir);
        views.retain(|other| other.path != view.path);
        views.push(view);
    }
    let mut mounts = Vec::new();
    for (kind, path) in VIRTUAL_MOUNTS {
        make_target(&views, Path::new(path), true);
        let flags = if *kind == "sysfs" { MOUNT_READ_ONLY } else { 0 };
        mounts.push(Mount::of_kernel(kind, path.as_bytes().to_vec(), flags));
    }
    let mut covers = Vec::new();
    for path in hidden.iter().filter_map(|path| path.strip_prefix(root).ok()) {
        let path = Path::new("/").join(path);
        make_target(&views, &path, true);
        covers.push(Mount::of_kernel("tmpfs", mounts::bytes_of(&path), 0));
    }
    for view in views {
        let kind = if view.path == Path::new("/") { "overlay" } else { "host" };
        mounts.push(adopt(io, view, kind, 0)?);
    }
    mounts.append(&mut covers);
    // Parents before children, the root first; a volume covers what the kernel has there.
    mounts.sort_by_key(|mount| Path::new(std::ffi::OsStr::from_bytes(&mount.path)).components().count());
    Ok(mounts)
}

/// The root file system of a bundle itself, and the mounts in their order.
fn bundle_mounts(io: &HostIo, container: &Container, boot: &mut BootSpec) -> Result<Vec<Mount>, VmmError> {
    let read_only = container.root_read_only;
    let fd = mounts::open_tree(&container.root, read_only, true)
        .map_err(|source| mounts::MountError::Root { path: container.root.clone(), source })?;
    if !boot.env.iter().any(|pair| pair.starts_with(b"HOME=")) {
        let passwd = mounts::read_in_root(fd.as_fd(), Path::new("etc/passwd")).unwrap_or_default();
        boot.env.push([b"HOME=", home_of(&passwd, boot.creds.uid)].concat());
    }
    // All are open before one is handed over: a target is made in the view that holds it.
    let mut views = vec![View { fd, path: "/".into(), read_only, shared: true }];
    for plan in &container.mounts {
        if let Source::Host { path, recursive } = &plan.source {
            let read_only = plan.flags & MOUNT_READ_ONLY != 0;
            let fd = mounts::open_tree(path, read_only, *recursive)
                .map_err(|source| mounts::MountError::Bind { path: path.clone(), source })?;
            make_target(&views, &plan.path, is_directory(fd.as_fd()));
            views.push(View { fd, path: plan.path.clone(), read_only, shared: true });
        } else {
            make_target(&views, &plan.path, true);
        }
    }
    let mut views = views.into_iter();
    let mut mounts: Vec<Mount> = Vec::new();
    mounts.extend(views.next().map(|root| adopt(io, root, "dormouse", 0)).transpose()?);
    for plan in &container.mounts {
        match &plan.source {
            Source::Host { .. } => {
                mounts.extend(views.next().map(|view| adopt(io, view, "bind", plan.flags)).transpose()?);
            }
            Source::Virtual { kind, name, options } => {
                let mut mount = Mount::of_kernel(kind, mounts::bytes_of(&plan.path), plan.flags);
                (mount.source, mount.options) = (name.clone(), options.clone());
                mounts.push(mount);
            }
        }
    }
    Ok(mounts)
}

/// The home directory of a user, by the lines of a `passwd` file; `/` when it has none.
fn home_of(passwd: &[u8], uid: u32) -> &[u8] {
    let home = passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let found = std::str::from_utf8(fields.nth(2)?).ok()?.parse::<u32>().ok()?;
        fields.nth(2).filter(|home| found == uid && !home.is_empty() && !home.contains(&0))
    });
    home.unwrap_or(b"/")
}

fn streams(plan: &Plan, io: &HostIo) -> Result<Vec<Stream>, VmmError> {
    let mut streams = Vec::new();
    for fd in 0..3 {
        let failed = |source| VmmError::Stream { fd, source };
        // SAFETY: descriptors 0 to 2 stay open as long as the process lives (the runtime opens them if need be).
        let stream = unsafe { BorrowedFd::borrow_raw(fd) };
        let copy = stream.try_clone_to_owned().map_err(|error| failed(error.into()))?;
        let is_tty = sys::is_tty(stream);
        let handle = io.adopt_stream(copy).map_err(failed)?;
        let flags = if plan.terminal && is_tty { STREAM_TTY } else { 0 };
        streams.push(Stream { fd: fd.cast_unsigned(), handle, flags });
    }
    Ok(streams)
}

fn is_directory(fd: BorrowedFd<'_>) -> bool {
    sys::statx(fd, c"").is_ok_and(|status| u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFDIR)
}

/// Makes the directories (or the file) that something is mounted on, in the view that holds them. Best effort: a
/// read-only view is left for the kernel to find. Links are followed inside the view, never out of it.
fn make_target(views: &[View], path: &Path, directory: bool) {
    let holders = views.iter().filter(|view| path.starts_with(&view.path) && path != view.path);
    let Some(view) = holders.max_by_key(|view| view.path.as_os_str().len()) else { return };
    let Ok(inside) = path.strip_prefix(&view.path) else { return };
    let mut at: Option<OwnedFd> = None;
    let mut done = PathBuf::new();
    let mut names = inside.components().peekable();
    while let Some(name) = names.next() {
        let Ok(c_name) = std::ffi::CString::new(name.as_os_str().as_encoded_bytes()) else { return };
        let dir = at.as_ref().map_or(view.fd.as_fd(), AsFd::as_fd);
        if names.peek().is_none() && !directory {
            let _ = sys::mknodat(dir, &c_name, libc::S_IFREG | 0o644);
            return;
        }
        let _ = sys::mkdirat(dir, &c_name, 0o755);
        done.push(name);
        match mounts::open_in_root(view.fd.as_fd(), &done) {
            Ok(next) => at = Some(next),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_found() {
        let passwd =
            b"root:x:0:0:root:/root:/bin/sh\nbad\nx:x:y:0::/bad:\nme:x:7:7::/home/me:\nno:x:8:8:::\n";
        assert_eq!(home_of(passwd, 0), b"/root");
        assert_eq!(home_of(passwd, 7), b"/home/me");
        assert_eq!(
            (home_of(passwd, 8), home_of(passwd, 9), home_of(b"", 0)),
            (&b"/"[..], &b"/"[..], &b"/"[..])
        );
    }
}
