//! Containers: sandboxes made from a bundle, step by step, as the OCI runtime specification has it.
//!
//! `create` forks the VMM, which prepares everything and holds the first process; then the front end goes and the VMM
//! stays. `start` lets the first process begin. What is left after the end waits for `delete`. A container's state
//! directory holds a [`Record`] beside its state, and does not go by itself.
#![deny(unsafe_code)]

mod create;
mod end;
mod run;

use std::io;
use std::path::PathBuf;

use oci_spec::runtime::Hooks;
use serde::{Deserialize, Serialize};

pub use create::{ChoosePlatform, Options, create};
pub use end::{delete, kill, start};
pub use run::run;

use crate::oci::BundleError;
use crate::oci::cgroup::CgroupError;
use crate::oci::hooks::HookError;
use crate::process;
use crate::state::{OciState, StateError};
use crate::status::Status;

/// Why a container could not be created, started or deleted.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error("cannot create container {id}: {what} failed: {source}; check the limits of this user")]
    Create { id: String, what: &'static str, source: io::Error },
    #[error("cannot give container {id} a terminal: {why}")]
    Terminal { id: String, why: String },
    #[error("cannot write pid file {path}: {source}; pass a writable --pid-file")]
    PidFile { path: PathBuf, source: io::Error },
    #[error("cannot create container {id}: {message}")]
    Failed { id: String, message: String, code: Option<u8> },
    #[error("cannot create container {id}: its VMM ended without a word; see the host's log")]
    Silent { id: String },
    #[error("cannot start container {id}: it is {status}; create it anew")]
    NotCreated { id: String, status: Status },
    #[error("cannot start container {id}: {why}")]
    Start { id: String, why: String },
    #[error("cannot send a signal to container {id}: it is {status}; start it first")]
    NotRunning { id: String, status: Status },
    #[error("cannot send a signal to sandbox {id}: {source}; it may just have ended")]
    Kill { id: String, source: io::Error },
    #[error("cannot delete container {id}: it is {status}; end it first, or pass --force")]
    Alive { id: String, status: Status },
    #[error("cannot delete sandbox {id}: it was started by dormouse do, and goes when it ends; end it first")]
    NoContainer { id: String },
    #[error("cannot delete container {id}: its VMM does not end; see the host's log")]
    Stuck { id: String },
    #[error(transparent)]
    Front(#[from] crate::front::FrontError),
}

/// What is needed to end a container and to clean up after it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The VMM, and when it started: together one process for good.
    vmm: i32,
    vmm_start: Option<u64>,
    /// Directories of control groups to remove, parents first.
    cgroups: Vec<PathBuf>,
    hooks: Hooks,
}

impl Record {
    /// A descriptor that stands for the VMM; `None` when it has ended.
    fn vmm(&self) -> Option<std::os::fd::OwnedFd> {
        let pidfd = (self.vmm > 0).then(|| process::pidfd(self.vmm).ok())??;
        // Looked at with the descriptor in hand: the number may be another's by now, but not from here on.
        (process::start_time(self.vmm).is_some() && process::start_time(self.vmm) == self.vmm_start)
            .then_some(pidfd)
    }
}

/// The state as hooks are told, with a status of its own.
fn hook_state(state: &OciState, status: Status) -> OciState {
    OciState { status, ..state.clone() }
}
