//! Leases of files (`F_SETLEASE`): who has one is told by a signal before others open the file, and they wait until it is given up.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::fs::caller;
use crate::fs::caller::PidOf;
use crate::fs::file::{self, File, Keeper, Kept};
use crate::fs::inode::Inode;
use crate::fs::locks::Node;
use crate::fs::sigio::{self, Notice, Reason};
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::sched;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};
use machine::time;

/// Seconds that a holder has for giving a lease up, unless a container's root says otherwise (`fs.lease-break-time`).
pub const BREAK_SECONDS: i32 = 45;
/// Bytes of kernel memory a file's first lease takes.
const LEASE_BYTES: usize = 512;

/// Most leases of one file.
const LEASES_MAX: usize = 4096;
/// Holders that are told at once.
const BATCH: usize = 64;

/// The change that a lease in the way is told to make.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Break {
    /// It is to let readers in.
    Downgrade,
    /// It is to go.
    Unlock,
}

struct Lease {
    /// The description's [`File::id`].
    file: u64,
    exclusive: bool,
    breaks: Option<(Break, u64)>,
    notice: Arc<Notice>,
    /// Who took it.
    process: PidOf,
}

/// A lease as `/proc/locks` shows it.
#[derive(Clone, Copy)]
pub struct Shown {
    /// The description's [`File::id`].
    pub file: u64,
    pub process: PidOf,
    /// Whether the lease is exclusive, or will be once it has made way as it was told; `None`: it is to go.
    pub exclusive: Option<bool>,
    pub is_breaking: bool,
}

impl Lease {
    fn shown(&self) -> Shown {
        let exclusive = match self.breaks {
            Some((Break::Unlock, _)) => None,
            Some((Break::Downgrade, _)) => Some(false),
            None => Some(self.exclusive),
        };
        Shown { file: self.file, process: self.process, exclusive, is_breaking: self.breaks.is_some() }
    }
}

/// The leases of one file.
#[derive(Default)]
struct Leases {
    list: Vec<Lease>,
    node: Option<Node>,
}

impl Lease {
    /// Whether its time is over at `now_ns`: carries out what it was told to do; true if it goes.
    fn expire(&mut self, now_ns: u64) -> bool {
        match self.breaks {
            Some((Break::Unlock, deadline_ns)) if now_ns >= deadline_ns => return true,
            Some((Break::Downgrade, deadline_ns)) if now_ns >= deadline_ns => {
                self.exclusive = false;
                self.breaks = None;
            }
            _ => {}
        }
        false
    }

    /// Tells it to make way; true if its holder has yet to hear of that.
    fn make_way(&mut self, how: Break, (now_ns, time_ns): (u64, u64)) -> bool {
        let until_ns = now_ns.saturating_add(time_ns);
        if let Some((known, deadline_ns)) = &mut self.breaks
            && *known >= how
        {
            // Whoever asked first may belong to a container that has all the time in the world.
            *deadline_ns = until_ns.min(*deadline_ns);
            return false;
        }
        self.breaks = Some((how, until_ns));
        true
    }
}

/// By [`Inode::lock_key`]. A file with a lease is open, so the key stays its own.
static TABLE: SpinLock<BTreeMap<usize, Leases>> = SpinLock::new(Rank::Leaf, BTreeMap::new());
/// How many there are: openings look here first.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static CHANGED: WaitQueue = WaitQueue::new();

/// Leases that there are.
#[cfg(feature = "harness")]
pub fn count() -> usize {
    COUNT.load(Ordering::SeqCst)
}

/// The result of an operation on a file's leases, and whether it changed them.
struct Changed<R> {
    result: R,
    /// The leases are others than before, or say other things.
    is_so: bool,
}

impl<R> Changed<R> {
    fn yes(result: R) -> Self {
        Self { result, is_so: true }
    }

    fn no(result: R) -> Self {
        Self { result, is_so: false }
    }
}

/// Changes the leases of a file and keeps the count; if something has changed, whoever waits looks again. `None`: the file has none.
fn change<R>(key: usize, what: impl FnOnce(&mut Vec<Lease>) -> Changed<R>) -> Option<R> {
    let mut table = TABLE.lock();
    let leases = &mut table.get_mut(&key)?.list;
    let (changed, is_empty) = counted(leases, what);
    let gone = if is_empty { table.remove(&key) } else { None };
    drop(table);
    drop(gone);
    if changed.is_so {
        CHANGED.wake_all();
    }
    Some(changed.result)
}

/// Changes leases and keeps the count; returns what `what` does, and whether none is left.
fn counted<R>(leases: &mut Vec<Lease>, what: impl FnOnce(&mut Vec<Lease>) -> R) -> (R, bool) {
    let before = leases.len();
    let result = what(leases);
    let after = leases.len();
    if after >= before {
        COUNT.fetch_add(after - before, Ordering::SeqCst);
    } else {
        COUNT.fetch_sub(before - after, Ordering::SeqCst);
    }
    (result, leases.is_empty())
}

fn key_of(file: &File) -> Result<usize> {
    file.path.as_ref().map(|path| path.inode.lock_key()).ok_or(Errno::EINVAL)
}

/// Takes a lease, or changes the one that the description has. `EAGAIN`: the file is open in a way that the lease forbids, or
/// another lease is.
pub fn set(file: &Arc<File>, fd: i32, exclusive: bool) -> Result<()> {
    file::keep(Kept::Leases, KEEPER);
    let inode = &file.path.as_ref().ok_or(Errno::EINVAL)?.inode;
    if inode.host_locks().is_some() {
        // Others than the sandbox may open it without asking.
        return Err(Errno::EINVAL);
    }
    let opens = inode.opens().ok_or(Errno::EINVAL)?;
    let key = inode.lock_key();
    account::check(LEASE_BYTES).map_err(|_| Errno::ENOLCK)?;
    let notice = sigio::for_lease(file, fd)?;
    let (node, process) = (Node::of(file), PidOf::of(&*caller::current()));
    // Who opens counts that first, and then looks for leases, so one of the two sees the other.
    COUNT.fetch_add(1, Ordering::SeqCst);
    let mut table = TABLE.lock();
    let leases = table.entry(key).or_default();
    leases.node.get_or_insert(node);
    let leases = &mut leases.list;
    let (result, is_empty) = counted(leases, |leases| {
        let in_the_way = |other: &Lease| {
            other.file != file.id && (exclusive || matches!(other.breaks, Some((Break::Unlock, _))))
        };
        if leases.iter().any(in_the_way) {
            return Err(Errno::EAGAIN);
        }
        let known = leases.iter().position(|lease| lease.file == file.id);
        if opens.forbid(exclusive) {
            return Err(Errno::EAGAIN);
        }
        match known {
            Some(at) => {
                let lease = &mut leases[at];
                lease.exclusive = exclusive;
                // One that is to go still is.
                lease.breaks = lease.breaks.filter(|(how, _)| exclusive || *how == Break::Unlock);
            }
            None if leases.len() >= LEASES_MAX => return Err(Errno::ENOLCK),
            None => {
                leases.try_reserve(1).map_err(|_| Errno::ENOLCK)?;
                leases.push(Lease { file: file.id, exclusive, breaks: None, notice, process });
            }
        }
        Ok(())
    });
    let gone = if is_empty { table.remove(&key) } else { None };
    drop(table);
    drop(gone);
    COUNT.fetch_sub(1, Ordering::SeqCst);
    if result.is_ok() {
        CHANGED.wake_all();
    }
    result
}

/// Gives the lease up. `EAGAIN`: the description has none.
pub fn remove(file: &Arc<File>) -> Result<()> {
    let key = key_of(file)?;
    if !take(file, key) {
        return Err(Errno::EAGAIN);
    }
    // As on Linux, nobody is told of the file any more.
    sigio::set_owner(file, None)?;
    sigio::set_signal(file, 0)
}

fn take(file: &File, key: usize) -> bool {
    let taken = change(key, |leases| {
        let at = leases.iter().position(|lease| lease.file == file.id);
        at.map_or(Changed::no(None), |at| Changed::yes(Some(leases.swap_remove(at))))
    });
    taken.flatten().is_some()
}

/// The lease that the description has, or will have once it is as it was told to be: whether it is exclusive.
pub fn get(file: &File) -> Option<bool> {
    if COUNT.load(Ordering::SeqCst) == 0 {
        return None;
    }
    let key = key_of(file).ok()?;
    let now_ns = time::monotonic_ns();
    change(key, |leases| {
        let Some(at) = leases.iter().position(|lease| lease.file == file.id) else {
            return Changed::no((None, None));
        };
        let was_exclusive = leases[at].exclusive;
        if leases[at].expire(now_ns) {
            return Changed::yes((None, Some(leases.swap_remove(at))));
        }
        let lease = &leases[at];
        Changed { result: (lease.shown().exclusive, None), is_so: lease.exclusive != was_exclusive }
    })
    .and_then(|(shown, _)| shown)
}

/// The leases of open files go with these.
const KEEPER: &Keeper = &Keeper { file_gone: release_file, descriptor_closed: |_, _| {} };

/// The description is gone, and its lease with it. One without a notice never had any.
fn release_file(file: &File) {
    if COUNT.load(Ordering::SeqCst) != 0
        && file.notice().is_some()
        && let Ok(key) = key_of(file)
    {
        take(file, key);
    }
}

/// Has the leases of a file that is opened (or cut) make way, and waits for that. The opening is counted already. `EAGAIN`: one is in
/// the way, and `waits` is false. Interrupted by signals with `Errno::RESTART`.
pub fn make_way(inode: &dyn Inode, writes: bool, waits: bool) -> Result<()> {
    if COUNT.load(Ordering::SeqCst) == 0 || inode.opens().is_none() {
        return Ok(());
    }
    let key = inode.lock_key();
    loop {
        let (holders, deadline_ns) = ask(key, writes);
        let is_all = holders.len() < BATCH;
        for notice in holders {
            notice.send(Reason::Message);
        }
        if !is_all {
            sched::let_others_go_on();
            continue;
        }
        let Some(deadline_ns) = deadline_ns else { return Ok(()) };
        if !waits {
            return Err(Errno::EAGAIN);
        }
        CHANGED.wait_until(Some(deadline_ns), || (!is_in_the_way(key, writes)).then_some(()))?;
    }
}

fn is_in_the_way(key: usize, writes: bool) -> bool {
    let table = TABLE.lock();
    table.get(&key).is_some_and(|leases| leases.list.iter().any(|lease| writes || lease.exclusive))
}

/// Tells the leases that are in the way to go: the holders that have yet to hear of it, and when the time of the first is over.
/// `None`: none is in the way.
fn ask(key: usize, writes: bool) -> (Vec<Arc<Notice>>, Option<u64>) {
    let now_ns = time::monotonic_ns();
    // A time of 0 never ends.
    let seconds = u64::try_from(caller::current().lease_break_seconds()).ok().filter(|seconds| *seconds != 0);
    let time_ns = seconds.map_or(u64::MAX, |seconds| seconds * time::NSEC);
    let how = if writes { Break::Unlock } else { Break::Downgrade };
    // No allocation may fail under the lock.
    let (mut holders, mut expired) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
    let mut deadline_ns = None;
    let mut table = TABLE.lock();
    let Some(leases) = table.get_mut(&key) else { return (holders, None) };
    let ((), is_empty) = counted(&mut leases.list, |leases| {
        for at in (0..leases.len()).rev() {
            if expired.len() < BATCH && leases[at].expire(now_ns) {
                expired.push(leases.swap_remove(at));
            }
        }
        for lease in leases.iter_mut().filter(|lease| writes || lease.exclusive) {
            if holders.len() < BATCH && lease.make_way(how, (now_ns, time_ns)) {
                holders.push(lease.notice.clone());
            }
            let own_ns = lease.breaks.map_or(now_ns, |(_, deadline_ns)| deadline_ns);
            deadline_ns = Some(deadline_ns.map_or(own_ns, |known: u64| known.min(own_ns)));
        }
    });
    let gone = if is_empty { table.remove(&key) } else { None };
    drop(table);
    drop((expired, gone));
    (holders, deadline_ns)
}

/// The leases of one file.
pub struct Listed {
    /// Where the next file is looked for.
    pub next: usize,
    pub node: Option<Node>,
    pub leases: Vec<Shown>,
}

/// The first file with leases from `from` on.
pub fn list(from: usize) -> Result<Option<Listed>> {
    let table = TABLE.lock();
    let Some((key, leases)) = table.range(from..).next() else { return Ok(None) };
    let mut shown = account::vec(leases.list.len())?;
    shown.extend(leases.list.iter().map(Lease::shown));
    Ok(Some(Listed { next: key.saturating_add(1), node: leases.node.clone(), leases: shown }))
}

/// The lease of a description.
pub fn of_file(file: &File) -> Option<Shown> {
    let key = key_of(file).ok()?;
    let table = TABLE.lock();
    table.get(&key)?.list.iter().find(|lease| lease.file == file.id).map(Lease::shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::eventfd;
    use crate::fs::file::OpenFlags;

    fn lease(exclusive: bool) -> Lease {
        let file = eventfd::EventFile::open(0, false, OpenFlags::empty()).unwrap();
        let notice = sigio::for_lease(&file, 3).unwrap();
        Lease { file: file.id, exclusive, breaks: None, notice, process: PidOf::default() }
    }

    #[test]
    fn a_lease_makes_way_step_by_step_and_is_told_of_each_once() {
        let mut it = lease(true);
        let seconds = 45 * time::NSEC;
        let at = |now_ns| (now_ns, seconds);
        assert!(it.make_way(Break::Downgrade, at(0)) && !it.make_way(Break::Downgrade, at(5)));
        assert!(!it.expire(seconds - 1) && it.exclusive);
        assert!(!it.expire(seconds) && !it.exclusive && it.breaks.is_none());
        assert!(
            it.make_way(Break::Downgrade, at(0)) && it.make_way(Break::Unlock, at(7)),
            "more is asked for"
        );
        assert!(!it.make_way(Break::Downgrade, at(9)));
        assert!(it.expire(7 + seconds));
        it.breaks = None;
        assert!(it.make_way(Break::Unlock, (7, u64::MAX)) && !it.expire(u64::MAX - 1), "no time is set");
    }
}
