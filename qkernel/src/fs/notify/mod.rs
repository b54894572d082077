//! Who watches which file (`inotify(7)`), and what watchers are told.
//!
//! A watch belongs to a node, whatever its names. The node's key is a number that stands for the file in all views of it
//! ([`Inode::watch_key`]). Each watch pins the node, and the name that it was found by, in its own view, so that the cache keeps
//! both. When the last name goes, the pins go as well, and the end of the node itself ends the watches. The end of a view ends its
//! own watches alone.
//!
//! A node that others than the sandbox may change is *fed* ([`feed`]): the host watches it, and all of its events come from there.
//!
//! Files tell of events by [`tell`], which costs one load while nobody in the sandbox wants such events. Neither telling nor
//! forgetting looks at more than a few watches under a lock: a node may have many.
//!
//! [`Inode::watch_key`]: crate::fs::inode::Inode::watch_key

mod event;
pub mod feed;
pub mod instance;
pub mod limits;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Bound::{Excluded, Unbounded};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

pub use crate::fs::notify::event::{Event, Mask};
use crate::fs::notify::instance::{Instance, Watch};
use machine::counts::Charge;
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::mm::account;
use machine::sched::wait::Wake;
use machine::sync::{Rank, SpinLock};

/// A watch's hold on its node. It is dropped without locks, since all that it refers to goes together with it.
pub struct Pin {
    /// The name that it was found by.
    pub name: Option<Part>,
    pub node: Option<Part>,
}

pub type Part = Box<dyn Any + Send + Sync>;

impl Pin {
    const NONE: Self = Self { name: None, node: None };
}

/// A node that is to be watched.
pub struct Target {
    pub key: usize,
    /// Stands for the view of a file system: all nodes that are found by it have the same.
    pub tree: usize,
    pub is_dir: bool,
    /// Device and inode number, as `/proc/PID/fdinfo` shows them.
    pub dev: u64,
    pub ino: u64,
    pub pin: Pin,
    /// If others may change it.
    pub by_host: Option<ByHost>,
}

/// How the host watches a node.
pub struct ByHost {
    pub node: Arc<Handle>,
    /// Has the readiness of the host's events told to a handler; result: a token. And what ends that.
    pub register: fn(&Arc<dyn Wake>) -> u64,
    pub unregister: fn(u64),
}

struct Node {
    is_dir: bool,
    /// The host's watch of it.
    fed: Arc<Fed>,
    /// All that its watches have ever asked for.
    wanted: Mask,
    /// By the number of their instance, which has one watch of the node at most. There is always one.
    watches: BTreeMap<u64, Watcher>,
}

/// A watch, and the view of the node by which it was made last. Other watches may be of other views.
struct Watcher {
    watch: Arc<Watch>,
    tree: usize,
    pin: Pin,
}

/// The number of one of the host's watches, 1 or more. It is not given twice while any is known.
type Descriptor = i32;

/// A watch that the host has just begun or changed.
struct HostWatch {
    descriptor: Descriptor,
    /// The events that the host tells of.
    told: Mask,
    /// If it may be a new one.
    charge: Option<Charge>,
}

/// A watch that a former VMM's host had.
struct FormerWatch {
    key: usize,
    told: Mask,
    /// It left out files that were removed.
    excludes: bool,
    charge: Option<Charge>,
}

/// The host's watch of a node, if there is one.
#[derive(Default)]
struct Fed {
    descriptor: AtomicI32,
    /// The events that the host tells of.
    told: AtomicU32,
}

impl Fed {
    fn get(&self) -> Option<Descriptor> {
        Some(self.descriptor.load(Ordering::Relaxed)).filter(|fed| *fed != 0)
    }

    fn set(&self, (descriptor, told): (Descriptor, Mask)) {
        self.told.store(told.bits(), Ordering::Relaxed);
        self.descriptor.store(descriptor, Ordering::Relaxed);
    }

    /// Whether the host tells of it.
    fn tells(&self, event: &Event<'_>) -> bool {
        let told = Mask::from_bits_truncate(self.told.load(Ordering::Relaxed));
        event.by_host && self.get().is_some() && told.intersects(event.mask)
    }
}

struct Registry {
    nodes: BTreeMap<usize, Node>,
    watches: usize,
    /// The keys of fed nodes.
    fed: BTreeMap<Descriptor, usize>,
    /// Fed nodes that are no more in this kernel. The host has not told yet of their end.
    ending: BTreeMap<Descriptor, Node>,
    /// The host's watches that are not needed any more.
    unfed: Vec<Descriptor>,
    /// Whose share each of the host's watches is of.
    charges: BTreeMap<Descriptor, Charge>,
}

static REGISTRY: SpinLock<Registry> = SpinLock::new(
    Rank::Watches,
    Registry {
        nodes: BTreeMap::new(),
        watches: 0,
        fed: BTreeMap::new(),
        ending: BTreeMap::new(),
        unfed: Vec::new(),
        charges: BTreeMap::new(),
    },
);

/// All that the watches there are have asked for, and may be told of. Empty while there are none.
static WANTED: AtomicU32 = AtomicU32::new(0);
static NEXT_COOKIE: AtomicU32 = AtomicU32::new(1);

/// Kernel memory of a watch, with the cached name and inode that it pins.
pub const WATCH_BYTES: usize = 2560;
/// Most watches that are looked at under the lock at a time.
const CHUNK: usize = 16;

/// Whether anybody may want to be told of such an event.
#[inline]
pub fn is_wanted(events: Mask) -> bool {
    WANTED.load(Ordering::Relaxed) & events.bits() != 0
}

/// Whether there are watches at all.
#[inline]
pub fn is_any() -> bool {
    WANTED.load(Ordering::Relaxed) != 0
}

/// How many watches there are, those included whose end the host has not told yet.
#[cfg(feature = "harness")]
pub fn count() -> usize {
    let registry = REGISTRY.lock();
    registry.watches + registry.ending.len()
}

/// A number that the two events of a rename have in common.
pub fn next_cookie() -> u32 {
    NEXT_COOKIE.fetch_add(1, Ordering::Relaxed)
}

/// Whether the node has watches that may want to be told of such an event.
pub fn is_watched(key: usize, events: Mask) -> bool {
    REGISTRY.lock().nodes.get(&key).is_some_and(|node| node.wanted.intersects(events))
}

impl Registry {
    fn removed(&mut self, watches: usize) {
        self.watches -= watches;
        if self.watches == 0 {
            WANTED.store(0, Ordering::Relaxed);
        }
    }

    /// The node.
    fn node(&self, of: Of) -> Option<&Node> {
        match of {
            Of::Key(key) => self.nodes.get(&key),
            Of::Fed(descriptor) => self
                .ending
                .get(&descriptor)
                .or_else(|| self.nodes.get(self.fed.get(&descriptor)?))
                .filter(|node| node.fed.get() == Some(descriptor)),
        }
    }

    /// The node's watches of the instances behind `after`, as many as there is room for. `after` becomes the last one.
    fn next_watches(
        &self,
        of: Of,
        event: &Event<'_>,
        after: &mut u64,
        chunk: &mut [Option<Arc<Watch>>],
    ) -> usize {
        let wants = |node: &&Node| node.wanted.intersects(event.mask) && !node.fed.tells(event);
        let Some(node) = self.node(of).filter(wants) else { return 0 };
        let mut count = 0;
        for (slot, (id, known)) in chunk.iter_mut().zip(node.watches.range((Excluded(*after), Unbounded))) {
            *slot = Some(known.watch.clone());
            *after = *id;
            count += 1;
        }
        count
    }

    /// Removes a watch, and its node with the last one; whether that is a directory.
    fn take(&mut self, key: usize, instance_id: u64) -> Option<(Watcher, bool)> {
        let node = self.nodes.get_mut(&key)?;
        let is_dir = node.is_dir;
        let taken = node.watches.remove(&instance_id)?;
        if node.watches.is_empty() {
            let fed = node.fed.get();
            self.nodes.remove(&key);
            self.feed_no_more(fed);
        }
        self.removed(1);
        Some((taken, is_dir))
    }

    /// Removes a watch of a node whose end the host has not told yet, and the node with its last watch.
    fn take_ending(&mut self, descriptor: Descriptor, instance_id: u64) -> Option<Watcher> {
        let node = self.ending.get_mut(&descriptor)?;
        let taken = node.watches.remove(&instance_id)?;
        if node.watches.is_empty() {
            self.ending.remove(&descriptor);
            self.feed_no_more(Some(descriptor));
        }
        self.removed(1);
        Some(taken)
    }

    /// The host's watches are gone with a former VMM. Result: what they were.
    fn forget_fed(&mut self) -> Vec<FormerWatch> {
        self.unfed.clear();
        let mut charges = core::mem::take(&mut self.charges);
        let former = core::mem::take(&mut self.fed).into_iter().filter_map(|(descriptor, key)| {
            let node = self.nodes.get(&key).filter(|node| node.fed.get() == Some(descriptor))?;
            let told = Mask::from_bits_truncate(node.fed.told.load(Ordering::Relaxed));
            let excludes = node.watches.values().all(|known| known.watch.mask().contains(Mask::EXCL_UNLINK));
            node.fed.set((0, Mask::empty()));
            Some(FormerWatch { key, told, excludes, charge: charges.remove(&descriptor) })
        });
        former.collect()
    }

    fn is_fed(&self, key: usize) -> bool {
        self.nodes.get(&key).is_some_and(|node| node.fed.get().is_some())
    }

    /// The host watches the node of this key. If nobody else does, it need not. Result: a node that the host has called by this
    /// descriptor before, which is the same to the host, and has ended here.
    fn begin_to_feed(&mut self, fed: HostWatch, key: usize) -> Option<Node> {
        let HostWatch { descriptor, told, charge } = fed;
        if let Some(charge) = charge {
            self.charges.entry(descriptor).or_insert(charge);
        }
        self.unfed.retain(|unfed| *unfed != descriptor);
        match self.nodes.get(&key) {
            Some(node) => {
                node.fed.set((descriptor, told));
                self.fed.insert(descriptor, key);
            }
            None => self.unfed.push(descriptor),
        }
        let ended = self.ending.remove(&descriptor)?;
        self.removed(ended.watches.len());
        Some(ended)
    }

    /// The instance's watch of a node, as it is asked for now; perhaps a new one, which the node does not know yet.
    fn enroll(
        &mut self,
        instance: &Arc<Instance>,
        (key, is_dir): (usize, bool),
        id: (u64, u64),
        asked: Mask,
    ) -> Result<Arc<Watch>> {
        let kept = asked & Mask::KEPT;
        let node = self.nodes.get(&key);
        let known = node.and_then(|node| node.watches.get(&instance.id));
        let watch = match known.map(|known| &known.watch).filter(|watch| instance.has(watch)).cloned() {
            Some(_) if asked.contains(Mask::MASK_CREATE) => return Err(Errno::EEXIST),
            Some(watch) => {
                watch.change(kept, asked.contains(Mask::MASK_ADD));
                watch
            }
            None => {
                let fed = node.map_or_else(Arc::default, |node| node.fed.clone());
                instance.new_watch(key, kept, id, fed)?
            }
        };
        let node = self.nodes.entry(key).or_insert_with(|| Node {
            is_dir,
            fed: watch.fed.clone(),
            wanted: Mask::UNMOUNT | Mask::IGNORED,
            watches: BTreeMap::new(),
        });
        node.wanted |= kept;
        WANTED.fetch_or((kept | Mask::UNMOUNT).bits(), Ordering::Relaxed);
        Ok(watch)
    }

    /// Keeps a watch, with what it pins, at its node; result: what it replaces.
    fn keep(&mut self, instance: &Instance, key: usize, watcher: Watcher) -> Option<Watcher> {
        let node = self.nodes.get_mut(&key)?;
        let replaced = node.watches.insert(instance.id, watcher);
        self.watches += usize::from(replaced.is_none());
        replaced
    }

    /// The host's watch has nobody whom it tells.
    fn feed_no_more(&mut self, fed: Option<Descriptor>) {
        if let Some(descriptor) = fed {
            self.fed.remove(&descriptor);
            self.unfed.push(descriptor);
        }
    }

    /// The watches of fed nodes among the next ones behind `after`, a node and an instance, which becomes the last one that was
    /// looked at. `None`: there is none behind it.
    fn next_fed(&self, after: &mut (usize, u64)) -> Option<[Option<Arc<Watch>>; CHUNK]> {
        let mut found = [const { None }; CHUNK];
        let mut slots = found.iter_mut();
        'all: for (key, node) in self.nodes.range(after.0..) {
            let behind = if *key == after.0 { after.1 } else { 0 };
            for (id, known) in node.watches.range((Excluded(behind), Unbounded)) {
                let Some(slot) = slots.next() else { break 'all };
                *slot = node.fed.get().map(|_| known.watch.clone());
                *after = (*key, *id);
            }
        }
        (slots.len() < CHUNK).then_some(found)
    }

    /// Removes the watches of a view among the next ones behind `after`, a node and an instance. `after` becomes the last one
    /// that was looked at. `None`: there is none behind it.
    fn take_of(&mut self, tree: usize, after: &mut (usize, u64)) -> Option<[Option<(Watcher, bool)>; CHUNK]> {
        let mut found = [None; CHUNK];
        let mut slots = found.iter_mut();
        'all: for (key, node) in self.nodes.range(after.0..) {
            let behind = if *key == after.0 { after.1 } else { 0 };
            for (id, known) in node.watches.range((Excluded(behind), Unbounded)) {
                let Some(slot) = slots.next() else { break 'all };
                *slot = (known.tree == tree).then_some((*key, *id));
                *after = (*key, *id);
            }
        }
        (slots.len() < CHUNK).then(|| found.map(|place| place.and_then(|(key, id)| self.take(key, id))))
    }

    /// Takes pins, or the names alone, from the node's next watches behind `after`, as many as there is room for; how many
    /// watches that were.
    fn take_pins(&mut self, key: usize, only_names: bool, after: &mut u64, chunk: &mut [Pin]) -> usize {
        let Some(node) = self.nodes.get_mut(&key) else { return 0 };
        let mut count = 0;
        let next = node.watches.range_mut((Excluded(*after), Unbounded));
        for (slot, (id, known)) in chunk.iter_mut().zip(next) {
            slot.name = known.pin.name.take();
            if !only_names {
                slot.node = known.pin.node.take();
            }
            *after = *id;
            count += 1;
        }
        count
    }
}

/// A node by its key, or by the host's watch of it.
#[derive(Clone, Copy)]
enum Of {
    Key(usize),
    Fed(Descriptor),
}

/// Tells all watches of a node.
pub fn tell(key: usize, event: &Event<'_>) {
    drop(tell_of(Of::Key(key), event));
}

/// Tells all watches of a node; result: what has ended by that, to be dropped without locks.
fn tell_of(of: Of, event: &Event<'_>) -> Vec<Watcher> {
    let mut ended = Vec::new();
    let mut after = 0;
    loop {
        let mut chunk = [const { None }; CHUNK];
        let count = REGISTRY.lock().next_watches(of, event, &mut after, &mut chunk);
        ended.extend(chunk.iter().flatten().filter_map(|watch| watch.tell(event)));
        if count < CHUNK {
            return ended;
        }
    }
}

/// `inotify_add_watch(2)`: has an instance watch a node, or changes what it is told of one; its watch descriptor. `EEXIST`: it
/// watches the node, and `MASK_CREATE` is set. `ENOSPC`: its user has as many watches as may be.
pub fn add(instance: &Arc<Instance>, target: Target, asked: Mask) -> Result<Descriptor> {
    account::check(WATCH_BYTES)?;
    let Target { key, tree, is_dir, dev, ino, pin, by_host } = target;
    let mut fed = by_host.as_ref().map(|by_host| feed::watch(by_host, key, instance.id, asked));
    // What it replaces, or the pin, is dropped without the lock.
    let (result, ended) = {
        let mut registry = REGISTRY.lock();
        let result = match registry.enroll(instance, (key, is_dir), (dev, ino), asked) {
            Ok(watch) => Ok((watch.descriptor, registry.keep(instance, key, Watcher { watch, tree, pin }))),
            Err(error) => Err((error, pin)),
        };
        let fed = fed.as_mut().and_then(feed::Adding::fed);
        (result, fed.and_then(|fed| registry.begin_to_feed(fed, key)))
    };
    drop(fed);
    if by_host.is_some() {
        feed::settle();
    }
    if let Some(node) = ended {
        node.watches.values().for_each(|known| known.watch.end());
    }
    result.map(|(descriptor, _replaced)| descriptor).map_err(|(error, _pin)| error)
}

/// The instance has ended the watch: its node does not know it any more. Result: to be dropped without locks.
#[must_use]
fn forget(watch: &Arc<Watch>) -> Option<Watcher> {
    let mut registry = REGISTRY.lock();
    let is_it = |node: &Node| {
        node.watches.get(&watch.instance_id).is_some_and(|known| Arc::ptr_eq(&known.watch, watch))
    };
    if registry.nodes.get(&watch.key).is_some_and(is_it) {
        return registry.take(watch.key, watch.instance_id).map(|(taken, _)| taken);
    }
    let fed = watch.fed.get()?;
    if registry.ending.get(&fed).is_some_and(is_it) {
        registry.take_ending(fed, watch.instance_id)
    } else {
        None
    }
}

/// Watches of the node do not keep it any more. The caller does so meanwhile.
pub fn release(key: usize) {
    give_up_pins(key, false);
}

/// Watches of the node do not keep a name of it any more. The caller keeps the node meanwhile.
pub fn release_names(key: usize) {
    give_up_pins(key, true);
}

fn give_up_pins(key: usize, only_names: bool) {
    let mut after = 0;
    loop {
        let mut chunk = [Pin::NONE; CHUNK];
        let count = REGISTRY.lock().take_pins(key, only_names, &mut after, &mut chunk);
        drop(chunk);
        if count < CHUNK {
            return;
        }
    }
}

/// Tells the watches of a node of its end, and ends them.
pub fn end(key: usize, last: Mask) {
    let node = {
        let mut registry = REGISTRY.lock();
        let Some(node) = registry.nodes.remove(&key) else { return };
        let fed = node.fed.get().filter(|fed| registry.fed.get(fed) == Some(&key));
        if let Some(fed) = fed {
            // The host tells of it, after all that it has to tell before.
            registry.fed.remove(&fed);
            registry.ending.insert(fed, node);
            return;
        }
        registry.removed(node.watches.len());
        node
    };
    for known in node.watches.values() {
        finish(&known.watch, last, node.is_dir);
    }
}

/// The host's watch has ended, and with it those that it tells; result: to be dropped without locks. `None`: nobody knows it.
fn feed_ended(fed: Descriptor) -> Option<Node> {
    let node = {
        let mut registry = REGISTRY.lock();
        let key = registry.fed.remove(&fed);
        let is_its = |node: &Node| node.fed.get() == Some(fed);
        let node = match key.filter(|key| registry.nodes.get(key).is_some_and(is_its)) {
            Some(key) => registry.nodes.remove(&key),
            None => registry.ending.remove(&fed),
        };
        if node.is_some() || key.is_some() {
            registry.unfed.push(fed);
        }
        let node = node?;
        registry.removed(node.watches.len());
        node
    };
    node.watches.values().for_each(|known| known.watch.end());
    Some(node)
}

/// The host has lost the ends of nodes that are no more in this kernel. Without locks.
fn end_lost() {
    loop {
        let node = {
            let mut registry = REGISTRY.lock();
            let Some((fed, node)) = registry.ending.pop_first() else { return };
            registry.unfed.push(fed);
            registry.removed(node.watches.len());
            node
        };
        node.watches.values().for_each(|known| finish(&known.watch, Mask::DELETE_SELF, node.is_dir));
    }
}

/// Tells a watch that no node knows any more of the end of what it watched.
fn finish(watch: &Arc<Watch>, last: Mask, is_dir: bool) {
    drop(watch.tell(&Event::own(if is_dir { last | Mask::IS_DIR } else { last })));
    watch.end();
}

/// The node with this key is being freed.
#[inline]
pub fn gone(key: usize) {
    if is_any() {
        end(key, Mask::DELETE_SELF);
    }
}

/// The last mount of a view is gone. Watches of the same files by other views stay.
pub fn unmounted(tree: usize) {
    let mut after = (0, 0);
    loop {
        let taken = REGISTRY.lock().take_of(tree, &mut after);
        let Some(taken) = taken else { return };
        for (known, is_dir) in taken.into_iter().flatten() {
            finish(&known.watch, Mask::UNMOUNT, is_dir);
        }
    }
}

#[cfg(test)]
mod tests;
