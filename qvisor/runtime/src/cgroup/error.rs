//! Why there is no control group.

use std::io;
use std::path::PathBuf;

/// Why there is no control group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error(
        "cannot make control group {path}: {source}; correct linux.cgroupsPath, or run as a user who may"
    )]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot use control group {path}: it holds processes; choose another linux.cgroupsPath")]
    InUse { path: PathBuf },
    #[error(
        "cannot write {value:?} to {path}: {source}; correct linux.resources, or let the host have this controller"
    )]
    Set { path: PathBuf, value: String, source: io::Error },
    #[error(
        "cannot limit resources: no control groups are mounted; mount them, or leave out linux.resources"
    )]
    NotMounted,
    #[error(
        "cannot limit block devices: the host has no controller blkio; mount it, or leave out linux.resources.blockIO"
    )]
    NoBlockIo,
    #[error(
        "cannot use {path:?} as linux.cgroupsPath: with --systemd-cgroup it is of the form slice:prefix:name; correct it, or leave \
         out --systemd-cgroup"
    )]
    ScopePath { path: PathBuf },
    #[error(
        "cannot let systemd make control groups: those of this host are of version 1; leave out --systemd-cgroup, or start the \
         host with version 2 alone"
    )]
    NotUnified,
    #[error(
        "cannot have systemd make or change scope {name}: {why}; see the log of systemd, or leave out --systemd-cgroup"
    )]
    Scope { name: String, why: String },
    #[error("cannot remove control group {path}: {source}; end the processes in it")]
    Remove { path: PathBuf, source: io::Error },
}
