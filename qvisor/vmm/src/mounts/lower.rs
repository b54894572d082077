//! Whether an overlay shows its lower directory's nodes as they are there, so that who wants to know of one that was not changed
//! can look below the overlay, which is less work for the host.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sys;

/// Entries that are compared.
const SAMPLES: usize = 8;

/// Whether the nodes of `lower` have the same inode numbers in `overlay`, and all of them that one device number. It is so where the
/// layers lie on the lower directory's file system. A few entries, which nobody has changed yet, are looked at in both.
pub(super) fn is_shown_as_it_is(lower: BorrowedFd<'_>, overlay: BorrowedFd<'_>, layers: &Path) -> bool {
    let attributes = |fd| sys::statx(fd, c"").ok();
    let (Some(root), Some(shown_root)) = (attributes(lower), attributes(overlay)) else { return false };
    let device = libc::makedev(root.stx_dev_major, root.stx_dev_minor);
    if !fs::metadata(layers).is_ok_and(|layers| layers.dev() == device) {
        return false;
    }
    let Ok(entries) = fs::read_dir(format!("/proc/self/fd/{}", lower.as_raw_fd())) else { return false };
    let mut compared = 0;
    for entry in entries.flatten() {
        let Some((below, shown)) = in_both(&entry.file_name(), lower, overlay) else { continue };
        if on_device(&below) != on_device(&root) {
            continue;
        }
        if on_device(&shown) != on_device(&shown_root) || !are_alike(&below, &shown) {
            return false;
        }
        compared += 1;
        if compared == SAMPLES {
            break;
        }
    }
    compared > 0
}

fn in_both(
    name: &OsStr,
    lower: BorrowedFd<'_>,
    overlay: BorrowedFd<'_>,
) -> Option<(libc::statx, libc::statx)> {
    let name = CString::new(name.as_bytes()).ok()?;
    Some((sys::statx(lower, &name).ok()?, sys::statx(overlay, &name).ok()?))
}

fn on_device(status: &libc::statx) -> (u32, u32) {
    (status.stx_dev_major, status.stx_dev_minor)
}

/// Whether all is the same but the device.
fn are_alike(one: &libc::statx, other: &libc::statx) -> bool {
    let node =
        |of: &libc::statx| (of.stx_ino, of.stx_mode, of.stx_nlink, of.stx_rdev_major, of.stx_rdev_minor);
    let owner = |of: &libc::statx| (of.stx_uid, of.stx_gid);
    let extent = |of: &libc::statx| (of.stx_size, of.stx_blocks, of.stx_blksize);
    let times =
        |of: &libc::statx| [of.stx_mtime, of.stx_ctime, of.stx_btime].map(|time| (time.tv_sec, time.tv_nsec));
    (node(one), owner(one), extent(one), times(one))
        == (node(other), owner(other), extent(other), times(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use testdir::TempDir;

    #[test]
    fn nodes_of_the_same_numbers_are_shown_as_they_are() {
        let (one, other, empty) = (TempDir::new(), TempDir::new(), TempDir::new());
        for dir in [&one, &other] {
            fs::create_dir(dir.path().join("d")).unwrap();
            fs::write(dir.path().join("f"), "x").unwrap();
        }
        let is_shown = |lower: &Path, overlay: &Path, layers: &Path| {
            let (lower, overlay) = (File::open(lower).unwrap(), File::open(overlay).unwrap());
            is_shown_as_it_is(lower.as_fd(), overlay.as_fd(), layers)
        };
        assert!(is_shown(one.path(), one.path(), other.path()));
        assert!(!is_shown(one.path(), other.path(), other.path()), "other inode numbers");
        assert!(!is_shown(one.path(), one.path(), Path::new("/proc")), "layers elsewhere");
        assert!(!is_shown(empty.path(), empty.path(), other.path()), "nothing to compare");
    }
}
