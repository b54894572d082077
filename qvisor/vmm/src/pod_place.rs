//! The place in a pod's mount namespace for the files of containers that come later.
//!
//! A VMM opens files by views that it was given, and Landlock holds it to places that it named before it went to jail
//! ([`crate::jail::landlock`]). So a pod's VMM names one place more: an empty directory of its own root, to which it has
//! no right itself. Whoever makes a further container attaches that container's views there, from outside, and hands
//! them over; whoever deletes the container takes them away. All go with the VMM.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::jail::{POD_PLACE, Propagation, attach};
use crate::mounts::set_propagation;
use crate::process;

/// Attaches the views of a container in the mount namespace of a VMM, below a directory of this name. A view that is a slave
/// shows there what the host mounts below it later; the host sees nothing of any view. Only while this process has a single
/// thread.
pub fn show(vmm: BorrowedFd<'_>, name: &str, views: &[(BorrowedFd<'_>, Propagation)]) -> io::Result<()> {
    views.iter().try_for_each(|(view, propagation)| set_propagation(*view, *propagation))?;
    within(vmm, |place| {
        let directory = place.join(name);
        fs::create_dir(&directory)?;
        for (at, (view, _)) in views.iter().enumerate() {
            attach(*view, &c_path(&directory.join(at.to_string()))?)?;
        }
        Ok(())
    })
}

/// Takes the views of a container away. Only while this process has a single thread.
pub fn remove(vmm: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    within(vmm, |place| {
        let directory = place.join(name);
        for entry in fs::read_dir(&directory)? {
            let view = entry?.path();
            let path = c_path(&view)?;
            // SAFETY: the path is zero-terminated. One that was never attached fails, and is removed as well.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
            if view.is_dir() { fs::remove_dir(&view)? } else { fs::remove_file(&view)? }
        }
        fs::remove_dir(&directory)
    })
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Does something with the place of a VMM, in a child that enters its mount namespace.
fn within(vmm: BorrowedFd<'_>, run: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let parent = process::id();
    let Some(child) = process::fork()? else {
        // Whoever finds the parent dead takes away what was done so far, and nothing comes after that.
        if !process::die_with_parent(parent) {
            process::exit_now(libc::ECHILD);
        }
        // SAFETY: integers only.
        let entered = unsafe { libc::setns(vmm.as_fd().as_raw_fd(), libc::CLONE_NEWNS) };
        let result = if entered == 0 { run(place()) } else { Err(io::Error::last_os_error()) };
        let errno = result.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
        process::exit_now(errno)
    };
    let mut status = 0;
    // SAFETY: `status` is live for the call.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, errno) => Err(io::Error::from_raw_os_error(errno)),
        (false, _) => Err(io::ErrorKind::Interrupted.into()),
    }
}

fn place() -> &'static Path {
    Path::new(std::ffi::OsStr::from_bytes(POD_PLACE.to_bytes()))
}
