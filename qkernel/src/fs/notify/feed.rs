//! Nodes that others than the sandbox may change: the host watches them, and tells of all that happens to them.
//!
//! What the sandbox's own programs do to such a node is done by the host, too, which tells of it as of any change: each event
//! is told once, and in the order of the host. Only what the host does not know comes from this kernel
//! ([`Event::by_host`]). The host keeps an event from the moment of the change on, and is asked before a program is told
//! "nothing to read", so no event is late. Its events come as a stream, which wakes only if a task waits for them.
//!
//! A node that the host cannot watch, or one too many, is told of by this kernel alone.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::hostcall::WATCH_EXCL_UNLINK;
use abi::word::{low32, to_usize};

use super::instance::{HEADER_BYTES, Instance};
use super::{
    ByHost, Descriptor, Event, FormerWatch, HostWatch, Mask, Node, Of, REGISTRY, Watcher, end_lost,
    feed_ended, next_cookie, tell_of,
};
use machine::counts::Charge;
use machine::errno::Errno;
use machine::file;
use machine::host::{self, Handle};
use machine::host_watches;
use machine::mm::IoBuf;
use machine::sched;
use machine::sched::wait::{PollEvents, Wake};
use machine::sync::{Mutex, MutexGuard, Rank, SpinLock};

/// Reads at the stream's own position.
const STREAM: u64 = u64::MAX;
/// Bytes that are read of the host's events at a time, and how often in a row.
const READ_BYTES: usize = 2048;
const READS_MAX: usize = 64;
/// Watches that are given back in a row.
const SETTLED_MAX: usize = 64;
/// How often the source is opened while the last one is being closed.
const OPENS_MAX: usize = 1000;
/// Renames whose second event has not come yet.
const RENAMES: usize = 8;

/// The host's stream of events.
struct Source {
    handle: Arc<Handle>,
    token: u64,
    unregister: fn(u64),
    _listener: Arc<dyn Wake>,
}

impl Drop for Source {
    fn drop(&mut self) {
        (self.unregister)(self.token);
    }
}

/// The events that come from the host, and who waits for them.
struct Feed {
    source: Option<Source>,
    /// The host's cookies of the last renames, and ours, in turn.
    renames: [(u32, u32); RENAMES],
    next_rename: usize,
    /// The host is to say when there is something.
    is_armed: bool,
    /// The host is asked to watch a node, of which nothing is taken before it is known.
    is_adding: bool,
    /// Instances whose tasks may wait, by their number.
    waiting: BTreeMap<u64, Weak<Instance>>,
}

static FEED: SpinLock<Feed> = SpinLock::new(
    Rank::Feed,
    Feed {
        source: None,
        renames: [(0, 0); RENAMES],
        next_rename: 0,
        is_armed: false,
        is_adding: false,
        waiting: BTreeMap::new(),
    },
);
/// Held while the host begins to watch a node.
static ADDING: Mutex<()> = Mutex::new(Rank::Feeding, ());
/// There is a source.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Work that is done, and objects that are dropped, once the lock is given back.
#[derive(Default)]
struct After {
    nodes: Vec<Node>,
    watchers: Vec<Watcher>,
    instances: Vec<Arc<Instance>>,
    source: Option<Source>,
    is_lost: bool,
}

impl After {
    fn finish(self) {
        if self.is_lost {
            lost();
        }
    }
}

/// Takes what the host has to tell.
pub fn take() {
    if IN_USE.load(Ordering::SeqCst) {
        let mut after = After::default();
        FEED.lock().take(&mut after);
        after.finish();
    }
}

/// A task may wait for the instance's events, and there are none: the host is to say when there are, as soon as it watches
/// anything.
pub fn wait_for(instance: &Arc<Instance>) {
    if instance.filled.is_empty() {
        return;
    }
    let is_known = instance.awaits_host.load(Ordering::SeqCst);
    if is_known && !IN_USE.load(Ordering::SeqCst) {
        return;
    }
    let mut feed = FEED.lock();
    if !instance.awaits_host.swap(true, Ordering::SeqCst) {
        feed.waiting.insert(instance.id, Arc::downgrade(instance));
    }
    feed.arm();
}

/// The instance is closed.
pub fn wait_no_more(instance: &Instance) {
    if instance.awaits_host.load(Ordering::SeqCst) {
        let _removed = FEED.lock().waiting.remove(&instance.id);
    }
}

/// Gives back watches of the host's that nobody needs any more, and the source with the last one. Without locks.
pub fn settle() {
    while IN_USE.load(Ordering::SeqCst) {
        let mut after = After::default();
        let is_done = FEED.lock().settle(&mut after);
        after.finish();
        if is_done {
            return;
        }
    }
}

/// Is told when the host has something to tell.
struct Listener;

impl Wake for Listener {
    fn wake(&self, _events: PollEvents) {
        let mut after = After::default();
        {
            let mut feed = FEED.lock();
            feed.is_armed = false;
            feed.take(&mut after);
            feed.waiting.retain(|_, instance| {
                let Some(instance) = instance.upgrade() else { return false };
                // Who comes now and finds it true must not be overlooked.
                instance.awaits_host.store(false, Ordering::SeqCst);
                let waits = !instance.filled.is_empty();
                instance.awaits_host.store(waits, Ordering::SeqCst);
                after.instances.push(instance);
                waits
            });
            feed.arm();
        }
        after.finish();
    }
}

/// The host is being asked to watch a node; what it tells waits until this ends.
pub(super) struct Adding {
    fed: Option<HostWatch>,
    _alone: MutexGuard<'static, ()>,
}

impl Adding {
    /// The host's watch, once.
    pub fn fed(&mut self) -> Option<HostWatch> {
        self.fed.take()
    }
}

impl Drop for Adding {
    fn drop(&mut self) {
        let mut feed = FEED.lock();
        feed.is_adding = false;
        // Tasks that wait may have come when there was nothing to wait for, or could not be told.
        feed.arm();
    }
}

/// Has the host watch a node for what its watches want, and the instance `by`'s new or changed one. May sleep.
pub(super) fn watch(by_host: &ByHost, key: usize, by: u64, asked: Mask) -> Adding {
    let alone = ADDING.lock();
    // What has been is not told to a new watch.
    settle();
    take();
    let mut after = After::default();
    let handle = {
        let mut feed = FEED.lock();
        feed.is_adding = true;
        feed.source.as_ref().map(|source| source.handle.clone())
    };
    let handle = handle.or_else(|| open(by_host, &mut after));
    let is_fed = REGISTRY.lock().is_fed(key);
    let charge = if is_fed { None } else { host_watches::charge() };
    if charge.is_none() && !is_fed {
        refused(Errno::ENOSPC);
    }
    let fed = handle.filter(|_| is_fed || charge.is_some()).and_then(|handle| {
        let (events, excludes) = wanted(key, by, asked);
        let flags = events.bits() | if excludes { low32(WATCH_EXCL_UNLINK) } else { 0 };
        match host::watch_add(&handle, &by_host.node, flags) {
            Ok(descriptor) => Some(HostWatch { descriptor, told: events, charge }),
            Err(error) => {
                refused(error);
                None
            }
        }
    });
    Adding { fed, _alone: alone }
}

/// The events that the node's watches want, and whether all of them leave out files that were removed.
fn wanted(key: usize, by: u64, asked: Mask) -> (Mask, bool) {
    let registry = REGISTRY.lock();
    let mut wanted = asked & Mask::KEPT;
    for (id, known) in registry.nodes.get(&key).iter().flat_map(|node| &node.watches) {
        let mask = known.watch.mask();
        let is_replaced = *id == by && !asked.intersects(Mask::MASK_ADD | Mask::MASK_CREATE);
        if !is_replaced {
            let both_exclude = (wanted & mask) & Mask::EXCL_UNLINK;
            wanted = ((wanted | mask) - Mask::EXCL_UNLINK) | both_exclude;
        }
    }
    let events = wanted & Mask::EVENTS;
    // It tells of the end in any case.
    (if events.is_empty() { Mask::DELETE_SELF } else { events }, wanted.contains(Mask::EXCL_UNLINK))
}

/// Opens the source.
fn open(by_host: &ByHost, after: &mut After) -> Option<Arc<Handle>> {
    let mut tries = 0;
    let opened = loop {
        match host::watch_open() {
            // Another task has taken the last one away, and is about to close it.
            Err(Errno::EBUSY) if tries < OPENS_MAX => {
                tries += 1;
                sched::let_others_go_on();
            }
            opened => break opened,
        }
    };
    let handle = match opened {
        Ok(handle) => Arc::new(handle),
        Err(error) => {
            refused(error);
            return None;
        }
    };
    let listener: Arc<dyn Wake> = Arc::new(Listener);
    let token = (by_host.register)(&listener);
    let source =
        Source { handle: handle.clone(), token, unregister: by_host.unregister, _listener: listener };
    let mut feed = FEED.lock();
    after.source = feed.source.replace(source);
    feed.is_armed = false;
    IN_USE.store(true, Ordering::SeqCst);
    Some(handle)
}

fn refused(error: Errno) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        machine::info!("the host does not watch a file: {error:?}; what others do to it is not told");
    }
}

impl Feed {
    /// The host is to say when there is something, if a task may wait for it.
    fn arm(&mut self) {
        let is_needed = !self.is_armed && !self.is_adding && !self.waiting.is_empty();
        if let Some(source) = self.source.as_ref().filter(|_| is_needed) {
            self.is_armed = host::poll_arm(&source.handle, PollEvents::IN.bits(), source.token).is_ok();
        }
    }

    /// Gives some back; whether that were all that can be given back now.
    fn settle(&mut self, after: &mut After) -> bool {
        if self.is_adding {
            // The one that is being added may be one of them.
            return true;
        }
        let Some(source) = &self.source else { return true };
        let (unfed, charges, is_done, is_idle) = {
            let mut registry = REGISTRY.lock();
            let most = registry.unfed.len().min(SETTLED_MAX);
            let unfed: Vec<Descriptor> = registry.unfed.drain(..most).collect();
            let charges: Vec<Charge> =
                unfed.iter().filter_map(|descriptor| registry.charges.remove(descriptor)).collect();
            let is_done = registry.unfed.is_empty();
            if is_done {
                registry.unfed = Vec::new();
            }
            (unfed, charges, is_done, is_done && registry.fed.is_empty() && registry.ending.is_empty())
        };
        for descriptor in unfed {
            // One that has ended by itself is not known any more.
            let _ = host::watch_remove(&source.handle, descriptor);
        }
        drop(charges);
        if is_idle {
            after.source = self.source.take();
            self.is_armed = false;
            IN_USE.store(false, Ordering::SeqCst);
        }
        is_done
    }

    fn take(&mut self, after: &mut After) {
        if self.is_adding {
            return;
        }
        let Some(handle) = self.source.as_ref().map(|source| source.handle.clone()) else { return };
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_MAX {
            let Ok(got) = file::read(&handle, STREAM, &mut IoBuf::kernel(&mut buffer)) else { break };
            let mut left = buffer.get(..got).unwrap_or_default();
            if left.is_empty() {
                break;
            }
            while let Some((record, rest)) = Record::first(left) {
                self.tell(&record, after);
                left = rest;
            }
        }
        self.settle(after);
    }

    fn tell(&mut self, record: &Record<'_>, after: &mut After) {
        let Record { descriptor, mask, name, .. } = *record;
        if mask.contains(Mask::OVERFLOW) {
            after.is_lost = true;
            return;
        }
        if mask.contains(Mask::IGNORED) {
            after.nodes.extend(feed_ended(descriptor));
            return;
        }
        // See `Path::is_told_by_host`.
        if mask.contains(Mask::IS_DIR) && mask.intersects(Mask::OF_OPEN_FILES) {
            return;
        }
        let cookie = if record.cookie == 0 { 0 } else { self.cookie_for(record.cookie) };
        let event = Event { mask, cookie, name, is_unlinked: false, by_host: false };
        after.watchers.extend(tell_of(Of::Fed(descriptor), &event));
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

/// The host had more to tell than it keeps: all who watch by it are told so. Without locks.
fn lost() {
    let mut seen = (0, 0);
    loop {
        let watches = REGISTRY.lock().next_fed(&mut seen);
        let Some(watches) = watches else { break };
        for instance in watches.iter().flatten().filter_map(|watch| Instance::of(watch)) {
            instance.lost();
        }
    }
    end_lost();
}

/// Has the host watch again what it did under a former VMM; `find` has a node's handle. What happened meanwhile nobody knows: all who watch
/// are told that something was lost. A node that the host does not watch any more is told of by this kernel alone.
pub fn revive(find: &dyn Fn(usize) -> Option<Arc<Handle>>) {
    let handle = {
        let mut feed = FEED.lock();
        feed.is_armed = false;
        feed.source.as_ref().map(|source| source.handle.clone())
    };
    let Some(handle) = handle else { return };
    lost();
    // Their descriptors are the former VMM's.
    let former = REGISTRY.lock().forget_fed();
    for FormerWatch { key, told, excludes, charge } in former {
        let flags = told.bits() | if excludes { low32(WATCH_EXCL_UNLINK) } else { 0 };
        let added = find(key).ok_or(Errno::ENOENT).and_then(|node| host::watch_add(&handle, &node, flags));
        match added {
            Ok(descriptor) => {
                let fed = HostWatch { descriptor, told, charge };
                let _none = REGISTRY.lock().begin_to_feed(fed, key);
            }
            Err(error) => refused(error),
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
