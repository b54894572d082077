//! A sandbox that began with a snapshot: it is asleep until its start, which is a wake.
//!
//! Until then it is *held*, as by `pause`: no signal and nothing that comes for its programs makes it go on. The kernel is told
//! so once it has opened everything.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use abi::hostcall::{EVENT_FLAG_LETS_IN, EVENT_PAUSE_CONTAINER};
use vmm::checkpoint::ImageHead;
use vmm::process;

use super::Supervisor;
use super::arrivals::Arrivals;
use super::containers::ContainerId;
use super::progress::{News, Progress};
use super::stage::{Cause, Stage};
use super::state_machine::{Input, StateMachine};
use crate::{control, words};

impl Supervisor {
    /// Has this sandbox begin asleep, with the snapshot that has this head, and in which a pod has these `further` containers. `told`: to
    /// whoever takes the working set that it records.
    pub(crate) fn of_a_snapshot(self, head: &ImageHead, further: &[u64], told: Option<OwnedFd>) -> Self {
        self.execs.begin_after(head.last_exec);
        self.coming.begin_after(head.last_container);
        {
            let progress = &mut *self.lock();
            progress.machine = StateMachine::asleep();
            progress.is_restored = true;
            progress.arrivals = Arrivals::of(further);
            progress.working_set = told.map(UnixStream::from);
        }
        self
    }

    /// Whether it began with a snapshot.
    pub(crate) fn is_restored(&self) -> bool {
        self.lock().is_restored
    }

    /// The kernel has found everything that the snapshot needs. No wake event is to come before the start.
    pub(super) fn hold_until_start(&self, progress: &mut Progress, id: ContainerId) {
        if id == ContainerId::FIRST && progress.awaits_start() {
            self.are_all_there(progress);
            let input = Input::WantRest { cause: Cause::Pause, hibernates: true, now: Instant::now() };
            self.step(progress, input, News::default());
        }
    }

    /// Carries out the start.
    pub(super) fn start_restored(&self, progress: &mut Progress) {
        progress.has_gone_on = true;
        self.hibernation.begin_wake(None);
        self.want_running(progress, Cause::Order);
        self.continue_leash(progress);
    }

    /// It is to rest once it is started, but for what comes in by exec.
    pub(super) fn rest_at_start(&self, progress: &mut Progress, id: ContainerId) -> Result<(), String> {
        if id != ContainerId::FIRST || !progress.awaits_start() {
            return Err("it began with no snapshot, or has been started before".into());
        }
        progress.rests_at_start = true;
        progress.rest_asked += 1;
        self.post(id, EVENT_PAUSE_CONTAINER, 1 | EVENT_FLAG_LETS_IN, progress.rest_asked.cast_signed());
        Ok(())
    }

    /// It goes on, having rested at its start.
    pub(super) fn go_on(&self, progress: &mut Progress, id: ContainerId) -> Result<(), String> {
        if id != ContainerId::FIRST || !progress.rests_at_start {
            return Err(words::NOT_PAUSED.into());
        }
        progress.rests_at_start = false;
        progress.rest_asked += 1;
        self.post(id, EVENT_PAUSE_CONTAINER, 0, progress.rest_asked.cast_signed());
        self.wake_for_signal(progress);
        Ok(())
    }

    /// A sandbox of `dormouse do` starts by itself.
    pub(super) fn start_restored_command(&self, progress: &mut Progress, id: ContainerId) {
        if id == ContainerId::FIRST && self.is_command && progress.awaits_start() {
            if let Some(first) = progress.containers.get_mut(id) {
                first.stage = Stage::Starting;
            }
            self.start_restored(progress);
        }
    }

    /// It goes on: if it was started, its programs run.
    pub(super) fn goes_on_as_started(&self, progress: &mut Progress) {
        let is_starting = progress.containers.first().stage == Stage::Starting;
        if progress.is_restored && is_starting && !progress.machine.is_hibernated() {
            let further = progress.containers.further().filter(|(_, one)| one.stage == Stage::Starting);
            let all: Vec<ContainerId> = further.map(|(id, _)| id).chain([ContainerId::FIRST]).collect();
            for id in all {
                self.reached(progress, id, Stage::Running, &control::Report::Started);
            }
        }
    }
}

impl Progress {
    /// Whether it began with a snapshot, and has not been started; a pod goes on once all its containers have been.
    pub(super) fn awaits_start(&self) -> bool {
        self.is_restored && !self.has_gone_on
    }

    /// Passes the working set on that was recorded, to whoever takes it for a stranger's. There is one.
    pub(super) fn tell_working_set(&mut self, frames: &[u8]) {
        if let Some(told) = self.working_set.take() {
            // There is room for it; what there is none for is not waited for.
            let _ = process::send_now(&told, frames);
        }
    }

    /// The kernel cannot go on with what it has found.
    pub(super) fn could_not_begin(&mut self, why: String) {
        for container in self.containers.all_mut().filter(|_| self.is_restored) {
            container.tell(&control::Report::Failed { message: why.clone(), code: None });
            container.said = Some(why.clone());
        }
    }

    /// The words for a first container that ended before its program ran, and whose last words are these.
    pub(super) fn why_it_did_not_run(&self, said: String) -> String {
        if self.is_restored { said } else { format!("{said}; correct process in config.json") }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use abi::hostcall::{EVENT_FLAG_HELD, EVENT_HIBERNATE, EVENT_SIGNAL, EVENT_WAKE};
    use abi::report::{Report, WakeEvent};
    use vmm::hibernate::Hibernation;
    use vmm::hostcall::events::EventQueue;

    use super::*;
    use crate::control::{Answer, Order};
    use crate::status::{SandboxState, Status};
    use crate::supervisor::containers::SupervisedContainer;

    const FIRST: ContainerId = ContainerId::FIRST;

    struct World {
        supervisor: Supervisor,
        events: Arc<EventQueue>,
        front: BufReader<UnixStream>,
    }

    /// Of a snapshot.
    pub(in crate::supervisor) fn head() -> ImageHead {
        ImageHead {
            kernel: String::new(),
            stub: String::new(),
            is_kvm: false,
            cpus: 1,
            memory_bytes: 1 << 30,
            memory_most_bytes: 1 << 30,
            kernel_bytes: 1 << 30,
            vmms: 1,
            handles: 3,
            last_container: 4,
            last_exec: 5,
            pages: 0,
            taken_bytes: 0,
        }
    }

    impl World {
        fn new() -> Self {
            let events = Arc::new(EventQueue::new());
            let (channel, front) = UnixStream::pair().unwrap();
            let none = Hibernation::none();
            let made = Supervisor::new(Arc::new(channel), None, Arc::clone(&events), none, false).unwrap();
            let supervisor = made.of_a_snapshot(&head(), &[], None);
            Self { supervisor, events, front: BufReader::new(front) }
        }

        fn ask(&self, order: Order) -> BufReader<UnixStream> {
            let (theirs, ours) = UnixStream::pair().unwrap();
            self.supervisor.obey_peer(theirs, FIRST, order);
            BufReader::new(ours)
        }

        fn answer(&self, order: Order) -> Answer {
            read(&mut self.ask(order))
        }

        fn kinds(&self) -> Vec<(u32, u32, i64)> {
            self.events.take(16).iter().map(|event| (event.kind, event.flags, event.value)).collect()
        }
    }

    fn read<T: serde::de::DeserializeOwned>(from: &mut BufReader<UnixStream>) -> T {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Its leash: what stands for it on the host is not played here, so it is taken to be a keeper's.
    fn has_leash(world: &World) {
        use crate::control::Lines;
        use crate::supervisor::containers::Keeper;
        let (line, _) = UnixStream::pair().unwrap();
        let dir = testdir::TempDir::new();
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
        let progress = &mut *world.supervisor.lock();
        let first: &mut SupervisedContainer = progress.containers.get_mut(FIRST).unwrap();
        first.keeper = Some(Keeper { line: Lines::new(line), listener });
    }

    #[test]
    fn it_sleeps_until_its_start() {
        let mut world = World::new();
        has_leash(&world);
        let supervisor = &world.supervisor;
        let state = world.answer(Order::State);
        assert_eq!(
            (state.status, state.sandbox_state),
            (Some(Status::Creating), Some(SandboxState::Hibernated))
        );
        supervisor.report(&Report::ContainerReady { container: FIRST });
        assert_eq!(read::<control::Report>(&mut world.front), control::Report::Created { number: 0 });
        // The kernel is told that nothing is to wake it.
        let [(kind, flags, request)] = world.kinds()[..] else { panic!("one request") };
        assert_eq!((kind, flags & EVENT_FLAG_HELD, request), (EVENT_HIBERNATE, EVENT_FLAG_HELD, 1));
        supervisor.hibernated(1, true);
        let state = world.answer(Order::State);
        assert_eq!(
            (state.status, state.sandbox_state),
            (Some(Status::Created), Some(SandboxState::Hibernated))
        );
        for order in [Order::Wake { reap: None }, Order::Resume, Order::Hibernate] {
            assert!(world.answer(order.clone()).error.is_some(), "{order:?}");
        }
        // A signal waits.
        world.answer(Order::Kill { signal: 15, foreground: false, all: false });
        assert_eq!(world.kinds().iter().map(|event| event.0).collect::<Vec<_>>(), [EVENT_SIGNAL]);
        let mut start = world.ask(Order::Start);
        assert_eq!(world.kinds(), [(EVENT_WAKE, 0, 2)]);
        assert!(world.answer(Order::Start).error.unwrap().contains("started before"));
        assert!(vmm::process::receive_now(start.get_ref(), &mut [0]).is_none(), "it does not run yet");
        supervisor.report(&Report::Resumed { request: 2 });
        assert_eq!(read::<Answer>(&mut start).error, None);
        assert_eq!(read::<control::Report>(&mut world.front), control::Report::Started);
        let state = world.answer(Order::State);
        assert_eq!((state.status, state.sandbox_state), (Some(Status::Running), Some(SandboxState::WokenUp)));
    }

    #[test]
    fn a_start_before_the_kernel_is_held_and_a_wake_event_before_that_are_no_trouble() {
        let world = World::new();
        has_leash(&world);
        world.supervisor.report(&Report::ContainerReady { container: FIRST });
        world.supervisor.report(&Report::WakeEvent { by: WakeEvent::Socket });
        let mut start = world.ask(Order::Start);
        // The last request counts.
        assert_eq!(world.kinds(), [(EVENT_WAKE, 0, 2)]);
        world.supervisor.hibernated(1, false);
        world.supervisor.report(&Report::Resumed { request: 2 });
        assert_eq!(read::<Answer>(&mut start).error, None);
    }

    #[test]
    fn it_rests_at_its_start_until_it_is_to_go_on() {
        let world = World::new();
        has_leash(&world);
        assert!(world.answer(Order::GoOn).error.is_some());
        world.supervisor.report(&Report::ContainerReady { container: FIRST });
        world.kinds();
        assert_eq!(world.answer(Order::RestAtStart).error, None);
        let _start = world.ask(Order::Start);
        let rests = (EVENT_PAUSE_CONTAINER, 1 | EVENT_FLAG_LETS_IN, 1);
        assert_eq!(world.kinds(), [rests, (EVENT_WAKE, 0, 2)]);
        world.supervisor.report(&Report::Resumed { request: 2 });
        assert!(world.answer(Order::RestAtStart).error.is_some(), "it has been started");
        assert_eq!(world.answer(Order::GoOn).error, None);
        assert_eq!(world.kinds(), [(EVENT_PAUSE_CONTAINER, 0, 2)]);
        assert!(world.answer(Order::GoOn).error.is_some());
    }

    #[test]
    fn why_it_could_not_begin_is_kept() {
        let world = World::new();
        let why = b"the snapshot was made with a file /a, which is gone";
        world.supervisor.report(&Report::ContainerFailed { container: FIRST, status: 256, why });
        let progress = world.supervisor.lock();
        let said = progress.containers.first().said.clone().unwrap();
        assert_eq!(progress.why_it_did_not_run(said).as_bytes(), why);
    }

    #[test]
    fn the_working_set_is_passed_on_once() {
        use std::io::Read;
        let world = World::new();
        let (told, mut other) = UnixStream::pair().unwrap();
        // Nobody asks for it.
        world.supervisor.report(&Report::WorkingSet { frames: &[1, 0, 0, 0] });
        world.supervisor.lock().working_set = Some(told);
        for frames in [[2, 0, 0, 0], [3, 0, 0, 0]] {
            world.supervisor.report(&Report::WorkingSet { frames: &frames });
        }
        let mut bytes = Vec::new();
        other.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, [2, 0, 0, 0]);
    }
}
