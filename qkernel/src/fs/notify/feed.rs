//! Nodes that others than the sandbox may change: the host watches them, and tells of all that happens to them.
//!
//! What the sandbox's own programs do to such a node is done by the host, too, which tells of it as of any change: each event
//! is told once, and in the order of the host. Only what the host does not know comes from this kernel
//! ([`Event::by_host`]). The host keeps an event from the moment of the change on, and is asked before a program is told
//! "nothing to read", so no event is late. Its events come as a stream, which wakes only if a task waits for them.
//!
//! A node that the host cannot watch, or one too many, is told of by this kernel alone.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::hostcall::{WATCH_EXCL_UNLINK, WATCHES_MAX};
use abi::word::{low32, to_usize};

use super::instance::{HEADER_BYTES, Instance};
use super::{Descriptor, Event, Mask, Node, Of, REGISTRY, Watcher, feed_ended, next_cookie, tell_of};
use crate::fs::host_poll;
use machine::errno::Errno;
use machine::file;
use machine::host::{self, Handle};
use machine::mm::IoBuf;
use machine::sched::wait::{PollEvents, Wake};
use machine::sync::{Rank, SpinGuard, SpinLock};

/// Reads at the stream's own position.
const STREAM: u64 = u64::MAX;
/// Bytes that are read of the host's events at a time, and how often in a row.
const READ_BYTES: usize = 2048;
const READS_MAX: usize = 64;
/// Renames whose second event has not come yet.
const RENAMES: usize = 8;

/// The host's stream of events.
struct Source {
    handle: Arc<Handle>,
    token: u64,
    _listener: Arc<dyn Wake>,
}

/// What comes from the host.
pub(super) struct Feed {
    source: Option<Source>,
    /// The host gave none.
    failed: bool,
    /// The host's cookies of the last renames, and ours, in turn.
    renames: [(u32, u32); RENAMES],
    next_rename: usize,
    /// The host is to say when there is something.
    is_armed: bool,
    /// Instances whose tasks may wait.
    waiting: Vec<Weak<Instance>>,
}

static FEED: SpinLock<Feed> = SpinLock::new(
    Rank::Feed,
    Feed {
        source: None,
        failed: false,
        renames: [(0, 0); RENAMES],
        next_rename: 0,
        is_armed: false,
        waiting: Vec::new(),
    },
);
/// Set once the host watches something.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// What is dropped once the lock is given back.
#[derive(Default)]
struct Ended {
    nodes: Vec<Node>,
    watchers: Vec<Watcher>,
    instances: Vec<Arc<Instance>>,
}

pub(super) fn lock() -> SpinGuard<'static, Feed> {
    FEED.lock()
}

/// Takes what the host has to tell.
pub fn take() {
    if IN_USE.load(Ordering::Relaxed) {
        let mut ended = Ended::default();
        lock().take(&mut ended);
    }
}

/// A task may wait for the instance's events, and there are none: the host is to say when there are.
pub fn wait_for(instance: &Arc<Instance>) {
    if !IN_USE.load(Ordering::Relaxed) || instance.filled.is_empty() {
        return;
    }
    let mut feed = lock();
    if !instance.awaits_host.swap(true, Ordering::Relaxed) {
        feed.waiting.push(Arc::downgrade(instance));
    }
    feed.arm();
}

/// Gives back watches of the host's that nobody needs any more.
pub fn settle() {
    if IN_USE.load(Ordering::Relaxed) {
        lock().settle();
    }
}

/// Is told when the host has something to tell.
struct Listener;

impl Wake for Listener {
    fn wake(&self, _events: PollEvents) {
        let mut ended = Ended::default();
        let mut feed = lock();
        feed.is_armed = false;
        feed.take(&mut ended);
        let mut waiting = mem::take(&mut feed.waiting);
        waiting.retain(|instance| {
            let Some(instance) = instance.upgrade() else { return false };
            let waits = !instance.filled.is_empty();
            instance.awaits_host.store(waits, Ordering::Relaxed);
            ended.instances.push(instance);
            waits
        });
        feed.waiting = waiting;
        if !feed.waiting.is_empty() {
            feed.arm();
        }
        drop(feed);
    }
}

impl Feed {
    /// Has the host watch a node for what its watches want, and the instance's new or changed one; `None`: it cannot.
    pub(super) fn watch(&mut self, node: &Handle, key: usize, by: u64, asked: Mask) -> Option<Descriptor> {
        self.open();
        let handle = self.source.as_ref()?.handle.clone();
        let wanted = {
            let registry = REGISTRY.lock();
            let known = registry.nodes.get(&key);
            if known.is_none_or(|node| node.fed.get().is_none()) && registry.fed.len() as u64 >= WATCHES_MAX {
                return None;
            }
            let mut wanted = asked & Mask::KEPT;
            for (id, known) in known.iter().flat_map(|node| &node.watches) {
                let mask = known.watch.mask();
                let is_replaced = *id == by && !asked.contains(Mask::MASK_ADD);
                if !is_replaced {
                    let both_exclude = (wanted & mask) & Mask::EXCL_UNLINK;
                    wanted = ((wanted | mask) - Mask::EXCL_UNLINK) | both_exclude;
                }
            }
            wanted
        };
        let events = wanted & Mask::EVENTS;
        // It tells of the end in any case.
        let events = if events.is_empty() { Mask::DELETE_SELF } else { events };
        let excludes = wanted.contains(Mask::EXCL_UNLINK);
        let flags = events.bits() | if excludes { low32(WATCH_EXCL_UNLINK) } else { 0 };
        match host::watch_add(&handle, node, flags) {
            Ok(descriptor) => {
                IN_USE.store(true, Ordering::Relaxed);
                Some(descriptor)
            }
            Err(error) => {
                static SAID: AtomicBool = AtomicBool::new(false);
                if !SAID.swap(true, Ordering::Relaxed) {
                    machine::info!(
                        "the host does not watch a file: {error:?}; what others do to it is not told"
                    );
                }
                None
            }
        }
    }

    fn open(&mut self) {
        if self.source.is_some() || self.failed {
            return;
        }
        match host::watch_open() {
            Ok(handle) => {
                let listener: Arc<dyn Wake> = Arc::new(Listener);
                let token = host_poll::register_handler(&listener);
                self.source = Some(Source { handle: Arc::new(handle), token, _listener: listener });
            }
            Err(error) => {
                // What the host has too many of now it may have later.
                self.failed = !matches!(error, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM);
                machine::info!(
                    "the host has no inotify instance: {error:?}; what others do to files is not told"
                );
            }
        }
    }

    fn arm(&mut self) {
        if let Some(source) = self.source.as_ref().filter(|_| !self.is_armed) {
            self.is_armed = host::poll_arm(&source.handle, PollEvents::IN.bits(), source.token).is_ok();
        }
    }

    fn settle(&mut self) {
        let Some(source) = &self.source else { return };
        let unfed = mem::take(&mut REGISTRY.lock().unfed);
        for descriptor in unfed {
            // One that has ended by itself is not known any more.
            let _ = host::watch_remove(&source.handle, descriptor);
        }
    }

    fn take(&mut self, ended: &mut Ended) {
        let Some(handle) = self.source.as_ref().map(|source| source.handle.clone()) else { return };
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_MAX {
            let Ok(got) = file::read(&handle, STREAM, &mut IoBuf::kernel(&mut buffer)) else { break };
            let mut left = buffer.get(..got).unwrap_or_default();
            if left.is_empty() {
                break;
            }
            while let Some((record, rest)) = Record::first(left) {
                self.tell(&record, ended);
                left = rest;
            }
        }
        self.settle();
    }

    fn tell(&mut self, record: &Record<'_>, ended: &mut Ended) {
        let Record { descriptor, mask, name, .. } = *record;
        if mask.contains(Mask::OVERFLOW) {
            return lost(ended);
        }
        if mask.contains(Mask::IGNORED) {
            REGISTRY.lock().unfed.push(descriptor);
            ended.nodes.extend(feed_ended(descriptor));
            return;
        }
        // See `Path::is_told_by_host`.
        if mask.contains(Mask::IS_DIR) && mask.intersects(Mask::OF_OPEN_FILES) {
            return;
        }
        let cookie = if record.cookie == 0 { 0 } else { self.cookie_for(record.cookie) };
        let event = Event { mask, cookie, name, is_unlinked: false, by_host: false };
        ended.watchers.extend(tell_of(Of::Fed(descriptor), &event));
    }

    /// The number that stands for the host's here.
    fn cookie_for(&mut self, hosts: u32) -> u32 {
        if let Some((_, ours)) = self.renames.iter().find(|(known, _)| *known == hosts) {
            return *ours;
        }
        let ours = next_cookie();
        self.renames[self.next_rename] = (hosts, ours);
        self.next_rename = (self.next_rename + 1) % RENAMES;
        ours
    }
}

/// The host had more to tell than it keeps: all who watch by it are told so.
fn lost(ended: &mut Ended) {
    let mut after = (0, 0);
    while let Some(watches) = REGISTRY.lock().next_fed(&mut after) {
        for instance in watches.iter().flatten().filter_map(|watch| Instance::of(watch)) {
            instance.lost();
            ended.instances.push(instance);
        }
    }
}

/// `struct inotify_event`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Record<'a> {
    descriptor: Descriptor,
    mask: Mask,
    cookie: u32,
    name: &'a [u8],
}

impl<'a> Record<'a> {
    /// The first one, and what follows it; `None`: there is no whole one.
    fn first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let word = |at: usize| header.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let (padded, rest) = rest.split_at_checked(to_usize(u64::from(word(12)?)))?;
        let name = padded.split(|byte| *byte == 0).next().unwrap_or_default();
        let mask = Mask::from_bits_truncate(word(4)?);
        Some((Self { descriptor: word(0)?.cast_signed(), mask, cookie: word(8)?, name }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(descriptor: i32, mask: Mask, cookie: u32, name: &[u8], room: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [descriptor.cast_unsigned(), mask.bits(), cookie, low32(room as u64)] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(name);
        bytes.resize(HEADER_BYTES + room, 0);
        bytes
    }

    #[test]
    fn records_are_taken_one_by_one() {
        let mut bytes = record(1, Mask::CREATE | Mask::IS_DIR, 0, b"name", 16);
        bytes.extend(record(7, Mask::MODIFY, 0, b"", 0));
        let (first, rest) = Record::first(&bytes).unwrap();
        let mask = Mask::CREATE | Mask::IS_DIR;
        assert_eq!(first, Record { descriptor: 1, mask, cookie: 0, name: b"name" });
        let (second, rest) = Record::first(rest).unwrap();
        assert_eq!(second, Record { descriptor: 7, mask: Mask::MODIFY, cookie: 0, name: b"" });
        assert_eq!(Record::first(rest), None);
        for cut in 1..bytes.len() {
            assert!(Record::first(&bytes[..cut]).is_none_or(|(record, _)| record == first));
        }
    }
}
