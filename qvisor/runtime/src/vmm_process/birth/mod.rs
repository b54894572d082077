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

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use vmm::boot::BootSpec;
use vmm::checkpoint::{ImageFiles, ImageHead, PageKey};
use vmm::hibernate::Hibernation;
use vmm::sandbox::{Loaded, Sandbox};

use self::jailed::Jailed;
pub(super) use self::outside::Outside;
use self::prepared::Prepared;
pub(super) use self::sealed::Sealed;
use super::error::VmmError;
use super::plan::RestorePlan;

/// How the kernel of a sandbox comes to be.
#[derive(Debug)]
pub(super) enum Beginning {
    /// It boots, and is told this. [`Outside::prepare`] fills in mounts, streams and what the host's network shows.
    Boot(BootSpec),
    /// It finds itself asleep, as a snapshot has it, and is told these, which are of another VMM and another bundle.
    Restore(BootSpec, Box<RestorePlan>),
}

impl Beginning {
    /// With a snapshot, whose files are these, and last where its working set is told; `None`: there are others.
    pub(super) fn restore(
        records: BootSpec,
        (head, shares, page_key, further): (ImageHead, bool, Option<PageKey>, Vec<u64>),
        mut files: Vec<OwnedFd>,
        is_told: bool,
    ) -> Option<Self> {
        // It comes last.
        let told = if is_told { Some(files.pop()?) } else { None };
        let files = ImageFiles::from_descriptors(files)?;
        let plan = RestorePlan { head, files, shares, page_key, further, told, base: None };
        Some(Self::Restore(records, Box::new(plan)))
    }

    fn records(&self) -> &BootSpec {
        match self {
            Self::Boot(records) | Self::Restore(records, _) => records,
        }
    }

    fn records_mut(&mut self) -> &mut BootSpec {
        match self {
            Self::Boot(records) | Self::Restore(records, _) => records,
        }
    }

    /// The head of the snapshot, if it is one.
    fn head(&self) -> Option<&ImageHead> {
        match self {
            Self::Boot(_) => None,
            Self::Restore(_, plan) => Some(&plan.head),
        }
    }

    /// The snapshot, if it is one.
    fn snapshot(&mut self) -> Option<&mut RestorePlan> {
        match self {
            Self::Boot(_) => None,
            Self::Restore(_, plan) => Some(plan),
        }
    }

    /// The pages of the snapshot, if others share them.
    fn template(&self) -> std::io::Result<Option<Arc<OwnedFd>>> {
        match self {
            Self::Restore(_, plan) if plan.shares => Ok(Some(Arc::new(plan.files.pages.try_clone()?.into()))),
            Self::Boot(_) | Self::Restore(..) => Ok(None),
        }
    }

    /// Puts the home of pages on those of the snapshot. The table of them may be a stranger's, so it is read in the jail.
    fn home(&self, hibernation: Hibernation) -> Result<Hibernation, VmmError> {
        match self {
            Self::Boot(_) => Ok(hibernation),
            Self::Restore(_, plan) => {
                let base = plan.files.open_base(&plan.head, plan.page_key.as_ref())?;
                hibernation.on_base(base).map_err(VmmError::NoHome)
            }
        }
    }

    /// Puts the kernel into the sandbox's memory.
    fn load(&self, sandbox: &Arc<Sandbox>) -> Result<Loaded, VmmError> {
        Ok(match self {
            Self::Boot(records) => sandbox.load(records, None)?,
            Self::Restore(records, plan) => sandbox.load(records, Some(&plan.files.snapshot(&plan.head)?))?,
        })
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
