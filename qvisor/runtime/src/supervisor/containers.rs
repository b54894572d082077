//! The containers of a sandbox: the leash of each, how far it has got, and how it ended.
//!
//! The first container's leash is a child of the VMM. A pod's further containers have a keeper each (`crate::keeper`), whose
//! child the leash is; the keeper speaks for it over the connection by which it asked for the container.

use std::collections::BTreeMap;
use std::ops::Index;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

pub(super) use abi::report::ContainerId;
use vmm::leash::Leash;
use vmm::process;

use super::stage::Stage;
use crate::control::{self, Lines, Report};

/// A container of the sandbox, as its supervisor knows it.
#[derive(Debug)]
pub(super) struct SupervisedContainer {
    pub leash: Option<Arc<Leash>>,
    pub leash_state: LeashState,
    pub stage: Stage,
    /// The kernel's last words before its program ran.
    pub said: Option<String>,
    /// Wait status of its first process.
    pub exit: Option<i32>,
    /// Of a further container, as long as its keeper lives.
    pub keeper: Option<Keeper>,
    pub rest: Rest,
    /// The number of the last request for it to rest or to go on.
    pub rest_request: u64,
    /// The kernel has said that all its tasks rest, as that request asked for.
    pub rests: bool,
    /// Signals, and whom of it they are for, that came before the kernel knew of it.
    pub signals: Vec<(i32, u32)>,
}

/// The connections to and for a further container.
#[derive(Debug)]
pub(super) struct Keeper {
    pub line: Lines,
    /// The container's control socket.
    pub listener: UnixListener,
}

/// Why a further container rests, if it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rest {
    #[default]
    No,
    /// Its leash is stopped. It goes on with the leash, and when the pod wakes.
    BySignal,
    /// By `pause`, until `resume`.
    Held,
}

impl SupervisedContainer {
    fn new(leash: Option<Arc<Leash>>, keeper: Option<Keeper>) -> Self {
        Self {
            leash,
            leash_state: LeashState::default(),
            stage: Stage::Creating,
            said: None,
            exit: None,
            keeper,
            rest: Rest::No,
            rest_request: 0,
            rests: false,
            signals: Vec::new(),
        }
    }

    /// Whether its leash, if it has one, is stopped.
    pub(super) fn shows_stopped(&self) -> bool {
        self.leash.is_none() || self.leash_state.is_stopped
    }

    /// Tells the keeper; one that does not read is not waited for.
    pub(super) fn tell(&self, report: &Report) {
        if let Some(keeper) = &self.keeper {
            control::send_now(keeper.line.stream(), report);
        }
    }

    /// The answer to those who waited for something else than its end.
    pub(super) fn last_words(&self) -> String {
        let ended = || match self.exit {
            Some(status) => format!("it ended with exit code {}", process::exit_code(status)),
            None => "it ended".into(),
        };
        self.said.clone().unwrap_or_else(ended)
    }
}

/// Most further containers of a pod.
pub(crate) const FURTHER_MAX: usize = 64;

/// The leash as the VMM has last seen it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeashState {
    pub is_stopped: bool,
    /// It was told to stop itself, and has not been seen to.
    pub is_told: bool,
}

/// All containers of a sandbox. The first one is there from the beginning to the end.
#[derive(Debug)]
pub(super) struct Containers(BTreeMap<ContainerId, SupervisedContainer>);

impl Containers {
    /// With the first container, which begins.
    pub(super) fn new(leash: Option<Arc<Leash>>) -> Self {
        Self(BTreeMap::from([(ContainerId::FIRST, SupervisedContainer::new(leash, None))]))
    }

    /// Adds a further container, which begins. Its id is the queue's ([`vmm::container_queue`]), and so new.
    pub(super) fn add(&mut self, id: ContainerId, keeper: Keeper) {
        self.0.insert(id, SupervisedContainer::new(None, Some(keeper)));
    }

    /// Drops a further container that has ended and whose keeper is gone.
    pub(super) fn drop_if_over(&mut self, id: ContainerId) {
        let is_over = |one: &SupervisedContainer| one.stage == Stage::Stopped && one.keeper.is_none();
        if id != ContainerId::FIRST && self.get(id).is_some_and(is_over) {
            self.0.remove(&id);
        }
    }

    /// The further containers.
    pub(super) fn further(&self) -> impl Iterator<Item = (ContainerId, &SupervisedContainer)> {
        self.0.iter().skip(1).map(|(id, container)| (*id, container))
    }

    /// Drops a further container, whatever has become of it.
    pub(super) fn forget(&mut self, id: ContainerId) {
        if id != ContainerId::FIRST {
            self.0.remove(&id);
        }
    }

    /// The further containers.
    pub(super) fn further_mut(&mut self) -> impl Iterator<Item = (ContainerId, &mut SupervisedContainer)> {
        self.0.iter_mut().skip(1).map(|(id, container)| (*id, container))
    }

    /// All of them.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut SupervisedContainer> {
        self.0.values_mut()
    }

    /// The listener and the connection of each keeper, to be polled.
    pub(super) fn keepers(&self) -> Vec<(ContainerId, [RawFd; 2])> {
        let of = |(id, container): (ContainerId, &SupervisedContainer)| {
            let keeper = container.keeper.as_ref()?;
            Some((id, [keeper.listener.as_raw_fd(), keeper.line.as_raw_fd()]))
        };
        self.further().filter_map(of).collect()
    }

    /// The container with this id.
    pub(super) fn get(&self, id: ContainerId) -> Option<&SupervisedContainer> {
        self.0.get(&id)
    }

    /// The container with this id.
    pub(super) fn get_mut(&mut self, id: ContainerId) -> Option<&mut SupervisedContainer> {
        self.0.get_mut(&id)
    }

    /// The first container's leash, with what was last seen of it.
    pub(super) fn leash(&mut self) -> Option<(&Leash, &mut LeashState)> {
        let SupervisedContainer { leash, leash_state, .. } = self.get_mut(ContainerId::FIRST)?;
        leash.as_deref().map(|leash| (leash, leash_state))
    }

    /// The container with which the sandbox ends, and whose leash stands for the sandbox's memory.
    pub(super) fn first(&self) -> &SupervisedContainer {
        self.0.index(&ContainerId::FIRST)
    }
}
