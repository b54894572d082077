//! The supervisor without a sandbox: the kernel's part is played here.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::hostcall::{
    EVENT_EXEC, EVENT_EXEC_SIGNAL, EVENT_FLAG_HELD, EVENT_HIBERNATE, EVENT_PAUSE, EVENT_SIGNAL, EVENT_WAKE,
    Event,
};
use abi::limits::split_event_flags;
use abi::report::{Report, WakeEvent};
use testdir::TempDir;
use vmm::boot::BootSpec;
use vmm::exec_relay::ExecReport;
use vmm::hibernate::{ExecProbe, Hibernation, SwapPlan};
use vmm::host_paths::HostPaths;
use vmm::hostcall::events::EventQueue;
use vmm::limits::ContainerLimits;

use super::Supervisor;
use super::containers::ContainerId;
use super::peers::Attached;
use super::progress::News;
use super::serve::Terms;
use super::state_machine::{IDLE_PATIENCE, Input};
use crate::control::{Answer, Order};
use crate::status::{SandboxState, Status};

pub(super) struct World {
    pub supervisor: Supervisor,
    pub events: Arc<EventQueue>,
    front: UnixStream,
    _dir: TempDir,
}

/// Of an order that takes time.
pub(super) struct Asked(BufReader<UnixStream>);

impl Asked {
    pub(super) fn answer(&mut self) -> Answer {
        let mut line = String::new();
        self.0.get_ref().set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    pub(super) fn error(&mut self) -> String {
        self.answer().error.unwrap()
    }

    pub(super) fn stream(&self) -> &UnixStream {
        self.0.get_ref()
    }

    pub(super) fn is_waiting(&self) -> bool {
        vmm::process::receive_now(self.0.get_ref(), &mut [0]).is_none()
    }
}

impl World {
    pub(super) fn new(can_hibernate: bool) -> Self {
        Self::with(can_hibernate, false)
    }

    fn with(can_hibernate: bool, pause_hibernates: bool) -> Self {
        let dir = TempDir::new();
        let plan = SwapPlan { dir: Some(dir.path().to_owned()), ..SwapPlan::default() };
        let hibernation = if can_hibernate {
            Hibernation::open(&HostPaths::of_new_process(), plan).unwrap()
        } else {
            Hibernation::none()
        };
        let events = Arc::new(EventQueue::new());
        let (channel, front) = UnixStream::pair().unwrap();
        let supervisor =
            Supervisor::new(Arc::new(channel), None, Arc::clone(&events), hibernation, pause_hibernates)
                .unwrap();
        supervisor.report(&Report::ContainerRunning { container: ContainerId::FIRST });
        Self { supervisor, events, front, _dir: dir }
    }

    pub(super) fn ask(&self, order: Order) -> Asked {
        self.ask_with(|supervisor, peer| supervisor.obey_peer(peer, ContainerId::FIRST, order))
    }

    pub(super) fn ask_with(&self, ask: impl FnOnce(&Supervisor, UnixStream)) -> Asked {
        let (theirs, ours) = UnixStream::pair().unwrap();
        ask(&self.supervisor, theirs);
        Asked(BufReader::new(ours))
    }

    /// Somebody wants a process in it.
    pub(super) fn exec(&self, paused: bool) -> Asked {
        self.enter(Terms { paused, ..Terms::default() })
    }

    fn enter(&self, terms: Terms) -> Asked {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let body = BootSpec { args: vec![b"true".to_vec()], ..BootSpec::default() }.process_records();
        self.supervisor.exec(theirs, ContainerId::FIRST, Attached { body, descriptors: Vec::new() }, terms);
        Asked(BufReader::new(ours))
    }

    /// Asks for a process. Result: whether the supervisor answered at once in the sleeping sandbox's place, with a
    /// start and an end of status 0.
    fn is_answered(&self, terms: Terms) -> bool {
        let mut said = String::new();
        let Asked(mut line) = self.enter(terms);
        line.get_ref().set_nonblocking(true).unwrap();
        let is_over = line.read_to_string(&mut said).is_ok();
        let lines: Vec<ExecReport> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let answer = [ExecReport::Started { pid: 0 }, ExecReport::Exited { status: 0 }];
        assert!(lines.is_empty() || is_over && lines == answer, "{lines:?}");
        is_over
    }

    fn signal(&self, signal: i32) {
        let answer = self.ask(Order::Kill { signal, foreground: false, all: false }).answer();
        assert_eq!(answer.error, None);
    }

    /// The kernel takes what it is told: kind, flags and number of the only event.
    pub(super) fn told(&self) -> (u32, u32, u64) {
        let events = self.events.take(16);
        let [Event { kind, flags, value, .. }] = events[..] else { panic!("{events:?}") };
        (kind, flags, value.cast_unsigned())
    }

    fn state(&self) -> (Option<Status>, Option<SandboxState>) {
        let answer = self.ask(Order::State).answer();
        (answer.status, answer.sandbox_state)
    }

    /// A tick at a time that may be another than now.
    fn ticks_at(&self, now: Instant) {
        let progress = &mut *self.supervisor.lock();
        self.supervisor.step(progress, Input::Tick { now }, News::default());
        self.supervisor.settle(progress);
    }

    /// Hibernates it by this request.
    pub(super) fn falls_asleep(&self, request: u64) {
        self.supervisor.report(&Report::Paused { request });
        self.supervisor.hibernated(request, true);
        assert_eq!(self.state(), (Some(Status::Running), Some(SandboxState::Hibernated)));
    }
}

const WAKE: Order = Order::Wake { reap: None };

#[test]
fn those_who_wait_are_answered_when_it_is_done() {
    let world = World::new(true);
    let (mut one, mut other) = (world.ask(Order::Hibernate), world.ask(Order::Hibernate));
    let (kind, flags, request) = world.told();
    assert_eq!((kind, flags), (EVENT_HIBERNATE, 1));
    assert!(one.is_waiting() && other.is_waiting());
    assert_eq!(world.state().1, Some(SandboxState::Warm), "nothing is held up");
    world.falls_asleep(request);
    assert!(one.answer().figures.is_some() && other.answer().figures.is_some());
    assert_eq!(world.ask(Order::Hibernate).error(), "it is hibernated already");
    let mut up = world.ask(WAKE);
    let (kind, _, request) = world.told();
    assert_eq!(kind, EVENT_WAKE);
    assert!(up.is_waiting());
    world.supervisor.report(&Report::Resumed { request });
    assert!(up.answer().figures.is_some());
    assert_eq!(world.state(), (Some(Status::Running), Some(SandboxState::WokenUp)));
    assert_eq!(world.ask(WAKE).error(), "it is not hibernated");
}

#[test]
fn the_last_order_counts_and_late_reports_do_not() {
    let world = World::new(true);
    let mut down = world.ask(Order::Hibernate);
    let first = world.told().2;
    let mut up = world.ask(WAKE);
    assert_eq!(down.error(), "it was woken meanwhile");
    let second = world.told().2;
    assert!(second > first && up.is_waiting());
    // The kernel was quicker, or reports in another order than it did it.
    world.falls_asleep(first);
    world.supervisor.report(&Report::Resumed { request: second });
    assert!(up.answer().error.is_none());
    world.supervisor.hibernated(first, true);
    world.supervisor.hibernated(first, false);
    assert_eq!(world.state().1, Some(SandboxState::WokenUp));
    // And the other way round.
    let mut down = world.ask(Order::Hibernate);
    world.falls_asleep(world.told().2);
    assert!(down.answer().error.is_none());
    let mut up = world.ask(WAKE);
    let wake = world.told().2;
    world.signal(libc::SIGSTOP);
    assert_eq!(up.error(), "a later request to hibernate it came in between");
    let (kind, _, again) = world.told();
    assert_eq!(kind, EVENT_HIBERNATE);
    world.supervisor.report(&Report::Resumed { request: wake });
    world.falls_asleep(again);
}

#[test]
fn one_that_is_never_idle_is_stopped_where_it_is() {
    let world = World::new(true);
    let before = Instant::now();
    let mut down = world.ask(Order::Hibernate);
    let first = world.told().2;
    world.ticks_at(before);
    world.ticks_at(before + IDLE_PATIENCE - Duration::from_millis(1));
    assert!(world.events.is_empty(), "not yet");
    std::thread::sleep(Duration::from_millis(220));
    world.supervisor.tick();
    let (kind, flags, second) = world.told();
    assert_eq!((kind, flags), (EVENT_HIBERNATE, 0));
    assert_eq!(second, first, "it is the same hibernation");
    assert!(down.is_waiting());
    world.supervisor.report(&Report::Paused { request: second });
    world.supervisor.hibernated(second, false);
    assert_eq!(down.error(), "it was never asked to");
    assert_eq!(world.state(), (Some(Status::Running), Some(SandboxState::Warm)));
    let answer = world.ask(Order::State).answer();
    assert_eq!(answer.hibernate_error.as_deref(), Some("it was never asked to"));
}

#[test]
fn one_that_is_on_its_way_down_is_not_hastened() {
    let world = World::new(true);
    let mut down = world.ask(Order::Hibernate);
    let request = world.told().2;
    world.supervisor.report(&Report::Paused { request });
    std::thread::sleep(Duration::from_millis(220));
    world.supervisor.tick();
    assert!(world.events.is_empty());
    world.supervisor.hibernated(request, true);
    assert!(down.answer().error.is_none());
    // What comes wakes it, by no request of ours.
    world.supervisor.report(&Report::WakeEvent { by: WakeEvent::Socket });
    world.supervisor.report(&Report::Resumed { request });
    assert!(world.events.is_empty());
    assert_eq!(world.state().1, Some(SandboxState::HibernateRunning));
}

#[test]
fn signals_wake_it_and_it_hibernates_by_itself() {
    let world = World::new(true);
    world.supervisor.report(&Report::IdleTimeout);
    world.falls_asleep(world.told().2);
    world.supervisor.report(&Report::IdleTimeout);
    assert!(world.events.is_empty());
    world.signal(libc::SIGTERM);
    let events = world.events.take(16);
    let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.flags)).collect();
    assert_eq!(kinds, [(EVENT_SIGNAL, 0), (EVENT_WAKE, 1)]);
    world.supervisor.report(&Report::Resumed { request: events[1].value.cast_unsigned() });
    assert_eq!(world.state().1, Some(SandboxState::HibernateRunning));
}

#[test]
fn one_without_swap_files_is_paused() {
    let world = World::new(false);
    assert_eq!(world.ask(Order::Hibernate).error(), "it has no swap files");
    world.supervisor.report(&Report::IdleTimeout);
    assert!(world.events.is_empty());
    world.signal(libc::SIGSTOP);
    let (kind, _, request) = world.told();
    assert_eq!(kind, EVENT_PAUSE);
    world.supervisor.report(&Report::Paused { request });
    assert_eq!(world.state(), (Some(Status::Paused), Some(SandboxState::Warm)));
    world.signal(libc::SIGCONT);
    world.supervisor.report(&Report::Resumed { request: world.told().2 });
    assert_eq!(world.state(), (Some(Status::Running), Some(SandboxState::Warm)));
}

#[test]
fn a_process_that_comes_in_wakes_it_and_keeps_it_awake_until_it_has_begun() {
    let world = World::new(true);
    let waiting = world.exec(false);
    let first = world.events.take(16);
    assert_eq!((first.len(), first[0].kind, first[0].flags), (1, EVENT_EXEC, 0));
    assert!(waiting.is_waiting());
    world.supervisor.report(&Report::IdleTimeout);
    assert!(world.events.is_empty(), "it is in use");
    assert!(world.supervisor.execs().started(first[0].token, 7).is_empty());
    world.supervisor.report(&Report::IdleTimeout);
    world.falls_asleep(world.told().2);
    let next = world.exec(false);
    let events = world.events.take(16);
    let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.flags)).collect();
    assert_eq!(kinds, [(EVENT_EXEC, 0), (EVENT_WAKE, 1)]);
    assert_ne!(events[0].token, first[0].token);
    world.supervisor.report(&Report::Resumed { request: events[1].value.cast_unsigned() });
    assert_eq!(world.state().1, Some(SandboxState::HibernateRunning));
    // The end of a connection is a signal for its process, which has to run to see it.
    world.supervisor.execs().started(events[0].token, 8);
    world.supervisor.report(&Report::IdleTimeout);
    world.falls_asleep(world.told().2);
    drop(next);
    world.supervisor.pass_on_to_execs();
    let events = world.events.take(16);
    let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.flags)).collect();
    assert_eq!(kinds, [(EVENT_EXEC_SIGNAL, 0), (EVENT_WAKE, 1)]);
    assert_eq!(events[0].value, i64::from(libc::SIGKILL));
}

#[test]
fn a_probe_is_answered_for_one_that_is_asleep_and_nobody_else() {
    let probe = Terms { probe: true, ..Terms::default() };
    let mut world = World::new(true);
    world.ask(Order::Hibernate);
    world.falls_asleep(world.told().2);
    assert!(!world.is_answered(probe), "nobody asked for that");

    world = World::new(true);
    world.supervisor = world.supervisor.with_exec_probe(ExecProbe::AsleepIsAlive);
    assert!(!world.is_answered(probe), "it is awake");
    world.events.take(16);
    world.ask(Order::Hibernate);
    let request = world.told().2;
    world.supervisor.report(&Report::Paused { request });
    assert!(!world.is_answered(probe), "it is about to sleep");
    let wake = world.events.take(16).pop().unwrap();
    world.supervisor.report(&Report::Resumed { request: wake.value.cast_unsigned() });
    world.ask(Order::Hibernate);
    world.falls_asleep(world.told().2);
    assert!(world.is_answered(probe) && world.is_answered(probe));
    assert!(world.events.is_empty(), "the kernel hears of nothing");
    assert_eq!(world.state().1, Some(SandboxState::Hibernated));
    assert_eq!(world.supervisor.lock().cycles.answered_probes, 2);
    // Who may be told of more than an exit code wakes it, and it is not asleep from then on.
    assert!(!world.is_answered(Terms::default()));
    assert_eq!(world.events.take(16).len(), 2);
    assert!(!world.is_answered(probe), "it wakes");
    assert_eq!(world.supervisor.lock().cycles.answered_probes, 2);
}

#[test]
fn a_probe_of_a_paused_one_is_refused_or_waits() {
    let mut world = World::with(true, true);
    world.supervisor = world.supervisor.with_exec_probe(ExecProbe::AsleepIsAlive);
    let paused = world.ask(Order::Pause);
    let request = world.told().2;
    world.supervisor.report(&Report::Paused { request });
    world.supervisor.hibernated(request, true);
    drop(paused);
    assert_eq!(world.state(), (Some(Status::Paused), Some(SandboxState::Hibernated)));
    let probe = Terms { probe: true, ..Terms::default() };
    assert!(world.enter(probe).error().contains("paused container"));
    assert!(!world.is_answered(Terms { paused: true, ..probe }));
    assert_eq!(world.supervisor.lock().cycles.answered_probes, 0);
}

#[test]
fn nothing_comes_into_a_paused_one_unless_that_is_known() {
    let world = World::new(false);
    world.signal(libc::SIGSTOP);
    world.supervisor.report(&Report::Paused { request: world.told().2 });
    assert!(world.exec(false).error().contains("paused container"));
    assert!(world.events.is_empty());
    assert!(world.exec(true).is_waiting());
    assert_eq!(world.told().0, EVENT_EXEC);
}

/// A sandbox stands still on its way into a hibernation. Whoever comes in meanwhile wakes it, and who comes next comes in as well:
/// nobody has paused it.
#[test]
fn whoever_calls_a_hibernation_off_leaves_no_pause() {
    let world = World::new(true);
    let _down = world.ask(Order::Hibernate);
    let request = world.told().2;
    world.supervisor.report(&Report::Paused { request });
    let first = world.exec(false);
    assert!(first.is_waiting());
    assert_eq!(world.state().0, Some(Status::Running));
    let second = world.exec(false);
    assert!(second.is_waiting(), "a process that comes in while the sandbox goes on again");
    let kinds: Vec<u32> = world.events.take(16).iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EVENT_EXEC, EVENT_WAKE, EVENT_EXEC]);
    assert_eq!(world.ask(Order::Resume).error(), "container not paused");
}

/// Reports overtake one another: that of a standstill may come after those of all that followed it.
#[test]
fn a_late_report_of_a_standstill_is_no_pause() {
    let world = World::new(true);
    let _down = world.ask(Order::Hibernate);
    let request = world.told().2;
    world.supervisor.hibernated(request, false);
    world.supervisor.report(&Report::Paused { request });
    assert_eq!(world.state(), (Some(Status::Running), Some(SandboxState::Warm)));
    assert!(world.exec(false).is_waiting());
    world.events.take(16);
    let _again = world.ask(Order::Hibernate);
    let request = world.told().2;
    world.supervisor.hibernated(request, true);
    world.supervisor.report(&Report::WakeEvent { by: WakeEvent::Socket });
    world.supervisor.report(&Report::Resumed { request });
    world.supervisor.report(&Report::Paused { request });
    assert_eq!(world.state().0, Some(Status::Running));
    assert!(world.exec(false).is_waiting());
}

#[test]
fn an_order_that_overtakes_a_wake_is_answered() {
    let world = World::new(true);
    let mut down = world.ask(Order::Hibernate);
    world.falls_asleep(world.told().2);
    assert!(down.answer().figures.is_some());
    let up = world.exec(false);
    assert_eq!(world.events.take(16).len(), 2);
    // The kernel is told of the hibernation before it has seen the wake, and has nothing to do.
    let mut again = world.ask(Order::Hibernate);
    let request = world.told().2;
    world.supervisor.report(&Report::Paused { request });
    world.supervisor.hibernated(request, true);
    assert!(again.answer().figures.is_some());
    assert!(up.is_waiting());
}

#[test]
fn what_the_kernel_says_again_or_too_late_is_not_passed_on() {
    let world = World::new(true);
    for _ in 0..1000 {
        world.supervisor.report(&Report::ContainerReady { container: ContainerId::FIRST });
        world.supervisor.report(&Report::ContainerRunning { container: ContainerId::FIRST });
        world.supervisor.report(&Report::ContainerRunning { container: ContainerId(1) });
    }
    let state = world.ask(Order::State).answer();
    assert_eq!(state.status, Some(Status::Running));
    assert_eq!(world.ask(Order::Start).error(), "it is not waiting for this");
    let mut said = [0; 4096];
    let got = vmm::process::receive_now(&world.front, &mut said).unwrap();
    assert_eq!(std::str::from_utf8(&said[..got]).unwrap(), "{\"report\":\"started\"}\n");
}

#[test]
fn what_is_paused_by_order_is_resumed_by_order_alone() {
    let world = World::new(true);
    let mut paused = world.ask(Order::Pause);
    let (kind, flags, request) = world.told();
    assert_eq!((kind, flags), (EVENT_PAUSE, EVENT_FLAG_HELD));
    assert!(paused.is_waiting());
    world.supervisor.report(&Report::Paused { request });
    assert_eq!(paused.answer().error, None);
    assert_eq!(world.state(), (Some(Status::Paused), Some(SandboxState::Warm)));
    assert!(world.ask(Order::Pause).error().contains("container not running"));
    // Neither a signal, nor one that is meant to, nor a process makes it go on; the signal waits there.
    for signal in [libc::SIGTERM, libc::SIGCONT, libc::SIGSTOP] {
        world.signal(signal);
        assert!(world.events.take(16).iter().all(|event| event.kind == EVENT_SIGNAL));
    }
    assert!(world.exec(false).error().contains("paused container"));
    assert_eq!(world.ask(WAKE).error(), "it is not hibernated");
    assert_eq!(world.state().0, Some(Status::Paused));
    let mut resumed = world.ask(Order::Resume);
    let (kind, _, request) = world.told();
    assert_eq!(kind, EVENT_WAKE);
    world.supervisor.report(&Report::Resumed { request });
    assert_eq!(resumed.answer().error, None);
    assert_eq!(world.state(), (Some(Status::Running), Some(SandboxState::Warm)));
    assert_eq!(world.ask(Order::Resume).error(), "container not paused");
}

#[test]
fn a_pause_may_hibernate_and_one_that_fails_stays_paused() {
    let world = World::with(true, true);
    let mut paused = world.ask(Order::Pause);
    let (kind, flags, request) = world.told();
    assert_eq!((kind, flags), (EVENT_HIBERNATE, 1 | EVENT_FLAG_HELD));
    world.supervisor.report(&Report::Paused { request });
    world.supervisor.hibernated(request, true);
    assert_eq!(paused.answer().error, None);
    assert_eq!(world.state(), (Some(Status::Paused), Some(SandboxState::Hibernated)));
    world.signal(libc::SIGTERM);
    assert_eq!(world.told().0, EVENT_SIGNAL);
    let mut resumed = world.ask(WAKE);
    world.supervisor.report(&Report::Resumed { request: world.told().2 });
    assert_eq!(resumed.answer().error, None);
    let mut paused = world.ask(Order::Pause);
    let request = world.told().2;
    world.supervisor.report(&Report::Paused { request });
    world.supervisor.hibernated(request, false);
    let (kind, flags, request) = world.told();
    assert_eq!((kind, flags), (EVENT_PAUSE, EVENT_FLAG_HELD));
    assert!(paused.is_waiting());
    world.supervisor.report(&Report::Paused { request });
    assert_eq!(paused.answer().error, None);
    assert_eq!(world.state().0, Some(Status::Paused));
}

#[test]
fn who_has_one_hibernated_that_is_held_hears_that_it_could_not() {
    let world = World::new(true);
    let mut paused = world.ask(Order::Pause);
    let (_, _, request) = world.told();
    world.supervisor.report(&Report::Paused { request });
    assert_eq!(paused.answer().error, None);
    let mut down = world.ask(Order::Hibernate);
    let (kind, _, request) = world.told();
    assert_eq!(kind, EVENT_HIBERNATE);
    world.supervisor.hibernated(request, false);
    let (kind, flags, request) = world.told();
    assert_eq!((kind, flags), (EVENT_PAUSE, EVENT_FLAG_HELD));
    world.supervisor.report(&Report::Paused { request });
    assert_eq!(down.error(), "it was never asked to");
    assert_eq!(world.state().0, Some(Status::Paused));
    let mut down = world.ask(Order::Hibernate);
    let (_, _, request) = world.told();
    assert!(down.is_waiting(), "what failed before is no answer");
    world.supervisor.report(&Report::Paused { request });
    world.supervisor.hibernated(request, true);
    assert!(down.answer().figures.is_some());
}

#[test]
fn one_that_is_hibernated_is_held_where_it_is() {
    let world = World::new(true);
    world.signal(libc::SIGSTOP);
    world.falls_asleep(world.told().2);
    let mut paused = world.ask(Order::Pause);
    let (kind, flags, request) = world.told();
    assert_eq!((kind, flags), (EVENT_HIBERNATE, 1 | EVENT_FLAG_HELD));
    world.supervisor.hibernated(request, true);
    assert_eq!(paused.answer().error, None);
    assert_eq!(world.state(), (Some(Status::Paused), Some(SandboxState::Hibernated)));
}

#[test]
fn an_answer_about_limits_is_for_the_request_it_names() {
    let world = World::new(false);
    let ask = |bytes| {
        let limits = ContainerLimits { memory_max: Some(bytes), ..ContainerLimits::default() };
        let asked = world.ask(Order::Update { limits });
        (asked, split_event_flags(world.told().1).1)
    };
    let ((mut first, one), (mut second, two)) = (ask(1 << 20), ask(2 << 20));
    assert_ne!(one, two);
    world.supervisor.report(&Report::LimitAnswered { request: two + 1, holds: true });
    assert!(first.is_waiting() && second.is_waiting(), "nobody has asked for that");
    world.supervisor.report(&Report::LimitAnswered { request: one, holds: false });
    assert!(first.error().contains("busy"));
    assert!(second.is_waiting(), "it came late, and was the first one's");
    world.supervisor.report(&Report::LimitAnswered { request: two, holds: true });
    assert_eq!(second.answer().error, None);
    // What the kernel cannot refuse it does not answer.
    let limits = ContainerLimits { tasks_max: Some(5), ..ContainerLimits::default() };
    assert_eq!(world.ask(Order::Update { limits }).answer().error, None);
}

#[test]
fn a_process_that_is_killed_for_its_memory_is_an_event() {
    let world = World::new(false);
    let mut events = world.ask(Order::Events { oom_only: false });
    let mut kills = world.ask(Order::Events { oom_only: true });
    let next = |reader: &mut Asked| {
        let mut line = String::new();
        reader.0.get_ref().set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        reader.0.read_line(&mut line).unwrap();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()
    };
    assert_eq!(next(&mut events)["to"], "warm");
    assert!(kills.is_waiting(), "that is none");
    world.supervisor.report(&Report::OomKill { container: ContainerId::FIRST });
    for reader in [&mut events, &mut kills] {
        let told = next(reader);
        assert_eq!((&told["type"], told.get("to")), (&"oom".into(), None));
    }
}
