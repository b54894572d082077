//! Orders, from the control socket and from the front end.

use std::io::BufReader;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use abi::hostcall::{
    EVENT_EXEC, EVENT_EXEC_SIGNAL, EVENT_PROCESSES, EVENT_SIGNAL, EVENT_START, EVENT_USAGE, EVENT_WINSIZE,
    Event,
};
use abi::limits::REQUESTS;
use vmm::checkpoint::ImageTerms;
use vmm::exec_relay::{ExecPeer, ExecReport};
use vmm::hibernate::{ExecProbe, Hibernation, Reap, Tier};
use vmm::leash;
use vmm::limits::ContainerLimits;
use vmm::process::{self, ChildEvent};
use vmm::request::Request;

use super::Supervisor;
use super::accepting::Accepting;
use super::containers::ContainerId;
use super::peers::{Asked, Attached, Peers};
use super::progress::{News, Progress, poll_timeout};
use super::stage::{Cause, Stage};
use super::state_machine::{HIBERNATE_PATIENCE, Input, KernelState};
use super::waiters::{For, Outcome, WAITERS_MAX, Waiter};
use crate::control::{self, Answer, ExecLine, Figures, Order, PATIENCE, Report, refuse};
use crate::status::Status;
use crate::words;

/// How long the first program may take to be loaded.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// The conditions that an [`Order::Exec`] sets for its process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    pub paused: bool,
    pub hook: bool,
    pub probe: bool,
}

/// Whether the front end has let go of the sandbox.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Front {
    Stays,
    LetGo,
}

impl Supervisor {
    /// Takes orders until the front end is gone and has not let go of the sandbox. `ids_are_mapped`: the host's root is
    /// nobody here.
    pub(crate) fn serve(&self, listener: &UnixListener, ids_are_mapped: bool) {
        let mut orders = BufReader::new(&*self.channel);
        let mut channel = self.channel.as_raw_fd();
        let mut leash = self.leash().map_or(-1, |leash| leash.as_raw_fd());
        let mut peers = Peers::new(ids_are_mapped);
        let mut accepting = Accepting::default();
        let watched = self.sandbox();
        let pulses = watched.as_ref().map(|sandbox| &sandbox.pulses);
        pulses.inspect(|pulses| pulses.begin(pulses.control()));
        loop {
            let listening = accepting.polled(listener.as_raw_fd());
            let (keepers, image) = {
                let progress = self.lock();
                (progress.containers.keepers(), progress.keeper_of_image().map_or(-1, AsRawFd::as_raw_fd))
            };
            let mut fds = vec![channel, listening, leash, self.nudge.0.as_raw_fd(), image];
            fds.extend(keepers.iter().flat_map(|(_, fds)| accepting.polled_of_keeper(*fds)));
            fds.extend(peers.descriptors());
            fds.extend(self.execs.descriptors());
            let of_connections = peers.next_deadline().into_iter().chain(accepting.next_deadline());
            let deadline = self.lock().next_deadline().into_iter().chain(of_connections).min();
            let wait = || process::wait_any(&fds, poll_timeout(deadline));
            let ready = match pulses {
                Some(pulses) => {
                    pulses.note_control_time();
                    pulses.resting(Some(pulses.control()), wait)
                }
                None => wait(),
            };
            accepting.go_on(Instant::now());
            if ready.contains(&0) && channel >= 0 && self.hear_front(&mut orders) == Front::LetGo {
                channel = -1;
            }
            if ready.contains(&2) && self.leash_tells() == Some(leash::News::Gone) {
                leash = -1;
            }
            if ready.contains(&3) {
                while process::receive_now(&self.nudge.0, &mut [0; 64]).is_some_and(|got| got > 0) {}
            }
            if ready.contains(&1)
                && let Some(peer) = accepting.accept(listener)
            {
                peers.add(peer, ContainerId::FIRST);
            }
            if ready.contains(&4) {
                self.hear_keeper_of_image();
            }
            for (at, (id, _)) in (5..).step_by(2).zip(&keepers) {
                if ready.contains(&at)
                    && let Some(peer) = self.accept_for(*id, &mut accepting)
                {
                    peers.add(peer, *id);
                }
                if ready.contains(&(at + 1)) {
                    self.hear_keeper(*id);
                }
            }
            peers.orders().into_iter().for_each(|asked| self.obey_asked(asked));
            self.pass_on_to_execs();
            self.tick();
        }
    }

    /// Takes the orders that the front end has written. It writes whole lines, so one that began will end.
    fn hear_front(&self, orders: &mut BufReader<&UnixStream>) -> Front {
        loop {
            match control::read_order(orders) {
                Ok(Some(order)) => self.obey_front(order),
                Ok(None) if self.lock().released => return Front::LetGo,
                Ok(None) => self.abandoned(),
                Err(_) => {}
            }
            if orders.buffer().is_empty() {
                return Front::Stays;
            }
        }
    }

    /// Takes an order that came by a connection.
    fn obey_asked(&self, Asked { peer, of, order, attached }: Asked) {
        match order {
            Order::Exec { paused, hook, probe, .. } => {
                self.exec(peer, of, attached, Terms { paused, hook, probe });
            }
            Order::Create { restores, .. } => self.create(peer, of, attached, restores),
            Order::Checkpoint { leave_running, refuses_connections, copies_files, seals, parent } => {
                let terms = ImageTerms { leave_running, refuses_connections, copies_files, seals };
                self.checkpoint(peer, of, (attached.descriptors, parent), terms);
            }
            order => self.obey_peer(peer, of, order),
        }
    }

    /// Has the deadlines looked at anew, by any thread.
    pub(super) fn nudge(&self) {
        // One that does not fit is not the first.
        let _ = process::send_now(&self.nudge.1, &[0]);
    }

    fn leash_tells(&self) -> Option<leash::News> {
        let news = self.leash().and_then(|leash| leash.news());
        match news {
            Some(leash::News::Signal(signal)) => {
                self.deliver(&mut self.lock(), ContainerId::FIRST, signal, 0)
            }
            Some(leash::News::Resized) => self.take_size(),
            Some(leash::News::Gone) | None => {}
        }
        news
    }

    /// The front end is gone, and with it the reason to run.
    fn abandoned(&self) -> ! {
        if self.leash().is_some() {
            self.finish(Ok(libc::SIGKILL));
        }
        process::exit_now(1)
    }

    /// Sees the leash stopped, continued and killed.
    pub(crate) fn watch(&self) {
        let Some(leash) = self.leash() else { return };
        leash.watch(|seen| match seen {
            // Its status is there for the subreaper; nothing else may run on.
            ChildEvent::Ended => self.finish(Ok(libc::SIGKILL)),
            ChildEvent::Stopped | ChildEvent::Continued => {
                let progress = &mut *self.lock();
                self.take_leash_news(progress);
                self.settle(progress);
            }
        });
    }

    fn take_size(&self) {
        if let Some((rows, columns)) = self.sandbox().and_then(|sandbox| sandbox.files.terminal_size()) {
            self.resize(ContainerId::FIRST, rows, columns);
        }
    }

    fn resize(&self, of: ContainerId, rows: u16, columns: u16) {
        self.post(of, EVENT_WINSIZE, 0, i64::from(rows) << 16 | i64::from(columns));
    }

    /// The front end's orders; none is answered.
    pub(super) fn obey_front(&self, order: Order) {
        match (&order, self.is_command) {
            (Order::Kill { signal: libc::SIGKILL, .. }, _) => self.finish(Ok(libc::SIGKILL)),
            // The terminal's own: the front end stops and goes on with its job.
            (Order::Kill { signal: signal @ (libc::SIGSTOP | libc::SIGCONT), foreground, .. }, true) => {
                self.deliver(&mut self.lock(), ContainerId::FIRST, *signal, u32::from(*foreground));
            }
            (Order::Release, false) => {
                self.lock().released = true;
                let _ = control::send(&self.channel, &Report::Released);
            }
            _ => drop(self.obey(ContainerId::FIRST, order)),
        }
    }

    pub(super) fn obey_peer(&self, peer: UnixStream, of: ContainerId, order: Order) {
        let what = match order {
            Order::Kill { signal: libc::SIGKILL, .. } if of == ContainerId::FIRST => {
                // Nobody is left to answer afterwards.
                control::send_now(&peer, &Answer::default());
                self.finish(Ok(libc::SIGKILL))
            }
            Order::Events { oom_only } => {
                let progress = &mut *self.lock();
                let state = progress.sandbox_state();
                return progress.readers.add(peer, of, state, oom_only);
            }
            Order::Start => For::Start,
            Order::Hibernate => For::Hibernation(None),
            Order::Wake { .. } => For::Wake,
            Order::Update { .. } => For::Limits(0),
            Order::Processes => For::Processes,
            Order::Usage => {
                self.count_running();
                For::Usage(0)
            }
            Order::Pause => For::Pause,
            Order::Resume => For::Wake,
            _ => {
                let answer = self.answer(of, order);
                control::send_now(&peer, &answer);
                return;
            }
        };
        self.obey_and_answer_later(peer, of, order, what);
    }

    fn obey_and_answer_later(&self, peer: UnixStream, of: ContainerId, order: Order, what: For) {
        let progress = &mut *self.lock();
        // Those who look again and again leave no waiters behind where the kernel does not answer.
        progress.waiters.retain(|waiter| !waiter.is_look() || !process::has_hung_up(&waiter.peer));
        if progress.waiters.len() >= WAITERS_MAX {
            return refuse(&peer, format!("{WAITERS_MAX} others wait for it already"));
        }
        let patience = match what {
            For::Start => START_PATIENCE,
            For::Usage(_) | For::Processes => PATIENCE,
            _ => HIBERNATE_PATIENCE,
        };
        let since = Instant::now();
        match self.begin(progress, of, order) {
            Ok(()) => {
                // The number of a request is known once it has been made.
                let what = match what {
                    For::Limits(_) => For::Limits(progress.limits_asked),
                    For::Usage(_) => For::Usage(progress.usage_asked),
                    what => what,
                };
                progress.waiters.push(Waiter { peer, of, what, since, deadline: since + patience });
            }
            Err(error) => refuse(&peer, error),
        }
        self.settle(progress);
    }

    /// A process is to come in. It is answered by whoever knows what becomes of it; see [`vmm::exec_relay`].
    pub(super) fn exec(&self, peer: UnixStream, of: ContainerId, attached: Attached, terms: Terms) {
        let Terms { paused, hook, probe } = terms;
        let Attached { body, descriptors } = attached;
        let request = match Request::for_process(body, descriptors) {
            Ok(request) if of == ContainerId::FIRST => request,
            Ok(request) => request.within(of),
            Err(why) => return refuse(&peer, why),
        };
        let progress = &mut *self.lock();
        self.take_leash_news(progress);
        let stage = progress.containers.get(of).map_or(Stage::Stopped, |container| container.stage);
        let why_not = match progress.status(of) {
            _ if progress.ending => Some("it ends"),
            Status::Paused if !paused => Some(words::EXEC_IN_PAUSED),
            _ if hook && stage == Stage::Created => None,
            _ if hook => Some("it has been started"),
            Status::Stopped => Some("it has ended"),
            _ if stage == Stage::Starting && progress.awaits_others() => {
                Some("it waits for other containers of its pod to be restored and started")
            }
            _ if stage != Stage::Running => Some("its first process does not run yet; start it first"),
            _ => None,
        };
        if let Some(why) = why_not {
            return refuse(&peer, why.into());
        }
        if probe && self.exec_probe == ExecProbe::AsleepIsAlive && progress.machine.is_asleep() {
            progress.cycles.answered_probes += 1;
            let line = ExecLine::new(peer);
            line.report(&ExecReport::Started { pid: 0 });
            return line.report(&ExecReport::Exited { status: 0 });
        }
        if let Some((id, len)) = self.execs.add(Box::new(ExecLine::new(peer)), request) {
            self.come_in(progress, EVENT_EXEC, id, len);
        }
        self.settle(progress);
    }

    /// Tells the kernel of something that comes in, for which a sandbox that sleeps wakes.
    pub(super) fn come_in(&self, progress: &mut Progress, kind: u32, id: u64, len: i64) {
        let sleeps = progress.machine.is_hibernated() || progress.machine.hibernation().is_some();
        // It is there by then, and so does not count as idle.
        self.events.post(Event { kind, flags: 0, token: id, value: len });
        if sleeps {
            self.want_running(progress, Cause::Request("exec"));
            self.continue_leash(progress);
        }
    }

    /// Passes orders on that have come over the connections of exec'd processes.
    pub(super) fn pass_on_to_execs(&self) {
        for event in self.execs.orders() {
            let progress = &mut *self.lock();
            self.events.post(event);
            if event.kind == EVENT_EXEC_SIGNAL {
                self.wake_for_signal(progress);
            }
            self.settle(progress);
        }
    }

    /// Has the kernel count the processor time of code that runs and calls for nothing.
    fn count_running(&self) {
        if let Some(sandbox) = self.sandbox().filter(|sandbox| sandbox.cpus.busy() > 0) {
            (0..sandbox.cpus.count()).for_each(|cpu| sandbox.kick(cpu));
        }
    }

    fn stats(&self) -> Answer {
        let cycles = self.lock().cycles.clone();
        let Some(sandbox) = self.sandbox() else {
            return Answer { error: Some("it is only about to begin".into()), ..Answer::default() };
        };
        if sandbox.cpus.busy() > 0 {
            // The kernel's numbers are from when it was last idle; the next ones are not.
            sandbox.kick(sandbox.cpus.any_idle());
        }
        let stats = sandbox.stats(&cycles);
        Answer { stats: Some(Box::new(stats)), ..Answer::default() }
    }

    fn why(&self) -> Answer {
        let progress = self.lock();
        let mut reasons = progress.reasons.clone();
        let has_state = progress.is_running() || progress.awaits_start();
        reasons.sandbox_state = has_state.then(|| progress.sandbox_state());
        Answer { reasons: Some(Box::new(reasons)), ..Answer::default() }
    }

    /// Where its pages go, and are.
    fn home(&self, in_memory: Option<bool>) -> Answer {
        let tier = |in_memory| if in_memory { Tier::Memory } else { Tier::Disk };
        let ordered = in_memory.map(|wanted| Hibernation::order_home(&self.hibernation, tier(wanted)));
        let error = match (ordered, self.hibernation.home_state()) {
            (Some(Err(why)), _) => Some(why),
            (_, Some(state)) => {
                return Answer { figures: Some(Figures::Home(state)), ..Answer::default() };
            }
            (_, None) => self.hibernation.check().err(),
        };
        Answer { error, ..Answer::default() }
    }

    /// The answer to an order that takes no time.
    fn answer(&self, of: ContainerId, order: Order) -> Answer {
        if order == Order::Stats {
            return self.stats();
        }
        if order == Order::Why {
            return self.why();
        }
        if let Order::Home { in_memory } = order {
            return self.home(in_memory);
        }
        let outcome: Outcome = self.obey(of, order).map(|()| None);
        let is_busy = self.sandbox().is_some_and(|sandbox| sandbox.cpus.busy() > 0);
        let progress = self.lock();
        let state = progress.sandbox_state();
        let state = if is_busy && progress.machine.kernel_state() == KernelState::Running {
            state.when_busy()
        } else {
            state
        };
        Answer {
            sandbox_state: (progress.is_running() || progress.awaits_start()).then_some(state),
            hibernate_error: progress.failure.clone(),
            ..progress.answer(of, outcome)
        }
    }

    pub(super) fn obey(&self, of: ContainerId, order: Order) -> Result<(), String> {
        let progress = &mut *self.lock();
        let result = self.begin(progress, of, order);
        self.settle(progress);
        result
    }

    /// Begins to carry out an order for a container, or for the sandbox.
    pub(super) fn begin(&self, progress: &mut Progress, of: ContainerId, order: Order) -> Result<(), String> {
        // Signals that came before it are older.
        self.take_leash_news(progress);
        let asks_kernel = matches!(
            order,
            Order::Pause | Order::Resume | Order::Update { .. } | Order::Processes | Order::Usage
        );
        if asks_kernel && progress.arrivals.is_open() {
            return Err("it waits for other containers of its pod to be restored".into());
        }
        match (order, of) {
            (Order::Kill { signal, foreground, all }, _) => {
                return self.kill(progress, of, signal, if all { 2 } else { u32::from(foreground) });
            }
            (Order::Winsize { rows, columns }, _) => self.resize(of, rows, columns),
            (Order::Start, _) => return self.start(progress, of),
            (Order::RestAtStart, _) => return self.rest_at_start(progress, of),
            (Order::GoOn, _) => return self.go_on(progress, of),
            (Order::Hibernate, _) => return self.hibernate(progress),
            (Order::Wake { reap }, _) => return self.wake(progress, reap),
            (Order::Processes, _) => self.post(of, EVENT_PROCESSES, 0, 0),
            (Order::Usage, _) => {
                progress.usage_asked += 1;
                self.post(of, EVENT_USAGE, 0, progress.usage_asked.cast_signed());
            }
            (Order::Pause, ContainerId::FIRST) => return self.pause(progress),
            (Order::Pause, _) => return self.pause_container(progress, of),
            (Order::Resume, ContainerId::FIRST) => return self.resume(progress),
            (Order::Resume, _) => return self.resume_container(progress, of),
            (Order::Update { limits }, _) => self.change_limits(progress, of, &limits),
            (Order::State, _) => {}
            _ => return Err("it is not waiting for this".into()),
        }
        Ok(())
    }

    fn start(&self, progress: &mut Progress, of: ContainerId) -> Result<(), String> {
        let (is_ending, is_asleep) = (progress.ending, progress.awaits_start());
        let container = progress.containers.get_mut(of);
        // A sandbox of `dormouse do` starts by itself.
        let container = container.filter(|container| container.leash.is_some() || container.keeper.is_some());
        let container = container.ok_or("it is not waiting for this")?;
        if container.stage != Stage::Created || is_ending {
            return Err("it has been started before".into());
        }
        container.stage = Stage::Starting;
        if is_asleep {
            self.start_if_complete(progress);
        } else {
            self.post(of, EVENT_START, 0, 0);
        }
        Ok(())
    }

    /// A signal for a container. `SIGSTOP` and `SIGCONT` mean the sandbox, if it is the first one's.
    fn kill(&self, progress: &mut Progress, of: ContainerId, signal: i32, flags: u32) -> Result<(), String> {
        if !(1..=vmm::signals::SIGNAL_MAX).contains(&signal) {
            return Err(format!("{signal} is not a signal"));
        }
        let has_leash = progress.containers.first().leash.is_some();
        match (signal, of) {
            (libc::SIGSTOP, ContainerId::FIRST) => self.want_rest(progress, Cause::Signal),
            // As in a frozen control group, it has an effect only afterwards.
            (libc::SIGCONT, _)
                if progress.machine.is_held() && (of == ContainerId::FIRST || !progress.awaits_start()) =>
            {
                self.deliver(progress, of, libc::SIGCONT, 0);
            }
            (libc::SIGCONT, ContainerId::FIRST) if !has_leash && !progress.machine.wants_rest() => {
                self.deliver(progress, of, libc::SIGCONT, 0);
            }
            (libc::SIGCONT, ContainerId::FIRST) => {
                self.want_running(progress, Cause::Signal);
                self.continue_leash(progress);
            }
            (libc::SIGSTOP | libc::SIGCONT, _) => self.tell_leash(progress, of, signal),
            (_, further) if further != ContainerId::FIRST && progress.awaits_start() => {
                self.signal_before_it_goes_on(progress, of, signal, flags);
            }
            _ => self.deliver(progress, of, signal, flags),
        }
        Ok(())
    }

    /// Tells the kernel of limits. Its answer has the number of the request, so that one which comes late answers nobody else.
    fn change_limits(&self, progress: &mut Progress, of: ContainerId, limits: &ContainerLimits) {
        let request = progress.limits_asked.wrapping_add(1) % REQUESTS;
        progress.limits_asked = request;
        // Without a limit of memory there is nothing that the kernel could refuse.
        if limits.memory_max.is_none() {
            progress.limits = Some((request, Ok(())));
        }
        limits.events(of.0, request).for_each(|event| self.events.post(event));
    }

    /// Carries out `pause`: the sandbox rests until `resume`, in memory or hibernated, as it was started.
    fn pause(&self, progress: &mut Progress) -> Result<(), String> {
        if progress.machine.is_held() {
            return Err(format!("{}; it is paused already", words::NOT_RUNNING));
        }
        let hibernates = self.pause_hibernates && progress.is_running() && self.can_hibernate.is_ok();
        let (cause, now) = (Cause::Pause, Instant::now());
        self.step(progress, Input::WantRest { cause, hibernates, now }, News::default());
        Ok(())
    }

    fn resume(&self, progress: &mut Progress) -> Result<(), String> {
        if progress.awaits_start()
            || !progress.machine.is_held() && progress.status(ContainerId::FIRST) != Status::Paused
        {
            return Err(words::NOT_PAUSED.into());
        }
        self.want_running(progress, Cause::Resume);
        self.continue_leash(progress);
        Ok(())
    }

    fn hibernate(&self, progress: &mut Progress) -> Result<(), String> {
        self.can_hibernate.clone()?;
        if !progress.is_running() {
            return Err("its first process does not run yet".into());
        }
        if progress.machine.is_hibernated() && !progress.machine.is_waking() {
            return Err("it is hibernated already".into());
        }
        if progress.is_captured() {
            return Err("its snapshot is still being written; try again then".into());
        }
        self.want_rest(progress, Cause::Order);
        Ok(())
    }

    pub(super) fn wake(&self, progress: &mut Progress, reap: Option<Reap>) -> Result<(), String> {
        if progress.awaits_start() {
            return Err("its first process does not run yet; start it first".into());
        }
        if !progress.machine.is_hibernated() && progress.machine.hibernation().is_none() {
            return Err("it is not hibernated".into());
        }
        if progress.machine.is_hibernated() && !progress.machine.is_waking() {
            self.hibernation.begin_wake(reap);
        }
        self.want_running(progress, Cause::Order);
        self.continue_leash(progress);
        Ok(())
    }

    /// A signal for the container.
    pub(super) fn deliver(&self, progress: &mut Progress, of: ContainerId, signal: i32, flags: u32) {
        self.post(of, EVENT_SIGNAL, flags, i64::from(signal));
        self.wake_for_signal(progress);
    }

    /// Posts an event that is about a container.
    pub(super) fn post(&self, of: ContainerId, kind: u32, flags: u32, value: i64) {
        self.events.post(Event { kind, flags, token: of.0, value });
    }

    pub(super) fn wake_for_signal(&self, progress: &mut Progress) {
        // The receiver of a signal has to run to see it. The signal is there by then, so the sandbox is not idle.
        if progress.machine.is_hibernated() || progress.machine.hibernation().is_some() {
            self.want_running(progress, Cause::Request("signal"));
            self.continue_leash(progress);
        }
    }
}
