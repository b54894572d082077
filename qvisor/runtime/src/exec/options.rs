//! Options of `dormouse exec`, and the reasons why a process could not be run.

use std::io;
use std::path::PathBuf;

use vmm::boot::BootSpec;
use vmm::directory::replace_file;

use crate::cgroup::Subgroup;
use crate::state::{Id, Root, StateError};

/// The process that is to be run, and how.
#[derive(Debug)]
pub struct ExecOptions {
    pub root: Root,
    pub id: Id,
    /// The description of the process, without its streams.
    pub process: BootSpec,
    /// The streams are a terminal that the sandbox drives.
    pub terminal: bool,
    /// Nothing comes by its standard input.
    pub no_input: bool,
    /// Come back once the program runs.
    pub detach: bool,
    pub pid_file: Option<PathBuf>,
    /// The socket that gets the other side of the terminal.
    pub console_socket: Option<PathBuf>,
    /// Also in a paused sandbox, once that goes on.
    pub ignore_paused: bool,
    /// It may be a probe, which a sandbox that is hibernated answers by itself if its settings say so.
    pub probe: bool,
    /// Groups below the container's for the process that stands for it on the host.
    pub subgroups: Vec<Subgroup>,
}

/// Why a process could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot run a process in sandbox {id}: {why}")]
    Refused { id: String, why: String },
    #[error("cannot run {program} in sandbox {id}: {message}")]
    Failed { id: String, program: String, message: String, code: u8 },
    #[error("cannot give a process in sandbox {id} a terminal: {why}")]
    Terminal { id: String, why: String },
    #[error("cannot write pid file {path}: {source}; pass a writable --pid-file")]
    PidFile { path: PathBuf, source: io::Error },
    #[error("cannot run a process in sandbox {id}: {what} failed: {source}; check the limits of this user")]
    System { id: String, what: &'static str, source: io::Error },
}

impl ExecOptions {
    pub(super) fn id(&self) -> String {
        self.id.as_str().to_owned()
    }

    pub(super) fn refused(&self, why: impl Into<String>) -> ExecError {
        ExecError::Refused { id: self.id(), why: why.into() }
    }

    pub(super) fn system(&self, what: &'static str, source: io::Error) -> ExecError {
        ExecError::System { id: self.id(), what, source }
    }

    pub(super) fn failed(&self, message: String, code: u8) -> ExecError {
        let program = self.process.args.first().map(|name| String::from_utf8_lossy(name).into_owned());
        ExecError::Failed { id: self.id(), program: program.unwrap_or_default(), message, code }
    }

    /// The error when the connection ended without an answer.
    pub(super) fn gone(&self) -> ExecError {
        self.refused("it ended meanwhile; see dormouse list")
    }

    pub(super) fn write_pid(&self, pid: i32) -> Result<(), ExecError> {
        let Some(path) = &self.pid_file else { return Ok(()) };
        replace_file(path, pid.to_string().as_bytes())
            .map_err(|source| ExecError::PidFile { path: path.clone(), source })
    }
}
