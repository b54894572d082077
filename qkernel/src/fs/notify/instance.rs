//! Instances: watches, and the queue of what they were told.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Bound::{Excluded, Unbounded};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::fs::notify::limits::InstanceCharge;
use crate::fs::notify::{Event, Fed, Mask, WATCH_BYTES, Watcher, feed, forget};
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::owner::{self, Owner};
use machine::sched;
use machine::sched::wait::{PollEvents, WaitQueue};
use machine::sync::{Rank, SpinLock};

/// Bytes of `struct inotify_event` before the name. Names are padded to a multiple of it.
pub const HEADER_BYTES: usize = 16;
/// Kernel memory of an event in a queue beside its name.
const EVENT_BYTES: usize = 160;
/// The watch descriptor of the event that says that others were lost.
const OF_NO_WATCH: i32 = -1;

/// A watch: an instance's wish to be told of events of a node.
pub struct Watch {
    pub descriptor: i32,
    pub(super) instance_id: u64,
    pub(super) key: usize,
    instance: Weak<Instance>,
    mask: AtomicU32,
    /// Its node's.
    pub(super) fed: Arc<Fed>,
    /// Device and number of the node, as they were when the watch was made.
    pub node: (u64, u64),
}

impl Watch {
    /// The events that the watch wants to be told of, and how.
    pub fn mask(&self) -> Mask {
        Mask::from_bits_truncate(self.mask.load(Ordering::Relaxed))
    }

    pub(super) fn change(&self, mask: Mask, adds: bool) {
        if adds {
            self.mask.fetch_or(mask.bits(), Ordering::Relaxed);
        } else {
            self.mask.store(mask.bits(), Ordering::Relaxed);
        }
    }

    /// Queues the event if it is wanted; result: what has ended by that, to be dropped without locks.
    pub(super) fn tell(self: &Arc<Self>, event: &Event<'_>) -> Option<Watcher> {
        let mask = self.mask();
        let is_wanted = event.mask.intersects((mask & Mask::EVENTS) | Mask::UNMOUNT);
        if !is_wanted || (event.is_unlinked && mask.contains(Mask::EXCL_UNLINK)) {
            return None;
        }
        let instance = self.instance.upgrade()?;
        let is_over = mask.contains(Mask::ONE_SHOT);
        instance.told(self, Some(event), is_over);
        if is_over { forget(self) } else { None }
    }

    /// The node is no more.
    pub(super) fn end(self: &Arc<Self>) {
        if let Some(instance) = self.instance.upgrade() {
            instance.told(self, None, true);
        }
    }
}

/// An event that waits to be read.
#[derive(PartialEq, Eq, Debug)]
pub struct Queued {
    pub descriptor: i32,
    pub mask: Mask,
    pub cookie: u32,
    pub name: Box<[u8]>,
}

impl Queued {
    /// Bytes that `read(2)` gives for it.
    pub fn read_bytes(&self) -> usize {
        HEADER_BYTES + self.padded_name()
    }

    /// Bytes of the name with its NUL, padded; 0 without a name.
    pub fn padded_name(&self) -> usize {
        if self.name.is_empty() { 0 } else { (self.name.len() + 1).next_multiple_of(HEADER_BYTES) }
    }
}

#[derive(Default)]
struct State {
    watches: BTreeMap<i32, Arc<Watch>>,
    last_descriptor: i32,
    /// By their order. A tree grows by small pieces.
    events: BTreeMap<u64, Queued>,
    next_event: u64,
    bytes: usize,
    /// The event that says that others were lost is queued.
    has_overflown: bool,
}

impl State {
    fn push(&mut self, event: Queued) {
        self.bytes += event.read_bytes();
        self.events.insert(self.next_event, event);
        self.next_event += 1;
    }

    /// Queues an event, unless it is like the one before; `most`: so many events are queued at most.
    fn add(&mut self, most: usize, descriptor: i32, event: &Event<'_>) {
        let Event { cookie, name, .. } = *event;
        // Of these, Linux never says that it was a directory.
        let is_own = event.mask.intersects(Mask::DELETE_SELF | Mask::MOVE_SELF);
        let mask = if is_own { event.mask - Mask::IS_DIR } else { event.mask };
        if self.events.len() >= most {
            return self.overflow();
        }
        let is_again = self.events.last_key_value().is_some_and(|(_, last)| {
            last.descriptor == descriptor
                && last.mask == mask
                && !mask.contains(Mask::IGNORED)
                && *last.name == *name
        });
        if is_again {
            return;
        }
        if account::check(EVENT_BYTES + name.len()).is_err() {
            return self.overflow();
        }
        self.push(Queued { descriptor, mask, cookie, name: name.into() });
    }

    fn overflow(&mut self) {
        if !self.has_overflown {
            self.has_overflown = true;
            let name = Box::default();
            self.push(Queued { descriptor: OF_NO_WATCH, mask: Mask::OVERFLOW, cookie: 0, name });
        }
    }

    fn has(&self, watch: &Arc<Watch>) -> bool {
        self.watches.get(&watch.descriptor).is_some_and(|known| Arc::ptr_eq(known, watch))
    }

    /// A number that no watch has, the next one if possible. Watches are fewer than numbers.
    fn free_descriptor(&self) -> Result<i32> {
        let next = self.last_descriptor.checked_add(1).unwrap_or(1);
        let free = |descriptor: &i32| !self.watches.contains_key(descriptor);
        (next..=i32::MAX).chain(1..next).find(free).ok_or(Errno::ENOSPC)
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// An instance (`inotify_init(2)`).
pub struct Instance {
    me: Weak<Instance>,
    pub(super) id: u64,
    /// For whom its events take memory, whoever causes them.
    owner: Owner,
    charge: InstanceCharge,
    most_events: usize,
    state: SpinLock<State>,
    /// Woken when there is something to read.
    pub filled: Arc<WaitQueue>,
    /// Its tasks wait for the host ([`feed`]).
    pub(super) awaits_host: AtomicBool,
}

impl Instance {
    /// An instance of the user who is charged for it.
    pub fn new(charge: InstanceCharge) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            owner: owner::current(),
            most_events: charge.most_events(),
            charge,
            state: SpinLock::new(Rank::Leaf, State::default()),
            filled: Arc::new(WaitQueue::new()),
            awaits_host: AtomicBool::new(false),
        })
    }

    /// A watch that no node knows yet.
    pub(super) fn new_watch(
        &self,
        key: usize,
        mask: Mask,
        node: (u64, u64),
        fed: Arc<Fed>,
    ) -> Result<Arc<Watch>> {
        self.charge.take_watch()?;
        let mut state = self.state.lock();
        let descriptor = match state.free_descriptor() {
            Ok(descriptor) => descriptor,
            Err(error) => {
                self.charge.give_watch();
                return Err(error);
            }
        };
        let watch = Arc::new(Watch {
            descriptor,
            instance_id: self.id,
            key,
            instance: self.me.clone(),
            mask: AtomicU32::new(mask.bits()),
            fed,
            node,
        });
        state.last_descriptor = descriptor;
        state.watches.insert(descriptor, watch.clone());
        Ok(watch)
    }

    pub(super) fn has(&self, watch: &Arc<Watch>) -> bool {
        self.state.lock().has(watch)
    }

    /// Events that the host had to tell are lost.
    pub(super) fn lost(&self) {
        let _charged = (owner::current() != self.owner).then(|| sched::charge_to(self.owner));
        self.state.lock().overflow();
        self.filled.wake(PollEvents::READABLE);
    }

    /// The instance of a watch.
    pub(super) fn of(watch: &Watch) -> Option<Arc<Self>> {
        watch.instance.upgrade()
    }

    /// Queues an event of a watch, and ends it then if `is_over`; nothing happens when it has ended.
    fn told(&self, watch: &Arc<Watch>, event: Option<&Event<'_>>, is_over: bool) {
        let _charged = (owner::current() != self.owner).then(|| sched::charge_to(self.owner));
        let removed = {
            let mut state = self.state.lock();
            if !state.has(watch) {
                return;
            }
            if let Some(event) = event {
                state.add(self.most_events, watch.descriptor, event);
            }
            let removed = if is_over { state.watches.remove(&watch.descriptor) } else { None };
            if removed.is_some() {
                state.add(self.most_events, watch.descriptor, &Event::own(Mask::IGNORED));
            }
            removed
        };
        if removed.is_some() {
            self.charge.give_watch();
        }
        self.filled.wake(PollEvents::READABLE);
    }

    /// `inotify_rm_watch(2)`. `EINVAL`: there is no such watch.
    pub fn remove(&self, descriptor: i32) -> Result<()> {
        feed::take();
        let watch = self.state.lock().watches.get(&descriptor).cloned().ok_or(Errno::EINVAL)?;
        self.told(&watch, None, true);
        drop(forget(&watch));
        feed::settle();
        Ok(())
    }

    /// Takes the oldest event; `None`: there is none. `EINVAL`: it is longer than `room`.
    pub fn take(&self, room: usize) -> Result<Option<Queued>> {
        let mut state = self.state.lock();
        match state.events.first_key_value() {
            None => return Ok(None),
            Some((_, event)) if event.read_bytes() > room => return Err(Errno::EINVAL),
            Some(_) => {}
        }
        let event = state.events.pop_first().map(|(_, event)| event);
        if let Some(event) = &event {
            state.bytes -= event.read_bytes();
            state.has_overflown &= event.descriptor != OF_NO_WATCH;
        }
        Ok(event)
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.state.lock().events.is_empty()
    }

    /// Bytes that can be read.
    pub fn readable_bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Bytes of kernel memory that closing it would free.
    pub fn held_bytes(&self) -> usize {
        let state = self.state.lock();
        state.bytes + state.events.len() * EVENT_BYTES + state.watches.len() * WATCH_BYTES
    }

    /// Some of the watches with descriptors behind `after`, in order.
    pub fn watches_behind(&self, after: i32) -> Vec<Arc<Watch>> {
        let state = self.state.lock();
        state.watches.range((Excluded(after), Unbounded)).take(64).map(|(_, watch)| watch.clone()).collect()
    }
}

/// Watches that end, and events that are freed, before others may run.
const WATCHES_AT_ONCE: usize = 16;
const EVENTS_AT_ONCE: usize = 1024;

impl Instance {
    /// Its file is closed: ends what watches are left and frees what was not read, a part at a time. May sleep.
    pub fn close(&self) {
        loop {
            let ended: [_; WATCHES_AT_ONCE] = {
                let mut state = self.state.lock();
                core::array::from_fn(|_| state.watches.pop_first())
            };
            let is_last = ended[WATCHES_AT_ONCE - 1].is_none();
            for (_, watch) in ended.iter().flatten() {
                self.charge.give_watch();
                drop(forget(watch));
            }
            if is_last {
                break;
            }
            sched::let_others_go_on();
        }
        feed::wait_no_more(self);
        feed::settle();
        // Without watches none comes any more.
        let mut events = {
            let mut state = self.state.lock();
            state.bytes = 0;
            core::mem::take(&mut state.events)
        };
        while !events.is_empty() {
            (0..EVENTS_AT_ONCE).for_each(|_| drop(events.pop_first()));
            sched::let_others_go_on();
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It is closed already, but for tests.
        let watches = core::mem::take(&mut self.state.lock().watches);
        for watch in watches.values() {
            self.charge.give_watch();
            drop(forget(watch));
        }
    }
}
