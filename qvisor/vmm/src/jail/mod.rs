//! How the VMM gives up the host. Steps, in order:
//!
//! 1. Descriptors: only the streams, the channel to the front end, the control socket and the FIFO of the leash's companions
//!    stay (`process::keep_all`, before anything else is opened).
//! 2. Namespaces: mount, ipc, uts, and a user namespace that is entered in step 4 ([`Users::enter_namespaces`]). Mounts
//!    are private from then on.
//! 3. The root file system: an empty read-only one takes the host's place ([`root::leave_host`]). What the sandbox may use was
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
mod root;
mod seccomp;
mod step;
mod syscalls;
#[cfg(debug_assertions)]
mod trial;
mod users;

use std::os::fd::OwnedFd;

pub use self::privileges::KEPT;
pub use self::program::run_from_read_only_view;
pub use self::root::{POD_PLACE, Propagation, attach, cover};
pub use self::seccomp::{Seal, has_ended_by_filter, seal};
pub use self::step::JailError;
pub use self::syscalls::{RULES, Rule};
pub use self::users::{
    IdMap, MAPPED_COUNT, PROOF_USER, PROOF_USER_INSIDE, UserNamespace, Users, namespace_of_mounts, own_id,
    proc_directory,
};
use crate::host_paths::HostPaths;

/// For a process that stands for a container beside a VMM, or makes a place for itself: mounts of its own, which nobody else sees, and which see mounts of
/// the host that are made later if asked to. Only before any thread is started.
pub fn begin_apart(propagation: Propagation) -> Result<(), JailError> {
    users::leave_mounts()?;
    root::set_propagation(propagation)
}

/// Completes [`begin_apart`] later: an empty root takes the host's place for this process and its children, and it
/// takes on a user that nobody else is.
pub fn leave_host_apart(_host: HostPaths) -> Result<(), JailError> {
    root::leave_host(&[], false)?;
    users::become_own();
    Ok(())
}

/// Steps 3 to 5. Afterwards the process has no way to the host but its open descriptors, and the mounts in `kept`, which
/// lie in its root ([`root::leave_host`]). The calling thread is the only one; its signal at the parent's death must be asked
/// for again.
pub fn enter(_host: HostPaths, users: Users, kept: &[OwnedFd], is_pod: bool) -> Result<(), JailError> {
    root::leave_host(kept, is_pod)?;
    let ids_differ = users.ids_differ();
    users.become_nobody()?;
    privileges::give_up(ids_differ)
}
