//! Threads that wait for the host in the kernel's stead: one for readiness, and a thread pool for operations that take
//! long.
//!
//! They are started when first needed and use no processor time while nothing happens.
//!
//! Readiness of sockets does not go through the thread as a rule. Their edges gather in an `epoll` set of their own,
//! which the kernel empties whenever it looks ([`IoThreads::take_edges`]). That set is in an outer one, where one idle
//! vCPU waits ([`IoThreads::wait`]) as well as the thread: `epoll` wakes the waiter that came last, so the thread is
//! woken only when no vCPU is idle. It gives a busy one a moment to look by itself before it has it interrupted.

pub(super) mod handover;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar};
use std::thread::JoinHandle;
use std::time::Duration;

use abi::hostcall::{EVENT_DONE, EVENT_LOOK, EVENT_READY, Event};
use abi::word::low32;

use super::file::HostFile;
use crate::cpu;
use crate::errno::Errno;
use crate::lock::{Mutex, Rank};
use crate::sys;

/// The receiver of events; called from I/O threads, must not wait.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// Most threads that carry out long operations, and how long one waits for another before it ends: a sandbox at rest has
/// none.
const WORKERS_MAX: usize = 8;
const FILE_WORKERS_MAX: usize = 4;
const WORKER_REST: Duration = Duration::from_millis(100);
/// Most operations that may wait for a worker.
const JOBS_MAX: usize = 4096;
const STACK_BYTES: usize = 256 << 10;
/// `epoll` data of our own descriptors; handles with this generation never exist. The first ends the thread, the second
/// ends an idle vCPU's wait, the third is the set of edges.
const WAKE: u64 = u64::MAX;
const KICK: u64 = u64::MAX - 1;
const EDGES: u64 = u64::MAX - 2;
/// How long busy vCPUs may take to look at edges by themselves.
const PATIENCE: Duration = Duration::from_micros(50);
/// How long the thread stays away when they did.
const REST_MIN: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(4);
/// The events that are watched of a socket.
const EDGE_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP) as u32;
/// Tokens of edges are below this.
const TOKENS: u64 = 1 << 63;

/// Why [`IoThreads::wait`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// There are edges to take.
    Edges,
    /// By [`IoThreads::kick`], the deadline, or for no reason.
    Other,
}

/// One armed handle.
struct Arm {
    generation: u32,
    token: u64,
    file: Arc<HostFile>,
    /// Not yet reported.
    waits: bool,
}

/// An operation that takes long; result: as a hostcall's.
pub type Work = Box<dyn FnOnce() -> i64 + Send>;

/// How soon an operation is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Before all others: a stored page that somebody waits for.
    Page,
    /// Stored pages that will be wanted.
    PagesAhead,
    /// On a file, whose disk may hang: these leave some workers to the others.
    File,
}

struct Job {
    work: Work,
    urgency: Urgency,
    token: u64,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    /// Workers there are, those that wait for a job, and those that work on files.
    workers: usize,
    idle: usize,
    on_files: usize,
    /// The sandbox sleeps: who has nothing to do goes at once.
    resting: bool,
    closing: bool,
}

impl Jobs {
    fn add(&mut self, job: Job) {
        match job.urgency {
            Urgency::Page => self.queue.push_front(job),
            _ => self.queue.push_back(job),
        }
    }

    /// The place of the next job that may begin.
    fn next(&self) -> Option<usize> {
        let may_begin = |job: &Job| job.urgency != Urgency::File || self.on_files < FILE_WORKERS_MAX;
        self.queue.iter().position(may_begin)
    }

    fn take(&mut self) -> Option<Job> {
        let at = self.next()?;
        let job = self.queue.remove(at)?;
        self.on_files += usize::from(job.urgency == Urgency::File);
        Some(job)
    }

    fn end(&mut self, urgency: Urgency) {
        self.on_files -= usize::from(urgency == Urgency::File);
    }
}

/// The sets of `epoll(7)`, and the counters that end waits.
struct Sets {
    /// The thread's: single handles, the edges, its end.
    epoll: OwnedFd,
    /// An idle vCPU's: the edges, kicks.
    idle: OwnedFd,
    edges: OwnedFd,
    wake: OwnedFd,
    kick: OwnedFd,
}

impl Sets {
    /// Adds to the two outer sets what each shows beside single handles (`EPOLL_CTL_ADD`), or makes sure that it is there
    /// (`EPOLL_CTL_MOD`).
    fn register(&self, operation: i32) -> Result<(), Errno> {
        let Self { epoll, idle, edges, wake, kick } = self;
        let level = libc::EPOLLIN.cast_unsigned();
        let edge = level | libc::EPOLLET.cast_unsigned();
        let watched = [
            (epoll, wake, level, WAKE),
            (epoll, edges, edge, EDGES),
            (idle, kick, edge, KICK),
            // The set also shows edges that the thread was told of already.
            (idle, edges, level, EDGES),
        ];
        watched.into_iter().try_for_each(|(set, fd, events, data)| {
            sys::epoll_ctl(set.as_fd(), operation, fd.as_fd(), events, data).map(drop)
        })
    }
}

struct Shared {
    sets: Sets,
    /// A vCPU is in [`IoThreads::wait`], or about to be.
    waiting: AtomicBool,
    /// It has been kicked and doesn't know yet.
    kicked: AtomicBool,
    arms: Mutex<HashMap<u32, Arm>>,
    jobs: Mutex<Jobs>,
    jobs_changed: Condvar,
    sink: EventSink,
}

#[derive(Default)]
struct Threads {
    poller: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    generation: u32,
}

/// The threads, and the state that they share with the calls.
pub struct IoThreads {
    shared: Arc<Shared>,
    threads: Mutex<Threads>,
    /// Something is watched for edges.
    watches: AtomicBool,
}

impl IoThreads {
    /// Prepares the queues; no thread runs yet.
    pub fn new(sink: EventSink) -> Result<Self, Errno> {
        let (epoll, wake) = (sys::epoll_create()?, sys::eventfd()?);
        let (idle, kick) = (sys::epoll_create()?, sys::eventfd()?);
        let edges = sys::epoll_create()?;
        let sets = Sets { epoll, idle, edges, wake, kick };
        sets.register(libc::EPOLL_CTL_ADD)?;
        Ok(Self::of(sets, HashMap::new(), sink))
    }

    fn of(sets: Sets, arms: HashMap<u32, Arm>, sink: EventSink) -> Self {
        let shared = Shared {
            sets,
            waiting: AtomicBool::new(false),
            kicked: AtomicBool::new(false),
            arms: Mutex::new(Rank::IoArms, arms),
            jobs: Mutex::new(Rank::IoJobs, Jobs::default()),
            jobs_changed: Condvar::new(),
            sink,
        };
        Self {
            shared: Arc::new(shared),
            threads: Mutex::new(Rank::IoThreads, Threads::default()),
            watches: AtomicBool::new(false),
        }
    }

    /// Ends the threads.
    fn end(&self) {
        self.shared.jobs.lock().closing = true;
        self.shared.jobs_changed.notify_all();
        let (poller, workers) = {
            let mut threads = self.threads.lock();
            (threads.poller.take(), std::mem::take(&mut threads.workers))
        };
        if let Some(poller) = poller {
            sys::eventfd_signal(self.shared.sets.wake.as_fd());
            let _ = poller.join();
            // It would end the next thread at once.
            sys::eventfd_clear(self.shared.sets.wake.as_fd());
        }
        for worker in workers {
            let _ = worker.join();
        }
    }

    /// Watches `fd` for edges, until it is closed; the first tells what holds now.
    pub fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
        if token >= TOKENS {
            return Err(Errno(libc::EINVAL));
        }
        self.prepare_poller()?;
        let events = EDGE_EVENTS | libc::EPOLLET.cast_unsigned();
        sys::epoll_ctl(self.shared.sets.edges.as_fd(), libc::EPOLL_CTL_ADD, fd, events, token)?;
        self.watches.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Takes up to `most` edges that have come, with what holds now. Calls `take` for each; returns how many.
    pub fn take_edges(&self, most: usize, mut take: impl FnMut(Event)) -> usize {
        if !self.watches() {
            return 0;
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let mut left = most;
        while left > 0 {
            let batch = left.min(events.len());
            let Ok(count) = sys::epoll_now(self.shared.sets.edges.as_fd(), &mut events[..batch]) else {
                break;
            };
            for event in &events[..count] {
                let (token, value) = (event.u64, event.events);
                take(Event { kind: EVENT_READY, flags: 0, token, value: i64::from(value) });
            }
            left -= count;
            if count < batch {
                break;
            }
        }
        most - left
    }

    /// Whether anything is watched for edges.
    pub fn watches(&self) -> bool {
        self.watches.load(Ordering::SeqCst)
    }

    /// Waits in the kernel's stead, at most until `deadline_ns` (monotonic). Only one thread at a time may wait.
    pub fn wait(&self, deadline_ns: u64) -> Woken {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        let timeout = match deadline_ns {
            u64::MAX => None,
            deadline => Some(deadline.saturating_sub(cpu::clock_ns(libc::CLOCK_MONOTONIC))),
        };
        let shared = &*self.shared;
        shared.waiting.store(true, Ordering::SeqCst);
        let count = if shared.kicked.load(Ordering::SeqCst) {
            0
        } else {
            sys::epoll_wait_for(shared.sets.idle.as_fd(), &mut events, timeout).unwrap_or(0)
        };
        shared.waiting.store(false, Ordering::SeqCst);
        shared.kicked.store(false, Ordering::SeqCst);
        let edges = events[..count].iter().any(|event| event.u64 == EDGES);
        if edges { Woken::Edges } else { Woken::Other }
    }

    /// Whether an operation waits for a worker, or a worker carries one out.
    pub fn is_at_work(&self) -> bool {
        let jobs = self.shared.jobs.lock();
        !jobs.queue.is_empty() || jobs.workers != jobs.idle
    }

    /// Ends the wait of the thread in [`Self::wait`], or the next one.
    pub fn kick(&self) {
        self.shared.kicked.store(true, Ordering::SeqCst);
        if self.shared.waiting.load(Ordering::SeqCst) {
            sys::eventfd_signal(self.shared.sets.kick.as_fd());
        }
    }

    /// Asks for one event with `token` once any of `events` holds. Replaces what was asked before for this handle;
    /// no events: takes it back. `EPERM` for files that are always ready.
    pub fn arm(&self, handle: u32, file: &Arc<HostFile>, events: u32, token: u64) -> Result<i64, Errno> {
        let mut arms = self.shared.arms.lock();
        if events == 0 {
            if let Some(arm) = arms.remove(&handle) {
                self.shared.unregister(&arm.file);
            }
            return Ok(0);
        }
        let generation = self.prepare_poller()?;
        let known = arms.get(&handle).is_some_and(|arm| Arc::ptr_eq(&arm.file, file));
        if !known && let Some(stale) = arms.remove(&handle) {
            self.shared.unregister(&stale.file);
        }
        let operation = if known { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_ADD };
        let data = u64::from(generation) << 32 | u64::from(handle);
        let oneshot = events | libc::EPOLLONESHOT.cast_unsigned();
        sys::epoll_ctl(self.shared.sets.epoll.as_fd(), operation, file.as_fd(), oneshot, data)?;
        arms.insert(handle, Arm { generation, token, file: Arc::clone(file), waits: true });
        Ok(0)
    }

    /// The handle is being closed.
    pub fn forget(&self, handle: u32, file: &Arc<HostFile>) {
        let mut arms = self.shared.arms.lock();
        if arms.get(&handle).is_some_and(|arm| Arc::ptr_eq(&arm.file, file)) {
            arms.remove(&handle);
            self.shared.unregister(file);
        }
    }

    /// Has a worker carry out an operation; its result comes as an event with this token.
    pub fn submit(&self, token: u64, urgency: Urgency, work: Work) -> Result<i64, Errno> {
        let mut jobs = self.shared.jobs.lock();
        if jobs.queue.len() >= JOBS_MAX {
            return Err(Errno(libc::EAGAIN));
        }
        jobs.resting = false;
        jobs.add(Job { work, urgency, token });
        if jobs.idle >= jobs.queue.len() || jobs.workers == WORKERS_MAX {
            self.shared.jobs_changed.notify_one();
            return Ok(0);
        }
        // It counts from here on, and takes the job.
        jobs.workers += 1;
        drop(jobs);
        self.start_worker(token)
    }

    /// The sandbox sleeps: ends the workers, as no operation is on its way.
    pub fn rest(&self) {
        self.shared.jobs.lock().resting = true;
        self.shared.jobs_changed.notify_all();
    }

    /// Starts a worker that is counted already, for the job with this token among others.
    fn start_worker(&self, token: u64) -> Result<i64, Errno> {
        let mut threads = self.threads.lock();
        threads.workers.retain(|worker| !worker.is_finished());
        let error = match spawn("dormouse-work", &self.shared, Shared::work) {
            Ok(worker) => {
                threads.workers.push(worker);
                return Ok(0);
            }
            Err(error) => error,
        };
        drop(threads);
        let mut jobs = self.shared.jobs.lock();
        jobs.workers -= 1;
        if jobs.workers > 0 {
            // The others take it.
            self.shared.jobs_changed.notify_one();
            return Ok(0);
        }
        // Nobody is left to take any: those that were taken on already are given back.
        let (own, others): (Vec<Job>, Vec<Job>) = jobs.queue.drain(..).partition(|job| job.token == token);
        drop(jobs);
        for job in others {
            let value = -i64::from(libc::EAGAIN);
            (self.shared.sink)(Event { kind: EVENT_DONE, flags: 0, token: job.token, value });
        }
        if own.is_empty() { Ok(0) } else { Err(error) }
    }

    /// Makes sure that the poller runs; result: a fresh generation.
    fn prepare_poller(&self) -> Result<u32, Errno> {
        let mut threads = self.threads.lock();
        if threads.poller.is_none() {
            threads.poller = Some(spawn("dormouse-io", &self.shared, Shared::poll)?);
        }
        threads.generation = threads.generation.wrapping_add(1) % (u32::MAX - 1);
        Ok(threads.generation)
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(name: &str, shared: &Arc<Shared>, run: fn(&Shared)) -> Result<JoinHandle<()>, Errno> {
    let shared = Arc::clone(shared);
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    let thread = builder.spawn(move || {
        sys::block_signals();
        run(&shared);
    });
    Ok(thread?)
}

impl Shared {
    fn unregister(&self, file: &HostFile) {
        let _ = sys::epoll_ctl(self.sets.epoll.as_fd(), libc::EPOLL_CTL_DEL, file.as_fd(), 0, 0);
    }

    /// The poller: until the wake-up counter is set.
    fn poll(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let mut rest = Duration::ZERO;
        loop {
            let Ok(count) = sys::epoll_wait(self.sets.epoll.as_fd(), &mut events) else { return };
            let is_over = events[..count].iter().any(|event| event.u64 == WAKE);
            for event in &events[..count] {
                let (data, ready) = (event.u64, event.events);
                match data {
                    // These are shown to who waits next; the others are told nowhere else.
                    WAKE | EDGES if is_over => {}
                    EDGES if self.remind() => rest = Duration::ZERO,
                    // A vCPU was about to look, and will be next time: keep out of its way.
                    EDGES => {
                        rest = (rest * 2).clamp(REST_MIN, REST_MAX);
                        std::thread::sleep(rest);
                    }
                    _ => self.report(data, ready),
                }
            }
            if is_over {
                return;
            }
        }
    }

    /// Edges came, and no vCPU was waiting for them. Returns whether a vCPU had to be told.
    fn remind(&self) -> bool {
        let remain = || {
            std::thread::sleep(PATIENCE);
            sys::poll_now(self.sets.edges.as_fd(), libc::POLLIN).is_ok_and(|ready| ready != 0)
        };
        // Twice: at the first look it may be others that just came.
        let untaken = remain() && remain();
        if untaken {
            (self.sink)(Event { kind: EVENT_LOOK, ..Event::default() });
        }
        untaken
    }

    fn report(&self, data: u64, ready: u32) {
        let handle = low32(data);
        let mut arms = self.arms.lock();
        // A stale generation: the handle was armed anew meanwhile, and that will be reported by itself.
        let current =
            arms.get_mut(&handle).filter(|arm| u64::from(arm.generation) == data >> 32 && arm.waits);
        if let Some(arm) = current {
            arm.waits = false;
            let event = Event { kind: EVENT_READY, flags: 0, token: arm.token, value: i64::from(ready) };
            // While the lock is held: once a disarm has returned, no event comes any more.
            (self.sink)(event);
        }
    }

    /// A worker: until there has been nothing to do for a while, or for good.
    fn work(&self) {
        let mut jobs = self.jobs.lock();
        while !jobs.closing {
            if let Some(Job { work, urgency, token }) = jobs.take() {
                drop(jobs);
                let value = work();
                (self.sink)(Event { kind: EVENT_DONE, flags: 0, token, value });
                jobs = self.jobs.lock();
                jobs.end(urgency);
                continue;
            }
            jobs.idle += 1;
            let nothing = |jobs: &mut Jobs| jobs.next().is_none() && !jobs.closing && !jobs.resting;
            (jobs, _) = jobs.wait_while(&self.jobs_changed, WORKER_REST, nothing);
            jobs.idle -= 1;
            if jobs.next().is_none() {
                break;
            }
        }
        jobs.workers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn threads() -> (IoThreads, mpsc::Receiver<Event>) {
        let (told, events) = mpsc::channel();
        let told = Mutex::new(Rank::Leash, told);
        let sink: EventSink = Arc::new(move |event| told.lock().send(event).unwrap());
        (IoThreads::new(sink).unwrap(), events)
    }

    #[test]
    fn files_that_hang_do_not_keep_pages_away() {
        let (threads, events) = threads();
        let (release, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(std::sync::Mutex::new(hangs));
        for token in 0..20 {
            let hangs = Arc::clone(&hangs);
            let hang = move || hangs.lock().unwrap().recv().map_or(-1, |()| 0);
            threads.submit(token, Urgency::File, Box::new(hang)).unwrap();
        }
        for token in 100..140 {
            let urgency = if token % 2 == 0 { Urgency::Page } else { Urgency::PagesAhead };
            threads.submit(token, urgency, Box::new(|| 7)).unwrap();
        }
        let mut pages: Vec<u64> = (0..40).map(|_| events.recv().unwrap().token).collect();
        pages.sort_unstable();
        assert_eq!(pages, (100..140).collect::<Vec<u64>>());
        (0..20).for_each(|_| release.send(()).unwrap());
        let mut files: Vec<u64> = (0..20).map(|_| events.recv().unwrap().token).collect();
        files.sort_unstable();
        assert_eq!(files, (0..20).collect::<Vec<u64>>());
    }

    #[test]
    fn pages_that_are_waited_for_come_first() {
        let mut jobs = Jobs::default();
        let orders = [Urgency::File, Urgency::PagesAhead, Urgency::Page, Urgency::File, Urgency::Page];
        for (token, urgency) in (0..).zip(orders) {
            jobs.add(Job { work: Box::new(|| 0), urgency, token });
        }
        jobs.on_files = FILE_WORKERS_MAX - 1;
        let order: Vec<u64> = std::iter::from_fn(|| jobs.take()).map(|job| job.token).collect();
        assert_eq!(order, [4, 2, 0, 1]);
        jobs.end(Urgency::File);
        assert_eq!(jobs.take().map(|job| job.token), Some(3));
    }

    #[test]
    fn a_worker_with_nothing_to_do_goes() {
        let (threads, events) = threads();
        threads.submit(1, Urgency::Page, Box::new(|| 0)).unwrap();
        assert_eq!(events.recv().unwrap().token, 1);
        threads.rest();
        let is_gone = || threads.shared.jobs.lock().workers == 0;
        assert!((0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            is_gone()
        }));
        threads.submit(2, Urgency::Page, Box::new(|| 0)).unwrap();
        assert_eq!(events.recv().unwrap().token, 2);
    }
}
