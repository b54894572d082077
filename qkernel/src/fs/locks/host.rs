//! Locks of files that others may open as well: what the sandbox's owners have is locked on the host, for the sandbox as one owner.
//!
//! A *carrier*, an open file of the host's that nobody reads or writes by, holds the locks of one file: one of them those of bytes
//! (`F_OFD_SETLK`), for all processes and descriptions inside, another those of `flock(2)`. So owners inside conflict in this kernel's
//! table alone, and the host's lock of a byte is the strongest that any of them has there. A lock is first the host's and then in the
//! table; it goes in the other order. Between, the host has more than the table says, never less.
//!
//! The host is only asked what it can answer at once. Who waits for a lock that is held outside sleeps on a timer and asks again, ever
//! later up to [`RETRY_MAX_NS`]; while the sandbox is asleep nobody asks, and the first thing after a wake is the next attempt.

use abi::hostcall::LOCK_EXCLUSIVE;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::held::{Carrier, HostLocks, HostView, State};
use super::records;
use super::{Attempt, END, Lock, Owner, Removed, with_table};
use crate::fs::caller::PidOf;
use crate::fs::file::File;
use crate::fs::inode::S_IFDIR;
use crate::fs::opens::Opens;
use machine::counts::Charge;
use machine::errno::{Errno, Result};
use machine::host::{self, Handle};
use machine::mm::account;
use machine::objects::Origin;
use machine::sched::{self, Sleep};
use machine::{host_locks, time};

/// Most record locks of one such file: after a lock goes, the host is told of each piece that nobody has any more, without a pause.
const PIECES_MAX: usize = 512;
/// After so long a time a lock that is held outside is asked for again; then after twice as long, and so on …
const RETRY_FIRST_NS: u64 = 1_000_000;
/// … up to this one, or with very many waiters [`RETRY_CROWD_MAX_NS`].
const RETRY_MAX_NS: u64 = 100_000_000;
const RETRY_CROWD_MAX_NS: u64 = 1_000_000_000;
/// So many ask as often as one.
const CROWD: u64 = 16;

/// Tasks that wait for a lock that is held outside.
static WAITERS: AtomicUsize = AtomicUsize::new(0);

/// Whether a task waits for somebody outside to give up a lock, which would not wake the sandbox.
pub fn waits_for_host_lock() -> bool {
    WAITERS.load(Ordering::SeqCst) != 0
}

/// A task that waits for a lock that is held outside.
pub(super) struct Waiter {
    pause_ns: u64,
}

impl Waiter {
    pub fn new() -> Self {
        WAITERS.fetch_add(1, Ordering::SeqCst);
        Self { pause_ns: RETRY_FIRST_NS }
    }

    /// Sleeps until it is time to ask again. `Errno::RESTART`: a signal came.
    pub fn sleep(&mut self) -> Result<()> {
        let deadline_ns = time::monotonic_ns().saturating_add(self.pause_ns);
        self.pause_ns = next_pause_ns(self.pause_ns, WAITERS.load(Ordering::SeqCst) as u64);
        sched::sleep_until(Sleep::Interruptible, Some(deadline_ns), || None::<()>).map(drop)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        WAITERS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn next_pause_ns(pause_ns: u64, waiters: u64) -> u64 {
    let most = (RETRY_MAX_NS / CROWD).saturating_mul(waiters).clamp(RETRY_MAX_NS, RETRY_CROWD_MAX_NS);
    (pause_ns * 2).min(most)
}

impl HostLocks {
    /// One attempt at a record lock.
    pub(super) fn lock_record(&self, file: &File, key: usize, wanted: &Lock, waits: bool) -> Result<Attempt> {
        let exclusive = wanted.exclusive;
        let mut spare = None;
        loop {
            {
                let mut state = self.state.lock();
                let Some(new) = with_table(|table| table.prepare(key, wanted, waits))? else {
                    return Ok(Attempt::Held);
                };
                if state.carry_records(key, exclusive, &mut spare)? {
                    return state.lock_record(key, wanted, new);
                }
            }
            spare = Some(self.open(file, exclusive, exclusive)?);
        }
    }

    /// Opens the file once more, for which the host is asked without locks. `writes`: so that it may hold exclusive locks of bytes.
    fn open(&self, file: &File, writes: bool, excludes: bool) -> Result<Carrier> {
        let inode = &file.path.as_ref().ok_or(Errno::ENOLCK)?.inode;
        let handle = inode.open_to_lock(file, writes).map_err(|_| Errno::ENOLCK)?;
        handle.comes_from(Origin::Locks);
        self.is_used.store(true, Ordering::SeqCst);
        Ok(Carrier { handle, excludes, writes })
    }

    pub(super) fn unlock_record(&self, key: usize, owner: Owner, start: u64, end: u64) -> Result<()> {
        let mut state = self.state.lock();
        let new = with_table(|table| records::without(table.records(key), owner, start, end))?;
        // There may be one more: the two ends of a lock whose middle goes.
        if let Err(error) = state.charge(new.len()) {
            state.count(key);
            return Err(error);
        }
        let old = with_table(|table| table.commit(key, new));
        drop(old);
        state.free(key, start, end);
        Ok(())
    }

    /// Locks go with their owner.
    pub(super) fn release(&self, key: usize, which: &dyn Fn(&Lock) -> bool, flock: Option<u64>) -> Removed {
        let mut state = self.state.lock();
        let removed = with_table(|table| table.remove(key, which, flock));
        if let Some((start, end)) = removed.span {
            state.free(key, start, end);
        }
        state.free_whole(key);
        removed
    }

    /// The lock of somebody outside that keeps `wanted` from being had.
    pub(super) fn query(&self, file: &File, key: usize, wanted: &Lock) -> Result<Option<Lock>> {
        let mut spare = None;
        loop {
            {
                let mut state = self.state.lock();
                if state.carry_records(key, false, &mut spare)? {
                    return state.query(wanted);
                }
            }
            spare = Some(self.open(file, false, false)?);
        }
    }

    /// The file is open less often than before: closes what is not needed to hold its locks.
    pub(in crate::fs) fn closed(&self, key: usize, opens: &Opens) {
        if !self.is_used.load(Ordering::SeqCst) {
            return;
        }
        let mut unused = (None, None);
        {
            let mut state = self.state.lock();
            let is_closed = !opens.is_open();
            let is_written = opens.is_written();
            let is_needless = |carrier: &mut Carrier| is_closed || carrier.writes && !is_written;
            if with_table(|table| table.records(key).is_empty()) {
                unused.0 = state.records.take_if(is_needless);
            }
            if state.whole_held.is_none() {
                unused.1 = state.whole.take_if(is_needless);
            }
        }
        drop(unused);
    }

    /// Locks again under a VMM that has none of the carriers what the sandbox had locked; `open` opens the file, to be written if so. `EAGAIN`:
    /// somebody else has locked it since.
    pub fn lock_anew(&self, key: usize, open: &dyn Fn(bool) -> Result<Handle>) -> Result<()> {
        let writes = {
            let state = self.state.lock();
            [&state.records, &state.whole].map(|carrier| carrier.as_ref().map(|carrier| carrier.writes))
        };
        let [records, whole] = writes.map(|writes| writes.map(open).transpose());
        let (records, whole) = (records?, whole?);
        let state = self.state.lock();
        if let (Some(carrier), Some(opened)) = (&state.records, records) {
            opened.replace(&carrier.handle)?;
            let mut at = 0;
            while let Some(held) = with_table(|table| table.records(key).get(at).copied()) {
                host::lock_bytes(&carrier.handle, held.start, held.end, Some(held.exclusive))?;
                at += 1;
            }
        }
        if let (Some(carrier), Some(opened)) = (&state.whole, whole) {
            opened.replace(&carrier.handle)?;
            if state.whole_held.is_some() {
                host::lock_whole(&carrier.handle, state.whole_held)?;
            }
        }
        Ok(())
    }

    /// Closes an unneeded carrier as [`Self::closed`] does, for a directory, whose openings nobody counts.
    pub(super) fn settle_directory(&self, file: &File) {
        let is_directory = || file.path.as_ref().is_some_and(|path| path.inode.kind() == S_IFDIR);
        if !(self.is_used.load(Ordering::SeqCst) && is_directory()) {
            return;
        }
        let unused = {
            let mut state = self.state.lock();
            if state.whole_held.is_none() { state.whole.take() } else { None }
        };
        drop(unused);
    }
}

impl HostView<'_> {
    /// One attempt at a `flock(2)` lock, or its end; `keep`: without giving up what the description has first.
    pub(super) fn lock_whole(
        &self,
        file: &File,
        key: usize,
        wanted: Option<Lock>,
        keep: bool,
    ) -> Result<Attempt> {
        let owner = Owner::Description(file.id);
        let (mut spare, mut writes) = (None, false);
        loop {
            {
                let mut state = self.locks.state.lock();
                let is_free = |wanted: &Lock| !with_table(|table| table.has_flock_conflict(key, wanted));
                let Some(wanted) = wanted.filter(is_free) else {
                    let came = with_table(|table| table.try_flock(key, owner, wanted, keep));
                    state.free_whole(key);
                    return Ok(came);
                };
                let exclusive = wanted.exclusive && self.may_exclude;
                if state.whole_held == Some(exclusive) {
                    with_table(|table| table.set_flock(key, owner, Some(wanted)));
                    return Ok(Attempt::Done);
                }
                if state.carry_whole(exclusive, writes, &mut spare)? {
                    match state.lock_whole(key, &wanted, exclusive) {
                        // A file system that makes byte ranges of it, as NFS does, wants a file that is open for writing.
                        Err(Errno::EBADF) if !writes && file.flags().writable() => writes = true,
                        came => return came,
                    }
                }
            }
            spare = Some(self.locks.open(file, writes, self.may_exclude)?);
        }
    }
}

impl Carrier {
    fn can_hold(carrier: Option<&Self>, exclusive: bool, writes: bool) -> bool {
        carrier.is_some_and(|carrier| (carrier.excludes || !exclusive) && (carrier.writes || !writes))
    }
}

impl State {
    /// Whether there is a carrier for record locks; if need be `spare` becomes it, and takes over what the old one holds. That is
    /// shared, or the old one would do.
    fn carry_records(&mut self, key: usize, exclusive: bool, spare: &mut Option<Carrier>) -> Result<bool> {
        if Carrier::can_hold(self.records.as_ref(), exclusive, exclusive) {
            return Ok(true);
        }
        let Some(new) = spare.take() else { return Ok(false) };
        let mut at = 0;
        while let Some(held) = with_table(|table| table.records(key).get(at).copied()) {
            let taken = host::lock_bytes(&new.handle, held.start, held.end, Some(held.exclusive));
            taken.map_err(|_| Errno::ENOLCK)?;
            at += 1;
        }
        self.is_stale = false;
        self.records = Some(new);
        Ok(true)
    }

    /// Whether there is a carrier for the lock of `flock(2)`; if need be `spare` becomes it, and takes over the lock of
    /// the old one.
    fn carry_whole(&mut self, exclusive: bool, writes: bool, spare: &mut Option<Carrier>) -> Result<bool> {
        if Carrier::can_hold(self.whole.as_ref(), exclusive, writes) {
            return Ok(true);
        }
        let Some(new) = spare.take() else { return Ok(false) };
        if self.whole_held.is_some() {
            host::lock_whole(&new.handle, self.whole_held).map_err(|_| Errno::ENOLCK)?;
        }
        self.whole = Some(new);
        Ok(true)
    }

    fn query(&self, wanted: &Lock) -> Result<Option<Lock>> {
        let Some(carrier) = &self.records else { return Err(Errno::ENOLCK) };
        let found = host::lock_query(&carrier.handle, wanted.start, wanted.end, wanted.exclusive)?;
        Ok(found.map(|found| Lock {
            owner: Owner::Outside { is_process: found.is_process != 0 },
            process: PidOf::default(),
            file: 0,
            start: found.first,
            end: found.last.min(END),
            exclusive: found.kind == LOCK_EXCLUSIVE,
        }))
    }

    fn lock_record(&mut self, key: usize, wanted: &Lock, new: Vec<Lock>) -> Result<Attempt> {
        let Some(carrier) = &self.records else { return Err(Errno::ENOLCK) };
        let (start, end) = (wanted.start, wanted.end);
        let result = match charge(&mut self.charges, new.len()) {
            Ok(()) => host::lock_bytes(&carrier.handle, start, end, Some(wanted.exclusive)),
            Err(error) => Err(error),
        };
        let came = match result {
            Ok(()) => {
                let old = with_table(|table| table.commit(key, new));
                drop(old);
                Ok(Attempt::Done)
            }
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(Attempt::HeldOutside),
            Err(_) => Err(Errno::ENOLCK),
        };
        self.count(key);
        came
    }

    /// The table has no conflict with the lock, and the host has another one or none.
    fn lock_whole(&mut self, key: usize, wanted: &Lock, exclusive: bool) -> Result<Attempt> {
        let Some(carrier) = &self.whole else { return Err(Errno::ENOLCK) };
        let came = match host::lock_whole(&carrier.handle, Some(exclusive)) {
            Ok(()) => {
                self.whole_held = Some(exclusive);
                with_table(|table| table.set_flock(key, wanted.owner, Some(*wanted)));
                Ok(Attempt::Done)
            }
            Err(Errno::EAGAIN) => {
                // As on Linux the old one was given up first. It was this owner's alone: others' would conflict, or do. Where a file
                // system makes byte ranges of it, it is still there.
                if self.whole_held.take().is_some() && host::lock_whole(&carrier.handle, None).is_err() {
                    self.whole = None;
                }
                with_table(|table| table.set_flock(key, wanted.owner, None));
                Ok(Attempt::HeldOutside)
            }
            Err(Errno::EBADF) => Err(Errno::EBADF),
            Err(_) => Err(Errno::ENOLCK),
        };
        self.count(key);
        came
    }

    fn charge(&mut self, pieces: usize) -> Result<()> {
        charge(&mut self.charges, pieces)
    }

    /// Gives back what nobody in the table has any more of a range.
    fn free(&mut self, key: usize, start: u64, end: u64) {
        let (mut from, end) = if core::mem::take(&mut self.is_stale) { (0, END) } else { (start, end) };
        while let (Some(carrier), Some((first, last))) =
            (&self.records, with_table(|table| records::next_gap(table.records(key), from, end)))
        {
            self.is_stale |= host::lock_bytes(&carrier.handle, first, last, None).is_err();
            if last >= end {
                break;
            }
            from = last + 1;
        }
        if self.is_stale && with_table(|table| table.records(key).is_empty()) {
            // Closing it gives everything back.
            self.records = None;
            self.is_stale = false;
        }
        self.count(key);
    }

    /// Gives the lock of `flock(2)` back, unless somebody in the table has one.
    fn free_whole(&mut self, key: usize) {
        if self.whole_held.is_some() && with_table(|table| table.flocks(key).is_empty()) {
            let is_freed = |carrier: &Carrier| host::lock_whole(&carrier.handle, None).is_ok();
            self.whole = self.whole.take().filter(is_freed);
            self.whole_held = None;
        }
        self.count(key);
    }

    /// Counts what there is by the table.
    fn count(&mut self, key: usize) {
        let (pieces, has_exclusive) = with_table(|table| {
            let records = table.records(key);
            (records.len(), records.iter().any(|held| held.exclusive))
        });
        self.charges.truncate(pieces);
        self.set_excludes(has_exclusive || self.whole_held == Some(true));
    }
}

/// Charges for so many pieces in all.
fn charge(charges: &mut Vec<Charge>, pieces: usize) -> Result<()> {
    if pieces > PIECES_MAX {
        return Err(Errno::ENOLCK);
    }
    account::reserve(charges, pieces.saturating_sub(charges.len())).map_err(|_| Errno::ENOLCK)?;
    while charges.len() < pieces {
        charges.push(host_locks::charge().ok_or(Errno::ENOLCK)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_ask_ever_later_and_a_crowd_not_more_often_than_a_few() {
        let mut pause_ns = RETRY_FIRST_NS;
        let mut pauses = 0;
        while pause_ns < RETRY_MAX_NS {
            pause_ns = next_pause_ns(pause_ns, 1);
            pauses += 1;
        }
        assert_eq!((pause_ns, pauses, next_pause_ns(pause_ns, CROWD)), (RETRY_MAX_NS, 7, RETRY_MAX_NS));
        assert_eq!(next_pause_ns(RETRY_MAX_NS, 2 * CROWD), 2 * RETRY_MAX_NS);
        assert_eq!(next_pause_ns(RETRY_CROWD_MAX_NS, u64::MAX), RETRY_CROWD_MAX_NS);
    }
}
