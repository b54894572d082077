//! A process of a container, the first or an exec'd one, as containerd sees it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use containerd_shim_protos::protobuf::{EnumOrUnknown, MessageField};
use containerd_shim_protos::shim::shim::WaitResponse;
use containerd_shim_protos::types::task::Status;
use vmm::process;

use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::streams::{Held, Names};
use crate::time;
use crate::ttrpc::line::Reply;

/// How far it has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Created,
    Starting,
    Running,
    Stopped,
}

/// How and when it ended.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// An exit code as a shell gives it.
    pub status: u32,
    pub at: Timestamp,
}

/// See the module.
#[derive(Debug)]
pub struct Process {
    pub names: Names,
    pub stage: Stage,
    /// Its leash's; 0: there is none yet.
    pub pid: i32,
    pub pidfd: Option<OwnedFd>,
    pub held: Held,
    pub console: Option<Arc<Console>>,
    pub end: Option<End>,
    /// Its leash ended with this wait status while it was being started.
    pub early: Option<i32>,
    waiters: Vec<Reply>,
}

impl Process {
    #[must_use]
    pub fn new(names: Names) -> Self {
        Self {
            names,
            stage: Stage::Created,
            pid: 0,
            pidfd: None,
            held: Held::default(),
            console: None,
            end: None,
            early: None,
            waiters: Vec::new(),
        }
    }

    #[must_use]
    pub fn is_alive(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Running)
    }

    /// Its pid, as messages have it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        u32::try_from(self.pid).unwrap_or(0)
    }

    #[must_use]
    pub fn status(&self, is_paused: bool) -> EnumOrUnknown<Status> {
        let status = match self.stage {
            Stage::Created | Stage::Starting => Status::CREATED,
            Stage::Running if is_paused => Status::PAUSED,
            Stage::Running => Status::RUNNING,
            Stage::Stopped => Status::STOPPED,
        };
        status.into()
    }

    /// Sends a signal to its leash, which passes it on.
    pub fn signal(&self, signal: i32) {
        if let Some(pidfd) = &self.pidfd {
            process::signal(pidfd.as_fd(), signal);
        }
    }

    /// Answers once it has ended.
    pub fn wait(&mut self, reply: Reply) {
        match &self.end {
            Some(end) => reply.answer(Ok(response(end))),
            None => self.waiters.push(reply),
        }
    }

    /// It has ended, with this exit code; whoever waits for that is told.
    pub fn finish(&mut self, status: u32) -> End {
        let end = End { status, at: time::now() };
        self.stage = Stage::Stopped;
        self.pidfd = None;
        for waiter in self.waiters.drain(..) {
            waiter.answer(Ok(response(&end)));
        }
        self.end = Some(end.clone());
        end
    }

    /// Refuses what can be done in another stage only.
    pub fn must_be(&self, stage: Stage, deed: &str) -> Result<()> {
        if self.stage == stage {
            return Ok(());
        }
        let is = match self.stage {
            Stage::Created => "created",
            Stage::Starting => "starting",
            Stage::Running => "running",
            Stage::Stopped => "stopped",
        };
        Err(Failure::precondition(format!("cannot {deed} a {is} process")))
    }
}

fn response(end: &End) -> WaitResponse {
    let mut response = WaitResponse::new();
    response.exit_status = end.status;
    response.exited_at = MessageField::some(end.at.clone());
    response
}
