//! The Unix sockets that are in messages, and how far the collector has got with each ([`super::collect`]).

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Bound;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::fs::file::File;
use crate::net::passing::Carrier;
use machine::sync::{Once, Rank, SpinLock};

/// Sockets that are looked at with the lock held.
const AT_ONCE: usize = 64;

/// How far a pass of the collector has got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    /// It chooses the candidates, and counts what their queues hold.
    Looking,
    /// It follows what can be reached. A candidate that moves is reached.
    Marking,
    /// It drops what was not reached.
    Sweeping,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// No concern of the pass: something else than messages held it when it was looked at, or it came later.
    Live,
    /// Only messages held it when it was looked at.
    Candidate,
    /// Something that lives leads to it.
    Reached,
}

/// A socket that is in messages.
struct Traveller {
    file: Weak<File>,
    /// References by messages. The file has at least as many.
    count: usize,
    /// Those of them that lie in queues of candidates, as far as they are counted.
    found: usize,
    /// The pass in, or after, which it was last put into a message or taken out of one.
    touched: u64,
    /// The pass that `found` and `verdict` are of.
    pass: u64,
    verdict: Verdict,
    /// The next one that was reached and is still to be followed.
    next: Option<u64>,
}

impl Traveller {
    fn new(file: Weak<File>) -> Self {
        Self { file, count: 0, found: 0, touched: 0, pass: 0, verdict: Verdict::Live, next: None }
    }

    fn is_candidate(&self, pass: u64) -> bool {
        self.pass == pass && self.verdict == Verdict::Candidate
    }

    /// Puts it before those that are still to be followed.
    fn reach(&mut self, id: u64, first: &mut Option<u64>) {
        self.verdict = Verdict::Reached;
        self.next = first.replace(id);
    }
}

pub(super) struct Table {
    /// By the file's id.
    sockets: BTreeMap<u64, Traveller>,
    /// The number of the last pass that has begun.
    pass: u64,
    /// The last socket that was there then: later ones are no concern of the pass.
    last: u64,
    stage: Stage,
    /// The first of those that were reached and are still to be followed.
    reached: Option<u64>,
}

pub(super) static TABLE: SpinLock<Table> = SpinLock::new(
    Rank::Leaf,
    Table { sockets: BTreeMap::new(), pass: 0, last: 0, stage: Stage::Idle, reached: None },
);

/// How many there are: most sandboxes have none.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The collector looks for what can be reached.
static LOOKED_FOR: AtomicBool = AtomicBool::new(false);
/// A reference to a socket that is in a message has gone since the last pass began: it may have been the last other one.
pub(super) static DUE: AtomicBool = AtomicBool::new(false);

/// Tells the socket behind a file, if it is one whose messages may have files.
type CarrierOf = for<'a> fn(&'a File) -> Option<&'a dyn Carrier>;

static CARRIER_OF: Once<CarrierOf> = Once::new();

/// There are such sockets. The first call counts.
pub fn register(carrier_of: CarrierOf) {
    CARRIER_OF.call_once(|| carrier_of);
}

/// The socket behind a file.
pub(super) fn carrier(file: &File) -> Option<&dyn Carrier> {
    CARRIER_OF.get().and_then(|carrier_of| carrier_of(file))
}

fn ids(files: &[Arc<File>]) -> impl Iterator<Item = (u64, &Arc<File>)> {
    files.iter().filter(|file| carrier(file).is_some()).map(|file| (file.id, file))
}

/// Sockets that are in messages.
pub(super) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Whether the collector is at work: who takes messages from where it looks for them tells of their files first ([`touch`]).
pub fn is_looked_for() -> bool {
    LOOKED_FOR.load(Ordering::SeqCst)
}

/// A descriptor of a file is closed. Result: to be called once its reference has gone, for a pass that begins before sees that.
pub fn after_close(file: &File) -> Option<fn()> {
    let is_in_message = count() != 0 && TABLE.lock().sockets.contains_key(&file.id);
    is_in_message.then_some(reference_went as fn())
}

/// A reference has gone, perhaps to a socket that is in a message.
pub(super) fn reference_went() {
    DUE.store(true, Ordering::SeqCst);
}

/// Files are put into a message. The caller has references of its own to them.
pub(super) fn depart(files: &[Arc<File>]) {
    for (id, file) in ids(files) {
        let table = &mut *TABLE.lock();
        table.sockets.entry(id).or_insert_with(|| Traveller::new(Arc::downgrade(file))).count += 1;
        table.touch(id);
        COUNT.store(table.sockets.len(), Ordering::Relaxed);
    }
}

/// Files in a locked queue are about to be taken out of it, or looked at.
pub(super) fn touch(files: &[Arc<File>]) {
    for (id, _) in ids(files) {
        TABLE.lock().touch(id);
    }
}

/// Files are in a message no more. The references themselves go later.
pub(super) fn land(files: &[Arc<File>]) {
    for (id, _) in ids(files) {
        let table = &mut *TABLE.lock();
        table.touch(id);
        let Some(socket) = table.sockets.get_mut(&id) else { continue };
        socket.count = socket.count.saturating_sub(1);
        if socket.count == 0 && !table.is_kept(id) {
            table.sockets.remove(&id);
        }
        COUNT.store(table.sockets.len(), Ordering::Relaxed);
    }
}

impl Table {
    /// A socket moves. While the collector follows what can be reached, it will follow this one as well: it may have been missed
    /// where it was, and where it comes to.
    fn touch(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        socket.touched = self.pass;
        if self.stage == Stage::Marking && socket.is_candidate(self.pass) {
            socket.reach(id, &mut self.reached);
        }
    }

    /// Whether a socket stays listed although no message holds it: the collector relied on it, and has to hear that it moved.
    fn is_kept(&self, id: u64) -> bool {
        let is_at_work = matches!(self.stage, Stage::Looking | Stage::Marking);
        let concerns = |socket: &Traveller| socket.pass == self.pass && socket.verdict != Verdict::Live;
        is_at_work && self.sockets.get(&id).is_some_and(concerns)
    }

    pub(super) fn begin(&mut self) {
        self.pass += 1;
        self.last = self.sockets.last_key_value().map_or(0, |(id, _)| *id);
        self.stage = Stage::Looking;
        self.reached = None;
        LOOKED_FOR.store(true, Ordering::SeqCst);
    }

    pub(super) fn end(&mut self) {
        self.stage = Stage::Idle;
        LOOKED_FOR.store(false, Ordering::SeqCst);
    }

    pub(super) fn begin_to_mark(&mut self) {
        self.stage = Stage::Marking;
    }

    /// Looks at some sockets from an id on; returns the id to go on from if there may be more.
    fn some(&mut self, from: u64, mut look: impl FnMut(u64, &mut Traveller) -> bool) -> Option<u64> {
        let (mut next, mut seen) = (None, 0);
        let mut gone = Vec::new();
        let places = (Bound::Included(from), Bound::Included(self.last.max(from)));
        for (id, socket) in self.sockets.range_mut(places) {
            if seen == AT_ONCE {
                next = Some(*id);
                break;
            }
            seen += 1;
            if !look(*id, socket) {
                gone.push(*id);
            }
        }
        gone.iter().for_each(|id| drop(self.sockets.remove(id)));
        COUNT.store(self.sockets.len(), Ordering::Relaxed);
        next
    }

    /// Chooses the candidates among some sockets: those that only messages hold.
    pub(super) fn choose(&mut self, from: u64) -> Option<u64> {
        let pass = self.pass;
        self.some(from, |_, socket| {
            let is_held_by_messages = socket.file.strong_count() == socket.count;
            let is_candidate = socket.touched < pass && is_held_by_messages;
            socket.verdict = if is_candidate { Verdict::Candidate } else { Verdict::Live };
            (socket.pass, socket.found, socket.next) = (pass, 0, None);
            socket.count != 0
        })
    }

    /// The candidates among some sockets, of those that are left.
    pub(super) fn candidates(&mut self, from: u64, list: &mut Vec<Weak<File>>) -> Option<u64> {
        let (pass, sweeps) = (self.pass, self.stage == Stage::Sweeping);
        self.some(from, |_, socket| {
            if socket.is_candidate(pass) {
                list.push(socket.file.clone());
            }
            !(sweeps && socket.count == 0)
        })
    }

    /// A candidate's queue holds these.
    pub(super) fn found(&mut self, files: &[Arc<File>]) {
        for (id, _) in ids(files) {
            if let Some(socket) = self.sockets.get_mut(&id).filter(|socket| socket.is_candidate(self.pass)) {
                socket.found += 1;
            }
        }
    }

    /// The queue of one that was reached holds these.
    pub(super) fn reach(&mut self, files: &[Arc<File>]) {
        for (id, _) in ids(files) {
            if let Some(socket) = self.sockets.get_mut(&id).filter(|socket| socket.is_candidate(self.pass)) {
                socket.reach(id, &mut self.reached);
            }
        }
    }

    /// Reaches those of some candidates that a message holds which is in no candidate's queue, or that have moved.
    pub(super) fn reach_roots(&mut self, from: u64) -> Option<u64> {
        let (pass, mut reached) = (self.pass, self.reached);
        let next = self.some(from, |id, socket| {
            let is_root = socket.found < socket.count || socket.touched >= pass;
            if socket.is_candidate(pass) && is_root {
                socket.reach(id, &mut reached);
            }
            true
        });
        self.reached = reached;
        next
    }

    /// The next one to follow. When there is none all is followed: from then on what moves was reached before.
    pub(super) fn next_reached(&mut self) -> Option<Weak<File>> {
        let Some(id) = self.reached else {
            self.stage = Stage::Sweeping;
            LOOKED_FOR.store(false, Ordering::SeqCst);
            return None;
        };
        let socket = self.sockets.get_mut(&id);
        self.reached = socket.as_ref().and_then(|socket| socket.next);
        Some(socket.map_or_else(Weak::new, |socket| socket.file.clone()))
    }
}
