//! Orders to a running sandbox, made by `do` or from a bundle: to hibernate, to wake, to report.

mod oom;
mod pause;
mod update;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;

use vmm::hibernate::stats::Stats;

use crate::reasons::Reasons;
use vmm::hibernate::{Hibernated, HomeState, Reap, Tier, Woken};

use crate::cgroup::CgroupError;
use crate::control::{self, Answer, ContainerUsage, Figures, Order, OrderError};
use crate::oci::BundleError;
use crate::state::{Id, Root, StateError};
use crate::status::Status;
use crate::words;
pub use oom::OomKills;
pub use pause::{GuestProcess, leashes, pause, processes, resume};
pub use update::{LimitsRecord, update};

/// Why a sandbox did not carry out an order.
#[derive(Debug, thiserror::Error)]
pub enum SandboxOrderError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot hibernate sandbox {id}: {why}{}", if why.has_ended() { "" } else { "; the sandbox stays warm" })]
    Hibernate { id: String, why: Why },
    #[error("cannot wake sandbox {id}: {why}; see dormouse state {id}")]
    Wake { id: String, why: Why },
    #[error("cannot read statistics of sandbox {id}: {why}; see dormouse list")]
    Stats { id: String, why: Why },
    #[error("cannot say why sandbox {id} is awake: {why}; see dormouse list")]
    Reasons { id: String, why: Why },
    #[error("cannot move the pages of sandbox {id}: {why}")]
    Home { id: String, why: Why },
    #[error("cannot pause sandbox {id}: {why}")]
    Pause { id: String, why: Why },
    #[error("cannot resume sandbox {id}: {why}")]
    Resume { id: String, why: Why },
    #[error("cannot list the processes of sandbox {id}: {why}; see dormouse list")]
    Processes { id: String, why: Why },
    #[error("cannot change limits of container {id}: {why}")]
    Update { id: String, why: Why },
    #[error("cannot read events of sandbox {id}: {why}; see dormouse list")]
    Events { id: String, why: Why },
}

/// The cause of a [`SandboxOrderError`].
#[derive(Debug, thiserror::Error)]
pub enum Why {
    #[error("{}: it has ended", words::NOT_RUNNING)]
    Ended,
    #[error("{}", words::NOT_RUNNING)]
    NotRunning,
    #[error("{}", words::NOT_PAUSED)]
    NotPaused,
    #[error("it was started by dormouse do; its limits are those it was started with")]
    NoContainer,
    #[error("its limits cannot be read: {0}; correct them")]
    Limits(String),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The answer lacks the figures it should have.
    #[error("its VMM did not {0}")]
    Silent(&'static str),
}

impl Why {
    fn has_ended(&self) -> bool {
        match self {
            Self::Ended | Self::Order(OrderError::Ended | OrderError::Gone) => true,
            // The last words of its VMM.
            Self::Order(OrderError::Refused(why)) => why.contains("ended"),
            _ => false,
        }
    }
}

const HOW_IT_WENT: &str = "say how it went";

/// Puts a sandbox's memory on disk; returns once it is there.
pub fn hibernate(root: &Root, id: &Id) -> Result<Hibernated, SandboxOrderError> {
    let failed = |why| SandboxOrderError::Hibernate { id: id.as_str().to_owned(), why };
    match order(root, id, Order::Hibernate)?.map_err(failed)?.figures {
        Some(Figures::Hibernated(done)) => Ok(done),
        _ => Err(failed(Why::Silent(HOW_IT_WENT))),
    }
}

/// Wakes a sandbox that is hibernated; returns once it goes on. `reap`: how the working set comes back; `None`: as the
/// sandbox was started.
pub fn wake(root: &Root, id: &Id, reap: Option<Reap>) -> Result<Woken, SandboxOrderError> {
    let failed = |why| SandboxOrderError::Wake { id: id.as_str().to_owned(), why };
    match order(root, id, Order::Wake { reap })?.map_err(failed)?.figures {
        Some(Figures::Woken(done)) => Ok(done),
        _ => Err(failed(Why::Silent(HOW_IT_WENT))),
    }
}

/// Figures of a sandbox's memory. Does not wake it.
pub fn stats(root: &Root, id: &Id) -> Result<Stats, SandboxOrderError> {
    let failed = |why| SandboxOrderError::Stats { id: id.as_str().to_owned(), why };
    let stats = order(root, id, Order::Stats)?.map_err(failed)?.stats;
    stats.map(|stats| *stats).ok_or_else(|| failed(Why::Silent("give any")))
}

/// Sends a sandbox's pages to a tier, or asks where they are. Does not wake it. Returns at once: those of a sleeper may be on their way.
pub fn home(root: &Root, id: &Id, to: Option<Tier>) -> Result<HomeState, SandboxOrderError> {
    let failed = |why| SandboxOrderError::Home { id: id.as_str().to_owned(), why };
    let in_memory = to.map(|tier| tier == Tier::Memory);
    match order(root, id, Order::Home { in_memory })?.map_err(failed)?.figures {
        Some(Figures::Home(state)) => Ok(state),
        _ => Err(failed(Why::Silent("say where they are"))),
    }
}

/// Asks a sandbox what keeps it awake, and what woke it last. Does not wake it.
pub fn why(root: &Root, id: &Id) -> Result<Reasons, SandboxOrderError> {
    let failed = |why| SandboxOrderError::Reasons { id: id.as_str().to_owned(), why };
    let reasons = order(root, id, Order::Why)?.map_err(failed)?.reasons;
    reasons.map(|reasons| *reasons).ok_or_else(|| failed(Why::Silent("give any")))
}

/// Asks how much memory and processor time a container uses, as its sandbox's kernel counts it. Does not wake it.
pub fn usage(root: &Root, id: &Id) -> Result<ContainerUsage, SandboxOrderError> {
    let failed = |why| SandboxOrderError::Stats { id: id.as_str().to_owned(), why };
    match order(root, id, Order::Usage)?.map_err(failed)?.figures {
        Some(Figures::Usage(usage)) => Ok(usage),
        _ => Err(failed(Why::Silent("give any"))),
    }
}

/// The sandbox's state, and from then on each hibernation and wake: lines of JSON, until its end.
pub fn events(root: &Root, id: &Id) -> Result<Events, SandboxOrderError> {
    let failed = |why| SandboxOrderError::Events { id: id.as_str().to_owned(), why };
    if root.state(id)?.status == Status::Stopped {
        return Err(failed(Why::Ended));
    }
    let lines =
        control::events(&root.sandbox(id)?, false).map_err(|error| failed(OrderError::from(error).into()))?;
    Ok(Events { id: id.clone(), lines: BufReader::new(lines) })
}

/// See [`events`].
pub struct Events {
    id: Id,
    lines: BufReader<UnixStream>,
}

impl Iterator for Events {
    /// A line without its end.
    type Item = Result<Vec<u8>, SandboxOrderError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        // A line that cannot be read is the last.
        if !matches!(self.lines.read_until(b'\n', &mut line), Ok(1..)) {
            return None;
        }
        line.pop_if(|last| *last == b'\n');
        Some(match refusal(&line) {
            Some(why) => {
                let why = OrderError::Refused(why).into();
                Err(SandboxOrderError::Events { id: self.id.as_str().to_owned(), why })
            }
            None => Ok(line),
        })
    }
}

/// The reason why there are no events, if the line is one: an event has a member `to`, an answer has not.
fn refusal(line: &[u8]) -> Option<String> {
    let line: serde_json::Value = serde_json::from_slice(line).ok()?;
    line.get("to").is_none().then(|| line.get("error")?.as_str().map(str::to_owned))?
}

/// Gives an order that is answered by figures, or by statistics.
fn order(root: &Root, id: &Id, order: Order) -> Result<Result<Answer, Why>, StateError> {
    if root.state(id)?.status == Status::Stopped {
        return Ok(Err(Why::Ended));
    }
    Ok(control::order(&root.sandbox(id)?, order).map_err(Why::from))
}
