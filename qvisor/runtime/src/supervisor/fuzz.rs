//! For the fuzzer: a supervisor without a sandbox, whose peers say what the input says, and whose kernel answers in any order.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use abi::report::{self, Report};
use vmm::checkpoint::ImageTerms;
use vmm::exec_relay::EXECS_MAX;
use vmm::hibernate::{Hibernation, SwapPlan};
use vmm::host_paths::HostPaths;
use vmm::hostcall::events::EventQueue;

use super::Supervisor;
use super::containers::ContainerId;
use super::peers::{Asked, Peers};
use super::serve::Terms;
use super::waiters::WAITERS_MAX;
use crate::control::{self, Order};

/// Most peers that stay connected while others come.
const PEERS_MAX: usize = 200;

/// Bytes from this one on stand for the end of a hibernation, smaller ones for a report's first word.
const HIBERNATED: u8 = 0xc0;

/// A step of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// Takes as many bytes as the next byte says; if that is 0, all up to a newline, which is included.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = match self.byte()? {
            0 => self.0.iter().position(|byte| *byte == b'\n').map_or(self.0.len(), |at| at + 1),
            len => usize::from(len).min(self.0.len()),
        };
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        Some(bytes)
    }
}

struct World {
    supervisor: Supervisor,
    events: Arc<EventQueue>,
    peers: Peers,
    others: Vec<UnixStream>,
}

/// Plays one input. Panics where a sandbox's VMM would, or when more is kept than there is room for.
pub fn play(input: &[u8]) {
    let mut input = Input(input);
    let plan = SwapPlan { dir: Some(std::env::temp_dir()), ..SwapPlan::default() };
    let (Some(first), Ok((channel, _front))) = (input.byte(), UnixStream::pair()) else { return };
    let hibernation = match first & 1 {
        0 => Hibernation::none(),
        _ => Hibernation::open(&HostPaths::of_new_process(), plan).unwrap_or_else(|_| Hibernation::none()),
    };
    let events = Arc::new(EventQueue::new());
    let supervisor =
        Supervisor::new(Arc::new(channel), None, Arc::clone(&events), hibernation, first & 2 != 0);
    let mut world = World {
        supervisor: supervisor.expect("a pair of sockets"),
        events,
        peers: Peers::new(false),
        others: Vec::new(),
    };
    while world.step(&mut input).is_some() {
        let progress = world.supervisor.lock();
        assert!(progress.waiters.len() <= WAITERS_MAX && !progress.ending);
        drop(progress);
        assert!(world.supervisor.execs.descriptors().len() <= EXECS_MAX);
    }
    world.ends_well();
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.byte()? % 8 {
            // Somebody new says something.
            0 | 1 => {
                let (theirs, ours) = UnixStream::pair().ok()?;
                let _ = (&ours).write_all(input.bytes()?);
                self.peers.add(theirs, ContainerId::FIRST);
                self.others.push(ours);
                if self.others.len() > PEERS_MAX {
                    self.others.remove(0);
                }
            }
            // Somebody goes on, or goes.
            2 => {
                let which = usize::from(input.byte()?);
                let bytes = input.bytes()?;
                match self.others.get(which) {
                    Some(_) if bytes.is_empty() => drop(self.others.remove(which)),
                    Some(other) => {
                        let _ = other.set_nonblocking(true);
                        let _ = { other }.write(bytes);
                    }
                    None => {}
                }
            }
            // The kernel says something, or what became of a hibernation.
            3 => self.hear(input)?,
            4 => {
                let (what, id) = (input.byte()?, u64::from(input.byte()?));
                match what % 3 {
                    0 => drop(self.supervisor.execs.started(id, what.into())),
                    1 => self.supervisor.execs.failed(id, what, "so it is"),
                    _ => self.supervisor.execs.ended(id, what.into()),
                }
            }
            5 => drop(self.events.take(16)),
            6 => self.supervisor.tick(),
            _ => self.front(input.bytes()?),
        }
        self.take_orders();
        self.supervisor.pass_on_to_execs();
        Some(())
    }

    fn hear(&self, input: &mut Input<'_>) -> Option<()> {
        let (what, of, value) = (input.byte()?, u64::from(input.byte()?), u64::from(input.byte()?));
        if what >= HIBERNATED {
            self.supervisor.hibernated(of, what % 2 == 0);
            return Some(());
        }
        let payload = input.bytes()?;
        let words = [what.into(), of, value, 0, payload.len() as u64, 0];
        let room = usize::try_from(report::payload(&words).len).unwrap_or(0);
        let plain = [what.into(), of, value, 0, 0, 0];
        let report = Report::parse(&words, &payload[..room]).or_else(|| Report::parse(&plain, &[]));
        report.iter().for_each(|report| self.supervisor.report(report));
        Some(())
    }

    /// Carries out the orders that have arrived as [`Supervisor::serve`] does, except those that would end the process.
    fn take_orders(&mut self) {
        for Asked { peer, of, order, attached } in self.peers.orders() {
            match order {
                Order::Kill { signal: libc::SIGKILL, .. } => {}
                Order::Exec { paused, hook, probe, .. } => {
                    self.supervisor.exec(peer, of, attached, Terms { paused, hook, probe });
                }
                Order::Create { restores, .. } => {
                    self.supervisor.create(peer, of, attached, restores);
                }
                Order::Checkpoint { leave_running, refuses_connections, copies_files, seals, parent } => {
                    let terms = ImageTerms { leave_running, refuses_connections, copies_files, seals };
                    self.supervisor.checkpoint(peer, of, (attached.descriptors, parent), terms);
                }
                order => self.supervisor.obey_peer(peer, of, order),
            }
        }
    }

    fn front(&self, line: &[u8]) {
        match control::read_order(&mut { line }) {
            Ok(None) | Err(_) | Ok(Some(Order::Kill { signal: libc::SIGKILL, .. })) => {}
            Ok(Some(order)) => self.supervisor.obey_front(order),
        }
    }

    /// However it has got here: once the kernel does what it is asked, nobody who wants it to go on is left waiting.
    fn ends_well(&self) {
        let _ = self.supervisor.obey(ContainerId::FIRST, Order::Resume);
        let go = Order::Kill { signal: libc::SIGCONT, foreground: false, all: false };
        let _ = self.supervisor.obey(ContainerId::FIRST, go);
        let request = self.supervisor.lock().machine.requests();
        self.supervisor.report(&Report::Resumed { request: request.max(u64::from(u8::MAX)) });
        self.supervisor.report(&Report::Idle);
        let (usages, limits) = {
            let progress = self.supervisor.lock();
            (progress.usage_asked, progress.limits_asked)
        };
        (1..=usages).for_each(|request| self.supervisor.report(&Report::Usage { request, usage: None }));
        (1..=limits)
            .for_each(|request| self.supervisor.report(&Report::LimitAnswered { request, holds: true }));
        self.supervisor.report(&Report::Processes { container: ContainerId::FIRST, lines: b"" });
        let progress = self.supervisor.lock();
        assert!(
            !progress.machine.wants_rest()
                && !progress.machine.is_hibernated()
                && progress.machine.hibernation().is_none()
        );
        assert!(progress.waiters.is_empty());
    }
}
