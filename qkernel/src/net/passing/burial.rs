//! Dropping the files of messages that nobody receives.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::file::File;
use crate::net::passing::{let_others_go_on, sockets};
use machine::sched;
use machine::sync::{Rank, SpinLock};

/// After so many files others go on.
const AT_ONCE: u32 = 32;

/// Files that are still to be dropped, by the task that drops them: nobody does the work of others.
static LEFT: SpinLock<BTreeMap<usize, Vec<Arc<File>>>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

/// Drops files one after the other: a socket whose messages hold sockets whose messages hold sockets would otherwise recurse as
/// deep as the guest likes.
pub(super) fn bury(files: Vec<Arc<File>>) {
    let me = Arc::as_ptr(&sched::current()).cast::<u8>().addr();
    {
        let mut left = LEFT.lock();
        if let Some(mine) = left.get_mut(&me) {
            // One of those that this task drops further out holds these.
            mine.extend(files);
            return;
        }
        left.insert(me, files);
    }
    let mut dropped = 0_u32;
    while let Some(file) = next(me) {
        drop(file);
        dropped = dropped.wrapping_add(1);
        if dropped.is_multiple_of(AT_ONCE) {
            let_others_go_on();
        }
    }
    if sockets::count() != 0 {
        sockets::reference_went();
    }
}

/// The next file of a task. With the last one its list goes.
fn next(me: usize) -> Option<Arc<File>> {
    let mut left = LEFT.lock();
    let file = left.get_mut(&me).and_then(Vec::pop);
    let _list = if file.is_none() { left.remove(&me) } else { None };
    file
}

/// Files that are still to be dropped.
pub(super) fn count() -> usize {
    LEFT.lock().values().map(Vec::len).sum()
}
