//! Attributes ahead of the questions: who asks for one entry of a directory after another, in the order in which it was listed, gets
//! those of the next entries by the same hostcall.
//!
//! Only where the sandbox alone changes files. What came ahead is kept until an inode is made of it, or until anything may have
//! changed it: a name in the directory, or the end of an inode of a node in it. While an inode lives, its own attributes count;
//! so none that came ahead is older than a change. Of nodes with several names nothing is kept. Who asks for the attributes of a
//! node alone is told what came ahead, and no inode is made: most programs that go through a tree ask no more of most files.
//!
//! An inode that ends is known by its number until the attributes that came ahead are forgotten: so whoever finds it neither there nor
//! among them has not missed a change.

use abi::hostcall::{HostStat, STAT_LIST_MAX};
use abi::word::to_usize;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fs::hostfs::{HostFs, HostInode, attr};
use crate::fs::inode::{S_IFDIR, S_IFMT, Stat};
use machine::mm::account;
use machine::sync::{Rank, SpinLock};

/// Bytes of names that are kept of a directory.
const NAMES_BYTES: usize = 16 << 10;
/// Most directories whose names are kept.
const MOST: usize = 32;
/// Entries that are asked for one by one before others come ahead.
const PATIENCE: u32 = 2;
/// The highest count of [`Habit`].
const HABIT: u32 = 8;
/// Entries among which the next one is looked for.
const NEAR: usize = 4;

/// The directories with listings, the oldest first.
static RECENT: SpinLock<VecDeque<Weak<HostInode>>> = SpinLock::new(Rank::Leaf, VecDeque::new());

/// Whether what comes ahead is asked for: then all of it comes with the first entry.
#[derive(Default)]
pub(super) struct Habit(AtomicU32);

impl Habit {
    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    fn was_useful(&self) {
        let known = self.0.load(Ordering::Relaxed);
        if known < HABIT {
            self.0.store(known + 1, Ordering::Relaxed);
        }
    }

    fn was_relied_on(&self) {
        let known = self.0.load(Ordering::Relaxed);
        self.0.store(known.saturating_sub(1), Ordering::Relaxed);
    }
}

/// The entries that a program was given, from the beginning of the directory on.
#[derive(Default)]
pub(super) struct Listing {
    /// Names, each ended by NUL.
    names: Vec<u8>,
    /// The position behind the last one.
    end: u64,
    /// Where the name stands that is asked for next, if they are asked for in order.
    next: usize,
    /// Names in a row that were asked for in order.
    streak: u32,
    /// Attributes that came ahead of the questions, each with the place of its name.
    ahead: VecDeque<(usize, HostStat)>,
    /// The place in it of what is asked for next, if it is asked for in order.
    cursor: usize,
    /// Moves when what came ahead, or is on its way, is out of date.
    version: u64,
}

/// Names to ask for, the one that is wanted first.
pub(super) struct Ahead {
    /// Each ended by NUL.
    pub names: Vec<u8>,
    pub count: usize,
    from: usize,
    version: u64,
}

impl Listing {
    fn name_at(&self, at: usize) -> Option<&[u8]> {
        self.names.get(at..)?.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())
    }

    /// Where the next names from `at` on stand: some may be known, so that nobody asks for them.
    fn near(&self, at: usize) -> impl Iterator<Item = usize> {
        let behind = |at: &usize| Some(at + self.name_at(*at)?.len() + 1);
        core::iter::successors(Some(at), behind).take(NEAR)
    }

    /// An entry at `position` was given to a program.
    fn add(&mut self, position: u64, next: u64, name: &[u8]) {
        if position == 0 {
            *self = Self { version: self.version + 1, ..Self::default() };
        }
        let room = NAMES_BYTES - self.names.len();
        let has_memory = !self.names.is_empty() || account::check(NAMES_BYTES).is_ok();
        if position != self.end || name.len() >= room || !has_memory {
            return;
        }
        self.end = next;
        if !matches!(name, b"." | b"..") {
            self.names.extend_from_slice(name);
            self.names.push(0);
        }
    }

    fn is_at(&self, at: usize, name: &[u8]) -> bool {
        let rest = self.names.get(at..).unwrap_or(&[]);
        !name.is_empty() && rest.starts_with(name) && rest.get(name.len()) == Some(&0)
    }

    /// The place of what came ahead of `name`.
    fn find(&self, name: &[u8]) -> Option<usize> {
        let count = self.ahead.len();
        (self.cursor.min(count)..count)
            .chain(0..self.cursor.min(count))
            .find(|index| self.is_at(self.ahead[*index].0, name))
    }

    /// The attributes of `name`, if they came ahead, and the version at that.
    fn peek(&mut self, name: &[u8]) -> Option<(HostStat, u64)> {
        let index = self.find(name)?;
        let (at, stat) = *self.ahead.get(index)?;
        (self.next, self.cursor) = (at + name.len() + 1, index + 1);
        Some((stat, self.version))
    }

    /// Takes the attributes of `name` out, if they came ahead, for an inode that is made of them.
    fn take(&mut self, name: &[u8]) -> Option<HostStat> {
        let index = self.find(name)?;
        let (at, stat) = self.ahead.remove(index)?;
        (self.next, self.cursor) = (at + name.len() + 1, index);
        Some(stat)
    }

    /// The names to ask for when `name` is; `None`: it alone. `eager`: as many as there may be.
    fn ask(&mut self, name: &[u8], eager: bool) -> Option<Ahead> {
        let from = self.near(self.next).chain([0]).find(|at| self.name_at(*at) == Some(name));
        let Some(from) = from else {
            self.streak = 0;
            return None;
        };
        self.next = from + name.len() + 1;
        self.streak += 1;
        let growing = if eager { 8 } else { self.streak.checked_sub(PATIENCE)? };
        let most = to_usize(STAT_LIST_MAX).min(8 << growing.min(8));
        let (mut to, mut count) = (from, 0);
        while let Some(name) = self.name_at(to).filter(|_| count < most) {
            to += name.len() + 1;
            count += 1;
        }
        let names = self.names.get(from..to)?.to_vec();
        Some(Ahead { names, count, from, version: self.version })
    }

    /// Keeps what was asked for by `ahead`, but for the first name's.
    fn keep(&mut self, ahead: &Ahead, stats: &[HostStat]) {
        if ahead.version != self.version {
            return;
        }
        self.ahead.clear();
        self.cursor = 0;
        let mut at = ahead.from;
        for (name, stat) in ahead.names.split(|byte| *byte == 0).zip(stats) {
            let is_dir = stat.mode & S_IFMT == S_IFDIR;
            if at != ahead.from && stat.mode != 0 && (is_dir || stat.nlink == 1) {
                self.ahead.push_back((at, *stat));
            }
            at += name.len() + 1;
        }
    }

    fn forget_ahead(&mut self) {
        self.version += 1;
        self.ahead.clear();
    }
}

impl HostInode {
    /// A program was given the entry at `position` of this directory.
    pub(super) fn listed(&self, position: u64, next: u64, name: &[u8]) {
        if self.fs.shared {
            return;
        }
        self.listing.lock().add(position, next, name);
        if position == 0 {
            self.remember_listing();
        }
    }

    fn remember_listing(&self) {
        let oldest = {
            let mut recent = RECENT.lock();
            if recent.iter().any(|known| known.ptr_eq(&self.me)) {
                return;
            }
            recent.push_back(self.me.clone());
            if recent.len() > MOST { recent.pop_front() } else { None }
        };
        oldest.and_then(|dir| dir.upgrade()).iter().for_each(|dir| dir.forget_listing());
    }

    fn forget_listing(&self) {
        let listing = {
            let mut listing = self.listing.lock();
            let version = listing.version + 1;
            core::mem::replace(&mut *listing, Listing { version, ..Listing::default() })
        };
        drop(listing);
    }

    /// The attributes of the entry of this name, if they came ahead, for an inode that is made of them.
    pub(super) fn came_ahead(&self, name: &[u8]) -> Option<HostStat> {
        let stat = self.listing.lock().take(name)?;
        self.fs.habit.was_useful();
        // One that is about to end may be newer.
        if self.fs.is_known(&stat, |known| known.strong_count() == 0) { None } else { Some(stat) }
    }

    /// The attributes of the entry of this name, if they came ahead and nothing else is known of the node.
    pub(super) fn stat_ahead(&self, name: &[u8]) -> Option<Stat> {
        let (stat, version) = self.listing.lock().peek(name)?;
        if self.fs.is_known(&stat, |_| true) || self.listing.lock().version != version {
            return None;
        }
        self.fs.habit.was_useful();
        Some(attr::to_stat(&stat))
    }

    /// The names to ask for with this one; `None`: it alone.
    pub(super) fn ask_ahead(&self, name: &[u8]) -> Option<Ahead> {
        let eager = self.fs.habit.is_on();
        let ahead = self.listing.lock().ask(name, eager).filter(|ahead| ahead.count > 1)?;
        self.fs.habit.was_relied_on();
        Some(ahead)
    }

    /// Keeps what was asked for.
    pub(super) fn keep_ahead(&self, ahead: &Ahead, stats: &[HostStat]) {
        self.listing.lock().keep(ahead, stats);
    }

    /// A name of the directory, or a node in it, has changed or is about to.
    pub(super) fn forget_ahead(&self) {
        self.listing.lock().forget_ahead();
    }
}

impl HostFs {
    /// Whether there is an inode of the node, which may end just now, of which `f` holds.
    fn is_known(&self, stat: &HostStat, f: impl FnOnce(&Weak<HostInode>) -> bool) -> bool {
        self.nodes.lock().get(&(stat.dev, stat.ino)).is_some_and(f)
    }
}

/// Gives all listings back.
pub fn forget_all() {
    let recent = core::mem::take(&mut *RECENT.lock());
    let dirs: Vec<Arc<HostInode>> = recent.iter().filter_map(Weak::upgrade).collect();
    dirs.iter().for_each(|dir| dir.forget_listing());
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;

    fn name(number: usize) -> String {
        format!("n{number}")
    }

    fn listing(count: usize) -> Listing {
        let mut listing = Listing::default();
        for (at, name) in [".", ".."].iter().enumerate() {
            listing.add(at as u64, at as u64 + 1, name.as_bytes());
        }
        for number in 0..count {
            listing.add(number as u64 + 2, number as u64 + 3, name(number).as_bytes());
        }
        listing
    }

    fn stats(count: usize) -> Vec<HostStat> {
        (0..count)
            .map(|ino| HostStat { ino: ino as u64, mode: 0o100_644, nlink: 1, ..HostStat::default() })
            .collect()
    }

    /// Asks for the first names until others come ahead.
    fn begun(listing: &mut Listing) -> Ahead {
        assert!(listing.ask(b"n0", false).is_none());
        listing.ask(b"n1", false).unwrap()
    }

    #[test]
    fn entries_that_are_asked_for_in_order_come_ahead_and_once() {
        let mut listing = listing(300);
        let ahead = begun(&mut listing);
        assert_eq!((ahead.count, ahead.names.starts_with(b"n1\0n2\0")), (8, true));
        listing.keep(&ahead, &stats(8));
        for number in 2..9 {
            let found = listing.take(name(number).as_bytes()).map(|stat| stat.ino);
            assert_eq!(found, Some(number as u64 - 1));
        }
        assert!(listing.take(b"n2").is_none() && listing.take(b"n9").is_none());
        // Nobody asked for the tenth, which is known.
        assert_eq!(listing.ask(b"n10", false).map(|ahead| ahead.count), Some(16));
        assert!(listing.ask(b"n200", false).is_none() && listing.ask(b"n11", false).is_none());
    }

    #[test]
    fn who_only_asks_for_attributes_gets_them_as_often_as_wanted() {
        let mut listing = listing(300);
        let ahead = listing.ask(b"n0", true).unwrap();
        assert_eq!(ahead.count, 64);
        listing.keep(&ahead, &stats(64));
        for name in ["n1", "n2", "n1", "n63", "n3"] {
            let ino = name[1..].parse().ok();
            assert_eq!(listing.peek(name.as_bytes()).map(|(stat, _)| stat.ino), ino);
        }
        // Names that begin like others are names of their own.
        assert!(listing.peek(b"n").is_none() && listing.peek(b"n0").is_none() && listing.peek(b"").is_none());
        assert!(listing.take(b"n2").is_some() && listing.peek(b"n2").is_none());
        assert_eq!(listing.peek(b"n3").map(|(stat, _)| stat.ino), Some(3));
        listing.forget_ahead();
        assert!(listing.peek(b"n3").is_none());
    }

    #[test]
    fn a_habit_is_gone_when_nothing_that_comes_ahead_is_used() {
        let habit = Habit::default();
        assert!(!habit.is_on());
        (0..100).for_each(|_| habit.was_useful());
        for _ in 0..HABIT {
            assert!(habit.is_on());
            habit.was_relied_on();
        }
        assert!(!habit.is_on());
    }

    #[test]
    fn what_may_have_changed_is_not_kept() {
        let mut listing = listing(30);
        let ahead = begun(&mut listing);
        let mut found = stats(8);
        found[2].nlink = 2;
        found[3] = HostStat::default();
        listing.keep(&ahead, &found);
        assert!(
            listing.take(b"n3").is_none() && listing.take(b"n4").is_none() && listing.take(b"n5").is_some()
        );
        listing.forget_ahead();
        assert!(listing.take(b"n6").is_none());
        // It changed while the host was asked.
        listing.keep(&ahead, &stats(8));
        assert!(listing.take(b"n2").is_none());
    }

    #[test]
    fn of_a_large_directory_the_first_names_are_kept() {
        let mut listing = listing(100_000);
        assert!(listing.names.len() <= NAMES_BYTES && listing.names.len() > NAMES_BYTES - 300);
        listing.add(0, 1, b"again");
        assert_eq!(listing.names, b"again\0");
        for position in 1..1000 {
            listing.add(position, position + 1, &[b'x'; 255]);
        }
        assert_eq!(listing.names.len(), 6 + 63 * 256);
    }
}
