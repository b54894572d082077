//! The right to open files of the host by their paths, as a value.
//!
//! Two kinds of process have it: a VMM and a keeper, from their fork until an empty root takes the host's place, which uses the
//! value up ([`crate::jail::enter`], [`crate::jail::leave_host_apart`]). Functions that open a path of the host ask for it, so
//! code that runs later cannot call them.

/// See the module. It cannot be copied.
#[derive(Debug)]
pub struct HostPaths(());

impl HostPaths {
    /// For a process that was just forked and sees its parent's files, and for tests.
    #[must_use]
    pub fn of_new_process() -> Self {
        Self(())
    }
}
