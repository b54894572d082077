//! The record of a container that lies beside its state.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use oci_spec::runtime::Hooks;
use serde::{Deserialize, Serialize};
use vmm::process;

use crate::state::OciState;
use crate::status::Status;

/// Everything that is needed to end a container and to clean up after it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The VMM's pid. Together with its start time it names one process for good.
    pub(super) vmm: i32,
    pub(super) vmm_start: Option<u64>,
    /// Directories of control groups to remove, parents first.
    pub(super) cgroups: Vec<PathBuf>,
    pub(super) hooks: Hooks,
}

impl Record {
    /// A descriptor that stands for the VMM; `None` when it has ended.
    pub(super) fn vmm(&self) -> Option<OwnedFd> {
        let pidfd = (self.vmm > 0).then(|| process::pidfd(self.vmm).ok())??;
        // Compared with the descriptor in hand: the pid may be another process's by now, but cannot become one's from
        // here on.
        (process::start_time(self.vmm).is_some() && process::start_time(self.vmm) == self.vmm_start)
            .then_some(pidfd)
    }
}

/// The state as hooks are told, with a status of its own.
pub(super) fn hook_state(state: &OciState, status: Status) -> OciState {
    OciState { status, ..state.clone() }
}
