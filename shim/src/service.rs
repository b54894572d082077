//! The task service: each request of containerd, to the container that it is about.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use containerd_shim_protos::events::task::{TaskOOM, TaskPaused, TaskResumed};
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::shim::{
    CheckpointTaskRequest, CloseIORequest, ConnectRequest, ConnectResponse, CreateTaskRequest,
    CreateTaskResponse, DeleteRequest, DeleteResponse, ExecProcessRequest, KillRequest, PauseRequest,
    PidsRequest, PidsResponse, ResizePtyRequest, ResumeRequest, ShutdownRequest, StartRequest, StartResponse,
    StateRequest, StateResponse, StatsRequest, StatsResponse, UpdateTaskRequest, WaitRequest,
};
use containerd_shim_protos::ttrpc::{Code, Request};
use containerd_shim_protos::types::empty::Empty;

use crate::cgroup;
use crate::cgroup::oom::OomWatch;
use crate::container::{Container, Surroundings, create};
use crate::events::Topic;
use crate::failure::{Failure, Result};
use crate::pids;
use crate::reaper::Owner;
use crate::thread;
use crate::ttrpc::line::Reply;

/// The service that is served.
const NAME: &str = "containerd.task.v2.Task";

/// See the module.
#[derive(Debug)]
pub struct Service {
    pub around: Surroundings,
    /// `None`: it is being created.
    containers: Mutex<BTreeMap<String, Option<Arc<Container>>>>,
    /// Watches of groups' memory that nobody polls yet.
    watches: Mutex<Vec<(String, OomWatch)>>,
    /// Requests that threads of their own carry out, or answer.
    in_progress: AtomicUsize,
    /// containerd has said of a container that it needs the shim no more.
    is_asked_to_end: AtomicBool,
    /// Has the thread that polls look for watches, and whether the shim is needed still.
    wake: std::io::PipeWriter,
}

impl Service {
    #[must_use]
    pub fn new(around: Surroundings, wake: std::io::PipeWriter) -> Self {
        Self {
            around,
            containers: Mutex::default(),
            watches: Mutex::default(),
            in_progress: AtomicUsize::new(0),
            is_asked_to_end: AtomicBool::new(false),
            wake,
        }
    }

    fn containers(&self) -> MutexGuard<'_, BTreeMap<String, Option<Arc<Container>>>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn container(&self, id: &str) -> Result<Arc<Container>> {
        let found = self.containers().get(id).cloned().flatten();
        found.ok_or_else(|| Failure::not_found("container not created: not found"))
    }

    /// Whether the shim may end: it was asked to, has no container, and every request is answered.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_asked_to_end.load(Ordering::Relaxed)
            && self.in_progress.load(Ordering::Acquire) == 0
            && self.is_empty()
    }

    /// Whether it has no container, nor is one on its way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.containers().is_empty()
    }

    fn nudge(&self) {
        // One that does not fit is not the first.
        let _ = std::io::Write::write(&mut &self.wake, &[0]);
    }

    /// Watches that are new.
    #[must_use]
    pub fn new_watches(&self) -> Vec<(String, OomWatch)> {
        std::mem::take(&mut *self.watches.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A container has run out of memory.
    pub fn tell_oom(&self, id: &str) {
        let mut event = TaskOOM::new();
        id.clone_into(&mut event.container_id);
        self.around.publisher.publish(Topic::Oom, &event);
    }

    /// These leashes have ended, with their wait statuses.
    pub fn tell_ends(&self, ended: Vec<(Owner, i32)>) {
        for (owner, status) in ended {
            let container = self.containers().get(&owner.container).cloned().flatten();
            if let Some(container) = container {
                container.ended(&owner.exec, status, &self.around);
            }
        }
    }

    /// Carries out a request. What may take long has a thread of its own. Result: whether this was the last one that its
    /// connection was made for.
    pub fn serve(self: &Arc<Self>, request: &Request, reply: Reply) -> bool {
        let is_last = request.service == NAME && request.method == "Shutdown";
        self.carry_out(request, reply);
        is_last
    }

    fn carry_out(self: &Arc<Self>, request: &Request, reply: Reply) {
        if request.service != NAME {
            let why = format!("service {}: not implemented", request.service);
            return reply.answer::<Empty>(Err(Failure::new(Code::UNIMPLEMENTED, why)));
        }
        let payload = request.payload.as_slice();
        match request.method.as_str() {
            "State" => at_once(payload, reply, |request| self.state(&request)),
            "Connect" => at_once(payload, reply, |request| self.connect(&request)),
            "Shutdown" => at_once(payload, reply, |request| Ok(self.shut_down(&request))),
            "CloseIO" => at_once(payload, reply, |request| self.close_io(&request)),
            "ResizePty" => at_once(payload, reply, |request| self.resize(&request)),
            "Checkpoint" => at_once(payload, reply, |request| self.checkpoint(&request)),
            "Wait" => self.wait(payload, reply),
            "Create" => self.beside(payload, reply, Self::create),
            "Start" => self.beside(payload, reply, Self::start),
            "Delete" => self.beside(payload, reply, Self::delete),
            "Exec" => self.beside(payload, reply, Self::exec),
            "Kill" => self.beside(payload, reply, Self::kill),
            "Pause" => self.beside(payload, reply, Self::pause),
            "Resume" => self.beside(payload, reply, Self::resume),
            "Pids" => self.beside(payload, reply, Self::pids),
            "Stats" => self.beside(payload, reply, Self::stats),
            "Update" => self.beside(payload, reply, Self::update),
            method => {
                let why = format!("method {method}: not implemented");
                reply.answer::<Empty>(Err(Failure::new(Code::UNIMPLEMENTED, why)));
            }
        }
    }

    fn beside<Q, A>(self: &Arc<Self>, payload: &[u8], reply: Reply, run: fn(&Self, &Q) -> Result<A>)
    where
        Q: Message,
        A: Message,
    {
        let request = match parse::<Q>(payload) {
            Ok(request) => request,
            Err(failure) => return reply.answer::<A>(Err(failure)),
        };
        let progress = self.begin();
        // If there is no thread the reply is dropped, which answers it.
        thread::start("request", move || {
            reply.answer(run(&progress.0, &request));
            drop(progress);
            vmm::footprint::trim_heap();
        });
    }

    /// The shim does not end before this does.
    pub fn begin(self: &Arc<Self>) -> InProgress {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        InProgress(Arc::clone(self))
    }

    fn create(&self, request: &CreateTaskRequest) -> Result<CreateTaskResponse> {
        match self.containers().entry(request.id.clone()) {
            Entry::Occupied(_) => {
                let why = format!("container {}: already exists", request.id);
                return Err(Failure::new(Code::ALREADY_EXISTS, why));
            }
            Entry::Vacant(place) => place.insert(None),
        };
        let expectation = self.around.reaper.expect();
        let container = match create(&self.around, request) {
            Ok(container) => Arc::new(container),
            Err(failure) => {
                self.containers().remove(&request.id);
                self.nudge();
                return Err(failure);
            }
        };
        let pid = container.processes().init.pid;
        self.containers().insert(request.id.clone(), Some(Arc::clone(&container)));
        let owner = Owner { container: request.id.clone(), exec: String::new() };
        if let Some(status) = expectation.claim(pid, owner) {
            container.ended("", status, &self.around);
        }
        let watches = container.oom_watches().into_iter().map(|watch| (request.id.clone(), watch));
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).extend(watches);
        self.nudge();
        let mut response = CreateTaskResponse::new();
        response.pid = container.processes().init.pid();
        Ok(response)
    }

    fn start(&self, request: &StartRequest) -> Result<StartResponse> {
        let container = self.container(&request.id)?;
        let mut response = StartResponse::new();
        response.pid = if request.exec_id.is_empty() {
            container.start(&self.around)?
        } else {
            container.start_exec(&request.exec_id, &self.around)?
        };
        Ok(response)
    }

    fn exec(&self, request: &ExecProcessRequest) -> Result<Empty> {
        self.container(&request.id)?.add(request, &self.around).map(|()| Empty::new())
    }

    fn delete(&self, request: &DeleteRequest) -> Result<DeleteResponse> {
        let container = self.container(&request.id)?;
        if !request.exec_id.is_empty() {
            return Ok(container.delete_exec(&request.exec_id)?.response());
        }
        let deleted = container.delete(&self.around)?;
        self.containers().remove(&request.id);
        self.nudge();
        container.tell_deleted(&deleted, &self.around);
        Ok(deleted.response())
    }

    fn state(&self, request: &StateRequest) -> Result<StateResponse> {
        let container = self.container(&request.id)?;
        let mut processes = container.processes();
        let is_paused = processes.is_paused;
        let process = processes.find(&request.exec_id)?;
        let mut response = StateResponse::new();
        response.id = if request.exec_id.is_empty() { request.id.clone() } else { request.exec_id.clone() };
        response.exec_id.clone_from(&request.exec_id);
        response.bundle = container.bundle.display().to_string();
        response.pid = process.pid();
        response.status = process.status(is_paused);
        response.stdin.clone_from(&process.names.stdin);
        response.stdout.clone_from(&process.names.stdout);
        response.stderr.clone_from(&process.names.stderr);
        response.terminal = process.names.terminal;
        if let Some(end) = &process.end {
            response.exit_status = end.status;
            response.exited_at = MessageField::some(end.at.clone());
        }
        Ok(response)
    }

    fn wait(&self, payload: &[u8], reply: Reply) {
        let waited = parse::<WaitRequest>(payload).and_then(|request| {
            let container = self.container(&request.id)?;
            container.processes().find(&request.exec_id)?;
            Ok((container, request))
        });
        match waited {
            Ok((container, request)) => match container.processes().find(&request.exec_id) {
                Ok(process) => process.wait(reply),
                Err(failure) => reply.answer::<Empty>(Err(failure)),
            },
            Err(failure) => reply.answer::<Empty>(Err(failure)),
        }
    }

    fn kill(&self, request: &KillRequest) -> Result<Empty> {
        let container = self.container(&request.id)?;
        let signal = i32::try_from(request.signal)
            .map_err(|_| Failure::invalid(format!("no signal has number {}", request.signal)))?;
        container.kill(&request.exec_id, signal, request.all).map(|()| Empty::new())
    }

    fn pause(&self, request: &PauseRequest) -> Result<Empty> {
        self.container(&request.id)?.set_paused(true, &self.around.reaper)?;
        let mut event = TaskPaused::new();
        event.container_id.clone_from(&request.id);
        self.around.publisher.publish(Topic::Paused, &event);
        Ok(Empty::new())
    }

    fn resume(&self, request: &ResumeRequest) -> Result<Empty> {
        self.container(&request.id)?.set_paused(false, &self.around.reaper)?;
        let mut event = TaskResumed::new();
        event.container_id.clone_from(&request.id);
        self.around.publisher.publish(Topic::Resumed, &event);
        Ok(Empty::new())
    }

    fn pids(&self, request: &PidsRequest) -> Result<PidsResponse> {
        let container = self.container(&request.id)?;
        let mut response = PidsResponse::new();
        response.processes = pids::of(&container);
        Ok(response)
    }

    fn stats(&self, request: &StatsRequest) -> Result<StatsResponse> {
        let container = self.container(&request.id)?;
        let metrics = cgroup::metrics(&container.groups, container.source_of_metrics());
        let metrics = metrics.ok_or_else(|| Failure::not_found("cgroup does not exist: not found"))?;
        let mut response = StatsResponse::new();
        response.stats = MessageField::some(metrics.map_err(Failure::other)?);
        Ok(response)
    }

    fn update(&self, request: &UpdateTaskRequest) -> Result<Empty> {
        let container = self.container(&request.id)?;
        let resources = request.resources.as_ref().map(|any| any.value.as_slice()).unwrap_or_default();
        container.update(resources, &self.around.reaper).map(|()| Empty::new())
    }

    fn checkpoint(&self, request: &CheckpointTaskRequest) -> Result<Empty> {
        self.container(&request.id)?;
        let why =
            format!("cannot checkpoint container {}: not yet implemented; hibernate it instead", request.id);
        Err(Failure::new(Code::UNIMPLEMENTED, why))
    }

    fn close_io(&self, request: &CloseIORequest) -> Result<Empty> {
        let container = self.container(&request.id)?;
        let mut processes = container.processes();
        let process = processes.find(&request.exec_id)?;
        if request.stdin {
            process.held.close_stdin();
        }
        Ok(Empty::new())
    }

    fn resize(&self, request: &ResizePtyRequest) -> Result<Empty> {
        let container = self.container(&request.id)?;
        let console = container.processes().find(&request.exec_id)?.console.clone();
        let cells = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        if let Some(console) = console {
            console.resize(cells(request.height), cells(request.width)).map_err(Failure::other)?;
        }
        Ok(Empty::new())
    }

    /// A container that nobody has created is not found: containerd asks this once it is started again, and cleans up
    /// after a shim that was started for a container which never came.
    fn connect(&self, request: &ConnectRequest) -> Result<ConnectResponse> {
        let container = self.containers().get(&request.id).cloned();
        let Some(container) = container else {
            return Err(Failure::not_found("container not created: not found"));
        };
        let mut response = ConnectResponse::new();
        response.shim_pid = std::process::id();
        response.task_pid = container.map_or(0, |container| container.processes().init.pid());
        Ok(response)
    }

    fn shut_down(&self, _request: &ShutdownRequest) -> Empty {
        self.is_asked_to_end.store(true, Ordering::Relaxed);
        Empty::new()
    }
}

/// A request that is being carried out.
#[derive(Debug)]
pub struct InProgress(Arc<Service>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Release);
        self.0.nudge();
    }
}

fn parse<Q: Message>(payload: &[u8]) -> Result<Q> {
    Q::parse_from_bytes(payload)
        .map_err(|error| Failure::invalid(format!("cannot read the request: {error}")))
}

fn at_once<Q: Message, A: Message>(payload: &[u8], reply: Reply, run: impl FnOnce(Q) -> Result<A>) {
    reply.answer(parse(payload).and_then(run));
}
