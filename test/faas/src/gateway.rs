//! Carries out what the policy decides, and tells it what comes of that.

use std::collections::HashMap;
use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::backend::{Backend, BackendError};
use crate::config::{Config, FunctionConfig};
use crate::policy::{Action, Bounds, Event, FunctionIndex, Instance, Policy, Refusal, Report, Ticket};

/// How often all functions are measured, and those that could not be put to sleep are tried again.
const TICK: Duration = Duration::from_secs(1);
/// Between looks whether a function listens.
const LISTEN_POLL: Duration = Duration::from_millis(3);
/// For all functions to end when the gateway does.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

type Answer = Result<(), Refusal>;

struct Running<B: Backend> {
    function: FunctionIndex,
    container: Arc<B::Container>,
}

struct Inner<B: Backend> {
    policy: Policy,
    waiting: HashMap<Ticket, oneshot::Sender<Answer>>,
    running: HashMap<Instance, Running<B>>,
    last_ticket: Ticket,
    tasks: JoinSet<()>,
    is_closing: bool,
}

/// Keeps the functions of a configuration: starts, wakes, stops them, and lets requests to them.
pub struct Gateway<B: Backend> {
    backend: B,
    config: Config,
    /// Requests that each function may still be given.
    turns: Vec<Arc<Semaphore>>,
    inner: Mutex<Inner<B>>,
}

/// A request's place at a function, from its arrival until the value goes.
pub struct Visit<B: Backend> {
    gateway: Arc<Gateway<B>>,
    function: FunctionIndex,
    ticket: Ticket,
    turn: Option<OwnedSemaphorePermit>,
}

impl<B: Backend> Drop for Visit<B> {
    fn drop(&mut self) {
        self.gateway.measure(self.function);
        self.gateway.step(Event::Gone { function: self.function, ticket: self.ticket });
    }
}

impl<B: Backend> Visit<B> {
    /// Waits until the function may be given one more request. It may until the visit ends.
    pub async fn take_turn(&mut self) {
        let turns = Arc::clone(&self.gateway.turns[self.function]);
        // The semaphore is never closed.
        self.turn = turns.acquire_owned().await.ok();
    }
}

impl<B: Backend> Gateway<B> {
    /// Makes a gateway in which no function runs so far.
    #[must_use]
    pub fn new(backend: B, config: Config) -> Arc<Self> {
        let bounds = Bounds {
            budget_bytes: config.budget_bytes,
            requests_each: config.requests_each,
            can_sleep: B::CAN_SLEEP,
        };
        let inner = Inner {
            policy: Policy::new(bounds, config.functions.len()),
            waiting: HashMap::new(),
            running: HashMap::new(),
            last_ticket: 0,
            tasks: JoinSet::new(),
            is_closing: false,
        };
        let turns = config.functions.iter().map(|_| Arc::new(Semaphore::new(config.concurrency))).collect();
        Arc::new(Self { backend, config, turns, inner: Mutex::new(inner) })
    }

    /// The configuration that it was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Brings a request to a function: waits until the function listens, if need be after a start.
    ///
    /// # Errors
    /// When it cannot be started, or too many requests are at it.
    pub async fn visit(self: &Arc<Self>, function: FunctionIndex) -> Result<Visit<B>, Refusal> {
        let (sender, receiver) = oneshot::channel();
        let ticket = {
            let mut inner = self.lock();
            inner.last_ticket += 1;
            let ticket = inner.last_ticket;
            inner.waiting.insert(ticket, sender);
            ticket
        };
        // Made before it waits, so that it goes with a client that goes away.
        let visit = Visit { gateway: Arc::clone(self), function, ticket, turn: None };
        self.step(Event::Request { function, ticket });
        let closing = || Err(Refusal::NotStarted { why: "the gateway ends".to_owned() });
        receiver.await.unwrap_or_else(|_| closing()).map(|()| visit)
    }

    /// The counters and the present figures, for `/-/stats`.
    pub fn stats(&self) -> Value {
        let inner = self.lock();
        let mut value = json!({
            "functions": self.config.functions.len(),
            "budget_bytes": self.config.budget_bytes,
            "waiting": inner.waiting.len(),
        });
        for part in [json!(inner.policy.counters()), json!(inner.policy.now())] {
            if let (Value::Object(all), Value::Object(part)) = (&mut value, part) {
                all.extend(part);
            }
        }
        value
    }

    /// Measures all functions again and again.
    pub async fn tick(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TICK).await;
            let gateway = Arc::clone(&self);
            // Reading the figures of many control groups takes a while.
            let measured = tokio::task::spawn_blocking(move || gateway.figures()).await;
            for event in measured.unwrap_or_default() {
                self.step(event);
            }
            self.step(Event::Tick);
        }
    }

    /// Stops all functions. No request is served from now on.
    pub async fn close(self: &Arc<Self>) {
        let mut tasks = {
            let mut inner = self.lock();
            inner.is_closing = true;
            inner.waiting.clear();
            let running = std::mem::take(&mut inner.running);
            let mut tasks = std::mem::take(&mut inner.tasks);
            for one in running.into_values() {
                let gateway = Arc::clone(self);
                tasks.spawn(async move { gateway.backend.stop(&one.container).await });
            }
            tasks
        };
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSE_TIMEOUT, all).await.is_err() {
            eprintln!("faas: some functions did not end in {} s", CLOSE_TIMEOUT.as_secs());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<B>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(self: &Arc<Self>, event: Event) {
        let mut inner = self.lock();
        if let Event::Gone { ticket, .. } = event {
            inner.waiting.remove(&ticket);
        }
        for action in inner.policy.step(event) {
            self.carry_out(&mut inner, action);
        }
    }

    fn carry_out(self: &Arc<Self>, inner: &mut Inner<B>, action: Action) {
        let gateway = Arc::clone(self);
        match action {
            Action::Grant { ticket } => answer(inner, ticket, Ok(())),
            Action::Refuse { ticket, refusal } => answer(inner, ticket, Err(refusal)),
            Action::Start { function, instance } => {
                spawn(inner, async move { gateway.start(function, instance).await });
            }
            Action::Sleep { function, instance } => {
                spawn(inner, async move { gateway.sleep(function, instance).await });
            }
            Action::Wake { function, instance } => {
                spawn(inner, async move { gateway.wake(function, instance) });
            }
            Action::Stop { function, instance } => {
                spawn(inner, async move { gateway.stop(function, instance).await });
            }
        }
    }

    fn report(self: &Arc<Self>, function: FunctionIndex, instance: Instance, report: Report) {
        self.step(Event::Report { function, instance, report });
    }

    fn container(&self, instance: Instance) -> Option<Arc<B::Container>> {
        self.lock().running.get(&instance).map(|one| Arc::clone(&one.container))
    }

    async fn start(self: Arc<Self>, index: FunctionIndex, instance: Instance) {
        let function = &self.config.functions[index];
        match self.start_and_wait(function, instance).await {
            Ok(container) => {
                let container = Arc::new(container);
                let is_closing = {
                    let mut inner = self.lock();
                    let running = Running { function: index, container: Arc::clone(&container) };
                    if !inner.is_closing {
                        inner.running.insert(instance, running);
                        let gateway = Arc::clone(&self);
                        let watched = Arc::clone(&container);
                        spawn(&mut inner, async move { gateway.watch(index, instance, &watched).await });
                    }
                    inner.is_closing
                };
                if is_closing {
                    self.backend.stop(&container).await;
                    return;
                }
                self.report(index, instance, Report::Started);
            }
            Err(error) => {
                eprintln!("faas: {} cannot be started: {error}", function.name);
                self.report(index, instance, Report::StartFailed { why: error.to_string() });
            }
        }
    }

    async fn start_and_wait(
        &self,
        function: &FunctionConfig,
        instance: Instance,
    ) -> Result<B::Container, BackendError> {
        if is_listening(function.port).await {
            return Err(BackendError(format!("something else listens at its port {}", function.port)));
        }
        let id = format!("faas-{}-{}-{instance}", std::process::id(), function.name);
        let container = self.backend.start(function, &id).await?;
        let failure = tokio::select! {
            () = listens(function.port) => return Ok(container),
            () = self.backend.ended(&container) => "it ended before it listened".to_owned(),
            () = tokio::time::sleep(self.config.start_timeout) => {
                format!("it does not listen after {} s", self.config.start_timeout.as_secs())
            }
        };
        self.backend.stop(&container).await;
        Err(BackendError(failure))
    }

    /// Waits for the end of a function that nobody stopped.
    async fn watch(self: Arc<Self>, function: FunctionIndex, instance: Instance, container: &B::Container) {
        self.backend.ended(container).await;
        let was_running = self.lock().running.remove(&instance).is_some();
        if was_running {
            // Before it is told, so that it does not meet the next start.
            self.backend.stop(container).await;
            self.report(function, instance, Report::Died);
        }
    }

    async fn sleep(self: Arc<Self>, function: FunctionIndex, instance: Instance) {
        let Some(container) = self.container(instance) else { return };
        match self.backend.sleep(&container).await {
            Ok(()) => {
                self.report(function, instance, Report::Slept);
                self.measure(function);
            }
            Err(error) => {
                eprintln!("faas: {} cannot be put to sleep: {error}", self.config.functions[function].name);
                self.report(function, instance, Report::SleepFailed);
            }
        }
    }

    fn wake(self: &Arc<Self>, function: FunctionIndex, instance: Instance) {
        let Some(container) = self.container(instance) else { return };
        match self.backend.wake(&container) {
            Ok(()) => self.report(function, instance, Report::Woken),
            Err(error) => {
                eprintln!("faas: {} cannot be woken: {error}", self.config.functions[function].name);
                self.report(function, instance, Report::WakeFailed);
            }
        }
    }

    async fn stop(self: Arc<Self>, function: FunctionIndex, instance: Instance) {
        // The end that follows is no death.
        let running = self.lock().running.remove(&instance);
        if let Some(running) = running {
            self.backend.stop(&running.container).await;
        }
        self.report(function, instance, Report::Stopped);
    }

    /// Tells the policy what a function uses now.
    fn measure(self: &Arc<Self>, function: FunctionIndex) {
        let (found, is_asleep) = {
            let inner = self.lock();
            let mut running = inner.running.iter();
            let found = running.find(|(_, one)| one.function == function);
            (
                found.map(|(instance, one)| (*instance, Arc::clone(&one.container))),
                inner.policy.is_asleep(function),
            )
        };
        let Some((instance, container)) = found else { return };
        if let Some(bytes) = self.backend.memory_bytes(&container) {
            self.report(function, instance, Report::Memory { bytes, is_asleep });
        }
    }

    /// The memory that every function uses now, as reports.
    fn figures(&self) -> Vec<Event> {
        let running: Vec<_> = {
            let inner = self.lock();
            let of = |(instance, one): (&Instance, &Running<B>)| {
                (one.function, *instance, Arc::clone(&one.container), inner.policy.is_asleep(one.function))
            };
            inner.running.iter().map(of).collect()
        };
        let measured = running.into_iter().filter_map(|(function, instance, container, is_asleep)| {
            let bytes = self.backend.memory_bytes(&container)?;
            Some(Event::Report { function, instance, report: Report::Memory { bytes, is_asleep } })
        });
        measured.collect()
    }
}

fn answer<B: Backend>(inner: &mut Inner<B>, ticket: Ticket, answer: Answer) {
    if let Some(sender) = inner.waiting.remove(&ticket) {
        // Its client may have gone away; the visit tells that.
        let _ = sender.send(answer);
    }
}

fn spawn<B: Backend>(inner: &mut Inner<B>, task: impl Future<Output = ()> + Send + 'static) {
    if inner.is_closing {
        return;
    }
    // Those that have ended.
    while inner.tasks.try_join_next().is_some() {}
    inner.tasks.spawn(task);
}

async fn is_listening(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok()
}

async fn listens(port: u16) {
    while !is_listening(port).await {
        tokio::time::sleep(LISTEN_POLL).await;
    }
}
