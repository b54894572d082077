//! The containers of a sandbox: the leash of each, how far it has got, and how it ended.

use std::collections::BTreeMap;
use std::ops::Index;
use std::sync::Arc;

use vmm::leash::Leash;

use super::stage::Stage;

/// The number by which the VMM and the kernel know a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ContainerId(pub u64);

impl ContainerId {
    /// The sandbox's first container: the sandbox ends with it.
    pub(super) const FIRST: Self = Self(0);
}

/// A container.
#[derive(Debug)]
pub(super) struct Container {
    pub leash: Option<Arc<Leash>>,
    pub leash_state: LeashState,
    pub stage: Stage,
    /// The kernel's last words before its program ran.
    pub said: Option<String>,
    /// Wait status of its first process.
    pub exit: Option<i32>,
}

impl Container {
    /// Whether its leash, if it has one, is stopped.
    pub(super) fn shows_stopped(&self) -> bool {
        self.leash.is_none() || self.leash_state.is_stopped
    }
}

/// The leash as the VMM has last seen it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeashState {
    pub is_stopped: bool,
    /// It was told to stop itself, and has not been seen to.
    pub is_told: bool,
}

/// All containers of a sandbox. The first one is there from the beginning to the end.
#[derive(Debug)]
pub(super) struct Containers(BTreeMap<ContainerId, Container>);

impl Containers {
    /// With the first container, which begins.
    pub(super) fn new(leash: Option<Arc<Leash>>) -> Self {
        let first = Container {
            leash,
            leash_state: LeashState::default(),
            stage: Stage::Creating,
            said: None,
            exit: None,
        };
        Self(BTreeMap::from([(ContainerId::FIRST, first)]))
    }

    /// The container with this id.
    pub(super) fn get_mut(&mut self, id: ContainerId) -> Option<&mut Container> {
        self.0.get_mut(&id)
    }

    /// The first container's leash, with what was last seen of it.
    pub(super) fn leash(&mut self) -> Option<(&Leash, &mut LeashState)> {
        let Container { leash, leash_state, .. } = self.get_mut(ContainerId::FIRST)?;
        leash.as_deref().map(|leash| (leash, leash_state))
    }

    /// The container with which the sandbox ends, and whose leash stands for the sandbox's memory.
    pub(super) fn first(&self) -> &Container {
        self.0.index(&ContainerId::FIRST)
    }
}
