//! How a VMM process becomes a sandbox: a row of types, each of which owns what the process may use then.
//!
//! | type | the process | leads on by |
//! |---|---|---|
//! | [`Outside`] | sees the host's files | [`Outside::prepare`] |
//! | [`Prepared`] | has opened everything that its sandbox needs, and still has the host's root, ids and capabilities | [`Prepared::enter_jail`] |
//! | [`Jailed`] | has its descriptors and memory alone; no code of the guest's has run | [`Jailed::seal`] |
//! | [`Sealed`] | makes listed system calls only | [`Sealed::run`] |
//!
//! Each step uses its type up, so none can be left out, done twice or moved. Functions that open the host's files take
//! [`HostPaths`](vmm::host_paths::HostPaths), which `Prepared::enter_jail` uses up; the kernel, from which hostile input comes, runs
//! only with the [`Seal`](vmm::jail::Seal), which `Sealed` alone has.

mod jailed;
mod outside;
mod prepared;
mod sealed;

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use vmm::boot::BootSpec;
use vmm::sandbox::{Loaded, Sandbox, SandboxError};

use self::jailed::Jailed;
pub(super) use self::outside::Outside;
use self::prepared::Prepared;
pub(super) use self::sealed::Sealed;
use super::error::VmmError;

/// How the kernel of a sandbox comes to be.
#[derive(Debug)]
pub(super) enum Beginning {
    /// It boots, and is told this. [`Outside::prepare`] fills in mounts, streams and what the host's network shows.
    Boot(BootSpec),
}

impl Beginning {
    fn records(&self) -> &BootSpec {
        let Self::Boot(spec) = self;
        spec
    }

    fn records_mut(&mut self) -> &mut BootSpec {
        let Self::Boot(spec) = self;
        spec
    }

    /// Puts the kernel into the sandbox's memory.
    fn load(&self, sandbox: &Arc<Sandbox>) -> Result<Loaded, SandboxError> {
        match self {
            Self::Boot(spec) => sandbox.load(spec, None),
        }
    }
}

/// The process that forked the VMM, and the ways to it.
#[derive(Debug)]
pub(super) struct FrontEnd {
    pub(super) pid: i32,
    pub(super) channel: Arc<UnixStream>,
    /// Takes the orders of this front end and of later ones.
    pub(super) listener: UnixListener,
}

/// Takes every step but the last, which runs the kernel.
pub(super) fn seal(outside: Outside<'_>) -> Result<Sealed, VmmError> {
    outside.prepare()?.enter_jail()?.seal()
}
