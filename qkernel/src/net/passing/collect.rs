//! The collector: frees Unix sockets that are only in each other's messages.
//!
//! A socket that is in a message of its own, or two in each other's, hold each other though no program can receive them any more. A
//! pass finds these in four steps, each of which lets others go on after a bounded piece:
//! 1. *Candidates* are the sockets that only messages hold: descriptors, calls that go on and mappings are further references.
//! 2. The candidates' queues are looked through, those of connections that wait in a listener included. A candidate of which that
//!    finds fewer references than it has is in a message elsewhere: in a queue of a socket that lives, or on its way.
//! 3. From those everything is followed that their queues hold.
//! 4. The queues of candidates that were not reached are emptied, and so nothing holds them any more.
//!
//! Programs go on meanwhile. A socket that is put into a message, or is about to be taken out of a queue, is noted under the lock of
//! that queue (`sockets::touch`). One that was touched since the pass began is no candidate, or counts as reached; while step 3
//! goes on it is followed at once. So all that is left when nothing is left to follow was held by messages alone when it was looked
//! at, has not moved since, and lies in queues of its like: at that moment nobody can reach any of it, and what nobody can reach
//! stays so. Sockets alone are followed: no other file holds files. (An epoll set does not hold what it watches.)
//!
//! Passes are due when a reference to a socket in a message has gone. They come seldom enough to take a small part of the time,
//! however much is in messages; who is refused memory or a message does not wait for that, and a container's end neither.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::fs::file::File;
use crate::net::passing::sockets::{self, DUE, TABLE, Table};
use crate::net::passing::{Queue, Rights, let_others_go_on};
use machine::errno::Result;
use machine::sched;
use machine::sync::{Mutex, Rank};
use machine::time;

/// The least and the most time between two passes, unless somebody needs what the second one finds.
const PAUSE_NS: RangeInclusive<u64> = 200_000..=2_000_000_000;
/// The time between two passes as a multiple of what the first one took, within [`PAUSE_NS`].
const PAUSE_PER_PASS: u64 = 20;
/// A task that ends does not mind one that takes no longer.
const SHORT_NS: u64 = 1_000_000;

/// Held by the task that carries out a pass.
static ONE: Mutex<()> = Mutex::new(Rank::Collection, ());
/// Tasks that wait for one of their own, before which no other begins.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// No pass begins earlier by itself.
static NEXT_NS: AtomicU64 = AtomicU64::new(0);
/// How long the last one took.
static TOOK_NS: AtomicU64 = AtomicU64::new(0);

/// After a piece of work; an error ends the pass without a result.
type Pace = fn() -> Result<()>;

fn patiently() -> Result<()> {
    let_others_go_on();
    Ok(())
}

/// At the end of a system call, with no lock held: carries out a pass if it is time. A task that is to end leaves it to others.
pub fn collect_if_due() {
    if DUE.load(Ordering::Relaxed) && is_time() {
        attempt(sched::go_on);
    }
}

fn is_time() -> bool {
    time::monotonic_ns() >= NEXT_NS.load(Ordering::Relaxed)
}

/// Carries out a pass, if it is time or the last one was short, for a task that ends and has no descriptors any more.
/// The task may have left something, and nobody may call for long.
pub fn collect_on_exit() {
    let is_short = || TOOK_NS.load(Ordering::Relaxed) <= SHORT_NS;
    if DUE.load(Ordering::Relaxed) && (is_time() || is_short()) {
        attempt(patiently);
    }
}

/// Somebody needs what a pass may give back: carries one out unless it would find nothing new, as far as is known. The caller holds
/// no lock.
pub fn collect_in_need() {
    if sockets::count() != 0 && (DUE.load(Ordering::Relaxed) || is_time()) {
        attempt(sched::go_on);
    }
}

/// Collects all that nobody can reach now. A pass that is under way may have missed some of it, so that another one follows.
pub fn collect_all() {
    if sockets::count() == 0 {
        return;
    }
    WAITING.fetch_add(1, Ordering::SeqCst);
    {
        let _one = ONE.lock();
        // It ends only with a result.
        let _ = pass(patiently);
    }
    WAITING.fetch_sub(1, Ordering::SeqCst);
}

/// Carries out a pass with something of a test's between any two pieces.
#[cfg(feature = "harness")]
pub fn collect_with(between: fn() -> Result<()>) {
    let _one = ONE.lock();
    // It ends only with a result.
    let _ = pass(between);
}

/// Carries out a pass unless one is under way.
fn attempt(pace: Pace) {
    if WAITING.load(Ordering::SeqCst) != 0 {
        return;
    }
    let Some(_one) = ONE.try_lock() else { return };
    let begin = time::monotonic_ns();
    let result = pass(pace);
    let end = time::monotonic_ns();
    let took = end.saturating_sub(begin);
    let pause = took.saturating_mul(PAUSE_PER_PASS).clamp(*PAUSE_NS.start(), *PAUSE_NS.end());
    TOOK_NS.store(took, Ordering::Relaxed);
    NEXT_NS.store(end.saturating_add(pause), Ordering::Relaxed);
    if result.is_err() {
        // Whoever comes next may begin at once.
        NEXT_NS.store(0, Ordering::Relaxed);
        DUE.store(true, Ordering::SeqCst);
    }
}

fn pass(pace: Pace) -> Result<()> {
    DUE.store(false, Ordering::SeqCst);
    TABLE.lock().begin();
    let result = steps(pace);
    TABLE.lock().end();
    result
}

fn steps(pace: Pace) -> Result<()> {
    in_pieces(pace, Table::choose)?;
    each_candidate(pace, |file| visit(file, pace, &mut |files| TABLE.lock().found(files)))?;
    TABLE.lock().begin_to_mark();
    in_pieces(pace, Table::reach_roots)?;
    loop {
        let next = TABLE.lock().next_reached();
        let Some(file) = next else { break };
        if let Some(file) = file.upgrade() {
            visit(&file, pace, &mut |files| TABLE.lock().reach(files))?;
        }
        pace()?;
    }
    each_candidate(pace, |file| empty(file, pace))
}

/// Does something with all sockets in messages, some at a time.
fn in_pieces(pace: Pace, mut some: impl FnMut(&mut Table, u64) -> Option<u64>) -> Result<()> {
    let mut from = 0;
    loop {
        let next = some(&mut TABLE.lock(), from);
        let Some(next) = next else { return Ok(()) };
        from = next;
        pace()?;
    }
}

fn each_candidate(pace: Pace, mut work: impl FnMut(&Arc<File>) -> Result<()>) -> Result<()> {
    let mut from = Some(0);
    while let Some(at) = from {
        let mut list = Vec::new();
        from = TABLE.lock().candidates(at, &mut list);
        for file in list.iter().filter_map(Weak::upgrade) {
            work(&file)?;
        }
        pace()?;
    }
    Ok(())
}

/// The queues that end with a socket: its own, and those of connections that wait in it, one at a time.
fn each_queue(file: &File, mut work: impl FnMut(&dyn Queue) -> Result<()>) -> Result<()> {
    let Some(socket) = sockets::carrier(file) else { return Ok(()) };
    if let Some(queue) = socket.queue() {
        work(&*queue)?;
    }
    let (mut at, end) = (0, socket.next_waiting());
    while let Some((next, waiting)) = socket.waiting_queue(at).filter(|(next, _)| *next <= end) {
        if let Some(queue) = waiting {
            work(&*queue)?;
        }
        at = next;
    }
    Ok(())
}

/// Shows the files of the messages that are in a queue now. What comes later was touched, or comes to what nobody reads.
fn each_message(inbox: &dyn Queue, pace: Pace, each: &mut dyn FnMut(&mut Rights)) -> Result<()> {
    let (mut at, end) = (0, inbox.next_message());
    while at < end {
        at = inbox.each_message(at, each);
        pace()?;
    }
    pace()
}

/// Looks through the queues of a socket.
fn visit(file: &Arc<File>, pace: Pace, each: &mut dyn FnMut(&[Arc<File>])) -> Result<()> {
    each_queue(file, |inbox| each_message(inbox, pace, &mut |rights| each(rights.files())))
}

/// Takes all files out of the queues of a socket that nobody can reach.
fn empty(file: &Arc<File>, pace: Pace) -> Result<()> {
    each_queue(file, |inbox| {
        let (mut at, end) = (0, inbox.next_message());
        while at < end {
            let mut taken = Vec::new();
            at = inbox.each_message(at, &mut |rights| taken.push(rights.leave()));
            // Without the lock of the queue.
            drop(taken);
            pace()?;
        }
        Ok(())
    })
}
