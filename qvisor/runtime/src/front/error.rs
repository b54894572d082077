//! Why a sandbox could not be run.

use std::io;
use std::path::PathBuf;

use crate::state::StateError;

/// Why a sandbox could not be run.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot start sandbox {id}: {what} failed: {source}; check the limits of this user")]
    Start { id: String, what: &'static str, source: io::Error },
    #[error("cannot write pid file {path}: {source}; pass a writable --pid-file")]
    PidFile { path: PathBuf, source: io::Error },
    #[error("{message}")]
    Failed { message: String, code: Option<u8> },
    #[error("cannot go on with sandbox {id}: its VMM was killed by signal {signal}; see the host's log")]
    Killed { id: String, signal: i32 },
    #[error(
        "cannot go on with sandbox {id}: its VMM made a system call that its filter forbids; see the host's audit log for \
         the call, and report it"
    )]
    Forbidden { id: String },
    #[error("cannot go on with sandbox {id}: its VMM ended without a word; see the host's log")]
    Silent { id: String },
}
