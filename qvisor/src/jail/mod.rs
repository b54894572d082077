//! How the VMM gives up the host. Steps, in order:
//!
//! 1. Descriptors: only the streams, the channel to the front end and the control socket stay (`process::keep_only`,
//!    before anything else is opened).
//! 2. Namespaces: mount, ipc, uts, and a user namespace that is entered in step 4 ([`Users::enter_namespaces`]). Mounts
//!    are private from then on.
//! 3. The root file system: an empty read-only one takes the host's place ([`leave_host`]). What the sandbox may use was
//!    opened before; own descriptors are reached by a `/proc` of our own ([`proc_directory`]), opened before as well.
//! 4. Ids: root in the guest is nobody on the host, and no other process has the VMM's own id (`users.rs`).
//! 5. Capabilities down to a listed set, no new privileges, limits (`privileges.rs`).
//! 6. Landlock, where the host has it: signals stay in the sandbox, which begins before step 3, since children that are to
//!    be signalled are made inside of it; files are those that were given (`landlock.rs`).
//! 7. The system calls: an allow-list (`syscalls.rs`), installed for all threads right before the kernel runs
//!    ([`seal`]).

pub mod landlock;
pub mod mitigations;
mod privileges;
mod program;
mod seccomp;
mod syscalls;
#[cfg(debug_assertions)]
mod trial;
mod users;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::process;

pub use self::privileges::KEPT;
pub use self::program::run_from_read_only_view;
pub use self::seccomp::{has_ended_by_filter, seal};
pub use self::syscalls::{RULES, Rule};
pub use self::users::{IdMap, PROOF_USER, PROOF_USER_INSIDE, UserNamespace, Users, own_id, proc_directory};

/// Why the host could not be left.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    #[error(
        "cannot jail the sandbox: {step} failed: {source}; run it as root or on a file system that can be left"
    )]
    Step { step: &'static str, source: io::Error },
    #[error(
        "cannot choose the sandbox's user namespace: only root may; leave out --userns, or run dormouse as root"
    )]
    NeedsRoot,
    #[error("cannot restrict the VMM's system calls: {0}; the host's kernel needs seccomp filters")]
    Filter(String),
}

impl JailError {
    /// What a host says that is asked to change the mount at `/`, and there is none.
    fn is_of_chroot(&self) -> bool {
        matches!(self, Self::Step { source, .. } if source.raw_os_error() == Some(libc::EINVAL))
    }
}

/// Steps 3 to 5. Afterwards the process has no way to the host but what it has open. The calling thread is the only
/// one; its signal at the parent's death must be asked for again.
pub fn enter(users: Users) -> Result<(), JailError> {
    leave_host()?;
    let ids_differ = users.ids_differ();
    users.become_nobody()?;
    privileges::give_up(ids_differ)
}

const PRIVATE: &str = "making mounts private";

/// What is mounted in this mount namespace, which is the process's own, is seen in no other from now on. Else a host whose
/// root is shared, as systemd makes it, would keep what is mounted here, below the directory of a sandbox that has ended.
fn make_mounts_private() -> Result<(), JailError> {
    match make_private() {
        // In a chroot the root is no mount point, and only from the root of the namespace all mounts are reached.
        Err(error) if error.is_of_chroot() => in_child(|| leave_chroot().and_then(|()| make_private())),
        result => result,
    }
}

fn make_private() -> Result<(), JailError> {
    mount(PRIVATE, c"none", c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)
}

/// Moves this process to the root of its mount namespace, if a chroot has it elsewhere. Only with a single thread.
fn leave_chroot() -> Result<(), JailError> {
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
/// The namespace must be the process's own. The working directory is lost as well.
fn leave_host() -> Result<(), JailError> {
    // The root that is replaced has to be a mount point.
    make_private().or_else(|error| if error.is_of_chroot() { leave_chroot() } else { Err(error) })?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let options = Some(c"size=64k,nr_inodes=8,mode=0555");
    mount("mounting an empty root", c"dormouse", c"/proc", Some(c"tmpfs"), flags, options)?;
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
    mount("making the root read-only", c"none", c"/", None, flags | libc::MS_REMOUNT | libc::MS_RDONLY, None)
}

fn step(name: &'static str, run: impl FnOnce() -> i64) -> Result<(), JailError> {
    if run() >= 0 { Ok(()) } else { Err(JailError::Step { step: name, source: io::Error::last_os_error() }) }
}

/// `prctl(2)` of options that take two numbers; the result.
fn prctl_with(option: i32, first: u64, second: u64) -> io::Result<i32> {
    // SAFETY: the options passed to this take integers only.
    let result = unsafe { libc::prctl(option, first, second, 0_u64, 0_u64) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
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
