//! A sandbox between two VMMs: descriptors under their numbers, which are kept and passed on without being understood
//! ([`crate::successor`]).
#![deny(unsafe_code)]

mod descriptors;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;

pub(crate) use self::descriptors::{Numbered, Placed, receive, send};
use crate::errno::Errno;
use crate::image::KERNEL_DIGEST;
use crate::memory::MemoryError;
use crate::process;

/// The version of the plan.
pub(crate) const VERSION: u32 = 2;
/// The numbers by which the memory files are known.
pub(crate) const PLAN: RawFd = -1;
pub(crate) const MEMORY: RawFd = -2;
pub(crate) const TABLES: RawFd = -3;

/// Why nobody is taken in meanwhile.
pub(crate) const LEAVES: &str = "it is about to go on under another VMM";

/// Why a sandbox cannot go on under another VMM.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    #[error("the sandbox cannot go on under another VMM: {0}")]
    Refused(&'static str),
    #[error("the plan of a sandbox is of version {0}, not {VERSION}")]
    Version(u32),
    #[error("the sandbox has another kernel than this VMM ({0}, not {KERNEL_DIGEST})")]
    Kernel(String),
    #[error("the plan of a sandbox asks for more {0} than it may have")]
    TooMuch(&'static str),
    #[error("the plan of a sandbox is damaged: {0}")]
    Damaged(&'static str),
    #[error("the plan of a sandbox is damaged")]
    Plan(#[from] serde_json::Error),
    #[error("cannot open its home of pages again")]
    Tables(#[from] swap::TablesError),
    #[error("cannot use IAA: {0}")]
    Accelerator(#[from] iaa::Unusable),
    #[error("cannot make a memory file")]
    Memory(#[from] MemoryError),
    #[error("cannot take its host objects over: {0}")]
    Host(Errno),
    #[error("cannot pass its descriptors on")]
    Io(#[from] io::Error),
}

impl From<Errno> for HandOverError {
    fn from(error: Errno) -> Self {
        Self::Host(error)
    }
}

/// A sandbox between two VMMs. It is kept without being understood. As long as it is, whatever it holds stays open: whoever passes it on
/// drops it once the next VMM is ready, or ends of connections are not seen.
#[derive(Debug)]
pub struct Kept(Vec<Numbered>);

impl Kept {
    /// Takes what a VMM leaves.
    pub fn receive(socket: &UnixStream) -> Result<Self, HandOverError> {
        process::raise_open_files();
        Ok(Self(receive(socket)?))
    }

    /// Passes it on. It stays here as well, for another VMM should this one fail.
    pub fn pass_on(&self, socket: &UnixStream) -> Result<(), HandOverError> {
        let all: Vec<_> = self.0.iter().map(|one| (one.number, one.fd.as_fd())).collect();
        Ok(send(socket, &all)?)
    }

    /// The memory file, for tests that look for what should not be in it.
    #[must_use]
    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        self.0.iter().find(|one| one.number == MEMORY).map(|one| one.fd.as_fd())
    }
}
