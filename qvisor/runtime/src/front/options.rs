//! The options of `do`, and the reasons why a program could not be run.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use vmm::hibernate::Wishes;
use vmm::jail::UserNamespace;
use vmm::jail::mitigations::Mitigations;
use vmm::mounts::{MountError, Volume};
use vmm::net::Network;

use super::error::FrontError;
use crate::platform::{PlatformChoice, PlatformChoiceError};
use crate::resources::MEMORY_MIN;
use crate::settings::HostUds;
use crate::snapshot::comparing::Compared;
use crate::snapshot::{Opened, SnapshotError};
use crate::state::{Id, StateError};

/// A program, and the sandbox it is to run in.
#[derive(Clone, Debug)]
pub struct DoOptions {
    pub id: Id,
    /// The host's directory that becomes the root file system.
    pub rootfs: PathBuf,
    pub platform: PlatformChoice,
    /// Memory limit; `None`: 2 GiB, or the host's memory if less.
    pub memory_bytes: Option<u64>,
    /// `None`: the host's, at most 16.
    pub cpus: Option<u32>,
    /// Most processes and threads.
    pub pids: u32,
    /// Bytes that the copy-on-write view may take up on the host's disk.
    pub disk_bytes: u64,
    /// `NAME=value`, or a name alone, which stands for the caller's value and for nothing if there is none.
    pub env: Vec<OsString>,
    /// The caller's whole environment is handed over.
    pub env_all: bool,
    /// Working directory; `None`: the current one if it exists inside, else `/`.
    pub cwd: Option<PathBuf>,
    pub volumes: Vec<Volume>,
    pub network: Network,
    pub userns: UserNamespace,
    /// Gets the pid of a leash, which there is only then.
    pub pid_file: Option<PathBuf>,
    /// The terminal is driven even if standard output is none.
    pub terminal: bool,
    pub hibernation: Wishes,
    pub mitigations: Mitigations,
    /// See [`vmm::boot::BootSpec::share_files`].
    pub share_files: bool,
    /// See [`vmm::boot::BootSpec::plain_calls`].
    pub patch_calls: bool,
    pub host_uds: HostUds,
    /// The base in memory that its pages are compared with.
    pub compare: Option<Arc<Compared>>,
    pub strace: bool,
    /// Least important level that reaches the log: 0 error … 3 debug.
    pub log_level: u32,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// A snapshot of a sandbox of `do`, and another one that is to begin with it.
#[derive(Clone, Debug)]
pub struct FromOptions {
    pub id: Id,
    pub opened: Arc<Opened>,
    /// Its pages, if they are shared with others.
    pub template: Option<Arc<File>>,
    /// The base in memory that its pages are compared with.
    pub compare: Option<Arc<Compared>>,
    /// Bytes that what it changes may take up on the host's disk.
    pub disk_bytes: u64,
    pub userns: UserNamespace,
    pub hibernation: Wishes,
    /// Files that it has open may be others than they were.
    pub accepts_changed: bool,
    /// Ports that sockets had, and get.
    pub ports: Vec<(u16, u16)>,
    pub log_level: u32,
    /// Its own streams lead nowhere.
    pub is_silent: bool,
}

/// Why a program could not be run in a sandbox of its own.
#[derive(Debug, thiserror::Error)]
pub enum DoError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Platform(#[from] PlatformChoiceError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("cannot drive the terminal: standard input is not one; leave out --tty")]
    NoTerminal,
    #[error(
        "cannot give a sandbox {bytes} bytes of memory: it needs at least {} MiB; pass a larger --memory",
        MEMORY_MIN >> 20
    )]
    TooLittleMemory { bytes: u64 },
    #[error(
        "cannot give a sandbox {bytes} bytes of memory: at most {} GiB are possible; pass a smaller --memory",
        (abi::layout::USER_PHYS_MAX - abi::layout::USER_PHYS) >> 30
    )]
    TooMuchMemory { bytes: u64 },
    #[error("cannot start in {}: it is not an absolute path; pass one with --cwd", path.display())]
    RelativeCwd { path: PathBuf },
    #[error(transparent)]
    Front(#[from] FrontError),
}
