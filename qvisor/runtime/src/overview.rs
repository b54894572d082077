//! All sandboxes and containers at a glance, and their figures. Wakes nobody.

use std::sync::Mutex;
use std::thread;

use vmm::hibernate::stats::Stats;

use crate::container;
use crate::control::ContainerUsage;
use crate::orders;
use crate::reasons::Reasons;
use crate::state::{Id, OciState, Root, StateError};
use crate::status::Status;

/// Most that are asked at a time: one whose VMM does not answer holds up no others.
const ASKED_AT_ONCE: usize = 8;
const POD_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";
const POD_NAME: &str = "io.kubernetes.cri.sandbox-name";

/// A sandbox or a container.
#[derive(Clone, Debug)]
pub struct Glance {
    pub state: OciState,
    /// A further container of a pod: the sandbox, and its figures, are the first one's.
    pub is_further: bool,
    /// Of the sandbox. `None`: it does not run, does not answer, or the container is a further one.
    pub stats: Option<Stats>,
    pub reasons: Option<Reasons>,
    /// Of the container, as the sandbox's kernel counts it.
    pub usage: Option<ContainerUsage>,
}

impl Glance {
    /// `NAMESPACE/NAME` of the pod that it belongs to.
    #[must_use]
    pub fn pod(&self) -> Option<String> {
        let annotations = &self.state.annotations;
        Some(format!("{}/{}", annotations.get(POD_NAMESPACE)?, annotations.get(POD_NAME)?))
    }

    /// Whether its sandbox should have answered, and did not.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        matches!(self.state.status, Status::Running | Status::Paused)
            && !self.is_further
            && self.stats.is_none()
    }

    fn of(root: &Root, id: &Id) -> Option<Self> {
        // One that has ended meanwhile is none.
        let state = root.state(id).ok()?;
        let runs = matches!(state.status, Status::Running | Status::Paused);
        let is_further = container::is_further(root, id);
        let stats = (runs && !is_further).then(|| orders::stats(root, id).ok()).flatten();
        // Whoever did not answer once is not asked again.
        let answers = runs && (is_further || stats.is_some());
        let reasons = (answers && !is_further).then(|| orders::why(root, id).ok()).flatten();
        let usage = answers.then(|| orders::usage(root, id).ok()).flatten();
        Some(Self { state, is_further, stats, reasons, usage })
    }
}

/// All of a root, by ID.
pub fn overview(root: &Root) -> Result<Vec<Glance>, StateError> {
    let ids = root.ids()?;
    let threads = ids.len().min(ASKED_AT_ONCE);
    let (ids, found) = (Mutex::new(ids.into_iter()), Mutex::new(Vec::new()));
    let ask = || {
        loop {
            let next = ids.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some(id) = next else { return };
            let glance = Glance::of(root, &id);
            found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(glance);
        }
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(ask))));
    let mut found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    found.sort_by(|a: &Glance, b: &Glance| a.state.id.cmp(&b.state.id));
    Ok(found)
}
