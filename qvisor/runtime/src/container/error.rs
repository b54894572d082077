//! Why a container could not be created, started or deleted.

use std::io;
use std::path::PathBuf;

use crate::cgroup::CgroupError;
use crate::control::OrderError;
use crate::front::FrontError;
use crate::hooks::HookError;
use crate::oci::BundleError;
use crate::settings::Widening;
use crate::snapshot::SnapshotError;
use crate::state::StateError;
use crate::status::Status;
use crate::words;

/// Why a container could not be created, started or deleted.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error("cannot create container {id}: {why}")]
    Pod { id: String, why: String },
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Widening(#[from] Widening),
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
    #[error("cannot start container {id}: {}; create it anew", if *status == Status::Stopped { words::START_STOPPED } else { words::STARTED })]
    NotCreated { id: String, status: Status },
    #[error("cannot start container {id}: {why}")]
    Start { id: String, why: String },
    #[error("cannot restore container {id}: the command of --after ended with status {code}")]
    After { id: String, code: u8 },
    #[error("cannot send a signal to container {id}: {}; it has ended", words::NOT_RUNNING)]
    NotRunning { id: String },
    #[error("cannot send a signal to sandbox {id}: {source}; it may just have ended")]
    Kill { id: String, source: OrderError },
    #[error("cannot delete container {id} that is not stopped: {status}; end it first, or pass --force")]
    Alive { id: String, status: Status },
    #[error("cannot delete sandbox {id}: it was started by dormouse do, and goes when it ends; end it first")]
    NoContainer { id: String },
    #[error("cannot delete container {id}: its VMM does not end; see the host's log")]
    Stuck { id: String },
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    Front(#[from] FrontError),
}
