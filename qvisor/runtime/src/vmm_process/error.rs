//! Why a sandbox could not start, or broke.

use std::io;

use vmm::checkpoint::BadImage;
use vmm::errno::Errno;
use vmm::hibernate::HomeError;
use vmm::jail::JailError;
use vmm::mounts::MountError;
use vmm::net::NetError;
use vmm::sandbox::SandboxError;

use crate::hooks::HookError;

/// Why a sandbox could not start, or broke.
#[derive(Debug, thiserror::Error)]
pub enum VmmError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Network(#[from] NetError),
    #[error(transparent)]
    Jail(#[from] JailError),
    #[error("cannot prepare host files: {0}; is /proc mounted?")]
    HostIo(Errno),
    #[error("cannot hand over stream {fd}: {source}; redirect it to a file, a pipe or a terminal")]
    Stream { fd: i32, source: Errno },
    #[error("cannot start a thread: {0}; raise the limit of processes")]
    Thread(io::Error),
    #[error("cannot run the sandbox: {}", chain(.0))]
    Sandbox(SandboxError),
    #[error("cannot prepare the sandbox: {0}; run as root, or check the limits of this user")]
    Prepare(io::Error),
    #[error("cannot start the container's leash: {0}; raise the limit of processes")]
    Leash(io::Error),
    #[error("cannot set sysctl {name}: {source}; correct linux.sysctl in config.json")]
    Sysctl { name: String, source: io::Error },
    #[error("cannot set oomScoreAdj to {score}: {source}; leave it out, or run as root")]
    OomScore { score: i32, source: io::Error },
    #[error("cannot show its files to its pod's sandbox: {0}; see whether that still runs")]
    PodPlace(io::Error),
    #[error("cannot reach its pod's sandbox: {0}; see whether that still runs")]
    PodSocket(io::Error),
    #[error("its pod's sandbox cannot begin it: {0}")]
    Pod(String),
    #[error(
        "it has {count} mounts of the host's files, and a container in a pod may have {most}; give it fewer"
    )]
    TooManyViews { count: usize, most: usize },
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error("cannot use its snapshot: {0}")]
    Image(#[from] BadImage),
    #[error("cannot keep the memory of its snapshot: {0}; pass a writable --swap-dir")]
    NoHome(String),
}

// It has the causes in its own words, so none of them is to be told once more.
impl From<SandboxError> for VmmError {
    fn from(error: SandboxError) -> Self {
        Self::Sandbox(error)
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
