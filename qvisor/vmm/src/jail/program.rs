//! The program file of Dormouse itself: the file that `/proc/self/exe` leads to, even from an empty root.

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

const OWN_PROGRAM: &CStr = c"/proc/self/exe";
const MOUNT_ATTR_RDONLY: u64 = 1;
const OPEN_TREE_CLONE: libc::c_long = 1;

/// Runs the program once more, from a read-only view of its file: a VMM that is taken over and owns files as the host's
/// root does could otherwise change the mode or the owner of the host's `dormouse`. Call it first of all, for commands
/// that start a VMM. Returns when that is done, not possible (the caller is not root), or not needed.
pub fn run_from_read_only_view() {
    if crate::process::effective_user() == 0 && !is_read_only() {
        // Without the view the sandbox runs all the same.
        let _ = run_again();
        return;
    }
    // It may have the name of a descriptor.
    crate::process::set_name(c"dormouse");
}

fn is_read_only() -> bool {
    // SAFETY: all zeros is a valid structure.
    let mut status: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is zero-terminated, the structure live.
    let result = unsafe { libc::statvfs(OWN_PROGRAM.as_ptr(), &raw mut status) };
    result != 0 || status.f_flag & libc::ST_RDONLY != 0
}

fn run_again() -> io::Result<()> {
    let strings = |all: Vec<OsString>| -> io::Result<Vec<CString>> {
        Ok(all.into_iter().map(|one| CString::new(one.into_vec())).collect::<Result<_, _>>()?)
    };
    let arguments = strings(std::env::args_os().collect())?;
    let variable = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        name
    };
    let environment = strings(std::env::vars_os().map(variable).collect())?;
    let pointers = |all: &[CString]| -> Vec<*const libc::c_char> {
        all.iter().map(|one| one.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments_at, environment_at) = (pointers(&arguments), pointers(&environment));
    let attributes = [MOUNT_ATTR_RDONLY, 0, 0, 0];
    let (empty, nothing) = (libc::AT_EMPTY_PATH, c"".as_ptr());
    // SAFETY: the strings and arrays live through the calls and end as they must; the first one makes a descriptor.
    unsafe {
        let flags = OPEN_TREE_CLONE | libc::c_long::from(libc::O_CLOEXEC);
        let fd = libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, OWN_PROGRAM.as_ptr(), flags);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let view = OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1));
        let (raw, size) = (view.as_raw_fd(), size_of_val(&attributes));
        if libc::syscall(libc::SYS_mount_setattr, raw, nothing, empty, attributes.as_ptr(), size) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::syscall(
            libc::SYS_execveat,
            raw,
            nothing,
            arguments_at.as_ptr(),
            environment_at.as_ptr(),
            empty,
        );
    }
    Err(io::Error::last_os_error())
}
