//! The exec relay: the VMM's side of processes that `dormouse exec` adds to a running sandbox.
//!
//! Each exec'd process has a connection to the control socket, for its life: the other end is the command, or its
//! leash. Signals and sizes of the terminal come over it; reports of the process's start and end go back. When the
//! connection is closed the process is killed, and when the process has ended the connection is closed. The kernel
//! takes a request when it gets to it; until then the request's descriptors are here.
#![deny(unsafe_code)]

pub(crate) mod handover;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::thread;
use std::time::Instant;

use abi::hostcall::{EVENT_EXEC_SIGNAL, EVENT_EXEC_WINSIZE, Event};
use serde::{Deserialize, Serialize};

use crate::companions::{PATIENCE, SETTLING};
use crate::errno::Errno;
use crate::hostcall::host_io::HostIo;
use crate::lock::{Guard, Mutex, Rank};
use crate::process;
use crate::request::Request;
use crate::signals::SIGNAL_MAX;
pub use handover::MakePeer;

/// Most exec'd processes at a time.
pub const EXECS_MAX: usize = 128;
/// Most further descriptors that a process may get beside its standard streams.
pub const PRESERVED_MAX: usize = 64;
/// Most streams of one.
pub const STREAMS_MAX: usize = 3 + PRESERVED_MAX;
/// Most events that are kept for a process until it has started.
const WAITING_MAX: usize = 64;
/// Why none is added to a sandbox that ends.
const OVER: &str = "it has ended";

/// A report about a process to its peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "exec", rename_all = "lowercase")]
pub enum ExecReport {
    /// Its program runs, as this process of the sandbox.
    Started { pid: u32 },
    /// It does not run; with the exit code that a shell would give.
    Failed { message: String, code: u8 },
    /// It has ended with this wait status.
    Exited { status: i32 },
}

/// An order of the peer's to its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecOrder {
    /// A signal for it, or for its terminal's foreground group.
    Signal { number: i32, foreground: bool },
    /// Its terminal has a new size.
    Resize { rows: u16, columns: u16 },
}

/// The orders that have come over a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub orders: Vec<ExecOrder>,
    /// The other side is gone, or sent something that is no order.
    pub is_over: bool,
}

/// The connection to the peer that asked for a process. It is kept for the process's life, and dropped at its end. No
/// call waits.
pub trait ExecPeer: Debug + Send {
    /// Readable when [`ExecPeer::receive`] has something to take.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Reports on the process; the other side may be gone.
    fn report(&self, report: &ExecReport);

    /// Reports that the process is not started, and why.
    fn refuse(&self, why: String);

    /// The bytes that were read and are no whole order yet.
    fn unread(&self) -> &[u8];

    /// Takes the orders that have come, or as many of them as are good at a time.
    fn receive(&mut self) -> Received;
}

#[derive(Debug)]
struct Exec {
    /// `None`: the peer is gone, and the process is to end.
    peer: Option<Box<dyn ExecPeer>>,
    /// Until the kernel takes it.
    request: Option<Request>,
    is_started: bool,
    /// Kept until it has started.
    waiting: Vec<Event>,
}

impl Exec {
    fn tell(&self, report: &ExecReport) {
        if let Some(peer) = &self.peer {
            peer.report(report);
        }
    }

    /// The orders of its peer as events; the end of the connection becomes a `SIGKILL`.
    fn orders(&mut self, id: u64) -> Vec<Event> {
        let Some(peer) = &mut self.peer else { return Vec::new() };
        let Received { orders, is_over } = peer.receive();
        let mut events: Vec<Event> = orders.into_iter().filter_map(|order| event(id, order)).collect();
        if is_over {
            self.peer = None;
        }
        if is_over && self.is_started {
            events.push(signal(id, libc::SIGKILL, false));
        }
        events
    }
}

fn signal(id: u64, number: i32, foreground: bool) -> Event {
    Event { kind: EVENT_EXEC_SIGNAL, flags: foreground.into(), token: id, value: number.into() }
}

/// The event for the kernel that an order becomes.
fn event(id: u64, order: ExecOrder) -> Option<Event> {
    match order {
        ExecOrder::Signal { number: number @ 1..=SIGNAL_MAX, foreground } => {
            Some(signal(id, number, foreground))
        }
        ExecOrder::Signal { .. } => None,
        ExecOrder::Resize { rows, columns } => {
            let value = i64::from(rows) << 16 | i64::from(columns);
            Some(Event { kind: EVENT_EXEC_WINSIZE, flags: 0, token: id, value })
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    execs: BTreeMap<u64, Exec>,
    /// Why nobody is added any more.
    refuses: Option<&'static str>,
    /// When the last one ended; its peer goes after that.
    last_end: Option<Instant>,
}

/// See the module. Any thread may call; nothing waits.
#[derive(Debug)]
pub struct ExecRelay(Mutex<Table>);

impl Default for ExecRelay {
    fn default() -> Self {
        Self(Mutex::new(Rank::ExecRelay, Table::default()))
    }
}

impl ExecRelay {
    fn lock(&self) -> Guard<'_, Table> {
        self.0.lock()
    }

    /// Adds a process; result: its id, and how many bytes its records have. `None`: there is no room, and the peer has
    /// been told.
    pub fn add(&self, peer: Box<dyn ExecPeer>, request: Request) -> Option<(u64, i64)> {
        let mut table = self.lock();
        if let Some(why) = table.refuses {
            peer.refuse(why.into());
            return None;
        }
        if table.execs.len() >= EXECS_MAX {
            peer.refuse(format!("{EXECS_MAX} others run already"));
            return None;
        }
        table.last += 1;
        let (id, len) = (table.last, request.len());
        let exec = Exec { peer: Some(peer), request: Some(request), is_started: false, waiting: Vec::new() };
        table.execs.insert(id, exec);
        Some((id, len))
    }

    /// Leaves the ids up to this one to processes that the kernel has had. Called before any is added.
    pub fn begin_after(&self, last: u64) {
        // Ids that are yet to be given are above it.
        self.lock().last = last.min(u64::MAX / 2);
    }

    /// The last id that was given.
    pub(crate) fn last(&self) -> u64 {
        self.lock().last
    }

    /// The descriptors of the connections, to be polled.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.lock()
            .execs
            .values()
            .filter_map(|exec| exec.peer.as_ref().map(|peer| peer.descriptor().as_raw_fd()))
            .collect()
    }

    /// Whether one has not begun yet.
    pub fn is_any_starting(&self) -> bool {
        self.lock().execs.values().any(|exec| !exec.is_started && exec.peer.is_some())
    }

    /// The events for the kernel from the orders that have come.
    pub fn orders(&self) -> Vec<Event> {
        let mut all = Vec::new();
        self.lock().execs.retain(|id, exec| {
            let events = exec.orders(*id);
            if exec.is_started {
                all.extend(events);
            } else {
                let room = WAITING_MAX.saturating_sub(exec.waiting.len());
                exec.waiting.extend(events.into_iter().take(room));
            }
            // A request that the kernel has not taken is dropped when its peer is gone.
            exec.peer.is_some() || exec.request.is_none()
        });
        all
    }

    /// The kernel takes the request that it was told of; an error has been reported to the peer.
    pub fn take(&self, id: u64, io: &HostIo) -> Result<Vec<u8>, Errno> {
        let request = self.lock().execs.get_mut(&id).and_then(|exec| exec.request.take());
        let given = request.ok_or(Errno(libc::ESRCH))?.give(io);
        given.map_err(|error| {
            self.failed(id, 125, &format!("its streams cannot be handed over: {error}"));
            Errno(libc::ESRCH)
        })
    }

    /// Its program runs; result: the events that have come for it meanwhile.
    pub fn started(&self, id: u64, pid: u32) -> Vec<Event> {
        let mut table = self.lock();
        let Some(exec) = table.execs.get_mut(&id) else { return Vec::new() };
        exec.is_started = true;
        exec.tell(&ExecReport::Started { pid });
        let mut events = std::mem::take(&mut exec.waiting);
        if exec.peer.is_none() {
            events.push(signal(id, libc::SIGKILL, false));
        }
        events
    }

    /// It does not come to run its program.
    pub fn failed(&self, id: u64, code: u8, message: &str) {
        let mut table = self.lock();
        table.last_end = Some(Instant::now());
        if let Some(exec) = table.execs.remove(&id) {
            exec.tell(&ExecReport::Failed { message: message.into(), code });
        }
    }

    /// The sandbox ends, and all of them with it: their peers are told.
    pub fn end(&self) {
        let mut table = self.lock();
        table.refuses = Some(OVER);
        for exec in table.execs.values() {
            match &exec.peer {
                Some(_) if exec.is_started => exec.tell(&ExecReport::Exited { status: libc::SIGKILL }),
                Some(peer) => peer.refuse(OVER.into()),
                None => {}
            }
        }
    }

    /// After [`ExecRelay::end`]: waits until the peers whose process had begun have ended, but not for ever.
    pub fn outlive(&self) {
        if self.outlive_begun() {
            thread::sleep(SETTLING);
        }
        let last_end = self.lock().last_end;
        if let Some(left) = last_end.and_then(|end| SETTLING.checked_sub(end.elapsed())) {
            thread::sleep(left);
        }
    }

    /// Waits until their connections are closed. Result: whether there were any.
    fn outlive_begun(&self) -> bool {
        let start = Instant::now();
        let mut was_any = false;
        loop {
            let mut table = self.lock();
            let begun = table.execs.values_mut().filter(|exec| exec.is_started);
            let peers = begun.filter_map(|exec| exec.peer.as_mut());
            let left =
                peers.filter_map(|peer| (!peer.receive().is_over).then(|| peer.descriptor().as_raw_fd()));
            let left: Vec<RawFd> = left.collect();
            drop(table);
            if left.is_empty() || start.elapsed() > PATIENCE {
                return was_any;
            }
            was_any = true;
            let _ = process::wait_any(&left, 100);
        }
    }

    /// It has ended.
    pub fn ended(&self, id: u64, status: i32) {
        let mut table = self.lock();
        if let Some(exec) = table.execs.remove(&id) {
            exec.tell(&ExecReport::Exited { status });
            table.last_end = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

    use super::*;
    use crate::boot::{BootSpec, Stream};

    fn records() -> Vec<u8> {
        let streams = (0..3).map(|fd| Stream { fd, handle: fd, flags: 0 }).collect();
        BootSpec { args: vec![b"true".to_vec()], streams, ..BootSpec::default() }.process_records()
    }

    fn streams(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect()
    }

    /// The relay's end of a connection.
    #[derive(Debug)]
    struct Peer {
        connection: OwnedFd,
        orders: Receiver<ExecOrder>,
        reports: Sender<ExecReport>,
    }

    impl ExecPeer for Peer {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.connection.as_fd()
        }

        fn report(&self, report: &ExecReport) {
            let _ = self.reports.send(report.clone());
        }

        fn refuse(&self, _why: String) {}

        fn unread(&self) -> &[u8] {
            &[]
        }

        fn receive(&mut self) -> Received {
            let mut received = Received::default();
            loop {
                match self.orders.try_recv() {
                    Ok(order) => received.orders.push(order),
                    Err(error) => {
                        received.is_over = error == TryRecvError::Disconnected;
                        return received;
                    }
                }
            }
        }
    }

    /// The peer's end: orders to the process, and reports from it.
    pub(super) type Asker = (Sender<ExecOrder>, Receiver<ExecReport>);

    fn connection() -> (Box<dyn ExecPeer>, Asker) {
        let (asking, orders) = channel();
        let (reports, told) = channel();
        let connection = streams(1).remove(0);
        (Box::new(Peer { connection, orders, reports }), (asking, told))
    }

    pub(super) fn execs() -> (ExecRelay, u64, Asker) {
        let (execs, (theirs, ours)) = (ExecRelay::default(), connection());
        let (id, _) = execs.add(theirs, Request::for_process(records(), streams(3)).unwrap()).unwrap();
        (execs, id, ours)
    }

    pub(super) fn told((_, reports): &Asker) -> Vec<ExecReport> {
        reports.try_iter().collect()
    }

    #[test]
    fn a_request_says_what_a_process_is_and_nothing_else() {
        assert!(Request::for_process(records(), streams(3)).is_ok());
        assert!(Request::for_process(records(), streams(2)).unwrap_err().contains("record 7"));
        let mut whole = BootSpec { args: vec![b"x".to_vec()], ..BootSpec::default() }.records();
        assert!(Request::for_process(whole.clone(), Vec::new()).unwrap_err().contains("malformed"));
        assert!(Request::for_process(Vec::new(), Vec::new()).unwrap_err().contains("no program"));
        whole = records();
        whole.pop();
        assert!(Request::for_process(whole, streams(3)).unwrap_err().contains("cut off"));
        let long = BootSpec { args: vec![vec![b'x'; 1 << 20]], ..BootSpec::default() }.process_records();
        assert!(Request::for_process(long, Vec::new()).unwrap_err().contains("more than"));
    }

    #[test]
    fn what_comes_before_the_start_is_kept_until_then() {
        let (execs, id, peer) = execs();
        peer.0.send(ExecOrder::Signal { number: libc::SIGTERM, foreground: false }).unwrap();
        peer.0.send(ExecOrder::Signal { number: SIGNAL_MAX + 1, foreground: false }).unwrap();
        assert!(execs.orders().is_empty() && execs.is_any_starting());
        let events = execs.started(id, 7);
        assert_eq!(events, [signal(id, libc::SIGTERM, false)]);
        peer.0.send(ExecOrder::Resize { rows: 2, columns: 3 }).unwrap();
        let kinds: Vec<_> = execs.orders().iter().map(|event| (event.kind, event.value)).collect();
        assert_eq!(kinds, [(EVENT_EXEC_WINSIZE, 2 << 16 | 3)]);
        let start = Instant::now();
        execs.ended(id, 256);
        // Its peer may be about to end.
        execs.outlive();
        assert!(start.elapsed() >= SETTLING);
        assert_eq!(told(&peer), [ExecReport::Started { pid: 7 }, ExecReport::Exited { status: 256 }]);
    }

    #[test]
    fn who_goes_takes_the_process_along() {
        let (execs, id, peer) = execs();
        let io = HostIo::new(std::sync::Arc::new(|_| {})).unwrap();
        execs.take(id, &io).unwrap();
        assert_eq!((io.files().len(), execs.take(id, &io).unwrap_err()), (3, Errno(libc::ESRCH)));
        drop(peer);
        assert!(execs.orders().is_empty() && execs.descriptors().is_empty());
        assert_eq!(execs.started(id, 7), [signal(id, libc::SIGKILL, false)]);
        execs.ended(id, 9);
        assert!(execs.lock().execs.is_empty());
    }

    #[test]
    fn at_the_end_all_are_told_and_those_that_had_begun_are_waited_for() {
        let (execs, (theirs, ours)) = (ExecRelay::default(), connection());
        let (begun, _) = execs.add(theirs, Request::for_process(records(), streams(3)).unwrap()).unwrap();
        execs.started(begun, 7);
        let (theirs, waits) = connection();
        execs.add(theirs, Request::for_process(records(), streams(3)).unwrap()).unwrap();
        execs.end();
        assert_eq!(told(&ours)[1..], [ExecReport::Exited { status: libc::SIGKILL }]);
        let goes = std::thread::spawn(move || drop(ours));
        execs.outlive();
        goes.join().unwrap();
        let (late, _) = connection();
        assert!(execs.add(late, Request::for_process(records(), streams(3)).unwrap()).is_none());
        drop(waits);
    }

    #[test]
    fn who_goes_before_the_kernel_looks_leaves_nothing() {
        let (execs, id, peer) = execs();
        drop(peer);
        assert!(execs.orders().is_empty());
        assert!(execs.lock().execs.is_empty());
        let io = HostIo::new(std::sync::Arc::new(|_| {})).unwrap();
        assert_eq!(execs.take(id, &io).unwrap_err(), Errno(libc::ESRCH));
    }

    #[test]
    fn streams_that_cannot_be_handed_over_are_all_given_back() {
        let (execs, (theirs, ours)) = (ExecRelay::default(), connection());
        let mut bad = streams(2);
        bad.push(std::fs::File::open("/").unwrap().into());
        let (id, _) = execs.add(theirs, Request::for_process(records(), bad).unwrap()).unwrap();
        let io = HostIo::new(std::sync::Arc::new(|_| {})).unwrap();
        assert_eq!(execs.take(id, &io).unwrap_err(), Errno(libc::ESRCH));
        assert!(io.files().is_empty());
        let [ExecReport::Failed { code: 125, message }] = &told(&ours)[..] else { panic!() };
        assert!(message.contains("streams"), "{message}");
    }
}
