//! All sandboxes and containers at a glance, and their figures. Wakes nobody.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use vmm::hibernate::stats::Stats;

use crate::container;
use crate::control::{self, ContainerUsage, Figures, Order, OrderError};
use crate::reasons::Reasons;
use crate::state::{Id, OciState, Root, Seen, StateError};
use crate::status::Status;

/// Most that are asked at a time: one whose VMM does not answer holds up no others.
const ASKED_AT_ONCE: usize = 32;
/// How long one has for all that it is asked.
const PATIENCE: Duration = Duration::from_secs(5);
const POD_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";
const POD_NAME: &str = "io.kubernetes.cri.sandbox-name";

/// A sandbox or a container.
#[derive(Clone, Debug)]
pub struct Glance {
    pub state: OciState,
    /// A further container of a pod: the sandbox, and its figures, are the first one's.
    pub is_further: bool,
    /// Its VMM lives, and does not answer.
    pub is_silent: bool,
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

    /// Whether it has a VMM that should answer.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_silent || matches!(self.state.status, Status::Running | Status::Paused)
    }

    /// `None`: it has ended meanwhile.
    fn of(root: &Root, id: &Id) -> Option<Self> {
        let deadline = Instant::now() + PATIENCE;
        let Seen { state, is_silent } = root.look(id, deadline).ok()?;
        let is_further = container::is_further(root, id);
        let glance = Self { state, is_further, is_silent, stats: None, reasons: None, usage: None };
        if is_silent || !glance.is_up() {
            return Some(glance);
        }
        let sandbox = root.sandbox(id).ok()?;
        let ask = |order| control::order_until(&sandbox, order, deadline);
        let stats = if is_further { Ok(None) } else { ask(Order::Stats).map(|answer| answer.stats) };
        let stats = match stats {
            Ok(stats) => stats,
            // Whoever did not answer once is asked nothing more.
            Err(OrderError::Connection(_)) => return Some(Self { is_silent: true, ..glance }),
            // It has ended, or has only begun.
            Err(_) => {
                let Seen { state, is_silent } = root.look(id, deadline).ok()?;
                return Some(Self { state, is_silent, ..glance });
            }
        };
        let reasons = if is_further { None } else { ask(Order::Why).ok().and_then(|answer| answer.reasons) };
        let usage = match ask(Order::Usage).ok().and_then(|answer| answer.figures) {
            Some(Figures::Usage(usage)) => Some(usage),
            _ => None,
        };
        Some(Self {
            stats: stats.map(|stats| *stats),
            reasons: reasons.map(|reasons| *reasons),
            usage,
            ..glance
        })
    }
}

/// All of a root, by ID.
pub fn overview(root: &Root) -> Result<Vec<Glance>, StateError> {
    let ids = root.ids()?;
    let threads = ids.len().min(ASKED_AT_ONCE);
    let (ids, found) = (Mutex::new(ids.into_iter()), Mutex::new(Vec::new()));
    let ask = || {
        loop {
            let next = ids.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(id) = next else { return };
            let glance = Glance::of(root, &id);
            found.lock().unwrap_or_else(PoisonError::into_inner).extend(glance);
        }
    };
    thread::scope(|scope| {
        // Where no more threads may be, fewer do it.
        for _ in 1..threads {
            let _ = thread::Builder::new().spawn_scoped(scope, ask);
        }
        ask();
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by(|a: &Glance, b: &Glance| a.state.id.cmp(&b.state.id));
    Ok(found)
}
