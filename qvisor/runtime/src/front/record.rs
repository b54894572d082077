//! The record of a sandbox of `dormouse do` beside its state: what a snapshot of it must say.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use vmm::mounts::{self, Volume};
use vmm::net::Network;
use vmm::process;

use crate::snapshot::{Described, DescribedCommand, NetworkKind};
use crate::state::OciState;
use crate::vmm_process::plan::{Plan, Tree};

/// See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommandRecord {
    /// The VMM's pid and start time.
    vmm: i32,
    vmm_start: Option<u64>,
    /// The front end's pid: it may be the only one that sees what the sandbox began with.
    #[serde(default)]
    pub front: Option<i32>,
    /// The directory that takes up its changes.
    pub layer: PathBuf,
    hostname: String,
    terminal: bool,
    command: DescribedCommand,
    /// The digest of the snapshot whose held base its pages are of.
    #[serde(default)]
    base: Option<String>,
}

impl CommandRecord {
    /// Of a sandbox whose VMM was forked, and whose first process has these records.
    pub(super) fn new(plan: &Plan, process: &[u8], vmm: i32, base: Option<String>) -> Option<Self> {
        let Tree::CopyOnWrite { layer, volumes, .. } = &plan.tree else { return None };
        let network = match plan.network {
            Network::Host => NetworkKind::Host,
            Network::None => NetworkKind::None,
            // No option leads there.
            Network::Path(_) => return None,
        };
        let volume = |volume: &Volume| (volume.source.clone(), volume.target.clone(), volume.read_only);
        Some(Self {
            vmm,
            vmm_start: process::start_time(vmm),
            front: Some(process::id()),
            layer: layer.clone(),
            hostname: String::from_utf8_lossy(&plan.boot.hostname).into_owned(),
            terminal: plan.terminal,
            command: DescribedCommand {
                volumes: volumes.iter().map(volume).collect(),
                network,
                pids: plan.bounds.as_ref().map_or(0, |bounds| bounds.pids),
                host_uds: plan.host_uds,
                process: mounts::text_of(process),
            },
            base,
        })
    }

    /// The VMM's pid, if it lives.
    #[must_use]
    pub fn vmm(&self) -> Option<i32> {
        let lives = self.vmm_start.is_some() && process::start_time(self.vmm) == self.vmm_start;
        lives.then_some(self.vmm)
    }

    /// The digest of the snapshot whose held base its pages are of, if it lives.
    #[must_use]
    pub fn base(&self) -> Option<&str> {
        self.vmm().and(self.base.as_deref())
    }

    /// The sandbox as a snapshot describes it.
    #[must_use]
    pub fn described(self, state: &OciState) -> Described {
        Described {
            id: state.id.clone(),
            bundle: state.bundle.clone(),
            hostname: self.hostname,
            terminal: self.terminal,
            command: Some(self.command),
            ..Described::default()
        }
    }
}
