//! The root file system: mounts that no other namespace sees, and an empty root in the host's place.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::step::{JailError, step};
use crate::process;

/// The directory in a pod's root for the files of containers that come later ([`crate::pod_place`]).
pub const POD_PLACE: &CStr = c"/pod";
const PRIVATE: &str = "making mounts private";

/// Whether mounts of the host that are made later are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are not seen here.
    Private,
    /// They are seen here, below mounts of the host's that are shared there.
    Slave,
}

/// Makes the mounts of this mount namespace, which is the process's own, private or slaves, so that no other namespace
/// sees what is mounted here. A host whose root is shared, as systemd makes it, would otherwise keep the mounts made
/// here, below the directory of a sandbox that has ended.
pub(super) fn set_propagation(propagation: Propagation) -> Result<(), JailError> {
    match propagate(propagation) {
        // In a chroot the root is no mount point, and only from the root of the namespace all mounts are reached.
        Err(error) if error.is_of_chroot() => {
            in_child(|| leave_chroot().and_then(|()| propagate(propagation)))
        }
        result => result,
    }
}

impl Propagation {
    /// `MS_PRIVATE` or `MS_SLAVE`.
    pub(crate) fn flag(self) -> u64 {
        match self {
            Self::Private => libc::MS_PRIVATE,
            Self::Slave => libc::MS_SLAVE,
        }
    }
}

fn propagate(propagation: Propagation) -> Result<(), JailError> {
    mount(PRIVATE, c"none", c"/", None, libc::MS_REC | propagation.flag(), None)
}

/// Moves this process to the root of its mount namespace, if a chroot has it elsewhere. Only with a single thread.
pub(super) fn leave_chroot() -> Result<(), JailError> {
    let name = "leaving the chroot";
    let namespace =
        File::open("/proc/self/ns/mnt").map_err(|source| JailError::Step { step: name, source })?;
    // SAFETY: integers only.
    step(name, || unsafe { i64::from(libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS)) })
}

/// Does something in a child, which has a root and a working directory of its own.
fn in_child(run: impl FnOnce() -> Result<(), JailError>) -> Result<(), JailError> {
    let failed = |source| JailError::Step { step: PRIVATE, source };
    let Some(child) = process::fork().map_err(failed)? else {
        let errno = match run() {
            Ok(()) => 0,
            Err(JailError::Step { source, .. }) => source.raw_os_error().unwrap_or(libc::EIO),
            Err(_) => libc::EIO,
        };
        process::exit_now(errno)
    };
    let mut status = 0;
    // SAFETY: `status` is live for the call.
    step(PRIVATE, || unsafe { i64::from(libc::waitpid(child, &raw mut status, 0)) })?;
    match libc::WEXITSTATUS(status) {
        0 if libc::WIFEXITED(status) => Ok(()),
        errno => Err(failed(io::Error::from_raw_os_error(errno))),
    }
}

/// Replaces the root of this mount namespace by an empty, read-only file system: no path leads to the host any more.
///
/// The namespace must be the process's own. The working directory is lost as well. The mounts in `kept`, which are
/// detached, get a place in the new root: only there are they reached by mounts that the host makes below them later. A
/// pod's root has [`POD_PLACE`], where only the host's root can change anything.
pub(super) fn leave_host(kept: &[OwnedFd], is_pod: bool) -> Result<(), JailError> {
    // The root that is replaced has to be a mount point.
    propagate(Propagation::Private)
        .or_else(|error| if error.is_of_chroot() { leave_chroot() } else { Err(error) })?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let options =
        CString::new(format!("size=64k,nr_inodes={},mode=0555", 8 + kept.len())).unwrap_or_default();
    mount("mounting an empty root", c"dormouse", c"/proc", Some(c"tmpfs"), flags, Some(&options))?;
    step("entering the empty root", || {
        // SAFETY: the path is zero-terminated.
        unsafe { i64::from(libc::chdir(c"/proc".as_ptr())) }
    })?;
    // The old root is stacked on the new one, then taken away; no directory for it is needed.
    step("pivoting", || {
        // SAFETY: both paths are zero-terminated.
        unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) }
    })?;
    step("unmounting the host", || {
        // SAFETY: the path is zero-terminated.
        unsafe { i64::from(libc::umount2(c".".as_ptr(), libc::MNT_DETACH)) }
    })?;
    step("entering the root", || {
        // SAFETY: the path is zero-terminated.
        unsafe { i64::from(libc::chdir(c"/".as_ptr())) }
    })?;
    if is_pod {
        step("making the pod's place", || {
            // SAFETY: the path is zero-terminated.
            i64::from(unsafe { libc::mkdir(POD_PLACE.as_ptr(), 0o700) })
        })?;
        let options = c"size=1m,nr_inodes=16k,mode=0700";
        mount("mounting the pod's place", c"dormouse", POD_PLACE, Some(c"tmpfs"), flags, Some(options))?;
    }
    for (at, tree) in kept.iter().enumerate() {
        let place = CString::new(format!("/{at}")).unwrap_or_default();
        attach(tree.as_fd(), &place)
            .map_err(|source| JailError::Step { step: "giving a volume its place", source })?;
    }
    mount("making the root read-only", c"none", c"/", None, flags | libc::MS_REMOUNT | libc::MS_RDONLY, None)
}

/// Gives a detached mount a place in this mount namespace, which is made, and goes with the namespace's root.
pub fn attach(tree: BorrowedFd<'_>, place: &CStr) -> io::Result<()> {
    let status = crate::sys::statx(tree, c"").map_err(|error| io::Error::from_raw_os_error(error.0))?;
    let is_directory = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFDIR;
    // SAFETY: the path is zero-terminated.
    let made = unsafe {
        if is_directory {
            libc::mkdir(place.as_ptr(), 0o700)
        } else {
            libc::mknod(place.as_ptr(), libc::S_IFREG | 0o600, 0)
        }
    };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    cover(tree, place)
}

/// Gives a detached mount its place in this mount namespace, over the file or directory that is there.
pub fn cover(tree: BorrowedFd<'_>, place: &CStr) -> io::Result<()> {
    const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;
    let (from, here, flags) = (tree.as_raw_fd(), libc::AT_FDCWD, MOVE_MOUNT_F_EMPTY_PATH);
    // SAFETY: a live descriptor, and two zero-terminated paths.
    let result =
        unsafe { libc::syscall(libc::SYS_move_mount, from, c"".as_ptr(), here, place.as_ptr(), flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn mount(
    name: &'static str,
    source: &CStr,
    target: &CStr,
    kind: Option<&CStr>,
    flags: u64,
    data: Option<&CStr>,
) -> Result<(), JailError> {
    let (kind, data) =
        (kind.map_or(std::ptr::null(), CStr::as_ptr), data.map_or(std::ptr::null(), CStr::as_ptr));
    step(name, || {
        // SAFETY: every pointer is null or to a zero-terminated string that outlives the call.
        unsafe { i64::from(libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, data.cast())) }
    })
}
