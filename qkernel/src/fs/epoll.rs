//! `epoll(7)`: a set of files, and a list of those that may be ready, so that the cost of a wait depends on the ready
//! files alone.
//!
//! Each file in the set is an [`Item`] registered with the file's wait queues. A wake-up puts the item on the ready
//! list; a wait takes items off, asks their files, and reports. An item holds its file weakly: closing the file ends
//! its membership, noticed when its turn comes or when the set is swept.
//!
//! Locks: a file's queue, then a ready list, then the queues of the set's own waiters, and so on outwards; sets don't
//! contain themselves, so this ends.

mod item;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::creds::CAP_NET_ADMIN;
use crate::fs::caller::CallerCtx;
use crate::fs::file::{File, FileOps, OpenFlags, Whence};
use crate::fs::inode::Stat;
use crate::fs::poll::PollTable;
use crate::fs::{anon, host_poll};
use item::{Item, Ready};
use machine::errno::{Errno, Result};
use machine::mm::{UserAddr, account};
use machine::sched;
use machine::sched::wait::{PollEvents, WaitQueue, Waker};
use machine::sched::work;
use machine::sync::{Mutex, Rank, SpinLock};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const EPOLLEXCLUSIVE: u32 = 1 << 28;
pub const EPOLLWAKEUP: u32 = 1 << 29;
pub const EPOLLONESHOT: u32 = 1 << 30;
pub const EPOLLET: u32 = 1 << 31;
/// Bits that say how an event is reported, not which events are reported.
const HOW: u32 = EPOLLEXCLUSIVE | EPOLLWAKEUP | EPOLLONESHOT | EPOLLET;
/// Most levels to which sets may contain sets.
const NESTING_MAX: usize = 5;
/// Most files in one set.
const ITEMS_MAX: usize = 1 << 17;
/// Bytes of kernel memory one item takes, more or less.
const ITEM_BYTES: u64 = 1024;
/// Most events that one call reports when kernel memory is short; the next call reports the rest.
const EVENTS_MAX_SHORT: usize = 8192;

/// Events that are reported whether or not they were asked for.
const ALWAYS: u32 = PollEvents::ERR.union(PollEvents::HUP).bits();

type Items = BTreeMap<(u64, i32), Arc<Item>>;

const EPIOCSPARAMS: u32 = 0x4008_8a01;
const EPIOCGPARAMS: u32 = 0x8008_8a02;

/// `struct epoll_params`: how long and how often a wait asks network devices itself. Kept and told: there are none to ask.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, Immutable, IntoBytes)]
struct Params {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    pad: u8,
}

impl Params {
    /// Most packets at once that anybody may ask for.
    const BUDGET_MAX: u16 = 64;

    fn check(&self, may_exceed: bool) -> Result<()> {
        if self.pad != 0 || self.busy_poll_usecs > i32::MAX.cast_unsigned() || self.prefer_busy_poll > 1 {
            return Err(Errno::EINVAL);
        }
        if self.busy_poll_budget > Self::BUDGET_MAX && !may_exceed { Err(Errno::EPERM) } else { Ok(()) }
    }
}

/// The set.
pub struct Epoll {
    ino: u64,
    params: SpinLock<Params>,
    items: Mutex<Items>,
    ready: Arc<Ready>,
    /// Sets this one is in.
    parents: SpinLock<Vec<Weak<File>>>,
    /// Size at which the set is next swept of closed files.
    sweep_at: AtomicUsize,
}

/// Held while a set is put into a set.
static NESTING: Mutex<()> = Mutex::new(Rank::EpollNesting, ());

/// An event as it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    pub events: u32,
    pub data: u64,
}

/// Makes an empty set.
pub fn open(flags: OpenFlags) -> Result<Arc<File>> {
    anon::check_room()?;
    let ready = Ready {
        list: SpinLock::new(Rank::EpollReady, VecDeque::new()),
        waiters: WaitQueue::new(),
        pollers: Arc::new(WaitQueue::new()),
    };
    let set = Epoll {
        ino: anon::next_ino(),
        params: SpinLock::new(Rank::Leaf, Params::default()),
        items: Mutex::new(Rank::Epoll, BTreeMap::new()),
        ready: Arc::new(ready),
        parents: SpinLock::new(Rank::Leaf, Vec::new()),
        sweep_at: AtomicUsize::new(64),
    };
    Ok(File::new(Box::new(set), flags | OpenFlags::RDWR, None))
}

impl Epoll {
    /// `EPOLL_CTL_ADD`. `me` is the file of this set.
    pub fn add(&self, me: &Arc<File>, file: &Arc<File>, fd: i32, events: u32, data: u64) -> Result<()> {
        if events & EPOLLEXCLUSIVE != 0 {
            check_exclusive(file, events)?;
        }
        let events = events | ALWAYS;
        anon::check_room()?;
        let nested = file.as_ops::<Epoll>();
        let _nesting = nested.map(|_| NESTING.lock());
        if nested.is_some() {
            check_nesting(me, file)?;
        }
        let item = {
            let mut items = self.items.lock();
            if items.contains_key(&(file.id, fd)) {
                return Err(Errno::EEXIST);
            }
            self.sweep(&mut items);
            if items.len() >= ITEMS_MAX {
                return Err(Errno::ENOSPC);
            }
            self.ready.reserve(items.len() + 1)?;
            let item = self.new_item(file, fd, events, data);
            let waker = Waker::Object(item.clone());
            let mut table = PollTable::new(waker, PollEvents::all());
            file.ops.poll(file, Some(&mut table));
            if table.is_short() {
                item.remove();
                self.ready.purge();
                return Err(Errno::ENOMEM);
            }
            items.insert((file.id, fd), item.clone());
            *item.table.lock() = Some(table);
            item
        };
        if let Some(child) = nested {
            let mut parents = child.parents.lock();
            parents.retain(|parent| parent.strong_count() != 0);
            parents.push(Arc::downgrade(me));
        }
        self.list_if_ready(&item);
        Ok(())
    }

    fn new_item(&self, file: &Arc<File>, fd: i32, events: u32, data: u64) -> Arc<Item> {
        Arc::new_cyclic(|me| Item {
            me: me.clone(),
            file: Arc::downgrade(file),
            key: (file.id, fd),
            ready: self.ready.clone(),
            events: AtomicU32::new(events),
            data: SpinLock::new(Rank::Leaf, data),
            listed: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            table: SpinLock::new(Rank::Leaf, None),
        })
    }

    fn list_if_ready(&self, item: &Arc<Item>) {
        if item.look().is_some_and(|events| !events.is_empty()) && self.ready.push(item) {
            self.ready.announce();
        }
    }

    /// `EPOLL_CTL_MOD`.
    pub fn modify(&self, file: &Arc<File>, fd: i32, events: u32, data: u64) -> Result<()> {
        let events = events | ALWAYS;
        let item = {
            let items = self.items.lock();
            let item = items.get(&(file.id, fd)).ok_or(Errno::ENOENT)?;
            if (item.events.load(Ordering::Relaxed) | events) & EPOLLEXCLUSIVE != 0 {
                return Err(Errno::EINVAL);
            }
            *item.data.lock() = data;
            item.events.store(events, Ordering::Release);
            item.clone()
        };
        self.list_if_ready(&item);
        Ok(())
    }

    /// `EPOLL_CTL_DEL`.
    pub fn delete(&self, me: &Arc<File>, file: &Arc<File>, fd: i32) -> Result<()> {
        let item = self.items.lock().remove(&(file.id, fd)).ok_or(Errno::ENOENT)?;
        item.remove();
        if item.listed.load(Ordering::Acquire) {
            self.ready.purge();
        }
        if let Some(child) = file.as_ops::<Epoll>() {
            child.parents.lock().retain(|parent| !core::ptr::eq(parent.as_ptr(), Arc::as_ptr(me)));
        }
        Ok(())
    }

    /// Forgets closed files when the set has doubled since it was last swept.
    fn sweep(&self, items: &mut Items) {
        if items.len() < self.sweep_at.load(Ordering::Relaxed) {
            return;
        }
        items.retain(|_, item| {
            let open = item.file.strong_count() != 0;
            if !open {
                item.remove();
            }
            open
        });
        self.ready.purge();
        self.sweep_at.store((items.len() * 2).max(64), Ordering::Relaxed);
    }

    /// Takes up to `max` events that hold now.
    fn take(&self, max: usize, out: &mut Vec<Reported>) {
        // Items that stay ready go behind those that wait for their turn.
        let mut items = self.items.lock();
        let mut again = Vec::new();
        let turns = self.ready.list.lock().len();
        let bytes = 2 * turns.min(max) * (size_of::<Reported>() + size_of::<Arc<Item>>());
        let max = if turns > EVENTS_MAX_SHORT && account::check(bytes).is_err() {
            max.min(EVENTS_MAX_SHORT)
        } else {
            max
        };
        for _ in 0..turns {
            if out.len() >= max {
                break;
            }
            work::count(1);
            let Some(item) = self.ready.pop() else { break };
            if item.removed.load(Ordering::Acquire) {
                continue;
            }
            let Some(events) = item.look() else {
                item.remove();
                items.remove(&item.key);
                continue;
            };
            if events.is_empty() {
                continue;
            }
            out.push(Reported { events: events.bits(), data: *item.data.lock() });
            let how = item.events.load(Ordering::Relaxed);
            if how & EPOLLONESHOT != 0 {
                item.events.fetch_and(HOW, Ordering::AcqRel);
            } else if how & EPOLLET == 0 {
                again.push(item);
            }
        }
        for item in again {
            self.ready.push(&item);
        }
    }

    /// Waits for events until `deadline_ns` (monotonic; `None`: for ever; 0: not at all). Empty when time is up;
    /// `Errno::EINTR` by a signal.
    pub fn wait(&self, max: usize, deadline_ns: Option<u64>) -> Result<Vec<Reported>> {
        let mut out = Vec::new();
        self.take(max, &mut out);
        if out.is_empty() && deadline_ns == Some(0) {
            host_poll::look();
            self.take(max, &mut out);
        }
        if out.is_empty() && deadline_ns != Some(0) {
            let ready = || {
                if !self.ready.is_empty() {
                    self.take(max, &mut out);
                }
                (!out.is_empty()).then_some(())
            };
            // Who has a time-out waits for that as well, and who has none for something in the set, most likely from outside.
            let wait = || self.ready.waiters.wait_until(deadline_ns, ready);
            let woken = sched::current().sched().waiting.on(0, deadline_ns.is_none(), wait);
            if out.is_empty() {
                // A wake-up meant for one waiter may have come to this one, which leaves.
                self.pass_on();
                woken.map_err(|_| Errno::EINTR)?;
                return Ok(out);
            }
        }
        self.pass_on();
        Ok(out)
    }

    fn pass_on(&self) {
        if !self.ready.waiters.is_empty() && !self.ready.is_empty() {
            self.ready.waiters.wake_one();
        }
    }

    /// Whether any item is ready; those that aren't leave the list.
    fn any_ready(&self) -> bool {
        // Asked for by a set that watches this one, whose items are locked.
        let _items = self.items.lock_beside();
        let turns = self.ready.list.lock().len();
        for _ in 0..turns {
            work::count(1);
            let Some(item) = self.ready.pop() else { break };
            if item.removed.load(Ordering::Acquire) {
                continue;
            }
            if item.look().is_some_and(|events| !events.is_empty()) {
                self.ready.push(&item);
                return true;
            }
        }
        false
    }

    /// The sets in this set.
    fn children(&self) -> Vec<Arc<File>> {
        let items = self.items.lock();
        let files = items.values().filter_map(|item| item.file.upgrade());
        files.filter(|file| file.as_ops::<Epoll>().is_some()).collect()
    }
}

fn check_exclusive(file: &Arc<File>, events: u32) -> Result<()> {
    let allowed = EPOLLEXCLUSIVE
        | EPOLLWAKEUP
        | EPOLLET
        | (PollEvents::READABLE | PollEvents::WRITABLE | PollEvents::ERR | PollEvents::HUP).bits();
    if events & !allowed != 0 || file.as_ops::<Epoll>().is_some() { Err(Errno::EINVAL) } else { Ok(()) }
}

/// `ELOOP` when `parent` is in `child`, or the chain of sets would become too long.
fn check_nesting(parent: &Arc<File>, child: &Arc<File>) -> Result<()> {
    let below = depth(child, parent.id, &mut BTreeMap::new(), &|set| set.children())?;
    let above = depth(parent, child.id, &mut BTreeMap::new(), &|set| {
        set.parents.lock().iter().filter_map(Weak::upgrade).collect()
    })?;
    if below + above > NESTING_MAX { Err(Errno::ELOOP) } else { Ok(()) }
}

/// Sets in the longest chain from `file` on; `ELOOP` when it meets `forbidden`.
fn depth(
    file: &Arc<File>,
    forbidden: u64,
    known: &mut BTreeMap<u64, usize>,
    next: &dyn Fn(&Epoll) -> Vec<Arc<File>>,
) -> Result<usize> {
    if file.id == forbidden {
        return Err(Errno::ELOOP);
    }
    if let Some(depth) = known.get(&file.id) {
        return Ok(*depth);
    }
    let mut longest = 0;
    for other in file.as_ops::<Epoll>().map(next).unwrap_or_default() {
        longest = longest.max(depth(&other, forbidden, known, next)?);
    }
    known.insert(file.id, longest + 1);
    Ok(longest + 1)
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // Not by the lock: a set may end while another one looks at its files, and holds the lock of its own.
        for item in core::mem::take(self.items.get_mut()).into_values() {
            item.remove();
        }
        // Items hold the list and the list holds items.
        let list = core::mem::take(&mut *self.ready.list.lock());
        drop(list);
    }
}

impl FileOps for Epoll {
    fn held_bytes(&self) -> u64 {
        // The holder of the lock is about to change the number anyway.
        self.items.try_lock().map_or(0, |items| items.len() as u64 * ITEM_BYTES)
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if let Some(table) = table {
            table.add(&self.ready.pollers);
        }
        // Who takes events lets others go on with items in hand that stay ready, and holds the set meanwhile.
        let is_empty = self.items.try_lock().is_some_and(|_items| self.ready.is_empty());
        if !is_empty && self.any_ready() { PollEvents::READABLE } else { PollEvents::empty() }
    }

    fn can_be_spliced(&self) -> bool {
        false
    }

    fn seek(&self, _file: &File, _offset: i64, _whence: Whence) -> Result<u64> {
        anon::seek()
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        Ok(anon::stat(0o600, self.ino, (0, 0)))
    }

    fn ioctl(&self, cx: &CallerCtx<'_>, _file: &File, request: u32, arg: u64) -> Result<u64> {
        match request {
            EPIOCSPARAMS => {
                let params: Params = cx.user().read(UserAddr::new(arg))?;
                params.check(cx.caller.creds().has(CAP_NET_ADMIN))?;
                *self.params.lock() = params;
            }
            EPIOCGPARAMS => {
                let params = *self.params.lock();
                cx.user().write(UserAddr::new(arg), &params)?;
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[eventpoll]".to_vec()
    }

    fn fdinfo(&self) -> Vec<u8> {
        let items = self.items.lock();
        let line = |((_, fd), item): (&(u64, i32), &Arc<Item>)| {
            let events = item.events.load(Ordering::Relaxed);
            let data = *item.data.lock();
            format!("tfd: {fd:8} events: {events:8x} data: {data:16x}\n").into_bytes()
        };
        items.iter().take(1000).flat_map(line).collect()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::eventfd::EventFile;
    use crate::fs::{At, pipe};
    use machine::mm::IoBuf;

    const IN: u32 = 1;

    fn set() -> Arc<File> {
        open(OpenFlags::empty()).unwrap()
    }

    fn epoll(file: &Arc<File>) -> &Epoll {
        file.as_ops::<Epoll>().unwrap()
    }

    fn now(file: &Arc<File>) -> Vec<u64> {
        epoll(file).wait(8, Some(0)).unwrap().iter().map(|event| event.data).collect()
    }

    fn write(file: &Arc<File>, bytes: &[u8]) {
        file.ops.write(file, &mut IoBuf::constant(bytes), At::Position).unwrap();
    }

    #[test]
    fn level_edge_and_one_shot() {
        let set = set();
        let (read, end) = pipe::new_pipe((0, 0), OpenFlags::NONBLOCK).unwrap();
        epoll(&set).add(&set, &read, 3, IN, 7).unwrap();
        assert_eq!(epoll(&set).add(&set, &read, 3, IN, 7), Err(Errno::EEXIST));
        assert!(now(&set).is_empty());
        write(&end, b"ab");
        assert_eq!((now(&set), now(&set)), (alloc::vec![7], alloc::vec![7]));
        epoll(&set).modify(&read, 3, IN | EPOLLET, 8).unwrap();
        assert_eq!((now(&set), now(&set)), (alloc::vec![8], Vec::new()));
        write(&end, b"c");
        assert_eq!((now(&set), now(&set)), (alloc::vec![8], Vec::new()));
        epoll(&set).modify(&read, 3, IN | EPOLLONESHOT, 9).unwrap();
        assert_eq!(now(&set), [9]);
        write(&end, b"d");
        assert!(now(&set).is_empty());
        epoll(&set).delete(&set, &read, 3).unwrap();
        assert_eq!(epoll(&set).delete(&set, &read, 3), Err(Errno::ENOENT));
    }

    #[test]
    fn one_call_reports_all_that_is_asked_for() {
        let set = set();
        let event = EventFile::open(1, false, OpenFlags::empty()).unwrap();
        for fd in 0..20_000 {
            epoll(&set).add(&set, &event, fd, IN, 7).unwrap();
        }
        assert_eq!(epoll(&set).wait(30_000, Some(0)).unwrap().len(), 20_000);
        assert_eq!(epoll(&set).wait(10_000, Some(0)).unwrap().len(), 10_000);
    }

    #[test]
    fn closed_files_leave() {
        let set = set();
        let event = EventFile::open(1, false, OpenFlags::empty()).unwrap();
        epoll(&set).add(&set, &event, 3, IN, 7).unwrap();
        assert_eq!(now(&set), [7]);
        let watched = Arc::downgrade(&event);
        drop(event);
        assert!(now(&set).is_empty() && watched.strong_count() == 0);
        assert!(epoll(&set).items.lock().is_empty());
    }

    #[test]
    fn sets_nest_without_loops_and_not_too_deep() {
        let sets: Vec<_> = (0..6).map(|_| set()).collect();
        for pair in sets.windows(2).take(4) {
            epoll(&pair[0]).add(&pair[0], &pair[1], 3, IN, 1).unwrap();
        }
        assert_eq!(epoll(&sets[4]).add(&sets[4], &sets[0], 3, IN, 1), Err(Errno::ELOOP));
        assert_eq!(epoll(&sets[4]).add(&sets[4], &sets[5], 3, IN, 1), Err(Errno::ELOOP));
        let event = EventFile::open(0, false, OpenFlags::empty()).unwrap();
        epoll(&sets[4]).add(&sets[4], &event, 3, IN, 1).unwrap();
        assert!(now(&sets[0]).is_empty());
        write(&event, &1u64.to_ne_bytes());
        assert_eq!(now(&sets[0]), [1]);
        epoll(&sets[3]).delete(&sets[3], &sets[4], 3).unwrap();
        assert!(now(&sets[0]).is_empty());
        epoll(&sets[4]).add(&sets[4], &sets[5], 3, IN, 1).unwrap();
    }

    #[test]
    fn closing_a_set_frees_everything() {
        let set = set();
        let event = EventFile::open(1, false, OpenFlags::empty()).unwrap();
        epoll(&set).add(&set, &event, 3, IN, 7).unwrap();
        let item = Arc::downgrade(epoll(&set).items.lock().values().next().unwrap());
        drop(set);
        assert_eq!(item.strong_count(), 0);
        write(&event, &1u64.to_ne_bytes());
    }
}
